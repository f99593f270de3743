"""The rank grid: which rank does which part of the model, and who talks to whom.  Pure.

``order`` lists the axes from fastest to slowest: [tp, cp, dp, pp] puts tensor-parallel neighbours on consecutive ranks
(Megatron's default).  Rank r runs on GPU number r of the cluster, so consecutive ranks share a machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from simcluster.base.errors import InputError

AXES = ("tp", "cp", "dp", "pp")
Ranks = npt.NDArray[np.int64]

# Communicators that span more than one axis: the model's (gradient norm) and the tied embedding's (first, last stage).
_SPANS: dict[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("dp", "cp"),  # gradients are summed over every rank that holds the same weights
    "pp": ("pp",),
    "model": ("tp", "pp"),
    "world": ("tp", "cp", "dp", "pp"),
    "outer": ("worker",),
}
SHARDING = ("shard", "shard_reduce", "replica")
"""Communicators inside a dp group: ranks that share the parameters between them (a second one, of the same ranks, for
gradients that travel beside parameters), and ranks that have the same shard."""
EXPERT_SHARDING = ("edp_shard", "edp_reduce", "edp_replica")
"""The same inside a group of ranks that hold the same experts ("edp")."""
EXPERTS_APART = ("edp", *EXPERT_SHARDING)
"""Communicators of ranks that hold the same experts."""


class RankLayout(Protocol):
    """What lowering needs of a plan, or of several side by side."""

    @property
    def num_ranks(self) -> int: ...
    def stage_ranks(self) -> list[Ranks]: ...
    def groups(self, axis: str) -> Iterable[Ranks]: ...


@dataclass(frozen=True)
class Plan:
    """Sizes of the axes and the grid of ranks, shape (pp, dp, cp, tp) whatever the order.

    ``shard`` is how many of the ranks that hold the same parameters share them where those are sharded (0: all of
    them); consecutive ones do.  ``copies``, where the model is held more than once, lists the stages that hold the same
    parts of it, each stage once: their ranks are replicas, too.

    The ranks of a stage, tp x cp x dp for all else, are etp x ep x edp for the experts of a mixture ("parallel
    folding", arXiv:2504.14960; Megatron-Core's ``expert_decoder_rank_generator``): ``etp`` consecutive ones (0: as many
    as tp) split each expert, ``ep`` such groups share the experts, and the same ranks of the next ep groups hold the
    same ones.  ``workers`` that train apart are as many parts of dp: "dp" and "world" are those of one, and "outer" the
    ranks with one place in all.  Raises InputError for a size below 1, or a shard, or expert ranks, that do not divide
    these ranks, and for workers that do not divide dp, or have experts apart or a model held twice.
    """

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    order: tuple[str, ...] = AXES
    shard: int = 0
    copies: tuple[tuple[int, ...], ...] = ()
    ep: int = 1
    etp: int = 0
    workers: int = 1
    grid: Ranks = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        sizes = {axis: getattr(self, axis) for axis in AXES}
        for axis, size in sizes.items():
            if size < 1:
                raise InputError(f"{axis} {size} must be at least 1, the size of an axis that is not there")
        if self.workers < 1 or self.dp % self.workers or (self.workers > 1 and (self.copies or self.experts_apart)):
            raise InputError(
                f"{self.workers} workers that train apart do not divide dp {self.dp}, or what it holds; "
                "use a number that divides both"
            )
        if self.shard < 0 or (self.dp * self.cp) % (self.shard or 1):
            raise InputError(
                f"{self.shard} ranks to a shard group do not divide dp {self.dp} x cp {self.cp}; use a number that does"
            )
        if self.ep < 1 or self.etp < 0 or (self.tp * self.cp * self.dp) % (self.ep * self.expert_tp):
            raise InputError(
                f"ep {self.ep} x etp {self.expert_tp} ranks do not divide the tp {self.tp} x cp {self.cp} x dp "
                f"{self.dp} ranks of a stage; use an ep and etp that do"
            )
        if self.shard and self.experts_apart and (self.shard * self.tp) % (self.ep * self.expert_tp):
            raise InputError(
                f"ep {self.ep} x etp {self.expert_tp} ranks do not divide the {self.shard} ranks of a shard group x tp "
                f"{self.tp}; use an ep and etp that do, or larger shard groups"
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
        """GPUs of the job."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters, of one worker."""
        return self.dp * self.cp * (len(self.copies[0]) if self.copies else 1) // self.workers

    @property
    def expert_tp(self) -> int:
        """Ranks that an expert is split over."""
        return self.etp or self.tp

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same part of the same experts."""
        return self.replicas * self.tp // (self.ep * self.expert_tp)

    @property
    def expert_shard_size(self) -> int:
        """Of these the ranks that share experts between them where parameters are sharded: those of a shard group."""
        return self.shard * self.tp // (self.ep * self.expert_tp) if self.shard else self.expert_replicas

    @property
    def experts_apart(self) -> bool:
        """Do other ranks hold a rank's experts than hold the rest of what it has?"""
        return self.ep > 1 or self.expert_tp != self.tp

    @property
    def shard_size(self) -> int:
        """Ranks that share parameters between them where those are sharded."""
        return self.shard or self.replicas

    def stages(self) -> Ranks:
        """Stage (pipeline rank) of every rank, shape (ranks,)."""
        stage = np.empty(self.num_ranks, dtype=np.int64)
        for index in range(self.pp):
            stage[self.grid[index].ravel()] = index
        return stage

    def stage_ranks(self) -> list[Ranks]:
        """The ranks of every stage; the same place in two of them is the same place on dp, cp and tp."""
        return [self.grid[stage].ravel() for stage in range(self.pp)]

    def groups(self, axis: str) -> Ranks:
        """All groups of a communicator, shape (groups, size), each in the axis's order, sorted by their first rank."""
        names = ("worker", "pp", "dp", "cp", "tp")
        if axis == "embedding":
            return self._in_order(np.stack([self.grid[0].ravel(), self.grid[-1].ravel()], axis=1))
        if axis in SHARDING:
            shards = self.groups("dp").reshape(-1, self.replicas // self.shard_size, self.shard_size)
            if axis == "replica":
                shards = np.transpose(shards, (0, 2, 1))
            return self._in_order(shards.reshape(-1, shards.shape[-1]))
        if axis in EXPERT_SHARDING:
            size = self.expert_shard_size
            shards = self.groups("edp").reshape(-1, self.expert_replicas // size, size)
            if axis == "edp_replica":
                shards = np.transpose(shards, (0, 2, 1))
            return self._in_order(shards.reshape(-1, shards.shape[-1]))
        if axis in ("etp", "ep", "edp"):
            return self._in_order(self._expert_groups(axis))
        if axis == "dp" and self.copies:
            together = [np.moveaxis(self.grid[list(stages)], -1, 0).reshape(self.tp, -1) for stages in self.copies]
            return self._in_order(np.sort(np.concatenate(together), axis=1))
        inside = [names.index(name) for name in names if name in _SPANS[axis]]
        outside = [index for index in range(5) if index not in inside]
        parts = self.grid.reshape(self.pp, self.workers, self.dp // self.workers, self.cp, self.tp)
        grid = np.moveaxis(parts, 1, 0)
        size = int(np.prod([grid.shape[index] for index in inside]))
        groups = np.transpose(grid, outside + inside).reshape(-1, size)
        if len(inside) > 1 and (groups[:, 1:] < groups[:, :-1]).any():
            groups = np.sort(groups, axis=1)  # rings follow the machines, so ranks in placement order
        return self._in_order(groups)

    def _expert_groups(self, axis: str) -> Ranks:
        """Of ranks that split an expert ("etp"), share experts ("ep") or hold the same ("edp"), by place in a stage: tp
        fastest, then cp, dp."""
        stages = self.grid.reshape(self.pp, -1, self.ep, self.expert_tp)
        if axis == "etp":
            return stages.reshape(-1, self.expert_tp)
        if axis == "ep":
            return np.moveaxis(stages, 2, -1).reshape(-1, self.ep)
        together = stages[np.array(self.copies or [(stage,) for stage in range(self.pp)])]  # copy, of it stage, ...
        groups = np.moveaxis(together, (1, 2), (-2, -1)).reshape(-1, self.expert_replicas)
        return np.sort(groups, axis=1)

    def peers(self, stage: int, to_stage: int) -> tuple[Ranks, Ranks]:
        """Ranks of a stage, and the ranks of another stage with the same dp, cp and tp place, in the same order."""
        return self.grid[stage].ravel(), self.grid[to_stage].ravel()

    def coordinates(self, rank: int) -> dict[str, int]:
        """The rank's place on every axis."""
        place = np.argwhere(self.grid == rank)[0]
        return dict(zip(("pp", "dp", "cp", "tp"), (int(index) for index in place), strict=True))

    @staticmethod
    def _in_order(groups: Ranks) -> Ranks:
        first = groups[:, 0]
        return groups if (first[1:] > first[:-1]).all() else groups[np.argsort(first, kind="stable")]
