"""Courses that equal ranks share, tasks that look at changes late, and instants that are one event: nothing differs."""

from __future__ import annotations

from collections.abc import Sequence

import simpy
from hypothesis import example, given
from hypothesis import strategies as st
from test_in_step import TICKS, chains

from simcluster.base.profiles import STEADY
from simcluster.engine.calendar import Agenda, Instant, Lane, Lanes, Timer, at_end_of_instant
from simcluster.engine.compute_tasks import LateTask, RankState, Task, comes
from simcluster.engine.lone_task import LoneTask
from simcluster.engine.trajectories import Courses
from simcluster.engine.varying_speed import Followed
from simcluster.programs.chain import Chain, Playing
from simcluster.programs.program import ChainPace

PRESSURES = st.sampled_from([0.0, 0.2, 0.7])
LANE: Lane = (None for _ in ())
CHANGES = st.lists(st.tuples(TICKS, PRESSURES), max_size=6, unique_by=lambda change: change[0]).map(sorted)


@given(chain=chains(), first=PRESSURES, changes=CHANGES, looks=st.lists(st.booleans(), min_size=6, max_size=6))
def test_a_course_is_the_chain_pressed_one_by_one(
    chain: list[ChainPace], first: float, changes: list[tuple[float, float]], looks: list[bool]
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


def play(
    task: Task, place: RankState, begin: float, changes: Sequence[tuple[float, float]], *, before: bool
) -> tuple[float, list[float]]:
    """When a rank's task is over that is looked at when it asks for it, and when its rows end.

    ``before``: a change comes before a look at the same instant.  Each comes by way of another pressure.
    """
    todo = [(begin + after, pressure) for after, pressure in changes]
    due = task.next_look
    while True:
        while todo and (todo[0][0] < due or (before and todo[0][0] == due)):
            now, pressure = todo.pop(0)
            place.press(now, place.pressure + 0.1)
            place.press(now, pressure)
            if task.watches and now < due:
                task.settle(now)
                due = min(due, task.next_look)
        if task.end(due):
            assert task.next_look == float("inf")
            return due, task.kept().times()[1].tolist()
        if not task.watches or place.log[-1][0] == due:
            task.watches = True
            task.settle(due)
        due = task.next_look


@example(  # what pressed until it began did not press on it
    chain=[ChainPace(0.0, None, 0.0), ChainPace(0.125, 1.0, 0.0)], first=0.2, changes=[(0.0, 0.0)], before=False
)
@given(chain=chains(), first=PRESSURES, changes=CHANGES, before=st.booleans())
def test_a_task_that_looks_late_is_one_that_follows_every_change(
    chain: list[ChainPace], first: float, changes: list[tuple[float, float]], before: bool
) -> None:
    found, slowed = [], []
    for kind in (LateTask, LoneTask, Followed):
        place = RankState(STEADY)
        place.press(1.0, first)
        task = task_of(kind, place, Chain(chain), 2.0)
        found.append(play(task, place, 2.0, changes, before=before))
        slowed.append(task.slowed)
    assert found[0] == found[1] == found[2]
    assert len(set(slowed)) == 1


def task_of(kind: type[Task], place: RankState, chain: Chain, begin: float) -> Task:
    """A task of each kind, of one rank that begins."""
    if kind is LoneTask:
        return LoneTask(0, LANE, place, lambda task: None, begin, Courses(chain))
    members = [comes(LANE, place, begin)]
    if kind is LateTask:
        return LateTask(0, members, lambda task: None, begin, Courses(chain))
    return Followed(0, members, lambda task: None, begin, chain)


def test_at_an_instant_the_last_word_on_a_pressure_counts() -> None:
    place = RankState(STEADY)
    for now, pressure in ((1.0, 0.2), (2.0, 0.7), (2.0, 0.2), (3.0, 0.7), (3.0, 0.4)):
        place.press(now, pressure)
    assert place.log[-2:] == [(1.0, 0.2), (3.0, 0.4)]
    assert place.pressure == 0.4


def test_a_place_keeps_no_more_of_its_log_than_somebody_needs() -> None:
    place = RankState(STEADY)
    for now in range(9):
        place.press(float(now), float(1 + now % 2))
    task = LateTask(0, [comes(LANE, place, 9.0)], lambda task: None, 9.0, Courses(Chain([ChainPace(1.0, 0.5)])))
    assert len(place.log) == 2
    for now in range(10, 20):
        place.press(float(now), float(1 + now % 2))
    LateTask(1, [comes(LANE, place, 20.0)], lambda task: None, 20.0, Courses(Chain([ChainPace(1.0, 0.5)])))
    assert len(place.log) == 12  # the first one has not been looked at
    place.leave(task)


def test_what_is_due_at_one_instant_is_one_event_in_its_order() -> None:
    env = simpy.Environment()
    agenda: Agenda[str] = Agenda(env)
    told: list[tuple[float, list[str]]] = []

    def take(event: Instant) -> None:
        told.append((env.now, agenda.take(event.instant)))
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

    def now(_: Instant) -> None:
        at_end_of_instant(env, lambda _: order.append("end"))
        order.append("now")
        Timer(env, lambda _: order.append("a little later")).wait(0.0)

    Timer(env, now).wait(1.0)
    env.run()
    assert order == ["now", "a little later", "end"]


def test_a_timer_comes_as_often_as_it_is_asked_for() -> None:
    env = simpy.Environment()
    told: list[float] = []

    def take(_: Instant) -> None:
        told.append(env.now)
        if len(told) < 3:
            timer.wait(2.0)

    timer = Timer(env, take)
    timer.wait(1.0)
    env.run()
    assert told == [1.0, 3.0, 5.0]


def test_a_lane_that_lets_another_go_on_stops_first() -> None:
    lanes, order = Lanes(), []

    def lane(name: str, others: Sequence[Lane]) -> Lane:
        order.append(name)
        lanes.go_on(others)
        order.append(f"{name} stops")
        yield
        order.append(f"{name} is over")

    second = lane("second", ())
    lanes.go_on([lane("first", (second, second))])
    assert order == ["first", "first stops", "second", "second stops", "second is over"]
