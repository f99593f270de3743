"""Failures of a shared cause, flaps, slow spells, wrong diagnoses and false alarms: each beside a closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from long_run_forms import fixed, is_near

from simcluster.longrun.checkpoint_pattern import CheckpointPattern, SnapshotCost
from simcluster.longrun.events import simulate_with_log
from simcluster.longrun.long_run import DefectiveBatch, FailureMode, LongRun, RestartPhase, RunOutcomes, SpareNodes
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.closed_form_comparison import compare_closed_forms
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator, JobDevices
from simcluster.longrun.studies.run_builder import build_long_run
from simcluster.scenario.scenario import Scenario, load
from simcluster.step.simulate import simulate

DAY = 86400.0
NO_SAVING = CheckpointPattern(10.0, 60, SnapshotCost(0.0))


def share(outcomes: RunOutcomes, fate: str) -> np.ndarray:
    return np.asarray(outcomes.seconds_by_category()[fate] / outcomes.wall)


def run_of(cause: FailureMode, **changes: Any) -> LongRun:
    return LongRun(NO_SAVING, (cause,), machines=16, until=changes.pop("until", 400 * DAY), **changes)


def job(failures: list[dict[str, Any]], **run: Any) -> Scenario:
    given = {"days": "30 d", "failures": failures, "checkpoint": {"stall": "1 s", "every": "10 min"}, **run}
    return load("tiny_3d", {"run": given})  # four machines: a stage is two


# --- a shared cause ---------------------------------------------------------------------------------------------------

FEED = {"name": "power feed", "of": "rack", "machines": 2, "mtbf": "10 d", "repair": "1 h"}


def test_a_rack_is_machines_by_name() -> None:
    racks = JobDevices(job([FEED])).devices_of_kind("rack", 3)
    assert [racks.device_label(place) for place in range(racks.count)] == ["machines 0, 1, 2", "machine 3"]
    run = build_long_run(job([FEED]), ClusterStateSimulator(job([FEED])))
    (cause,) = run.causes
    assert (cause.devices, cause.machines, cause.rate) == (2, 2, pytest.approx(2 / (10 * DAY)))
    _, log = simulate_with_log(run, 1)
    assert {row.part for row in log if row.activity == "detection"} <= {"machines 0, 1", "machines 2, 3"} != set()


def test_a_slow_rack_is_its_machines_slow_at_once() -> None:
    hot = {**FEED, "name": "hot", "effect": "slow", "by": [1.5], "lasts": "1 h"}
    (cause,) = build_long_run(job([hot]), ClusterStateSimulator(job([hot]))).causes
    faults = [{"kind": "slow_gpu", "node": node, "factor": 1.5} for node in (0, 1)]
    by_hand = simulate(load("tiny_3d", {"faults": faults})).step_time / simulate(load("tiny_3d")).step_time
    assert cause.paces is not None
    assert cause.paces[0, 0] == by_hand > 1


def test_machines_that_fail_together_need_more_spares() -> None:
    """Bursts of 4 at a quarter of the rate: as many repairs, a quarter of the outages, and three spares are none."""
    one = FailureMode("host", "stop", 1 / DAY, repair=fixed(3600.0))
    four = replace(one, rate=0.25 / DAY, machines=4)
    singles, bursts = (simulate_runs(run_of(cause, spares=SpareNodes(hot=3)), 1, 60) for cause in (one, four))
    assert singles.strikes.mean() == pytest.approx(4 * bursts.strikes.mean(), rel=0.05)
    assert share(singles, "waiting").mean() < 1e-5
    each = bursts.seconds_by_category()["waiting"].sum() / bursts.strikes.sum()
    assert each == pytest.approx(3600.0, rel=1e-3)  # until they are back, but for where the run ends
    enough = simulate_runs(run_of(four, spares=SpareNodes(hot=4)), 1, 60)  # but for two bursts within the hour
    assert share(enough, "waiting").mean() < 0.03 * share(bursts, "waiting").mean()


def test_a_single_crew_repairs_one_after_the_other() -> None:
    """With no spares and nobody who fails meanwhile: the wait is that of the last of 4."""
    four = FailureMode("rack", "stop", 0.05 / DAY, machines=4, repair=fixed(3600.0))
    waits = [simulate_runs(run_of(four, spares=SpareNodes(crews=crews)), 1, 20) for crews in (1, 2, 4)]
    each = [outcomes.seconds_by_category()["waiting"].sum() / outcomes.strikes.sum() for outcomes in waits]
    np.testing.assert_allclose(each, [4 * 3600.0, 2 * 3600.0, 3600.0], rtol=1e-2)


# --- flaps and spells -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("often", "lasts"), [(20.0, 5.0), (300.0, 200.0)])
def test_a_link_that_flaps(often: float, lasts: float) -> None:
    """Flaps overlap as customers of M/G/infinity do: some link is slow for 1 - e^(-rate x length) of the time."""
    flap = FailureMode("flap", "slow", often / DAY, lasts=fixed(lasts), paces=np.array([[2.0]]))
    outcomes = simulate_runs(run_of(flap, until=4 * DAY), 2, 40)
    slow = 1 - math.exp(-often / DAY * lasts)
    assert is_near(share(outcomes, "slow"), slow * (1 - 1 / 2.0))
    assert is_near(outcomes.strikes[:, 0], 4 * often)


def test_flaps_of_a_cable_are_played_on_a_cable_of_the_graph() -> None:
    flap = {"name": "flap", "of": "cable", "effect": "slow", "mtbf": "1 h", "left": [0.5], "lasts": "5 s"}
    states = ClusterStateSimulator(job([flap]))
    run = build_long_run(job([flap]), states)
    cables = {
        JobDevices(states.scenario).devices_of_kind("cable").device_label(place)
        for place in range(run.causes[0].devices)
    }
    _, log = simulate_with_log(replace(run, until=DAY), 1)
    named = {row.part for row in log if row.part}
    assert len(named) > 3
    assert named <= cables


def test_a_pause_names_what_paused() -> None:
    pause = {"name": "link down", "of": "nic", "effect": "pause", "mtbf": "1 d", "lasts": "20 s"}
    run = build_long_run(job([pause]), ClusterStateSimulator(job([pause])))
    outcomes, log = simulate_with_log(run, 1)
    named = [row.part for row in log if row.activity == "pause"]
    assert len(named) == outcomes.strikes.sum() > 50
    assert all("nic" in which for which in named)
    assert len(set(named)) > 4


# --- detection, diagnosis ---------------------------------------------------------------------------------------------


def test_laws_grow_with_the_gpus_of_the_job() -> None:
    """Not only the parts of a restart: a health check that asks every GPU finds a failure later."""
    law = {"seconds": "10 s", "per_gpu": "2 s"}
    node = {"name": "node", "of": "host", "mtbf": "10 d", "repair": law}
    other = {"name": "other", "of": "host", "mtbf": "10 d", "detect": {"seconds": "1 s", "per_gpu": "1 s"}}
    run = build_long_run(job([node, other], detection=law), ClusterStateSimulator(job([node, other])))
    first, second = run.causes
    assert (first.detect.mean, second.detect.mean) == (10 + 2 * 8, 1 + 8)
    assert first.repair is not None
    assert first.repair.mean == 26


def test_a_wrong_diagnosis_is_gone_through_again() -> None:
    """With probability p again and again: p / (1 - p) detections and restarts more of each outage."""
    stop = FailureMode("gpu", "stop", 1 / DAY, detect=fixed(60.0))
    part = RestartPhase("restart", fixed(240.0), fixed(240.0), exposed=False)
    outcomes = simulate_runs(run_of(stop, restart=(part,), misdiagnosis_share=0.25), 1, 60)
    spent = outcomes.seconds_by_category()
    each = spent["diagnosis"].sum(), outcomes.outages.sum() * 300.0
    assert each[0] / each[1] == pytest.approx(1 / 3, rel=4 * math.sqrt(4 / outcomes.outages.sum()))


def test_a_false_alarm_costs_a_restart_and_no_work() -> None:
    alarm = FailureMode("alarm", "alarm", 2 / DAY, repair=fixed(600.0))
    part = RestartPhase("restart", fixed(240.0), fixed(240.0), exposed=False)
    outcomes = simulate_runs(run_of(alarm, restart=(part,), spares=SpareNodes(hot=1)), 1, 20)
    assert not outcomes.seconds_by_category()["lost"].any()
    assert not outcomes.seconds_by_category()["detection"].any()
    each = outcomes.seconds_by_category()["restart"].sum() / outcomes.outages.sum()
    assert each == pytest.approx(240.0, rel=1e-3)
    rate = 2 / DAY  # those that come before the next checkpoint, in at most 10 min, are dealt with in one
    assert 1 - rate * 600 < outcomes.outages.sum() / outcomes.strikes.sum() < 1
    assert is_near(outcomes.strikes[:, 0], rate * 400 * DAY * (1 - share(outcomes, "restart").mean()))


# --- closed forms where runs are short, or machines bad ---------------------------------------------------------------


def test_a_run_shorter_than_a_checkpoint_is_explained() -> None:
    pattern = CheckpointPattern(10.0, 360, SnapshotCost(60.0))
    stop = FailureMode("gpu", "stop", 1 / (30 * DAY), detect=fixed(60.0))
    run = LongRun(pattern, (stop,), machines=16, until=4.0)
    outcomes = simulate_runs(run, 1, 20)
    assert (outcomes.steps == 0.4).all()
    table = compare_closed_forms(run, outcomes).set_index("closed_form")
    assert table.loc[["failures, rate x wall", "goodput, exact"], "explained"].all()
    assert "few checkpoints" in table.loc["goodput, exact", "why"]


def test_a_bad_batch_explains_more_failures() -> None:
    stop = FailureMode("gpu", "stop", 1 / DAY, defective_batch=DefectiveBatch(4, 20.0, 0.0))
    run = run_of(stop, until=40 * DAY)
    table = compare_closed_forms(run, simulate_runs(run, 1, 20)).set_index("closed_form")
    assert table.loc["failures, rate x wall", "explained"]
    assert "defective batch" in table.loc["failures, rate x wall", "why"]
