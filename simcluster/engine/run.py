"""Simulation of tables by the compiled engine in slices, with progress, and the reasons for deadlocks."""

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
from simcluster.base.clock import BeyondGridError, Profile, first_nonzero_time
from simcluster.base.compilation import check_compiled
from simcluster.base.errors import DeadlockError
from simcluster.base.telling import report_phase, require_event_limit
from simcluster.engine import events
from simcluster.engine.events import Engine
from simcluster.engine.op_times import KeptTimes, OpTimesReader
from simcluster.engine.tables import Tables
from simcluster.reference.record import OpTimes

_EVENTS_PER_SLICE = 100_000
"""Events between two looks at the keyboard."""
_CHANGES_PER_LOAD = 4096
"""Changes of links and speeds that are tabulated at a time."""
_SECONDS_PER_CHANGE = 4e-6  # processor seconds per change, about
_MAX_SHOWN = 12

Change = tuple[float, int, float]
"""An instant (s); the link, or -1 minus the rank; and its factor from then on."""


@dataclass(frozen=True)
class EngineRun:
    """Outcome of the engine: the end of every lane (s; 0 without ops), the number of events, and the times if kept."""

    tables: Tables = field(repr=False)
    lane_end: Floats
    events: int
    kept: KeptTimes | None = field(repr=False)

    @cached_property
    def times(self) -> OpTimes:
        """The times of all ops, which the engine must have kept."""
        assert self.kept is not None
        many, at = int(self.tables.instances.op_first[-1]), 0
        reader = OpTimesReader(self.tables, self.kept, many)
        for instance in range(len(self.tables.instances.template)):
            at = reader.read(instance, at)
        return OpTimes(*reader.columns(many)[:4])


def simulate_tables(tables: Tables, describe: Callable[[int], str], *, keeps_times: bool) -> EngineRun:
    """Simulate tables on the clock's present grid.

    ``describe`` names an op in messages.  Raises DeadlockError when ops are left that can never begin, and
    BeyondGridError when the clock leaves its grid.
    """
    check_compiled()
    engine = Engine(tables, 1.0 / clock.tick_seconds(), clock.exact_time_limit(), keeps_times=keeps_times)
    changes = _Changes(tables)
    changes.load(engine)
    ops = int(tables.instances.op_first[-1])
    with report_phase(lambda: f"simulating, {engine.ops_over() / max(ops, 1):.0%} of ops done"):
        state = events.PAUSED
        while state in (events.PAUSED, events.NEEDS_CHANGES):
            state = engine.run(_EVENTS_PER_SLICE)
            if state == events.NEEDS_CHANGES:
                changes.load_next(engine)
    if state == events.BEYOND_GRID:
        raise BeyondGridError
    if state == events.STUCK:
        raise _deadlock_error(tables, engine, describe)
    lane_end = engine.lanes.buffers.read("lane_end")[: engine.lanes.count]
    kept = engine.meetings.kept_times() if keeps_times else None
    return EngineRun(tables, lane_end, engine.events(), kept)


class _Changes:
    """Changes of links' capacity and ranks' speed, loaded into the engine as far as it has come."""

    def __init__(self, tables: Tables) -> None:
        self._tables, self._count = tables, 0
        self._tabulate_from(0.0)

    def _tabulate_from(self, instant: float) -> None:
        speeds = {-1 - rank: profile for rank, profile in self._tables.speeds.items()}
        profiles = {**self._tables.capacities, **speeds}.items()
        self._to_come = merge(*(_profile_changes(profile, number, instant) for number, profile in profiles))
        self._loaded: list[Change] = []

    def load_next(self, engine: Engine) -> None:
        """Load the next changes that matter.

        Skip those before the next event if nothing moves or computes, and all of them if they cannot unblock a
        transfer.
        """
        due, idle = engine.next_event(), not engine.links.under_way and not engine.ranks.computing_lanes
        if idle or (due == math.inf and not self._can_unblock(engine)):
            self._tabulate_from(due if due < clock.exact_time_limit() else math.inf)
        self.load(engine)

    def load(self, engine: Engine) -> None:
        """Give the engine the changes that it has not seen, and the next ones."""
        more = list(islice(self._to_come, _CHANGES_PER_LOAD))
        self._loaded = [*self._loaded[engine.change :], *more]
        self._count += len(more)
        require_event_limit("changes of links and speeds by faults", self._count, _SECONDS_PER_CHANGE, engine.queue.now)
        times, numbers, factors = zip(*self._loaded, strict=True) if self._loaded else ((), (), ())
        engine.load_changes(times, numbers, factors, len(more) == _CHANGES_PER_LOAD)

    def _can_unblock(self, engine: Engine) -> bool:
        """Return whether the links of some blocked transfer will all be up at the same time."""
        capacities = self._tables.capacities
        usages = [self._tables.traffics[traffic].usage for traffic in engine.links.moving_traffics()]
        of_links = [[capacities[link] for link, _ in usage if link in capacities] for usage in usages]
        return any(first_nonzero_time(profiles, engine.queue.now) < math.inf for profiles in of_links)


def _profile_changes(profile: Profile, number: int, instant: float) -> Iterator[Change]:
    while instant < math.inf:
        yield instant, number, profile.factor_at(instant)
        instant = profile.next_change(instant)


def _deadlock_error(tables: Tables, engine: Engine, describe: Callable[[int], str]) -> Exception:
    lines = []
    for lane in range(engine.lanes.count):
        op = engine.lanes.op_at(lane)
        if op >= 0:
            what = _describe_awaited(tables, engine, describe, op)
            if not what:  # it waits for nothing and never ends
                return BeyondGridError()
            lines.append(f"  {describe(op)} waits for {what}")
    shown = "\n".join(lines[:_MAX_SHOWN])
    more = f"\n  ... and {len(lines) - _MAX_SHOWN} more" if len(lines) > _MAX_SHOWN else ""
    return DeadlockError(
        f"deadlock: {len(lines)} lanes wait for each other and nothing can happen any more\n{shown}{more}\n"
        "  Every send needs a receive, and all members of a group must run its collectives in the same order."
    )


def _describe_awaited(tables: Tables, engine: Engine, describe: Callable[[int], str], op: int) -> str:
    """Return a description of what an op waits for; "" for nothing."""
    templates, instances, groups, kinds = tables[:4]
    instance = int(np.searchsorted(instances.op_first, op, side="right")) - 1
    place = op - int(instances.op_first[instance]) + int(templates.op_first[instances.template[instance]])
    missing = []
    for at in range(int(templates.wait_first[place]), int(templates.wait_first[place + 1])):
        peer, number = int(templates.wait_peer[at]), int(templates.wait_op[at])
        other = instance if peer < 0 else int(instances.peer[instance, peer])
        if not engine.lanes.is_over(other, number):
            missing.append(int(instances.op_first[other]) + number)
    if missing:
        return " and ".join(map(describe, missing[:3]))
    slot = int(templates.slot[place])
    if slot < 0:
        return ""
    meeting = int(groups.place_first[instances.group[instance, slot]] + templates.place[place])
    arrived, kind = engine.meetings.arrived(meeting)
    parties = int(kinds.parties[kind]) if kind >= 0 else arrived + 1  # no op that names the kind has arrived
    return f"the other members of its group ({arrived} of {parties} have arrived)"
