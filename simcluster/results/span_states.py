"""Time intervals covered by spans, and the time-breakdown activity for which each span counts.

A computation has its kind, a communication its axis, and host work the host.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Bools, Floats, Int32s, Ints
from simcluster.planning.rank_grid import STREAMS as COMMUNICATION
from simcluster.reference.step_record import RankOpTable

HOST_STREAMS = ("d2h", "h2d", "storage", "host")
"""Streams of copies to and from the host and on to storage, which are not communication between ranks, and of the
host's work."""


def intervals_inside(edges: Floats, start: Floats, end: Floats) -> Bools:
    """Return a mask of the intervals between ``edges`` that lie inside a span, given spans' starts and ends."""
    return covered_mask(len(edges), np.searchsorted(edges, start), np.searchsorted(edges, end))


def covered_mask(size: int, first: Ints, last: Ints) -> Bools:
    """Return a boolean mask of intervals, true where a span covers the interval; spans are given by edge numbers."""
    depth = np.cumsum(np.bincount(first, minlength=size)[:-1] - np.bincount(last, minlength=size)[:-1])
    return np.asarray(depth > 0)


COMPUTE_KINDS = {
    "forward": ("forward",),
    "backward": ("backward", "input_grad", "weight_grad"),
    "recompute": ("recompute",),
    "optimizer": ("optimizer",),
    "other": ("other",),
}
EXPOSED = COMMUNICATION
# A late member of one of these groups is a straggler; across stages it is a bubble.
GROUPS_OF_A_STAGE = tuple(stream for stream in EXPOSED if stream != "pp")
STALLS = ("checkpoint", "data", "validation")
"""Kinds of host work, and entries, that stop the rank's process, whether or not other ranks are idle meanwhile."""
HELD_BY = {"optimizer": "optimizer", "checkpoint": "checkpoint", "offload": "copy"}
"""Entries for concurrent host work that a rank waits for, and its kind; of several at once, the first counts."""
STREAMS = ("compute", *EXPOSED, *HOST_STREAMS)
COMPUTATION = tuple(kind for kinds in COMPUTE_KINDS.values() for kind in kinds)

ENTRIES = (
    *COMPUTE_KINDS, *(f"exposed_{axis}" for axis in EXPOSED), "straggler_wait", "checkpoint", *STALLS, *HELD_BY,
    "other", "bubble",
)  # fmt: skip
"""Entries of the breakdown, by the number of the bit that selects one for an interval."""
LATE, STANDING, STALLED, HELD, HOST, STORAGE = 10, 11, 12, 15, 18, 20
"""Bits: waiting for late members of a group; stopped for a checkpoint; the first of STALLS; the first of HELD_BY; a
stream of the host; the stream of writes to storage.  Lower bits are computation and communication."""


class SpanBits(NamedTuple):
    """Spans of a rank in the order of lanes, and received messages, each with its time-breakdown activity as bits.

    ``source`` is the index of a span in the rank's times; ``bits`` select its entry; ``late`` marks spans that wait for
    stragglers before they start. ``pipeline`` is the step of a microbatch's computation, ``checkpoint`` the step of a
    checkpoint's span, -1 for other spans. ``barriers`` are the spans that end checkpoints.
    """

    source: Int32s
    bits: Int32s
    late: Bools
    pipeline: Int32s
    checkpoint: Int32s
    barriers: Ints


def span_entry_bits(stream: str, kind: str) -> int:
    """Return, as bits, for which activity of the time breakdown a kind of op counts; raise ValueError if for none."""
    _check_known_word(stream, STREAMS, "stream")
    if stream == "compute":
        _check_known_word(kind, COMPUTATION, "computation of kind")
        return 1 << next(state for state, kinds in enumerate(COMPUTE_KINDS.values()) if kind in kinds)
    if stream in EXPOSED:
        found = 1 << len(COMPUTE_KINDS) + EXPOSED.index(stream)
    else:
        found = 1 << HOST | (stream == "storage") << STORAGE
    if stream == "host" and kind in STALLS:
        found |= 1 << STALLED + STALLS.index(kind)
    if kind in HELD_BY.values():
        found |= 1 << HELD + list(HELD_BY.values()).index(kind)
    return found


def _check_known_word(word: str, known: tuple[str, ...], what: str) -> None:
    if word not in known:
        raise ValueError(f"the time breakdown has no entry for {what} {word!r}; known: {', '.join(known)}")


def make_span_bits(ops: RankOpTable) -> SpanBits:
    """Return the spans of ranks that execute these ops, each with its time-breakdown activity as bits."""
    own = ops.ops_by_lane[ops.label[ops.ops_by_lane] >= 0]
    used, which = np.unique(ops.label[own], return_inverse=True)
    labels = [ops.labels[label] for label in used.tolist()]
    messages = len(ops.receiver)
    received = np.zeros(messages, dtype=np.int32)

    def column(values: list[int]) -> Int32s:
        return np.array(values, dtype=np.int32)[which]

    compute = column([label.stream == "compute" for label in labels])
    checkpoint = column([label.kind == "checkpoint" for label in labels])
    barrier = column([label.kind == "checkpoint" and label.name == "barrier" for label in labels])
    bits = column([span_entry_bits(label.stream, label.kind) for label in labels])
    late = column([label.stream in GROUPS_OF_A_STAGE for label in labels])
    step = ops.step[own]
    return SpanBits(
        source=np.concatenate([own, np.arange(len(ops), len(ops) + messages)]).astype(np.int32),
        bits=np.concatenate([bits, received + span_entry_bits("pp", "recv")]).astype(np.int32),
        late=np.concatenate([late, received]).astype(bool),
        pipeline=np.concatenate([np.where(compute * (ops.microbatch[own] >= 0) > 0, step, -1), received - 1]),
        checkpoint=np.concatenate([np.where(checkpoint > 0, step, -1), received - 1]),
        barriers=np.flatnonzero(barrier),
    )
