"""Memory recipes: bytes per parameter of weights, gradients and optimizer state, and a rank's total."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean
from simcluster.model.kernel_choices import QUANTIZED

WeightFormat = Literal["fp32", "16 bits", "bf16", "fp8", "nvfp4"]
"""The number format of weights, or of the copies of them that matmuls read."""

_PRECISIONS: Mapping[WeightFormat, tuple[str, ...]] = {
    "fp32": ("fp32", "bf16-mixed", "fp16-mixed", *QUANTIZED),
    "16 bits": ("fp32", "bf16-mixed", "fp16-mixed", *QUANTIZED),
    "bf16": ("fp32", "bf16-mixed", *QUANTIZED), "fp8": ("fp8-mixed", "mxfp8-mixed"), "nvfp4": ("nvfp4-mixed",),
}  # fmt: skip
"""The precisions of matmuls that such weights serve: as they are, or cast to another format."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Bytes per parameter kept under Adam, itemised, since a total such as "16" is ambiguous.

    ``optimizer`` holds both moments, and the fp32 master copy of the weight if ``master``; without one, or with what a
    16-bit weight lacks of it, the update reads and writes the weight itself. ``weight`` counts every copy that stays,
    quantized ones too, whose format is ``weights``; ``gathered_weight`` is what the all-gather of ZeRO sends of it.
    """

    name: str
    weights: WeightFormat
    weight: float
    gradient: float
    optimizer: float
    master: bool
    copies: float = 0.0  # of ``weight``: made on each rank from what was gathered

    @property
    def precisions(self) -> tuple[str, ...]:
        """Training precisions in which matmuls can read the weights that the recipe keeps."""
        return _PRECISIONS[self.weights]

    @property
    def gathered_weight(self) -> float:
        """Bytes per parameter that an all-gather of sharded weights (ZeRO, FSDP) sends."""
        return self.weight - self.copies

    @property
    def total(self) -> float:
        """Bytes per parameter of weight, gradient and optimizer state."""
        return self.weight + self.gradient + self.optimizer

    @property
    def moment_bytes(self) -> float:
        """Bytes per parameter of one of Adam's two moments."""
        return (self.optimizer - (4.0 if self.master else 0.0)) / 2

    @property
    def update_traffic(self) -> float:
        """Bytes per parameter that an Adam update reads (gradient, state) and writes (state, weight).

        30 with fp32 gradients and a master copy (mixed-18), 28 with 16-bit gradients (mixed-16).
        """
        return self.gradient + 2 * self.optimizer + self.weight + (0 if self.master else self.gathered_weight)


