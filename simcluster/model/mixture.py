"""Scenario sections ``model.moe`` (mixture of experts) and ``model.mla`` (latent attention)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.collectives.token_relay import ExpertRouting
from simcluster.documents.base_spec import Spec
from simcluster.model.defaults import Count, Natural


class Moe(Spec):
    """Mixture of experts that replaces the MLP, with the MLP's gate, activation function and biases."""

    experts: Count
    """Number of routed experts per layer."""
    top_k: Count
    """Number of experts that every token visits."""
    expert_ffn_hidden_size: Count
    """Width (ffn_hidden_size) of one expert's MLP."""
    shared_experts: Natural = 0
    """Number of additional, shared experts that every token visits."""
    shared_ffn_hidden_size: Count | None = None
    """Width of all shared experts together; default: shared_experts x expert_ffn_hidden_size."""
    shared_gate: StrictBool = False
    """Whether a learned gate scales the output of the shared experts (Qwen 2)."""
    separate_norms: Literal[True] | None = None
    """Whether routed and shared experts have separate norms before and after them, and the router a norm, a scale per
    channel and one per expert (Gemma 4, whose MLP next to the experts is a shared expert of its width)."""
    first_dense_layers: Natural = 0
    """Number of layers at the start of the model that have a dense MLP instead of experts."""
    every: Count = 1
    """After first_dense_layers, layers have experts if their number from 1, minus offset, is a multiple of this; 1: all
    layers (Megatron-LM's --moe-layer-freq)."""
    offset: Natural = 0
    """Number that is subtracted from a layer's number before `every` is applied."""
    latent_size: Count | None = None
    """Width of the vectors that routed experts work on, made from the hidden state by one projection before dispatch
    and back to it by another after combine (--moe-latent-size; Nemotron 3 Super); default: hidden_size."""
    router_bias: StrictBool = False
    """Whether the router has a bias for each expert (DeepSeek-V3, GPT-OSS)."""
    capacity_factor: Annotated[float, Field(strict=False, gt=0, le=1e6)] | None = None
    """Capacity of an expert, as a multiple of an even share of every rank's tokens; tokens beyond it are dropped
    (--moe-expert-capacity-factor); default: no limit."""
    pad_to_capacity: StrictBool = False
    """Whether every expert's rows are padded to its capacity (--moe-pad-expert-input-to-capacity)."""
    aux_loss: StrictBool = False
    """Whether an auxiliary loss of the router's scores balances the experts (--moe-router-load-balancing-type)."""
    groups: Count = 1
    """Number of groups of consecutive experts, of which a token may visit top_groups (n_group of config.json)."""
    top_groups: Count | None = None
    """Number of expert groups that a token may visit (topk_group; DeepSeek-V3's node-limited routing, arXiv:2412.19437
    section 2.1.2); default: all."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.top_k > self.experts:
            raise InputError(f"top_k {self.top_k} is more than the {self.experts} experts; use {self.experts} or fewer")
        if self.experts % self.groups:
            raise InputError(f"experts {self.experts} is not divisible by groups {self.groups}; use a divisor")
        if (self.top_groups or 1) > self.groups:
            raise InputError(
                f"top_groups {self.top_groups} is more than groups {self.groups}; use {self.groups} or fewer"
            )
        if self.top_k > self.allowed_groups * self.experts // self.groups:
            what = f"top_k {self.top_k} is more than the experts of {self.allowed_groups} of {self.groups} groups"
            raise InputError(f"{what}; raise top_groups")
        if self.offset >= self.every:
            raise InputError(f"offset ({self.offset}) must be less than 'every' ({self.every}); remove it, or lower it")
        if self.pad_to_capacity and self.capacity_factor is None:
            raise InputError("pad_to_capacity needs a capacity; also set capacity_factor, as in 1.0")
        if (self.shared_gate or self.separate_norms) and not self.shared_width:
            what = "shared_gate" if self.shared_gate else "separate_norms"
            raise InputError(f"{what} needs shared experts; also set shared_experts")
        return self

    @property
    def allowed_groups(self) -> int:
        """Number of expert groups whose experts a token may be routed to."""
        return self.top_groups or self.groups

    @property
    def shared_width(self) -> int:
        """Width of all shared experts together; 0 if there are none."""
        return self.shared_ffn_hidden_size or self.shared_experts * self.expert_ffn_hidden_size

    def count_rows(self, tokens: int) -> int:
        """Return how many rows ``tokens`` tokens send to experts: one per chosen expert, up to the capacity.

        With a capacity every expert gets at most its capacity, rounded up (moe_utils.py, ``get_capacity``), of an even
        spread.
        """
        chosen = tokens * self.top_k
        if self.capacity_factor is None:
            return chosen
        most = self.experts * math.ceil(chosen / self.experts * self.capacity_factor)
        return most if self.pad_to_capacity else min(chosen, most)

    @property
    def token_routes(self) -> ExpertRouting:
        """Sets of experts that the router may choose for a token, all equally likely."""
        return ExpertRouting(self.experts, self.top_k, self.groups, self.allowed_groups)

    @property
    def capacity_in_even_shares(self) -> float:
        """Capacity of an expert relative to an even share of the tokens; infinite without a limit."""
        return math.inf if self.capacity_factor is None else self.capacity_factor

    @property
    def waits_for_row_counts(self) -> bool:
        """Return whether the host must wait for the row counts; not if rows are padded to the capacity."""
        return not self.pad_to_capacity

    def is_moe_layer(self, layer: int) -> bool:
        """Return whether layer number ``layer`` (from 0) has a mixture of experts."""
        return layer >= self.first_dense_layers and (layer + 1 - self.offset) % self.every == 0

    def count_moe_layers(self, layers: int) -> int:
        """Return how many of the first ``layers`` layers have a mixture of experts."""
        before = min(self.first_dense_layers, layers)
        return (layers - self.offset) // self.every - (before - self.offset) // self.every


class ExpertKernels(Spec):
    """Choice of fused or separate kernels in a mixture of experts; defaults as in Megatron-Bridge's recipes."""

    router: Literal["steps", "fused"] = "steps"
    """Kernels of the router: a separate kernel per operation (steps), or one fused kernel (--moe-router-fusion)."""
    router_dtype: Literal["activations", "fp32"] = "activations"
    """Number format of the router's scores: that of activations (activations), or fp32, which adds casts before and
    after the gradient matmuls (--moe-router-dtype)."""
    permute: Literal["steps", "fused"] = "fused"
    """Kernels that sort rows by expert and restore their order: PyTorch's sort, gather and scatter-add (steps), or one
    fused kernel per direction (fused; --moe-permute-fusion)."""
    products: Literal["streams", "grouped", "sequential"] = "streams"
    """Matmuls of a rank's experts: launched one by one on four streams (streams, --moe-grouped-gemm: Transformer
    Engine's GroupedLinear on cuBLAS), one by one on one stream (sequential), or as one grouped kernel (grouped:
    CUTLASS, cuDNN, DeepGEMM)."""
    padding: Literal["rows", "routing"] = "rows"
    """In fp8, how rows are padded for each expert: by copies before and after the matmuls (rows), or by the routing
    (--moe-router-padding-for-fp8; HybridEP's pad_multiple)."""
    bias: Literal["steps", "fused"] = "steps"
    """Kernels of the bias of experts' outputs: weighed and added expert by expert in fp32 (steps: TEGroupedMLP's
    _apply_bias), or fused with the matmul."""
    clamp: Literal["steps", "fused"] = "steps"
    """Kernels of a clamped activation function: a kernel for each input and a concatenation (steps:
    fusions/fused_bias_geglu.py, weighted_bias_quick_geglu_impl), or fused."""
    casts: Literal["steps", "fused"] = "steps"
    """Casts to fp8 or fp4 of operands of the experts' matmuls and of gradients of their outputs: separate kernels
    (steps; one per expert where matmuls are one by one: GroupedLinear's split_quantize), or fused."""


