"""Registry of layer kinds, and parameter counts for a whole model or one rank.

To add a kind: write its document (``kind_documents``), or a subclass of ``layer_kind.LayerKind`` in a separate file and
a line in ``LAYER_KINDS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean
from simcluster.model.adapters import list_adapters
from simcluster.model.attention import Attention
from simcluster.model.documented_kind import DocumentedKind
from simcluster.model.experts import ExpertMixture
from simcluster.model.kind_documents import BUILTIN_DOCUMENTS
from simcluster.model.latent_attention import LatentAttention
from simcluster.model.layer_kind import LayerKind, WeightMatrix
from simcluster.model.mlp import Mlp
from simcluster.model.rank_shape import RankShape as RankShape
from simcluster.model.shard_widths import padded_vocab_size
from simcluster.model.sparse_attention import SparseAttention
from simcluster.model.transformer import Model

LAYER_KINDS: dict[str, LayerKind] = {
    "attention": Attention(),
    "latent_attention": LatentAttention(),
    "sparse_attention": SparseAttention(),
    "mlp": Mlp(),
    "mixture": ExpertMixture(),
    **{name: DocumentedKind(name) for name in BUILTIN_DOCUMENTS},
}
"""Every layer kind by its name in scenarios."""


def layer_kinds(model: Model, layer: int) -> tuple[LayerKind, ...]:
    """Return the layer kinds of one layer in forward order; raise InputError for an unknown kind."""
    return tuple([find_layer_kind(model, word) for word in model.layer_kind_names(layer)])


def find_layer_kind(model: Model, word: str) -> LayerKind:
    """Return a layer kind by its name, built in or the model's own; raise InputError for an unknown one."""
    if word in LAYER_KINDS:
        return LAYER_KINDS[word]
    if word in (model.layer_kinds or {}):
        return _own_kind(word, (model.layer_kinds or {})[word])
    what = f"there is no layer kind {word!r}{did_you_mean(word, LAYER_KINDS)}"
    raise InputError(f"{what}; use one of {', '.join(LAYER_KINDS)}, or describe it in layer_kinds")


@lru_cache(maxsize=256)
def _own_kind(name: str, document: Mapping[str, Any]) -> DocumentedKind:
    return DocumentedKind(name, document)


def layer_matrices(model: Model, layer: int, *, tp: int, ep: int, etp: int) -> tuple[WeightMatrix, ...]:
    """Return a layer's weight matrices on one rank, for optimizers that update whole matrices (Muon).

    Embedding, LM head, norms and biases are not among them (Megatron-Core, core/optimizer/layer_wise_optimizer.py,
    ``is_managed_by_layer_wise_optimizer``).
    """
    own, streams = model.layer_model(layer), model.num_streams
    mix = [WeightMatrix(own.count_stream_weights(mixed=True), streams * own.hidden_size, "none")] * (streams > 1)
    return tuple([each for kind in layer_kinds(model, layer) for each in (*kind.matrices(own, tp, ep, etp), *mix)])


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Number of parameters in a model (``total``), in parts of it outside its layers, and those that a token uses.

    A token uses (``active``) all but the experts that it does not visit. Those of adapters count; ``frozen`` ones have
    no gradients.
    """

    token_embedding: int
    position_embedding: int
    lm_head: int  # 0 when it is the token embedding (tied)
    final_norm: int
    embedding_norm: int
    total: int
    active: int
    frozen: int = 0

    @property
    def embedding(self) -> int:
        """Number of parameters in the embedding's tables and norm."""
        return self.token_embedding + self.position_embedding + self.embedding_norm


def parameters(model: Model) -> ParameterCount:
    """Count the parameters of the whole model, with its unpadded vocabulary.

    For the GPT family it is 12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h)) of arXiv:2104.04473 plus the final norm.
    """
    table = model.vocab_size * model.hidden_size
    tables = table, position_parameters(model), 0 if model.tied_embeddings else table
    norms = model.final_norm_parameters, model.norm_parameters if model.embedding_norm else 0
    total = active = sum(tables) + sum(norms) + len(model.prediction_layers) * mtp_layer_parameters(model)
    ends = model.freezes("embedding") * (tables[0] + tables[1] + norms[1])
    frozen = ends + model.freezes("lm_head") * (tables[2] + norms[0])
    for layer, count in model.count_layer_types().values():
        own, kinds = model.layer_model(layer), layer_kinds(model, layer)
        layer_norms = count * (own.layer_norm_parameters + adapter_parameters_per_tp_rank(model, 1, layer))
        experts = sum(kind.count_expert_parameters(own) for kind in kinds if own.freezes(kind.name))
        frozen += count * (frozen_parameters_per_tp_rank(model, 1, layer) + experts)
        total += count * sum(kind.count_parameters(own) + kind.count_expert_parameters(own) for kind in kinds)
        active += count * sum(kind.count_parameters_per_token(own) for kind in kinds) + layer_norms
        total += layer_norms
    return ParameterCount(*tables, *norms, total, active, frozen)


