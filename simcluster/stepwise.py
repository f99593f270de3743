"""A collective played step by step: every hop of every round is a transfer of its own on the network.

A rank sends round k + 1 of a channel when it has arrived and has finished sending and receiving round k of it; it is
done when all its hops are.  Slower than one activity a collective, but it sees what a flow cannot: arrivals that pass
early parts on, and hops of one ring that are slowed differently.  Imports the network, traffic and collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from simcluster.collectives.description import Hop, Phase
from simcluster.errors import InputError
from simcluster.network import Network
from simcluster.traffic import Fabric, Traffic, hop_links


class Stepwise:
    """One instance of a collective of ``size`` bytes over the GPUs of a group, in steps.

    ``on_done(position)`` is called at the instant a rank's last hop has ended.
    """

    def __init__(
        self,
        network: Network,
        fabric: Fabric,
        gpus: Sequence[int],
        phases: Sequence[Phase],
        size: float,
        on_done: Callable[[int], object],
    ) -> None:
        self._network = network
        self._on_done = on_done
        hops, self._last = _one_round(phases)
        self._traffic = [_transfer(fabric, hop_links(fabric, gpus, hop), hop.share * size) for hop in hops]
        self._arrived = [False] * len(gpus)
        self._round = [0] * len(hops)  # rounds that each hop has finished
        self._sending = [False] * len(hops)
        # hops that touch the same rank in the same channel hold each other back
        touching: dict[tuple[int, int], list[int]] = {}
        for number, hop in enumerate(hops):
            touching.setdefault((hop.source, hop.channel), []).append(number)
            touching.setdefault((hop.target, hop.channel), []).append(number)
        self._before = [touching[hop.source, hop.channel] for hop in hops]
        self._after = [sorted({*touching[h.source, h.channel], *touching[h.target, h.channel]}) for h in hops]
        self._source = [hop.source for hop in hops]
        self._ends = [(hop.source, hop.target) for hop in hops]
        self._left = [0] * len(gpus)
        for hop in hops:
            self._left[hop.source] += 1
            self._left[hop.target] += 1
        self._hops_of: list[list[int]] = [[] for _ in gpus]
        for number, hop in enumerate(hops):
            self._hops_of[hop.source].append(number)
        self._finished = [partial(self._hop_ended, number) for number in range(len(hops))]

    def arrive(self, position: int) -> None:
        """The rank at this position reaches the collective now."""
        self._arrived[position] = True
        if not self._left[position]:
            self._on_done(position)
        for number in self._hops_of[position]:
            self._try(number)

    def _try(self, number: int) -> None:
        """Start the hop's next round if its rank is there and has finished the round before."""
        done = self._round[number]
        if self._sending[number] or done == self._last or not self._arrived[self._source[number]]:
            return
        rounds = self._round
        for other in self._before[number]:
            if rounds[other] < done:
                return
        self._sending[number] = True
        self._network.start(self._traffic[number], self._finished[number])

    def _hop_ended(self, number: int) -> None:
        self._sending[number] = False
        self._round[number] += 1
        if self._round[number] == self._last:
            for position in self._ends[number]:
                self._left[position] -= 1
                if not self._left[position]:
                    self._on_done(position)
        for other in self._after[number]:
            self._try(other)


def _one_round(phases: Sequence[Phase]) -> tuple[tuple[Hop, ...], int]:
    """The hops that every round repeats, and the number of rounds of all phases together."""
    busy = [phase for phase in phases if phase.hops]
    if not busy:
        return (), 0
    first = [replace(hop, chunk=0) for hop in busy[0].hops]
    if any([replace(hop, chunk=0) for hop in phase.hops] != first for phase in busy):
        raise InputError("detail: steps plays collectives whose rounds all use the same hops; use detail: flow")
    return busy[0].hops, sum(phase.rounds for phase in busy)


def _transfer(fabric: Fabric, links: Sequence[int], size: float) -> Traffic:
    flows: dict[int, float] = {}
    for link in links:
        flows[link] = flows.get(link, 0.0) + 1.0
    return Traffic(tuple(sorted(flows.items())), size, 1, fabric.path_latency(links))
