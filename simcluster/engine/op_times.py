"""Reader of op times: ready, start and end, derived from op ends and last arrivals; compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import cython
import numpy as np

from simcluster.base.arrays import Floats, Int32s
from simcluster.engine.tables import EngineTables, TemplateColumns

if not cython.compiled:
    from simcluster.base.pointers import Buffers


class RecordedTimes(NamedTuple):
    """Times (s) that the engine records: the end of every op, and the last arrival at every rendezvous.

    ``end`` of every op, and per rendezvous the last arrival ``since`` (-1 if members begin separately), the ``last``
    op to arrive, and the ``number`` of that op's rank.
    """

    end: Floats
    since: Floats
    last: Int32s
    number: Int32s


class OpTimesReader:
    """Reader of the times of a simulated rank's ops, into arrays of ``room`` ops."""

    def __init__(self, tables: EngineTables, kept: RecordedTimes, room: int) -> None:
        templates, instances, groups = tables.templates, tables.instances, tables.groups
        self.buffers = buffers = Buffers()
        self._end = buffers.view_doubles("end", kept.end)
        self._since = buffers.view_doubles("since", kept.since)
        self._last = buffers.view_ints("last", kept.last)
        self._number = buffers.view_ints("number", kept.number)
        self._rank = buffers.view_ints("rank", instances.number)
        self._slot = buffers.view_ints("slot", templates.slot)
        self._place = buffers.view_ints("place", templates.place)
        self._before = buffers.view_ints("before", previous_op_on_lane(templates))
        self._wait_first = buffers.view_ints("wait_first", templates.wait_first)
        self._wait_op = buffers.view_ints("wait_op", templates.wait_op)
        self._wait_peer = buffers.view_ints("wait_peer", templates.wait_peer)
        self._peer = buffers.view_ints("peer", instances.peer)
        self._peers = instances.peer.shape[1]
        self._meeting_first = buffers.view_ints("meeting_first", np.append(groups.place_first, 0)[instances.group])
        self._slots = instances.group.shape[1]
        self._op_first = buffers.view_ints("op_first", instances.op_first)
        self._template_first = buffers.view_ints("template_first", templates.op_first[instances.template])
        self._ready = buffers.doubles("op_ready", room)
        self._start = buffers.doubles("op_start", room)
        self._over = buffers.doubles("op_end", room)
        self._op = buffers.ints("op_last", room)
        self._whose = buffers.ints("op_whose", room)

    def read_instance(self, instance: cython.int, at: cython.int) -> cython.int:
        """Write the times of a simulated rank's ops into the arrays from index ``at``; return the next index."""
        base: cython.int = self._op_first[instance]
        count: cython.int = self._op_first[instance + 1] - base
        for number in range(count):
            meeting = self._rendezvous_of(instance, number)
            self._ready[at + number] = self._ready_time(instance, number)
            self._start[at + number] = self._ready[at + number]
            self._over[at + number] = self._end[base + number]
            self._op[at + number] = base + number
            self._whose[at + number] = self._rank[instance]
            if meeting >= 0:
                if self._since[meeting] >= 0.0:
                    self._start[at + number] = self._since[meeting]
                self._op[at + number] = self._last[meeting]
                self._whose[at + number] = self._number[meeting]
        return at + count

    def read_received_messages(self, instance: cython.int, at: cython.int) -> cython.int:
        """Write the times of messages that a rank receives from index ``at``, as ``read_instance`` does for ops."""
        first: cython.int = self._template_first[instance]
        end: cython.int = first + self._op_first[instance + 1] - self._op_first[instance]
        for wait in range(self._wait_first[first], self._wait_first[end]):
            if self._wait_peer[wait] >= 0:
                whose = self._peer[instance * self._peers + self._wait_peer[wait]]
                self._start[at] = self._start_time(whose, self._wait_op[wait])
                self._ready[at] = self._start[at]
                self._over[at] = self._end[self._op_first[whose] + self._wait_op[wait]]
                self._whose[at] = self._rank[whose]
                at += 1
        return at

    def time_columns(self, many: cython.int) -> tuple[Any, ...]:
        """Return the first ``many`` ready, start and end times, last-arriving ops, and their ranks."""
        return tuple([self.buffers.contents(f"op_{key}")[:many] for key in ("ready", "start", "end", "last", "whose")])

    def _rendezvous_of(self, instance: cython.int, number: cython.int) -> cython.int:
        """Return the number of an op's rendezvous; -1 for none."""
        place: cython.int = self._template_first[instance] + number
        if self._slot[place] < 0:
            return -1
        return self._meeting_first[instance * self._slots + self._slot[place]] + self._place[place]

    def _start_time(self, instance: cython.int, number: cython.int) -> cython.double:
        meeting: cython.int = self._rendezvous_of(instance, number)
        if meeting >= 0 and self._since[meeting] >= 0.0:
            return self._since[meeting]
        return self._ready_time(instance, number)

    def _ready_time(self, instance: cython.int, number: cython.int) -> cython.double:
        """Return when an op is ready: when the previous op on its lane and all awaited ops have ended."""
        base: cython.int = self._op_first[instance]
        place: cython.int = self._template_first[instance] + number
        time: cython.double = 0.0
        if self._before[place] >= 0:
            time = self._end[base + self._before[place]]
        for wait in range(self._wait_first[place], self._wait_first[place + 1]):
            whose = instance
            if self._wait_peer[wait] >= 0:
                whose = self._peer[instance * self._peers + self._wait_peer[wait]]
            end = self._end[self._op_first[whose] + self._wait_op[wait]]
            if end > time:
                time = end
        return time


def previous_op_on_lane(templates: TemplateColumns) -> Int32s:
    """Return for each op of the templates the previous op on its lane; -1 for the first."""
    lane = np.repeat(np.arange(len(templates.lane_op_first) - 1), np.diff(templates.lane_op_first))
    template = np.repeat(np.arange(len(templates.op_first) - 1), np.diff(templates.lane_first))
    before = np.full(int(templates.op_first.max()), -1, dtype=np.int32)
    follows = np.flatnonzero(np.diff(lane) == 0) + 1
    before[templates.op_first[template[lane[follows]]] + templates.lane_op[follows]] = templates.lane_op[follows - 1]
    return before
