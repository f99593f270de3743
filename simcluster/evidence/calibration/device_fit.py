"""Least-squares fit of a device model's constants to the kernel times measured by a calibration.

Every timed kernel counts by the logarithm of model over measurement. Each kind of kernel has the same total weight, and
a row further off than 5 % counts less than by its square, so that a library's odd choice for one shape decides nothing.
What cannot be measured (data-sheet peaks, memory, interference) comes from a built-in device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.devices.device import AttentionKernel, Device, TiledMatmul, kernel_seconds
from simcluster.documents.yaml_documents import read_document
from simcluster.evidence.calibration.cases import ELEMENT_BYTES, CalibrationCase
from simcluster.evidence.calibration.least_squares import (
    FitParameter,
    FitSolution,
    Residuals,
    fit_least_squares,
    replace_value_at,
    value_at_path,
)
from simcluster.evidence.calibration.raw_table import MeasuredMachine, MeasuredTable, Measurement
from simcluster.model.kernels import Kernel

FUSED_BACKENDS = ("flash", "cudnn", "efficient")
_TENSOR_PASSES = {"copy": 2, "add": 3, "gelu": 2, "layer_norm": 2, "sum": 1, "softmax": 2, "dropout": 2}
_ROWWISE_OPS = ("softmax", "dropout")
_MASK_BYTES = 1  # per element, written by dropout with its result


def device_model_kernel(case: CalibrationCase) -> Kernel | None:
    """Return the device model's kernel for a calibration case, or None for copies and host times.

    FLOP and bytes are counted as in planning: operands read once and results written once, causal attention at one
    half, backward attention with five matmuls. Raises InputError for a size of 0 or an unknown op.
    """
    m, n, k, batch, element = case.m, case.n, case.k, case.batch, ELEMENT_BYTES[case.dtype]
    sides = ("m", "n", "batch") if case.kind in ("memory", "launch") else ("m", "n", "k", "batch")
    for side in sides if case.kind not in ("host_copy", "beside") else ():
        if not getattr(case, side):
            raise InputError(f"case {case.label!r}: {side} is 0; {', '.join(sides)} must be 1 or more")
    match case.kind:
        case "matmul":
            size = batch * (element * (m * k + k * n) + (2 if case.dtype == "fp8" else element) * m * n)
            return Kernel(case.label, "matmul", 2.0 * batch * m * n * k, float(size), m=m, n=n, k=k, batch=batch)
        case "attention":
            matmuls, tensors = (5, 8) if case.backward else (2, 4)
            flops = 2.0 * matmuls * batch * m * n * k * (0.5 if case.causal else 1.0)
            size = tensors * element * batch * m * k
            kernel = Kernel(case.label, "attention", flops, float(size), m=m, n=n, k=k, batch=batch)
            return kernel if case.op in FUSED_BACKENDS else None
        case "launch":  # a kernel of almost no bytes; the others are host times
            return Kernel(case.label, "memory", 0.0, float(2 * element * m * n)) if case.op == "device add" else None
        case "memory":
            if case.op not in _TENSOR_PASSES:
                raise InputError(
                    f"case {case.label!r}: there is no kernel {case.op!r}; known: {', '.join(_TENSOR_PASSES)}"
                )
            each = _TENSOR_PASSES[case.op] * element + (_MASK_BYTES if case.op == "dropout" else 0)
            return Kernel(case.label, "memory", 0.0, float(each * m * n), by_row=case.op in _ROWWISE_OPS)
        case "host_copy" | "beside":
            return None
        case _:
            assert_never(case.kind)


def attention_kernel_name(case: CalibrationCase) -> str:
    """Return the name of the case's attention kernel in a device file, as in sdpa-flash."""
    return f"sdpa-{case.op}"


def modelled_seconds(device: Device, timed: Iterable[tuple[CalibrationCase, Kernel]]) -> list[float]:
    """Return the time (s) that the device model predicts for each calibration case."""
    running: dict[str, Device] = {}  # devices by attention kernel
    found = []
    for case, kernel in timed:
        ours = device
        if case.kind == "attention":
            name = attention_kernel_name(case)
            ours = running.get(name) or running.setdefault(
                name, device.model_copy(update={"attention": device.attention.model_copy(update={"kernel": name})})
            )
        found.append(kernel_seconds(ours, kernel, precision=case.dtype))
    return found