def mtp_layer_parameters(model: Model, tp: int = 1) -> int:
    """Count the parameters that multi-token prediction adds to a layer on a tp rank: projection, norms."""
    return 2 * model.hidden_size * model.hidden_size // tp + 3 * model.norm_parameters


def position_parameters(model: Model) -> int:
    """Count the parameters of the table of learned positions."""
    rows = model.position_rows or model.sequence_length
    return rows * model.hidden_size * {"learned": 1, "rope": 0, "none": 0}[model.position]


# --- of one rank ------------------------------------------------------------------------------------------------------


def layer_parameters_per_tp_rank(model: Model, tp: int, layer: int = 0) -> int:
    """Count a layer's parameters on one of ``tp`` ranks; norms and row-parallel biases are not split.

    Routed experts are not among them (``expert_parameters_per_rank``); router, shared experts and adapters are.
    """
    own = model.layer_model(layer)
    norms = own.layer_norm_parameters + adapter_parameters_per_tp_rank(model, tp, layer)
    return sum(kind.count_parameters(own, tp) for kind in layer_kinds(model, layer)) + norms


def adapter_parameters_per_tp_rank(model: Model, tp: int, layer: int) -> int:
    """Count the parameters of a layer's adapters on one of ``tp`` ranks."""
    own = model.layer_model(layer)
    adapters = (each for kind in layer_kinds(model, layer) for each in list_adapters(own, kind.name, tp))
    return sum(each.parameters for each in adapters)


def frozen_parameters_per_tp_rank(model: Model, tp: int, layer: int, *, quantized: bool = False) -> int:
    """Count a layer's frozen parameters on one of ``tp`` ranks, without routed experts; ``quantized``: in 4 bits."""
    own, kinds = model.layer_model(layer), layer_kinds(model, layer)
    frozen = [kind for kind in kinds if own.freezes(kind.name)]
    if quantized:
        held = (each for kind in frozen for each in kind.matrices(own, tp) if not each.experts)
        return sum(each.elements * each.count for each in held) if own.lora and own.lora.base_weights else 0
    norms = own.layer_norm_parameters if len(frozen) == len(kinds) else 0
    return sum(kind.count_parameters(own, tp) for kind in frozen) + norms


def layer_matrices_per_tp_rank(model: Model, tp: int, layer: int) -> tuple[int, ...]:
    """Return the parameter count of each weight matrix of a layer on one of ``tp`` ranks, in order of use.

    Queries, keys and values are one matrix, as are the gate and the first of a gated MLP (Megatron-LM). Of a mixture
    and of latent attention: all of the layer as one.
    """
    own = model.layer_model(layer)
    if own.moe or own.mla:
        return (layer_parameters_per_tp_rank(model, tp, layer),)
    return tuple(each.elements for kind in layer_kinds(model, layer) for each in kind.matmul_matrices(own, tp))


def expert_parameters_per_rank(model: Model, layer: int, *, ep: int, etp: int) -> int:
    """Count the routed-expert parameters of a layer on one rank: experts / ep, each split over etp."""
    own = model.layer_model(layer)
    return sum(kind.count_expert_parameters(own, ep, etp) for kind in layer_kinds(model, layer))


def embedding_parameters_per_tp_rank(model: Model, tp: int) -> int:
    """Count a tp rank's embedding parameters: a part of the padded token table, the whole position table and norm."""
    whole = position_parameters(model) + (model.norm_parameters if model.embedding_norm else 0)
    return padded_vocab_size(model, tp) // tp * model.hidden_size + whole


def lm_head_parameters_per_tp_rank(model: Model, tp: int) -> int:
    """Count a tp rank's LM head parameters, vocabulary padded; tied heads on another stage are copies."""
    return padded_vocab_size(model, tp) // tp * model.hidden_size


def stage_parameters_per_tp_rank(model: Model, tp: int, *, layers: int, first: bool, last: bool) -> int:
    """Count the parameters of a pipeline stage with equal layers on one tensor-parallel rank.

    ``layers`` is the number of layers of the stage in all its chunks; ``first`` and ``last``: whether it has the
    embedding and the final norm with the LM head. Tied embeddings on two stages are held twice (Megatron-LM), on one
    stage once.
    """
    if layers and len(model.count_layer_types()) > 1 and model.pattern:
        raise InputError("stage_parameters_per_tp_rank needs equal layers, but the model has a pattern of layers")
    total = layers * layer_parameters_per_tp_rank(model, tp) if layers else 0
    if first:
        total += embedding_parameters_per_tp_rank(model, tp)
    if last:
        total += model.final_norm_parameters
        if not (first and model.tied_embeddings):
            total += lm_head_parameters_per_tp_rank(model, tp)
    return total
