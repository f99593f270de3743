"""Transfers of a step in arrays that meet on links: what they take, once it is known when they begin.

Transfers on one link at one time are in one set, and so are those that these meet on other links: connected components.
A set is played as events on the engine's network, over the links that may be a bottleneck; links beside those bound its
rates.  All other transfers take what they take alone.  Where one now lasts so long that it meets another set, both are
played anew as one, until no set grows: then the outcome is that of the network for all transfers.  Once as many have
been played as the step has, events would have taken no longer, and the step is left to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import simpy

from simcluster.base.arrays import Floats, Ints
from simcluster.engine.calendar import Agenda, Instant
from simcluster.engine.longest_path import NeedsEventsError
from simcluster.engine.network import Network
from simcluster.traffic.traffic import Traffic


class Flights(NamedTuple):
    """What an op of a stage sends: of each of its groups the ``place`` that tells when it begins, its ``seconds`` on
    links of its own and its traffics; and in rows a ``group`` that uses a ``link`` on which it may be held up."""

    place: Ints
    seconds: Floats
    traffics: Sequence[Sequence[Traffic]]
    group: Ints
    link: Ints


class MeetOnLinks:
    """The transfers of a sweep, by node; ``capacity`` is B/s per link, ``rate`` the B/s of a traffic's flows alone.

    Raises NeedsEventsError for more that are played, in all sweeps, than the ``most`` that there are in the step.
    """

    def __init__(
        self, flights: Mapping[int, Flights], capacity: Floats, rate: Callable[[Traffic], float], most: int
    ) -> None:  # fmt: skip
        self._flights, self._capacity, self._rate, self._most = flights, capacity, rate, most
        self._count = 0  # of those played
        own, none = list(flights.values()), np.zeros(0, dtype=np.int64)
        sizes = [len(each.place) for each in own]
        self._first = np.cumsum([0, *sizes]).tolist()
        self._alone = np.concatenate([np.zeros(0), *(each.seconds for each in own)])
        self._link = np.concatenate([none, *(each.link for each in own)])
        self._whose = np.concatenate([none, *(each.group + at for each, at in zip(own, self._first, strict=False))])
        self._tight = set(np.unique(self._link).tolist())
        self._traffics = [traffics for each in own for traffics in each.traffics]
        self._lasts = self._alone
        self._reduced: dict[int, Sequence[Traffic]] = {}  # by the identity of the traffics
        self._known: dict[Hashable, Floats] = {}

    def __call__(self, starts: Callable[[int], Floats]) -> dict[int, Floats]:
        """Seconds [group] of the nodes some of whose transfers do not take what they take alone, where they begin at
        ``starts(node)`` [place]."""
        if not len(self._alone):
            return {}
        start = np.concatenate([starts(node)[own.place] for node, own in self._flights.items()])
        before = self._known
        together = self._together(start, np.arange(len(start)))
        while True:
            self._known = {}
            self._lasts = self._played(start, together, before)
            grown = self._together(start, together)
            if np.array_equal(grown, together):
                break
            together, before = grown, before | self._known
        found = {}
        for node, first, last in zip(self._flights, self._first, self._first[1:], strict=False):
            if not np.array_equal(self._lasts[first:last], self._alone[first:last]):
                found[node] = self._lasts[first:last]
        return found

    def _together(self, start: Floats, before: Ints) -> Ints:
        """The least number among the transfers with which each is together, or was ``before``."""
        order = np.lexsort((start[self._whose], self._link))
        link, whose = self._link[order], self._whose[order]
        begin = start[whose]
        end, same = begin + self._lasts[whose], link[1:] == link[:-1]
        later = np.cumsum(np.concatenate([[False], ~same])) * (end.max() + 1.0)  # so that one row will do for all links
        latest = np.maximum.accumulate(end + later) - later
        meets = same & (begin[1:] < latest[:-1])
        one, other = whose[1:][meets], whose[:-1][meets]
        least = before
        while True:  # each to the least that it knows of, until all of one set know the same
            low, found = np.minimum(least[one], least[other]), least.copy()
            np.minimum.at(found, least[one], low)
            np.minimum.at(found, least[other], low)
            found = found[found]
            if np.array_equal(found, least):
                return found
            least = found

    def _played(self, start: Floats, together: Ints, before: Mapping[Hashable, Floats]) -> Floats:
        """Seconds of all; those together ``before`` at the same distances are known."""
        lasts = self._alone.copy()
        order = np.argsort(together, kind="stable")
        bounds = [*np.flatnonzero(np.diff(together[order], prepend=-1)).tolist(), len(order)]
        anew = []
        for first, last in itertools.pairwise(bounds):
            if last - first == 1:
                continue
            own = order[first:last]
            begins = start[own] - start[own].min()
            name = own.tobytes(), begins.tobytes()
            if name in before:
                lasts[own] = self._known[name] = before[name]
            else:
                anew.append((name, own, begins))
        self._require_few(sum(len(own) for _, own, _ in anew))
        for name, own, begins in anew:
            seconds = np.array(_play([self._heeded(one) for one in own.tolist()], begins.tolist(), self._capacity))
            lasts[own] = self._known[name] = seconds
        return lasts

    def _require_few(self, more: int) -> None:
        """NeedsEventsError if with so many ``more`` too many are played."""
        self._count += more
        if self._count > self._most:
            times = self._count / self._most
            raise NeedsEventsError(f"transfers that meet on links would be played {times:.2f} times over")

    def _heeded(self, flight: int) -> Sequence[Traffic]:
        """A transfer's traffics on the links that may hold it up."""
        own = self._traffics[flight]
        known = self._reduced.get(id(own))
        if known is None:
            known = self._reduced[id(own)] = [self._bounded(traffic) for traffic in own]
        return known

    def _bounded(self, traffic: Traffic) -> Traffic:
        usage = tuple([each for each in traffic.usage if each[0] in self._tight])
        bound = self._rate(traffic) if traffic.usage else traffic.bound
        return replace(traffic, usage=usage, bound=bound)


def _play(transfers: Sequence[Sequence[Traffic]], begins: Sequence[float], capacity: Floats) -> list[float]:
    """Seconds of transfers, each of several traffics one after the other, that begin at these instants (s)."""
    links = sorted({link for traffics in transfers for traffic in traffics for link, _ in traffic.usage})
    number = {link: place for place, link in enumerate(links)}
    env = simpy.Environment(0.0)
    network, agenda = Network(env, capacity[links].tolist()), Agenda[int](env)
    ends = [0.0] * len(begins)

    def go_on(transfer: int, moved: int) -> None:
        if moved == len(transfers[transfer]):
            ends[transfer] = env.now
            return
        traffic = transfers[transfer][moved]
        usage = tuple([(number[link], flows) for link, flows in traffic.usage])
        network.start(replace(traffic, usage=usage), partial(go_on, transfer, moved + 1))

    def begin(event: Instant) -> None:
        for transfer in agenda.take(event.instant):
            go_on(transfer, 0)

    for transfer, instant in enumerate(begins):
        agenda.put(instant, transfer, begin)
    env.run()
    return [end - begin for end, begin in zip(ends, begins, strict=True)]
