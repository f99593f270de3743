"""FLOPs of a layer by phase (F, I, W), and of a sequence as several frameworks count them.

Conventions differ by 12 % for the same run, so each has its function and its name. A matmul (m x k)(k x n) is 2 m n k
FLOP; norms, activations and embedding look-ups count as zero in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from simcluster.base.errors import InputError
from simcluster.model.adapters import list_adapters
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

    A weight matmul costs as much in I and again in W as in F, a frozen one nothing in W; for the core attention see
    ``Attention.core_flops``. Adapters count with their matmuls. In a layer with experts the MLP is those that a token
    visits and the shared ones; the router's matmul is not counted, as in Megatron-LM.
    Layers that no gradients reach have a forward alone.
    """
    tokens, own = micro_batch * model.sequence_length, model.layer_model(layer)
    forward = trained = [0.0, 0.0, 0.0]  # weights of the matmuls into the core, out of it, and of others
    core = Flops(0.0, 0.0, 0.0)
    for kind in layer_kinds(model, layer):
        found = [0.0, 0.0, kind.count_weights_per_token(own)]
        low = [0.0, 0.0, 0.0]
        for each in list_adapters(own, kind.name):
            place = (0 if each.split == "rows" else 1) if kind.mixes else 2
            low[place] += each.parameters
        if kind.mixes:
            *_, last = kind.matrices(own)
            found = [found[2] - last.elements, last.elements, 0.0]
        core += kind.core_flops(own, tokens, attention_backward)
        gradients = low if own.freezes(kind.name) else found
        forward = [old + new + more for old, new, more in zip(forward, found, low, strict=True)]
        trained = [old + new for old, new in zip(trained, gradients, strict=True)]
    into, out, behind = (
        _weight_matmul_flops(2.0 * tokens * all_of_it, 2.0 * tokens * part)
        for all_of_it, part in zip(forward, trained, strict=True)
    )
    if own.has_backward:
        return LayerFlops(qkv=into, core=core, projection=out, mlp=behind)
    return LayerFlops(*(Flops(each.forward, 0.0, 0.0) for each in (into, core, out, behind)))


def lm_head_flops(model: Model, micro_batch: int) -> Flops:
    """Return the FLOPs of the LM head's matmul with the unpadded vocabulary, whether or not weights are tied."""
    forward = 2.0 * micro_batch * model.sequence_length * model.hidden_size * model.vocab_size
    return _weight_matmul_flops(forward, 0.0 if model.freezes("lm_head") else forward)


def _weight_matmul_flops(forward: float, trained: float | None = None) -> Flops:
    """Return the FLOPs of weight matmuls, of which ``trained`` (default: all) have weight gradients."""
    return Flops(forward, forward, forward if trained is None else trained)


# --- conventions: FLOPs of one sequence, forward and backward ------------------------------------------------------


def model_flops_per_sequence(model: Model, *, attention: float = 1.0, images: float = 1.0) -> float:
    """Return model FLOPs per sequence as Megatron-LM counts them, the numerator of MFU.

    3 x forward, causal attention at one half, LM head, no recompute; layers of multi-token prediction have LM heads,
    too. Megatron-LM, ``num_floating_point_operations`` (which takes the padded vocabulary; this takes the unpadded one,
    so that the number does not depend on tp). ``attention`` is the part of the core attention that packed documents
    leave: sum(length^2) / sequence_length^2, Megatron-LM's ``seqlen_squared_sum_in_batch``. ``images`` is the number of
    image tokens relative to the encoder's ``image_tokens``.
    """
    distinct = model.count_layer_types().values()
    loads = dict.fromkeys(model.encoder_layers, images)
    flops = (count * loads.get(n, 1.0) * _packed_layer_flops(model, n, attention).total.total for n, count in distinct)
    projection = 2.0 * model.sequence_length * 2 * model.hidden_size * model.hidden_size
    projections = _weight_matmul_flops(len(model.prediction_layers) * projection)
    return sum(flops) + (1 + len(model.prediction_layers)) * lm_head_flops(model, 1).total + projections.total


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
    images: float = 1.0,
) -> float:
    """Return hardware FLOPs per sequence, the numerator of HFU: model FLOPs plus recomputed FLOPs.

    Recomputed are the matmuls of ``modules`` (selective), every second matmul (operators), or a whole layer's forward
    (full); in every layer, or in those whose number is a multiple of ``every``. ``attention`` and ``images`` as
    in ``model_flops_per_sequence``. The embedding and the LM head are never recomputed. Where the software leaves a
    fused core alone (``RankShape.recomputes_core``), omit ``core_attn``.
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
    counts = Counter(model.layer_type(layer) for layer in range(0, model.encoder_layers.stop, every))
    twice = sum(
        counts[name]
        * (images if each in model.encoder_layers else 1.0)
        * again[recompute](each, _packed_layer_flops(model, each, attention))
        for name, (each, _) in model.count_layer_types().items()
        if model.layer_model(each).has_backward
    )
    return model_flops_per_sequence(model, attention=attention, images=images) + twice


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
    if model.encoder:
        raise InputError("torchtitan counts the FLOP of text decoders alone; remove model.encoder")
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
