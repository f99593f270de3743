"""The network of a job whose ranks are equal within each stage: one representative rank per stage.

It is made once for a layout and then serves any sizes: the algorithm of a collective depends on its size, its load on
links only on the algorithm.  The folding and the communicators of a full run decide which ranks are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from simcluster.base.clock import on_grid
from simcluster.base.errors import InputError
from simcluster.base.kept import Kept
from simcluster.collectives import Group
from simcluster.engine.communication_kinds import CommunicationKinds
from simcluster.engine.op_columns import GroupWork
from simcluster.engine.tables import CommunicationKind
from simcluster.planning.ops import MAIN, Item, Need, Op, Segment, StageProgram
from simcluster.planning.parallel import Plan
from simcluster.planning.works import Collective, Compute, Transfer
from simcluster.step.planned import Choices
from simcluster.studies.sweep.step_tables import (
    ActionWork,
    Costs,
    Items,
    Sent,
    StepTemplate,
    TimedOp,
    shapes_of,
    step_seconds,
)
from simcluster.symmetry.classes import Classes, find_shared
from simcluster.symmetry.communicators import Communicators, patterns_of
from simcluster.symmetry.folding import odd_of, seen_by
from simcluster.symmetry.quotient import Quotient
from simcluster.topology import Cluster
from simcluster.traffic.fairness import Usage
from simcluster.traffic.methods import Method, activities
from simcluster.traffic.traffic import Traffic, group_of


class NotQuickError(InputError):
    """A scenario that needs a full run; the message says why."""


class StageCall(NamedTuple):
    """A stage's use of the network: a collective over an axis, or a send to a stage on one of its lanes."""

    stage: int
    axis: str | int
    kind: str
    size: float
    lane: str = MAIN


Calls = Callable[[], Iterable[StageCall]]
"""Calls, listed when they are wanted."""


