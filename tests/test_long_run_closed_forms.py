"""Closed forms of the long run, and runs that they refuse, against formulas and integration outside this project.

Lengths in seconds unless a name says otherwise; where a value is not of a paper or a public project, it is that of the
formula itself, worked out once by other hands, most of them checked there by Monte Carlo.
"""

from __future__ import annotations

import math

import long_run_forms as forms
import numpy as np
import pytest
from conftest import for_each
from hypothesis import given
from hypothesis import strategies as st
from long_run_forms import fixed

from simcluster.base.errors import InputError
from simcluster.longrun import closed_forms as known
from simcluster.longrun.checkpoint_pattern import MEMORY, STORAGE, CheckpointPattern, SnapshotCost
from simcluster.longrun.events import simulate_with_log
from simcluster.longrun.long_run import FailureMode, LongRun
from simcluster.longrun.run_feasibility import check_run_ends, estimate_kept_work_share, expected_full_reruns
from simcluster.longrun.simulation import simulate_runs
from simcluster.longrun.studies.run_closed_forms import CheckpointCosts, best_interval_steps, parse_interval
from simcluster.scenario.run_times import DurationSpec, ExponentialTime, StagedTime

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
C, MU, R, D = 60.0, 3 * HOUR, 300.0, 120.0  # a checkpoint, the mean time between failures, recovery, downtime
LLAMA, LLAMA_ALL = 419 / (54 * DAY), 466 / (54 * DAY)  # Llama 3 405B, Table 5: interruptions of 16,384 GPUs in 54 days
RSC_1, RSC_2 = 6.50e-3 / DAY, 2.34e-3 / DAY  # of a node, Meta's research clusters (arXiv:2410.21680)
NODES, REPAIR = 2048, 2 * DAY

BEST = known.best_interval(C, MU)
TWO = forms.two_level_optimum(2.0, 60.0, 1 / (4 * HOUR), 1 / (24 * HOUR))
BEHIND = known.async_interval(3.0, 120.0, 0.02, MU)
SEGMENT = known.segment_moments(1800.0, C, R, D, 1 / MU)
NETCAP = DAY / (NODES * 5e-3)
AT_98304 = DAY / (98304 / 8 * 419 / (54 * NODES))
SILENT = 6 / (54 * DAY)  # Llama 3: six silent errors in 54 days

PEER_NODES, PEER_JOB = 128 / (3000 * HOUR), 1 / (40 * HOUR)  # 12-gpu-goodput-mtbi's baseline
PEER_DETECTS = (
    PEER_NODES * (0.25 * 3 + 0.2 * 3 + 0.15 * 30 + 0.1 * 5 + 0.3 * 30) + PEER_JOB * (0.6 * 1 + 0.4 * 30)
) / (PEER_NODES + PEER_JOB)
PEER_DOWN = (PEER_DETECTS + 20) * MINUTE
PEER_RATE = PEER_NODES + PEER_JOB
PEER_ALONE = known.kept_share(30 * MINUTE, 5 * MINUTE, 0.0, PEER_DOWN, PEER_RATE)
PEER_WAITS = known.erlang_b(5, PEER_NODES * 0.7 * 48 * HOUR / (1 + PEER_RATE * PEER_DOWN))


def _best(checkpoint: float, mu: float, down: float, recovery: float = 0.0) -> float:
    """The efficiency at the best interval."""
    return known.kept_share(known.best_interval(checkpoint, mu), checkpoint, recovery, down, 1 / mu)


def _ettr(nodes: int, rate: float, restart: float, interval: float) -> float:
    """Of so many nodes; minutes."""
    return known.meta_ettr(nodes * rate, restart * MINUTE, interval * MINUTE)


