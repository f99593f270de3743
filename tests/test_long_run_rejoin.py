"""Replicas that leave after a failure and rejoin: what one costs, how many may be away, and which failures are such."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from long_run_forms import fixed, is_near

from simcluster.base.errors import InputError
from simcluster.longrun.checkpoint_pattern import STORAGE, CheckpointPattern, SnapshotCost
from simcluster.longrun.events import simulate_with_log
from simcluster.longrun.long_run import FailureMode, LongRun, RecordedFailures, RestartPhase, RunOutcomes, SpareNodes
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.advice import advise
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.run_builder import build_long_run, find_whole_copies
from simcluster.scenario.scenario import load

STEP, STALL, DETECT, AWAY, COPY = 10.0, 30.0, 60.0, 300.0, 20.0
PHASES = (
    RestartPhase("start", fixed(AWAY), fixed(AWAY)),
    RestartPhase("load", fixed(COPY), fixed(5 * COPY), copies=True),
)


def run_of(
    *at: float, leaves: int = 1, machines: int = 8, paces: tuple[float, ...] = (1.25, 1.5), **more: Any
) -> LongRun:
    """A run of 6000 steps with a checkpoint every 60, whose failures are at these exposed seconds."""
    cause = FailureMode("gpu", "stop", 1e-9, detect=fixed(DETECT), leaves=leaves, survives=STORAGE)
    cause = replace(cause, failure_log=RecordedFailures(at))
    pattern = CheckpointPattern(STEP, 60, SnapshotCost(STALL))
    return LongRun(pattern, (cause,), machines, goal=6000, restart=PHASES, shrunk_paces=paces, **more)


def simulated(run: LongRun) -> RunOutcomes:
    """Both engines' outcomes, which are equal."""
    one, many = simulate_with_log(run, 1)[0], simulate_runs(run, 1, 1)
    np.testing.assert_allclose(many.fates, one.fates, atol=1e-8)
    assert many.wall[0] == pytest.approx(one.wall[0], abs=1e-8)
    return many


WHOLE = 60_000 + 100 * STALL


def test_without_failures_it_is_the_same_run() -> None:
    assert simulated(run_of()).wall[0] == simulated(run_of(leaves=0, paces=())).wall[0] == pytest.approx(WHOLE)


def test_one_failure_costs_the_step_the_pause_and_the_copy() -> None:
    """4,003 s of training: 6 checkpoints of 630 s, and 22.3 of the next steps; 300 s at 1.25 of the step time."""
    outcomes = simulated(run_of(4003.0))
    seconds = {name: float(each[0]) for name, each in outcomes.seconds_by_category().items()}
    assert seconds["lost"] == pytest.approx(3.0)
    assert seconds["detection"] == pytest.approx(DETECT)
    assert seconds["restart"] == pytest.approx(COPY)  # of a peer, not from storage
    assert outcomes.parts[0].tolist() == pytest.approx([0.0, COPY])
    assert seconds["slow"] == pytest.approx(AWAY * (1 - 1 / 1.25))
    assert outcomes.wall[0] == pytest.approx(WHOLE + 3.0 + DETECT + COPY + 60.0)
    restart = simulated(run_of(4003.0, leaves=0, paces=()))
    assert restart.wall[0] == pytest.approx(WHOLE + (4003.0 - 6 * 630.0) + DETECT + AWAY + 5 * COPY)


def test_a_failure_in_a_checkpoint_begins_it_again() -> None:
    assert simulated(run_of(4 * 630.0 - 12.0)).seconds_by_category()["lost"][0] == pytest.approx(STALL - 12.0)
    asynchronous = CheckpointPattern(STEP, 60, SnapshotCost(0.0, 100.0, 0.2))  # in 100 s 8 steps are done
    run = replace(run_of(100.0 + 520.0 + 33.0), pattern=asynchronous)
    assert simulated(run).seconds_by_category()["lost"][0] == pytest.approx(33.0 - 25.0)  # steps of 12.5 s


