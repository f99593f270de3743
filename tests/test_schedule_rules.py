"""What a schedule may be: fused pairs, costs per slice, and broken schedules refused with the place marked."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.schedules import (
    Action,
    EqualCosts,
    Schedule,
    check_schedule,
    dualpipe,
    gpipe,
    interleaved,
    one_f_one_b,
    schedule_entry,
    time_actions,
)
from simcluster.schedules.actions import parse_row
from simcluster.schedules.text import order_lines
from simcluster.schedules.text_grid import draw_grid

UNIT = EqualCosts(F=1, B=2, I=1, W=1)


BOTH_WAYS = dualpipe(4, 8)


def test_a_fused_pair_hands_on_both_results_at_its_end() -> None:
    timing = time_actions(BOTH_WAYS, UNIT)
    assert timing.idle == (2, 2, 2, 2)
    for stage in range(4):
        for position in BOTH_WAYS.fused_positions(stage):
            assert timing.starts[stage][position] == timing.starts[stage][position + 1]
            assert timing.ends[stage][position] == timing.ends[stage][position + 1]
            assert timing.ends[stage][position] - timing.starts[stage][position] == 3


def test_rows_with_pairs_round_trip() -> None:
    rows, fused = zip(*(parse_row(line.split(maxsplit=1)[1]) for line in order_lines(BOTH_WAYS)), strict=True)
    assert (rows, fused) == (BOTH_WAYS.rows, BOTH_WAYS.fused)
    assert "[F3.0|B5.1]" in draw_grid(BOTH_WAYS)[1]
    with pytest.raises(InputError, match="is out of place; write a fused pair as"):
        parse_row("F0 [F1|B0")


# --- broken ones ----------------------------------------------------------------------------------------------------


def edited(stage: int, old: str, new: str, schedule: Schedule | None = None) -> Schedule:
    """1F1B on 2 stages with 3 microbatches (or the given schedule), one row rewritten."""
    schedule = schedule or one_f_one_b(2, 3)
    line = order_lines(schedule)[stage].split(maxsplit=1)[1]
    assert old in line
    row, fused = parse_row(line.replace(old, new, 1))
    rows = (*schedule.rows[:stage], row, *schedule.rows[stage + 1 :])
    pairs = tuple(fused if s == stage else schedule.fused_positions(s) for s in range(schedule.num_stages))
    return dataclasses.replace(schedule, rows=rows, fused=pairs)


@pytest.mark.parametrize(
    ("schedule", "says", "row", "marked"),
    [
        (edited(1, "F1 B1", "B1 F1"), "B1 comes before F1; F comes before B", "r1 F0 B0 B1 F1 F2 B2", "B1"),
        (edited(0, " B2", ""), "B2 is missing; add it to this row; every microbatch needs", "r0 F0 F1 B0 F2 B1", ""),
        (edited(0, "B1", "B0"), "B0 occurs twice", "r0 F0 F1 B0 F2 B0 B2", "B0"),
        (edited(0, "B1", "B7"), "B7 names a microbatch that does not exist", "r0 F0 F1 B0 F2 B7 B2", "B7"),
        (edited(0, "F1", "F1.1"), "microbatch 1 does not visit this chunk", "r0 F0 F1.1 B0 F2 B1 B2", "F1.1"),
        (edited(0, "B1", "B1 W1"), "B1 occurs together with I1 or W1", "r0 F0 F1 B0 F2 B1 W1 B2", "B1"),
        (edited(0, "B1", "W1 I1"), "W1 comes before I1", "r0 F0 F1 B0 F2 W1 I1 B2", "W1"),
        (edited(0, "B1", "I1"), "W1 is missing", "r0 F0 F1 B0 F2 I1 B2", ""),
        (edited(0, "F1 B0", "[B0|F1]"), "this is not a fused pair", "r0 F0 [B0|F1] F2 B1 B2", "B0"),
        (edited(1, "F0 B0", "[F0|B0]"), "both passes of this pair are of the same", "r1 [F0|B0] F1 B1 F2 B2", "F0"),
    ],
)
def test_broken_rows_are_refused_and_marked(schedule: Schedule, says: str, row: str, marked: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        check_schedule(schedule)
    lines = str(caught.value).split("\n")
    at = next(i for i, line in enumerate(lines) if line.strip() == row)
    begin = lines[at + 1].index("^")
    assert lines[at + 1][begin:].startswith("^" * max(1, len(marked)) + " <-- here, ")
    assert lines[at][begin : begin + len(marked)] == marked
    assert len(lines) == 1 + schedule.num_stages + 1


def test_a_deadlock_names_who_waits_for_what() -> None:
    broken = edited(0, "F1 B0", "B0 F1", edited(1, "F0 B0 F1", "F0 F1 B0"))
    with pytest.raises(InputError, match="deadlocks") as caught:
        check_schedule(broken)
    assert str(caught.value).split("\n")[1:] == [
        "  r0 F0 B0 F1 F2 B1 B2",
        "        ^^ <-- here, waits for the backward of microbatch 0 on stage 1",
        "  r1 F0 F1 B0 B1 F2 B2",
        "        ^^ <-- here, waits for the forward of microbatch 1 on stage 0",
    ]


@pytest.mark.parametrize(("old", "new"), [("F0 B0", "B0 F0"), ("B1", "W1 I1")])
def test_play_refuses_what_it_cannot_order(old: str, new: str) -> None:
    with pytest.raises(InputError, match=r"deadlocks: .*\n.*\n.*\n.*\n.*<-- here, waits for the .* on stage 1"):
        time_actions(edited(1, old, new), UNIT)


@pytest.mark.parametrize("positions", [(1, 1), (3, 1), (2,), (5,), (-1,)])
def test_positions_that_are_no_pairs_are_refused(positions: tuple[int, ...]) -> None:
    check_schedule(dataclasses.replace(one_f_one_b(2, 3), fused=((3,), ())))  # F2 beside B1 is a pair
    with pytest.raises(InputError, match=r"this is not a fused pair; .* listed in order and do not overlap"):
        check_schedule(dataclasses.replace(one_f_one_b(2, 3), fused=(positions, ())))


def test_large_schedules_are_cut_to_the_place() -> None:
    with pytest.raises(InputError, match="F70 occurs twice") as caught:
        check_schedule(edited(40, "F71", "F70", gpipe(64, 100)))
    assert str(caught.value).split("\n")[1:] == [
        "  r40 ... F63 F64 F65 F66 F67 F68 F69 F70 F70 F72 F73 F74 F75 F76 F77 F78 ...",
        " " * 42 + "^^^ <-- here, F70 occurs twice",
        "  (63 more stages are not shown)",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rows": ()}, "stages is 0"),
        ({"num_microbatches": 0}, "microbatches is 0"),
        ({"route_of": (0, 0)}, "route_of has 2 entries; it must have one for each of the 3 microbatches"),
        ({"route_of": (0, 1, 0)}, r"route_of\[1\] is 1; there are 1 routes"),
        ({"fused": ((), (), ())}, "'fused' has 3 rows; it must have 2 or none"),
        ({"routes": ((),)}, "route 0 .* at least one hop"),
        ({"routes": (((0, 0), (1, 0), (0, 0)),)}, "no hop twice"),
        ({"routes": (((0, 0), (2, 0)),)}, "route 0 visits chunk 0 of stage 2; there are 2 stages"),
    ],
)
def test_broken_shapes_are_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        check_schedule(dataclasses.replace(one_f_one_b(2, 3), **change))  # type: ignore[arg-type]


# --- what is refused ------------------------------------------------------------------------------------------------


def test_refusals_name_a_fix() -> None:
    with pytest.raises(
        InputError, match=r"unknown schedule '1F1'; did you mean '1f1b'.* gpipe, 1f1b, interleaved, bre"
    ):
        schedule_entry("1F1")
    with pytest.raises(InputError, match="unknown schedule 'zzz'; the schedules are gpipe"):
        schedule_entry("zzz")
    for make in (gpipe, one_f_one_b):
        with pytest.raises(InputError, match=r"one chunk per stage, not 2.* 'interleaved'"):
            make(4, 8, 2)
    with pytest.raises(InputError, match=r"6 microbatches on 4 stages.* such as 4 or 8 "):
        interleaved(4, 6, 2)
    with pytest.raises(InputError, match=r"3 microbatches on 4 stages.* such as 4 "):
        interleaved(4, 3, 2)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_impossible_times_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match="B of chunk 0 on stage 0 takes"):
        time_actions(one_f_one_b(2, 2), EqualCosts(F=1.0, B=bad))
    with pytest.raises(InputError, match="latency between stages takes"):
        time_actions(one_f_one_b(2, 2), EqualCosts(F=1.0, B=1.0), bad)


def test_split_backward_needs_split_costs() -> None:
    costs: EqualCosts[float] = EqualCosts(F=1.0, B=2.0)
    with pytest.raises(InputError, match="W has no cost; give costs of I and W"):
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
