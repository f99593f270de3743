"""Conversion of a job's stage programs to tables for the compiled engine, one rank per class of equal ranks.

A program is read once (``op_columns``); one more rank that runs it costs its rows of ``InstanceColumns``. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.gc_pause import pause_gc
from simcluster.base.link_columns import LinkValues
from simcluster.devices.interference import Interference
from simcluster.engine import tables
from simcluster.engine.communication_kinds import CommunicationKindFactory
from simcluster.engine.op_columns import CommunicationWork, OpColumns, SegmentTable
from simcluster.engine.tables import EngineTables, GroupColumns, InstanceColumns, TemplateColumns, csr_offsets, to_int32
from simcluster.planning.disturbances import UNDISTURBED, Disturbances, Retime
from simcluster.planning.ops import StageProgram
from simcluster.planning.rank_grid import RankLayout
from simcluster.symmetry.folding import FoldedJob
from simcluster.traffic.traffic import Fabric, Traffic


@dataclass(frozen=True, eq=False)
class JobTables:
    """Engine tables of a job, with the columns needed to interpret the results.

    ``columns`` has the ops of the tables' templates; ``link_traffic`` is the traffic of each kind of communication on
    links, empty for kinds of fixed duration.
    """

    tables: EngineTables = field(repr=False)
    columns: OpColumns = field(repr=False)
    link_traffic: Sequence[tuple[Traffic, ...]] = field(repr=False)

    def describe_op(self, op: int) -> str:
        """Return the name of an op for messages, such as 'rank 3 main: forward attention, microbatch 2'."""
        instances, columns = self.tables.instances, self.columns
        instance = int(np.searchsorted(instances.op_first, op, side="right")) - 1
        template = int(instances.template[instance])
        number = op - int(instances.op_first[instance]) + int(columns.op_first[template])
        lane = columns.lane_names[columns.lane[number]]
        label, microbatch = int(columns.label[number]), int(columns.microbatch[number])
        what = f": {columns.labels[label].kind} {columns.labels[label].name}" if label >= 0 else ""
        where = f"rank {instances.number[instance]} {lane}{what}"
        return f"{where}, microbatch {microbatch}" if microbatch >= 0 else where


@pause_gc()
def tabulate_job(
    programs: Sequence[StageProgram],
    plan: RankLayout,
    fabric: Fabric,
    capacity: LinkValues,
    folding: FoldedJob,
    *,
    slowness: Sequence[float],
    disturbances: Disturbances = UNDISTURBED,
    interference: Interference | None = None,
    in_steps: bool = False,
) -> JobTables:
    """Convert a job to engine tables, with one rank for each class of equal ranks in ``folding``.

    ``slowness[rank]`` multiplies the rank's compute times (1 is full speed); ``capacity`` is B/s per link;
    ``disturbances`` is what else makes ranks and links differ; ``interference`` is what communication does to
    concurrent computation, None for nothing; ``in_steps``: collectives are simulated hop by hop (ranks not folded).
    """
    classes, segments = folding.classes, SegmentTable()
    ranks, links = classes.rank_representatives, classes.link_representatives
    read = _read_programs(segments, programs, folding, disturbances)
    columns, template, peer = _tabulate_ops(segments, np.array([number for number, _ in read.values()]), plan, folding)
    own_seconds = _changed_durations(columns, segments, read, template, disturbances.retime)
    own_first = np.full(len(ranks), -1, dtype=np.int32)
    own_first[list(own_seconds)] = csr_offsets([len(each) for each in own_seconds.values()])[:-1]
    group, communicator = _groups_of_simulated_ranks(columns, template, folding)
    groups, works = _assign_rendezvous(columns, template, group)
    kinds = CommunicationKindFactory(fabric, *folding, capacity, interference, in_steps=in_steps)
    made = [(communicator[each], work) for each, work in works]
    communications = tables.tabulate_communication([kinds.make_kind(*each) for each in made])
    instances = InstanceColumns(
        template=template,
        group=group,
        peer=peer,
        position=_group_positions(group, communicator, folding) if communications[-1] else group,
        op_first=csr_offsets(np.diff(columns.op_first)[template]),
        lane_first=csr_offsets(np.diff(columns.lane_first)[template]),
        rank_first=to_int32(range(len(ranks) + 1)),
        number=to_int32(ranks),
        slowness=np.array([slowness[rank] for rank in ranks], dtype=np.float64),
        own_seconds=own_first,
        seconds=np.concatenate([np.zeros(0), *own_seconds.values()]),
    )
    found = EngineTables(
        TemplateColumns(*attrgetter(*TemplateColumns._fields)(columns)),
        instances,
        groups,
        *communications,
        capacity.values_at(np.array(links, dtype=np.int64)),
        {place: disturbances.speeds[rank] for place, rank in enumerate(ranks) if rank in disturbances.speeds},
        disturbances.capacities_by_position(links),
    )
    return JobTables(found, columns, [kinds.link_traffic(*each) for each in made])


def _read_programs(
    segments: SegmentTable, programs: Sequence[StageProgram], folding: FoldedJob, disturbances: Disturbances
) -> dict[int, tuple[int, Ints]]:
    """Return for every simulated rank its program's shape number and the segment number of each item."""
    planned, found = [segments.add_program(program) for program in programs], {}
    for rank in folding.classes.rank_representatives:
        stage = int(folding.communicators.stage_of[rank])
        own = disturbances.change_program(rank, programs[stage])
        found[rank] = planned[stage] if own is programs[stage] else segments.add_program(own)
    return found


