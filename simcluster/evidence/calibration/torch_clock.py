"""Timing of kernels by CUDA events or the host's clock, and sensors of a GPU.

A batch has enough calls that reading the clock does not matter. Before the first timed batch, the work runs until
clocks and power have settled.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from time import perf_counter
from typing import Any

from simcluster.evidence.calibration.raw_table import MeasuredMachine
from simcluster.evidence.calibration.torch_ops import PreparedCase, import_torch

_QUERY = "clocks.sm,power.draw,temperature.gpu"
_GRAPH_BELOW = 200e-6  # s per call: kernels too short for the host to issue in time run from a graph
_MAX_CALLS = 200
_MAX_REPEATS = 400


class TimingEffort:
    """Time budget for timing one case: seconds of warm-up, in total and per batch, and fewest batches."""

    def __init__(self, *, quick: bool) -> None:
        self.warm_up, self.total, self.batch, self.fewest = (0.01, 0.03, 5e-4, 7) if quick else (0.15, 0.3, 2e-3, 20)

    def calls_per_batch(self, once: float) -> int:
        """Return the number of calls in a batch of work that takes ``once`` seconds per call."""
        return max(1, min(_MAX_CALLS, math.ceil(self.batch / max(once, 1e-7))))

    def num_batches(self, batch: float) -> int:
        """Return the number of batches to time if one takes ``batch`` seconds."""
        return max(self.fewest, min(_MAX_REPEATS, math.ceil(self.total / max(batch, 1e-7))))


class HostClock:
    """Timer of work on the CPU."""

    def time_case(self, prepared: PreparedCase, pace: TimingEffort) -> tuple[list[float], int]:
        """Return the time (s) per call of every batch on the CPU, and the number of calls in a batch."""
        prepared.run(0)
        start = perf_counter()
        for place in range(3):
            prepared.run(place)
        once = (perf_counter() - start) / 3
        calls = pace.calls_per_batch(once)
        end, place = perf_counter() + pace.warm_up, 0
        while perf_counter() < end:
            prepared.run(place)
            place += 1
        found = []
        for _ in range(pace.num_batches(once * calls)):
            start = perf_counter()
            for each in range(calls):
                prepared.run(place + each)
            found.append((perf_counter() - start) / calls)
            place += calls
        return found, calls

    def synchronize(self) -> None:
        """Return at once, as work on the CPU is synchronous."""


class CudaClock:
    """Timer of work on a GPU; short kernels run from a CUDA graph, so that the host's speed has no effect."""

    def __init__(self) -> None:
        self._torch = import_torch()

    def synchronize(self) -> None:
        """Wait until the GPU has finished all work."""
        self._torch.cuda.synchronize()

    def time_case(self, prepared: PreparedCase, pace: TimingEffort) -> tuple[list[float], int]:
        """Return the time (s) per call of every batch on the GPU, and the number of calls in a batch."""
        for place in range(3):
            prepared.run(place)
        self.synchronize()
        (once,) = self._time_batches(lambda: [prepared.run(place) for place in range(5)], 5, 1)
        calls = pace.calls_per_batch(once)
        batch = self._capture_graph(prepared, calls) if prepared.graph and once < _GRAPH_BELOW else None
        if batch is None:
            rounds = iter(range(10**9))
            batch = lambda: [prepared.run(next(rounds)) for _ in range(calls)]  # noqa: E731
        end = perf_counter() + pace.warm_up
        while perf_counter() < end:
            batch()
            self.synchronize()
        (once,) = self._time_batches(batch, calls, 1)
        return self._time_batches(batch, calls, pace.num_batches(once * calls)), calls

    def _capture_graph(self, prepared: PreparedCase, calls: int) -> Callable[[], object] | None:
        """Return a function that replays a batch of calls as one CUDA graph; None if it cannot be captured."""
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
    """Return what PyTorch and the driver report about a device: name, memory, versions and limits."""
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
    driver, power, clock = [*query_driver("driver_version,power.limit,clocks.max.sm", device), "", "", ""][:3]
    return MeasuredMachine(
        device=known.name, kind="cuda", multiprocessors=known.multi_processor_count, memory=float(known.total_memory),
        cache=float(getattr(known, "L2_cache_size", 64e6)), torch=torch.__version__, cuda=torch.version.cuda or "",
        driver=driver, capability=f"{known.major}.{known.minor}", power_limit=parse_driver_number(power),
        clock_limit=parse_driver_number(clock) * 1e6, date=date,
    )  # fmt: skip


def parse_driver_number(text: str) -> float:
    """Return the number that nvidia-smi printed; 0 for "[N/A]"."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


def query_driver(query: str, device: Any) -> list[str]:
    """Return the fields that nvidia-smi reports for a device; an empty list if it is not installed."""
    process = _start_query(query, device)
    return _finish_query(process) if process else []


def _start_query(query: str, device: Any) -> subprocess.Popen[str] | None:
    index = device.index if device.index is not None else import_torch().cuda.current_device()
    identity = getattr(import_torch().cuda.get_device_properties(index), "uuid", None)
    which = f"GPU-{identity}" if identity is not None else str(index)
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-i", which]
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None


def _finish_query(process: subprocess.Popen[str]) -> list[str]:
    try:
        text, _ = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return []
    return [part.strip() for part in text.strip().split(",")] if process.returncode == 0 else []


class Sensor:
    """Sensor of a GPU's clock, power and temperature while a case runs, read by another process."""

    def __init__(self, device: Any) -> None:
        self._process = _start_query(_QUERY, device) if device.type == "cuda" else None

    def read_sensors(self) -> dict[str, float]:
        """Return the GPU's clock (Hz), power (W) and temperature (C); empty if unavailable."""
        answer = _finish_query(self._process) if self._process else []
        if len(answer) != 3:
            return {}
        clock, power, temperature = (parse_driver_number(text) for text in answer)
        return {"clock": clock * 1e6, "power": power, "temperature": temperature}
