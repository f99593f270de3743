"""What a run loses by doing several things at once: transfers on shared links, kernels beside communication.

A transfer's links are free if its group alone uses them: no other group of the same kind, no other axis, no other job.
Imports the lowered program and the timeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from simcluster.lowering.communicators import Communicators
from simcluster.lowering.lower import Lowered
from simcluster.lowering.program import Program, RowTimes, SpanRow
from simcluster.measuring.timeline import Floats, Spans
from simcluster.planning.profiles import STEADY, Profile, stretched


def free_seconds(lowered: Lowered, spans: Spans, first_rank: int = 0) -> Floats:
    """Per span: its seconds if nobody else used a link; its own duration where that is given, or played in steps.

    ``first_rank`` is the number in the program of the spans' rank 0.  Never more than the span took.
    """
    took = spans.end - spans.start
    free = took.copy()
    if lowered.steps:
        return free
    capacity = _capacity_of_links(lowered)
    _collectives(lowered.communicators, capacity, spans, first_rank, free)
    _sends(lowered, capacity, spans, free)
    return np.minimum(free, took)


def _capacity_of_links(lowered: Lowered) -> list[float]:
    """B/s of every link that is used, by its own number: the program counts classes of links."""
    members = lowered.classes.link_members
    capacity = [0.0] * (1 + max((link for links in members for link in links), default=-1))
    for number, links in enumerate(members):
        for link in links:
            capacity[link] = lowered.capacity[number]
    return capacity


def _alone(
    communicators: Communicators, capacity: Sequence[float], number: int, kind: str, size: float
) -> float | None:
    """Seconds of one call with the links to itself; None for one of given duration."""
    try:
        usages = communicators.bindings.usages(number)
        traffics = communicators.traffics(number, kind, size, usages)
    except KeyError:
        return None
    return sum(traffic.alone_seconds(capacity) for traffic in traffics)


def _collectives(
    communicators: Communicators, capacity: Sequence[float], spans: Spans, first_rank: int, free: Floats
) -> None:
    """Fill in what groups do: every call once for every rank that is simulated."""
    there = np.flatnonzero(spans.group != spans.code(""))
    if not len(there):
        return
    sizes, size_of = np.unique(spans.bytes[there], return_inverse=True)
    shape = (int(spans.rank.max()) + 1, len(spans.words), len(spans.words), len(sizes))
    calls = np.ravel_multi_index((spans.rank[there], spans.group[there], spans.kind[there], size_of), shape)
    distinct, which = np.unique(calls, return_inverse=True)
    known = np.full(len(distinct), np.nan)
    for place, (rank, group, kind, size) in enumerate(np.stack(np.unravel_index(distinct, shape), axis=1).tolist()):
        axis = spans.words[group].rstrip("0123456789")
        number = communicators.number(axis, first_rank + rank)
        alone = _alone(communicators, capacity, number, spans.words[kind], float(sizes[size]))
        known[place] = np.nan if alone is None else alone
    found = known[which]
    free[there] = np.where(np.isnan(found), free[there], found)


def _sends(lowered: Lowered, capacity: Sequence[float], spans: Spans, free: Floats) -> None:
    """Fill in what crosses stage boundaries, on both sides of it."""
    program, communicators = lowered.program, lowered.communicators
    known: dict[tuple[int, int, int, float], float | None] = {}
    of_send: dict[int, float] = {}
    of_receiver: dict[int, list[float]] = {}
    for send, receiver in program.receives:
        lane, to_stage = program.lane[send], program.lane_stage[program.lane[receiver]]
        rank, stage = program.lane_rank[lane], program.lane_stage[lane]
        size = program.row_sets[program.rows[send]][0].bytes
        key = (rank, stage, to_stage, size)
        if key not in known:
            number = communicators.number(("send", stage, to_stage), rank)
            known[key] = _alone(communicators, capacity, number, "send", size)
        alone = known[key]
        if alone is not None:
            of_send[send] = alone
            of_receiver.setdefault(receiver, []).append(alone)
    for kind, table in (("send", of_send), ("recv", {op: max(times) for op, times in of_receiver.items()})):
        there = np.flatnonzero((spans.kind == spans.code(kind)) & np.isin(spans.op, list(table)))
        free[there] = [table[op] for op in spans.op[there].tolist()]


def slowed_seconds(
    program: Program,
    start: Floats,
    slowed: Mapping[int, RowTimes],
    weights: Mapping[int, int],
    first_rank: int = 0,
) -> dict[str, float]:
    """Seconds that compute of each kind takes longer because communication goes on beside it, over the whole run.

    The mean over ranks; ``start`` and ``slowed`` are the record's, ``weights[rank]`` how many ranks a simulated one
    stands for.  What a GPU that is slow at times loses by itself is not counted.
    """
    total = sum(weights.values())
    planned: dict[int, dict[str, float]] = {}  # by row set, with nothing from outside: a segment's own communication
    found: dict[str, float] = {}
    for op, number in enumerate(program.rows):
        if number in planned and op not in slowed:
            longer = planned[number]
        else:
            rows = program.row_sets[number]
            speed = program.speeds.get(program.lane_rank[program.lane[op]], STEADY)
            times = slowed.get(op) or [(row.start, row.end) for row in rows]
            longer = _longer(rows, times, speed, float(start[op]))
            if op not in slowed:
                planned[number] = longer
        share = weights.get(program.lane_rank[program.lane[op]] - first_rank, 0) / total
        for kind, seconds in longer.items():
            found[kind] = found.get(kind, 0.0) + share * seconds
    return found


def _longer(rows: Sequence[SpanRow], times: RowTimes, speed: Profile, begin: float) -> dict[str, float]:
    """Seconds by kind that computations of an op that began then take longer than at their rank's own speed."""
    found: dict[str, float] = {}
    for row, (start, end) in zip(rows, times, strict=True):
        if row.pace is not None and row.pace.sensitivity is not None:
            own = row.pace.seconds if speed is STEADY else stretched(speed, begin + start, row.pace.seconds)
            found[row.kind] = found.get(row.kind, 0.0) + (end - start) - own
    return found