_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
TimedKernels = Sequence[tuple[Measurement, Kernel]]
_STARTS = ((0.75, 0.85), (0.55, 0.95), (0.9, 0.6))  # of power and clock: the fit has several local minima


@dataclass(frozen=True, slots=True)
class CalibratedConstant:
    """Device constant fitted by calibration, with its standard error (None if undetermined)."""

    path: str
    start: float
    value: float
    error: float | None
    at_bound: bool


@dataclass(frozen=True, slots=True)
class ModelledMeasurement:
    """Measured kernel time of a calibration, and the fitted device model's time (s) for the same kernel."""

    measurement: Measurement
    modelled: float

    @property
    def relative_error(self) -> float:
        """Relative error of the modelled time: modelled / measured - 1."""
        return self.modelled / self.measurement.seconds - 1.0


@dataclass(frozen=True, slots=True)
class DeviceFit:
    """Device whose constants were fitted to calibration measurements, with its modelled kernel times."""

    device: Device
    table: MeasuredTable
    base: str
    constants: tuple[CalibratedConstant, ...]
    rows: tuple[ModelledMeasurement, ...]

    def rows_by_kind(self) -> dict[str, list[ModelledMeasurement]]:
        """Return the measured kernels grouped by kind of case, in order of measurement."""
        found: dict[str, list[ModelledMeasurement]] = {}
        for row in self.rows:
            found.setdefault(row.measurement.case.kind, []).append(row)
        return found


def fit_device(table: MeasuredTable, *, base: Device | None = None, name: str = "measured") -> DeviceFit:
    """Fit a device's constants to the measurements of a calibration; return the device with the fit's errors.

    ``base`` gives what is not measured, and the start of the search; without one, peak and bandwidth are the best
    measured values. Raises InputError if the table has no matmuls or no memory-bound kernels.
    """
    timed = [(row, kernel) for row in table.timed_measurements if (kernel := device_model_kernel(row.case)) is not None]
    for kind in ("matmul", "memory"):
        if not any(each.case.kind == kind for each, _ in timed):
            raise InputError(f"the table has no timed case of kind {kind}; measure all cases with simcluster calibrate")
    pairs = [(each.case, kernel) for each, kernel in timed]
    before = _make_starting_device(table, timed, base, name)
    paths = _list_constant_paths(before, pairs)
    measured = np.log([each.seconds for each, _ in timed])
    kinds = [case.kind for case, _ in pairs]  # equal weight for every kind of case
    weights = np.sqrt([len(kinds) / len(set(kinds)) / kinds.count(kind) for kind in kinds])

    def make_device(values: Sequence[float]) -> Device:
        device = before
        for path, value in zip(paths, values, strict=True):
            device = replace_value_at(device, path, value)
        return device

    def residuals(values: tuple[float, ...]) -> Floats:
        device = make_device(values)
        found: Floats = (np.log(modelled_seconds(device, pairs)) - measured) * weights
        return found

    best, starts = _find_best_fit(before, paths, residuals)
    values = tuple(float(f"{value:.4g}") for value in best.values)
    device = make_device(values)
    device = replace_value_at(device, "attention.kernel", _find_fastest_attention(timed) or device.attention.kernel)
    return DeviceFit(
        device=Device.model_validate(device.model_dump(mode="json")), table=table, base=base.name if base else "",
        constants=tuple(
            CalibratedConstant(path, start, value, error, edge)
            for path, start, value, error, edge in zip(paths, starts, values, best.errors, best.at_bound, strict=True)
        ),
        rows=tuple(
            ModelledMeasurement(each, seconds)
            for (each, _), seconds in zip(timed, modelled_seconds(device, pairs), strict=True)
        ),
    )  # fmt: skip


def _find_best_fit(before: Device, paths: Sequence[str], residuals: Residuals) -> tuple[FitSolution, tuple[float, ...]]:
    """Return the best fit from several starts, and the constants' values at the first start."""
    found: list[FitSolution] = []
    starts = []
    for power, clock in _STARTS:
        given = {"matmul.power": power, "matmul.clock": clock}
        parameters = []
        for path in paths:
            low, high = _TABLES["bounds"].get(path, _TABLES["bounds"]["others"])
            value = value_at_path(before, path)
            start = given.get(path) or float(np.clip(0.5 if value is None else value, low, high))
            parameters.append(FitParameter(path, start, low, high))
        found.append(fit_least_squares(parameters, residuals, loss="robust"))
        starts.append(tuple(each.start for each in parameters))
    return min(found, key=lambda each: float(np.sum(np.abs(each.residuals)))), starts[0]


