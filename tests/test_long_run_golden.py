"""Many runs at once against what is known of them: closed forms, exact or first order, and what peers publish.

Means lie within 4 standard errors of what they should be; runs are few or long, so that all take seconds together.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import long_run_forms as forms
import numpy as np
import pytest
from long_run_forms import exponential, fixed

from simcluster.base.arrays import Floats
from simcluster.longrun import closed_forms as known
from simcluster.longrun.checkpoint_pattern import STORAGE, CheckpointPattern, SnapshotCost
from simcluster.longrun.long_run import FailureMode, LongRun, RestartPhase, RunOutcomes, SpareNodes
from simcluster.longrun.part_lifetimes import PartLifetimes
from simcluster.longrun.simulation import simulate_runs
from simcluster.scenario.run_times import DurationSpec, WeibullTime

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))
from long_run_peers import PUBLISHED, RATE, SERVERS, WORK, published_case, saved

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
MU = 3 * HOUR


def part(name: str, seconds: float, *, exposed: bool = False) -> RestartPhase:
    return RestartPhase(name, fixed(seconds), fixed(seconds), exposed)


def every(work: float, saving: SnapshotCost, verify: float = 0.0) -> CheckpointPattern:
    """A checkpoint after each so many seconds of work, in 64 steps."""
    return CheckpointPattern(work / 64, 64, saving, verify=verify)


def share(outcomes: RunOutcomes) -> Floats:
    """Of the wall time that is work which is kept."""
    return outcomes.steps * outcomes.run.pattern.step / outcomes.wall


def near(values: Floats, expected: float, slack: float = 0.0) -> None:
    """Hold their mean within 4 standard errors (and what a formula is known to leave out) of what it should be."""
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert 0 < error < 0.1 * abs(expected)
    assert forms.is_near(values, expected, slack), (values.mean(), error, expected)


# --- one level --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("work", "segments", "count"), [(1800.0, 40, 10_000), (1098.776, 400, 300), (300.0, 800, 200)])
def test_checkpoints_and_restarts_that_may_fail(work: float, segments: int, count: int) -> None:
    """C 60 s, 3 h between failures, a downtime of 120 s and a recovery of 300 s: mean, failures and spread."""
    pattern = every(work, SnapshotCost(60.0))
    restart = part("down", 120.0), part("load", 300.0, exposed=True)
    run = LongRun(pattern, (FailureMode("gpu", "stop", 1 / MU),), goal=64.0 * segments, restart=restart)
    outcomes, moments = simulate_runs(run, 1, count), known.segment_moments(work, 60.0, 300.0, 120.0, 1 / MU)
    near(outcomes.wall, segments * moments.mean)
    near(outcomes.strikes[:, 0].astype(float), segments * moments.failures)
    if count == 10_000:  # its standard error is 0.7 %
        assert outcomes.wall.std() == pytest.approx(math.sqrt(segments * moments.variance), rel=0.02)


@pytest.mark.parametrize(
    ("gpus", "published"),
    [(1024, 0.980), (2048, 0.970), (4096, 0.954), (8192, 0.929), (16384, 0.888), (32768, 0.824), (65536, 0.724)],
)
def test_netcap_table(gpus: int, published: float) -> None:
    """The ETTR of its seven scales (checkpoints of 20 s at Daly's interval, 420 s to detect and restart): to 0.001.

    What the failures of a run were above or below their number is taken out (its mean is known: a control variate).
    """
    mu = DAY / (gpus / 8 * 5e-3)
    work = forms.daly_first(20.0, mu)
    cause = FailureMode("node", "stop", 1 / mu, detect=fixed(120.0))
    segments = round(100 * mu / work)
    run = LongRun(every(work, SnapshotCost(20.0)), (cause,), goal=64.0 * segments, restart=(part("restart", 300.0),))
    outcomes = simulate_runs(run, gpus, 250)
    moments = known.segment_moments(work, 20.0, 0.0, 420.0, 1 / mu)
    more = outcomes.strikes[:, 0] - segments * moments.failures
    slope = np.cov(outcomes.wall, more)[0, 1] / more.var(ddof=1)
    wall = outcomes.wall - slope * more
    near(wall, segments * moments.mean)
    assert segments * work / wall.mean() == pytest.approx(published, abs=1e-3)


def test_goodput_baseline_of_another() -> None:
    """12-gpu-goodput-mtbi: 128 nodes, seven causes, four spares, repairs of 48 h; 0.8005, where it reports 0.796."""
    nodes, job = 128 / (3000 * HOUR), 1 / (40 * HOUR)
    shares = {"gpu": (0.25, 3), "host": (0.2, 3), "link": (0.15, 30), "storage": (0.1, 5)}
    causes = [
        FailureMode(name, "stop", part * nodes, detect=fixed(minutes * MINUTE), repair=exponential(48 * HOUR))
        for name, (part, minutes) in shares.items()
    ]
    causes += [
        FailureMode("node", "stop", 0.3 * nodes, detect=fixed(30 * MINUTE)),
        FailureMode("crash", "stop", 0.6 * job, detect=fixed(1 * MINUTE)),
        FailureMode("hang", "stop", 0.4 * job, detect=fixed(30 * MINUTE)),
    ]
    run = LongRun(
        every(30 * MINUTE, SnapshotCost(5 * MINUTE)),
        tuple(causes),
        until=200 * DAY,
        restart=(part("restart", 20 * MINUTE),),
        spares=SpareNodes(hot=4),
    )
    outcomes = simulate_runs(run, 3, 200)
    rate = nodes + job
    down = (nodes * 14.1 + job * 12.6) / rate * MINUTE + 20 * MINUTE  # means of the detections above
    alone = known.kept_share(30 * MINUTE, 5 * MINUTE, 0.0, down, rate)
    waiting = known.erlang_b(5, 0.7 * nodes * 48 * HOUR / (1 + rate * down))
    # The form takes failures to be as dense after a wait as before, and the load to be that of a job without work lost.
    near(share(outcomes), alone * (1 - waiting), slack=5e-4)
    near(outcomes.seconds_by_category()["waiting"] / outcomes.wall, waiting, slack=5e-4)


# --- two levels, behind training, verified ----------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "beyond"), [(1.0, 0.0403), (0.01, 0.0040)])
def test_two_levels(scale: float, beyond: float) -> None:
    """2 s in memory, 60 s on storage, losses of either every 4 h and 24 h: an overhead of 0.0539 to first order.

    First order leaves out what is of second: work that is done again is struck too, and so are checkpoints.  Exactly it
    is ``beyond`` more of the overhead; a tenth of that with checkpoints a hundredth as long, whose overhead is a tenth.
    """
    soft, hard, cycles = 1 / (4 * HOUR), 1 / (24 * HOUR), 13
    memory, storage = 2.0 * scale, 60.0 * scale
    least, _, period = forms.two_level_optimum(memory, storage, soft, hard)
    work = period / cycles
    exact = forms.two_level_pattern(work, cycles, memory, storage, soft, hard) / (work * cycles) - 1
    assert exact / least - 1 == pytest.approx(beyond, abs=1e-4)
    both = SnapshotCost(memory + storage)  # what goes to storage is in memory before
    pattern = CheckpointPattern(work / 16, 16, both, SnapshotCost(memory), cycles)
    causes = FailureMode("soft", "stop", soft), FailureMode("hard", "stop", hard, survives=STORAGE)
    run = LongRun(pattern, causes, goal=pattern.steps * cycles * math.ceil(40 * DAY / period))
    near(simulate_runs(run, 4, 200).wall / (run.goal * pattern.step) - 1, exact)


def test_checkpoints_behind_training() -> None:
    """A stall of 3 s, a write of 120 s that takes 2 % of the work, 3 h, 600 s to restart: 0.907583, exact."""
    work = known.async_interval(3.0, 120.0, 0.02, MU)
    run = LongRun(
        every(work, SnapshotCost(3.0, 120.0, 0.02)),
        (FailureMode("gpu", "stop", 1 / MU),),
        until=60 * DAY,
        restart=(part("restart", 600.0),),
    )
    near(share(simulate_runs(run, 5, 300)), known.async_efficiency(work, 3.0, 120.0, 0.02, MU, 600.0))


def test_silent_errors_and_verification() -> None:
    """10 s of verification before each checkpoint of 60 s, a failure in 3 h, six silent errors in 54 days.

    First order says an overhead of 0.1154; exactly it is 0.1249, which is what is played.
    """
    silent = 6 / (54 * DAY)
    work = known.verified_interval(10.0, 60.0, silent, 1 / MU)
    causes = FailureMode("gpu", "stop", 1 / MU), FailureMode("sdc", "silent", silent)
    run = LongRun(every(work, SnapshotCost(60.0), verify=10.0), causes, goal=64.0 * 2000)
    outcomes = simulate_runs(run, 6, 300)
    exact = forms.verified_segment(work, 10.0, 60.0, silent, 1 / MU)
    near(outcomes.wall / 2000, exact)
    assert exact / work - 1 == pytest.approx(0.1249, abs=1e-4)


# --- machines ---------------------------------------------------------------------------------------------------------


def test_ages_of_new_nodes() -> None:
    """2,048 new nodes with Weibull lives (0.7, 100 d): 1,761.9 failures in 54 days, and 0.00186 d to the first.

    To renew all of them at each failure would make the first gap every gap: 29,031 failures.
    """
    law = WeibullTime(kind="weibull", mean="100 d", shape=0.7)
    cause = FailureMode("node", "stop", 0.0, devices=2048, part_lifetimes=PartLifetimes(2048, law))
    outcomes = simulate_runs(LongRun(every(1.0, SnapshotCost(0.0)), (cause,), until=54 * DAY), 7, 8)
    near(outcomes.strikes[:, 0].astype(float), forms.renewals(2048, 100.0, 0.7, 54.0))


@pytest.mark.parametrize(
    ("spares", "crews", "law"),
    [
        (20, None, fixed(2 * DAY)),
        (30, None, exponential(2 * DAY)),
        (30, 10, exponential(2 * DAY)),
        (30, 15, exponential(2 * DAY)),
        (30, 30, exponential(2 * DAY)),
    ],
)
def test_spares_and_crews(spares: int, crews: int | None, law: DurationSpec) -> None:
    """The share of time for which 2,048 nodes of RSC-1 are short of one: Erlang B, for any law; fewer crews.

    The first 12 days, with all machines there, are taken off.
    """
    cause = FailureMode("node", "stop", 2048 * 6.5e-3 / DAY, repair=law)
    waits = []
    for until in (12 * DAY, 40 * DAY):
        run = LongRun(every(1.0, SnapshotCost(0.0)), (cause,), until=until, spares=SpareNodes(hot=spares, crews=crews))
        waits.append(simulate_runs(run, 8, 150).seconds_by_category()["waiting"])
    near((waits[1] - waits[0]) / (28 * DAY), known.shortage_share(spares, cause.rate, 2 * DAY, crews))


def test_replicas_that_are_down_by_themselves() -> None:
    """98,304 GPUs in 12 replicas at Llama 3's rate, each down for 10 min at a failure: 0.9738 of them is up.

    Played, it is 1 - rate x 10 min / 12: here the rate of the whole job stays what it is while a replica is down.
    """
    rate = 98304 / 8 * 419 / (54 * 2048) / DAY
    cause = FailureMode("node", "stop", rate, repair=fixed(10 * MINUTE))
    slower = tuple(12 / (12 - missing) for missing in range(1, 12))
    run = LongRun(
        CheckpointPattern(1 / 16, 1, SnapshotCost(0.0)),
        (cause,),
        until=2 * DAY,
        spares=SpareNodes(),
        shrunk_paces=slower,
    )
    up = share(simulate_runs(run, 9, 150))
    near(up, 1 - rate * 10 * MINUTE / 12, slack=1e-6)
    assert up.mean() == pytest.approx(forms.elastic_share(12, rate, 10 * MINUTE), abs=1e-3)


# --- AIReSim ----------------------------------------------------------------------------------------------------------


def hours_of(work: float) -> tuple[float, float]:
    """(hours, failures) of AIReSim's published case after so much work: its mean is known where nobody waits."""
    failures = SERVERS * RATE * work + forms.batch_failures(624, 6.0, 0.76, RATE, work)
    return (work + 20 * MINUTE * failures) / HOUR, failures


def test_airesim_as_published() -> None:
    """4,096 servers, a bad batch that is cured bit by bit, spares, two-stage repairs: a 32nd of its 256 days.

    The whole, of which its two reports say the same, takes longer to play: ``tests/benchmarks/test_long_run_peers.py``.
    """
    for published, half, count in PUBLISHED.values():
        hours, failures = hours_of(WORK)
        assert abs(hours - published) < half
        assert failures == pytest.approx(count, rel=0.003)
    run = published_case()
    outcomes = simulate_runs(replace(run, goal=run.goal / 32), 1, 100)
    hours, failures = hours_of(WORK / 32)
    near(outcomes.wall / HOUR, hours)
    near(outcomes.strikes[:, 0].astype(float), failures)
    assert outcomes.seconds_by_category()["waiting"].max() == 0


def test_airesim_with_lost_work() -> None:
    """What it leaves out, with checkpoints of 60 s after every 8 min of work: 28 % of its hours, on good servers."""
    run = published_case(saved(60.0, 480.0))
    run = replace(run, causes=(replace(run.causes[0], defective_batch=None),), goal=64.0 * 4 * 180)  # 4 days of work
    outcomes = simulate_runs(run, 2, 100)
    rate = SERVERS * RATE
    near(outcomes.wall, 4 * 180 * known.mean_segment_time(480.0, 60.0, 0.0, 1200.0, rate))
    theirs = forms.duration_without_lost_work(4 * DAY, rate, 1200.0)
    assert outcomes.wall.mean() / theirs == pytest.approx(1.282, abs=0.01)
