"""Network of a job whose ranks behave equally within each stage, with one representative rank per stage.

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
from simcluster.base.lru_cache import LruCache
from simcluster.collectives import Group
from simcluster.engine.communication_kinds import CommunicationKindFactory
from simcluster.engine.op_columns import CommunicationWork
from simcluster.engine.tables import CommunicationKind
from simcluster.planning.ops import MAIN, Dependency, Op, Segment, StageProgram, WorkItem
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.planning.work_kinds import Collective, Compute, StageSend
from simcluster.step.step_plan import CollectiveOptions
from simcluster.studies.sweep import step_tables
from simcluster.studies.sweep.step_tables import ActionWork, Costs, ScheduleColumns, SendWork, StepTemplate, TimedOp
from simcluster.symmetry.classes import find_link_sharing
from simcluster.symmetry.communicators import Communicators, Part, group_patterns
from simcluster.symmetry.folding import FoldedJob, fold_window
from simcluster.symmetry.irregular_jobs import Irregularities
from simcluster.symmetry.quotient import JobQuotient
from simcluster.topology import Cluster
from simcluster.traffic.collective_methods import CollectiveMethod, make_traffics
from simcluster.traffic.fairness import Usage
from simcluster.traffic.traffic import Traffic, make_group


class NeedsFullRunError(InputError):
    """Error for a scenario whose step time only a full run can compute, with the reason."""


StageOp = tuple[int, Op]
"""A stage's use of the network: a collective, or a send to a stage on one of its lanes."""
TimesAlone = tuple[tuple[float | None, float], ...]
"""Seconds (None if they depend on other stages) and pressure on compute of each collective."""


class RepresentativeCalls:
    """Communication of one representative rank per stage on a cluster without faults.

    ``ranks`` are the stages' representatives, ``capacity`` B/s of every class of links.
    """

    def __init__(self, ranks: Sequence[int], folding: FoldedJob, cluster: Cluster, choices: CollectiveOptions) -> None:
        groups, classes, links = folding.communicators, folding.classes, cluster.link_capacity
        representatives = np.array(classes.link_representatives, dtype=np.int64)
        self.capacity, self.num_stages = links.values_at(representatives).tolist(), len(ranks)
        self._ranks, self._number, self._class_of = ranks, cache(groups.find_communicator), classes.of_communicator
        self._kinds = CommunicationKindFactory(cluster, groups, classes, links, choices.interference, in_steps=False)
        self._stage = {classes.of_rank[rank]: stage for stage, rank in reversed([*enumerate(ranks)])}
        self._shared = find_link_sharing(classes, groups.seen)
        self._costs: dict[Hashable, CommunicationKind] = {}
        self.alone, self.sends = cache(self._find_times_alone), cache(self._cost_sends)

    def time_ops(self, stage: int, segment: Segment) -> Costs:
        """Return the ops of a segment on a stage, each with its duration or communication."""
        return tuple([self._time_op(stage, op, segment.ops[0].lane)[1] for op in segment.ops])

    def time_end_op(self, stage: int, key: Hashable, op: Op) -> TimedOp:
        """Return an op that follows a stage's passes, with its cost; stages run ops with equal keys together."""
        timed = self._time_op(stage, op, op.lane)[1]
        if timed.communication is None:
            return timed
        return timed._replace(meeting_key=(self.communication_of_op(stage, op)[0], key))

    def _cost_sends(self, hops: tuple[SendWork, ...], size: float, overlap: bool) -> tuple[list[Costs], bool]:
        ops = [Op(StageSend(hop.target, size), "pp", "", "", lane=hop.lane_name(overlap=overlap)) for hop in hops]
        costs = [self.time_ops(hop.stage, Segment((op,))) for hop, op in zip(hops, ops, strict=True)]
        kinds = [kind for (op,) in costs if (kind := op.communication)]
        return costs, not any(kind.pressure or kind.drag for kind in kinds)

    def segment_seconds(self, stage: int, segment: Segment) -> float | None:
        """Return the duration (s) of a segment; None if it depends on other stages."""
        lane = segment.ops[0].lane
        timed = [self._time_op(stage, op, lane) for op in segment.ops]
        if any(seconds is None for seconds, _ in timed):
            return None
        if any(cost.communication for _, cost in timed):  # it slows down computation
            costs, none = [tuple([cost for _, cost in timed])], np.zeros(0, dtype=np.int64)
            items = ScheduleColumns((ActionWork("", stage, 0, arrives=False),), np.zeros(1, dtype=np.int64), none, none)
            shapes, kinds = step_tables.find_work_shapes(costs)
            template = StepTemplate(items, shapes, self.num_stages)
            return step_tables.simulate_template(template, costs, kinds, self.capacity, LruCache(1))
        over, free = list[float](), defaultdict[str, float](float)
        for _, op in timed:
            free[op.lane] = max([free[op.lane], *map(over.__getitem__, op.after)]) + op.seconds
            over.append(free[op.lane])
        return max(over)

    def _time_op(self, stage: int, op: Op, own_lane: str) -> tuple[float | None, TimedOp]:
        """Return an op's duration (None if other stages determine it) and its cost, for a segment on ``own_lane``."""
        work = op.work
        group = work.group(stage)
        if group is None:
            seconds, sensitivity = round_to_tick(work.seconds), -1.0 if work.sensitivity is None else work.sensitivity
            return seconds, TimedOp(seconds, sensitivity, None, op.lane, op.after)
        number, cost = self.communication_of_op(stage, op)
        meets = group[0] == "send" or cost.parties > 1 or self._shared[number]
        if meets or cost.drag or (cost.pressure and op.lane == own_lane):
            return None, TimedOp(0.0, -1.0, cost, op.lane, op.after)
        alone = sum(traffic.solo_seconds(self.capacity) for traffic in cost.traffics)
        if cost.pressure:
            return alone, TimedOp(0.0, -1.0, cost, op.lane, op.after)
        return alone, TimedOp(alone, -1.0, None, op.lane, op.after)

    def _find_times_alone(self, works: tuple[Collective, ...]) -> list[TimesAlone]:
        """Return, for each stage, the times (s) of tp collectives on idle links, on the main lane and on lane "tp"."""
        ops = [Op(work, "tp", work.kind, "", lane=lane) for work in works for lane in (MAIN, "tp")]
        return [
            tuple((self._time_op(stage, op, op.lane)[0], self.communication_of_op(stage, op)[1].pressure) for op in ops)
            for stage in range(self.num_stages)
        ]

    def communication_of_op(self, stage: int, op: Op) -> tuple[int, CommunicationKind]:
        """Return the class number of an op's communicator, and the op's communication between representative ranks."""
        work = op.work
        presses, number = work.slows_compute(op.lane), self._number(work.group(stage), self._ranks[stage])
        group = self._class_of[number]
        name = group, work, presses
        found = self._costs.get(name)
        if found is None:
            kind = self._kinds.make_kind(number, CommunicationWork(work, presses))
            found = self._costs[name] = kind._replace(ranks=tuple([self._stage[each] for each in kind.ranks]))
        return group, found


