"""One rank's profile as PyTorch writes it (Kineto's Chrome trace, JSON), as ops in seconds.

A file has ``distributedInfo`` (rank, groups), ``baseTimeNanoseconds`` and events: ``ph`` X with ``cat``, ``name``,
``ts`` and ``dur`` in microseconds, ``tid`` (a thread of the host, or a stream) and ``args``.  What is used: kernel,
gpu_memcpy and gpu_memset on streams; cuda_runtime and cuda_driver calls that launched them (the same ``correlation``);
cuda_sync events where PyTorch recorded them; annotations and operators of the host.  A profile of CPUs has no kernels:
there the operators are the work, and ``gloo:...`` annotations the collectives.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.documents.composing import of_json
from simcluster.documents.packed import read_packed
from simcluster.interop.kineto.comm import Comm, ProcessGroups, comm_of, is_comm
from simcluster.interop.kineto.values import about_of, check_numbers

Event = Mapping[str, Any]

MAX_BYTES = 2_000_000_000
"""Of a file, unpacked: more than any rank's few steps."""
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
BLOCKING = (
    "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cuStreamSynchronize",
    "hipDeviceSynchronize", "hipStreamSynchronize", "hipEventSynchronize",
)  # fmt: skip
"""Calls in which the host waits for the device."""
STEP = re.compile(r"ProfilerStep#(\d+)")
GLOO = re.compile(r"(?:gloo|mpi|ucc):(\w+)")
LAUNCHED = re.compile(r"c10d::\w+")
_NOT_LAUNCHED = math.nan, math.nan, -1


class TimedEvent(NamedTuple):
    """An event with its number in the file and its times, in seconds from the first one on."""

    number: int
    event: Event
    start: float
    end: float


class StreamOp(NamedTuple):
    """Work on a stream (or a collective on a thread of the host): seconds in the file's clock.

    ``launched`` and ``called`` are when the call that launched it began and ended, NaN where it is not known; ``event``
    is its number in the file.
    """

    name: str
    stream: int
    start: float
    end: float
    launched: float
    called: float
    thread: int  # that launched it, -1 where it is not known
    event: int
    copy: bool
    comm: Comm | None

    @property
    def issued(self) -> float:
        """When it was launched; where that is not known, when it began."""
        return self.launched if self.launched == self.launched else self.start


def by_launch(ops: Sequence[StreamOp]) -> list[int]:
    """Places of ops in the order in which the host launched them."""
    keys = [(op.issued, op.event) for op in ops]
    return sorted(range(len(ops)), key=keys.__getitem__)


class HostCall(NamedTuple):
    """Something that the host did from ``start`` to ``end`` on a thread."""

    name: str
    thread: int
    start: float
    end: float
    event: int
    correlation: int = -1
    sequence: int = -1  # of autograd
    forward: bool = True  # the thread is not one that goes backward


class StreamWait(NamedTuple):
    """What is launched on ``stream`` from ``since`` on waits for what was launched on ``other`` before ``recorded``."""

    stream: int
    since: float
    other: int
    recorded: float


@dataclass
class RankProfile:
    """What one rank recorded; ``origin`` is nanoseconds of its clock where its seconds begin."""

    file: str
    rank: int
    host: str
    origin: int
    groups: ProcessGroups
    ops: list[StreamOp] = field(default_factory=list)
    operators: list[HostCall] = field(default_factory=list)
    annotations: list[HostCall] = field(default_factory=list)
    syncs: list[HostCall] = field(default_factory=list)
    waits: list[StreamWait] = field(default_factory=list)
    wait_calls: list[float] = field(default_factory=list)  # times of cudaStreamWaitEvent
    steps: list[tuple[int, float, float]] = field(default_factory=list)
    on_device: bool = False  # has it kernels, rather than operators of a CPU alone?


