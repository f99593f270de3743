"""PyTorch kernels of each calibration case, with tensors that are too large in total to stay in cache.

Calls use the sets of tensors in turn. Only this module and those that time its kernels import PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.evidence.calibration.cases import ELEMENT_BYTES, CalibrationCase

Run = Callable[[int], object]
"""Function that issues a case once, on the tensors of a round."""

_MAX_ROUNDS = 64
_MAX_GPU_BYTES = 4e9  # of all rounds on a GPU
_MAX_HOST_BYTES = 64e6


def import_torch() -> Any:
    """Import PyTorch and return the module; raise InputError if PyTorch is not installed."""
    try:
        import torch
    except ImportError:
        raise InputError(
            "measuring needs PyTorch; pip install 'simcluster[calibrate]', or fit a table with --from"
        ) from None
    return torch


@dataclass(frozen=True, slots=True)
class PreparedCase:
    """Calibration case ready to run: its function, and whether CUDA graphs work."""

    run: Run
    capturable: bool = True


def torch_dtype(name: str) -> Any:
    """Return the PyTorch dtype with a name such as "bf16"."""
    torch = import_torch()
    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}[name]


def prepare_case(case: CalibrationCase, device: Any, cache: float) -> PreparedCase:
    """Prepare a calibration case with random tensors on a device that has ``cache`` bytes of cache.

    Zeros would draw less power. Raises PyTorch's errors if the case cannot run there.
    """
    builder = _BUILDERS[case.kind]
    sets = num_tensor_sets(case, cache, on_gpu=device.type == "cuda")
    runs = [builder(case, device) for _ in range(sets)]
    fused = case.kind != "attention" or not case.backward
    return PreparedCase(lambda place: runs[place % sets](), capturable=fused)


def num_tensor_sets(case: CalibrationCase, cache: float, *, on_gpu: bool) -> int:
    """Return how many sets of tensors fill the cache three times over, within a memory limit."""
    size = max(estimate_case_bytes(case), 1.0)
    most = (_MAX_GPU_BYTES if on_gpu else _MAX_HOST_BYTES) / size
    return max(1, min(_MAX_ROUNDS, math.ceil(3 * cache / size), math.floor(most)))


def estimate_case_bytes(case: CalibrationCase) -> float:
    """Return the approximate size (bytes) of the tensors that one run of a calibration case uses."""
    element = ELEMENT_BYTES[case.dtype]
    if case.kind == "memory":
        return 3.0 * element * case.m * case.n
    if case.kind == "attention":
        return 8.0 * element * case.batch * case.m * case.k
    return float(element * case.batch * (case.m * case.k + case.k * case.n + case.m * case.n))


def _random_tensor(device: Any, dtype: str, *shape: int) -> Any:
    return import_torch().randn(*shape, device=device, dtype=torch_dtype(dtype))


def _build_matmul(case: CalibrationCase, device: Any) -> Callable[[], object]:
    torch = import_torch()
    if case.dtype == "fp8":
        return _build_fp8_matmul(case, device)
    batch = (case.batch,) if case.batch > 1 else ()
    a_shape = (*batch, case.k, case.m) if case.op == "NT" else (*batch, case.m, case.k)
    b_shape = (*batch, case.n, case.k) if case.op == "TN" else (*batch, case.k, case.n)
    a, b = _random_tensor(device, case.dtype, *a_shape), _random_tensor(device, case.dtype, *b_shape)
    a = a.transpose(-1, -2) if case.op == "NT" else a
    b = b.transpose(-1, -2) if case.op == "TN" else b
    out = torch.empty(*batch, case.m, case.n, device=device, dtype=a.dtype)
    multiply = torch.bmm if batch else torch.mm
    return lambda: multiply(a, b, out=out)


def _build_fp8_matmul(case: CalibrationCase, device: Any) -> Callable[[], object]:
    """Return a function that runs an fp8 matmul with one scale per tensor and a bf16 result."""
    torch = import_torch()
    a = _random_tensor(device, "bf16", case.m, case.k).to(torch_dtype("fp8"))
    b = _random_tensor(device, "bf16", case.n, case.k).to(torch_dtype("fp8")).t()
    one = torch.ones((), device=device, dtype=torch.float32)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)


def _build_attention(case: CalibrationCase, device: Any) -> Callable[[], object]:
    torch = import_torch()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {
        "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH,
    }  # fmt: skip
    q, k, v = (
        _random_tensor(device, case.dtype, 1, case.batch, case.m, case.k).requires_grad_(case.backward)
        for _ in range(3)
    )
    attend = torch.nn.functional.scaled_dot_product_attention

    def forward() -> Any:
        with sdpa_kernel(backends[case.op]):
            return attend(q, k, v, is_causal=case.causal)

    if not case.backward:
        return forward
    out = forward()
    above = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), above, retain_graph=True)


def _build_memory_op(case: CalibrationCase, device: Any) -> Callable[[], object]:
    torch = import_torch()
    x = _random_tensor(device, case.dtype, case.m, case.n)
    if case.op == "copy":
        to = torch.empty_like(x)
        return lambda: to.copy_(x)
    if case.op == "add":
        other, to = torch.randn_like(x), torch.empty_like(x)
        return lambda: torch.add(x, other, out=to)
    if case.op == "layer_norm":
        weight, bias = (_random_tensor(device, case.dtype, case.n) for _ in range(2))
        return lambda: torch.nn.functional.layer_norm(x, (case.n,), weight, bias)
    calls: Mapping[str, Callable[[], object]] = {
        "gelu": lambda: torch.nn.functional.gelu(x, approximate="tanh"), "sum": lambda: torch.sum(x),
        "softmax": lambda: torch.softmax(x, dim=-1), "dropout": lambda: torch.native_dropout(x, 0.1, True),
    }  # fmt: skip
    return calls[case.op]


_BUILDERS: Mapping[str, Callable[[CalibrationCase, Any], Callable[[], object]]] = {
    "matmul": _build_matmul, "attention": _build_attention, "memory": _build_memory_op,
}  # fmt: skip
