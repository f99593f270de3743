"""The shape of a scenario's document as Python writes it, for editors: keys of sections, and what they may hold.

Nothing is checked by it: ``fields`` and ``sections`` say what is right.  Keys are held to theirs by a test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict

from simcluster.devices.software import Software
from simcluster.model.layer_sections import ActivationInput, Attention, ContextExchange, ContextShares, Logits
from simcluster.model.recomputed import RecomputeModule
from simcluster.model.transformer import Model, Recompute
from simcluster.scenario.data import Data
from simcluster.scenario.fields import ClusterSpec
from simcluster.scenario.measurements import Measured
from simcluster.scenario.run_section import RunSpec
from simcluster.scenario.sections import (
    Axis,
    CheckpointInStep,
    Collectives,
    Engine,
    Fsdp,
    Memory,
    Overlap,
    Parallel,
    Pipeline,
)
from simcluster.scenario.training_section import MemoryRecipe, Precision, Training

Amount = str | float
"""With its unit, as in "16 MB"."""
AnySection = Mapping[str, Any]


class ModelSection(TypedDict, total=False):
    """``model``: a preset, or the numbers of a transformer, or both (what is beside a preset wins)."""

    preset: str
    name: str
    layers: int
    hidden_size: int
    heads: int
    vocab_size: int
    sequence_length: int
    gated_mlp: bool
    kv_heads: int
    head_dim: int
    ffn_hidden_size: int
    tied_embeddings: bool
    norm: Literal["layernorm", "rmsnorm"]
    position: Literal["learned", "rope", "none"]
    bias: bool | Literal["attention", "qkv"]
    causal: bool
    vocab_multiple: int
    position_rows: int
    qk_norm: Literal["head", "full"]
    layer_norms: Literal[1, 2, 4]
    embedding_norm: bool
    parallel_residual: bool
    attention_window: int
    full_attention_every: int
    moe: AnySection
    mla: AnySection
    attention_sinks: bool
    clamped_activation: bool
    mtp_layers: int


class ParallelSection(TypedDict, total=False):
    """``parallel``: how the job is split."""

    tp: int
    pp: int
    dp: int
    cp: int
    cp_comm: ContextExchange
    cp_shares: ContextShares
    ep: int
    etp: int
    expert_dispatch: AnySection
    sequence_parallel: bool
    zero: Literal[0, 1, 2, 3]
    order: Sequence[Axis]


class PipelineSection(TypedDict, total=False):
    """``pipeline``: stages and their schedule."""

    schedule: str | AnySection
    chunks: int
    layers_per_stage: Literal["even", "auto"] | Sequence[int]
    layout: str | Sequence[str | Sequence[str]]
    p2p: Literal["async", "rendezvous"]
    scatter_gather: bool


class TrainingSection(TypedDict, total=False):
    """``training``: the batch, number formats, what is kept for backward."""

    global_batch: Required[int]
    micro_batch: int
    precision: Precision
    recompute: Recompute | Sequence[RecomputeModule]
    recompute_modules: Sequence[RecomputeModule]
    recompute_every: int
    optimizer: Literal["adam", "muon"]
    muon: AnySection
    outer: AnySection
    attention: Attention
    dropout: bool
    memory_recipe: MemoryRecipe


class MemorySection(TypedDict, total=False):
    """``memory``: what a GPU holds besides the model's state and activations."""

    fragmentation: float
    communication_buffers: Amount
    workspace: Amount
    library: Literal["plain", "megatron-te"]
    logits: Logits
    activation_input: ActivationInput
    backward_temporaries: bool
    offload: AnySection


class OverlapSection(TypedDict, total=False):
    """``overlap``: which communication runs beside computation."""

    grad_reduce: bool
    param_gather: bool
    tensor: bool
    tensor_pieces: int
    pipeline: bool
    experts: bool
    pairs: bool
    bucket_size: Amount
    interference: str | AnySection


class FsdpSection(TypedDict, total=False):
    """``fsdp``: how zero 3 shards, gathers and reduces."""

    unit_layers: int
    prefetch: int
    reshard_after_forward: bool
    lanes: Literal["one", "two"]
    shard_group: int
    sync_every_microbatch: bool


class Sections(TypedDict, total=False):
    """A scenario: what a file holds at its top."""

    name: str
    cluster: Required[str | ClusterSpec | AnySection]
    gpus: int
    model: Required[str | Model | ModelSection]
    parallel: Parallel | ParallelSection
    pipeline: Pipeline | PipelineSection
    training: Required[Training | TrainingSection]
    data: Data | AnySection
    memory: Memory | MemorySection
    overlap: Overlap | OverlapSection
    fsdp: Fsdp | FsdpSection
    software: str | Software | AnySection
    framework: str | AnySection
    collectives: Collectives | AnySection
    faults: Sequence[Any]
    steps: int
    seed: int
    replicas: int
    engine: Engine
    checkpoint: CheckpointInStep | AnySection
    measured: Measured | AnySection
    run: RunSpec | AnySection
