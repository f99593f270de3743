"""Layer kind of a mixture of experts, which replaces the MLP; module ``mixture_sections`` has its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

from simcluster.documents.field_annotations import AllowedValues
from simcluster.model.hyper_connections import connect_streams
from simcluster.model.kernel_choices import RecomputeModule, with_recompute
from simcluster.model.kernels import Block, Section
from simcluster.model.layer_block import norm_section
from simcluster.model.layer_kind import Flops, LayerKind, WeightMatrix
from simcluster.model.layer_sections import FP32_BYTES, join_sections, residual_section
from simcluster.model.mixture import Moe
from simcluster.model.mixture_sections import clamps_separately, make_mixture_sections, needs_sorting, routed_rows
from simcluster.model.mlp import mlp_biases, mlp_matrices
from simcluster.model.rank_shape import RankShape, local_sizes
from simcluster.model.saved_tensors import SavedTensor, dropout_mask_tensors, matmul_input_tensors
from simcluster.model.transformer import Model

_SHARED: tuple[RecomputeModule, ...] = ("moe", "shared_experts")
_tensor = partial(SavedTensor, "mixture")


class ExpertMixture(LayerKind):
    """Layer kind of a mixture of experts: router, shared experts, and routed experts split over ep ranks."""

    name = "mixture"
    WHOLE = "moe"
    ROUTED = True
    MODELLED_WITH: ClassVar[Mapping[str, AllowedValues]] = {
        "training.recompute": AllowedValues(
            ("none", "full", "selective"),
            "recompute 'operators' is not supported with model.moe; use none, selective or full",
        )
    }

    def matrices(self, model: Model, tp: int = 1, ep: int = 1, etp: int = 1) -> Iterator[WeightMatrix]:
        """Yield the weight matrices of the router, shared experts and gate, latent projections, routed experts."""
        moe, hidden = _require_moe(model), model.hidden_size
        latent, ffn = moe.latent_size or hidden, moe.expert_ffn_hidden_size // etp
        yield WeightMatrix(moe.experts, hidden, "none")
        if moe.shared_gate:
            yield WeightMatrix(1, hidden, "none")
        if moe.shared_width:
            yield from mlp_matrices(model, moe.shared_width // tp, hidden)
        if moe.latent_size:
            yield WeightMatrix(latent, hidden, "none")
        yield from mlp_matrices(model, ffn, latent, experts=True, count=moe.experts // ep)
        if moe.latent_size:
            yield WeightMatrix(hidden, latent, "none")

    def matmul_matrices(self, model: Model, tp: int = 1, etp: int = 1) -> list[WeightMatrix]:
        """Return the weight matrices of all experts and latent projections, without the router's and the gate's."""
        return list(self.matrices(model, tp, etp=etp))[1 + _require_moe(model).shared_gate :]

    def count_vector_parameters(self, model: Model, tp: int = 1) -> int:
        moe, hidden = _require_moe(model), model.hidden_size
        shared = mlp_biases(model, moe.shared_width // tp, hidden) if moe.shared_width else 0
        latent = (moe.latent_size + hidden) * model.mlp_bias if moe.latent_size else 0
        norms = 3 * model.norm_parameters + hidden + moe.experts if moe.separate_norms else 0
        return moe.experts * (moe.router_bias and not model.hash_routing) + shared + latent + norms

    def count_expert_parameters(self, model: Model, ep: int = 1, etp: int = 1) -> int:
        moe = _require_moe(model)
        sizes = moe.expert_ffn_hidden_size // etp, moe.latent_size or model.hidden_size
        each = sum(matrix.elements for matrix in mlp_matrices(model, *sizes)) + mlp_biases(model, *sizes)
        return moe.experts // ep * each

    def count_parameters_per_token(self, model: Model) -> int:
        moe = _require_moe(model)
        return self.count_parameters(model) + self.count_expert_parameters(model) // moe.experts * moe.top_k

    def count_weights_per_token(self, model: Model) -> int:
        moe, hidden = _require_moe(model), model.hidden_size
        latent = moe.latent_size or 0
        routed = (latent or hidden) * moe.top_k * moe.expert_ffn_hidden_size
        return (routed + hidden * moe.shared_width) * model.num_mlp_matrices + 2 * latent * hidden

    def block(self, model: Model, shape: RankShape) -> Block:
        """Return a block of norm and residual add only; ``sections`` adds the kernels of router and experts."""
        local = local_sizes(model, shape)
        entry = norm_section("mlp_norm", model, shape, local, residual=model.num_streams == 1)
        add = residual_section("mlp", model, shape, local)
        if model.layer_norms == 4:
            add = join_sections((norm_section("mlp_post_norm", model, shape, local, residual=False), add), "none")
        entry = with_recompute(entry, enabled=shape.recomputes_module("layernorm"))
        ends = (join_sections([each], shape.recompute) for each in (entry, add))
        return connect_streams(Block("mlp", next(ends), Section(), next(ends)), model, shape, local)

    def sections(self, model: Model, shape: RankShape) -> tuple[Section, ...]:
        edges = self.block(model, shape)
        return edges.entry, *make_mixture_sections(model, shape).sections, edges.exit

    def recompute_flops(self, model: Model, module: RecomputeModule, core: Flops) -> float:
        tokens, shared = model.sequence_length, _require_moe(model).shared_width
        return {
            "moe": 2.0 * tokens * self.count_weights_per_token(model),
            "shared_experts": 2.0 * tokens * model.hidden_size * shared * model.num_mlp_matrices,
        }.get(module, 0.0)

    def backward_tensors(self, model: Model, shape: RankShape) -> list[SavedTensor]:
        """Return the tensors that the mixture's backward reads: of the router, shared and routed experts.

        Rows after the experts stay for the gradient of the weights that they are multiplied with; where the activation
        function multiplies (``RankShape.probabilities``), they do not.
        """
        moe, there = _require_moe(model), routed_rows(model, shape)
        e, local = shape.element_bytes, local_sizes(model, shape)
        hidden = e * local.edge_tokens * local.hidden
        rows, wide = there.row_bytes * there.rows, e * there.rows * there.ffn
        inputs = ("gate", "up") if model.gated_mlp else ("gelu_input",)
        output = _tensor("experts_output", there.row_bytes * there.sent, freed_by=("moe",))
        return [
            _tensor("mlp_norm_input", hidden, moved_by="mlp_norm"),
            *(  # the router's, too
                replace(tensor, in_fp8="no")
                for tensor in matmul_input_tensors("mixture", "mlp_input", model, shape, freed_by=("layernorm",))
            ),
            _tensor("router_probabilities", FP32_BYTES * local.edge_tokens * (moe.experts + 2 * moe.top_k),
                   freed_by=("moe",)),
            _tensor("experts_input", rows, read="W", in_fp8="cast", routed=True, freed_by=("moe",),
                   moved_by="expert_fc1"),
            *(_tensor(f"experts_{name}", wide, in_fp8="input", routed=True, freed_by=("moe",), moved_by="moe_act")
              for name in inputs),
            *([_tensor("experts_clamped", len(inputs) * wide, in_fp8="input", routed=True,
                      freed_by=("moe", "moe_act"))] if clamps_separately(model, shape) else []),
            _tensor("experts_product", wide, read="W", in_fp8="cast", routed=True, freed_by=("moe", "moe_act")),
            *([output] if shape.probabilities == "combine" else []),
            *_latent_tensors(moe, shape, there.row_bytes * there.tokens, hidden),
            *_norm_tensors(model, hidden),
            *dropout_mask_tensors("mixture", "mlp_dropout_mask", model, shape),
            _tensor("experts_down_output_grad", rows, made="I", read="W", in_fp8="cast", routed=True),
            _tensor("experts_up_output_grad", len(inputs) * wide, made="I", read="W", in_fp8="cast", routed=True),
            _tensor("router_output_grad", FP32_BYTES * local.edge_tokens * moe.experts, made="I", read="W"),
            *_shared_expert_tensors(model, shape, e * local.tokens * moe.shared_width / shape.tp, inputs),
        ]  # fmt: skip

    def forward_working_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        """Return the bytes of token rows being dispatched: (total, part proportional to this rank's routed rows).

        While rows travel back the function that calls dispatch, experts and combine still holds the tensors of each:
        the rows as they left and as they arrived, and the experts' output sorted and as it arrives (Megatron-LM,
        core/transformer/moe/moe_layer.py, ``MoELayer.forward``, whose local names live until it returns), as well as
        the output of the shared experts. Where rows are not sorted, the rows that arrived are those that the experts
        keep.
        """
        if not shape.temporaries:
            return 0.0, 0.0
        there, local = routed_rows(model, shape), local_sizes(model, shape)
        away = 2 * there.row_bytes * there.sent if shape.ep * shape.expert_tp > 1 else 0.0
        shared = shape.element_bytes * local.edge_tokens * local.hidden if _require_moe(model).shared_width else 0.0
        rows = (2 if needs_sorting(shape, there) else 1) * there.row_bytes * there.rows
        return away + shared + rows, rows

    def backward_working_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        there = routed_rows(model, shape)
        wide = shape.element_bytes * there.rows * there.ffn * (2 if model.gated_mlp else 1)
        return (there.row_bytes * there.rows + wide,) * 2


def _norm_tensors(model: Model, hidden: float) -> list[SavedTensor]:
    """Return the inputs of norms after the experts, and the router's own normalized input."""
    names = ("experts_post_norm_input", "shared_post_norm_input") if _require_moe(model).separate_norms else ()
    return [
        *([_tensor("router_input", hidden, read="W", freed_by=("moe",))] if names else []),
        *(_tensor(name, hidden, freed_by=("moe",)) for name in names),
        *([_tensor("mlp_post_norm_input", hidden)] if model.layer_norms == 4 else []),
    ]


