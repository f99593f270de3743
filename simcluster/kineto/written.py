"""A replayed job back as Kineto's JSON, one file a rank: for Perfetto, HolisticTraceAnalysis, and to be read again.

Launches, streams, collectives with their groups, and events between streams (cuda_sync) are written, so that what is
read again has the same ops, waits and times (to the nanosecond).  Imports the profiled job.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from simcluster.errors import InputError
from simcluster.kineto.comm import Comm
from simcluster.kineto.job import ProfiledJob
from simcluster.kineto.labels import BACKWARD, FORWARD, OPTIMIZER, Label
from simcluster.kineto.rebuild import Profiled
from simcluster.replay.graph import MAIN
from simcluster.replay.recorded import Part
from simcluster.simulating.longest_path import Played

_Json = dict[str, Any]
_BEFORE, _BETWEEN = 1000.0, 100.0
"""Microseconds before the first step and between steps."""
_APART = 0.002
"""Microseconds between launches, so that their order can be told."""
_THREAD = 1


def write_profiles(job: ProfiledJob, folder: str | Path) -> list[Path]:
    """The job as it replays, as rank0.json.gz and so on in the folder (made if need be); the files written.

    Raises InputError where the folder holds other profiles or cannot be written.
    """
    folder = Path(folder)
    paths = [folder / f"rank{rank}.json.gz" for rank in job.ranks]
    try:
        folder.mkdir(exist_ok=True)
        others = sorted(path.name for path in folder.glob("*.json*") if path not in paths)
        if others:
            raise InputError(f"cannot write profiles to {folder}: it holds {others[0]}; name an empty folder")
        played = [(part, part.play(part.graph.seconds)) for part in job.parts]
        for worker, path in enumerate(paths):
            text = json.dumps(_document(job, worker, played))  # with blanks: HTA looks for '"rank": 0'
            with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
                packed.write(text.encode())
    except OSError as problem:
        raise InputError(f"cannot write profiles to {folder}: {problem.strerror}") from None
    return paths


def _document(job: ProfiledJob, worker: int, played: Sequence[tuple[Part, Played]]) -> _Json:
    rank, groups = job.ranks[worker], dict[str, Comm]()
    events: list[_Json] = [
        {"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "ts": 0, "args": {"name": f"rank {rank:03}"}}
    ]
    begin, number = _BEFORE, 1
    for part, times in played:
        graph = part.graph
        assert isinstance(graph, Profiled)
        writing = _Step(part, graph, times, worker, rank, begin, number)
        events += writing.events()
        groups |= {comm.group: comm for source in graph.source if source and (comm := source.comm)}
        begin += float(times.total[0]) * 1e6 + _BETWEEN
        number = writing.number
    config = [
        {"pg_name": name, "pg_desc": comm.what, "pg_size": comm.size, "ranks": list(comm.ranks)}
        for name, comm in sorted(groups.items())
        if rank in comm.ranks
    ]
    on_device = all(graph.on_device for graph in job.steps_of_ranks)
    backend = "nccl" if on_device else "gloo"
    world = max((max(comm.ranks, default=0) + 1 for comm in groups.values()), default=len(job.ranks))
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": world, "pg_config": config},
        "host_name": "replay",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 0,
        "traceEvents": events,
    }


class _Step:
    """One rank's events of one step."""

    def __init__(
        self, part: Part, graph: Profiled, times: Played, worker: int, rank: int, begin: float, number: int
    ) -> None:
        self._graph, self._worker, self._rank, self.number = graph, worker, rank, number
        self._start = begin + times.start[part.lowered.last, 0] * 1e6
        self._end = begin + times.end[part.lowered.last, 0] * 1e6
        self._ready = begin + times.start[part.lowered.first, 0] * 1e6  # of a collective: its arrival
        self._begin = begin
        self._arrival = begin + times.ready[part.lowered.first, 0] * 1e6
        self._launched: dict[int, tuple[int, float]] = {}  # correlation and time

    def events(self) -> Iterator[_Json]:
        ops = {name: each for (worker, name), each in self._graph.lanes.items() if worker == self._worker}
        host = ops.pop(MAIN, ())
        launches = {
            before: op
            for each in ops.values()
            for op in each
            for before in self._graph.after[op]
            if self._graph.source[before] is None
        }
        made = list(self._launches(host, launches) if self._graph.on_device else self._operators(host, launches))
        yield from made
        for each in ops.values():
            for op in each:
                yield self._on_stream(op)
                yield from self._waits(op)
        last = max((event["ts"] + event["dur"] for event in made), default=self._begin)
        if not self._graph.on_device:
            last = max([last, *(float(self._end[op]) for op in host)])
        name = f"ProfilerStep#{self._graph.steps[0]}"
        early = 1.0 if self._graph.on_device else 0.0
        yield self._event("user_annotation", name, self._begin - early, last - self._begin + 2 * early)

    def _event(self, cat: str, name: str, ts: float, dur: float, tid: int = _THREAD, **args: Any) -> _Json:
        begin, end = round(ts, 3), round(ts + max(dur, 0.0), 3)  # so that what touches goes on doing so
        return {
            "ph": "X", "cat": cat, "name": name, "pid": self._rank, "tid": tid, "ts": begin,
            "dur": round(end - begin, 3), "args": args,
        }  # fmt: skip

    def _launches(self, host: Sequence[int], launches: dict[int, int]) -> Iterator[_Json]:
        """Calls of a host that launches, and those that wait for the device."""
        latest, before = self._begin - _APART, self._begin
        label, since = Label("", ""), latest
        for op in host:
            if self._graph.after[op]:
                yield self._event(
                    "cuda_runtime", "cudaStreamSynchronize", before, self._end[op] - before, correlation=self._next()
                )
            before = float(self._end[op])
            if op not in launches:
                continue
            now = round(max(latest + _APART, float(self._end[op])), 3)
            target = launches[op]
            if self._graph.labels[target] != label:
                yield from self._annotations(label, since, latest + _APART / 2)
                label, since = self._graph.labels[target], now
            self._launched[target] = self._next(), now
            yield self._event("cuda_runtime", "cudaLaunchKernel", now, 0.0, correlation=self._launched[target][0])
            latest = now
        yield from self._annotations(label, since, latest + _APART / 2)

    def _operators(self, host: Sequence[int], launches: dict[int, int]) -> Iterator[_Json]:
        """Operators of a CPU; where it waited there is none."""
        for op in host:
            name, start, end = self._graph.names[op], float(self._start[op]), float(self._end[op])
            if self._graph.after[op]:
                continue
            yield self._event("cpu_op", name, start, end - start)
            yield from self._annotations(self._graph.labels[op], start, end)
            if op in launches:
                yield self._event("cpu_op", "c10d::collective_", end, 0.0)

    def _annotations(self, label: Label, start: float, end: float) -> Iterator[_Json]:
        """What makes a reader find this label."""
        if label.layer:
            yield self._event("user_annotation", label.layer, start, end - start)
        if label.phase == OPTIMIZER:
            yield self._event("user_annotation", "Optimizer.step#replay", start, end - start)
        elif label.phase == BACKWARD:
            yield self._event("cpu_op", "autograd::engine::evaluate_function: replay", start, end - start)
        elif label.phase == FORWARD and not label.layer:
            yield self._event("cpu_op", "replay", start, end - start, **{"Sequence number": 0, "Fwd thread id": 0})

    def _on_stream(self, op: int) -> _Json:
        source = self._graph.source[op]
        assert source is not None
        start = float(self._ready[op] if source.comm is None else self._arrival[op])
        args: _Json = _arguments(source.comm) if source.comm else {}
        if not self._graph.on_device:
            return self._event("user_annotation", source.name, start, self._end[op] - start, source.stream, **args)
        correlation = self._launched[op][0] if op in self._launched else self._next()
        args |= {"stream": source.stream, "correlation": correlation}
        cat = "gpu_memcpy" if source.copy else "kernel"
        return self._event(cat, source.name, start, self._end[op] - start, source.stream, **args)

    def _waits(self, op: int) -> Iterator[_Json]:
        """Events between streams: recorded just behind the one launch, waited for just before the other."""
        for other in self._graph.after[op]:
            before, behind = self._launched.get(other), self._launched.get(op)
            source, waiting = self._graph.source[other], self._graph.source[op]
            if before is None or behind is None or source is None or waiting is None:
                continue
            record, wait = self._next(), self._next()
            yield self._event("cuda_runtime", "cudaEventRecord", before[1] + _APART / 2, 0.0, correlation=record)
            yield self._event("cuda_runtime", "cudaStreamWaitEvent", behind[1], 0.0, correlation=wait)
            yield self._event(
                "cuda_sync", "Stream Wait Event", behind[1], 0.0, waiting.stream,
                stream=waiting.stream, correlation=wait, wait_on_stream=source.stream,
                wait_on_cuda_event_record_corr_id=record,
            )  # fmt: skip

    def _next(self) -> int:
        self.number += 1
        return self.number


def _arguments(comm: Comm) -> _Json:
    """As PyTorch writes them; the elements as bytes, since the type's size may not be known."""
    args: _Json = {
        "Collective name": comm.kind, "Group size": comm.size, "Process Group Name": comm.group,
        "Process Group Description": comm.what,
        "Process Group Ranks": json.dumps(list(comm.ranks)),
    }  # fmt: skip
    if comm.bytes == comm.bytes:
        args |= {"In msg nelems": int(comm.bytes), "Out msg nelems": int(comm.bytes), "dtype": "Byte"}
    if comm.sequence >= 0:
        args["Seq"] = comm.sequence
    if comm.peer:
        args |= {"Src Rank": comm.peer[0], "Dst Rank": comm.peer[1]}
    return args
