"""Lowered segments: a segment's pieces as ranks play it, whom they meet, and from where on the ranks go in step.

Ranks of one speed whose groups are alike play it in the same way, which is found once.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from simcluster.engine.communication import CommunicationLowering
from simcluster.planning.ops import Op, Segment, Work
from simcluster.programs.collapse import ChainPiece, Collapsed, Form, collapse
from simcluster.programs.program import LockstepRegion, Meeting, SpanRow

NOBODY, ITSELF, SENDER = -1, -2, -3
"""Whom a piece meets, if not a group: nobody; nobody, but it has a meeting of its own; who sends, and makes it."""

_NONE = Meeting(0, ())

Group = tuple[int, tuple[int, ...]]
"""The class of a group, and the ops of a segment (by their indices) in which its members meet."""


class SegmentShape(NamedTuple):
    """What decides the columns of a segment's pieces, but for their rows and the numbers of their meetings.

    ``waits`` has the pieces that wait for others of the segment, with those; ``meets`` whom every piece meets: NOBODY,
    ITSELF, SENDER, or a place in ``LoweredSegment.groups``; the piece ``in_step``, the last one, is a lockstep region,
    -1: there is none.  ``all_lanes``, in order of first use, are also those inside a stretch.
    """

    all_lanes: tuple[str, ...]
    lanes: tuple[str, ...]
    seconds: tuple[float, ...]
    waits: tuple[tuple[int, tuple[int, ...]], ...]
    meets: tuple[int, ...]
    in_step: int


class LoweredSegment(NamedTuple):
    """A segment as ranks play it; equal shapes are one object.

    Of every piece its rows, the communicator (-1 for none) and the op with which it meets others, and the meeting that
    these make (of no parties where there is none; in steps every one is another).  ``steady`` is the class of the
    group that goes in step, ``part`` what this rank does there.
    """

    shape: SegmentShape
    rows: tuple[tuple[SpanRow, ...], ...]
    met: tuple[tuple[int, Op], ...]
    meetings: tuple[Meeting, ...]
    groups: tuple[Group, ...]
    steady: int
    part: LockstepRegion | None


class _Works(NamedTuple):
    """What ops of a segment do with others, one of each group, and for every op its place there, -1 if it does none."""

    apart: tuple[Work, ...]
    places: tuple[int, ...]


class _InStep(NamedTuple):
    """The class of the group with which a rank goes in step in a segment, -1 for none, and the pieces from there on.

    Of every piece the lane, and the op in which the group meets, -1 for none.
    """

    group: int
    pieces: tuple[tuple[str, int], ...] = ()


_NEVER = _InStep(-1)

_Said = tuple[float | None, float, int]
"""Of an op its seconds, what it does to the computation beside it, and the number of what it moves."""


class Segments:
    """The segments of a job as its ranks play them.

    ``feels`` says whether a rank's computation may be slowed down as time goes on, ``form`` what is one event;
    ``in_steps``: collectives are played step by step.
    """

    def __init__(
        self, between: CommunicationLowering, feels: Callable[[int], bool], form: Form, *, in_steps: bool
    ) -> None:
        self._between, self._feels, self._form, self._in_steps = between, feels, form, in_steps
        self._works: dict[Segment, _Works] = {}
        self._known: dict[Hashable, LoweredSegment] = {}
        self._patterns: dict[Hashable, Collapsed] = {}
        self._in_step_of: dict[Hashable, _InStep] = {}
        self._shapes: dict[SegmentShape, SegmentShape] = {}
        self._said: dict[Hashable, _Said] = {}  # by what is done and with whom

    def played(self, rank: int, segment: Segment) -> LoweredSegment:
        """The segment as this rank plays it."""
        groups = self._groups_of(rank, segment)
        name = segment, self._between.slowness(rank), self._feels(rank), groups
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._play(rank, segment, groups)
        return known

    def _groups_of(self, rank: int, segment: Segment) -> tuple[int, ...]:
        """Return the classes of the groups with which a rank does something in the segment."""
        between, works = self._between, self._works.get(segment)
        if works is None:
            works = self._works[segment] = _works_of(segment)
        return tuple([between.group(between.communicator(work, rank)) for work in works.apart])

    def _play(self, rank: int, segment: Segment, groups: tuple[int, ...]) -> LoweredSegment:
        """The segment as it is played by ranks whose groups are of these classes."""
        between = self._between
        pattern, moved = self._pattern(rank, segment, groups, self._form)
        steady = self._steady_group(rank, segment, groups, pattern)
        goes_in_step = steady >= 0
        if pattern.works and not goes_in_step:
            pattern, moved = self._pattern(rank, segment, groups, "chains")
        found, first = pattern.pieces, pattern.first
        rows = [_moving(piece.rows, moved) for piece in found]
        met = []
        for piece in found:
            op = segment.ops[piece.first]
            met.append((between.communicator(op.work, rank) if piece.seconds is None else -1, op))
        meetings = [
            _NONE if number < 0 or self._in_steps or op.work.joins else between.meeting(number, op)
            for number, op in met
        ]
        meets, of_groups = self._groups(found, met, meetings)
        seconds = [-1.0 if piece.seconds is None else piece.seconds for piece in found]
        part = None
        if goes_in_step:
            part = _part(found[first:], meetings[first:], rows[first:], first)
            found, met, rows = found[: first + 1], met[: first + 1], rows[: first + 1]
            meetings, seconds = [*meetings[:first], _NONE], [*seconds[:first], -1.0]
            meets = (*meets[:first], NOBODY)
            of_groups = of_groups[: max(meets) + 1]  # they are numbered in the order of pieces
        shape = SegmentShape(
            tuple(dict.fromkeys([piece.lane for piece in pattern.pieces])),
            tuple([piece.lane for piece in found]),
            tuple(seconds),
            tuple([(index, piece.after) for index, piece in enumerate(found) if piece.after]),
            meets,
            first if part else -1,
        )
        return LoweredSegment(
            self._shapes.setdefault(shape, shape), tuple(rows), tuple(met), tuple(meetings), of_groups,
            steady, part,
        )  # fmt: skip

    def _steady_group(self, rank: int, segment: Segment, groups: tuple[int, ...], pattern: Collapsed) -> int:
        """Return the class of the group with which the rank goes in step, -1 for none.

        All members must meet in the same ops.  Where experts are split inside a tp group, a member whose ep group is of
        one class meets nobody in it, but another member may meet ranks of other classes in its own.
        """
        own = self._in_step(rank, segment, groups, pattern)
        if own.group < 0:
            return -1
        between = self._between
        for other in between.members(between.communicator(pattern.works[0], rank)):
            others = self._groups_of(other, segment)
            if others != groups and self._in_step(other, segment, others) != own:
                return -1
        return own.group

    def _in_step(
        self, rank: int, segment: Segment, groups: tuple[int, ...], pattern: Collapsed | None = None
    ) -> _InStep:  # fmt: skip
        """Return how the rank goes in step if all members of its group do the same."""
        name = segment, self._feels(rank), groups
        found = self._in_step_of.get(name)
        if found is None:
            pattern = pattern or self._pattern(rank, segment, groups, self._form)[0]
            steady = list(dict.fromkeys([self._between.steady_group(rank, work) for work in pattern.works]))
            found = _NEVER
            if len(steady) == 1 and steady[0] >= 0:
                pieces = [(each.lane, each.first if each.seconds is None else -1) for each in pattern.pieces]
                found = _InStep(steady[0], tuple(pieces[pattern.first :]))
            self._in_step_of[name] = found
        return found

    def _pattern(
        self, rank: int, segment: Segment, groups: tuple[int, ...], form: Form
    ) -> tuple[Collapsed, Iterator[int]]:
        """How the segment goes on a rank, and what those of its rows move that move something."""
        between, ops, feels, own = self._between, segment.ops, self._feels(rank), segment.ops[0].lane
        places = self._works[segment].places
        known, slowness = self._said, between.slowness(rank)
        said = []
        for op, place in zip(ops, places, strict=True):  # equal layers share their works, and segments keep them
            name = (op.work, op.lane, own, groups[place]) if place >= 0 else (id(op.work), slowness)
            found = known.get(name)
            if found is None:
                found = between.seconds(rank, op, own), between.pressure(rank, op), between.moved(rank, op)
                known[name] = found
            said.append(found)
        seconds, pressure, moved = zip(*said, strict=True)
        moves = [min(number, 0) for number in moved]
        pressure = pressure if feels else ()
        whole = segment, feels, seconds, pressure, tuple(moves), form
        pattern = self._patterns.get(whole)
        if pattern is None:
            pattern = self._patterns[whole] = collapse(segment, seconds, moves, pressure, form)
        return pattern, iter([number for number in moved if number >= 0])

    def _groups(
        self, found: Sequence[ChainPiece], met: Sequence[tuple[int, Op]], meetings: Sequence[Meeting]
    ) -> tuple[tuple[int, ...], tuple[Group, ...]]:
        """Whom every piece meets, and the groups among them."""
        meets = []
        groups: dict[int, list[int]] = {}
        for piece, (number, op), meeting in zip(found, met, meetings, strict=True):
            if number < 0:
                meets.append(NOBODY)
            elif op.work.joins:
                meets.append(SENDER)
            elif meeting.parties == 1:
                meets.append(ITSELF)
            else:
                group = self._between.group(number)
                groups.setdefault(group, []).append(piece.first)
                meets.append(list(groups).index(group))
        return tuple(meets), tuple([(group, tuple(ops)) for group, ops in groups.items()])


def _moving(rows: Sequence[SpanRow], moved: Iterator[int]) -> tuple[SpanRow, ...]:
    """The rows with the numbers of what they move; the same object where they move nothing."""
    if all(row.traffic < 0 for row in rows):
        return tuple(rows)
    return tuple([row if row.traffic < 0 else row._replace(traffic=next(moved)) for row in rows])


def _part(
    found: Sequence[ChainPiece], meetings: Sequence[Meeting], rows: Sequence[tuple[SpanRow, ...]], first: int
) -> LockstepRegion:  # fmt: skip
    """A stretch of these pieces, of which there are ``first`` before it."""
    return LockstepRegion(
        tuple([piece.lane for piece in found]),
        tuple([-1.0 if piece.seconds is None else piece.seconds for piece in found]),
        tuple([tuple([earlier - first for earlier in piece.after]) for piece in found]),
        tuple([meeting if meeting.parties else None for meeting in meetings]),
        tuple(rows),
    )


def _works_of(segment: Segment) -> _Works:
    """What a segment's ops do with others."""
    whom = [op.work.group(0) for op in segment.ops]  # any stage tells them apart: no send is with a receive
    apart = {each: op.work for each, op in zip(whom, segment.ops, strict=True) if each is not None}
    place = {each: number for number, each in enumerate(apart)}
    return _Works(tuple(apart.values()), tuple([-1 if each is None else place[each] for each in whom]))