def _list_constant_paths(device: Device, pairs: Sequence[tuple[CalibrationCase, Kernel]]) -> list[str]:
    cases = [case for case, _ in pairs]
    paths = ["launch", "memory_efficiency", "memory_half_size"]
    if any(kernel.by_row for _, kernel in pairs):
        paths.append("by_row")
    paths += ["matmul.power", "matmul.clock", "matmul.epilogue"]
    sides = [(side, case.dtype) for case in cases if case.kind == "matmul" for side in (case.m, case.n, case.k)]
    if any(side * ELEMENT_BYTES[dtype] % 16 for side, dtype in sides):
        paths.append("matmul.misaligned")
    if any(case.dtype == "fp8" for case in cases):
        paths.append("matmul.power_fp8")
    for backend in FUSED_BACKENDS:
        for backward in (False, True):
            if any(case.kind == "attention" and (case.op, case.backward) == (backend, backward) for case in cases):
                paths.append(f"attention.kernels.sdpa-{backend}.{'backward' if backward else 'forward'}")
    return [path for path in paths if not path.startswith("matmul.") or device.matmul.kind == "tiles"]


def _make_starting_device(table: MeasuredTable, timed: TimedKernels, base: Device | None, name: str) -> Device:
    backends = dict.fromkeys(each.case.op for each, _ in timed if each.case.kind == "attention")
    machine = table.machine
    source = f"measured{f' on {machine.date}' if machine.date else ''} on {machine.device} with PyTorch {machine.torch}"
    measured = {
        f"sdpa-{backend}": AttentionKernel(forward=0.5, backward=0.4, source=f"{source}, PyTorch's {backend} backend")
        for backend in backends
    }
    whole = base or _device_from_measurements(table, timed)
    attention = whole.attention.model_copy(update={"kernels": {**whole.attention.kernels, **measured}})
    matmul = whole.matmul
    if not isinstance(matmul, TiledMatmul):
        raise InputError(f"device {whole.name}: its matmul has kind {matmul.kind!r}; a fit needs kind 'tiles'")
    return whole.model_copy(
        update={
            "name": name, "multiprocessors": machine.multiprocessors, "attention": attention,
            "matmul": matmul.model_copy(update={"source": source}),
            "source": f"{source}; what was not measured: {base.name if base else 'nothing'}",
        }
    )  # fmt: skip


def _device_from_measurements(table: MeasuredTable, timed: TimedKernels) -> Device:
    rates: dict[str, float] = {}
    bandwidth = 1.0
    for each, kernel in timed:
        if each.case.kind == "matmul":
            rates[each.case.dtype] = max(rates.get(each.case.dtype, 0.0), kernel.flops / each.seconds)
        elif each.case.kind == "memory" and not kernel.by_row:
            bandwidth = max(bandwidth, kernel.bytes / each.seconds)
    peak = {dtype: f"{rate:.5g} FLOP/s" for dtype, rate in rates.items()}
    measured = {
        "peak": {**peak, "source": "the best measured matmul; no data sheet"},
        "memory": f"{table.machine.memory or 16e9:.5g} B",
        "memory_bandwidth": f"{bandwidth:.5g} B/s",
        "multiprocessors": table.machine.multiprocessors,
    }
    return Device.model_validate({**_TABLES["bare"], **measured})


def _find_fastest_attention(timed: TimedKernels) -> str | None:
    rates: dict[str, float] = {}
    for each, kernel in timed:
        if each.case.kind == "attention" and not each.case.backward:
            name = attention_kernel_name(each.case)
            rates[name] = max(rates.get(name, 0.0), kernel.flops / each.seconds)
    return max(rates, key=lambda name: rates[name]) if rates else None


def rms_log_error(rows: Sequence[ModelledMeasurement]) -> float:
    """Return the root mean square of ln(modelled / measured) over the measured kernels."""
    logs = [math.log(row.modelled / row.measurement.seconds) for row in rows]
    return math.sqrt(math.fsum(each * each for each in logs) / len(logs))


def find_builtin_device(machine: MeasuredMachine) -> str | None:
    """Return the name of the built-in device for a GPU, found by the GPU's driver name, or None."""
    name = machine.device.lower()
    for part, device in _TABLES["names"].items():
        if part in name:
            other = any(word in name for word in _TABLES["others"] if word not in part)
            return None if other else str(device)
    return None
