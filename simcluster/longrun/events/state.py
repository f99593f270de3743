"""State of the job in the SimPy simulation: position, exposure to failures, due events, and nodes in repair."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from simcluster.base.arrays import Floats
from simcluster.longrun.events.record import RunRecord
from simcluster.longrun.pattern import STORAGE
from simcluster.longrun.random_streams import RandomStream
from simcluster.longrun.run import TIME_TOLERANCE, FailureMode, LongRun, SpareNodes, cause_names
from simcluster.scenario.run_times import TimeSpec


class RepairShop:
    """Nodes in repair, first come first served by crews; a job that can run ``short`` waits for no spare."""

    def __init__(self, env: simpy.Environment, spares: SpareNodes, *, short: bool) -> None:
        self.env, self.spares, self.short = env, spares, short
        self.back: list[float] = []  # when the nodes in repair come back
        self.crews = [-math.inf] * (spares.crews or 0)

    @property
    def nodes_out(self) -> int:
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

    def spare_delay(self, needed: int) -> float:
        """Return the seconds until ``needed`` spare nodes taken now are ready."""
        times, out = self.spares.ready_times, self.nodes_out
        if not times or (self.short and out >= len(times)):
            return 0.0
        return times[min(out + needed - 1, len(times) - 1)]

    def time_with_at_most(self, out: int) -> float:
        """Return the time at which at most ``out`` nodes are in repair; infinity if ``out`` is negative."""
        if out < 0:
            return math.inf
        return sorted(self.back)[-1 - out] if self.nodes_out > out else self.env.now

    def next_return_time(self) -> float:
        """Return the time at which the next node returns from repair; infinity if none is there."""
        return min((back for back in self.back if back > self.env.now + TIME_TOLERANCE), default=math.inf)


SimProcess = Generator[simpy.Event, Any, None]


class Exposure:
    """Failures that can occur now: none (""), those of causes that stop the job ("stop"), or "all".

    It is "stop" while a job loads in a restart, "all" while it trains. Exposed seconds pass at a ``pace``, the share of
    the nodes that run.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.to, self.pace = "", 1.0
        self.changed = env.event()
        self._loaded, self._trained, self._since = 0.0, 0.0, 0.0

    def can_fail(self, *, stops: bool) -> bool:
        """Return whether a cause can fail now, given whether it ``stops`` the job."""
        return self.to == "all" or (stops and self.to == "stop")

    def exposed_seconds(self, *, stops: bool) -> float:
        """Return the time (s) so far in which causes that stop the job, or other causes, could fail."""
        more = (self.env.now - self._since) * self.pace if self.can_fail(stops=stops) else 0.0
        return (self._loaded if stops else self._trained) + more

    def change(self, to: str, pace: float) -> None:
        """Set which failures can occur, and resume the failure processes that wait for the change."""
        self._loaded, self._trained = self.exposed_seconds(stops=True), self.exposed_seconds(stops=False)
        self.to, self.pace, self._since = to, pace, self.env.now
        changed, self.changed = self.changed, self.env.event()
        changed.succeed()

    def wait_for(self, left: Callable[[], float], *, stops: bool) -> SimProcess:
        """Wait until the exposed seconds that ``left`` returns have passed."""
        now = self.env.now
        while now + (seconds := left()) > now + TIME_TOLERANCE:
            if not self.can_fail(stops=stops):
                yield self.changed
            elif self.pace == 1.0:
                yield self.env.timeout(seconds)
            else:  # the pace may rise
                yield self.env.timeout(seconds / self.pace) | self.changed
            now = self.env.now


@dataclass(eq=False)
class SlowDevice:
    """Slow device in the SimPy simulation: pace of the job, cause, name, and whether it has been noticed."""

    number: int
    pace: float
    which: str
    noticed: bool = False


@dataclass(frozen=True)
class TrainingStretch:
    """Current period of undisturbed training: its start (nominal and wall time), pace, and what slows it."""

    at: float
    begun: float
    pace: float
    number: int
    which: str


@dataclass
class PlannedOutage:
    """Outage planned after the next snapshot: nominal time, cause, nodes to replace, maintenance or not."""

    at: float = math.inf
    number: int = -1
    replaces: int = -1
    maintains: bool = False


@dataclass
class WrongWeights:
    """Weights spoilt by a silent error: since when, cause, when a verification finds it; ``count`` of errors."""

    since: float = math.inf
    number: int = -1
    verified_at: float = math.inf
    count: int = 0

    def reset(self) -> None:
        """Mark the weights as correct again."""
        self.since = self.verified_at = math.inf