VALUES = {
    "one level: Young's interval": (known.young_interval(C, MU), 1138.419958),
    "one level: Daly's interval, higher order": (known.daly_interval(C, MU), 1098.771322),
    "one level: Daly's interval, first order with the recovery": (forms.daly_first(C, MU, R), 1094.123044),
    "one level: exact interval (Lambert W)": (BEST, 1098.776292),
    "one level: efficiency at it": (known.kept_share(BEST, C, R, D, 1 / MU), 0.8640525286),
    "one level: efficiency at Young's": (known.kept_share(known.young_interval(C, MU), C, R, D, 1 / MU), 0.86399724),
    "one level: efficiency at 30 min": (known.kept_share(1800.0, C, R, D, 1 / MU), 0.8530269851),
    "one level: efficiency at 5 min": (known.kept_share(300.0, C, R, D, 1 / MU), 0.7883113655),
    "one level: first order at Young's": (
        known.first_order_efficiency(known.young_interval(C, MU), C, R + D, MU),
        0.8557018558,
    ),
    "segment of 30 min: mean": (SEGMENT.mean, 2110.132541),
    "segment of 30 min: standard deviation": (math.sqrt(SEGMENT.variance), 670.825295),
    "segment of 30 min: failures": (SEGMENT.failures, 0.1932355807),
    "1,200 segments: mean, days": (1200 * SEGMENT.mean / DAY, 29.30739641),
    "1,200 segments: standard deviation, days": (math.sqrt(1200 * SEGMENT.variance) / DAY, 0.2689591421),
    "1,200 segments: failures": (1200 * SEGMENT.failures, 231.8826969),
    "Llama 3, all interruptions: best efficiency, restart 5 min": (_best(5, 1 / LLAMA_ALL, 0, 300), 0.9401318648),
    "Llama 3, all interruptions: best efficiency, restart 10 min": (_best(5, 1 / LLAMA_ALL, 0, 600), 0.9123796218),
    "Llama 3, all interruptions: best efficiency, restart 15 min": (_best(5, 1 / LLAMA_ALL, 0, 900), 0.8854466116),
    "Llama 3: 95 % interval of 419, low": (known.poisson_interval(419)[0], 379.835925),
    "Llama 3: 95 % interval of 419, high": (known.poisson_interval(419)[1], 461.1059127),
    "Meta: 2,048 nodes, RSC-1, u0 5, dt 60 min": (_ettr(2048, RSC_1, 5, 60), 0.6764444444),
    "Meta: 12,500 nodes, RSC-1, 2 and 2 min": (_ettr(12500, RSC_1, 2, 2), 0.8307291667),
    "Meta: 12,500 nodes, RSC-2, 5 and 30 min": (_ettr(12500, RSC_2, 5, 30), 0.59375),
    "Meta: 12,500 nodes, RSC-2, 2 and 2 min": (_ettr(12500, RSC_2, 2, 2), 0.9390625),
    "Meta: 512 nodes, RSC-1, 5 and 60 min": (_ettr(512, RSC_1, 5, 60), 0.9191111111),
    "Meta: 512 nodes, RSC-1, 20 and 60 min": (_ettr(512, RSC_1, 20, 60), 0.8844444444),
    "two levels: overhead": (TWO[0], 0.05393446629),
    "two levels: checkpoints in memory for each on storage": (TWO[1], 13.41640786),
    "two levels: pattern": (TWO[2], 3219.937888),
    "one level instead of two: overhead": (
        forms.verified_overhead(0.0, 60.0, 0.0, 1 / (4 * HOUR) + 1 / (24 * HOUR)),
        0.09860132972,
    ),
    "behind training: interval": (BEHIND, 341.5259873),
    "behind training: waste there, first order": (
        known.async_lost_share(BEHIND, 3.0, 120.0, 0.02, MU, 600.0),
        0.09828944327,
    ),
    "behind training: efficiency there, exact": (
        known.async_efficiency(BEHIND, 3.0, 120.0, 0.02, MU, 600.0),
        0.9075828652,
    ),
    "behind training: efficiency at the exact best": (
        known.async_efficiency(337.9354948, 3.0, 120.0, 0.02, MU, 600.0),
        0.9075844514,
    ),
    "verified: interval": (known.verified_interval(10.0, 60.0, SILENT, 1 / MU), 1212.903597),
    "verified: overhead": (forms.verified_overhead(10.0, 60.0, SILENT, 1 / MU), 0.1154254966),
    "no silent error in 54 days": (1 - known.shortage_probability(0, SILENT * 54 * DAY), 0.002478752177),
    "Weibull 0.7: failures of 2,048 new nodes in 54 days": (forms.renewals(2048, 100.0, 0.7, 54.0), 1761.906184),
    "spares: no more than 20 of 26.624 at once": (1 - known.shortage_probability(20, 26.624), 0.1143936233),
    "spares: no more than 30": (1 - known.shortage_probability(30, 26.624), 0.7780626007),
    "spares: no more than 40": (1 - known.shortage_probability(40, 26.624), 0.9942215242),
    "spares: stalled with 20": (known.shortage_share(20, NODES * RSC_1, REPAIR), 0.2853748421),
    "spares: stalled with 26": (known.shortage_share(26, NODES * RSC_1, REPAIR), 0.1316859292),
    "spares: stalled with 30": (known.shortage_share(30, NODES * RSC_1, REPAIR), 0.06127962406),
    "spares: stalled with 35": (known.shortage_share(35, NODES * RSC_1, REPAIR), 0.01552804025),
    "spares: stalled with 40": (known.shortage_share(40, NODES * RSC_1, REPAIR), 0.002242137672),
    "spares: so many for less than 0.1 %": (forms.spares_for(1e-3, NODES * RSC_1, REPAIR), 42),
    "spares: 30, and 10 crews": (known.shortage_share(30, NODES * RSC_1, REPAIR, 10), 0.6243990385),
    "spares: 30, and 15 crews": (known.shortage_share(30, NODES * RSC_1, REPAIR, 15), 0.4366020755),
    "spares: 30, and 30 crews": (known.shortage_share(30, NODES * RSC_1, REPAIR, 30), 0.06319319635),
    "largest of 8 normals": (forms.largest_normal(8), 1.423600306),
    "largest of 128": (forms.largest_normal(128), 2.594597369),
    "largest of 2,048": (forms.largest_normal(2048), 3.441799099),
    "largest of 16,384": (forms.largest_normal(16384), 3.97135057),
    "AIReSim, 2,048 servers as Llama 3, hours": (
        forms.duration_without_lost_work(54 * 0.9 * DAY, LLAMA, 900.0, 180.0) / HOUR,
        1279.58,
    ),
    "12-gpu-goodput-mtbi: efficiency without waiting": (PEER_ALONE, 0.8090116474),
    "12-gpu-goodput-mtbi: waiting": (PEER_WAITS, 0.01052853532),
    "12-gpu-goodput-mtbi: efficiency (it reports 0.796 of 20 seeds)": (
        PEER_ALONE * (1 - PEER_WAITS),
        0.8004939397,
    ),
    "netcap's reference: Daly's interval, first order": (forms.daly_first(20.0, NETCAP), 560.9475019),
    "netcap's reference: efficiency (it reports 0.88848668609)": (
        known.kept_share(forms.daly_first(20.0, NETCAP), 20.0, 0.0, 420.0, 1 / NETCAP),
        0.8884866861,
    ),
    "netcap's reference: best efficiency": (_best(20.0, NETCAP, 420.0), 0.8884909537),
    "98,304 GPUs: best efficiency, restart 5 min": (_best(5.0, AT_98304, 300.0), 0.7991895106),
    "98,304 GPUs: best efficiency, restart 10 min": (_best(5.0, AT_98304, 600.0), 0.7015625704),
    "98,304 GPUs: best efficiency, restart 15 min": (_best(5.0, AT_98304, 900.0), 0.625190859),
    "98,304 GPUs: 12 replicas, down 10 min": (forms.elastic_share(12, 1 / AT_98304, 600.0), 0.973764949),
    "98,304 GPUs: 12 replicas, down 30 min": (forms.elastic_share(12, 1 / AT_98304, 1800.0), 0.9252186329),
    "98,304 GPUs: 12 replicas, down 60 min": (forms.elastic_share(12, 1 / AT_98304, 3600.0), 0.8608435736),
}
"""Of what: (the closed form, its value)."""


