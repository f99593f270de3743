"""The engine on programs written by hand: whole timelines as tuples, ties, late arrivals, deadlocks by name."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Table, Tiny
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.clock import on_grid
from simcluster.base.errors import DeadlockError, InputError
from simcluster.engine.engine import play
from simcluster.engine.record import Record
from simcluster.programs.program import Meeting, Program, SpanRow
from simcluster.simulate import simulate
from simcluster.traffic.traffic import Traffic


class Small:
    """A program in the making; ops are named by single words."""

    def __init__(self, *lanes: str) -> None:
        self.program = Program()
        self.names: dict[str, int] = {}
        for lane in lanes:  # "3 main": the main lane of rank 3
            rank, name = lane.split()
            self.program.add_lane(int(rank), int(rank), name)

    def op(self, lane: int, name: str, seconds: float = -1.0, *, meeting: int = -1, after: str = "") -> Small:
        self.program.row_sets.append((SpanRow("compute", "forward", name, -1, "", 0.0, 0.0, 0.0),))
        number = self.program.add_op(lane, len(self.program.row_sets) - 1, seconds=seconds, meeting=meeting)
        self.program.after[number] = tuple(self.names[other] for other in after.split())
        self.names[name] = number
        return self

    def later(self, name: str, after: str) -> Small:
        """An edge to an op that was written down later."""
        self.program.after[self.names[name]] += (self.names[after],)
        return self

    def meeting(self, parties: int, *traffics: Traffic) -> Small:
        self.program.meetings.append(Meeting(parties, traffics))
        return self

    def run(self, *capacity: float) -> dict[str, tuple[float, float, float]]:
        """(ready, start, end) of every op."""
        record = play(self.program, capacity)
        return {name: times(record, number) for name, number in self.names.items()}


def times(record: Record, op: int) -> tuple[float, float, float]:
    return float(record.ready[op]), float(record.start[op]), float(record.end[op])


def lasting(seconds: float) -> Traffic:
    """A collective of that length that loads no link."""
    return Traffic((), 0.0, 1, seconds)


def over(link: int, size: float) -> Traffic:
    return Traffic(((link, 1.0),), size, 1, 0.0)


# --- lanes and edges -------------------------------------------------------------------------------------------------


def test_a_lane_runs_in_order_and_lanes_run_beside_each_other() -> None:
    small = Small("0 main", "0 dp").op(0, "a", 1).op(0, "b", 2).op(1, "c", 5)
    assert small.run() == {"a": (0, 0, 1), "b": (1, 1, 3), "c": (0, 0, 5)}


def test_an_op_waits_for_its_lane_and_for_all_that_it_follows() -> None:
    small = Small("0 main", "1 main", "2 main").op(0, "a", 3).op(1, "b", 5).op(2, "c", 1).op(2, "d", 1, after="a b")
    assert small.run()["d"] == (5, 5, 6)


def test_ops_without_length_take_none() -> None:
    small = Small("0 main", "1 main").op(0, "a", 0).op(0, "b", 0).op(1, "c", 0, after="b").op(1, "d", 2)
    assert small.run() == {"a": (0, 0, 0), "b": (0, 0, 0), "c": (0, 0, 0), "d": (0, 0, 2)}


def test_an_empty_program_and_an_empty_lane() -> None:
    assert len(play(Program(), []).end) == 0
    assert Small("0 main", "1 main").op(0, "a", 1).run() == {"a": (0, 0, 1)}


@given(
    seconds=st.lists(st.floats(0, 2), min_size=1, max_size=12),
    edges=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20),
    lanes=st.lists(st.integers(0, 3), min_size=12, max_size=12),
)
def test_every_op_begins_when_the_last_thing_it_waits_for_is_over(
    seconds: list[float], edges: list[tuple[int, int]], lanes: list[int]
) -> None:
    """Against the longest path, computed without a clock (MODELLING.md I.5)."""
    small = Small(*(f"{lane} main" for lane in range(4)))
    for number, value in enumerate(seconds):
        small.op(lanes[number], str(number), on_grid(value))
    for late, early in edges:
        if early < late < len(seconds):
            small.later(str(late), str(early))
    free, ends = [0.0] * 4, []
    for number, value in enumerate(seconds):
        start = max([free[lanes[number]], *(ends[other] for other in small.program.after[number])])
        ends.append(start + on_grid(value))
        free[lanes[number]] = ends[-1]
    assert [end for _, _, end in small.run().values()] == ends


# --- meetings --------------------------------------------------------------------------------------------------------


def test_a_meeting_begins_with_the_last_arrival_and_remembers_who_it_was() -> None:
    small = Small("0 main", "1 main", "2 main").meeting(3, lasting(4))
    for lane, late in enumerate((1, 7, 3)):
        small.op(lane, f"work{lane}", late).op(lane, f"meet{lane}", meeting=0).op(lane, f"then{lane}", 1)
    record = play(small.program, [])
    found = {name: times(record, number) for name, number in small.names.items()}
    assert [found[f"meet{lane}"] for lane in range(3)] == [(1, 7, 11), (7, 7, 11), (3, 7, 11)]
    assert [found[f"then{lane}"] for lane in range(3)] == [(11, 11, 12)] * 3
    meets = [small.names[f"meet{lane}"] for lane in range(3)]
    assert record.last[meets].tolist() == [meets[1]] * 3
    works = [small.names[f"work{lane}"] for lane in range(3)]
    assert record.last[works].tolist() == works


def test_a_meeting_plays_its_activities_one_after_the_other() -> None:
    small = Small("0 main").meeting(1, Traffic(((0, 1.0),), 50.0, 2, 1.0), Traffic(((0, 2.0),), 25.0, 1, 0.5))
    # 2 rounds of (1 s + 50 B / 100 B/s), then 0.5 s + 25 B / 50 B/s
    assert small.op(0, "a", meeting=0).run(100.0) == {"a": (0, 0, 4.0)}


def test_a_meeting_without_activities_is_a_barrier() -> None:
    small = Small("0 main", "1 main").meeting(2).op(0, "a", meeting=0).op(1, "late", 2).op(1, "b", meeting=0)
    assert small.run() == {"a": (0, 2, 2), "late": (0, 0, 2), "b": (2, 2, 2)}


def test_two_on_one_link_share_it() -> None:
    """Equal flows end together at 2 S / B; one that comes when another has half left (MODELLING.md H.17)."""
    small = Small("0 main", "1 main").meeting(1, over(0, 100)).meeting(1, over(0, 100))
    assert small.op(0, "a", meeting=0).op(1, "b", meeting=1).run(100.0) == {"a": (0, 0, 2), "b": (0, 0, 2)}
    small = Small("0 main", "1 main").meeting(1, over(0, 100)).meeting(1, over(0, 100))
    small.op(0, "a", meeting=0).op(1, "wait", 0.5).op(1, "b", meeting=1)
    # alone to 0.5; half speed until the 50 B left of a are through at 1.5; b has 50 B left then
    assert small.run(100.0) == {"a": (0, 0, 1.5), "wait": (0, 0, 0.5), "b": (0.5, 0.5, 2.0)}


def test_what_ends_and_begins_at_one_instant_does_not_meet() -> None:
    """b begins exactly when a ends: each has the link to itself, whichever lane is first in the program."""
    for lanes in ((0, 1), (1, 0)):
        small = Small("0 main", "1 main").meeting(1, over(0, 100)).meeting(1, over(0, 100))
        small.op(lanes[0], "a", meeting=0).op(lanes[1], "wait", 1).op(lanes[1], "b", meeting=1)
        assert small.run(100.0) == {"a": (0, 0, 1), "wait": (0, 0, 1), "b": (1, 1, 2)}


@given(late=st.permutations(range(5)), lengths=st.lists(st.integers(0, 3), min_size=5, max_size=5))
def test_results_do_not_depend_on_the_order_of_lanes(late: list[int], lengths: list[int]) -> None:
    """H.32: five ranks, two meetings in a row and a shared link, written down in any order."""

    def run(order: list[int]) -> dict[str, tuple[float, float, float]]:
        small = Small(*(f"{rank} main" for rank in order)).meeting(5, over(0, 30))
        for _ in range(5):
            small.meeting(1, over(0, 10))
        for lane, rank in enumerate(order):
            small.op(lane, f"work{rank}", lengths[rank]).op(lane, f"own{rank}", meeting=1 + rank)
            small.op(lane, f"all{rank}", meeting=0)
        return small.run(10.0)

    assert run(list(late)) == run(list(range(5)))


# --- deadlocks -------------------------------------------------------------------------------------------------------


def test_a_mismatched_order_of_collectives_is_named() -> None:
    """Two ranks call the same two collectives in different orders (H.35): real hardware would hang."""
    small = Small("0 main", "1 main").meeting(2, lasting(1)).meeting(2, lasting(1))
    small.op(0, "alpha", meeting=0).op(0, "beta", meeting=1).op(1, "beta_too", meeting=1).op(1, "alpha_too", meeting=0)
    with pytest.raises(DeadlockError) as caught:
        small.run()
    message = str(caught.value)
    assert "2 lanes wait for each other" in message
    assert "rank 0 main: forward alpha waits for the other members of its group (1 of 2 have arrived)" in message
    assert "rank 1 main: forward beta_too waits for the other members of its group (1 of 2 have arrived)" in message
    assert isinstance(caught.value, InputError)


def test_a_missing_member_is_named() -> None:
    small = Small("0 main", "1 main").meeting(2, lasting(1)).op(0, "alone", meeting=0).op(1, "other", 3)
    with pytest.raises(DeadlockError, match=r"rank 0 main: forward alone waits for the other members .* \(1 of 2"):
        small.run()


def test_a_send_that_comes_too_late_is_named() -> None:
    """Each rank receives before it sends."""
    small = Small("0 main", "1 main")
    small.op(0, "receive0", 1).op(0, "send0", 1).op(1, "receive1", 1).op(1, "send1", 1)
    small.later("receive0", "send1").later("receive1", "send0")
    with pytest.raises(DeadlockError) as caught:
        small.run()
    assert "rank 0 main: forward receive0 waits for rank 1 main: forward send1" in str(caught.value)
    assert "rank 1 main: forward receive1 waits for rank 0 main: forward send0" in str(caught.value)


def test_a_long_deadlock_is_cut_short() -> None:
    small = Small(*(f"{rank} main" for rank in range(20))).meeting(21, lasting(1))
    for rank in range(20):
        small.op(rank, f"op{rank}", meeting=0)
    with pytest.raises(DeadlockError, match=r"20 lanes(.|\n)*op11 (.|\n)*\.\.\. and 8 more") as caught:
        small.run()
    assert "op12 " not in str(caught.value)


# --- in steps --------------------------------------------------------------------------------------------------------


def scenario(tiny: Tiny, *, detail: str, faults: list[dict[str, Any]]) -> Any:
    return tiny(
        cluster={"topology": "flat", "gpus": 8},
        parallel={"tp": 4, "dp": 2},
        collectives={"detail": detail},
        faults=faults,
    )


def test_in_steps_is_in_flow_when_all_arrive_together(tiny: Tiny, table: Table) -> None:
    """MODELLING.md D.6, through a whole step: equal links, every group alone on them."""
    flow = simulate(scenario(tiny, detail="flow", faults=[]), folded=False)
    steps = simulate(scenario(tiny, detail="steps", faults=[]))
    assert steps.record.events > flow.record.events  # it did play rounds
    for rank in range(8):
        assert table(steps, rank).equals(table(flow, rank))


def test_in_steps_is_in_flow_when_one_arrives_late(tiny: Tiny, table: Table) -> None:
    """D.6 again: with unequal arrivals every rank still ends at the last arrival plus the duration."""
    slow = [{"kind": "slow_gpu", "rank": 5, "factor": 1.7}]
    flow = simulate(scenario(tiny, detail="flow", faults=slow), folded=False)
    steps = simulate(scenario(tiny, detail="steps", faults=slow))
    assert steps.step_time == flow.step_time
    for rank in range(8):
        ours, theirs = table(steps, rank), table(flow, rank)
        assert ours["end"].tolist() == theirs["end"].tolist()
        assert ours["ready"].tolist() == theirs["ready"].tolist()
