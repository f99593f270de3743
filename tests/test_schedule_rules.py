"""Schedules written by hand: those still to come play to their published numbers, broken ones are refused.

The first half shows that the types carry split backward, fused pairs, V and zig-zag placements and two directions.
"""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.errors import InputError
from simcluster.schedules import (
    Action,
    Costs,
    Schedule,
    check,
    gpipe,
    interleaved,
    one_f_one_b,
    play,
    schedule_function,
)
from simcluster.schedules.actions import Hop, loop_route, parse_row
from simcluster.schedules.grid import grid, order_lines

UNIT = Costs(F=1, B=2, I=1, W=1)


def by_hand(text: str, *routes: tuple[Hop, ...], route_of: tuple[int, ...] | None = None) -> Schedule:
    """A schedule from its rows; all microbatches take the first route unless told otherwise."""
    rows, fused = zip(*(parse_row(line.split(maxsplit=1)[1]) for line in text.strip().split("\n")), strict=True)
    count = 1 + max(action.microbatch for row in rows for action in row)
    return Schedule(
        name="by-hand",
        rows=rows,
        num_microbatches=count,
        num_chunks=1 + max(chunk for route in routes for _, chunk in route),
        routes=routes,
        route_of=route_of or (0,) * count,
        fused=fused,
    )


def v_route(P: int) -> tuple[Hop, ...]:
    return (*((stage, 0) for stage in range(P)), *((stage, 1) for stage in reversed(range(P))))


ZB_H1 = """
r0 F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7
r1 F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7
r2 F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 F6 I5 W3 F7 I6 W4 I7 W5 W6 W7
r3 F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7
"""
ZB_H2 = """
r0 F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7
r1 F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 I4 W2 I5 W3 I6 W4 I7 W5 W6 W7
r2 F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 W0 F7 I5 W1 I6 W2 I7 W3 W4 W5 W6 W7
r3 F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7
"""
ZB_V = """
r0 F0.0 F1.0 F2.0 F3.0 F4.0 F5.0 F6.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 F2.1 I2.1 W2.1 F3.1 I3.1 W3.1 F7.0 I0.0 W0.0 F4.1 I4.1 W4.1 I1.0 W1.0 F5.1 I5.1 W5.1 I2.0 W2.0 F6.1 I6.1 W6.1 I3.0 W3.0 F7.1 I7.1 W7.1 I4.0 W4.0 I5.0 W5.0 I6.0 W6.0 I7.0 W7.0
r1 F0.0 F1.0 F2.0 F3.0 F4.0 F0.1 F5.0 F1.1 I0.1 W0.1 F2.1 I1.1 W1.1 F3.1 I2.1 W2.1 F6.0 I0.0 W0.0 F4.1 I3.1 W3.1 F7.0 I1.0 W1.0 F5.1 I4.1 W4.1 I2.0 W2.0 F6.1 I5.1 W5.1 I3.0 W3.0 F7.1 I6.1 W6.1 I4.0 I7.1 I5.0 W4.0 I6.0 W5.0 I7.0 W6.0 W7.1 W7.0
r2 F0.0 F1.0 F2.0 F0.1 F3.0 F1.1 F4.0 F2.1 I0.1 W0.1 F3.1 I1.1 W1.1 F5.0 I0.0 W0.0 F4.1 I2.1 W2.1 F6.0 I1.0 W1.0 F5.1 I3.1 W3.1 F7.0 I2.0 W2.0 F6.1 I4.1 W4.1 I3.0 W3.0 F7.1 I5.1 W5.1 I4.0 I6.1 I5.0 I7.1 I6.0 W4.0 I7.0 W5.0 W6.1 W7.1 W6.0 W7.0
r3 F0.0 F0.1 F1.0 F1.1 F2.0 F2.1 F3.0 F3.1 I0.1 W0.1 F4.0 I0.0 W0.0 F4.1 I1.1 W1.1 F5.0 I1.0 W1.0 F5.1 I2.1 W2.1 F6.0 I2.0 W2.0 F6.1 I3.1 W3.1 F7.0 I3.0 W3.0 F7.1 I4.1 W4.1 I4.0 I5.1 I5.0 I6.1 I6.0 I7.1 I7.0 W4.0 W5.1 W6.1 W7.1 W5.0 W6.0 W7.0
"""  # noqa: E501
DUALPIPE_V = """
r0 F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 [F3.0|B1.1] [F2.1|B0.0] [F4.0|B2.1] [F3.1|B1.0] [F5.0|B3.1] [F4.1|B2.0] [F6.0|B4.1] [F5.1|B3.0] [F7.0|B5.1] [F6.1|B4.0] B6.1 [F7.1|B5.0] B7.1 I6.0 W6.0 I7.0 W7.0
r1 F0.0 F0.1 F1.0 F1.1 F2.0 B0.1 [F2.1|B0.0] [F3.0|B1.1] [F3.1|B1.0] [F4.0|B2.1] [F4.1|B2.0] [F5.0|B3.1] [F5.1|B3.0] [F6.0|B4.1] [F6.1|B4.0] [F7.0|B5.1] [F7.1|B5.0] B6.1 B6.0 I7.1 I7.0 W7.1 W7.0
"""  # noqa: E501
DUALPIPE = """
r0 F0.0 F1.0 F2.0 F4.1 I4.1 W4.1 F5.1 [F3.0|B5.1] [F6.1|B0.0] B6.1 [F7.1|B1.0] B7.1 I2.0 W2.0 I3.0 W3.0
r1 F0.0 F4.1 F1.0 F5.1 F2.0 B4.1 [F6.1|B0.0] [F3.0|B5.1] [F7.1|B1.0] B6.1 B2.0 I7.1 I3.0 W7.1 W3.0
r2 F4.1 F0.0 F5.1 F1.0 F6.1 B0.0 [F2.0|B4.1] [F7.1|B1.0] [F3.0|B5.1] B2.0 B6.1 I3.0 I7.1 W3.0 W7.1
r3 F4.1 F5.1 F6.1 F0.0 I0.0 W0.0 F1.0 [F7.1|B1.0] [F2.0|B4.1] B2.0 [F3.0|B5.1] B3.0 I6.1 W6.1 I7.1 W7.1
"""
CHIMERA = """
r0 F0.0 F1.0 F2.1 B2.1 F3.1 B3.1 B0.0 B1.0
r1 F0.0 F2.1 F1.0 F3.1 B2.1 B0.0 B3.1 B1.0
r2 F2.1 F0.0 F3.1 F1.0 B0.0 B2.1 B1.0 B3.1
r3 F2.1 F3.1 F0.0 B0.0 F1.0 B1.0 B2.1 B3.1
"""
HANAYO = """
r0 F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 B0.0 B1.0 B2.0 B3.0
r1 F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 B0.1 F2.1 B1.1 F3.1 B2.1 B0.0 B3.1 B1.0 B2.0 B3.0
r2 F0.0 F1.0 F2.0 F0.1 F3.0 F1.1 F2.1 B0.1 F3.1 B1.1 B0.0 B2.1 B1.0 B3.1 B2.0 B3.0
r3 F0.0 F0.1 F1.0 F1.1 F2.0 F2.1 F3.0 F3.1 B0.1 B0.0 B1.1 B1.0 B2.1 B2.0 B3.1 B3.0
"""
DOWN = loop_route(4, 1)
UP = tuple((stage, 1) for stage in reversed(range(4)))
BOTH_WAYS = by_hand(DUALPIPE, DOWN, UP, route_of=(0, 0, 0, 0, 1, 1, 1, 1))
TWO_PIPES = by_hand(CHIMERA, DOWN, UP, route_of=(0, 0, 1, 1))

