"""Measurement of all calibration cases on one device; each result is written to the raw table immediately."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from simcluster.base.errors import InputError
from simcluster.evidence.calibration.cases import CalibrationCase
from simcluster.evidence.calibration.raw_table import MeasuredMachine, Measurement, RawTableFile, summarize_batches
from simcluster.evidence.calibration.torch_clock import CpuTimer, CudaTimer, GpuSensor, TimingLimits, describe_machine
from simcluster.evidence.calibration.torch_ops import PreparedCase, import_torch, prepare_case, torch_dtype

Progress = Callable[[int, int, Measurement], object]
"""Called with the number of measured cases, their total, and the last measurement."""

_ISSUED_CALLS = 200  # calls issued in a row when the host is timed
_COPY_BYTES = 256e6  # of a concurrent copy; on a CPU 16 times smaller


def find_device(name: str) -> Any:
    """Return the PyTorch device with a name such as "cuda:1" or "cpu"; raise InputError if unavailable."""
    torch = import_torch()
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cuda", "cpu"):
        raise InputError(f"--device {name} is unknown; use cuda, cuda:1 (the second GPU) or cpu")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(f"--device {name}: this PyTorch ({torch.__version__}) finds no GPU; use --device cpu, or "
                             "install PyTorch with CUDA")  # fmt: skip
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise InputError(f"--device {name}: only {torch.cuda.device_count()} GPUs exist, counted from cuda:0")
        torch.cuda.set_device(device)
    return device


class KernelBenchmark:
    """Benchmark that times calibration cases on one device with PyTorch."""

    def __init__(self, name: str, *, quick: bool, date: str) -> None:
        self._torch = import_torch()
        self.device = find_device(name)
        self.machine: MeasuredMachine = describe_machine(self.device, date)
        self._clock = CudaTimer() if self.on_gpu else CpuTimer()
        self._pace = TimingLimits(quick=quick)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return bool(self.device.type == "cuda")

    def measure_cases(self, cases: Sequence[CalibrationCase], table: RawTableFile, progress: Progress) -> None:
        """Measure all calibration cases that the table lacks, and append them to the table."""
        for done, case in enumerate(cases, start=1):
            if case in table.measured_cases:
                continue
            measurement = self.measure_case(case)
            table.append(measurement)
            progress(done, len(cases), measurement)

    def measure_case(self, case: CalibrationCase) -> Measurement:
        """Measure one calibration case; if the case cannot run, return a measurement with PyTorch's error."""
        self._torch.manual_seed(0)
        try:
            with self._torch.no_grad() if not case.backward else self._torch.enable_grad():
                return self._measure_by_kind(case)
        except (RuntimeError, NotImplementedError, ValueError, AttributeError) as problem:
            return Measurement(case, failed=" ".join(str(problem).split())[:300] or type(problem).__name__)
        finally:
            gc.collect()
            if self.on_gpu:
                self._torch.cuda.empty_cache()

    def _measure_by_kind(self, case: CalibrationCase) -> Measurement:
        special = {"launch": self._measure_launch, "beside": self._measure_overlap}
        if case.kind in special:
            return special[case.kind](case)
        is_copy = case.kind == "host_copy"
        cache = self.machine.cache
        prepared = self._prepare_copy(case.op, case.size) if is_copy else prepare_case(case, self.device, cache)
        return self._time_case(case, prepared)

    def _time_case(self, case: CalibrationCase, prepared: PreparedCase) -> Measurement:
        sensor = GpuSensor(self.device)
        seconds, calls = self._clock.time_case(prepared, self._pace)
        return summarize_batches(case, seconds, calls, sensed=sensor.read_sensors())

    def _measure_launch(self, case: CalibrationCase) -> Measurement:
        torch, device, dtype = self._torch, self.device, torch_dtype(case.dtype)
        x = torch.zeros(case.m, case.n, device=device, dtype=dtype)
        if case.op == "device add":
            return self._time_case(case, PreparedCase(lambda place: x.add_(1.0)))
        if case.op == "host linear with backward":
            return self._time_host_issue(case, self._make_linear_step(x))
        a, out = torch.zeros_like(x), torch.empty_like(x)
        calls: dict[str, Callable[[], object]] = {
            "host add": lambda: torch.add(x, a, out=out),
            "host matmul": lambda: torch.mm(x, a, out=out),
        }
        return self._time_host_issue(case, calls[case.op])

    def _make_linear_step(self, x: Any) -> Callable[[], object]:
        torch = self._torch
        layer = torch.nn.Linear(x.shape[1], x.shape[1], bias=False, device=self.device, dtype=x.dtype)
        x.requires_grad_(True)

        def run_forward_backward() -> None:
            with torch.enable_grad():
                layer(x).sum().backward()

        return run_forward_backward

    def _time_host_issue(self, case: CalibrationCase, call: Callable[[], object]) -> Measurement:
        found = []
        for repeat in range(2 + self._pace.fewest):
            self._clock.synchronize()
            start = perf_counter()
            for _ in range(_ISSUED_CALLS):
                call()
            if repeat >= 2:
                found.append((perf_counter() - start) / _ISSUED_CALLS)
        self._clock.synchronize()
        return summarize_batches(case, found, _ISSUED_CALLS)

    def _prepare_copy(self, op: str, size: float) -> PreparedCase:
        torch = self._torch
        there = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        here = torch.empty(int(size), dtype=torch.uint8, pin_memory=self.on_gpu)
        other = torch.empty_like(there) if op == "in memory" else here
        to, source = (there, other) if op == "to device" else (other, there)
        return PreparedCase(lambda place: to.copy_(source, non_blocking=True), capturable=False)

    def _measure_overlap(self, case: CalibrationCase) -> Measurement:
        """Time a case alone, then during copies (on another stream of a GPU, or in a thread on a CPU)."""
        work, copy = case.op.split(" beside copy ")
        inner = CalibrationCase("matmul", "TN", case.dtype, case.m, case.n, case.k) if work == "matmul" else \
            CalibrationCase("memory", work, case.dtype, case.m, case.n)  # fmt: skip
        prepared = prepare_case(inner, self.device, self.machine.cache)
        copying = self._prepare_copy(copy, _COPY_BYTES if self.on_gpu else _COPY_BYTES / 16)
        alone = self._time_case(case, prepared)
        found = self._overlap_on_gpu(prepared, copying, alone.seconds) if self.on_gpu else \
            self._overlap_on_host(prepared, copying)  # fmt: skip
        return summarize_batches(case, found, alone.calls, alone=alone.seconds)

    def _overlap_on_host(self, prepared: PreparedCase, copying: PreparedCase) -> list[float]:
        over = threading.Event()

        def copy_repeatedly() -> None:
            while not over.is_set():
                copying.run(0)

        thread = threading.Thread(target=copy_repeatedly)
        thread.start()
        try:
            seconds, _ = self._clock.time_case(prepared, self._pace)
        finally:
            over.set()
            thread.join()
        return seconds

    def _overlap_on_gpu(self, prepared: PreparedCase, copying: PreparedCase, alone: float) -> list[float]:
        torch = self._torch
        one_copy = min(self._clock.time_case(copying, self._pace)[0])
        side = torch.cuda.Stream()
        found = []
        calls = self._pace.calls_per_batch(alone)
        copies = math.ceil(2 * alone * calls / one_copy) + 1
        for _ in range(5 * self._pace.fewest):
            start, end, over = (torch.cuda.Event(enable_timing=True) for _ in range(3))
            self._clock.synchronize()
            with torch.cuda.stream(side):
                for _ in range(copies):
                    copying.run(0)
                over.record()
            start.record()
            for place in range(calls):
                prepared.run(place)
            end.record()
            self._clock.synchronize()
            if start.elapsed_time(over) > start.elapsed_time(end):
                found.append(start.elapsed_time(end) / 1e3 / calls)
            else:
                copies *= 2
            if len(found) >= self._pace.fewest:
                return found
        raise RuntimeError("the copies always ended before the work that they should overlap")
