"""Lanes of ops, what they wait for, and the times of ops; compiled."""

from __future__ import annotations

from types import SimpleNamespace

import cython
import numpy as np

from simcluster.engine.tables import Tables

if not cython.compiled:
    from simcluster.base.pointers import Buffers

    LaneState = SimpleNamespace
    TemplateOp = SimpleNamespace


LANE = [
    (name, np.int32)
    for name in (
        "op",
        "at",
        "stop",
        "base",
        "shift",
        "instance",
        "first",
        "rank",
        "waits_from",
        "awaited",
        "waiters",
        "following",
    )
]
"""Fields of a LaneState (see the .pxd file)."""
OP = [
    *((name, np.float64) for name in ("seconds", "sensitivity")),
    *((name, np.int32) for name in ("slot", "work", "place", "wait_first", "lane", "at")),
]
"""Fields of a TemplateOp (see the .pxd file): its columns of ``Templates``, its lane, and its index in ``lane_op``."""


class LaneStates:
    """In-order queues of ops.

    ``ready_lanes`` lists ``ready_count`` lanes that continue at this instant.  ``state`` has each lane's current
    ``op``, the index of its ``rank`` in all instances, and the ``first`` lane of its instance.  ``op - base`` is the
    op's number in its template, ``op + shift`` its index in ``ops``.  ``waiters`` is the first lane that waits for an
    op of this lane, ``following`` the next one at the same lane (by ``awaited`` op) or meeting; both are plus one.
    """

    def __init__(self, tables: Tables, *, keeps_times: bool) -> None:
        templates, instances = tables.templates, tables.instances
        self.buffers = buffers = Buffers()
        self.count = lanes = int(instances.lane_first.max())
        self.lanes_over = self.ops_over = 0
        self.ready_lanes = buffers.ints("ready_lanes", lanes)
        self._lane_op = buffers.given_ints("lane_op", templates.lane_op)
        self._lane_end = buffers.doubles("lane_end", lanes)
        self._wait_op = buffers.given_ints("wait_op", templates.wait_op)
        self._wait_peer = buffers.given_ints("wait_peer", templates.wait_peer)
        self._peer = buffers.given_ints("peer", instances.peer)
        self._peers = instances.peer.shape[1]
        self._lane_first = buffers.given_ints("lane_first", instances.lane_first)
        self._template_first = buffers.given_ints("template_first", templates.op_first[instances.template])
        self._read_ops(tables)
        self.keeps_times = keeps_times
        self.end = buffers.doubles("end", int(instances.op_first.max()) if keeps_times else 0)
        self._put_at_first_ops(tables)

    def _put_at_first_ops(self, tables: Tables) -> None:
        """Set every lane to its first op."""
        buffers, templates, instances = self.buffers, tables.templates, tables.instances
        template: cython.p_int = buffers.given_ints("template", instances.template)
        op_first: cython.p_int = buffers.given_ints("op_first", instances.op_first)
        rank_first: cython.p_int = buffers.given_ints("rank_first", instances.rank_first)
        template_lane: cython.p_int = buffers.given_ints("template_lane", templates.lane_first)
        lane_op_first: cython.p_int = buffers.given_ints("lane_op_first", templates.lane_op_first)
        lane_rank: cython.p_int = buffers.given_ints("lane_rank", templates.lane_rank)
        records = buffers.records("lanes", LANE, self.count)
        self.state = cython.cast(cython.pointer(LaneState), records) if cython.compiled else records
        instance: cython.int
        lane: cython.int
        like: cython.int  # the lane of the template
        for instance in range(len(instances.template)):
            for lane in range(self._lane_first[instance], self._lane_first[instance + 1]):
                like = lane - self._lane_first[instance] + template_lane[template[instance]]
                self.state[lane].instance = instance
                self.state[lane].first = self._lane_first[instance]
                self.state[lane].base = op_first[instance]
                self.state[lane].shift = self._template_first[instance] - op_first[instance]
                self.state[lane].rank = rank_first[instance] + lane_rank[like]
                self.state[lane].at = lane_op_first[like]
                self.state[lane].stop = lane_op_first[like + 1]
                self.state[lane].waits_from = -1
                self.ready_lanes[lane] = lane
        self.ready_count = self.count

    def _read_ops(self, tables: Tables) -> None:
        """Copy the columns of all templates' ops to records."""
        buffers, templates = self.buffers, tables.templates
        seconds: cython.p_double = buffers.given_doubles("seconds", templates.seconds)
        sensitivity: cython.p_double = buffers.given_doubles("sensitivity", templates.sensitivity)
        slot: cython.p_int = buffers.given_ints("slot", templates.slot)
        work: cython.p_int = buffers.given_ints("work", templates.work)
        meeting: cython.p_int = buffers.given_ints("place", templates.place)
        wait_first: cython.p_int = buffers.given_ints("wait_first", templates.wait_first)
        op_first: cython.p_int = buffers.given_ints("template_op", templates.op_first)
        lane_first: cython.p_int = buffers.given_ints("template_lane", templates.lane_first)
        lane_op_first: cython.p_int = buffers.given_ints("lane_op_first", templates.lane_op_first)
        count: cython.int = templates.op_first.max()
        records = buffers.records("ops", OP, count + 1)
        self.ops = cython.cast(cython.pointer(TemplateOp), records) if cython.compiled else records
        template: cython.int
        lane: cython.int
        at: cython.int
        place: cython.int
        for template in range(len(templates.op_first) - 1):
            for lane in range(lane_first[template], lane_first[template + 1]):
                for at in range(lane_op_first[lane], lane_op_first[lane + 1]):
                    place = op_first[template] + self._lane_op[at]
                    self.ops[place].lane = lane - lane_first[template]
                    self.ops[place].at = at
        for place in range(count):
            self.ops[place].seconds = seconds[place]
            self.ops[place].sensitivity = sensitivity[place]
            self.ops[place].slot = slot[place]
            self.ops[place].work = work[place]
            self.ops[place].place = meeting[place]
            self.ops[place].wait_first = wait_first[place]
        self.ops[count].wait_first = wait_first[count]

    def next_op(self, lane: cython.int) -> cython.int:
        """Return the op that a lane begins now, -1 if that op has to wait or there is none."""
        if self.state[lane].at == self.state[lane].stop:
            self.lanes_over += 1
            return -1
        self.state[lane].op = self.state[lane].base + self._lane_op[self.state[lane].at]
        return -1 if self._has_to_wait(lane) else self.state[lane].op

    def end_op(self, lane: cython.int, now: cython.double) -> cython.void:
        """End a lane's op; the lane and those that wait for the op continue."""
        if self.keeps_times:
            self.end[self.state[lane].op] = now
        if self.state[lane].waiters:
            self._wake(lane)
        self.state[lane].at += 1
        if self.state[lane].at == self.state[lane].stop:
            self._lane_end[lane] = now
        self.ops_over += 1
        self.state[lane].waits_from = -1
        self.ready_lanes[self.ready_count] = lane
        self.ready_count += 1

    def _has_to_wait(self, lane: cython.int) -> cython.bint:
        """Put a lane to those who wait if its op waits for one that is not over."""
        place: cython.int = self.state[lane].op + self.state[lane].shift
        at: cython.int = self.state[lane].waits_from
        whose: cython.int
        other: cython.int
        its_lane: cython.int
        if at < 0:
            at = self.ops[place].wait_first
        while at < self.ops[place + 1].wait_first:
            if self._wait_peer[at] < 0:
                other = self.state[lane].base + self.state[lane].shift + self._wait_op[at]
                its_lane = self.state[lane].first + self.ops[other].lane
            else:
                whose = self._peer[self.state[lane].instance * self._peers + self._wait_peer[at]]
                other = self._template_first[whose] + self._wait_op[at]
                its_lane = self._lane_first[whose] + self.ops[other].lane
            at += 1
            if self.state[its_lane].at <= self.ops[other].at:
                self.state[lane].waits_from = at
                self._join_waiters(lane, its_lane, self.ops[other].at)
                return True
        return False

    def _join_waiters(self, lane: cython.int, awaited_lane: cython.int, at: cython.int) -> cython.void:
        """Insert a lane in the list of those that wait for ``awaited_lane``, ordered by the awaited op (``at``)."""
        before: cython.int = -1
        after: cython.int = self.state[awaited_lane].waiters - 1
        while after >= 0 and self.state[after].awaited < at:
            before = after
            after = self.state[after].following - 1
        self.state[lane].awaited = at
        self.state[lane].following = after + 1
        if before < 0:
            self.state[awaited_lane].waiters = lane + 1
        else:
            self.state[before].following = lane + 1

    def _wake(self, ended: cython.int) -> cython.void:
        """Let the lanes continue that wait for the current op of lane ``ended``."""
        lane: cython.int = self.state[ended].waiters - 1
        while lane >= 0 and self.state[lane].awaited == self.state[ended].at:
            self.ready_lanes[self.ready_count] = lane
            self.ready_count += 1
            lane = self.state[lane].following - 1
        self.state[ended].waiters = lane + 1

    def op_at(self, lane: cython.int) -> cython.int:
        """Return the op that a lane is at, -1 if all are over."""
        return self.state[lane].op if self.state[lane].at < self.state[lane].stop else -1

    def is_over(self, instance: cython.int, number: cython.int) -> cython.bint:
        """Return whether an op of an instance is over."""
        place: cython.int = self._template_first[instance] + number
        return self.state[self._lane_first[instance] + self.ops[place].lane].at > self.ops[place].at