class RepresentativeCalls:
    """The communication of the stages' representatives on a cluster without faults.

    ``stage_ranks`` are these ranks, ``capacity`` B/s of every class of links.
    """

    def __init__(
        self,
        stage_ranks: Sequence[int],
        communicators: Communicators,
        classes: Classes,
        kinds: CommunicationKinds,
        capacity: Sequence[float],
    ) -> None:
        self.capacity, self.num_stages = capacity, len(stage_ranks)
        self._ranks, self._classes, self._kinds, self._number = stage_ranks, classes, kinds, cache(communicators.number)
        self._stage = {classes.of_rank[rank]: stage for stage, rank in reversed([*enumerate(stage_ranks)])}
        self._shared = find_shared(classes, communicators.seen.bindings)
        self._alone: dict[tuple[Collective, ...], list[tuple[tuple[float | None, float], ...]]] = {}
        self._costs: dict[Hashable, CommunicationKind] = {}
        self._sends: dict[Hashable, Costs] = {}

    def ops(self, stage: int, segment: Segment) -> Costs:
        """Return every op of a segment with its own cost."""
        return tuple([self._timed(stage, op, segment.ops[0].lane) for op in segment.ops])

    def send(self, hop: Sent, size: float, *, overlap: bool) -> Costs:
        """Return the cost of a send."""
        name = hop, size, overlap
        if name not in self._sends:
            lane = hop.lane(overlap=overlap)
            _, communication = self.communication(hop.stage, Op(Transfer(hop.target, size), "pp", "", "", lane=lane))
            self._sends[name] = (TimedOp(communication=communication, lane=lane),)
        return self._sends[name]

    def seconds(self, stage: int, segment: Segment) -> float | None:
        """Return the duration of a segment without computation or traffic outside it; None if it depends on others."""
        ops = segment.ops
        own = [self._seconds(stage, op, ops[0].lane) for op in ops]
        known = [each for each in own if each is not None]
        if len(known) < len(own):
            return None
        if all(op.lane == ops[0].lane for op in ops):
            return sum(known)
        costs, none = [self.ops(stage, segment)], np.zeros(0, dtype=np.int64)
        items = Items((ActionWork("", stage, 0, arrives=False),), np.zeros(1, dtype=np.int64), none, none)
        return step_seconds(StepTemplate(items, shapes_of(costs), self.num_stages), costs, self.capacity, Kept(1))

    def _seconds(self, stage: int, op: Op, own_lane: str) -> float | None:
        """Return the duration of an op in a segment that begins on this lane, None if it depends on others."""
        work = op.work
        group = work.group(stage)
        if group is None:
            return on_grid(work.seconds)
        if group[0] == "send":
            return None
        number, cost = self.communication(stage, op)
        if cost.parties > 1 or self._shared[number] or cost.drag or (cost.pressure and op.lane == own_lane):
            return None
        return sum(
            traffic.alone_seconds(self.capacity) if traffic.round_bytes else traffic.latency_seconds
            for traffic in cost.traffics
        )

    def _timed(self, stage: int, op: Op, own_lane: str) -> TimedOp:
        seconds = self._seconds(stage, op, own_lane)
        if op.work.group(stage) is not None:
            _, cost = self.communication(stage, op)
            if seconds is None or cost.pressure or cost.drag:
                return TimedOp(0.0, -1.0, cost, op.lane, op.after)
        assert seconds is not None, op
        sensitivity = -1.0 if op.work.sensitivity is None else op.work.sensitivity
        return TimedOp(seconds, sensitivity, None, op.lane, op.after)

    def alone(self, works: tuple[Collective, ...]) -> list[tuple[tuple[float | None, float], ...]]:
        """Return the seconds and the pressure of collectives over tp, on the main lane and on another, for every stage.

        The seconds are None if they depend on others.
        """
        if works not in self._alone:
            ops = [Op(work, "tp", work.kind, "", lane=lane) for work in works for lane in (MAIN, "tp")]
            self._alone[works] = [
                tuple([(self._seconds(stage, op, op.lane), self.communication(stage, op)[1].pressure) for op in ops])
                for stage in range(self.num_stages)
            ]
        return self._alone[works]

    def communication(self, stage: int, op: Op) -> tuple[int, CommunicationKind]:
        """Return the class of an op's communicator, and the communication of its members, whose ranks are stages."""
        work, rank = op.work, self._ranks[stage]
        number = self._number(work.group(stage), rank)
        group = self._classes.of_communicator[number]
        name = group, work, work.presses(op.lane)
        found = self._costs.get(name)
        if found is None:
            kind = self._kinds.kind(number, GroupWork(work, work.presses(op.lane)))
            found = self._costs[name] = kind._replace(ranks=tuple([self._stage[each] for each in kind.ranks]))
        return group, found


class RepresentativeNetwork:
    """The links under a layout on a cluster without faults, on which calls are drawn as they become known."""

    def __init__(self, plan: Plan, cluster: Cluster, choices: Choices) -> None:
        self._plan, self._cluster, self._choices = plan, cluster, choices
        self._stage_ranks: list[list[int]] = [ranks.tolist() for ranks in plan.stage_ranks()]
        self._groups = cache(plan.groups)
        self._group_of = cache(partial(group_of, cluster))
        self._group = cache(self._find_group)
        self._learnt: dict[Hashable, None] = {}
        self._calls: dict[Hashable, StageCall] = {}
        self._drawn: RepresentativeCalls | None = None

    @property
    def blank(self) -> bool:
        """Return whether nothing has been drawn yet."""
        return not self._learnt

    def learn(self, calls: Mapping[Hashable, Calls]) -> RepresentativeCalls:
        """Draw these calls on the links and return what is known of all; NotQuickError where ranks of a stage differ.

        Calls of a name are listed once.  New ones are drawn together, unless equal ones have been.
        """
        listed = [call for what, each in calls.items() if what not in self._learnt for call in each()]
        found = {self._name(call): call for call in listed}
        new = {name: call for name, call in found.items() if name not in self._calls}
        if new:
            self._drawn = self._draw([*self._calls.values(), *new.values()])
        self._calls |= new  # unless they cannot be drawn
        self._learnt |= dict.fromkeys(calls)
        if self._drawn is None:
            raise NotQuickError("ranks of one stage differ in how they reach others")
        return self._drawn

    def _name(self, call: StageCall) -> Hashable:
        """Return a name that is equal for calls with equal loads on the links."""
        if isinstance(call.axis, int):
            return call.stage, call.axis, call.lane
        method = self._choices.methods.of(self._group(call.stage, call.axis), call.kind, call.size)
        return call.stage, call.axis, call.kind, method.algorithm

    def _find_group(self, stage: int, axis: str) -> Group:
        """Return the group over an axis of a stage's first rank."""
        table = self._groups(axis)
        ranks = table[int((table == self._stage_ranks[stage][0]).any(axis=1).argmax())]
        return self._group_of(tuple(ranks.tolist()))

    def _draw(self, calls: Iterable[StageCall]) -> RepresentativeCalls | None:
        plan, cluster, choices = self._plan, self._cluster, self._choices
        programs = _programs(plan.pp, calls)
        communicators = _AnySize(programs, plan, cluster, choices.methods)
        communicators.group_of = self._group_of
        capacity = cluster.link_capacity
        odd = odd_of(capacity, capacity, [1.0] * plan.num_ranks)
        classes = seen_by(communicators, Quotient.whole(plan.num_ranks), odd).classes
        if len(classes.rank_representatives) != plan.pp or not communicators.alike():
            return None
        representatives = [classes.rank_representatives[classes.of_rank[ranks[0]]] for ranks in self._stage_ranks]
        on_links = capacity.of(np.array(classes.link_representatives, dtype=np.int64)).tolist()
        kinds = CommunicationKinds(cluster, communicators, classes, capacity, choices.interference, in_steps=False)
        return RepresentativeCalls(representatives, communicators, classes, kinds, on_links)


