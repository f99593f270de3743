"""Collectives hop by hop as flat arrays: what each hop moves, and which hops wait for which."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Int32s, Numbers
from simcluster.collectives import Phase
from simcluster.collectives.rounds import repeated_rounds
from simcluster.engine.tables import HopRounds
from simcluster.traffic.methods import Pace
from simcluster.traffic.traffic import Fabric, Traffic, hop_spread, usage_of


class HopTables(NamedTuple):
    """Hops of all blocks of all collectives, numbered one after the other.

    ``members``, ``blocks`` and ``hop_first`` are per collective.  A *seat* is a member in a block: seats of a
    collective begin at ``seat_first``, block by block, and have the hops from ``seat_hop_first`` on.  ``block`` (within
    its collective), ``repeats`` (how often its block repeats), ``source``, ``target`` and ``traffic`` are per hop.  A
    hop waits for the last round of the hops in ``before``, which are those that touch its source in its channel, and
    those in ``after`` wait for it.
    """

    members: Int32s
    blocks: Int32s
    hop_first: Int32s
    seat_first: Int32s
    seat_hop_first: Int32s
    seat_hop: Int32s
    block: Int32s
    repeats: Int32s
    source: Int32s
    target: Int32s
    traffic: Int32s
    before_first: Int32s
    before: Int32s
    after_first: Int32s
    after: Int32s


def hop_rounds(
    fabric: Fabric, gpus: Sequence[int], phases: Sequence[Phase], size: float, pace: Pace | None
) -> tuple[HopRounds, list[Traffic]]:
    """Return a collective of ``size`` bytes over the GPUs of a group hop by hop, and the traffic of each hop.

    ``pace``, if there is one, replaces the latency of the hops' links and bounds their rate.
    """
    blocks = list(repeated_rounds(phases))
    hops = [hop for block, _ in blocks for hop in block]
    traffics = []
    for hop in hops:
        spread = hop_spread(fabric, gpus, hop)
        latency, bound = pace or (fabric.spread_latency(spread), math.inf)
        traffics.append(Traffic(usage_of([(1.0, spread)]), hop.share * size, 1, latency, bound))
    rounds = HopRounds(
        block_first=_firsts(len(block) for block, _ in blocks),
        rounds=_int32s([count for _, count in blocks]),
        source=_int32s([hop.source for hop in hops]),
        target=_int32s([hop.target for hop in hops]),
        channel=_int32s([hop.channel for hop in hops]),
        traffic=np.arange(len(hops), dtype=np.int32),
    )
    return rounds, traffics


def hop_tables(collectives: Sequence[HopRounds], members: Sequence[int]) -> HopTables:
    """Return the hops of collectives, each among that many members."""
    sizes = [len(each.source) for each in collectives]
    blocks = [len(each.rounds) for each in collectives]
    block = [np.repeat(np.arange(len(each.rounds)), np.diff(each.block_first)) for each in collectives]
    seats: list[list[int]] = []
    before: list[list[int]] = []
    after: list[list[int]] = []
    first = 0
    for each, count, own_block in zip(collectives, members, block, strict=True):
        own = [[] for _ in range(count * len(each.rounds))]  # type: list[list[int]]
        touching, leaving = defaultdict[tuple[int, ...], list[int]](list), defaultdict[tuple[int, ...], list[int]](list)
        ends = list(
            zip(own_block.tolist(), each.source.tolist(), each.target.tolist(), each.channel.tolist(), strict=True)
        )
        for hop, (at, source, target, channel) in enumerate(ends, first):
            leaving[at, source, channel].append(hop)
            for end in (source, target):
                touching[at, end, channel].append(hop)
                own[at * count + end].append(hop)
        seats += own
        before += [touching[at, source, channel] for at, source, _, channel in ends]
        after += [leaving[at, source, channel] + leaving[at, target, channel] for at, source, target, channel in ends]
        first += len(ends)
    repeats = [each.rounds[own] for each, own in zip(collectives, block, strict=True)]
    return HopTables(
        _int32s(members),
        _int32s(blocks),
        _firsts(sizes),
        _firsts([count * number for count, number in zip(members, blocks, strict=True)]),
        *_flat(seats),
        _joined(block),
        _joined(repeats),
        _joined(each.source for each in collectives),
        _joined(each.target for each in collectives),
        _joined(each.traffic for each in collectives),
        *_flat(before),
        *_flat(after),
    )


def _int32s(values: Sequence[int]) -> Int32s:
    return np.array(values, dtype=np.int32)


def _firsts(sizes: Iterable[int]) -> Int32s:
    return np.cumsum([0, *sizes], dtype=np.int32)


def _flat(lists: Sequence[Sequence[int]]) -> tuple[Int32s, Int32s]:
    return _firsts(map(len, lists)), _int32s([number for each in lists for number in each])


def _joined(arrays: Iterable[Numbers]) -> Int32s:
    return np.concatenate([np.zeros(0, dtype=np.int32), *arrays]).astype(np.int32)
