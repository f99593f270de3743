"""Numerical description of a long run (failures, restarts, spares) and the outcomes of its simulation.

``longrun/studies`` builds it from a scenario. The model of a run, in SimPy (``events``, which also writes a log) and
compiled (``simulation``):
* Training follows the checkpoint pattern on a *nominal clock* (``pattern``), which runs slower by the *pace* of the
  worst current slowdown of the cluster (a slow device, missing replicas).
* A *cause* fails after an exponential amount of hazard (or when the life of a part ends), which accumulates while the
  job trains and, if the cause stops it, in an exposed phase of a restart; not while it stands still.
* A stop of the job is an *outage*: detection, wrong diagnoses, nodes to repair, the wait for spares, and the
  phases of a restart, one after the other; then training resumes from the latest snapshot that survives, and the work
  since then is *lost*.  A stop during an exposed phase begins a new outage.
* The run ends when the last step is done and its checkpoint is safe, or when its time is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.longrun.lives import PartLifetimes
from simcluster.longrun.pattern import MEMORY, STORAGE, CheckpointPattern
from simcluster.scenario.run_times import FixedTime, TimeSpec


@dataclass(frozen=True)
class RecordedFailures:
    """Failure times of a cause from a log: ``at``, ascending, in seconds in which the cause could fail.

    No failure follows the last. ``lasts`` is the duration of each (s; nan, or by default: drawn by the cause's law).
    """

    at: tuple[float, ...]
    lasts: tuple[float, ...] = ()

    def gap(self, occurrence: int) -> float:
        """Return the exposed seconds from the previous failure (or the start) to this one; inf if none."""
        if occurrence >= len(self.at):
            return math.inf
        return self.at[occurrence] - (self.at[occurrence - 1] if occurrence else 0.0)

    def recorded_duration(self, occurrence: int) -> float:
        """Return the recorded duration (s) of a failure; nan if unknown."""
        return self.lasts[occurrence] if occurrence < len(self.lasts) else math.nan


Effect = Literal["stop", "slow", "pause", "silent", "alarm"]
ZERO_TIME = FixedTime(seconds="0 s")
TIME_TOLERANCE = 1e-6
"""Seconds by which times of events may differ and count as equal: sums over weeks are not more exact."""

FATES = ("lost", "slow", "detection", "diagnosis", "waiting", "restart", "pause", "maintenance")
"""Time categories charged to a cause; the others are productive, checkpoint, write, verification, validation."""


@dataclass(frozen=True)
class DefectiveBatch:
    """Batch of defective nodes: ``machines`` nodes of a job fail ``times`` as often as others until cured.

    A repair cures with probability ``cured``. A node that reaches ``retire`` by the ``rule`` within ``window`` seconds
    (``lives``; 0: never) is replaced for good, which takes ``replaced`` instead of a repair (None: as long as that).
    """

    machines: int
    times: float
    cured: float = 1.0
    retire: float = 0.0
    window: float = math.inf
    rule: Literal["window", "fading"] = "window"
    replaced: TimeSpec | None = None


@dataclass(frozen=True)
class FailureMode:
    """Recurring failure with one cause: its rate, effect, and repair.

    ``rate`` is that of all its ``devices`` together, 1/s of exposed time; with ``lives`` it follows from their ages
    instead; with ``struck`` it follows a log. ``machines`` nodes leave for ``repair`` at each (none: the job restarts
    on the same). ``survives`` is where a snapshot must be to survive it. A ``slow`` one lasts for ``lasts`` at one of
    ``paces`` (row by drawn level with probabilities ``shares``, column by the device's class); a ``pause`` stops the
    job for that time, and becomes a stop where that is longer than the timeout. A ``silent`` one is found after
    ``lasts`` unless verified earlier.
    """

    name: str
    effect: Effect
    rate: float
    devices: int = 1
    lives: PartLifetimes | None = None
    struck: RecordedFailures | None = None
    bad: DefectiveBatch | None = None
    detect: TimeSpec = ZERO_TIME
    repair: TimeSpec | None = None
    machines: int = 1
    survives: int = MEMORY
    lasts: TimeSpec = ZERO_TIME
    shares: tuple[float, ...] = (1.0,)
    paces: Floats | None = None
    column: Ints | None = None
    label: Callable[[int], str] = str

    @property
    def stops(self) -> bool:
        """Whether a failure of this cause stops the job."""
        return self.effect == "stop"


@dataclass(frozen=True)
class RestartPhase:
    """Phase of a restart and its duration for each snapshot tier.

    In an ``exposed`` phase causes that stop the job can fail; other causes fail only while it trains.
    """

    name: str
    memory: TimeSpec
    storage: TimeSpec
    exposed: bool = True

    def duration_law(self, level: int) -> TimeSpec:
        """Return the law of the phase's duration for a snapshot in memory (0) or on storage (1)."""
        return self.storage if level == STORAGE else self.memory


@dataclass(frozen=True)
class SpareNodes:
    """Spare nodes of a job: ``hot`` ones are used first, then ``warm``, then ``cold``, ready after ``ready`` s.

    Repaired nodes come back as the last of them. ``crews`` repair one node each (None: unlimited).
    """

    hot: int = 0
    warm: int = 0
    cold: int = 0
    ready: tuple[float, float, float] = (0.0, 0.0, 0.0)
    crews: int | None = None
    unlimited: bool = False

    @property
    def count(self) -> int:
        """Number of all spare nodes."""
        return self.hot + self.warm + self.cold

    @property
    def ready_times(self) -> list[float]:
        """Seconds until each spare is ready, in the order in which they are used."""
        counts = zip(self.ready, (self.hot, self.warm, self.cold), strict=True)
        return [seconds for seconds, count in counts for _ in range(count)]


@dataclass(frozen=True)
class Maintenance:
    """Planned maintenance of ``lasts`` s, due ``every`` s of wall time; it begins after the next snapshot."""

    every: float
    lasts: float


@dataclass(frozen=True)
class LongRun:
    """Complete description of a long run for its simulation.

    ``goal`` is in steps, ``until`` in wall seconds; the run ends at the first.

    ``short`` are the paces with 1, 2, ... nodes missing: with up to as many missing the job continues; with more, or
    without any, it waits. A node that returns is taken in where that makes the job faster. ``running`` are the shares
    of the job's GPUs that run then, and can fail (default: all).

    ``straggler`` is the action on a slow device ``noticed`` seconds after it began: nothing, replaced at once (as a
    stop) or after the next snapshot. ``wrong`` is the probability that a diagnosis blames the wrong node, so that
    detection and restart are repeated.
    """

    pattern: CheckpointPattern
    causes: tuple[FailureMode, ...]
    machines: int = 1
    gpus: int = 8
    goal: float = math.inf
    until: float = math.inf
    restart: tuple[RestartPhase, ...] = ()
    spares: SpareNodes = field(default_factory=lambda: SpareNodes(unlimited=True))
    short: tuple[float, ...] = ()
    running: tuple[float, ...] = ()
    straggler: Literal["leave", "replace", "checkpoint"] = "leave"
    noticed: TimeSpec = ZERO_TIME
    wrong: float = 0.0
    timeout: float = math.inf
    maintenance: Maintenance | None = None
    week: float = 7 * 86400.0

    @property
    def goal_at(self) -> float:
        """Nominal time (s) at which the last step is done."""
        return self.pattern.time_at_steps(self.goal) if math.isfinite(self.goal) else math.inf

    @property
    def end_at(self) -> float:
        """Nominal time (s) at which the last checkpoint is completely written."""
        saving = self.pattern.storage
        return self.goal_at + self.pattern.verify + saving.stall + saving.write

    @property
    def faster_counts(self) -> list[int]:
        """Largest number of missing nodes with which the job is faster, by the number missing now; -1 if none."""
        paces = (1.0, *self.short)
        fewer = [[few for few in range(missing) if paces[few] < pace] for missing, pace in enumerate(paces)]
        return [max(each, default=-1) for each in fewer]

    @property
    def exposure_shares(self) -> Floats:
        """Share of the failure rates that applies, by the number of missing nodes (0, 1, ...).

        1 throughout where a log sets the failure times.
        """
        shares = np.ones(1 + len(self.short))
        if self.running and not any(cause.struck for cause in self.causes):
            shares[1:] = self.running
        return shares


MAINTENANCE, REGROWTH = "maintenance", "machines missing"
"""Names of outages without a failure: planned maintenance, and replicas that leave or return."""


def cause_names(run: LongRun) -> list[str]:
    """Return the names of a run's causes of lost time: its failures, maintenance, and missing nodes."""
    return [*(cause.name for cause in run.causes), MAINTENANCE, REGROWTH]


@dataclass
class Outcomes:
    """Outcomes of simulated runs, one per row: ``wall`` seconds, ``at`` on the nominal clock, kept ``steps``.

    ``fates[run, category, cause]`` and ``parts[run, phase]`` of restarts are seconds; ``strikes`` (failures) and
    ``outages`` are counts by cause (outages also by ``MAINTENANCE`` and ``REGROWTH``, last); ``weekly[run, week]`` are
    the steps kept at the end of each week that the run has reached (nan: it has not).
    """

    run: LongRun
    wall: Floats
    at: Floats
    steps: Floats
    fates: Floats
    parts: Floats
    strikes: Ints
    outages: Ints
    weekly: Floats

    def columns(self) -> dict[str, Any]:
        """Return all fields as arrays by name, for other processes and for storage."""
        return {name: getattr(self, name) for name in (*_COLUMNS, "weekly")}

    def seconds_by_category(self) -> dict[str, Floats]:
        """Return each run's seconds by time category (productive, checkpoint, lost, ...), which sum to ``wall``."""
        pattern, goal = self.run.pattern, self.run.goal_at
        until = np.minimum(self.at, goal)
        closing = self.at - until
        verified = np.minimum(closing, pattern.verify)
        stalled = np.minimum(closing - verified, pattern.storage.stall)
        own = {
            "checkpoint": pattern.spent_until("stall", until) + stalled,
            "write": pattern.spent_until("write", until) + closing - verified - stalled,
            "verification": pattern.spent_until("verify", until) + verified,
            "validation": pattern.validation * pattern.spent_until("steps", until),
        }
        productive = self.at - sum(own.values())
        return (
            {"productive": productive}
            | own
            | {fate: self.fates[:, number].sum(axis=1) for number, fate in enumerate(FATES)}
        )

    def weekly_goodput(self) -> tuple[Floats, Floats]:
        """Return goodput and length (s) of each week, [run, week]; a run's last week may be partial."""
        week, weeks = self.run.week, max(1, math.ceil(float(self.wall.max()) / self.run.week - 1e-9))
        lasts = np.clip(self.wall[:, None] - np.arange(weeks) * week, 0.0, week)
        ends = np.full(lasts.shape, np.nan)
        known = min(weeks, self.weekly.shape[1])
        ends[:, :known] = self.weekly[:, :known]
        ends = np.where(np.isnan(ends) | (lasts < week * (1 - 1e-9)), self.steps[:, None], ends)
        gained = np.diff(ends, axis=1, prepend=0.0) * self.run.pattern.step
        return gained / np.where(lasts > 0, lasts, 1.0), lasts


_COLUMNS = ("wall", "at", "steps", "fates", "parts", "strikes", "outages")


class OutcomeCollector:
    """Collector of the outcomes of ``count`` runs, filled in chunks in any order."""

    def __init__(self, run: LongRun, count: int) -> None:
        self._run, self._count = run, count
        self._found: dict[str, Any] = {}
        self._weekly: dict[int, Floats] = {}

    def add(self, first: int, chunk: Mapping[str, Any]) -> None:
        """Store a chunk of runs, numbered from ``first``: fields of ``Outcomes`` by name."""
        for name in _COLUMNS:
            rows = chunk[name]
            if name not in self._found:
                self._found[name] = np.empty((self._count, *rows.shape[1:]), rows.dtype)
            self._found[name][first : first + len(rows)] = rows
        self._weekly[first] = chunk["weekly"]

    def outcomes(self) -> Outcomes:
        """Return the outcomes of all runs, once every chunk is stored."""
        weekly = np.full((self._count, max(rows.shape[1] for rows in self._weekly.values())), np.nan)
        for first, rows in self._weekly.items():
            weekly[first : first + len(rows), : rows.shape[1]] = rows
        return Outcomes(self._run, weekly=weekly, **self._found)
