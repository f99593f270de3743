"""How long Muon's update of one matrix takes: Newton-Schulz products in 16 bits, and passes over it around them.

An iteration on X, m x n with m the smaller, is A = X X^T, B = b A + c A A, X = a X + B X: 4 m^2 n + 2 m^3 FLOP.  The
passes are those of PyTorch's operations in NVIDIA-NeMo/Emerging-Optimizers (orthogonalized_optimizer.py: weight decay,
momentum, update; muon_utils.py, ``newton_schulz``: norm, division, cast there and back, scale), with those of
Megatron-LM's copy of the master weights.  Muon: K. Jordan, 2024; arXiv:2502.16982.  Pure.
"""

from __future__ import annotations

import math

from simcluster.devices.device import Device, kernels_seconds, memory_seconds
from simcluster.model.kernels import Kernel
from simcluster.model.recipes import Recipe

_FP32, _BF16 = 4.0, 2.0


def newton_schulz(rows: int, columns: int, iterations: int) -> tuple[Kernel, ...]:
    """The products that make a matrix nearly orthogonal, each an operand, a result and what it adds to once."""
    m, n = min(rows, columns), max(rows, columns)

    def product(name: str, columns: int, depth: int, *, added: bool) -> Kernel:
        elements = m * depth + depth * columns + m * columns * (2 if added else 1)
        return Kernel(name, "matmul", 2.0 * m * columns * depth, _BF16 * elements, m, columns, depth)

    once = (
        product("gram", m, n, added=False), product("polynomial", m, m, added=True), product("update", n, m, added=True)
    )  # fmt: skip
    return once * iterations


def orthogonalized_seconds(device: Device, rows: int, columns: int, *, iterations: int) -> float:
    """The products, and the passes over all of a matrix around them."""
    elements = float(rows * columns)
    passes = (_FP32, 2 * _FP32, _FP32 + _BF16, _BF16 + _FP32, 2 * _FP32)  # norm, division, cast, cast back, scale
    around = math.fsum(memory_seconds(device, elements * size) for size in passes)
    return kernels_seconds(device, newton_schulz(rows, columns, iterations), precision="bf16") + around


def matrix_passes_seconds(device: Device, elements: float, *, recipe: Recipe) -> float:
    """The passes over those elements of a matrix whose state the rank has: decay, momentum, update, copy."""
    weight = _FP32 if recipe.master else recipe.weight
    passes = [2 * weight, 2 * recipe.moment + recipe.gradient, 2 * weight + _FP32]
    passes += [weight + recipe.weight] if recipe.master else []
    return math.fsum(memory_seconds(device, elements * size) for size in passes)
