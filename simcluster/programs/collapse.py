"""Accelerator: consecutive ops that wait for nothing outside collapse to one event, proved for every op.

Such a chain has offsets, to expand it afterwards.

Exact, because durations lie on the clock's grid, where addition is associative.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simcluster.planning.ops import Op, Segment
from simcluster.programs.chain import Chain
from simcluster.programs.program import ChainPace, SpanRow

Duration = Callable[[Op], float | None]
"""Seconds of an op that depends on nothing but its lane; None for one that others have a say in."""
Numbered = Callable[[Op], int]
"""The number of what an op moves over links; -1 for nothing."""
Pressure = Callable[[Op], float]
"""What an op does to the computation beside it; 0 for what does nothing."""


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


def pieces(
    segment: Segment, duration: Duration, traffic: Numbered = lambda op: -1, pressure: Pressure | None = None
) -> tuple[ChainPiece, ...]:
    """The fewest events that play a segment exactly.

    With a ``pressure`` computation feels the communication beside it, in the segment and outside: what does something
    to it is then either in one event with all else or meets others.
    """
    known = [duration(op) for op in segment.ops]
    if all(seconds is not None for seconds in known):
        seconds = [seconds or 0.0 for seconds in known]
        return (_whole(segment, seconds, traffic) if pressure is None else _paced(segment, seconds, traffic, pressure),)
    if pressure is not None:
        known = [None if pressure(op) else seconds for op, seconds in zip(segment.ops, known, strict=True)]
    return _split(segment, known, traffic, paced=pressure is not None)


def singly(
    segment: Segment, duration: Duration, traffic: Numbered = lambda op: -1, pressure: Pressure | None = None
) -> tuple[ChainPiece, ...]:
    """Every op an event of its own: the plain run that ``pieces`` must equal."""
    found = []
    for index, op in enumerate(segment.ops):
        seconds = None if pressure is not None and pressure(op) else duration(op)
        pace = None if pressure is None else _pace(op, seconds or 0.0)
        row = _row(op, 0.0, seconds or 0.0, traffic, pace=pace)
        rows = () if op.work.joins else (row,)
        found.append(ChainPiece(op.lane, index, seconds, rows, op.after))
    return tuple(found)


def _pace(op: Op, seconds: float) -> ChainPace:
    """How a row goes on that has no other lane beside it in its chain."""
    return ChainPace(seconds, op.work.sensitivity)


def _paced(segment: Segment, seconds: Sequence[float], traffic: Numbered, pressure: Pressure) -> ChainPiece:
    """Everything in one event, with the segment's own communication slowing down the computation beside it."""
    paces = [
        ChainPace(length, op.work.sensitivity, pressure(op), op.lane, op.after)
        for op, length in zip(segment.ops, seconds, strict=True)
    ]
    alone = Chain(paces).under(0.0)
    rows = [
        _row(op, start, end, traffic, op.lane, op.after, pace)
        for op, start, end, pace in zip(segment.ops, alone.start, alone.end, paces, strict=True)
    ]
    return ChainPiece(segment.ops[0].lane, 0, alone.last, tuple(rows))


def _whole(segment: Segment, seconds: Sequence[float], traffic: Numbered) -> ChainPiece:
    """Everything in one event: the longest path through the segment, lane by lane."""
    free: dict[str, float] = {}
    ends: list[float] = []
    rows = []
    for op, length in zip(segment.ops, seconds, strict=True):
        start = max([free.get(op.lane, 0.0), *(ends[index] for index in op.after)])
        ends.append(start + length)
        free[op.lane] = start + length
        rows.append(_row(op, start, start + length, traffic, op.lane, op.after))
    return ChainPiece(segment.ops[0].lane, 0, ends[-1], tuple(rows))


def _split(
    segment: Segment, known: Sequence[float | None], traffic: Numbered, *, paced: bool
) -> tuple[ChainPiece, ...]:  # fmt: skip
    """A piece ends at an op that meets others, that another lane's op waits for, or before one that waits itself."""
    awaited = {index for op in segment.ops for index in op.after}
    found: list[ChainPiece] = []
    piece_of: list[int] = []
    run: list[tuple[int, Op, float]] = []

    def close() -> None:
        if not run:
            return
        first, opening, _ = run[0]
        rows, at = [], 0.0
        for _, op, length in run:
            rows.append(_row(op, at, at + length, traffic, pace=_pace(op, length) if paced else None))
            at += length
        found.append(
            ChainPiece(opening.lane, first, at, tuple(rows), tuple(piece_of[index] for index in opening.after))
        )
        run.clear()

    for index, (op, seconds) in enumerate(zip(segment.ops, known, strict=True)):
        if run and (seconds is None or op.after or op.lane != run[0][1].lane):
            close()
        piece_of.append(len(found))
        if seconds is None:
            after = tuple(piece_of[earlier] for earlier in op.after)
            pace = _pace(op, 0.0) if paced else None
            rows = () if op.work.joins else (_row(op, 0.0, 0.0, traffic, pace=pace),)
            found.append(ChainPiece(op.lane, index, None, rows, after))
            continue
        run.append((index, op, seconds))
        if index in awaited:
            close()
    close()
    return tuple(found)


def _row(
    op: Op, start: float, end: float, traffic: Numbered, lane: str = "", after: tuple[int, ...] = (),
    pace: ChainPace | None = None,
) -> SpanRow:  # fmt: skip
    work = op.work
    return SpanRow(
        op.stream, op.kind, op.name, op.layer, work.axis, work.size * work.load, start, end, traffic(op), op.memory,
        pace, lane, after,
    )  # fmt: skip