class RepresentativeNetwork:
    """Network of a layout on a cluster without faults; each communication call is routed when it first occurs."""

    def __init__(self, plan: ParallelPlan, cluster: Cluster, choices: CollectiveOptions) -> None:
        self._plan, self._cluster, self._choices = plan, cluster, choices
        self._stage_ranks: list[list[int]] = [ranks.tolist() for ranks in plan.stage_ranks()]
        self._groups, self._group_of = cache(plan.groups), cache(partial(make_group, cluster))
        self._forms: dict[Hashable, Group] = {}
        self._form, self._algorithm = cache(self._find_group_class), cache(self._find_algorithm)
        self.learnt: dict[Hashable, None] = {}
        self._calls: dict[Hashable, StageOp] = {}
        self._drawn: RepresentativeCalls | None = None

    def route_calls(self, calls: Mapping[Hashable, Callable[[], Iterable[StageOp]]]) -> RepresentativeCalls:
        """Route the communication calls that are not routed yet; return all calls routed so far.

        NeedsFullRunError if ranks of a stage differ. Calls of a name are listed once. New ones are routed together,
        unless equal ones have been.
        """
        listed = [call for what, each in calls.items() if what not in self.learnt for call in each()]
        new = {name: call for call in listed if (name := self._call_key(*call)) not in self._calls}
        if new:
            self._drawn = self._route_all_calls([*self._calls.values(), *new.values()])
        self._calls |= new  # unless they cannot be drawn
        self.learnt |= dict.fromkeys(calls)
        if self._drawn is None:
            raise NeedsFullRunError("ranks of one stage have different network paths to other ranks")
        return self._drawn

    def _call_key(self, stage: int, op: Op) -> Hashable:
        """Return a key of a stage's communication call; calls with equal keys put equal loads on the links."""
        work = op.work
        if isinstance(work, StageSend):
            return stage, work.to_stage, op.lane
        algorithm = self._algorithm(self._form(stage, work.axis), work.traffic_kind, work.size)
        return stage, work.axis, work.traffic_kind, algorithm

    def _find_group_class(self, stage: int, axis: str) -> int:
        """Return the class number of a stage's group over this axis; groups of one class take equal times."""
        table = self._groups(axis)
        ranks = table[int((table == self._stage_ranks[stage][0]).any(axis=1).argmax())]
        group = self._group_of(tuple(ranks.tolist()))
        self._forms.setdefault(group.layout_key, group)
        return [*self._forms].index(group.layout_key)

    def _find_algorithm(self, group_class: int, kind: str, size: float) -> str:
        return self._choices.methods.choose_method([*self._forms.values()][group_class], kind, size).algorithm

    def _route_all_calls(self, calls: Sequence[StageOp]) -> RepresentativeCalls | None:
        plan, cluster, choices = self._plan, self._cluster, self._choices
        communicators = _AnySizeCommunicators(_make_call_programs(plan.pp, calls), plan, cluster, choices.methods)
        communicators.group_of, communicators.planned = self._group_of, {}
        odd = Irregularities.from_disturbances(cluster.link_capacity, cluster.link_capacity, [1.0] * plan.num_ranks)
        folding = fold_window(communicators, JobQuotient.trivial_quotient(plan.num_ranks), odd)
        first = folding.classes.rank_representatives
        if len(first) != plan.pp or not communicators.has_equal_groups():
            return None
        ranks = [first[folding.classes.of_rank[ranks[0]]] for ranks in self._stage_ranks]
        return RepresentativeCalls(ranks, folding, cluster, choices)


