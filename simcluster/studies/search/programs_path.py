"""A lower bound of a step from its stage programs: the longest path through the ops of one rank a stage.

The ranks are those at the first place of every stage: they send to each other, and meet each other in what all stages
do together.  Each lane of a rank goes through its items in order, an item begins when what it needs is over, and takes
at least what its segment takes by itself on free links (``stretches``, ``free_links``).  So by induction over the items
in the order of their ends nothing in a run ends earlier than here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from simcluster.base.errors import InputError
from simcluster.faults.ranks import mean_attention
from simcluster.planning.ops import Item, Segment, StageProgram
from simcluster.planning.parallel import Plan
from simcluster.planning.works import Collective, Transfer
from simcluster.scenario.job import batch_of, methods_of
from simcluster.scenario.scenario import Scenario
from simcluster.studies.search.free_links import Drawn, Least, Way
from simcluster.studies.search.pass_times import least_pressures
from simcluster.studies.search.stretches import occupied

ROUNDING = 1e-6
"""More than what float sums in another order and the engine's grid make."""


def programs_path(
    scenario: Scenario, programs: Sequence[StageProgram], plan: Plan, drawn: Drawn | None = None
) -> float:
    """Seconds of a step at the least; 0 where stages hold the model more than once, or ops are of other kinds.

    ``drawn`` is what is known of groups on the scenario's cluster, from other layouts.
    """
    if plan.copies:
        return 0.0
    way = Way(plan, scenario.cluster.built, methods_of(scenario), drawn=drawn)
    pressures = least_pressures(scenario, plan)
    attention = mean_attention(scenario.faults, scenario.seed, batch_of(scenario), scenario.dp)
    walk = _Walk(programs, [_Seconds(Least(way, stage), attention, pressures) for stage in range(plan.pp)])
    try:
        return (1 - ROUNDING) * walk.end()
    except InputError:
        return 0.0


class _Seconds(dict[int, float]):
    """Least seconds of a stage's segments, by their identity."""

    def __init__(self, least: Least, attention: float, pressures: dict[str, float]) -> None:
        super().__init__()
        self._least, self._attention, self._pressures = least, attention, pressures

    def of(self, segment: Segment) -> float:
        """Of a segment."""
        if id(segment) not in self:
            self[id(segment)] = self._of(segment)
        return self[id(segment)]

    def _of(self, segment: Segment) -> float:
        if len(segment.ops) == 1 and isinstance(segment.ops[0].work, Transfer):
            return self._least[segment.ops[0].work]
        calls = {op.work: self._least[op.work] for op in segment.ops if isinstance(op.work, Collective)}
        pressures = dict.fromkeys((op.lane for op in segment.ops), 0.0) | self._pressures
        return occupied(segment, calls, self._attention, pressures).seconds


class _Lane(NamedTuple):
    stage: int
    items: Sequence[Item]


class _Walk:
    """All lanes of the ranks, each as far as it is known what its next item waits for."""

    def __init__(self, programs: Sequence[StageProgram], seconds: Sequence[_Seconds]) -> None:
        self._seconds, self._stages = seconds, len(programs)
        self._lanes = [_Lane(program.stage, items) for program in programs for items in program.lanes.values()]
        self._ready = list(range(len(self._lanes)))
        self._over: dict[tuple[int, Hashable], float] = {}
        self._waiting: dict[object, list[int]] = {}  # lanes by what they wait for
        self._met: dict[object, dict[int, float]] = {}  # when stages came to what they do together

    def end(self) -> float:
        """Seconds until all is over."""
        places, free = [0] * len(self._lanes), [0.0] * len(self._lanes)
        while self._ready:
            number = self._ready.pop()
            stage, items = self._lanes[number]
            while places[number] < len(items):
                item = items[places[number]]
                begin = self._begin(number, item, free[number])
                if begin is None:
                    break
                free[number] = begin + self._seconds[stage].of(item.segment)
                places[number] += 1
                for key in (item.key, *item.also):
                    self._over[stage, key] = free[number]
                    self._ready += self._waiting.pop((stage, key), ())
        assert all(place == len(lane.items) for place, lane in zip(places, self._lanes, strict=True)), "they wait"
        return max(free, default=0.0)

    def _begin(self, number: int, item: Item, free: float) -> float | None:
        """When an item can begin; None while that is not known, and its lane is told of what it waits for."""
        begin = free
        for need in item.needs:
            over = self._over.get(need)
            if over is None:
                self._waiting.setdefault(tuple(need), []).append(number)
                return None
            begin = max(begin, over)
        work = item.segment.ops[0].work
        stages = self._together(work.axis) if isinstance(work, Collective) else 0
        if stages < 2:
            return begin
        name = "met", item.key
        there = self._met.setdefault(name, {})
        there[self._lanes[number].stage] = begin
        if len(there) < stages:
            self._waiting.setdefault(name, []).append(number)
            return None
        self._ready += self._waiting.pop(name, ())
        return max(there.values())

    def _together(self, axis: str) -> int:
        """How many stages do it together."""
        return {"model": self._stages, "world": self._stages, "embedding": min(2, self._stages)}.get(axis, 0)
