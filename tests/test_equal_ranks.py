"""Ranks with equal spans are measured once, and come to what each of them comes to."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Tiny

from simcluster.results.equal_ranks import equal_ranks
from simcluster.results.overlap import overlaps
from simcluster.results.step_time import step_time
from simcluster.simulate import simulate

SLOW = {"kind": "slow_gpu", "rank": 5, "factor": 1.5}
JOB: dict[str, Any] = {"cluster": {"topology": "dgx_a100", "nodes": 2}, "gpus": 16, "training": {"global_batch": 16}}


@pytest.mark.parametrize("faults", [[], [SLOW]])
@pytest.mark.parametrize("parallel", [{"dp": 16}, {"tp": 2, "pp": 2, "dp": 4}])
def test_equal_ranks_measure_the_same(tiny: Tiny, parallel: dict[str, int], faults: list[dict[str, Any]]) -> None:
    result = simulate(tiny(**JOB, parallel=parallel, faults=faults), folded=False)
    assert len({*equal_ranks(result.spans, result.weights).values()}) < 16
    assert dict(result.times.of_rank) == dict(step_time(result.spans, result.weights, steps=1).of_rank)
    assert result.overlap == overlaps(result.spans, result.weights, result.free_seconds, steps=1)


def test_few_ranks_are_not_compared(tiny: Tiny) -> None:
    result = simulate(tiny(**{**JOB, "gpus": 8}, parallel={"dp": 8}), folded=False)
    assert equal_ranks(result.spans, result.weights) == {rank: rank for rank in range(8)}


def test_a_slow_rank_is_equal_to_none(tiny: Tiny) -> None:
    result = simulate(tiny(**JOB, parallel={"dp": 16}, faults=[SLOW]), folded=False)
    assert [*equal_ranks(result.spans, result.weights).values()].count(5) == 1
