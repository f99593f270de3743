"""The ``training`` section of a scenario: batch, number formats, recomputation, optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Count, Spec
from simcluster.documents.diagnostics import quote_value
from simcluster.documents.field_annotations import NameFromSet, SchemaAlternatives
from simcluster.model.kernel_choices import RECOMPUTE_MODULES, Attention, Fp8Scaling, RecomputeModule
from simcluster.model.trainable import Trainable
from simcluster.model.transformer import Recompute
from simcluster.planning.optimizer_registry import OPTIMIZERS

Layers = Annotated[int, Field(strict=True, ge=0)]
Precision = Literal["bf16-mixed", "fp16-mixed", "fp8-mixed", "mxfp8-mixed", "nvfp4-mixed", "fp32"]
MemoryRecipe = Literal[
    "mixed-16", "fp32-16", "mixed-18", "bf16-12", "bf16-8", "aware-16", "aware-14", "aware-12", "aware-10",
    "moments-14", "fp8-20", "fp8-19", "fp8-18", "fp8-params-18", "fp8-params-17", "fp8-params-16", "fp8-aware-14",
    "fp8-params-14", "fp8-13", "nvfp4-19", "nvfp4-17",
]  # fmt: skip


def _parse_modules(value: object) -> object:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items or any(item not in RECOMPUTE_MODULES for item in items):
        known = f"known: {', '.join(RECOMPUTE_MODULES)}"
        if isinstance(items, list | tuple):  # the wrong one says more than how many there are
            value = next((item for item in items if item not in RECOMPUTE_MODULES), value)
        raise InputError(f"must be a list of modules, as in [moe_act, layernorm]; {known}; got {quote_value(value)}")
    return tuple(name for name in RECOMPUTE_MODULES if name in items)


class MuonSpec(Spec):
    """Settings of the Muon optimizer, which updates each weight matrix as a whole."""

    iterations: Annotated[int, Field(strict=True, ge=1, le=100)] = 5
    """Number of Newton-Schulz iterations per matrix, with matmuls in 16 bits."""
    distribute: Literal["layers", "gather", "all_to_all"] | None = None
    """Which ranks orthogonalize a matrix: one rank, which holds it whole (layers, as Megatron-Core's dist_muon) or gets
    its shards and sends its update back (all_to_all, as Dion's Muon), or every rank, which gathers it and keeps only
    its shard (gather, as Moonlight, arXiv:2502.16982); default: layers with zero 1, all_to_all with zero 2 and 3."""
    tp_mode: Literal["blockwise", "duplicated"] = "blockwise"
    """How a matrix is orthogonalized with tp: each rank's part separately (blockwise, as Megatron-Core), or the
    whole matrix on every rank (duplicated)."""


class OuterStepSpec(Spec):
    """Outer optimizer step (DiLoCo, arXiv:2311.08105): workers train separately and synchronize every N steps."""

    every: Count
    """Number of training steps between outer steps."""
    workers: Count | None = None
    """Number of DiLoCo workers, each of consecutive dp replicas; default: one per site."""
    bytes_per_parameter: Annotated[float, Field(gt=0)] = 4.0
    """Bytes per parameter that an outer step sends (4: fp32); a worker's replicas split the parameters among them."""
    parts: Count = 1
    """Number of fragments of the parameters, reduced in turn over the steps (Streaming DiLoCo, arXiv:2501.18512)."""
    beside: Annotated[int, Field(strict=True, ge=0, le=50)] = 0
    """Number of training steps that overlap with an outer all-reduce before its result is needed; 0: training waits."""


class Training(Spec):
    """Settings of training: batch, number formats, optimizer, and activation recomputation."""

    global_batch: Count
    """Number of sequences per step, over all replicas."""
    micro_batch: Count = 1
    """Number of sequences per microbatch."""
    precision: Precision = "bf16-mixed"
    """Number format of training; fp8, mxfp8 (one scale per 32 elements) and nvfp4 (one per 16) apply to the layers'
    matmuls, all else uses 16 bits: attention, LM head, stored and sent tensors."""
    fp8_scaling: Fp8Scaling | None = None
    """Scales of fp8 operands, with precision: fp8-mixed: one per tensor, from the largest values of past steps
    (delayed, the default) or from the tensor (current), or one per block of 128 (blockwise). Casts of torch.compile
    have neither."""
    layers_in_16_bits: tuple[Layers, Layers] = (0, 0)
    """Numbers of first and last layers whose matmuls stay in 16 bits under low precision."""
    recompute: Annotated[Recompute, SchemaAlternatives(lambda: (..., tuple[RecomputeModule, ...]))] = "none"
    """What the backward recomputes: nothing (none); the attention core or the recompute_modules (selective; a list here
    sets these); all but attention and every second matmul (operators, as torchtitan's "op"); or whole layers (full)."""
    recompute_modules: Annotated[tuple[RecomputeModule, ...], BeforeValidator(_parse_modules)] = ("core_attn",)
    """With recompute: selective, the modules of a layer to recompute, by Megatron-Core's names."""
    recompute_every: Count = 1
    """N, to recompute every N-th layer only: layers whose number (from 0) is a multiple of N; 1: every layer."""
    optimizer: Annotated[str, NameFromSet(lambda: OPTIMIZERS)] = "adam"
    """Optimizer: adam, or muon (one moment) for the layers' matrices and Adam for the rest."""
    muon: MuonSpec = MuonSpec()
    """Settings of the Muon optimizer (optimizer: muon)."""
    attention: Attention = "fused"
    """Attention kernel: one fused kernel such as flash attention (fused), or separate matmuls and softmax (unfused)."""
    dropout: StrictBool = False
    """Whether to apply dropout, with a probability of 0.1."""
    memory_recipe: MemoryRecipe | None = None
    """Memory recipe: bytes per parameter of weights, gradients and optimizer state; default: by precision and
    optimizer."""
    trainable: Trainable | None = None
    """Choice of the trained weights: only LoRA adapters, or every weight that is not frozen; default: all weights."""
    outer: OuterStepSpec | None = None
    """Outer optimizer step for workers that train separately in between (DiLoCo); default: none, all replicas update
    together."""

    @model_validator(mode="before")
    @classmethod
    def _expand_modules(cls, document: object) -> object:
        """Convert a list of modules in ``recompute``, or ``recompute_modules`` alone, to selective recomputation."""
        if not isinstance(document, Mapping):
            return document
        listed = document.get("recompute")
        if isinstance(listed, list | tuple) or listed in RECOMPUTE_MODULES:
            if "recompute_modules" in document:
                raise InputError("'recompute' and 'recompute_modules' both list modules; keep one of the two")
            return {**document, "recompute": "selective", "recompute_modules": listed}
        return {"recompute": "selective", **document} if "recompute_modules" in document else document
