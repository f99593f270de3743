"""Lanes (in-order op queues of ranks): their current ops, the ops they wait for, and op end times; compiled."""

from __future__ import annotations

from types import SimpleNamespace

import cython
import numpy as np

from simcluster.engine.tables import EngineTables

if not cython.compiled:
    from simcluster.base.pointers import Buffers, prefetch
    from simcluster.engine.event_queue import INFINITE, EventQueue
    from simcluster.engine.template_ops import TemplateOps

    LaneState = SimpleNamespace

LANE = [
    *((name, np.float64) for name in ("due", "since", "left", "factor", "changed", "pressure", "speed", "slowness")),
    *((name, np.int32) for name in ("last", "stop", "base", "template", "instance", "own", "rank", "number")),
    *((name, np.int32) for name in ("waits_from", "awaited", "waiters", "meeting", "joined", "next")),
    *((name, np.int32) for name in ("follower", "followed")),
]
"""Fields of a LaneState (see the .pxd file)."""


class LaneStates:
    """State of every lane (in-order op queue of a rank) during the simulation.

    ``ready_lanes`` lists ``ready_count`` lanes that continue at this instant.  Per lane, ``at`` is the index of its
    current op in ``lane_op``, ``stop`` where its ops end, and ``rank`` the index of its rank in all instances.  Numbers
    of an op: ``base + lane_op[at]`` in all instances, ``template + lane_op[at]`` in ``ops``.  ``waiters`` is the first
    lane that waits for an op of this lane, ``following`` the next at the same lane (by ``awaited`` op) or rendezvous;
    both are plus one.

    Computations whose ends nothing else needs form a run, from ``at`` to ``last`` (before ``at``: no run), whose only
    event, ``due``, is its end.  Of the op that a run is at, ``left`` was left at ``since``, from when it took
    ``factor`` times as long; since ``changed``, ``pressure`` and ``speed`` slow it down.  The ``follower`` (plus one)
    is a lane whose communication waits only for the op of the run at index ``followed``; its ``due`` is that op's end.
    ``events`` counts computations and waits that are over.
    """

    def __init__(self, tables: EngineTables, queue: EventQueue, *, keeps_times: bool) -> None:
        templates, instances = tables.templates, tables.instances
        self.buffers = buffers = Buffers()
        self.queue = queue
        self.count = lanes = int(instances.lane_first.max())
        self.lanes_over = self.events = 0
        self._lane_op = buffers.view_ints("lane_op", templates.lane_op)
        self.following = buffers.ints("following", lanes)
        self._own = buffers.view_doubles("own", instances.seconds)
        self._lane_end = buffers.doubles("lane_end", lanes)
        self._lane_first = buffers.view_ints("lane_first", instances.lane_first)
        self._template_first = buffers.view_ints("template_first", templates.op_first[instances.template])
        self.keeps_times = keeps_times
        self.end = buffers.doubles("end", int(instances.op_first.max()) if keeps_times else 0)
        self._templates = tables.ops or TemplateOps(templates, instances)
        self.ops = self._templates.ops
        self._init_lane_states(tables)

    def _init_lane_states(self, tables: EngineTables) -> None:
        templates, instances = tables.templates, tables.instances
        many = len(instances.template)
        instance = np.repeat(np.arange(many), np.diff(instances.lane_first))
        of_template = templates.lane_first[instances.template] - instances.lane_first[:many]
        like = np.arange(self.count) + of_template[instance]  # the lane of the template
        first, rank = templates.lane_op_first[like], instances.rank_first[instance] + templates.lane_rank[like]
        columns = {
            "due": np.full(self.count, np.inf),
            "slowness": instances.slowness[rank],
            "last": first - 1,
            "stop": templates.lane_op_first[like + 1],
            "base": instances.op_first[instance],
            "template": templates.op_first[instances.template][instance],
            "instance": instance,
            "own": instances.own_seconds[instance],
            "rank": rank,
            "number": instances.number[rank],
            "waits_from": np.full(self.count, -1),
        }
        records = self.buffers.make_records("lanes", columns, LANE)
        self.state = cython.cast(cython.pointer(LaneState), records) if cython.compiled else records
        self.at = self.buffers.view_ints("at", first)
        self.ready_lanes = self.buffers.view_ints("ready_lanes", np.arange(self.count))
        self.ready_count = self.count

    def schedule_event(self, lane: cython.int) -> cython.void:
        """Schedule a lane's next event at its ``due`` time."""
        self.queue.add_event(self.state[lane].due, 2 * lane)

    def template_op_index(self, lane: cython.int, at: cython.int) -> cython.int:
        """Return the index in the template op table of a lane's op, which is given as index ``at`` in ``lane_op``."""
        return self.state[lane].template + self._lane_op[at]

    def global_op_number(self, lane: cython.int, at: cython.int) -> cython.int:
        """Return the job-wide number of a lane's op, which is given as index ``at`` in ``lane_op``."""
        return self.state[lane].base + self._lane_op[at]

    def record_end(self, lane: cython.int, at: cython.int, end: cython.double) -> cython.void:
        """Record the end time of a lane's op (index ``at`` in ``lane_op``) if the engine keeps op times."""
        if self.keeps_times:
            self.end[self.global_op_number(lane, at)] = end

    def try_begin_op(self, lane: cython.int) -> cython.bint:
        """Return whether the lane's current op can begin now; if it must wait, register the lane as a waiter."""
        if self.at[lane] == self.state[lane].stop:
            self.lanes_over += 1
            return False
        its_lane = self._find_awaited_lane(lane, self.template_op_index(lane, self.at[lane]))
        if its_lane >= 0:
            self._insert_waiter(lane, its_lane, self.state[lane].awaited)
            return False
        self.state[lane].waits_from = -1
        if cython.compiled and self.at[lane] + 1 < self.state[lane].stop:  # fetch the next op
            after = self._lane_op[self.at[lane] + 1]
            prefetch(cython.address(self.ops[self.state[lane].template + after]))
            if self.state[lane].own >= 0:
                prefetch(cython.address(self._own[self.state[lane].own + after]))
        return True

    def begin_run(self, lane: cython.int, joins: cython.bint) -> cython.int:
        """Begin a run of computations at a lane's current op; return the index of the communication after it.

        Return -1 if there is none, if it may have to wait, or if lanes may not join it ahead of time (``joins``).
        """
        at: cython.int = self.at[lane]
        self.state[lane].follower = 0
        while True:
            at = self.ops[self.template_op_index(lane, at)].run
            self.state[lane].last = at
            place = self.template_op_index(lane, at)
            follower = -1
            if not self.ops[place].open:
                follower = self._find_follower(lane, place) if joins else -1
                if follower < 0:
                    return -1
            at += 1
            place = self.template_op_index(lane, at)
            if self._find_awaited_lane(lane, place) >= 0:
                return -1
            if follower >= 0:
                self.state[lane].followed = at - 1
                self.state[lane].follower = follower + 1
                self.state[lane].waiters = self.following[follower]
                self.state[follower].waits_from = -1
            if self.ops[place].slot >= 0:
                return place if joins else -1
            if self.ops[place].sensitivity < 0.0:
                return -1

    def _find_follower(self, lane: cython.int, place: cython.int) -> cython.int:
        """Return the lane whose communication waits for this op only, or -1 if there is no such lane."""
        waiter: cython.int = self.ops[place].waiter - 1
        follower: cython.int = self.state[lane].waiters - 1
        if waiter < 0 or follower < 0 or self.state[lane].follower or self.ops[place].at + 1 == self.state[lane].stop:
            return -1
        waiter += self.state[lane].template
        if follower != lane - self.ops[place].lane + self.ops[waiter].lane or self.at[follower] != self.ops[waiter].at:
            return -1
        return follower if self.state[follower].waits_from + 1 == self.ops[waiter].wait_end else -1

    def op_seconds(self, lane: cython.int, at: cython.int) -> cython.double:
        """Return a lane's op duration (s) without interference, rounded to the clock's grid."""
        place: cython.int = self.template_op_index(lane, at)
        own: cython.int = self.state[lane].own
        seconds: cython.double = self.ops[place].seconds
        if own >= 0:
            seconds = self._own[own + place - self.state[lane].template]
        if self.ops[place].sensitivity >= 0.0:
            seconds = seconds * self.state[lane].slowness
        return self.queue.round_to_grid(seconds)

    def end_op(self, lane: cython.int) -> cython.void:
        """End a lane's current op now; this lane and the lanes that wait for the op become ready."""
        self.record_end(lane, self.at[lane], self.queue.now)
        if self.state[lane].waiters:
            self._resume_waiters(lane)
        self.state[lane].last = self.at[lane]
        self.at[lane] += 1
        self.state[lane].due = INFINITE
        if self.at[lane] == self.state[lane].stop:
            self._lane_end[lane] = self.queue.now
        self.state[lane].waits_from = -1
        self.ready_lanes[self.ready_count] = lane
        self.ready_count += 1

    def end_run(self, lane: cython.int) -> cython.bint:
        """Count the finished ops of a due lane; return whether they were a run of computations."""
        ops: cython.int = self.state[lane].last - self.at[lane]
        self.events += max(ops, 0) + 1
        if ops > 0:
            self.at[lane] += ops
        return ops >= 0

    def update_run(self, lane: cython.int, pressure: cython.double, speed: cython.double) -> cython.bint:
        """Apply a new slowdown by communication and speed to a lane's run; return whether its end time changes.

        Only the last pressure and speed of an instant count.
        """
        due: cython.double = self.state[lane].due
        if due < INFINITE:
            if pressure == self.state[lane].pressure and speed == self.state[lane].speed:
                return False
            if self.state[lane].changed < self.queue.now:
                self._advance_run_to_now(lane)
        self.state[lane].changed = self.queue.now
        self.state[lane].pressure = pressure
        self.state[lane].speed = speed
        self.state[lane].due = self._run_end_time(lane)
        return self.state[lane].due != due

    def _advance_run_to_now(self, lane: cython.int) -> cython.void:
        """Move a lane to the op of its run that is active now, and update that op's remaining work."""
        factor: cython.double = self._slowdown_factor(lane, self.at[lane])
        if factor != self.state[lane].factor:
            self.state[lane].left = self._remaining_seconds(lane, self.state[lane].changed)
            self.state[lane].since = self.state[lane].changed
            self.state[lane].factor = factor
        end: cython.double = self.state[lane].since + self.queue.round_to_grid(self.state[lane].left * factor)
        while end <= self.queue.now:
            self.at[lane] += 1
            self.events += 1
            factor = self._slowdown_factor(lane, self.at[lane])
            self.state[lane].left = self.op_seconds(lane, self.at[lane])
            self.state[lane].since = end
            self.state[lane].factor = factor
            end += self.queue.round_to_grid(self.state[lane].left * factor)

    def _run_end_time(self, lane: cython.int) -> cython.double:
        """Return when a run of computations ends if nothing changes; record the end times of its ops."""
        at: cython.int = self.at[lane]
        factor: cython.double = self._slowdown_factor(lane, at)
        end: cython.double = self.queue.now
        if self.state[lane].since == end:
            self.state[lane].factor = factor
        if self.state[lane].factor == factor:
            end = self.state[lane].since + self.queue.round_to_grid(self.state[lane].left * factor)
        else:
            end += self.queue.round_to_grid(self._remaining_seconds(lane, end) * factor)
        while True:
            self.record_end(lane, at, end)
            if self.state[lane].follower and at == self.state[lane].followed:
                self.state[self.state[lane].follower - 1].due = end
            if at == self.state[lane].last:
                return end
            at += 1
            end += self.queue.round_to_grid(self.op_seconds(lane, at) * self._slowdown_factor(lane, at))

    def _slowdown_factor(self, lane: cython.int, at: cython.int) -> cython.double:
        """Return the factor by which communication and the rank's speed slow down a lane's op at present."""
        sensitivity: cython.double = self.ops[self.template_op_index(lane, at)].sensitivity
        return (1.0 + sensitivity * self.state[lane].pressure) * self.state[lane].speed

    def _remaining_seconds(self, lane: cython.int, time: cython.double) -> cython.double:
        """Return the remaining work (s) of a lane's current op at ``time``."""
        over: cython.double = (time - self.state[lane].since) / self.state[lane].factor
        left: cython.double = self.state[lane].left - self.queue.round_to_grid(over)
        return left if left > 0.0 else 0.0

    def _find_awaited_lane(self, lane: cython.int, place: cython.int) -> cython.int:
        """Return the lane of the first unfinished op that this lane's op depends on; -1 for none."""
        at: cython.int = self.state[lane].waits_from
        if at < 0:
            at = self.ops[place].wait_first
        while at < self.ops[place].wait_end:
            whose = self.state[lane].instance
            if self._templates.wait_peer[at] >= 0:
                whose = self._templates.awaited_instance(whose, at)
            other = self._template_first[whose] + self._templates.wait_op[at]
            its_lane = self._lane_first[whose] + self.ops[other].lane
            if self.at[its_lane] <= self.ops[other].at:
                self.state[lane].waits_from = at
                self.state[lane].awaited = self.ops[other].at
                return its_lane
            at += 1
        return -1

    def _insert_waiter(self, lane: cython.int, awaited_lane: cython.int, at: cython.int) -> cython.void:
        """Insert a lane into the waiters of ``awaited_lane``, a list sorted by the awaited op's index (``at``)."""
        before: cython.int = -1
        after: cython.int = self.state[awaited_lane].waiters - 1
        while after >= 0 and self.state[after].awaited < at:
            before = after
            after = self.following[after] - 1
        self.following[lane] = after + 1
        if before < 0:
            self.state[awaited_lane].waiters = lane + 1
        else:
            self.following[before] = lane + 1

    def _resume_waiters(self, ended: cython.int) -> cython.void:
        lane: cython.int = self.state[ended].waiters - 1
        while lane >= 0 and self.state[lane].awaited == self.at[ended]:
            self.ready_lanes[self.ready_count] = lane
            self.ready_count += 1
            lane = self.following[lane] - 1
        self.state[ended].waiters = lane + 1

    def current_op_number(self, lane: cython.int) -> cython.int:
        """Return the number of a lane's current op; -1 if all its ops are finished."""
        return self.global_op_number(lane, self.at[lane]) if self.at[lane] < self.state[lane].stop else -1

    def is_op_finished(self, instance: cython.int, number: cython.int) -> cython.bint:
        """Return whether op ``number`` of the simulated rank ``instance`` is finished."""
        place: cython.int = self._template_first[instance] + number
        return self.at[self._lane_first[instance] + self.ops[place].lane] > self.ops[place].at