def _latent_tensors(moe: Moe, shape: RankShape, narrow: float, hidden: float) -> list[SavedTensor]:
    """Return the tensors of latent projections: the input of the first is also the router's, but for an fp8 copy."""
    if not moe.latent_size:
        return []
    kept = partial(_tensor, read="W", in_fp8="cast")
    return [
        *([kept("latent_fc1_input", hidden, freed_by=("moe",))] if shape.quantization else []),
        kept("latent_fc2_input", narrow, freed_by=("moe",)),
        kept("latent_fc2_output_grad", hidden, made="I"),
        kept("latent_fc1_output_grad", narrow, made="I"),
    ]


def _shared_expert_tensors(model: Model, shape: RankShape, wide: float, inputs: tuple[str, ...]) -> list[SavedTensor]:
    if not wide:
        return []
    tokens = shape.element_bytes * local_sizes(model, shape).tokens
    return [
        *(_tensor(f"shared_{name}", wide, in_fp8="input", freed_by=_SHARED) for name in inputs),
        _tensor("shared_product", wide, read="W", in_fp8="cast", freed_by=_SHARED),
        _tensor("shared_down_output_grad", tokens * model.hidden_size, made="I", read="W", in_fp8="cast"),
        _tensor("shared_up_output_grad", len(inputs) * wide, made="I", read="W", in_fp8="cast"),
    ]


def _require_moe(model: Model) -> Moe:
    assert model.moe is not None
    return model.moe
