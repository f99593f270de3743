"""What a layer may have in place of its MLP and its attention: a mixture of experts, latent attention.

The sections of a model that describe them, and their parameters.  Counting only.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, StrictBool, WithJsonSchema, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.spec import Spec
from simcluster.model.defaults import Count, natural

Natural = Annotated[int, BeforeValidator(natural), WithJsonSchema({"type": "integer", "minimum": 0})]


class Moe(Spec):
    """A mixture of experts: every token visits ``top_k`` of ``experts``, MLPs of width ``expert_ffn_hidden_size``.

    Besides, it visits ``shared_experts`` of the same width, or (Qwen 2) shared ones that are together
    ``shared_ffn_hidden_size`` wide, behind a learned ``shared_gate``.  The first ``first_dense_layers`` layers keep the
    MLP of the model, and of the others every layer whose number from 1, less ``offset``, does not divide by ``every``
    (offset 1: the first has experts; Megatron-LM's --moe-layer-freq N).  ``router_bias``: the router adds one number
    for each expert (DeepSeek-V3, GPT-OSS).  Gates, activation and biases of an expert are those of the model's MLP.
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

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_k > self.experts:
            raise InputError(f"top_k {self.top_k} is more than the {self.experts} experts; use {self.experts} or fewer")
        if self.offset >= self.every:
            raise InputError(f"offset {self.offset} is to be less than every, {self.every}; leave it out, or use less")
        if self.shared_gate and not self.shared_width:
            raise InputError("shared_gate is before shared experts, and there are none; give shared_experts, too")
        return self

    @property
    def shared_width(self) -> int:
        """Width of all shared experts together; 0 without any."""
        return self.shared_ffn_hidden_size or self.shared_experts * self.expert_ffn_hidden_size

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
