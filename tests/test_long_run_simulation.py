"""The compiled simulation of long runs agrees with SimPy run by run, and what must hold of any run holds."""

from __future__ import annotations

import math
import os
import pickle
import random
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from long_run_forms import exponential, fixed
from pydantic import TypeAdapter

from simcluster.base.errors import InputError
from simcluster.longrun.checkpoint_pattern import MEMORY, STORAGE, CheckpointPattern, SnapshotCost
from simcluster.longrun.events import simulate_with_log
from simcluster.longrun.long_run import (
    DefectiveBatch,
    FailureMode,
    LongRun,
    Maintenance,
    RecordedFailures,
    RestartPhase,
    RunOutcomes,
    SpareNodes,
)
from simcluster.longrun.part_lifetimes import PartLifetimes
from simcluster.longrun.simulation import simulate_runs
from simcluster.scenario.run_times import TIMES, DurationSpec, FixedTime, LognormalTime, Time, WeibullTime

DAY = 86400.0


def weibull(seconds: float, shape: float) -> WeibullTime:
    return WeibullTime(kind="weibull", mean=f"{seconds!r} s", shape=shape)


# --- runs drawn by chance ---------------------------------------------------------------------------------------------


def drawn_pattern(rng: random.Random) -> CheckpointPattern:
    memory = None
    if rng.random() < 0.4:
        memory = SnapshotCost(rng.choice([1.0, 3.0]), rng.choice([0.0, 5.0]), rng.choice([0.0, 0.1]))
    return CheckpointPattern(
        step=rng.choice([1.0, 13.7]),
        steps=rng.choice([150, 400]),
        storage=SnapshotCost(
            rng.choice([5.0, 60.0]), rng.choice([0.0, 0.0, 40.0, 100.0]), rng.choice([0.0, 0.02, 0.3])
        ),
        memory=memory,
        snapshots_per_stored=rng.choice([2, 3, 7]) if memory else 1,
        verify=rng.choice([0.0, 0.0, 10.0]),
        keep=rng.choice([1, 2, 5]),
        validation=rng.choice([0.0, 0.0, 0.2]),
    )


def drawn_causes(rng: random.Random, mu: float) -> tuple[FailureMode, ...]:
    """A cause that stops the job every ``mu`` seconds, and perhaps one of each other effect."""
    bad = (
        DefectiveBatch(5, rng.choice([3.0, 10.0]), rng.choice([0.3, 1.0]), rng.choice([0, 2]))
        if rng.random() < 0.3
        else None
    )
    if bad and bad.retire and rng.random() < 0.6:
        window, rule, replaced = rng.choice([3e3, 1e5]), rng.choice(["window", "fading"]), exponential(40000.0)
        bad = replace(bad, retire=rng.choice([1.2, 2.0, 3.0]), window=window, rule=rule, replaced=replaced)
    detect = rng.choice([fixed(0.0), fixed(120.0), exponential(100.0)])
    repair = rng.choice([None, exponential(20000.0), fixed(5000.0)])
    machines, survives = rng.choice([1, 1, 2]), rng.choice([MEMORY, STORAGE])
    causes = [
        FailureMode("gpu", "stop", 1 / mu, 64, defective_batch=bad, detect=detect, repair=repair, machines=machines,
                    survives=survives)
    ]  # fmt: skip
    if rng.random() < 0.4:
        lives = PartLifetimes(16, weibull(16 * mu, rng.choice([0.7, 2.0])), 0.0, rng.choice([0.0, 1e6]))
        causes.append(
            FailureMode(
                "host", "stop", 0.0, part_lifetimes=lives, detect=fixed(30.0), repair=exponential(1e4), survives=STORAGE
            )
        )
    if rng.random() < 0.5:
        paces = np.array([[1.1], [1.5]])
        rate = 1 / rng.choice([5000.0, 50000.0])
        causes.append(FailureMode("heat", "slow", rate, 8, lasts=exponential(6e3), shares=(0.5, 0.5), paces=paces))
    if rng.random() < 0.4:
        causes.append(FailureMode("flap", "pause", 1 / 20000, lasts=exponential(50.0)))
    if rng.random() < 0.4:
        causes.append(FailureMode("sdc", "silent", 1 / 90000, lasts=exponential(8000.0), detect=fixed(10.0)))
    if rng.random() < 0.3:
        causes.append(FailureMode("false", "alarm", 1 / 30000, repair=fixed(600.0)))
    return tuple(causes)