PUBLISHED = {
    "zb-h1": (by_hand(ZB_H1, DOWN), UNIT, 27, None, (4, 4, 4, 4)),
    "zb-h2": (by_hand(ZB_H2, DOWN), UNIT, 27, 24, (7, 7, 7, 7)),
    "zb-v": (by_hand(ZB_V, v_route(4)), UNIT, 51, 48, (8, 8, 8, 8)),
    "dualpipe-v": (by_hand(DUALPIPE_V, v_route(2)), UNIT, 50, None, (5, 5)),
    "dualpipe": (BOTH_WAYS, UNIT, 26, None, (5, 5, 5, 5)),
    "chimera F = B": (TWO_PIPES, Costs(F=1, B=1), 10, None, (3, 4, 4, 3)),
    "chimera 2 F = B": (TWO_PIPES, UNIT, 16, None, (3, 4, 4, 3)),
    "hanayo": (by_hand(HANAYO, v_route(4)), Costs(F=1, B=1), 22, None, (5, 6, 7, 8)),
}


@pytest.mark.parametrize(("schedule", "costs", "makespan", "span", "peaks"), PUBLISHED.values(), ids=PUBLISHED)
def test_schedules_to_come_play_to_their_published_numbers(
    schedule: Schedule, costs: Costs[float], makespan: int, span: int | None, peaks: tuple[int, ...]
) -> None:
    timing = play(check(schedule), costs)
    assert (timing.makespan, timing.peak_in_flight) == (makespan, peaks)
    if span is not None:
        assert timing.spans == (span,) * schedule.num_stages


