"""A segment as ranks play it: its pieces, whom they meet, and from where on the ranks go in step.

Ranks of one speed whose groups are alike play it in the same way, which is found once.  Pure; imports ops, program,
chains, between and in_step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from simcluster.lowering.between import Between
from simcluster.lowering.chains import Piece, pieces, singly
from simcluster.lowering.in_step import NOWHERE, in_step
from simcluster.lowering.program import Meeting, SpanRow
from simcluster.planning.ops import Collective, Compute, Copy, Host, Op, Receive, Segment, Timed, Transfer

NOBODY, ITSELF, SENDER = -1, -2, -3
"""Whom a piece meets, if not a group: nobody; nobody, but it has a meeting of its own; who sends, and makes it."""

_NONE = Meeting(0, ())

Group = tuple[int, tuple[int, ...]]
"""The class of a group, and the ops of a segment (by their indices) in which its members meet."""


class Shape(NamedTuple):
    """What decides the columns of a segment's pieces, but for their rows and the numbers of their meetings.

    ``waits`` has the pieces that wait for others of the segment, with those; ``meets`` whom every piece meets: NOBODY,
    ITSELF, SENDER, or a place in ``Played.groups``; from piece ``in_step`` on ranks go in step, -1: never.
    """

    lanes: tuple[str, ...]
    seconds: tuple[float, ...]
    waits: tuple[tuple[int, tuple[int, ...]], ...]
    meets: tuple[int, ...]
    in_step: int


class Played(NamedTuple):
    """A segment as ranks play it; equal shapes are one object.

    Of every piece its rows, the communicator (-1 for none) and the op with which it meets others, and the meeting that
    these make (of no parties where there is none; in steps every one is another).  ``steady`` is the class of the
    group that goes in step.
    """

    shape: Shape
    rows: tuple[tuple[SpanRow, ...], ...]
    met: tuple[tuple[int, Op], ...]
    meetings: tuple[Meeting, ...]
    groups: tuple[Group, ...]
    steady: int


class Segments:
    """The segments of a job as its ranks play them.

    ``feels`` says whether a rank's computation may be slowed down as time goes on, ``dragging`` whether computation
    slows down communication; ``collapsed``: in few pieces; ``in_steps``: collectives are played step by step.
    """

    def __init__(
        self, between: Between, feels: Callable[[int], bool], *, dragging: bool, collapsed: bool, in_steps: bool
    ) -> None:
        self._between, self._feels, self._in_steps = between, feels, in_steps
        self._pieces = pieces if collapsed else singly
        self._goes_in_step = collapsed and not in_steps and not dragging
        self._works: dict[Segment, list[Collective | Timed | Transfer | Receive | Copy]] = {}
        self._known: dict[Hashable, Played] = {}
        self._shapes: dict[Shape, Shape] = {}

    def played(self, rank: int, segment: Segment) -> Played:
        """The segment as this rank plays it."""
        works = self._works.get(segment)
        if works is None:
            apart = [op.work for op in segment.ops if not isinstance(op.work, Compute | Host)]
            works = self._works[segment] = list({_whom(work): work for work in apart}.values())
        between = self._between
        groups = tuple([between.group(between.communicator(work, rank)) for work in works])
        name = segment, between.slowness(rank), self._feels(rank), groups
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._play(rank, segment)
        return known

    def _play(self, rank: int, segment: Segment) -> Played:
        between, own = self._between, segment.ops[0].lane
        found = self._pieces(
            segment,
            lambda op: between.seconds(rank, op, own),
            lambda op: between.moved(rank, op),
            (lambda op: between.pressure(rank, op)) if self._feels(rank) else None,
        )
        met = [self._met(rank, piece, segment.ops[piece.first]) for piece in found]
        meetings = [
            _NONE if number < 0 or self._in_steps or isinstance(op.work, Receive) else between.meeting(number, op)
            for number, op in met
        ]
        meets, groups = self._groups(found, met, meetings)
        first, steady = NOWHERE
        if self._goes_in_step:
            first, steady = in_step(segment, found, lambda work: between.steady_group(rank, work))
        shape = Shape(
            tuple([piece.lane for piece in found]),
            tuple([-1.0 if piece.seconds is None else piece.seconds for piece in found]),
            tuple([(index, piece.after) for index, piece in enumerate(found) if piece.after]),
            meets,
            first,
        )
        rows = tuple([piece.rows for piece in found])
        return Played(self._shapes.setdefault(shape, shape), rows, tuple(met), tuple(meetings), groups, steady)

    def _met(self, rank: int, piece: Piece, op: Op) -> tuple[int, Op]:
        """On which communicator a piece meets others, -1 for none, and with which op."""
        if piece.seconds is not None:
            return -1, op
        assert not isinstance(op.work, Compute | Host)
        return self._between.communicator(op.work, rank), op

    def _groups(
        self, found: Sequence[Piece], met: Sequence[tuple[int, Op]], meetings: Sequence[Meeting]
    ) -> tuple[tuple[int, ...], tuple[Group, ...]]:
        """Whom every piece meets, and the groups among them."""
        meets = []
        groups: dict[int, list[int]] = {}
        for piece, (number, op), meeting in zip(found, met, meetings, strict=True):
            if number < 0:
                meets.append(NOBODY)
            elif isinstance(op.work, Receive):
                meets.append(SENDER)
            elif meeting.parties == 1:
                meets.append(ITSELF)
            else:
                group = self._between.group(number)
                groups.setdefault(group, []).append(piece.first)
                meets.append(list(groups).index(group))
        return tuple(meets), tuple([(group, tuple(ops)) for group, ops in groups.items()])


def _whom(work: Collective | Timed | Transfer | Receive | Copy) -> Hashable:
    """What decides on which communicator of a rank something is done."""
    return work.axis if isinstance(work, Collective | Timed) else (type(work), work[0])
