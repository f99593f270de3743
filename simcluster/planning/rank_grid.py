"""Rank grid: coordinates of each rank on the parallelism axes, and communicators. No side effects.

``order`` lists the axes from fastest to slowest: [tp, cp, dp, pp] puts tensor-parallel neighbours on consecutive ranks
(Megatron's default). Rank r runs on GPU number r of the cluster, so consecutive ranks share a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean

AXES = ("tp", "cp", "dp", "pp")
Ranks = npt.NDArray[np.int64]

STREAMS = ("tp", "cp", "ep", "pp", "dp")
"""Streams of communication in a timeline, each with an entry of the breakdown for its exposed time.  When several are
in flight and nothing computes, the first of these counts: collectives in a layer block the rank, a stage boundary is
next, and the reduction of gradients is waited for last."""


class RankLayout(Protocol):
    """Interface of the ranks, stages and groups of one job, or of several jobs combined."""

    @property
    def num_ranks(self) -> int: ...
    def stage_ranks(self) -> list[Ranks]: ...
    def groups(self, axis: str) -> Iterable[Ranks]: ...


@dataclass(frozen=True)
class ParallelPlan:
    """Sizes of the parallelism axes, and the rank number at every coordinate [pp, dp, cp, tp].

    ``shard`` is how many of the ranks that hold the same parameters share them where those are sharded (0: all of
    them); consecutive ones do. ``regather`` consecutive ones of those keep parameters between forward and backward (0:
    all of a shard group do). ``copies``, where the model is held more than once, lists the stages that hold the same
    parts of it, each stage once: their ranks are replicas, too.

    The ranks of a stage, tp x cp x dp for all else, are etp x ep x edp for the experts of a mixture ("parallel
    folding", arXiv:2504.14960; Megatron-Core's ``expert_decoder_rank_generator``): ``etp`` consecutive ones (0: as many
    as tp) split each expert, ``ep`` such groups share the experts, and the same ranks of the next ep groups hold the
    same ones. ``workers`` that train apart are as many parts of dp: "dp" and "world" are those of one, and "outer" the
    ranks with one place in all. Raises InputError for a size below 1, or a shard, or expert ranks, that do not divide
    these ranks, and for workers that do not divide dp, or have experts apart or a model held twice.
    ``embedding_stages`` have copies of the token table, whose gradients are summed (): the first and the last.
    ``cp_inner`` consecutive ranks of a context-parallel group trade heads.
    """

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    order: tuple[str, ...] = AXES
    shard: int = 0
    regather: int = 0
    copies: tuple[tuple[int, ...], ...] = ()
    ep: int = 1
    etp: int = 0
    workers: int = 1
    embedding_stages: tuple[int, ...] = ()
    cp_inner: int = 1
    grid: Ranks = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        sizes = {axis: getattr(self, axis) for axis in AXES}
        for axis, size in sizes.items():
            if size < 1:
                raise InputError(f"{axis} must be at least 1, the size of an unused axis; got {size}")
        workers = self.workers
        if workers < 1 or self.dp % workers or (workers > 1 and (self.copies or self.has_separate_expert_groups)):
            raise InputError(
                f"workers (DiLoCo) must divide dp {self.dp}, without stage copies or separate expert groups; "
                f"got {workers}: use a divisor of dp, or 1"
            )
        if self.shard < 0 or (self.dp * self.cp) % (self.shard or 1):
            raise InputError(
                f"shard group size {self.shard} must divide dp x cp = {self.dp} x {self.cp}; use a divisor"
            )
        if self.ep < 1 or self.etp < 0 or (self.tp * self.cp * self.dp) % (self.ep * self.expert_tp):
            raise InputError(
                f"ep x etp = {self.ep} x {self.expert_tp} must divide {self.tp * self.cp * self.dp}, the ranks of a "
                f"stage (tp {self.tp} x cp {self.cp} x dp {self.dp}); use an ep and etp that do"
            )
        if self.shard and self.has_separate_expert_groups and (self.shard * self.tp) % (self.ep * self.expert_tp):
            raise InputError(
                f"ep x etp = {self.ep} x {self.expert_tp} must divide {self.shard * self.tp}, the ranks of a shard "
                f"group x tp ({self.shard} x {self.tp}); use a smaller ep or etp, or larger shard groups"
            )
        assert not self.copies or sorted(sum(self.copies, ())) == list(range(self.pp)), self.copies
        assert len({len(stages) for stages in self.copies}) <= 1, self.copies
        assert sorted(self.order) == sorted(AXES), self.order
        slowest_first = list(reversed(self.order))
        ranks = np.arange(self.num_ranks, dtype=np.int64).reshape([sizes[axis] for axis in slowest_first])
        grid = np.transpose(ranks, [slowest_first.index(axis) for axis in ("pp", "dp", "cp", "tp")])
        object.__setattr__(self, "grid", grid)

    @property
    def num_ranks(self) -> int:
        """Number of ranks (GPUs) of the job."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def replicas(self) -> int:
        """Number of ranks that hold the same parameters, within one DiLoCo worker."""
        return self.dp * self.cp * (len(self.copies[0]) if self.copies else 1) // self.workers

    @property
    def expert_tp(self) -> int:
        """Number of ranks over which each expert is split."""
        return self.etp or self.tp

    @property
    def expert_replicas(self) -> int:
        """Number of ranks that hold the same shard of the same experts."""
        return self.replicas * self.tp // (self.ep * self.expert_tp)

    @property
    def expert_shard_size(self) -> int:
        """Number of ranks over which ZeRO shards expert parameters."""
        return self.shard * self.tp // (self.ep * self.expert_tp) if self.shard else self.expert_replicas

    @property
    def has_separate_expert_groups(self) -> bool:
        """Whether expert parameters are replicated over other groups of ranks than all other parameters."""
        return self.ep > 1 or self.expert_tp != self.tp

    @property
    def shard_size(self) -> int:
        """Number of ranks over which ZeRO shards parameters other than experts."""
        return self.shard or self.replicas

    def stage_of_every_rank(self) -> Ranks:
        """Return the pipeline stage of every rank, as an array by rank."""
        stage = np.empty(self.num_ranks, dtype=np.int64)
        for index in range(self.pp):
            stage[self.grid[index].ravel()] = index
        return stage

    def stage_ranks(self) -> list[Ranks]:
        """Return the ranks of every stage; ranks at equal positions have equal dp, cp and tp coordinates."""
        return [self.grid[stage].ravel() for stage in range(self.pp)]

    def list_workers(self) -> list[tuple[int, int]]:
        """Return the data-parallel rank and pipeline stage of every rank."""
        found = [(0, 0)] * self.num_ranks
        for (stage, dp, _, _), rank in np.ndenumerate(self.grid):
            found[int(rank)] = dp, stage
        return found

    def groups(self, axis: str) -> Ranks:
        """Return the rank groups of communicator ``axis``, one group per row, sorted by first rank."""
        groups = get_communicator(axis).groups(self)
        first = groups[:, 0]
        return groups if (first[1:] > first[:-1]).all() else groups[np.argsort(first, kind="stable")]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return a rank's coordinate on every axis."""
        place = np.argwhere(self.grid == rank)[0]
        return dict(zip(("pp", "dp", "cp", "tp"), (int(index) for index in place), strict=True))