def test_with_too_many_away_the_others_wait_for_the_first() -> None:
    outcomes = simulated(run_of(4000.0, 4050.0, paces=(1.25,)))
    waited = AWAY - 50.0 - DETECT  # exposed seconds count what is trained alone
    assert outcomes.seconds_by_category()["waiting"][0] == pytest.approx(waited)
    assert outcomes.outages[0, 0] == 2
    both = simulated(run_of(4000.0, 4050.0))
    assert both.seconds_by_category()["waiting"][0] == 0.0
    assert both.wall[0] < outcomes.wall[0]


def test_with_all_away_the_job_restarts_from_storage() -> None:
    outcomes = simulated(run_of(4000.0, 4050.0, machines=2, paces=(1.5,)))
    at = 4000.0 + (50.0 / 1.5)  # nominal: the first undoes no more than its own step
    assert outcomes.seconds_by_category()["lost"][0] == pytest.approx(at - 6 * 630.0, abs=STEP)
    assert outcomes.parts[0].tolist() == pytest.approx([AWAY, 5 * COPY])  # the copy of the first never is


def test_a_replica_without_a_spare_is_back_after_the_repair() -> None:
    run = run_of(4003.0, spares=SpareNodes())
    run = replace(run, causes=(replace(run.causes[0], repair=fixed(5000.0)),))
    seconds = simulated(run).seconds_by_category()
    assert seconds["slow"][0] == pytest.approx((5000.0 + AWAY) * (1 - 1 / 1.25))
    assert seconds["waiting"][0] == 0.0
    ready = replace(run, spares=SpareNodes(cold=1, ready=(0.0, 0.0, 700.0)))
    assert simulated(ready).seconds_by_category()["slow"][0] == pytest.approx((700.0 + AWAY) * (1 - 1 / 1.25))


@pytest.mark.parametrize("replicas", [4, 16, 256])
def test_goodput_tends_to_that_of_the_pauses_as_replicas_grow(replicas: int) -> None:
    """Of n replicas those away are Poisson, and (n - away) / n of the samples are done: 1 - (rate x away) / n."""
    rate, away = 1 / 3600.0, 1800.0
    cause = FailureMode("gpu", "stop", rate, detect=fixed(30.0), leaves=1)
    pattern = CheckpointPattern(1.0, 60, SnapshotCost(0.0))
    paces = tuple(replicas / (replicas - missing) for missing in range(1, min(replicas, 12)))
    phases = (
        RestartPhase("start", fixed(away), fixed(away)),
        RestartPhase("load", fixed(6.0), fixed(6.0), copies=True),
    )
    run = LongRun(pattern, (cause,), replicas, until=30 * 86400.0, restart=phases, shrunk_paces=paces)
    outcomes = simulate_runs(run, 1, 40)
    pause = rate * (30.0 + 6.0 + 0.5)  # of each second that it trains
    shares = outcomes.seconds_by_category()["productive"] / outcomes.wall
    expected = (1 - rate * away / replicas) / (1 + pause)
    slack = rate * away / replicas * pause  # back sooner, in seconds that it trains
    assert is_near(shares, expected, slack + (0.06 if replicas == 4 else 0.0))  # of four, others wait
    if replicas == 256:
        assert abs(expected - 1 / (1 + pause)) < 0.002


# --- which failures ---------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {
    "days": "2 d",
    "checkpoint": {"to": "1 GB/s", "every": "10 min"},
    "recovery": "rejoin",
    "failures": [{"name": "gpu", "of": "gpu", "mtbf": "10 d"}, {"name": "bug", "of": "job", "mtbf": "5 d"}],
}


