"""Shape of a model on one rank: parallelism, recompute, precision and software choices, and the sizes that follow."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simcluster.base.errors import InputError
from simcluster.model.kernel_choices import (
    Accumulate,
    ActivationInput,
    Attention,
    Bias,
    ContextShares,
    Kernels,
    LayerVariant,
    Logits,
    Probabilities,
    Quantization,
    RecomputeModule,
    Ring,
    Rope,
)
from simcluster.model.mixture import ExpertKernels
from simcluster.model.shard_widths import shard_widths
from simcluster.model.transformer import Model, Recompute

_EXPERT_KERNELS = ExpertKernels()


@dataclass(frozen=True, slots=True)
class RankShape:
    """Parallelism, recompute, precision and software choices; with the model they decide a rank's kernels.

    ``ep`` ranks share the experts of a mixture, each split over ``etp`` (0: as many as tp). ``cp_comm`` is how the
    ranks that share a sequence bring queries and keys together, ``cp_shares`` which tokens each has, and ``ring`` whose
    program works on pieces (``context_parallel``). ``attention``: "fused" is a flash kernel, "unfused" the separate
    matmuls and softmax before it. ``recompute`` is done in the layers whose number divides by ``recompute_every``, a
    selective one of the ``modules``; a full one that ``stops_early`` ends when it has all that backward reads, a
    selective one may leave a fused core alone (``keeps_fused_core``). ``probabilities`` of the router weigh experts'
    outputs once they are back (``combine``), or the experts' ``activation`` function does. ``activation_input``: inputs
    of activation functions are kept in 16 bits or in fp8. ``kernels``: who made those that device memory limits
    (``software.Software``), ``rope``: whether one kernel rotates positions, ``experts``: those of a mixture, ``bias``:
    whether the matmul of queries, keys and values adds theirs. ``quantization``: recipe by which matmuls of layers read
    operands of fewer bits than activations have, except in ``wide_layers``; ``wide``: this is the shape of such a
    layer. Casting a weight moves ``weight_cast_bytes`` per element in ``weight_cast_launches``, 0 if weights are kept
    in the operands' format. ``logits``: the loss keeps a copy in "fp32", of all ranks of tp where they are "gathered",
    or writes their gradient over them, "in-place". ``temporaries``: count tensors inside a layer's backward.
    ``relayed``: ep ranks get one copy of a token, and make of it a row for each of their experts. ``all_gathered``:
    each gets all tokens of all ranks. ``sent_cast``: rows and the gradients of experts' outputs arrive in fp8.
    ``separate_prediction``: layers of multi-token prediction are not with the LM head, but in another slice of the
    model. ``element_bytes``: size of activations and weights. ``grad_accumulate_bytes``: size of an element of the main
    gradient that W adds to (read and written); 0 if W only writes a gradient of ``element_bytes``. ``accumulate``: the
    matmul of W adds ("fused"), or a "separate" kernel adds its output. ``cp_inner`` ranks trade heads in hybrid context
    parallelism; with ``cp_states`` layers that have a state pass it on.
    """

    micro_batch: int
    tp: int = 1
    cp: int = 1
    cp_comm: str = "ring"
    cp_inner: int | None = None
    cp_shares: ContextShares = "zigzag"
    cp_states: bool = False
    ring: Ring = "transformer-engine"
    rope: Rope = "fused"
    bias: Bias = "product"
    ep: int = 1
    etp: int = 0
    sequence_parallel: bool = False
    recompute: Recompute = "none"
    modules: tuple[RecomputeModule, ...] = ("core_attn",)
    recompute_every: int = 1
    attention: Attention = "fused"
    dropout: bool = False
    logits: Logits = "fp32"
    probabilities: Probabilities = "combine"
    activation_input: ActivationInput = "16-bit"
    temporaries: bool = False
    kernels: Kernels = "fused"
    accumulate: Accumulate = "fused"
    stops_early: bool = False
    keeps_fused_core: bool = False
    experts: ExpertKernels = _EXPERT_KERNELS
    relayed: bool = False
    all_gathered: bool = False
    sent_cast: bool = False
    separate_prediction: bool = False
    quantization: Quantization | None = None
    wide_layers: frozenset[int] = frozenset()
    wide: bool = False
    weight_cast_bytes: float = 0.0
    weight_cast_launches: int = 1
    element_bytes: float = 2.0
    grad_accumulate_bytes: float = 4.0

    def __post_init__(self) -> None:
        for name in ("micro_batch", "tp", "cp", "ep", "recompute_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)} must be at least 1")
        if self.element_bytes <= 0 or self.grad_accumulate_bytes < 0:
            raise InputError(
                f"element_bytes {self.element_bytes} must be positive and grad_accumulate_bytes "
                f"{self.grad_accumulate_bytes} not negative; usual values are 2 and 4"
            )

    @property
    def state_parts(self) -> int:
        """Number of pieces of a sequence that pass states on, over all cp ranks; 1 without ``cp_states``."""
        return self.cp * {"zigzag": 2, "contiguous": 1}[self.cp_shares] if self.cp_states and self.cp > 1 else 1

    @property
    def expert_tp(self) -> int:
        """Number of tensor-parallel ranks that one expert is split over."""
        return self.etp or self.tp

    def layer_variant(self, layer: int) -> LayerVariant:
        """Return in what layer number ``layer`` differs from others of its type."""
        again = self.recompute != "none" and layer % self.recompute_every == 0
        return LayerVariant(again, layer in self.wide_layers)

    def list_variants(self) -> dict[LayerVariant, RankShape]:
        """Return the shape of each variant of layers; embedding and LM head are as quantized layers."""
        found = {LayerVariant(True, False): self, LayerVariant(False, False): replace(self, recompute="none")}
        for (again, _), shape in [*found.items()] if self.wide_layers else ():
            found[LayerVariant(again, True)] = replace(shape, quantization=None, wide=True)
        return found

    @property
    def cast_bytes(self) -> float:
        """Bytes per element of matmul operands of layers, with their share of a scale."""
        return self.quantization.operand_bytes if self.quantization else self.element_bytes

    @property
    def loss_vocab_shares(self) -> int:
        """Number of tp ranks' vocabulary parts on which each rank computes the loss."""
        return self.tp if self.logits == "gathered" else 1

    def recomputes_module(self, module: RecomputeModule) -> bool:
        """Return whether selective recomputation is on and includes ``module``."""
        return self.recompute == "selective" and module in self.modules

    @property
    def recomputes_core(self) -> bool:
        """Return whether selective recomputation runs the core attention again."""
        spared = self.attention == "fused" and self.keeps_fused_core
        return self.recompute == "selective" and "core_attn" in self.modules and not spared

    def gradient_write_bytes(self, weights: float) -> float:
        """Return the bytes moved when the gradients of ``weights`` weights are added to main gradients or written."""
        return weights * (2 * self.grad_accumulate_bytes if self.grad_accumulate_bytes else self.element_bytes)