# --- communicators ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Communicator:
    """Type of communicator: its groups of ranks, and the stream on which its ops run.

    The stream is also where their exposed time is booked; ``between_stages``: on "pp" in a job with several stages.
    ``groups`` of a plan have shape (groups, size), each in the order in which its ranks communicate.
    """

    stream: str
    groups: Callable[[ParallelPlan], Ranks]
    between_stages: bool = False

    def __post_init__(self) -> None:
        if self.stream not in STREAMS:
            raise InputError(
                f"stream {self.stream!r} of a communicator is not a timeline stream, so exposed time would not be "
                f"counted; use one of {', '.join(STREAMS)}"
            )

    def stream_name(self, *, pipelined: bool) -> str:
        """Return the stream of the communicator's ops; ``pipelined`` is true if the job has several stages."""
        return "pp" if self.between_stages and pipelined else self.stream


def get_communicator(axis: str) -> Communicator:
    """Return the communicator with a name such as "tp"; raise InputError for an unknown name."""
    if axis in COMMUNICATORS:
        return COMMUNICATORS[axis]
    raise InputError(f"unknown communicator {axis!r}{did_you_mean(axis, COMMUNICATORS)}; known: {[*COMMUNICATORS]}")


def make_group_function(*axes: str) -> Callable[[ParallelPlan], Ranks]:
    """Return a function that computes a plan's rank groups over these axes (any of worker, pp, dp, cp, tp)."""
    names = ("worker", "pp", "dp", "cp", "tp")
    inside = [names.index(name) for name in names if name in axes]
    outside = [index for index in range(5) if index not in inside]

    def groups(plan: ParallelPlan) -> Ranks:
        parts = plan.grid.reshape(plan.pp, plan.workers, plan.dp // plan.workers, plan.cp, plan.tp)
        grid = np.moveaxis(parts, 1, 0)
        found = np.transpose(grid, outside + inside).reshape(-1, math.prod(grid.shape[index] for index in inside))
        if len(inside) > 1 and (found[:, 1:] < found[:, :-1]).any():
            found = np.sort(found, axis=1)  # rings follow the machines, so ranks in placement order
        return found

    return groups


def _outer_context_groups(plan: ParallelPlan) -> Ranks:
    size = plan.cp // plan.cp_inner
    return np.moveaxis(plan.groups("cp").reshape(-1, size, plan.cp_inner), 1, 2).reshape(-1, size)


def _replica_groups(plan: ParallelPlan) -> Ranks:
    if not plan.copies:
        return make_group_function("dp", "cp")(plan)
    together = [np.moveaxis(plan.grid[list(stages)], -1, 0).reshape(plan.tp, -1) for stages in plan.copies]
    return np.sort(np.concatenate(together), axis=1)


def _expert_grid(plan: ParallelPlan) -> Ranks:
    return plan.grid.reshape(plan.pp, -1, plan.ep, plan.expert_tp)


def _expert_replica_groups(plan: ParallelPlan) -> Ranks:
    stages = np.array(plan.copies or [(stage,) for stage in range(plan.pp)])
    together = _expert_grid(plan)[stages]  # copy, of it stage, ...
    return np.sort(np.moveaxis(together, (1, 2), (-2, -1)).reshape(-1, plan.expert_replicas), axis=1)


def _subgroup_splitter(axis: str, *, replicas: bool = False) -> Callable[[ParallelPlan], Ranks]:
    """Return a function that splits each group of an axis into shard groups, which together hold one full copy.

    ``replicas``: into ranks that hold the same shard instead.
    """

    def groups(plan: ParallelPlan) -> Ranks:
        size = plan.expert_shard_size if axis == "edp" else plan.shard_size
        size = plan.regather or size if axis == "shard" else size
        shards = plan.groups(axis)
        shards = shards.reshape(-1, shards.shape[1] // size, size)
        shards = np.transpose(shards, (0, 2, 1)) if replicas else shards
        return shards.reshape(-1, shards.shape[-1])

    return groups


COMMUNICATORS: dict[str, Communicator] = {
    "tp": Communicator("tp", make_group_function("tp")),
    "cp": Communicator("cp", make_group_function("cp")),
    # inside a cp group: ranks that trade heads, and those between which keys and values pass then
    "cp_inner": Communicator("cp", lambda plan: plan.groups("cp").reshape(-1, plan.cp_inner)),
    "cp_outer": Communicator("cp", _outer_context_groups),
    "pp": Communicator("pp", make_group_function("pp")),
    "dp": Communicator("dp", _replica_groups),
    # inside a dp group: ranks that share parameters (twice: gradients travel beside them), that have the same shard
    "shard": Communicator("dp", _subgroup_splitter("dp")),
    "shard_reduce": Communicator("dp", _subgroup_splitter("dp")),
    "replica": Communicator("dp", _subgroup_splitter("dp", replicas=True)),
    "regather": Communicator("dp", _subgroup_splitter("shard")),
    # ranks that split an expert, that share experts, that hold the same ones; and inside the latter as above
    "etp": Communicator("tp", lambda plan: _expert_grid(plan).reshape(-1, plan.expert_tp)),
    "ep": Communicator("ep", lambda plan: np.moveaxis(_expert_grid(plan), 2, -1).reshape(-1, plan.ep)),
    "edp": Communicator("dp", _expert_replica_groups),
    "edp_shard": Communicator("dp", _subgroup_splitter("edp")),
    "edp_reduce": Communicator("dp", _subgroup_splitter("edp")),
    "edp_replica": Communicator("dp", _subgroup_splitter("edp", replicas=True)),
    # the gradient norm, the embedding that first and last stage have (or others), workers that train separately
    "model": Communicator("tp", make_group_function("tp", "pp"), between_stages=True),
    "world": Communicator("dp", make_group_function("tp", "cp", "dp", "pp"), between_stages=True),
    "embedding": Communicator(
        "tp",
        lambda plan: np.stack([plan.grid[stage].ravel() for stage in plan.embedding_stages or (0, -1)], axis=1),
        between_stages=True,
    ),
    "outer": Communicator("dp", make_group_function("worker")),
}
"""Every communicator by the name of its axis."""