def _tabulate_ops(
    segments: SegmentTable, program: Ints, plan: RankLayout, folding: FoldedJob
) -> tuple[OpColumns, Int32s, Int32s]:
    """Return the ops of all templates, each simulated rank's template, and its peers on other stages.

    Peers are the instances of the ranks whose ops an instance awaits, by stage, -1 where it awaits none. Waits name
    their ops, so that a template has the peers' programs, too.
    """
    stage_ranks, of_rank = plan.stage_ranks(), np.asarray(folding.classes.of_rank)
    awaits = np.zeros((len(segments.programs), len(stage_ranks)), dtype=bool)
    for number, own in enumerate(segments.programs):
        awaits[number, own.need_stages] = True
        awaits[number, own.stage] = False
    peer = np.full((len(program), len(stage_ranks)), -1, dtype=np.int32)
    place = folding.communicators.place_of[np.array(folding.classes.rank_representatives)]
    for stage, there in enumerate(stage_ranks):
        those = np.flatnonzero(awaits[program, stage])
        peer[those, stage] = of_rank[there[place[those]]]
    rows = np.column_stack([program, np.where(peer >= 0, program[peer], -1)])
    names, template = np.unique(rows, axis=0, return_inverse=True)
    return OpColumns(segments, names), to_int32(template.ravel()), peer


def _changed_durations(
    columns: OpColumns, segments: SegmentTable, read: Mapping[int, tuple[int, Ints]], template: Int32s, retime: Retime
) -> dict[int, Floats]:
    """Return op durations of the simulated ranks (by index) whose durations differ from their template's."""
    computations, found = cache(columns.find_computations), dict[int, Floats]()
    for instance, (rank, (number, which)) in enumerate(read.items()):
        differs = which is not segments.programs[number].segments
        if differs or retime is not UNDISTURBED.retime:
            planned, computing, listed = computations(int(template[instance]))
            seconds = columns.durations_of_segments(which) if differs else planned.copy()
            before = seconds[computing]
            seconds[computing] = after = retime(rank, listed, before)
            if differs or after is not before:
                found[instance] = seconds
    return found


def _groups_of_simulated_ranks(columns: OpColumns, template: Int32s, folding: FoldedJob) -> tuple[Int32s, list[int]]:
    """Return each simulated rank's group by kind of communicator, and a representative of each group."""
    ranks = np.array(folding.classes.rank_representatives)
    uses = np.zeros((len(columns.stages), max(len(columns.groups), 1)), dtype=bool)
    meets = columns.slot >= 0
    uses[columns.program[meets], columns.slot[meets]] = True
    there = uses[template]
    number = np.empty(there.shape, dtype=np.int64)
    for kind, name in enumerate(columns.groups):
        if there[:, kind].any():
            number[there[:, kind], kind] = folding.communicators.find_communicators(name, ranks[there[:, kind]])
    found = np.asarray(folding.classes.of_communicator, dtype=np.int64)[number[there]]
    _, first, which = np.unique(found, return_index=True, return_inverse=True)
    group = np.full(there.shape, -1, dtype=np.int32)
    group[there] = which
    return group, number[there][first].tolist()


def _assign_rendezvous(
    columns: OpColumns, template: Int32s, group: Int32s
) -> tuple[GroupColumns, list[tuple[int, CommunicationWork]]]:
    """Assign numbers to each group's rendezvous in ``columns``; return groups as arrays, and all communications.

    Programs that share groups of a kind, even through others, number the rendezvous there in the same way.
    """
    instance, kind = np.nonzero(group >= 0)
    kinds, own = group.shape[1], group[instance, kind]
    pair = template[instance] * kinds + kind  # a template and a kind of group
    of_pair, of_group = _connected_components(pair, own)
    meets = np.flatnonzero(columns.slot >= 0)
    pairs = columns.program[meets] * kinds + columns.slot[meets]
    names = columns.rendezvous_keys(meets)
    size = int(names.max(initial=0)) + 1
    known, where = np.unique(of_pair[pairs] * size + names, return_inverse=True)
    first = np.searchsorted(known, size * np.arange(len(of_pair) + 1))
    columns.place[meets] = where - first[of_pair[pairs]]
    most, leads = max(map(len, columns.works), default=0), columns.work[meets] >= 0
    does, used = np.zeros((len(of_pair), most), dtype=bool), np.zeros((len(of_group), most), dtype=bool)
    does[pairs[leads], columns.work[meets][leads]] = True
    which, work = np.nonzero(does[pair])
    used[own[which], work] = True
    kind_of = dict(zip(own.tolist(), kind.tolist(), strict=True))
    rows = to_int32(np.where(used.ravel(), np.cumsum(used) - 1, -1))
    groups = GroupColumns(csr_offsets(np.diff(first)[of_group]), to_int32(most * np.arange(len(used) + 1)), rows)
    return groups, [(number, columns.works[kind_of[number]][each]) for number, each in np.argwhere(used).tolist()]


def _connected_components(pair: Ints, group: Int32s) -> tuple[Ints, Ints]:
    """Return the connected component of each pair and of each group; ``pair[i]`` is connected to ``group[i]``."""
    of_pair = np.arange(int(pair.max(initial=-1)) + 1)
    while True:
        of_group = np.full(int(group.max(initial=-1)) + 1, len(of_pair))
        np.minimum.at(of_group, group, of_pair[pair])
        before, of_pair = of_pair, of_pair.copy()
        np.minimum.at(of_pair, pair, of_group[group])
        if np.array_equal(before, of_pair):
            return of_pair, of_group


def _group_positions(group: Int32s, communicator: Sequence[int], folding: FoldedJob) -> Int32s:
    found, ranks = np.full_like(group, -1), folding.classes.rank_representatives
    for instance, slot in zip(*np.nonzero(group >= 0), strict=True):
        members = folding.communicators.member_ranks(communicator[group[instance, slot]])
        found[instance, slot] = members.index(ranks[instance])
    return found
