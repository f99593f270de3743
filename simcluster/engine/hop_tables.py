"""Collectives hop by hop as flat arrays: what each hop moves, and which hops wait for which."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Int32s, Numbers
from simcluster.collectives import Phase
from simcluster.collectives.rounds import repeated_rounds
from simcluster.engine.tables import HopRounds, firsts, int32s
from simcluster.traffic.methods import Pace
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
    blocks = list(repeated_rounds(phases))
    hops = [hop for block, _ in blocks for hop in block]
    traffics = []
    for hop in hops:
        spread = hop_spread(fabric, gpus, hop)
        latency, bound = pace or (fabric.spread_latency(spread), math.inf)
        traffics.append(Traffic(usage_of([(1.0, spread)]), hop.share * size, 1, latency, bound))
    rounds = HopRounds(
        block_first=firsts([len(block) for block, _ in blocks]),
        rounds=int32s([count for _, count in blocks]),
        source=int32s([hop.source for hop in hops]),
        target=int32s([hop.target for hop in hops]),
        channel=int32s([hop.channel for hop in hops]),
        traffic=np.arange(len(hops), dtype=np.int32),
    )
    return rounds, traffics


def hop_tables(collectives: Sequence[HopRounds], members: Sequence[int]) -> HopTables:
    """Return the hops of collectives; ``members`` is the size of each."""
    sizes = {
        "members": np.array(members),
        "blocks": np.array([len(each.rounds) for each in collectives]),
        "channels": np.array([1 + int(each.channel.max(initial=0)) for each in collectives]),
        "hops": np.array([len(each.source) for each in collectives]),
    }
    first_port = firsts(sizes["members"] * sizes["blocks"] * sizes["channels"])
    hops: dict[str, list[Numbers]] = {
        "block": [np.repeat(np.arange(len(each.rounds)), np.diff(each.block_first)) for each in collectives],
        "repeats": [np.repeat(each.rounds, np.diff(each.block_first)) for each in collectives],
        "source": [each.source for each in collectives],
        "target": [each.target for each in collectives],
    }
    columns = {name: np.concatenate(parts).astype(np.int64) for name, parts in hops.items()}
    of = np.repeat(np.arange(len(collectives)), sizes["hops"])  # the collective of every hop
    for end in ("source", "target"):
        seat = columns["block"] * sizes["members"][of] + columns[end]
        channel = np.concatenate([each.channel for each in collectives])
        columns[f"{end}_port"] = first_port[of] + seat * sizes["channels"][of] + channel
    columns["traffic"] = np.concatenate([each.traffic for each in collectives])
    port = np.concatenate([columns["source_port"], columns["target_port"]])
    return HopTables(
        {**sizes, "first_hop": firsts(sizes["hops"])[:-1], "first_port": first_port[:-1], "free": 0 * first_port[:-1]},
        columns,
        firsts(np.bincount(port, minlength=first_port[-1])),
        (np.argsort(port, kind="stable") % len(of)).astype(np.int32),
    )