@collector_off()  # the search for cycles takes six times as long as reading, and finds none in JSON
def read_profile(path: Path) -> RankProfile:
    """A file of one rank.  InputError for one that is cut, is no such trace, or holds times that are none."""
    about, spread, events = about_of(path, _document(path))
    timed = [each for each in enumerate(events) if each[1].get("ph") == "X"]
    if not timed:
        raise InputError(f"{path} has no events with times: nothing was recorded, or the file was cut; record it again")
    check_numbers(path, timed)
    begin, length = _microseconds(path, timed)
    first = math.floor(begin.min())
    profile = RankProfile(
        file=path.name,
        rank=_rank(path, spread),
        host=str(about.get("host_name") or ""),
        origin=int(about.get("baseTimeNanoseconds") or 0) + first * 1000,
        groups=ProcessGroups.of(spread),
    )
    start = begin - first
    numbers, there = zip(*timed, strict=True)
    _sort_in(
        profile, list(map(TimedEvent, numbers, there, (start * 1e-6).tolist(), ((start + length) * 1e-6).tolist()))
    )
    return profile


def _document(path: Path) -> Any:
    content = read_packed(path, MAX_BYTES)
    try:
        return json.loads(content)
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: it is no text, so no trace in JSON") from None
    except json.JSONDecodeError as problem:
        cut = problem.pos >= len(problem.doc.rstrip()) - 1 or "Unterminated" in problem.msg
        what = "the file is cut" if cut else "it is no JSON"
        raise InputError(
            f"cannot read {path}: {what} (line {problem.lineno}, byte {problem.pos}: "
            f"{of_json(problem.msg).partition(';')[0]}); record or copy it "
            "again, or take the file out to replay the other ranks"
        ) from None
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        raise InputError(f"cannot read {path}: it is nested too deeply, or a number is too long") from None


def _microseconds(path: Path, timed: Sequence[tuple[int, Event]]) -> tuple[Floats, Floats]:
    """Starts and durations of events, as the file has them."""
    try:
        start = np.array([event["ts"] for _, event in timed], dtype=np.float64)
        duration = np.array([event.get("dur", 0.0) for _, event in timed], dtype=np.float64)
    except (KeyError, TypeError, ValueError, OverflowError):
        start, duration = np.full(1, math.nan), np.zeros(1)
    if not (np.isfinite(start) & np.isfinite(duration) & (duration >= 0)).all():
        found = [_times(path, number, event) for number, event in timed]  # says which
        start, duration = (np.array(column) for column in zip(*found, strict=True))
    return start, duration


def _times(path: Path, number: int, event: Event) -> tuple[float, float]:
    """Of one event; refuses what is no number, and what ends before it begins."""
    name = event.get("name")
    try:
        start, duration = float(event["ts"]), float(event.get("dur", 0.0))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InputError(f"{path}, event {number} ({name}): ts and dur must be numbers of microseconds") from None
    if not (math.isfinite(start) and math.isfinite(duration)):
        raise InputError(
            f"{path}, event {number} ({name}): ts or dur is no number of microseconds; record it "
            f"again, or take "
            "the event out"
        )
    if duration < 0:
        raise InputError(
            f"{path}, event {number} ({name}, ts {start:.3f}): dur {duration:g} us is negative; an event ends after it "
            "begins.  Take the event out of the file, or record it again"
        )
    return start, duration


def _rank(path: Path, spread: Mapping[str, Any]) -> int:
    if isinstance(spread.get("rank"), int):
        return int(spread["rank"])
    match = re.search(r"rank[_-]?(\d+)", path.name)
    return int(match[1]) if match else -1


def _sort_in(profile: RankProfile, timed: Sequence[TimedEvent]) -> None:
    """The events into the profile's lists."""
    calls: dict[int, TimedEvent] = {}
    device, syncs = [], []
    profile.on_device = any(each.event.get("cat") in DEVICE for each in timed)
    for each in timed:
        event = each.event
        category = event.get("cat")
        if category in CALLS:
            calls[(event.get("args") or {}).get("correlation", -1)] = each
            name = str(event.get("name"))
            if name in BLOCKING:
                profile.syncs.append(_call(each))
            elif "StreamWaitEvent" in name:
                profile.wait_calls.append(each.start)
        elif category in DEVICE:
            device.append(each)
        elif category == "cuda_sync":
            syncs.append(event)
        elif category == "cpu_op" and (not profile.on_device or _of_autograd(event)):
            profile.operators.append(_call(each))
        elif category in ("user_annotation", "python_function"):
            _annotation(profile, each)
    profile.ops += [_device_op(profile, each, calls) for each in device]
    if not device:
        _gloo_ops(profile)
    profile.ops.sort(key=lambda op: (op.start, op.event))
    profile.wait_calls.sort()
    profile.steps = _apart(sorted(profile.steps, key=lambda step: step[1:]))
    profile.operators.sort(key=lambda call: (call.start, -call.end, call.event))
    profile.annotations.sort(key=lambda call: (call.start, -call.end, call.event))
    _stream_waits(profile, syncs, calls)


