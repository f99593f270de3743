"""Run of the compiled engine in slices, with progress reports, fault changes and deadlock messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from heapq import merge
from itertools import islice

import numpy as np

from simcluster.base import clock
from simcluster.base.arrays import Floats
from simcluster.base.clock import ClockRangeError, Profile, first_nonzero_time
from simcluster.base.compilation import warn_if_not_compiled
from simcluster.base.errors import DeadlockError
from simcluster.base.progress import check_event_count, report_phase
from simcluster.engine import events
from simcluster.engine.events import Engine
from simcluster.engine.op_times import OpTimesReader, RecordedTimes
from simcluster.engine.tables import EngineTables
from simcluster.reference.step_record import OpTimes

_EVENTS_PER_SLICE = 100_000
"""Events between two checks for an interrupt by the user."""
_CHANGES_PER_LOAD = 4096
"""Changes of link capacity and rank speed that are loaded at a time."""
_SECONDS_PER_CHANGE = 4e-6  # processor seconds per change, about
_MAX_SHOWN = 12

Change = tuple[float, int, float]
"""Change of a link or rank: time (s); link number, or -1 - rank; new factor on its capacity or compute time."""


@dataclass(frozen=True)
class EngineRun:
    """Result of an engine run: end time of every lane (s; 0 without ops), event count, and op times if recorded."""

    tables: EngineTables = field(repr=False)
    lane_end: Floats
    events: int
    recorded_times: RecordedTimes | None = field(repr=False)

    @cached_property
    def times(self) -> OpTimes:
        """Times of all ops; only available if the engine recorded them."""
        assert self.recorded_times is not None
        many, at = int(self.tables.instances.op_first[-1]), 0
        reader = OpTimesReader(self.tables, self.recorded_times, many)
        for instance in range(len(self.tables.instances.template)):
            at = reader.read_instance(instance, at)
        return OpTimes(*reader.time_columns(many)[:4])


def simulate_tables(tables: EngineTables, describe: Callable[[int], str], *, keeps_times: bool) -> EngineRun:
    """Simulate engine tables on the current clock grid and return the result.

    ``describe`` names an op in messages.  Raises DeadlockError when ops are left that can never begin, and
    BeyondGridError when the clock leaves its grid.
    """
    warn_if_not_compiled()
    engine = Engine(tables, 1.0 / clock.tick_seconds(), clock.exact_time_limit(), keeps_times=keeps_times)
    changes = _ChangeLoader(tables)
    changes.load_block(engine)
    ops = int(tables.instances.op_first[-1])
    with report_phase(lambda: f"simulating, {engine.count_finished_ops() / max(ops, 1):.0%} of ops done"):
        state = events.PAUSED
        while state in (events.PAUSED, events.NEEDS_CHANGES):
            state = engine.run(_EVENTS_PER_SLICE)
            if state == events.NEEDS_CHANGES:
                changes.load_next_relevant(engine)
    if state == events.BEYOND_GRID:
        raise ClockRangeError
    if state == events.STUCK:
        raise _deadlock_error(tables, engine, describe)
    lane_end = engine.lanes.buffers.contents("lane_end")[: engine.lanes.count]
    kept = engine.meetings.recorded_times() if keeps_times else None
    return EngineRun(tables, lane_end, engine.count_events(), kept)


class _ChangeLoader:
    """Loader that passes changes of link capacity and rank speed to the engine, block by block."""

    def __init__(self, tables: EngineTables) -> None:
        self._tables, self._count = tables, 0
        self._restart_at(0.0)

    def _restart_at(self, instant: float) -> None:
        speeds = {-1 - rank: profile for rank, profile in self._tables.speeds.items()}
        profiles = {**self._tables.capacities, **speeds}.items()
        self._to_come = merge(*(_list_profile_changes(profile, number, instant) for number, profile in profiles))
        self._loaded: list[Change] = []

    def load_next_relevant(self, engine: Engine) -> None:
        """Load the next block of link and rank changes into the engine, skipping those without effect.

        Skip those before the next event if nothing moves or computes, and all of them if they cannot unblock a
        transfer.
        """
        due, idle = engine.next_event_time(), not engine.links.under_way and not engine.ranks.computing_lanes
        if idle or (due == math.inf and not self._can_unblock(engine)):
            self._restart_at(due if due < clock.exact_time_limit() else math.inf)
        self.load_block(engine)

    def load_block(self, engine: Engine) -> None:
        """Pass the engine its unprocessed link and rank changes, and the next block of them."""
        more = list(islice(self._to_come, _CHANGES_PER_LOAD))
        self._loaded = [*self._loaded[engine.change :], *more]
        self._count += len(more)
        check_event_count("speed changes by faults", self._count, _SECONDS_PER_CHANGE, engine.queue.now)
        times, numbers, factors = zip(*self._loaded, strict=True) if self._loaded else ((), (), ())
        engine.load_link_and_speed_changes(times, numbers, factors, len(more) == _CHANGES_PER_LOAD)

    def _can_unblock(self, engine: Engine) -> bool:
        """Return whether all links of some blocked transfer will have capacity at the same time."""
        capacities = self._tables.capacities
        usages = [self._tables.traffics[traffic].usage for traffic in engine.links.active_traffics()]
        of_links = [[capacities[link] for link, _ in usage if link in capacities] for usage in usages]
        return any(first_nonzero_time(profiles, engine.queue.now) < math.inf for profiles in of_links)


def _list_profile_changes(profile: Profile, number: int, instant: float) -> Iterator[Change]:
    while instant < math.inf:
        yield instant, number, profile.factor_at(instant)
        instant = profile.next_change(instant)


def _deadlock_error(tables: EngineTables, engine: Engine, describe: Callable[[int], str]) -> Exception:
    lines = []
    for lane in range(engine.lanes.count):
        op = engine.lanes.current_op_number(lane)
        if op >= 0:
            what = _describe_awaited(tables, engine, describe, op)
            if not what:  # it waits for nothing and never ends
                return ClockRangeError()
            lines.append(f"  {describe(op)} waits for {what}")
    shown = "\n".join(lines[:_MAX_SHOWN])
    more = f"\n  ... and {len(lines) - _MAX_SHOWN} more" if len(lines) > _MAX_SHOWN else ""
    return DeadlockError(
        f"deadlock: {len(lines)} lanes (op queues) wait for each other for ever\n{shown}{more}\n"
        "  Every send needs a receive, and all members of a group must run its collectives in the same order."
    )


def _describe_awaited(tables: EngineTables, engine: Engine, describe: Callable[[int], str], op: int) -> str:
    """Return a description of the ops or members that an op waits for; "" if the op waits for nothing."""
    templates, instances, groups, kinds = tables[:4]
    instance = int(np.searchsorted(instances.op_first, op, side="right")) - 1
    place = op - int(instances.op_first[instance]) + int(templates.op_first[instances.template[instance]])
    missing = []
    for at in range(int(templates.wait_first[place]), int(templates.wait_first[place + 1])):
        peer, number = int(templates.wait_peer[at]), int(templates.wait_op[at])
        other = instance if peer < 0 else int(instances.peer[instance, peer])
        if not engine.lanes.is_op_finished(other, number):
            missing.append(int(instances.op_first[other]) + number)
    if missing:
        return " and ".join(map(describe, missing[:3]))
    slot = int(templates.slot[place])
    if slot < 0:
        return ""
    meeting = int(groups.place_first[instances.group[instance, slot]] + templates.place[place])
    arrived, kind = engine.meetings.arrivals_and_kind(meeting)
    parties = int(kinds.parties[kind]) if kind >= 0 else arrived + 1  # no op that names the kind has arrived
    return f"the other members of its group ({arrived} of {parties} have arrived)"
