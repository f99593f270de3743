"""Choices that decide a layer's kernels and tensors, and the modules of selective recompute.

The modules are those of Megatron-Core's ``--recompute-modules`` (Megatron-LM, core/transformer/transformer_config.py,
``recompute_modules``). Four drop only their output, which is computed again when its reader's backward needs it:
``core_attn``, the attention between projections; ``mla_up_proj``, which makes heads from latent attention's narrow
vectors, and their rotation; ``layernorm``, norms that are separate kernels, before latent attention and experts
(Transformer Engine fuses others with the next matmul, and keeps both); ``moe_act``, the activation function of the
routed experts. Three keep their input: ``shared_experts`` and ``mlp``, whole; ``moe``, a whole mixture with its two
all-to-alls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from simcluster.model.kernels import Section

Attention = Literal["fused", "unfused"]
Logits = Literal["fp32", "in-place", "gathered"]
Probabilities = Literal["combine", "activation"]
ActivationInput = Literal["16-bit", "fp8"]
Kernels = Literal["fused", "compiled", "eager"]
Accumulate = Literal["fused", "separate"]
ContextShares = Literal["zigzag", "contiguous"]
Ring = Literal["transformer-engine", "torch"]
Rope = Literal["fused", "steps"]
Bias = Literal["product", "own"]
OffloadModule = Literal["attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"]
RecomputeModule = Literal["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"]


class LayerVariant(NamedTuple):
    """Whether a layer's backward recomputes anything, and whether low precision leaves its matmuls in 16 bits."""

    recomputed: bool
    wide: bool


RECOMPUTE_MODULES: tuple[RecomputeModule, ...] = get_args(RecomputeModule)


def unusable_recompute_modules(*, experts: bool, shared: bool, dense: bool, latent: bool) -> dict[RecomputeModule, str]:
    """Return the recompute modules that a model cannot use, with the model feature that each needs."""
    needs: dict[RecomputeModule, tuple[bool, str]] = {
        "moe_act": (experts, "model.moe"),
        "moe": (experts, "model.moe"),
        "shared_experts": (shared, "model.moe.shared_experts"),
        "mla_up_proj": (latent, "model.mla"),
        "layernorm": (experts or latent, "model.moe or model.mla (Transformer Engine fuses other norms)"),
        "mlp": (dense, "a layer without experts"),
    }
    return {module: lacks for module, (there, lacks) in needs.items() if not there}


def with_recompute(section: Section, *, enabled: bool) -> Section:
    """Return the section; if ``enabled`` is true, its backward first recomputes its forward."""
    return replace(section, recompute=section.forward) if enabled else section


@dataclass(frozen=True, slots=True)
class ContextParallelMethod:
    """Method of context parallelism: how ranks that share a sequence exchange queries, keys and values.

    Groups of ``head_trading_ranks`` ranks trade tokens for heads on ``trade_axis``; between the groups, keys and values
    circulate in a "ring" or are gathered ("gather") on ``key_axis``, as ``keys`` states. ``head_trading_ranks``, a
    divisor of cp, is a function of heads and key-value heads of a tp rank and of cp; those of the axis "cp_inner" are
    ``parallel.cp_inner``.
    """

    keys: Literal["ring", "gather"]
    head_trading_ranks: Callable[[int, int, int], int] = lambda heads, kv_heads, cp: 1
    trade_axis: str = "cp"
    key_axis: str = "cp"


CONTEXT_METHODS: dict[str, ContextParallelMethod] = {
    "ring": ContextParallelMethod("ring"),
    "all_gather": ContextParallelMethod("gather"),
    "all_to_all": ContextParallelMethod("ring", lambda heads, kv_heads, cp: cp),
    "hybrid": ContextParallelMethod("ring", trade_axis="cp_inner", key_axis="cp_outer"),
}
"""Every method of context parallelism by its value of ``parallel.cp_comm``."""


# --- low precision ---------------------------------------------------------------------------------------------------


Fp8Scaling = Literal["delayed", "current", "blockwise"]
Operand = Literal["normed", "input", "gradient", "weight"]
"""An operand of a layer's matmul: what a norm made, another input, the gradient of an output, or a weight."""
QUANTIZED = ("fp8-mixed", "mxfp8-mixed", "nvfp4-mixed")
"""Training precisions in which matmuls of layers read quantized operands."""


class CastKernels(NamedTuple):
    """Kernels that quantize one operand: how often they read its 16 bits, and the number of their launches.

    Without any reading, the kernel that makes the operand writes it quantized.
    """

    reads: int = 1
    launches: int = 1


_BOTH = CastKernels()


@dataclass(frozen=True, slots=True)
class Quantization:
    """Recipe of low precision: size and copies of operands, and the kernels that make them.

    ``operand_bytes`` per element include the share of a scale; ``rows`` of an expert are multiples of a number.
    ``copies``: orders in which an operand is written, one where matmuls take either. ``swizzled``: bytes of scales per
    element that a kernel rearranges before each matmul. ``gathers``: under sequence parallelism tp ranks gather an
    operand in 16 bits, along "rows" alone, or in "both" orders; a kernel then ``rearranges`` what the weight gradient
    reads. ``reduces_largest``: they first agree on its largest value.
    """

    name: str
    operand_bytes: float
    rows: int = 16
    copies: int = 2
    swizzled: float = 0.0
    normed: CastKernels = _BOTH
    input: CastKernels = _BOTH
    gradient: CastKernels = _BOTH
    weight: CastKernels = _BOTH
    gathers: Literal["16-bit", "rows", "both"] = "both"
    rearranges: bool = True
    reduces_largest: bool = False

    def cast_kernels(self, operand: Operand) -> CastKernels:
        """Return the kernels that quantize an operand."""
        found: CastKernels = getattr(self, operand)
        return found
