"""What ops of ranks do with others: on which communicator, for how long, and what it does to computation beside it.

On classes of equal ranks and links.  Pure; imports ops, program, fold and communicators.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from simcluster.clock import on_grid
from simcluster.collectives import Phase
from simcluster.devices.interference import Beside, Interference
from simcluster.lowering.communicators import Communicators
from simcluster.lowering.fold import Classes
from simcluster.lowering.program import Meeting, Program
from simcluster.nccl import bus_factor
from simcluster.planning.ops import MAIN, Collective, Compute, Copy, Host, Op, Receive, Timed, Transfer
from simcluster.traffic.bindings import Floats
from simcluster.traffic.felt import felt
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


class Between:
    """What ops of ranks do together, for the programs of representatives of ``classes``.

    ``capacity`` is B/s per class of links, ``rates`` per link.
    """

    def __init__(
        self,
        ranks: Ranks,
        communicators: Communicators,
        classes: Classes,
        capacity: Sequence[float],
        rates: Floats,
        program: Program,
        interference: Interference | None,
        *,
        in_steps: bool,
    ) -> None:
        self._ranks, self._communicators, self._classes = ranks, communicators, classes
        self._capacity, self._rates, self._program = capacity, cast(Sequence[float], rates), program
        self._interference, self._in_steps = interference, in_steps
        self._shared = [  # whose transfers the network plays: others on their links, or links that come and go
            shared or any(link in program.capacities for usage in usages for link, _ in usage)
            for shared, usages in zip(classes.shared, classes.quotient, strict=True)
        ]
        lone = dict.fromkeys(classes.of_communicator[number] for number in communicators.lone)
        self._felt = {} if program.capacities or in_steps else felt(classes.quotient, capacity, lone)
        self._traffic: dict[Hashable, int] = {}  # -> the number in the program's traffics
        self._alone: dict[int, float] = {}  # by that number
        self._sent: dict[Hashable, float] = {}  # B/s of a GPU, by class of its group and what that does
        self._parties: dict[int, int] = {}
        self._meeting: dict[Hashable, Meeting] = {}
        self.steps: list[StepsOf] = []

    def slowness(self, rank: int) -> float:
        """What always multiplies the rank's compute times."""
        return self._ranks.slowness[rank]

    def communicator(self, work: Collective | Timed | Transfer | Receive | Copy, rank: int) -> int:
        """The communicator that an op of a rank uses."""
        if isinstance(work, Receive):
            sender = self._ranks.of_stage[work.from_stage][self._ranks.place[rank]]
            return self._communicators.number(("send", work.from_stage, self._ranks.stage[rank]), sender)
        if isinstance(work, Transfer):
            return self._communicators.number(("send", self._ranks.stage[rank], work.to_stage), rank)
        if isinstance(work, Copy):
            return self._communicators.number(("copy", work.direction), rank)
        return self._communicators.number(work.axis, rank)

    def seconds(self, rank: int, op: Op, own_lane: str) -> float | None:
        """Seconds of an op that only its own class has a say in: compute, and collectives on links of their own.

        A collective that computation drags is none of these, nor one that slows down computation outside its segment
        (whose first op is on ``own_lane``).
        """
        if isinstance(op.work, Compute):
            return on_grid(op.work.seconds * self._ranks.slowness[rank])
        if isinstance(op.work, Host):
            return on_grid(op.work.seconds)
        if isinstance(op.work, Receive):
            return None
        if self._disturbs(op) and self._interference and (op.lane == own_lane or self._interference.drag):
            return None
        number = self.communicator(op.work, rank)
        group = self._classes.of_communicator[number]
        if isinstance(op.work, Transfer) or self._shared[group] or self.parties(number) > 1:
            return None
        if self._in_steps:
            return None
        return self._alone_seconds(number, op.work)

    def parties(self, number: int) -> int:
        """How many classes of ranks meet in a group."""
        if number not in self._parties:
            ranks = self._communicators.met(number)
            self._parties[number] = len({self._classes.of_rank[rank] for rank in ranks})
        return self._parties[number]

    def steady_group(self, rank: int, work: Collective | Timed) -> int:
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
        if isinstance(work, Compute | Receive | Host):
            return -1
        return self._moved(self.communicator(work, rank), work)

    def pressure(self, rank: int, op: Op) -> float:
        """What an op does to the computation beside it in its segment."""
        interference = self._interference
        if isinstance(op.work, Compute | Receive | Copy | Host) or not interference or not self._disturbs(op):
            return 0.0
        return interference.pressure(self._beside(self.communicator(op.work, rank), op.work, interference))

    def group(self, number: int) -> int:
        """The class of a communicator."""
        return self._classes.of_communicator[number]

    def meeting(self, number: int, op: Op) -> Meeting:
        """A meeting for an op of a communicator; equal ones are one object."""
        work = op.work
        assert not isinstance(work, Compute | Host | Receive)
        if self._in_steps and isinstance(work, Collective):
            phases = self._communicators.phases(number, work.kind, work.size)
            pace = self._communicators.method(number, work.kind, work.size).pace
            pace = pace and round_of(phases, pace)
            self.steps.append(StepsOf(self._communicators.ranks(number), phases, work.load * work.size, pace))
            return Meeting(self.parties(number), self._traffics(number, work), len(self.steps) - 1)
        beside = op.lane != MAIN or isinstance(work, Transfer)  # what blocks all its ranks disturbs none
        name = number if self._in_steps else self.group(number), work, beside
        known = self._meeting.get(name)
        if known is None:
            known = self._meeting[name] = self._make(number, work, beside=beside)
        return known

    def _make(self, number: int, work: Collective | Timed | Transfer | Copy, *, beside: bool) -> Meeting:
        parties = 1 + work.rendezvous if isinstance(work, Transfer) else self.parties(number)
        traffics, interference = self._traffics(number, work), self._interference
        if not interference or not beside or isinstance(work, Copy):
            return Meeting(parties, traffics)
        pressure = interference.pressure(self._beside(number, work, interference))
        if not pressure and not interference.drag:
            return Meeting(parties, traffics)
        classes = self._classes
        played = dict.fromkeys(
            classes.rank_representatives[classes.of_rank[rank]] for rank in self._communicators.met(number)
        )
        return Meeting(parties, traffics, ranks=tuple(played), pressure=pressure, drag=interference.drag)

    def _traffics(self, number: int, work: Collective | Timed | Transfer | Copy) -> tuple[Traffic, ...]:
        """The activities of a collective or transfer, on link classes."""
        moved = self._moved(number, work)
        return (Traffic((), 0.0, 1, _given(work)),) if moved < 0 else self._program.traffics[moved]

    def _moved(self, number: int, work: Collective | Timed | Transfer | Copy) -> int:
        """The number of the activities of a collective or transfer, -1 for one that takes a given time."""
        if isinstance(work, Timed) or _given(work) >= 0:
            return -1
        group, (kind, load) = self._classes.of_communicator[number], _called(work)
        known = self._traffic.get((group, kind, work.size, load))
        if known is None:
            found = self._communicators.traffics(number, kind, work.size, self._classes.quotient[group])
            found = tuple(
                replace(each, round_bytes=load * each.round_bytes, felt=self._felt.get((group, each.usage)))
                for each in found
            )
            known = self._traffic[group, kind, work.size, load] = len(self._program.traffics)
            self._program.traffics.append(found)
        return known

    def _alone_seconds(self, number: int, work: Collective | Timed | Transfer | Copy) -> float:
        """Duration of a collective or transfer with all links to itself."""
        moved = self._moved(number, work)
        if moved < 0:
            return on_grid(_given(work))
        if moved not in self._alone:
            traffics = self._program.traffics[moved]
            self._alone[moved] = sum(traffic.alone_seconds(self._capacity) for traffic in traffics)
        return self._alone[moved]

    def _disturbs(self, op: Op) -> bool:
        """Is it communication beside computation?  A copy engine takes no SM (what it takes of HBM is not counted)."""
        return op.lane != MAIN and not isinstance(op.work, Copy | Host)

    def _beside(self, number: int, work: Collective | Timed | Transfer, interference: Interference) -> Beside:
        """A communication as the GPUs feel it that take part."""
        ranks = self._communicators.ranks(number)
        between_nodes = any(self._ranks.host[rank] != self._ranks.host[ranks[0]] for rank in ranks)
        if not interference.by_rate:
            return Beside(between_nodes, 0.0)
        name = self.group(number), work
        if name not in self._sent:
            self._sent[name] = self._rate(number, work)
        return Beside(between_nodes, self._sent[name])

    def _rate(self, number: int, work: Collective | Timed | Transfer) -> float:
        """B/s that a GPU sends while its group has all links to itself, other groups of its class away as well."""
        if isinstance(work, Timed):
            return 0.0
        sent, alone = work.size, 0.0
        if isinstance(work, Collective):
            sent *= work.load * bus_factor(cast(Any, work.kind), len(self._communicators.ranks(number)))
        if _given(work) >= 0:
            alone = self._alone_seconds(number, work)
        else:
            (kind, load), usages = _called(work), self._communicators.usages(number)
            for each in self._communicators.traffics(number, kind, work.size, usages):
                alone += replace(each, round_bytes=load * each.round_bytes).alone_seconds(self._rates)
        return float(sent / alone) if alone > 0 else 0.0


def _given(work: Collective | Timed | Transfer | Copy) -> float:
    """The seconds that a communication is said to take, negative where links decide."""
    return -1.0 if isinstance(work, Collective) else work.seconds


def _called(work: Collective | Transfer | Copy) -> tuple[str, float]:
    """What a communication is called where methods are chosen, and how much of its size is moved."""
    if isinstance(work, Collective):
        return work.kind, work.load
    return "copy" if isinstance(work, Copy) else "send", 1.0
