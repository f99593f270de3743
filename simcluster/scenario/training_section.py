"""The section of a scenario file that says how it trains: batch, number formats, recompute, optimizer.

It checks its own values; rules between sections are in ``rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import shown
from simcluster.documents.kinds import Accepts, WordOf
from simcluster.documents.spec import Count, Spec
from simcluster.model.choices import RECOMPUTE_MODULES, Attention, RecomputeModule
from simcluster.model.transformer import Recompute
from simcluster.planning.optimizers import OPTIMIZERS

Precision = Literal["bf16-mixed", "fp16-mixed", "fp8-mixed", "mxfp8-mixed", "nvfp4-mixed", "fp32"]
MemoryRecipe = Literal[
    "mixed-16", "fp32-16", "mixed-18", "bf16-12", "bf16-8", "aware-16", "aware-14", "aware-12", "aware-10",
    "moments-14", "fp8-20", "fp8-19", "fp8-18", "fp8-params-18", "fp8-params-17", "fp8-params-16", "fp8-aware-14",
    "fp8-params-14", "fp8-13", "nvfp4-19", "nvfp4-17",
]  # fmt: skip


def _modules(value: object) -> object:
    """Return modules from one name, or a list of them in any order."""
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items or any(item not in RECOMPUTE_MODULES for item in items):
        known = ", ".join(RECOMPUTE_MODULES)
        if isinstance(items, list | tuple):  # the wrong one says more than how many there are
            value = next((item for item in items if item not in RECOMPUTE_MODULES), value)
        raise InputError(f"must be a list of modules, as in [moe_act, layernorm]; known: {known}; got {shown(value)}")
    return tuple(name for name in RECOMPUTE_MODULES if name in items)


class Muon(Spec):
    """How Muon updates matrices, which stay whole."""

    iterations: Annotated[int, Field(strict=True, ge=1, le=100)] = 5
    """Newton-Schulz iterations on each matrix, of matmuls in 16 bits."""
    distribute: Literal["layers", "gather"] = "layers"
    """With zero 1: is each matrix on one rank (layers, Megatron-Core's dist_muon), or gathered by every rank, which
    keeps a part (gather, Moonlight's, arXiv:2502.16982)?"""
    tp_mode: Literal["blockwise", "duplicated"] = "blockwise"
    """Is each tp rank's part of a matrix orthogonalized separately (blockwise, as in Megatron-Core), or the whole one
    on each (duplicated)?"""


class OuterStep(Spec):
    """An outer step of workers that train separately in between (DiLoCo, arXiv:2311.08105)."""

    every: Count
    """Steps from one outer step to the next."""
    workers: Count | None = None
    """Workers, each of consecutive replicas of dp; default: one on each site."""
    bytes_per_parameter: Annotated[float, Field(gt=0)] = 4.0
    """Bytes of a pseudo-gradient on the wire (4: fp32); each replica of a worker sums a part of them."""
    parts: Count = 1
    """Parts of the parameters that are summed one after the other, evenly over the steps (Streaming DiLoCo,
    arXiv:2501.18512)."""
    beside: Annotated[int, Field(strict=True, ge=0, le=50)] = 0
    """Steps that overlap with a sum before it is needed; 0: training waits."""


class Training(Spec):
    """The batch, the number formats, and what is kept for backward."""

    global_batch: Count
    """Sequences of a step, of all replicas together."""
    micro_batch: Count = 1
    """Sequences that a rank works through at once."""
    precision: Precision = "bf16-mixed"
    """Number formats of the matmuls of layers (fp8, mxfp8 with a scale for 32 elements, nvfp4 with one for 16: operands
    are cast from 16 bits) and of all else: attention, LM head, what is kept and sent."""
    recompute: Annotated[Recompute, Accepts(lambda: (..., tuple[RecomputeModule, ...]))] = "none"
    """What backward runs again instead of keeping it: nothing; the attention's core or the recompute_modules
    (selective; a list here is these); all but attention and every second matmul (operators, as torchtitan's "op"); or
    the whole layer (full)."""
    recompute_modules: Annotated[tuple[RecomputeModule, ...], BeforeValidator(_modules)] = ("core_attn",)
    """With recompute selective: the parts of a layer that run again, by Megatron-Core's names."""
    recompute_every: Count = 1
    """With recompute k: only layers whose number divides by k are recomputed (0, k, 2 k, ...)."""
    optimizer: Annotated[str, WordOf(lambda: OPTIMIZERS)] = "adam"
    """Adam, or Muon on the layers' matrices, which keeps one moment of them, and Adam on the rest."""
    muon: Muon = Muon()
    """How Muon updates matrices."""
    attention: Attention = "fused"
    """One fused kernel (flash attention), or separate products and softmax."""
    dropout: StrictBool = False
    """Is there dropout of 0.1?"""
    memory_recipe: MemoryRecipe | None = None
    """Bytes kept per parameter, by name; default: by precision and optimizer."""
    outer: OuterStep | None = None
    """An outer step every N steps, of workers that train separately in between (DiLoCo); default: all replicas step
    together."""

    @model_validator(mode="before")
    @classmethod
    def _modules_alone(cls, document: object) -> object:
        """Take modules listed as ``recompute``, or without it, as those of a selective one."""
        if not isinstance(document, Mapping):
            return document
        listed = document.get("recompute")
        if isinstance(listed, list | tuple) or listed in RECOMPUTE_MODULES:
            if "recompute_modules" in document:
                raise InputError("lists modules in recompute and in recompute_modules; keep one of them")
            return {**document, "recompute": "selective", "recompute_modules": listed}
        return {"recompute": "selective", **document} if "recompute_modules" in document else document
