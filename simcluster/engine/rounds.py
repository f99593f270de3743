"""Collectives simulated hop by hop: each hop in each round is a separate transfer; compiled.

``reference.collective_rounds`` defines it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import cython
import numpy as np

from simcluster.base.arrays import Int32s
from simcluster.engine.tables import CommunicationKindColumns, csr_offsets, csr_part_indices

if not cython.compiled:
    from simcluster.base.pointers import Buffers
    from simcluster.engine.links import LinkTransfers
    from simcluster.engine.rendezvous import RendezvousStates

    Collective = Hop = SimpleNamespace


class HopByHopCollectives:
    """State of running collectives that are simulated hop by hop.

    A state has the collective's number; the count of members that have not left; each member's lane, and its block plus
    one; each hop's finished rounds, times two, plus one while it moves; and each member's open hops per block.

    Hops of all collectives are numbered one after the other.  A *port* is a channel of a member in a block; ports of a
    collective are numbered by block, then by member.  A hop waits for the last round of the hops that touch its
    source's port: those of port i are ``_port_hop[_port_first[i] : _port_first[i + 1]]``.
    """

    def __init__(
        self, links: LinkTransfers, meetings: RendezvousStates, kinds: CommunicationKindColumns, hops: Sequence[Int32s]
    ) -> None:
        self.buffers = buffers = Buffers()
        self.links, self.meetings = links, meetings
        counts, in_rounds = np.array([*map(len, hops)]), np.flatnonzero(kinds.rounds >= 0)
        first_hop, own = csr_offsets(counts), np.repeat(np.arange(len(counts)), counts)
        members = kinds.parties[in_rounds]
        block, repeats, source, target, channel = np.concatenate(hops).T
        blocks, channels = np.ones((2, len(counts)), dtype=np.int64)
        np.maximum.at(blocks, own, block + 1)
        np.maximum.at(channels, own, channel + 1)
        first_port = csr_offsets(members * blocks * channels)
        ports = [first_port[own] + (block * members[own] + end) * channels[own] + channel for end in (source, target)]
        columns = {"members": members, "blocks": blocks, "channels": channels, "hops": counts}
        many = len(counts)
        columns |= {"first_hop": first_hop[:many], "first_port": first_port[:many], "free": 0 * counts}
        records = buffers.make_records("collectives", columns)
        self._collectives = cython.cast(cython.pointer(Collective), records) if cython.compiled else records
        columns = {"block": block, "repeats": repeats, "source": source, "target": target, "source_port": ports[0]}
        columns |= {"target_port": ports[1], "traffic": kinds.traffic[csr_part_indices(kinds.traffic_first, in_rounds)]}
        records = buffers.make_records("hops", columns)
        self._hops = cython.cast(cython.pointer(Hop), records) if cython.compiled else records
        port = np.concatenate(ports)
        self._port_first = buffers.view_ints("port_first", csr_offsets(np.bincount(port, minlength=first_port.max())))
        self._port_hop = buffers.view_ints("port_hop", np.argsort(port, kind="stable") % len(own))
        self._used = 0
        self._room = 1024
        self._state = buffers.ints("state", self._room)

    def allocate_state(self, collective: cython.int) -> cython.int:
        """Allocate the state of a collective that begins, with no member arrived; return the state's index."""
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

    def begin_member(self, state: cython.int, position: cython.int, lane: cython.int) -> cython.void:
        """Begin a member's part of the collective, when its lane arrives."""
        self._state[state + 2 + 2 * position] = lane
        self._move_member_to_block(state, position, 0)

    def end_hop_round(self, activity: cython.int) -> cython.void:
        """End a hop's current round when the hop's transfer is over; begin the rounds that depend on this round."""
        state: cython.int = self.links.state[activity].stage
        hop: cython.int = self.links.state[activity].hop
        at: cython.int = self._hop_state_index(state, hop)
        self.links.free(activity)
        self._state[at] += 1
        if self._state[at] == 2 * self._hops[hop].repeats:
            self._count_member_hop_done(state, self._hops[hop].source, self._hops[hop].block)
            self._count_member_hop_done(state, self._hops[hop].target, self._hops[hop].block)
        self._begin_next_rounds(state, self._hops[hop].source_port)
        self._begin_next_rounds(state, self._hops[hop].target_port)

    def _hop_state_index(self, state: cython.int, hop: cython.int) -> cython.int:
        """Return the index, in the state array, of a hop's count of rounds."""
        collective: cython.int = self._state[state]
        return state + 2 + 2 * self._collectives[collective].members + hop - self._collectives[collective].first_hop

    def _begin_next_rounds(self, state: cython.int, port: cython.int) -> cython.void:
        """Begin the next round of each hop from this port (member and channel), if the hop is ready."""
        for i in range(self._port_first[port], self._port_first[port + 1]):
            if self._hops[self._port_hop[i]].source_port == port:
                self._try_begin_round(state, self._port_hop[i])

    def _count_member_hop_done(self, state: cython.int, position: cython.int, block: cython.int) -> cython.void:
        """Count one of a member's hops in a block as finished; after the last, move the member on."""
        collective: cython.int = self._state[state]
        at: cython.int = self._hop_state_index(
            state, self._collectives[collective].first_hop + self._collectives[collective].hops
        )
        at += block * self._collectives[collective].members + position
        self._state[at] -= 1
        if self._state[at] == 0:
            self._move_member_to_block(state, position, block + 1)

    def _move_member_to_block(self, state: cython.int, position: cython.int, block: cython.int) -> cython.void:
        """Move a member to ``block``, or to the first later block in which it sends or receives."""
        collective: cython.int = self._state[state]
        members: cython.int = self._collectives[collective].members
        channels: cython.int = self._collectives[collective].channels
        port: cython.int = self._collectives[collective].first_port + (block * members + position) * channels
        while block < self._collectives[collective].blocks:
            if self._port_first[port] < self._port_first[port + channels]:
                self._state[state + 3 + 2 * position] = block + 1
                for i in range(self._port_first[port], self._port_first[port + channels]):
                    self._try_begin_round(state, self._port_hop[i])
                return
            block += 1
            port += members * channels
        self.meetings.end_lane_communication(self._state[state + 2 + 2 * position])
        self._state[state + 1] -= 1
        if self._state[state + 1] == 0:
            self._state[state + 1] = self._collectives[collective].free
            self._collectives[collective].free = state + 1

    def _try_begin_round(self, state: cython.int, hop: cython.int) -> cython.void:
        """Begin a hop's next round if both its ends are in its block and the source has ended the previous round."""
        at: cython.int = self._hop_state_index(state, hop)
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
        activity: cython.int = self.links.allocate()
        self.links.state[activity].stage = state
        self.links.state[activity].hop = hop
        self.links.begin_transfer(activity, self._hops[hop].traffic, 1.0)