@dataclass(frozen=True, slots=True)
class LocalSizes:
    """Sizes of a layer's tensors on one rank: tokens within and at the edges of a block, and widths.

    ``rows`` are its query positions of one sequence, ``columns`` the key positions that they meet. Of its heads,
    ``query``, ``kv`` and ``value`` are the widths of all queries, keys and values, ``output`` that of their outputs.
    """

    tokens: int
    edge_tokens: int
    rows: int
    columns: int
    hidden: int
    heads: int
    head_dim: int
    query: int
    kv: int
    value_dim: int
    value: int
    output: int
    ffn: int
    vocab: int


def local_sizes(model: Model, shape: RankShape) -> LocalSizes:
    """Return the sizes of tensors on one rank; raise InputError if tp or cp does not divide them."""
    shard = shard_widths(model, shape.tp)
    sequence = model.sequence_length
    if sequence % shape.cp:
        raise InputError(f"sequence_length {sequence} is not divisible by cp {shape.cp}; use a cp that divides it")
    rows = sequence // shape.cp
    split = shape.tp if shape.sequence_parallel else 1
    if rows % split:
        raise InputError(
            f"sequence_length {sequence} / cp {shape.cp} = {rows} is not divisible by tp {split}, over which sequence "
            "parallelism splits it; change one of them or set sequence_parallel: false"
        )
    return LocalSizes(
        tokens=shape.micro_batch * rows,
        edge_tokens=shape.micro_batch * rows // split,
        rows=rows,
        columns=sequence,
        hidden=model.hidden_size,
        heads=shard.heads,
        head_dim=model.head_dim,
        query=shard.heads * model.head_dim,
        kv=shard.kv_heads * model.head_dim,
        value_dim=model.value_dim,
        value=shard.kv_heads * model.value_dim,
        output=shard.heads * model.value_dim,
        ffn=shard.ffn,
        vocab=shard.vocab,
    )
