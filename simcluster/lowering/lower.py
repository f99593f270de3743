"""From stage programs to the program that the engine plays, for one representative of every class of ranks.

Two passes that change no time, only the number of events: ranks of one class are played once (``fold``), and ops that
wait for nothing outside are played as one event (``chains``).  Pure; imports ops, program, fold, chains, between and
communicators.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simcluster.collector import collector_off
from simcluster.devices.interference import Interference
from simcluster.lowering.between import Between, Ranks, StepsOf
from simcluster.lowering.chains import Piece, pieces, singly
from simcluster.lowering.communicators import Communicators
from simcluster.lowering.fold import Classes, partition, unfolded
from simcluster.lowering.in_step import NOWHERE, Stretches, in_step
from simcluster.lowering.program import Meeting, Program
from simcluster.lowering.trusting import Trust
from simcluster.lowering.window import NotAlikeError, windows_of
from simcluster.lowering.window_classes import classes_in_window
from simcluster.planning.disturbances import UNDISTURBED, Disturbances
from simcluster.planning.ops import Compute, Host, Item, Op, Receive, Segment, StageProgram
from simcluster.planning.parallel import Layout
from simcluster.traffic.bindings import Floats
from simcluster.traffic.methods import Methods
from simcluster.traffic.traffic import Fabric


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


@dataclass(frozen=True)
class Lowered:
    """The engine's program, and what is needed to read its results: ``capacity`` is B/s per link (class)."""

    program: Program
    classes: Classes
    communicators: Communicators
    capacity: list[float]
    steps: list[StepsOf]


@collector_off()
def lower(
    programs: Sequence[StageProgram],
    plan: Layout,
    fabric: Fabric,
    capacity: Sequence[float] | Floats,
    *,
    slowness: Sequence[float],
    choices: Choices,
    disturbances: Disturbances = UNDISTURBED,
    trust: Trust | None = None,
) -> Lowered:
    """The engine's program.

    ``slowness[rank]`` multiplies the rank's compute times (1 is full speed); ``capacity[link]`` is B/s;
    ``disturbances`` is what else makes ranks and links differ; ``trust`` says which links may, of a job without any.
    """
    stage_ranks = [ranks.tolist() for ranks in plan.stage_ranks()]
    stage_of, place_of = np.zeros((2, plan.num_ranks), dtype=np.int64)
    for stage, ranks in enumerate(plan.stage_ranks()):
        stage_of[ranks] = stage
        place_of[ranks] = np.arange(len(ranks))
    stages, places = stage_of.tolist(), place_of.tolist()
    rates = np.asarray(capacity, dtype=float)
    folded = choices.folded and not choices.steps
    found = None
    if folded and disturbances is UNDISTURBED:
        found = _by_window(programs, plan, fabric, rates, slowness, choices.methods)
    if found is not None:
        communicators, classes = found
    else:
        communicators = Communicators(programs, plan, fabric, choices.methods)
        if folded:
            own = [(disturbances.speeds.get(rank), disturbances.colour(rank)) for rank in range(len(stages))]
            links = disturbances.link_colours(rates.tolist()) if disturbances.capacities else rates
            heeded = communicators.heeded(programs, rates, disturbances.capacities)
            colours = list(zip(stages, slowness, own, strict=True))
            bindings = communicators.bindings
            if trust is not None and disturbances is UNDISTURBED:
                classes = trust.classes(colours, bindings, rates, heeded)
            else:
                classes = partition(colours, bindings, links, heeded)
        else:
            classes = unfolded(len(stages), communicators.bindings, len(rates))
    where = Ranks(stage_ranks, stages, places, fabric.host_of, slowness)
    lowering = _Lowering(where, communicators, classes, rates, choices, disturbances)
    for rank in classes.rank_representatives:
        lowering.add(rank, disturbances.program(rank, programs[stages[rank]]))
    return lowering.finish()


def _by_window(
    programs: Sequence[StageProgram],
    plan: Layout,
    fabric: Fabric,
    capacity: Floats,
    slowness: Sequence[float],
    methods: Methods,
) -> tuple[Communicators, Classes] | None:
    """Communicators and classes by what a part of the job shows, where that tells all of it."""
    for window in windows_of(plan, fabric, slowness):
        try:
            communicators = Communicators(programs, plan, fabric, methods, window)
            return communicators, classes_in_window(communicators, window, capacity)
        except NotAlikeError:
            continue
    return None


class _Part(NamedTuple):
    """A piece of a segment as a rank plays it: its lane, the op that meets others, with its meeting's communicator (or
    None), what it waits for, and the meeting, where it is the rank's alone."""

    lane: int
    met: tuple[int, Op] | None
    after: tuple[int, ...]
    own: Meeting | None


