"""Numerical description of a long run (failures, restarts, spare nodes), and the outcomes of simulating the run.

``longrun/studies`` builds it from a scenario. The model of a run, in SimPy (``events``, which also writes a log) and
compiled (``simulation``):
* Training follows ``checkpoint_pattern`` on a *nominal clock*, which runs slower by the *pace* of the
  worst current slowdown of the cluster (a slow device, missing replicas).
* A *cause* fails after an exponential amount of hazard (or when the life of a part ends), which accumulates while the
  job trains and, if the cause stops it, in an exposed phase of a restart; not while it stands still.
* A stop of the job is an *outage*: detection, wrong diagnoses, nodes to repair, the wait for spares, and the
  phases of a restart, one after the other; then training resumes from the latest snapshot that survives, and the work
  since then is *lost*.  A stop during an exposed phase begins a new outage.
* Instead, the nodes of the failed replicas may *leave*: after the detection the others redo the current step. Once a
  node is ready and has restarted, the replica is back: all wait for its copy of a peer's state. Nothing fails in such a
  wait, and a replica that is back does not wait for the end of a step.
* The run ends when the last step is done and its checkpoint is safe, or when its time is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.longrun.checkpoint_pattern import MEMORY, STORAGE, CheckpointPattern
from simcluster.longrun.part_lifetimes import PartLifetimes
from simcluster.scenario.run_times import DurationSpec, FixedTime


@dataclass(frozen=True)
class RecordedFailures:
    """Logged failures of one cause: times (seconds exposed to failures, ascending) and durations.

    No failure follows the last. ``lasts`` are the durations (s; nan or missing: drawn from the cause's distribution).
    """

    at: tuple[float, ...]
    lasts: tuple[float, ...] = ()

    def exposed_seconds_before(self, occurrence: int) -> float:
        """Return the exposed seconds between the previous failure and this one; infinity after the last."""
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
    """Batch of defective nodes that, until cured, fail ``rate_factor`` times as often as other nodes.

    A repair cures a node with probability ``cured``. A node that reaches the limit ``retire`` (0: none) by the ``rule``
    within ``window`` s (``should_retire_node``) is replaced for good, in the time ``replaced`` (None: as a repair).
    """

    machines: int
    rate_factor: float
    cured: float = 1.0
    retire: float = 0.0
    window: float = math.inf
    rule: Literal["window", "fading"] = "window"
    replaced: DurationSpec | None = None


@dataclass(frozen=True)
class FailureMode:
    """Recurring failure with one cause: rate, effect on the job, and repair.

    ``rate`` (1/s of exposed time) is that of all ``devices``, unless it follows from part ages (``part_lifetimes``)
    or from a log (``failure_log``). A failure sends ``machines`` nodes to ``repair`` (None: the job restarts on them).
    With ``leaves`` above 0 that many nodes leave and rejoin later, while the others continue, if any are left.
    ``survives`` is the tier in which a snapshot survives. A "slow" device lasts for ``lasts`` at one of ``paces`` (row:
    level drawn with probabilities ``shares``; column: device class). A "pause" stops the job for ``lasts``, and becomes
    a stop if that exceeds the timeout. A "silent" error is found after ``lasts``, unless a verification finds it first.
    """

    name: str
    effect: Effect
    rate: float
    devices: int = 1
    part_lifetimes: PartLifetimes | None = None
    failure_log: RecordedFailures | None = None
    defective_batch: DefectiveBatch | None = None
    detect: DurationSpec = ZERO_TIME
    repair: DurationSpec | None = None
    machines: int = 1
    leaves: int = 0
    survives: int = MEMORY
    lasts: DurationSpec = ZERO_TIME
    shares: tuple[float, ...] = (1.0,)
    paces: Floats | None = None
    device_class: Ints | None = None
    label: Callable[[int], str] = str

    @property
    def stops_job(self) -> bool:
        """Whether a failure of this cause stops the job."""
        return self.effect == "stop"

    @property
    def restarts_job(self) -> bool:
        """Whether a failure of this cause restarts the whole job from a snapshot."""
        return self.effect == "stop" and not self.leaves


@dataclass(frozen=True)
class RestartPhase:
    """Phase of a restart, with a duration for each tier (memory or storage) from which a snapshot is loaded.

    In an ``exposed`` phase causes that stop the job can fail; other causes fail only while it trains. A replica that
    rejoins ``copies`` a peer's state in this phase, for which the others wait.
    """

    name: str
    memory: DurationSpec
    storage: DurationSpec
    exposed: bool = True
    copies: bool = False

    def duration_distribution(self, tier: int) -> DurationSpec:
        """Return the distribution of the phase's duration after a load from memory (0) or storage (1)."""
        return self.storage if tier == STORAGE else self.memory


@dataclass(frozen=True)
class SpareNodes:
    """Spare nodes of a job, used in the order hot, warm, cold; ``ready`` is each kind's time (s) to join the job.

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
        """Seconds until each spare node is ready, in the order of use."""
        counts = zip(self.ready, (self.hot, self.warm, self.cold), strict=True)
        return [seconds for seconds, count in counts for _ in range(count)]


@dataclass(frozen=True)
class Maintenance:
    """Planned maintenance: requested every ``every`` s, begun at the next snapshot, and done after ``lasts`` s."""

    every: float
    lasts: float


@dataclass(frozen=True)
class LongRun:
    """Numerical description of a long run, complete enough to simulate.

    ``goal`` is in steps, ``until`` in wall seconds; the run ends at the first.

    ``shrunk_paces`` are the paces with 1, 2, ... nodes missing; the job waits if more are missing. A node that
    returns is taken in where that makes the job faster. ``shrunk_shares`` are the shares of the job's GPUs that
    run with as many nodes missing, and can fail (default: all). Where nodes leave, a restart waits for all nodes.

    ``straggler`` is the action on a slow device, ``notice_time`` seconds after it became slow: none, or replacement
    at once (as a stop) or after the next snapshot. ``misdiagnosis_share`` is the probability that a diagnosis blames
    the wrong node, so that detection and restart are repeated.
    """

    pattern: CheckpointPattern
    causes: tuple[FailureMode, ...]
    machines: int = 1
    gpus: int = 8
    goal: float = math.inf
    until: float = math.inf
    restart: tuple[RestartPhase, ...] = ()
    spares: SpareNodes = field(default_factory=lambda: SpareNodes(unlimited=True))
    shrunk_paces: tuple[float, ...] = ()
    shrunk_shares: tuple[float, ...] = ()
    straggler: Literal["leave", "replace", "checkpoint"] = "leave"
    notice_time: DurationSpec = ZERO_TIME
    misdiagnosis_share: float = 0.0
    timeout: float = math.inf
    maintenance: Maintenance | None = None
    week: float = 7 * 86400.0

    @property
    def goal_nominal_time(self) -> float:
        """Nominal (failure-free) time (s) at which the last step is done."""
        return self.pattern.time_at_steps(self.goal) if math.isfinite(self.goal) else math.inf

    @property
    def end_nominal_time(self) -> float:
        """Nominal (failure-free) time (s) at which the last checkpoint is completely written."""
        saving = self.pattern.storage
        return self.goal_nominal_time + self.pattern.verify + saving.stall + saving.write

    @property
    def most_missing_after_restart(self) -> int:
        """Largest number of nodes that may be missing after a restart of the whole job."""
        return 0 if any(cause.leaves for cause in self.causes) else len(self.shrunk_paces)

    @property
    def faster_missing_counts(self) -> list[int]:
        """For n = 0, 1, ... missing nodes: the most missing nodes, below n, with which the job is faster; else -1."""
        paces = (1.0, *self.shrunk_paces)
        fewer = [[few for few in range(missing) if paces[few] < pace] for missing, pace in enumerate(paces)]
        return [max(each, default=-1) for each in fewer]

    @property
    def exposure_shares(self) -> Floats:
        """Factor on the failure rates with 0, 1, ... nodes missing: fewer running nodes have fewer failures.

        1 throughout where a log sets the failure times.
        """
        shares = np.ones(1 + len(self.shrunk_paces))
        if self.shrunk_shares and not any(cause.failure_log for cause in self.causes):
            shares[1:] = self.shrunk_shares
        return shares


MAINTENANCE, REGROWTH = "maintenance", "machines missing"
"""Names of outages without a failure: planned maintenance, and replicas that leave or return."""


def cause_names(run: LongRun) -> list[str]:
    """Return the names of the causes that lose a run's time: its failures, maintenance, and missing nodes."""
    return [*(cause.name for cause in run.causes), MAINTENANCE, REGROWTH]


@dataclass
class RunOutcomes:
    """Outcomes of simulated runs, one entry per run: wall time (s), training progress, steps, lost time, failures.

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

    def arrays_by_name(self) -> dict[str, Any]:
        """Return all outcome arrays by field name, to send to another process or to store."""
        return {name: getattr(self, name) for name in (*_COLUMNS, "weekly")}

    def seconds_by_category(self) -> dict[str, Floats]:
        """Return each run's seconds by time category (productive, checkpoint, lost, ...); they sum to the wall time."""
        pattern, goal = self.run.pattern, self.run.goal_nominal_time
        until = np.minimum(self.at, goal)
        closing = self.at - until
        verified = np.minimum(closing, pattern.verify)
        stalled = np.minimum(closing - verified, pattern.storage.stall)
        own = {
            "checkpoint": pattern.total_until("stall", until) + stalled,
            "write": pattern.total_until("write", until) + closing - verified - stalled,
            "verification": pattern.total_until("verify", until) + verified,
            "validation": pattern.validation * pattern.total_until("steps", until),
        }
        productive = self.at - sum(own.values())
        charged = {fate: self.fates[:, number].sum(axis=1) for number, fate in enumerate(FATES)}
        return {"productive": productive, **own, **charged}

    def weekly_goodput(self) -> tuple[Floats, Floats]:
        """Return each week's goodput and length (s) as arrays [run, week]; the last week of a run may be partial."""
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
    """Collector of the outcomes of ``count`` runs, which arrive in chunks of runs in any order."""

    def __init__(self, run: LongRun, count: int) -> None:
        self._run, self._count = run, count
        self._found: dict[str, Any] = {}
        self._weekly: dict[int, Floats] = {}

    def add_chunk(self, first: int, chunk: Mapping[str, Any]) -> None:
        """Store the outcomes of a chunk of runs: arrays by field of ``RunOutcomes``, runs numbered from ``first``."""
        for name in _COLUMNS:
            rows = chunk[name]
            if name not in self._found:
                self._found[name] = np.empty((self._count, *rows.shape[1:]), rows.dtype)
            self._found[name][first : first + len(rows)] = rows
        self._weekly[first] = chunk["weekly"]

    def outcomes(self) -> RunOutcomes:
        """Return the outcomes of all runs, once every chunk is stored."""
        weekly = np.full((self._count, max(rows.shape[1] for rows in self._weekly.values())), np.nan)
        for first, rows in self._weekly.items():
            weekly[first : first + len(rows), : rows.shape[1]] = rows
        return RunOutcomes(self._run, weekly=weekly, **self._found)
