"""Runs that hardly ever come to their last step are refused before they are played, and only they; auto keeps up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_run_forms import fixed

from simcluster.base.errors import InputError
from simcluster.longrun.ending import begun_again, check_end, kept_share
from simcluster.longrun.events import simulate_with_log
from simcluster.longrun.pattern import MEMORY, STORAGE, CheckpointPattern, Saving
from simcluster.longrun.run import FailureMode, LongRun
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.in_theory import Savings, best_steps, interval_of
from simcluster.scenario.run_times import ExponentialTime, StagedTime, TimeSpec


def silent(rate: float, lasts: TimeSpec) -> FailureMode:
    return FailureMode("SDC", "silent", rate, survives=STORAGE, lasts=lasts)


def run_of(*causes: FailureMode, steps: int = 100, goal: float = 10_000, keep: int = 1, stall: float = 1.0) -> LongRun:
    return LongRun(CheckpointPattern(1.0, steps, Saving(stall), keep=keep), causes, goal=goal)


def test_a_run_shorter_than_its_interval_is_no_longer_than_itself() -> None:
    """tiny_3d was refused for an interval of a day, of which its run of a quarter of a minute never sees the end."""
    often = FailureMode("GPU", "stop", 1 / 450, survives=STORAGE)
    run = run_of(often, steps=86_400, goal=20)
    assert kept_share(run) > 0.9
    check_end(run)
    assert simulate_runs(run, 0, 20).wall.max() < 3_000
    with pytest.raises(InputError, match="hardly ever end: something fails every 450 s"):
        check_end(run_of(often, steps=86_400, goal=80_000))


def test_what_only_storage_survives_needs_a_whole_pattern_to_come_through() -> None:
    pattern = CheckpointPattern(1.0, 100, Saving(1.0), Saving(1.0), cycles=100)
    deep = FailureMode("host", "stop", 1 / 150, survives=STORAGE)
    with pytest.raises(InputError, match="hardly ever end"):
        check_end(LongRun(pattern, (deep,), goal=1e6))
    check_end(LongRun(pattern, (FailureMode("GPU", "stop", 1 / 150, survives=MEMORY),), goal=1e6))


def test_a_write_has_to_come_through_as_well() -> None:
    often = FailureMode("GPU", "stop", 1 / 20, survives=STORAGE)
    behind = CheckpointPattern(1.0, 400, Saving(0.0, 390.0))
    assert kept_share(LongRun(behind, (often,), goal=1e6)) < 1e-9
    with pytest.raises(InputError, match="hardly ever end"):
        check_end(LongRun(behind, (often,), goal=1e6))


def test_errors_that_outlive_all_kept_checkpoints_are_refused_by_both_players() -> None:
    run = run_of(silent(1 / 400, fixed(1_000)))
    assert begun_again(run) == pytest.approx((run.end_at - 1_000) / 400)
    for play in (lambda: simulate_runs(run, 0, 2), lambda: simulate_with_log(run, 0)):
        with pytest.raises(InputError, match=r"silent errors \(SDC\) are found when all 1 kept checkpoints, 101 s"):
            play()
    check_end(run_of(silent(1 / 400, fixed(1_000)), keep=12))  # one from before it is there
    check_end(run_of(silent(1 / 400, fixed(50))))
    check_end(LongRun(CheckpointPattern(1.0, 100, Saving(1.0), verify=1.0), (silent(1 / 400, fixed(1e3)),), goal=1e4))
    check_end(LongRun(run.pattern, run.causes, until=1e4))  # ends by the clock


def test_a_law_of_several_draws_is_followed() -> None:
    mean = ExponentialTime(kind="exponential", mean="500 s")
    run = run_of(silent(1e-4, mean))
    reach, whole = 101.0, run.end_at  # E[(T - l) where l > a] = e^-a/mu (T - a - mu), but for what is longer than T
    assert begun_again(run) == pytest.approx(1e-4 * math.exp(-reach / 500) * (whole - reach - 500), rel=1e-3)
    staged = StagedTime.model_validate({"kind": "staged", "first": "600 s", "second": "400 s", "probability": 0.5})
    assert begun_again(run_of(silent(1e-4, staged))) == pytest.approx(1e-4 * (whole - 800), rel=1e-3)


@pytest.mark.parametrize("keep", [1, 3])
def test_how_long_a_run_takes_that_begins_again_is_the_closed_form(keep: int) -> None:
    """Fails at a strike at s < T - l, having spent s + l: T + (e^m - 1) (E[s | s < T - l] + l)."""
    life, rate = 1_000.0, 1 / 4_000
    run = run_of(silent(rate, fixed(life)), keep=keep, goal=6_000)
    whole, span = run.end_at, run.end_at - life
    m = begun_again(run)
    assert m == pytest.approx(rate * span)
    struck = 1 / rate - span / math.expm1(rate * span)
    expected = whole + math.expm1(m) * (struck + life)
    wall = simulate_runs(run, 1, 4_000).wall
    assert abs(wall.mean() - expected) < 4 * wall.std() / math.sqrt(len(wall))
    one = simulate_with_log(run, 1, 7)[0].wall
    assert one == pytest.approx(wall[7:8])


@given(
    st.floats(0.1, 50), st.floats(0, 500), st.floats(0, 500), st.floats(0, 0.9), st.floats(0, 20),
    st.floats(1e-6, 1e-1), st.sampled_from([None, 2, 7]),
)  # fmt: skip
def test_auto_is_never_refused_and_is_what_advice_takes(
    step: float, stall: float, write: float, slowed: float, verify: float, rate: float, cycles: int | None
) -> None:
    storage = Saving(stall, write, slowed)
    memory = Saving(stall / 10, write / 3, slowed / 2) if cycles else None
    causes = (
        FailureMode("GPU", "stop", rate),
        FailureMode("host", "stop", rate / 10, survives=STORAGE),
        silent(rate / 7, fixed(10.0)),
    )
    found = interval_of("auto", step, Savings(storage, memory, verify, cycles or 1), causes)
    pattern = CheckpointPattern(step, found.steps, storage, memory, found.cycles, verify)
    assert best_steps(LongRun(pattern, causes, until=1e6)) == found.steps
    beside = np.array([phase[2] for cycle in pattern.phases for phase in cycle])
    assert (beside >= -1e-9 * found.steps).all()  # no write is longer than the work until the next snapshot
