"""Measured cases as the kernels that the device model times: their FLOP and bytes.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from simcluster.base.errors import InputError
from simcluster.devices.device import Device, kernel_seconds
from simcluster.evidence.calibration.cases import ELEMENT_BYTES, KernelCase
from simcluster.model.kernels import Kernel

FUSED = ("flash", "cudnn", "efficient")
_PASSES = {"copy": 2, "add": 3, "gelu": 2, "layer_norm": 2, "sum": 1, "softmax": 2, "dropout": 2}
_BY_ROW = ("softmax", "dropout")
_MASK_BYTES = 1  # of an element, written by dropout beside its result


def kernel_of(case: KernelCase) -> Kernel | None:
    """The kernel that a case is to the device model; None for what is no kernel of it (copies, the host's time).

    FLOP and bytes are counted as planning counts them: operands read once and results written once, causal attention at
    one half, backward attention with five products.  Raises InputError for a side of 0, and for an unknown op.
    """
    builder = _KERNELS.get(case.kind)
    if builder is None:
        return None
    sides = ("m", "n", "batch") if case.kind in ("memory", "launch") else ("m", "n", "k", "batch")
    for side in sides:
        if not getattr(case, side):
            raise InputError(f"case {case.label!r}: {side} is 0; {', '.join(sides)} are at least 1 each")
    return builder(case)


def attention_name(case: KernelCase) -> str:
    """What the kernel of a case is called in a device file: sdpa-flash for PyTorch's own FlashAttention."""
    return f"sdpa-{case.op}"


def modelled_seconds(device: Device, timed: Iterable[tuple[KernelCase, Kernel]]) -> list[float]:
    """What the device model gives for each case with its kernel."""
    running: dict[str, Device] = {}  # the device, by the attention that runs
    found = []
    for case, kernel in timed:
        ours = device
        if case.kind == "attention":
            name = attention_name(case)
            ours = running.get(name) or running.setdefault(name, _with_attention(device, name))
        found.append(kernel_seconds(ours, kernel, precision=case.dtype))
    return found


def _with_attention(device: Device, name: str) -> Device:
    return device.model_copy(update={"attention": device.attention.model_copy(update={"kernel": name})})


def _matmul(case: KernelCase) -> Kernel:
    m, n, k, batch, element = case.m, case.n, case.k, case.batch, ELEMENT_BYTES[case.dtype]
    result = 2 if case.dtype == "fp8" else element
    size = batch * (element * (m * k + k * n) + result * m * n)
    return Kernel(case.label, "matmul", 2.0 * batch * m * n * k, float(size), m=m, n=n, k=k, batch=batch)


def _attention(case: KernelCase) -> Kernel | None:
    if case.op not in FUSED:
        return None
    products, tensors = (5, 8) if case.backward else (2, 4)
    flops = 2.0 * products * case.batch * case.m * case.n * case.k * (0.5 if case.causal else 1.0)
    size = float(tensors * ELEMENT_BYTES[case.dtype] * case.batch * case.m * case.k)
    return Kernel(case.label, "attention", flops, size, m=case.m, n=case.n, k=case.k, batch=case.batch)


def _memory(case: KernelCase) -> Kernel:
    if case.op not in _PASSES:
        raise InputError(f"case {case.label!r}: there is no kernel {case.op!r}; known: {', '.join(_PASSES)}")
    element = _PASSES[case.op] * ELEMENT_BYTES[case.dtype] + (_MASK_BYTES if case.op == "dropout" else 0)
    return Kernel(case.label, "memory", 0.0, float(element * case.m * case.n), by_row=case.op in _BY_ROW)


def _launch(case: KernelCase) -> Kernel | None:
    """A kernel of next to no bytes; the others are times of the host."""
    if case.op != "device add":
        return None
    return Kernel(case.label, "memory", 0.0, float(2 * ELEMENT_BYTES[case.dtype] * case.m * case.n))


_KERNELS: Mapping[str, Callable[[KernelCase], Kernel | None]] = {
    "matmul": _matmul,
    "attention": _attention,
    "memory": _memory,
    "launch": _launch,
}
