"""How many parameters a model has, and one rank holds of it.  Pure counting."""

from __future__ import annotations

from dataclasses import dataclass

from simcluster.model.layers import LAYER_KINDS, kinds_of, sorts_of_layers
from simcluster.model.shards import padded_vocab
from simcluster.model.transformer import Model


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """How many parameters each part has.

    ``attention`` (or what else mixes tokens), ``mlp`` and ``norm`` are of one layer (norm: both of them), ``total`` of
    the whole model, and ``active`` are those that a token meets: all but the experts that it does not visit.
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
        """Parameters of tables and norm of the embedding."""
        return self.token_embedding + self.position_embedding + self.embedding_norm


def parameters(model: Model) -> ParameterCount:
    """Count the parameters of the whole model, with its own (not padded) vocabulary.

    For the GPT family it is 12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h)) of arXiv:2104.04473 plus the final norm.
    """
    table = model.vocab_size * model.hidden_size
    tables = table, position_parameters(model), 0 if model.tied_embeddings else table
    norms = model.norm_parameters, model.norm_parameters if model.embedding_norm else 0
    total = active = sum(tables) + sum(norms) + len(model.predicting) * prediction_parameters(model)
    for layer, count in sorts_of_layers(model):
        kinds = kinds_of(model, layer)
        total += count * sum(kind.parameters(model) + kind.expert_parameters(model) for kind in kinds)
        active += count * sum(kind.parameters_used(model) for kind in kinds)
    mixer, *_ = kinds_of(model, 0)
    layers = model.predicting.stop * model.layer_norm_parameters
    return ParameterCount(
        mixer.parameters(model), LAYER_KINDS["mlp"].parameters(model), model.layer_norm_parameters,
        *tables, *norms, total + layers, active + layers,
    )  # fmt: skip


def prediction_parameters(model: Model, tp: int = 1) -> int:
    """Of a layer of multi-token prediction besides its layer, on one of ``tp`` ranks: the projection, which they split;
    norms of both that it projects, and the one in front of the LM head."""
    return 2 * model.hidden_size * model.hidden_size // tp + 3 * model.norm_parameters


def position_parameters(model: Model) -> int:
    """Of the table of learned positions."""
    rows = model.position_rows or model.sequence_length
    return rows * model.hidden_size * {"learned": 1, "rope": 0, "none": 0}[model.position]


# --- of one rank ------------------------------------------------------------------------------------------------------


def layer_parameters_per_tp_rank(model: Model, tp: int, layer: int = 0) -> int:
    """Count the parameters of one layer on one of ``tp`` ranks: matrices split; norms and row-parallel biases on every
    rank.

    Routed experts are not among them (``expert_parameters_per_rank``); router and shared experts are.
    """
    return sum(kind.parameters(model, tp) for kind in kinds_of(model, layer)) + model.layer_norm_parameters


def layer_matrices_per_tp_rank(model: Model, tp: int) -> tuple[int, ...]:
    """Count the parameters of the weight matrices of one layer on one of ``tp`` ranks, in the order of their use.

    Queries, keys and values are one matrix, as are the gate and the first of a gated MLP (Megatron-LM).  Of a mixture
    and of latent attention: all of the layer as one.
    """
    if model.moe or model.mla:
        return (layer_parameters_per_tp_rank(model, tp),)
    return tuple(each.elements for kind in kinds_of(model, 0) for each in kind.products(model, tp))


def expert_parameters_per_rank(model: Model, layer: int, *, ep: int, etp: int) -> int:
    """Count the parameters of the routed experts that a rank holds of one layer: experts / ep, each split over etp."""
    return sum(kind.expert_parameters(model, ep, etp) for kind in kinds_of(model, layer))


def embedding_parameters_per_tp_rank(model: Model, tp: int) -> int:
    """The rank's rows of the padded token table, and the position table, which every rank holds whole."""
    whole = position_parameters(model) + (model.norm_parameters if model.embedding_norm else 0)
    return padded_vocab(model, tp) // tp * model.hidden_size + whole


def lm_head_parameters_per_tp_rank(model: Model, tp: int) -> int:
    """The rank's rows of the padded output matrix (if tied and on another stage than the embedding: a copy)."""
    return padded_vocab(model, tp) // tp * model.hidden_size


def stage_parameters_per_tp_rank(model: Model, tp: int, *, layers: int, first: bool, last: bool) -> int:
    """Parameters that one tensor-parallel rank of a pipeline stage holds of a model whose layers are alike.

    ``layers`` is how many layers the stage has in all its chunks; ``first`` and ``last`` say whether it has the
    embedding and the final norm with the LM head.  Tied embeddings on two stages are held twice (Megatron-LM),
    on one stage once.
    """
    total = layers * layer_parameters_per_tp_rank(model, tp) if layers else 0
    if first:
        total += embedding_parameters_per_tp_rank(model, tp)
    if last:
        total += model.norm_parameters
        if not (first and model.tied_embeddings):
            total += lm_head_parameters_per_tp_rank(model, tp)
    return total
