"""Kernels of the basic operations of a layer (norm, linear, dropout, ...) on one GPU, by phase.

Bytes follow one rule: every tensor that a kernel reads or writes counts once. Memory kernels count no FLOPs: bytes are
what limits them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from simcluster.base.errors import InputError
from simcluster.model.kernel_choices import (
    Accumulate,
    ActivationInput,
    Attention,
    Bias,
    ContextShares,
    Kernels,
    Logits,
    Probabilities,
    RecomputeModule,
    Ring,
    Rope,
)
from simcluster.model.kernels import Kernel, Section
from simcluster.model.mixture import ExpertKernels
from simcluster.model.shard_widths import shard_widths
from simcluster.model.transformer import Model, Recompute

FP32_BYTES = 4.0  # softmax statistics and logits of the loss, whatever the precision of the rest
_EXPERT_KERNELS = ExpertKernels()
MASK_BYTES = 1.0  # a dropout mask is one byte per element


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
    whether the matmul of queries, keys and values adds theirs. ``fp8``: matmuls of layers read operands of
    ``cast_bytes`` per element, cast from 16 bits, and take an expert's rows ``cast_rows`` at a time; casting a weight
    moves ``weight_cast_bytes`` per element, 0 if weights are kept in the operands' format. ``logits``: the loss keeps a
    copy in "fp32", of all ranks of tp where they are "gathered", or writes their gradient over them, "in-place".
    ``temporaries``: count tensors that live inside a layer's backward. ``relayed``: ep ranks get one copy of a token,
    and make of it a row for each of their experts. ``all_gathered``: each gets all tokens of all ranks. ``sent_cast``:
    rows and the gradients of experts' outputs arrive in fp8. ``separate_prediction``: layers of multi-token prediction
    are not with the LM head, but in another slice of the model. ``element_bytes``: size of activations and weights.
    ``grad_accumulate_bytes``: size of an element of the main gradient that W adds to (read and written); 0 if W only
    writes a gradient of ``element_bytes``. ``accumulate``: the matmul of W adds ("fused"), or a "separate" kernel adds
    its output. ``cp_inner`` ranks trade heads in hybrid context parallelism; with ``cp_states`` layers
    that have a state pass it on.
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
    fp8: bool = False
    cast_bytes: float = 1.0
    cast_rows: int = 16
    weight_cast_bytes: float = 0.0
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

    def recomputes_layer(self, layer: int) -> bool:
        """Return whether the backward of layer number ``layer`` recomputes anything."""
        return self.recompute != "none" and layer % self.recompute_every == 0

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


def join_sections(pieces: Sequence[Section], recompute: Recompute) -> Section:
    """Join consecutive sections into one section; its backward runs them in reverse order.

    Under full recompute the whole forward runs again; otherwise the parts that the sections name.
    """
    forward = tuple(chain.from_iterable(piece.forward for piece in pieces))
    again = tuple(chain.from_iterable(piece.recompute for piece in pieces))
    return Section(
        forward=forward,
        recompute=forward if recompute == "full" else again,
        input_grad=tuple(chain.from_iterable(piece.input_grad for piece in reversed(pieces))),
        weight_grad=tuple(chain.from_iterable(piece.weight_grad for piece in reversed(pieces))),
    )


# --- kernels --------------------------------------------------------------------------------------------------------


def memory_kernel(name: str, size: float, launches: int = 1) -> Kernel:
    """Return a kernel limited by memory bandwidth, which reads and writes ``size`` bytes in all its launches."""
    return Kernel(name, "memory", 0.0, size, launches=launches)


def forward_backward_section(name: str, forward: float, backward: float, launches: int = 1) -> Section:
    """Return a section of memory-bound kernels that move ``forward`` and, in the backward, ``backward`` bytes."""
    input_grad = memory_kernel(f"{name}_input_grad", backward, launches)
    return Section((memory_kernel(name, forward, launches),), input_grad=(input_grad,))


def step_kernels(name: str, elements: float, steps: Mapping[str, float]) -> tuple[Kernel, ...]:
    """Return one memory kernel per step of an expression; ``steps`` has the bytes per element of each."""
    return tuple(memory_kernel(f"{name}_{step}", size * elements) for step, size in steps.items())


def matmul_kernel(
    name: str, m: int, n: int, k: int, element_bytes: float, batch: int = 1, *, operand_bytes: float = 0.0
) -> Kernel:
    """Return a kernel of ``batch`` matmuls (m x k)(k x n); each operand and result is moved once.

    An element has ``element_bytes``, of the operands ``operand_bytes`` if that is not 0.
    """
    size = batch * ((operand_bytes or element_bytes) * (m * k + k * n) + element_bytes * (m * n))
    return Kernel(name, "matmul", 2.0 * batch * m * n * k, size, m, n, k, batch, operand_bytes=operand_bytes)


# --- operations -----------------------------------------------------------------------------------------------------


def linear_section(
    name: str, shape: RankShape, tokens: int, width_in: int, width_out: int, *, bias: bool, wide: bool = False
) -> Section:
    """Return the kernels of a linear layer: Y = X W, dX = dY W^T, and dW = X^T dY added to the main gradient.

    Operands of all three have ``shape.cast_bytes`` in fp8 and fp4, unless the matmul is ``wide``; Y and dX have
    ``element_bytes`` in every precision, and dW those of the main gradient. The matmul's epilogue or the next kernel
    adds the bias (if neither: ``bias_section``); its gradient is a pass over dY. Where the library cannot add inside
    the matmul (Megatron-LM before --gradient-accumulation-fusion, autograd), dW is written in 16 bits and added by a
    separate kernel.
    """
    e, weights = shape.element_bytes, width_in * width_out
    operand = shape.cast_bytes if shape.fp8 and not wide else e
    apart = {"fused": False, "separate": True}[shape.accumulate] and shape.grad_accumulate_bytes > 0
    written = e * weights if apart else shape.gradient_write_bytes(weights)
    size = operand * tokens * (width_in + width_out) + written
    grad, flops = f"{name}_weight_grad", 2.0 * tokens * weights
    product = Kernel(grad, "matmul", flops, size, width_in, width_out, tokens, transposed=True, keeps_16_bits=wide)
    weight_grad: tuple[Kernel, ...] = (replace(product, operand_bytes=operand),)
    if apart:  # reads what the matmul wrote, adds it to the main gradient
        weight_grad += (memory_kernel(f"{grad}_accumulate", e * weights + shape.gradient_write_bytes(weights)),)
    if bias:
        weight_grad += (memory_kernel(f"{name}_bias_grad", e * tokens * width_out),)
    forward = matmul_kernel(name, tokens, width_out, width_in, e, operand_bytes=operand)
    input_grad = matmul_kernel(f"{name}_input_grad", tokens, width_in, width_out, e, operand_bytes=operand)
    return Section((replace(forward, keeps_16_bits=wide),), (), (replace(input_grad, keeps_16_bits=wide),), weight_grad)


def batch_matmuls(section: Section, count: int) -> Section:
    """Return a section with ``count`` equal matmuls in a batch instead of each, and as many times the bytes."""
    return section.map_kernels(
        lambda one: replace(one, flops=count * one.flops, bytes=count * one.bytes, batch=count if one.m else 1)
    )


def bias_section(name: str, shape: RankShape, tokens: int, width: int) -> Section:
    """Return a separate kernel that adds a bias to a matmul's output."""
    return Section(forward=(memory_kernel(f"{name}_bias", 2 * shape.element_bytes * tokens * width),))


