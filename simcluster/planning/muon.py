"""Muon optimizer: a nearly orthogonal update of each weight matrix, by Newton-Schulz matmuls in 16 bits.

An iteration on X, m x n with m the smaller, is A = X X^T, B = b A + c A A, X = a X + B X: 4 m^2 n + 2 m^3 FLOP. The
passes are those of PyTorch's operations in NVIDIA-NeMo/Emerging-Optimizers (orthogonalized_optimizer.py: weight decay,
momentum, update; muon_utils.py, ``newton_schulz_matmuls``: norm, division, cast there and back, scale), with those of
Megatron-LM's copy of the master weights. Muon: K. Jordan, 2024; arXiv:2502.16982.

Megatron-Core's layer-wise distributed optimizer (``dist_muon``, core/optimizer/layer_wise_optimizer.py) gives each
matrix to one of the ranks that hold it, the largest first to the one that has least; the fullest rank decides. In
Moonlight's (arXiv:2502.16982 section 2.3) a rank has its part of every bucket, as ZeRO cuts them; it gathers the
matrices that its parts lie in, orthogonalizes them whole and keeps its parts.

Where ZeRO 3 shards every matrix over all ranks (FSDP2), "gather" lets each of them orthogonalize all matrices. With
"all_to_all" (microsoft/dion, ``muon_update_batch_async``) one all-to-all brings the momentum's shards of as many
matrices as ranks to their owners, each of which orthogonalizes one, and another brings the updates back. Pure.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal, Self, assert_never

from simcluster.documents.field_annotations import AllowedValues
from simcluster.model.kernels import Kernel
from simcluster.model.layer_kind import WeightMatrix
from simcluster.model.recipes import Recipe
from simcluster.planning.optimizer import Optimizer, UpdateContext, UpdateWork

Distribution = Literal["layers", "gather", "all_to_all", "none"]
_FP32, _BF16 = 4.0, 2.0


@dataclass(frozen=True)
class MuonOptimizer(Optimizer):
    """Muon optimizer for the matrices of layers (one moment per parameter), with Adam for all other parameters.

    ``distribute``: matrices are updated by the ranks that hold them as whole "layers", or gathered from parts
    ("gather"), or sent to an owner and back ("all_to_all"), or all by each rank ("none"). ``gathered_tp``: they are
    gathered over the ranks that split them, too.
    """

    MODELLED_WITH: ClassVar[Mapping[str, AllowedValues]] = {
        "training.precision": AllowedValues(
            ("bf16-mixed", "fp8-mixed", "mxfp8-mixed", "nvfp4-mixed", "fp32"),
            "muon with fp16 is not supported by Megatron-Core; use bf16-mixed, or training.optimizer: adam",
        ),
        "memory.offload.optimizer": AllowedValues(("none",)),
        "training.outer": AllowedValues((None,)),
        "training.trainable": AllowedValues((None,)),
    }

    distribute: Distribution = "layers"
    gathered_tp: bool = False
    iterations: int = 5

    @classmethod
    def from_training_section(cls, job: UpdateContext, training: Any) -> Self:
        muon = training.muon
        gathered_tp = {"blockwise": False, "duplicated": True}[muon.tp_mode]
        default: Distribution = "all_to_all" if job.zero > 1 else "layers" if job.zero else "none"
        return cls(job, (muon.distribute if job.zero else None) or default, gathered_tp, muon.iterations)

    @classmethod
    def describe_state_difference(cls, recipe: Recipe) -> str:
        return f"; matrices under Muon {recipe.moment_bytes:g} less"

    def saved_bytes_of_matrix(self, matrix: WeightMatrix) -> float:
        """Return the bytes of Adam's second moment of a matrix, which Muon does not store."""
        return self.job.recipe.moment_bytes * matrix.elements

    def update_work(self, layers: Sequence[int]) -> UpdateWork:
        """Return the gathers and the time (s) that Muon's update takes beyond Adam's, on the fullest rank."""
        seconds, calls, exchanges = 0.0, list[tuple[str, float]](), list[tuple[str, float]]()
        orthogonalized = cache(self._orthogonalization_seconds)
        for mine in self.held_matrices(layers):
            ranks, split, axis, over = self._replica_and_split_groups(mine)
            own, whole = self._matrices_of_fullest_rank(mine, ranks), float(_count_elements(mine))
            counted = whole / (1 if self.distribute == "none" else ranks)
            if self.distribute in ("gather", "all_to_all") and ranks > 1:
                if self.distribute == "gather":
                    calls.append((over, _BF16 * whole))
                else:
                    exchanges.append((over, 2 * _BF16 * whole / ranks))  # there and back
                seconds += self._elementwise_seconds(counted)
            else:
                seconds += sum(each.count * self._elementwise_seconds(float(each.elements)) for each in own)
            if self.gathered_tp and split > 1:
                size = _FP32 * split * _count_elements(each for each in own if each.split != "none")
                calls += [(axis, size)] if size else []
                own = [each.gather_whole(split) for each in own]
            seconds += sum(each.count * orthogonalized(each.rows, each.columns) for each in own)
            seconds -= self.job.adam_seconds(counted)
        seconds = max(0.0, seconds)
        return UpdateWork(seconds, "orthogonalize", tuple(calls), "all_gather", "momentum", tuple(exchanges))

    def saved_state_bytes(self, layers: Sequence[int]) -> float:
        """Return the bytes of optimizer state that Muon saves on the fullest rank, minus that rank's excess share."""
        found, moment = 0.0, self.job.recipe.moment_bytes
        for mine in self.held_matrices(layers):
            ranks = self._replica_and_split_groups(mine)[0]
            even = _count_elements(mine) / (1 if self.distribute == "none" else ranks)
            kept = _count_elements(self._matrices_of_fullest_rank(mine, ranks)) if self.distribute == "layers" else even
            found += even * moment - (kept - even) * (moment + _FP32)
        return found

    def _orthogonalization_seconds(self, rows: int, columns: int) -> float:
        passes = (_FP32, 2 * _FP32, _FP32 + _BF16, _BF16 + _FP32, 2 * _FP32)  # norm, division, cast, cast back, scale
        around = math.fsum(self.job.pass_seconds(float(rows * columns) * size) for size in passes)
        return self.job.matmul_seconds(newton_schulz_matmuls(rows, columns, self.iterations)) + around

    def _elementwise_seconds(self, elements: float) -> float:
        recipe = self.job.recipe
        weight = _FP32 if recipe.master else recipe.weight
        passes = [2 * weight, 2 * recipe.moment_bytes + recipe.gradient, 2 * weight + _FP32]
        passes += [weight + recipe.weight] if recipe.master else []
        return math.fsum(self.job.pass_seconds(elements * size) for size in passes)

    def _replica_and_split_groups(self, mine: Sequence[WeightMatrix]) -> tuple[int, int, str, str]:
        """Return the numbers of replicas and of splits of these matrices, then the split axis and the replica axis."""
        plan, sharded = self.job.plan, self.job.zero == 3
        if mine[0].experts and plan.has_separate_expert_groups:
            axis = "tp" if plan.expert_tp == plan.tp else "etp"
            ranks = plan.expert_shard_size if sharded else plan.expert_replicas
            return ranks, plan.expert_tp, axis, "edp_shard" if sharded else "edp"
        return plan.shard_size if sharded else plan.replicas, plan.tp, "tp", "shard" if sharded else "dp"

    def _matrices_of_fullest_rank(self, held: Sequence[WeightMatrix], ranks: int) -> list[WeightMatrix]:
        if self.distribute == "none" or ranks == 1 or (self.distribute == "gather" and self.job.zero == 3):
            return list(held)
        match self.distribute:
            case "layers" | "all_to_all":
                given = _assign_whole_matrices(held, ranks)
            case "gather":
                given = _assign_by_buckets(held, ranks, self.job.bucket_elements)
            case _:
                assert_never(self.distribute)
        fullest = max(given, key=lambda own: sum(each.elements * many for each, many in own.items()))
        return [replace(each, count=many) for each, many in fullest.items()]


