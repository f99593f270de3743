"""Templates of a stage's ops, in columns: one more rank is a copy of them, moved to its own numbers.

The items of a stage are gone through once (``Template``), and once more for every way in which its ranks play the
segments (``StageOps``), of which there are few; no rank is gone through op by op.  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.engine.segment_lowering import ITSELF, NOBODY, SENDER, SegmentShape
from simcluster.planning.ops import StageProgram
from simcluster.programs.slowed import within

_T = TypeVar("_T")


class Template:
    """The items of a stage's program, lane by lane, numbered from 0 on.

    ``segments`` in order of first use; ``which`` of them every item plays; of everything that items wait for, in
    order, ``waiting`` is the item and ``stage`` where it happens.
    """

    def __init__(self, program: StageProgram) -> None:
        items = list(chain.from_iterable(program.lanes.values()))
        columns: list[tuple[Any, ...]] = list(zip(*items, strict=True)) or [()] * 7
        segments, self.keys, needs, self.step, self.chunk, self.microbatch, also = columns
        self.program = program
        self.segments = tuple(dict.fromkeys(segments))
        number = {segment: number for number, segment in enumerate(self.segments)}
        self.which = _ints([number[segment] for segment in segments])
        self._ends: dict[Hashable, int] = dict(zip(self.keys, range(len(items)), strict=True))
        if any(also):
            self._ends |= {other: item for item, others in enumerate(also) for other in others}
        waits = list(chain.from_iterable(needs))
        self.waiting = np.repeat(np.arange(len(items)), _ints(list(map(len, needs))))
        self.stage = _ints(list(map(itemgetter(0), waits)))
        self._awaited: list[Hashable] = list(map(itemgetter(1), waits))
        self._ops: dict[tuple[int, ...], StageOps] = {}
        self._items_of: dict[tuple[int, int], Ints] = {}

    def ops(self, shapes: Sequence[SegmentShape]) -> StageOps:
        """The ops of ranks that play the segments in these shapes (equal ones are one object)."""
        name = tuple(map(id, shapes))
        known = self._ops.get(name)
        if known is None:
            known = self._ops[name] = StageOps(self, shapes)
        return known

    def awaited(self, stage: int, other: Template) -> Ints:
        """The items of this other stage that end what is awaited there."""
        known = self._items_of.get((stage, id(other)))
        if known is None:
            keys = taken(self._awaited, np.flatnonzero(self.stage == stage).tolist())
            known = self._items_of[stage, id(other)] = _ints([other._ends[key] for key in keys])
        return known


class Met(NamedTuple):
    """Where the items of a rank meet groups, for every item and group: the item's key, the group's place among those of
    all segments, and the ops, which are in ``ops`` from ``first`` on (whose last is the end of all)."""

    keys: list[Hashable]
    groups: list[int]
    first: list[int]
    ops: Ints


class StageOps:
    """The ops of a stage's items, for ranks that play the segments in these shapes.

    Ops count from the rank's first.  ``begins`` and ``ends`` are the first and the last op of every item, ``pieces``
    (through all segments) that of every op; ``lanes`` names lanes with their ops, ``lane`` is the place there of every
    piece.  ``waits`` has the ops that wait for others of their segment, by how many: these ops, the first of what each
    waits for, the second, ...; ``alone`` the ops with a meeting of their own; ``in_step`` the stretches: items' keys,
    segments, and ops; ``receives`` the ops that wait for a sender, with the key of its item.
    """

    def __init__(self, template: Template, shapes: Sequence[SegmentShape]) -> None:
        self._template, self._shapes = template, shapes
        which = template.which
        counts = _ints([len(shape.seconds) for shape in shapes])
        count = counts[which]
        self.ends = np.cumsum(count) - 1
        self.begins = self.ends + 1 - count
        piece = np.repeat((np.cumsum(counts) - counts)[which], count) + within(count)
        self.pieces: list[int] = piece.tolist()
        self.seconds = taken([seconds for shape in shapes for seconds in shape.seconds], self.pieces)
        self.step = _repeated(template.step, count)
        self.chunk = _repeated(template.chunk, count)
        self.microbatch = _repeated(template.microbatch, count)
        names = dict.fromkeys(lane for shape in shapes for lane in shape.all_lanes)
        place = {lane: place for place, lane in enumerate(names)}
        self.lane = [place[lane] for shape in shapes for lane in shape.lanes]
        lanes = _ints(self.lane)[piece]
        self.lanes: dict[str, list[int]] = {
            lane: np.flatnonzero(lanes == number).tolist() for lane, number in place.items()
        }
        self.alone = np.flatnonzero(_ints([whom for shape in shapes for whom in shape.meets])[piece] == ITSELF)
        self.waits = self._waits()
        steps = list(self._items(shape.in_step >= 0 for shape in shapes))
        self.in_step: tuple[list[Hashable], list[int], list[int]] = (
            [key for key, _, _ in steps],
            [segment for _, segment, _ in steps],
            [begin + shapes[segment].in_step for _, segment, begin in steps],
        )
        self.receives = [(begin, key[1]) for key, _, begin in self._items(SENDER in shape.meets for shape in shapes)]
        self.met = self._met()
        del self._template, self._shapes  # no circle: the template knows this, and the collector is off

    def _items(self, asked: Iterable[bool]) -> Iterator[tuple[Any, int, int]]:
        """Those that play a segment that is asked for: key, segment, first op."""
        which, keys = self._template.which, self._template.keys
        items = np.flatnonzero(np.array([*asked], dtype=bool)[which])
        begins = self.begins[items].tolist()
        return zip([keys[item] for item in items.tolist()], which[items].tolist(), begins, strict=True)

    def _waits(self) -> list[list[tuple[int, ...]]]:
        """The ops that wait for as many others of their segment, and these: the first of all, the second of all, ..."""
        found: dict[int, list[tuple[int, ...]]] = {}
        for _, segment, begin in self._items(bool(shape.waits) for shape in self._shapes):
            for index, others in self._shapes[segment].waits:
                found.setdefault(len(others), []).append((begin + index, *[begin + other for other in others]))
        return [list(zip(*rows, strict=True)) for rows in found.values()]

    def _met(self) -> Met:
        """Where items meet groups."""
        many = [max(NOBODY, *shape.meets) + 1 for shape in self._shapes]
        before = list(accumulate(many, initial=0))
        places = [
            [[index for index, whom in enumerate(shape.meets) if whom == group] for group in range(own)]
            for shape, own in zip(self._shapes, many, strict=True)
        ]
        keys: list[Hashable] = []
        groups: list[int] = []
        first, ops = [0], []
        for key, segment, begin in self._items(own > 0 for own in many):
            for group, indices in enumerate(places[segment], before[segment]):
                keys.append(key)
                groups.append(group)
                ops += [begin + index for index in indices]
                first.append(len(ops))
        return Met(keys, groups, first, _ints(ops))


def taken(column: Sequence[_T], places: Iterable[int]) -> list[_T]:
    """What is there at these places: the same objects."""
    return list(map(column.__getitem__, places))


def _repeated(column: Sequence[int], count: Ints) -> Sequence[int]:
    """Each so often."""
    return column if len(column) == count.sum() else np.repeat(_ints(column), count).tolist()


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
