"""Experts that get unequally many tokens: no token is lost, the fullest rank counts, and dense models have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from simcluster.base.errors import InputError
from simcluster.collectives.token_relay import ExpertRouting
from simcluster.faults import Fault
from simcluster.faults.expert_imbalance import ExpertImbalance
from simcluster.faults.fault_spec import BatchSizes, JobContext, RoutedTokens
from simcluster.faults.rank_effects import RankPrograms
from simcluster.planning.ops import MAIN, Op, Segment, StageProgram, WorkItem
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.work_kinds import Collective, Compute


def imbalance(**tokens: Any) -> ExpertImbalance:
    per = tokens.pop("per", "layer")
    fault = TypeAdapter(Fault).validate_python({"kind": "expert_imbalance", "tokens": tokens, "per": per, "seed": 3})
    assert isinstance(fault, ExpertImbalance)
    return fault


LAWS = (
    imbalance(kind="zipf", exponent=1.2),
    imbalance(kind="dirichlet", concentration=0.5, per="pass"),
)


def tokens(experts: int, layer: int = 0, **where: int) -> RoutedTokens:
    return RoutedTokens(ExpertRouting(experts, 1), 1, layer, **where)


@given(fault=st.sampled_from(LAWS), ep=st.sampled_from([1, 2, 4, 8]), layer=st.integers(0, 99), step=st.integers(0, 9))
def test_no_token_is_lost(fault: ExpertImbalance, ep: int, layer: int, step: int) -> None:
    loads = fault.expert_loads(RoutedTokens(ExpertRouting(16, 1), 1, layer, step), ep)
    assert loads.shape == (ep,)
    assert loads.sum() == pytest.approx(ep)
    assert (loads >= 0).all()
    assert 1.0 - 1e-12 <= loads.max() <= ep


def test_counted_fractions_are_taken_rank_by_rank() -> None:
    loads = imbalance(kind="fractions", values=[4, 2, 1, 1]).expert_loads(tokens(4), 2)
    assert loads.tolist() == [1.5, 0.5]
    assert loads.max() == 1.5
    even = imbalance(kind="fractions", values=[1, 1, 1, 1])
    assert even.is_neutral
    assert even.expert_loads(tokens(4), 4).tolist() == [1.0] * 4
    assert imbalance(kind="zipf", exponent=0).is_neutral


def test_zipf_is_its_law_in_any_order() -> None:
    shares = LAWS[0].expert_loads(tokens(8, layer=5), 8) / 8
    expected = np.arange(1, 9) ** -1.2
    assert np.sort(shares)[::-1] == pytest.approx(expected / expected.sum())


def test_what_is_drawn_anew() -> None:
    by_layer, by_pass = LAWS

    def loads(fault: ExpertImbalance, **where: int) -> list[float]:
        return fault.expert_loads(tokens(8, **where), 4).tolist()

    assert loads(by_layer) == loads(by_layer, step=3, microbatch=2, group=1) != loads(by_layer, layer=1)
    assert loads(by_pass) == loads(by_pass)
    assert len({tuple(loads(by_pass, **{name: 1})) for name in ("step", "microbatch", "group", "layer")}) == 4


def test_ops_of_experts_take_what_their_rank_gets() -> None:
    """Experts take their rank's load, what is gathered over tp as much; an all-to-all waits for the fullest rank."""
    found, ranks = times_of(imbalance(kind="fractions", values=[4, 2, 1, 1]))
    full, empty = [1.0, 1.5, 1.5, 1.5], [1.0, 0.5, 1.5, 0.5]
    assert found == [full, empty, full, empty]
    assert ranks.symmetry_key(0) == ranks.symmetry_key(2) != ranks.symmetry_key(1)


def test_an_all_to_all_waits_for_the_rank_that_is_fullest_by_all_faults_together() -> None:
    """Not for one that would be the fullest by each of them."""
    one, other = ([4.0, 2.0, 1.0, 1.0], [1.0, 1.0, 2.0, 4.0])
    found, _ = times_of(*(imbalance(kind="fractions", values=values) for values in (one, other)))
    assert found == [[1.0, 0.75, 0.75, 0.75]] * 4


def times_of(*faults: ExpertImbalance) -> tuple[list[list[float]], RankPrograms]:
    """Of every rank, what a computation, its experts, an all-to-all and a gather over tp take, in even shares."""
    computing = [Op(Compute(1.0), "compute", "forward", name, layer=2) for name in ("attention", "experts")]
    moving = [Op(Collective("any", axis, 8.0), axis, "any", "dispatch", layer=2) for axis in ("ep", "tp")]
    ops = (*computing, *moving)
    program = StageProgram(0, {MAIN: [WorkItem(Segment(ops), "F0", microbatch=0)]})
    batch = BatchSizes(steps=1, microbatches=1, micro_batch=1, length=8, experts=4)
    plan = ParallelPlan(dp=4, ep=2)
    ranks = RankPrograms(faults, plan, JobContext(plan.list_workers, [0] * 4, 0, batch))
    found = []
    for rank in range(4):
        works = [op.work for op in ranks.change_program(rank, program).lanes[MAIN][0].segment.ops]
        found.append([work.seconds if isinstance(work, Compute) else work.load for work in works])  # type: ignore[union-attr]
    return found, ranks


def test_what_does_not_fit() -> None:
    with pytest.raises(InputError, match="8 experts are not divisible by ep 3"):
        LAWS[0].expert_loads(tokens(8), 3)
    with pytest.raises(InputError, match="4 fractions for 8 experts; give one per expert"):
        imbalance(kind="fractions", values=[1, 1, 1, 2]).expert_loads(tokens(8), 2)


def test_a_dense_model_has_none(tiny: Any) -> None:
    fault = {"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 1.0}}
    with pytest.raises(ValueError, match=r"the model is dense: it has no experts .* remove expert_imbalance"):
        tiny(faults=[fault])
