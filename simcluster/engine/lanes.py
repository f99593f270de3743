"""Lanes of ops, what they wait for, and the times of ops; compiled."""

from __future__ import annotations

import cython
import numpy as np

from simcluster.engine.tables import Tables

if not cython.compiled:
    from simcluster.base.pointers import Buffers


class LaneStates:
    """In-order queues of ops.

    ``ready_lanes`` lists ``ready_count`` lanes that go on at this instant.  ``op`` is what a lane is at, ``rank`` its
    place among the ranks of all instances; ``op - base`` is the op's number in its template, and ``op + shift`` its
    place in the columns of all templates.  ``following`` chains lanes that wait for the same, plus one.
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
        self.instance = buffers.given_ints("instance", instance)
        self.base = buffers.given_ints("base", base)
        self.shift = buffers.given_ints("shift", templates.op_first[template] - base)
        self.rank = buffers.given_ints("rank", instances.rank_first[instance] + templates.lane_rank[lane])
        self.op = buffers.ints("op", lanes)
        self.following = buffers.ints("following", lanes)
        self.ready_lanes = buffers.ints("ready_lanes", lanes)
        self._at = buffers.given_ints("at", templates.lane_op_first[lane])
        self._stop = buffers.given_ints("stop", templates.lane_op_first[lane + 1])
        self._lane_op = buffers.given_ints("lane_op", templates.lane_op)
        self._lane_end = buffers.doubles("lane_end", lanes)
        self._wait_first = buffers.given_ints("wait_first", templates.wait_first)
        self._wait_op = buffers.given_ints("wait_op", templates.wait_op)
        self._wait_peer = buffers.given_ints("wait_peer", templates.wait_peer)
        self._peer = buffers.given_ints("peer", instances.peer)
        self._peers = instances.peer.shape[1]
        self._op_first = buffers.given_ints("op_first", instances.op_first)
        self._waits_from = buffers.given_ints("waits_from", np.full(lanes, -1))
        self._awaited = buffers.ints("awaited", lanes)
        self._buckets = 1 << lanes.bit_length()
        self._bucket = buffers.ints("bucket", self._buckets)  # of lanes that wait for an op: the first, plus one
        ops = int(instances.op_first.max())
        self._over = buffers.flags("over", ops)  # 1 when it is over, 2 while a lane waits for it
        kept = ops if keeps_times else 0
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

    def next_op(self, lane: cython.int, now: cython.double) -> cython.int:
        """Return the op that a lane goes on with now, -1 if that waits for another or there is none."""
        if self._at[lane] == self._stop[lane]:
            self.lanes_over += 1
            return -1
        op: cython.int = self.base[lane] + self._lane_op[self._at[lane]]
        self.op[lane] = op
        if self._has_to_wait(lane):
            return -1
        if self.keeps_times:
            self.ready[op] = now
            self.start[op] = now
        return op

    def end_op(self, lane: cython.int, now: cython.double) -> cython.void:
        """End a lane's op: the lane and those that wait for the op go on."""
        op: cython.int = self.op[lane]
        if self.keeps_times:
            self.end[op] = now
        self._lane_end[lane] = now
        if self._over[op] == 2:
            self._wake(op)
        self._over[op] = 1
        self.ops_over += 1
        self._at[lane] += 1
        self._waits_from[lane] = -1
        self.ready_lanes[self.ready_count] = lane
        self.ready_count += 1

    def _has_to_wait(self, lane: cython.int) -> cython.bint:
        """Put a lane to those who wait if its op waits for one that is not over."""
        place: cython.int = self.op[lane] + self.shift[lane]
        at: cython.int = self._waits_from[lane]
        peer: cython.int
        other: cython.int
        bucket: cython.int
        if at < 0:
            at = self._wait_first[place]
        while at < self._wait_first[place + 1]:
            peer = self._wait_peer[at]
            other = self._wait_op[at]
            if peer < 0:
                other += self.base[lane]
            else:
                other += self._op_first[self._peer[self.instance[lane] * self._peers + peer]]
            at += 1
            if self._over[other] != 1:
                bucket = self._bucket_of(other)
                self._over[other] = 2
                self._awaited[lane] = other
                self.following[lane] = self._bucket[bucket]
                self._bucket[bucket] = lane + 1
                self._waits_from[lane] = at
                return True
        return False

    def _bucket_of(self, op: cython.longlong) -> cython.int:
        return ((op * 1640531527) >> 7) & (self._buckets - 1)  # below 2^31: else it would be a Python integer

    def _wake(self, op: cython.int) -> cython.void:
        """Let the lanes go on that wait for an op."""
        bucket: cython.int = self._bucket_of(op)
        before: cython.int = -1
        lane: cython.int = self._bucket[bucket] - 1
        after: cython.int
        while lane >= 0:
            after = self.following[lane]
            if self._awaited[lane] != op:
                before = lane
            else:
                if before < 0:
                    self._bucket[bucket] = after
                else:
                    self.following[before] = after
                self.ready_lanes[self.ready_count] = lane
                self.ready_count += 1
            lane = after - 1

    def op_at(self, lane: cython.int) -> cython.int:
        """Return the op that a lane is at, -1 if all are over."""
        return self.op[lane] if self._at[lane] < self._stop[lane] else -1

    def is_over(self, op: cython.int) -> cython.bint:
        """Return whether an op is over."""
        return self._over[op] == 1
