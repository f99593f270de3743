"""Reader of one rank's PyTorch profile (Kineto's Chrome trace in JSON).

A file has ``distributedInfo`` (rank, groups), ``baseTimeNanoseconds`` and events: ``ph`` X with ``cat``, ``name``,
``ts`` and ``dur`` in microseconds, ``tid`` (a thread of the host, or a stream) and ``args``. Used are: kernel,
gpu_memcpy and gpu_memset on streams; the cuda_runtime and cuda_driver calls that launched them (same ``correlation``);
cuda_sync events where PyTorch recorded them; annotations and operators of the host. A profile of CPUs has no kernels:
its operators are the work, and its ``gloo:...`` annotations the collectives.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simcluster.base.errors import InputError
from simcluster.base.gc_pause import pause_gc
from simcluster.documents.compressed_files import read_maybe_gzip
from simcluster.documents.diagnostics import quote_value
from simcluster.documents.yaml_syntax import explain_json_error
from simcluster.interop.kineto.communications import ProcessGroups, is_communication_kernel, parse_comm_call
from simcluster.interop.kineto.rank_profile import LAUNCH_CALL, HostCall, RankProfile, StreamOp, StreamWait

Event = Mapping[str, Any]

MAX_BYTES = 2_000_000_000
"""Limit of a file, unpacked: more than any rank's few steps."""
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
CALL_CATEGORIES = ("cuda_runtime", "cuda_driver")
BLOCKING_CALLS = (
    "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cuStreamSynchronize",
    "hipDeviceSynchronize", "hipStreamSynchronize", "hipEventSynchronize",
)  # fmt: skip
"""Calls in which the host waits for the device."""
STEP_NAME = re.compile(r"ProfilerStep#(\d+)")
GLOO_NAME = re.compile(r"(?:gloo|mpi|ucc):(\w+)")
_NO_LAUNCH = math.nan, math.nan, -1
MAX_RANKS = 1_000_000
"""Limit of a job's ranks, against damaged numbers."""
_INTEGER_ARGUMENTS = (
    "correlation", "Sequence number", "stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id", "Group size",
    "Seq",
)  # fmt: skip
_USED_CATEGORIES = (*DEVICE_CATEGORIES, *CALL_CATEGORIES, "cuda_sync", "cpu_op", "user_annotation", "python_function")
_MAX_INTEGER = 2**64
_DIGITS = re.compile(r"-?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16}")


class TimedEvent(NamedTuple):
    """Event of a profile: its index in the file, its contents, and its times (s since the first event)."""

    event_index: int
    event: Event
    start: float
    end: float


@pause_gc()  # cycle collection takes six times as long as reading, and JSON has no cycles
def read_profile(path: Path) -> RankProfile:
    """Read one rank's PyTorch profile.

    Raises InputError for a file that is truncated, is not a trace, or holds invalid times.
    """
    about, info, events = _split_profile_document(path, _read_profile_json(path))
    timed = [each for each in enumerate(events) if each[1].get("ph") == "X"]
    if not timed:
        raise InputError(f"{path} has no events with times: nothing was recorded, or the file is truncated; record it")
    begin, length = np.array([_check_event(path, number, event) for number, event in timed]).T
    first = math.floor(begin.min())
    named = re.search(r"rank[_-]?(\d+)", path.name)
    profile = RankProfile(
        file=path.name,
        rank=int(info["rank"]) if isinstance(info.get("rank"), int) else int(named[1]) if named else -1,
        host=str(about.get("host_name") or ""), origin=int(about.get("baseTimeNanoseconds") or 0) + first * 1000,
        groups=ProcessGroups.from_distributed_info(info),
    )  # fmt: skip
    start = begin - first
    numbers, there = zip(*timed, strict=True)
    times = (start * 1e-6).tolist(), ((start + length) * 1e-6).tolist()
    sort_events_into_profile(profile, list(map(TimedEvent, numbers, there, *times)))
    following = [*(begin for _, begin, _ in profile.steps), math.inf][1:]  # no step reaches into the next by rounding
    profile.steps = [(*step[:2], min(step[2], after)) for step, after in zip(profile.steps, following, strict=True)]
    return profile


