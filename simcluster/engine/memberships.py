"""Linked lists of members per container: transfers per link, communications per rank; compiled."""

from __future__ import annotations

from types import SimpleNamespace

import cython
import numpy as np

if not cython.compiled:
    from simcluster.base.pointers import Buffers

    Membership = SimpleNamespace

MEMBERSHIP = [
    ("weight", np.float64),
    *((name, np.int32) for name in ("member", "following", "container", "previous", "sibling", "unused")),
]
"""Fields of a Membership (see the .pxd file)."""


class MembershipLists:
    """Doubly linked lists of members, one list per container (a link or a rank); -1 ends a list.

    An entry has its ``member`` and ``weight``; ``count`` is per container.
    """

    def __init__(self, containers: cython.int) -> None:
        self.buffers = Buffers()
        self.head = self.buffers.ints("head", containers)
        self.count = self.buffers.ints("count", containers)
        for container in range(containers):
            self.head[container] = -1
        self._room = self._members = 0
        self._free = -1
        self._grow_entries(64)
        self._allocate_members(64)

    def add(self, container: cython.int, member: cython.int, weight: cython.double) -> cython.void:
        """Add a member to a container, with a weight."""
        if self._free < 0:
            self._grow_entries(2 * self._room)
        if member >= self._members:
            self._allocate_members(2 * member)
        entry: cython.int = self._free
        head: cython.int = self.head[container]
        self._free = self.entry[entry].following
        self.entry[entry].member = member
        self.entry[entry].weight = weight
        self.entry[entry].following = head
        self.entry[entry].container = container
        self.entry[entry].previous = -1
        self.entry[entry].sibling = self.first[member]
        self.first[member] = entry + 1
        self.head[container] = entry
        self.count[container] += 1
        if head >= 0:
            self.entry[head].previous = entry

    def remove_all(self, member: cython.int) -> cython.void:
        """Remove a member from all its containers."""
        if member >= self._members:
            return
        entry: cython.int = self.first[member] - 1
        self.first[member] = 0
        while entry >= 0:
            before = self.entry[entry].previous
            after = self.entry[entry].following
            if before >= 0:
                self.entry[before].following = after
            else:
                self.head[self.entry[entry].container] = after
            if after >= 0:
                self.entry[after].previous = before
            self.count[self.entry[entry].container] -= 1
            self.entry[entry].following = self._free
            self._free = entry
            entry = self.entry[entry].sibling - 1

    def _grow_entries(self, room: cython.int) -> cython.void:
        records = self.buffers.records("entry", MEMBERSHIP, room)
        self.entry = cython.cast(cython.pointer(Membership), records) if cython.compiled else records
        for entry in range(self._room, room):
            self.entry[entry].following = self._free
            self._free = entry
        self._room = room

    def _allocate_members(self, members: cython.int) -> cython.void:
        self._members = members
        self.first = self.buffers.ints("first", members)  # of each its first entry plus one
