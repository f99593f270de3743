"""Tables of a job for the compiled engine, and the ops of its record: from stage programs, for one rank per class.

A program is read once (``op_columns``); one more rank that runs it costs its rows of ``Instances``. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.gc_paused import pause_gc
from simcluster.base.link_columns import LinkValues
from simcluster.devices.interference import Interference
from simcluster.engine.communication_kinds import CommunicationKinds
from simcluster.engine.op_columns import GroupWork, OpColumns, Segments
from simcluster.engine.tables import Groups, Instances, Tables, Templates, communication_tables, int32s, offsets
from simcluster.planning.ops import StageProgram
from simcluster.planning.parallel import RankLayout
from simcluster.planning.perturbations import UNDISTURBED, Disturbances, Retime
from simcluster.symmetry.folding import Folding
from simcluster.traffic.traffic import Fabric, Traffic


@dataclass(frozen=True, eq=False)
class JobTables:
    """Tables of a job, and the columns that reading its results needs.

    ``columns`` has the ops of the tables' templates; ``moved`` is what each kind of communication moves over links,
    nothing for one that takes a given time.
    """

    tables: Tables = field(repr=False)
    columns: OpColumns = field(repr=False)
    moved: Sequence[tuple[Traffic, ...]] = field(repr=False)

    def describe(self, op: int) -> str:
        """Return the name of an op in messages: 'rank 3 main: forward attention, microbatch 2'."""
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
    """Return the tables of a job, with one rank of each class of its ``folding``.

    ``slowness[rank]`` multiplies the rank's compute times (1 is full speed); ``capacity`` is B/s per link;
    ``disturbances`` is what else makes ranks and links differ; ``interference`` is what communication does to
    concurrent computation, None for nothing; ``in_steps``: collectives are simulated hop by hop (ranks not folded).
    """
    classes, segments = folding.classes, Segments()
    ranks, links = classes.rank_representatives, classes.link_representatives
    read = _read_programs(segments, programs, folding, disturbances)
    columns, template, peer = _columns(segments, np.array([number for number, _ in read.values()]), plan, folding)
    own_seconds = _own_seconds(columns, segments, read, template, disturbances.retime)
    own_first = np.full(len(ranks), -1, dtype=np.int32)
    own_first[list(own_seconds)] = offsets([len(each) for each in own_seconds.values()])[:-1]
    group, communicator = _find_groups(columns, template, folding)
    groups, works = _number_meetings(columns, template, group)
    kinds = CommunicationKinds(fabric, *folding, capacity, interference, in_steps=in_steps)
    made = [(communicator[each], work) for each, work in works]
    communications = communication_tables([kinds.kind(*each) for each in made])
    instances = Instances(
        template=template,
        group=group,
        peer=peer,
        position=_group_positions(group, communicator, folding) if communications[-1] else group,
        op_first=offsets(np.diff(columns.op_first)[template]),
        lane_first=offsets(np.diff(columns.lane_first)[template]),
        rank_first=int32s(range(len(ranks) + 1)),
        number=int32s(ranks),
        slowness=np.array([slowness[rank] for rank in ranks], dtype=np.float64),
        own_seconds=own_first,
        seconds=np.concatenate([np.zeros(0), *own_seconds.values()]),
    )
    tables = Tables(
        Templates(*attrgetter(*Templates._fields)(columns)),
        instances,
        groups,
        *communications,
        capacity.of(np.array(links, dtype=np.int64)),
        {place: disturbances.speeds[rank] for place, rank in enumerate(ranks) if rank in disturbances.speeds},
        disturbances.capacities_of(links),
    )
    return JobTables(tables, columns, [kinds.moved(*each) for each in made])


def _read_programs(
    segments: Segments, programs: Sequence[StageProgram], folding: Folding, disturbances: Disturbances
) -> dict[int, tuple[int, Ints]]:
    """Return for every simulated rank the shape number of its program and the segments of its items."""
    planned, found = [segments.read(program) for program in programs], {}
    for rank in folding.classes.rank_representatives:
        stage = int(folding.communicators.stage_of[rank])
        own = disturbances.program(rank, programs[stage])
        found[rank] = planned[stage] if own is programs[stage] else segments.read(own)
    return found


def _columns(segments: Segments, program: Ints, plan: RankLayout, folding: Folding) -> tuple[OpColumns, Int32s, Int32s]:
    """Return the ops of all templates, and for every instance its template and its peers.

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
    return OpColumns(segments, names), int32s(template.ravel()), peer


