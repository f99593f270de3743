"""Collectives hop by hop: every hop of every round is a separate activity; compiled.

``reference.steps`` defines it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import cython
import numpy as np

from simcluster.base.arrays import Int32s
from simcluster.engine.tables import Kinds, offsets, part_indices

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.engine.links import LinkActivities
    from simcluster.engine.meetings import MeetingStates

    Collective = Hop = SimpleNamespace


class RoundsUnderWay:
    """Collectives under way: each has its *state* in one array of integers, at the index that ``allocate`` returns.

    A state has the collective's number; the count of members that have not left; each member's lane, and its block plus
    one; each hop's finished rounds, times two, plus one while it moves; and each member's open hops per block.

    Hops of all collectives are numbered one after the other.  A *port* is a channel of a member in a block; ports of a
    collective are numbered by block, then by member.  A hop waits for the last round of the hops that touch its
    source's port: those of port i are ``_port_hop[_port_first[i] : _port_first[i + 1]]``.
    """

    def __init__(
        self, links: LinkActivities, meetings: MeetingStates, kinds: Kinds, collectives: Sequence[Int32s]
    ) -> None:
        self.buffers = buffers = Buffers()
        self.links, self.meetings = links, meetings
        counts, in_rounds = np.array([*map(len, collectives)]), np.flatnonzero(kinds.rounds >= 0)
        first_hop, own, members = offsets(counts), np.repeat(np.arange(len(counts)), counts), kinds.parties[in_rounds]
        block, repeats, source, target, channel = np.concatenate(collectives).T
        blocks, channels = np.ones((2, len(counts)), dtype=np.int64)
        np.maximum.at(blocks, own, block + 1)
        np.maximum.at(channels, own, channel + 1)
        first_port = offsets(members * blocks * channels)
        ports = [first_port[own] + (block * members[own] + end) * channels[own] + channel for end in (source, target)]
        columns = {"members": members, "blocks": blocks, "channels": channels, "hops": counts}
        many = len(counts)
        columns |= {"first_hop": first_hop[:many], "first_port": first_port[:many], "free": 0 * counts}
        records = buffers.given_records("collectives", columns)
        self._collectives = cython.cast(cython.pointer(Collective), records) if cython.compiled else records
        columns = {"block": block, "repeats": repeats, "source": source, "target": target, "source_port": ports[0]}
        columns |= {"target_port": ports[1], "traffic": kinds.traffic[part_indices(kinds.traffic_first, in_rounds)]}
        records = buffers.given_records("hops", columns)
        self._hops = cython.cast(cython.pointer(Hop), records) if cython.compiled else records
        port = np.concatenate(ports)
        self._port_first = buffers.given_ints("port_first", offsets(np.bincount(port, minlength=first_port.max())))
        self._port_hop = buffers.given_ints("port_hop", np.argsort(port, kind="stable") % len(own))
        self._used = 0
        self._room = 1024
        self._state = buffers.ints("state", self._room)

    def allocate(self, collective: cython.int) -> cython.int:
        """Return the state of a new collective, at which no member has arrived."""
        members: cython.int = self._collectives[collective].members
        channels: cython.int = self._collectives[collective].channels
        port: cython.int = self._collectives[collective].first_port
        state: cython.int = self._collectives[collective].free - 1
        to_come: cython.int = 2 + 2 * members + self._collectives[collective].hops
        end: cython.int = to_come + members * self._collectives[collective].blocks
        if state < 0:
            state = self._used
            self._used += end
            if self._used > self._room:
                self._room = 2 * self._used
                self._state = self.buffers.ints("state", self._room)
        else:
            self._collectives[collective].free = self._state[state + 1]
        self._state[state] = collective
        self._state[state + 1] = members
        for i in range(state + 2, state + to_come):
            self._state[i] = 0
        for i in range(state + to_come, state + end):
            self._state[i] = self._port_first[port + channels] - self._port_first[port]
            port += channels
        return state

    def arrive(self, state: cython.int, position: cython.int, lane: cython.int) -> cython.void:
        """Let a member begin its part."""
        self._state[state + 2 + 2 * position] = lane
        self._enter(state, position, 0)

    def end_hop(self, activity: cython.int) -> cython.void:
        """End the round of a hop whose activity is over; begin the rounds that wait for it."""
        state: cython.int = self.links.state[activity].stage
        hop: cython.int = self.links.state[activity].hop
        at: cython.int = self._hop(state, hop)
        self.links.give_back(activity)
        self._state[at] += 1
        if self._state[at] == 2 * self._hops[hop].repeats:
            self._leave(state, self._hops[hop].source, self._hops[hop].block)
            self._leave(state, self._hops[hop].target, self._hops[hop].block)
        self._continue(state, self._hops[hop].source_port)
        self._continue(state, self._hops[hop].target_port)

    def _hop(self, state: cython.int, hop: cython.int) -> cython.int:
        """Return the index at which the state counts the rounds of a hop."""
        collective: cython.int = self._state[state]
        return state + 2 + 2 * self._collectives[collective].members + hop - self._collectives[collective].first_hop

    def _continue(self, state: cython.int, port: cython.int) -> cython.void:
        """Begin the next rounds of hops from a port, if they can begin."""
        for i in range(self._port_first[port], self._port_first[port + 1]):
            if self._hops[self._port_hop[i]].source_port == port:
                self._try(state, self._port_hop[i])

    def _leave(self, state: cython.int, position: cython.int, block: cython.int) -> cython.void:
        """Count one hop of a member in a block as over; after the last one the member continues."""
        collective: cython.int = self._state[state]
        at: cython.int = self._hop(state, self._collectives[collective].first_hop + self._collectives[collective].hops)
        at += block * self._collectives[collective].members + position
        self._state[at] -= 1
        if self._state[at] == 0:
            self._enter(state, position, block + 1)

    def _enter(self, state: cython.int, position: cython.int, block: cython.int) -> cython.void:
        """Move a member to this block, or to the first later one in which it sends or receives."""
        collective: cython.int = self._state[state]
        members: cython.int = self._collectives[collective].members
        channels: cython.int = self._collectives[collective].channels
        port: cython.int = self._collectives[collective].first_port + (block * members + position) * channels
        while block < self._collectives[collective].blocks:
            if self._port_first[port] < self._port_first[port + channels]:
                self._state[state + 3 + 2 * position] = block + 1
                for i in range(self._port_first[port], self._port_first[port + channels]):
                    self._try(state, self._port_hop[i])
                return
            block += 1
            port += members * channels
        self.meetings.leave(self._state[state + 2 + 2 * position])
        self._state[state + 1] -= 1
        if self._state[state + 1] == 0:
            self._state[state + 1] = self._collectives[collective].free
            self._collectives[collective].free = state + 1

    def _try(self, state: cython.int, hop: cython.int) -> cython.void:
        """Begin a hop's next round if both members are there and its source has finished the round before."""
        at: cython.int = self._hop(state, hop)
        over: cython.int = self._state[at]
        block: cython.int = self._hops[hop].block + 1
        port: cython.int = self._hops[hop].source_port
        if over & 1 or over == 2 * self._hops[hop].repeats:
            return
        if over == 0:
            if self._state[state + 3 + 2 * self._hops[hop].source] != block:
                return
            if self._state[state + 3 + 2 * self._hops[hop].target] != block:
                return
        else:
            for i in range(self._port_first[port], self._port_first[port + 1]):
                if self._state[at + self._port_hop[i] - hop] < over:
                    return
        self._state[at] = over + 1
        activity: cython.int = self.links.take()
        self.links.state[activity].stage = state
        self.links.state[activity].hop = hop
        self.links.begin(activity, self._hops[hop].traffic, 1.0)
