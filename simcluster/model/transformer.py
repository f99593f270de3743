"""Transformer arithmetic: what a model is, its parameters, and the FLOPs of a step under each published convention.

Pure counting, with no device and no time in it.  What one GPU launches is in ``layers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import StrictBool, model_validator

from simcluster.documents.spec import Spec
from simcluster.errors import InputError
from simcluster.model.defaults import Count, derived_fields, listed

Recompute = Literal["none", "selective", "operators", "full"]


class Model(Spec):
    """A dense decoder-style transformer, as the ``model`` section of a scenario describes it.

    Left out, a field takes a documented default.  ``kv_heads``: as many as ``heads``.  ``head_dim``: hidden_size /
    heads.  A plain MLP means the GPT family: ``ffn_hidden_size`` is 4 x hidden_size, LayerNorm, learned positions,
    biases, and tied embeddings.  A gated MLP (SwiGLU) means the Llama family: RMSNorm, rotary positions, no biases,
    untied embeddings, and an ``ffn_hidden_size`` that must be given.  Whatever is written wins over the family.

    ``position: none`` has neither a table nor a rotation (ALiBi).  ``bias`` is about every linear layer but the LM
    head, which has none; or those of the ``attention`` alone, or of its ``qkv`` product alone (Qwen 2).  ``causal:
    false`` makes attention cover the whole square.  The vocabulary is padded to a multiple of ``vocab_multiple`` x tp
    (Megatron-LM's ``--make-vocab-size-divisible-by``; 1: as it is, where tp is 1).

    ``position_rows``: of the learned table, left out as many as the sequence has tokens.  ``qk_norm``: of the queries
    and keys of each ``head`` with one scale for all, or over the ``full`` width.  ``layer_norms``: left out 2; 4 is one
    more behind attention and one behind the MLP (Gemma 2), 1 one that both read (Falcon 7B; their sums are still taken
    as two, one after the other).  ``embedding_norm`` is one behind the embedding (BLOOM).  ``attention_window``: tokens
    that a token sees of those before it, itself included; every layer whose number from 1 divides by
    ``full_attention_every`` sees all.  Layers are alike here: each does the mean work of all.
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
    bias: StrictBool | Literal["attention", "qkv"] = False
    causal: StrictBool = True
    vocab_multiple: Count = 128
    position_rows: Count | None = None
    qk_norm: Literal["head", "full"] | None = None
    layer_norms: Literal[1, 2, 4] | None = None
    embedding_norm: Literal[True] | None = None
    attention_window: Count | None = None
    full_attention_every: Count | None = None

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
        return {**derived_fields(given), **given}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.heads % self.kv_heads:
            fitting = listed(number for number in range(1, min(self.heads, 1024) + 1) if self.heads % number == 0)
            raise InputError(
                f"kv_heads {self.kv_heads} does not divide heads {self.heads}, so query heads cannot share them "
                f"evenly; use one of {fitting}"
            )
        if self.position_rows is not None and (self.position != "learned" or self.position_rows < self.sequence_length):
            raise InputError(
                f"position_rows {self.position_rows} is of a table of learned positions, at least as long as the "
                f"sequence of {self.sequence_length}; leave it out, or set position to learned"
            )
        if self.attention_window is not None and not self.causal:
            raise InputError("attention_window looks back, and causal is false; leave one of them out")
        if self.full_attention_every is not None and self.attention_window is None:
            raise InputError("full_attention_every says which layers have no window; give attention_window, too")
        return self

    @property
    def qkv_bias(self) -> bool:
        """Has the product of queries, keys and values a bias?"""
        return self.bias is not False

    @property
    def projection_bias(self) -> bool:
        """Has the attention's output product a bias?"""
        return self.bias in (True, "attention")

    @property
    def mlp_bias(self) -> bool:
        """Have the products of the MLP biases?"""
        return self.bias is True

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

        1/2 is the usual approximation of (s + 1) / (2 s); Megatron-LM, ``num_floating_point_operations``.  In a window
        of w it is in the same way (w / s) (1 - w / (2 s)), and here the mean over the layers.
        """
        if not self.causal:
            return 1.0
        if self.attention_window is None or self.attention_window >= self.sequence_length:
            return 0.5
        part = self.attention_window / self.sequence_length
        full = self.layers // self.full_attention_every if self.full_attention_every else 0
        return (full * 0.5 + (self.layers - full) * part * (1 - part / 2)) / self.layers

    @property
    def layer_norm_parameters(self) -> int:
        """Parameters of all norms of a layer; every tensor-parallel rank has them whole."""
        scales = self.norm_parameters // self.hidden_size
        widths = {"head": 2 * self.head_dim, "full": self.query_size + self.kv_size, None: 0}
        return (self.layer_norms or 2) * self.norm_parameters + scales * widths[self.qk_norm]


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
    embedding_norm: int = 0

    @property
    def per_layer(self) -> int:
        return self.attention + self.mlp + self.norm

    @property
    def embedding(self) -> int:
        return self.token_embedding + self.position_embedding + self.embedding_norm

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
        norm=model.layer_norm_parameters,
        token_embedding=table,
        position_embedding=_position_parameters(model),
        lm_head=0 if model.tied_embeddings else table,
        final_norm=model.norm_parameters,
        embedding_norm=_embedding_norm_parameters(model),
    )


def _attention_parameters(model: Model, query: int, kv: int) -> int:
    """Column-parallel QKV (its bias is split with it) and row-parallel projection (its bias is on every rank)."""
    bias = (query + 2 * kv) * model.qkv_bias + model.hidden_size * model.projection_bias
    return model.hidden_size * (2 * query + 2 * kv) + bias


def _mlp_parameters(model: Model, ffn: int) -> int:
    bias = (model.mlp_matrices - 1) * ffn + model.hidden_size if model.mlp_bias else 0
    return model.mlp_matrices * model.hidden_size * ffn + bias


def _position_parameters(model: Model) -> int:
    rows = model.position_rows or model.sequence_length
    return rows * model.hidden_size if model.position == "learned" else 0


def _embedding_norm_parameters(model: Model) -> int:
    return model.norm_parameters if model.embedding_norm else 0


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
        fitting = listed(number for number in range(1, min(model.heads, 1024) + 1) if _splits(model, number))
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
    return attention + _mlp_parameters(model, shard.ffn) + model.layer_norm_parameters


def embedding_parameters_per_tp_rank(model: Model, tp: int) -> int:
    """The rank's rows of the padded token table, and the position table, which every rank holds whole."""
    whole = _position_parameters(model) + _embedding_norm_parameters(model)
    return padded_vocab(model, tp) // tp * model.hidden_size + whole


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
