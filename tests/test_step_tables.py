"""Tables of a step from a schedule and the costs of its works, against a longest path over the schedule's actions."""

from __future__ import annotations

from itertools import count

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.clock import round_to_tick
from simcluster.base.lru_cache import LruCache
from simcluster.engine.tables import CommunicationKind
from simcluster.planning.ops import MAIN
from simcluster.schedules import Schedule, make_schedule
from simcluster.studies.sweep.step_tables import (
    ActionWork,
    Costs,
    ScheduleColumns,
    SendWork,
    StepTemplate,
    TimedOp,
    find_work_shapes,
    make_schedule_columns,
    simulate_template,
)
from simcluster.traffic.traffic import Traffic

ORDERS = [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-v", 2)]


def fixed(seconds: float) -> CommunicationKind:
    """A communication of a stage alone, of known duration."""
    return CommunicationKind(1, (Traffic((), 0.0, 1, seconds),))


def simulated(items: ScheduleColumns, costs: list[Costs], stages: int) -> float:
    shapes, kinds = find_work_shapes(costs)
    return simulate_template(StepTemplate(items, shapes, stages), costs, kinds, [], LruCache(1))


def longest_path(schedule: Schedule, seconds: dict[ActionWork | SendWork, float], *, overlap: bool) -> list[float]:
    """When stages are over with their actions and sends, found action by action until nothing changes."""
    at, free = [0] * schedule.num_stages, [0.0] * schedule.num_stages
    lanes: dict[object, float] = {}
    arrived: dict[object, float] = {}
    for _ in count():
        moved = False
        for stage, row in enumerate(schedule.rows):
            while at[stage] < len(row):
                action = row[at[stage]]
                here, forward = (action.microbatch, stage, action.chunk), action.kind == "F"
                hops = schedule.previous_hop(*here), schedule.next_hop(*here)
                source, target = (None, None) if action.kind == "W" else hops if forward else hops[::-1]
                name = forward, action.microbatch, stage, action.chunk
                arrives = source is not None and source[0] != stage
                if arrives and name not in arrived:
                    break
                begin = max(free[stage], arrived[name]) if arrives else free[stage]
                free[stage] = begin + seconds[ActionWork(action.kind, stage, action.chunk, arrives)]
                if target is not None and target[0] != stage:
                    sent = SendWork("F" if forward else "B", stage, target[0])
                    lane = (stage, sent.kind) if overlap else stage
                    over = max(free[stage], lanes.get(lane, 0.0)) + seconds[sent]
                    lanes[lane] = arrived[forward, action.microbatch, *target] = over
                    if not overlap:
                        free[stage] = over
                at[stage] += 1
                moved = True
        if not moved:
            assert at == [len(row) for row in schedule.rows]
            return [max([free[stage], *lanes.values()]) for stage in range(schedule.num_stages)]
    raise AssertionError


@given(st.data(), st.sampled_from(ORDERS), st.integers(2, 5), st.integers(1, 3), st.booleans(),
       st.sampled_from(["whole", "side lane", "side communication"]))  # fmt: skip
def test_a_step_is_the_longest_path_of_its_schedule(
    data: st.DataObject, order: tuple[str, int], stages: int, rounds: int, overlap: bool, form: str
) -> None:
    """Sends are short or long, so that they queue; an action is one op, or three with one on a side lane."""
    schedule = make_schedule(order[0], stages, stages * rounds, order[1])
    items = make_schedule_columns(schedule, overlap=overlap, casts=False)
    seconds, costs = {}, list[Costs]()
    for work in items.distinct_works:
        draw = st.integers(0, 40) if isinstance(work, SendWork) else st.integers(9, 30)
        seconds[work] = round_to_tick(data.draw(draw) / 100)  # steps beyond 512 s are on a coarser grid
        if isinstance(work, SendWork):
            lane = f"send {work.kind}" if overlap else MAIN
            costs.append((TimedOp(communication=fixed(seconds[work]), lane=lane),))
        elif form == "whole":
            costs.append((TimedOp(seconds[work]),))
        else:
            third = round_to_tick(seconds[work] / 3)
            side = TimedOp(third) if form == "side lane" else TimedOp(communication=fixed(third))
            side = side._replace(lane="side", after=(0,))
            costs.append((TimedOp(third), side, TimedOp(seconds[work] - 2 * third, after=(1,))))
    costs += [()] * stages
    expected = longest_path(schedule, seconds, overlap=overlap)
    assert simulated(items, costs, stages) == max(expected)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.lists(st.integers(0, 9), min_size=2, max_size=5))
def test_stages_meet_in_ends_of_one_name(before: list[int], meeting: list[int]) -> None:
    """Each meeting begins when all stages are there; an end without a name is a stage's alone."""
    stages = len(before)
    none = np.zeros(0, dtype=np.int64)
    works = [ActionWork("F", stage, 0, arrives=False) for stage in range(stages)]
    items = ScheduleColumns(tuple(works), np.arange(2 * stages), none, none)
    together = [CommunicationKind(stages, (Traffic((), 0.0, 1, float(each)),)) for each in meeting]
    meetings = [TimedOp(communication=each, meeting_key=("all", number)) for number, each in enumerate(together)]
    costs: list[Costs] = [(TimedOp(float(each)),) for each in before]
    ends = [(*meetings[:1], TimedOp(float(stage)), *meetings[1:]) for stage in range(stages)]
    assert simulated(items, [*costs, *ends], stages) == max(before) + sum(meeting) + stages - 1
