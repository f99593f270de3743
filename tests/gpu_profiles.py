"""Profiles as PyTorch writes them of a data-parallel job on GPUs, made by plain arithmetic: all in them is known.

Every rank runs layers forward and backward on stream 7; behind each layer's backward an all-reduce runs on stream 20;
the optimizer waits for the last.  One thread launches forward, another backward.  All times are in microseconds.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Spans = list[tuple[float, float]]

ARRIVES, RETURNS, BETWEEN = 4.0, 6.0, 50.0
ELEMENTS, BF16 = 1 << 20, "BFloat16"
MAIN, AUTOGRAD = 101, 102
GROUP_ARGS = ("Collective name", "Group size", "Process Group Name", "Process Group Ranks", "Seq")


@dataclass(frozen=True)
class Job:
    """What a rank does: kernels in microseconds, times ``slow[rank]``; ``clock[rank]`` is what its clock is ahead.

    The host launches every ``launch``; an all-reduce begins ``lag`` after it could.  ``tail`` is compute behind the
    last backward; the optimizer waits for the last all-reduce, or for the ``first``.  With ``item`` the host waits for
    the end of forward before it goes on.
    """

    ranks: int = 4
    layers: int = 4
    steps: int = 2
    forward: float = 200.0
    backward: float = 400.0
    update: float = 100.0
    transfer: float = 300.0
    slow: dict[int, float] = field(default_factory=dict)
    clock: dict[int, float] = field(default_factory=dict)
    sync_events: bool = True
    launch: float = 5.0
    lag: float = 0.0
    tail: float = 0.0
    first: bool = False
    item: bool = False

    def with_(self, **changes: Any) -> Job:
        return replace(self, **changes)


@dataclass
class Rank:
    """What happened on one rank, on the true clock."""

    compute: Spans = field(default_factory=list)
    comm: Spans = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    steps: Spans = field(default_factory=list)
    events: list[Json] = field(default_factory=list)


def played(job: Job) -> list[Rank]:
    """The job's ranks, by plain arithmetic."""
    ranks = [Rank() for _ in range(job.ranks)]
    begins = [1000.0] * job.ranks
    for step in range(job.steps):
        _step(job, ranks, begins, step)
    return ranks


def step_seconds(job: Job) -> list[float]:
    """First kernel to last end of every step."""
    ranks, count = played(job), 2 * job.layers + 1 + bool(job.tail)
    found = []
    for step in range(job.steps):
        own = [rank.compute[step * count : (step + 1) * count] for rank in ranks]
        last = max(rank.comm[(step + 1) * job.layers - 1][1] for rank in ranks)
        found.append((max(last, *(each[-1][1] for each in own)) - min(each[0][0] for each in own)) * 1e-6)
    return found


def _step(job: Job, ranks: list[Rank], begins: list[float], step: int) -> None:
    writers = [_Writer(job, number, rank, begins[number], step) for number, rank in enumerate(ranks)]
    for writer in writers:
        for layer in range(job.layers):
            writer.kernel("forward", layer, job.forward * job.slow.get(writer.number, 1.0))
        if job.item:
            writer.read_back()
    for layer in reversed(range(job.layers)):
        for writer in writers:
            writer.kernel("backward", layer, job.backward * job.slow.get(writer.number, 1.0))
        arrivals = [writer.arrive() for writer in writers]
        for writer, arrival in zip(writers, arrivals, strict=True):
            writer.reduce(arrival, max(arrivals) + job.transfer)
    for writer in writers:
        writer.update()
    begins[:] = [writer.end() + BETWEEN for writer in writers]


