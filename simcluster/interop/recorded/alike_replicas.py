"""Replicas of a recorded job that are alike: they run the same ops in the same order, and wait for others alike.

Where one replica takes what it took and all others what is typical, those of them that are alike do everything at the
same instants, so one stands for all.  So the question of every replica costs what one of a few replicas does; with all
of them in every case it grew with the square of their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.interop.recorded.graph import StepGraph
from simcluster.interop.recorded.lowering import TOGETHER, RecordedPart

_MAKING = 100
"""How often an op can be swept in the time in which a program is made of it."""


class AlikeReplicas:
    """The classes of a graph's replicas: ``ops[replica]`` correspond to those of all that are alike, in their order."""

    def __init__(self, graph: StepGraph, ops: Sequence[Ints], classes: Sequence[Sequence[int]]) -> None:
        self._graph, self._ops, self._classes = graph, ops, classes

    def each_alone(self, typical: Floats) -> Floats:
        """Seconds [replica, step] if only that replica takes what it took, all others what is ``typical`` [op, 1]."""
        found = np.empty((len(self._ops), self._graph.seconds.shape[1]))
        for alike in self._classes:
            found[list(alike)] = self._of_class(alike, typical)
        return found

    def _of_class(self, alike: Sequence[int], typical: Floats) -> Floats:
        """The same of a class, by its first replica beside one other of every class."""
        first = alike[0]
        others = [next((each for each in members if each != first), None) for members in self._classes]
        chosen = np.sort(np.concatenate([self._ops[each] for each in (first, *others) if each is not None]))
        part, own = RecordedPart(_only(self._graph, chosen)), np.searchsorted(chosen, self._ops[first])
        steps = self._graph.seconds.shape[1]
        at_once = max(1, TOGETHER // (len(chosen) * steps))
        found = []
        for begin in range(0, len(alike), at_once):
            some = np.stack([self._ops[replica] for replica in alike[begin : begin + at_once]], axis=1)
            seconds = np.broadcast_to(typical[chosen][:, None], (len(chosen), some.shape[1], steps)).copy()
            seconds[own] = self._graph.seconds[some]
            found.append(part.total(seconds.reshape(len(chosen), -1)).reshape(-1, steps))
        return np.concatenate(found)


def alike_replicas(graph: StepGraph) -> AlikeReplicas | None:
    """The classes of a graph's replicas; None where these are so many that it is no less work to sweep all replicas.

    The rule by which they are alike: lanes of the same names and lengths, with ops of the same types, that wait for the
    same ops of their own replica and meet either ops of it or, at the same places, all replicas.
    """
    lanes = _lanes(graph)
    ops = [np.fromiter(chain.from_iterable(own.values()), dtype=np.int64) for own in lanes]
    waits, meets = _waits(graph, ops), _meets(graph, ops)
    if waits is None or meets is None:
        return None
    _, codes = graph.kinds
    classes: dict[tuple[object, ...], list[int]] = {}
    for replica, own in enumerate(lanes):
        shape = tuple((lane, len(names)) for lane, names in own.items())
        key = shape, codes[ops[replica]].tobytes(), waits[replica], meets[ops[replica]].tobytes()
        classes.setdefault(key, []).append(replica)
    if _MAKING * len(classes) * (len(classes) + 1) >= len(ops) ** 2:
        return None
    return AlikeReplicas(graph, ops, list(classes.values()))


def _lanes(graph: StepGraph) -> list[dict[tuple[int, str], tuple[int, ...]]]:
    """The ops of every replica's lanes by stage and name, in the order of these."""
    found: list[dict[tuple[int, str], tuple[int, ...]]] = [{} for _ in range(int(graph.dp_rank.max()) + 1)]
    for worker, name in sorted(graph.lanes, key=lambda lane: (lane[0] % graph.stages, lane[1])):
        found[worker // graph.stages][worker % graph.stages, name] = graph.lanes[worker, name]
    return found


def _places(graph: StepGraph, ops: Sequence[Ints]) -> Ints:
    """Of every op its place among those of its replica."""
    place = np.empty(len(graph), dtype=np.int64)
    for own in ops:
        place[own] = np.arange(len(own))
    return place


def _waits(graph: StepGraph, ops: Sequence[Ints]) -> list[bytes] | None:
    """Of every replica the places of its ops that wait, each with that of the op that it waits for; None where one
    waits for another replica's."""
    counts = np.fromiter(map(len, graph.after), dtype=np.int64, count=len(graph))
    awaited = np.fromiter(chain.from_iterable(graph.after), dtype=np.int64, count=int(counts.sum()))
    waiting = np.repeat(np.arange(len(graph)), counts)
    replica = graph.dp_rank[waiting]
    if (graph.dp_rank[awaited] != replica).any():
        return None
    place = _places(graph, ops)
    pairs = place[waiting] * len(graph) + place[awaited]
    bounds = np.cumsum(np.bincount(replica, minlength=len(ops)))[:-1]
    return [own.tobytes() for own in np.split(pairs[np.lexsort((pairs, replica))], bounds)]


def _meets(graph: StepGraph, ops: Sequence[Ints]) -> Ints | None:
    """Of every op the name of its group, or -1: of one with ops of all replicas its number, of one replica's
    its first place; None where some but not all replicas have ops of a group."""
    replicas, count = len(ops), len(graph.groups)
    sizes = np.fromiter(map(len, graph.groups), dtype=np.int64, count=count)
    members = np.fromiter(chain.from_iterable(graph.groups), dtype=np.int64, count=int(sizes.sum()))
    group = np.repeat(np.arange(count), sizes)
    apart = np.unique(group * replicas + graph.dp_rank[members])
    there = np.bincount(apart // replicas, minlength=count)
    if ((there > 1) & (there < replicas)).any():
        return None
    name = np.full(count, len(graph))
    np.minimum.at(name, group, _places(graph, ops)[members])
    name = np.where(there > 1, len(graph) + np.arange(count), name)
    found = np.full(len(graph), -1)
    found[members] = name[group]
    return found


def _only(graph: StepGraph, ops: Ints) -> StepGraph:
    """The graph of these ops, of whole replicas; its groups are without those that are left out."""
    number = np.full(len(graph), -1)
    number[ops] = np.arange(len(ops))
    of, chosen = number.tolist(), ops.tolist()
    groups = [tuple([of[op] for op in group if of[op] >= 0]) for group in graph.groups]
    return StepGraph(
        stages=graph.stages,
        steps=graph.steps,
        optype=tuple([graph.optype[op] for op in chosen]),
        worker=graph.worker[ops],
        microbatch=graph.microbatch[ops],
        chunk=graph.chunk[ops],
        lanes={lane: tuple([of[op] for op in own]) for lane, own in graph.lanes.items() if of[own[0]] >= 0},
        after=tuple([tuple([of[other] for other in graph.after[op]]) for op in chosen]),
        groups=tuple([group for group in groups if len(group) > 1]),
        seconds=graph.seconds[ops],
        began=graph.began[ops],
        ended=graph.ended[ops],
    )