@for_each("name", VALUES)
def test_value(name: str) -> None:
    found, value = VALUES[name]
    assert found == pytest.approx(value, rel=2e-9)


def test_exact_forms_become_first_order_ones() -> None:
    """With failures a hundredth as often and checkpoints a hundredth as long, what is left out is 1e-4 or so."""
    rate, checkpoint = 1 / (100 * MU), C / 100
    interval = known.verified_interval(0.1, checkpoint, SILENT / 100, rate)
    overhead = forms.verified_segment(interval, 0.1, checkpoint, SILENT / 100, rate) / interval - 1
    assert overhead == pytest.approx(forms.verified_overhead(0.1, checkpoint, SILENT / 100, rate), rel=2e-3)
    soft, hard = 1 / (400 * HOUR), 1 / (2400 * HOUR)
    least, _, period = forms.two_level_optimum(0.02, 0.6, soft, hard)
    work = (period - 13 * 0.02 - 0.6) / 13
    assert forms.two_level_pattern(work, 13, 0.02, 0.6, soft, hard) / work / 13 - 1 == pytest.approx(least, rel=2e-3)
    assert forms.two_level_pattern(1800.0, 1, 0.0, C, 1e-30, 1 / MU) == pytest.approx(
        known.mean_segment_time(1800.0, C, 0, 0, 1 / MU)
    )
    assert forms.verified_segment(1800.0, 0.0, C, 1e-30, 1 / MU) == pytest.approx(
        known.mean_segment_time(1800.0, C, 0, 0, 1 / MU)
    )


