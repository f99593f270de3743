"""Times of memory-bound passes over parameters or gradients: optimizer, gradient norm, copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, assert_never

from simcluster.devices.device import Device, memory_kernel_seconds
from simcluster.devices.software import Gradients, Shards
from simcluster.model.recipes import Recipe

_HALF_BYTES = 2  # a weight or gradient in 16 bits
_MASTER_BYTES = 4  # an fp32 copy of a weight


Pass = Literal["optimizer", "norm", "clip", "copy", "unscale", "zero"]
_BYTES: Mapping[Pass, Callable[[Recipe], float]] = {
    "optimizer": lambda recipe: recipe.update_traffic,  # the Adam update: one fused pass (30 B each under mixed-18)
    "norm": lambda recipe: recipe.gradient,  # that gradient clipping needs
    # by clip / norm once that is known: read and written (Megatron-LM, clip_grads.py; torch.nn.utils.clip_grad_norm_)
    "clip": lambda recipe: 2 * recipe.gradient,
    # fp32 master weights into those of the model, after an Adam that does not (Megatron-LM, optimizer.py,
    # _copy_main_params_to_model_params); it wrote the weight already in "optimizer": the master is read again
    "copy": lambda recipe: _MASTER_BYTES,
    # division by the loss scale of fp16, and a look for infinities: read and written (Megatron-LM, optimizer.py,
    # _unscale_main_grads_and_check_for_nan)
    "unscale": lambda recipe: 2 * recipe.gradient,
    "zero": lambda recipe: recipe.gradient,  # the gradient buffer set to zero before the next step
}
"""Bytes that a pass moves per parameter."""


def parameter_pass_seconds(device: Device, parameters: float, kind: Pass, *, recipe: Recipe) -> float:
    """Return the time (s) of one pass over a rank's parameters, or over their gradients."""
    return memory_kernel_seconds(device, parameters * _BYTES[kind](recipe))


def gradient_pass_seconds(device: Device, parameters: float, *, recipe: Recipe, gradients: Gradients) -> float:
    """Return the time (s) of passes over all of a rank's gradients before their reduction.

    They are scaled, or scaled and checked (Megatron-LM, core/distributed/param_and_grad_buffer.py, start_grad_sync),
    bucket by bucket; here all at once.
    """
    kinds: dict[Gradients, tuple[Pass, ...]] = {"averaged": (), "scaled": ("unscale",), "checked": ("unscale", "norm")}
    return math.fsum(parameter_pass_seconds(device, parameters, kind, recipe=recipe) for kind in kinds[gradients])


def fsdp_copy_seconds(
    device: Device, parameters: float, gathered: float | None = None, *, recipe: Recipe, shards: Shards,
    gathers: int = 2,
) -> float:  # fmt: skip
    """Return the time (s) of the copies that FSDP makes on the GPU for each gradient reduction.

    It reduces gradients of N ``parameters``; ``gathered`` (default: N) counts those that it gathers, frozen ones too.

    ``flat``: 16-bit gradients are copied together, cast where they are reduced in fp32, and divided once before the
    reduction (PyTorch's FullyShardedDataParallel, ``_reduce_grad``). ``copied``: what was gathered is copied out in
    forward and in backward, gradients are copied in and cast on the way (``fully_shard``, ``_fsdp_collectives.py``).
    ``lists``: each gather clears its buffer and is copied out, each reduction copied in; ``gathers`` of them.
    """
    if shards == "in-place":
        return 0.0
    copy, cast = 2 * _HALF_BYTES, _HALF_BYTES + recipe.gradient
    sizes: tuple[float, ...]
    outward: tuple[float, ...] = ()
    if shards == "lists":
        outward, sizes = (_HALF_BYTES, copy) * gathers, (copy,)
    elif shards == "copied":
        outward, sizes = (copy, copy), (cast,)
    elif shards == "flat":
        sizes = (copy, 2 * recipe.gradient) if recipe.gradient == _HALF_BYTES else (copy, cast, 2 * recipe.gradient)
    else:
        assert_never(shards)
    moved = [parameters * size for size in sizes]
    moved += [(parameters if gathered is None else gathered) * size for size in outward]
    return math.fsum(memory_kernel_seconds(device, size) for size in moved)
