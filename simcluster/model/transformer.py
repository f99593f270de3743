"""Transformer arithmetic: what a model is, its parameters, and the FLOPs of a step under each published convention.

Pure counting, with no device and no time in it.  What one GPU launches is in ``layers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, StrictBool, model_validator

from simcluster.documents.spec import Spec
from simcluster.errors import InputError

Recompute = Literal["none", "selective", "operators", "full"]

_LARGEST = 10**9  # far beyond any model; products of four such counts still fit a float


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
        shown = f"{value!r}"
        shown = shown if len(shown) <= 40 else shown[:37] + "..."
        raise InputError(f"{shown} is not a whole number from 1 to {_LARGEST}; write it plainly, as in 96")
    return value


Count = Annotated[int, BeforeValidator(_count)]


class Model(Spec):
    """A dense decoder-style transformer, as the ``model`` section of a scenario describes it.

    Left out, a field takes a documented default.  ``kv_heads``: as many as ``heads``.  ``head_dim``: hidden_size /
    heads.  A plain MLP means the GPT family: ``ffn_hidden_size`` is 4 x hidden_size, LayerNorm, learned positions,
    biases, and tied embeddings.  A gated MLP (SwiGLU) means the Llama family: RMSNorm, rotary positions, no biases,
    untied embeddings, and an ``ffn_hidden_size`` that must be given.  Whatever is written wins over the family.

    ``position: none`` has neither a table nor a rotation (ALiBi).  ``bias`` is about every linear layer but the LM
    head, which has none.  ``causal: false`` makes attention cover the whole square.  The vocabulary is padded to a
    multiple of ``vocab_multiple`` x tp (Megatron-LM's ``--make-vocab-size-divisible-by``; 1: as it is, where tp is 1).
    """

    name: str = ""
    layers: Count
    hidden_size: Count
    heads: Count
    vocab_size: Count
    sequence_length: Count
    gated_mlp: StrictBool = False
    # The defaults below never survive: _fill_defaults puts the derived value in their place before validation.
    kv_heads: Count = 0
    head_dim: Count = 0
    ffn_hidden_size: Count = 0
    tied_embeddings: StrictBool = False
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    position: Literal["learned", "rope", "none"] = "learned"
    bias: StrictBool = False
    causal: StrictBool = True
    vocab_multiple: Count = 128

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, document: object) -> object:
        if not isinstance(document, Mapping):
            return document
        if document.get("moe") is not None:
            raise InputError(
                "moe: mixture-of-experts is not modelled yet; remove moe and describe a dense model "
                "(ffn_hidden_size, gated_mlp)"
            )
        given = {key: value for key, value in document.items() if key != "moe"}
        return {**_derived(given), **given}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.heads % self.kv_heads:
            fitting = _listed(number for number in range(1, min(self.heads, 1024) + 1) if self.heads % number == 0)
            raise InputError(
                f"kv_heads {self.kv_heads} does not divide heads {self.heads}, so query heads cannot share them "
                f"evenly; use one of {fitting}"
            )
        return self

    @property
    def query_size(self) -> int:
        """Width q of all query heads (heads x head_dim; it need not equal hidden_size)."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width kv of all key heads, and of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def mlp_matrices(self) -> int:
        """Weight matrices of an MLP, each hidden_size x ffn_hidden_size: gate, up, down, or up and down."""
        return 3 if self.gated_mlp else 2

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm: scale and shift of a LayerNorm, scale of an RMSNorm."""
        return self.hidden_size * (2 if self.norm == "layernorm" else 1)

    @property
    def causal_factor(self) -> float:
        """The share chi of the attention square that counts as work: 1/2 under a causal mask, otherwise 1.

        1/2 is the usual approximation of (s + 1) / (2 s); Megatron-LM, ``num_floating_point_operations``.
        """
        return 0.5 if self.causal else 1.0


def _derived(given: Mapping[str, object]) -> dict[str, object]:
    """The defaults that follow from what is given; nothing that follows from a value which is itself wrong."""
    gated = given.get("gated_mlp") is True
    if gated and "ffn_hidden_size" not in given:
        raise InputError(
            "ffn_hidden_size is missing; a gated MLP has no usual width, so give it "
            "(Llama 3 8B: 14336 at hidden_size 4096)"
        )
    derived: dict[str, object] = {
        "norm": "rmsnorm" if gated else "layernorm",
        "position": "rope" if gated else "learned",
        "bias": not gated,
        "tied_embeddings": not gated,
    }
    hidden, heads = _valid_count(given.get("hidden_size")), _valid_count(given.get("heads"))
    if hidden:
        derived["ffn_hidden_size"] = 4 * hidden
    if heads:
        derived["kv_heads"] = heads
    if hidden and heads:
        if "head_dim" not in given and hidden % heads:
            below, above = hidden - hidden % heads, hidden - hidden % heads + heads
            fitting = f"{below} or {above}" if below else f"{above}"
            raise InputError(
                f"hidden_size {hidden} is not a multiple of heads {heads}; use {fitting}, or give head_dim"
            )
        derived["head_dim"] = hidden // heads
    return derived


def _valid_count(value: object) -> int | None:
    try:
        return _count(value)
    except InputError:
        return None


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)


# --- parameters -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """How many parameters each part has.  ``attention``, ``mlp`` and ``norm`` are of one layer (norm: both of them)."""

    layers: int
    attention: int
    mlp: int
    norm: int
    token_embedding: int
    position_embedding: int
    lm_head: int  # 0 when it is the token embedding (tied)
    final_norm: int

    @property
    def per_layer(self) -> int:
        return self.attention + self.mlp + self.norm

    @property
    def embedding(self) -> int:
        return self.token_embedding + self.position_embedding

    @property
    def total(self) -> int:
        return self.layers * self.per_layer + self.embedding + self.lm_head + self.final_norm


def parameters(model: Model) -> ParameterCount:
    """The parameters of the whole model, with its own (not padded) vocabulary.

    For the GPT family it is 12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h)) of arXiv:2104.04473 plus the final norm.
    """
    table = model.vocab_size * model.hidden_size
    return ParameterCount(
        layers=model.layers,
        attention=_attention_parameters(model, model.query_size, model.kv_size),
        mlp=_mlp_parameters(model, model.ffn_hidden_size),
        norm=2 * model.norm_parameters,
        token_embedding=table,
        position_embedding=_position_parameters(model),
        lm_head=0 if model.tied_embeddings else table,
        final_norm=model.norm_parameters,
    )


def _attention_parameters(model: Model, query: int, kv: int) -> int:
    """Column-parallel QKV (its bias is split with it) and row-parallel projection (its bias is on every rank)."""
    bias = query + 2 * kv + model.hidden_size if model.bias else 0
    return model.hidden_size * (2 * query + 2 * kv) + bias


def _mlp_parameters(model: Model, ffn: int) -> int:
    bias = (model.mlp_matrices - 1) * ffn + model.hidden_size if model.bias else 0
    return model.mlp_matrices * model.hidden_size * ffn + bias


def _position_parameters(model: Model) -> int:
    return model.sequence_length * model.hidden_size if model.position == "learned" else 0


@dataclass(frozen=True, slots=True)
class TensorShard:
    """The widths that one tensor-parallel rank holds: heads, key-value heads, MLP columns, (padded) vocabulary rows."""

    heads: int
    kv_heads: int
    ffn: int
    vocab: int


def tensor_shard(model: Model, tp: int) -> TensorShard:
    """What each of ``tp`` ranks holds of a layer and of the vocabulary.

    With more ranks than key-value heads each rank keeps a copy of one of them, as Megatron-LM does.
    Raises InputError where heads, key-value heads or MLP columns do not divide.
    """
    if not _splits(model, tp):
        fitting = _listed(number for number in range(1, min(model.heads, 1024) + 1) if _splits(model, number))
        raise InputError(
            f"tp {tp} does not split heads {model.heads}, kv_heads {model.kv_heads} and ffn_hidden_size "
            f"{model.ffn_hidden_size} evenly; use one of {fitting}"
        )
    return TensorShard(
        heads=model.heads // tp,
        kv_heads=max(model.kv_heads // tp, 1),
        ffn=model.ffn_hidden_size // tp,
        vocab=padded_vocab(model, tp) // tp,
    )


def _splits(model: Model, tp: int) -> bool:
    if tp < 1 or model.heads % tp or model.ffn_hidden_size % tp:
        return False
    return model.kv_heads % tp == 0 or tp % model.kv_heads == 0


def padded_vocab(model: Model, tp: int) -> int:
    """The vocabulary rounded up to a multiple of ``vocab_multiple`` x tp, so that every rank's share is one of that.

    Megatron-LM's ``--make-vocab-size-divisible-by``, 128 by default.
    """
    multiple = model.vocab_multiple * tp
    return -(-model.vocab_size // multiple) * multiple


def layer_parameters_per_tp_rank(model: Model, tp: int) -> int:
    """Parameters of one layer on one of ``tp`` ranks: matrices split; norms and row-parallel biases on every rank."""
    shard = tensor_shard(model, tp)
    attention = _attention_parameters(model, shard.heads * model.head_dim, shard.kv_heads * model.head_dim)
    return attention + _mlp_parameters(model, shard.ffn) + 2 * model.norm_parameters


def embedding_parameters_per_tp_rank(model: Model, tp: int) -> int:
    """The rank's rows of the padded token table, and the position table, which every rank holds whole."""
    return padded_vocab(model, tp) // tp * model.hidden_size + _position_parameters(model)


def lm_head_parameters_per_tp_rank(model: Model, tp: int) -> int:
    """The rank's rows of the padded output matrix (if tied and on another stage than the embedding: a copy)."""
    return padded_vocab(model, tp) // tp * model.hidden_size


def stage_parameters_per_tp_rank(model: Model, tp: int, *, layers: int, first: bool, last: bool) -> int:
    """Parameters that one tensor-parallel rank of a pipeline stage holds.

    ``layers`` is how many layers the stage has in all its chunks; ``first`` and ``last`` say whether it has the
    embedding and the final norm with the LM head.  Tied embeddings on two stages are held twice (Megatron-LM),
    on one stage once.
    """
    total = layers * layer_parameters_per_tp_rank(model, tp)
    if first:
        total += embedding_parameters_per_tp_rank(model, tp)
    if last:
        total += model.norm_parameters
        if not (first and model.tied_embeddings):
            total += lm_head_parameters_per_tp_rank(model, tp)
    return total
