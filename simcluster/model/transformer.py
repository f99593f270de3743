"""The ``model`` section of scenarios.

Counting only: no device, no time. The kernels that one GPU launches are in ``layers``.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import StrictBool, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Spec
from simcluster.model.defaults import Count, add_derived_fields, join_numbers
from simcluster.model.mixture import Mla, Moe

Recompute = Literal["none", "selective", "operators", "full"]


class Model(Spec):
    """A decoder-only transformer, as described by the ``model`` section of a scenario.

    A plain MLP means the GPT family by default: ``ffn_hidden_size`` is 4 x hidden_size, LayerNorm, learned positions,
    biases, and tied embeddings. A gated MLP (SwiGLU) means the Llama family: RMSNorm, rotary positions, no biases,
    untied embeddings, and a required ``ffn_hidden_size``. Explicit values override the family. Attention of all layers
    is equal here: each does the mean work of all.
    """

    name: str = ""
    """Name of the model, shown in tables."""
    layers: Count
    """Number of transformer layers."""
    hidden_size: Count
    """Width of the hidden state."""
    heads: Count
    """Number of attention heads (of queries)."""
    vocab_size: Count
    """Number of vocabulary entries, before padding."""
    sequence_length: Count
    """Number of tokens per training sequence."""
    gated_mlp: StrictBool = False
    """Whether the MLP has a gate (SwiGLU); true also selects the other defaults of the Llama family."""
    # The defaults below never survive: _fill_defaults puts the derived value in their place before validation.
    kv_heads: Count = 0
    """Number of key and value heads, fewer than heads for grouped-query attention; default: heads."""
    head_dim: Count = 0
    """Width of one attention head; default: hidden_size / heads."""
    ffn_hidden_size: Count = 0
    """Width of the MLP; default: 4 x hidden_size; required with gated_mlp, unless no layer has an MLP."""
    tied_embeddings: StrictBool = False
    """Whether the LM head shares the matrix of the embedding."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Kind of normalization: layernorm or rmsnorm."""
    position: Literal["learned", "rope", "none"] = "learned"
    """Position encoding: a learned table (learned), rotary (rope), or neither (none, as with ALiBi)."""
    bias: StrictBool | Literal["attention", "qkv"] = False
    """Which linear layers have biases: all except the LM head (true), none (false), those of attention (attention), or
    only attention's QKV matmul (qkv, as Qwen 2)."""
    causal: StrictBool = True
    """Whether attention is causal (a token sees only earlier ones), or covers the whole sequence."""
    vocab_multiple: Count = 128
    """The vocabulary is padded to a multiple of this number x tp (Megatron-LM's --make-vocab-size-divisible-by)."""
    position_rows: Count | None = None
    """Number of rows of the learned position table; default: sequence_length."""
    qk_norm: Literal["head", "full"] | None = None
    """Normalization of queries and keys: per head with one scale (head), or over all heads (full); default: none."""
    layer_norms: Literal[1, 2, 4] | None = None
    """Number of norms per layer: 2 (default); 4, with one more after attention and one after the MLP (Gemma 2); or 1,
    which attention and MLP share (Falcon 7B)."""
    embedding_norm: Literal[True] | None = None
    """Whether a normalization layer follows the embedding (BLOOM)."""
    parallel_residual: Literal[True] | None = None
    """Whether attention and MLP read the same hidden state (GPT-J, NeoX, Falcon) and are reduced over tp together."""
    attention_window: Count | None = None
    """Sliding window: number of tokens that a token attends to, including itself; default: all earlier ones."""
    full_attention_every: Count | None = None
    """Interval of full attention: layers whose number (from 1) is a multiple of this have it instead of the window."""
    moe: Moe | None = None
    """Mixture-of-experts layers instead of the MLP, in all or some layers."""
    mla: Mla | None = None
    """Multi-head latent attention (DeepSeek-V2); kv_heads must equal heads."""
    attention_sinks: Literal[True] | None = None
    """Whether every head has a learned attention sink (GPT-OSS); simulated as parameters that take no time."""
    clamped_activation: Literal[True] | None = None
    """Whether both inputs of the experts' activation function are clamped (GPT-OSS: gate at most 7, other -7 to 7)."""
    mtp_layers: Count | None = None
    """Number of multi-token prediction layers on the last stage, each with a projection, a layer like the model's last,
    and a pass of the LM head (DeepSeek-V3, arXiv:2412.19437 section 2.2); not included in layers."""
    mixer: str | None = None
    """Name of the layer kind that mixes tokens in every layer, one of LAYER_KINDS; default: attention."""

    _fill_defaults = model_validator(mode="before")(add_derived_fields)

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.heads % self.kv_heads:
            fitting = join_numbers(number for number in range(1, min(self.heads, 1024) + 1) if self.heads % number == 0)
            raise InputError(
                f"kv_heads {self.kv_heads} does not divide heads {self.heads}, so query heads cannot share them "
                f"evenly; use one of {fitting}"
            )
        if self.position_rows is not None and (self.position != "learned" or self.position_rows < self.sequence_length):
            raise InputError(
                f"position_rows {self.position_rows} needs position: learned, and at least sequence_length "
                f"{self.sequence_length} rows; remove position_rows, or set both"
            )
        if self.attention_window is not None and not self.causal:
            raise InputError("attention_window needs a causal mask, but 'causal' is false; remove one of the two keys")
        if self.full_attention_every is not None and self.attention_window is None:
            raise InputError("full_attention_every selects layers without a window; also set attention_window")
        if self.parallel_residual and (self.moe or self.layer_norms == 4):
            what = "moe" if self.moe else "layer_norms 4"
            raise InputError(f"parallel_residual is not supported with {what}; remove one of the two")
        if self.moe and not self.moe.count_moe_layers(self.layers):
            raise InputError(
                f"none of the {self.layers} layers has experts: first_dense_layers {self.moe.first_dense_layers}, "
                f"every {self.moe.every}; use fewer first_dense_layers, or remove moe"
            )
        if self.mla and self.head_dim != self.mla.qk_head_dim:
            raise InputError(
                f"head_dim {self.head_dim} does not equal mla's qk_nope_head_dim + qk_rope_head_dim = "
                f"{self.mla.qk_head_dim}; remove head_dim"
            )
        if self.mla and (self.kv_heads != self.heads or self.qk_norm or self.bias is not False):
            raise InputError(
                f"mla has keys for each of the {self.heads} heads, no biases, and norms on latent vectors only; "
                "remove kv_heads, qk_norm and bias (or set bias: false)"
            )
        return self

    @property
    def mlp_bias(self) -> bool:
        """Return whether the matmuls of the MLP have biases."""
        return self.bias is True

    @property
    def query_size(self) -> int:
        """Width of all query heads together: heads x head_dim, which may differ from hidden_size."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, equal to that of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def value_dim(self) -> int:
        """Width of a head's value vector, which latent attention sets separately."""
        return self.mla.v_head_dim if self.mla else self.head_dim

    @property
    def num_mlp_matrices(self) -> int:
        """Number of weight matrices of an MLP: 3 with a gate, otherwise 2."""
        return 3 if self.gated_mlp else 2

    @property
    def norm_parameters(self) -> int:
        """Number of parameters of one norm: LayerNorm has scale and shift, RMSNorm only scale."""
        return self.hidden_size * {"layernorm": 2, "rmsnorm": 1}[self.norm]

    @property
    def num_moe_layers(self) -> int:
        """Number of layers that have a mixture of experts."""
        return self.moe.count_moe_layers(self.layers) if self.moe else 0

    @property
    def prediction_layers(self) -> range:
        """Layer numbers of the multi-token prediction layers, which follow the last layer."""
        return range(self.layers, self.layers + (self.mtp_layers or 0))

    def has_experts(self, layer: int) -> bool:
        """Return whether layer number ``layer`` (from 0) has a mixture of experts."""
        return self.moe is not None and self.moe.is_moe_layer(layer)

    def layer_kind_names(self, layer: int) -> tuple[str, str]:
        """Return the names of a layer's two kinds: attention, then MLP or mixture of experts."""
        mixer = self.mixer or "attention"
        mixer = "latent_attention" if self.mla and mixer == "attention" else mixer
        return mixer, "mixture" if self.has_experts(layer) else "mlp"

    @property
    def first_layer_of_kinds(self) -> dict[tuple[str, str], int]:
        """First layer of each distinct pair of layer kinds; multi-token prediction layers count too."""
        sorts = self.moe.first_dense_layers + self.moe.every + 1 if self.moe else 1  # the first layers have them
        return {self.layer_kind_names(each): each for each in reversed(range(min(sorts, self.prediction_layers.stop)))}

    @property
    def causal_factor(self) -> float:
        """Share of the full attention score matrix that counts as work: 1/2 if causal, otherwise 1.

        1/2 is the usual approximation of (s + 1) / (2 s); Megatron-LM, ``num_floating_point_operations``. In a window
        of w it is in the same way (w / s) (1 - w / (2 s)), and here the mean over the layers.
        """
        if not self.causal:
            return 1.0
        if self.attention_window is None or not (windowed := self._num_windowed_layers):
            return 0.5
        part = self.attention_window / self.sequence_length
        return ((self.layers - windowed) * 0.5 + windowed * part * (1 - part / 2)) / self.layers

    @property
    def mask_edges(self) -> float:
        """Mean number of mask boundaries per query: 1 if causal (the diagonal), 2 in a sliding window (both ends)."""
        return (self.layers + self._num_windowed_layers) / self.layers

    @property
    def _num_windowed_layers(self) -> int:
        if self.attention_window is None or self.attention_window >= self.sequence_length:
            return 0
        full = self.layers // self.full_attention_every if self.full_attention_every else 0
        return self.layers - full

    @property
    def layer_norm_parameters(self) -> int:
        """Number of parameters in a layer's norms, which tensor parallelism does not split."""
        found = (self.layer_norms or 2) * self.norm_parameters
        if self.qk_norm is None:
            return found
        widths = {"head": 2 * self.head_dim, "full": self.query_size + self.kv_size}
        return found + self.norm_parameters // self.hidden_size * widths[self.qk_norm]
