"""Checks before simulation that a long run reaches its last step and is not too large to simulate.

Progress from one snapshot to the next needs a segment (work, stall and any asynchronous write) between two failures; a
failure that only storage survives needs a whole pattern. A silent error found after every kept snapshot has been
overwritten sends the run back to its begin. An attempt succeeds with probability e^-m, where m is the sum over causes
of rate x E[T - l], l being the time until the error is found (where longer than the snapshots reach back), and T that
of the whole run: so about (e^m - 1) / m times T are spent.
"""

from __future__ import annotations

import math

import numpy as np

from simcluster.base.errors import InputError
from simcluster.base.units import YEAR
from simcluster.longrun import closed_forms
from simcluster.longrun.pattern import STORAGE, SnapshotCost
from simcluster.longrun.run import FailureMode, LongRun

_LEAST = 1e-3
"""Least share of the time that must be work that is kept."""
_NEVER = 50.0  # segments this many times as long as the time between failures succeed with probability e^-50
_LONGEST = 100 * YEAR
_MOST_EACH, _MOST = 1e5, 2e8  # failures in a run, and in all runs: minutes of simulation
_PARTS = 4096  # points at which a silent error's lifetime is sampled


def check_run_ends(run: LongRun) -> None:
    """Raise InputError for a run that would practically never reach its last step."""
    if math.isfinite(run.until):
        return
    known = estimate_kept_share(run)
    if known < _LEAST:
        down, exposed = mean_outage_seconds(run)
        saving = run.pattern.storage
        raise InputError(
            f"run: it would practically never end: something fails every {1 / stop_rate(run):.4g} s, a restart takes "
            f"{down + exposed:.4g} s, a checkpoint {saving.stall + saving.write:.4g} s; "
            "set run.days, or change failures, restart or checkpoint"
        )
    again = expected_reruns(run, known)
    if again > _NEVER or (again and again / math.expm1(again) < _LEAST):
        pattern, names = run.pattern, ", ".join(cause.name for cause in run.causes if cause.effect == "silent")
        times = f"{math.expm1(again):.3g}" if again < _NEVER else "over 1e21"
        raise InputError(
            f"run: it would practically never end: silent errors ({names}) are found when all {pattern.keep} kept "
            f"checkpoints, {pattern.keep * pattern.period:.4g} s of work, were written after them, and the run of "
            f"{run.end_at:.4g} s begins again {times} times; "
            "keep more (run.checkpoint.keep), write less often, verify, or set run.days"
        )


def check_simulation_size(run: LongRun, played: int) -> None:
    """Raise InputError if simulating the runs would take too long: too many years, or too many failures."""
    rate, (down, exposed) = stop_rate(run), mean_outage_seconds(run)
    wall = run.until
    if math.isinf(wall):  # and it ends: ``check_run_ends``
        work = run.pattern.steps * run.pattern.step
        wall = run.goal_at / closed_forms.efficiency(work, run.pattern.storage.stall, exposed, down, rate)
    if wall > _LONGEST:
        raise InputError(
            f"run: it takes about {wall / YEAR:.3g} years; at most {_LONGEST / YEAR:.0f} are simulated: "
            "ask for fewer days, steps or tokens"
        )
    rates = sum(cause.rate for cause in run.causes)
    planned = 0.0 if run.maintenance is None else 1 / max(run.maintenance.every, 1e-3)
    each = wall * (rates / (1 + rate * down) + planned)  # a job that is down has no failures
    if not (each <= _MOST_EACH and each * played <= _MOST):
        raise InputError(
            f"run: {played:,} runs of about {each:.3g} failures and interruptions each are more than can be simulated; "
            "give fewer runs (run.played), fewer days, or rarer failures"
        )


def stop_rate(run: LongRun) -> float:
    """Return the total failure rate (1/s) of the causes that stop the job."""
    return sum(cause.rate for cause in run.causes if cause.stops)


def _persistent_rate(run: LongRun, cause: FailureMode) -> float:
    """Return the rate (1/s) at which a cause stops the job, with defective nodes that no repair cures."""
    bad = cause.bad
    if bad is None or bad.cured or bad.retire:
        return cause.rate
    return cause.rate * (1 + (bad.times - 1) * bad.machines / run.machines)


def mean_outage_seconds(run: LongRun) -> tuple[float, float]:
    """Return the mean outage after a failure (s): time safe from further failures, and exposed time."""
    rate = stop_rate(run)
    stops = [cause for cause in run.causes if cause.stops]
    detect = sum(cause.rate * cause.detect.mean for cause in stops) / rate if rate else 0.0
    shares = [(cause.rate / rate, cause.survives) for cause in stops] if rate else [(1.0, STORAGE)]
    each = [
        (sum(share * part.duration_law(level).mean for share, level in shares), part.exposed) for part in run.restart
    ]
    return detect + sum(s for s, exposed in each if not exposed), sum(s for s, exposed in each if exposed)


def estimate_kept_share(run: LongRun) -> float:
    """Return the estimated share of a run's time spent on work that is kept; 0 if it hardly progresses."""
    pattern, stops = run.pattern, [cause for cause in run.causes if cause.stops]
    rate = sum(_persistent_rate(run, cause) for cause in stops)
    if not rate:
        return 1.0
    if pattern.memory is None:
        return _segment_share(run, pattern.steps, pattern.storage, rate)
    deep = sum(_persistent_rate(run, cause) for cause in stops if cause.survives == STORAGE)
    over_all = _segment_share(run, pattern.steps * pattern.cycles, pattern.storage, deep) if deep else 1.0
    return min(_segment_share(run, pattern.steps, pattern.memory, rate), over_all)


def _segment_share(run: LongRun, steps: int, saving: SnapshotCost, rate: float) -> float:
    down, exposed = mean_outage_seconds(run)
    work, stall = min(steps, run.goal) * run.pattern.step_with_validation, saving.stall + run.pattern.verify
    if rate * max(exposed, work + stall + saving.write) > _NEVER:
        return 0.0
    return closed_forms.kept_work_share(work, stall, saving.write, saving.slowed, exposed, down, rate)


def expected_reruns(run: LongRun, kept: float = 1.0) -> float:
    """Return the expected number of silent errors that send a run back to its first step.

    m in the module's docstring, as if the run continued meanwhile. ``kept`` is the share of time that is work: in wall
    time, kept snapshots reach back longer by its inverse.
    """
    pattern = run.pattern
    if pattern.verify or not math.isfinite(run.goal):
        return 0.0  # found before the next snapshot
    reach = (pattern.keep * pattern.period + pattern.storage.write) / kept
    silent = [cause for cause in run.causes if cause.effect == "silent"]
    return sum(cause.rate * _mean_excess(cause, reach, run.end_at) for cause in silent)


def _mean_excess(cause: FailureMode, reach: float, whole: float) -> float:
    """Return the mean over errors of ``whole`` - l, with l the time to find one; 0 where l <= ``reach``."""
    places = np.arange(_PARTS) + 0.5
    golden = [places / _PARTS] + [(places * 2 ** (-1 / (1 + each))) % 1 for each in range(1, cause.lasts.draws)]
    lives = cause.lasts.quantile(np.stack(golden, axis=-1)) if cause.lasts.draws else np.array([cause.lasts.mean])
    return float(np.where(lives > reach, np.maximum(0.0, whole - lives), 0.0).mean())
