"""Sensitivity of a computation to concurrent communication, from its kernels' times on fewer resources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, assert_never

from simcluster.base.errors import InputError
from simcluster.devices.device import Device, kernels_seconds
from simcluster.devices.interference import Factor, Interference, InterferenceSpec, MemoryBandwidth, Multiprocessors
from simcluster.model.kernels import Kernel

InterferenceChoice = Literal["none", "auto"] | InterferenceSpec


def get_interference(device: Device, choice: InterferenceChoice, *, dispatcher: int = 0) -> Interference | None:
    """Return how communication and compute slow each other on a device; None if they do not.

    ``auto`` is the device's entry. ``dispatcher`` multiprocessors are held by kernels that relay tokens to experts,
    unless the choice is ``none``. Raises InputError when communication would hold all multiprocessors.
    """
    spec: InterferenceSpec | None
    match choice:
        case "none":
            return None
        case "auto":
            spec = device.interference
        case Factor() | Multiprocessors() | MemoryBandwidth():
            spec = choice
        case _:
            assert_never(choice)
    if spec is None and not dispatcher:
        return None
    there = device.multiprocessors - device.reserved
    held = max(dispatcher, spec.channels if isinstance(spec, Multiprocessors) else 0)
    if held >= there:
        raise InputError(
            f"communication on {held} multiprocessors leaves none of {device.name}'s {there} for computation; use "
            "fewer channels, as in 24"
        )
    return Interference(spec, there, device.memory_bandwidth, dispatcher)


def make_sensitivity(
    device: Device, interference: Interference | None, precision: str
) -> Callable[[Sequence[Kernel]], float]:
    """Return a function from kernels to their sensitivity to concurrent communication (1: full).

    With multiprocessors taken, from the time that the device model gives on the others; with memory bandwidth taken,
    from the additional time on half of it (all of their time again where bandwidth limits them, nothing where it does
    not). A mechanism of one factor always acts in full.
    """
    if interference is None or isinstance(interference.spec, Factor):
        return lambda kernels: 1.0
    spec = interference.spec
    left, held, pressure = device, 0, 1.0
    if isinstance(spec, MemoryBandwidth):
        left = device.model_copy(update={"memory_bandwidth": device.memory_bandwidth / 2})
    else:
        held = spec.channels if spec else interference.dispatcher
        pressure = held / (interference.multiprocessors - held)

    def sensitivity(kernels: Sequence[Kernel]) -> float:
        alone = kernels_seconds(device, kernels, precision=precision)
        less = kernels_seconds(left, kernels, precision=precision, held=held)
        return (less / alone - 1.0) / pressure if alone > 0 else 0.0

    return sensitivity
