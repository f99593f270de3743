"""Duration of kernels on a GPU: a roofline whose ceilings depend on the kernel's size.

    seconds = launch + max(FLOP / (peak x efficiency), bytes / (bandwidth x efficiency))

A device is a document: the catalogue has the built-in ones, each a set of constants with sources, and a scenario may
describe another. Nothing here depends on a model, a layout or a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, assert_never

from pydantic import Field, model_validator

from simcluster.base.errors import InputError
from simcluster.base.units import Bytes, BytesPerSecond, FlopPerSecond, Seconds
from simcluster.devices.attention_duration import AttentionKernel, AttentionModel, AttentionResources, Fraction
from simcluster.devices.device_files import is_device_file, read_device_description
from simcluster.devices.interference import InterferenceSpec
from simcluster.documents.base_spec import Count, Spec
from simcluster.documents.catalogue.devices import device_names, load_device_entry
from simcluster.documents.diagnostics import did_you_mean, join_or
from simcluster.documents.yaml_documents import Document, validate_document
from simcluster.model.kernels import Kernel

__all__ = [
    "AttentionKernel",
    "AttentionModel",
    "CalculonMatmul",
    "Device",
    "MatmulModel",
    "PeakRates",
    "TiledMatmul",
    "device_names",
    "kernel_seconds",
    "kernel_sequence_seconds",
    "load_device",
    "load_device_entry",
    "memory_kernel_seconds",
]


_ALIGNED_BYTES = 16  # NVIDIA, "Matrix Multiplication Background": efficient where dimensions are multiples of 16 B
_BLOCKS = 8  # of 256 threads, which a multiprocessor holds at once, all generations: 2,048 threads
_ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "mxfp8": 1, "nvfp4": 0.5}
LOW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")
"""Precisions of layers' matmuls alone; attention and wide matmuls stay in 16 bits."""


class PeakRates(Spec):
    """Dense peak FLOP/s of a GPU by operand precision, from its data sheet."""

    fp32: FlopPerSecond | None = None
    tf32: FlopPerSecond | None = None
    bf16: FlopPerSecond | None = None
    fp16: FlopPerSecond | None = None
    fp8: FlopPerSecond | None = None
    mxfp8: FlopPerSecond | None = None
    nvfp4: FlopPerSecond | None = None
    source: str = ""

    @model_validator(mode="after")
    def _require_rate(self) -> Self:
        if not self.known_rates():
            raise InputError('no precision is given a peak rate; set at least one, as in bf16: "312 TFLOP/s"')
        return self

    def known_rates(self) -> dict[str, float]:
        """Return the peak FLOP/s of each precision that the device supports."""
        return {name: rate for name in _ELEMENT_BYTES if (rate := getattr(self, name)) is not None}