def _read_profile_json(path: Path) -> Any:
    content = read_maybe_gzip(path, MAX_BYTES)
    try:
        return json.loads(content)
    except UnicodeDecodeError:
        raise InputError(f"cannot read {path}: it is not text; give a profile in JSON") from None
    except json.JSONDecodeError as problem:
        cut = problem.pos >= len(problem.doc.rstrip()) - 1 or "Unterminated" in problem.msg
        raise InputError(
            f"cannot read {path}: {'it is truncated' if cut else 'it is not JSON'} (line {problem.lineno}, byte "
            f"{problem.pos}: {explain_json_error(problem.msg).partition(';')[0]}); record or copy it again, or remove "
            "the file to replay the other ranks"
        ) from None
    except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits
        raise InputError(f"cannot read {path}: nested too deeply, or a number is too long; record it again") from None


def _split_profile_document(path: Path, document: Any) -> tuple[Mapping[str, Any], Mapping[str, Any], list[Any]]:
    """Split a profile into top-level attributes, ``distributedInfo`` and events; raise InputError if invalid."""
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError(f"{path} has no list 'traceEvents'; give a trace that PyTorch's profiler exported")
    about = document if isinstance(document, dict) else {}
    info = about.get("distributedInfo") or {}
    if not isinstance(info, dict):
        raise InputError(f"{path}: distributedInfo is {quote_value(info)}; give an object with rank and world_size")
    for name in ("rank", "world_size"):
        if not _is_integer(info.get(name, 0)) or abs(info.get(name, 0)) > MAX_RANKS:
            raise InputError(f"{path}: distributedInfo.{name} is {quote_value(info[name])}; it must be a whole number")
    groups = info.get("pg_config") or []
    if not isinstance(groups, list) or not all(isinstance(each, dict) for each in groups):
        raise InputError(f"{path}: distributedInfo.pg_config is {quote_value(groups)}; it must be a list of groups")
    if not all(isinstance(each.get("ranks") or [], list) for each in groups):
        raise InputError(f"{path}: distributedInfo.pg_config: the ranks of every group must be a list")
    begin = about.get("baseTimeNanoseconds") or 0
    if not _is_integer(begin):
        raise InputError(
            f"{path}: baseTimeNanoseconds is {quote_value(begin)}; it must be a whole number: export the profile again"
        )
    strange = next((number for number, event in enumerate(events) if type(event) is not dict), None)
    if strange is not None:
        what = f"is {quote_value(events[strange])}; an event must be an object {{...}}"
        raise InputError(f"{path}, event {strange}: {what}: record the profile again")
    return about, info, events


def _check_event(path: Path, number: int, event: Event) -> tuple[float, float]:
    """Check an event and return its start and duration (us); numbers stored as text become integers.

    ROCm's Kineto writes streams as hexadecimal text, as in "0x0".
    """

    def make_error(field: str, value: object, rule: str) -> InputError:
        return InputError(
            f"{path}, event {number} ({quote_value(event.get('name'))}): {field} is {quote_value(value)}; it must be "
            f"{rule}. Remove the event from the file, or record it again"
        )

    args = event.get("args")
    if args is None:
        args = {}
    elif type(args) is not dict:
        raise make_error("args", args, "an object")
    for name in _INTEGER_ARGUMENTS:
        if name in args and not _is_integer(args[name]):
            text = args[name]
            digits = type(text) is str and _DIGITS.fullmatch(text)
            if not digits or not _is_integer(whole := int(text, 16 if "x" in text.lower() else 10)):
                raise make_error(name, text, "a whole number")
            args[name] = whole
    category = event.get("cat")
    if category is not None and type(category) is not str:
        raise make_error("cat", category, "text")
    if category in _USED_CATEGORIES and not _is_integer(event.get("tid", 0)):
        raise make_error("tid", event["tid"], "a whole number")
    if args.get("Group size", 0) > MAX_RANKS:
        raise make_error("Group size", args["Group size"], f"at most {MAX_RANKS:,}")
    times = []
    for name, given in (("ts", event.get("ts")), ("dur", event.get("dur", 0.0))):
        try:
            times.append(float(given))  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            times.append(math.nan)
        if not math.isfinite(times[-1]) or (name == "dur" and times[-1] < 0):
            raise make_error(name, given, f"a number of microseconds{' from 0 on' * (name == 'dur')}")
    return times[0], times[1]


def _is_integer(value: object) -> bool:
    return type(value) is int and -_MAX_INTEGER < value < _MAX_INTEGER


