"""Sensitivity of computations to concurrent communication: their kernels are timed on fewer resources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, assert_never

from simcluster.base.errors import InputError
from simcluster.devices import interference as mechanisms
from simcluster.devices.device import Device, kernel_sequence_seconds
from simcluster.devices.interference import BandwidthInterference, FactorInterference, Interference, InterferenceSpec
from simcluster.model.kernels import Kernel

InterferenceChoice = Literal["none", "auto"] | InterferenceSpec


def make_interference(device: Device, choice: InterferenceChoice, *, dispatcher: int = 0) -> Interference | None:
    """Return how communication and compute slow each other down on a device; None if they do not.

    ``auto`` is the device's entry. ``dispatcher`` multiprocessors are held by kernels that relay tokens to experts,
    unless the choice is ``none``. Raises InputError when communication would hold all multiprocessors.
    """
    match choice:
        case "none":
            return None
        case "auto":
            spec = device.interference
        case FactorInterference() | mechanisms.MultiprocessorInterference() | BandwidthInterference():
            spec = choice
        case _:
            assert_never(choice)
    if spec is None and not dispatcher:
        return None
    there = device.multiprocessors - device.reserved
    held = max(dispatcher, spec.channels if isinstance(spec, mechanisms.MultiprocessorInterference) else 0)
    if held >= there:
        raise InputError(
            f"communication on {held} multiprocessors leaves none of {device.name}'s {there} for computation; use "
            "fewer channels, as in 24"
        )
    return Interference(spec, there, device.memory_bandwidth, dispatcher)


def make_sensitivity_function(
    device: Device, interference: Interference | None, precision: str
) -> Callable[[Sequence[Kernel]], float]:
    """Return a function that maps kernels to their sensitivity to communication (0: none, 1: full).

    With multiprocessors taken, from the time that the device model gives on the others; with memory bandwidth taken,
    from the additional time on half of it (all of their time again where bandwidth limits them, nothing where it does
    not). A mechanism of one factor always acts in full.
    """
    if interference is None or isinstance(interference.spec, FactorInterference):
        return lambda kernels: 1.0
    spec = interference.spec
    left, held, pressure = device, 0, 1.0
    if isinstance(spec, BandwidthInterference):
        left = device.model_copy(update={"memory_bandwidth": device.memory_bandwidth / 2})
    else:
        held = spec.channels if spec else interference.dispatcher
        pressure = held / (interference.multiprocessors - held)

    def sensitivity(kernels: Sequence[Kernel]) -> float:
        alone = kernel_sequence_seconds(device, kernels, precision=precision)
        less = kernel_sequence_seconds(left, kernels, precision=precision, held_sms=held)
        return (less / alone - 1.0) / pressure if alone > 0 else 0.0

    return sensitivity
