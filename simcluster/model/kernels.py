"""GPU kernels, described by FLOP and bytes moved, without durations.

``layer_block`` lists the kernels of a transformer block; ``devices.device`` computes their durations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

KernelKind = Literal["matmul", "attention", "memory"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel launch on a GPU, or several equal launches.

    ``flops`` and ``bytes`` are the hardware's work (FLOP executed; bytes read and written in device memory). A matmul
    is ``batch`` times (m x k)(k x n); a fused attention kernel keeps m = query rows, n = key rows, k = head size,
    batch = sequences x heads; a memory kernel has no shape. ``transposed``: the first operand lies in memory with its m
    side along rows (a weight gradient's, X^T of the stored X). ``launches``: the number of launches, which have these
    bytes and FLOP in all; ``passes``: further dependent readings of a memory kernel, by a block of threads
    for each of its ``rows``, each of which waits for memory once more. ``streams``: the matmuls of a batch are separate
    launches on N streams; 0, one launch for all. ``calls`` of the framework make these launches, a library's loop or a
    written-out expression all of them in one. An attention kernel with a mask has ``edges`` where its queries' keys
    end, one, or two in a window, and its queries see the part ``seen`` of all keys. ``by_row``: a memory kernel over
    the square of an unfused attention, such as softmax with its rows and exponentials or dropout with its random
    numbers, which does not keep up with memory.
    """

    name: str
    kind: KernelKind
    flops: float
    bytes: float
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    transposed: bool = False
    launches: int = 1
    passes: int = 0
    rows: int = 0
    streams: int = 0
    calls: int = 1
    seen: float = 0.5
    edges: float = 1.0
    by_row: bool = False
    keeps_16_bits: bool = False  # done in 16 bits where matmuls are in fp8: the LM head
    concurrent_matmuls: int = 1  # number of equal matmuls on several streams, which share waves of multiprocessors
    then: tuple[str, str, float] | None = None  # a collective over tp that follows it: kind, name, bytes
    operand_bytes: float = 0.0  # of an element of a matmul's operands, its share of a scale included; 0: of its result


@dataclass(frozen=True, slots=True)
class Section:
    """Kernels of one consecutive part of a block, by pipeline phase.

    ``recompute`` is what is run again just before ``input_grad`` (empty without recomputation); a full backward B is
    recompute + input_grad + weight_grad.
    """

    forward: tuple[Kernel, ...] = ()
    recompute: tuple[Kernel, ...] = ()
    input_grad: tuple[Kernel, ...] = ()
    weight_grad: tuple[Kernel, ...] = ()

    def forward_kernels(self, phase: str) -> tuple[Kernel, ...]:
        """Return the kernels of the forward, or of its recomputation, as ``phase`` states."""
        return self.forward if phase == "forward" else self.recompute

    def backward_kernels(self, phase: str) -> tuple[Kernel, ...]:
        """Return the kernels of a full "backward", or of "input_grad", which omits weight gradients."""
        return self.input_grad + (self.weight_grad if phase == "backward" else ())

    def map_kernels(self, change: Callable[[Kernel], Kernel]) -> Section:
        """Return the section with every kernel replaced by ``change(kernel)``."""
        phases = (self.forward, self.recompute, self.input_grad, self.weight_grad)
        return Section(*(tuple(map(change, kernels)) for kernels in phases))


@dataclass(frozen=True, slots=True)
class Block:
    """Part of a layer between tensor-parallel collectives, such as attention, mlp, embedding or lm_head.

    Forward order: ``entry`` (norm; on the sequence shard under sequence parallelism), the gather of its output,
    ``body`` (column-parallel linear ... row-parallel linear), the reduction of its output, ``exit`` (dropout, residual
    add; on the shard again). Backward runs them in reverse. The gathered tensor is ``gathered_width`` wide, 0 for the
    width of the hidden state. Forward alone gathers ``detached_width`` more, which has no gradient; backward sums fp32
    rows of ``summed_width`` over tp. Gathers of the input, and of the output's gradient, send these shares of 16 bits,
    after a reduction of the largest value where tp ranks must agree on it.
    """

    name: str
    entry: Section
    body: Section
    exit: Section
    gathered_width: int = 0
    detached_width: int = 0
    summed_width: int = 0
    input_share: float = 1.0
    gradient_share: float = 1.0
    reduces_largest: bool = False
    frozen: bool = False  # no weight gradient needs its inputs again

    @property
    def sections(self) -> tuple[Section, ...]:
        """All sections of the block in forward order: entry, body, exit."""
        return self.entry, self.body, self.exit


def split_matmul(kernel: Kernel, pieces: int) -> tuple[Kernel, ...]:
    """Split a matmul along its rows into equal pieces, each of which reads all weights.

    Rows that do not divide are rounded up, as padding would. Pieces run on several streams, where the next one's tiles
    fill the last wave of the previous one (Transformer Engine's userbuffers, up to three; PyTorch's asynchronous tensor
    parallelism, two).
    """
    rows, each = -(-kernel.m // pieces), kernel.operand_bytes or 1.0
    weights, inputs = each * kernel.k * kernel.n, each * kernel.m * kernel.k
    results = kernel.bytes - inputs - weights if kernel.operand_bytes else kernel.m * kernel.n
    own = ((inputs + results) * rows / kernel.m + weights) / (inputs + results + weights)
    flops, size = kernel.flops * rows / kernel.m, kernel.bytes * own
    piece = replace(kernel, m=rows, flops=flops, bytes=size, concurrent_matmuls=kernel.concurrent_matmuls * pieces)
    return (piece,) * pieces
