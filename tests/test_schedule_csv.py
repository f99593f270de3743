"""Schedules of one's own: torch's CSV both ways, a function, a document with parameters, and broken ones refused."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from simcluster.base.errors import InputError
from simcluster.schedules import (
    SCHEDULES,
    Action,
    EqualCosts,
    Schedule,
    SliceCosts,
    check_schedule,
    chimera,
    dualpipe,
    dualpipe_v,
    hanayo,
    interleaved,
    make_schedule,
    one_f_one_b,
    time_actions,
    zb_auto,
    zb_h1,
    zb_v,
)
from simcluster.schedules.actions import parse_row
from simcluster.schedules.specs import ScheduleChoice, ZbAutoSpec
from simcluster.schedules.text import order_lines
from simcluster.schedules.torch_csv import from_csv, to_csv, torch_can_run

# ZB-V of 2 ranks and 3 microbatches with a cell per unit of time, idle cells empty.
IN_TIME = """\
0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2
,1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2
"""


# --- the CSV of torch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("shape", [(2, 4, 2), (4, 8, 1), (4, 12, 4), (6, 12, 1)])
def test_every_schedule_survives_the_file(name: str, shape: tuple[int, int, int]) -> None:
    try:
        schedule = SCHEDULES[name](*shape)
    except InputError:
        return  # the suite of all schedules counts what is accepted
    assert from_csv(to_csv(schedule), name=schedule.name) == (schedule, {})


def test_cells_are_torchs() -> None:
    assert to_csv(zb_v(1, 1)) == "0F0,1F0,1I0,1W0,0I0,0W0\n"
    assert to_csv(interleaved(2, 2, 2)).split("\n")[1] == "1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1"
    assert "(0F3;3B1)OVERLAP_F_B" in to_csv(dualpipe_v(2, 8))
    assert not to_csv(zb_h1(3, 3)).endswith("\n\n")  # torch takes a blank line for a rank


def test_torch_has_one_rank_for_a_slice() -> None:
    assert all(map(torch_can_run, (one_f_one_b(4, 8), interleaved(4, 8, 2), dualpipe_v(4, 8), hanayo(4, 8))))
    assert not any(map(torch_can_run, (chimera(4, 4), dualpipe(4, 8))))


def test_a_file_with_idle_cells_and_spaces() -> None:
    schedule, left_out = from_csv(IN_TIME.replace(",1F1", ", 1F1 ").replace("\n", "\r\n"), name="zbv")
    assert left_out == {}
    assert schedule == dataclasses.replace(zb_v(2, 3), name="zbv")


def test_what_is_not_the_schedules_business_is_left_out_and_counted() -> None:
    text = (
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0B1,0REDUCE_GRAD,0RESHARD\n1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1\n"
    )
    schedule, left_out = from_csv(text)
    assert order_lines(schedule) == ["r0 F0 F1 B0 B1", "r1 F0 B0 F1 B1"]
    assert left_out == {
        "UNSHARD": 1, "SEND_F": 2, "RECV_B": 1, "REDUCE_GRAD": 1, "RESHARD": 1, "RECV_F": 1, "SEND_B": 1,
    }  # fmt: skip


def test_an_odd_pipeline_of_two_directions_shares_the_chunk_in_the_middle() -> None:
    text = "0F0,2F1,2B1,0B0\n1F0,1F1,1B0,1B1\n0F1,2F0,2B0,0B1\n"
    schedule, _ = from_csv(text)
    assert schedule.routes == (((0, 0), (1, 0), (2, 0)), ((2, 1), (1, 0), (0, 1)))
    assert schedule.route_of == (0, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ("0F0,0B0\n\n", "line 2 is blank: torch reads it as an idle rank; delete it"),
        ("0F0,0B0\n,,\n", "line 2 is blank"),
        ("0F0,0X0\n", "line 1, cell 2: '0X0' is not an action; write <stage><op><microbatch>"),
        ("0F0,(0F1,0B0)OVERLAP_F_B,0B1\n", "'(0F1' is not an action"),
        ("0F0,(0F1;0Q0)OVERLAP_F_B,0B1\n", "is not an action"),
        ("0F99999999999999999999,0B0\n", "is not an action"),
        ("0SEND_F0\n", "has no F, B, I or W at all"),
        ("0F0,0F2,0B0,0B2\n", "microbatch 1 never runs on stage 0; each of the 3 microbatches must run on all 1"),
        ("0F0,0B0\n2F0,2B0\n", "microbatch 0 never runs on stage 1"),
        ("0F999999999,0B999999999\n", "microbatch 0 never runs on stage 0"),
        ("0F0\n0B0\n", "microbatch 0 runs on stage 0 on line 1 and again on line 2"),
        ("0F0,0F0,0B0\n", "F0 occurs twice"),
        ("0F0,0I0\n", "W0 is missing"),
        ("0B0,0F0\n", "B0 comes before F0"),
        ("0F0,(0F1;0B1)OVERLAP_F_B,0B0\n", "both passes of this pair are of the same microbatch"),
        ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "deadlocks"),
    ],
)
def test_broken_files_are_refused_and_the_place_is_named(text: str, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        from_csv(text, name="mine.csv")


CELLS = st.from_regex(r"([0-3](F|B|I|W|SEND_F|UNSHARD)[0-3]|\(0F1;0B0\)OVERLAP_F_B| |X)?", fullmatch=True)


@settings(max_examples=150)
@given(st.lists(st.lists(CELLS, max_size=6), max_size=4))
def test_any_text_is_a_sound_schedule_or_an_input_error(cells: list[list[str]]) -> None:
    try:
        schedule, _ = from_csv("\n".join(",".join(row) for row in cells))
    except InputError:
        return
    assert from_csv(to_csv(schedule))[0] == schedule


# --- a function, a Schedule, a document -----------------------------------------------------------------------------


def my_schedule(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """1F1B under another name."""
    return dataclasses.replace(one_f_one_b(num_stages, num_microbatches, num_chunks), name="mine")


def test_a_schedule_may_be_a_name_a_function_or_itself() -> None:
    mine = my_schedule(4, 8)
    assert make_schedule("1f1b", 4, 8) == one_f_one_b(4, 8)
    assert make_schedule(my_schedule, 4, 8) == make_schedule(mine, 4, 8) == mine
    with pytest.raises(InputError, match="'mine' is for 4 stages and 8 microbatches, but the job has 4 and 16"):
        make_schedule(mine, 4, 16)
    with pytest.raises(InputError, match="function 'nothing' returned None; it must return a Schedule"):
        make_schedule(nothing, 4, 8)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"'len' takes \(obj, /\): too many .* stages, microbatches and chunks"):
        make_schedule(len, 4, 8)  # type: ignore[arg-type]
    broken = dataclasses.replace(mine, rows=(mine.rows[0][:-1], *mine.rows[1:]))
    with pytest.raises(InputError, match="B7 is missing"):
        make_schedule(broken, 4, 8)


def nothing(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> None:
    return None


SPECS: TypeAdapter[object] = TypeAdapter(ScheduleChoice)


def test_schedules_with_parameters_are_documents() -> None:
    grouped = SPECS.validate_python({"name": "interleaved", "group_size": 6})
    assert make_schedule(grouped, 4, 12, 2) == interleaved(4, 12, 2, group_size=6)  # type: ignore[arg-type]
    document = {"name": "zb-auto", "memory_limit": 6, "forward": 10, "input": 12, "weight": 8, "latency": 1}
    times = EqualCosts(F=10.0, B=20.0, I=12.0, W=8.0)
    made = make_schedule(SPECS.validate_python(document), 4, 8)  # type: ignore[arg-type]
    assert made == zb_auto(4, 8, costs=times, latency=1.0, memory_limit=6)
    plain = ZbAutoSpec(name="zb-auto")
    assert make_schedule(plain, 4, 8) == zb_auto(4, 8)
    assert make_schedule(plain, 4, 8, costs=times, latency=1.0) == zb_auto(4, 8, costs=times, latency=1.0)


@pytest.mark.parametrize(
    "document",
    [
        {"name": "zb-autos"},
        {"name": "zb-auto", "memory_limit": 0},
        {"name": "zb-auto", "forward": -1},
        {"name": "zb-auto", "group_size": 4},
        {"name": "interleaved", "pairs": 1},
        {"memory_limit": 4},
    ],
)
def test_documents_with_mistakes_are_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SPECS.validate_python(document)


# --- costs per slice ------------------------------------------------------------------------------------------------


def test_times_per_slice_follow_the_placement() -> None:
    """An embedding before the first slice and a head behind the last are both on stage 0 of a V."""
    schedule = zb_v(2, 6)
    costs = SliceCosts(schedule, {"F": [5, 1, 1, 9], "I": [2, 2, 2, 2], "W": [1, 1, 1, 7]})
    assert costs("F", 0, 0) == 5
    assert costs("F", 0, 1) == 9
    assert costs("W", 1, 1) == 1
    assert time_actions(schedule, costs).busy == (6 * (5 + 2 + 1 + 9 + 2 + 7), 6 * (1 + 2 + 1 + 1 + 2 + 1))
    both = SliceCosts(dualpipe(2, 4), {kind: [1, 4] for kind in "FBIW"})  # type: ignore[misc]
    assert (both("F", 0, 0), both("F", 0, 1), both("F", 1, 1)) == (1, 4, 1)
    with pytest.raises(InputError, match="has W passes, but no W times; add them"):
        SliceCosts(schedule, {"F": [1] * 4, "I": [1] * 4})
    with pytest.raises(InputError, match="has 4 virtual stages, but I has 2 times; give one time for each"):
        SliceCosts(schedule, {"F": [1] * 4, "I": [1] * 2, "W": [1] * 4})


# --- broken: split backward, V, two directions ----------------------------------------------------------------------


def rewritten(schedule: Schedule, stage: int, old: str, new: str) -> Schedule:
    line = order_lines(schedule)[stage].split(maxsplit=1)[1]
    assert f" {old} " in f" {line} "
    row, fused = parse_row(f" {line} ".replace(f" {old} ", f" {new} ", 1))
    rows = (*schedule.rows[:stage], row, *schedule.rows[stage + 1 :])
    pairs = tuple(fused if s == stage else schedule.fused_positions(s) for s in range(schedule.num_stages))
    return dataclasses.replace(schedule, rows=rows, fused=pairs if any(pairs) else ())


@pytest.mark.parametrize(
    ("schedule", "says", "marked"),
    [
        (rewritten(zb_h1(2, 3), 1, "I0 F1", "W0 I0 F1"), "W0 occurs twice", "W0"),
        (rewritten(zb_v(2, 3), 0, "I0.1 W0.1", "W0.1 I0.1"), "W0.1 comes before I0.1", "W0.1"),
        (rewritten(zb_v(2, 3), 1, "F0.1", "F0.0"), "F0.0 occurs twice", "F0.0"),
        (rewritten(dualpipe(2, 4), 0, "F0.0", "F0.1"), "microbatch 0 does not visit this chunk", "F0.1"),
        (rewritten(chimera(2, 2), 1, "B1.1", "I1.1"), "W1.1 is missing", ""),
    ],
)
def test_broken_rows_of_all_kinds_are_marked(schedule: Schedule, says: str, marked: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        check_schedule(schedule)
    lines = str(caught.value).split("\n")
    at = next(index for index, line in enumerate(lines) if "<-- here" in line)
    begin = lines[at].index("^")
    assert lines[at - 1][begin : begin + max(1, len(marked))].strip() == marked


def test_a_deadlock_of_two_directions_names_chunk_and_stage() -> None:
    rows = ((Action("F", 1, 1), Action("F", 0, 0), Action("B", 1, 1), Action("B", 0, 0)),
            (Action("F", 0, 0), Action("F", 1, 1), Action("B", 0, 0), Action("B", 1, 1)))  # fmt: skip
    with pytest.raises(InputError, match="deadlocks") as caught:
        check_schedule(dataclasses.replace(chimera(2, 2), rows=rows))
    assert str(caught.value).split("\n")[1:] == [
        "  r0 F1.1 F0.0 B1.1 B0.0",
        "     ^^^^ <-- here, waits for the forward of chunk 1 of microbatch 1 on stage 1",
        "  r1 F0.0 F1.1 B0.0 B1.1",
        "     ^^^^ <-- here, waits for the forward of chunk 0 of microbatch 0 on stage 0",
    ]


def test_a_chunk_is_one_slice_whoever_comes_by() -> None:
    down, up = ((0, 0), (1, 0)), ((1, 0), (0, 0))
    with pytest.raises(
        InputError, match="chunk 0 of stage 1 is slice 1 of the model on route 0 and slice 0 on route 1"
    ):
        check_schedule(dataclasses.replace(chimera(2, 2), routes=(down, up)))
    with pytest.raises(InputError, match="route 1 has 1 hops and route 0 has 2"):
        check_schedule(dataclasses.replace(chimera(2, 2), routes=(down, ((1, 1),))))