def _own_seconds(
    columns: OpColumns, segments: Segments, read: Mapping[int, tuple[int, Ints]], template: Int32s, retime: Retime
) -> dict[int, Floats]:
    """Return the durations of ops for the instances where these differ from the template's."""
    computations, found = cache(columns.computations), dict[int, Floats]()
    for instance, (rank, (number, which)) in enumerate(read.items()):
        differs = which is not segments.programs[number].segments
        if differs or retime is not UNDISTURBED.retime:
            planned, computing, listed = computations(int(template[instance]))
            seconds = columns.seconds_of(which) if differs else planned.copy()
            before = seconds[computing]
            seconds[computing] = after = retime(rank, listed, before)
            if differs or after is not before:
                found[instance] = seconds
    return found


def _find_groups(columns: OpColumns, template: Int32s, folding: Folding) -> tuple[Int32s, list[int]]:
    """Return every instance's group by kind of communicator, and a communicator that represents each group."""
    ranks = np.array(folding.classes.rank_representatives)
    uses = np.zeros((len(columns.stages), max(len(columns.groups), 1)), dtype=bool)
    meets = columns.slot >= 0
    uses[columns.program[meets], columns.slot[meets]] = True
    there = uses[template]
    number = np.empty(there.shape, dtype=np.int64)
    for kind, name in enumerate(columns.groups):
        if there[:, kind].any():
            number[there[:, kind], kind] = folding.communicators.numbers(name, ranks[there[:, kind]])
    found = np.asarray(folding.classes.of_communicator, dtype=np.int64)[number[there]]
    _, first, which = np.unique(found, return_index=True, return_inverse=True)
    group = np.full(there.shape, -1, dtype=np.int32)
    group[there] = which
    return group, number[there][first].tolist()


def _number_meetings(columns: OpColumns, template: Int32s, group: Int32s) -> tuple[Groups, list[tuple[int, GroupWork]]]:
    """Return the groups and the work that each does; number the meetings of all ops in ``columns``.

    Programs that share groups of a kind, even through others, number the meetings there in the same way.
    """
    instance, kind = np.nonzero(group >= 0)
    kinds, own = group.shape[1], group[instance, kind]
    pair = template[instance] * kinds + kind  # a template and a kind of group
    of_pair, of_group = _number_components(pair, own)
    meets = np.flatnonzero(columns.slot >= 0)
    pairs = columns.program[meets] * kinds + columns.slot[meets]
    names = columns.meeting_names(meets)
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
    rows = np.where(used.ravel(), np.cumsum(used) - 1, -1)
    groups = Groups(offsets(np.diff(first)[of_group]), int32s(most * np.arange(len(used) + 1)), int32s(rows))
    return groups, [(number, columns.works[kind_of[number]][each]) for number, each in np.argwhere(used).tolist()]


def _number_components(pair: Ints, group: Int32s) -> tuple[Ints, Ints]:
    """Return component numbers of pairs and of groups, equal where they are connected."""
    of_pair = np.arange(int(pair.max(initial=-1)) + 1)
    while True:
        of_group = np.full(int(group.max(initial=-1)) + 1, len(of_pair))
        np.minimum.at(of_group, group, of_pair[pair])
        before, of_pair = of_pair, of_pair.copy()
        np.minimum.at(of_pair, pair, of_group[group])
        if np.array_equal(before, of_pair):
            return of_pair, of_group


def _group_positions(group: Int32s, communicator: Sequence[int], folding: Folding) -> Int32s:
    found, ranks = np.full_like(group, -1), folding.classes.rank_representatives
    for instance, slot in zip(*np.nonzero(group >= 0), strict=True):
        members = folding.communicators.ranks(communicator[group[instance, slot]])
        found[instance, slot] = members.index(ranks[instance])
    return found
