r"""Writer of profiler traces in Chrome's trace event format, as PyTorch's profiler (Kineto) writes them.

Times are whole nanoseconds, so that adjacent events stay adjacent; files have microseconds with three decimals. The
header has blanks after its colons (HolisticTraceAnalysis finds a rank by ``"rank":\s+``), events have none. Equal
traces give equal bytes. A step that is read back has the same kernels, launches, waits and times.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from io import TextIOWrapper
from itertools import chain, repeat
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from simcluster.base.atomic_files import PARTIAL, open_atomic
from simcluster.base.errors import InputError
from simcluster.interop.kineto.communications import CommCall
from simcluster.interop.kineto.rank_profile import BACKWARD, FORWARD, OPTIMIZER, PhaseLayer

PROFILE_SUFFIXES = (".json", ".json.gz")
FIRST_CORRELATION = 2**31 + 1
"""HolisticTraceAnalysis 0.5 with pandas 3 fails on smaller correlation numbers."""
MAX_LISTED_RANKS = 30
"""Calls of larger groups list the first ranks and "..." (as PyTorch does); the file's header lists all."""
_GZIP_LEVEL = 6


def seconds_to_ns(seconds: float) -> int:
    """Return a time in seconds as whole nanoseconds."""
    return round(seconds * 1e9)


def _format_us(time: int) -> str:
    return f"{time // 1000}.{time % 1000:03d}"


quote_json = lru_cache(maxsize=100_000)(json.dumps)
"""Return a text as JSON, cached."""


def format_arguments(args: Mapping[str, Any]) -> str:
    """Return event arguments as JSON without the enclosing braces."""
    return json.dumps(args, separators=(",", ":"))[1:-1]


def join_formatted_arguments(*parts: str) -> str:
    """Join event arguments, formatted as JSON, with commas; skip empty ones."""
    return ",".join(part for part in parts if part)


def complete_event(category: str, name: str, pid_tid: tuple[int, int], start: int, end: int, args: str = "") -> str:
    """Return the JSON of a trace event with a start and an end (ns) on a process and thread."""
    return (
        f'{{"ph":"X","cat":"{category}","name":{quote_json(name)},"pid":{pid_tid[0]},"tid":{pid_tid[1]},'
        f'"ts":{_format_us(start)},"dur":{_format_us(max(end - start, 0))},"args":{{{args}}}}}'
    )


def metadata_event(metadata: str, process: int, thread: int, **args: Any) -> str:
    """Return the JSON of a trace event that names a process or thread, or sets its display order."""
    head = f'{{"ph":"M","name":"{metadata}","pid":{process},"tid":{thread},"ts":0,"args":'
    return f"{head}{{{format_arguments(args)}}}}}"


def counter_event(name: str, process: int, time: int, values: str) -> str:
    """Return the JSON of a trace event that sets counters to new values at a time (ns)."""
    return f'{{"ph":"C","name":{quote_json(name)},"pid":{process},"tid":0,"ts":{_format_us(time)},"args":{{{values}}}}}'


def flow_event(flow_id: int, name: str, pid_tid: tuple[int, int], time: int, *, is_end: bool) -> str:
    """Return the JSON of the start or end of an arrow at a time (ns) on a process and thread."""
    phase = '"f","bp":"e"' if is_end else '"s"'
    return (
        f'{{"ph":{phase},"cat":"message","name":{quote_json(name)},"id":{flow_id},"pid":{pid_tid[0]},"tid":{pid_tid[1]},'
        f'"ts":{_format_us(time)}}}'
    )


def write_chrome_trace(path: Path, head: Mapping[str, Any], events: Iterable[str]) -> None:
    """Write a trace file from its events atomically; compress the file if the path ends in .gz.

    Raises InputError if it cannot be written (no folder, no permission, disk full).
    """
    with open_atomic(path) as plain, ExitStack() as stack:
        file: IO[bytes] = plain
        if path.suffix == ".gz":
            file = cast(IO[bytes], stack.enter_context(gzip.GzipFile("", "wb", _GZIP_LEVEL, fileobj=plain, mtime=0)))
        text = TextIOWrapper(file, "utf-8", newline="")
        text.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for separator, event in zip(chain([""], repeat(",\n")), events, strict=False):
            text.write(separator + event)
        text.write("\n]}\n")
        text.detach()


def make_profile_folder(folder: Path, files: Sequence[Path]) -> None:
    """Create a folder for profiles; raise InputError if the folder holds other profiles."""
    try:
        folder.mkdir(exist_ok=True)
        others = sorted(path.name for path in folder.glob("*.json*") if path not in files and path.suffix != PARTIAL)
    except OSError as problem:
        raise InputError(f"cannot write profiles to {folder}: {problem.strerror}") from None
    if others:
        raise InputError(f"cannot write profiles to {folder}: it contains {others[0]}; name an empty folder")


def profile_header(rank: int, world: int, groups: Mapping[str, CommCall], *, backend: str, host: str) -> dict[str, Any]:
    """Return the header of a rank's profile: the rank, the world size and the rank's process groups."""
    config = [
        {"pg_name": name, "pg_desc": comm.group_text, "pg_size": comm.group_size, "ranks": list(comm.ranks)}
        for name, comm in sorted(groups.items())
        if rank in comm.ranks
    ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": world, "pg_config": config},
        "host_name": host, "displayTimeUnit": "ms", "baseTimeNanoseconds": 0,
    }  # fmt: skip


