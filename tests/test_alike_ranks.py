"""Ranks with equal timelines, of which one is measured for all: what is told of every rank and of the mean rank is the
same, to the bit, as where each is measured by itself."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Tiny
from drawn.scenarios import documents
from hypothesis import given, settings

import simcluster
from simcluster.results import alike_ranks, played
from simcluster.results.contention import free_seconds
from simcluster.results.overlap import Key, overlaps
from simcluster.results.result import Result
from simcluster.simulate import replay
from simcluster.studies.search.plan import alone

HASHED = {
    "cluster.nodes": 16, "cluster.fabric.nodes_per_unit": 3, "cluster.routing": {"kind": "static"}, "gpus": 128,
    "parallel.tp": 4, "parallel.pp": 4,
    "parallel.dp": 8, "parallel.order": ["tp", "cp", "pp", "dp"], "parallel.zero": 1, "pipeline.chunks": 1,
    "pipeline.schedule": "1f1b", "training.global_batch": 16, "model.layers": 4, "model.sequence_length": 512,
}  # fmt: skip


def _by_itself(result: Result) -> Result:
    """The same, of which all spans are there: every rank is measured."""
    every = Result(**{name: getattr(result, name) for name in Result.__dataclass_fields__})
    assert len(every.spans)
    every.__dict__["_alike"] = {rank: rank for rank in every.weights}
    return every


def _same(result: Result) -> None:
    every = _by_itself(result)
    assert result.times == every.times
    assert result.times.of_rank == every.times.of_rank
    assert result.overlap == every.overlap
    assert result.account == every.account
    assert result.peaks == every.peaks
    assert result.memory_peak == every.memory_peak


@settings(max_examples=5)
@given(document=documents())
def test_one_of_equal_ranks_is_measured_for_all(tiny: Tiny, document: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alike_ranks, "_MANY", 0)
        patch.setattr(played, "_WORTH", 0)
        _same(replay(tiny(**document), folded=False))


def test_ranks_that_hashed_routes_split_often_go_through_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike_ranks, "_MANY", 32)
    result = replay(alone(simcluster.load("gpt3_175b_64xa100", HASHED)))
    different = set(result._alike.values())
    assert 4 < len(different) <= len(result.weights) / 2
    assert len(result._few.spans) < 0.8 * len(_by_itself(result).spans)
    _same(result)
    every = _by_itself(result).overlap.of_rank
    contended = [rank for rank in different if every[rank][Key("pp")].contention]
    assert contended
    for rank in contended:  # by itself, whoever it sends to and receives from
        lowered, record = alike_ranks.part_of(result.lowered, result.record, [rank])
        part = played.Run(lowered=lowered, record=record, steps=1, ranks=result.ranks)
        free = free_seconds(lowered, part.spans, part._calls)
        assert overlaps(part.spans, {rank: 1}, free, steps=1).of_rank[rank] == every[rank]


def test_a_slow_rank_is_like_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike_ranks, "_MANY", 0)
    slow = {"kind": "slow_gpu", "rank": 5, "factor": 1.5}
    alike = replay(simcluster.load("tiny_3d", {"faults": [slow]}), folded=False)._alike
    assert list(alike.values()).count(alike[5]) == 1
    assert len(set(alike.values())) < len(alike)
