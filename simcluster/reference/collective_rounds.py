"""Collectives simulated round by round, with a separate transfer for every hop (sender to receiver) of a round.

A rank begins at its arrival and is over when its last hop is. A hop begins when both its ranks have arrived (a receiver
offers its buffer then), and its source sends round k + 1 of a channel when it has finished sending and receiving round
k of it (MODELLING.md D.6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import simpy

from simcluster.collectives.description import Hop, group_repeated_rounds
from simcluster.reference.communication import RoundPlan
from simcluster.reference.fluid_network import FluidNetwork, FluidTransfer, Process
from simcluster.traffic.traffic import Fabric, Traffic, hop_link_fractions, sum_usage


class RoundwiseCollective:
    """One collective of a group of ranks, simulated round by round; each rank calls ``participate``."""

    def __init__(
        self, env: simpy.Environment, network: FluidNetwork, fabric: Fabric, gpus: Sequence[int], rounds: RoundPlan
    ) -> None:
        self._blocks = [
            _RepeatedRounds(env, network, hops, [_hop_traffic(fabric, gpus, hop, rounds) for hop in hops], count)
            for hops, count in group_repeated_rounds(rounds.phases)
        ]

    def participate(self, position: int) -> Process:
        """Run the rounds for the rank at this position of the group."""
        for block in self._blocks:
            if position in block.arrived:
                block.arrived[position].succeed()
                yield block.left[position]


class _RepeatedRounds:
    """Rounds with identical hops (sender to receiver), simulated with one process per hop."""

    def __init__(
        self, env: simpy.Environment, network: FluidNetwork, hops: Sequence[Hop], loads: Sequence[Traffic], rounds: int
    ) -> None:
        self._env, self._network = env, network
        ends = {end for hop in hops for end in (hop.source, hop.target)}
        self.arrived = {end: env.event() for end in ends}
        rounds_of = [[env.event() for _ in range(rounds)] for _ in hops]  # [hop][round]: it is over
        last_of: dict[int, list[simpy.Event]] = {end: [] for end in ends}
        for hop, traffic, own in zip(hops, loads, rounds_of, strict=True):
            touching = [
                done
                for other, done in zip(hops, rounds_of, strict=True)
                if other.channel == hop.channel and hop.source in (other.source, other.target)
            ]
            env.process(self._run_hop(hop, traffic, touching, own))
            for end in (hop.source, hop.target):
                last_of[end].append(own[-1])
        self.left = {end: env.all_of(last) for end, last in last_of.items()}

    def _run_hop(
        self, hop: Hop, traffic: Traffic, touching: Sequence[Sequence[simpy.Event]], done: Sequence[simpy.Event]
    ) -> Process:
        yield self.arrived[hop.source] & self.arrived[hop.target]
        for number, event in enumerate(done):
            if number:
                yield self._env.all_of([others[number - 1] for others in touching])
            yield from self._network.run_transfer(FluidTransfer(self._env, traffic))
            event.succeed()


def _hop_traffic(fabric: Fabric, gpus: Sequence[int], hop: Hop, rounds: RoundPlan) -> Traffic:
    spread = hop_link_fractions(fabric, gpus, hop)
    latency, bound = rounds.pace or (fabric.mean_route_latency(spread), math.inf)
    return Traffic(sum_usage([(1.0, spread)]), hop.share * rounds.size, 1, latency, bound)