def test_a_bad_batch_fails_until_it_is_cured() -> None:
    """AIReSim's published case: 15 % of 4,160, six times the rate, cured in 76 % of cases, 256 days of work."""
    assert forms.batch_failures(624, 6.0, 0.76, 0.01 / DAY, 256 * DAY) == pytest.approx(624 * 5 / 6 / 0.76, rel=1e-4)
    assert forms.batch_failures(10, 3.0, 1e-9, 1e-6, 1e5) == pytest.approx(10 * 2 * 1e-6 * 1e5, rel=1e-6)


def test_renewals_of_exponential_lives_are_poisson() -> None:
    assert forms.renewals(2048, 100.0, 1.0, 54.0) == pytest.approx(2048 * 0.54, rel=1e-6)


def test_a_restart_that_is_hardly_ever_over_leaves_nothing() -> None:
    """Tried again for longer than a float can say."""
    assert known.mean_segment_time(1800.0, C, 1e9, 0.0, 1e-5) == math.inf
    assert known.kept_share(1800.0, C, 1e9, 60.0, 1e-5) == 0.0


def silent(rate: float, lasts: DurationSpec) -> FailureMode:
    return FailureMode("SDC", "silent", rate, survives=STORAGE, lasts=lasts)


def run_of(*causes: FailureMode, steps: int = 100, goal: float = 10_000, keep: int = 1, stall: float = 1.0) -> LongRun:
    return LongRun(CheckpointPattern(1.0, steps, SnapshotCost(stall), keep=keep), causes, goal=goal)


def test_a_run_shorter_than_its_interval_is_no_longer_than_itself() -> None:
    """tiny_3d was refused for an interval of a day, of which its run of a quarter of a minute never sees the end."""
    often = FailureMode("GPU", "stop", 1 / 450, survives=STORAGE)
    run = run_of(often, steps=86_400, goal=20)
    assert estimate_kept_work_share(run) > 0.9
    check_run_ends(run)
    assert simulate_runs(run, 0, 20).wall.max() < 3_000
    with pytest.raises(InputError, match="practically never end: the job stops every 450 s"):
        check_run_ends(run_of(often, steps=86_400, goal=80_000))


