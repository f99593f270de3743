"""Checks, before simulation, that a long run can reach its last step and is small enough to simulate.

Progress from one snapshot to the next needs a segment (work, stall and any asynchronous write) between two failures; a
failure that only storage survives needs a whole pattern. A silent error found after every kept snapshot has been
overwritten sends the run back to its begin. An attempt succeeds with probability e^-m, where m is the sum over causes
of rate x E[T - l], l being the time until the error is found (where longer than the snapshots reach back), and T that
of the whole run: so about (e^m - 1) / m times T are spent.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from simcluster.base.errors import InputError
from simcluster.base.units import YEAR
from simcluster.longrun import closed_forms
from simcluster.longrun.checkpoint_pattern import STORAGE, SnapshotCost
from simcluster.longrun.long_run import FailureMode, LongRun

_LEAST = 1e-3
"""Least share of the time that must be kept work, for a run to be simulated."""
_NEVER = 50.0  # segments this many times as long as the time between failures succeed with probability e^-50
_LONGEST = 100 * YEAR
_MOST_EACH, _MOST = 1e5, 2e8  # failures in a run, and in all runs: minutes of simulation
_PARTS = 4096  # points at which a silent error's lifetime is sampled


def check_run_ends(run: LongRun) -> None:
    """Raise InputError if a run would practically never reach its last step."""
    if math.isfinite(run.until):
        return
    known = estimate_kept_work_share(run)
    if known < _LEAST:
        down, exposed = mean_outage_seconds(run)
        saving = run.pattern.storage
        raise InputError(
            f"run: the run would practically never end: the job stops every {1 / job_stop_rate(run):.4g} s, a restart "
            f"takes {down + exposed:.4g} s, a checkpoint {saving.stall + saving.write:.4g} s; "
            "set run.days, or change failures, restart or checkpoint"
        )
    again = expected_full_reruns(run, known)
    if again > _NEVER or (again and again / math.expm1(again) < _LEAST):
        pattern, names = run.pattern, ", ".join(cause.name for cause in run.causes if cause.effect == "silent")
        times = f"{math.expm1(again):.3g}" if again < _NEVER else "over 1e21"
        raise InputError(
            f"run: the run would practically never end: silent errors ({names}) are found so late that all "
            f"{pattern.keep} kept checkpoints ({pattern.keep * pattern.pattern_seconds:.4g} s of work) contain them, "
            f"so the run of {run.end_nominal_time:.4g} s starts over {times} times; keep more checkpoints "
            "(run.checkpoint.keep), write them less often, verify them (run.checkpoint.verify), or set run.days"
        )


def check_simulation_size(run: LongRun, played: int) -> None:
    """Raise InputError if ``played`` runs would take too long to simulate: too many years or failures."""
    rate, (down, exposed) = job_stop_rate(run), mean_outage_seconds(run)
    wall = run.until
    if math.isinf(wall):  # and it ends: ``check_run_ends``
        work = run.pattern.steps * run.pattern.step
        wall = run.goal_nominal_time / closed_forms.kept_share(work, run.pattern.storage.stall, exposed, down, rate)
    if wall > _LONGEST:
        raise InputError(
            f"run: the run takes about {wall / YEAR:.3g} years, but at most {_LONGEST / YEAR:.0f} can be simulated; "
            "ask for fewer days, steps or tokens"
        )
    rates = sum(cause.rate for cause in run.causes)
    planned = 0.0 if run.maintenance is None else 1 / max(run.maintenance.every, 1e-3)
    each = wall * (rates / (1 + rate * down) + planned)  # a job that is down has no failures
    if not (each <= _MOST_EACH and each * played <= _MOST):
        raise InputError(
            f"run: {played:,} runs with about {each:.3g} failures and interruptions each take too long to simulate; "
            "give fewer runs (run.played), fewer days, or rarer failures"
        )


def job_stop_rate(run: LongRun) -> float:
    """Return the total failure rate (1/s) of the causes that stop the job."""
    return sum(cause.rate for cause in run.causes if cause.stops_job)


def _rate_with_uncured_nodes(run: LongRun, cause: FailureMode) -> float:
    """Return a cause's failure rate (1/s), including defective nodes that are never cured or retired."""
    bad = cause.defective_batch
    if bad is None or bad.cured or bad.retire:
        return cause.rate
    return cause.rate * (1 + (bad.rate_factor - 1) * bad.machines / run.machines)


