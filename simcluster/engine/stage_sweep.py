"""A job's programs as one sweep, an accelerator for replicas: every op once, for all ranks of its stage and many cases.

The rules are the engine's: an op follows the one before it on its lane and what it waits for; a collective begins when
its last member arrives.  All ranks of a stage run the same ops, so a thousand ranks take as many steps here as the
stages have ops, and two hundred cases hardly more than one.  Durations are given: links and kernels do not slow each
other down here.  Unknown kinds of work are rejected by name; ``studies.whatif.chance_scope`` lists the scenarios.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.errors import InputError
from simcluster.engine.rank_groups import PlacedGroups, StagePlaces
from simcluster.planning import works
from simcluster.planning.ops import Item, Op, StageProgram, Work
from simcluster.planning.parallel import RankLayout

Seconds = Callable[[int, int, Floats], Floats]
"""Durations [case, place] (or what broadcasts to it) of an op, by its stage, its number there and when it begins
[case, place]: ops are numbered lane by lane, item by item, in the order of the program."""


@dataclass(slots=True)
class _Node:
    """An op of all ranks of a stage.  ``before``: nodes that end first, at the same place of their stage; ``meeting``:
    the number of its meeting, -1 for none."""

    stage: int
    number: int
    before: list[int] = field(default_factory=list)
    meeting: int = -1


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Nodes that meet.  ``groups`` are among places of ranks, counted through the nodes one after the other; None: the
    same places of two nodes (a send and its receive)."""

    nodes: tuple[int, ...]
    groups: PlacedGroups | None


class StageSweep:
    """The order in which the ops of a job can be timed; made once, used for many cases.

    ``ops[stage][number]`` is what a number means, with the item it belongs to; ``stage_ranks[stage][place]`` a rank.

    Raises InputError for ops that wait for each other for ever.
    """

    def __init__(self, programs: Sequence[StageProgram], layout: RankLayout) -> None:
        self.stage_ranks: list[Ints] = layout.stage_ranks()
        self.ops: list[list[tuple[Item, Op]]] = [[] for _ in programs]
        self._nodes: list[_Node] = []
        self._meetings: list[_Meeting] = []
        self._link(programs, layout)
        self._order = _order(self._nodes, self._meetings)
        self._last_use = self._uses()

    def __call__(self, seconds: Seconds, cases: int) -> Floats:
        """When the last op ends, in seconds, [case]; in arrays [case, place]."""
        ends: list[Floats | None] = [None] * len(self._nodes)
        total = np.zeros(cases)
        for turn, together in enumerate(self._order):
            if len(together) == 1 and self._nodes[together[0]].meeting < 0:
                ends[together[0]] = self._alone(together[0], seconds, ends, cases)
            else:
                ready = [self._ready(self._nodes[each], ends, cases) for each in together]
                self._meet_others(self._nodes[together[0]].meeting, seconds, ends, ready)
            for done in self._last_use[turn]:
                if done in self._leaves:
                    np.maximum(total, ends[done].max(axis=1), out=total)  # type: ignore[union-attr]
                ends[done] = None
        return total

    # --- simulating -------------------------------------------------------------------------------------------------

    def _ready(self, node: _Node, ends: Sequence[Floats | None], cases: int) -> Floats:
        """When an op could begin by itself."""
        if not node.before:
            return np.zeros((cases, len(self.stage_ranks[node.stage])))
        found = ends[node.before[0]]
        assert found is not None
        for other in node.before[1:]:
            found = np.maximum(found, ends[other])  # type: ignore[arg-type]
        return found

    def _alone(self, number: int, seconds: Seconds, ends: Sequence[Floats | None], cases: int) -> Floats:
        node = self._nodes[number]
        ready = self._ready(node, ends, cases)
        return ready + seconds(node.stage, node.number, ready)

    def _meet_others(self, number: int, seconds: Seconds, ends: list[Floats | None], ready: Sequence[Floats]) -> None:
        """Set the ends of nodes that meet."""
        meeting = self._meetings[number]
        nodes = [self._nodes[each] for each in meeting.nodes]
        if meeting.groups is None:
            start = np.maximum(*ready)
            over = start + seconds(nodes[0].stage, nodes[0].number, start)
            for each in meeting.nodes:
                ends[each] = over
            return
        start = meeting.groups.latest(ready[0] if len(ready) == 1 else np.concatenate(ready, axis=1))
        first = 0
        for each, node in zip(meeting.nodes, nodes, strict=True):
            size = len(self.stage_ranks[node.stage])
            begin = start[:, first : first + size]
            ends[each] = begin + seconds(node.stage, node.number, begin)
            first += size

    # --- putting together -------------------------------------------------------------------------------------------

    def _link(self, programs: Sequence[StageProgram], layout: RankLayout) -> None:
        """Nodes in the order of the programs, and what each waits for."""
        ended: dict[tuple[int, Hashable], int] = {}
        waiting: list[tuple[int, Item]] = []
        meeting: dict[Hashable, list[int]] = {}
        for stage, program in enumerate(programs):
            lanes: dict[str, int] = {}
            for items in program.lanes.values():
                for item in items:
                    first = len(self._nodes)
                    for index, op in enumerate(item.segment.ops):
                        node = _Node(stage, len(self.ops[stage]), [first + earlier for earlier in op.after])
                        self.ops[stage].append((item, op))
                        number = len(self._nodes)
                        self._nodes.append(node)
                        if op.lane in lanes and lanes[op.lane] not in node.before:
                            node.before.append(lanes[op.lane])
                        lanes[op.lane] = number
                        name = _meets(op.work, item.key, index)
                        if name is not None:
                            meeting.setdefault(name, []).append(number)
                    if item.needs:
                        waiting.append((first, item))
                    for key in (item.key, *item.also):
                        ended[stage, key] = len(self._nodes) - 1
        for first, item in waiting:
            self._nodes[first].before += [ended[need.stage, need.key] for need in item.needs]
        places = StagePlaces(self.stage_ranks, layout)
        for name, numbers in meeting.items():
            self._meet(name, numbers, places)

    def _meet(self, name: Hashable, numbers: Sequence[int], places: StagePlaces) -> None:
        """The meetings of ops of one name: a send with its receive, or as many as there are unconnected stages."""
        assert isinstance(name, tuple)
        if name[0] == "send":
            self._add(_Meeting(tuple(numbers), None))
            return
        by_stage = {self._nodes[number].stage: number for number in numbers}
        assert len(by_stage) == len(numbers), name
        for stages, groups in places.joined(name[0], tuple(by_stage)):
            if not by_stage.keys() >= set(stages):
                raise InputError(f"ranks of stages {stages} are to meet ({name[0]}), and some of them never do")
            self._add(_Meeting(tuple(by_stage[stage] for stage in stages), groups))

    def _add(self, meeting: _Meeting) -> None:
        for number in meeting.nodes:
            self._nodes[number].meeting = len(self._meetings)
        self._meetings.append(meeting)

    def _uses(self) -> list[list[int]]:
        """For every turn the nodes that nobody asks for after it; and which of them nobody ever waits for."""
        last = [0] * len(self._nodes)
        self._leaves = set(range(len(self._nodes)))
        for turn, together in enumerate(self._order):
            for number in together:
                last[number] = turn
                for other in self._nodes[number].before:
                    last[other] = turn
                    self._leaves.discard(other)
        found: list[list[int]] = [[] for _ in self._order]
        for number, turn in enumerate(last):
            found[turn].append(number)
        return found