@dataclass(frozen=True, slots=True)
class RoutedRows:
    """Number and size of token rows that a rank sends to and receives for experts, per microbatch.

    It has ``tokens``; ``sent`` rows leave it (each token once for every expert it visits), ``rows`` arrive before its
    ``experts``, whose width is ``ffn`` here; a row is ``hidden`` wide. Matmuls work on ``rows_per_expert`` rows for
    every expert, padding included. A row has ``row_bytes`` as it travels in activations' precision.
    """

    tokens: int
    sent: int
    rows: int
    experts: int
    ffn: int
    hidden: int
    rows_per_expert: int
    row_bytes: float


class Indexer(Spec):
    """Indexer of sparse attention (DeepSeek-V3.2, arXiv:2512.02556): scores by which a token chooses its keys.

    It is trained with the model, by its loss on the chosen keys, as in the sparse stage of continued pre-training.
    """

    heads: Count
    """Number of index heads (index_n_heads of config.json, --dsa-indexer-n-heads)."""
    head_dim: Count
    """Width of an index head (index_head_dim)."""
    top_k: Count
    """Number of keys that a token attends to (index_topk); all earlier ones where there are fewer."""


class Mla(Spec):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values come from one latent vector."""

    kv_lora_rank: Count
    """Width of the latent vector from which keys and values are made."""
    q_lora_rank: Count | None = None
    """Width of the latent vector from which queries are made; default: they are made from the hidden state."""
    qk_nope_head_dim: Count
    """Width of the part of each head's query and key that has no rotary positions."""
    qk_rope_head_dim: Count
    """Width of the part of each head's query and key that has rotary positions; the heads' keys share this part."""
    v_head_dim: Count
    """Width of each head's value."""
    indexer: Indexer | None = None
    """Sparse attention with an indexer (DeepSeek-V3.2, GLM-5); default: attention to all keys."""

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def narrow_width(self) -> int:
        """Width of a token's narrow vectors together: keys and values, rotated keys, queries."""
        return self.kv_lora_rank + self.qk_rope_head_dim + (self.q_lora_rank or 0)
