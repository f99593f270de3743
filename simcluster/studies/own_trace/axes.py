"""Which axis of a scenario a recorded collective is on."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from simcluster.interop.kineto.comm import MESSAGES, Comm
from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.kineto.spans import axis_described
from simcluster.results.metrics import EXPOSED
from simcluster.results.result import Result
from simcluster.studies.own_trace.side import MESSAGE


class AxisNames:
    """Which axis of the scenario a recorded collective is on: by its group's name, its members, or what is said of it;
    where the trace tells none of these, by how many calls of each kind its group (a stream) has."""

    def __init__(self, result: Result, job: ProfiledJob) -> None:
        self._result, self._ranks = result, [rank for rank in job.ranks if rank < result.facts.ranks]
        self._counted = _counted(job)
        spans, words = result.spans, result.spans.words
        size = len(words)
        keys = np.unique((spans.rank * size + spans.stream) * size * size + spans.kind * size + spans.group)
        self._calls: dict[int, list[tuple[str, str, str]]] = {}
        for key in keys.tolist():
            rest, group = divmod(key, size)
            rest, kind = divmod(rest, size)
            rank, stream = divmod(rest, size)
            if words[stream] in EXPOSED:
                self._calls.setdefault(rank, []).append((words[stream], words[kind], words[group]))
        self._known: dict[tuple[object, ...], str] = {}

    def axis(self, comm: Comm, rank: int) -> str:
        """The axis of a collective of a rank."""
        key = comm.kind, comm.group, comm.what, comm.ranks, rank
        if key not in self._known:
            self._known[key] = self._find(comm, rank)
        return self._known[key]

    def _find(self, comm: Comm, rank: int) -> str:
        by_name = self._by_name.get((comm.group, rank))
        if by_name and by_name[1] == comm.ranks:
            return by_name[0]
        described = axis_described(comm)
        if comm.kind in MESSAGES and described in (None, "pp"):
            return "pp"
        alike = [(axis, kind) for axis, kind, members in self._groups.get(rank, ()) if members == frozenset(comm.ranks)]
        same = [axis for axis, kind in alike if kind == comm.kind] or [axis for axis, _ in alike]
        if same:
            return described if described in same else same[0]
        if described:
            return described
        return self._by_counts(rank, comm.group)

    def _by_counts(self, rank: int, group: str) -> str:
        """The axis whose calls of every kind are about as many as those of a group of the trace."""
        own = self._counted.get((rank, group), {})
        planned = self._planned.get(self._result.simulated_for(rank) if rank in self._ranks else -1, {})

        def apart(axis: str) -> float:
            there = planned[axis]
            kinds = dict.fromkeys((*own, *there))
            return sum(abs(math.log((1 + own.get(kind, 0.0)) / (1 + there.get(kind, 0.0)))) for kind in kinds)

        return min(planned, key=apart, default="dp")

    @cached_property
    def _planned(self) -> dict[int, dict[str, dict[str, float]]]:
        """Calls of a step by simulated rank, axis and kind."""
        spans, words = self._result.spans, self._result.spans.words
        found: dict[int, dict[str, dict[str, float]]] = {}
        columns = np.stack([spans.rank, spans.stream, spans.kind], 1)
        keys, counts = np.unique(columns, axis=0, return_counts=True)
        for (rank, stream, kind), count in zip(keys.tolist(), counts.tolist(), strict=True):
            if words[stream] in EXPOSED:
                called = MESSAGE if words[kind] in MESSAGES else words[kind]
                of_axis = found.setdefault(rank, {}).setdefault(words[stream], {})
                of_axis[called] = of_axis.get(called, 0.0) + count / self._result.steps
        return found

    @cached_property
    def _groups(self) -> dict[int, list[tuple[str, str, frozenset[int]]]]:
        """Of every rank the axis, kind and members of what it calls."""
        found: dict[int, list[tuple[str, str, frozenset[int]]]] = {}
        for rank in self._ranks:
            own = self._calls.get(self._result.simulated_for(rank), ())
            found[rank] = [(axis, kind, frozenset(self._members(group, rank))) for axis, kind, group in own if group]
        return found

    @cached_property
    def _by_name(self) -> dict[tuple[str, int], tuple[str, tuple[int, ...]]]:
        """Axis and members by the name that a trace of a simulation gives a group."""
        found = {}
        communicators, first = self._result.lowered.communicators, self._result.ranks.start
        for rank in self._ranks:
            for stream, _, group in self._calls.get(self._result.simulated_for(rank), ()):
                if group:
                    name = communicators.group_name(group.rstrip("0123456789"), first + rank)
                    found[name, rank] = stream, self._members(group, rank)
        return found

    def _members(self, group: str, rank: int) -> tuple[int, ...]:
        communicators, first = self._result.lowered.communicators, self._result.ranks.start
        number = communicators.number(group.rstrip("0123456789"), first + rank)
        return tuple(each - first for each in communicators.ranks(number))


def _counted(job: ProfiledJob) -> dict[tuple[int, str], dict[str, float]]:
    """Calls of a step by rank, group and kind, of groups whose members are not told."""
    found: dict[tuple[int, str], dict[str, float]] = {}
    for graph in job.steps_of_ranks:
        for op, source in enumerate(graph.source):
            if source is not None and (comm := source.comm) is not None and not comm.ranks:
                kind = MESSAGE if comm.kind in MESSAGES else comm.kind
                key = job.ranks[int(graph.worker[op])], comm.group
                of_group = found.setdefault(key, {})
                of_group[kind] = of_group.get(kind, 0.0) + 1 / len(job.graphs)
    return found
