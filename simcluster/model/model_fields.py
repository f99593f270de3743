"""Fields of the ``model`` section of scenarios, without the rules and counts of ``transformer.Model``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StrictBool

from simcluster.documents.field_annotations import SchemaAlternatives
from simcluster.model.defaults import Count, LayerTypes, Pattern
from simcluster.model.encoder import Encoder
from simcluster.model.kind_documents import LayerKindFields
from simcluster.model.mixture import Mla, Moe
from simcluster.model.trainable import TrainedParts


class ModelFields(TrainedParts):
    """Fields of the ``model`` section."""

    name: str = ""
    """Name of the model, shown in tables."""
    layers: Annotated[Count, SchemaAlternatives(lambda: (..., str, tuple[str, ...]))]
    """Number of transformer layers; or their types in order, as in *-*-*E (see pattern)."""
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
    # The defaults below never survive: Model puts the derived value in their place before validation.
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
    qk_norm: Literal["head", "full", "unscaled", "qkv"] | None = None
    """Normalization of queries and keys: per head with one scale (head), over all heads (full), per head without
    parameters (unscaled; Llama 4), or as head, and of values without (qkv; Gemma 4); default: none."""
    values_from_keys: Literal[True] | None = None
    """Whether one projection makes keys and values, which differ by their norms (Gemma 4's attention_k_eq_v)."""
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
    attention_chunk: Count | None = None
    """Chunked attention (Llama 4): a token attends only to earlier tokens of the same chunk of this many tokens; no
    effect on sequences that are not longer; default: all earlier ones."""
    moe: Moe | None = None
    """Mixture-of-experts layers instead of the MLP, in all or some layers."""
    mla: Mla | None = None
    """Multi-head latent attention (DeepSeek-V2); kv_heads must equal heads."""
    layer_kinds: LayerKindFields = None
    """Sizes of layer kinds that have some, by kind, as in mamba2: {heads: 128}; or a kind's whole document."""
    attention_gate: Literal[True] | None = None
    """Whether a sigmoid gate, as wide as the queries and made with them, multiplies attention's output (Qwen3-Next)."""
    residual_streams: Count | None = None
    """Number of residual streams (hyper-connections, arXiv:2512.24880; hc_mult of DeepSeek-V4); default: 1."""
    hash_routing: Literal[True] | None = None
    """Whether a table chooses the experts of each token, instead of their scores (DeepSeek-V4's first layers)."""
    attention_sinks: Literal[True] | None = None
    """Whether every head has a learned attention sink (GPT-OSS); simulated as parameters that take no time."""
    clamped_activation: Literal[True] | None = None
    """Whether both inputs of the experts' activation function are clamped (GPT-OSS: gate at most 7, other -7 to 7)."""
    logit_softcap: Literal[True] | None = None
    """Whether a hyperbolic tangent caps the logits (Gemma 2 and 4: final_logit_softcapping)."""
    mtp_layers: Count | None = None
    """Number of multi-token prediction layers on the last stage, each with a projection, a layer like the model's last,
    and a pass of the LM head (DeepSeek-V3, arXiv:2412.19437 section 2.2); not included in layers."""
    mtp_pattern: str | None = None
    """Layer kinds of each multi-token prediction layer, as one or two letters of a pattern; default: those of the last
    layer. Letters after / in layers set it, and mtp_layers: M-M*-/*E/*E."""
    mixer: str | None = None
    """Name of the layer kind that mixes tokens in every layer, one of LAYER_KINDS; default: attention."""
    blocks: tuple[str, ...] | None = None
    """Names of the layer kinds of every layer in forward order, one or two; default: the mixer, then an MLP or
    experts."""
    pattern: Pattern = None
    """Types of the layers in order, repeated or cut to ``layers``: a text of letters, or a list of words. Letters that
    layer_types does not define mean one layer kind alone: * attention, - MLP, E experts, M Mamba-2."""
    layer_types: LayerTypes = None
    """Fields of model that differ in the layers of a type, by the type's letter or word in the pattern."""
    encoder: Encoder | None = None
    """Vision encoder in front of the layers, on the first stage; not included in layers."""