def test_a_fused_pair_hands_on_both_results_at_its_end() -> None:
    timing = play(BOTH_WAYS, UNIT)
    assert timing.idle == (2, 2, 2, 2)
    for stage in range(4):
        for position in BOTH_WAYS.fused_at(stage):
            assert timing.starts[stage][position] == timing.starts[stage][position + 1]
            assert timing.ends[stage][position] == timing.ends[stage][position + 1]
            assert timing.ends[stage][position] - timing.starts[stage][position] == 3


def test_rows_with_pairs_round_trip() -> None:
    assert order_lines(BOTH_WAYS) == DUALPIPE.strip().split("\n")
    assert "[F3.0|B5.1]" in grid(BOTH_WAYS)[1]
    with pytest.raises(InputError, match="is out of place; a fused pair is written"):
        parse_row("F0 [F1|B0")


# --- broken ones ----------------------------------------------------------------------------------------------------


def edited(stage: int, old: str, new: str, schedule: Schedule | None = None) -> Schedule:
    """1F1B on 2 stages with 3 microbatches (or the given schedule), one row rewritten."""
    schedule = schedule or one_f_one_b(2, 3)
    line = order_lines(schedule)[stage].split(maxsplit=1)[1]
    assert old in line
    row, fused = parse_row(line.replace(old, new, 1))
    rows = (*schedule.rows[:stage], row, *schedule.rows[stage + 1 :])
    pairs = tuple(fused if s == stage else schedule.fused_at(s) for s in range(schedule.num_stages))
    return dataclasses.replace(schedule, rows=rows, fused=pairs)


@pytest.mark.parametrize(
    ("schedule", "says", "row", "marked"),
    [
        (edited(1, "F1 B1", "B1 F1"), "B1 comes before F1; F comes before B", "r1 F0 B0 B1 F1 F2 B2", "B1"),
        (edited(0, " B2", ""), "B2 is missing; every microbatch needs", "r0 F0 F1 B0 F2 B1", ""),
        (edited(0, "B1", "B0"), "B0 is there twice", "r0 F0 F1 B0 F2 B0 B2", "B0"),
        (edited(0, "B1", "B7"), "B7 names a microbatch that does not exist", "r0 F0 F1 B0 F2 B7 B2", "B7"),
        (edited(0, "F1", "F1.1"), "microbatch 1 does not come by here", "r0 F0 F1.1 B0 F2 B1 B2", "F1.1"),
        (edited(0, "B1", "B1 W1"), "B1 stands beside I1 or W1", "r0 F0 F1 B0 F2 B1 W1 B2", "B1"),
        (edited(0, "B1", "W1 I1"), "W1 comes before I1", "r0 F0 F1 B0 F2 W1 I1 B2", "W1"),
        (edited(0, "B1", "I1"), "W1 is missing", "r0 F0 F1 B0 F2 I1 B2", ""),
        (edited(0, "F1 B0", "[B0|F1]"), "this is no fused pair", "r0 F0 [B0|F1] F2 B1 B2", "B0"),
        (edited(1, "F0 B0", "[F0|B0]"), "a pair of one microbatch with itself", "r1 [F0|B0] F1 B1 F2 B2", "F0"),
    ],
)
def test_broken_rows_are_refused_and_marked(schedule: Schedule, says: str, row: str, marked: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        check(schedule)
    lines = str(caught.value).split("\n")
    at = next(i for i, line in enumerate(lines) if line.strip() == row)
    begin = lines[at + 1].index("^")
    assert lines[at + 1][begin:].startswith("^" * max(1, len(marked)) + " <-- here, ")
    assert lines[at][begin : begin + len(marked)] == marked
    assert len(lines) == 1 + schedule.num_stages + 1


def test_a_deadlock_names_who_waits_for_what() -> None:
    broken = edited(0, "F1 B0", "B0 F1", edited(1, "F0 B0 F1", "F0 F1 B0"))
    with pytest.raises(InputError, match="deadlocks") as caught:
        check(broken)
    assert str(caught.value).split("\n")[1:] == [
        "  r0 F0 B0 F1 F2 B1 B2",
        "        ^^ <-- here, waits for the backward of microbatch 0 on stage 1",
        "  r1 F0 F1 B0 B1 F2 B2",
        "        ^^ <-- here, waits for the forward of microbatch 1 on stage 0",
    ]


@pytest.mark.parametrize(("old", "new"), [("F0 B0", "B0 F0"), ("B1", "W1 I1")])
def test_play_refuses_what_it_cannot_order(old: str, new: str) -> None:
    with pytest.raises(InputError, match=r"deadlocks: .*\n.*\n.*\n.*\n.*<-- here, waits for the .* on stage 1"):
        play(edited(1, old, new), UNIT)


@pytest.mark.parametrize("positions", [(1, 1), (3, 1), (2,), (5,), (-1,)])
def test_positions_that_are_no_pairs_are_refused(positions: tuple[int, ...]) -> None:
    check(dataclasses.replace(one_f_one_b(2, 3), fused=((3,), ())))  # F2 beside B1 is a pair
    with pytest.raises(InputError, match=r"this is no fused pair; .* listed in order and do not overlap"):
        check(dataclasses.replace(one_f_one_b(2, 3), fused=(positions, ())))


def test_large_schedules_are_cut_to_the_place() -> None:
    with pytest.raises(InputError, match="F70 is there twice") as caught:
        check(edited(40, "F71", "F70", gpipe(64, 100)))
    assert str(caught.value).split("\n")[1:] == [
        "  r40 ... F63 F64 F65 F66 F67 F68 F69 F70 F70 F72 F73 F74 F75 F76 F77 F78 ...",
        " " * 42 + "^^^ <-- here, F70 is there twice",
        "  (63 more stages are not shown)",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rows": ()}, "stages is 0"),
        ({"num_microbatches": 0}, "microbatches is 0"),
        ({"route_of": (0, 0)}, "route_of names 2 routes; one for each of its 3 microbatches"),
        ({"route_of": (0, 1, 0)}, "microbatch 1 takes route 1; there are 1"),
        ({"fused": ((), (), ())}, "fused has 3 rows; 2 or none"),
        ({"routes": ((),)}, "route 0 .* at least one hop"),
        ({"routes": (((0, 0), (1, 0), (0, 0)),)}, "none of them twice"),
        ({"routes": (((0, 0), (2, 0)),)}, "route 0 visits chunk 0 of stage 2; there are 2 stages"),
    ],
)
def test_broken_shapes_are_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        check(dataclasses.replace(one_f_one_b(2, 3), **change))  # type: ignore[arg-type]