def _apart(steps: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """Steps (number, begin, end) as they began, none reaching into the next: begin plus duration is rounded."""
    following = [*(begin for _, begin, _ in steps), math.inf][1:]
    return [(number, begin, min(end, after)) for (number, begin, end), after in zip(steps, following, strict=True)]


def _of_autograd(event: Event) -> bool:
    """On a GPU, operators only tell of what part of the model a launch is."""
    return "Sequence number" in (event.get("args") or ()) or str(event.get("name")).startswith("autograd::")


def _call(each: TimedEvent) -> HostCall:
    number, event, start, end = each
    args = event.get("args") or {}
    return HostCall(
        str(event.get("name")), event.get("tid", 0), start, end, number, args.get("correlation", -1),
        args.get("Sequence number", -1), not args.get("Fwd thread id"),
    )  # fmt: skip


def _annotation(profile: RankProfile, each: TimedEvent) -> None:
    name = str(each.event.get("name"))
    step = STEP.fullmatch(name)
    if step:
        profile.steps.append((int(step[1]), each.start, each.end))
    elif each.event.get("cat") == "user_annotation" or name.startswith("nn.Module: "):
        profile.annotations.append(_call(each))
        if GLOO.fullmatch(name):
            profile.groups.found[each.number] = each.event.get("args") or {}


def _device_op(profile: RankProfile, each: TimedEvent, calls: Mapping[int, TimedEvent]) -> StreamOp:
    number, event, start, end = each
    args = event.get("args") or {}
    name = str(event.get("name"))
    call = calls.get(args.get("correlation", -1))
    comm = comm_of(name, args, profile.groups, profile.rank) if is_comm(name, args) else None
    launched, called, thread = (call.start, call.end, call.event.get("tid", 0)) if call else _NOT_LAUNCHED
    return StreamOp(
        name, args.get("stream") or event.get("tid") or 0, start, end, launched, called, thread, number,
        event.get("cat") != "kernel", comm,
    )  # fmt: skip


def _gloo_ops(profile: RankProfile) -> None:
    """Collectives of a profile of CPUs: annotations on threads of their own, launched by c10d calls in that order."""
    found = [call for call in profile.annotations if GLOO.fullmatch(call.name)]
    profile.annotations = [call for call in profile.annotations if not GLOO.fullmatch(call.name)]
    launches = sorted(
        (each.start, each.end, each.thread) for each in profile.operators if LAUNCHED.fullmatch(each.name)
    )
    known = len(launches) == len(found)
    for place, call in enumerate(sorted(found, key=lambda call: (call.start, call.event))):
        comm = comm_of(call.name, profile.groups.found[call.event], profile.groups, profile.rank)
        start, end, thread = launches[place] if known else (call.start, call.start, -1)
        profile.ops.append(
            StreamOp(
                call.name, call.thread, call.start, call.end, start, end, thread, call.event, copy=False, comm=comm
            )
        )
    profile.groups.found.clear()


def _stream_waits(profile: RankProfile, syncs: list[Event], calls: Mapping[int, TimedEvent]) -> None:
    """Events between streams, where PyTorch recorded them (experimental_config, enable_cuda_sync_events)."""
    for event in syncs:
        args = event.get("args") or {}
        waiting = calls.get(args.get("correlation", -1))
        record = calls.get(args.get("wait_on_cuda_event_record_corr_id", -1))
        other = args.get("wait_on_stream", -1)
        if waiting and record and other >= 0 and "stream" in args and "Wait" in str(event.get("name")):
            profile.waits.append(StreamWait(args["stream"], waiting.start, other, record.start))
    profile.waits.sort()
