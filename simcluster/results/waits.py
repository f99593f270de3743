"""Who waited for whom, and how long: at collectives for the last member, in the pipeline for the sender or receiver.

For the simulated ranks one by one (``waits``), and for every rank of a job or gathered by worker, machine or stage
(``wait_matrix``): a simulated rank stands for others; when one of those waits, it is for the rank of the culprit's kind
that it shares most with: a peer in its own group, the neighbour in its own pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

import numpy as np

from simcluster.base.arrays import Floats, Int32s, Ints
from simcluster.base.runs import begins
from simcluster.planning.ops import MAIN
from simcluster.planning.parallel import Plan
from simcluster.reference.record import Ops, OpTimes


@dataclass(frozen=True, slots=True)
class Wait:
    """``rank`` waited ``seconds`` for ``culprit``: at collectives ("group"), or for its tensors ("pipeline")."""

    rank: int
    culprit: int
    where: str
    seconds: float


def waits(ops: Ops, times: OpTimes, culprit: Int32s | None = None) -> list[Wait]:
    """Return all waiting between simulated ranks, longest first (ties by rank).

    ``culprit`` is the rank of the op that arrived last at each op's meeting, where some of these ops are not given.

    What waits concurrently with computation (a bucket of gradients for the other replicas') counts only while its rank
    has nothing else to do.
    """
    rank = ops.lane_rank[ops.lane]
    late = np.flatnonzero((times.ready < times.start) & (times.last != np.arange(len(ops))))
    late = late[np.lexsort((times.start[late], times.ready[late]))]
    sends, receivers = ops.receives
    meets = ops.parties[sends] > 1
    pairs = ops.label < 0  # receives at a rendezvous, and their sends
    pairs[sends[meets]] = True
    found = []
    for pair in (False, True):
        own = late[pairs[late] == pair]
        other = rank[times.last[own]] if culprit is None else culprit[own]
        begin = _begins(times, own, rank[own], other) if pair else times.ready[own]
        found.append((rank[own], other, pair, _idle(ops, times, own, begin)))
    sends, receivers = sends[~meets], receivers[~meets]
    before = ops.before[receivers]
    free = np.where(before >= 0, times.end[before], 0.0)
    gap = np.minimum(times.start[sends], times.ready[receivers]) - free  # until the send began: then it communicates
    return _summed([*found, (rank[receivers], rank[sends], True, gap)])


def _summed(parts: Sequence[tuple[Int32s, Int32s, bool, Floats]]) -> list[Wait]:
    """Return the waits of every rank for every other, group and pipeline apart."""
    own, other, seconds = (np.concatenate([part[column] for part in parts]) for column in (0, 1, 3))
    where = np.repeat([int(part[2]) for part in parts], [len(part[0]) for part in parts])
    there = seconds > 0
    ranks = int(max(own.max(initial=0), other.max(initial=0))) + 1
    code = (own[there].astype(np.int64) * ranks + other[there]) * 2 + where[there]
    codes, which = np.unique(code, return_inverse=True)
    sums = np.bincount(which, seconds[there], len(codes))  # exact: on the clock's grid
    names = ("group", "pipeline")
    return longest_first(
        Wait(pair // 2 // ranks, pair // 2 % ranks, names[pair % 2], total)
        for pair, total in zip(codes.tolist(), sums.tolist(), strict=True)
    )


def longest_first(found: Iterable[Wait]) -> list[Wait]:
    """Return waits, longest first; equal ones by rank, then by culprit."""
    return sorted(found, key=lambda wait: (-wait.seconds, wait.rank, wait.culprit, wait.where))


def _begins(times: OpTimes, late: Ints, rank: Int32s, culprit: Int32s) -> Floats:
    """Return from when sends and receives wait: a rank waits once where several wait for the same rank at a time."""
    pair = rank.astype(np.int64) * (int(culprit.max(initial=0)) + 1) + culprit
    order = np.argsort(pair, kind="stable")
    instants, place = np.unique(times.start[late], return_inverse=True)
    group = np.cumsum(np.diff(pair[order], prepend=-1) != 0) * len(instants)
    latest = np.maximum.accumulate(group + place[order])  # of the pair until this op, as its place among instants
    until = np.zeros(len(late))
    follows = np.flatnonzero(np.diff(pair[order]) == 0)
    until[order[follows + 1]] = instants[latest[follows] - group[follows]]
    return np.maximum(times.ready[late], until)


def _idle(ops: Ops, times: OpTimes, late: Ints, begin: Floats) -> Floats:
    """Return the seconds from ``begin`` to the start of ops in which the main lane of their rank does nothing.

    All seconds of ops on a main lane.
    """
    idle = np.maximum(0.0, times.start[late] - begin)
    on_main = np.array([name == MAIN for name in ops.lane_name])
    there = np.flatnonzero(~on_main[ops.lane[late]])
    if not len(there):
        return idle
    main_of = dict(zip(ops.lane_rank[on_main].tolist(), np.flatnonzero(on_main).tolist(), strict=True))
    rank = ops.lane_rank[ops.lane[late[there]]]
    by_rank = there[np.argsort(rank, kind="stable")]
    for own in np.split(by_rank, begins(np.sort(rank))[1:]):
        lane = main_of.get(int(ops.lane_rank[ops.lane[late[own[0]]]]), -1)
        work = ops.lanes[lane]
        if lane >= 0 and len(work):
            done = np.concatenate([[0.0], np.cumsum(times.end[work] - times.start[work])])
            edges = np.stack([times.start[work], times.end[work]], axis=1).ravel()
            seconds = np.stack([done[:-1], done[1:]], axis=1).ravel()
            until = times.start[late[own]]
            busy = np.interp(until, edges, seconds) - np.interp(begin[own], edges, seconds)
            idle[own] = np.maximum(0.0, until - begin[own] - busy)
    return idle


Unit = Literal["rank", "worker", "machine", "stage"]

READABLE = 256
"""Rows up to which a matrix is drawn rank by rank, or worker by worker."""


@dataclass(frozen=True)
class WaitMatrix:
    """``seconds[waiting, culprit]`` that a rank of a unit waits per step, mean over the unit's ranks.

    ``unit`` is what rows and columns are and ``names`` what they are called.
    """

    unit: Unit
    names: tuple[str, ...]
    seconds: Floats

    @property
    def waited(self) -> Floats:
        """Seconds of each row."""
        return np.asarray(self.seconds.sum(axis=1))

    @property
    def awaited(self) -> Floats:
        """Seconds of each column: what a rank of every unit waits for it, in all."""
        return np.asarray(self.seconds.sum(axis=0))


def wait_matrix(
    waits: Sequence[Wait],
    plan: Plan,
    *,
    class_of: Sequence[int],
    host_of: Sequence[int],
    steps: int = 1,
    unit: Unit | None = None,
) -> WaitMatrix:
    """The matrix of a job's waits; the finest readable unit if none is given.

    ``class_of[rank]`` is equal for ranks that one rank was played for; ``host_of[rank]`` is the rank's machine.
    """
    chosen = unit or _readable(plan, host_of)
    numbers, names = _units(plan, host_of, chosen)
    seconds = np.zeros((len(names), len(names)))
    for rank, culprit, length in _of_all(waits, plan, class_of):
        np.add.at(seconds, (numbers[rank], numbers[culprit]), length)
    size = np.bincount(numbers, minlength=len(names))
    return WaitMatrix(chosen, names, seconds / size[:, None] / steps)


def _readable(plan: Plan, host_of: Sequence[int]) -> Unit:
    if plan.num_ranks <= READABLE:
        return "rank"
    if plan.dp * plan.pp <= READABLE:
        return "worker"
    return "machine" if len(dict.fromkeys(host_of)) <= READABLE else "stage"


def _units(plan: Plan, host_of: Sequence[int], unit: Unit) -> tuple[Ints, tuple[str, ...]]:
    """The unit of every rank, and the units' names."""
    if unit == "rank":
        return np.arange(plan.num_ranks), tuple(str(rank) for rank in range(plan.num_ranks))
    stages = plan.stages()
    if unit == "stage":
        return stages, tuple(str(stage) for stage in range(plan.pp))
    if unit == "machine":
        hosts = list(dict.fromkeys(host_of[: plan.num_ranks]))
        place = {host: number for number, host in enumerate(hosts)}
        return np.array([place[host] for host in host_of[: plan.num_ranks]]), tuple(str(host) for host in hosts)
    if unit != "worker":
        assert_never(unit)
    replica = np.empty(plan.num_ranks, dtype=np.int64)
    for dp in range(plan.dp):
        replica[plan.grid[:, dp].ravel()] = dp
    names = tuple(f"{dp},{stage}" for stage in range(plan.pp) for dp in range(plan.dp))
    return stages * plan.dp + replica, names


def _of_all(waits: Sequence[Wait], plan: Plan, class_of: Sequence[int]) -> list[tuple[Ints, Ints, float]]:
    """(ranks, the culprit of each, seconds) for all ranks of the job."""
    members: dict[int, list[int]] = {}
    for rank in range(plan.num_ranks):
        members.setdefault(class_of[rank], []).append(rank)
    places = np.empty((plan.num_ranks, 4), dtype=np.int64)
    for place, number in np.ndenumerate(plan.grid):
        places[number] = place
    known: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    found = []
    for wait in waits:
        pair = class_of[wait.rank], class_of[wait.culprit]
        if pair not in known:
            known[pair] = _nearest(members, places, *pair)
        found.append((*known[pair], wait.seconds))
    return found


def _nearest(members: Mapping[int, Sequence[int]], places: Ints, waiting: int, culprit: int) -> tuple[Ints, Ints]:
    """For every rank of a class the other class's rank that has most places on axes in common with it, not itself."""
    ranks, others = np.array(members[waiting]), np.array(members[culprit])
    common = (places[ranks][:, None, :] == places[others][None, :, :]).sum(axis=2)
    common[ranks[:, None] == others[None, :]] = -1
    return ranks, others[common.argmax(axis=1)]