def mean_outage_seconds(run: LongRun) -> tuple[float, float]:
    """Return the mean outage per failure as two times (s): without and with exposure to further failures."""
    rate = job_stop_rate(run)
    stops = [cause for cause in run.causes if cause.stops_job]
    detect = sum(cause.rate * cause.detect.mean for cause in stops) / rate if rate else 0.0
    shares = [(cause.rate / rate, cause.survives) for cause in stops if not cause.leaves] if rate else [(1.0, STORAGE)]
    copied = sum(part.memory.mean for part in run.restart if part.copies)
    detect += sum(cause.rate * copied for cause in stops if cause.leaves) / rate if rate else 0.0
    each = [
        (sum(w * part.duration_distribution(level).mean for w, level in shares), part.exposed) for part in run.restart
    ]
    return detect + sum(s for s, exposed in each if not exposed), sum(s for s, exposed in each if exposed)


def estimate_kept_work_share(run: LongRun) -> float:
    """Estimate the share of a run's time spent on work that no failure undoes; 0 if there is hardly any progress."""
    pattern, stops = run.pattern, [cause for cause in run.causes if cause.restarts_job]
    if leaving := sum(_rate_with_uncured_nodes(run, cause) for cause in run.causes if cause.stops_job and cause.leaves):
        whole = replace(run, causes=tuple(cause for cause in run.causes if not cause.leaves))
        down, step = mean_outage_seconds(run)[0], pattern.step_with_validation  # each undoes a step
        kept = closed_forms.kept_share(step, 0.0, 0.0, down, leaving) if leaving * step < _NEVER else 0.0
        return min(kept, estimate_kept_work_share(whole))
    rate = sum(_rate_with_uncured_nodes(run, cause) for cause in stops)
    if not rate:
        return 1.0
    if pattern.memory is None:
        return _kept_share_of_segments(run, pattern.steps, pattern.storage, rate)
    deep = sum(_rate_with_uncured_nodes(run, cause) for cause in stops if cause.survives == STORAGE)
    steps = pattern.steps * pattern.snapshots_per_stored
    over_all = _kept_share_of_segments(run, steps, pattern.storage, deep) if deep else 1.0
    return min(_kept_share_of_segments(run, pattern.steps, pattern.memory, rate), over_all)


def _kept_share_of_segments(run: LongRun, steps: int, saving: SnapshotCost, rate: float) -> float:
    down, exposed = mean_outage_seconds(run)
    work, stall = min(steps, run.goal) * run.pattern.step_with_validation, saving.stall + run.pattern.verify
    if rate * max(exposed, work + stall + saving.write) > _NEVER:
        return 0.0
    return closed_forms.kept_work_share(work, stall, saving.write, saving.slowed, exposed, down, rate)


def expected_full_reruns(run: LongRun, kept: float = 1.0) -> float:
    """Return the expected number of silent errors that force a run to restart from its first step.

    m in the module's docstring, as if the run continued meanwhile. ``kept`` is the share of time that is work: in wall
    time, kept snapshots reach back longer by its inverse.
    """
    pattern = run.pattern
    if pattern.verify or not math.isfinite(run.goal):
        return 0.0  # found before the next snapshot
    reach = (pattern.keep * pattern.pattern_seconds + pattern.storage.write) / kept
    silent = [cause for cause in run.causes if cause.effect == "silent"]
    return sum(cause.rate * _mean_time_after_detection(cause, reach, run.end_nominal_time) for cause in silent)


def _mean_time_after_detection(cause: FailureMode, reach: float, whole: float) -> float:
    """Return the mean run time after a silent error is detected, if all correct snapshots are gone by then."""
    places = np.arange(_PARTS) + 0.5
    golden = [places / _PARTS] + [(places * 2 ** (-1 / (1 + each))) % 1 for each in range(1, cause.lasts.num_draws)]
    lives = cause.lasts.quantile(np.stack(golden, axis=-1)) if cause.lasts.num_draws else np.array([cause.lasts.mean])
    return float(np.where(lives > reach, np.maximum(0.0, whole - lives), 0.0).mean())