def test_what_only_storage_survives_needs_a_whole_pattern_to_come_through() -> None:
    pattern = CheckpointPattern(1.0, 100, SnapshotCost(1.0), SnapshotCost(1.0), snapshots_per_stored=100)
    deep = FailureMode("host", "stop", 1 / 150, survives=STORAGE)
    with pytest.raises(InputError, match="practically never end"):
        check_run_ends(LongRun(pattern, (deep,), goal=1e6))
    check_run_ends(LongRun(pattern, (FailureMode("GPU", "stop", 1 / 150, survives=MEMORY),), goal=1e6))


def test_a_write_has_to_come_through_as_well() -> None:
    often = FailureMode("GPU", "stop", 1 / 20, survives=STORAGE)
    behind = CheckpointPattern(1.0, 400, SnapshotCost(0.0, 390.0))
    assert estimate_kept_work_share(LongRun(behind, (often,), goal=1e6)) < 1e-9
    with pytest.raises(InputError, match="practically never end"):
        check_run_ends(LongRun(behind, (often,), goal=1e6))


def test_errors_that_outlive_all_kept_checkpoints_are_refused_by_both_players() -> None:
    run = run_of(silent(1 / 400, fixed(1_000)))
    assert expected_full_reruns(run) == pytest.approx((run.end_nominal_time - 1_000) / 400)
    for play in (lambda: simulate_runs(run, 0, 2), lambda: simulate_with_log(run, 0)):
        with pytest.raises(
            InputError, match=r"silent errors \(SDC\) are found so late that all 1 kept checkpoints \(101 s"
        ):
            play()
    check_run_ends(run_of(silent(1 / 400, fixed(1_000)), keep=12))  # one from before it is there
    check_run_ends(run_of(silent(1 / 400, fixed(50))))
    check_run_ends(
        LongRun(CheckpointPattern(1.0, 100, SnapshotCost(1.0), verify=1.0), (silent(1 / 400, fixed(1e3)),), goal=1e4)
    )
    check_run_ends(LongRun(run.pattern, run.causes, until=1e4))  # ends by the clock


def test_a_law_of_several_draws_is_followed() -> None:
    mean = ExponentialTime(kind="exponential", mean="500 s")
    run = run_of(silent(1e-4, mean))
    # E[(T - l) where l > a] = e^-a/mu (T - a - mu), but for what is longer than T
    reach, whole = 101.0, run.end_nominal_time
    assert expected_full_reruns(run) == pytest.approx(1e-4 * math.exp(-reach / 500) * (whole - reach - 500), rel=1e-3)
    staged = StagedTime.model_validate({"kind": "staged", "first": "600 s", "second": "400 s", "probability": 0.5})
    assert expected_full_reruns(run_of(silent(1e-4, staged))) == pytest.approx(1e-4 * (whole - 800), rel=1e-3)


@pytest.mark.parametrize("keep", [1, 3])
def test_how_long_a_run_takes_that_begins_again_is_the_closed_form(keep: int) -> None:
    """Fails at a strike at s < T - l, having spent s + l: T + (e^m - 1) (E[s | s < T - l] + l)."""
    life, rate = 1_000.0, 1 / 4_000
    run = run_of(silent(rate, fixed(life)), keep=keep, goal=6_000)
    whole, span = run.end_nominal_time, run.end_nominal_time - life
    m = expected_full_reruns(run)
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
    storage = SnapshotCost(stall, write, slowed)
    memory = SnapshotCost(stall / 10, write / 3, slowed / 2) if cycles else None
    causes = (
        FailureMode("GPU", "stop", rate),
        FailureMode("host", "stop", rate / 10, survives=STORAGE),
        silent(rate / 7, fixed(10.0)),
    )
    found = parse_interval("auto", step, CheckpointCosts(storage, memory, verify, cycles or 1), causes)
    pattern = CheckpointPattern(step, found.steps, storage, memory, found.snapshots_per_stored, verify)
    assert best_interval_steps(LongRun(pattern, causes, until=1e6)) == found.steps
    beside = np.array([phase[2] for cycle in pattern.phases_by_snapshot for phase in cycle])
    assert (beside >= -1e-9 * found.steps).all()  # no write is longer than the work until the next snapshot