def job(run: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Four replicas of two nodes with two GPUs each: a stage is on one node."""
    nodes = {"topology": "dgx_h100", "nodes": 8, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 4}}
    parallel = {"tp": 2, "pp": 2, "dp": 4, "sequence_parallel": True, "zero": 0}
    return load(
        "tiny_3d", {"cluster": nodes, "gpus": 16, "parallel": parallel, "run": {**RUN, **(run or {})}, **changes}
    )


def built(run: dict[str, Any] | None = None, **changes: Any) -> tuple[LongRun, ClusterStateSimulator]:
    states = ClusterStateSimulator(job(run, **changes))
    return build_long_run(states.scenario, states), states


def test_a_failed_node_takes_its_replica_along_and_a_bug_all() -> None:
    run, states = built(**{"training.global_batch": 24})
    copies = find_whole_copies(states.scenario)
    assert copies[:2] == (2, 1)
    assert [sorted(each) for each in copies.on_node] == [[0], [1], [2], [3]] * 2
    assert {cause.name: cause.leaves for cause in run.causes} == {"gpu": 2, "bug": 0}
    assert [cause.detect.mean for cause in run.causes] == [60.0, 120.0]
    assert any("bug: the whole job restarts" in note for note in states.notes)
    assert len(run.shrunk_paces) == 6  # nodes of three of four replicas
    assert run.shrunk_paces[0] == run.shrunk_paces[1] < run.shrunk_paces[2]
    load_phase = next(part for part in run.restart if part.copies)
    cost = states.checkpoint_cost(states.scenario.run.checkpoint) if states.scenario.run else None
    assert cost is not None
    assert load_phase.memory.mean == pytest.approx(cost.load_memory)
    one, _ = built({"shrink_to": 1}, **{"training.global_batch": 24})
    assert one.shrunk_paces == run.shrunk_paces[:2]
    rack = {"name": "rack", "of": "rack", "machines": 2, "mtbf": "10 d", "repair": "1 d"}  # a stage of two replicas
    assert [cause.leaves for cause in built({"failures": [rack]})[0].causes] == [4]
    assert [cause.leaves for cause in built({"failures": [rack], "shrink_to": 1})[0].causes] == [0]
    assert [cause.leaves for cause in built({"failures": [{**rack, "machines": 4}]})[0].causes] == [0]  # of all


def test_hybrid_sharding_leaves_by_shard_group() -> None:
    fsdp = {"tp": 2, "pp": 1, "dp": 8, "zero": 3, "sequence_parallel": True}
    scenario = job(None, parallel=fsdp, fsdp={"shard_group": 2}, pipeline={"schedule": "1f1b"})
    assert find_whole_copies(scenario)[:2] == (2, 2)
    assert find_whole_copies(job(parallel={**fsdp, "zero": 0}))[:2] == (1, 1)


@pytest.mark.parametrize(
    ("run", "changes", "words"),
    [
        ({}, {"parallel.zero": 1}, "needs two or more whole copies of weights and optimizer state, but all dp 4"),
        ({}, {"parallel.dp": 1, "gpus": 4}, "run.recovery: rejoin needs two or more replicas, but the job has one"),
        ({}, {"parallel.tp": 1, "parallel.sequence_parallel": False, "overlap.tensor": False, "gpus": 8},
         "needs replicas that fill whole nodes"),
        ({}, {"parallel.tp": 1, "parallel.pp": 1, "parallel.dp": 2, "parallel.sequence_parallel": False, "gpus": 2,
              "overlap.tensor": False, "pipeline.schedule": "1f1b"}, "needs replicas on several nodes"),
        ({"short": "shrink"}, {}, "applies only to recovery: restart; with rejoin"),
        ({"recovery": "return"}, {}, "recovery"),
    ],
)  # fmt: skip
def test_what_cannot_rejoin_is_rejected(run: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        built(run, **changes)


def test_runs_that_would_never_end_are_rejected() -> None:
    run = run_of()
    often = replace(run, causes=(replace(run.causes[0], rate=2.0, failure_log=None),))
    with pytest.raises(InputError, match="practically never end"):
        simulate_runs(often, 1, 1)


def test_advice_on_spares_is_for_a_job_that_waits() -> None:
    gpu = {"name": "gpu", "of": "gpu", "mtbf": "50 d", "repair": "1 d"}
    found = [
        advise("spares", job({"failures": [gpu], **how}), played=5).table["short"].tolist()
        for how in ({}, {"recovery": "restart", "short": "shrink"})
    ]
    assert found[0] == pytest.approx(found[1], abs=0.01)
