"""Collectives hop by hop: every hop of every round is an activity of its own; compiled.

``reference.steps`` defines it.
"""

from __future__ import annotations

import cython

from simcluster.engine.hop_tables import HopTables

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.engine.links import LinkActivities


class RoundsUnderWay:
    """Collectives under way: each has its *state* in one array of numbers, which ``allocate`` returns the place of.

    That is how many members are still to leave; per hop the rounds that are over (times two, and one if it moves); per
    member its lane and its block plus one; and per seat how many hops are to come.

    ``left_lane`` lists the lanes of ``left`` members whose part is over.
    """

    def __init__(self, links: LinkActivities, tables: HopTables, lanes: int) -> None:
        self.buffers = buffers = Buffers()
        self.links = links
        self.left = 0
        self.left_lane = buffers.ints("left_lane", lanes)
        self._members = buffers.given_ints("members", tables.members)
        self._blocks = buffers.given_ints("blocks", tables.blocks)
        self._hop_first = buffers.given_ints("hop_first", tables.hop_first)
        self._seat_first = buffers.given_ints("seat_first", tables.seat_first)
        self._seat_hop_first = buffers.given_ints("seat_hop_first", tables.seat_hop_first)
        self._seat_hop = buffers.given_ints("seat_hop", tables.seat_hop)
        self._block = buffers.given_ints("block", tables.block)
        self._repeats = buffers.given_ints("repeats", tables.repeats)
        self._source = buffers.given_ints("source", tables.source)
        self._target = buffers.given_ints("target", tables.target)
        self._traffic = buffers.given_ints("traffic", tables.traffic)
        self._before_first = buffers.given_ints("before_first", tables.before_first)
        self._before = buffers.given_ints("before", tables.before)
        self._after_first = buffers.given_ints("after_first", tables.after_first)
        self._after = buffers.given_ints("after", tables.after)
        self._free = buffers.ints("free", len(tables.members))  # of each collective a state that is free, plus one
        self._used = 0
        self._room = 1024
        self._state = buffers.ints("state", self._room)

    def allocate(self, collective: cython.int) -> cython.int:
        """Return the state of a new collective, at which no member has arrived."""
        members: cython.int = self._members[collective]
        hops: cython.int = self._hop_first[collective + 1] - self._hop_first[collective]
        seats: cython.int = members * self._blocks[collective]
        state: cython.int = self._free[collective] - 1
        first: cython.int = self._seat_first[collective]
        seat: cython.int
        i: cython.int
        if state < 0:
            state = self._used
            self._used += 1 + hops + 2 * members + seats
            if self._used > self._room:
                self._room = 2 * self._used
                self._state = self.buffers.ints("state", self._room)
        else:
            self._free[collective] = self._state[state]
        self._state[state] = members
        for i in range(state + 1, state + 1 + hops + 2 * members):
            self._state[i] = 0
        i = state + 1 + hops + 2 * members
        for seat in range(seats):
            self._state[i + seat] = self._seat_hop_first[first + seat + 1] - self._seat_hop_first[first + seat]
        return state

    def arrive(
        self,
        collective: cython.int,
        state: cython.int,
        meeting: cython.int,
        kind: cython.int,
        position: cython.int,
        lane: cython.int,
        now: cython.double,
    ) -> cython.void:
        """Let a member begin its part."""
        self._state[self._member(collective, state, position)] = lane
        self._enter(collective, state, meeting, kind, position, 0, now)

    def end_hop(
        self, collective: cython.int, state: cython.int, activity: cython.int, now: cython.double
    ) -> cython.void:
        """End a round of a hop, whose activity is over; those that wait for it begin."""
        meeting: cython.int = self.links.meeting[activity]
        kind: cython.int = self.links.kind[activity]
        hop: cython.int = self.links.hop[activity]
        at: cython.int = state + 1 + hop - self._hop_first[collective]
        i: cython.int
        self.links.give_back(activity)
        self._state[at] += 1
        if self._state[at] == 2 * self._repeats[hop]:
            self._leave(collective, state, meeting, kind, self._source[hop], self._block[hop], now)
            self._leave(collective, state, meeting, kind, self._target[hop], self._block[hop], now)
        for i in range(self._after_first[hop], self._after_first[hop + 1]):
            self._try(collective, state, meeting, kind, self._after[i], now)

    def _member(self, collective: cython.int, state: cython.int, position: cython.int) -> cython.int:
        """Return where in the state a member's lane and block (plus one) are."""
        return state + 1 + self._hop_first[collective + 1] - self._hop_first[collective] + 2 * position

    def _leave(
        self,
        collective: cython.int,
        state: cython.int,
        meeting: cython.int,
        kind: cython.int,
        position: cython.int,
        block: cython.int,
        now: cython.double,
    ) -> cython.void:
        """Count one hop of a member in a block as over; after the last one the member continues."""
        members: cython.int = self._members[collective]
        seat: cython.int = self._member(collective, state, members) + block * members + position
        self._state[seat] -= 1
        if self._state[seat] == 0:
            self._enter(collective, state, meeting, kind, position, block + 1, now)

    def _enter(
        self,
        collective: cython.int,
        state: cython.int,
        meeting: cython.int,
        kind: cython.int,
        position: cython.int,
        block: cython.int,
        now: cython.double,
    ) -> cython.void:
        """Move a member to this block, or to the first later one in which it sends or receives."""
        place: cython.int = self._member(collective, state, position)
        members: cython.int = self._members[collective]
        seat: cython.int
        i: cython.int
        while block < self._blocks[collective]:
            seat = self._seat_first[collective] + block * members + position
            if self._seat_hop_first[seat] < self._seat_hop_first[seat + 1]:
                self._state[place + 1] = block + 1
                for i in range(self._seat_hop_first[seat], self._seat_hop_first[seat + 1]):
                    self._try(collective, state, meeting, kind, self._seat_hop[i], now)
                return
            block += 1
        self.left_lane[self.left] = self._state[place]
        self.left += 1
        self._state[state] -= 1
        if self._state[state] == 0:
            self._state[state] = self._free[collective]
            self._free[collective] = state + 1

    def _try(
        self,
        collective: cython.int,
        state: cython.int,
        meeting: cython.int,
        kind: cython.int,
        hop: cython.int,
        now: cython.double,
    ) -> cython.void:
        """Begin a hop's next round if both members are there and its source has finished the round before."""
        first: cython.int = self._hop_first[collective]
        over: cython.int = self._state[state + 1 + hop - first]
        block: cython.int = self._block[hop] + 1
        i: cython.int
        if over & 1 or over == 2 * self._repeats[hop]:
            return
        if over == 0:
            if self._state[self._member(collective, state, self._source[hop]) + 1] != block:
                return
            if self._state[self._member(collective, state, self._target[hop]) + 1] != block:
                return
        else:
            for i in range(self._before_first[hop], self._before_first[hop + 1]):
                if self._state[state + 1 + self._before[i] - first] < over:
                    return
        self._state[state + 1 + hop - first] = over + 1
        activity: cython.int = self.links.take()
        self.links.meeting[activity] = meeting
        self.links.kind[activity] = kind
        self.links.hop[activity] = hop
        self.links.begin(activity, self._traffic[hop], 1.0, now)
