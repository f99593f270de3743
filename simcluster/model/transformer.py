"""The ``model`` section of scenarios.

Counting only: no device, no time. The kernels that one GPU launches are in ``layers``.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any, Literal, Self

from pydantic import ValidationError, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import RuleError, list_validation_problems
from simcluster.model.defaults import add_derived_fields, check_pattern, type_fields
from simcluster.model.encoder import check_image_tokens
from simcluster.model.kind_documents import check_layer_kinds, has_own_norm
from simcluster.model.model_fields import ModelFields
from simcluster.model.trainable import FrozenLayer

Recompute = Literal["none", "selective", "operators", "full"]


class Model(ModelFields):
    """A decoder-only transformer, as described by the ``model`` section of a scenario.

    A plain MLP means the GPT family by default: ``ffn_hidden_size`` is 4 x hidden_size, LayerNorm, learned positions,
    biases, and tied embeddings. A gated MLP (SwiGLU) means the Llama family: RMSNorm, rotary positions, no biases,
    untied embeddings, and a required ``ffn_hidden_size``. Explicit values override the family. Without a pattern, all
    layers have equal attention, which does the mean work of all.
    """

    _fill_defaults = model_validator(mode="before")(add_derived_fields)

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.heads % self.kv_heads:
            fitting = [str(number) for number in range(1, min(self.heads, 1024) + 1) if self.heads % number == 0]
            raise InputError(
                f"kv_heads {self.kv_heads} does not divide heads {self.heads}, so query heads cannot share them "
                f"evenly; use one of {', '.join(fitting)}"
            )
        if self.position_rows is not None and (self.position != "learned" or self.position_rows < self.sequence_length):
            raise InputError(
                f"position_rows {self.position_rows} needs position: learned, and at least sequence_length "
                f"{self.sequence_length} rows; remove position_rows, or set both"
            )
        if self.attention_window is not None and not self.causal:
            raise InputError("attention_window needs a causal mask, but 'causal' is false; remove one of the two keys")
        if self.attention_chunk is not None and (self.attention_window is not None or not self.causal):
            what = "excludes attention_window" if self.causal else "needs a causal mask, but 'causal' is false"
            raise InputError(f"attention_chunk {what}; remove one of the two keys")
        if self.full_attention_every is not None and self.attention_window is None:
            raise InputError("full_attention_every selects layers without a window; also set attention_window")
        if self.parallel_residual and (self.moe or self.layer_norms == 4):
            what = "moe" if self.moe else "layer_norms 4"
            raise InputError(f"parallel_residual is not supported with {what}; remove one of the two")
        if self.values_from_keys and self.qk_norm != "qkv":
            raise InputError("values_from_keys needs norms that tell values from keys; also set qk_norm: qkv")
        self._check_layer_types()
        if self.mla and self.head_dim != self.mla.qk_head_dim:
            raise InputError(
                f"head_dim {self.head_dim} does not equal mla's qk_nope_head_dim + qk_rope_head_dim = "
                f"{self.mla.qk_head_dim}; remove head_dim"
            )
        if self.mla and (self.kv_heads != self.heads or self.qk_norm or self.bias is not False or self.attention_gate):
            raise InputError(
                f"mla has keys for each of the {self.heads} heads, no biases, no gate, and norms on latent vectors "
                "only; remove kv_heads, qk_norm, attention_gate and bias (or set bias: false)"
            )
        return self

    def _check_layer_types(self) -> None:
        check_pattern(self.pattern, self.layer_types, self.layers, self.mtp_pattern, self.mtp_layers)
        if self.blocks is not None and (self.mixer or not 1 <= len(self.blocks) <= 2):
            what = "names the mixer, too; remove mixer" if self.mixer else "must have one or two layer kinds"
            raise InputError(f"blocks {what}")
        if self.pattern and self.full_attention_every is not None:
            raise InputError("the pattern says which layers have a window; remove full_attention_every")
        positions = [fields["position"] for fields in (self.layer_types or {}).values() if "position" in fields]
        if positions and "learned" in (self.position, *positions):
            raise InputError("learned positions are a table in front of all layers; remove position from layer_types")
        check_image_tokens(self.encoder, self.sequence_length)
        types = {each: found for each, found in self.count_layer_types().items() if found[0] not in self.encoder_layers}
        if self.moe and not any("mixture" in each and first < self.layers for each, (first, _) in types.items()):
            what, fix = f"first_dense_layers {self.moe.first_dense_layers}, every", "use fewer first_dense_layers"
            what, fix = ("", "add E to the pattern") if self.pattern else (f": {what} {self.moe.every}", fix)
            raise InputError(f"none of the {self.layers} layers has experts{what}; {fix}, or remove moe")
        check_layer_kinds(self.layer_kinds, {kind for _, *kinds in types for kind in kinds})
        for (word, *kinds), (layer, _) in types.items():
            if "mixture" in kinds and not self.moe and (self.pattern or self.blocks or self.mtp_pattern):
                raise InputError(f"layers of type {word or '/'.join(kinds)} have experts; set moe, or use mlp")
            try:
                self.layer_model(layer)
            except ValidationError as error:
                path, what = list_validation_problems(error, Model, type_fields(word, self.layer_types))[0]
                raise RuleError([(("layer_types", word, *path), what)]) from None

    @property
    def mlp_bias(self) -> bool:
        """Return whether the matmuls of the MLP have biases."""
        return self.bias is True

    @property
    def query_size(self) -> int:
        """Width of all query heads together: heads x head_dim, which may differ from hidden_size."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, equal to that of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def value_dim(self) -> int:
        """Width of a head's value vector, which latent attention sets separately."""
        return self.mla.v_head_dim if self.mla else self.head_dim

    @property
    def num_mlp_matrices(self) -> int:
        """Number of weight matrices of an MLP: 3 with a gate, otherwise 2."""
        return 3 if self.gated_mlp else 2

    @property
    def norm_parameters(self) -> int:
        """Number of parameters of one norm: LayerNorm has scale and shift, RMSNorm only scale."""
        return self.hidden_size * {"layernorm": 2, "rmsnorm": 1}[self.norm]

    @property
    def num_streams(self) -> int:
        """Number of residual streams."""
        return self.residual_streams or 1

    @property
    def final_norm_parameters(self) -> int:
        """Number of parameters of the final norm, and of what sums several residual streams before it."""
        return self.norm_parameters + self._count_stream_parameters(mixed=False)

    def count_stream_weights(self, *, mixed: bool) -> int:
        """Return how many numbers weigh a token's residual streams: in a sum, or also in their mix (``mixed``)."""
        return self.num_streams * (2 + self.num_streams if mixed else 1)

    def _count_stream_parameters(self, *, mixed: bool) -> int:
        """Count the parameters that make these numbers: a matrix, and for each number a shift; one scale per kind."""
        made = self.count_stream_weights(mixed=mixed) * (self.num_streams * self.hidden_size + 1)
        return made + (3 if mixed else 1) if self.num_streams > 1 else 0

    @property
    def prediction_layers(self) -> range:
        """Layer numbers of the multi-token prediction layers, which follow the last layer."""
        return range(self.layers, self.layers + (self.mtp_layers or 0))

    @property
    def encoder_layers(self) -> range:
        """Layer numbers of the encoder's parts, which follow those of all other layers."""
        first = self.prediction_layers.stop
        return range(first, first + (self.encoder.num_parts if self.encoder else 0))

    def has_experts(self, layer: int) -> bool:
        """Return whether layer number ``layer`` (from 0) has a mixture of experts."""
        return "mixture" in self.layer_kind_names(layer)

    def layer_kind_names(self, layer: int) -> tuple[str, ...]:
        """Return the names of a layer's kinds in forward order, such as attention and mlp."""
        return self.layer_type(layer)[1:]

    def layer_type(self, layer: int) -> tuple[str, ...]:
        """Return a key that only equal layers share: the layer's word of the pattern, and its kinds' names.

        The word says, too, whether the layer is frozen.
        """
        word, *kinds = self._type_if_trained(layer)
        return " ".join(filter(None, (word, self.freezes_layer(layer)))), *kinds

    def _type_if_trained(self, layer: int) -> tuple[str, ...]:
        if self.encoder and layer in self.encoder_layers:
            return self.encoder.layer_type(layer - self.encoder_layers.start)
        predicts = self.mtp_pattern if layer >= self.layers else None
        word = self.pattern[min(layer, self.layers - 1) % len(self.pattern)] if self.pattern else ""
        fields = type_fields(word, self.layer_types)
        blocks, mixer = fields.get("blocks", self.blocks), fields.get("mixer", self.mixer) or "attention"
        if predicts:
            word, blocks = "", tuple(kind for letter in predicts for kind in type_fields(letter, None)["blocks"])
        if blocks is None:
            experts = self.moe is not None and self.moe.is_moe_layer(layer)
            blocks = mixer, "mixture" if experts else "mlp"
        if mla := fields.get("mla", self.mla):
            latent = "sparse_attention" if mla.indexer else "latent_attention"
            blocks = tuple(latent if kind == "attention" else kind for kind in blocks)
        return word, *blocks

    def layer_model(self, layer: int) -> Model:
        """Return the model with the fields of one layer's type, as if all layers were of this type."""
        alone = self.mtp_pattern and layer >= self.layers
        if layer in self.encoder_layers:
            return _model_of_encoder(self, *self.layer_type(layer))
        frozen = self.freezes_layer(layer)
        if self.pattern is None and not alone and not frozen:
            return self
        return _model_of_type(self, self._type_if_trained(layer), frozen)

    @property
    def layers_text(self) -> str:
        """Number of layers, and of each type if there are several, as in "62 (52 S, 10 F)"."""
        counts = Counter(self.layer_type(layer)[0] for layer in range(self.layers if self.pattern else 0))
        types = ", ".join(f"{count} {word}" for word, count in counts.items())
        return f"{self.layers:,} ({types})" if types else f"{self.layers:,}"

    def count_layer_types(self) -> dict[tuple[str, ...], tuple[int, int]]:
        """Return (first layer, number of layers) for each layer type; multi-token prediction layers count too.

        Layers without experts come first.
        """
        return _count_layer_types(self)

    @property
    def causal_factor(self) -> float:
        """Share of the full attention score matrix that counts as work: 1/2 if causal, otherwise 1.

        1/2 is the usual approximation of (s + 1) / (2 s); Megatron-LM, ``num_floating_point_operations``. In a window
        of w it is in the same way (w / s) (1 - w / (2 s)), and here the mean over the layers. In chunks of c it is the
        sum of their c^2 / (2 s^2), where the last may be shorter.
        """
        if not self.causal:
            return 1.0
        if self.attention_chunk is not None:
            whole, rest = divmod(self.sequence_length, self.attention_chunk)
            return 0.5 * (whole * self.attention_chunk**2 + rest**2) / self.sequence_length**2
        if self.attention_window is None or not (windowed := self._num_windowed_layers):
            return 0.5
        part = self.attention_window / self.sequence_length
        return ((self.layers - windowed) * 0.5 + windowed * part * (1 - part / 2)) / self.layers

    @property
    def mask_edges(self) -> float:
        """Mean number of mask boundaries per query: 1 if causal (the diagonal), 2 in a sliding window (both ends)."""
        return (self.layers + self._num_windowed_layers) / self.layers

    @property
    def _num_windowed_layers(self) -> int:
        if self.attention_window is None or self.attention_window >= self.sequence_length:
            return 0
        full = self.layers // self.full_attention_every if self.full_attention_every else 0
        return self.layers - full

    @property
    def layer_norm_parameters(self) -> int:
        """Number of parameters in a layer's norms and of residual streams, which tensor parallelism does not split."""
        kinds = self.layer_kind_names(0)
        own = sum(has_own_norm(kind, self.layer_kinds) for kind in kinds)  # they count their norms
        found = (self.layer_norms or 2) * (len(kinds) - own) // 2 * self.norm_parameters
        found += len(kinds) * self._count_stream_parameters(mixed=True)
        if self.qk_norm in (None, "unscaled") or "attention" not in kinds:
            return found
        widths = {"full": self.query_size + self.kv_size, **dict.fromkeys(("head", "qkv"), 2 * self.head_dim)}
        return found + self.norm_parameters // self.hidden_size * widths[self.qk_norm]


