"""A job that goes on with fewer replicas: which leave, what the others' step is, and when machines are taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simcluster.longrun.checkpoint_pattern import CheckpointPattern, SnapshotCost
from simcluster.longrun.events import simulate_with_log
from simcluster.longrun.long_run import REGROWTH, FailureMode, LongRun, SpareNodes
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.run_builder import build_long_run
from simcluster.scenario.run_times import ExponentialTime, FixedTime
from simcluster.scenario.scenario import Scenario, from_document, load
from simcluster.step.simulate import simulate
from simcluster.studies.multi_job import PlacedJob, simulate_jobs
from simcluster.studies.whatif.mitigations import (
    drop_node,
    drop_node_and_move_ranks,
    reduce_to_ranks,
    remove_nodes,
    simulate_reduced_job,
)

PODS = {
    "cluster": {"topology": "dgx_h100", "nodes": 8, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 4}},
    "gpus": 16,
    "parallel": {"tp": 2, "pp": 2, "dp": 4, "sequence_parallel": True, "zero": 1},
}


def job(**changes: Any) -> Scenario:
    return load("tiny_3d", {**PODS, **changes})


# --- which replicas ---------------------------------------------------------------------------------------------------


def test_the_replica_of_the_failed_machine_leaves_and_others_stay() -> None:
    scenario = job()  # a stage is four machines of two GPUs: a replica is machines i and 4 + i
    one = remove_nodes(scenario, 1)
    assert one is not None
    assert one.gpus == (*range(2, 8), *range(10, 16))
    assert (one.scenario.dp, one.scenario.gpus, one.scenario.training.global_batch) == (3, 12, 6)
    assert remove_nodes(scenario, 2) == one  # the other machine of replica 0 stands in for the second that fails
    two = remove_nodes(scenario, 3)
    assert two is not None
    assert two.gpus == (*range(4, 8), *range(12, 16))
    least = remove_nodes(scenario, 6)
    assert least is not None
    assert least.scenario.dp == 1
    assert remove_nodes(scenario, 7) is None


def test_any_replica_may_be_the_one_that_leaves() -> None:
    scenario, found = job(), []
    for gone in range(4):
        gpus = [gpu for gpu in range(16) if gpu // 2 % 4 != gone]
        placed = PlacedJob(reduce_to_ranks(scenario, 3, gpus), tuple(gpus))
        (alone,) = simulate_jobs([placed], scenario.cluster.built, folded=False)
        found.append(alone.step_time)
    one = remove_nodes(scenario, 1)
    assert one is not None
    assert simulate_reduced_job(one) == found[0]  # to the bit, though few of its ranks are played
    np.testing.assert_allclose(found, found[0], rtol=1e-12)


def test_a_machine_that_is_dropped_takes_its_replica_along() -> None:
    slow = {"kind": "slow_gpu", "rank": 4, "factor": 1.5}  # machine 2: stage 0 of replica 2
    left, note = drop_node(job(faults=[slow]), 2)
    assert left is not None
    assert left.gpus == (*range(4), 6, 7, *range(8, 12), 14, 15)
    assert (left.scenario.dp, left.scenario.faults, "2 healthy GPUs are idle" in note) == (3, (), True)
    moved, same = drop_node_and_move_ranks(job(faults=[slow]), 2)
    assert moved is not None
    assert note == same
    assert simulate_reduced_job(left) == pytest.approx(simulate(moved).step_time, rel=0.05)
    (alone,) = simulate_jobs([PlacedJob(left.scenario, left.gpus)], job().cluster.built, folded=False)
    assert simulate_reduced_job(left) == alone.step_time
    other, _ = drop_node(job(faults=[slow, slow | {"rank": 7}]), 2)  # one goes on with a slow GPU: ranks move up
    assert other is not None
    assert other.gpus is None
    assert drop_node(job(**{"parallel.dp": 1, "gpus": 4}), 0)[0] is None
    whole, _ = drop_node(load("slow_gpu"), 1)  # every replica has ranks on it: they move up
    assert whole is not None
    assert whole.gpus is None
    assert whole.scenario.dp == 1


def test_what_is_wrong_with_a_rank_stays_with_it() -> None:
    slow = {"kind": "slow_gpu", "rank": 9, "factor": 1.5}  # stage 1 of replica 0
    left = remove_nodes(job(faults=[slow]), 1)
    assert left is not None
    assert not left.scenario.faults
    stays = remove_nodes(job(faults=[slow | {"rank": 15}]), 1)
    assert stays is not None
    assert stays.scenario.faults[0].affected_ranks([0] * 12) == [11]
    assert simulate_reduced_job(stays) > simulate_reduced_job(left)


def test_replicas_that_share_machines_leave_with_them() -> None:
    whole = load("tiny_3d", {"parallel": {"tp": 1, "pp": 1, "dp": 8}, "overlap.tensor": False})  # two a machine
    left = remove_nodes(whole, 1)
    assert left is not None
    assert left.gpus == tuple(range(2, 8))
    mixed = load("tiny_3d", {"parallel": {"tp": 1, "pp": 2, "dp": 4, "zero": 1}, "overlap.tensor": False})
    packed = remove_nodes(mixed, 1)  # a machine has a stage of two replicas: one can be put together of what is left
    assert packed is not None
    assert packed.gpus is None
    assert packed.scenario == drop_node_and_move_ranks(mixed, 0)[0]
    assert simulate_reduced_job(packed) == simulate(packed.scenario).step_time


def test_paces_are_by_machines_and_each_state_is_played_once() -> None:
    run = {
        "days": "1 d",
        "failures": [{"name": "GPU", "mtbf": "10 d", "repair": "1 d"}],
        "checkpoint": {"stall": "1 s", "every": "10 min"},
        "short": "shrink",
        "shrink_to": 2,
        "spares": {"warm": 1},
    }
    states = ClusterStateSimulator(job(run=run, **{"training.global_batch": 24}))
    short = build_long_run(states.scenario, states).shrunk_paces
    assert len(short) == 4
    assert short[0] == short[1] < short[2] == short[3]
    assert [words for words in states.step_times if "fewer" in words] == ["1 replica fewer", "2 replicas fewer"]


# --- machines that come back ------------------------------------------------------------------------------------------

DAY = 86400.0


def run_of(short: tuple[float, ...], repair: float = 10 * DAY) -> LongRun:
    pattern = CheckpointPattern(10.0, 60, SnapshotCost(0.0))
    cause = FailureMode("gpu", "stop", 1 / DAY, repair=FixedTime(seconds=f"{repair} s"))
    return LongRun(pattern, (cause,), machines=16, until=100 * DAY, spares=SpareNodes(), shrunk_paces=short)


def test_a_machine_that_makes_nothing_faster_is_no_reason_to_stop() -> None:
    several = regrowths_and_failures((1.25,) * 40)
    each = regrowths_and_failures(tuple(np.linspace(1.2, 1.3, 40)))
    assert each[REGROWTH] > 20 * several[REGROWTH]
    assert each["gpu"] > 50 < several["gpu"]
    assert run_of((1.1, 1.1, 1.3)).faster_missing_counts == [-1, 0, 0, 2]
    assert run_of((1.0, 1.1)).faster_missing_counts == [-1, -1, 1]


def regrowths_and_failures(short: tuple[float, ...]) -> dict[str, float]:
    outages = simulate_runs(run_of(short), 1, 20).outages.mean(axis=0)
    return dict(zip(("gpu", "maintenance", REGROWTH), outages, strict=True))


def test_time_with_a_replica_fewer_is_what_erlang_says() -> None:
    """Machines in repair are Poisson (M/G/infinity): with all levels of one pace slow time is a closed form."""
    run = replace(run_of((1.25,) * 60, repair=DAY / 2), until=400 * DAY)
    outcomes = simulate_runs(run, 3, 40)
    share = 1 - np.exp(-0.5)  # of the time some machine is out, 0.5 are on average
    slow = outcomes.seconds_by_category()["slow"] / outcomes.wall / (1 - 1 / 1.25)
    half = 4 * slow.std(ddof=1) / np.sqrt(len(slow))
    assert abs(slow.mean() - share) < half + 600 / (DAY / 2)  # taken back at the next checkpoint, 10 min at most
    one, _ = simulate_with_log(replace(run, until=50 * DAY), 3)
    many = simulate_runs(replace(run, until=50 * DAY), 3, 1)
    assert one.wall[0] == pytest.approx(many.wall[0], rel=1e-12)
    np.testing.assert_allclose(one.fates, many.fates, rtol=1e-9, atol=1e-6)


def test_nobody_waits_for_a_spare_that_is_not_there() -> None:
    """The first failure takes the only spare, which is made ready; at the second there is none, and the job goes on."""
    run = run_of((1.25,) * 60, repair=1000 * DAY)
    outcomes = simulate_runs(replace(run, until=30 * DAY, spares=SpareNodes(cold=1, ready=(0.0, 0.0, 600.0))), 1, 10)
    assert (outcomes.strikes[:, 0] > 9).all()
    assert (outcomes.seconds_by_category()["waiting"] == 600.0).all()


def test_what_does_not_run_does_not_fail() -> None:
    """Half of the job stands while one of its two halves is out: a Markov chain of 0, 1 and 2 machines out."""
    rate, repair = 1 / DAY, 1.5 * DAY
    cause = FailureMode("gpu", "stop", rate, repair=ExponentialTime(kind="exponential", mean=f"{repair} s"))
    pattern = CheckpointPattern(10.0, 6, SnapshotCost(0.0))
    run = LongRun(
        pattern, (cause,), machines=2, until=1000 * DAY, spares=SpareNodes(), shrunk_paces=(2.0,), shrunk_shares=(0.5,)
    )
    one = rate * repair
    both = one * (rate / 2) * repair / 2  # both in repair; the job waits for the first that is back
    counts = simulate_runs(run, 4, 60).strikes[:, 0] / (1000 * DAY)
    expected = rate * (1 + one / 2) / (1 + one + both)
    assert abs(counts.mean() - expected) < 4 * counts.std(ddof=1) / np.sqrt(60) + rate * 1e-3
    always = rate * (1 + one) / (1 + one + 2 * both)
    assert abs(always - expected) > 20 * counts.std(ddof=1) / np.sqrt(60)


# --- what hides a slow GPU --------------------------------------------------------------------------------------------


def pipeline(microbatches: int) -> Scenario:
    """Four stages of a machine each, of which the last has the output layer as well, and is the slowest."""
    model = {"preset": "llama3-405b", "layers": 4}
    changes = {"gpus": 32, "parallel": {"tp": 8, "pp": 4, "dp": 1}, "training.global_batch": microbatches}
    return load("tiny_3d", {"cluster": {"topology": "dgx_h100", "nodes": 4}, "model": model} | changes)


def longer(scenario: Scenario, stage: int, factor: float) -> float:
    fault = {"kind": "slow_gpu", "rank": 8 * stage, "factor": factor}
    return simulate(load_with(scenario, fault)).step_time - simulate(scenario).step_time


def load_with(scenario: Scenario, fault: dict[str, Any]) -> Scenario:
    return from_document(scenario.document(), {"faults": [fault]})


@pytest.mark.parametrize("microbatches", [8, 32])
def test_a_slow_gpu_that_waits_costs_one_microbatch(microbatches: int) -> None:
    """A stage that waits for a slower one is slow in the pipeline's filling and draining alone: one forward, one
    backward.  Where it is the slowest itself, all of its microbatches count."""
    scenario = pipeline(microbatches)
    stages = simulate(scenario).account.to_dict()["stages_s"]
    own = [0.01 * (stage["forward"] + stage["backward"]) for stage in stages]
    assert longer(scenario, 1, 1.01) == pytest.approx(own[1] / microbatches, rel=0.1)
    assert longer(scenario, 3, 1.01) == pytest.approx(own[3], rel=0.03)
    if microbatches > 8:  # beyond the others' slack all of its slowness is seen
        assert longer(scenario, 1, 3.0) - longer(scenario, 1, 2.5) == pytest.approx(50 * own[1], rel=0.03)
