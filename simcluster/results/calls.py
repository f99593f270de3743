"""The calls that a run made over links: which communicator, what of which size, and the seconds that ranks spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.reference.record import Ops
from simcluster.results.timeline import Spans
from simcluster.symmetry.communicators import Communicators
from simcluster.traffic.traffic import Traffic


class CallKey(NamedTuple):
    """Axis (a group's, pp for a send, d2h, h2d or storage for a copy), communicator, kind and size of equal calls.

    Copies to the memory of peers are on the axis storage as well: they are what is written instead.
    """

    axis: str
    communicator: int
    kind: str
    size: float


@dataclass(frozen=True, slots=True)
class Call:
    """All calls of one kind and size by one communicator, of an ``axis`` as in ``CallKey``.

    ``seconds`` are those of their spans, over all ranks that the simulated ones stand for; ``traffics`` what they move
    over the cluster's links (by the links' own numbers).
    """

    axis: str
    seconds: float
    traffics: tuple[Traffic, ...]


def calls(
    communicators: Communicators, called: tuple[Ints, list[CallKey]], spans: Spans, weights: Mapping[int, int]
) -> Iterator[Call]:
    """Generate every kind of call over links once; ``weights[rank]`` is how many ranks a simulated rank represents.

    ``called`` is what ``calls_of`` returns for the spans.
    """
    call, keys = called
    there = np.flatnonzero(call >= 0)
    represented = np.array([weights.get(rank, 0) for rank in range(max(weights) + 1)])
    took = (spans.end - spans.start)[there] * represented[spans.rank[there]]
    for key, seconds in zip(keys, np.bincount(call[there], took, len(keys)).tolist(), strict=True):
        size = communicators.planned_size(key.communicator, key.kind, key.size)
        if size is not None:
            usages = communicators.usages(key.communicator)
            yield Call(key.axis, seconds, communicators.traffics(key.communicator, key.kind, size, usages))


def calls_of(communicators: Communicators, ops: Ops, spans: Spans, first_rank: int = 0) -> tuple[Ints, list[CallKey]]:
    """Return for every span its place among the different calls (-1: none, or the receiver of a send), and those."""
    words = spans.words
    to_stage = np.full(len(ops), -1, dtype=np.int64)
    sends, receivers = ops.receives
    to_stage[sends] = ops.lane_stage[ops.lane[receivers]]
    sent = (spans.kind == spans.code("send")) & (to_stage[spans.op] >= 0)
    copied = np.isin(spans.stream, [spans.code(way) for way in ("d2h", "h2d", "storage") if way in words])
    sorts = [spans.group != spans.code(""), sent, copied]
    sort = np.select(sorts, [0, 1, 2], -1)
    there = np.flatnonzero(sort >= 0)
    sizes, size = np.unique(spans.bytes[there], return_inverse=True)
    where = np.select(sorts, [spans.group, to_stage[spans.op], spans.stream], 0)
    columns = (sort[there], spans.rank[there], size, where[there], spans.kind[there])
    to_peers = any(kind.name == ("copy", "peers") for kind in communicators.kinds)
    shape = [1 + int(column.max(initial=0)) for column in columns]
    distinct, which = np.unique(np.ravel_multi_index(columns, shape), return_inverse=True)
    keys: dict[CallKey, int] = {}
    places = np.zeros(len(distinct), dtype=np.int64)
    for place, (of_sort, own, number, target, kind) in enumerate(zip(*np.unravel_index(distinct, shape), strict=True)):
        rank = first_rank + int(own)
        axis = "pp" if of_sort == 1 else words[target].rstrip("0123456789") if of_sort == 0 else words[target]
        way = "peers" if to_peers and axis == "storage" else axis
        called = ("send", int(communicators.stage_of[rank]), int(target)) if of_sort == 1 else ("copy", way)
        communicator = communicators.number(called if of_sort else axis, rank)
        key = CallKey(axis, communicator, "copy" if of_sort == 2 else words[kind], float(sizes[number]))
        places[place] = keys.setdefault(key, len(keys))
    call = np.full(len(spans), -1, dtype=np.int64)
    call[there] = places[which]
    return call, list(keys)
