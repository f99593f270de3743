"""Network of a job whose ranks are equal within each stage, with one representative rank per stage.

It is made once for a layout and then serves any sizes: the algorithm of a collective depends on its size, its load on
links only on the algorithm. The folding and the communicators of a full run decide which ranks are equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache, partial

import numpy as np

from simcluster.base.clock import round_to_tick
from simcluster.base.errors import InputError
from simcluster.base.kept import LruCache
from simcluster.collectives import Group
from simcluster.engine.communication_kinds import CommunicationKinds
from simcluster.engine.op_columns import GroupWork
from simcluster.engine.tables import CommunicationKind
from simcluster.planning.ops import MAIN, Item, Need, Op, Segment, StageProgram
from simcluster.planning.parallel import Plan
from simcluster.planning.works import Collective, Compute, Transfer
from simcluster.step.planned import CollectiveOptions
from simcluster.studies.sweep.step_tables import (
    ActionWork,
    Costs,
    Items,
    SendWork,
    StepTemplate,
    TimedOp,
    find_shapes,
    step_seconds,
)
from simcluster.symmetry.classes import find_shared
from simcluster.symmetry.communicators import Communicators, Part, group_patterns
from simcluster.symmetry.folding import Folding, fold_window
from simcluster.symmetry.orbits import Irregularities
from simcluster.symmetry.quotient import Quotient
from simcluster.topology import Cluster
from simcluster.traffic.fairness import Usage
from simcluster.traffic.methods import Method, make_activities
from simcluster.traffic.traffic import Traffic, group_of


class NotQuickError(InputError):
    """Error of a scenario that needs a full run; the message states why."""


StageOp = tuple[int, Op]
"""A stage's use of the network: a collective, or a send to a stage on one of its lanes."""
TimesAlone = tuple[tuple[float | None, float], ...]
"""The seconds (None: they depend on others) and the pressure of collectives."""


class RepresentativeCalls:
    """Communication of the stages' representative ranks on a cluster without faults.

    ``ranks`` are the stages' representatives, ``capacity`` B/s of every class of links.
    """

    def __init__(self, ranks: Sequence[int], folding: Folding, cluster: Cluster, choices: CollectiveOptions) -> None:
        communicators, classes, links = folding.communicators, folding.classes, cluster.link_capacity
        representatives = np.array(classes.link_representatives, dtype=np.int64)
        self.capacity, self.num_stages = links.of(representatives).tolist(), len(ranks)
        self._ranks, self._number, self._class_of = ranks, cache(communicators.number), classes.of_communicator
        self._kinds = CommunicationKinds(cluster, communicators, classes, links, choices.interference, in_steps=False)
        self._stage = {classes.of_rank[rank]: stage for stage, rank in reversed([*enumerate(ranks)])}
        self._shared = find_shared(classes, communicators.seen)
        self._costs: dict[Hashable, CommunicationKind] = {}
        self.alone, self.sends = cache(self._find_times_alone), cache(self._find_sends)

    def ops(self, stage: int, segment: Segment) -> Costs:
        """Return the ops of a segment on a stage with their costs."""
        return tuple([self._timed_op(stage, op, segment.ops[0].lane)[1] for op in segment.ops])

    def end(self, stage: int, key: Hashable, op: Op) -> TimedOp:
        """Return an op at the end of a stage with its cost; equal keys mark ops of stages that meet."""
        timed = self._timed_op(stage, op, op.lane)[1]
        if timed.communication is None:
            return timed
        return timed._replace(meeting=(self.communication(stage, op)[0], key))

    def _find_sends(self, hops: tuple[SendWork, ...], size: float, overlap: bool) -> tuple[list[Costs], bool]:
        ops = [Op(Transfer(hop.target, size), "pp", "", "", lane=hop.lane(overlap=overlap)) for hop in hops]
        costs = [self.ops(hop.stage, Segment((op,))) for hop, op in zip(hops, ops, strict=True)]
        kinds = [kind for (op,) in costs if (kind := op.communication)]
        return costs, not any(kind.pressure or kind.drag for kind in kinds)

    def seconds(self, stage: int, segment: Segment) -> float | None:
        """Return the duration (s) of a segment alone; None if it depends on other stages."""
        lane = segment.ops[0].lane
        timed = [self._timed_op(stage, op, lane) for op in segment.ops]
        if any(seconds is None for seconds, _ in timed):
            return None
        if any(cost.communication for _, cost in timed):  # it slows down computation
            costs, none = [tuple([cost for _, cost in timed])], np.zeros(0, dtype=np.int64)
            items = Items((ActionWork("", stage, 0, arrives=False),), np.zeros(1, dtype=np.int64), none, none)
            shapes, kinds = find_shapes(costs)
            template = StepTemplate(items, shapes, self.num_stages)
            return step_seconds(template, costs, kinds, self.capacity, LruCache(1))
        over, free = list[float](), defaultdict[str, float](float)
        for _, op in timed:
            free[op.lane] = max([free[op.lane], *map(over.__getitem__, op.after)]) + op.seconds
            over.append(free[op.lane])
        return max(over)

    def _timed_op(self, stage: int, op: Op, own_lane: str) -> tuple[float | None, TimedOp]:
        """Return an op's duration (None: depends on other stages) and cost, in a segment that begins on this lane."""
        work = op.work
        group = work.group(stage)
        if group is None:
            seconds, sensitivity = round_to_tick(work.seconds), -1.0 if work.sensitivity is None else work.sensitivity
            return seconds, TimedOp(seconds, sensitivity, None, op.lane, op.after)
        number, cost = self.communication(stage, op)
        meets = group[0] == "send" or cost.parties > 1 or self._shared[number]
        if meets or cost.drag or (cost.pressure and op.lane == own_lane):
            return None, TimedOp(0.0, -1.0, cost, op.lane, op.after)
        alone = sum(traffic.alone_seconds(self.capacity) for traffic in cost.traffics)
        if cost.pressure:
            return alone, TimedOp(0.0, -1.0, cost, op.lane, op.after)
        return alone, TimedOp(alone, -1.0, None, op.lane, op.after)

    def _find_times_alone(self, works: tuple[Collective, ...]) -> list[TimesAlone]:
        """Return for each stage the times (s) of tp collectives alone, on the main lane and on another lane."""
        ops = [Op(work, "tp", work.kind, "", lane=lane) for work in works for lane in (MAIN, "tp")]
        return [
            tuple([(self._timed_op(stage, op, op.lane)[0], self.communication(stage, op)[1].pressure) for op in ops])
            for stage in range(self.num_stages)
        ]

    def communication(self, stage: int, op: Op) -> tuple[int, CommunicationKind]:
        """Return the class of an op's communicator, and its kind of communication with stages as ranks."""
        work = op.work
        presses, number = work.slows_compute(op.lane), self._number(work.group(stage), self._ranks[stage])
        group = self._class_of[number]
        name = group, work, presses
        found = self._costs.get(name)
        if found is None:
            kind = self._kinds.kind(number, GroupWork(work, presses))
            found = self._costs[name] = kind._replace(ranks=tuple([self._stage[each] for each in kind.ranks]))
        return group, found