@lru_cache(maxsize=256)
def _model_of_type(model: Model, layer_type: tuple[str, ...], frozen: FrozenLayer) -> Model:
    word, *kinds = layer_type
    shared = model.model_dump(exclude={"pattern", "layer_types", "mixer", "blocks", "mtp_pattern", "encoder"})
    own = {name: value for name, value in type_fields(word, model.layer_types).items() if name != "mixer"}
    absent: dict[str, Any] = {} if "mixture" in kinds else {"moe": None}
    absent["layer_kinds"] = {name: each for name, each in (model.layer_kinds or {}).items() if name in kinds} or None
    return Model.model_validate({**shared, **absent, **own, "blocks": kinds}).as_layer_of(model, frozen)


@lru_cache(maxsize=64)
def _model_of_encoder(model: Model, word: str, kind: str) -> Model:
    ends = {"layers", "hidden_size", "heads", "kv_heads", "head_dim", "vocab_size", "vocab_multiple", "sequence_length"}
    own = {"blocks": (kind,), "layer_kinds": {kind: model.encoder.kind_sizes(word) if model.encoder else {}}}
    return Model.model_validate({**model.model_dump(include=ends), "position": "none", "bias": False, **own})


@lru_cache(maxsize=64)
def _count_layer_types(model: Model) -> dict[tuple[str, ...], tuple[int, int]]:
    stop, moe = model.layers if model.mtp_pattern else model.prediction_layers.stop, model.moe
    if model.pattern is None and not model.has_frozen_layers:  # at most two types: count without a loop over layers
        experts = moe.count_moe_layers(stop) if moe and model.blocks is None else 0
        layers = range(min(stop, moe.first_dense_layers + moe.every + 1) if experts and moe else 1)
        counts = {each: experts if "mixture" in each else stop - experts for each in map(model.layer_type, layers)}
        counts = {each: count or stop for each, count in counts.items()}
    else:
        layers = range(stop)
        counts = Counter(map(model.layer_type, layers))
    first = {model.layer_type(layer): layer for layer in reversed(layers)}
    if model.mtp_pattern:
        predicted = model.layer_type(stop)
        counts[predicted] = counts.get(predicted, 0) + len(model.prediction_layers)
        first.setdefault(predicted, stop)
    counts |= Counter(map(model.layer_type, model.encoder_layers))
    first |= {model.layer_type(layer): layer for layer in reversed(model.encoder_layers)}
    return {
        each: (first[each], counts[each]) for each in sorted(counts, key=lambda key: ("mixture" in key, first[key]))
    }
