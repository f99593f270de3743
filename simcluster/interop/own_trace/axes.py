"""Which axis of a scenario a recorded collective is on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from simcluster.interop.kineto.comm import MESSAGES, Comm
from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.kineto.spans import axis_described
from simcluster.interop.own_trace.side import MESSAGE
from simcluster.results.result import Result
from simcluster.results.span_states import EXPOSED

Counts = Mapping[str, float]
"""Calls of a step by kind."""
_ROUNDS = 8


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
        self._dealt: dict[int, dict[str, str]] = {}
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
        """The axis of a group whose members are not told: all such groups of the rank are dealt out so that every axis
        has about as many calls of each kind as in the simulation."""
        if rank not in self._dealt:
            planned = self._planned.get(self._result.simulated_for(rank) if rank in self._ranks else -1, {})
            own = {name: counts for (of, name), counts in self._counted.items() if of == rank}
            self._dealt[rank] = _dealt(own, planned)
        return self._dealt[rank].get(group, "dp")

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
        communicators, first = self._result.folding.communicators, self._result.ranks.start
        for rank in self._ranks:
            for stream, _, group in self._calls.get(self._result.simulated_for(rank), ()):
                if group:
                    name = communicators.group_name(group.rstrip("0123456789"), first + rank)
                    found[name, rank] = stream, self._members(group, rank)
        return found

    def _members(self, group: str, rank: int) -> tuple[int, ...]:
        communicators, first = self._result.folding.communicators, self._result.ranks.start
        number = communicators.number(group.rstrip("0123456789"), first + rank)
        return tuple(each - first for each in communicators.ranks(number))


def _dealt(groups: Mapping[str, Counts], planned: Mapping[str, Counts]) -> dict[str, str]:
    """An axis for each group: the largest first, each where it helps most, then again while anything helps."""
    found: dict[str, str] = {}

    def apart(group: str, axis: str) -> float:
        total = 0.0
        dealt = {**found, group: axis}
        for each, there in planned.items():
            own = [groups[name] for name, at in dealt.items() if at == each]
            for kind in dict.fromkeys((*there, *(kind for counts in own for kind in counts))):
                calls = sum(counts.get(kind, 0.0) for counts in own)
                total += abs(math.log((1 + calls) / (1 + there.get(kind, 0.0))))
        return total

    order = sorted(groups, key=lambda name: -sum(groups[name].values()))
    for _ in range(_ROUNDS if planned else 0):
        before = dict(found)
        for group in order:
            found[group] = min(planned, key=lambda axis: apart(group, axis))
        if found == before:
            break
    return found


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
