r"""Writer of traces in Kineto's Chrome trace format, event by event.

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

from simcluster.base.errors import InputError
from simcluster.base.written import PARTIAL, open_atomic
from simcluster.interop.kineto.communications import CommCall
from simcluster.interop.kineto.rank_profile import BACKWARD, FORWARD, OPTIMIZER, TraceLabel

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


def join_arguments(*parts: str) -> str:
    """Return formatted arguments joined by commas, without the empty ones."""
    return ",".join(part for part in parts if part)


def complete_event(category: str, name: str, place: tuple[int, int], start: int, end: int, args: str = "") -> str:
    """Return the JSON of an event from ``start`` to ``end`` (ns); ``place`` is its process and thread."""
    return (
        f'{{"ph":"X","cat":"{category}","name":{quote_json(name)},"pid":{place[0]},"tid":{place[1]},'
        f'"ts":{_format_us(start)},"dur":{_format_us(max(end - start, 0))},"args":{{{args}}}}}'
    )


def metadata_event(what: str, process: int, thread: int, **args: Any) -> str:
    """Return the JSON of an event that names or orders a process or thread."""
    head = f'{{"ph":"M","name":"{what}","pid":{process},"tid":{thread},"ts":0,"args":'
    return f"{head}{{{format_arguments(args)}}}}}"


def counter_event(name: str, process: int, time: int, values: str) -> str:
    """Return the JSON of an event that sets counter values from ``time`` (ns) on."""
    return f'{{"ph":"C","name":{quote_json(name)},"pid":{process},"tid":0,"ts":{_format_us(time)},"args":{{{values}}}}}'


def flow_event(number: int, name: str, place: tuple[int, int], time: int, *, ends: bool) -> str:
    """Return the JSON of one end of an arrow, attached to the event at ``place`` and ``time`` (ns)."""
    phase = '"f","bp":"e"' if ends else '"s"'
    return (
        f'{{"ph":{phase},"cat":"message","name":{quote_json(name)},"id":{number},"pid":{place[0]},"tid":{place[1]},'
        f'"ts":{_format_us(time)}}}'
    )


def write_chrome_trace(path: Path, head: Mapping[str, Any], events: Iterable[str]) -> None:
    """Write a trace of events atomically, gzipped if the path ends in .gz.

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


def make_profile_folder(folder: Path, own: Sequence[Path]) -> None:
    """Create a folder for profiles; raise InputError if it holds other profiles."""
    try:
        folder.mkdir(exist_ok=True)
        others = sorted(path.name for path in folder.glob("*.json*") if path not in own and path.suffix != PARTIAL)
    except OSError as problem:
        raise InputError(f"cannot write profiles to {folder}: {problem.strerror}") from None
    if others:
        raise InputError(f"cannot write profiles to {folder}: it holds {others[0]}; name an empty folder")


def profile_header(rank: int, world: int, groups: Mapping[str, CommCall], *, backend: str, host: str) -> dict[str, Any]:
    """Return the header of a rank's profile, with the world size and the rank's process groups."""
    config = [
        {"pg_name": name, "pg_desc": comm.what, "pg_size": comm.size, "ranks": list(comm.ranks)}
        for name, comm in sorted(groups.items())
        if rank in comm.ranks
    ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": world, "pg_config": config},
        "host_name": host, "displayTimeUnit": "ms", "baseTimeNanoseconds": 0,
    }  # fmt: skip


def collective_arguments(comm: CommCall, elements: tuple[int, int] | None, dtype: str) -> dict[str, Any]:
    """Return a collective's event arguments as PyTorch writes them, with its input and output sizes."""
    shown = [*map(str, comm.ranks[:MAX_LISTED_RANKS]), *["..."] * (len(comm.ranks) > MAX_LISTED_RANKS)]
    args: dict[str, Any] = {
        "Collective name": comm.kind, "Group size": comm.size, "Process Group Name": comm.group,
        "Process Group Description": comm.what,
        "Process Group Ranks": f"[{', '.join(shown)}]",
    }  # fmt: skip
    if elements is not None:
        args |= {"In msg nelems": elements[0], "Out msg nelems": elements[1], "dtype": dtype}
    if comm.sequence >= 0:
        args["Seq"] = comm.sequence
    if comm.peer:
        args |= {"Src Rank": comm.peer[0], "Dst Rank": comm.peer[1]}
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
    label: TraceLabel | None = None
    after: tuple[int, ...] = ()


