"""Places of meetings: all members of a group number what they do together in the same way.

Programs that share a group of a kind of communicator, directly or through others, number their ops of that kind
together.  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.engine.op_columns import NO_WORK, OpColumns, SegmentOps


class User(NamedTuple):
    """A program that uses a kind of communicator: its number, the slot there, and the groups of its ranks."""

    program: int
    slot: int
    groups: Ints


class Numbered(NamedTuple):
    """What programs that share groups do in these: how many ``places`` for meetings there are, and which
    ``communications``; per user its ``ops`` of the kind, their ``place`` and their ``work``."""

    users: Sequence[User]
    places: int
    communications: Ints
    ops: Sequence[Ints]
    place: Sequence[Ints]
    work: Sequence[Ints]


def number_meetings(
    users: Sequence[User], programs: Sequence[OpColumns], segments: SegmentOps
) -> Iterator[Numbered]:  # fmt: skip
    """Yield the users of a kind of communicator, those that share groups together, with their meetings numbered."""
    for together in _sharing(users):
        ops = [np.flatnonzero(programs[user.program].slots[1] == user.slot) for user in together]
        works = [
            segments.communication[programs[user.program].place[own]]
            for user, own in zip(together, ops, strict=True)
        ]  # fmt: skip
        communications = np.unique(np.concatenate(works))
        communications = communications[communications != NO_WORK]
        work = [np.where(own == NO_WORK, -1, np.searchsorted(communications, own)) for own in works]
        if len(together) == 1:
            places, place = len(ops[0]), [np.arange(len(ops[0]))]
        else:
            places, place = _common([programs[user.program] for user in together], ops)
        yield Numbered(together, places, communications, ops, place, work)


def _common(programs: Sequence[OpColumns], ops: Sequence[Ints]) -> tuple[int, list[Ints]]:
    """Return how many different meetings ops of programs take part in, and which these are, by their keys."""
    known: dict[Hashable, int] = {}
    found: list[Ints] = []
    before: tuple[list[Hashable], Ints] | None = None
    for program, own in zip(programs, ops, strict=True):
        keys, index = program.meeting_keys(own)
        if before is not None and keys == before[0] and np.array_equal(index, before[1]):
            found.append(found[-1])
            continue
        before = keys, index
        numbers = [known.setdefault(name, len(known)) for name in zip(keys, index.tolist(), strict=True)]
        found.append(np.array(numbers, dtype=np.int64))
    return len(known), found


def _sharing(users: Sequence[User]) -> Iterator[list[User]]:
    """Yield the users that share groups, directly or through others."""
    groups = np.concatenate([user.groups for user in users])
    which = np.repeat(np.arange(len(users)), [len(user.groups) for user in users])
    label = np.arange(len(users))
    _, group = np.unique(groups, return_inverse=True)
    lowest = np.empty(int(group.max(initial=-1)) + 1, dtype=np.int64)
    while True:  # the lowest label of a group's users, then of a user's groups, until nothing changes
        lowest[:] = len(users)
        np.minimum.at(lowest, group, label[which])
        lower = label.copy()
        np.minimum.at(lower, which, lowest[group])
        if (lower == label).all():
            break
        label = lower
    for each in np.unique(label).tolist():
        yield [users[number] for number in np.flatnonzero(label == each).tolist()]
