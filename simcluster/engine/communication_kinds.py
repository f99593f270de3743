"""Factory of the engine's communication descriptions: participants, traffic on links, slowdown of compute.

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
from simcluster.collectives.description import group_repeated_rounds
from simcluster.collectives.token_relay import RELAYED
from simcluster.devices.interference import ConcurrentCommunication, Interference
from simcluster.engine.op_columns import CommunicationWork
from simcluster.engine.tables import CommunicationKind
from simcluster.planning.ops import OpWork
from simcluster.symmetry.classes import EquivalenceClasses
from simcluster.symmetry.communicators import Communicators
from simcluster.traffic.collective_methods import NcclTiming, hop_round_timing
from simcluster.traffic.fairness import Usage
from simcluster.traffic.nccl.tuner_query import bus_factor
from simcluster.traffic.traffic import Fabric, Traffic, hop_link_fractions, sum_usage


@dataclass(frozen=True, eq=False)
class CommunicationKindFactory:
    """Factory of ``CommunicationKind`` objects for one job, on classes of equal ranks and links.

    ``interference`` is what communication does to concurrent computation, None for nothing; ``rates`` are B/s per link;
    ``in_steps``: collectives are simulated hop by hop.
    """

    fabric: Fabric
    communicators: Communicators
    classes: EquivalenceClasses
    rates: LinkValues
    interference: Interference | None
    in_steps: bool = field(kw_only=True)
    _moved: dict[Hashable, tuple[Traffic, ...]] = field(default_factory=dict, init=False)
    _members: dict[int, tuple[int, ...]] = field(default_factory=dict, init=False)

    def make_kind(self, number: int, communication: CommunicationWork) -> CommunicationKind:
        """Return the engine's description of ``communication`` on communicator ``number``."""
        work, interference, members = communication.work, self.interference, self._members.get(number)
        if members is None:
            members = self._members[number] = self.classes.classes_of_ranks(self.communicators.member_array(number))
        pressure = drag = 0.0
        if interference and communication.interferes:
            hosts = self.communicators.member_nodes(number)
            sent = self._solo_send_rate(number, work) if interference.depends_on_rate else 0.0
            beside = ConcurrentCommunication(bool((hosts != hosts[0]).any()), sent, work.traffic_kind in RELAYED)
            pressure, drag = interference.compute_slowdown(beside), interference.communication_slowdown
        ranks, parties = members if pressure or drag else (), work.arrivals_needed(len(members))
        if not work.traffic_kind:
            return CommunicationKind(parties, [Traffic((), 0.0, 1, work.seconds)], ranks, pressure, drag)
        if not (self.in_steps and work.axis):
            return CommunicationKind(parties, self.link_traffic(number, communication), ranks, pressure, drag)
        phases = self.communicators.phases_of_call(number, work.traffic_kind, work.size)
        pace = self.communicators.method_of_call(number, work.traffic_kind, work.size).pace
        gpus = self.communicators.member_ranks(number)
        hops, traffics = hops_with_traffic(self.fabric, gpus, phases, work.load * work.size, pace)
        return CommunicationKind(parties, traffics, ranks, pressure, drag, hops)

    def link_traffic(self, number: int, communication: CommunicationWork) -> tuple[Traffic, ...]:
        """Return the traffic that a communication puts on links as flows; empty if its duration is fixed."""
        work, group = communication.work, self.classes.of_communicator[number]
        if not work.traffic_kind:
            return ()
        name = group, work.traffic_kind, work.size, work.load, work.bound
        if name not in self._moved:
            self._moved[name] = tuple(self._scaled_traffic(number, work, self.classes.quotient[group]))
        return self._moved[name]

    def _scaled_traffic(self, number: int, work: OpWork, usages: Sequence[Usage]) -> Sequence[Traffic]:
        own = self.communicators.traffic_of_call(number, work.traffic_kind, work.size, usages)
        if (work.load, work.bound) == (1.0, math.inf):
            return own
        return [replace(one, round_bytes=work.load * one.round_bytes, bound=min(one.bound, work.bound)) for one in own]

    def _solo_send_rate(self, number: int, work: OpWork) -> float:
        """Return the rate (B/s) at which each GPU of a group sends if no other traffic shares the group's links."""
        sent, alone = work.size, round_to_tick(work.seconds)
        if work.axis:
            sent *= work.load * bus_factor(cast(Any, work.traffic_kind), len(self.communicators.member_ranks(number)))
        if work.traffic_kind:
            traffics = self._scaled_traffic(number, work, self.communicators.link_usages(number))
            alone = sum(each.solo_seconds(cast(Sequence[float], self.rates.all_values)) for each in traffics)
        return float(sent / alone) if alone > 0 else 0.0


def hops_with_traffic(
    fabric: Fabric, gpus: Sequence[int], phases: Sequence[Phase], size: float, pace: NcclTiming | None
) -> tuple[Int32s, list[Traffic]]:
    """Return the hops of a collective of ``size`` bytes as a table (see ``CommunicationKind``), and their traffic.

    ``pace``, if there is one, replaces the latency of the hops' links and bounds their rate.
    """
    of_round = pace and hop_round_timing(phases, pace)
    rows, traffics = [], []
    for number, (block, repeats) in enumerate(group_repeated_rounds(phases)):
        for hop in block:
            spread = hop_link_fractions(fabric, gpus, hop)
            latency, bound = of_round or (fabric.mean_route_latency(spread), math.inf)
            traffics.append(Traffic(sum_usage([(1.0, spread)]), hop.share * size, 1, latency, bound))
            rows.append((number, repeats, hop.source, hop.target, hop.channel))
    return np.array(rows, dtype=np.int32).reshape(-1, 5), traffics
