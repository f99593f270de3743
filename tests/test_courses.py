"""Courses that equal ranks share, tasks that look at changes late, and instants that are one event: nothing differs."""

from __future__ import annotations

from collections.abc import Sequence

import simpy
from hypothesis import given
from hypothesis import strategies as st
from test_in_step import TICKS, chains

from simcluster.lowering.program import Pace
from simcluster.lowering.rhythm import Chain, Playing
from simcluster.planning.profiles import STEADY
from simcluster.simulating.agenda import Agenda, at_end_of_instant, happens
from simcluster.simulating.courses import Courses
from simcluster.simulating.tasks import Followed, Place, Several, Single, Task

PRESSURES = st.sampled_from([0.0, 0.2, 0.7])
CHANGES = st.lists(st.tuples(TICKS, PRESSURES), max_size=6, unique_by=lambda change: change[0]).map(sorted)


@given(chain=chains(), first=PRESSURES, changes=CHANGES, looks=st.lists(st.booleans(), min_size=6, max_size=6))
def test_a_course_is_the_chain_pressed_one_by_one(
    chain: list[Pace], first: float, changes: list[tuple[float, float]], looks: list[bool]
) -> None:
    begin = 3.5
    alone = Playing(Chain(chain), begin, (first,), (STEADY,))
    courses = Courses(Chain(chain))
    before = courses.under((first,))
    course, waiting = before, []
    for (after, pressure), look in zip(changes, looks, strict=False):
        if alone.ends()[0] <= begin + after:
            break
        alone.press(begin + after, (pressure,))
        waiting.append((after, (pressure,)))
        if look:  # at all changes so far in one go
            course, waiting = course.after(tuple(waiting)), []
    known = course.after(tuple(waiting))
    assert course.after(tuple(waiting)) is known
    assert courses.under((first,)) is before
    assert known.ends == [end - begin for end in alone.ends()]
    assert known.ends[0] >= courses.least
    alone.advance(alone.ends()[0])
    for shared, own in zip(known.times(), alone.times(), strict=True):
        assert shared.tolist() == (own - begin).tolist()


def play(task: Task, place: Place, begin: float, changes: Sequence[tuple[float, float]]) -> tuple[float, list[float]]:
    """When a rank's task is over that is looked at only when it asks for it, and when its rows end."""
    todo = [(begin + after, pressure) for after, pressure in changes]
    due = task.next_look
    while True:
        while todo and todo[0][0] < due:
            now, place.pressure = todo.pop(0)
            task.pressures[0] = place.pressure
            if task.press(now):
                due = min(due, task.next_look)
        if task.end(due):
            assert task.next_look == float("inf")
            return due, task.kept()()[1].tolist()
        due = task.next_look


@given(chain=chains(), first=PRESSURES, changes=CHANGES)
def test_a_task_that_looks_late_is_one_that_follows_every_change(
    chain: list[Pace], first: float, changes: list[tuple[float, float]]
) -> None:
    changes = [(after, pressure) for after, pressure in changes if after > 0]
    over = simpy.Event(simpy.Environment())
    found, slowed = [], []
    for kind in (Single, Several, Followed):
        place = Place(STEADY)
        place.pressure = first
        task: Task
        if kind is Single:
            task = Single(0, place, over, 2.0, Courses(Chain(chain)))
        elif kind is Several:
            task = Several([0], [place], [over], 2.0, Courses(Chain(chain)))
        else:
            task = Followed([0], [place], [over], 2.0, Chain(chain))
        found.append(play(task, place, 2.0, changes))
        slowed.append(task.slowed)
    assert found[0] == found[1] == found[2]
    assert len(set(slowed)) == 1


def test_what_is_due_at_one_instant_is_one_event_in_its_order() -> None:
    env = simpy.Environment()
    agenda: Agenda[str] = Agenda(env)
    told: list[tuple[float, list[str]]] = []

    def take(timer: simpy.Event) -> None:
        told.append((env.now, agenda.take(env.now)))
        if env.now == 2.0 and len(told) == 2:
            agenda.put(2.0, "again", take)

    for instant, item in ((2.0, "b"), (1.0, "a"), (2.0, "c")):
        agenda.put(instant, item, take)
    env.run()
    assert told == [(1.0, ["a"]), (2.0, ["b", "c"]), (2.0, ["again"])]
    assert next(env._eid) == 3


def test_the_end_of_an_instant_is_after_all_that_it_leads_to() -> None:
    env = simpy.Environment()
    order: list[str] = []
    waited = simpy.Event(env)

    def waiter() -> simpy.events.ProcessGenerator:
        yield waited
        order.append("goes on at once")
        yield env.timeout(0.0)
        order.append("and a little later")

    def other() -> simpy.events.ProcessGenerator:
        yield env.timeout(1.0)
        at_end_of_instant(env, lambda _: order.append("end"))
        happens(waited)
        order.append("then the other one")

    env.process(waiter())
    env.process(other())
    env.run()
    assert order == ["goes on at once", "then the other one", "and a little later", "end"]
    assert waited.processed
