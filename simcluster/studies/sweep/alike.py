"""The network of a job whose ranks all do as the others of their stage do: one rank stands for each stage.

Made once for a layout, asked for any sizes afterwards: by which algorithm a collective is done depends on its size, how
it lies on the links only on the algorithm.  Whether ranks are alike, and what their links carry together, say the same
folding and the same communicators as in a full run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simcluster.base.errors import InputError
from simcluster.collectives import Group
from simcluster.devices.interference import Interference
from simcluster.engine.communication import CommunicationLowering
from simcluster.engine.communication import Ranks as Where
from simcluster.planning.ops import MAIN, Item, Need, Op, Segment, StageProgram
from simcluster.planning.parallel import Plan, Ranks
from simcluster.planning.works import Collective, Compute, Transfer
from simcluster.programs.collapse import ChainPiece, collapse
from simcluster.programs.program import Meeting, Program, SpanRow
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.folding import classes_in_whole
from simcluster.topology import Cluster
from simcluster.traffic.fairness import Usage
from simcluster.traffic.methods import Method, Methods, activities
from simcluster.traffic.traffic import Traffic, group_of


class NotQuickError(InputError):
    """The scenario has no quick way; the message says why."""


class StageCall(NamedTuple):
    """What a stage asks of the network: a collective over an axis, or a send to a stage on one of its lanes."""

    stage: int
    axis: str | int
    kind: str
    size: float
    lane: str = MAIN


Calls = Callable[[], Iterable[StageCall]]
"""Calls, listed when they are wanted."""


class RepresentativeCalls:
    """What the stages' representatives do with others on a cluster without faults.

    ``ranks`` are the representative of every stage, ``capacity`` B/s of every class of links.
    """

    def __init__(
        self,
        between: CommunicationLowering,
        ranks: Sequence[int],
        capacity: Sequence[float],
        interference: Interference | None,
    ) -> None:
        self.ranks, self.capacity = ranks, capacity
        self._between, self._interference = between, interference
        self._alone: dict[tuple[Collective, ...], list[tuple[tuple[float | None, float], ...]]] = {}

    def _pieces(self, stage: int, segment: Segment) -> tuple[ChainPiece, ...]:
        """A segment as the stage's ranks play it."""
        rank, between, ops = self.ranks[stage], self._between, segment.ops
        seconds = [between.seconds(rank, op, ops[0].lane) for op in ops]
        pressure = [between.pressure(rank, op) for op in ops] if self._interference else []
        return collapse(segment, seconds, [between.moved(rank, op) for op in ops], pressure, "chains").pieces

    def seconds(self, stage: int, segment: Segment) -> tuple[float | None, tuple[SpanRow, ...]]:
        """What a segment of one piece takes, None if others have a say; and its rows, where they tell what it does to
        computation."""
        ops, rank = segment.ops, self.ranks[stage]
        if self._interference is None and all(op.lane == ops[0].lane for op in ops):
            own = [self._between.seconds(rank, op, op.lane) for op in ops]
            known = [each for each in own if each is not None]
            return (sum(known) if len(known) == len(own) else None), ()
        (piece, *rest) = self._pieces(stage, segment)
        return (None, ()) if rest else (piece.seconds, piece.rows)

    def alone(self, works: tuple[Collective, ...]) -> list[tuple[tuple[float | None, float], ...]]:
        """Of every stage, of collectives over tp on the main lane and beside: the seconds, None if others have a say,
        and what they do to computation beside."""
        if works not in self._alone:
            ops = [Op(work, "tp", work.kind, "", lane=lane) for work in works for lane in (MAIN, "tp")]
            self._alone[works] = [tuple([self._op_alone(rank, op) for op in ops]) for rank in self.ranks]
        return self._alone[works]

    def _op_alone(self, rank: int, op: Op) -> tuple[float | None, float]:
        return self._between.seconds(rank, op, op.lane), self._between.pressure(rank, op) if self._interference else 0.0

    def meeting(self, stage: int, op: Op) -> tuple[int, Meeting]:
        """The class of an op's communicator, and how its members meet."""
        number = self._between.communicator(op.work, self.ranks[stage])
        return self._between.group(number), self._between.meeting(number, op)


