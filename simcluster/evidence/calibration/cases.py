"""Kernels that a calibration measures: those of transformer training, in shapes that vary in efficiency.

The module imports no library, so that it runs where only PyTorch is installed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from simcluster.base.errors import InputError

CaseKind = Literal["matmul", "attention", "memory", "launch", "host_copy", "beside"]
DTYPES = ("bf16", "fp16", "fp32")
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
LAYOUTS = ("TN", "NN", "NT")
"""Forward, input gradient and weight gradient of a linear layer: which operand cuBLAS reads transposed."""
_LAUNCH_OPS = ("device add", "host add", "host matmul", "host linear with backward")
"""``device``: time from a tiny kernel to the next that depends on it; ``host``: the host's time to issue one."""
ATTENTION_BACKENDS = ("flash", "cudnn", "efficient", "math")
"""Backends of scaled_dot_product_attention; ``math`` is unfused."""


@dataclass(frozen=True, slots=True)
class CalibrationCase:
    """Kernel, host operation or copy that a calibration times, given by kind, shape and dtype.

    ``op`` is the layout of a matmul (TN, NN, NT), the backend of an attention, or the name of a memory-bound kernel or
    of a launch. A matmul is ``batch`` times (m x k)(k x n); attention has m = n = tokens, k = head size, batch =
    sequences x heads; a memory-bound kernel works on m rows of n elements; a copy moves ``size`` B.
    """

    kind: CaseKind
    op: str
    dtype: str
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    size: int = 0
    causal: bool = False
    backward: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration case as a dict for JSON, without fields that have default values."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default}

    @property
    def label(self) -> str:
        """Display name of the calibration case."""
        shape = " x ".join(str(side) for side in (self.m, self.n, self.k) if side)
        words = [self.kind, self.op, self.dtype]
        words += ["causal"] * self.causal + ["backward"] * self.backward + [f"{self.batch} of"] * (self.batch > 1)
        return " ".join([*words, shape] + [f"{self.size} B"] * bool(self.size)).strip()


def parse_calibration_case(data: object) -> CalibrationCase:
    """Parse a calibration case from a JSON object; raise InputError if the object is invalid."""
    known = {each.name: each for each in fields(CalibrationCase)}
    if not isinstance(data, dict) or not {"kind", "op", "dtype"} <= data.keys() <= known.keys():
        raise InputError("a case needs the keys kind, op, dtype, and may have m, n, k, batch, size, causal, backward")
    case = CalibrationCase(**data)
    for name, value in asdict(case).items():
        wanted: type = bool if name in ("causal", "backward") else str if name in ("kind", "op", "dtype") else int
        if type(value) is not wanted or (isinstance(value, int) and value < 0):
            kind = {bool: "true or false", str: "a text", int: "a whole number from 0"}[wanted]
            raise InputError(f"{name} of a case is {value!r}; it must be {kind}; correct it, or measure again")
    kinds = get_args(CaseKind)
    if case.kind not in kinds:
        raise InputError(f"unknown kind of case {case.kind!r}; use {', '.join(kinds)}")
    if case.dtype not in ELEMENT_BYTES:
        raise InputError(f"unknown dtype {case.dtype!r}; use {', '.join(ELEMENT_BYTES)}")
    return case


@dataclass(frozen=True, slots=True)
class CalibrationSizes:
    """Sizes of the kernels that a calibration measures, read from ``cases.toml``."""

    tokens: int
    hidden: list[int]
    wave_steps: int
    depths: list[int]
    squares: list[int]
    vocabulary: list[int]
    lengths: list[int]
    elements: list[int]
    copies: list[int]
    heads: list[int]


