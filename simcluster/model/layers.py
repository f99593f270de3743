"""Registry of layer kinds, and parameter counts of a whole model and of one rank.

To add a kind: write a subclass of ``layer_kind.LayerKind`` in a separate file, and a line in ``LAYER_KINDS``.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean
from simcluster.model.attention import Attention
from simcluster.model.experts import Experts
from simcluster.model.kernels import Block
from simcluster.model.latent import LatentAttention
from simcluster.model.layer_kind import LayerKind, WeightMatrix
from simcluster.model.layer_sections import RankShape as RankShape
from simcluster.model.mlp import Mlp
from simcluster.model.transformer import Model, padded_vocab

LAYER_KINDS: dict[str, LayerKind] = {
    "attention": Attention(),
    "latent_attention": LatentAttention(),
    "mlp": Mlp(),
    "mixture": Experts(),
}
"""Every layer kind by its word."""


def kinds_of_layer(model: Model, layer: int) -> tuple[LayerKind, ...]:
    """Return the layer kinds of one layer in forward order; raise InputError for an unknown name."""
    try:
        return tuple([LAYER_KINDS[word] for word in model.kinds(layer)])
    except KeyError as error:
        word = error.args[0]
        near = did_you_mean(word, LAYER_KINDS)
        raise InputError(f"there is no layer kind {word!r}{near}; known: {', '.join(LAYER_KINDS)}") from None


def distinct_layers(model: Model) -> list[tuple[int, int]]:
    """Return (number of the first layer, count of layers) for each kind of layer; those without experts come first."""
    mixtures = model.moe_layers + sum(map(model.has_experts, model.prediction_layers))
    first = sorted(model.kinds_of_layers.values(), key=model.has_experts)
    return [
        (layer, mixtures if model.has_experts(layer) else model.prediction_layers.stop - mixtures) for layer in first
    ]


def kinds_by_name(model: Model) -> dict[str, LayerKind]:
    """Return every layer kind that the model has by its name, in forward order."""
    sorts = [kinds_of_layer(model, layer) for layer, _ in distinct_layers(model)]
    return {kind.name: kind for each in zip(*sorts, strict=True) for kind in each}


def layer_matrices(model: Model, layer: int, *, tp: int, ep: int, etp: int) -> tuple[WeightMatrix, ...]:
    """Return a layer's weight matrices on one rank that an optimizer of whole matrices, such as Muon, updates.

    Embedding, LM head, norms and biases are not among them (Megatron-Core, core/optimizer/layer_wise_optimizer.py,
    ``is_managed_by_layer_wise_optimizer``).
    """
    return tuple([matrix for kind in kinds_of_layer(model, layer) for matrix in kind.matrices(model, tp, ep, etp)])


def attention_block(model: Model, shape: RankShape) -> Block:
    """Return the attention block of the model's layers on a rank of this shape."""
    return kinds_of_layer(model, 0)[0].block(model, shape)


def mlp_block(model: Model, shape: RankShape) -> Block:
    """Return the MLP block of the model's layers on a rank of this shape."""
    return LAYER_KINDS["mlp"].block(model, shape)


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Number of parameters of each part of a model.

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
    total = active = sum(tables) + sum(norms) + len(model.prediction_layers) * prediction_parameters(model)
    for layer, count in distinct_layers(model):
        kinds = kinds_of_layer(model, layer)
        total += count * sum(kind.parameters(model) + kind.expert_parameters(model) for kind in kinds)
        active += count * sum(kind.parameters_used(model) for kind in kinds)
    mixer, *_ = kinds_of_layer(model, 0)
    layers = model.prediction_layers.stop * model.layer_norm_parameters
    return ParameterCount(
        mixer.parameters(model), LAYER_KINDS["mlp"].parameters(model), model.layer_norm_parameters,
        *tables, *norms, total + layers, active + layers,
    )  # fmt: skip


def prediction_parameters(model: Model, tp: int = 1) -> int:
    """Count the parameters that a multi-token prediction layer adds to a tp rank: projection and norms."""
    return 2 * model.hidden_size * model.hidden_size // tp + 3 * model.norm_parameters


def position_parameters(model: Model) -> int:
    """Count the parameters of the table of learned positions."""
    rows = model.position_rows or model.sequence_length
    return rows * model.hidden_size * {"learned": 1, "rope": 0, "none": 0}[model.position]


# --- of one rank ------------------------------------------------------------------------------------------------------


def layer_parameters_per_tp_rank(model: Model, tp: int, layer: int = 0) -> int:
    """Count a layer's parameters on one of ``tp`` ranks; norms and row-parallel biases are on every rank.

    Routed experts are not among them (``expert_parameters_per_rank``); router and shared experts are.
    """
    return sum(kind.parameters(model, tp) for kind in kinds_of_layer(model, layer)) + model.layer_norm_parameters


def layer_matrices_per_tp_rank(model: Model, tp: int) -> tuple[int, ...]:
    """Return the parameter count of each weight matrix of a layer on one of ``tp`` ranks, in order of use.

    Queries, keys and values are one matrix, as are the gate and the first of a gated MLP (Megatron-LM). Of a mixture
    and of latent attention: all of the layer as one.
    """
    if model.moe or model.mla:
        return (layer_parameters_per_tp_rank(model, tp),)
    return tuple(each.elements for kind in kinds_of_layer(model, 0) for each in kind.products(model, tp))


def expert_parameters_per_rank(model: Model, layer: int, *, ep: int, etp: int) -> int:
    """Count the routed-expert parameters of a layer on one rank: experts / ep, each split over etp."""
    return sum(kind.expert_parameters(model, ep, etp) for kind in kinds_of_layer(model, layer))


def embedding_parameters_per_tp_rank(model: Model, tp: int) -> int:
    """Count a rank's embedding parameters: its rows of the padded token table and the whole position table."""
    whole = position_parameters(model) + (model.norm_parameters if model.embedding_norm else 0)
    return padded_vocab(model, tp) // tp * model.hidden_size + whole


def lm_head_parameters_per_tp_rank(model: Model, tp: int) -> int:
    """Count a rank's parameters of the padded LM head matrix (if tied, a copy on another stage)."""
    return padded_vocab(model, tp) // tp * model.hidden_size


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
