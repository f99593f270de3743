"""The field ``training.trainable`` of a scenario: LoRA adapters and frozen weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, PrivateAttr, StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Spec
from simcluster.model.defaults import Count, Natural

LoraModule = Literal["qkv", "query", "key", "value", "projection", "mlp_up", "gate", "up", "mlp_down"]
BaseWeights = Literal["nf4", "nf4-double"]
FrozenLayer = Literal["", "frozen", "no backward"]
PARTS: Mapping[str, str] = {"query": "qkv", "key": "qkv", "value": "qkv", "gate": "mlp_up", "up": "mlp_up"}
"""Modules that are a part of a fused matmul."""
QUANTIZED_BYTES: dict[BaseWeights, float] = {"nf4": 0.5 + 4 / 64, "nf4-double": 0.5 + 1 / 64 + 4 / (64 * 256)}
"""Bytes per weight: 4 bits, and for each 64 weights an fp32 scale, or an 8-bit one with an fp32 scale for each 256 of
them (bitsandbytes; double quantization: QLoRA, arXiv:2305.14314 section 3)."""


def _check_modules(modules: tuple[LoraModule, ...]) -> tuple[LoraModule, ...]:
    twice = next((each for each in modules if PARTS.get(each) in modules or modules.count(each) > 1), None)
    if twice or not modules:
        what = f"has {twice} twice, alone or as a part of {PARTS.get(twice, twice)}" if twice else "is empty"
        raise InputError(f"{what}; name each matmul once, of {', '.join(get_args(LoraModule))}")
    return modules


class Trainable(Spec):
    """Choice of the trained weights: only LoRA adapters (arXiv:2106.09685), or every weight that is not frozen.

    An adapter is two matrices next to a frozen one, y = W x + B A x.
    """

    rank: Count | None = None
    """Rank of every adapter (PEFT: r; NeMo: dim); all else is frozen. Default: no adapters."""
    modules: Annotated[tuple[LoraModule, ...], AfterValidator(_check_modules)] = (
        "qkv", "projection", "mlp_up", "mlp_down"
    )  # fmt: skip
    """Matmuls with an adapter: qkv, projection, mlp_up (with its gate), mlp_down; of fused ones also a part alone:
    query, key, value, gate, up. Experts and latent attention have none."""
    dropout: StrictBool = False
    """Whether dropout precedes every adapter."""
    kernels: Literal["separate", "triton", "fused"] = "separate"
    """Kernels of an adapter in addition to its matmuls: one that scales and one that adds (separate); one that adds
    (triton, NeMo AutoModel's); or none, since matmuls do both (fused, Transformer Engine's op fuser)."""
    exchange: Literal["gather", "all_to_all"] = "gather"
    """How tp ranks get the output of a row-parallel adapter under sequence parallelism: all gather all of it, or each
    gets its own tokens (Megatron-Bridge's a2a_experimental)."""
    base_weights: BaseWeights | None = None
    """Number format of the layers' frozen matrices (QLoRA): nf4, or nf4 with quantized scales (nf4-double), which every
    matmul dequantizes. Default: that of memory_recipe."""
    frozen: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Frozen parts, if rank is not set: embedding, lm_head (with the final norm), or layer kinds such as attention. A
    layer's norms are frozen if all of its kinds are."""
    frozen_layers: tuple[Natural, Natural] | None = None
    """First and last layer (from 0) of a range that is frozen and has no adapters. With a frozen embedding, layers
    before the first trained weight have no backward."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        given = {name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default}
        if self.rank is None and (of_adapters := given - {"rank", "frozen", "frozen_layers"}):
            raise InputError(f"{sorted(of_adapters)[0]} is for adapters, which need a rank; set rank, or remove it")
        if self.rank is None and self.frozen is None and self.frozen_layers is None:
            raise InputError("has no setting; set rank for adapters, frozen or frozen_layers, or remove trainable")
        if self.rank is not None and self.frozen is not None:
            raise InputError("frozen has no effect, since rank trains only adapters; remove one of the two")
        first, last = self.frozen_layers or (0, 0)
        if first > last:
            raise InputError(f"frozen_layers ends before it begins; write [{last}, {first}]")
        return self


class TrainedParts(Spec):
    """Base class of a model: which weights a scenario trains, in addition to the fields of the model's document."""

    _trainable: Trainable | None = PrivateAttr(default=None)
    _frozen_as: FrozenLayer = PrivateAttr(default="")  # of the model of a layer

    def with_trainable(self, trainable: Trainable | None) -> Self:
        """Return the model with the weights that a scenario trains; its counts and its layers' models use them."""
        copied = self if trainable == self._trainable else self.model_copy()
        copied._trainable = trainable
        return copied

    @property
    def lora(self) -> Trainable | None:
        """Settings of the adapters that are trained; None if this layer has none."""
        found = self._trainable
        return found if found and found.rank and not self._frozen_as else None

    @property
    def has_backward(self) -> bool:
        """Return whether gradients reach the layers that this is the model of."""
        return self._frozen_as != "no backward"

    def freezes(self, part: str) -> bool:
        """Return whether a part (embedding, lm_head, or a layer kind) has no gradients of its weights."""
        found = self._trainable
        return bool(self._frozen_as or (found and (found.rank or part in (found.frozen or ()))))

    def freezes_layer(self, layer: int) -> FrozenLayer:
        """Return whether a whole layer is frozen, and if so whether gradients still pass through it."""
        first, last = (self._trainable and self._trainable.frozen_layers) or (0, -1)
        if not first <= layer <= last:
            return ""
        return "frozen" if first or not self.freezes("embedding") else "no backward"

    @property
    def has_frozen_layers(self) -> bool:
        """Return whether some layers are frozen as a whole."""
        return self._trainable is not None and self._trainable.frozen_layers is not None

    def as_layer_of(self, model: TrainedParts, frozen: FrozenLayer) -> Self:
        """Mark this new model as that of one layer of ``model``, with the same trained weights; return it."""
        if model._trainable:
            self._trainable = model._trainable.model_copy(update={"frozen_layers": None})
        self._frozen_as = frozen
        return self
