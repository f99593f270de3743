"""What ops of ranks do with others: on which communicator, for how long, and what it does to computation beside it.

On classes of equal ranks and links.  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from simcluster.base.clock import on_grid
from simcluster.base.link_values import LinkValues
from simcluster.collectives import Phase
from simcluster.collectives.relayed import RELAYED
from simcluster.devices.interference import Beside, Interference
from simcluster.nccl import bus_factor
from simcluster.planning.ops import Op, Work
from simcluster.programs.program import Meeting, Program
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.equitable_partition import Classes
from simcluster.traffic.methods import Pace, round_of
from simcluster.traffic.traffic import Traffic


@dataclass(frozen=True, slots=True)
class StepsOf:
    """A collective to be played in steps: the GPUs of its group, its description, size in bytes and a hop's pace."""

    gpus: tuple[int, ...]
    phases: Sequence[Phase]
    size: float
    pace: Pace | None


class Ranks(NamedTuple):
    """Where ranks are: ``of_stage[stage][place]``, and the stage, the place there and the host of every rank; what
    always multiplies its compute times is its ``slowness``."""

    of_stage: Sequence[Sequence[int]]
    stage: Sequence[int]
    place: Sequence[int]
    host: Sequence[int]
    slowness: Sequence[float]


class CommunicationLowering:
    """What ops of ranks do together, for the programs of representatives of ``classes``.

    ``capacity`` is B/s per class of links, ``rates`` per link.
    """

    def __init__(
        self,
        ranks: Ranks,
        communicators: Communicators,
        classes: Classes,
        capacity: Sequence[float],
        rates: LinkValues,
        program: Program,
        interference: Interference | None,
        *,
        in_steps: bool,
    ) -> None:
        self._ranks, self._communicators, self._classes = ranks, communicators, classes
        self._capacity, self._rates, self._program = capacity, rates, program
        self._interference, self._in_steps = interference, in_steps
        self._shared = [  # whose transfers the network plays: others on their links, or links that come and go
            shared or any(link in program.capacities for usage in classes.quotient[number] for link, _ in usage)
            for number, shared in enumerate(classes.shared)
        ]
        self._traffic: dict[Hashable, int] = {}  # -> the number in the program's traffics
        self._alone: dict[int, float] = {}  # by that number
        self._sent: dict[Hashable, float] = {}  # B/s of a GPU, by class of its group and what that does
        self._parties: dict[int, int] = {}
        self._meeting: dict[Hashable, Meeting] = {}
        self.steps: list[StepsOf] = []

    def slowness(self, rank: int) -> float:
        """What always multiplies the rank's compute times."""
        return self._ranks.slowness[rank]

    def communicator(self, work: Work, rank: int) -> int:
        """The communicator that an op of a rank uses."""
        return self._communicators.number(work.group(self._ranks.stage[rank]), rank)

    def seconds(self, rank: int, op: Op, own_lane: str) -> float | None:
        """Seconds of an op that only its own class has a say in: compute, and collectives on links of their own.

        A collective that computation drags is none of these, nor one that slows down computation outside its segment
        (whose first op is on ``own_lane``).
        """
        work, interference = op.work, self._interference
        together = work.group(self._ranks.stage[rank])
        if together is None:
            return on_grid(work.seconds if work.sensitivity is None else work.seconds * self._ranks.slowness[rank])
        if together[0] == "send" or self._in_steps:
            return None
        if interference and work.presses(op.lane) and (op.lane == own_lane or interference.drag):
            return None
        number = self.communicator(work, rank)
        if self._shared[self._classes.of_communicator[number]] or self.parties(number) > 1:
            return None
        return self._alone_seconds(number, work)

    def parties(self, number: int) -> int:
        """How many classes of ranks meet in a group."""
        if number not in self._parties:
            ranks = self._communicators.met(number)
            self._parties[number] = len({self._classes.of_rank[rank] for rank in ranks})
        return self._parties[number]

    def members(self, number: int) -> tuple[int, ...]:
        """Return the ranks that represent the members of a communicator."""
        classes, met = self._classes, self._communicators.met(number)
        return tuple(dict.fromkeys(classes.rank_representatives[classes.of_rank[each]] for each in met))

    def steady_group(self, rank: int, work: Work) -> int:
        """The class of the group of several classes that does this, all on one stage, with links to itself; or -1."""
        number = self.communicator(work, rank)
        group, stage = self._classes.of_communicator[number], self._ranks.stage[rank]
        alone = not self._shared[group] and self.parties(number) > 1
        if not alone or any(self._ranks.stage[other] != stage for other in self._communicators.ranks(number)):
            return -1
        return group if all(each.alone_rate(self._capacity) > 0 for each in self._traffics(number, work)) else -1

    def moved(self, rank: int, op: Op) -> int:
        """The number of what an op moves over links, -1 for nothing and for what takes a given time."""
        work = op.work
        return self._moved(self.communicator(work, rank), work) if work.moves else -1

    def pressure(self, rank: int, op: Op) -> float:
        """What an op does to the computation beside it in its segment."""
        interference = self._interference
        if not interference or not op.work.presses(op.lane):
            return 0.0
        return interference.pressure(self._beside(self.communicator(op.work, rank), op.work, interference))

    def group(self, number: int) -> int:
        """The class of a communicator."""
        return self._classes.of_communicator[number]

    def meeting(self, number: int, op: Op) -> Meeting:
        """A meeting for an op of a communicator; equal ones are one object."""
        work = op.work
        if self._in_steps and work.axis and work.moves:
            phases = self._communicators.phases(number, work.moves, work.size)
            pace = self._communicators.method(number, work.moves, work.size).pace
            pace = pace and round_of(phases, pace)
            self.steps.append(StepsOf(self._communicators.ranks(number), phases, work.load * work.size, pace))
            return Meeting(self.parties(number), self._traffics(number, work), len(self.steps) - 1)
        beside = work.presses(op.lane)
        name = number if self._in_steps else self.group(number), work, beside
        known = self._meeting.get(name)
        if known is None:
            known = self._meeting[name] = self._make(number, work, beside=beside)
        return known

    def _make(self, number: int, work: Work, *, beside: bool) -> Meeting:
        parties = work.parties(self.parties(number))
        traffics, interference = self._traffics(number, work), self._interference
        pressure = interference.pressure(self._beside(number, work, interference)) if interference and beside else 0.0
        if not interference or not beside or not (pressure or interference.drag):
            return Meeting(parties, traffics)
        return Meeting(parties, traffics, ranks=self.members(number), pressure=pressure, drag=interference.drag)

    def _traffics(self, number: int, work: Work) -> tuple[Traffic, ...]:
        """The activities of a collective or transfer, on link classes."""
        moved = self._moved(number, work)
        return (Traffic((), 0.0, 1, work.seconds),) if moved < 0 else self._program.traffics[moved]

    def _moved(self, number: int, work: Work) -> int:
        """The number of the activities of a collective or transfer, -1 for one that takes a given time."""
        kind, load = work.moves, work.load
        if not kind:
            return -1
        group = self._classes.of_communicator[number]
        known = self._traffic.get((group, kind, work.size, load, work.bound))
        if known is None:
            found = self._communicators.traffics(number, kind, work.size, self._classes.quotient[group])
            bound = work.bound
            found = tuple(
                replace(each, round_bytes=load * each.round_bytes, bound=min(each.bound, bound)) for each in found
            )
            known = self._traffic[group, kind, work.size, load, work.bound] = len(self._program.traffics)
            self._program.traffics.append(found)
        return known

    def _alone_seconds(self, number: int, work: Work) -> float:
        """Duration of a collective or transfer with all links to itself."""
        moved = self._moved(number, work)
        if moved < 0:
            return on_grid(work.seconds)
        if moved not in self._alone:
            traffics = self._program.traffics[moved]
            self._alone[moved] = sum(traffic.alone_seconds(self._capacity) for traffic in traffics)
        return self._alone[moved]

    def _beside(self, number: int, work: Work, interference: Interference) -> Beside:
        """A communication as the GPUs feel it that take part."""
        ranks = self._communicators.ranks(number)
        between_nodes = any(self._ranks.host[rank] != self._ranks.host[ranks[0]] for rank in ranks)
        if not interference.by_rate:
            return Beside(between_nodes, 0.0, work.moves in RELAYED)
        name = self.group(number), work
        if name not in self._sent:
            self._sent[name] = self._rate(number, work)
        return Beside(between_nodes, self._sent[name], work.moves in RELAYED)

    def _rate(self, number: int, work: Work) -> float:
        """B/s that a GPU sends while its group has all links to itself, other groups of its class away as well."""
        sent, alone, communicators = work.size, on_grid(work.seconds), self._communicators
        if work.axis:
            sent *= work.load * bus_factor(cast(Any, work.moves), len(communicators.ranks(number)))
        if work.moves:
            traffics = communicators.traffics(number, work.moves, work.size, communicators.usages(number))
            loaded = [replace(each, round_bytes=work.load * each.round_bytes) for each in traffics]
            alone = sum(each.alone_seconds(cast(Sequence[float], self._rates.all)) for each in loaded)
        return float(sent / alone) if alone > 0 else 0.0
