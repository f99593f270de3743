"""FLOPs of a layer by phase (F, I, W), and of a sequence as several frameworks count them.

Conventions differ by 12 % for the same run, so each has its function and its name. A matmul (m x k)(k x n) is 2 m n k
FLOP; norms, activations and embedding look-ups count as zero in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from simcluster.base.errors import InputError
from simcluster.model.kernel_choices import RecomputeModule
from simcluster.model.layer_kind import AttentionBackward, Flops
from simcluster.model.layers import layer_kinds, parameters
from simcluster.model.transformer import Model, Recompute


@dataclass(frozen=True, slots=True)
class LayerFlops:
    """FLOPs of one layer: QKV matmul, core attention, output projection, and MLP."""

    qkv: Flops
    core: Flops
    projection: Flops
    mlp: Flops

    @property
    def total(self) -> Flops:
        """FLOPs of all parts of the layer."""
        return self.qkv + self.core + self.projection + self.mlp


def layer_flops(
    model: Model, micro_batch: int, *, attention_backward: AttentionBackward = "model", layer: int = 0
) -> LayerFlops:
    """Return the FLOPs of one layer on ``micro_batch`` sequences, over all ranks that share the layer.

    A weight matmul costs as much in I and again in W as in F; for the core attention see ``Attention.core_flops``. In a
    layer with experts the MLP is those that a token visits and the shared ones; the router's matmul is not counted, as
    in Megatron-LM.
    """
    tokens, own = micro_batch * model.sequence_length, model.layer_model(layer)
    into = out = behind = 0.0
    core = Flops(0.0, 0.0, 0.0)
    for kind in layer_kinds(model, layer):
        weights = kind.count_weights_per_token(own)
        if kind.mixes:
            *_, last = kind.matrices(own)
            into, out = into + weights - last.elements, out + last.elements
            core += kind.core_flops(own, tokens, attention_backward)
        else:
            behind += weights
    return LayerFlops(
        qkv=_weight_matmul_flops(2.0 * tokens * into),
        core=core,
        projection=_weight_matmul_flops(2.0 * tokens * out),
        mlp=_weight_matmul_flops(2.0 * tokens * behind),
    )


def lm_head_flops(model: Model, micro_batch: int) -> Flops:
    """Return the FLOPs of the LM head's matmul with the unpadded vocabulary, whether or not weights are tied."""
    return _weight_matmul_flops(2.0 * micro_batch * model.sequence_length * model.hidden_size * model.vocab_size)


def _weight_matmul_flops(forward: float) -> Flops:
    return Flops(forward, forward, forward)


# --- conventions: FLOPs of one sequence, forward and backward ------------------------------------------------------


def model_flops_per_sequence(model: Model, *, attention: float = 1.0) -> float:
    """Return model FLOPs per sequence as Megatron-LM counts them, the numerator of MFU.

    3 x forward, causal attention at one half, LM head, no recompute; layers of multi-token prediction have LM heads,
    too. Megatron-LM, ``num_floating_point_operations`` (which takes the padded vocabulary; this takes the unpadded one,
    so that the number does not depend on tp). ``attention`` is the part of the core attention that packed documents
    leave: sum(length^2) / sequence_length^2, Megatron-LM's ``seqlen_squared_sum_in_batch``.
    """
    distinct = model.count_layer_types().values()
    layers = sum(count * _packed_layer_flops(model, layer, attention).total.total for layer, count in distinct)
    projection = 2.0 * model.sequence_length * 2 * model.hidden_size * model.hidden_size
    projections = _weight_matmul_flops(len(model.prediction_layers) * projection)
    return layers + (1 + len(model.prediction_layers)) * lm_head_flops(model, 1).total + projections.total


def _packed_layer_flops(model: Model, layer: int, attention: float) -> LayerFlops:
    whole = layer_flops(model, 1, layer=layer)
    if not any(kind.SQUARE for kind in layer_kinds(model, layer)):
        return whole
    core = whole.core
    return replace(whole, core=Flops(*(attention * part for part in (core.forward, core.input_grad, core.weight_grad))))


def hardware_flops_per_sequence(
    model: Model,
    recompute: Recompute,
    *,
    modules: Sequence[RecomputeModule] = ("core_attn",),
    every: int = 1,
    attention: float = 1.0,
) -> float:
    """Return hardware FLOPs per sequence, the numerator of HFU: model FLOPs plus recomputed FLOPs.

    Recomputed are the matmuls of ``modules`` (selective), every second matmul (operators), or a whole layer's forward
    (full); in every layer, or in those whose number is a multiple of ``every``. ``attention`` as in
    ``model_flops_per_sequence``. The embedding and the LM head are never recomputed. Where the software leaves a fused
    core alone (``RankShape.recomputes_core``), omit ``core_attn``.
    """
    again: dict[str, Callable[[int, LayerFlops], float]] = {
        "none": lambda number, layer: 0.0,
        "selective": lambda number, layer: _selective_recompute_flops(model, modules, number, layer),
        "operators": lambda number, layer: _second_matmul_flops(model.layer_model(number)),
        "full": lambda number, layer: layer.total.forward,
    }
    if recompute not in again:
        raise InputError(f"recompute {recompute!r} is not one of {', '.join(again)}")
    if every < 1:
        raise InputError(f"every = {every} must be at least 1; 1 means every layer, 2 every second layer")
    counts = Counter(model.layer_type(layer) for layer in range(0, model.prediction_layers.stop, every))
    twice = sum(
        counts[name] * again[recompute](each, _packed_layer_flops(model, each, attention))
        for name, (each, _) in model.count_layer_types().items()
    )
    return model_flops_per_sequence(model, attention=attention) + twice


def _selective_recompute_flops(model: Model, modules: Sequence[RecomputeModule], index: int, work: LayerFlops) -> float:
    apart = [module for module in modules if module != "shared_experts" or "moe" not in modules]
    own, kinds = model.layer_model(index), layer_kinds(model, index)
    return sum(kind.recompute_flops(own, module, work.core) for module in apart for kind in kinds)


def _second_matmul_flops(model: Model) -> float:
    again = model.query_size + (model.kv_size + model.ffn_hidden_size if model.gated_mlp else 0)
    return 2.0 * model.sequence_length * model.hidden_size * again


def torchtitan_flops_per_sequence(model: Model) -> float:
    """Return model FLOPs per sequence as torchtitan counts them: s (6 x non-embedding parameters + 12 L q s).

    L is layers, q the width of all heads, s the sequence. The whole square, by its authors' choice, and norms and
    biases as if they were matrices. A tied output matrix is counted once, since it is multiplied with.
    """
    count = parameters(model)
    table = model.vocab_size * model.hidden_size if model.tied_embeddings else 0
    multiplied = count.active - count.embedding + table
    widths, counts = 0, Counter(map(model.layer_type, range(model.layers)))  # without multi-token prediction
    for name, (layer, _) in model.count_layer_types().items():
        own = model.layer_model(layer)
        squares = counts[name] * sum(kind.SQUARE for kind in layer_kinds(model, layer))
        widths += squares * own.heads * (own.head_dim + own.value_dim)
    per_token = 6.0 * multiplied + 6.0 * widths * model.sequence_length
    return per_token * model.sequence_length