def sort_events_into_profile(profile: RankProfile, timed: Sequence[TimedEvent]) -> None:
    """Add events to a profile's lists of ops, operators, annotations, waits and steps."""
    calls: dict[int, TimedEvent] = {}
    device: list[TimedEvent] = []
    syncs: list[Event] = []
    profile.on_device = any(each.event.get("cat") in DEVICE_CATEGORIES for each in timed)
    for each in timed:
        event, name = each.event, str(each.event.get("name"))
        category = event.get("cat")
        if category in CALL_CATEGORIES:
            calls[(event.get("args") or {}).get("correlation", -1)] = each
            if name in BLOCKING_CALLS:
                profile.syncs.append(_make_host_call(each))
            elif "StreamWaitEvent" in name:
                profile.wait_calls.append(each.start)
        elif category in DEVICE_CATEGORIES:
            device.append(each)
        elif category == "cuda_sync":
            syncs.append(event)
        elif category == "cpu_op":  # on a GPU, operators only show which model part launches
            of_autograd = "Sequence number" in (event.get("args") or ()) or name.startswith("autograd::")
            if of_autograd or not profile.on_device:
                profile.operators.append(_make_host_call(each))
        elif category in ("user_annotation", "python_function"):
            if step := STEP_NAME.fullmatch(name):
                profile.steps.append((int(step[1]), each.start, each.end))
            elif category == "user_annotation" or name.startswith("nn.Module: "):
                profile.annotations.append(_make_host_call(each))
    profile.ops += [_make_stream_op(profile, each, calls) for each in device]
    if not device:
        _add_gloo_ops(profile, {each.event_index: each.event.get("args") or {} for each in timed})
    profile.ops.sort(key=lambda op: (op.start, op.event))
    profile.wait_calls.sort()
    profile.steps.sort(key=lambda step: step[1:])
    profile.operators.sort(key=lambda call: (call.start, -call.end, call.event))
    profile.annotations.sort(key=lambda call: (call.start, -call.end, call.event))
    for event in syncs:  # where PyTorch recorded them (experimental_config, enable_cuda_sync_events)
        args = event.get("args") or {}
        waiting = calls.get(args.get("correlation", -1))
        record = calls.get(args.get("wait_on_cuda_event_record_corr_id", -1))
        other = args.get("wait_on_stream", -1)
        if waiting and record and other >= 0 and "stream" in args and "Wait" in str(event.get("name")):
            profile.waits.append(StreamWait(args["stream"], waiting.start, other, record.start))
    profile.waits.sort()


def _make_host_call(each: TimedEvent) -> HostCall:
    number, event, start, end = each
    args = event.get("args") or {}
    return HostCall(
        str(event.get("name")), event.get("tid", 0), start, end, number, args.get("Sequence number", -1),
        not args.get("Fwd thread id"),
    )  # fmt: skip


def _make_stream_op(profile: RankProfile, each: TimedEvent, calls: Mapping[int, TimedEvent]) -> StreamOp:
    number, event, start, end = each
    args = event.get("args") or {}
    name = str(event.get("name"))
    call = calls.get(args.get("correlation", -1))
    comm = parse_comm_call(name, args, profile.groups, profile.rank) if is_communication_kernel(name, args) else None
    launched, called, thread = (call.start, call.end, call.event.get("tid", 0)) if call else _NO_LAUNCH
    return StreamOp(
        name, args.get("stream") or event.get("tid") or 0, start, end, launched, called, thread, number,
        event.get("cat") != "kernel", comm,
    )  # fmt: skip


def _add_gloo_ops(profile: RankProfile, args: Mapping[int, Mapping[str, Any]]) -> None:
    """Add the collectives of a CPU profile, recorded as annotations on threads other than the launching thread."""
    found = [call for call in profile.annotations if GLOO_NAME.fullmatch(call.name)]
    profile.annotations = [call for call in profile.annotations if not GLOO_NAME.fullmatch(call.name)]
    launches = sorted(
        (each.start, each.end, each.thread) for each in profile.operators if LAUNCH_CALL.fullmatch(each.name)
    )
    known = len(launches) == len(found)
    for place, call in enumerate(sorted(found, key=lambda call: (call.start, call.event))):
        comm = parse_comm_call(call.name, args[call.event], profile.groups, profile.rank)
        start, end, thread = launches[place] if known else (call.start, call.start, -1)
        profile.ops.append(StreamOp(
            call.name, call.thread, call.start, call.end, start, end, thread, call.event, is_copy=False, comm=comm
        ))  # fmt: skip
