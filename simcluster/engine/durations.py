"""Durations of all ops of every rank in a run, so that it can be played again with some of them changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.engine.lower import Lowered
from simcluster.engine.record import Record
from simcluster.planning.ops import StageProgram
from simcluster.traffic.traffic import Traffic

ProgramOf = Callable[[int], StageProgram]
"""A rank's own version of its stage's program."""


def durations(lowered: Lowered, program_of: ProgramOf, record: Record) -> dict[int, Floats]:
    """Seconds of every op of each simulated rank, ops in the order of its program (lane by lane)."""
    program = lowered.program
    offsets = [np.array([row.end - row.start for row in rows]) for rows in program.row_sets]

    def seconds(number: int) -> Floats:
        if program.meeting[number] >= 0:
            return record.end[number : number + 1] - record.start[number : number + 1]
        if number in record.slowed:
            return np.array([last - first for first, last in record.slowed[number]])
        return offsets[program.rows[number]]

    return _of_ops(lowered, program_of, seconds)


def paces(lowered: Lowered, program_of: ProgramOf, left: Mapping[int, float]) -> dict[int, Floats]:
    """What becomes of the transfers of each simulated rank if only ``left[link]`` of these links is there.

    [op, (latency, pace)], ops as for ``durations``: the part of its seconds that does not depend on links, and the
    speed of the rest, alone on its links, against that on whole ones; 0 and 1 for what uses none of the links.
    """
    program = lowered.program
    capacity = [
        each * left.get(link, 1.0)
        for each, link in zip(lowered.capacity, lowered.classes.link_representatives, strict=True)
    ]
    known: dict[int, Floats] = {}
    whole = [np.tile((0.0, 1.0), (len(rows), 1)) for rows in program.row_sets]

    def pace(number: int) -> Floats:
        meeting = program.meeting[number]
        if meeting < 0:
            return whole[program.rows[number]]
        traffics = program.meetings[meeting].traffics
        if id(traffics) not in known:
            known[id(traffics)] = np.array([_pace(traffics, lowered.capacity, capacity)])
        return known[id(traffics)]

    return _of_ops(lowered, program_of, pace)


def _pace(traffics: Sequence[Traffic], whole: Sequence[float], left: Sequence[float]) -> tuple[float, float]:
    latency = sum(traffic.latency_seconds for traffic in traffics)
    moving = [traffic for traffic in traffics if traffic.round_bytes and traffic.usage]
    before = sum(_seconds(traffic, whole) for traffic in moving)
    after = sum(_seconds(traffic, left) for traffic in moving)
    return latency, before / after if after else 1.0


def _seconds(traffic: Traffic, capacity: Sequence[float]) -> float:
    """Of a transfer alone on its links, without latency."""
    rate = traffic.alone_rate(capacity)
    return traffic.rounds * traffic.round_bytes / rate if rate > 0 else math.inf


def _of_ops(lowered: Lowered, program_of: ProgramOf, values: Callable[[int], Floats]) -> dict[int, Floats]:
    """By simulated rank what ``values`` gives for the engine's ops, each as many rows as it stands for."""
    found: dict[int, Floats] = {}
    number = 0
    for rank in lowered.classes.rank_representatives:
        parts: list[Floats] = []
        for items in program_of(rank).lanes.values():
            for item in items:
                left = len(item.segment.ops)
                while left:
                    own = values(number)
                    parts.append(own)
                    left -= len(own)
                    number += 1
                assert left == 0, item.key
        found[rank] = np.concatenate(parts)
    assert number == len(lowered.program.seconds)
    return found