def fused_norm(name: str, shape: RankShape, local: LocalSizes, *, residual: bool) -> Section:
    """Return the fused kernels of a norm: the forward reads X and writes Y, the backward reads X, dY and writes dX.

    Scale and shift gradients come with it. ``residual``: the gradient of the residual path is then added to dX (two
    reads, one write).
    """
    size = shape.element_bytes * local.edge_tokens * local.hidden
    input_grad: tuple[Kernel, ...] = (memory_kernel(f"{name}_input_grad", 3 * size),)
    if residual:
        input_grad += (memory_kernel(f"{name}_residual_grad", 3 * size),)
    return Section(forward=(memory_kernel(name, 2 * size),), input_grad=input_grad)


def residual_section(name: str, model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Return bias, dropout and residual add as one kernel, as Megatron-LM fuses them.

    It makes two reads, a write, and the mask. In backward the residual path costs nothing here; only dropout and the
    bias of the row-parallel matmul do.
    """
    elements = local.edge_tokens * local.hidden
    size = shape.element_bytes * elements
    biased = model.bias in (True, "attention") if name == "attention" else model.mlp_bias
    mask = MASK_BYTES * elements if shape.dropout else 0.0
    return Section(
        forward=(memory_kernel(f"{name}_residual_add", 3 * size + mask),),
        input_grad=(memory_kernel(f"{name}_dropout_input_grad", 2 * size + mask),) if shape.dropout else (),
        weight_grad=(memory_kernel(f"{name}_bias_grad", size),) if biased else (),
    )


def dropout_section(name: str, shape: RankShape, elements: int) -> Section:
    """Return the kernels of a separate dropout, which reads and writes the tensor and its mask."""
    size = (2 * shape.element_bytes + MASK_BYTES) * elements
    return forward_backward_section(name, size, size)


def fused_rotation(shape: RankShape, local: LocalSizes) -> Section:
    """Return the fused kernel of rotary positions, which reads and writes Q and K, forward and backward."""
    size = 2 * shape.element_bytes * local.tokens * (local.query + local.kv)
    return forward_backward_section("rope", size, size)


def learned_position_section(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Return the kernels that add learned position embeddings, and those of the position table's gradient."""
    if model.position != "learned":
        return Section()
    size = shape.element_bytes * local.edge_tokens * local.hidden
    rows = local.edge_tokens // shape.micro_batch
    update = shape.gradient_write_bytes(rows * local.hidden)
    return Section(
        forward=(memory_kernel("position_embedding", 3 * size),),
        weight_grad=(memory_kernel("position_embedding_weight_grad", size + update),),
    )


def fused_activation(model: Model, shape: RankShape, local: LocalSizes) -> Section:
    """Return the fused kernel of GELU (with its bias) or SwiGLU, forward and backward."""
    reads = model.num_mlp_matrices - 1
    size = shape.element_bytes * local.tokens * local.ffn
    return forward_backward_section("swiglu" if model.gated_mlp else "gelu", (reads + 1) * size, (2 * reads + 1) * size)
