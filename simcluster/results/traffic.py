"""Bytes that a GPU sends by parallel axis and collective, in total and between nodes, with wire and overlapped time.

Sizes of buffers are what calls carry (nccl-tests' convention: the full buffer); bytes sent follow from how a collective
is done: 2 (n - 1) / n of the buffer by a ring's all-reduce, half of it by an all-gather.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.collectives.description import SWITCH, BlockwiseHops, Hop, HopList, LazyHopList, Phase
from simcluster.collectives.tree import DoubleTreeHops
from simcluster.results.contention import CallKey, SpanCalls
from simcluster.results.overlap import CommunicationKey, Overlaps
from simcluster.results.timeline import Spans
from simcluster.symmetry.communicators import Communicators

_ROOM = 1 << 16  # hops at a time


@dataclass(frozen=True, slots=True)
class SentFractions:
    """Bytes that a collective's rank sends on average, relative to the collective's size: in total, and off its node.

    Bytes that another GPU's NIC passes on (NCCL's PXN) count for the sender, not for that GPU.
    """

    sent: float
    across: float


def sent_fractions(phases: Sequence[Phase], hosts: Ints) -> SentFractions:
    """Return how much a rank sends on average in a collective, relative to its size, given each member's node."""
    sent, across = 0.0, 0.0
    for phase in phases:
        if isinstance(phase.hops, DoubleTreeHops):  # of millions of hops
            share = np.broadcast_to(phase.hops.hop_share, len(phase.hops))
            sent, across = sent + float(share.sum()), across + float(share[phase.hops.num_hops_inside_nodes :].sum())
            continue
        for source, target, share in _rank_and_fraction_columns(phase.hops):
            own = source != SWITCH
            source, target, share = source[own], target[own], share[own]
            inside = hosts[source] == hosts[np.where(target == SWITCH, source, target)]
            if len(np.unique(hosts[source[target == SWITCH]])) > 1:  # a switch above several machines
                inside &= target != SWITCH
            sent += phase.rounds * float(share.sum())
            across += phase.rounds * float(share[~inside].sum())
    return SentFractions(sent / len(hosts), across / len(hosts))


def _rank_and_fraction_columns(hops: Sequence[Hop]) -> list[tuple[Ints, Ints, Floats]]:
    if isinstance(hops, BlockwiseHops):
        return [(part.source, part.target, part.share) for part in hops.hop_blocks(_ROOM)]
    if isinstance(hops, LazyHopList):
        hops = hops.hop_list
    if isinstance(hops, HopList):
        return [(hops.source, hops.target, hops.share)]
    known = list(hops)
    if not known:
        return []
    source, target = (np.array([getattr(hop, name) for hop in known], dtype=np.int64) for name in ("source", "target"))
    return [(source, target, np.array([hop.share for hop in known]))]


@dataclass(frozen=True, slots=True)
class AxisTraffic:
    """Traffic per step, averaged over ranks: of one collective, of a parallel axis, or in total.

    ``axis`` is "" for all axes. ``buffer`` are bytes of the buffers of all ``calls``, ``sent`` those that the GPU
    sends, ``across`` the part of them that leaves its node; a transfer between stages counts where it is sent. ``wire``
    are seconds on the wire, ``hidden`` those that overlap with its compute.
    """

    axis: str
    kind: str
    name: str
    calls: float
    buffer: float
    sent: float
    across: float
    wire: float
    hidden: float

    def to_dict(self) -> dict[str, str | float]:
        """Return the traffic as one row of the traffic table in the result JSON."""
        named = {"buffer": "buffer_bytes", "sent": "sent_bytes", "across": "across_machines_bytes", "wire": "wire_s",
                 "hidden": "hidden_s"}  # fmt: skip
        return {named.get(key, key): value for key, value in asdict(self).items()}


def axis_traffic(
    communicators: Communicators, spans: Spans, span_calls: SpanCalls, weights: Mapping[int, int],
    overlap: Overlaps, *, steps: int,
) -> list[AxisTraffic]:  # fmt: skip
    """Return the total traffic, then the traffic of each parallel axis and of its collectives."""
    call, keys = span_calls
    shares = _sent_fractions_by_call(communicators, keys)
    size = np.array([key.size for key in keys] + [0.0])
    each = np.array([[share.sent, share.across] for share in shares] + [[0.0, 0.0]]) * size[:, None]
    part = np.zeros(max(weights) + 1)
    part[list(weights)] = np.array(list(weights.values())) / (sum(weights.values()) * steps)
    moved: Floats = each[call] * part[spans.rank][:, None]
    sums: dict[CommunicationKey, Floats] = {}  # calls, buffer, sent, across
    for key, seconds in overlap.mean.items():
        if key.kind and key.kind != "recv":  # the same transfer as its sender's
            found = np.array([seconds.calls, seconds.bytes, *moved[_collective_mask(spans, key)].sum(axis=0).tolist()])
            for whole in (CommunicationKey(), CommunicationKey(key.axis), key):
                sums[whole] = sums.get(whole, 0.0) + found
    if CommunicationKey() not in sums or not sums[CommunicationKey()][2]:
        return []
    rows = []
    for key, seconds in overlap.mean.items():
        if key in sums:
            calls, buffer, sent, across = sums[key].tolist()
            rows.append(
                AxisTraffic(key.axis, key.kind, key.name, calls, buffer, sent, across, seconds.wire, seconds.hidden)
            )
    return rows


def _collective_mask(spans: Spans, key: CommunicationKey) -> Bools:
    return np.asarray(
        (spans.stream == spans.word_code(key.axis))
        & (spans.kind == spans.word_code(key.kind))
        & (spans.name == spans.word_code(key.name))
    )


def _sent_fractions_by_call(communicators: Communicators, keys: Sequence[CallKey]) -> list[SentFractions]:
    known: dict[tuple[object, ...], SentFractions] = {}
    found = []
    for key in keys:
        size = None if key.kind == "copy" else communicators.planned_size(key.communicator, key.kind, key.size)
        if size is None:
            found.append(SentFractions(0.0, 0.0))
            continue
        method = communicators.method_of_call(key.communicator, key.kind, size).algorithm
        places = np.unique(communicators.member_nodes(key.communicator), return_inverse=True)[1]
        name = key.kind, method, places.tobytes()
        if name not in known:
            mean = sent_fractions(communicators.phases_of_call(key.communicator, key.kind, size), places)
            senders = len(places) if key.kind == "send" else 1  # of a pair one sends
            known[name] = SentFractions(senders * mean.sent, senders * mean.across)
        found.append(known[name])
    return found