PROVED = (works.Compute, works.Collective, works.Timed, works.Transfer, works.Receive, works.Copy, works.Host)
"""The kinds of work that a sweep is proved for."""


def _meets(work: Work, key: Hashable, index: int) -> Hashable:
    """The name under which an op meets others; None for one that meets none.  InputError for work of a kind unknown."""
    if type(work) not in PROVED:
        raise InputError(f"the sweep of replicas does not know {type(work).__name__}; use method events")
    if work.joins:
        assert isinstance(key, tuple), key
        return "send", key[1], index
    if work.axis:
        return work.axis, key, index
    return ("send", key, index) if work.parties(1) > 1 else None


def _order(nodes: Sequence[_Node], meetings: Sequence[_Meeting]) -> list[tuple[int, ...]]:
    """Nodes so that each stands behind what it waits for; those that meet together (Kahn's algorithm)."""
    missing = [len(node.before) for node in nodes]
    absent = [len(meeting.nodes) for meeting in meetings]
    behind: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for other in node.before:
            behind[other].append(number)
    order: list[tuple[int, ...]] = []
    free = [number for number, count in enumerate(missing) if not count]
    while free:
        number = free.pop()  # depth first: what is fresh in the caches is used
        together: tuple[int, ...] = (number,)
        meeting = nodes[number].meeting
        if meeting >= 0:
            absent[meeting] -= 1
            if absent[meeting]:
                continue
            together = meetings[meeting].nodes
        order.append(together)
        for done in together:
            for other in behind[done]:
                missing[other] -= 1
                if not missing[other]:
                    free.append(other)
    if sum(map(len, order)) < len(nodes):
        raise InputError(f"{sum(1 for count in missing if count)} ops wait for each other, as the engine would say")
    return order
