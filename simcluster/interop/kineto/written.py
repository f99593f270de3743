"""A replayed job back as Kineto's JSON, one file a rank: for Perfetto, HolisticTraceAnalysis, and to be read again.

Launches, streams, collectives with their groups, and events between streams (cuda_sync) are written, so that what is
read again has the same ops, waits and times (to the nanosecond).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np

from simcluster.interop.kineto.chrome import (
    FIRST_CORRELATION,
    THREAD,
    Blocked,
    KernelEvent,
    LaunchEvent,
    StepOnDevice,
    annotating,
    arguments,
    comm_arguments,
    complete,
    head_of,
    make_folder,
    named,
    nanoseconds,
    step_marker,
    write_trace,
)
from simcluster.interop.kineto.comm import Comm
from simcluster.interop.kineto.job import Profiled, ProfiledJob
from simcluster.interop.recorded.graph import MAIN, RecordedPart, is_comm
from simcluster.interop.recorded.longest_path import PathTimes

BEFORE, _BETWEEN, EARLY = 1_000_000, 100_000, 1000
"""Nanoseconds before the first step, between steps, and from a step's marker to its first launch."""


def write_profiles(job: ProfiledJob, folder: str | Path) -> list[Path]:
    """Write the job as it replays, as rank0.json.gz and so on in the folder (made if need be); return the files.

    Raises InputError where the folder holds other profiles or cannot be written.
    """
    folder = Path(folder)
    paths = [folder / f"rank{rank}.json.gz" for rank in job.ranks]
    make_folder(folder, paths)
    played = [(part, part.play(part.graph.seconds)) for part in job.parts]
    groups = {comm.group: comm for graph in job.steps_of_ranks for op in graph.source if op and (comm := op.comm)}
    on_device = all(graph.on_device for graph in job.steps_of_ranks)
    world = max((max(comm.ranks, default=0) + 1 for comm in groups.values()), default=len(job.ranks))
    for worker, path in enumerate(paths):
        head = head_of(job.ranks[worker], world, groups, backend="nccl" if on_device else "gloo", host="replay")
        write_trace(path, head, _events(job, worker, played))
    return paths


def _events(job: ProfiledJob, worker: int, played: Sequence[tuple[RecordedPart, PathTimes]]) -> Iterator[str]:
    rank = job.ranks[worker]
    yield named("process_name", rank, 0, name=f"rank {rank:03}")
    begin, numbers = BEFORE, count(FIRST_CORRELATION)
    for part, times in played:
        graph = part.graph
        assert isinstance(graph, Profiled)
        writing = _Step(part, graph, times, worker, rank, begin)
        yield from writing.on_device(numbers) if graph.on_device else writing.on_host()
        begin += nanoseconds(float(times.total[0])) + _BETWEEN


class _Step:
    def __init__(
        self, part: RecordedPart, graph: Profiled, times: PathTimes, worker: int, rank: int, begin: int
    ) -> None:
        self._graph, self._rank, self._begin = graph, rank, begin
        arrives = np.where(is_comm(graph), times.ready[part.first, 0], times.start[part.first, 0])
        self._start, self._end, self._arrives = (
            [begin + nanoseconds(time) for time in moments.tolist()]
            for moments in (times.start[part.last, 0], times.end[part.last, 0], arrives)
        )
        ops = {name: each for (at, name), each in graph.lanes.items() if at == worker}
        self._host = ops.pop(MAIN, ())
        self._streams = list(ops.values())
        self._launches = {
            before: op
            for each in self._streams
            for op in each
            for before in graph.after[op]
            if graph.source[before] is None
        }

    def on_device(self, numbers: Iterator[int]) -> Iterator[str]:
        """Yield the step with a host that launches, and waits for the device."""
        ops = [op for each in self._streams for op in each]
        places = {op: place for place, op in enumerate(ops)}
        kernels = []
        for op in ops:
            source = self._graph.source[op]
            assert source is not None
            after = tuple(places[other] for other in self._graph.after[op] if other in places)
            kernels.append(KernelEvent(
                source.name, source.stream, self._arrives[op], self._end[op], _arguments(source.comm),
                "gpu_memcpy" if source.copy else "kernel", self._graph.labels[op], after,
            ))  # fmt: skip
        step = StepOnDevice(self._rank, kernels, numbers)
        yield from step.events(self._doings(places), self._begin)
        yield step_marker(self._rank, self._graph.steps[0], self._begin - EARLY, max(step.last, self._begin) + EARLY)

    def _doings(self, places: Mapping[int, int]) -> Iterator[LaunchEvent | Blocked]:
        before = self._begin
        for op in self._host:
            if self._graph.after[op]:
                yield Blocked(before, self._end[op])
            before = self._end[op]
            if op in self._launches:
                yield LaunchEvent(places[self._launches[op]], before)

    def on_host(self) -> Iterator[str]:
        """Yield the step of a CPU: operators, and collectives on separate threads; no operator where it waited."""
        place, last = (self._rank, THREAD), self._begin
        for op in self._host:
            start, end = self._start[op], self._end[op]
            last = max(last, end)
            if self._graph.after[op]:
                continue
            yield complete("cpu_op", self._graph.names[op], place, start, end)
            for category, name, args in annotating(self._graph.labels[op]):
                yield complete(category, name, place, start, end, args)
            if op in self._launches:
                yield complete("cpu_op", "c10d::collective_", place, end, end)
        for op in (op for each in self._streams for op in each):
            source = self._graph.source[op]
            assert source is not None
            args = _arguments(source.comm)
            yield complete(
                "user_annotation", source.name, (self._rank, source.stream), self._arrives[op], self._end[op], args
            )
        yield step_marker(self._rank, self._graph.steps[0], self._begin, last)


def _arguments(comm: Comm | None) -> str:
    """Return them as PyTorch writes them; the elements as bytes, since the type's size may not be known."""
    if comm is None:
        return ""
    size = None if comm.bytes != comm.bytes else int(comm.bytes)
    return arguments(comm_arguments(comm, None if size is None else (size, size), "Byte"))
