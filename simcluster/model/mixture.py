"""What a layer may have in place of its MLP and its attention: a mixture of experts, latent attention.

The sections of a model that describe them, and their parameters.  Counting only.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, WithJsonSchema, model_validator

from simcluster.base.errors import InputError
from simcluster.collectives.relayed import TokenRoutes
from simcluster.documents.spec import Spec
from simcluster.model.defaults import Count, natural

Natural = Annotated[int, BeforeValidator(natural), WithJsonSchema({"type": "integer", "minimum": 0})]


class Moe(Spec):
    """A mixture of experts: every token visits ``top_k`` of ``experts``, MLPs of width ``expert_ffn_hidden_size``.

    Besides, it visits ``shared_experts`` of the same width, or (Qwen 2) shared ones that are together
    ``shared_ffn_hidden_size`` wide, behind a learned ``shared_gate``.  The first ``first_dense_layers`` layers keep the
    MLP of the model, and of the others every layer whose number from 1, less ``offset``, does not divide by ``every``
    (offset 1: the first has experts; Megatron-LM's --moe-layer-freq N).  ``router_bias``: the router adds one number
    for each expert (DeepSeek-V3, GPT-OSS).  ``top_groups``: the experts are in so many ``groups``, next to each other,
    and a token may visit those of so few (DeepSeek-V3's node-limited routing, arXiv:2412.19437 section 2.1.2; a group
    is a machine's then); left out, all.  Gates, activation and biases of an expert are those of the model's MLP.

    ``capacity_factor``: an expert takes at most so many times an even share of every rank's tokens, and those beyond
    are dropped (Megatron-LM's --moe-expert-capacity-factor); left out, none is.  ``pad_to_capacity``: it gets as many
    whatever the tokens chose (--moe-pad-expert-input-to-capacity).  ``aux_loss``: a loss balances the experts
    (--moe-router-load-balancing-type aux_loss or seq_aux_loss, with a coefficient).
    """

    experts: Count
    top_k: Count
    expert_ffn_hidden_size: Count
    shared_experts: Natural = 0
    shared_ffn_hidden_size: Count | None = None
    shared_gate: StrictBool = False
    first_dense_layers: Natural = 0
    every: Count = 1
    offset: Natural = 0
    router_bias: StrictBool = False
    capacity_factor: Annotated[float, Field(strict=False, gt=0, le=1e6)] | None = None
    pad_to_capacity: StrictBool = False
    aux_loss: StrictBool = False
    groups: Count = 1
    top_groups: Count | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_k > self.experts:
            raise InputError(f"top_k {self.top_k} is more than the {self.experts} experts; use {self.experts} or fewer")
        if self.experts % self.groups:
            raise InputError(f"groups {self.groups} do not divide the {self.experts} experts; use a divisor")
        if (self.top_groups or 1) > self.groups:
            raise InputError(
                f"top_groups {self.top_groups} is more than groups {self.groups}; use {self.groups} or fewer"
            )
        if self.top_k > self.open_groups * self.experts // self.groups:
            what = f"top_k {self.top_k} is more than the experts of {self.open_groups} of {self.groups} groups"
            raise InputError(f"{what}; give more top_groups")
        if self.offset >= self.every:
            raise InputError(f"offset {self.offset} is to be less than every, {self.every}; leave it out, or use less")
        if self.pad_to_capacity and self.capacity_factor is None:
            raise InputError("pad_to_capacity needs a capacity to pad to; give capacity_factor, too, as in 1.0")
        if self.shared_gate and not self.shared_width:
            raise InputError("shared_gate is before shared experts, and there are none; give shared_experts, too")
        return self

    @property
    def open_groups(self) -> int:
        """Groups whose experts a token may visit."""
        return self.top_groups or self.groups

    @property
    def shared_width(self) -> int:
        """Width of all shared experts together; 0 without any."""
        return self.shared_ffn_hidden_size or self.shared_experts * self.expert_ffn_hidden_size

    def rows(self, tokens: int) -> int:
        """Rows that so many tokens of a rank send to the experts: a copy for each that a token visits.

        With a capacity every expert gets at most its own, rounded up (moe_utils.py, ``get_capacity``), of an even
        spread.
        """
        chosen = tokens * self.top_k
        if self.capacity_factor is None:
            return chosen
        most = self.experts * math.ceil(chosen / self.experts * self.capacity_factor)
        return most if self.pad_to_capacity else min(chosen, most)

    @property
    def routes(self) -> TokenRoutes:
        """What a token may choose, all choices equally likely."""
        return TokenRoutes(self.experts, self.top_k, self.groups, self.open_groups)

    @property
    def most(self) -> float:
        """What an expert takes at most, in even shares of the tokens."""
        return math.inf if self.capacity_factor is None else self.capacity_factor

    @property
    def counted(self) -> bool:
        """Does the host wait for the numbers of rows?  Not where they are known before: padded to capacity."""
        return not self.pad_to_capacity

    def is_in(self, layer: int) -> bool:
        """Has the layer of this number (from 0) a mixture?"""
        return layer >= self.first_dense_layers and (layer + 1 - self.offset) % self.every == 0

    def layers_of(self, layers: int) -> int:
        """How many of so many layers have one."""
        before = min(self.first_dense_layers, layers)
        return (layers - self.offset) // self.every - (before - self.offset) // self.every

    def routed(self, hidden: int, matrices: int, *, bias: bool) -> int:
        """Parameters of one expert of the routed."""
        return mlp_parameters(hidden, self.expert_ffn_hidden_size, matrices, bias=bias)

    def everywhere(self, hidden: int, matrices: int, tp: int = 1, *, bias: bool) -> int:
        """Parameters of router, shared experts and their gate on one of ``tp`` ranks, which split the shared ones."""
        found = hidden * self.experts + self.experts * self.router_bias + hidden * self.shared_gate
        if self.shared_width:
            found += mlp_parameters(hidden, self.shared_width // tp, matrices, bias=bias)
        return found


class ExpertKernels(Spec):
    """Which kernels a framework's mixtures of experts have.

    ``router``: a kernel for each of its ``steps``, or ``fused`` (Megatron-LM's --moe-router-fusion).  ``router_dtype``:
    its product gives scores as ``activations`` are, or in ``fp32`` with casts around its gradients
    (--moe-router-dtype).  ``permute``: rows are sorted and brought back by PyTorch's sort, gather and scatter-add in
    ``steps``, or by a ``fused`` kernel each (--moe-permute-fusion).  ``products``: those of a rank's experts are
    launched one by one on ``streams``, four of them (--moe-grouped-gemm: Transformer Engine's GroupedLinear on cuBLAS),
    as one ``grouped`` kernel (CUTLASS, cuDNN, DeepGEMM), or ``sequential``ly.  ``padding``, in fp8, to rows that its
    products take: of ``rows``, by a copy in front of the experts and one behind, or of the ``routing``, which sends as
    many more (--moe-router-padding-for-fp8), as HybridEP always does (its ``pad_multiple``).  ``bias`` of the narrowing
    products, where a model has one: weighed by the router's probabilities in fp32 and added expert by expert in
    ``steps`` (TEGroupedMLP's ``_apply_bias``), or ``fused``.  ``clamp``, where a model has one: both halves of what the
    activation function reads are limited by a kernel each and put together again in ``steps``
    (fusions/fused_bias_geglu.py, ``weighted_bias_quick_geglu_impl``), or ``fused``.  ``casts`` to fp8 or fp4 of what
    the products read, and of their outputs' gradients: kernels of their own, one for each expert where products are one
    by one (GroupedLinear's ``split_quantize``), or ``fused`` with what makes them. The defaults are what
    Megatron-Bridge's recipes turn on.
    """

    router: Literal["steps", "fused"] = "steps"
    router_dtype: Literal["activations", "fp32"] = "activations"
    permute: Literal["steps", "fused"] = "fused"
    products: Literal["streams", "grouped", "sequential"] = "streams"
    padding: Literal["rows", "routing"] = "rows"
    bias: Literal["steps", "fused"] = "steps"
    clamp: Literal["steps", "fused"] = "steps"
    casts: Literal["steps", "fused"] = "steps"


class Mla(Spec):
    """Latent attention (DeepSeek-V2, arXiv:2405.04434): keys and values of all heads are made from one narrow vector.

    A token's vector of ``kv_lora_rank`` becomes, for each head, ``qk_nope_head_dim`` of its key and ``v_head_dim`` of
    its value; another ``qk_rope_head_dim`` of the key, turned by position, are the same for all heads.  Queries have
    nope + rope for each head, made from a vector of ``q_lora_rank`` or, without one, from the hidden state itself.
    """

    kv_lora_rank: Count
    q_lora_rank: Count | None = None
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def down(self) -> int:
        """Width of a token's narrow vectors: that of keys and values, the part that is turned, that of queries."""
        return self.kv_lora_rank + self.qk_rope_head_dim + (self.q_lora_rank or 0)

    def parameters(self, hidden: int, heads: int) -> int:
        """Of the attention of one layer, its inner norms included, with so many heads: all, or those of a tp rank.

        What makes narrow vectors, and their norms, every tp rank has whole (Megatron-LM, multi_latent_attention.py).
        """
        norms = self.kv_lora_rank + (self.q_lora_rank or 0)
        return self.weights(hidden, heads) + norms + heads * self.v_head_dim * hidden

    def weights(self, hidden: int, heads: int) -> int:
        """Of the matrices that make queries, keys and values."""
        queries = (self.q_lora_rank or hidden) * heads * self.qk_head_dim
        keys = self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
        return hidden * self.down + queries + keys


def mlp_parameters(hidden: int, ffn: int, matrices: int, *, bias: bool) -> int:
    """Of an MLP of so many matrices, each hidden x ffn; its last bias is not split."""
    return matrices * hidden * ffn + ((matrices - 1) * ffn + hidden) * bias