# mixed-16: 16-bit weights and gradients, fp32 master and moments: ZeRO paper, arXiv:1910.02054 section 3.1.
# fp32-16:  everything fp32; the shards of FSDP with fp32 parameters (its 16-bit unsharded copies come on top).
# mixed-18: 16-bit weights, fp32 gradient accumulation, fp32 master and moments: Megatron-LM's
#           theoretical_memory_usage.py.
# bf16-12:  16-bit weights and gradients, fp32 moments, no master copy.  (The other "12", K = 12 of the ZeRO paper, is
#           the optimizer part of mixed-16 alone.)
# bf16-8:   weights, gradients and moments all in bf16 (a model cast before training, as torchtitan's training.dtype).
#
# Optimizer states of fewer bytes (Megatron-LM's --use-precision-aware-optimizer, with --main-grads-dtype,
# --exp-avg-dtype and --exp-avg-sq-dtype; core/optimizer/optimizer_config.py).  Of a master copy of 16-bit weights
# it keeps the lower 16 bits alone (store_param_remainders), so the update reads the weight, too:
# aware-16: fp32 gradients and moments; aware-14: bf16 gradients.
# aware-12: bf16 moments and fp32 gradients; aware-10: bf16 both.
# moments-14: a whole fp32 master copy, fp32 gradients and bf16 moments: DeepSeek-V3's (arXiv:2412.19437 section 3.3.3).
#
# fp8, as Transformer Engine's modules keep it (its user guide, "Using FP8 with Transformer Engine", and
# ``quantized_model_init``); gradients and master as in mixed-18:
# fp8-20:   16-bit weights, and of each an fp8 copy and its transpose, which Hopper's fp8 matmuls need.
# fp8-19:   the same where the matmul takes either order and no transpose is kept (Blackwell).
# fp8-params-18, fp8-params-17: the fp8 copy is the only weight (``fp8_param_gather``), with or without its transpose.
# fp8-18, fp8-params-16: fp8-20 and fp8-params-18 with bf16 gradients (Megatron-LM's --grad-reduce-in-bf16).
# nvfp4-19: 16-bit weights, and of each an NVFP4 copy in both orders, 0.5625 bytes an element with its scales.
# nvfp4-17: the same with bf16 gradients.
# fp8-aware-14, fp8-params-14: fp8-20 and fp8-params-18 with bf16 moments, the first with 16 bits of a master copy.
# fp8-13:   DeepSeek-V3 (arXiv:2412.19437 section 3.3): fp8 weights, fp32 gradients and master, bf16 moments.
RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe("mixed-16", "16 bits", weight=2, gradient=2, optimizer=12, master=True),
            Recipe("fp32-16", "fp32", weight=4, gradient=4, optimizer=8, master=False),
            Recipe("mixed-18", "16 bits", weight=2, gradient=4, optimizer=12, master=True),
            Recipe("bf16-12", "bf16", weight=2, gradient=2, optimizer=8, master=False),
            Recipe("bf16-8", "bf16", weight=2, gradient=2, optimizer=4, master=False),
            Recipe("aware-16", "16 bits", weight=2, gradient=4, optimizer=10, master=False),
            Recipe("aware-14", "16 bits", weight=2, gradient=2, optimizer=10, master=False),
            Recipe("aware-12", "16 bits", weight=2, gradient=4, optimizer=6, master=False),
            Recipe("aware-10", "16 bits", weight=2, gradient=2, optimizer=6, master=False),
            Recipe("moments-14", "16 bits", weight=2, gradient=4, optimizer=8, master=True),
            Recipe("fp8-20", "fp8", weight=4, gradient=4, optimizer=12, master=True, copies=2),
            Recipe("fp8-19", "fp8", weight=3, gradient=4, optimizer=12, master=True, copies=1),
            Recipe("fp8-18", "fp8", weight=4, gradient=2, optimizer=12, master=True, copies=2),
            Recipe("fp8-params-16", "fp8", weight=2, gradient=2, optimizer=12, master=True, copies=1),
            Recipe("fp8-params-18", "fp8", weight=2, gradient=4, optimizer=12, master=True, copies=1),
            Recipe("fp8-params-17", "fp8", weight=1, gradient=4, optimizer=12, master=True),
            Recipe("nvfp4-19", "nvfp4", weight=3.125, gradient=4, optimizer=12, master=True, copies=1.125),
            Recipe("nvfp4-17", "nvfp4", weight=3.125, gradient=2, optimizer=12, master=True, copies=1.125),
            Recipe("fp8-aware-14", "fp8", weight=4, gradient=4, optimizer=6, master=False, copies=2),
            Recipe("fp8-params-14", "fp8", weight=2, gradient=4, optimizer=8, master=True, copies=1),
            Recipe("fp8-13", "fp8", weight=1, gradient=4, optimizer=8, master=True),
        )
    }
)


def recipe_named(name: object) -> Recipe:
    """Return the memory recipe of this name; raise InputError for an unknown name."""
    if isinstance(name, str) and name in RECIPES:
        return RECIPES[name]
    known = ", ".join(f"{r.name} ({r.weight:g} + {r.gradient:g} + {r.optimizer:g})" for r in RECIPES.values())
    raise InputError(
        f"there is no memory recipe {name!r}{did_you_mean(name, RECIPES)}; a recipe gives bytes per parameter for "
        f"weight + gradient + optimizer, since a total alone is ambiguous: {known}"
    )


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of model state on one rank: weights, gradients, optimizer state."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Bytes of weights, gradients and optimizer state."""
        return self.parameters + self.gradients + self.optimizer

    def __add__(self, other: StateBytes) -> StateBytes:
        return StateBytes(
            self.parameters + other.parameters, self.gradients + other.gradients, self.optimizer + other.optimizer
        )


def state_bytes(parameters: float, recipe: Recipe, *, zero: int = 0, dp: int = 1) -> StateBytes:
    """Return the bytes of model state of ``parameters`` parameters, per rank if ``dp`` ranks shard them.

    ``parameters`` counts a rank's share after tp and pp. ZeRO 1 shards the optimizer, 2 gradients too, 3 weights too
    (arXiv:1910.02054 section 5). ``dp`` is the size of the group that shards (dp x cp). The layers that ZeRO 3 gathers
    for use are transient and not counted here.
    """
    if zero not in (0, 1, 2, 3):
        raise InputError(f"zero {zero!r} is not a ZeRO stage; use 0 (nothing sharded), 1, 2 or 3")
    if dp < 1 or parameters < 0:
        raise InputError(f"dp {dp} must be at least 1 and parameters {parameters:g} not negative")
    return StateBytes(
        parameters=parameters * recipe.weight / (dp if zero >= 3 else 1),
        gradients=parameters * recipe.gradient / (dp if zero >= 2 else 1),
        optimizer=parameters * recipe.optimizer / (dp if zero >= 1 else 1),
    )
