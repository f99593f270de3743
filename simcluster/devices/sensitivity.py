"""How much of a communication's pressure a computation feels: its kernels timed on what the communication leaves.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from simcluster.base.errors import InputError
from simcluster.devices.device import Device, kernels_seconds
from simcluster.devices.interference import (
    Factor,
    Interference,
    InterferenceSpec,
    MemoryBandwidth,
    Multiprocessors,
)
from simcluster.model.kernels import Kernel

Choice = Literal["none", "auto"] | InterferenceSpec


def interference_on(device: Device, choice: Choice) -> Interference | None:
    """What a scenario asks for on this device: ``auto`` is what the device's entry says; None for no interference.

    Raises InputError when communication would hold all multiprocessors.
    """
    spec = device.interference if choice == "auto" else choice
    if spec is None or isinstance(spec, str):
        return None
    if isinstance(spec, Multiprocessors) and spec.channels >= device.multiprocessors - device.reserved:
        raise InputError(
            f"communication on {spec.channels} multiprocessors leaves none of {device.name}'s "
            f"{device.multiprocessors - device.reserved} for computation; give fewer channels, as in 24"
        )
    return Interference(spec, device.multiprocessors - device.reserved, device.memory_bandwidth)


def sensitivity_on(
    device: Device, interference: Interference | None, precision: str
) -> Callable[[Sequence[Kernel]], float]:
    """How much kernels one after the other feel of a communication's pressure: 1 is in full.

    With multiprocessors taken, the time that the device model gives on the others; with memory bandwidth taken, how
    much longer they take on half of it (all of their time again where bandwidth is what holds them back, nothing where
    it is not).
    """
    if interference is None or isinstance(interference.spec, Factor):
        return lambda kernels: 1.0
    spec = interference.spec
    if isinstance(spec, MemoryBandwidth):
        left = device.model_copy(update={"memory_bandwidth": device.memory_bandwidth / 2})
        pressure = 1.0
    else:
        left = device.model_copy(update={"reserved": device.reserved + spec.channels})
        pressure = spec.channels / (interference.multiprocessors - spec.channels)

    def sensitivity(kernels: Sequence[Kernel]) -> float:
        alone = kernels_seconds(device, kernels, precision=precision)
        return (kernels_seconds(left, kernels, precision=precision) / alone - 1.0) / pressure if alone > 0 else 0.0

    return sensitivity