class TiledMatmul(Spec):
    """Matmul model: output tiles run in waves, one tile at a time per multiprocessor (SM).

    Two ceilings, whichever is lower. ``clock``: the rate of a multiprocessor at full clock on its tile; all wait for
    the last wave to end, so a nearly empty last wave costs a whole one. ``power``: the rate of the whole chip within
    its power limit; idle multiprocessors leave power to the others, so this one counts tiles, not waves; in training,
    where it never rests, ``sustained`` of that (separate values for fp8 and fp4, if given). Power grows with the clock
    to the ``power_exponent``, so a share u of the multiprocessors may run at u^(-1/exponent) of the clock that all can
    keep: with 1 the others use all that idle ones leave, less where the voltage rises with the clock. Multiprocessors
    that communication holds are not idle: they draw their share of the power, which the matmul does not have. A smaller
    tile reads its operands more often for each FLOP, and its rate falls with that reuse, tm tn / (tm + tn). The matmul
    takes the best of ``tiles``.

    Matmuls of experts that are launched one by one on ``streams`` are short, a wave or two of some 20 us each, and what
    limits power does so over many of them: what idle multiprocessors leave is unused, and waves count for both. Each
    wave takes ``fill`` more, until its first operands are there and its last results written, which a kernel of many
    waves hides under other tiles.

    ``epilogue``: the share of the output's traffic that is not hidden under the matmul. It is what makes a shallow
    matmul slow, efficiency k / (k + k0) with k0 in proportion to the bytes moved for an output element: 2 for a 16-bit
    result, 8 when it is added to an fp32 gradient.

    ``misaligned``: the share of these rates where rows in memory do not begin at multiples of 16 B (a width is not a
    multiple of 8 elements of 16 bits: a vocabulary of 50,257), which takes kernels that load element by element. How
    many rows an operand has is free (``_is_misaligned``).
    """

    kind: Literal["tiles"]
    tiles: Annotated[tuple[tuple[Count, Count], ...], Field(min_length=1)]
    power: Fraction
    power_fp8: Fraction | None = None
    sustained: Fraction = 1.0
    sustained_fp8: Fraction | None = None
    clock: Fraction
    power_exponent: Annotated[float, Field(strict=True, ge=1, le=10)] = 1.0
    epilogue: Annotated[float, Field(strict=True, ge=0)]
    misaligned: Fraction = 1.0
    fill: Seconds = 0.0
    source: str = ""

    def seconds(self, kernel: Kernel, device: Device, precision: str, held_sms: int = 0) -> float:
        """Return a matmul's duration (s), excluding launch, while communication occupies ``held_sms`` SMs."""
        peak, bandwidth = device.peak_flops(precision), device.reached_bandwidth
        if self.misaligned != 1.0 and _is_misaligned(kernel, precision):
            peak *= self.misaligned
        power, share = self.power, self.sustained
        if precision in LOW_PRECISIONS:
            power = power if self.power_fp8 is None else self.power_fp8
            share = share if self.sustained_fp8 is None else self.sustained_fp8
        left = 1.0 if kernel.streams else 1.0 - held_sms / device.multiprocessors
        reached = power * share * left ** (1.0 / self.power_exponent)
        clock, fill = self.clock, self.fill
        product = math.inf
        for sustained, clocked, filled in _tile_shape_work(
            (kernel.m, kernel.n, kernel.k, kernel.batch, kernel.streams, kernel.concurrent_matmuls),
            self.tiles, device.multiprocessors, device.reserved + held_sms, self.power_exponent,
        ):  # fmt: skip
            by_power, by_clock = sustained / reached, clocked / clock
            seconds = (by_power if by_power > by_clock else by_clock) / peak + filled * fill
            if seconds < product:
                product = seconds
        # of the result all but operands, read once; at most an fp32 element is read and written
        each, batch = kernel.operand_bytes or _ELEMENT_BYTES[precision], kernel.batch
        operands = each * batch * (kernel.m * kernel.k + kernel.k * kernel.n)
        exposed = self.epilogue * min(max(kernel.bytes - operands, 0.0), 8.0 * batch * kernel.m * kernel.n)
        return max(product + exposed / bandwidth, kernel.bytes / bandwidth)


class CalculonMatmul(Spec):
    """Calculon's matmul model, with efficiency tables by FLOP and bytes, to compare with Calculon.

    The tables are in its systems' JSON files. ``combine: sum`` adds compute and memory time ("no_overlap", used by its
    built-in systems); ``max`` is the roofline.
    """

    kind: Literal["calculon"]
    combine: Literal["sum", "max"] = "sum"
    source: str = ""

    def seconds(self, kernel: Kernel, device: Device, precision: str, held_sms: int = 0) -> float:
        """Return a matmul's duration (s), excluding launch, while communication occupies ``held_sms`` SMs."""
        compute = kernel.flops / (device.peak_flops(precision) * _look_up_efficiency(_CALCULON_FLOPS, kernel.flops))
        compute /= 1.0 - (device.reserved + held_sms) / device.multiprocessors
        memory = kernel.bytes / (device.memory_bandwidth * _look_up_efficiency(_CALCULON_BYTES, kernel.bytes))
        return compute + memory if self.combine == "sum" else max(compute, memory)


