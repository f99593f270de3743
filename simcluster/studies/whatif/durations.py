"""Durations of all ops of a run, and how stalls of hosts and others' traffic change them in many replicas of a step.

Both are drawn as the engine's replicas draw them, so a replica is the same in a sweep and as events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.engine.stage_sweep import Duration
from simcluster.faults import BackgroundLoad, HostStall
from simcluster.faults.links import spells_of
from simcluster.faults.stalls import StallPlaces
from simcluster.reference.record import Ops
from simcluster.results.played import Run
from simcluster.traffic.traffic import Traffic

_NEVER = 1e-9
"""The least pace at which anything moves: what a link that is taken as a whole leaves."""


def durations(run: Run) -> dict[int, Floats]:
    """Return the seconds of every op of each simulated rank, ops in the order of its program (lane by lane)."""
    times = run.record.times
    return _of_ranks(run.record.ops, times.end - times.start)


def paces(run: Run, left: Mapping[int, float]) -> dict[int, Floats]:
    """Return what becomes of the transfers of each simulated rank if only ``left[link]`` of these links is there.

    [op, (latency, pace)], ops as for ``durations``: the part of its seconds that does not depend on links, and the
    speed of the rest, alone on its links, against that on whole ones; 0 and 1 for what uses none of the links.
    """
    ops, links = run.record.ops, run.folding.classes.link_representatives
    capacity = [each * left.get(link, 1.0) for each, link in zip(run.capacity, links, strict=True)]
    of_label = [_pace(label.traffics, run.capacity, capacity) for label in ops.labels]
    found = np.array([*of_label, (0.0, 1.0)])[ops.label]
    found[ops.meeting < 0] = 0.0, 1.0
    receives = np.flatnonzero((ops.label < 0) & (ops.meeting >= 0))
    if len(receives):
        of_meeting = np.zeros((int(ops.meeting.max()) + 1, 2))
        sends = np.flatnonzero((ops.label >= 0) & (ops.meeting >= 0))
        of_meeting[ops.meeting[sends]] = found[sends]
        found[receives] = of_meeting[ops.meeting[receives]]
    return _of_ranks(ops, found)


def _pace(traffics: Sequence[Traffic], whole: Sequence[float], left: Sequence[float]) -> tuple[float, float]:
    def seconds(capacity: Sequence[float]) -> float:  # alone on the links, without latency
        rates = (
            (traffic, traffic.alone_rate(capacity)) for traffic in traffics if traffic.round_bytes and traffic.usage
        )
        return sum(each.rounds * each.round_bytes / rate if rate > 0 else math.inf for each, rate in rates)

    before, after = seconds(whole), seconds(left)
    return sum(traffic.latency_seconds for traffic in traffics), before / after if after else 1.0


def _of_ranks(ops: Ops, values: Floats) -> dict[int, Floats]:
    """Return values of ops by simulated rank; ops of a rank are numbered one after the other."""
    rank = ops.lane_rank[ops.lane]
    ranks, first = np.unique(rank, return_index=True)
    order = np.argsort(first)
    return dict(zip(ranks[order].tolist(), np.split(values, np.sort(first)[1:]), strict=True))


class Stalled:
    """Seconds of host stalls in a block of replicas, by their place in a stage's program.

    ``seeds`` are those of the replicas, ``places`` are on the stages' main lanes without stalls, ``stage_ranks[stage]``
    the ranks of each.
    """

    def __init__(
        self,
        faults: Sequence[HostStall],
        hosts: Sequence[int],
        seeds: Sequence[int],
        steps: int,
        places: Sequence[StallPlaces],
        stage_ranks: Sequence[Ints],
    ) -> None:
        where = {int(rank): (stage, at) for stage, ranks in enumerate(stage_ranks) for at, rank in enumerate(ranks)}
        self._shapes = [(len(seeds), len(ranks)) for ranks in stage_ranks]
        self._found: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
        on = [(fault, rank) for fault in faults for rank in fault.chosen(hosts)]
        for replica, seed in enumerate(seeds):
            for fault, rank in on:
                stage, at = where[rank]
                for stall in fault.stalls(rank, seed, steps):
                    name = stage, places[stage].of(stall)
                    self._found.setdefault(name, []).append((at, replica, stall.seconds))

    def seconds(self, stage: int, place: int) -> Floats | None:
        """Return the seconds of the stalls before the item of this number [replica, place]; None if there are none."""
        found = self._found.get((stage, place))
        if found is None:
            return None
        seconds = np.zeros(self._shapes[stage])
        for at, replica, each in found:
            seconds[replica, at] += each
        return seconds


@dataclass(frozen=True, slots=True)
class Slowed:
    """The part of a transfer's time that others' traffic stretches, for the ranks of a stage [place].

    While the fault with this number is there, transfers go at ``pace`` (1: as without it); ``latency`` is the part of
    their seconds that does not count.
    """

    fault: int
    latency: Floats
    pace: Floats


class LinkSpells:
    """Links that others take a part of in spells, in a block of replicas: how long transfers take that begin at a time.

    ``slowed[stage][number]`` says which ops feel it.
    """

    def __init__(
        self,
        faults: Sequence[BackgroundLoad],
        seeds: Sequence[int],
        slowed: Sequence[Mapping[int, Sequence[Slowed]]],
        horizon: float,
    ) -> None:
        self._slowed, self._horizon = slowed, horizon
        self._spells = [
            [spells_of(fault.on or 0.0, fault.off or 0.0, 0.0, seed, fault.seed) for seed in seeds] for fault in faults
        ]
        self._known: dict[tuple[int, float], tuple[Floats, Floats]] = {}

    def seconds(self, stage: int, number: int, start: Callable[[], Floats], took: Duration) -> Duration:
        """Return the duration [replica, place] of an op that begins at ``start()`` and takes ``took`` on free links."""
        for each in self._slowed[stage].get(number, ()):
            assert not isinstance(took, tuple)  # an op that moves data has no factor
            begin = start()
            took = self._stretched(each, begin, np.broadcast_to(took, begin.shape))
        return took

    def _stretched(self, slowed: Slowed, start: Floats, took: Floats) -> Floats:
        found = took.copy()
        for pace in np.unique(slowed.pace[slowed.pace < 1]).tolist():
            here = np.flatnonzero(slowed.pace == pace)
            latency = np.minimum(slowed.latency[here], took[:, here])
            begin, work = start[:, here] + latency, took[:, here] - latency
            found[:, here] = latency + self._end(slowed.fault, pace, begin, work) - begin
        return found

    def _end(self, fault: int, pace: float, begin: Floats, work: Floats) -> Floats:
        """Return when ``work`` (s) that begins at ``begin`` is done [replica, place]."""
        while True:
            times, done = self._table(fault, pace)
            shift = np.arange(len(begin))[:, None] * 2 * self._horizon  # replicas one after the other on one axis
            goal = np.interp(begin + shift, times, done) + work
            end = np.interp(goal, done, times) - shift
            if float(end.max(initial=0.0)) < self._horizon:
                return np.asarray(end)
            self._horizon *= 2
            self._known.clear()

    def _table(self, fault: int, pace: float) -> tuple[Floats, Floats]:
        """Return instants of all replicas, and the work done by then."""
        if (fault, pace) not in self._known:
            times, done = [], []
            for replica, spells in enumerate(self._spells[fault]):
                edges, there = spells.until(self._horizon)
                paces = np.where(there[:-1], max(pace, _NEVER), 1.0)
                shift = replica * 2 * self._horizon
                inside = np.minimum(edges, 1.5 * self._horizon)  # the last spell may reach into the next replica
                times.append(inside + shift)
                done.append(np.concatenate([[0.0], np.cumsum(np.diff(inside) * paces)]) + shift)
            self._known[fault, pace] = np.concatenate(times), np.concatenate(done)
        return self._known[fault, pace]
