"""Layer kind of the MLP: norm, up-projection, activation function, down-projection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from simcluster.documents.field_annotations import AllowedValues
from simcluster.model import eager_sections as eager
from simcluster.model.kernel_choices import RecomputeModule
from simcluster.model.kernels import Block
from simcluster.model.layer_block import layer_block
from simcluster.model.layer_kind import Flops, LayerKind, WeightMatrix
from simcluster.model.layer_sections import fused_activation, join_sections, linear_section
from simcluster.model.rank_shape import RankShape, local_sizes
from simcluster.model.saved_tensors import SavedTensor, dropout_mask_tensors, matmul_input_tensors
from simcluster.model.shard_widths import shard_widths
from simcluster.model.transformer import Model


class Mlp(LayerKind):
    """Layer kind of a dense MLP with two weight matrices, or three with a gate."""

    name = "mlp"
    WHOLE = "mlp"
    MODELLED_WITH: ClassVar[Mapping[str, AllowedValues]] = {}

    def matrices(self, model: Model, tp: int = 1, ep: int = 1, etp: int = 1) -> Iterator[WeightMatrix]:
        """Yield the weight matrices of an MLP: gate and up fused into one (Megatron-LM), and down."""
        return mlp_matrices(model, shard_widths(model, tp).ffn, model.hidden_size)

    def count_vector_parameters(self, model: Model, tp: int = 1) -> int:
        return mlp_biases(model, shard_widths(model, tp).ffn, model.hidden_size)

    def block(self, model: Model, shape: RankShape) -> Block:
        local = local_sizes(model, shape)
        widths = model.num_mlp_matrices - 1
        up = linear_section("mlp_up", shape, local.tokens, local.hidden, widths * local.ffn, bias=model.mlp_bias)
        down = linear_section("mlp_down", shape, local.tokens, local.ffn, local.hidden, bias=False)
        if shape.kernels != "eager":
            return layer_block("mlp", model, shape, local, (up, fused_activation(model, shape, local), down))
        parts = eager.split_grad_section("mlp_up", model, shape, local, widths, widths * local.ffn)
        active = join_sections((parts, eager.unfused_activation(model, shape, local)), "none")
        return layer_block("mlp", model, shape, local, (up, active, down))

    def recompute_flops(self, model: Model, module: RecomputeModule, core: Flops) -> float:
        return 2.0 * model.sequence_length * self.count_weights_per_token(model) if module == "mlp" else 0.0

    def backward_working_bytes(self, model: Model, shape: RankShape) -> tuple[float, float]:
        local = local_sizes(model, shape)
        return shape.element_bytes * local.tokens * local.ffn * (2 if model.gated_mlp else 1), 0.0

    def backward_tensors(self, model: Model, shape: RankShape) -> list[SavedTensor]:
        e, local = shape.element_bytes, local_sizes(model, shape)
        ffn, output = e * local.tokens * local.ffn, e * local.tokens * local.hidden
        inputs = ("gate", "up") if model.gated_mlp else ("gelu_input",)
        norm_input = SavedTensor("mlp", "mlp_norm_input", e * local.edge_tokens * local.hidden, moved_by="mlp_norm")
        shared = model.layer_norms == 1  # the norm and what it gave are the attention's
        product = "mlp_product" if model.gated_mlp else "gelu_output"
        return [
            *([] if shared or model.parallel_residual else [norm_input]),
            *([] if shared else matmul_input_tensors("mlp", "mlp_input", model, shape, freed_by=("mlp",))),
            *(
                SavedTensor("mlp", name, ffn, "other" if name == "up" else "kept", in_fp8="input", freed_by=("mlp",))
                for name in inputs
            ),
            SavedTensor("mlp", product, ffn, read="W", in_fp8="cast", freed_by=("mlp",)),
            *([replace(norm_input, name="mlp_post_norm_input")] if model.layer_norms == 4 else []),
            *dropout_mask_tensors("mlp", "mlp_dropout_mask", model, shape),
            SavedTensor("mlp", "mlp_down_output_grad", output, made="I", read="W", in_fp8="cast"),
            SavedTensor("mlp", "mlp_up_output_grad", len(inputs) * ffn, made="I", read="W", in_fp8="cast"),
        ]


def mlp_matrices(model: Model, ffn: int, size: int, *, experts: bool = False, count: int = 1) -> Iterator[WeightMatrix]:
    """Yield the weight matrices of ``count`` MLPs of width ``ffn``, whose input and output have width ``size``."""
    yield WeightMatrix((model.num_mlp_matrices - 1) * ffn, size, "rows", experts, count)
    yield WeightMatrix(size, ffn, "columns", experts, count)


def mlp_biases(model: Model, ffn: int, size: int) -> int:
    """Return the number of bias parameters of such an MLP; tp does not split the output's bias."""
    return ((model.num_mlp_matrices - 1) * ffn + size) * model.mlp_bias
