"""Chains: playing ops as few events gives the bits of playing each op by itself."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from collapsed import pieces
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.clock import TICK, on_grid
from simcluster.engine.engine import play
from simcluster.planning.ops import MAIN, Op, Segment
from simcluster.planning.works import Compute, Timed
from simcluster.programs.collapse import ChainPiece
from simcluster.programs.program import Meeting, Program, SpanRow
from simcluster.programs.told_ops import told_ops
from simcluster.results.timeline import expand
from simcluster.traffic.traffic import Traffic


def op(seconds: float, lane: str = MAIN, after: tuple[int, ...] = (), name: str = "", *, meets: bool = False) -> Op:
    """An op of that length; one that ``meets`` is a collective that others have a say in."""
    work = Timed("tp", seconds) if meets else Compute(seconds)
    return Op(work, "compute" if lane == MAIN else "tp", "forward", name, lane=lane, after=after)


def seconds_of(one: Op) -> float:
    assert isinstance(one.work, Compute | Timed)
    return on_grid(one.work.seconds)


def known(one: Op) -> float | None:
    """A duration, unless others have a say in it."""
    return None if isinstance(one.work, Timed) else seconds_of(one)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """Ops on a main and a tp lane; what runs beside is joined by the next op or later on main."""
    ops: list[Op] = [op(draw(st.floats(0, 1)), name="0", meets=draw(st.booleans()))]
    open_side: list[int] = []
    for number in range(1, draw(st.integers(1, 9))):
        seconds, meets, name = draw(st.floats(0, 1)), draw(st.booleans()), str(number)
        if draw(st.booleans()):
            back = draw(st.integers(0, number - 1))
            open_side.append(number)
            ops.append(op(seconds, "tp", (back,), name, meets=meets))
        else:
            joins = tuple(index for index in open_side if draw(st.booleans()))
            open_side = [index for index in open_side if index not in joins]
            ops.append(op(seconds, after=joins, name=name, meets=meets))
    ops.append(op(draw(st.floats(0, 1)), after=tuple(open_side), name="last"))
    return Segment(tuple(ops))


def spans(segment: Segment, played: tuple[ChainPiece, ...]) -> dict[str, tuple[float, float]]:
    """Start and end of every op by name, through the engine and the timeline, when played as these pieces."""
    program = Program()
    lanes: dict[str, int] = {}
    for number, piece in enumerate(played):
        lane = lanes.setdefault(piece.lane, len(lanes))
        if lane == len(program.lanes):
            program.add_lane(0, 0, piece.lane)
        program.row_sets.append(piece.rows)
        if piece.seconds is None:
            program.meetings.append(Meeting(1, (Traffic((), 0.0, 1, seconds_of(segment.ops[piece.first])),)))
            program.add_op(lane, number, meeting=len(program.meetings) - 1)
        else:
            program.add_op(lane, number, seconds=piece.seconds)
        program.after[number] = piece.after
    record = play(program, [])
    table = expand(told_ops(program), record.columns, lambda axis, rank: axis, record.slowed).spans()
    return {
        table.words[name]: (start, end)
        for name, start, end in zip(table.name.tolist(), table.start.tolist(), table.end.tolist(), strict=True)
    }


def one_by_one(segment: Segment) -> dict[str, tuple[float, float]]:
    """The longest path, op by op: each starts when its lane and what it waits for are through."""
    free: dict[str, float] = {}
    ends: list[float] = []
    for one in segment.ops:
        start = max([free.get(one.lane, 0.0), *(ends[index] for index in one.after)])
        ends.append(start + seconds_of(one))
        free[one.lane] = ends[-1]
    return {one.name: (end - seconds_of(one), end) for one, end in zip(segment.ops, ends, strict=True)}


@given(segment=segments())
def test_collapsed_is_op_by_op_to_the_bit(segment: Segment) -> None:
    expected = one_by_one(segment)
    assert spans(segment, pieces(segment, seconds_of)) == expected  # everything known: one event
    assert spans(segment, pieces(segment, known)) == expected  # some ops meet others
    assert spans(segment, pieces(segment, lambda _: None)) == expected  # every op an event


@given(segment=segments())
def test_nothing_is_lost_and_meetings_stay_alone(segment: Segment) -> None:
    found = pieces(segment, known)
    assert sorted(row.name for piece in found for row in piece.rows) == sorted(one.name for one in segment.ops)
    for piece in found:
        meets = isinstance(segment.ops[piece.first].work, Timed)
        assert (piece.seconds is None) == meets
        assert not meets or len(piece.rows) == 1
    assert found[0].first == 0
    assert found[-1].rows[-1].name == "last"
    assert len(pieces(segment, seconds_of)) == 1


@given(segment=segments())
def test_as_few_events_as_there_are_reasons(segment: Segment) -> None:
    """A piece ends only at a meeting, a change of lane, an op that waits, or one that is waited for."""
    found = pieces(segment, known)
    awaited = {index for one in segment.ops for index in one.after}
    for before, piece in itertools.pairwise(found):
        index = piece.first
        assert (
            before.seconds is None
            or piece.seconds is None
            or segment.ops[index].after
            or segment.ops[index].lane != segment.ops[index - 1].lane
            or index - 1 in awaited
        )


def test_a_chain_with_something_beside_it() -> None:
    segment = Segment(
        (op(1, name="a"), op(5, "tp", (0,), "b", meets=True), op(2, name="c"), op(1, after=(1,), name="d"))
    )
    (whole,) = pieces(segment, seconds_of)
    assert whole.seconds == 7
    assert [(row.name, row.start, row.end) for row in whole.rows] == [
        ("a", 0, 1),
        ("b", 1, 6),
        ("c", 1, 3),
        ("d", 6, 7),
    ]
    found = pieces(segment, known)
    assert [(piece.lane, piece.first, piece.seconds, piece.after) for piece in found] == [
        ("main", 0, 1, ()),
        ("tp", 1, None, (0,)),
        ("main", 2, 2, ()),
        ("main", 3, 1, (1,)),
    ]


def test_rows_carry_what_the_timeline_shows() -> None:
    segment = Segment((Op(Timed("dp", 1.0), "dp", "all_reduce", "gradients", 3),))
    (piece,) = pieces(segment, lambda _: None)
    assert piece.rows == (SpanRow("dp", "all_reduce", "gradients", 3, "dp", 0.0, 0.0, 0.0),)


@pytest.mark.parametrize(
    "ops",
    [
        (op(1), op(1, "tp", (0,))),  # never joined, and it would be last
        (op(1), op(1, "tp", (0,)), op(1)),  # nobody waits for it
        (op(1), op(1, "tp"), op(1, after=(1,))),  # would begin before the segment
        (op(1, after=(0,)),),  # waits for itself
    ],
)
def test_a_segment_begins_with_its_first_op_and_ends_with_its_last(ops: tuple[Op, ...]) -> None:
    with pytest.raises(AssertionError):
        Segment(ops)


@given(seconds=st.lists(st.floats(0, 0.5), min_size=1, max_size=50))
def test_the_grid_makes_addition_associative(seconds: list[float]) -> None:
    on = [on_grid(value) for value in seconds]
    assert sum(on) == sum(reversed(on)) == float(np.sum(on))
    assert all(abs(value - rounded) <= TICK / 2 for value, rounded in zip(seconds, on, strict=True))
