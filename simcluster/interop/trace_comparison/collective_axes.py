"""Assignment of recorded collectives to a scenario's parallel axes (dp, tp, pp, cp, ep)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from simcluster.interop.kineto.communications import MESSAGE_KINDS, CommCall, find_described_axis
from simcluster.interop.kineto.profiled_job import ProfiledJob
from simcluster.interop.trace_comparison.step_accounts import MESSAGE_KIND
from simcluster.results.result import Result
from simcluster.results.span_states import EXPOSED

CallCounts = Mapping[str, float]
"""Calls per step by kind."""
_MAX_ROUNDS = 8


class AxisFinder:
    """Finder of a recorded collective's parallel axis, by its group's name, members or description.

    If the trace has none of these, by the number of calls of each kind in the group (a stream).
    """

    def __init__(self, result: Result, job: ProfiledJob) -> None:
        self._result, self._ranks = result, [rank for rank in job.ranks if rank < result.facts.ranks]
        self._recorded_calls = _count_calls_of_unknown_groups(job)
        self._planned, self._groups = self._count_simulated_calls(), self._list_simulated_groups()
        self._assigned: dict[int, dict[str, str]] = {}
        self._known: dict[tuple[object, ...], str] = {}

    def find_axis(self, comm: CommCall, rank: int) -> str:
        """Return the parallel axis of a rank's recorded collective."""
        key = comm.kind, comm.group, comm.group_text, comm.ranks, rank
        if key not in self._known:
            self._known[key] = self._find_unknown_axis(comm, rank)
        return self._known[key]

    def _find_unknown_axis(self, comm: CommCall, rank: int) -> str:
        groups = self._groups.get(rank, ())
        by_name = [axis for axis, _, name, members in groups if (name, members) == (comm.group, comm.ranks)]
        if by_name:
            return by_name[-1]
        described = find_described_axis(comm)
        if comm.kind in MESSAGE_KINDS and described in (None, "pp"):
            return "pp"
        equal = [(axis, kind) for axis, kind, _, members in groups if frozenset(members) == frozenset(comm.ranks)]
        same = [axis for axis, kind in equal if kind == comm.kind] or [axis for axis, _ in equal]
        if same:
            return described if described in same else same[0]
        if described:
            return described
        if rank not in self._assigned:  # give groups of unknown members the axes whose simulated calls they match
            planned = self._planned.get(self._result.representative_of(rank) if rank in self._ranks else -1, {})
            own = {name: counts for (of, name), counts in self._recorded_calls.items() if of == rank}
            self._assigned[rank] = _assign_groups_to_axes(own, planned)
        return self._assigned[rank].get(comm.group, "dp")

    def _count_simulated_calls(self) -> dict[int, dict[str, dict[str, float]]]:
        spans, words = self._result.spans, self._result.spans.words
        found: dict[int, dict[str, dict[str, float]]] = {}
        columns = np.stack([spans.rank, spans.stream, spans.kind], 1)
        keys, counts = np.unique(columns, axis=0, return_counts=True)
        for (rank, stream, kind), count in zip(keys.tolist(), counts.tolist(), strict=True):
            if words[stream] in EXPOSED:
                called = MESSAGE_KIND if words[kind] in MESSAGE_KINDS else words[kind]
                of_axis = found.setdefault(rank, {}).setdefault(words[stream], {})
                of_axis[called] = of_axis.get(called, 0.0) + count / self._result.steps
        return found

    def _list_simulated_groups(self) -> dict[int, list[tuple[str, str, str, tuple[int, ...]]]]:
        """Return, for every rank, the axis, kind, group name and members of its simulated collectives."""
        spans, words = self._result.spans, self._result.spans.words
        communicators, first = self._result.folding.communicators, self._result.ranks.start
        calls: dict[int, list[list[str]]] = {}
        keys = np.unique(np.stack([spans.rank, spans.stream, spans.kind, spans.group], 1), axis=0)
        for rank, *call in keys.tolist():
            calls.setdefault(rank, []).append([words[code] for code in call])
        found: dict[int, list[tuple[str, str, str, tuple[int, ...]]]] = {rank: [] for rank in self._ranks}
        for rank, own in found.items():
            for stream, kind, group in calls.get(self._result.representative_of(rank), ()):
                if stream in EXPOSED and group:
                    axis = group.rstrip("0123456789")
                    members = communicators.member_ranks(communicators.find_communicator(axis, first + rank))
                    name = communicators.group_name(axis, first + rank)
                    own.append((stream, kind, name, tuple(each - first for each in members)))
        return found


def _assign_groups_to_axes(groups: Mapping[str, CallCounts], simulated: Mapping[str, CallCounts]) -> dict[str, str]:
    """Assign each group whose members are unknown to the parallel axis with the most similar simulated calls."""
    found: dict[str, str] = {}

    def sum_call_differences(group: str, axis: str) -> float:
        total = 0.0
        dealt = {**found, group: axis}
        for each, there in simulated.items():
            own = [groups[name] for name, at in dealt.items() if at == each]
            for kind in dict.fromkeys((*there, *(kind for counts in own for kind in counts))):
                calls = sum(counts.get(kind, 0.0) for counts in own)
                total += abs(math.log((1 + calls) / (1 + there.get(kind, 0.0))))
        return total

    order = sorted(groups, key=lambda name: -sum(groups[name].values()))
    for _ in range(_MAX_ROUNDS if simulated else 0):
        before = dict(found)
        for group in order:
            found[group] = min(simulated, key=lambda axis: sum_call_differences(group, axis))
        if found == before:
            break
    return found


def _count_calls_of_unknown_groups(job: ProfiledJob) -> dict[tuple[int, str], dict[str, float]]:
    found: dict[tuple[int, str], dict[str, float]] = {}
    for graph in job.profiled_steps:
        for op, source in enumerate(graph.sources):
            if source is not None and (comm := source.comm) is not None and not comm.ranks:
                kind = MESSAGE_KIND if comm.kind in MESSAGE_KINDS else comm.kind
                key = job.ranks[int(graph.worker[op])], comm.group
                of_group = found.setdefault(key, {})
                of_group[kind] = of_group.get(kind, 0.0) + 1 / len(job.graphs)
    return found