def newton_schulz_matmuls(rows: int, columns: int, iterations: int) -> tuple[Kernel, ...]:
    """Return the matmuls of the Newton-Schulz iterations, which make a matrix nearly orthogonal."""
    m, n = min(rows, columns), max(rows, columns)

    def matmul(name: str, columns: int, depth: int, *, added: bool) -> Kernel:
        elements = m * depth + depth * columns + m * columns * (2 if added else 1)
        return Kernel(name, "matmul", 2.0 * m * columns * depth, _BF16 * elements, m, columns, depth)

    once = (
        matmul("gram", m, n, added=False),
        matmul("polynomial", m, m, added=True),
        matmul("update", n, m, added=True),
    )
    return once * iterations


def _count_elements(matrices: Iterable[WeightMatrix]) -> int:
    return sum(each.elements * each.count for each in matrices)


def _assign_whole_matrices(held: Sequence[WeightMatrix], ranks: int) -> list[Counter[WeightMatrix]]:
    loads = [(0, rank) for rank in range(ranks)]
    given: list[Counter[WeightMatrix]] = [Counter() for _ in range(ranks)]
    for each in sorted(held, key=lambda each: -each.elements):
        for _ in range(each.count):
            load, rank = heapq.heappop(loads)
            given[rank][replace(each, count=1)] += 1
            heapq.heappush(loads, (load + each.elements, rank))
    return given


def _assign_by_buckets(held: Sequence[WeightMatrix], ranks: int, bucket: float) -> list[Counter[WeightMatrix]]:
    given: list[Counter[WeightMatrix]] = [Counter() for _ in range(ranks)]
    inside: list[WeightMatrix] = []
    size = 0
    singles = [replace(each, count=1) for each in held for _ in range(each.count)]
    for place, each in enumerate(singles):
        inside.append(each)
        size += each.elements
        if size >= bucket or place == len(singles) - 1:
            begin = 0
            for one in inside:
                end = begin + one.elements
                for rank in range(begin * ranks // size, -(-end * ranks // size)):
                    given[rank][one] += 1
                begin = end
            inside, size = [], 0
    return given