_CALCULON_FLOPS = ((128e9, 0.95), (16e9, 0.90), (1e9, 0.60), (0.0, 0.10))
_CALCULON_BYTES = ((100e6, 0.90), (10e6, 0.75), (1e6, 0.60), (0.0, 0.30))


def _look_up_efficiency(table: tuple[tuple[float, float], ...], size: float) -> float:
    return next(efficiency for start, efficiency in table if size >= start)


@lru_cache(maxsize=4096)  # a fit of the rates asks for the same matmuls thousands of times
def _tile_shape_work(
    shape: tuple[int, int, int, int, int, int],
    tiles_of: tuple[tuple[int, int], ...],
    multiprocessors: int,
    reserved: int,
    power_exponent: float,
) -> tuple[tuple[float, float, float], ...]:
    """Return, per tile shape, FLOP under the power limit, FLOP under the clock limit, and waves to fill.

    ``shape`` is m, n, k, batch, streams and concurrent matmuls. None of it depends on the rates that are reached.
    """
    m, n, k, batch, streams, beside = shape
    best_reuse = max(_tile_data_reuse(rows, columns) for rows, columns in tiles_of)
    unused, there = 1.0 - 1.0 / power_exponent, multiprocessors - reserved
    together = min(streams, batch) or batch  # products of the batch that share waves
    found = []
    for rows, columns in tiles_of:
        tiles = math.ceil(m / rows) * math.ceil(n / columns) * together
        tile_flops = 2.0 * rows * columns * k * best_reuse / _tile_data_reuse(rows, columns) * (batch / together)
        waves = math.ceil(tiles * beside / there) / beside
        idle = waves * multiprocessors / tiles  # 1 / u
        counted = tiles * (idle if streams else idle**unused)
        filled = waves * (batch / together) if streams else 0.0
        found.append((counted * tile_flops, waves * multiprocessors * tile_flops, filled))
    return tuple(found)


def _tile_data_reuse(rows: int, columns: int) -> float:
    return rows * columns / (rows + columns)


def _is_misaligned(kernel: Kernel, precision: str) -> bool:
    """Return whether rows of a matmul's operands or result start at addresses not divisible by 16 bytes.

    Rows of (m x k)(k x n) as frameworks keep it are k, n and n elements long, so m, the tokens of a layer, is free; a
    weight gradient reads its first operand ``transposed``, in rows of m, and there k is free. In fp8 and fp4 operands
    are transposed beforehand, so that both are read in rows of k. cuBLAS, "Tensor Core Usage": leading dimensions; its
    m, n, k and layouts TN, NN, NT are those of transformer_engine/common/gemm/cublaslt_gemm.cu.
    """
    rows = (kernel.m if kernel.transposed and precision not in LOW_PRECISIONS else kernel.k, kernel.n)
    return any(row * _ELEMENT_BYTES[precision] % _ALIGNED_BYTES for row in rows)


MatmulModel = Annotated[TiledMatmul | CalculonMatmul, Field(discriminator="kind")]


class Device(Spec):
    """One GPU model: peak rates, memory, bandwidth, and the fraction of peak that kernels reach by size.

    A memory-bound kernel of B bytes reaches ``memory_efficiency`` x B / (B + ``memory_half_size``) of
    ``memory_bandwidth``, those of an unfused attention over its square ``by_row`` of that; ``launch`` is the time
    between dependent kernels. ``reserved`` of the multiprocessors never compute (DeepSeek-V3 keeps 20 of 132 for
    communication, arXiv:2412.19437). ``interference``: slowdown of computation that overlaps with communication, where
    a source states it (``simcluster.devices.interference``). ``measured`` states which of these values were measured on
    this device and which are carried from another.
    """

    name: str
    peak: PeakRates
    memory: Bytes
    memory_bandwidth: BytesPerSecond
    multiprocessors: Count
    matmul: MatmulModel
    attention: AttentionModel
    memory_efficiency: Fraction
    memory_half_size: Bytes
    by_row: Fraction = 1.0
    launch: Seconds
    reserved: Annotated[int, Field(strict=True, ge=0)] = 0
    interference: InterferenceSpec | None = None
    measured: str = ""
    source: str = ""

    @model_validator(mode="after")
    def _check_reserved(self) -> Self:
        if self.reserved >= self.multiprocessors:
            raise InputError(
                f"reserved {self.reserved} leaves none of {self.multiprocessors} multiprocessors for compute; lower it"
            )
        return self

    @property
    def reached_bandwidth(self) -> float:
        """Memory bandwidth (B/s) that large kernels achieve."""
        return self.memory_bandwidth * self.memory_efficiency

    def peak_flops(self, precision: str) -> float:
        """Return the peak FLOP/s at a precision; raise InputError if the device does not support the precision."""
        rate: float | None = getattr(self.peak, precision) if precision in _ELEMENT_BYTES else None
        if rate is None:
            known = self.peak.known_rates()
            raise InputError(
                f"device {self.name} has no peak for precision {precision!r}{did_you_mean(precision, known)}; "
                f"it has {join_or(known)}"
            )
        return rate


