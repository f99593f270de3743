"""Writer of a replayed job as PyTorch profiles (Kineto JSON), one file per rank.

Launches, streams, collectives with their groups, and events between streams (cuda_sync) are written, so that what is
read back has the same ops, waits and times (to the nanosecond).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path

import numpy as np

from simcluster.interop.kineto import chrome_trace as chrome
from simcluster.interop.kineto.chrome_trace import LAUNCH_THREAD, HostWait, KernelEvent, LaunchEvent, complete_event
from simcluster.interop.kineto.communications import CommCall
from simcluster.interop.kineto.profiled_job import ProfiledJob, ProfiledStep
from simcluster.interop.replay.longest_path import ReplayedOpTimes
from simcluster.interop.replay.step_graph import MAIN_LANE, StepProgram, communication_mask

LEAD_NS, _STEP_GAP_NS, MARKER_LEAD_NS = 1_000_000, 100_000, 1000
"""Nanoseconds before the first step, between steps, and from a step's marker to its first launch."""


def write_profiles(job: ProfiledJob, folder: str | Path) -> list[Path]:
    """Write a replayed job to a folder, one profile per rank (rank0.json.gz, ...); return the file paths.

    Raises InputError if the folder holds other profiles or cannot be written.
    """
    folder = Path(folder)
    paths = [folder / f"rank{rank}.json.gz" for rank in job.ranks]
    chrome.make_profile_folder(folder, paths)
    replayed = [(part, part.replay(part.graph.seconds)) for part in job.programs]
    groups = {comm.group: comm for graph in job.profiled_steps for op in graph.sources if op and (comm := op.comm)}
    on_device = all(graph.on_device for graph in job.profiled_steps)
    world = max((max(comm.ranks, default=0) + 1 for comm in groups.values()), default=len(job.ranks))
    for worker, path in enumerate(paths):
        backend = "nccl" if on_device else "gloo"
        head = chrome.profile_header(job.ranks[worker], world, groups, backend=backend, host="replay")
        chrome.write_chrome_trace(path, head, _rank_events(job, worker, replayed))
    return paths


def _rank_events(job: ProfiledJob, worker: int, steps: Sequence[tuple[StepProgram, ReplayedOpTimes]]) -> Iterator[str]:
    rank = job.ranks[worker]
    yield chrome.metadata_event("process_name", rank, 0, name=f"rank {rank:03}")
    begin, numbers = LEAD_NS, count(chrome.FIRST_CORRELATION)
    for part, times in steps:
        yield from _step_events(part, times, worker, rank, begin, numbers)
        begin += chrome.seconds_to_ns(float(times.end[:, 0].max())) + _STEP_GAP_NS


def _step_events(
    part: StepProgram, times: ReplayedOpTimes, worker: int, rank: int, begin: int, ids: Iterator[int]
) -> Iterator[str]:
    graph = part.graph
    assert isinstance(graph, ProfiledStep)
    arrives = np.where(communication_mask(graph), times.ready[part.first_ops, 0], times.start[part.first_ops, 0])
    start, end, arrives = (
        (begin + np.rint(moments * 1e9).astype(np.int64)).tolist()
        for moments in (times.start[part.last_ops, 0], times.end[part.last_ops, 0], arrives)
    )
    lanes = {name: each for (at, name), each in graph.lanes.items() if at == worker}
    host, ops = lanes.pop(MAIN_LANE, ()), list(chain.from_iterable(lanes.values()))
    launches = {before: op for op in ops for before in graph.after[op] if graph.sources[before] is None}
    sources = {op: source for op in ops if (source := graph.sources[op]) is not None}
    if graph.on_device:  # the host launches, and waits for the device
        places = {op: place for place, op in enumerate(ops)}
        kernels = [
            KernelEvent(
                source.name, source.stream, arrives[op], end[op], _format_comm_arguments(source.comm),
                "gpu_memcpy" if source.is_copy else "kernel", graph.labels[op],
                tuple(places[other] for other in graph.after[op] if other in places),
            )
            for op, source in sources.items()
        ]  # fmt: skip

        def host_launches_and_waits() -> Iterator[LaunchEvent | HostWait]:
            before = begin
            for op in host:
                if graph.after[op]:
                    yield HostWait(before, end[op])
                before = end[op]
                if op in launches:
                    yield LaunchEvent(places[launches[op]], before)

        last = yield from chrome.gpu_step_events(rank, kernels, ids, host_launches_and_waits(), begin)
        yield chrome.step_marker_event(rank, graph.steps[0], begin - MARKER_LEAD_NS, max(last, begin) + MARKER_LEAD_NS)
        return
    for op in host:  # CPU operators, none during waits
        if not graph.after[op]:
            yield complete_event("cpu_op", graph.names[op], (rank, LAUNCH_THREAD), start[op], end[op])
            for category, name, args in chrome.phase_and_layer_annotations(graph.labels[op]):
                yield complete_event(category, name, (rank, LAUNCH_THREAD), start[op], end[op], args)
            if op in launches:
                yield complete_event("cpu_op", "c10d::collective_", (rank, LAUNCH_THREAD), end[op], end[op])
    for op, source in sources.items():  # collectives on separate threads
        args = _format_comm_arguments(source.comm)
        yield complete_event("user_annotation", source.name, (rank, source.stream), arrives[op], end[op], args)
    yield chrome.step_marker_event(rank, graph.steps[0], begin, max([begin, *(end[op] for op in host)]))


def _format_comm_arguments(comm: CommCall | None) -> str:
    if comm is None:
        return ""
    size = None if comm.bytes != comm.bytes else int(comm.bytes)
    return chrome.format_arguments(chrome.collective_arguments(comm, None if size is None else (size, size), "Byte"))