def drawn_run(seed: int) -> LongRun:
    """A run with anything in it that a run may have; InputError where its writes never keep up."""
    rng = random.Random(seed)
    pattern = drawn_pattern(rng)
    causes = drawn_causes(rng, rng.choice([4.0, 20.0]) * pattern.pattern_seconds + rng.choice([0, 300.0, 5000.0]))
    spares = SpareNodes(unlimited=True)
    if rng.random() < 0.7:
        kinds = rng.choice([0, 1, 2]), rng.choice([0, 1]), rng.choice([0, 3])
        spares = SpareNodes(*kinds, (0.0, 100.0, 1000.0), rng.choice([None, None, 1, 2]))
    goal: float = rng.choice([pattern.steps * 8, pattern.steps * 8 + 37, 2777])
    until = rng.choice([1e5, 3e5]) if rng.random() < 0.4 else math.inf
    if until < math.inf and rng.random() < 0.5:
        goal = math.inf
    parts = (
        RestartPhase("stop", fixed(30.0), fixed(30.0), False),
        RestartPhase("load", exponential(20.0), exponential(200.0)),
        RestartPhase("warm", fixed(5.0), fixed(5.0)),
    )
    short = () if spares.unlimited else rng.choice([(), (1.1, 1.25), (1.1, 1.1, 1.25)])
    run = LongRun(
        pattern,
        causes,
        machines=16,
        gpus=128,
        goal=goal,
        until=until,
        restart=parts[: rng.choice([0, 1, 2, 3])],
        spares=spares,
        shrunk_paces=short,
        shrunk_shares=() if rng.random() < 0.4 else (0.9, 0.8, 0.5)[: len(short)],
        straggler=rng.choice(["leave", "replace", "checkpoint"]),
        notice_time=rng.choice([fixed(1000.0), exponential(3000.0)]),
        misdiagnosis_share=rng.choice([0.0, 0.2]),
        timeout=rng.choice([math.inf, 100.0]),
        maintenance=Maintenance(DAY / 4, 600.0) if rng.random() < 0.4 else None,
        week=20000.0,
    )
    if rng.random() < 0.2:
        run = replace(run, causes=tuple(drawn_log(rng, cause) for cause in causes))
    return rejoining(rng, run) if rng.random() < 0.4 else run