class RepresentativeNetwork:
    """Links under a layout on a cluster without faults; network calls are routed as they become known."""

    def __init__(self, plan: Plan, cluster: Cluster, choices: CollectiveOptions) -> None:
        self._plan, self._cluster, self._choices = plan, cluster, choices
        self._stage_ranks: list[list[int]] = [ranks.tolist() for ranks in plan.stage_ranks()]
        self._groups, self._group_of = cache(plan.groups), cache(partial(group_of, cluster))
        self._forms: dict[Hashable, Group] = {}
        self._form, self._algorithm = cache(self._find_form), cache(self._find_algorithm)
        self.learnt: dict[Hashable, None] = {}
        self._calls: dict[Hashable, StageOp] = {}
        self._drawn: RepresentativeCalls | None = None

    def learn(self, calls: Mapping[Hashable, Callable[[], Iterable[StageOp]]]) -> RepresentativeCalls:
        """Route new network calls over the links; return all calls known so far.

        NotQuickError if ranks of a stage differ. Calls of a name are listed once. New ones are routed together, unless
        equal ones have been.
        """
        listed = [call for what, each in calls.items() if what not in self.learnt for call in each()]
        new = {name: call for call in listed if (name := self._call_key(*call)) not in self._calls}
        if new:
            self._drawn = self._draw_calls([*self._calls.values(), *new.values()])
        self._calls |= new  # unless they cannot be drawn
        self.learnt |= dict.fromkeys(calls)
        if self._drawn is None:
            raise NotQuickError("ranks of one stage differ in how they reach others")
        return self._drawn

    def _call_key(self, stage: int, op: Op) -> Hashable:
        """Return a key of a stage's network call, equal for calls with equal loads on the links."""
        work = op.work
        if isinstance(work, Transfer):
            return stage, work.to_stage, op.lane
        return (
            stage,
            work.axis,
            work.traffic_kind,
            self._algorithm(self._form(stage, work.axis), work.traffic_kind, work.size),
        )

    def _find_form(self, stage: int, axis: str) -> int:
        """Return the form number of the group over an axis to which a stage's first rank belongs."""
        table = self._groups(axis)
        ranks = table[int((table == self._stage_ranks[stage][0]).any(axis=1).argmax())]
        group = self._group_of(tuple(ranks.tolist()))
        self._forms.setdefault(group.form, group)
        return [*self._forms].index(group.form)

    def _find_algorithm(self, form: int, moves: str, size: float) -> str:
        return self._choices.methods.of([*self._forms.values()][form], moves, size).algorithm

    def _draw_calls(self, calls: Sequence[StageOp]) -> RepresentativeCalls | None:
        plan, cluster, choices = self._plan, self._cluster, self._choices
        communicators = _AnySizeCommunicators(_calling_programs(plan.pp, calls), plan, cluster, choices.methods)
        communicators.group_of, communicators.planned = self._group_of, {}
        odd = Irregularities.of(cluster.link_capacity, cluster.link_capacity, [1.0] * plan.num_ranks)
        folding = fold_window(communicators, Quotient.whole(plan.num_ranks), odd)
        first = folding.classes.rank_representatives
        if len(first) != plan.pp or not communicators.alike():
            return None
        ranks = [first[folding.classes.of_rank[ranks[0]]] for ranks in self._stage_ranks]
        return RepresentativeCalls(ranks, folding, cluster, choices)