class _Writer:
    """One rank in one step."""

    def __init__(self, job: Job, number: int, rank: Rank, begin: float, step: int) -> None:
        self.job, self.number, self.rank, self.step = job, number, rank, step
        self.begin = self.host = begin
        self.free = {7: 0.0, 20: 0.0}
        self.last = 0  # correlation of the last launch
        self.calls = 0
        self.firsts: list[tuple[float, int]] = []  # end of the first all-reduce, event behind it

    def event(self, cat: str, name: str, tid: int, start: float, end: float, **args: Any) -> None:
        ahead = self.job.clock.get(self.number, 0.0)
        pid = self.number if cat in ("kernel", "cuda_sync") else 4000 + self.number
        self.rank.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": round(start + ahead, 3),
             "dur": round(end - start, 3), "args": args}
        )  # fmt: skip

    def call(self, name: str, thread: int) -> tuple[int, float]:
        """A call of the host: its correlation and when it began."""
        now, self.host = self.host, self.host + self.job.launch
        self.calls += 1
        correlation = 1_000_000 * (self.step + 1) + self.calls
        self.event("cuda_runtime", name, thread, now, now + 0.6 * self.job.launch, correlation=correlation, cbid=211)
        return correlation, now

    def read_back(self) -> None:
        """The host waits for stream 7."""
        now, self.host = self.host, max(self.free[7], self.host) + RETURNS
        self.event(
            "cuda_runtime", "cudaStreamSynchronize", MAIN, now, self.host, correlation=1_000_000 * (self.step + 1)
        )

    def kernel(self, phase: str, layer: int, length: float) -> None:
        thread = AUTOGRAD if phase == "backward" else MAIN
        before = self.host
        known = before + 0.9 * self.job.launch
        correlation, now = self.call("cudaLaunchKernel", thread)
        start = max(self.free[7], now + ARRIVES)
        self.free[7] = start + length
        self.rank.compute.append((start, start + length))
        self.event(
            "kernel",
            f"sm90_xmma_gemm_bf16_{phase}",
            7,
            start,
            start + length,
            stream=7,
            correlation=correlation,
            device=0,
        )
        if phase == "optimizer":
            self.event("user_annotation", "Optimizer.step#SGD.step", thread, before - 0.1 * self.job.launch, known)
            return
        if phase == "tail":
            return
        sequence = 100 * (self.step + 1) + layer
        if phase == "forward":
            self.event("user_annotation", f"layers.{layer}", thread, before - 0.1 * self.job.launch, known)
            self.event(
                "cpu_op",
                "aten::linear",
                thread,
                before - 0.05 * self.job.launch,
                known,
                **{"Sequence number": sequence, "Fwd thread id": 0},
            )
        else:
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            self.event(
                "cpu_op",
                name,
                thread,
                before - 0.05 * self.job.launch,
                known,
                **{"Sequence number": sequence, "Fwd thread id": 1},
            )

    def record(self, thread: int) -> int:
        return self.call("cudaEventRecord", thread)[0]

    def wait(self, stream: int, other: int, thread: int, record: int) -> None:
        """One stream waits for what was on the other when an event was recorded."""
        waiting, now = self.call("cudaStreamWaitEvent", thread)
        if self.job.sync_events:
            self.event(
                "cuda_sync", "Stream Wait Event", stream, now + 0.1, now + 0.2, stream=stream, correlation=waiting,
                wait_on_stream=other, wait_on_cuda_event_record_corr_id=record, wait_on_cuda_event_id=record,
            )  # fmt: skip

    def arrive(self) -> float:
        self.wait(20, 7, AUTOGRAD, self.record(AUTOGRAD))
        self.last, now = self.call("cudaLaunchKernelExC", AUTOGRAD)
        return max(self.free[20], self.free[7], now + ARRIVES) + self.job.lag

    def reduce(self, arrival: float, end: float) -> None:
        self.free[20] = end
        if not self.firsts:
            self.firsts = [(end, self.record(AUTOGRAD) if self.job.first else 0)]
        self.rank.arrivals.append(arrival)
        self.rank.comm.append((arrival, end))
        args = {
            "Collective name": "allreduce", "In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS, "dtype": BF16,
            "Group size": self.job.ranks, "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self.job.ranks))), "Seq": len(self.rank.comm), "Rank": self.number,
        }  # fmt: skip
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self.event("kernel", name, 20, arrival, end, stream=20, correlation=self.last, device=0, **args)

    def update(self) -> None:
        if self.job.tail:
            self.kernel("tail", -1, self.job.tail)
        over, record = self.firsts[0] if self.job.first else (self.free[20], self.record(MAIN))
        self.wait(7, 20, MAIN, record)
        self.free[7] = max(self.free[7], over)
        self.kernel("optimizer", -1, self.job.update)

    def end(self) -> float:
        """The host waits for the device, and the step is over."""
        now, end = self.host, max(*self.free.values(), self.host) + RETURNS
        self.event(
            "cuda_runtime", "cudaDeviceSynchronize", MAIN, now, end, correlation=1_000_000 * (self.step + 1) + 999_999
        )
        self.event("user_annotation", f"ProfilerStep#{self.step + 5}", MAIN, self.begin - 2, end + 2)
        self.rank.steps.append((self.begin - 2, end + 2))
        return end


def document(job: Job, number: int, rank: Rank) -> Json:
    """A rank's file."""
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": job.ranks, "ranks": list(range(job.ranks))}
    spread = {"backend": "nccl", "rank": number, "world_size": job.ranks, "pg_count": 1, "pg_config": [group]}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": spread,
        "host_name": f"node{number}",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_790_857_026_000_000_000,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "ts": 0.0, "args": {}},
            *rank.events,
        ],
    }


def documents(job: Job) -> list[Json]:
    """The files of all ranks."""
    return [document(job, number, rank) for number, rank in enumerate(played(job))]


def write(found: list[Json], folder: Path) -> Path:
    """The files in a folder."""
    folder.mkdir(exist_ok=True)
    for each in found:
        (folder / f"rank{each['distributedInfo']['rank']}.json.gz").write_bytes(
            gzip.compress(json.dumps(each).encode(), 1)
        )
    return folder
