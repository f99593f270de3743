"""Timers of kernels (CUDA events or the host's clock), and sensors of a GPU.

A batch has enough calls that reading the clock does not matter. Before the first timed batch, the work runs until
clocks and power have settled.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from time import perf_counter
from typing import Any

from simcluster.base.counts import float_or_nan
from simcluster.evidence.calibration.raw_table import MeasuredMachine
from simcluster.evidence.calibration.torch_ops import PreparedCase, import_torch

_QUERY = "clocks.sm,power.draw,temperature.gpu"
_GRAPH_BELOW = 200e-6  # s per call: kernels too short for the host to issue in time run from a graph
_MAX_CALLS = 200
_MAX_REPEATS = 400


class TimingLimits:
    """Limits for timing one case: seconds of warm-up, in total and per batch, and the least number of batches."""

    def __init__(self, *, quick: bool) -> None:
        self.warm_up, self.total, self.batch, self.fewest = (0.01, 0.03, 5e-4, 7) if quick else (0.15, 0.3, 2e-3, 20)

    def calls_per_batch(self, call_seconds: float) -> int:
        """Return how many calls make a batch long enough, if each call takes ``call_seconds`` seconds."""
        return max(1, min(_MAX_CALLS, math.ceil(self.batch / max(call_seconds, 1e-7))))

    def num_batches(self, batch_seconds: float) -> int:
        """Return how many batches to time within the time limit, if each batch takes ``batch_seconds`` seconds."""
        return max(self.fewest, min(_MAX_REPEATS, math.ceil(self.total / max(batch_seconds, 1e-7))))


class CpuTimer:
    """Timer of work on the CPU."""

    def time_case(self, prepared: PreparedCase, limits: TimingLimits) -> tuple[list[float], int]:
        """Time a case in batches on the CPU; return the time per call (s) of every batch, and the calls per batch."""
        prepared.run(0)
        start = perf_counter()
        for place in range(3):
            prepared.run(place)
        once = (perf_counter() - start) / 3
        calls = limits.calls_per_batch(once)
        end, place = perf_counter() + limits.warm_up, 0
        while perf_counter() < end:
            prepared.run(place)
            place += 1
        found = []
        for _ in range(limits.num_batches(once * calls)):
            start = perf_counter()
            for each in range(calls):
                prepared.run(place + each)
            found.append((perf_counter() - start) / calls)
            place += calls
        return found, calls

    def synchronize(self) -> None:
        """Do nothing: work on the CPU is already synchronous."""


class CudaTimer:
    """Timer of work on a GPU; short kernels run from a CUDA graph to exclude the host's launch time."""

    def __init__(self) -> None:
        self._torch = import_torch()

    def synchronize(self) -> None:
        """Wait until the GPU has finished all work."""
        self._torch.cuda.synchronize()

    def time_case(self, prepared: PreparedCase, limits: TimingLimits) -> tuple[list[float], int]:
        """Time a case in batches on the GPU; return the time per call (s) of every batch, and the calls per batch."""
        for place in range(3):
            prepared.run(place)
        self.synchronize()
        (once,) = self._time_batches(lambda: [prepared.run(place) for place in range(5)], 5, 1)
        calls = limits.calls_per_batch(once)
        batch = self._capture_graph(prepared, calls) if prepared.capturable and once < _GRAPH_BELOW else None
        if batch is None:
            rounds = iter(range(10**9))
            batch = lambda: [prepared.run(next(rounds)) for _ in range(calls)]  # noqa: E731
        end = perf_counter() + limits.warm_up
        while perf_counter() < end:
            batch()
            self.synchronize()
        (once,) = self._time_batches(batch, calls, 1)
        return self._time_batches(batch, calls, limits.num_batches(once * calls)), calls

    def _capture_graph(self, prepared: PreparedCase, calls: int) -> Callable[[], object] | None:
        """Capture a batch of calls as a CUDA graph; return a function that replays the graph, or None on failure."""
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for place in range(calls):
                    prepared.run(place)
        except RuntimeError:
            self.synchronize()
            return None
        replay: Callable[[], object] = graph.replay
        return replay

    def _time_batches(self, batch: Callable[[], object], calls: int, repeats: int) -> list[float]:
        events = [tuple(self._torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(repeats)]
        for start, end in events:
            start.record()
            batch()
            end.record()
        self.synchronize()
        return [start.elapsed_time(end) / 1e3 / calls for start, end in events]


def describe_machine(device: Any, date: str) -> MeasuredMachine:
    """Return a device's description by PyTorch and the driver: name, memory, versions and limits."""
    torch = import_torch()
    if device.type != "cuda":
        import platform

        name = platform.processor() or platform.machine()
        threads = torch.get_num_threads()
        return MeasuredMachine(
            device=f"{name}, {threads} {'thread' if threads == 1 else 'threads'}", kind="cpu", multiprocessors=threads,
            cache=32e6, torch=torch.__version__, threads=threads, date=date,
        )  # fmt: skip
    known = torch.cuda.get_device_properties(device)
    answer = _finish_query(_start_query("driver_version,power.limit,clocks.max.sm", device))
    driver, power, clock = [*answer, "", "", ""][:3]
    return MeasuredMachine(
        device=known.name, kind="cuda", multiprocessors=known.multi_processor_count, memory=float(known.total_memory),
        cache=float(getattr(known, "L2_cache_size", 64e6)), torch=torch.__version__, cuda=torch.version.cuda or "",
        driver=driver, capability=f"{known.major}.{known.minor}", power_limit=parse_nvidia_smi_number(power),
        clock_limit=parse_nvidia_smi_number(clock) * 1e6, date=date,
    )  # fmt: skip


def parse_nvidia_smi_number(text: str) -> float:
    """Parse a number printed by nvidia-smi; return 0 for "[N/A]"."""
    value = float_or_nan(text)
    return value if math.isfinite(value) else 0.0


def _start_query(query: str, device: Any) -> subprocess.Popen[str] | None:
    index = device.index if device.index is not None else import_torch().cuda.current_device()
    identity = getattr(import_torch().cuda.get_device_properties(index), "uuid", None)
    which = f"GPU-{identity}" if identity is not None else str(index)
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i", which]
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None


def _finish_query(process: subprocess.Popen[str] | None) -> list[str]:
    """Return the fields that nvidia-smi reports; an empty list without nvidia-smi or without an answer from it."""
    if process is None:
        return []
    try:
        text, _ = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return []
    return [part.strip() for part in text.strip().split(",")] if process.returncode == 0 else []


class GpuSensor:
    """Sensors of a GPU (clock, power, temperature), read by another process while a case runs."""

    def __init__(self, device: Any) -> None:
        self._process = _start_query(_QUERY, device) if device.type == "cuda" else None

    def read_sensors(self) -> dict[str, float]:
        """Return the GPU's clock (Hz), power (W) and temperature (C); empty if unavailable."""
        answer = _finish_query(self._process)
        if len(answer) != 3:
            return {}
        clock, power, temperature = (parse_nvidia_smi_number(text) for text in answer)
        return {"clock": clock * 1e6, "power": power, "temperature": temperature}
