"""What the engine plays: numbered ops on lanes, with what each waits for.  Columns, not objects.

The program knows nothing of models, schedules or folding: a lane belongs to a rank, and a rank may stand for many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from simcluster.base.arrays import Floats, Ints
from simcluster.base.profiles import Profile
from simcluster.planning.ops import MAIN, MemoryChange
from simcluster.traffic.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective or transfer: it begins when ``parties`` ops have arrived and ends for all of them at once.

    ``traffics`` are played one after the other.  ``steps``, if not -1, is the number of its step-by-step description:
    then every party begins at its own arrival, as ``position`` of the group, and ends on its own.

    ``ranks`` are those whose computation goes on beside it and feels it: a row of the timeline then takes
    (1 + sensitivity x ``pressure``) as long, and the transfer (1 + ``drag``) as long while one of them computes.
    """

    parties: int
    traffics: tuple[Traffic, ...]
    steps: int = -1
    ranks: tuple[int, ...] = ()
    pressure: float = 0.0
    drag: float = 0.0


RowTimes = Sequence[tuple[float, float]]
"""Start and end of every row of an op, in seconds from the op's start."""


@dataclass(frozen=True, slots=True)
class OpTimes:
    """Times per op of a program."""

    ready: Floats
    start: Floats
    end: Floats
    last: Ints


class ChainPace(NamedTuple):
    """How a row of a chain goes on beside communication.

    It takes ``seconds`` at full speed.  ``sensitivity`` is how much a computation feels, None for what is none;
    ``pressure`` what a collective on another lane of the chain does to the computation beside it.  The row follows the
    one before it on its ``lane`` and the rows ``after`` (by their place in the chain).
    """

    seconds: float
    sensitivity: float | None = None
    pressure: float = 0.0
    lane: str = MAIN
    after: tuple[int, ...] = ()


class SpanRow(NamedTuple):
    """One row of the timeline that an op leaves: offsets in seconds from the op's start (chains have many rows).

    ``traffic`` is the number in the program's ``traffics`` of what it moves over links, -1 for nothing; ``pace`` says
    what communication beside it does to it, None for nothing.  Where a chain has several lanes, ``lane`` is the row's
    own, and it follows the rows ``after``, too (by their place in the chain).
    """

    stream: str
    kind: str
    name: str
    layer: int
    axis: str  # of the group, "" for compute
    bytes: float
    start: float
    end: float
    traffic: int = -1
    memory: tuple[MemoryChange, ...] = ()
    pace: ChainPace | None = None
    lane: str = ""
    after: tuple[int, ...] = ()


class LockstepRegion(NamedTuple):
    """A rank's part in a lockstep region: columns over the ops inside.

    ``seconds`` are -1 and ``meetings`` not None where it meets the others; ``after`` has the ops that each one waits
    for besides the one before it on its lane, by their places in the stretch: those of the segment before it are
    negative, and those of the first op are in the program.
    """

    lanes: tuple[str, ...]
    seconds: tuple[float, ...]
    after: tuple[tuple[int, ...], ...]
    meetings: tuple[Meeting | None, ...]
    rows: tuple[tuple[SpanRow, ...], ...]


class InStep(NamedTuple):
    """Ranks that meet again and again and wait for nothing else, from a first meeting on, or the computation that
    leads each to it: one op a member.

    ``ops`` are the members', ``parts`` what each does; stretches in which the same is done share one tuple of these.
    """

    ops: tuple[int, ...]
    parts: tuple[LockstepRegion, ...]


@dataclass
class Program:
    """Columns over ops.  ``seconds`` is the duration of compute and chains (-1 for others).

    ``meeting`` is the number of an op's meeting, -1 for none, and -2 - n for a member's part in ``in_step[n]``, a whole
    stretch (``whole`` has its ops one by one).

    ``speeds[rank]`` multiplies the seconds of what a rank computes as time goes on, ``capacities[link]`` what a link
    carries; where nothing is said, neither changes.
    """

    seconds: list[float] = field(default_factory=list)
    meeting: list[int] = field(default_factory=list)
    position: list[int] = field(default_factory=list)
    after: list[tuple[int, ...]] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # number of the op's span rows in ``row_sets``
    step: list[int] = field(default_factory=list)
    chunk: list[int] = field(default_factory=list)
    microbatch: list[int] = field(default_factory=list)
    lanes: list[list[int]] = field(default_factory=list)
    lane_rank: list[int] = field(default_factory=list)
    lane_name: list[str] = field(default_factory=list)
    lane_stage: list[int] = field(default_factory=list)
    meetings: list[Meeting] = field(default_factory=list)
    row_sets: list[tuple[SpanRow, ...]] = field(default_factory=list)
    traffics: list[tuple[Traffic, ...]] = field(default_factory=list)  # what spans move, however they are played
    receives: list[tuple[int, int]] = field(default_factory=list)  # (transfer op, op on the receiver that waits for it)
    speeds: dict[int, Profile] = field(default_factory=dict)
    capacities: dict[int, Profile] = field(default_factory=dict)
    in_step: list[InStep] = field(default_factory=list)

    def add_lane(self, rank: int, stage: int, name: str) -> int:
        """A new in-order queue of a rank."""
        self.lanes.append([])
        self.lane_rank.append(rank)
        self.lane_stage.append(stage)
        self.lane_name.append(name)
        return len(self.lanes) - 1

    def add_op(
        self, lane: int, rows: int, *, seconds: float = -1.0, meeting: int = -1, position: int = -1,
        step: int = 0, chunk: int = -1, microbatch: int = -1,
    ) -> int:  # fmt: skip
        """A new op at the end of a lane."""
        number = len(self.seconds)
        self.seconds.append(seconds)
        self.meeting.append(meeting)
        self.position.append(position)
        self.after.append(())
        self.lane.append(lane)
        self.rows.append(rows)
        self.step.append(step)
        self.chunk.append(chunk)
        self.microbatch.append(microbatch)
        self.lanes[lane].append(number)
        return number

    def all_meetings(self) -> Iterator[Meeting]:
        """The meetings, and those inside stretches: of equal ones not all."""
        yield from self.meetings
        for parts in {id(stretch.parts): stretch.parts for stretch in self.in_step}.values():
            yield from (meeting for meeting in parts[0].meetings if meeting is not None)

    def all_rows(self) -> Iterator[SpanRow]:
        """What ops tell, and those inside stretches: of row sets that are one object once."""
        parts = {id(part): part for stretch in self.in_step for part in stretch.parts}
        for own in (self.row_sets, *(part.rows for part in parts.values())):
            yield from chain.from_iterable({id(rows): rows for rows in own}.values())

    def describe(self, op: int) -> str:
        """The op for an error message: 'rank 3 main: forward attention, microbatch 2'."""
        lane = self.lane[op]
        where = f"rank {self.lane_rank[lane]} {self.lane_name[lane]}"
        for row in self.row_sets[self.rows[op]][:1]:  # a receive has none
            where += f": {row.kind} {row.name}"
        return where + (f", microbatch {self.microbatch[op]}" if self.microbatch[op] >= 0 else "")
