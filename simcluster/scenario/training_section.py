"""The section of a scenario file that says how it trains: batch, number formats, recompute, optimizer.

It checks its own values; rules between sections are in ``rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import shown
from simcluster.documents.spec import Count, Spec
from simcluster.model.layer_sections import Attention
from simcluster.model.recomputed import RECOMPUTE_MODULES, RecomputeModule
from simcluster.model.transformer import Recompute

Precision = Literal["bf16-mixed", "fp16-mixed", "fp8-mixed", "mxfp8-mixed", "nvfp4-mixed", "fp32"]
MemoryRecipe = Literal[
    "mixed-16", "fp32-16", "mixed-18", "bf16-12", "bf16-8", "aware-16", "aware-14", "aware-12", "aware-10",
    "moments-14", "fp8-20", "fp8-19", "fp8-18", "fp8-params-18", "fp8-params-17", "fp8-params-16", "fp8-aware-14",
    "fp8-params-14", "fp8-13", "nvfp4-19", "nvfp4-17",
]  # fmt: skip


def _modules(value: object) -> object:
    """Modules from one name, or a list of them in any order."""
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items or any(item not in RECOMPUTE_MODULES for item in items):
        known = ", ".join(RECOMPUTE_MODULES)
        if isinstance(items, list | tuple):  # the wrong one says more than how many there are
            value = next((item for item in items if item not in RECOMPUTE_MODULES), value)
        raise InputError(f"must be a list of modules, as in [moe_act, layernorm]; known: {known}; got {shown(value)}")
    return tuple(name for name in RECOMPUTE_MODULES if name in items)


class Muon(Spec):
    """How Muon updates matrices: ``iterations`` of Newton-Schulz products in 16 bits on each.

    Sharded (zero 1), each of a stage's matrices is on one of the ranks that hold it (``distribute: layers``,
    Megatron-Core's ``dist_muon``), or each rank gathers all of them and keeps a part of each (``gather``, Moonlight's,
    arXiv:2502.16982).  ``tp_mode``: each tp rank's part of a matrix by itself (``blockwise``, Megatron-Core's default),
    or the whole one on each of them (``duplicated``).
    """

    iterations: Annotated[int, Field(strict=True, ge=1, le=100)] = 5
    distribute: Literal["layers", "gather"] = "layers"
    tp_mode: Literal["blockwise", "duplicated"] = "blockwise"


class OuterStep(Spec):
    """An outer step ``every`` so many steps, of ``workers`` that train apart between (DiLoCo, arXiv:2311.08105).

    A worker is as many of the replicas, one after the other on dp; left out, there is one on each site.  Parameters
    have ``bytes_per_parameter`` on the wire (4: fp32 pseudo-gradients), and each of a worker's replicas sums a part.
    ``parts`` of them are summed one after the other, evenly over the ``every`` steps, and each is needed ``beside``
    steps later (Streaming DiLoCo, arXiv:2501.18512); with 0 training waits.
    """

    every: Count
    workers: Count | None = None
    bytes_per_parameter: Annotated[float, Field(gt=0)] = 4.0
    parts: Count = 1
    beside: Annotated[int, Field(strict=True, ge=0, le=50)] = 0


class Training(Spec):
    """The batch (in sequences), the number formats, and what is kept for backward.

    ``memory_recipe`` names the bytes per parameter by hand; left out, they follow from precision and optimizer.
    ``optimizer: muon`` works on the layers' matrices as ``muon`` says, keeps one moment of them, and leaves embedding,
    LM head, norms and biases to Adam.
    ``precision: fp8-mixed``: the products of layers in fp8, their operands cast from 16 bits, in which all else stays
    (attention, LM head, what is kept and sent); ``mxfp8-mixed``: the same with a scale for every 32 elements;
    ``nvfp4-mixed``: in 4 bits with one for every 16; both on devices whose peak has them.  ``recompute: operators``
    keeps what attention and every second product of a layer give, and runs all else again (torchtitan's "op" selective
    checkpointing); ``selective`` runs the core attention again, of a fused kernel, too, unless the ``software`` leaves
    that alone; or the ``recompute_modules`` that are listed, by Megatron-Core's names (``model.recomputed``).  A list
    in the place of ``recompute`` is these.  ``recompute_every: k`` recomputes only the layers whose number in the model
    divides by k (0, k, 2 k, ...).
    """

    global_batch: Count
    micro_batch: Count = 1
    precision: Precision = "bf16-mixed"
    recompute: Recompute = "none"
    recompute_modules: Annotated[tuple[RecomputeModule, ...], BeforeValidator(_modules)] = ("core_attn",)
    recompute_every: Count = 1
    optimizer: Literal["adam", "muon"] = "adam"
    muon: Muon = Muon()
    attention: Attention = "fused"
    dropout: StrictBool = False
    memory_recipe: MemoryRecipe | None = None
    outer: OuterStep | None = None

    @model_validator(mode="before")
    @classmethod
    def _modules_alone(cls, document: object) -> object:
        """Modules listed as ``recompute``, or without it, are those of a selective one."""
        if not isinstance(document, Mapping):
            return document
        listed = document.get("recompute")
        if isinstance(listed, list | tuple) or listed in RECOMPUTE_MODULES:
            if "recompute_modules" in document:
                raise InputError("lists modules in recompute and in recompute_modules; keep one of them")
            return {**document, "recompute": "selective", "recompute_modules": listed}
        return {"recompute": "selective", **document} if "recompute_modules" in document else document