# --- times ----------------------------------------------------------------------------------------------------------


def kernel_seconds(device: Device, kernel: Kernel, *, precision: str, held_sms: int = 0) -> float:
    """Return the time (s) that one kernel, including its launch, takes on the device.

    Communication holds ``held_sms`` of the multiprocessors meanwhile. A kernel without work takes its launch. Raises
    InputError for a precision that the device does not have.
    """
    device.peak_flops(precision)  # the same complaint for every kind of kernel
    if kernel.kind == "memory":
        size = kernel.bytes / (device.by_row if kernel.by_row else 1.0)
        together = _BLOCKS * (device.multiprocessors - device.reserved - held_sms)
        return memory_kernel_seconds(device, size, kernel.launches, kernel.passes * math.ceil(kernel.rows / together))
    if precision in LOW_PRECISIONS and (kernel.keeps_16_bits or kernel.kind == "attention"):
        precision = "bf16"  # a recipe of fp8 or fp4 keeps attention there, as Transformer Engine does by default
    begins = math.ceil(kernel.launches / max(kernel.streams, 1)) * device.launch  # one after the other
    if kernel.kind == "matmul":
        return begins + device.matmul.seconds(kernel, device, precision, held_sms)
    if kernel.kind == "attention":
        peak, bandwidth = device.peak_flops(precision), device.reached_bandwidth
        room = AttentionResources(peak, bandwidth, device.multiprocessors, device.reserved + held_sms)
        return begins + device.attention.seconds(kernel, room)
    assert_never(kernel.kind)


def kernel_sequence_seconds(device: Device, kernels: Iterable[Kernel], *, precision: str, held_sms: int = 0) -> float:
    """Return the time (s) of kernels that run one after another on one stream."""
    return math.fsum(kernel_seconds(device, kernel, precision=precision, held_sms=held_sms) for kernel in kernels)


def memory_kernel_seconds(device: Device, size: float, launches: int = 1, passes: int = 0) -> float:
    """Return the time (s) of memory-bound kernels that together read and write ``size`` bytes.

    Each of the ``launches`` waits for memory once, and so does each of ``passes`` that read again.
    """
    if size <= 0:
        return launches * device.launch
    size += (launches + passes) * device.memory_half_size
    return launches * device.launch + size / device.reached_bandwidth


# --- documents ------------------------------------------------------------------------------------------------------


def load_device(device: str | Mapping[str, Any]) -> Device:
    """Return a device by its built-in name, from a file ("my_gpu.yaml"), or from a mapping.

    A document may be based on a device of the catalogue: ``{base: h100, memory_bandwidth: "2.4 TB/s"}``. Raises
    InputError for an unknown name (with the nearest) and for a document that is not a device.
    """
    if isinstance(device, str) and not is_device_file(device):
        return _load_builtin(device)
    if not isinstance(device, str | Mapping):
        raise InputError(f"device {device!r} is neither a name nor a mapping; use one of: {join_or(device_names())}")
    return validate_document(Device, read_device_description(device))


@cache
def _load_builtin(name: str) -> Device:
    return validate_document(Device, Document(data=load_device_entry(name), source=f"device {name}", folder=Path()))
