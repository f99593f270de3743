"""What of a stage's matrices a rank updates where an optimizer works on whole ones, and what is gathered for it.

Megatron-Core's layer-wise distributed optimizer (``dist_muon``, core/optimizer/layer_wise_optimizer.py) gives each
matrix to one of the ranks that hold it, the largest first to the one that has least; the fullest rank decides.  In
Moonlight's (arXiv:2502.16982 section 2.3) a rank has its part of every bucket, as ZeRO cuts them; it gathers the
matrices that its parts lie in, orthogonalizes them whole and keeps its parts.  Pure.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from simcluster.model.matrices import WeightMatrix, matrices_of
from simcluster.model.transformer import Model
from simcluster.planning.owned_parameters import OwnedParameters
from simcluster.planning.parallel import Plan

Calls = tuple[tuple[str, float], ...]
_FP32, _BF16 = 4.0, 2.0


@dataclass(frozen=True, slots=True)
class MatrixUpdate:
    """Seconds on the fullest rank of a stage besides an Adam of all it has, and all-gathers (axis, bytes) ahead."""

    seconds: float = 0.0
    gathers: Calls = ()


@dataclass(frozen=True, slots=True)
class MatrixOptimizer:
    """How matrices are updated: ``distribute`` over those that hold them as whole "layers" or gathered from parts
    ("gather") of buckets of so many elements (``bucket``), or not at all ("none").  ``gathered_tp``: gathered over the
    ranks that split them, too.

    ``orthogonalized`` gives the seconds of (rows, columns), ``passes`` and ``adam`` those over so many elements, by
    this optimizer and by the one that counted them before; ``moment`` are the bytes of the one that is not kept.
    """

    model: Model
    plan: Plan
    distribute: Literal["layers", "gather", "none"]
    gathered_tp: bool
    bucket: float
    moment: float
    orthogonalized: Callable[[int, int], float]
    passes: Callable[[float], float]
    adam: Callable[[float], float]

    def update(self, layers: Sequence[int]) -> MatrixUpdate:
        """Of a stage with these layers."""
        seconds, calls = 0.0, list[tuple[str, float]]()
        for mine in self._kinds(layers):
            ranks, split, axis, over = self._group(mine)
            own, whole = self._own(mine, ranks), float(_elements(mine))
            counted = whole / (1 if self.distribute == "none" else ranks)
            if self.distribute == "gather" and ranks > 1:
                calls.append((over, _BF16 * whole))
                seconds += self.passes(counted)
            else:
                seconds += sum(each.count * self.passes(float(each.elements)) for each in own)
            if self.gathered_tp and split > 1:
                size = _FP32 * split * _elements(each for each in own if each.split != "none")
                calls += [(axis, size)] if size else []
                own = [each.whole(split) for each in own]
            seconds += sum(each.count * self.orthogonalized(each.rows, each.columns) for each in own)
            seconds -= self.adam(counted)
        return MatrixUpdate(max(0.0, seconds), tuple(calls))

    def spared(self, layers: Sequence[int]) -> float:
        """Bytes of optimizer state that the fullest rank of a stage holds less than under Adam: of its matrices a
        moment, but for what whole ones are more than an even part."""
        found = 0.0
        for mine in self._kinds(layers):
            ranks = self._group(mine)[0]
            even = _elements(mine) / (1 if self.distribute == "none" else ranks)
            kept = _elements(self._own(mine, ranks)) if self.distribute == "layers" else even
            found += even * self.moment - (kept - even) * (self.moment + _FP32)
        return found

    def elements(self, layers: Sequence[int]) -> OwnedParameters:
        """Elements of all matrices that a rank holds of these layers."""
        found = OwnedParameters()
        for mine in self._kinds(layers):
            apart, size = mine[0].experts and self.plan.experts_apart, float(_elements(mine))
            found += OwnedParameters(0.0, size) if apart else OwnedParameters(size)
        return found

    def _kinds(self, layers: Sequence[int]) -> list[list[WeightMatrix]]:
        """Those of experts and all others, in order."""
        sizes = {"tp": self.plan.tp, "ep": self.plan.ep, "etp": self.plan.expert_tp}
        known = {self.model.has_experts(layer): layer for layer in layers}  # all of a kind are alike
        of_kind = {kind: matrices_of(self.model, layer, **sizes) for kind, layer in known.items()}
        held = [each for layer in layers for each in of_kind[self.model.has_experts(layer)]]
        kinds = ([each for each in held if each.experts == experts] for experts in (False, True))
        return [mine for mine in kinds if mine]

    def _group(self, mine: Sequence[WeightMatrix]) -> tuple[int, int, str, str]:
        """Ranks that hold the same, ranks that split one, and the axes of these and of those."""
        plan = self.plan
        if mine[0].experts and plan.experts_apart:
            axis = "tp" if plan.expert_tp == plan.tp else "etp"
            return plan.expert_replicas, plan.expert_tp, axis, "edp"
        return plan.replicas, plan.tp, "tp", "dp"

    def _own(self, held: Sequence[WeightMatrix], ranks: int) -> list[WeightMatrix]:
        """What the fullest rank orthogonalizes."""
        if self.distribute == "none" or ranks == 1:
            return list(held)
        if self.distribute == "layers":
            given = _whole(held, ranks)
        elif self.distribute == "gather":
            given = _parts(held, ranks, self.bucket)
        else:
            assert_never(self.distribute)
        fullest = max(given, key=lambda own: sum(each.elements * many for each, many in own.items()))
        return [replace(each, count=many) for each, many in fullest.items()]


def _elements(matrices: Iterable[WeightMatrix]) -> int:
    return sum(each.elements * each.count for each in matrices)


def _whole(held: Sequence[WeightMatrix], ranks: int) -> list[Counter[WeightMatrix]]:
    """What each rank gets, the largest matrix first to the one that has least."""
    loads = [(0, rank) for rank in range(ranks)]
    given: list[Counter[WeightMatrix]] = [Counter() for _ in range(ranks)]
    for each in sorted(held, key=lambda each: -each.elements):
        for _ in range(each.count):
            load, rank = heapq.heappop(loads)
            given[rank][replace(each, count=1)] += 1
            heapq.heappush(loads, (load + each.elements, rank))
    return given


def _parts(held: Sequence[WeightMatrix], ranks: int, bucket: float) -> list[Counter[WeightMatrix]]:
    """The matrices in which each rank's parts lie, of buckets of so many elements or more."""
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