class JobState:
    """State of a job in the SimPy simulation: nominal time ``at``, oldest snapshots, pending failures and events.

    ``least[tier]`` is the snapshot to which it goes back at least. ``struck`` are failures (cause, occurrence) that the
    job has to handle, ``due`` other events that are due.
    """

    def __init__(self, run: LongRun, seed: int, number: int) -> None:
        self.run, self.seed, self.number = run, seed, number
        self._streams: dict[tuple[str, str, int], RandomStream] = {}
        self.names = cause_names(run)
        self.env = simpy.Environment(0.0)
        self.record = RunRecord(self.env, self.names, [part.name for part in run.restart])
        self.machines = RepairShop(self.env, run.spares, short=bool(run.short))
        self.at, self.least = 0.0, [0, 0]
        self.stretch: TrainingStretch | None = None
        self.exposure = Exposure(self.env)
        self.process: simpy.Process | None = None
        self.slow: list[SlowDevice] = []
        self.missing, self.watched = 0, math.inf
        self.shares = run.exposure_shares
        self.retired: set[int] = set()  # causes with a node to be replaced for good, not repaired
        self.planned, self.wrong = PlannedOutage(), WrongWeights()
        self.due: list[tuple[str, int]] = []
        self.struck: list[tuple[int, int]] = []
        self.strikes = np.zeros(len(self.names), dtype=np.int64)
        self.outages = np.zeros(len(self.names), dtype=np.int64)
        self.repairs = np.zeros(len(self.names), dtype=np.int64)

    def uniform_numbers(self, name: str, what: str, occurrence: int, draws: int) -> Floats:
        """Return the random numbers of an occurrence of a named event, an array of shape (1, draws)."""
        stream = self._streams.get((name, what, draws))
        if stream is None:
            stream = self._streams[name, what, draws] = RandomStream(self.seed, self.number, f"{name}.{what}", draws)
        return stream.uniforms_for(occurrence)

    def draw_seconds(self, law: TimeSpec, name: str, what: str, occurrence: int) -> float:
        """Return a duration (s) drawn from a law, for an occurrence of a named event."""
        if not law.draws:
            return law.mean
        return float(law.quantile(self.uniform_numbers(name, what, occurrence, law.draws))[0])

    def failure_duration(self, cause: FailureMode, occurrence: int) -> float:
        """Return the duration (s) of a failure, recorded in a log or drawn from the cause's law."""
        known = math.nan if cause.struck is None else cause.struck.recorded_duration(occurrence)
        return self.draw_seconds(cause.lasts, cause.name, "lasts", occurrence) if math.isnan(known) else known

    def latest_safe_snapshot(self, level: int) -> int:
        """Return the number of the latest snapshot that is completely written at a tier."""
        pattern, goal = self.run.pattern, self.run.goal
        last = goal // pattern.steps if math.isfinite(goal) else goal
        found = int(min(last, max(0, int(pattern.latest_safe(np.array([self.at]))[0]))))
        return max(self.least[level], found // pattern.cycles * pattern.cycles if level == STORAGE else found)

    def nominal_time(self) -> float:
        """Return the current nominal time, also in the middle of a phase."""
        if self.stretch is None:
            return self.at
        return self.stretch.at + (self.env.now - self.stretch.begun) / self.stretch.pace

    def steps_done(self, at: float) -> float:
        """Return the number of steps done at a nominal time."""
        steps = self.run.pattern.spent_until("steps", np.array([min(at, self.run.goal_at)]))
        return min(float(steps[0]), self.run.goal)

    def set_exposure(self, to: str) -> None:
        """Change which failures can occur: "all" in training, "stop" while loading, or "" for none."""
        if to != self.exposure.to:
            self.exposure.change(to, float(self.shares[self.missing]))

    def interrupt_training(self) -> None:
        """Interrupt training to handle due events; while the job is stopped they wait until it resumes."""
        assert self.process is not None
        trains = self.exposure.to == "all" or (self.exposure.to and self.struck)
        if trains and self.process.is_alive and self.process is not self.env.active_process:
            self.process.interrupt()

    def fall_due(self, what: str, number: int = -1) -> None:
        """Add a due event, which the job handles as soon as it trains."""
        self.due.append((what, number))
        self.interrupt_training()

    def drop_due(self, what: str) -> None:
        """Drop all due events of the kind ``what``."""
        self.due = [due for due in self.due if due[0] != what]
