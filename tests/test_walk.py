"""The walk of a quick sweep: the times of events, whatever works take; and whose intervals overlap since when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.clock import on_grid
from simcluster.base.errors import InputError
from simcluster.engine.engine import play
from simcluster.programs.program import Meeting
from simcluster.schedules import Action, Schedule, make_schedule
from simcluster.schedules.actions import loop_route
from simcluster.studies.sweep.crossings import Intervals, overlap
from simcluster.studies.sweep.order import ActionWork, Costed, Last, Sent
from simcluster.studies.sweep.stepping import Walk
from simcluster.traffic.traffic import Traffic

ORDERS = [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-v", 2)]


@given(st.data(), st.sampled_from(ORDERS), st.integers(2, 5), st.integers(1, 3), st.booleans(), st.booleans())
def test_a_walk_has_the_times_of_events(
    data: st.DataObject, order: tuple[str, int], stages: int, rounds: int, overlap: bool, long: bool
) -> None:
    """Short sends queue nowhere, long ones do: two ways through the actions."""
    schedule = make_schedule(order[0], stages, stages * rounds, order[1])
    walk = Walk(schedule, overlap=overlap)
    costs: dict[ActionWork | Sent, Costed] = {}
    for work in walk.works:
        if isinstance(work, Sent):
            seconds = on_grid(data.draw(st.integers(0, 40 if long else 9)) / 10)
            costs[work] = Costed(-1.0, meeting=Meeting(1, (Traffic((), 0.0, 1, seconds),)))
        else:
            costs[work] = Costed(on_grid(data.draw(st.integers(9, 30)) / 10))
    meetings = {id(each.meeting): each.meeting.traffics[0].latency for each in costs.values() if each.meeting}
    last = [[Last(Costed(on_grid(0.1 * stage)))] for stage in range(stages)]
    stepped = walk.step([costs[work] for work in walk.works], meetings, last)
    program = walk.program([costs[work] for work in walk.works], last, range(stages))
    record = play(program, [])
    assert stepped.total == record.end.max()
    ops = len(stepped.ends) - 1
    assert sorted(stepped.ends[1:]) == sorted(record.end[:ops])
    for work, number in walk.place.items():
        if isinstance(work, Sent):
            begins = walk.begins(work, stepped)
            assert stepped.begins[work] == (begins[0], begins[-1])
            like = [op for op in range(ops) if walk.works[program.rows[op]] == work]
            assert begins.tolist() == sorted(record.start[like])
            assert stepped.ends[walk.sent[number]].tolist() == sorted(record.end[like])


def test_actions_that_wait_for_each_other() -> None:
    rows = ((Action("B", 0), Action("F", 0)), (Action("F", 0), Action("B", 0)))
    schedule = Schedule("crossed", rows, 1, 1, (loop_route(2, 1),), (0,))
    with pytest.raises(InputError, match="4 actions of crossed wait for each other"):
        Walk(schedule, overlap=True)


@st.composite
def intervals(draw: st.DrawFn) -> Intervals:
    """One after the other."""
    gaps = draw(st.lists(st.integers(0, 4), max_size=6))
    length = draw(st.integers(1, 3))
    begins = np.cumsum([gap + length for gap in gaps]) + draw(st.integers(0, 20))
    return begins.astype(float), (begins + length).astype(float)


@given(intervals(), intervals())
def test_which_intervals_overlap_and_since_when(one: Intervals, other: Intervals) -> None:
    both = {
        (number, place): max(begin, theirs)
        for number, (begin, end) in enumerate(zip(*one, strict=True))
        for place, (theirs, their_end) in enumerate(zip(*other, strict=True))
        if begin < their_end and theirs < end
    }
    found, turned = overlap(one, other), overlap(other, one)
    if found is None or turned is None:
        assert not both
        assert found is turned is None
        return
    assert found.since == turned.since == min(both.values())
    assert set(zip(found.ones.tolist(), found.others.tolist(), strict=True)) == set(both)
    assert set(zip(turned.others.tolist(), turned.ones.tolist(), strict=True)) == set(both)