def list_calibration_cases(dtype: str, *, on_gpu: bool, quick: bool) -> tuple[CalibrationCase, ...]:
    """Return all kernels that a calibration measures, in order of measurement, without duplicates.

    The quick list covers all kinds with fewer shapes. Raises InputError for an unknown dtype.
    """
    if dtype not in DTYPES:
        raise InputError(f"--dtype {dtype} cannot be measured; use {', '.join(DTYPES)}")
    fp8 = on_gpu and dtype != "fp32"
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    sizes = CalibrationSizes(**table[("gpu" if on_gpu else "cpu") + "-quick" * quick])
    found = [
        *(CalibrationCase("launch", op, dtype, m=16, n=16) for op in _LAUNCH_OPS),
        *_memory_bound_cases(dtype, sizes),
        *_matmul_cases(dtype, sizes),
        *(CalibrationCase("matmul", "TN", "fp8", m=sizes.tokens, n=n, k=k) for n, k in _linear_shapes(sizes) if fp8),
        *_attention_cases(dtype, sizes),
        *(CalibrationCase("host_copy", op, dtype, size=one) for one in sizes.copies for op in ("to device", "to host")),
        *_overlap_cases(dtype, sizes),
    ]
    return tuple(dict.fromkeys(found))


def _linear_shapes(sizes: CalibrationSizes) -> Iterator[tuple[int, int]]:
    """Yield (n, k) of a transformer's four linear layers: QKV, output projection, and both MLP layers."""
    for hidden in sizes.hidden:
        yield from ((3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden))


def _matmul_cases(dtype: str, sizes: CalibrationSizes) -> Iterator[CalibrationCase]:
    tokens, middle = sizes.tokens, sizes.hidden[len(sizes.hidden) // 2]
    for n, k in _linear_shapes(sizes):
        yield CalibrationCase("matmul", "TN", dtype, m=tokens, n=n, k=k)
        yield CalibrationCase("matmul", "NN", dtype, m=tokens, n=k, k=n)
        yield CalibrationCase("matmul", "NT", dtype, m=n, n=k, k=tokens)
    step = 128 if tokens >= 1024 else 64
    for count in range(1, sizes.wave_steps + 1):  # output tiles fill successive waves
        yield CalibrationCase("matmul", "TN", dtype, m=tokens // 2, n=count * step, k=middle)
    for layout in LAYOUTS:
        for depth in sizes.depths:
            yield CalibrationCase("matmul", layout, dtype, m=tokens, n=tokens, k=depth)
    for side in sizes.squares:
        yield CalibrationCase("matmul", "TN", dtype, m=side, n=side, k=side)
    for words in sizes.vocabulary:  # rows not aligned to 16 B
        yield CalibrationCase("matmul", "TN", dtype, m=tokens, n=words, k=sizes.hidden[0])
        yield CalibrationCase("matmul", "NN", dtype, m=tokens, n=sizes.hidden[0], k=words)
    for head in sizes.heads:  # the matmuls of an unfused attention
        for length in sizes.lengths[:4]:
            yield CalibrationCase("matmul", "TN", dtype, m=length, n=length, k=head, batch=16)
            yield CalibrationCase("matmul", "NN", dtype, m=length, n=head, k=length, batch=16)


def _attention_cases(dtype: str, sizes: CalibrationSizes) -> Iterator[CalibrationCase]:
    longest = sizes.lengths[-1]
    for backend in ATTENTION_BACKENDS:
        for head in sizes.heads:
            for size in sizes.lengths:
                if backend == "math" and size > 4096:
                    continue  # its square matrix would exceed memory
                batch = max(16, min(64, 8 * longest // size))
                for causal in (False, True):
                    for backward in (False, True):
                        yield CalibrationCase("attention", backend, dtype, size, size, head, batch, 0, causal, backward)


def _memory_bound_cases(dtype: str, sizes: CalibrationSizes) -> Iterator[CalibrationCase]:
    for elements in sizes.elements:
        columns = min(elements, 1024)
        for op in ("copy", "add", "gelu", "layer_norm", "sum"):
            yield CalibrationCase("memory", op, dtype, m=elements // columns, n=columns)
    for length in sizes.lengths[:4]:
        for op in ("softmax", "dropout"):  # over the square matrix of an unfused attention
            yield CalibrationCase("memory", op, dtype, m=16 * length, n=length)


def _overlap_cases(dtype: str, sizes: CalibrationSizes) -> Iterator[CalibrationCase]:
    side, elements = sizes.hidden[len(sizes.hidden) // 2], sizes.elements[-1]
    for copy in ("copy to host", "copy to device", "copy in memory"):
        yield CalibrationCase("beside", f"matmul beside {copy}", dtype, m=side, n=side, k=side)
        yield CalibrationCase("beside", f"add beside {copy}", dtype, m=elements // 1024, n=1024)