def collective_arguments(comm: CommCall, elements: tuple[int, int] | None, dtype: str) -> dict[str, Any]:
    """Return a collective's event arguments as PyTorch writes them, including input and output sizes."""
    shown = [*map(str, comm.ranks[:MAX_LISTED_RANKS]), *["..."] * (len(comm.ranks) > MAX_LISTED_RANKS)]
    args: dict[str, Any] = {
        "Collective name": comm.kind, "Group size": comm.group_size, "Process Group Name": comm.group,
        "Process Group Description": comm.group_text,
        "Process Group Ranks": f"[{', '.join(shown)}]",
    }  # fmt: skip
    if elements is not None:
        args |= {"In msg nelems": elements[0], "Out msg nelems": elements[1], "dtype": dtype}
    if comm.sequence >= 0:
        args["Seq"] = comm.sequence
    if comm.sender_and_receiver:
        args |= {"Src Rank": comm.sender_and_receiver[0], "Dst Rank": comm.sender_and_receiver[1]}
    return args


LAUNCH_GAP_NS = 2
"""Nanoseconds between launches, to keep their order."""
LAUNCH_THREAD = 1
"""Host thread of launches."""


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """A kernel or copy on a CUDA stream, with its times in nanoseconds.

    ``args`` are arguments as JSON; ``label`` is the host's phase and layer at the launch, None if unchanged; ``after``
    are indices of kernels on other streams that it waits for.
    """

    name: str
    stream: int
    start: int
    end: int
    args: str = ""
    category: str = "kernel"
    label: PhaseLayer | None = None
    after: tuple[int, ...] = ()


class LaunchEvent(NamedTuple):
    """Launch of a kernel by the host: the kernel's index, and the earliest possible launch time (ns)."""

    kernel: int
    earliest: int


class HostWait(NamedTuple):
    """Period in which the host waits for the device: start and end (ns)."""

    start: int
    end: int


def gpu_step_events(
    rank: int, kernels: Sequence[KernelEvent], ids: Iterator[int], host: Iterable[LaunchEvent | HostWait],
    begin: int,
) -> Generator[str, None, int]:  # fmt: skip
    """Yield the trace events of one rank's step on a GPU; return when the host's work ends (ns).

    The host works through its launches and waits in order, from ``begin`` on; ``ids`` yields correlation numbers,
    unique over the steps of a rank.
    """

    def make_call_event(name: str, start: int, end: int, correlation: int) -> str:
        return complete_event("cuda_runtime", name, (rank, LAUNCH_THREAD), start, end, f'"correlation":{correlation}')

    launched: dict[int, tuple[int, int]] = {}  # correlation and time
    latest, label, since, last = begin - LAUNCH_GAP_NS, PhaseLayer("", ""), begin, 0
    for each in (*host, None):
        target = kernels[each.kernel].label if isinstance(each, LaunchEvent) else None
        if each is None or target not in (None, label):
            for category, name, args in phase_and_layer_annotations(label):
                yield complete_event(category, name, (rank, LAUNCH_THREAD), since, latest + LAUNCH_GAP_NS // 2, args)
        if isinstance(each, HostWait):
            start = max(each.start, latest + LAUNCH_GAP_NS)  # after the last launch
            if start < each.end:
                yield make_call_event("cudaStreamSynchronize", start, each.end, next(ids))
                last = max(last, each.end)
        elif each is not None:
            latest = max(latest + LAUNCH_GAP_NS, each.earliest)
            if target is not None and target != label:
                label, since = target, latest
            launched[each.kernel] = next(ids), latest
            yield make_call_event("cudaLaunchKernel", latest, latest, launched[each.kernel][0])
    for place, kernel in enumerate(kernels):
        correlation = launched[place][0] if place in launched else next(ids)
        at, known = (rank, kernel.stream), f'"stream":{kernel.stream},"correlation":{correlation}'
        args = join_formatted_arguments(known, kernel.args)
        yield complete_event(kernel.category, kernel.name, at, kernel.start, kernel.end, args)
        # an event between streams is recorded just after one launch and awaited just before the other; the wait is
        # placed at its end on the stream: an earlier one would start HolisticTraceAnalysis' idle time
        for other in kernel.after if place in launched else ():
            if other in launched:
                record, wait, recorded = next(ids), next(ids), launched[other][1] + LAUNCH_GAP_NS // 2
                yield make_call_event("cudaEventRecord", recorded, recorded, record)
                yield make_call_event("cudaStreamWaitEvent", launched[place][1], launched[place][1], wait)
                args = (
                    f'"stream":{kernel.stream},"correlation":{wait},"wait_on_stream":{kernels[other].stream},'
                    f'"wait_on_cuda_event_record_corr_id":{record}'
                )
                yield complete_event("cuda_sync", "Stream Wait Event", at, kernel.start, kernel.start, args)
    return max(last, latest)


def step_marker_event(rank: int, number: int, start: int, end: int) -> str:
    """Return the JSON of the ``ProfilerStep#`` event with which PyTorch marks a step."""
    return complete_event("user_annotation", f"ProfilerStep#{number}", (rank, LAUNCH_THREAD), start, end)


def phase_and_layer_annotations(label: PhaseLayer) -> Iterator[tuple[str, str, str]]:
    """Yield the annotations that mark a phase and layer in a profile: (category, name, arguments)."""
    if label.layer:
        yield "user_annotation", label.layer, ""
    if label.phase == OPTIMIZER:
        yield "user_annotation", "Optimizer.step#replay", ""
    elif label.phase == BACKWARD:
        yield "cpu_op", "autograd::engine::evaluate_function: replay", ""
    elif label.phase == FORWARD and not label.layer:
        yield "cpu_op", "replay", f"{quote_json('Sequence number')}:0,{quote_json('Fwd thread id')}:0"
