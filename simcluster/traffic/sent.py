"""What a GPU sends in a collective, and how much of it leaves its machine: read off its description's hops.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.collectives.description import SWITCH, Columned, Hop, Listed, Phase, Table

_ROOM = 1 << 16  # hops at a time


@dataclass(frozen=True, slots=True)
class SentShare:
    """Parts of a collective's size that a rank sends, the mean of the group: all, and what leaves its machine.

    Bytes that another GPU's NIC passes on (NCCL's PXN) are its own, not the other one's.
    """

    sent: float
    across: float


def sent_share(phases: Sequence[Phase], hosts: Ints) -> SentShare:
    """Of a group whose position i is on machine ``hosts[i]``; what switches send is sent by no rank."""
    sent, across = 0.0, 0.0
    for phase in phases:
        for source, target, share in _columns(phase.hops):
            own = source != SWITCH
            source, target, share = source[own], target[own], share[own]
            inside = hosts[source] == hosts[np.where(target == SWITCH, source, target)]
            if len(np.unique(hosts[source[target == SWITCH]])) > 1:  # a switch above several machines
                inside &= target != SWITCH
            sent += phase.rounds * float(share.sum())
            across += phase.rounds * float(share[~inside].sum())
    return SentShare(sent / len(hosts), across / len(hosts))


def _columns(hops: Sequence[Hop]) -> list[tuple[Ints, Ints, np.ndarray[tuple[int], np.dtype[np.float64]]]]:
    """Source, target and share of all hops, in parts."""
    if isinstance(hops, Table):
        return [(part.source, part.target, part.share) for part in hops.parts(_ROOM)]
    if isinstance(hops, Columned):
        hops = hops.listed
    if isinstance(hops, Listed):
        return [(hops.source, hops.target, hops.share)]
    known = list(hops)
    if not known:
        return []
    source, target = (np.array([getattr(hop, name) for hop in known], dtype=np.int64) for name in ("source", "target"))
    return [(source, target, np.array([hop.share for hop in known]))]
