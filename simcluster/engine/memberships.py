"""Which members are in which containers: activities on links, communications on ranks; compiled."""

from __future__ import annotations

import cython

if not cython.compiled:
    from simcluster.base.pointers import Buffers


class Memberships:
    """Doubly linked lists of entries: those of a container begin at ``head`` and continue with ``following`` until -1.

    An entry has its ``member`` and ``weight``; ``count`` is per container.
    """

    def __init__(self, containers: int) -> None:
        self.buffers = Buffers()
        self.head = self.buffers.ints("head", containers)
        self.count = self.buffers.ints("count", containers)
        container: cython.int
        for container in range(containers):
            self.head[container] = -1
        self._room = 0
        self._free = -1
        self._make_room(64)

    def make_members(self, members: cython.int) -> cython.void:
        """Make room for that many members."""
        self.first = self.buffers.ints("first", members)  # of each its first entry plus one

    def add(self, container: cython.int, member: cython.int, weight: cython.double) -> cython.void:
        """Put a member into a container."""
        if self._free < 0:
            self._make_room(2 * self._room)
        entry: cython.int = self._free
        head: cython.int = self.head[container]
        self._free = self.following[entry]
        self.member[entry] = member
        self.weight[entry] = weight
        self.following[entry] = head
        self._container[entry] = container
        self._previous[entry] = -1
        self._sibling[entry] = self.first[member]
        self.first[member] = entry + 1
        self.head[container] = entry
        self.count[container] += 1
        if head >= 0:
            self._previous[head] = entry

    def remove_all(self, member: cython.int) -> cython.void:
        """Take a member out of all its containers."""
        entry: cython.int = self.first[member] - 1
        before: cython.int
        after: cython.int
        self.first[member] = 0
        while entry >= 0:
            before = self._previous[entry]
            after = self.following[entry]
            if before >= 0:
                self.following[before] = after
            else:
                self.head[self._container[entry]] = after
            if after >= 0:
                self._previous[after] = before
            self.count[self._container[entry]] -= 1
            self.following[entry] = self._free
            self._free = entry
            entry = self._sibling[entry] - 1

    def _make_room(self, room: cython.int) -> cython.void:
        entry: cython.int
        self.member = self.buffers.ints("member", room)
        self.weight = self.buffers.doubles("weight", room)
        self.following = self.buffers.ints("following", room)
        self._container = self.buffers.ints("container", room)
        self._previous = self.buffers.ints("previous", room)
        self._sibling = self.buffers.ints("sibling", room)
        for entry in range(self._room, room):
            self.following[entry] = self._free
            self._free = entry
        self._room = room
