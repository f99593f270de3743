"""Tables of a job for the compiled engine, and the ops of its record: from stage programs, for one rank per class.

A program is read once (``op_columns``); one more rank that runs it costs its rows of ``Instances``.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.gc_paused import collector_off
from simcluster.base.link_values import LinkValues
from simcluster.devices.interference import Interference
from simcluster.engine.communication_kinds import CommunicationKinds
from simcluster.engine.meeting_places import Numbered, User, number_meetings
from simcluster.engine.op_columns import OpColumns, SegmentOps, own_seconds
from simcluster.engine.tables import Groups, Instances, Tables, Templates, firsts
from simcluster.planning.ops import StageProgram
from simcluster.planning.parallel import RankLayout
from simcluster.planning.perturbations import UNDISTURBED, Disturbances
from simcluster.symmetry.folding import Folding
from simcluster.traffic.traffic import Fabric


@dataclass(frozen=True, eq=False)
class JobTables:
    """The tables of a job, and what is needed to read its results.

    ``columns`` are the ops of the tables' templates, ``segments`` those that they point to.
    """

    tables: Tables = field(repr=False)
    folding: Folding = field(repr=False)
    segments: SegmentOps = field(repr=False)
    columns: Sequence[OpColumns] = field(repr=False)
    kinds: CommunicationKinds = field(repr=False)

    @property
    def capacity(self) -> list[float]:
        """B/s by class of links."""
        found: list[float] = self.tables.capacity.tolist()
        return found

    def describe(self, op: int) -> str:
        """Return the name of an op in messages: 'rank 3 main: forward attention, microbatch 2'."""
        instances = self.tables.instances
        instance = int(np.searchsorted(instances.op_first, op, side="right")) - 1
        columns, number = self.columns[instances.template[instance]], op - int(instances.op_first[instance])
        own, item = self.segments.ops[columns.place[number]], columns.item[number]
        what = "" if own.work.joins else f": {own.kind} {own.name}"
        microbatch = columns.microbatch[item]
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
    return _Builder(programs, plan, folding, kinds, disturbances).build(slowness, capacity, disturbances)


class _Builder:
    def __init__(
        self,
        programs: Sequence[StageProgram],
        plan: RankLayout,
        folding: Folding,
        kinds: CommunicationKinds,
        disturbances: Disturbances,
    ) -> None:
        communicators, classes = folding
        self._folding, self._communicators, self._classes, self._kinds = folding, communicators, classes, kinds
        self._stage_ranks = plan.stage_ranks()
        self._ranks = np.array(classes.rank_representatives, dtype=np.int64)
        self._stage, self._place = communicators.stage_of[self._ranks], communicators.place_of[self._ranks]
        self._segments = SegmentOps()
        self._own: dict[int, Floats] = {}  # by instance the seconds of its ops, where only these are its own
        self._programs, self._program = self._read(programs, disturbances)

    def _read(
        self, programs: Sequence[StageProgram], disturbances: Disturbances
    ) -> tuple[list[OpColumns], Ints]:  # fmt: skip
        """Return the different programs of the instances, and which each of them runs."""
        found = [OpColumns(program, self._segments) for program in programs]
        which = self._stage.astype(np.int64)
        if disturbances.program is UNDISTURBED.program:
            return found, which
        known: dict[int, int] = {}
        for instance, (rank, stage) in enumerate(zip(self._ranks.tolist(), self._stage.tolist(), strict=True)):
            own = disturbances.program(rank, programs[stage])
            if own is programs[stage]:
                continue
            seconds = own_seconds(found[stage], own)
            if seconds is not None:
                self._own[instance] = seconds
                continue
            if id(own) not in known:
                known[id(own)] = len(found)
                found.append(OpColumns(own, self._segments))
            which[instance] = known[id(own)]
        for instance, rank in enumerate(self._ranks.tolist()):
            columns = found[which[instance]]
            seconds = self._own.get(instance, self._segments.seconds[columns.place])
            before = seconds[columns.computing]
            after = disturbances.retime(rank, columns.computations, before)
            if after is not before:
                self._own[instance] = seconds.copy()
                self._own[instance][columns.computing] = after
        return found, which

    def build(self, slowness: Sequence[float], rates: LinkValues, disturbances: Disturbances) -> JobTables:
        """Return the tables."""
        template, programs, peers, peer = self._templates()
        columns = [self._programs[program] for program in programs]
        groups, group, position, place, work = self._meet()
        lengths = np.array([len(each) for each in columns])
        lanes = np.array([len(each.lanes[0]) for each in columns])
        own = np.full(len(self._ranks), -1, dtype=np.int32)
        own[list(self._own)] = firsts([len(each) for each in self._own.values()])[:-1]
        links = np.array(self._classes.link_representatives, dtype=np.int64)
        speeds = [(place, rank) for place, rank in enumerate(self._ranks.tolist()) if rank in disturbances.speeds]
        instances = Instances(
            template=template.astype(np.int32),
            group=group,
            peer=peer,
            position=position,
            op_first=firsts(lengths[template]),
            lane_first=firsts(lanes[template]),
            rank_first=np.arange(len(self._ranks) + 1, dtype=np.int32),
            number=self._ranks.astype(np.int32),
            slowness=np.array([slowness[rank] for rank in self._ranks.tolist()], dtype=np.float64),
            own_seconds=own,
            seconds=np.concatenate([np.zeros(0), *self._own.values()]),
        )
        tables = Tables(
            templates=self._in_columns(programs, peers, place, work),
            instances=instances,
            groups=groups,
            kinds=self._kinds.tables(),
            traffics=self._kinds.traffics,
            collectives=self._kinds.collectives,
            capacity=rates.of(links),
            speeds={place: disturbances.speeds[rank] for place, rank in speeds},
            capacities=disturbances.capacities_of(self._classes.link_representatives),
        )
        return JobTables(tables, self._folding, self._segments, columns, self._kinds)

    def _templates(self) -> tuple[Ints, list[int], list[tuple[int, ...]], Int32s]:
        """Return the template of every instance, the program of every template and those of its peers, and peers.

        A template's waits name ops of its peers, so instances whose peers run other programs have another template.
        """
        of_rank = np.asarray(self._classes.of_rank)
        widest = max((len(program.peers) for program in self._programs), default=0)
        peer = np.full((len(self._ranks), widest), -1, dtype=np.int32)
        names = np.full((len(self._ranks), 1 + widest), -1, dtype=np.int64)
        names[:, 0] = self._program
        for number, program in enumerate(self._programs):
            those = np.flatnonzero(self._program == number)
            for slot, stage in enumerate(program.peers):
                peer[those, slot] = of_rank[self._stage_ranks[stage][self._place[those]]]
                names[those, 1 + slot] = self._program[peer[those, slot]]
        rows, template = np.unique(names, axis=0, return_inverse=True)
        found = [tuple(each for each in row if each >= 0) for row in rows.tolist()]
        return template.ravel(), [row[0] for row in found], [row[1:] for row in found], peer

    def _meet(self) -> tuple[Groups, Int32s, Int32s, list[Int32s], list[Int32s]]:
        """Return the groups, the group of every instance by slot, its position there, and per program the place and the
        work of every op."""
        programs = self._programs
        users: dict[int, list[tuple[User, Ints, Ints]]] = {}  # by kind of communicator: also instances, communicators
        names = list(self._segments.groups)
        classes = np.asarray(self._classes.of_communicator)
        instances = [np.flatnonzero(self._program == number) for number in range(len(programs))]
        for number, program in enumerate(programs):
            for slot, kind in enumerate(program.slots[0].tolist() if len(instances[number]) else ()):
                own = self._communicators.numbers(names[kind], program.stage, self._ranks[instances[number]])
                user = User(number, slot, classes[own].astype(np.int64))
                users.setdefault(kind, []).append((user, instances[number], own))
        place = [np.full(len(program), -1, dtype=np.int32) for program in programs]
        work = [np.full(len(program), -1, dtype=np.int32) for program in programs]
        widest = max((len(program.slots[0]) for program in programs), default=0)
        group = np.full((len(self._ranks), widest), -1, dtype=np.int32)
        made = _GroupTables(list(self._segments.communications), self._kinds)
        for rows in users.values():
            where = {user.program: (those, own) for user, those, own in rows}
            for numbered in number_meetings([user for user, _, _ in rows], programs, self._segments):
                parts = [where[user.program] for user in numbered.users]
                of_groups = made.add(numbered, [own for _, own in parts])
                for index, (user, (those, _), found) in enumerate(
                    zip(numbered.users, parts, of_groups, strict=True)
                ):  # fmt: skip
                    group[those, user.slot] = found
                    place[user.program][numbered.ops[index]] = numbered.place[index]
                    work[user.program][numbered.ops[index]] = numbered.work[index]
        return made.tables(), group, self._positions(group, made), place, work

    def _positions(self, group: Int32s, made: _GroupTables) -> Int32s:
        """Return the position of every instance in its groups, which only collectives in rounds ask for."""
        found = np.full_like(group, -1)
        if not self._kinds.collectives:
            return found
        for (instance, slot), number in np.ndenumerate(group):
            if number >= 0:
                communicator = made.communicators[number]
                found[instance, slot] = self._communicators.position(communicator, int(self._ranks[instance]))
        return found

    def _in_columns(
        self, programs: Sequence[int], peers: Sequence[tuple[int, ...]], place: Sequence[Int32s], work: Sequence[Int32s]
    ) -> Templates:
        """Return the templates of these programs, one after the other."""
        segments, columns = self._segments, [self._programs[program] for program in programs]
        waits = [each.waits([self._programs[other] for other in own])
                 for each, own in zip(columns, peers, strict=True)]  # fmt: skip
        wait_counts = [np.bincount(op, minlength=len(each)) for (op, _, _), each in zip(waits, columns, strict=True)]
        lanes = [each.lanes[1] for each in columns]
        lane_counts = [np.bincount(lane, minlength=len(each.lanes[0]))
                       for lane, each in zip(lanes, columns, strict=True)]  # fmt: skip
        every = _joined([each.place for each in columns])
        return Templates(
            op_first=firsts([len(each) for each in columns]),
            seconds=segments.seconds[every],
            sensitivity=segments.sensitivity[every],
            slot=_joined([each.slots[1] for each in columns]).astype(np.int32),
            work=_joined([work[program] for program in programs]).astype(np.int32),
            place=_joined([place[program] for program in programs]).astype(np.int32),
            wait_first=firsts(_joined(wait_counts)),
            wait_op=_joined([other for _, other, _ in waits]).astype(np.int32),
            wait_peer=_joined([whose for _, _, whose in waits]).astype(np.int32),
            lane_first=firsts([len(each.lanes[0]) for each in columns]),
            lane_op_first=firsts(_joined(lane_counts)),
            lane_op=_joined([np.argsort(lane, kind="stable") for lane in lanes]).astype(np.int32),
            lane_rank=np.zeros(sum(map(len, lane_counts)), dtype=np.int32),
        )


class _GroupTables:
    """The groups in the making: ``communicators`` has the one that represents each."""

    def __init__(self, communications: Sequence[Any], kinds: CommunicationKinds) -> None:
        self._communications, self._kinds = communications, kinds
        self.communicators: list[int] = []
        self._places: list[Ints] = []
        self._counts: list[Ints] = []
        self._rows: list[Int32s] = []

    def add(self, numbered: Numbered, numbers: Sequence[Ints]) -> list[Ints]:
        """Add the groups of programs, whose instances use the communicators ``numbers``; return their new numbers."""
        first, users = len(self.communicators), numbered.users
        _, firsts, which = np.unique(
            np.concatenate([user.groups for user in users]), return_index=True, return_inverse=True
        )  # fmt: skip
        self.communicators += np.concatenate(numbers)[firsts].tolist()
        rows = np.full((len(firsts), len(numbered.communications)), -1, dtype=np.int32)
        of_users = np.split(which, np.cumsum([len(user.groups) for user in users])[:-1])
        for own, work in zip(of_users, numbered.work, strict=True):
            groups, works = np.unique(own), np.unique(work[work >= 0])
            new = np.nonzero(rows[groups][:, works] < 0)
            for group, place in zip(groups[new[0]].tolist(), works[new[1]].tolist(), strict=True):
                communication = self._communications[numbered.communications[place]]
                rows[group, place] = self._kinds.add(self.communicators[first + group], communication)
        self._places.append(np.full(len(firsts), numbered.places))
        self._counts.append(np.full(len(firsts), rows.shape[1]))
        self._rows.append(rows.ravel())
        return [first + own for own in of_users]

    def tables(self) -> Groups:
        """Return all groups."""
        return Groups(
            place_first=firsts(_joined(self._places)),
            kind_first=firsts(_joined(self._counts))[:-1],
            kinds=_joined(self._rows).astype(np.int32),
        )


def _joined(parts: Sequence[Any]) -> Any:
    """Return columns one after the other."""
    return np.concatenate([np.zeros(0, dtype=np.int32), *parts])
