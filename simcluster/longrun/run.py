"""A run in numbers, and its outcomes: seconds, counts and laws; made from a scenario by ``longrun/studies``.

The meaning of a run, in SimPy (``events``, which also writes a log) and compiled (``simulation``):

* Training goes through the checkpoint pattern on a *nominal clock* (``pattern``), which runs slower by the *pace* of
  the worst that slows the cluster just then (a spell, replicas that are missing).
* A *cause* strikes after an exponential amount of hazard (or when the life of a part ends), which is used up while the
  job trains and, of a cause that stops it, in an exposed phase of a restart; not while it stands.
* What stops the job is an *outage*: detection, the wrong diagnoses, machines to repair, the wait for spares, and the
  parts of a restart, one after the other; then training goes on from the latest snapshot that survives, and what was
  done since is *lost*.  A stop during an exposed part begins a new outage.
* The run ends when the last step is done and its checkpoint is safe, or when its time is over."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.longrun.lives import Lives
from simcluster.longrun.pattern import MEMORY, STORAGE, CheckpointPattern
from simcluster.scenario.run_times import FixedTime, TimeSpec


@dataclass(frozen=True)
class StrikeTimes:
    """When a cause struck: ``at``, ascending, in seconds of its exposed time; no more after the last.

    ``lasts`` is how long each lasted, s (nan, or left out: drawn by the cause's law).
    """

    at: tuple[float, ...]
    lasts: tuple[float, ...] = ()

    def gap(self, occurrence: int) -> float:
        """Return the exposed seconds from the strike before (or the begin) to this one; inf where there is none."""
        if occurrence >= len(self.at):
            return math.inf
        return self.at[occurrence] - (self.at[occurrence - 1] if occurrence else 0.0)

    def lasted(self, occurrence: int) -> float:
        """Return how long that strike lasted, s; nan if unknown."""
        return self.lasts[occurrence] if occurrence < len(self.lasts) else math.nan


Effect = Literal["stop", "slow", "pause", "silent", "alarm"]
NOW = FixedTime(seconds="0 s")
SOON = 1e-6
"""Seconds within which a machine that comes back is there: of sums of weeks no more is exact."""

FATES = ("lost", "slow", "detection", "diagnosis", "waiting", "restart", "pause", "maintenance")
"""What becomes of the seconds of a run by a cause; those by none are productive, checkpoint, write,
verification and validation."""


@dataclass(frozen=True)
class Bad:
    """A bad batch: ``machines`` of the job fail ``times`` as often as others, until a repair cures one.

    ``cured`` is the probability of that.  One that comes to ``retire`` by the ``rule`` within ``window`` seconds
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
    """One thing that goes wrong, again and again.

    ``rate`` is that of all its ``devices`` together, 1/s of exposed time; with ``lives`` it follows from their ages
    instead; with ``struck`` it strikes when a log says.  ``machines`` leave for ``repair`` at each (none: the job
    restarts on the same).  ``survives`` is where the snapshots must be that survive it.  A ``slow`` one lasts for
    ``lasts`` at one of ``paces`` (row by drawn level with probabilities ``shares``, column by the device's class); a
    ``pause`` stops the job for that time, and becomes a
    stop where that is longer than the timeout.  A ``silent`` one is found after ``lasts`` where nothing verifies.
    """

    name: str
    effect: Effect
    rate: float
    devices: int = 1
    lives: Lives | None = None
    struck: StrikeTimes | None = None
    bad: Bad | None = None
    detect: TimeSpec = NOW
    repair: TimeSpec | None = None
    machines: int = 1
    survives: int = MEMORY
    lasts: TimeSpec = NOW
    shares: tuple[float, ...] = (1.0,)
    paces: Floats | None = None
    column: Ints | None = None
    label: Callable[[int], str] = str

    @property
    def stops(self) -> bool:
        """Does it stop the job when it strikes?"""
        return self.effect == "stop"


@dataclass(frozen=True)
class Part:
    """One phase of a restart and its duration for each snapshot tier.

    In an ``exposed`` phase causes that stop the job strike; others strike only while it trains.
    """

    name: str
    memory: TimeSpec
    storage: TimeSpec
    exposed: bool = True

    def law(self, level: int) -> TimeSpec:
        """Return the duration for a snapshot at that tier."""
        return self.storage if level == STORAGE else self.memory


@dataclass(frozen=True)
class Spares:
    """Machines that stand by: those first in use are ``hot``, then ``warm``, then ``cold``, ready after ``ready``.

    Machines in repair come back as the last of them.  ``crews`` repair one machine each (None: as many as it takes).
    """

    hot: int = 0
    warm: int = 0
    cold: int = 0
    ready: tuple[float, float, float] = (0.0, 0.0, 0.0)
    crews: int | None = None
    unlimited: bool = False

    @property
    def count(self) -> int:
        """All of them."""
        return self.hot + self.warm + self.cold

    @property
    def ready_times(self) -> list[float]:
        """Seconds until each is ready, in the order in which they are used."""
        counts = zip(self.ready, (self.hot, self.warm, self.cold), strict=True)
        return [seconds for seconds, count in counts for _ in range(count)]


@dataclass(frozen=True)
class Maintenance:
    """A planned interruption, ``every`` so many seconds of wall time, after a snapshot; the restart comes on top."""

    every: float
    lasts: float


@dataclass(frozen=True)
class LongRun:
    """A run, complete.  ``goal`` is in steps, ``until`` in seconds of wall time; the run ends at what comes first.

    ``short`` are the paces with 1, 2, ... machines missing: the job goes on with fewer for as many; beyond, and where
    there are none, it waits.  One that comes back is taken in where that makes the job faster.  ``running`` are the
    shares of the job's GPUs that run then, and can fail (left out: all).

    ``straggler`` says what is done about a slow device, ``noticed`` after it began: nothing, replaced at once (as a
    stop) or after the next snapshot.  ``wrong`` is the probability that a diagnosis blames the wrong machine, so that
    detection and restart are gone through again.
    """

    pattern: CheckpointPattern
    causes: tuple[FailureMode, ...]
    machines: int = 1
    gpus: int = 8
    goal: float = math.inf
    until: float = math.inf
    restart: tuple[Part, ...] = ()
    spares: Spares = field(default_factory=lambda: Spares(unlimited=True))
    short: tuple[float, ...] = ()
    running: tuple[float, ...] = ()
    straggler: Literal["leave", "replace", "checkpoint"] = "leave"
    noticed: TimeSpec = NOW
    wrong: float = 0.0
    timeout: float = math.inf
    maintenance: Maintenance | None = None
    week: float = 7 * 86400.0

    @property
    def goal_at(self) -> float:
        """When, on the nominal clock, the last step is done."""
        return self.pattern.at_steps(self.goal) if math.isfinite(self.goal) else math.inf

    @property
    def end_at(self) -> float:
        """When its checkpoint is safe as well."""
        saving = self.pattern.storage
        return self.goal_at + self.pattern.verify + saving.stall + saving.write

    @property
    def faster(self) -> list[int]:
        """By how many machines are missing (0, 1, ...), how few must be for the job to be faster; -1: it never is."""
        paces = (1.0, *self.short)
        fewer = [[few for few in range(missing) if paces[few] < pace] for missing, pace in enumerate(paces)]
        return [max(each, default=-1) for each in fewer]

    @property
    def exposed(self) -> Floats:
        """The share of the job's rates at which failures come, by how many machines are missing (0, 1, ...).

        All of them where a log says when they do.
        """
        shares = np.ones(1 + len(self.short))
        if self.running and not any(cause.struck for cause in self.causes):
            shares[1:] = self.running
        return shares


MAINTENANCE, REGROWTH = "maintenance", "machines missing"
"""What outages are counted under that no cause of the run has: planned work, and replicas that come and go."""


def names_of(run: LongRun) -> list[str]:
    """Return the causes that seconds are counted under."""
    return [*(cause.name for cause in run.causes), MAINTENANCE, REGROWTH]


@dataclass
class Outcomes:
    """What came of runs, one a row: ``wall`` seconds, ``at`` on the nominal clock, ``steps`` that are kept.

    ``fates[run, fate, cause]`` and ``parts[run, part]`` of restarts are seconds; ``strikes`` and ``outages`` are counts
    by cause (outages also by ``MAINTENANCE`` and ``REGROWTH``, last); ``weekly[run, week]`` are the steps kept at the
    end of each week that the run has reached (nan: it has not).
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
        """Return all outcomes by field, as they are sent and stored."""
        return {name: getattr(self, name) for name in (*_COLUMNS, "weekly")}

    def spent(self) -> dict[str, Floats]:
        """Return the seconds of each run by fate: they sum to ``wall``."""
        pattern, goal = self.run.pattern, self.run.goal_at
        until = np.minimum(self.at, goal)
        closing = self.at - until
        verified = np.minimum(closing, pattern.verify)
        stalled = np.minimum(closing - verified, pattern.storage.stall)
        own = {
            "checkpoint": pattern.spent("stall", until) + stalled,
            "write": pattern.spent("write", until) + closing - verified - stalled,
            "verification": pattern.spent("verify", until) + verified,
            "validation": pattern.validation * pattern.spent("steps", until),
        }
        productive = self.at - sum(own.values())
        return (
            {"productive": productive}
            | own
            | {fate: self.fates[:, number].sum(axis=1) for number, fate in enumerate(FATES)}
        )

    def by_week(self) -> tuple[Floats, Floats]:
        """Return the goodput of each week and its seconds, [run, week]: the last of a run as far as it was begun."""
        week, weeks = self.run.week, max(1, math.ceil(float(self.wall.max()) / self.run.week - 1e-9))
        lasts = np.clip(self.wall[:, None] - np.arange(weeks) * week, 0.0, week)
        ends = np.full(lasts.shape, np.nan)
        known = min(weeks, self.weekly.shape[1])
        ends[:, :known] = self.weekly[:, :known]
        ends = np.where(np.isnan(ends) | (lasts < week * (1 - 1e-9)), self.steps[:, None], ends)
        gained = np.diff(ends, axis=1, prepend=0.0) * self.run.pattern.step
        return gained / np.where(lasts > 0, lasts, 1.0), lasts


_COLUMNS = ("wall", "at", "steps", "fates", "parts", "strikes", "outages")


class GatheredOutcomes:
    """Room for the outcomes of ``count`` runs, which come in chunks, in any order, and are not held twice."""

    def __init__(self, run: LongRun, count: int) -> None:
        self._run, self._count = run, count
        self._found: dict[str, Any] = {}
        self._weekly: dict[int, Floats] = {}

    def add(self, first: int, chunk: Mapping[str, Any]) -> None:
        """Add the runs from ``first`` on: fields of ``Outcomes`` by name."""
        for name in _COLUMNS:
            rows = chunk[name]
            if name not in self._found:
                self._found[name] = np.empty((self._count, *rows.shape[1:]), rows.dtype)
            self._found[name][first : first + len(rows)] = rows
        self._weekly[first] = chunk["weekly"]

    def outcomes(self) -> Outcomes:
        """Return the outcomes, once all are there."""
        weekly = np.full((self._count, max(rows.shape[1] for rows in self._weekly.values())), np.nan)
        for first, rows in self._weekly.items():
            weekly[first : first + len(rows), : rows.shape[1]] = rows
        return Outcomes(self._run, weekly=weekly, **self._found)
