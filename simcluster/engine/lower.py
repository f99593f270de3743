"""From stage programs to the program that the engine plays, for one representative of every class of ranks.

Two passes that change no time, only the number of events: ranks of one class are played once (``symmetry.folding``),
and ops that wait for nothing outside are played as one event (``chains``).  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.gc_paused import collector_off
from simcluster.base.link_values import LinkValues
from simcluster.base.shown import Shown
from simcluster.devices.interference import Interference
from simcluster.engine.communication import CommunicationLowering, Ranks, StepsOf
from simcluster.engine.segment_lowering import Group, LoweredSegment, Segments
from simcluster.engine.templates import StageOps, Template, taken
from simcluster.planning.ops import StageProgram
from simcluster.planning.parallel import RankLayout
from simcluster.planning.perturbations import UNDISTURBED, Disturbances
from simcluster.programs.expand import whole
from simcluster.programs.lockstep_regions import Members, Stretches
from simcluster.programs.program import Program
from simcluster.programs.told_ops import ToldOps, told_ops
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.equitable_partition import Classes
from simcluster.symmetry.folding import Folding, Symmetry
from simcluster.symmetry.optimistic import OptimisticFold
from simcluster.traffic.methods import Methods
from simcluster.traffic.traffic import Fabric


@dataclass(frozen=True, slots=True)
class Choices:
    """How a job is played: by which methods, in flow or in steps; ranks folded (in flow only), chains of ops collapsed,
    or all apart.

    ``interference`` is what communication beside computation does to it, None for nothing.
    """

    methods: Methods
    steps: bool = False
    folded: bool = True
    interference: Interference | None = None
    collapsed: bool = True


@dataclass(frozen=True)
class Lowered(Shown):
    """What the engine plays, and what is needed to read its results: ``capacity`` is B/s per link (class)."""

    played: Program
    classes: Classes
    communicators: Communicators
    capacity: list[float]
    steps: list[StepsOf]

    @cached_property
    def program(self) -> Program:
        """What was played, with all ops that ranks do in step one by one, and what they wait for."""
        return whole(self.played, self.told)

    @property
    def folding(self) -> Folding:
        """The communicators and the classes."""
        return Folding(self.communicators, self.classes)

    @cached_property
    def told(self) -> ToldOps:
        """The same ops, in columns of what is told of them: what is measured."""
        return told_ops(self.played)


@collector_off()
def lower(
    programs: Sequence[StageProgram],
    plan: RankLayout,
    fabric: Fabric,
    capacity: Sequence[float] | Floats | LinkValues,
    *,
    slowness: Sequence[float],
    choices: Choices,
    disturbances: Disturbances = UNDISTURBED,
    trust: OptimisticFold | None = None,
    symmetry: Symmetry | None = None,
    folding: Folding | None = None,
) -> Lowered:
    """The engine's program.

    ``slowness[rank]`` multiplies the rank's compute times (1 is full speed); ``capacity[link]`` is B/s;
    ``disturbances`` is what else makes ranks and links differ; ``trust`` says which links may, of a job without any;
    ``symmetry`` is that of the same programs, plan and methods on this fabric, whatever is wrong with it; ``folding``
    is what it finds with this wrong, where that is known.
    """
    rates = capacity if isinstance(capacity, LinkValues) else LinkValues(np.array(capacity, dtype=float))
    symmetry = symmetry or Symmetry(programs, plan, fabric, choices.methods)
    if folding is not None:
        communicators, classes = folding
    elif choices.folded:
        communicators, classes = symmetry.folding(rates, slowness, disturbances, trust)
    else:
        communicators, classes = symmetry.unfolded(len(rates))
    stage_ranks = [ranks.data for ranks in plan.stage_ranks()]  # as Python's numbers, of which few are asked for
    stages, places = communicators.stage_of.data, communicators.place_of.data
    where = Ranks(stage_ranks, stages, places, fabric.host_of, slowness)
    lowering = _Lowering(programs, where, communicators, classes, rates, choices, disturbances)
    for rank in classes.rank_representatives:
        lowering.add(rank, disturbances.program(rank, programs[stages[rank]]))
    return lowering.finish()


class _Added(NamedTuple):
    """What is still needed of a rank when all have been added: its items' first and last ops count from ``first``;
    ``meeting`` is that of every op."""

    rank: int
    template: Template
    begins: Ints
    ends: Ints
    first: int
    meeting: Ints


class _Lowering:
    def __init__(
        self,
        programs: Sequence[StageProgram],
        ranks: Ranks,
        communicators: Communicators,
        classes: Classes,
        capacity: LinkValues,
        choices: Choices,
        disturbances: Disturbances,
    ) -> None:
        self._ranks, self._communicators, self._classes, self._choices = ranks, communicators, classes, choices
        self._capacity: list[float] = capacity.of(np.array(classes.link_representatives, dtype=np.int64)).tolist()
        played = [rank for rank in classes.rank_representatives if rank in disturbances.speeds]
        speeds = {rank: disturbances.speeds[rank] for rank in played}
        varying = disturbances.capacities_of(classes.link_representatives)
        self._program = Program(speeds=speeds, capacities=varying)
        interference = choices.interference
        self._between = CommunicationLowering(
            ranks, communicators, classes, self._capacity, capacity, self._program, interference,
            in_steps=choices.steps,
        )  # fmt: skip
        self._segments = Segments(
            self._between, lambda rank: interference is not None or rank in speeds, "ops", in_steps=choices.steps
        )
        self._templates = {id(program): Template(program) for program in programs}
        self._added: dict[int, _Added] = {}  # by rank class
        self._stretches = Stretches()
        self._met: dict[Group, dict[Hashable, list[int]]] = {}  # the meetings of a group, by the item's key
        self._numbers: list[int] = []  # of all ops, each one object wherever it is named
        self._receiving: list[tuple[int, int, Hashable]] = []  # (op, class of the pair, key of the item that sends)

    def add(self, rank: int, stage: StageProgram) -> None:
        """All items of one rank."""
        program, planned = self._program, self._templates.get(id(stage))
        template = planned or Template(stage)
        played = [self._segments.played(rank, segment) for segment in template.segments]
        shapes = [each.shape for each in played]
        columns = planned.ops(shapes) if planned else StageOps(template, shapes)
        first, row_sets = len(program.seconds), len(program.row_sets)
        self._numbers += range(first, first + len(columns.pieces))
        numbers = self._numbers[first:]
        lanes = [program.add_lane(rank, stage.stage, name) for name in columns.lanes]
        for lane, ops in zip(lanes, columns.lanes.values(), strict=True):
            program.lanes[lane] = taken(numbers, ops)
        for each in played:
            program.row_sets += each.rows
        program.seconds += columns.seconds
        program.lane += taken(taken(lanes, columns.lane), columns.pieces)
        program.rows += taken(list(range(row_sets, len(program.row_sets))), columns.pieces)
        program.step += columns.step
        program.chunk += columns.chunk
        program.microbatch += columns.microbatch
        program.after += [()] * len(columns.pieces)
        for waiting, *awaited in columns.waits:
            others = zip(*[taken(numbers, each) for each in awaited], strict=True)
            for op, own in zip(taken(numbers, waiting), others, strict=True):
                program.after[op] = own
        self._go_in_step(played, *columns.in_step, numbers)
        meeting = self._meet(rank, played, columns, first)
        self._added[self._classes.of_rank[rank]] = _Added(
            rank, template, columns.begins, columns.ends, first, meeting
        )  # fmt: skip

    def _go_in_step(
        self, played: Sequence[LoweredSegment], keys: Sequence[Hashable], which: Sequence[int], ops: Sequence[int],
        numbers: Sequence[int],
    ) -> None:  # fmt: skip
        """The stretches of a rank: items' keys, segments and ops."""
        groups = list(dict.fromkeys([each.steady for each in played if each.part]))
        for group in groups:
            own = Members(keys, taken(numbers, ops), [part for segment in which if (part := played[segment].part)])
            if len(groups) > 1:
                there = [place for place, segment in enumerate(which) if played[segment].steady == group]
                own = Members(taken(own.keys, there), taken(own.ops, there), taken(own.parts, there))
            self._stretches.add(group, own)

    def _meet(self, rank: int, played: Sequence[LoweredSegment], columns: StageOps, first: int) -> Ints:
        """The meetings of a rank's ops, and its positions there; it makes those that nobody has come to before."""
        met, meetings = columns.met, self._program.meetings
        known = [self._met.setdefault(group, {}) for each in played for group in each.groups]
        numbers: list[int] = []
        new = []
        for place, (group, key) in enumerate(zip(met.groups, met.keys, strict=True)):
            there = known[group].get(key)
            if there is None:
                there = [-1] * (met.first[place + 1] - met.first[place])
                new.append(place)
            numbers += there
        column = np.full(len(columns.pieces), -1, dtype=np.int64)
        column[met.ops] = numbers
        made = np.sort(np.concatenate([columns.alone, met.ops[column[met.ops] < 0]]))
        column[made] = np.arange(len(made)) + len(meetings)
        numbers = column[met.ops].tolist()
        for place in new:
            known[met.groups[place]][met.keys[place]] = numbers[met.first[place] : met.first[place + 1]]
        ways = [way for each in played for way in each.met]
        pieces = taken(columns.pieces, made.tolist())
        position = [-1] * len(column)
        if self._choices.steps:  # each is one of its own
            meetings += [self._between.meeting(number, op) for number, op in taken(ways, pieces)]
            for op in met.ops.tolist():
                position[op] = self._communicators.position(ways[columns.pieces[op]][0], rank)
        else:
            meetings += taken([meeting for each in played for meeting in each.meetings], pieces)
        self._program.position += position
        for op, key in columns.receives:  # the sender makes the meeting: they are brought together in the end
            self._receiving.append((first + op, self._between.group(ways[columns.pieces[op]][0]), key))
        return column

    def finish(self) -> Lowered:
        """Tie the waits between ranks and hand over the program."""
        program = self._program
        program.in_step = self._stretches.all()
        numbers = [*range(len(program.meetings)), -1]  # one object for all that meet: there are millions in a large run
        for added in self._added.values():
            program.meeting += taken(numbers, added.meeting.tolist())
            self._wait(added)
        for op, group, key in self._receiving:
            program.meeting[op] = self._met[group, (0,)][key][0]
        for number, stretch in enumerate(program.in_step):
            name = -2 - number
            for op in stretch.ops:
                program.meeting[op] = name
        return Lowered(program, self._classes, self._communicators, self._capacity, self._between.steps)

    def _wait(self, added: _Added) -> None:
        """What a rank's items wait for."""
        program, template, ranks = self._program, added.template, self._ranks
        ops = added.first + added.begins[template.waiting]
        others = np.empty_like(ops)
        own = ranks.stage[added.rank]
        for stage in np.unique(template.stage).tolist():
            there = added
            if stage != own:
                there = self._added[self._classes.of_rank[ranks.of_stage[stage][ranks.place[added.rank]]]]
            ends = there.ends[template.awaited(stage, there.template)]
            others[template.stage == stage] = there.first + ends
            assert stage == own or (there.meeting[ends] >= 0).all(), "only transfers are awaited from another stage"
        pairs = list(zip(taken(self._numbers, others.tolist()), taken(self._numbers, ops.tolist()), strict=True))
        for other, op in pairs:
            program.after[op] += (other,)
        program.receives += taken(pairs, np.flatnonzero(template.stage != own).tolist())
