"""Kinds of communication of a job: how many ranks meet, traffic on links, and interference with computation.

On classes of equal ranks and links. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from simcluster.base.arrays import Int32s
from simcluster.base.clock import round_to_tick
from simcluster.base.link_columns import LinkValues
from simcluster.collectives import Phase
from simcluster.collectives.description import repeated_rounds
from simcluster.collectives.relayed import RELAYED
from simcluster.devices.interference import Communication, Interference
from simcluster.engine.op_columns import GroupWork
from simcluster.engine.tables import CommunicationKind
from simcluster.planning.ops import Work
from simcluster.symmetry.classes import Classes
from simcluster.symmetry.communicators import Communicators
from simcluster.traffic.fairness import Usage
from simcluster.traffic.methods import Pace, round_pace
from simcluster.traffic.nccl.case import bus_factor
from simcluster.traffic.traffic import Fabric, Traffic, hop_spread, sum_usage


@dataclass(frozen=True, eq=False)
class CommunicationKinds:
    """Maker of the kinds of communication between classes of ranks, on classes of links.

    ``interference`` is what communication does to concurrent computation, None for nothing; ``rates`` are B/s per link;
    ``in_steps``: collectives are simulated hop by hop.
    """

    fabric: Fabric
    communicators: Communicators
    classes: Classes
    rates: LinkValues
    interference: Interference | None
    in_steps: bool = field(kw_only=True)
    _moved: dict[Hashable, tuple[Traffic, ...]] = field(default_factory=dict, init=False)
    _members: dict[int, tuple[int, ...]] = field(default_factory=dict, init=False)

    def kind(self, number: int, communication: GroupWork) -> CommunicationKind:
        """Return the communication of a communicator (by number, which represents its class)."""
        work, interference, members = communication.work, self.interference, self._members.get(number)
        if members is None:
            members = self._members[number] = self.classes.meeting(self.communicators.members(number))
        pressure = drag = 0.0
        if interference and communication.interferes:
            hosts = self.communicators.hosts(number)
            sent = self._rate(number, work) if interference.by_rate else 0.0
            beside = Communication(bool((hosts != hosts[0]).any()), sent, work.traffic_kind in RELAYED)
            pressure, drag = interference.pressure(beside), interference.communication_slowdown
        ranks, parties = members if pressure or drag else (), work.parties(len(members))
        if not work.traffic_kind:
            return CommunicationKind(parties, [Traffic((), 0.0, 1, work.seconds)], ranks, pressure, drag)
        if not (self.in_steps and work.axis):
            return CommunicationKind(parties, self.moved(number, communication), ranks, pressure, drag)
        phases = self.communicators.phases(number, work.traffic_kind, work.size)
        pace = self.communicators.method(number, work.traffic_kind, work.size).pace
        gpus = self.communicators.ranks(number)
        hops, traffics = hop_rounds(self.fabric, gpus, phases, work.load * work.size, pace)
        return CommunicationKind(parties, traffics, ranks, pressure, drag, hops)

    def moved(self, number: int, communication: GroupWork) -> tuple[Traffic, ...]:
        """Return a communication's traffic on links if simulated as a flow; none if it takes a fixed time."""
        work, group = communication.work, self.classes.of_communicator[number]
        if not work.traffic_kind:
            return ()
        name = group, work.traffic_kind, work.size, work.load, work.bound
        if name not in self._moved:
            self._moved[name] = tuple(self._traffics(number, work, self.classes.quotient[group]))
        return self._moved[name]

    def _traffics(self, number: int, work: Work, usages: Sequence[Usage]) -> Sequence[Traffic]:
        found = self.communicators.traffics(number, work.traffic_kind, work.size, usages)
        if (work.load, work.bound) == (1.0, math.inf):
            return found
        return [
            replace(each, round_bytes=work.load * each.round_bytes, bound=min(each.bound, work.bound)) for each in found
        ]

    def _rate(self, number: int, work: Work) -> float:
        """Return the rate (B/s) at which a GPU sends while its group has all links to itself."""
        sent, alone = work.size, round_to_tick(work.seconds)
        if work.axis:
            sent *= work.load * bus_factor(cast(Any, work.traffic_kind), len(self.communicators.ranks(number)))
        if work.traffic_kind:
            traffics = self._traffics(number, work, self.communicators.usages(number))
            alone = sum(each.alone_seconds(cast(Sequence[float], self.rates.all)) for each in traffics)
        return float(sent / alone) if alone > 0 else 0.0


def hop_rounds(
    fabric: Fabric, gpus: Sequence[int], phases: Sequence[Phase], size: float, pace: Pace | None
) -> tuple[Int32s, list[Traffic]]:
    """Return the ``hops`` of a collective of ``size`` bytes (see ``CommunicationKind``), and the traffic of each.

    ``pace``, if there is one, replaces the latency of the hops' links and bounds their rate.
    """
    of_round = pace and round_pace(phases, pace)
    rows, traffics = [], []
    for number, (block, repeats) in enumerate(repeated_rounds(phases)):
        for hop in block:
            spread = hop_spread(fabric, gpus, hop)
            latency, bound = of_round or (fabric.spread_latency(spread), math.inf)
            traffics.append(Traffic(sum_usage([(1.0, spread)]), hop.share * size, 1, latency, bound))
            rows.append((number, repeats, hop.source, hop.target, hop.channel))
    return np.array(rows, dtype=np.int32).reshape(-1, 5), traffics
