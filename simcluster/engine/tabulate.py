"""Tables of a job for the compiled engine, and the ops of its record: from stage programs, for one rank per class.

A program is read once (``op_columns``); one more rank that runs it costs its rows of ``Instances``.  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.gc_paused import collector_off
from simcluster.base.link_columns import LinkValues
from simcluster.devices.interference import Interference
from simcluster.engine.communication_kinds import CommunicationKinds
from simcluster.engine.op_columns import GroupWork, OpColumns, SegmentOps, own_seconds
from simcluster.engine.tables import (
    Groups,
    Instances,
    Tables,
    Templates,
    communication_tables,
    firsts,
    int32s,
)
from simcluster.planning.ops import StageProgram
from simcluster.planning.parallel import RankLayout
from simcluster.planning.perturbations import UNDISTURBED, Disturbances
from simcluster.symmetry.folding import Folding
from simcluster.traffic.traffic import Fabric, Traffic


@dataclass(frozen=True, eq=False)
class JobTables:
    """The tables of a job, and what is needed to read its results.

    ``columns`` are the ops of the tables' templates, ``segments`` those that they point to; ``moved`` is what each kind
    of communication moves over links, nothing for one that takes a given time.
    """

    tables: Tables = field(repr=False)
    segments: SegmentOps = field(repr=False)
    columns: Sequence[OpColumns] = field(repr=False)
    moved: Sequence[tuple[Traffic, ...]] = field(repr=False)

    def describe(self, op: int) -> str:
        """Return the name of an op in messages: 'rank 3 main: forward attention, microbatch 2'."""
        instances = self.tables.instances
        instance = int(np.searchsorted(instances.op_first, op, side="right")) - 1
        columns, number = self.columns[instances.template[instance]], op - int(instances.op_first[instance])
        own, microbatch = self.segments.ops[columns.place[number]], columns.microbatch[number]
        what = "" if own.work.joins else f": {own.kind} {own.name}"
        where = f"rank {instances.number[instance]} {own.lane}{what}"
        return f"{where}, microbatch {microbatch}" if microbatch >= 0 else where


@collector_off()
def tabulate(
    programs: Sequence[StageProgram],
    plan: RankLayout,
    fabric: Fabric,
    capacity: LinkValues,
    folding: Folding,
    *,
    slowness: Sequence[float],
    disturbances: Disturbances = UNDISTURBED,
    interference: Interference | None = None,
    in_steps: bool = False,
) -> JobTables:
    """Return the tables of a job: of one rank of each class of its ``folding``.

    ``slowness[rank]`` multiplies the rank's compute times (1 is full speed); ``capacity`` is B/s per link;
    ``disturbances`` is what else makes ranks and links differ; ``interference`` is what communication does to
    concurrent computation, None for nothing; ``in_steps``: collectives are simulated hop by hop (ranks not folded).
    """
    kinds = CommunicationKinds(fabric, *folding, capacity, interference, in_steps=in_steps)
    return _Builder(programs, plan, folding, disturbances).build(kinds, slowness, capacity)


class _Builder:
    def __init__(
        self, programs: Sequence[StageProgram], plan: RankLayout, folding: Folding, disturbances: Disturbances
    ) -> None:
        self._stage_ranks, self._disturbances = plan.stage_ranks(), disturbances
        self._communicators, self._classes = folding
        self._ranks = np.array(self._classes.rank_representatives, dtype=np.int64)
        self._own: dict[int, Floats] = {}  # by instance the seconds of its ops, where only these are its own
        self._program = self._communicators.stage_of[self._ranks].astype(np.int64)  # of every instance, by number
        found = list(programs)
        if disturbances.program is not UNDISTURBED.program:
            self._add_own_programs(found)
        self._segments = SegmentOps(found)
        self._programs = [OpColumns(program, self._segments, number) for number, program in enumerate(found)]
        if disturbances.program is not UNDISTURBED.program:
            self._retime()
        order = np.argsort(self._program, kind="stable")
        counts = np.bincount(self._program, minlength=len(found))
        self._instances: list[Ints] = np.split(order, np.cumsum(counts)[:-1])  # by program

    def _add_own_programs(self, programs: list[StageProgram]) -> None:
        """Add the programs of instances that differ from their stage's by more than seconds."""
        known: dict[int, int] = {}
        for instance, (rank, stage) in enumerate(zip(self._ranks.tolist(), self._program.tolist(), strict=True)):
            own = self._disturbances.program(rank, programs[stage])
            if own is programs[stage]:
                continue
            seconds = own_seconds(programs[stage], own)
            if seconds is not None:
                self._own[instance] = seconds
                continue
            if id(own) not in known:
                known[id(own)] = len(programs)
                programs.append(own)
            self._program[instance] = known[id(own)]

    def _retime(self) -> None:
        """Change the seconds of computations."""
        for instance, rank in enumerate(self._ranks.tolist()):
            columns = self._programs[self._program[instance]]
            seconds = self._own.get(instance, self._segments.seconds[columns.place])
            before = seconds[columns.computing]
            after = self._disturbances.retime(rank, columns.computations, before)
            if after is not before:
                self._own[instance] = seconds.copy()
                self._own[instance][columns.computing] = after

    def build(self, kinds: CommunicationKinds, slowness: Sequence[float], rates: LinkValues) -> JobTables:
        """Return the tables."""
        peer = self._peers()
        templates: dict[tuple[int, ...], int] = {}  # waits name ops of peers, so these' programs belong to a template
        rows = np.column_stack([self._program, np.where(peer >= 0, self._program[peer], -1)]).tolist()
        template = int32s([templates.setdefault(tuple(row), len(templates)) for row in rows])
        names = list(templates)
        columns = [self._programs[program] for program, *_ in names]
        group, communicators = self._groups()
        groups, place, made = self._meet(group, communicators)
        communications = communication_tables([kinds.kind(*each) for each in made])
        own = np.full(len(self._ranks), -1, dtype=np.int32)
        own[list(self._own)] = firsts([len(each) for each in self._own.values()])[:-1]
        ranks, speeds = self._ranks.tolist(), self._disturbances.speeds
        instances = Instances(
            template=template,
            group=group,
            peer=peer,
            position=self._positions(group, communicators) if communications[-1] else group,
            op_first=firsts(np.array([len(each) for each in columns])[template]),
            lane_first=firsts(np.array([len(each.lanes) for each in columns])[template]),
            rank_first=int32s(range(len(ranks) + 1)),
            number=int32s(ranks),
            slowness=np.array([slowness[rank] for rank in ranks], dtype=np.float64),
            own_seconds=own,
            seconds=np.concatenate([np.zeros(0), *self._own.values()]),
        )
        tables = Tables(
            self._templates(names, place),
            instances,
            groups,
            *communications,
            rates.of(np.array(self._classes.link_representatives, dtype=np.int64)),
            {place: speeds[rank] for place, rank in enumerate(ranks) if rank in speeds},
            self._disturbances.capacities_of(self._classes.link_representatives),
        )
        return JobTables(tables, self._segments, columns, [kinds.moved(*each) for each in made])

    def _peers(self) -> Int32s:
        """Return the instances of the ranks whose ops each instance awaits, by stage; -1 where it awaits none."""
        of_rank, place = np.asarray(self._classes.of_rank), self._communicators.place_of[self._ranks]
        found = np.full((len(self._ranks), len(self._stage_ranks)), -1, dtype=np.int32)
        for columns, those in zip(self._programs, self._instances, strict=True):
            for stage in columns.awaited_stages:
                found[those, stage] = of_rank[self._stage_ranks[stage][place[those]]]
        return found

    def _templates(self, names: Sequence[Sequence[int]], place: Sequence[Int32s]) -> Templates:
        """Return the templates: each a program, and the programs of its peers by stage."""
        segments, columns = self._segments, [self._programs[program] for program, *_ in names]
        waits = [each.waits([self._programs[peer] for peer in peers])
                 for each, (_, *peers) in zip(columns, names, strict=True)]  # fmt: skip
        wait_counts = [np.bincount(op, minlength=len(each)) for (op, _, _), each in zip(waits, columns, strict=True)]
        lane_counts = [np.bincount(each.lane, minlength=len(each.lanes)) for each in columns]
        every = _joined([each.place for each in columns])
        return Templates(
            op_first=firsts([len(each) for each in columns]),
            seconds=segments.seconds[every],
            sensitivity=segments.sensitivity[every],
            slot=segments.group[every],
            work=segments.work[every],
            place=_joined([place[program] for program, *_ in names]),
            wait_first=firsts(_joined(wait_counts)),
            wait_op=_joined([other for _, other, _ in waits]),
            wait_peer=_joined([whose for _, _, whose in waits]),
            lane_first=firsts([len(each.lanes) for each in columns]),
            lane_op_first=firsts(_joined(lane_counts)),
            lane_op=_joined([np.argsort(each.lane, kind="stable") for each in columns]),
            lane_rank=np.zeros(sum(map(len, lane_counts)), dtype=np.int32),
        )

    def _groups(self) -> tuple[Int32s, list[int]]:
        """Return the group of every instance by kind of communicator, and the communicator that represents each."""
        names = list(self._segments.groups)
        number = np.full((len(self._ranks), max(len(names), 1)), -1, dtype=np.int64)
        for columns, those in zip(self._programs, self._instances, strict=True):
            for kind in columns.works:
                number[those, kind] = self._communicators.numbers(names[kind], columns.stage, self._ranks[those])
        there = number >= 0
        found = np.asarray(self._classes.of_communicator, dtype=np.int64)[number[there]]
        _, first, which = np.unique(found, return_index=True, return_inverse=True)
        group = np.full(number.shape, -1, dtype=np.int32)
        group[there] = which
        return group, number[there][first].tolist()

    def _meet(
        self, group: Int32s, communicators: Sequence[int]
    ) -> tuple[Groups, list[Int32s], list[tuple[int, GroupWork]]]:
        """Return the groups, the place of every op's meeting among those of its group, by program, and the kinds.

        All members of a group number what they do together in the same way.
        """
        place = [np.full(len(columns), -1, dtype=np.int32) for columns in self._programs]
        counts, kind_first = np.zeros((2, len(communicators) + 1), dtype=np.int32)
        rows: list[int] = []
        made: list[tuple[int, GroupWork]] = []
        for kind, works in enumerate(map(list, self._segments.works)):
            for pairs in self._sharing(group[:, kind]):
                counts[[number for _, number in pairs]] = self._number(kind, [program for program, _ in pairs], place)
                for number in dict.fromkeys(number for _, number in pairs):
                    kind_first[number] = len(rows)
                    rows += [-1] * len(works)
                for program, number in pairs:
                    for work in self._programs[program].works[kind]:
                        at = kind_first[number] + work
                        if rows[at] < 0:
                            rows[at] = len(made)
                            made.append((communicators[number], works[work]))
        return Groups(firsts(counts[:-1]), kind_first, int32s(rows)), place, made

    def _number(self, kind: int, programs: Sequence[int], place: Sequence[Int32s]) -> int:
        """Number the meetings of programs that share groups of a kind; return how many they are."""
        known: dict[Hashable, int] = {}
        before: list[tuple[Hashable, int]] = []
        found: list[int] | Ints = []
        different = dict.fromkeys(programs)
        for program in different:
            columns = self._programs[program]
            ops = np.flatnonzero(columns.group == kind)
            if len(different) == 1:
                found = np.arange(len(ops))
            elif (names := columns.meeting_names(ops)) != before:
                before, found = names, [known.setdefault(name, len(known)) for name in names]
            place[program][ops] = found
        return len(known) or len(found)

    def _sharing(self, groups: Int32s) -> Iterator[list[tuple[int, int]]]:
        """Yield the programs and groups of instances in pairs, those that share groups, even through others, together.
        """  # fmt: skip
        together: dict[int, list[tuple[int, int]]] = {}  # by program
        first: dict[int, int] = {}  # by group
        there = groups >= 0
        for pair in dict.fromkeys(zip(self._program[there].tolist(), groups[there].tolist(), strict=True)):
            own = together.setdefault(pair[0], [])
            own.append(pair)
            other = together[first.setdefault(pair[1], pair[0])]
            if own is not other:
                other += own
                together |= dict.fromkeys([program for program, _ in own], other)
        yield from map(sorted, {id(each): each for each in together.values()}.values())

    def _positions(self, group: Int32s, communicators: Sequence[int]) -> Int32s:
        """Return the position of every instance in its groups."""
        found = np.full_like(group, -1)
        for instance, slot in zip(*np.nonzero(group >= 0), strict=True):
            communicator = communicators[group[instance, slot]]
            found[instance, slot] = self._communicators.ranks(communicator).index(int(self._ranks[instance]))
        return found


def _joined(parts: Sequence[Any]) -> Int32s:
    """Return columns one after the other."""
    return np.concatenate([np.zeros(0, dtype=np.int32), *parts]).astype(np.int32)