class _AnySize(Communicators):
    """Communicators that also serve sizes that are not in the programs, by the same algorithms.

    ``group_of`` makes the group of ranks.
    """

    group_of: Callable[[tuple[int, ...]], Group]

    def alike(self) -> bool:
        """Return whether groups of one kind and stage have one form, so that all sizes treat them equally."""
        for kinds in self._named.values():
            form_of = np.full(int(self.stage_of.max()) + 1, -1, dtype=np.int64)  # of some group of every stage
            pairs = []
            for kind in kinds:
                stage = self.stage_of[kind.table[:, :1] if kind.directed else kind.table]
                form = np.broadcast_to(kind.form[kind.those.told][:, None], stage.shape)
                form_of[stage] = form
                pairs.append((stage, form))
            if any((form_of[stage] != form).any() for stage, form in pairs):
                return False
        return True

    def method(self, number: int, kind: str, size: float) -> Method:
        """Return the method of this group for a collective of any size."""
        return self._methods.of(self.group_of(tuple(self.ranks(number))), kind, size)

    def traffics(self, number: int, kind: str, size: float, usages: Sequence[Usage]) -> tuple[Traffic, ...]:
        """Return the activities of a collective of any size."""
        method = self.method(number, kind, size)
        drawn = (
            parts
            for call, (other, parts) in self._form(number).items()
            if call[0] == kind and other.algorithm == method.algorithm
        )
        return activities(patterns_of(next(drawn), usages), size, method)


def _programs(num_stages: int, calls: Iterable[StageCall]) -> list[StageProgram]:
    """Return programs in which every stage makes its calls once, and receivers wait for what is sent."""
    begin, every, programs = Op(Compute(1.0), "compute", "", ""), [*calls], []
    for stage in range(num_stages):
        own = [call for call in every if call.stage == stage]
        ahead, after = ([begin], [begin])
        for call in own:
            if isinstance(call.axis, str):
                group = Op(Collective(call.kind, call.axis, call.size), "", "", "")
                (ahead if call.axis == "tp" else after).append(group)
        lanes: dict[str, list[Item]] = {MAIN: [Item(Segment(tuple(ahead)), ("ahead", stage))]}
        for call in own:
            if isinstance(call.axis, int):
                send = Op(Transfer(call.axis, call.size), "", "", "", lane=call.lane)
                item = Item(Segment((send,)), ("sent", stage, call.axis), (Need(stage, ("ahead", stage)),))
                lanes.setdefault(call.lane, []).append(item)
        needs = dict.fromkeys(Need(call.stage, ("sent", call.stage, stage)) for call in every if call.axis == stage)
        for number, op in enumerate(after):
            lanes[MAIN].append(Item(Segment((op,)), ("after", number), () if number else tuple(needs)))
        programs.append(StageProgram(stage, lanes))
    return programs
