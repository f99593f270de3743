"""Accelerator: the ops of a segment collapse to few events, proved for every op that answers what ``Work`` asks.

Consecutive ops that wait for nothing outside are one event, a chain with offsets, to expand it afterwards: exact,
because durations lie on the clock's grid, where addition is associative.  So are ops on several lanes from one that
waits for all before it to one that all behind it wait for.  Ranks that meet again and again go in lockstep from their
first meeting on, which is one chain of all of them: proved for groups of one stage on links of their own, in flow,
without drag (``form_of``).  Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple

from simcluster.base.clock import tick
from simcluster.planning.ops import MAIN, Segment, Work
from simcluster.programs.blocks import Before, before_by_lanes, blocks_of
from simcluster.programs.chain import Chain
from simcluster.programs.program import ChainPace, SpanRow

Form = Literal["ops", "chains", "lockstep", "lockstep with its lead"]
"""What is one event: an op; a chain of them; of ranks that go in step all from where they first meet; or that with the
computation that leads there."""


@dataclass(frozen=True, slots=True)
class ChainPiece:
    """One event of a segment: a chain of ops with its duration, or one op that meets others (seconds None).

    ``after`` lists earlier pieces of the segment that it waits for besides the one before it on its lane.
    ``first`` is the index in the segment of its first op.
    """

    lane: str
    first: int
    seconds: float | None
    rows: tuple[SpanRow, ...]
    after: tuple[int, ...] = ()


class Collapsed(NamedTuple):
    """A segment in pieces.

    From piece ``first`` on ranks go in step if they do all ``works`` in one group; -1: they never do.
    """

    pieces: tuple[ChainPiece, ...]
    first: int = -1
    works: tuple[Work, ...] = ()


def form_of(*, collapsed: bool, in_steps: bool, drags: bool, varying: bool) -> Form:
    """What is one event where collectives are played in flow or ``in_steps``, computation ``drags`` communication or
    not, and ranks' own speeds are ``varying`` or not; a rank whose speed changes is not waited for with what leads to a
    meeting."""
    if not collapsed:
        return "ops"
    if in_steps or drags:
        return "chains"
    return "lockstep" if varying else "lockstep with its lead"


def collapse(
    segment: Segment, seconds: Sequence[float | None], moved: Sequence[int], pressure: Sequence[float], form: Form
) -> Collapsed:
    """The events that play a segment exactly, the fewest of this form.

    Of every op ``seconds`` are known where it depends on nothing but its lane, None where others have a say in it;
    ``moved`` is the number of what it moves over links, -1 for nothing.  ``pressure`` is what it does to the
    computation beside it, in the segment and outside: what does something to it is then either in one event with all
    else or meets others.  Empty: computation feels nothing.
    """
    rows = _Rows(segment, moved, pressure)
    if form != "ops" and None not in seconds:
        return Collapsed((_closed(rows, seconds, range(len(seconds))),))
    apart = [None if own else each for own, each in zip(pressure, seconds, strict=True)] if pressure else seconds
    if form == "ops":
        return Collapsed(_split(rows, apart, singly=True))
    if form != "chains":
        pieces = _split(rows, apart)
        first, works = _in_step(segment, pieces, with_lead=form == "lockstep with its lead")
        if first >= 0:
            return Collapsed(pieces, first, works)
    closed = {own.start: _closed(rows, seconds, own) for own in _closed_stretches(segment, seconds)}
    return Collapsed(_split(rows, apart, closed))


class _Rows(NamedTuple):
    """The rows of a segment's ops in the making."""

    segment: Segment
    moved: Sequence[int]
    pressure: Sequence[float]

    def row(self, index: int, start: float, end: float, pace: ChainPace | None = None) -> SpanRow:
        """An op's; in a chain of several lanes with a ``pace`` of its own."""
        op, work = self.segment.ops[index], self.segment.ops[index].work
        lane, after = (pace.lane, pace.after) if pace else ("", ())
        if not self.pressure:
            pace = None
        elif pace is None:
            pace = ChainPace(end - start, work.sensitivity)
        return SpanRow(
            op.stream, op.kind, op.name, op.layer, work.axis, work.size * work.load, start, end, self.moved[index],
            op.memory, pace, lane, after,
        )  # fmt: skip


def _closed(rows: _Rows, seconds: Sequence[float | None], own: range) -> ChainPiece:
    """These ops in one event, which all that is before leads to and all that is behind waits for: the longest path
    through them, lane by lane, in which their own communication slows down the computation beside it."""
    ops, first = rows.segment.ops, own.start
    paces = []
    for index in own:
        op, pressure = ops[index], rows.pressure[index] if rows.pressure else 0.0
        after = tuple([earlier - first for earlier in op.after if earlier >= first])
        paces.append(ChainPace(seconds[index] or 0.0, op.work.sensitivity, pressure, op.lane, after))
    start, end, last = _alone(tuple(paces), tick())
    times = zip(own, start, end, paces, strict=True)
    return ChainPiece(ops[first].lane, first, last, tuple([rows.row(*each) for each in times]))