def rejoining(rng: random.Random, run: LongRun) -> LongRun:
    """The run with replicas of ``each`` nodes, which leave and rejoin; with 4 nodes all may be away."""
    each, most = rng.choice([1, 2]), rng.choice([2, 4, 12])
    causes = tuple(
        replace(cause, leaves=cause.machines if each == 1 else 2) if cause.effect in ("stop", "slow") else cause
        for cause in run.causes
    )
    paces = tuple(1 + 0.07 * -(-missing // each) for missing in range(1, most + 1))
    return replace(
        run,
        causes=causes,
        machines=max(rng.choice([4, 16]), most + each),
        restart=tuple(replace(part, copies=part.name == "load") for part in run.restart),
        shrunk_paces=paces,
        shrunk_shares=tuple(1 - 0.05 * missing for missing in range(1, most + 1)) if run.shrunk_shares else (),
    )


def drawn_log(rng: random.Random, cause: FailureMode) -> FailureMode:
    """The cause, striking at times of a log, which knows how long some strikes lasted."""
    at = sorted(rng.uniform(0.0, 2e5) for _ in range(rng.choice([0, 3, 20])))
    return replace(
        cause,
        part_lifetimes=None,
        defective_batch=None,
        failure_log=RecordedFailures(tuple(at), tuple(rng.choice([math.nan, 500.0]) for _ in at[1:])),
    )


PLAIN_SEEDS = (1, 2, 5, 11, 12, 15)


def assert_same_bits(found: RunOutcomes, expected: RunOutcomes) -> None:
    for name, column in expected.arrays_by_name().items():
        assert getattr(found, name).tobytes() == column.tobytes(), name


def assert_same(one: RunOutcomes, many: RunOutcomes, number: int) -> None:
    for name in ("wall", "at", "steps", "fates", "parts"):
        expected, found = getattr(one, name)[0], getattr(many, name)[number]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8, err_msg=name)
    for name in ("strikes", "outages"):
        np.testing.assert_array_equal(getattr(many, name)[number], getattr(one, name)[0], err_msg=name)
    weeks = many.weekly[number][~np.isnan(many.weekly[number])]
    np.testing.assert_allclose(weeks, one.weekly[0], rtol=0, atol=1e-8)


@pytest.mark.parametrize("block", range(4))
def test_the_compiled_simulation_agrees_with_simpy_run_by_run(block: int) -> None:
    played = 0
    for seed in range(20 * block, 20 * block + 20):
        try:
            run = drawn_run(seed)
        except InputError as error:
            assert "must fit between two snapshots" in str(error)  # noqa: PT017
            continue
        many = simulate_runs(run, seed, 2)
        np.testing.assert_allclose(sum(many.seconds_by_category().values()), many.wall, rtol=1e-9)
        for number in range(2):
            one, _ = simulate_with_log(run, seed, number)
            assert_same(one, many, number)
            assert sum(one.seconds_by_category().values())[0] == pytest.approx(one.wall[0], rel=1e-9)
            played += 1
    assert played > 20


@pytest.mark.parametrize(
    "seed",
    [
        1780,  # a week ends while the job waits for nodes; wrong weights are found right after
        4415,  # a failure that memory survives: what storage has then is what was written before it
        5681,
    ],
)
def test_runs_that_once_differed_agree(seed: int) -> None:
    run = drawn_run(seed)
    many = simulate_runs(run, seed, 2)
    for number in range(2):
        assert_same(simulate_with_log(run, seed, number)[0], many, number)


def test_of_devices_that_are_equally_slow_the_first_is_blamed() -> None:
    paces = np.array([[1.5]])
    slow = [FailureMode(name, "slow", 1 / 4000, 8, lasts=exponential(6e3), paces=paces) for name in ("heat", "dust")]
    run = replace(PLAIN, causes=(*PLAIN.causes, *slow))
    for seed in range(5):
        assert_same(simulate_with_log(run, seed)[0], simulate_runs(run, seed, 1), 0)


def test_every_field_of_a_run_is_simulated() -> None:
    """A new one is read by ``run_tables`` or ``one_run`` too; then it is named here, and drawn above."""
    known = {
        LongRun: "pattern causes machines gpus goal until restart spares shrunk_paces shrunk_shares straggler "
        "notice_time misdiagnosis_share timeout maintenance week",
        FailureMode: "name effect rate devices part_lifetimes failure_log defective_batch detect repair machines "
        "leaves survives lasts shares paces device_class label",
        DefectiveBatch: "machines rate_factor cured retire window rule replaced",
    }
    for kind, names in known.items():
        assert [field.name for field in fields(kind)] == names.split()


def test_the_log_is_the_whole_of_the_run_without_gaps() -> None:
    for seed in (1, 2, 5, 11, 12, 15):
        outcomes, rows = simulate_with_log(drawn_run(seed), seed)
        log = [row for row in rows if row.activity != "strike"]
        assert [row.begin for row in log[1:]] == pytest.approx([row.end for row in log[:-1]], rel=1e-12)
        assert log[-1].end == pytest.approx(outcomes.wall[0])


def test_a_stretch_tells_its_steps_and_snapshots() -> None:
    (row,) = simulate_with_log(with_rate(PLAIN, 0.0), 1)[1]
    assert row == (0.0, 63_000.0, "training", "", "", 63_000.0, 6000.0, 100)
    played, log = simulate_with_log(PLAIN, 1)
    lost = [(row.at, log[place + 1].at) for place, row in enumerate(log) if row.activity == "lost"]
    before, after = PATTERN.total_until("steps", np.array(lost).T)
    assert len(lost) > 5
    assert sum(row.steps for row in log) - (before - after).sum() == pytest.approx(played.steps[0])


# --- what must hold ---------------------------------------------------------------------------------------------------

PATTERN = CheckpointPattern(step=10.0, steps=60, storage=SnapshotCost(30.0))
PLAIN = LongRun(
    PATTERN,
    (FailureMode("gpu", "stop", 1 / 7200, detect=exponential(60.0), survives=STORAGE),),
    goal=6000,
    restart=(RestartPhase("load", fixed(200.0), fixed(200.0)),),
)


def with_rate(run: LongRun, rate: float) -> LongRun:
    return replace(run, causes=(replace(run.causes[0], rate=rate),))


def with_stall(run: LongRun, stall: float) -> LongRun:
    return replace(run, pattern=replace(PATTERN, storage=SnapshotCost(stall)))


def with_restart(run: LongRun, seconds: float) -> LongRun:
    return replace(run, restart=(RestartPhase("load", fixed(seconds), fixed(seconds)),))


def goodput(run: LongRun, count: int = 60) -> float:
    played = simulate_runs(run, 3, count)
    return float((played.seconds_by_category()["productive"] / played.wall).mean())


def test_nothing_is_lost_without_failures_and_with_free_checkpoints() -> None:
    played = simulate_runs(with_rate(with_stall(PLAIN, 0.0), 0.0), 1, 3)
    assert played.wall == pytest.approx(60_000.0, rel=1e-9)
    assert played.seconds_by_category()["productive"] == pytest.approx(played.wall, rel=1e-12)
    assert played.strikes.sum() == 0


@pytest.mark.parametrize(
    ("change", "values"),
    [
        (with_rate, [1 / 40000, 1 / 7200, 1 / 2000]),
        (with_stall, [0.0, 30.0, 200.0]),
        (with_restart, [0.0, 200.0, 900.0]),
    ],
)
def test_goodput_falls(change: object, values: list[float]) -> None:
    """With the rate, the stall and the restart, on common random numbers."""
    assert callable(change)
    found = [goodput(change(PLAIN, value)) for value in values]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[1] + 0.005 > found[2] + 0.01


def test_the_best_interval_does_not_depend_on_the_restart() -> None:
    every = [20, 60, 180]
    patterns = [replace(PATTERN, steps=steps) for steps in every]
    for restart in (0.0, 300.0, 1200.0):
        found = [goodput(with_restart(replace(PLAIN, pattern=pattern), restart), 200) for pattern in patterns]
        assert found.index(max(found)) == 1, restart


@pytest.mark.parametrize(("group", "room"), [(4, 1 << 20), (128, 64 * 20)])
def test_a_run_does_not_depend_on_those_simulated_with_it(
    monkeypatch: pytest.MonkeyPatch, group: int, room: int
) -> None:
    """In groups of any size, and where the draws of a group take too much room."""
    run = drawn_run(1)
    whole = simulate_runs(run, 7, 9)
    later = simulate_runs(run, 7, 4, first=5)
    np.testing.assert_array_equal(later.fates, whole.fates[5:])
    monkeypatch.setattr("simcluster.longrun.simulation._GROUP", group)
    monkeypatch.setattr("simcluster.longrun.simulation.draws._ROOM", room)
    assert_same_bits(simulate_runs(run, 7, 9), whole)


def test_plain_python_gives_the_same_bits(tmp_path: Path) -> None:
    """As on a machine without a C compiler."""
    code = """
import pickle, uncompiled, test_long_run_simulation as t
from simcluster.longrun.simulation import one_run
assert one_run.__file__.endswith(".py")
found = {seed: t.simulate_runs(t.drawn_run(seed), seed, 2).arrays_by_name() for seed in t.PLAIN_SEEDS}
open("found", "wb").write(pickle.dumps(found))
"""
    paths = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1])))
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, check=True)
    for seed, columns in pickle.loads((tmp_path / "found").read_bytes()).items():
        run = drawn_run(seed)
        assert_same_bits(RunOutcomes(run, **columns), simulate_runs(run, seed, 2))


