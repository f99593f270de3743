"""From stage programs to the program that the engine plays, for one representative of every class of ranks.

Two passes that change no time, only the number of events: ranks of one class are played once (``fold``), and ops that
wait for nothing outside are played as one event (``chains``).  Pure; imports ops, program, fold, chains, communicators.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from simcluster.clock import on_grid
from simcluster.collectives import Phase
from simcluster.devices.interference import Beside, Interference
from simcluster.lowering.chains import Piece, pieces, singly
from simcluster.lowering.communicators import Communicators
from simcluster.lowering.fold import Classes, partition, unfolded
from simcluster.lowering.program import Meeting, Program
from simcluster.nccl import bus_factor
from simcluster.planning.disturbances import UNDISTURBED, Disturbances
from simcluster.planning.ops import (
    MAIN,
    Collective,
    Compute,
    Copy,
    Host,
    Item,
    Op,
    Receive,
    Segment,
    StageProgram,
    Timed,
    Transfer,
)
from simcluster.planning.parallel import Layout
from simcluster.traffic.methods import Methods, Pace, round_of
from simcluster.traffic.traffic import Fabric, Traffic


@dataclass(frozen=True, slots=True)
class Choices:
    """How a job is played: by which methods, in flow or in steps; ranks folded, chains of ops collapsed, or all apart.

    ``interference`` is what communication beside computation does to it, None for nothing.
    """

    methods: Methods
    steps: bool = False
    folded: bool = True
    interference: Interference | None = None
    collapsed: bool = True


@dataclass(frozen=True, slots=True)
class StepsOf:
    """A collective to be played in steps: the GPUs of its group, its description, size in bytes and a hop's pace."""

    gpus: tuple[int, ...]
    phases: Sequence[Phase]
    size: float
    pace: Pace | None


@dataclass(frozen=True)
class Lowered:
    """The engine's program, and what is needed to read its results: ``capacity`` is B/s per link (class)."""

    program: Program
    classes: Classes
    communicators: Communicators
    capacity: list[float]
    steps: list[StepsOf]


def lower(
    programs: Sequence[StageProgram],
    plan: Layout,
    fabric: Fabric,
    capacity: Sequence[float],
    *,
    slowness: Sequence[float],
    choices: Choices,
    disturbances: Disturbances = UNDISTURBED,
) -> Lowered:
    """The engine's program.

    ``slowness[rank]`` multiplies the rank's compute times (1 is full speed); ``capacity[link]`` is B/s;
    ``disturbances`` is what else makes ranks and links differ.
    """
    communicators = Communicators(programs, plan, fabric, choices.methods)
    stage_ranks = [ranks.tolist() for ranks in plan.stage_ranks()]
    stages = [0] * plan.num_ranks
    for stage, ranks in enumerate(stage_ranks):
        for rank in ranks:
            stages[rank] = stage
    if choices.folded and not choices.steps:
        own = [(disturbances.speeds.get(rank), disturbances.colour(rank)) for rank in range(len(stages))]
        links = disturbances.link_colours(capacity)
        heeded = communicators.heeded(programs, np.asarray(capacity, dtype=float), disturbances.capacities)
        classes = partition(list(zip(stages, slowness, own, strict=True)), communicators.bindings, links, heeded)
    else:
        classes = unfolded(len(stages), communicators.bindings, len(capacity))
    lowering = _Lowering(stage_ranks, communicators, classes, capacity, slowness, fabric.host_of, choices, disturbances)
    for rank in classes.rank_representatives:
        lowering.add(rank, disturbances.program(rank, programs[stages[rank]]))
    return lowering.finish()


