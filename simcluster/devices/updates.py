"""Passes over parameters and gradients at the end of a step, bound by memory: optimizer, norm, clipping, copies.

Pure.
"""

from __future__ import annotations

import math

from simcluster.devices.device import Device, memory_seconds
from simcluster.devices.software import Gradients, Shards
from simcluster.model.recipes import Recipe

_HALF_BYTES = 2  # a weight or gradient in 16 bits
_MASTER_BYTES = 4  # an fp32 copy of a weight


def optimizer_seconds(device: Device, parameters: float, *, recipe: Recipe) -> float:
    """The Adam update of ``parameters`` on this rank: one fused pass, bound by memory (30 B each under mixed-18)."""
    return memory_seconds(device, parameters * recipe.update_traffic)


def gradient_norm_seconds(device: Device, parameters: float, *, recipe: Recipe) -> float:
    """The pass over the rank's gradients that gradient clipping needs."""
    return memory_seconds(device, parameters * recipe.gradient)


def clip_seconds(device: Device, parameters: float, *, recipe: Recipe) -> float:
    """Multiplying the rank's gradients by clip / norm once that is known: read and written once.

    (Megatron-LM, clip_grads.py; torch.nn.utils.clip_grad_norm_.)
    """
    return memory_seconds(device, parameters * 2 * recipe.gradient)


def copy_seconds(device: Device, parameters: float, *, recipe: Recipe) -> float:
    """Copying fp32 master weights into those of the model in a pass of its own, behind an Adam that does not.

    (Megatron-LM, optimizer.py, ``_copy_main_params_to_model_params``.)  Adam wrote the weight already in
    ``optimizer_seconds``: what is left is to read the master again.
    """
    return memory_seconds(device, parameters * _MASTER_BYTES) if recipe.master else 0.0


def unscale_seconds(device: Device, parameters: float, *, recipe: Recipe) -> float:
    """Dividing the rank's gradients by the loss scale of fp16, and looking for infinities: read and written once.

    (Megatron-LM, optimizer.py, ``_unscale_main_grads_and_check_for_nan``.)
    """
    return memory_seconds(device, parameters * 2 * recipe.gradient)


def zero_gradients_seconds(device: Device, parameters: float, *, recipe: Recipe) -> float:
    """Setting the rank's gradient buffer to zero before the next step."""
    return memory_seconds(device, parameters * recipe.gradient)


def buffer_seconds(device: Device, parameters: float, *, recipe: Recipe, gradients: Gradients) -> float:
    """Passes over the gradients of all ``parameters`` that a rank accumulates, ahead of their reduction.

    They are scaled, or scaled and checked (Megatron-LM, core/distributed/param_and_grad_buffer.py, start_grad_sync),
    bucket by bucket; here all at once behind it.
    """
    seconds = unscale_seconds(device, parameters, recipe=recipe) if gradients != "averaged" else 0.0
    return seconds + (gradient_norm_seconds(device, parameters, recipe=recipe) if gradients == "checked" else 0.0)


def sharded_copy_seconds(device: Device, parameters: float, *, recipe: Recipe, shards: Shards) -> float:
    """What fully sharded parameters cost in copies on the GPU for each reduction of ``parameters``' gradients.

    ``flat``: 16-bit gradients are copied together, cast where they are reduced in fp32, and divided once before the
    reduction (PyTorch's FullyShardedDataParallel, ``_reduce_grad``).  ``copied``: what was gathered is copied out in
    forward and in backward, gradients are copied in and cast on the way (``fully_shard``, ``_fsdp_collectives.py``).
    """
    if shards == "in-place":
        return 0.0
    copy, cast = 2 * _HALF_BYTES, _HALF_BYTES + recipe.gradient
    if shards == "copied":
        sizes: tuple[float, ...] = (copy, copy, cast)
    elif recipe.gradient == _HALF_BYTES:
        sizes = (copy, 2 * recipe.gradient)
    else:
        sizes = (copy, cast, 2 * recipe.gradient)
    return math.fsum(memory_seconds(device, parameters * size) for size in sizes)