def test_a_changed_policy_leaves_other_draws_alone() -> None:
    """Failures strike after the same seconds of exposure, whatever becomes of slow devices."""
    heat = FailureMode("heat", "slow", 1 / 3000, lasts=exponential(900.0), paces=np.array([[1.3]]))
    both = replace(PLAIN, causes=(*PLAIN.causes, heat), restart=())
    left, gone = (simulate_runs(replace(both, straggler=what), 5, 40) for what in ("leave", "checkpoint"))
    alone = simulate_runs(replace(PLAIN, restart=()), 5, 40)
    assert (left.wall > alone.wall).all()
    detected = [each.fates[:, 2, 0] for each in (left, gone, alone)]
    for each, strikes in ((detected[0], left.strikes), (detected[1], gone.strikes)):
        same = strikes[:, 0] == alone.strikes[:, 0]
        assert same.sum() > 0
        np.testing.assert_allclose(each[same], detected[2][same], rtol=1e-9)


# --- laws of durations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TIMES)
def test_the_mean_of_a_law_is_that_of_its_quantiles(kind: str) -> None:
    law: DurationSpec = TypeAdapter(Time).validate_python(TIMES[kind].EXAMPLE)
    assert type(law) is TIMES[kind]
    grid = (np.arange(200_000) + 0.5) / 200_000
    uniform = np.stack(
        [np.random.default_rng(draw).permutation(grid) for draw in range(law.num_draws)] or [grid], axis=-1
    )
    assert law.quantile(uniform[..., : law.num_draws]).mean() == pytest.approx(law.mean, rel=2e-3)


def test_a_duration_alone_is_a_fixed_time() -> None:
    law = TypeAdapter(Time).validate_python("5 min")
    assert law == FixedTime(seconds="300.0 s")
    assert TypeAdapter(Time).validate_python({"per_gpu": "1 ms"}).for_gpu_count(16384).mean == pytest.approx(16.384)


def test_half_of_lognormal_times_are_below_the_median() -> None:
    law = LognormalTime(kind="lognormal", median="4 min", sigma=0.5)
    assert law.quantile(np.array([[0.5]]))[0] == pytest.approx(240.0)
