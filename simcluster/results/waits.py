"""Waiting of ranks for other ranks: for the last member of a collective, or for a pipeline message.

A rank that was not simulated waits for the counterpart of whom its representative waits for: the rank of that class
that shares most axes with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, assert_never

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.reference.step_record import RankRecord
from simcluster.results.rank_waits import RankWaits


@dataclass(frozen=True, slots=True)
class Wait:
    """How long (s) one rank waits for another: in a collective ("group"), or for a message ("pipeline")."""

    rank: int
    culprit: int
    where: str
    seconds: float


def list_waits(ranks: Iterable[RankRecord]) -> list[Wait]:
    """Return how long ranks wait for other ranks, longest wait first.

    An op outside the main lane (a gradient bucket that waits for the other replicas) counts only while the main lane is
    idle. The wait for a message lasts from the end of the op before its receiver until its send begins. Of sends and
    receives that meet and wait for the same rank at the same time, only one counts.
    """
    waits_of = cache(RankWaits)
    found = []
    for each in ranks:
        for culprit, in_pair, seconds in waits_of(each.ops).measure(*each.times):
            if seconds:
                found.append(Wait(each.rank, culprit, "pipeline" if in_pair else "group", seconds))
    return sorted(found, key=lambda wait: (-wait.seconds, wait.rank, wait.culprit, wait.where))


WaitUnit = Literal["rank", "worker", "machine", "stage"]

MAX_READABLE = 256
"""Maximum number of rows of a matrix; a larger job gets rows for workers, nodes or stages."""


@dataclass(frozen=True)
class WaitMatrix:
    """Matrix ``seconds[waiting, culprit]``: how long ranks, or groups of ranks, wait for each other per step.

    Rows and columns are units (ranks, workers, machines or stages) with these ``names``; a row is its ranks' mean.
    """

    unit: WaitUnit
    names: tuple[str, ...]
    seconds: Floats

    @property
    def waited_seconds(self) -> Floats:
        """Seconds that each rank (or group of ranks) waits for all others."""
        return np.asarray(self.seconds.sum(axis=1))

    @property
    def awaited_seconds(self) -> Floats:
        """Seconds that all others wait for each rank (or group of ranks)."""
        return np.asarray(self.seconds.sum(axis=0))


def wait_matrix(
    waits: Sequence[Wait],
    plan: ParallelPlan,
    *,
    class_of: Sequence[int],
    host_of: Sequence[int],
    steps: int = 1,
    unit: WaitUnit | None = None,
) -> WaitMatrix:
    """Return how long a job's ranks wait for each other as a matrix; in large jobs, workers, nodes or stages.

    ``class_of[rank]`` is equal for ranks with one representative; ``host_of[rank]`` is the rank's node.
    """
    chosen = unit or _finest_readable_unit(plan, host_of)
    numbers, names = _unit_of_each_rank(plan, host_of, chosen)
    seconds = np.zeros((len(names), len(names)))
    for rank, culprit, length in _expand_to_all_ranks(waits, plan, class_of):
        np.add.at(seconds, (numbers[rank], numbers[culprit]), length)
    size = np.bincount(numbers, minlength=len(names))
    return WaitMatrix(chosen, names, seconds / size[:, None] / steps)


def _finest_readable_unit(plan: ParallelPlan, host_of: Sequence[int]) -> WaitUnit:
    if plan.num_ranks <= MAX_READABLE:
        return "rank"
    if plan.dp * plan.pp <= MAX_READABLE:
        return "worker"
    return "machine" if len(dict.fromkeys(host_of)) <= MAX_READABLE else "stage"


def _unit_of_each_rank(plan: ParallelPlan, host_of: Sequence[int], unit: WaitUnit) -> tuple[Ints, tuple[str, ...]]:
    if unit == "rank":
        return np.arange(plan.num_ranks), tuple(str(rank) for rank in range(plan.num_ranks))
    stages = plan.stage_of_every_rank()
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


def _expand_to_all_ranks(
    waits: Sequence[Wait], plan: ParallelPlan, class_of: Sequence[int]
) -> Iterator[tuple[Ints, Ints, float]]:
    members: dict[int, list[int]] = {}
    for rank in range(plan.num_ranks):
        members.setdefault(class_of[rank], []).append(rank)
    places = np.empty((plan.num_ranks, plan.grid.ndim), dtype=np.int64)
    places[plan.grid.ravel()] = np.indices(plan.grid.shape).reshape(plan.grid.ndim, -1).T
    known: dict[tuple[int, int], tuple[Ints, Ints]] = {}
    for wait in waits:
        pair = class_of[wait.rank], class_of[wait.culprit]
        if pair not in known:
            known[pair] = _match_nearest_ranks(members, places, *pair)
        yield (*known[pair], wait.seconds)


def _match_nearest_ranks(members: dict[int, list[int]], places: Ints, waiting: int, culprit: int) -> tuple[Ints, Ints]:
    ranks, others = np.array(members[waiting]), np.array(members[culprit])
    common = (places[ranks][:, None, :] == places[others][None, :, :]).sum(axis=2)
    common[ranks[:, None] == others[None, :]] = -1
    return ranks, others[common.argmax(axis=1)]
