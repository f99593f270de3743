"""Transfers that may hold each other back on links: who is on them, how far, and at what rate.

An instant has the order of ``engine.network``: all that ends or joins, then the links are shared out anew.  Max-min
fair rates are unique (``traffic.fairness``), so those of transfers that are under way together are worked out once for
all steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import chain, product

from simcluster.base.clock import on_grid
from simcluster.studies.sweep.crossings import Crossings
from simcluster.traffic.fairness import fair_rates
from simcluster.traffic.traffic import Traffic


class Contenders:
    """The transfers of a step that may hold each other back, numbered; and how fast they move beside each other.

    A meeting whose traffics come one after the other has a number for each; ``first`` is that of its first, by name,
    ``meeting`` that first number for all of them, and ``more`` says that another comes behind.
    """

    def __init__(self, crossings: Crossings) -> None:
        self.first: dict[Hashable, int] = {}
        self.meeting: list[int] = []
        self.more: list[bool] = []
        self.traffics: list[Traffic] = []
        for name in dict.fromkeys(chain.from_iterable(crossings.rivals)):
            traffics = crossings.meetings[name].traffics
            self.first[name] = len(self.traffics)
            self.meeting += [len(self.traffics)] * len(traffics)
            self.more += [*(True for _ in traffics[1:]), False]
            self.traffics += traffics
        self._capacity = crossings.capacity
        self._rates: dict[int, list[tuple[int, float, float]]] = {}
        self._undisturbed: dict[int, tuple[float, float, float]] = {}
        self.rivals = self.bits(crossings.rivals)
        """Of every number those that it may meet, as bits."""

    def bits(self, pairs: Iterable[tuple[Hashable, Hashable]]) -> list[int]:
        """Of every number those that it may meet if these may."""
        found = [0] * len(self.traffics)
        for one, other in pairs:
            for mine, theirs in product(self._numbers(one), self._numbers(other)):
                found[mine] |= 1 << theirs
                found[theirs] |= 1 << mine
        return found

    def _numbers(self, name: Hashable) -> range:
        first = end = self.first[name]
        while self.more[end]:
            end += 1
        return range(first, end + 1)

    def behind(self, number: int) -> float:
        """Seconds of all traffics of a meeting that come behind this one, on links of their own."""
        seconds = 0.0
        while self.more[number]:
            number += 1
            seconds += self.traffics[number].latency_seconds + self.undisturbed(number)[2]
        return seconds

    def undisturbed(self, number: int) -> tuple[float, float, float]:
        """Of one that is under way by itself: bytes per second, seconds of a round, and of all rounds."""
        found = self._undisturbed.get(number)
        if found is None:
            traffic = self.traffics[number]
            rate = traffic.alone_rate(self._capacity)
            seconds = on_grid(traffic.round_bytes / rate)
            whole = on_grid(float(traffic.rounds) * seconds)
            found = self._undisturbed[number] = rate, seconds, whole
        return found

    def rates(self, together: int) -> list[tuple[int, float, float]]:
        """Of all that are under way together (bits): the number, bytes per second, and seconds of a round."""
        found = self._rates.get(together)
        if found is None:
            numbers = _numbers(together)
            usages = {number: self.traffics[number].usage for number in numbers}
            bounds = {number: self.traffics[number].bound for number in numbers}
            rates = fair_rates(usages, self._capacity, bounds)
            found = [
                (number, rates[number], on_grid(self.traffics[number].round_bytes / rates[number]))
                for number in numbers
            ]
            self._rates[together] = found
        return found


def _numbers(bits: int) -> list[int]:
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


class Links:
    """Who is on the links, how far, and until when: times are seconds of the step.

    ``rivals`` are of each the others that it may meet there, as bits.
    """

    def __init__(self, contenders: Contenders, rivals: Sequence[int]) -> None:
        self._contenders, self._rivals = contenders, rivals
        count = len(contenders.traffics)
        self._latency = [traffic.latency_seconds for traffic in contenders.traffics]
        self._rounds = [float(traffic.rounds) for traffic in contenders.traffics]
        self._active = self.touched = 0  # bits
        self._remaining, self._round = [0.0] * count, [0.0] * count
        self._rate, self._updated, self._due = [0.0] * count, [0.0] * count, [0.0] * count
        self.coming: list[tuple[float, int]] = []
        """What joins (its number) or leaves (its complement) its links, by time; with some that has moved since."""

    def begin(self, number: int, at: float) -> None:
        """It begins; that may be in the future."""
        heappush(self.coming, (at + self._latency[number], number))

    def next(self) -> int:
        """What joins or leaves now: the number of what is over with that, or -1."""
        now, number = heappop(self.coming)
        if number >= 0:
            self._remaining[number], self._updated[number] = self._rounds[number], now
            if self._rivals[number] & self._active:
                self._rate[number] = -1.0
                self.touched |= 1 << number
            else:  # most are: what ``share`` would do
                self._rate[number], self._round[number], whole = self._contenders.undisturbed(number)
                self._due[number] = due = now + whole
                heappush(self.coming, (due, ~number))
            self._active |= 1 << number
            return -1
        number = ~number
        if self._due[number] != now or not self._active >> number & 1:
            return -1
        self._active ^= 1 << number
        self.touched |= self._rivals[number] & self._active
        return number

    def share(self, now: float) -> list[tuple[int, float]]:
        """The instant is over: share out anew the links on which something has changed; who is over when after that."""
        rivals, active, changed = self._rivals, self._active, []
        todo, self.touched = self.touched & active, 0
        while todo:
            together = fresh = todo & -todo
            while fresh:
                low = fresh & -fresh
                near = rivals[low.bit_length() - 1] & active & ~together
                together |= near
                fresh = (fresh ^ low) | near
            todo &= ~together
            for number, rate, seconds in self._contenders.rates(together):
                if rate != self._rate[number]:
                    self._set(number, now, rate, seconds)
                    changed.append((number, self._due[number]))
        return changed

    def _set(self, number: int, now: float, rate: float, seconds: float) -> None:
        """From now on a round takes so long: as ``engine.network`` counts what is left."""
        updated = self._updated[number]
        if now > updated:
            self._remaining[number] = max(0.0, self._remaining[number] - (now - updated) / self._round[number])
        self._updated[number], self._rate[number], self._round[number] = now, rate, seconds
        self._due[number] = due = now + on_grid(self._remaining[number] * seconds)
        heappush(self.coming, (due, ~number))
