"""Kinds of communication of a job: how many meet, what moves over which links, and the interference with computation.

On classes of equal ranks and links.  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from simcluster.base.clock import on_grid
from simcluster.base.link_values import LinkValues
from simcluster.collectives.relayed import RELAYED
from simcluster.devices.interference import Beside, Interference
from simcluster.engine.hop_tables import hop_rounds
from simcluster.engine.op_columns import GroupWork
from simcluster.engine.tables import CommunicationKind, HopRounds, Kinds, kinds_table
from simcluster.nccl import bus_factor
from simcluster.planning.ops import Work
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.equitable_partition import Classes
from simcluster.traffic.methods import round_of
from simcluster.traffic.traffic import Fabric, Traffic


class CommunicationKinds:
    """Kinds of communication, numbered as they are asked for.

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
        self.traffics: list[Traffic] = []
        self.collectives: list[HopRounds] = []
        self._kinds: list[CommunicationKind] = []
        self._activities: dict[Hashable, tuple[int, ...]] = {}
        self._members: dict[int, tuple[int, ...]] = {}
        self._sent: dict[Hashable, float] = {}  # B/s per GPU
        self._across_nodes: dict[int, bool] = {}

    def add(self, number: int, communication: GroupWork) -> int:
        """Return the number of a new kind: what a communicator, which represents its class, does."""
        work = communication.work
        members = self._classes_of(number)
        traffics = self._activities_of(number, work)
        pressure, drag = self._interferes(number, communication)
        rounds = -1
        if self._in_steps and work.axis and work.moves:
            rounds = len(self.collectives)
            self.collectives.append(self._hops(number, work))
        ranks = members if pressure or drag else ()
        self._kinds.append(
            CommunicationKind(work.parties(len(members)), traffics, pressure, drag, ranks, rounds, bool(work.moves))
        )  # fmt: skip
        return len(self._kinds) - 1

    def kind(self, number: int) -> CommunicationKind:
        """Return a kind."""
        return self._kinds[number]

    def moved(self, kind: int) -> tuple[Traffic, ...]:
        """Return what a kind moves over links, nothing for one that takes a given time."""
        own = self._kinds[kind]
        return tuple([self.traffics[number] for number in own.traffics]) if own.moves else ()

    def tables(self) -> Kinds:
        """Return all kinds in columns."""
        return kinds_table(self._kinds)

    def _classes_of(self, number: int) -> tuple[int, ...]:
        """Return the classes of ranks that meet in a group, in order of its members."""
        known = self._members.get(number)
        if known is None:
            of_rank = self._classes.of_rank
            met = [of_rank[rank] for rank in self._communicators.met(number)]
            known = self._members[number] = tuple(dict.fromkeys(met))
        return known

    def _activities_of(self, number: int, work: Work) -> tuple[int, ...]:
        """Return the activities of a communication, on classes of links."""
        group = self._classes.of_communicator[number]
        name: Hashable = (group, work.moves, work.size, work.load, work.bound) if work.moves else work.seconds
        known = self._activities.get(name)
        if known is None:
            found: Iterable[Traffic] = (Traffic((), 0.0, 1, work.seconds),)
            if work.moves:
                usages = self._classes.quotient[group]
                found = [
                    replace(each, round_bytes=work.load * each.round_bytes, bound=min(each.bound, work.bound))
                    for each in self._communicators.traffics(number, work.moves, work.size, usages)
                ]
            first = len(self.traffics)
            self.traffics += found
            known = self._activities[name] = tuple(range(first, len(self.traffics)))
        return known

    def _interferes(self, number: int, communication: GroupWork) -> tuple[float, float]:
        """Return how much computation on its ranks slows down, and how much that slows down the communication."""
        interference, work = self._interference, communication.work
        if interference is None or not communication.interferes:
            return 0.0, 0.0
        sent = 0.0
        if interference.by_rate:
            name = self._classes.of_communicator[number], work
            if name not in self._sent:
                self._sent[name] = self._rate(number, work)
            sent = self._sent[name]
        beside = Beside(self._crosses_nodes(number), sent, work.moves in RELAYED)
        return interference.pressure(beside), interference.drag

    def _crosses_nodes(self, number: int) -> bool:
        """Return whether the GPUs of a communicator are on several nodes."""
        known = self._across_nodes.get(number)
        if known is None:
            hosts = self._communicators.hosts(number)
            known = self._across_nodes[number] = bool((hosts != hosts[0]).any())
        return known

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

    def _hops(self, number: int, work: Work) -> HopRounds:
        """Return a collective hop by hop."""
        communicators, size = self._communicators, work.load * work.size
        phases = communicators.phases(number, work.moves, work.size)
        pace = communicators.method(number, work.moves, work.size).pace
        pace = pace and round_of(phases, pace)
        rounds, traffics = hop_rounds(self._fabric, communicators.ranks(number), phases, size, pace)
        first = len(self.traffics)
        self.traffics += traffics
        return rounds._replace(traffic=rounds.traffic + np.int32(first))
