"""What backward needs of a mixture of experts' forward, and what of it lives inside one pass, on one rank."""

from __future__ import annotations

from dataclasses import replace

from simcluster.model.kept import Tensor, mask, operands
from simcluster.model.layer_sections import FP32_BYTES, RankShape, local_sizes
from simcluster.model.mixture_sections import is_clamped, is_sorted, routed
from simcluster.model.recomputed import RecomputeModule
from simcluster.model.transformer import Model


def mixture_tensors(model: Model, shape: RankShape) -> list[Tensor]:
    """Of a layer with experts: an MLP's tensors of every row that visits one, the rows themselves before and behind
    them, what the router found, and an MLP's tensors of the shared experts.

    Rows behind the experts stay for the gradient of the weights that they are multiplied with; where the activation
    function multiplies (``RankShape.probabilities``), they do not.
    """
    moe, there = model.moe, routed(model, shape)
    assert moe is not None
    e, local = shape.element_bytes, local_sizes(model, shape)
    hidden = e * local.edge_tokens * local.hidden
    rows, wide = there.row_bytes(shape, there.rows), e * there.rows * there.ffn
    inputs = ("gate", "up") if model.gated_mlp else ("gelu_input",)
    output = Tensor("mixture", "experts_output", there.row_bytes(shape, there.sent), freed_by=("moe",))
    return [
        Tensor("mixture", "mlp_norm_input", hidden, moved_by="mlp_norm"),
        *(  # the router's, too
            replace(tensor, in_fp8="no")
            for tensor in operands("mixture", "mlp_input", model, shape, freed_by=("layernorm",))
        ),
        Tensor("mixture", "router_probabilities", FP32_BYTES * local.edge_tokens * (moe.experts + 2 * moe.top_k),
               freed_by=("moe",)),
        Tensor("mixture", "experts_input", rows, read="W", in_fp8="cast", routed=True, freed_by=("moe",),
               moved_by="expert_fc1"),
        *(Tensor("mixture", f"experts_{name}", wide, in_fp8="input", routed=True, freed_by=("moe",), moved_by="moe_act")
          for name in inputs),
        *([Tensor("mixture", "experts_clamped", len(inputs) * wide, in_fp8="input", routed=True,
                  freed_by=("moe", "moe_act"))] if is_clamped(model, shape) else []),
        Tensor("mixture", "experts_product", wide, read="W", in_fp8="cast", routed=True, freed_by=("moe", "moe_act")),
        *([output] if shape.probabilities == "combine" else []),
        *mask("mixture", "mlp_dropout_mask", model, shape),
        Tensor("mixture", "experts_down_output_grad", rows, made="I", read="W", in_fp8="cast", routed=True),
        Tensor("mixture", "experts_up_output_grad", len(inputs) * wide, made="I", read="W", in_fp8="cast", routed=True),
        Tensor("mixture", "router_output_grad", FP32_BYTES * local.edge_tokens * moe.experts, made="I", read="W"),
        *_shared(model, shape, e * local.tokens * moe.shared_width / shape.tp, inputs),
    ]  # fmt: skip


def _shared(model: Model, shape: RankShape, wide: float, inputs: tuple[str, ...]) -> list[Tensor]:
    """Of the shared experts, ``wide`` bytes each."""
    if not wide:
        return []
    tokens = shape.element_bytes * local_sizes(model, shape).tokens
    return [
        *(Tensor("mixture", f"shared_{name}", wide, in_fp8="input", freed_by=_SHARED) for name in inputs),
        Tensor("mixture", "shared_product", wide, read="W", in_fp8="cast", freed_by=_SHARED),
        Tensor("mixture", "shared_down_output_grad", tokens * model.hidden_size, made="I", read="W", in_fp8="cast"),
        Tensor("mixture", "shared_up_output_grad", len(inputs) * wide, made="I", read="W", in_fp8="cast"),
    ]


_SHARED: tuple[RecomputeModule, ...] = ("moe", "shared_experts")


def mixture_working_bytes(model: Model, shape: RankShape) -> float:
    """What else lives inside a mixture's forward at its highest point, in bytes; zero unless ``shape.temporaries``.

    While rows travel back the function that calls dispatch, experts and combine still names what it had of each: the
    rows as they left and as they came, and the experts' output sorted and as it arrives (Megatron-LM,
    core/transformer/moe/moe_layer.py, ``MoELayer.forward``, whose local names live until it returns), beside the
    output of the shared experts.  Where rows are not sorted, what came is what the experts keep.
    """
    if not shape.temporaries:
        return 0.0
    moe, there, local = model.moe, routed(model, shape), local_sizes(model, shape)
    assert moe is not None
    away = 2 * there.row_bytes(shape, there.sent) if shape.ep * shape.expert_tp > 1 else 0.0
    shared = shape.element_bytes * local.edge_tokens * local.hidden if moe.shared_width else 0.0
    return away + shared + mixture_working_rows(model, shape)


def mixture_working_rows(model: Model, shape: RankShape) -> float:
    """Of ``mixture_working_bytes`` what goes with the rows that visit the rank's experts."""
    there = routed(model, shape)
    kinds = 2 if is_sorted(shape, there) else 1
    return kinds * there.row_bytes(shape, there.rows) if shape.temporaries else 0.0
