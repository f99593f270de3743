"""State of a job in the SimPy simulation: training progress, exposure to failures, due events, nodes in repair."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from simcluster.base.arrays import Floats
from simcluster.longrun.checkpoint_pattern import STORAGE
from simcluster.longrun.events.run_record import RunRecord
from simcluster.longrun.long_run import TIME_TOLERANCE, FailureMode, LongRun, SpareNodes, cause_names
from simcluster.longrun.random_streams import RandomStream
from simcluster.scenario.run_times import DurationSpec


class NodeRepairs:
    """Queue of nodes in repair, served by crews in order of arrival; ``short``: the job may run with nodes missing."""

    def __init__(self, env: simpy.Environment, spares: SpareNodes, *, short: bool) -> None:
        self.env, self.spares, self.short = env, spares, short
        self.back: list[float] = []  # when the nodes in repair come back
        self.crews = [-math.inf] * (spares.crews or 0)

    @property
    def nodes_in_repair(self) -> int:
        """Number of nodes in repair now."""
        self.back = [back for back in self.back if back > self.env.now + TIME_TOLERANCE]
        return len(self.back)

    def send_to_repair(self, repair: float) -> None:
        """Send a node to repair, which occupies a crew for ``repair`` seconds."""
        start = self.env.now
        if self.crews:
            crew = self.crews.index(min(self.crews))
            start = max(start, self.crews[crew])
            self.crews[crew] = start + repair
        self.back.append(start + repair)

    def seconds_until_spares_ready(self, needed: int) -> float:
        """Return the seconds until ``needed`` spare nodes taken now are ready."""
        times, out = self.spares.ready_times, self.nodes_in_repair
        if not times or (self.short and out >= len(times)):
            return 0.0
        return times[min(out + needed - 1, len(times) - 1)]

    def time_when_few_in_repair(self, max_nodes: int) -> float:
        """Return the time when the number of nodes in repair is at or below a limit of 0 or more."""
        return sorted(self.back)[-1 - max_nodes] if self.nodes_in_repair > max_nodes else self.env.now

    def next_return_time(self) -> float:
        """Return the time at which the next node returns from repair; infinity if no node is in repair."""
        return min((back for back in self.back if back > self.env.now + TIME_TOLERANCE), default=math.inf)


SimProcess = Generator[simpy.Event, Any, None]


class FailureExposure:
    """Kinds of failures that can occur now (none, job-stopping, or all), and seconds exposed to each so far.

    ``to`` is "" (none), "stop" while a job loads in a restart, "all" while it trains. Exposed seconds pass at a
    ``pace``, the share of the nodes that run.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.to, self.pace = "", 1.0
        self.changed = env.event()
        self._loaded, self._trained, self._since = 0.0, 0.0, 0.0

    def can_cause_fail(self, *, stops: bool) -> bool:
        """Return whether a failure cause can occur now; ``stops``: the cause stops the job."""
        return self.to == "all" or (stops and self.to == "stop")

    def exposed_seconds(self, *, stops: bool) -> float:
        """Return the seconds exposed so far to causes that stop the job (``stops``), or to all other causes."""
        more = (self.env.now - self._since) * self.pace if self.can_cause_fail(stops=stops) else 0.0
        return (self._loaded if stops else self._trained) + more

    def set_possible_failures(self, possible: str, pace: float) -> None:
        """Set the failures that can occur now, and wake the failure processes that wait for this change."""
        self._loaded, self._trained = self.exposed_seconds(stops=True), self.exposed_seconds(stops=False)
        self.to, self.pace, self._since = possible, pace, self.env.now
        changed, self.changed = self.changed, self.env.event()
        changed.succeed()

    def wait_exposed_seconds(self, seconds_left: Callable[[], float], *, stops: bool) -> SimProcess:
        """Wait until the job has been exposed to a cause for the seconds that ``seconds_left()`` returns."""
        now = self.env.now
        while now + (seconds := seconds_left()) > now + TIME_TOLERANCE:
            if not self.can_cause_fail(stops=stops):
                yield self.changed
            elif self.pace == 1.0:
                yield self.env.timeout(seconds)
            else:  # the pace may rise
                yield self.env.timeout(seconds / self.pace) | self.changed
            now = self.env.now


@dataclass(eq=False)
class SlowDevice:
    """Slow device in the SimPy simulation: job's step time factor, cause, device name, whether noticed."""

    cause_number: int
    pace: float
    device: str
    noticed: bool = False


@dataclass(frozen=True)
class TrainingStretch:
    """Current period of undisturbed training: start (nominal and wall time), step time factor, slow device."""

    at: float
    begun: float
    pace: float
    number: int
    slow_device: str


@dataclass(eq=False)
class AbsentReplicas:
    """Replicas that left: when they are back (wall time), their nodes, the cause, and seconds to copy by phase."""

    back: float
    machines: int
    cause_number: int
    copy: dict[str, float]


@dataclass
class PlannedOutage:
    """Outage planned at the next snapshot: nominal time, cause, whether nodes are replaced, whether maintenance."""

    at: float = math.inf
    number: int = -1
    node_loss_cause: int = -1
    has_maintenance: bool = False