class _Played(NamedTuple):
    """A segment as a rank plays it: its pieces in columns, and from which one on it goes in step, with which group."""

    parts: tuple[_Part, ...]
    lanes: tuple[int, ...]
    seconds: tuple[float, ...]
    rows: tuple[int, ...]
    first: tuple[int, ...]  # index in the segment of every piece's first op
    in_step: tuple[int, int]
    by_lane: tuple[tuple[int, tuple[int, ...]], ...]  # the pieces of every lane
    waits: tuple[tuple[int, tuple[int, ...]], ...]  # of pieces that wait for others of the segment
    together: Hashable  # equal for those that meet each other in all that they meet in; None for none


def _by_lane(parts: Sequence[_Part]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The pieces of every lane, in order."""
    found: dict[int, list[int]] = {}
    for index, part in enumerate(parts):
        found.setdefault(part.lane, []).append(index)
    return tuple((lane, tuple(indices)) for lane, indices in found.items())


class _Lowering:
    def __init__(
        self,
        ranks: Ranks,
        communicators: Communicators,
        classes: Classes,
        capacity: Floats,
        choices: Choices,
        disturbances: Disturbances,
    ) -> None:
        self._ranks, self._communicators, self._classes, self._choices = ranks, communicators, classes, choices
        self._capacity = [float(capacity[link]) for link in classes.link_representatives]
        played = [rank for rank in classes.rank_representatives if rank in disturbances.speeds]
        varying = disturbances.capacities_of(classes.link_representatives)
        self._program = Program(speeds={rank: disturbances.speeds[rank] for rank in played}, capacities=varying)
        self._between = Between(
            ranks, communicators, classes, self._capacity, self._program, choices.interference, in_steps=choices.steps
        )
        self._meetings: dict[Hashable, int] = {}
        self._ended: dict[int, dict[Hashable, int]] = {}  # by rank class and key: the item's last op
        self._receiving: list[tuple[int, Hashable]] = []  # (op, name of the meeting that its sender makes)
        self._waiting: list[tuple[int, int, Item]] = []  # (rank, first op, item) of items that wait for others
        self._stretches = Stretches()
        self._shapes: dict[Hashable, int] = {}
        self._met: dict[Hashable, list[int]] = {}  # meetings of an item's pieces, by who meet and the item's key

    def add(self, rank: int, stage: StageProgram) -> None:
        """All items of one rank."""
        lanes: dict[str, int] = {}
        known: dict[int, _Played] = {}
        ended = self._ended[self._classes.of_rank[rank]] = {}
        seconds = self._program.seconds
        for items in stage.lanes.values():
            for item in items:
                played = known.get(id(item.segment))
                if played is None:
                    played = known[id(item.segment)] = self._play(rank, stage.stage, item.segment, lanes)
                if item.needs:
                    self._waiting.append((rank, len(seconds), item))
                if len(played.parts) == 1:
                    self._add_one(rank, item, played)
                else:
                    self._add_item(rank, item, played)
                ended[item.key] = len(seconds) - 1
                for key in item.also:
                    ended[key] = len(seconds) - 1

    def _play(self, rank: int, stage: int, segment: Segment, lanes: dict[str, int]) -> _Played:
        """A segment as a rank plays it; ``lanes`` are the rank's so far."""
        program, between = self._program, self._between
        own = segment.ops[0].lane
        found = (pieces if self._choices.collapsed else singly)(
            segment,
            lambda op: between.seconds(rank, op, own),
            lambda op: between.moved(rank, op),
            (lambda op: between.pressure(rank, op)) if self._choices.interference or rank in program.speeds else None,
        )
        parts = []
        for piece in found:
            if piece.lane not in lanes:
                lanes[piece.lane] = program.add_lane(rank, stage, piece.lane)
            op = segment.ops[piece.first]
            met = own_meeting = None
            if piece.seconds is None:
                assert not isinstance(op.work, Compute | Host)
                met = between.communicator(op.work, rank), op
                if not isinstance(op.work, Receive) and not self._choices.steps:
                    meeting = between.meeting(*met)
                    own_meeting = meeting if meeting.parties == 1 else None
            parts.append(_Part(lanes[piece.lane], met, piece.after, own_meeting))
        rows = range(len(program.row_sets), len(program.row_sets) + len(found))
        program.row_sets += [piece.rows for piece in found]
        return _Played(
            tuple(parts),
            tuple(part.lane for part in parts),
            tuple(-1.0 if piece.seconds is None else piece.seconds for piece in found),
            tuple(rows),
            tuple(piece.first for piece in found),
            self._in_step(rank, segment, found),
            _by_lane(parts),
            tuple((index, part.after) for index, part in enumerate(parts) if part.after),
            self._together(parts),
        )

    def _together(self, parts: Sequence[_Part]) -> Hashable:
        """The group that all these pieces meet in, if it is one, with their places; they are hashed once."""
        met = [(index, part.met) for index, part in enumerate(parts) if part.met]
        groups = {self._between.group(number) for _, (number, _) in met}
        if len(groups) != 1 or self._choices.steps or any(isinstance(op.work, Receive) for _, (_, op) in met):
            return None
        shape = len(parts), *(index for index, _ in met)
        return *groups, self._shapes.setdefault(shape, len(self._shapes))

    def _in_step(self, rank: int, segment: Segment, found: Sequence[Piece]) -> tuple[int, int]:
        """From which piece on the rank goes in step with others, and the class of their group."""
        interference = self._choices.interference
        if not self._choices.collapsed or self._choices.steps or (interference and interference.drag):
            return NOWHERE
        return in_step(segment, found, lambda work: self._between.steady_group(rank, work))

    def finish(self) -> Lowered:
        """Tie the waits between ranks and hand over the program."""
        program = self._program
        program.in_step = self._stretches.all()
        for receive, name in self._receiving:
            program.meeting[receive] = self._meetings[name]
        of_stage, stage_of, places = self._ranks.of_stage, self._ranks.stage, self._ranks.place
        of_rank, ended = self._classes.of_rank, self._ended
        for rank, op, item in self._waiting:
            others = []
            for stage, key in item.needs:
                if stage == stage_of[rank]:
                    others.append(ended[of_rank[rank]][key])
                    continue
                other = ended[of_rank[of_stage[stage][places[rank]]]][key]
                assert program.meeting[other] >= 0, (item.key, stage, key)
                others.append(other)
                program.receives.append((other, op))
            program.after[op] = program.after[op] + tuple(others)
        return Lowered(program, self._classes, self._communicators, self._capacity, self._between.steps)

    def _add_one(self, rank: int, item: Item, played: _Played) -> None:
        """An item of a single piece, as most are: without lists."""
        program = self._program
        lane, met, _, own = played.parts[0]
        meeting, position = -1, -1
        if own is not None:
            meeting = len(program.meetings)
            program.meetings.append(own)
        elif met is not None:
            meeting, position = self._meet(rank, item, played.first[0], *met)
        program.lanes[lane].append(len(program.seconds))
        program.seconds.append(played.seconds[0])
        program.meeting.append(meeting)
        program.position.append(position)
        program.after.append(())
        program.lane.append(lane)
        program.rows.append(played.rows[0])
        program.step.append(item.step)
        program.chunk.append(item.chunk)
        program.microbatch.append(item.microbatch)

    def _add_item(self, rank: int, item: Item, played: _Played) -> None:
        program = self._program
        begin = len(program.seconds)
        count = len(played.parts)
        program.seconds += played.seconds
        program.lane += played.lanes
        program.rows += played.rows
        program.step += [item.step] * count
        program.chunk += [item.chunk] * count
        program.microbatch += [item.microbatch] * count
        program.after += [()] * count
        for index, after in played.waits:
            program.after[begin + index] = tuple([begin + other for other in after])
        for lane, indices in played.by_lane:
            program.lanes[lane] += [begin + index for index in indices]
        name = played.together, item.key
        met = self._met.get(name) if played.together is not None else None
        if met is not None:
            program.meeting += met
            program.position += [-1] * count
        else:
            for part, index in zip(played.parts, played.first, strict=True):
                own = (-1, -1) if part.met is None else self._meet(rank, item, index, *part.met)
                program.meeting.append(own[0])
                program.position.append(own[1])
            if played.together is not None:
                self._met[name] = program.meeting[begin:]
        first, group = played.in_step
        if first >= 0:
            self._stretches.add(group, item.key, begin + first, count - first)

    def _meet(self, rank: int, item: Item, index: int, number: int, op: Op) -> tuple[int, int]:
        """The meeting that an op of an item takes part in, and its position there; made by its first comer."""
        program, group = self._program, self._between.group(number)
        if isinstance(op.work, Receive):
            assert isinstance(item.key, tuple), item.key
            self._receiving.append((len(program.meeting), (group, item.key[1], index)))
            return -1, -1  # the sender makes the meeting; they are brought together in the end
        name = (group, item.key, index)
        known = self._meetings.get(name)
        if known is None:
            known = self._meetings[name] = len(program.meetings)
            program.meetings.append(self._between.meeting(number, op))
        return known, self._communicators.position(number, rank) if self._choices.steps else -1