class RepresentativeNetwork:
    """The links under a layout on a cluster without faults, on which calls are drawn as they become known."""

    def __init__(self, plan: Plan, cluster: Cluster, methods: Methods, interference: Interference | None) -> None:
        self._plan, self._cluster, self._methods, self._interference = plan, cluster, methods, interference
        self._stage_ranks: list[list[int]] = [ranks.tolist() for ranks in plan.stage_ranks()]
        self._tables: dict[str, Ranks] = {}  # the groups of an axis
        self._groups: dict[tuple[int, str], Group] = {}
        self._known: dict[tuple[int, ...], Group] = {}
        self._learnt: dict[Hashable, None] = {}
        self._calls: dict[Hashable, StageCall] = {}
        self._names: dict[StageCall, Hashable] = {}
        self._drawn: RepresentativeCalls | None = None

    @property
    def blank(self) -> bool:
        """Has nothing been drawn yet?"""
        return not self._learnt

    def learn(self, calls: Mapping[Hashable, Calls]) -> RepresentativeCalls:
        """The links with these drawn on them; NotQuickError where ranks of a stage then differ.

        Calls of a name are listed once; they are drawn, once for all that are new, unless others like them are.
        """
        found: dict[Hashable, StageCall] = {}
        for what, listed in calls.items():
            if what not in self._learnt:
                found |= {self._name(call): call for call in listed()}
        new = {name: call for name, call in found.items() if name not in self._calls}
        if new:
            self._drawn = self._draw([*self._calls.values(), *new.values()])
        self._calls |= new  # unless they cannot be drawn
        self._learnt |= dict.fromkeys(calls)
        if self._drawn is None:
            raise NotQuickError("ranks of one stage differ in how they reach others")
        return self._drawn

    def _name(self, call: StageCall) -> Hashable:
        """Equal for calls that lie on the links alike."""
        if call not in self._names:
            self._names[call] = self._make_name(call)
        return self._names[call]

    def _make_name(self, call: StageCall) -> Hashable:
        if isinstance(call.axis, int):
            return call.stage, call.axis, call.lane
        group = self._group(call.stage, call.axis)
        return call.stage, call.axis, call.kind, self._methods.of(group, call.kind, call.size).algorithm

    def _group(self, stage: int, axis: str) -> Group:
        if (stage, axis) not in self._groups:
            if axis not in self._tables:
                self._tables[axis] = self._plan.groups(axis)
            table, first = self._tables[axis], self._stage_ranks[stage][0]
            ranks = table[int((table == first).any(axis=1).argmax())]
            self._groups[stage, axis] = self._made(tuple(ranks.tolist()))
        return self._groups[stage, axis]

    def _made(self, ranks: tuple[int, ...]) -> Group:
        """The group of these ranks; made once, also for those who ask for it by its number."""
        if ranks not in self._known:
            self._known[ranks] = group_of(self._cluster, ranks)
        return self._known[ranks]

    def _draw(self, calls: Iterable[StageCall]) -> RepresentativeCalls | None:
        plan, cluster = self._plan, self._cluster
        programs = _programs(plan.pp, calls)
        communicators = _AnySize(programs, plan, cluster, self._methods)
        communicators.group_of = self._made
        stages = plan.stages()
        capacity = cluster.link_capacity
        classes = classes_in_whole(communicators, programs, capacity, [1.0] * plan.num_ranks)
        if len(classes.rank_representatives) > plan.pp or not communicators.alike():
            return None
        places = [0] * plan.num_ranks
        for ranks in self._stage_ranks:
            for place, rank in enumerate(ranks):
                places[rank] = place
        where = Where(self._stage_ranks, stages.tolist(), places, cluster.host_of, [1.0] * plan.num_ranks)
        representatives = [classes.rank_representatives[classes.of_rank[ranks[0]]] for ranks in self._stage_ranks]
        on_links = capacity.of(np.array(classes.link_representatives, dtype=np.int64)).tolist()
        between = CommunicationLowering(
            where, communicators, classes, on_links, capacity, Program(), self._interference, in_steps=False
        )
        return RepresentativeCalls(between, representatives, on_links, self._interference)


class _AnySize(Communicators):
    """Communicators that are also asked for other sizes than those in the programs, by the same algorithms.

    ``group_of`` makes the group of ranks.
    """

    group_of: Callable[[tuple[int, ...]], Group]

    def alike(self) -> bool:
        """Are groups of the same kind and stage of the same form, so that other sizes treat them alike, too?"""
        for kinds in self._named.values():
            form_of = np.full(int(self.stage_of.max()) + 1, -1, dtype=np.int64)  # of some group of every stage
            pairs = []
            for kind in kinds:
                stage = self.stage_of[kind.table[:, :1] if kind.directed else kind.table]
                form = np.broadcast_to(kind.form[kind.told][:, None], stage.shape)
                form_of[stage] = form
                pairs.append((stage, form))
            if any((form_of[stage] != form).any() for stage, form in pairs):
                return False
        return True

    def method(self, number: int, kind: str, size: float) -> Method:
        """How this group does a collective of this kind, of whatever size."""
        return self._methods.of(self.group_of(tuple(self.ranks(number))), kind, size)

    def traffics(self, number: int, kind: str, size: float, usages: Sequence[Usage]) -> tuple[Traffic, ...]:
        """A collective's activities, as Communicators says, of whatever size."""
        form, method = self._form(number), self.method(number, kind, size)
        drawn = (
            call for call, other in form.methods.items() if call[0] == kind and other.algorithm == method.algorithm
        )
        like = next(drawn)
        return activities(form.patterns(number, like, usages), size, method)


def _programs(num_stages: int, calls: Iterable[StageCall]) -> list[StageProgram]:
    """Programs in which every stage makes its calls once; what is sent is waited for, as in a step."""
    ahead: list[list[Op]] = [[Op(Compute(1.0), "compute", "", "")] for _ in range(num_stages)]
    behind: list[list[Op]] = [[Op(Compute(1.0), "compute", "", "")] for _ in range(num_stages)]
    sends: list[list[StageCall]] = [[] for _ in range(num_stages)]
    for call in calls:
        if isinstance(call.axis, int):
            sends[call.stage].append(call)
        else:
            op = Op(Collective(call.kind, call.axis, call.size), "", "", "")
            (ahead if call.axis == "tp" else behind)[call.stage].append(op)
    programs = []
    for stage in range(num_stages):
        lanes: dict[str, list[Item]] = {MAIN: [Item(Segment(tuple(ahead[stage])), ("ahead", stage))]}
        for call in sends[stage]:
            assert isinstance(call.axis, int)
            send = Op(Transfer(call.axis, call.size), "", "", "", lane=call.lane)
            item = Item(Segment((send,)), ("sent", stage, call.axis), (Need(stage, ("ahead", stage)),))
            lanes.setdefault(call.lane, []).append(item)
        needs = [
            Need(source, ("sent", source, stage)) for source in range(num_stages) for call in sends[source]
            if call.axis == stage
        ]  # fmt: skip
        for number, op in enumerate(behind[stage]):
            lanes[MAIN].append(Item(Segment((op,)), ("behind", number), () if number else tuple(dict.fromkeys(needs))))
        programs.append(StageProgram(stage, lanes))
    return programs
