"""The calls that a run made over links: which communicator, what of which size, and the seconds that ranks spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.engine.lower import Lowered
from simcluster.results.timeline import Spans
from simcluster.symmetry.communicators import Communicators
from simcluster.traffic.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Call:
    """All calls of one kind and size by one communicator: ``axis`` is a group's, pp for a send, d2h or h2d for a copy.

    ``seconds`` are those of their spans, over all ranks that the simulated ones stand for; ``traffics`` what they move
    over the cluster's links (by the links' own numbers).
    """

    axis: str
    seconds: float
    traffics: tuple[Traffic, ...]


def calls(lowered: Lowered, spans: Spans, weights: Mapping[int, int], first_rank: int = 0) -> Iterator[Call]:
    """Every kind of call once; ``weights[rank]`` is how many ranks a simulated one stands for.

    ``first_rank`` is the number in the program of the spans' rank 0.
    """
    communicators = lowered.communicators
    found: dict[tuple[str, int, str, float], float] = {}
    for seconds, axis, number, kind, size in (
        *_of_groups(communicators, spans, weights, first_rank),
        *_sends(lowered, spans, weights, first_rank),
        *_copies(communicators, spans, weights, first_rank),
    ):
        key = axis, number, kind, size
        found[key] = found.get(key, 0.0) + seconds
    planned: dict[tuple[str, str], list[float]] = {}
    for axis, (kind, size) in communicators.calls(range(first_rank, first_rank + sum(weights.values()))):
        planned.setdefault((axis, kind), []).append(size)
    for (axis, number, kind, size), seconds in found.items():
        sizes = sorted(planned.get((axis, kind), []), key=lambda each: abs(each - size))
        traffics = _traffics(communicators, number, kind, [size, *sizes])
        if traffics:
            yield Call(axis, seconds, traffics)


def _traffics(communicators: Communicators, number: int, kind: str, sizes: Sequence[float]) -> tuple[Traffic, ...]:
    """What a call moves of the first of these sizes that was planned; nothing for one of given duration.

    Calls of uneven experts are other sizes of one that was planned for even ones.
    """
    usages = communicators.usages(number)
    for size in sizes:
        try:
            return communicators.traffics(number, kind, size, usages)
        except KeyError:
            continue
    return ()


_Found = tuple[float, str, int, str, float]


def _summed(
    spans: Spans, there: Ints, weights: Mapping[int, int], *columns: Ints
) -> Iterator[tuple[float, int, float, tuple[int, ...]]]:
    """Seconds, rank, bytes and the values in ``columns`` of spans that share them; ``there`` says which spans."""
    sizes, size = np.unique(spans.bytes[there], return_inverse=True)
    keys = np.stack([spans.rank[there], size, *(column[there] for column in columns)])
    order = np.lexsort(keys[::-1])
    keys = keys[:, order]
    first = np.flatnonzero(np.concatenate([[True], (np.diff(keys, axis=1) != 0).any(axis=0)])) if len(order) else order
    took = (spans.end - spans.start)[there][order]
    sums = np.add.reduceat(took, first) if len(order) else took
    for seconds, (rank, number, *values) in zip(sums.tolist(), keys[:, first].T.tolist(), strict=True):
        yield seconds * weights[rank], rank, float(sizes[number]), tuple(values)


def _of_groups(
    communicators: Communicators, spans: Spans, weights: Mapping[int, int], first_rank: int
) -> Iterator[_Found]:
    there = np.flatnonzero(spans.group != spans.code(""))
    for seconds, rank, size, (group, kind) in _summed(spans, there, weights, spans.group, spans.kind):
        axis = spans.words[group].rstrip("0123456789")
        yield seconds, axis, communicators.number(axis, first_rank + rank), spans.words[kind], size


def _sends(lowered: Lowered, spans: Spans, weights: Mapping[int, int], first_rank: int) -> Iterator[_Found]:
    program, communicators = lowered.program, lowered.communicators
    target = np.full(len(program.seconds), -1, dtype=np.int64)
    for send, receiver in program.receives:
        target[send] = program.lane_stage[program.lane[receiver]]
    to_stage = target[spans.op]
    there = np.flatnonzero((spans.kind == spans.code("send")) & (to_stage >= 0))
    stage_of = communicators.stage_of
    for seconds, rank, size, (stage,) in _summed(spans, there, weights, to_stage):
        source = int(stage_of[first_rank + rank])
        yield seconds, "pp", communicators.number(("send", source, stage), first_rank + rank), "send", size


def _copies(
    communicators: Communicators, spans: Spans, weights: Mapping[int, int], first_rank: int
) -> Iterator[_Found]:
    for direction in ("d2h", "h2d"):
        there = np.flatnonzero(spans.stream == spans.code(direction))
        for seconds, rank, size, () in _summed(spans, there, weights):
            yield seconds, direction, communicators.number(("copy", direction), first_rank + rank), "copy", size
