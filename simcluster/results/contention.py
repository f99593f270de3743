"""What a run loses by doing several things at once: transfers on shared links, kernels beside communication.

A transfer's links are free if its group alone uses them: no other group of the same kind, no other axis, no other job.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.clock import on_grid
from simcluster.base.profiles import STEADY, stretched
from simcluster.base.runs import begins
from simcluster.engine.lower import Lowered
from simcluster.engine.record import Record
from simcluster.programs.program import SpanRow
from simcluster.programs.slowed import columns_of
from simcluster.programs.told_ops import ToldOps
from simcluster.results.calls import CallKey
from simcluster.results.timeline import Spans, spread
from simcluster.traffic.fairness import Usage


def free_seconds(
    lowered: Lowered, spans: Spans, called: tuple[Ints, list[CallKey]], free_calls: FreeCalls | None = None
) -> Floats:
    """Per span: its seconds if nobody else used a link; its own duration where that is given, or played in steps.

    ``called`` is what ``calls_of`` says of the spans, ``free_calls`` what is known of calls so far.  Never more than
    the span took.
    """
    took = spans.end - spans.start
    if lowered.steps:
        return took
    call, keys = called
    free_calls = free_calls or FreeCalls(lowered)
    free = np.array([*map(free_calls.of, keys), np.nan])[call]
    sends = np.flatnonzero((call >= 0) & (spans.kind == spans.code("send")))
    of_send, of_receiver = np.full((2, len(lowered.told)), np.nan)
    of_send[spans.op[sends]] = free[sends]
    sending, receiving = lowered.told.receives
    np.fmax.at(of_receiver, receiving, of_send[sending])  # of several the longest
    received = spans.kind == spans.code("recv")
    free[received] = of_receiver[spans.op[received]]
    return np.asarray(np.fmin(free, took))


def _capacity_of_links(lowered: Lowered) -> Sequence[float]:
    """B/s of every link that is used, by its own number: the program counts classes of links."""
    classes = lowered.classes
    capacity = np.zeros(1 + int(classes.used.max(initial=-1)))
    capacity[classes.used] = np.array(lowered.capacity, dtype=float)[classes.of_link]
    return array("d", capacity.tobytes())  # Python's numbers when they are looked at


class FreeCalls:
    """Seconds of calls with the links to themselves; NaN for one of given duration, as a copy is taken to be."""

    def __init__(self, lowered: Lowered) -> None:
        self._lowered, self._communicators = lowered, lowered.communicators
        self._known: dict[CallKey, float] = {}
        self._usages: tuple[int, tuple[Usage, ...]] = (-1, ())  # of the communicator that was asked for last

    @cached_property
    def _capacity(self) -> Sequence[float]:
        return _capacity_of_links(self._lowered)

    def of(self, key: CallKey) -> float:
        """Of a call."""
        if key not in self._known:
            self._known[key] = self._alone(key)
        return self._known[key]

    def of_group(self, rank: int, axis: str, kind: str, size: float) -> float:
        """Of a collective of a rank's group."""
        return self.of(CallKey(axis, self._communicators.number(axis, rank), kind, size))

    def of_send(self, rank: int, stage: int, kind: str, size: float) -> float:
        """Of a rank's send to a stage."""
        called = "send", int(self._communicators.stage_of[rank]), stage
        return self.of(CallKey("pp", self._communicators.number(called, rank), kind, size))

    def _alone(self, key: CallKey) -> float:
        communicators = self._communicators
        try:
            if key.communicator != self._usages[0]:
                self._usages = key.communicator, communicators.usages(key.communicator)
            traffics = communicators.traffics(key.communicator, key.kind, key.size, self._usages[1])
        except KeyError:
            return math.nan
        return math.nan if key.kind == "copy" else sum(traffic.alone_seconds(self._capacity) for traffic in traffics)


def slowed_seconds(
    told: ToldOps, record: Record, weights: Mapping[int, int], first_rank: int = 0,
    alike: Mapping[int, int] | None = None,
) -> dict[str, float]:  # fmt: skip
    """Seconds that compute of each kind takes longer because communication goes on beside it, over the whole run.

    The mean over ranks; ``weights[rank]`` is how many ranks a simulated one stands for, and ``alike[rank]`` one of the
    program's that went through the same, itself where nothing is said.  What a GPU that is slow at times loses by
    itself is not counted.
    """
    total = sum(weights.values())
    op, kind, longer = _longer(told, record)
    rank_of = told.lane_rank[told.lane] - first_rank
    kinds, first = np.unique(kind, return_index=True)
    kinds_of_rows = _kinds(told)
    found: dict[str, float] = {}
    for number in kinds[np.argsort(first)].tolist():
        own = kind == number
        firsts = begins(op[own])  # of each op's rows
        each = np.add.reduceat(longer[own], firsts)  # exact: on the clock's grid
        rank = rank_of[op[own][firsts]]
        if alike is None:
            shares = np.array([weights.get(place, 0) / total for place in range(int(rank.max()) + 1)])
            parts = [shares[rank] * each]
        else:
            parts = [weights[place] / total * each[rank == like] for place, like in alike.items()]
        found[kinds_of_rows[number]] = float(np.cumsum(np.concatenate(parts))[-1])
    return found


def _kinds(told: ToldOps) -> list[str]:
    """The kinds of all rows, numbered."""
    return list(dict.fromkeys(row.kind for rows in told.different_rows[0] for row in rows))


def _longer(told: ToldOps, record: Record) -> tuple[Ints, Ints, Floats]:
    """Of every row that computes: its op, its kind's number, and the seconds it takes longer than at its rank's own
    speed: none rather than less than none, which the clock's rounding would leave where that speed varies."""
    number_of = {kind: number for number, kind in enumerate(_kinds(told))}

    def computed(rows: tuple[SpanRow, ...]) -> list[tuple[int, int, float, float, float]]:
        return [
            (place, number_of[row.kind], row.pace.seconds, row.start, row.end)
            for place, row in enumerate(rows)
            if row.pace is not None and row.pace.sensitivity is not None
        ]

    fields = {"place": "i8", "kind": "i8", "seconds": "f8", "start": "f8", "end": "f8"}
    op, _, row = spread(told, computed, fields)
    own = row["seconds"]
    other = columns_of(record.slowed)
    where = other.begins(len(told))
    there = np.flatnonzero(where[op] >= 0)
    at = where[op[there]] + row["place"][there]
    row["start"][there], row["end"][there] = other.start[at], other.end[at]
    if told.speeds:
        speeds = [told.speeds.get(rank, STEADY) for rank in told.lane_rank.tolist()]
        varying = np.array([speed is not STEADY for speed in speeds])[told.lane]
        for each in np.flatnonzero(varying[op]).tolist():
            speed = speeds[told.lane[op[each]]]
            begin = float(record.start[op[each]] + row["start"][each])
            own[each] = on_grid(stretched(speed, begin, float(own[each])))
    return op, row["kind"], np.maximum((row["end"] - row["start"]) - own, 0.0)
