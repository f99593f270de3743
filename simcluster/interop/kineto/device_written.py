"""A step of one rank as Kineto records a GPU: launches on the host, kernels on streams, events between streams.

What is read again has the same kernels, launches, waits and times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from simcluster.interop.kineto.chrome import complete, joined, quoted
from simcluster.interop.kineto.labels import BACKWARD, FORWARD, OPTIMIZER, TraceLabel

APART = 2
"""Nanoseconds between launches, so that their order can be told."""
THREAD = 1
"""The thread of the host that launches."""


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """A kernel or copy on a stream, in nanoseconds.

    ``args`` are arguments as JSON; ``label`` is what the host was in when it launched it, None for what it was in
    before; ``after`` are places of kernels on other streams that it waits for.
    """

    name: str
    stream: int
    start: int
    end: int
    args: str = ""
    category: str = "kernel"
    label: TraceLabel | None = None
    after: tuple[int, ...] = ()


class LaunchEvent(NamedTuple):
    """The host launches a kernel (its place), not before a moment."""

    kernel: int
    earliest: int


class Blocked(NamedTuple):
    """The host waits for the device."""

    start: int
    end: int


class StepOnDevice:
    """One step of a rank; ``numbers`` are its correlations, which steps of one rank share."""

    def __init__(self, rank: int, kernels: Sequence[KernelEvent], numbers: Iterator[int]) -> None:
        self._rank, self._kernels, self._numbers = rank, kernels, numbers
        self._launched: dict[int, tuple[int, int]] = {}  # correlation and time
        self.last = 0  # end of what the host does

    def events(self, host: Iterable[LaunchEvent | Blocked], begin: int) -> Iterator[str]:
        """All but the step's marker; the host does these things, one after the other, from the beginning on."""
        yield from self._host(host, begin)
        for place, kernel in enumerate(self._kernels):
            yield self._on_stream(place, kernel)
            if kernel.after:
                yield from self._waits(place, kernel)

    def _host(self, host: Iterable[LaunchEvent | Blocked], begin: int) -> Iterator[str]:
        latest, label, since = begin - APART, TraceLabel("", ""), begin
        for each in host:
            if isinstance(each, Blocked):
                start = max(each.start, latest + APART)  # behind what was launched
                if start < each.end:
                    yield self._on_host("cuda_runtime", "cudaStreamSynchronize", start, each.end, next(self._numbers))
                    self.last = max(self.last, each.end)
                continue
            now = max(latest + APART, each.earliest)
            target = self._kernels[each.kernel].label
            if target is not None and target != label:
                yield from self._annotations(label, since, latest + APART // 2)
                label, since = target, now
            self._launched[each.kernel] = next(self._numbers), now
            yield self._on_host("cuda_runtime", "cudaLaunchKernel", now, now, self._launched[each.kernel][0])
            latest = now
        self.last = max(self.last, latest)
        yield from self._annotations(label, since, latest + APART // 2)

    def _annotations(self, label: TraceLabel, start: int, end: int) -> Iterator[str]:
        for category, name, args in annotating(label):
            yield complete(category, name, (self._rank, THREAD), start, end, args)

    def _on_stream(self, place: int, kernel: KernelEvent) -> str:
        correlation = self._launched[place][0] if place in self._launched else next(self._numbers)
        args = joined(f'"stream":{kernel.stream},"correlation":{correlation}', kernel.args)
        return complete(kernel.category, kernel.name, (self._rank, kernel.stream), kernel.start, kernel.end, args)

    def _waits(self, place: int, kernel: KernelEvent) -> Iterator[str]:
        """Events between streams: recorded just behind the one launch, waited for just before the other.

        The wait stands on the stream where it is over: an earlier one would begin HolisticTraceAnalysis' idle time.
        """
        behind = self._launched.get(place)
        for other in kernel.after:
            before = self._launched.get(other)
            if before is None or behind is None:
                continue
            record, wait = next(self._numbers), next(self._numbers)
            recorded, stream = before[1] + APART // 2, kernel.stream
            yield self._on_host("cuda_runtime", "cudaEventRecord", recorded, recorded, record)
            yield self._on_host("cuda_runtime", "cudaStreamWaitEvent", behind[1], behind[1], wait)
            args = (
                f'"stream":{stream},"correlation":{wait},"wait_on_stream":{self._kernels[other].stream},'
                f'"wait_on_cuda_event_record_corr_id":{record}'
            )
            yield complete("cuda_sync", "Stream Wait Event", (self._rank, stream), kernel.start, kernel.start, args)

    def _on_host(self, category: str, name: str, start: int, end: int, correlation: int) -> str:
        return complete(category, name, (self._rank, THREAD), start, end, f'"correlation":{correlation}')


def step_marker(rank: int, number: int, start: int, end: int) -> str:
    """What PyTorch's profiler leaves of a step that it was told of."""
    return complete("user_annotation", f"ProfilerStep#{number}", (rank, THREAD), start, end)


def annotating(label: TraceLabel) -> Iterator[tuple[str, str, str]]:
    """Category, name and arguments of what makes a reader find this label."""
    if label.layer:
        yield "user_annotation", label.layer, ""
    if label.phase == OPTIMIZER:
        yield "user_annotation", "Optimizer.step#replay", ""
    elif label.phase == BACKWARD:
        yield "cpu_op", "autograd::engine::evaluate_function: replay", ""
    elif label.phase == FORWARD and not label.layer:
        yield "cpu_op", "replay", f"{quoted('Sequence number')}:0,{quoted('Fwd thread id')}:0"