# --- what is refused ------------------------------------------------------------------------------------------------


def test_refusals_name_a_fix() -> None:
    with pytest.raises(InputError, match=r"unknown schedule '1F1'; did you mean '1f1b'.* gpipe, 1f1b, interleaved"):
        schedule_function("1F1")
    with pytest.raises(InputError, match="unknown schedule 'zzz'; the schedules are gpipe"):
        schedule_function("zzz")
    for make in (gpipe, one_f_one_b):
        with pytest.raises(InputError, match=r"one chunk per stage, and 2 were asked for.* 'interleaved'"):
            make(4, 8, 2)
    with pytest.raises(InputError, match=r"6 microbatches on 4 stages.* such as 4 or 8 "):
        interleaved(4, 6, 2)
    with pytest.raises(InputError, match=r"3 microbatches on 4 stages.* such as 4 "):
        interleaved(4, 3, 2)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_impossible_times_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match="B of chunk 0 on stage 0 takes"):
        play(one_f_one_b(2, 2), Costs(F=1.0, B=bad))
    with pytest.raises(InputError, match="latency between stages takes"):
        play(one_f_one_b(2, 2), Costs(F=1.0, B=1.0), bad)


def test_split_backward_needs_split_costs() -> None:
    costs: Costs[float] = Costs(F=1.0, B=2.0)
    with pytest.raises(InputError, match="W has no cost; give both I and W"):
        costs("W", 0, 0)


def test_a_microbatch_elsewhere_is_an_error() -> None:
    with pytest.raises(InputError, match="microbatch 0 does not visit chunk 1 of stage 0"):
        gpipe(2, 2).next_hop(0, 0, 1)


@given(kind=st.sampled_from("FBIW"), microbatch=st.integers(0, 10**6), chunk=st.integers(0, 99))
def test_actions_round_trip(kind: str, microbatch: int, chunk: int) -> None:
    action = Action(kind, microbatch, chunk)  # type: ignore[arg-type]
    assert Action.parse(str(action)) == action
    assert Action.parse(action.label(num_chunks=2)) == action
    assert str(action) == (f"{kind}{microbatch}.{chunk}" if chunk else f"{kind}{microbatch}")


@pytest.mark.parametrize("text", ["", "F", "3", "X3", "F-1", "F3.", "f3", "F3.1.1", " F3", "F３"])
def test_text_that_is_no_action(text: str) -> None:
    with pytest.raises(InputError, match="is not an action; write F, B, I or W"):
        Action.parse(text)
