"""Collectives hop by hop as flat arrays: what each hop moves, and which hops wait for which."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Int32s, Numbers
from simcluster.collectives import Phase
from simcluster.collectives.description import repeated_rounds
from simcluster.engine.tables import HopRounds, Kinds, firsts, int32s
from simcluster.traffic.methods import Pace, round_of
from simcluster.traffic.traffic import Fabric, Traffic, hop_spread, usage_of


class HopTables(NamedTuple):
    """Hops of all blocks of all collectives, numbered one after the other.

    ``collectives`` has the number of ``members``, ``blocks``, ``channels`` and ``hops`` of each, and its ``first_hop``.
    A *port* is a channel of a member in a block; those of a collective begin at its ``first_port``, by block and
    member.  Hops at port i are ``port_hop[port_first[i] : port_first[i + 1]]``.

    ``hops`` has the ``block`` of each hop within its collective, how often that ``repeats``, the members ``source`` and
    ``target`` and their ports, and its ``traffic``.  A hop waits for the last round of the hops that touch its source's
    port.
    """

    collectives: Mapping[str, Numbers]
    hops: Mapping[str, Numbers]
    port_first: Int32s
    port_hop: Int32s


def hop_rounds(
    fabric: Fabric, gpus: Sequence[int], phases: Sequence[Phase], size: float, pace: Pace | None
) -> tuple[HopRounds, list[Traffic]]:
    """Return a collective of ``size`` bytes over the GPUs of a group hop by hop, and the traffic of each hop.

    ``pace``, if there is one, replaces the latency of the hops' links and bounds their rate.
    """
    of_round = pace and round_of(phases, pace)
    rows, traffics = [], []
    for number, (block, repeats) in enumerate(repeated_rounds(phases)):
        for hop in block:
            spread = hop_spread(fabric, gpus, hop)
            latency, bound = of_round or (fabric.spread_latency(spread), math.inf)
            traffics.append(Traffic(usage_of([(1.0, spread)]), hop.share * size, 1, latency, bound))
            rows.append((number, repeats, hop.source, hop.target, hop.channel))
    return HopRounds(*np.array(rows, dtype=np.int32).reshape(-1, 5).T), traffics


def hop_tables(kinds: Kinds, collectives: Sequence[HopRounds]) -> HopTables:
    """Return the hops of all collectives; ``kinds`` are those of all communication."""
    in_rounds = np.flatnonzero(kinds.rounds >= 0)
    hops = [len(each.source) for each in collectives]
    first_hop, of = firsts(hops), np.repeat(np.arange(len(hops)), hops)  # of every hop its collective
    members = kinds.parties[in_rounds]
    columns = dict(zip(HopRounds._fields, map(np.concatenate, zip(*collectives, strict=True)), strict=True))
    channel = columns.pop("channel")
    blocks, channels = np.ones((2, len(hops)), dtype=np.int64)
    np.maximum.at(blocks, of, columns["block"] + 1)
    np.maximum.at(channels, of, channel + 1)
    first_port = firsts(members * blocks * channels)
    for end in ("source", "target"):
        seat = columns["block"] * members[of] + columns[end]
        columns[f"{end}_port"] = first_port[of] + seat * channels[of] + channel
    columns["traffic"] = kinds.traffic[(kinds.traffic_first[in_rounds] - first_hop[:-1])[of] + np.arange(len(of))]
    port = np.concatenate([columns["source_port"], columns["target_port"]])
    return HopTables(
        {
            "members": members,
            "blocks": blocks,
            "channels": channels,
            "hops": np.array(hops),
            "first_hop": first_hop[:-1],
            "first_port": first_port[:-1],
            "free": 0 * first_port[:-1],
        },
        columns,
        firsts(np.bincount(port, minlength=first_port[-1])),
        int32s(np.argsort(port, kind="stable") % len(of)),
    )