class _Lowering:
    def __init__(
        self,
        stage_ranks: list[list[int]],
        communicators: Communicators,
        classes: Classes,
        capacity: Sequence[float],
        slowness: Sequence[float],
        host_of: Sequence[int],
        choices: Choices,
        disturbances: Disturbances,
    ) -> None:
        self._communicators = communicators
        self._classes = classes
        self._capacity = [float(capacity[link]) for link in classes.link_representatives]
        self._slowness = slowness
        self._host_of = host_of
        self._in_steps = choices.steps
        self._interference = choices.interference
        self._pieces_of = pieces if choices.collapsed else singly
        self._steps: list[StepsOf] = []
        played = [rank for rank in classes.rank_representatives if rank in disturbances.speeds]
        varying = disturbances.capacities_of(classes.link_representatives)
        self._program = Program(speeds={rank: disturbances.speeds[rank] for rank in played}, capacities=varying)
        self._shared = [  # whose transfers the network plays: others on their links, or links that come and go
            shared or any(link in varying for usage in usages for link, _ in usage)
            for shared, usages in zip(classes.shared, classes.quotient, strict=True)
        ]
        self._meetings: dict[Hashable, int] = {}
        self._ended: dict[tuple[int, Hashable], int] = {}  # (rank class, key) -> the item's last op
        self._receiving: list[tuple[int, Hashable]] = []  # (op, name of the meeting that its sender makes)
        self._waiting: list[tuple[int, int, Item]] = []  # (rank, first op, item) of items that wait for others
        self._traffic: dict[Hashable, int] = {}  # -> the number in the program's traffics
        self._known_parties: dict[int, int] = {}
        self._stage_ranks = stage_ranks
        self._stage_of = {rank: stage for stage, ranks in enumerate(self._stage_ranks) for rank in ranks}
        self._place = {rank: place for ranks in self._stage_ranks for place, rank in enumerate(ranks)}

    def add(self, rank: int, stage: StageProgram) -> None:
        """All items of one rank."""
        lanes: dict[str, int] = {}
        known: dict[int, tuple[tuple[Piece, ...], list[int]]] = {}
        for items in stage.lanes.values():
            for item in items:
                if id(item.segment) not in known:
                    parts = self._pieces(rank, item.segment)
                    known[id(item.segment)] = parts, [self._row_set(part) for part in parts]
                    for part in parts:
                        if part.lane not in lanes:
                            lanes[part.lane] = self._program.add_lane(rank, stage.stage, part.lane)
                self._add_item(rank, item, *known[id(item.segment)], lanes)

    def _pieces(self, rank: int, segment: Segment) -> tuple[Piece, ...]:
        own = segment.ops[0].lane
        return self._pieces_of(
            segment,
            lambda op: self._duration(rank, op, own),
            lambda op: self._moved(rank, op),
            (lambda op: self._pressure(rank, op)) if self._interference or rank in self._program.speeds else None,
        )

    def finish(self) -> Lowered:
        """Tie the waits between ranks and hand over the program."""
        program = self._program
        for receive, name in self._receiving:
            program.meeting[receive] = self._meetings[name]
        for rank, op, item in self._waiting:
            others = []
            for need in item.needs:
                peer = self._stage_ranks[need.stage][self._place[rank]]
                other = self._ended[self._classes.of_rank[peer], need.key]
                others.append(other)
                assert need.stage == self._stage_of[rank] or program.meeting[other] >= 0, (item.key, need)
                if need.stage != self._stage_of[rank]:
                    program.receives.append((other, op))
            program.after[op] = program.after[op] + tuple(others)
        return Lowered(program, self._classes, self._communicators, self._capacity, self._steps)

    def _add_item(
        self, rank: int, item: Item, parts: Sequence[Piece], rows: Sequence[int], lanes: Mapping[str, int]
    ) -> None:
        program = self._program
        ops: list[int] = []
        for part, row_set in zip(parts, rows, strict=True):
            lane = lanes[part.lane]
            alone = part.seconds is not None
            meeting, position = (-1, -1) if alone else self._meeting(rank, item, part.first)
            op = program.add_op(
                lane, row_set, seconds=-1.0 if part.seconds is None else part.seconds, meeting=meeting,
                position=position, step=item.step, chunk=item.chunk, microbatch=item.microbatch,
            )  # fmt: skip
            ops.append(op)
            if part.after:
                program.after[op] = tuple(ops[index] for index in part.after)
        if item.needs:
            self._waiting.append((rank, ops[0], item))
        for key in (item.key, *item.also):
            self._ended[self._classes.of_rank[rank], key] = ops[-1]

    def _row_set(self, part: Piece) -> int:
        self._program.row_sets.append(part.rows)
        return len(self._program.row_sets) - 1

    def _communicator(self, work: Collective | Timed | Transfer | Receive | Copy, rank: int) -> int:
        """The communicator that an op of a rank uses."""
        if isinstance(work, Receive):
            sender = self._stage_ranks[work.from_stage][self._place[rank]]
            return self._communicators.number(("send", work.from_stage, self._stage_of[rank]), sender)
        if isinstance(work, Transfer):
            return self._communicators.number(("send", self._stage_of[rank], work.to_stage), rank)
        if isinstance(work, Copy):
            return self._communicators.number(("copy", work.direction), rank)
        return self._communicators.number(work.axis, rank)

    def _duration(self, rank: int, op: Op, own_lane: str) -> float | None:
        """Seconds of an op that only its own class has a say in: compute, and collectives on links of their own.

        A collective that computation drags is none of these, nor one that slows down computation outside its segment
        (whose first op is on ``own_lane``).
        """
        if isinstance(op.work, Compute):
            return on_grid(op.work.seconds * self._slowness[rank])
        if isinstance(op.work, Host):
            return on_grid(op.work.seconds)
        if isinstance(op.work, Receive):
            return None
        if self._disturbs(op) and self._interference and (op.lane == own_lane or self._interference.drag):
            return None
        number = self._communicator(op.work, rank)
        group = self._classes.of_communicator[number]
        if isinstance(op.work, Transfer) or self._shared[group] or self._parties(number) > 1:
            return None
        if self._in_steps:
            return None
        return sum(traffic.alone_seconds(self._capacity) for traffic in self._traffics(number, op.work))

    def _parties(self, number: int) -> int:
        """How many classes of ranks meet in a group."""
        if number not in self._known_parties:
            ranks = self._communicators.ranks(number)
            self._known_parties[number] = len({self._classes.of_rank[rank] for rank in ranks})
        return self._known_parties[number]

    def _traffics(self, number: int, work: Collective | Timed | Transfer | Copy) -> tuple[Traffic, ...]:
        """The activities of a collective or transfer, on link classes."""
        if isinstance(work, Timed) or (isinstance(work, Transfer | Copy) and work.seconds >= 0):
            return (Traffic((), 0.0, 1, work.seconds),)
        return self._program.traffics[self._traffic_number(number, work)]

    def _traffic_number(self, number: int, work: Collective | Transfer | Copy) -> int:
        group = self._classes.of_communicator[number]
        kind = work.kind if isinstance(work, Collective) else "copy" if isinstance(work, Copy) else "send"
        known = self._traffic.get((group, kind, work.size))
        if known is None:
            usages = self._classes.quotient[group]
            known = self._traffic[group, kind, work.size] = len(self._program.traffics)
            self._program.traffics.append(self._communicators.traffics(number, kind, work.size, usages))
        return known

    def _moved(self, rank: int, op: Op) -> int:
        """The number of what an op moves over links, -1 for nothing and for what takes a given time."""
        work = op.work
        if isinstance(work, Compute | Timed | Receive | Host):
            return -1
        if isinstance(work, Transfer | Copy) and work.seconds >= 0:
            return -1
        return self._traffic_number(self._communicator(work, rank), work)

    def _meeting(self, rank: int, item: Item, index: int) -> tuple[int, int]:
        """The meeting that an op of an item takes part in, and its position there; made by its first comer."""
        op = item.segment.ops[index]
        work = op.work
        assert not isinstance(work, Compute | Host)
        number = self._communicator(work, rank)
        if isinstance(work, Receive):
            assert isinstance(item.key, tuple), item.key
            name = (self._classes.of_communicator[number], item.key[1], index)
            self._receiving.append((len(self._program.seconds), name))
            return -1, -1  # the sender makes the meeting; they are brought together in the end
        name = (self._classes.of_communicator[number], item.key, index)
        position = self._communicators.position(number, rank) if self._in_steps else -1
        if name not in self._meetings:
            steps = -1
            if self._in_steps and isinstance(work, Collective):
                steps = len(self._steps)
                phases = self._communicators.phases(number, work.kind, work.size)
                pace = self._communicators.method(number, work.kind, work.size).pace
                pace = pace and round_of(phases, pace)
                self._steps.append(StepsOf(self._communicators.ranks(number), phases, work.size, pace))
            parties = 1 + work.rendezvous if isinstance(work, Transfer) else self._parties(number)
            self._meetings[name] = len(self._program.meetings)
            meeting = Meeting(parties, self._traffics(number, work), steps)
            beside = op.lane != MAIN or isinstance(work, Transfer)  # what blocks all its ranks disturbs none
            if self._interference and beside and steps < 0 and not isinstance(work, Copy):
                meeting = self._disturbing(meeting, number, work, self._interference)
            self._program.meetings.append(meeting)
        return self._meetings[name], position

    def _disturbing(
        self, meeting: Meeting, number: int, work: Collective | Timed | Transfer, interference: Interference
    ) -> Meeting:
        """The meeting with what it does to computation on its ranks, and what that does to it."""
        ranks = self._communicators.ranks(number)
        pressure = interference.pressure(self._beside(number, work))
        if not pressure and not interference.drag:
            return meeting
        played = dict.fromkeys(self._classes.rank_representatives[self._classes.of_rank[rank]] for rank in ranks)
        return replace(meeting, ranks=tuple(played), pressure=pressure, drag=interference.drag)

    def _pressure(self, rank: int, op: Op) -> float:
        """What an op does to the computation beside it in its segment."""
        if isinstance(op.work, Compute | Receive | Copy | Host) or not self._interference or not self._disturbs(op):
            return 0.0
        return self._interference.pressure(self._beside(self._communicator(op.work, rank), op.work))

    def _disturbs(self, op: Op) -> bool:
        """Is it communication beside computation?  A copy engine takes no SM (what it takes of HBM is not counted)."""
        return op.lane != MAIN and not isinstance(op.work, Copy | Host)

    def _beside(self, number: int, work: Collective | Timed | Transfer) -> Beside:
        """A communication as the GPUs feel it that take part."""
        ranks = self._communicators.ranks(number)
        alone = sum(traffic.alone_seconds(self._capacity) for traffic in self._traffics(number, work))
        sent = 0.0
        if isinstance(work, Transfer):
            sent = work.size
        elif isinstance(work, Collective):
            sent = work.size * bus_factor(cast(Any, work.kind), len(ranks))
        between_nodes = any(self._host_of[rank] != self._host_of[ranks[0]] for rank in ranks)
        return Beside(between_nodes, sent / alone if alone > 0 else 0.0)
