"""Lockstep regions: ranks that meet again and again go in step, so that their ops can be played as one chain.  Pure.

A stretch in step begins with a meeting of a segment that all before it lead to and all behind it wait for, or with the
computation that leads to that, and goes to the segment's end; all its meetings are of one group, of ranks of one stage,
on links that nothing else uses.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from simcluster.programs.program import InStep, LockstepRegion


class Members(NamedTuple):
    """The stretches of a rank with one group, in columns: by items' keys the rank's ops, and what it does in each."""

    keys: Sequence[Hashable]
    ops: Sequence[int]
    parts: Sequence[LockstepRegion]


class Stretches:
    """The lockstep regions of a program (stretches), member by member: those of one group and item belong together."""

    def __init__(self) -> None:
        self._members: dict[int, list[Members]] = {}
        self._known: dict[tuple[int, ...], tuple[LockstepRegion, ...]] = {}

    def add(self, group: int, member: Members) -> None:
        """One member's."""
        self._members.setdefault(group, []).append(member)

    def all(self) -> list[InStep]:
        """All of them, group by group."""
        return [each for members in self._members.values() for each in self._of_group(members)]

    def _of_group(self, members: Sequence[Members]) -> Iterator[InStep]:
        keys = members[0].keys
        if any(member.keys is not keys for member in members):  # with items of their own
            members = [_ordered(member, keys) for member in members]
        ops = zip(*[member.ops for member in members], strict=True)
        parts = zip(*[member.parts for member in members], strict=True)
        return map(InStep, ops, map(self._alike, parts))

    def _alike(self, parts: tuple[LockstepRegion, ...]) -> tuple[LockstepRegion, ...]:
        """One object for all that are of the same parts."""
        name = tuple(map(id, parts))
        known = self._known.get(name)
        if known is None:
            assert len({len(part.lanes) for part in parts}) == 1, parts
            known = self._known[name] = parts
        return known


def _ordered(member: Members, keys: Sequence[Hashable]) -> Members:
    """A member's in the order of these keys."""
    place = {key: place for place, key in enumerate(member.keys)}
    order = [place[key] for key in keys]
    assert len(order) == len(place), "members of a group go through the same stretches"
    return Members(keys, [member.ops[each] for each in order], [member.parts[each] for each in order])
