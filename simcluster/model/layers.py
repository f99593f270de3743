"""Registry of layer kinds, and parameter counts for a whole model or one rank.

To add a kind: write a subclass of ``layer_kind.LayerKind`` in a separate file, and a line in ``LAYER_KINDS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean
from simcluster.model.attention import Attention
from simcluster.model.experts import ExpertMixture
from simcluster.model.kernels import Block
from simcluster.model.latent_attention import LatentAttention
from simcluster.model.layer_kind import LayerKind, WeightMatrix
from simcluster.model.layer_sections import RankShape as RankShape
from simcluster.model.mlp import Mlp
from simcluster.model.shard_widths import padded_vocab_size
from simcluster.model.transformer import Model

LAYER_KINDS: dict[str, LayerKind] = {
    "attention": Attention(),
    "latent_attention": LatentAttention(),
    "mlp": Mlp(),
    "mixture": ExpertMixture(),
}
"""Every layer kind by its name in scenarios."""


def layer_kinds(model: Model, layer: int) -> tuple[LayerKind, ...]:
    """Return the layer kinds of one layer in forward order; raise InputError for an unknown kind."""
    try:
        return tuple([LAYER_KINDS[word] for word in model.layer_kind_names(layer)])
    except KeyError as error:
        word = error.args[0]
        near = did_you_mean(word, LAYER_KINDS)
        raise InputError(f"there is no layer kind {word!r}{near}; use one of {', '.join(LAYER_KINDS)}") from None


def count_distinct_layers(model: Model) -> list[tuple[int, int]]:
    """Return (first layer, number of layers) for each distinct kind of layer; layers without experts come first."""
    mixtures = model.num_moe_layers + sum(map(model.has_experts, model.prediction_layers))
    first = sorted(model.first_layer_of_kinds.values(), key=model.has_experts)
    return [
        (layer, mixtures if model.has_experts(layer) else model.prediction_layers.stop - mixtures) for layer in first
    ]


def layer_kinds_by_name(model: Model) -> dict[str, LayerKind]:
    """Return the model's layer kinds by name, in forward order."""
    sorts = [layer_kinds(model, layer) for layer, _ in count_distinct_layers(model)]
    return {kind.name: kind for each in zip(*sorts, strict=True) for kind in each}


def layer_matrices(model: Model, layer: int, *, tp: int, ep: int, etp: int) -> tuple[WeightMatrix, ...]:
    """Return a layer's weight matrices on one rank, for optimizers that update whole matrices (Muon).

    Embedding, LM head, norms and biases are not among them (Megatron-Core, core/optimizer/layer_wise_optimizer.py,
    ``is_managed_by_layer_wise_optimizer``).
    """
    return tuple([matrix for kind in layer_kinds(model, layer) for matrix in kind.matrices(model, tp, ep, etp)])


def attention_block(model: Model, shape: RankShape) -> Block:
    """Return the attention block of a layer on one rank."""
    return layer_kinds(model, 0)[0].block(model, shape)


def mlp_block(model: Model, shape: RankShape) -> Block:
    """Return the MLP block of a layer on one rank."""
    return LAYER_KINDS["mlp"].block(model, shape)


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Number of parameters in each part of a model.

    ``attention`` (or another kind that mixes tokens), ``mlp`` and ``norm`` are of one layer (norm: both of them),
    ``total`` of the whole model, and ``active`` those that one token uses: all but the experts that it does not visit.
    """

    attention: int
    mlp: int
    norm: int
    token_embedding: int
    position_embedding: int
    lm_head: int  # 0 when it is the token embedding (tied)
    final_norm: int
    embedding_norm: int
    total: int
    active: int

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
    norms = model.norm_parameters, model.norm_parameters if model.embedding_norm else 0
    total = active = sum(tables) + sum(norms) + len(model.prediction_layers) * mtp_layer_parameters(model)
    for layer, count in count_distinct_layers(model):
        kinds = layer_kinds(model, layer)
        total += count * sum(kind.count_parameters(model) + kind.count_expert_parameters(model) for kind in kinds)
        active += count * sum(kind.count_parameters_per_token(model) for kind in kinds)
    mixer, *_ = layer_kinds(model, 0)
    layers = model.prediction_layers.stop * model.layer_norm_parameters
    return ParameterCount(
        mixer.count_parameters(model), LAYER_KINDS["mlp"].count_parameters(model), model.layer_norm_parameters,
        *tables, *norms, total + layers, active + layers,
    )  # fmt: skip


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

    Routed experts are not among them (``expert_parameters_per_rank``); router and shared experts are.
    """
    return sum(kind.count_parameters(model, tp) for kind in layer_kinds(model, layer)) + model.layer_norm_parameters


def layer_matrices_per_tp_rank(model: Model, tp: int) -> tuple[int, ...]:
    """Return the parameter count of each weight matrix of a layer on one of ``tp`` ranks, in order of use.

    Queries, keys and values are one matrix, as are the gate and the first of a gated MLP (Megatron-LM). Of a mixture
    and of latent attention: all of the layer as one.
    """
    if model.moe or model.mla:
        return (layer_parameters_per_tp_rank(model, tp),)
    return tuple(each.elements for kind in layer_kinds(model, 0) for each in kind.matmul_matrices(model, tp))


def expert_parameters_per_rank(model: Model, layer: int, *, ep: int, etp: int) -> int:
    """Count the routed-expert parameters of a layer on one rank: experts / ep, each split over etp."""
    return sum(kind.count_expert_parameters(model, ep, etp) for kind in layer_kinds(model, layer))


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
    total = layers * layer_parameters_per_tp_rank(model, tp) if layers else 0
    if first:
        total += embedding_parameters_per_tp_rank(model, tp)
    if last:
        total += model.norm_parameters
        if not (first and model.tied_embeddings):
            total += lm_head_parameters_per_tp_rank(model, tp)
    return total
