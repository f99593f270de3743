"""Durations of all ops of every rank in a run, so that it can be simulated again with some of them changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.reference.record import Ops
from simcluster.results.played import Run
from simcluster.traffic.traffic import Traffic


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
    latency = sum(traffic.latency_seconds for traffic in traffics)
    moving = [traffic for traffic in traffics if traffic.round_bytes and traffic.usage]
    before = sum(_seconds(traffic, whole) for traffic in moving)
    after = sum(_seconds(traffic, left) for traffic in moving)
    return latency, before / after if after else 1.0


def _seconds(traffic: Traffic, capacity: Sequence[float]) -> float:
    """Return the seconds of a transfer alone on its links, without latency."""
    rate = traffic.alone_rate(capacity)
    return traffic.rounds * traffic.round_bytes / rate if rate > 0 else math.inf


def _of_ranks(ops: Ops, values: Floats) -> dict[int, Floats]:
    """Return values of ops by simulated rank; ops of a rank are numbered one after the other."""
    rank = ops.lane_rank[ops.lane]
    ranks, first = np.unique(rank, return_index=True)
    order = np.argsort(first)
    return dict(zip(ranks[order].tolist(), np.split(values, np.sort(first)[1:]), strict=True))
