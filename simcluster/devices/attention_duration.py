"""Durations of fused attention kernels, from measured fractions of peak FLOP/s.

    seconds = max(FLOP x (1 + blocks on the diagonal) / (peak x rate(head size) x sustained x busy), bytes / bandwidth)

A score costs its exponential whatever the head size, and the matmuls in proportion to it, so 1 / rate is a + b / head
size (the exponential unit does 16 a clock on a multiprocessor of Ampere, Hopper and Blackwell, arXiv:2407.08608 section
3.1 and arXiv:2603.05451): through the two rates that papers give, at 64 and 128.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Count, Spec
from simcluster.documents.diagnostics import did_you_mean, join_or
from simcluster.model.kernels import Kernel

Fraction = Annotated[float, Field(strict=True, gt=0, le=1)]

_BACKWARD_PRODUCTS = 5.0  # of fused attention, against two of its forward
_WIDE_HEAD, _NARROW_HEAD = 128, 64  # the head sizes that rates are given for


class AttentionResources(NamedTuple):
    """GPU resources for an attention kernel: peak FLOP/s, bytes/s, SMs, and SMs reserved for others."""

    peak: float
    bandwidth: float
    multiprocessors: int
    reserved: int


class AttentionKernel(Spec):
    """Fractions of peak FLOP/s that one generation of fused attention reaches on long sequences.

    ``forward_64`` and ``backward_64``: with heads of 64; by default a head's size makes no difference. ``diagonal``:
    what a causal mask costs a query's forward beyond the keys that it sees, in keys (whole blocks on the diagonal, and
    what begins and ends a block of rows); default: half a block.
    """

    forward: Fraction
    backward: Fraction
    forward_64: Fraction | None = None
    backward_64: Fraction | None = None
    diagonal: Annotated[float, Field(ge=0)] | None = None
    source: str = ""

    def peak_fraction(self, head_size: int, *, backward: bool) -> float:
        """Return the fraction of peak FLOP/s that the kernel reaches at a head size."""
        wide, narrow = (self.backward, self.backward_64) if backward else (self.forward, self.forward_64)
        if narrow is None or head_size <= 0:
            return wide
        by_size = (1.0 / narrow - 1.0 / wide) / (1.0 / _NARROW_HEAD - 1.0 / _WIDE_HEAD)
        return 1.0 / (1.0 / wide + by_size * (1.0 / head_size - 1.0 / _WIDE_HEAD))


class AttentionModel(Spec):
    """Fused attention kernels of a device by generation, and the generation in use.

    ``sustained``: the share of the kernel's rates that training steps sustain, as ``sustained`` of matmuls: below 1 on
    a part with less power than the one that the rates were measured on.
    """

    kernel: str
    kernels: dict[str, AttentionKernel]
    rows: Count = 128
    """Number of query rows that one multiprocessor works on; with fewer blocks than multiprocessors some are idle."""
    sustained: Fraction = 1.0

    @model_validator(mode="after")
    def _check_kernel(self) -> Self:
        if self.kernel not in self.kernels:
            raise InputError(
                f"kernel {self.kernel!r} is not in attention.kernels{did_you_mean(self.kernel, self.kernels)}; "
                f"use {join_or(self.kernels)}"
            )
        return self

    def seconds(self, kernel: Kernel, room: AttentionResources) -> float:
        """Return the duration (s) of a fused attention kernel, excluding launch.

        Forward does two matmuls (at most 4 m n k FLOP), backward five (over 4 m n k even under a causal mask). Blocks
        on the diagonal of a causal mask are computed whole: half of ``rows`` keys more for each query, or ``diagonal``;
        a window has as many at its other edge (flash-attn, hopper/block.h: ``get_n_block_min_max``).
        """
        constants = self.kernels[self.kernel]
        square = 4.0 * kernel.batch * kernel.m * kernel.n * kernel.k
        backward = kernel.flops > square
        flops = kernel.flops
        if flops < 0.75 * square * (_BACKWARD_PRODUCTS / 2 if backward else 1.0):
            more = constants.diagonal if constants.diagonal is not None and not backward else self.rows / 2
            flops *= 1.0 + kernel.edges * more / (kernel.seen * kernel.n)
        blocks = math.ceil(kernel.m / self.rows) * kernel.batch
        efficiency = constants.peak_fraction(kernel.k, backward=backward) * self.sustained
        efficiency *= min(blocks, room.multiprocessors - room.reserved) / room.multiprocessors
        return max(flops / (room.peak * efficiency), kernel.bytes / room.bandwidth)
