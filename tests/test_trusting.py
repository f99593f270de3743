"""Ranks folded on trust: fewer of them where transfers hardly meet, and the times are the plain fold's, to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import Tiny
from drawn.scenarios import documents
from drawn.scopes import SCOPES
from hypothesis import given, settings
from test_same_answer import spans_of

import simcluster
from simcluster.engine.contention_check import _held_back, crowded
from simcluster.simulate import replay
from simcluster.studies.search.plan import alone
from simcluster.studies.search.playing import replay_on_trust
from simcluster.symmetry.optimistic import OptimisticFold


@settings(max_examples=12)
@given(document=documents(SCOPES["plan"]))
def test_what_is_folded_on_trust_is_what_every_rank_does(tiny: Tiny, document: dict[str, Any]) -> None:
    scenario = tiny(**{**document, "faults": []})
    plain, trusted = replay(scenario), replay_on_trust(scenario)
    assert len(trusted.weights) <= len(plain.weights)
    assert trusted.step_time == plain.step_time
    for rank in range(scenario.gpus):
        assert spans_of(trusted, rank) == spans_of(plain, rank), f"rank {rank}"


def test_hashed_routes_split_those_that_meet_and_nobody_else() -> None:
    changes = {
        "cluster.nodes": 16, "cluster.fabric.nodes_per_unit": 3, "cluster.routing": {"kind": "static"}, "gpus": 128,
    "parallel.tp": 4, "parallel.pp": 4,
        "parallel.dp": 8, "parallel.order": ["tp", "cp", "pp", "dp"], "parallel.zero": 1, "pipeline.chunks": 1,
        "pipeline.schedule": "1f1b", "training.global_batch": 16, "model.layers": 4, "model.sequence_length": 512,
    }  # fmt: skip
    scenario = alone(simcluster.load("gpt3_175b_64xa100", changes))
    plain, trusted = replay(scenario), replay_on_trust(scenario)
    assert 4 < len(trusted.weights) < len(plain.weights)
    for rank in range(0, 128, 7):
        assert spans_of(trusted, rank) == spans_of(plain, rank)


def test_what_ranks_do_in_step_crowds_nobody() -> None:
    """It need not be looked at op by op."""
    changes = {
        "cluster.nodes": 16, "cluster.fabric.nodes_per_unit": 3, "cluster.routing": {"kind": "static"}, "gpus": 128,
    "parallel.tp": 4, "parallel.pp": 4,
        "parallel.dp": 8, "parallel.zero": 1, "pipeline.chunks": 1, "pipeline.schedule": "1f1b",
        "training.global_batch": 16, "model.layers": 4, "model.sequence_length": 512,
    }  # fmt: skip
    result = replay(alone(simcluster.load("gpt3_175b_64xa100", changes)))
    assert result.lowered.played.in_step
    one_by_one = replace(result.lowered, played=result.lowered.program)
    assert set(crowded(result.lowered, result.record)) == set(crowded(one_by_one, result.record)) != set()


@pytest.mark.parametrize(("nodes", "settled"), [(16, False), (1, True)])
def test_a_trust_with_nothing_to_learn_is_settled(nodes: int, settled: bool) -> None:
    changes = {
        "cluster.nodes": nodes, "cluster.fabric.nodes_per_unit": 3, "gpus": 8 * nodes, "parallel.tp": 4,
        "parallel.pp": 1, "parallel.dp": 2 * nodes, "pipeline.chunks": 1, "pipeline.schedule": "1f1b",
        "training.global_batch": 32, "model.layers": 4, "model.sequence_length": 512, "overlap.pipeline": False,
    }  # fmt: skip
    trust, scenario = OptimisticFold(), alone(simcluster.load("gpt3_175b_64xa100", changes))
    assert trust.settled, "nobody has asked it yet"
    result = replay(scenario, trust=trust)
    assert trust.settled == settled
    if settled:
        assert not trust.learn(crowded(result.lowered, result.record))


@pytest.mark.parametrize(
    ("uses", "held"),
    [
        ([(0, 0.0, 1.0, 0.6), (0, 0.5, 2.0, 0.6)], [True, True]),
        ([(0, 0.0, 1.0, 0.4), (0, 0.5, 2.0, 0.5)], [False, False]),  # there is room for both
        ([(0, 0.0, 1.0, 1.0), (0, 1.0, 2.0, 1.0)], [False, False]),  # one after the other
        ([(0, 0.0, 1.0, 1.0), (1, 0.0, 1.0, 1.0)], [False, False]),  # on two links
        ([(0, 0.0, 9.0, 0.3), (0, 1.0, 2.0, 0.6), (0, 1.5, 3.0, 0.6), (0, 4.0, 5.0, 0.6)], [True, True, True, False]),
        ([(0, 0.0, 2.0, 0.9), (0, 1.0, 1.0, 1.0)], [True, True]),  # what takes no time is there as well
    ],
)
def test_who_is_on_a_crowded_link(uses: list[tuple[int, float, float, float]], held: list[bool]) -> None:
    link, begin, end, part = (np.array(column) for column in zip(*uses, strict=True))
    assert _held_back(link, begin, end, part).tolist() == held
