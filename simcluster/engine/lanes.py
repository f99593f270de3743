"""Lanes of ops, what they wait for, and the times of ops; compiled."""

from __future__ import annotations

from types import SimpleNamespace

import cython
import numpy as np

from simcluster.engine.tables import Tables

if not cython.compiled:
    from simcluster.base.pointers import Buffers

    LaneState = SimpleNamespace


LANE = [
    (name, np.int32)
    for name in (
        "op",
        "at",
        "stop",
        "base",
        "shift",
        "instance",
        "rank",
        "waits_from",
        "awaited",
        "waiters",
        "following",
    )
]
"""The numbers of a LaneState (see the .pxd file)."""


class LaneStates:
    """In-order queues of ops.

    ``ready_lanes`` lists ``ready_count`` lanes that continue at this instant.  Of each lane, ``state`` has the ``op``
    that it is at and the place of its ``rank`` among those of all instances; ``op - base`` is the op's number in its
    template, and ``op + shift`` its place in the columns of all templates.  ``waiters`` counts lanes that wait for its
    ops; ``following`` chains lanes that wait for the same, plus one.
    """

    def __init__(self, tables: Tables, *, keeps_times: bool) -> None:
        templates, instances = tables.templates, tables.instances
        self.buffers = buffers = Buffers()
        self.keeps_times = keeps_times
        self.count = lanes = int(instances.lane_first.max())
        self.lanes_over = self.ops_over = 0
        counts = np.diff(instances.lane_first)
        instance = np.repeat(np.arange(len(counts)), counts)
        template = instances.template[instance]
        lane = np.arange(lanes) - instances.lane_first[instance] + templates.lane_first[template]
        base = instances.op_first[instance]
        records = buffers.records("lanes", LANE, lanes)
        self.state = cython.cast(cython.pointer(LaneState), records) if cython.compiled else records
        for name, values in {
            "instance": instance,
            "base": base,
            "shift": templates.op_first[template] - base,
            "rank": instances.rank_first[instance] + templates.lane_rank[lane],
            "at": templates.lane_op_first[lane],
            "stop": templates.lane_op_first[lane + 1],
            "waits_from": np.full(lanes, -1),
        }.items():
            buffers.fill("lanes", name, values)
        self.ready_lanes = buffers.ints("ready_lanes", lanes)
        self._lane_op = buffers.given_ints("lane_op", templates.lane_op)
        self._lane_end = buffers.doubles("lane_end", lanes)
        self._wait_first = buffers.given_ints("wait_first", templates.wait_first)
        self._wait_op = buffers.given_ints("wait_op", templates.wait_op)
        self._wait_peer = buffers.given_ints("wait_peer", templates.wait_peer)
        self._peer = buffers.given_ints("peer", instances.peer)
        self._peers = instances.peer.shape[1]
        self._op_first = buffers.given_ints("op_first", instances.op_first)
        self._buckets = 1 << lanes.bit_length()
        self._bucket = buffers.ints("bucket", self._buckets)  # of lanes that wait for an op: the first, plus one
        self._find_ops(tables)
        kept = int(instances.op_first.max()) if keeps_times else 0
        self.ready = buffers.doubles("ready", kept)
        self.start = buffers.doubles("start", kept)
        self.end = buffers.doubles("end", kept)
        self.last = buffers.ints("last", kept)
        number: cython.int
        for number in range(kept):
            self.last[number] = number
        for number in range(lanes):
            self.ready_lanes[number] = number
        self.ready_count = lanes

    def _find_ops(self, tables: Tables) -> None:
        """Note where the ops of every template are: the lane, and the place in ``lane_op``."""
        templates, instances = tables.templates, tables.instances
        lane = np.repeat(np.arange(len(templates.lane_op_first) - 1), np.diff(templates.lane_op_first))
        template = np.repeat(np.arange(len(templates.op_first) - 1), np.diff(templates.lane_first))[lane]
        place = templates.op_first[template] + templates.lane_op
        op_lane, op_at = np.zeros((2, len(place)), dtype=np.int32)
        op_lane[place] = lane - templates.lane_first[template]
        op_at[place] = np.arange(len(place))
        self._op_lane = self.buffers.given_ints("op_lane", op_lane)
        self._op_at = self.buffers.given_ints("op_at", op_at)
        self._lane_first = self.buffers.given_ints("lane_first", instances.lane_first)
        self._template_first = self.buffers.given_ints("template_first", templates.op_first[instances.template])

    def next_op(self, lane: cython.int, now: cython.double) -> cython.int:
        """Return the op that a lane begins now, -1 if that op has to wait or there is none."""
        if self.state[lane].at == self.state[lane].stop:
            self.lanes_over += 1
            return -1
        op: cython.int = self.state[lane].base + self._lane_op[self.state[lane].at]
        self.state[lane].op = op
        if self._has_to_wait(lane):
            return -1
        if self.keeps_times:
            self.ready[op] = now
            self.start[op] = now
        return op

    def end_op(self, lane: cython.int, now: cython.double) -> cython.void:
        """End a lane's op; the lane and those that wait for the op continue."""
        op: cython.int = self.state[lane].op
        if self.keeps_times:
            self.end[op] = now
        self.state[lane].at += 1
        if self.state[lane].at == self.state[lane].stop:
            self._lane_end[lane] = now
        if self.state[lane].waiters:
            self._wake(op, lane)
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
        bucket: cython.int
        if at < 0:
            at = self._wait_first[place]
        while at < self._wait_first[place + 1]:
            whose = self.state[lane].instance
            if self._wait_peer[at] >= 0:
                whose = self._peer[whose * self._peers + self._wait_peer[at]]
            its_lane = self._lane_of(whose, self._wait_op[at])
            other = self._op_first[whose] + self._wait_op[at]
            at += 1
            if not self._has_ended(whose, other - self._op_first[whose]):
                bucket = self._bucket_of(other)
                self.state[its_lane].waiters += 1
                self.state[lane].awaited = other
                self.state[lane].following = self._bucket[bucket]
                self._bucket[bucket] = lane + 1
                self.state[lane].waits_from = at
                return True
        return False

    def _lane_of(self, instance: cython.int, number: cython.int) -> cython.int:
        """Return the lane of an op of an instance."""
        return self._lane_first[instance] + self._op_lane[self._template_first[instance] + number]

    def _has_ended(self, instance: cython.int, number: cython.int) -> cython.bint:
        """Return whether an op of an instance is over."""
        at: cython.int = self._op_at[self._template_first[instance] + number]
        return self.state[self._lane_of(instance, number)].at > at

    def _bucket_of(self, op: cython.longlong) -> cython.int:
        return ((op * 1640531527) >> 7) & (self._buckets - 1)  # below 2^31: else it would be a Python integer

    def _wake(self, op: cython.int, ended: cython.int) -> cython.void:
        """Let the lanes continue that wait for an op, which has ended on its lane."""
        bucket: cython.int = self._bucket_of(op)
        before: cython.int = -1
        lane: cython.int = self._bucket[bucket] - 1
        after: cython.int
        while lane >= 0:
            after = self.state[lane].following
            if self.state[lane].awaited != op:
                before = lane
            else:
                if before < 0:
                    self._bucket[bucket] = after
                else:
                    self.state[before].following = after
                self.state[ended].waiters -= 1
                self.ready_lanes[self.ready_count] = lane
                self.ready_count += 1
            lane = after - 1

    def op_at(self, lane: cython.int) -> cython.int:
        """Return the op that a lane is at, -1 if all are over."""
        return self.state[lane].op if self.state[lane].at < self.state[lane].stop else -1

    def is_over(self, instance: cython.int, number: cython.int) -> cython.bint:
        """Return whether an op of an instance is over."""
        return self._has_ended(instance, number)