def _closed_stretches(segment: Segment, seconds: Sequence[float | None]) -> Iterator[range]:
    """The longest stretches of ops on several lanes that depend on nothing but these, from an op that waits for all
    before it, and that all behind it wait for, to another such op."""
    ops = segment.ops
    begins = [each for each in blocks_of(before_by_lanes(ops))[:-1] if ops[each].lane == MAIN]
    first = last = -1
    for begin in [*begins, -1]:
        if first >= 0 and begin >= 0 and None not in seconds[last : begin + 1]:
            last = begin
            continue
        if any(op.lane != MAIN for op in ops[first : last + 1]):
            yield range(first, last + 1)
        first = last = begin


@lru_cache(maxsize=64)
def _alone(paces: tuple[ChainPace, ...], _: float) -> tuple[list[float], list[float], float]:
    """Starts and ends of a chain's rows with nothing beside it on the grid of this tick, and its end.

    Stages in the middle of a pipeline have the same chains, of other layers, and so has the next play of a job.
    """
    alone = Chain(paces).under(0.0)
    return alone.start, alone.end, alone.last


def _split(
    rows: _Rows, seconds: Sequence[float | None], closed: Mapping[int, ChainPiece] = {}, *, singly: bool = False
) -> tuple[ChainPiece, ...]:
    """A piece ends at an op that meets others, that another lane's op waits for, or before one that waits itself; or,
    ``singly``, at every op.  Stretches that are ``closed`` are pieces, by their first ops."""
    ops = rows.segment.ops
    awaited = {index for op in ops for index in op.after}
    found: list[ChainPiece] = []
    piece_of: list[int] = []
    run: list[tuple[int, float]] = []

    def close() -> None:
        if not run:
            return
        first, at, own = run[0][0], 0.0, []
        for index, length in run:
            own.append(rows.row(index, at, at + length))
            at += length
        after = tuple([piece_of[index] for index in ops[first].after])
        found.append(ChainPiece(ops[first].lane, first, at, tuple(own), after))
        run.clear()

    for index, (op, length) in enumerate(zip(ops, seconds, strict=True)):
        if index < len(piece_of):
            continue  # in a closed stretch
        if index in closed:
            close()
            after = tuple([piece_of[earlier] for earlier in op.after])
            piece_of += [len(found)] * len(closed[index].rows)
            found.append(replace(closed[index], after=after))
            continue
        if run and (singly or length is None or op.after or op.lane != ops[run[0][0]].lane):
            close()
        piece_of.append(len(found))
        if length is None:
            after = tuple([piece_of[earlier] for earlier in op.after])
            own = () if op.work.joins else (rows.row(index, 0.0, 0.0),)
            found.append(ChainPiece(op.lane, index, None, own, after))
            continue
        run.append((index, length))
        if index in awaited:
            close()
    close()
    return tuple(found)


def _in_step(segment: Segment, pieces: Sequence[ChainPiece], *, with_lead: bool) -> tuple[int, tuple[Work, ...]]:
    """From which piece of a segment on its ranks go in step if they do all of these works in one group; -1: never.

    That piece is on the main lane, which must not go on beside it.
    """
    meets = [index for index, piece in enumerate(pieces) if piece.seconds is None]
    if len(meets) < 2 or segment.ops[0].lane != MAIN:
        return -1, ()
    begins = blocks_of(_before(pieces))
    for met in meets[:-1]:
        first = 0 if with_lead and _leads(pieces[:met]) else met
        if met in begins and pieces[first].lane == MAIN:
            works = [segment.ops[pieces[index].first].work for index in meets if index >= met]
            return (first, tuple(dict.fromkeys(works))) if all(work.axis for work in works) else (-1, ())
    return -1, ()


def _before(pieces: Sequence[ChainPiece]) -> Before:
    """What pieces wait for."""
    before: Before = []
    lanes: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        own = (lanes[piece.lane], *piece.after) if piece.lane in lanes else piece.after
        before.append(tuple(dict.fromkeys(own)))
        lanes[piece.lane] = index
    return before


def _leads(pieces: Sequence[ChainPiece]) -> bool:
    """Is what leads to where ranks first meet nothing but computation, on one lane?  Then it is played with that.

    That saves every third op of Llama 3 405B on 512 ranks, each played by itself, and a quarter of its time.
    """
    return all(piece.seconds is not None and piece.lane == MAIN for piece in pieces)
