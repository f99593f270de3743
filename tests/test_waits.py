"""Who waited for whom: for the last to arrive at a collective, for the sender in the pipeline, and how long."""

from __future__ import annotations

import pytest
from conftest import Tiny

from simcluster.results.waits import Wait
from simcluster.step.simulate import simulate
from simcluster.studies.bench.fixed_durations import Costs, simulate_costs


def test_at_a_collective_for_the_last_to_arrive() -> None:
    """Two replicas, one 1.5 times as slow: the other waits half of its own 30 s for the gradients."""
    run = simulate_costs(
        Costs(forward=10, backward=20, grad_reduce=6), stages=1, microbatches=1, dp=2, slowness={1: 1.5}
    )
    assert run.waits == [Wait(rank=0, culprit=1, where="group", seconds=15.0)]
    assert run.step_time == 51


def test_at_every_collective_of_the_layer() -> None:
    """tp: in each of 4 collectives the fast rank waits for a tenth of its share of compute."""
    costs = Costs(forward=10, backward=20, tensor_parallel=1, collectives=2)
    run = simulate_costs(costs, stages=1, microbatches=3, tp=2, slowness={0: 1.5})
    assert run.waits == [Wait(rank=1, culprit=0, where="group", seconds=3 * 0.5 * 30)]


def test_in_the_pipeline_for_the_sender() -> None:
    """Two stages, F = B = 4, send 1: stage 1 waits for its first F, stage 0 for its first B until the send begins."""
    run = simulate_costs(Costs(forward=4, backward=4, send=1), stages=2, microbatches=1)
    assert run.waits == [
        # stage 0 is free at 4; stage 1 has its tensor at 5 and its gradient at 13, sent from then to 14
        Wait(rank=0, culprit=1, where="pipeline", seconds=13 - 4),
        Wait(rank=1, culprit=0, where="pipeline", seconds=4.0),
    ]
    assert run.step_time == 18


def test_nobody_waits_where_nobody_is_late() -> None:
    costs = Costs(forward=4, backward=4, tensor_parallel=1, grad_reduce=1)
    assert simulate_costs(costs, stages=1, microbatches=4, tp=2, dp=4, folded=False).waits == []


def test_the_longest_comes_first_and_the_culprit_is_the_slow_one(tiny: Tiny) -> None:
    clean = tiny(cluster={"topology": "dgx_a100", "nodes": 1}, parallel={"tp": 2, "dp": 4})
    assert simulate(clean).waits == []
    slow = tiny(
        cluster={"topology": "dgx_a100", "nodes": 1},
        parallel={"tp": 2, "dp": 4},
        faults=[{"kind": "slow_gpu", "rank": 5, "factor": 1.5}],
    )
    waits = simulate(slow).waits
    assert [wait.seconds for wait in waits] == sorted((wait.seconds for wait in waits), reverse=True)
    assert {wait.culprit for wait in waits if wait.rank == 4} == {5}  # its tp peer waits for it and nobody else
    for replica in {wait.rank for wait in waits} - {4, 5}:  # the replicas above all for that tp group
        assert next(wait.culprit for wait in waits if wait.rank == replica) in (4, 5)
    assert not [wait for wait in waits if wait.rank == 5]


@pytest.mark.parametrize("folded", [True, False])
def test_waiting_in_groups_is_ready_to_start(tiny: Tiny, folded: bool) -> None:
    """Against the timeline: the sum over a rank's waits at collectives is that of start - ready."""
    scenario = tiny(
        cluster={"topology": "flat", "gpus": 4},
        parallel={"tp": 2, "dp": 2},
        faults=[{"kind": "slow_gpu", "rank": 2, "factor": 2.0}],
    )
    result = simulate(scenario, folded=folded)
    for rank in result.weights:
        table = result.timeline_of(rank)
        expected = float((table["start"] - table["ready"]).sum())
        found = sum(wait.seconds for wait in result.waits if wait.rank == rank and wait.where == "group")
        assert found == pytest.approx(expected, rel=1e-12)
        assert (found == 0) == (rank == 2)