class _AnySizeCommunicators(Communicators):
    """Communicators that accept any message size, not only the sizes in the stage programs.

    ``group_of`` makes the group of ranks.
    """

    group_of: Callable[[tuple[int, ...]], Group]
    planned: dict[Hashable, tuple[CollectiveMethod, tuple[Part, ...]]]

    def has_equal_groups(self) -> bool:
        """Return whether a stage's groups over one axis are all equivalent, so that they take equal times."""
        forms, found = np.array(self._form_of), set[tuple[Hashable, int]]()
        many = len(self._forms)
        for kind in self.kinds:
            stage = self.stage_of[kind.table[:, :1] if isinstance(kind.name, tuple) else kind.table]
            pairs = stage * many + forms[kind.seen + kind.window_groups.representative_indices][:, None]
            found |= {(kind.name, each) for each in np.unique(pairs).tolist()}
        return len(found) == len({(name, each // many) for name, each in found})

    def method_of_call(self, number: int, kind: str, size: float) -> CollectiveMethod:
        return self._method_and_parts(number, kind, size)[0]

    def traffic_of_call(self, number: int, kind: str, size: float, usages: Sequence[Usage]) -> tuple[Traffic, ...]:
        method, parts = self._method_and_parts(number, kind, size)
        return make_traffics(group_patterns(parts, usages), size, method)

    def _method_and_parts(self, number: int, kind: str, size: float) -> tuple[CollectiveMethod, tuple[Part, ...]]:
        """Return the algorithm that a group uses for a collective of this size, and its patterns of link use."""
        form = self._call_patterns_of_group(number)
        name = id(form), kind, size
        if name not in self.planned:
            method = self._methods.choose_method(self.group_of(self.member_ranks(number)), kind, size)
            drawn = (
                own for call, (other, own) in form.items() if (call[0], other.algorithm) == (kind, method.algorithm)
            )
            self.planned[name] = method, next(drawn)
        return self.planned[name]


def _make_call_programs(num_stages: int, calls: Sequence[StageOp]) -> list[StageProgram]:
    """Return programs in which each stage makes its communication calls once, and receivers wait for sends."""
    programs, sends = [], [(stage, op.work.to_stage, op) for stage, op in calls if isinstance(op.work, StageSend)]
    for stage in range(num_stages):
        rest = [op for caller, op in calls if caller == stage and not isinstance(op.work, StageSend)]
        ahead = [Op(Compute(1.0), "compute", "", ""), *(op for op in rest if op.work.axis == "tp")]
        lanes = defaultdict[str, list[WorkItem]](list, {MAIN: [WorkItem(Segment(tuple(ahead)), ("ahead", stage))]})
        for sender, target, op in sends:
            if sender == stage:
                awaited = (Dependency(stage, ("ahead", stage)),)
                lanes[op.lane].append(WorkItem(Segment((op,)), ("sent", stage, target), awaited))
        needs = dict.fromkeys(Dependency(one, ("sent", one, stage)) for one, target, _ in sends if target == stage)
        after = [ahead[0], *(op for op in rest if op.work.axis != "tp")]
        for number, op in enumerate(after):
            lanes[MAIN].append(WorkItem(Segment((op,)), ("after", number), () if number else tuple(needs)))
        programs.append(StageProgram(stage, dict(lanes)))
    return programs