class _AnySizeCommunicators(Communicators):
    """Communicators that also serve message sizes absent from the programs, by the same algorithms.

    ``group_of`` makes the group of ranks.
    """

    group_of: Callable[[tuple[int, ...]], Group]
    planned: dict[Hashable, tuple[Method, tuple[Part, ...]]]

    def alike(self) -> bool:
        """Return whether all groups of an axis on a stage have one form, so that every size treats them equally."""
        forms, found = np.array(self._form_of), set[tuple[Hashable, int]]()
        many = len(self._forms)
        for kind in self.kinds:
            stage = self.stage_of[kind.table[:, :1] if isinstance(kind.name, tuple) else kind.table]
            pairs = stage * many + forms[kind.seen + kind.those.told][:, None]
            found |= {(kind.name, each) for each in np.unique(pairs).tolist()}
        return len(found) == len({(name, each // many) for name, each in found})

    def method(self, number: int, kind: str, size: float) -> Method:
        """Return how a group runs a collective of any size."""
        return self._method_and_parts(number, kind, size)[0]

    def traffics(self, number: int, kind: str, size: float, usages: Sequence[Usage]) -> tuple[Traffic, ...]:
        """Return the activities of a collective of any size."""
        method, parts = self._method_and_parts(number, kind, size)
        return make_activities(group_patterns(parts, usages), size, method)

    def _method_and_parts(self, number: int, kind: str, size: float) -> tuple[Method, tuple[Part, ...]]:
        """Return how a group runs a collective of any size, and its link patterns, which depend on the group's form."""
        form = self._form_of_group(number)
        name = id(form), kind, size
        if name not in self.planned:
            method = self._methods.of(self.group_of(self.ranks(number)), kind, size)
            drawn = (
                own for call, (other, own) in form.items() if (call[0], other.algorithm) == (kind, method.algorithm)
            )
            self.planned[name] = method, next(drawn)
        return self.planned[name]


def _calling_programs(num_stages: int, calls: Sequence[StageOp]) -> list[StageProgram]:
    """Return stage programs in which every stage makes its network calls once, and receivers wait for sends."""
    programs, sends = [], [(stage, op.work.to_stage, op) for stage, op in calls if isinstance(op.work, Transfer)]
    for stage in range(num_stages):
        rest = [op for caller, op in calls if caller == stage and not isinstance(op.work, Transfer)]
        ahead = [Op(Compute(1.0), "compute", "", ""), *(op for op in rest if op.work.axis == "tp")]
        lanes = defaultdict[str, list[Item]](list, {MAIN: [Item(Segment(tuple(ahead)), ("ahead", stage))]})
        for sender, target, op in sends:
            if sender == stage:
                lanes[op.lane].append(Item(Segment((op,)), ("sent", stage, target), (Need(stage, ("ahead", stage)),)))
        needs = dict.fromkeys(Need(one, ("sent", one, stage)) for one, target, _ in sends if target == stage)
        after = [ahead[0], *(op for op in rest if op.work.axis != "tp")]
        for number, op in enumerate(after):
            lanes[MAIN].append(Item(Segment((op,)), ("after", number), () if number else tuple(needs)))
        programs.append(StageProgram(stage, dict(lanes)))
    return programs
