"""Kinds of communication of a job: how many meet, what moves over which links, and the interference with computation.

On classes of equal ranks and links.  Pure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from simcluster.base.clock import on_grid
from simcluster.base.link_columns import LinkValues
from simcluster.collectives.relayed import RELAYED
from simcluster.devices.interference import Beside, Interference
from simcluster.engine.hop_tables import hop_rounds
from simcluster.engine.op_columns import GroupWork
from simcluster.engine.tables import CommunicationKind, HopRounds
from simcluster.planning.ops import Work
from simcluster.symmetry.classes import Classes
from simcluster.symmetry.communicators import Communicators
from simcluster.traffic.nccl.case import bus_factor
from simcluster.traffic.traffic import Fabric, Traffic


class CommunicationKinds:
    """Kinds of communication between classes of ranks, on classes of links.

    ``interference`` is what communication does to concurrent computation, None for nothing; ``rates`` are B/s per link;
    ``in_steps``: collectives are simulated hop by hop.
    """

    def __init__(
        self,
        fabric: Fabric,
        communicators: Communicators,
        classes: Classes,
        rates: LinkValues,
        interference: Interference | None,
        *,
        in_steps: bool,
    ) -> None:
        self._fabric, self._communicators, self._classes = fabric, communicators, classes
        self._rates, self._interference, self._in_steps = rates, interference, in_steps
        self._activities: dict[Hashable, tuple[Traffic, ...]] = {}
        self._members: dict[int, tuple[int, ...]] = {}

    def kind(self, number: int, communication: GroupWork) -> CommunicationKind:
        """Return what a communicator, which represents its class, does."""
        work = communication.work
        members = self._classes_of(number)
        pressure, drag = self._interferes(number, communication)
        ranks = members if pressure or drag else ()
        hops: HopRounds | None = None
        traffics: Sequence[Traffic] = self._traffics(number, work)
        if self._in_steps and work.axis and work.moves:
            hops, traffics = self._hops(number, work)
        return CommunicationKind(work.parties(len(members)), traffics, ranks, pressure, drag, hops)

    def moved(self, number: int, communication: GroupWork) -> tuple[Traffic, ...]:
        """Return what it moves over links if it is not simulated hop by hop, nothing if it takes a given time."""
        return self._traffics(number, communication.work) if communication.work.moves else ()

    def _traffics(self, number: int, work: Work) -> tuple[Traffic, ...]:
        """Return the activities of a communication, on classes of links."""
        group = self._classes.of_communicator[number]
        name: Hashable = (group, work.moves, work.size, work.load, work.bound) if work.moves else work.seconds
        known = self._activities.get(name)
        if known is None:
            found: Iterable[Traffic] = (Traffic((), 0.0, 1, work.seconds),)
            if work.moves:
                found = self._communicators.traffics(number, work.moves, work.size, self._classes.quotient[group])
                if (work.load, work.bound) != (1.0, math.inf):
                    found = [
                        replace(each, round_bytes=work.load * each.round_bytes, bound=min(each.bound, work.bound))
                        for each in found
                    ]
            known = self._activities[name] = tuple(found)
        return known

    def _classes_of(self, number: int) -> tuple[int, ...]:
        """Return the classes of ranks that meet in a group, in order of its members."""
        known = self._members.get(number)
        if known is None:
            known = self._members[number] = self._classes.meeting(self._communicators.members(number))
        return known

    def _interferes(self, number: int, communication: GroupWork) -> tuple[float, float]:
        """Return how much computation on its ranks slows down, and how much that slows down the communication."""
        interference, work = self._interference, communication.work
        if interference is None or not communication.interferes:
            return 0.0, 0.0
        sent = self._rate(number, work) if interference.by_rate else 0.0
        hosts = self._communicators.hosts(number)
        beside = Beside(bool((hosts != hosts[0]).any()), sent, work.moves in RELAYED)
        return interference.pressure(beside), interference.drag

    def _rate(self, number: int, work: Work) -> float:
        """Return B/s that a GPU sends while its group has all links for itself and no other group is active."""
        sent, alone, communicators = work.size, on_grid(work.seconds), self._communicators
        if work.axis:
            sent *= work.load * bus_factor(cast(Any, work.moves), len(communicators.ranks(number)))
        if work.moves:
            traffics = communicators.traffics(number, work.moves, work.size, communicators.usages(number))
            loaded = [replace(each, round_bytes=work.load * each.round_bytes) for each in traffics]
            alone = sum(each.alone_seconds(cast(Sequence[float], self._rates.all)) for each in loaded)
        return float(sent / alone) if alone > 0 else 0.0

    def _hops(self, number: int, work: Work) -> tuple[HopRounds, list[Traffic]]:
        """Return a collective hop by hop, and the traffic of each hop."""
        communicators = self._communicators
        phases = communicators.phases(number, work.moves, work.size)
        pace = communicators.method(number, work.moves, work.size).pace
        return hop_rounds(self._fabric, communicators.ranks(number), phases, work.load * work.size, pace)
