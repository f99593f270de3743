"""What stragglers cost a simulated job: exact counterfactuals, and the estimator that works from the trace alone."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from simcluster.step.simulate import simulate
from simcluster.studies.whatif.straggling import StragglerCosts, stragglers

JOB: dict[str, Any] = {
    "cluster": {"topology": "flat", "gpus": 8},
    "parallel": {"pp": 2, "dp": 4},
    "training": {"global_batch": 32},
}


def slow(rank: int, factor: float) -> dict[str, Any]:
    return {"kind": "slow_gpu", "rank": rank, "factor": factor}


def found(tiny: Any, *faults: dict[str, Any], **sections: Any) -> StragglerCosts:
    return stragglers(simulate(tiny(faults=list(faults), **{**JOB, **sections})))


def test_one_slow_gpu_is_all_of_the_excess(tiny: Any) -> None:
    one = found(tiny, slow(5, 1.3))
    cause = next(cause for cause in one.causes if cause.what == "slow gpu, rank 5, slowdown 1.3")
    assert cause.step_time_without == one.clean_step_time
    assert cause.step_time_alone == one.step_time
    assert cause.cost == pytest.approx(1 - 1 / one.slowdown)
    assert one.slowdown_by_worker[1, 1] == one.slowdown > 1.1  # rank 5 is dp rank 1 of stage 1
    assert (one.slowdown_by_worker == 1).sum() == 7


def test_the_estimator_is_near_the_exact_counterfactual(tiny: Any) -> None:
    """It idealises by the mean over all workers, which contains the slow one: it promises less than can be gained."""
    for rank, factor in ((5, 1.3), (6, 1.15), (4, 2.0)):
        one = found(tiny, slow(rank, factor))
        cause = next(cause for cause in one.causes if cause.what.startswith("slow"))
        assert cause.estimated_cost is not None
        assert 0.6 * cause.cost < cause.estimated_cost < cause.cost
        exact = np.unravel_index(int(one.slowdown_by_worker.argmax()), one.slowdown_by_worker.shape)
        assert one.estimated.worst == (tuple(map(int, exact)),)


@pytest.mark.parametrize("dp", [2, 4, 8])
@pytest.mark.parametrize("factor", [1.2, 2.0])
def test_the_estimator_is_off_by_the_slow_ones_part_of_the_mean(tiny: Any, dp: int, factor: float) -> None:
    """Replicas that meet once a step: what is typical is the mean over all, so 1 / dp of what the slow one loses."""
    job = {"cluster": {"topology": "flat", "gpus": dp}, "parallel": {"dp": dp}, "training": {"global_batch": 4 * dp}}
    one = found(tiny, slow(dp - 1, factor), **job)
    (cause,) = one.causes
    assert cause.estimated_without is not None
    assert cause.step_time_without == one.clean_step_time
    assert cause.estimated_without - cause.step_time_without == pytest.approx(
        (one.step_time - one.clean_step_time) / dp, rel=0.02
    )
    assert one.slowdown - one.estimated.slowdown == pytest.approx(
        one.slowdown - one.step_time / (one.clean_step_time + (one.step_time - one.clean_step_time) / dp), rel=0.02
    )


def test_the_lesser_of_two_slow_gpus_costs_nothing_while_the_other_is_there(tiny: Any) -> None:
    two = found(tiny, slow(5, 1.5), slow(6, 1.2))
    costs = {cause.what: cause for cause in two.causes}
    greater, lesser = costs["slow gpu, rank 5, slowdown 1.5"], costs["slow gpu, rank 6, slowdown 1.2"]
    assert greater.cost > 0.1
    assert abs(lesser.cost) < 0.01
    assert lesser.step_time_alone is not None
    assert lesser.step_time_alone > two.clean_step_time * 1.05
    assert two.causes.index(greater) < two.causes.index(lesser)


def test_a_long_last_stage_is_a_cause(tiny: Any) -> None:
    model = {"vocab_size": 32000, "layers": 8}  # a head of several layers' time
    long = found(tiny, model=model)
    assert long.slowdown == 1.0
    costs = {cause.what: cause.cost for cause in long.causes}
    assert list(costs) == ["LM head and loss", "uneven stages"]  # no cut can do more than take the head away
    assert costs["LM head and loss"] > costs["uneven stages"] > 0.05
    json.dumps(long.to_dict(), allow_nan=False)


def test_a_slow_link_has_no_worker(tiny: Any) -> None:
    link = {"kind": "slow_link", "between": ["gpu0", "switch"], "factor": 0.1}
    one = found(tiny, link)
    assert one.slowdown > 1.0
    assert (one.slowdown_by_worker == 1).all()
    cause = next(cause for cause in one.causes if cause.what.startswith("slow link, between gpu0 - switch"))
    assert cause.estimated_without is None
    assert cause.step_time_without == one.clean_step_time
