"""A collective played step by step: every hop of every round is a transfer of its own on the network.

Slower than one activity a collective, but it sees what a flow cannot: ranks that are ahead of each other, and hops of
one ring with unequal latencies or slowed differently by other traffic.  Where all hops are equal and have their links
to themselves both give the same times to the bit, in rings and recursive halving-doubling whenever the ranks arrive
(MODELLING.md D.6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from simcluster.collectives.description import Hop, Phase
from simcluster.collectives.rounds import repeated_rounds
from simcluster.engine.network import Network
from simcluster.traffic.traffic import Fabric, Spread, Traffic, hop_spread, usage_of


class Stepwise:
    """One instance of a collective of ``size`` bytes over the GPUs of a group, in steps.

    ``on_done(position)`` is called at the instant a rank's last hop has ended.  Rounds that repeat the same hops are
    played by one ``_Repeated``; a rank goes on to the next one when all its hops in this one have ended, so that a
    collective of many kinds of rounds is several collectives one after the other, without a barrier between them.
    ``pace``, if there is one, is every hop's latency (s) instead of its links', and the most B/s that it reaches.
    """

    def __init__(
        self,
        network: Network,
        fabric: Fabric,
        gpus: Sequence[int],
        phases: Sequence[Phase],
        size: float,
        on_done: Callable[[int], object],
        pace: tuple[float, float] | None = None,
    ) -> None:
        self._network, self._fabric, self._gpus, self._size = network, fabric, gpus, size
        self._pace = pace
        self._on_done = on_done
        self._to_come = repeated_rounds(phases)
        self._blocks: dict[int, _Repeated] = {}  # those that a rank has reached and not all have left
        self._made = 0

    def arrive(self, position: int) -> None:
        """The rank at this position reaches the collective now."""
        self._enter(position, 0)

    def _enter(self, position: int, number: int) -> None:
        """The rank goes on to block ``number``, or to the first one after it in which it has something to do."""
        while self._is_there(number):
            block = self._blocks.get(number)
            if block and block.takes(position):
                block.arrive(position)
                return
            number += 1
        self._on_done(position)

    def _is_there(self, number: int) -> bool:
        """Whether there is a block ``number``; made when the first rank comes to it."""
        while self._made <= number:
            following = next(self._to_come, None)
            if following is None:
                return False
            hops, rounds = following
            traffic = [
                _transfer(self._fabric, hop_spread(self._fabric, self._gpus, hop), hop.share * self._size, self._pace)
                for hop in hops
            ]
            leave = partial(self._leave, self._made)
            self._blocks[self._made] = _Repeated(self._network, hops, traffic, rounds, leave)
            self._made += 1
        return True

    def _leave(self, number: int, position: int) -> None:
        if self._blocks[number].over:
            del self._blocks[number]
        self._enter(position, number + 1)


class _Repeated:
    """``rounds`` repetitions of the same hops.

    A hop begins when both its ranks have arrived (a receiver offers its buffer then), and its source sends round k + 1
    of a channel when it has finished sending and receiving round k of it.  ``on_done(position)`` is called when a
    rank's last hop has ended.
    """

    def __init__(
        self,
        network: Network,
        hops: Sequence[Hop],
        traffic: Sequence[Traffic],
        rounds: int,
        on_done: Callable[[int], object],
    ) -> None:
        self._network = network
        self._traffic = traffic
        self._last = rounds
        self._on_done = on_done
        self._arrived: dict[int, bool] = {}
        self._round = [0] * len(hops)  # rounds that each hop has finished
        self._sending = [False] * len(hops)
        self._ends = [(hop.source, hop.target) for hop in hops]
        # a hop waits for those that touch its source in its channel, so those that leave its two ends wait for it
        touching: dict[tuple[int, int], list[int]] = {}
        leaving: dict[tuple[int, int], list[int]] = {}
        self._hops_of: dict[int, list[int]] = {}
        for number, hop in enumerate(hops):
            leaving.setdefault((hop.source, hop.channel), []).append(number)
            for end in (hop.source, hop.target):
                touching.setdefault((end, hop.channel), []).append(number)
                self._hops_of.setdefault(end, []).append(number)
                self._arrived[end] = False
        self._before = [touching[hop.source, hop.channel] for hop in hops]
        self._after = [
            leaving.get((hop.source, hop.channel), []) + leaving.get((hop.target, hop.channel), []) for hop in hops
        ]
        self._left = {end: len(own) for end, own in self._hops_of.items()}
        self._here = len(self._left)
        self._finished = [partial(self._hop_ended, number) for number in range(len(hops))]

    @property
    def over(self) -> bool:
        """Whether all ranks are done."""
        return self._here == 0

    def takes(self, position: int) -> bool:
        """Whether the rank at this position sends or receives anything."""
        return position in self._arrived

    def arrive(self, position: int) -> None:
        """The rank at this position is ready."""
        self._arrived[position] = True
        for number in self._hops_of[position]:
            self._try(number)

    def _try(self, number: int) -> None:
        """Start the hop's next round if its ranks are there and its source has finished the round before."""
        rounds = self._round
        done = rounds[number]
        if self._sending[number] or done == self._last:
            return
        if not done:
            source, target = self._ends[number]
            if not (self._arrived[source] and self._arrived[target]):
                return
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
                    self._here -= 1
                    self._on_done(position)
        for other in self._after[number]:
            self._try(other)


def _transfer(fabric: Fabric, spread: Spread, size: float, pace: tuple[float, float] | None) -> Traffic:
    latency, bound = pace or (fabric.spread_latency(spread), math.inf)
    return Traffic(usage_of([(1.0, spread)]), size, 1, latency, bound)