@dataclass
class CorruptedWeights:
    """Silent error in the weights: nominal time of its start, cause, verification, and count of errors so far."""

    since: float = math.inf
    number: int = -1
    verified_at: float = math.inf
    count: int = 0


class JobState:
    """State of a job in the SimPy simulation: training progress, snapshots, pending failures, due events.

    ``least[tier]`` is the oldest snapshot to which the job can roll back. ``struck`` are failures (cause, occurrence)
    that the job has to handle, ``due`` other events that are due.
    """

    def __init__(self, run: LongRun, seed: int, number: int) -> None:
        self.run, self.seed, self.number = run, seed, number
        self._streams: dict[tuple[str, str, int], RandomStream] = {}
        self.names = cause_names(run)
        self.env = simpy.Environment(0.0)
        self.record = RunRecord(self.env, self.names, [part.name for part in run.restart])
        self.machines = NodeRepairs(self.env, run.spares, short=run.most_missing_after_restart > 0)
        self.at, self.least = 0.0, [0, 0]
        self.stretch: TrainingStretch | None = None
        self.exposure = FailureExposure(self.env)
        self.process: simpy.Process | None = None
        self.slow: list[SlowDevice] = []
        self.absent: list[AbsentReplicas] = []
        self.has_state = True  # not where a failure has ended a restart
        self.missing, self.watched = 0, math.inf
        self.shares = run.exposure_shares
        self.retired: set[int] = set()  # causes with a node to be replaced for good, not repaired
        self.planned, self.wrong = PlannedOutage(), CorruptedWeights()
        self.due: list[tuple[str, int]] = []
        self.struck: list[tuple[int, int]] = []
        self.strikes = np.zeros(len(self.names), dtype=np.int64)
        self.outages = np.zeros(len(self.names), dtype=np.int64)
        self.repairs = np.zeros(len(self.names), dtype=np.int64)

    def uniform_numbers(self, name: str, what: str, occurrence: int, draws: int) -> Floats:
        """Return the uniform random numbers of the nth occurrence of a named event, as an array (1, draws)."""
        stream = self._streams.get((name, what, draws))
        if stream is None:
            stream = self._streams[name, what, draws] = RandomStream(self.seed, self.number, f"{name}.{what}", draws)
        return stream.uniforms_for(occurrence)

    def draw_seconds(self, law: DurationSpec, name: str, what: str, occurrence: int) -> float:
        """Draw a duration (s) from a distribution, for the nth occurrence of a named event."""
        if not law.num_draws:
            return law.mean
        return float(law.quantile(self.uniform_numbers(name, what, occurrence, law.num_draws))[0])

    def failure_duration(self, cause: FailureMode, occurrence: int) -> float:
        """Return the duration (s) of a failure: from the failure log, or drawn from the cause's distribution."""
        known = math.nan if cause.failure_log is None else cause.failure_log.recorded_duration(occurrence)
        return self.draw_seconds(cause.lasts, cause.name, "lasts", occurrence) if math.isnan(known) else known

    def latest_safe_snapshot(self, tier: int) -> int:
        """Return the index of the latest snapshot completely written to a tier (memory or storage)."""
        pattern, goal = self.run.pattern, self.run.goal
        last = goal // pattern.steps if math.isfinite(goal) else goal
        found = int(min(last, max(0, int(pattern.latest_safe_snapshot(np.array([self.at]))[0]))))
        every = pattern.snapshots_per_stored if tier == STORAGE else 1
        return max(self.least[tier], found // every * every)

    def nominal_time(self) -> float:
        """Return the current nominal (failure-free) time, also in the middle of a training period."""
        if self.stretch is None:
            return self.at
        return self.stretch.at + (self.env.now - self.stretch.begun) / self.stretch.pace

    def steps_done(self, at: float) -> float:
        """Return the number of steps done at a nominal (failure-free) time."""
        steps = self.run.pattern.total_until("steps", np.array([min(at, self.run.goal_nominal_time)]))
        return min(float(steps[0]), self.run.goal)

    def set_possible_failures(self, possible: str) -> None:
        """Set which failures can occur: "all" (training), "stop" (loading: only job-stopping ones), "" (none)."""
        if possible != self.exposure.to:
            self.exposure.set_possible_failures(possible, float(self.shares[self.missing]))

    def interrupt_training(self) -> None:
        """Interrupt training to handle due events; if the job is stopped, the events wait until training resumes."""
        assert self.process is not None
        trains = self.exposure.to == "all" or (self.exposure.to and self.struck)
        if trains and self.process.is_alive and self.process is not self.env.active_process:
            self.process.interrupt()

    def add_due_event(self, kind: str, number: int = -1) -> None:
        """Add an event that the job handles as soon as training resumes."""
        self.due.append((kind, number))
        self.interrupt_training()

    def drop_due_events(self, kind: str) -> None:
        """Drop all due events of a kind, such as "noticed"."""
        self.due = [due for due in self.due if due[0] != kind]