class LaunchEvent(NamedTuple):
    """A kernel launch by the host, with the kernel's index and the earliest launch time (ns)."""

    kernel: int
    earliest: int


class HostWait(NamedTuple):
    """A period in which the host waits for the device (ns)."""

    start: int
    end: int


def device_step_events(
    rank: int, kernels: Sequence[KernelEvent], numbers: Iterator[int], host: Iterable[LaunchEvent | HostWait],
    begin: int,
) -> Generator[str, None, int]:  # fmt: skip
    """Yield the trace events of a rank's step on a GPU, and return the end (ns) of the host's work.

    The host works through its launches and waits in order, from ``begin`` on; ``numbers`` yields correlation numbers,
    unique over the steps of a rank.
    """

    def call(name: str, start: int, end: int, correlation: int) -> str:
        return complete_event("cuda_runtime", name, (rank, LAUNCH_THREAD), start, end, f'"correlation":{correlation}')

    launched: dict[int, tuple[int, int]] = {}  # correlation and time
    latest, label, since, last = begin - LAUNCH_GAP_NS, TraceLabel("", ""), begin, 0
    for each in (*host, None):
        target = kernels[each.kernel].label if isinstance(each, LaunchEvent) else None
        if each is None or target not in (None, label):
            for category, name, args in label_annotations(label):
                yield complete_event(category, name, (rank, LAUNCH_THREAD), since, latest + LAUNCH_GAP_NS // 2, args)
        if isinstance(each, HostWait):
            start = max(each.start, latest + LAUNCH_GAP_NS)  # after the last launch
            if start < each.end:
                yield call("cudaStreamSynchronize", start, each.end, next(numbers))
                last = max(last, each.end)
        elif each is not None:
            latest = max(latest + LAUNCH_GAP_NS, each.earliest)
            if target is not None and target != label:
                label, since = target, latest
            launched[each.kernel] = next(numbers), latest
            yield call("cudaLaunchKernel", latest, latest, launched[each.kernel][0])
    for place, kernel in enumerate(kernels):
        correlation = launched[place][0] if place in launched else next(numbers)
        at, known = (rank, kernel.stream), f'"stream":{kernel.stream},"correlation":{correlation}'
        args = join_arguments(known, kernel.args)
        yield complete_event(kernel.category, kernel.name, at, kernel.start, kernel.end, args)
        # an event between streams is recorded just after one launch and awaited just before the other; the wait is
        # placed at its end on the stream: an earlier one would start HolisticTraceAnalysis' idle time
        for other in kernel.after if place in launched else ():
            if other in launched:
                record, wait, recorded = next(numbers), next(numbers), launched[other][1] + LAUNCH_GAP_NS // 2
                yield call("cudaEventRecord", recorded, recorded, record)
                yield call("cudaStreamWaitEvent", launched[place][1], launched[place][1], wait)
                args = (
                    f'"stream":{kernel.stream},"correlation":{wait},"wait_on_stream":{kernels[other].stream},'
                    f'"wait_on_cuda_event_record_corr_id":{record}'
                )
                yield complete_event("cuda_sync", "Stream Wait Event", at, kernel.start, kernel.start, args)
    return max(last, latest)


def step_marker(rank: int, number: int, start: int, end: int) -> str:
    """Return PyTorch's ``ProfilerStep#`` event for a step."""
    return complete_event("user_annotation", f"ProfilerStep#{number}", (rank, LAUNCH_THREAD), start, end)


def label_annotations(label: TraceLabel) -> Iterator[tuple[str, str, str]]:
    """Yield the annotations (category, name, arguments) that mark a phase and layer in a profile."""
    if label.layer:
        yield "user_annotation", label.layer, ""
    if label.phase == OPTIMIZER:
        yield "user_annotation", "Optimizer.step#replay", ""
    elif label.phase == BACKWARD:
        yield "cpu_op", "autograd::engine::evaluate_function: replay", ""
    elif label.phase == FORWARD and not label.layer:
        yield "cpu_op", "replay", f"{quote_json('Sequence number')}:0,{quote_json('Fwd thread id')}:0"
