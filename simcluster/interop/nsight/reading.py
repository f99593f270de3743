"""Ranks of an Nsight Systems export as profiles: one for each device of each process that ran kernels.

Exports do not name process groups, so communications are not matched between ranks, and waiting in them is not told
from transfer.  What the host was in comes from NVTX ranges (``nvtx.range_push("layers.3")``, PyTorch's ``emit_nvtx``);
without any, kernels launched by autograd's thread (pt_autograd_0) are backward, others up to its last launch in a step
forward, and those behind it of the optimizer.  Steps are NVTX ranges that end in a number: "step 12", "iteration 3",
"ProfilerStep#7".
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.interop.kineto.comm import Comm, ProcessGroups, is_comm, kind_of
from simcluster.interop.kineto.events import BLOCKING, HostCall, RankProfile, StreamOp
from simcluster.interop.nsight.tables import KERNELS, NsightFile, process_of

STEP = re.compile(r"(?i)(?:profiler)?(?:step|iter|iteration)[\s#:_=-]*(\d+)")
_SEQUENCE = re.compile(r", seq = (\d+)")
_RANK = re.compile(r"rank[_-]?(\d+)", re.IGNORECASE)
_VERSION = re.compile(r"_v\d+$")
_RANGES = (59, 60, None)
"""NvtxPushPopRange and NvtxStartEndRange, by the export's ENUM_NSYS_EVENT_TYPE."""
_AUTOGRAD = "pt_autograd"
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
"""By CUPTI's CUpti_ActivityMemcpyKind."""

Unit = tuple[int | None, int]
"""A process (globalPid) and a device of it."""


class _Work(NamedTuple):
    start: int
    end: int
    stream: int
    correlation: int | None
    name: str
    copy: bool


class _Launch(NamedTuple):
    start: int
    end: int
    thread: int
    name: str


def read_export(path: Path, first_rank: int, notes: list[str]) -> list[RankProfile]:
    """The ranks of a file, numbered from ``first_rank`` on by device and process unless the file's name says rank3.

    Raises InputError for a file that is no export, or has no kernels.
    """
    with NsightFile(path) as export:
        works = _works(export)
        if not works:
            raise InputError(
                f"{path} has no kernels (no table {KERNELS}): was CUDA traced?  Record with nsys profile --trace "
                f"cuda,nvtx"
            )
        if export.has("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
            notes.append(
                f"{path.name}: CUDA graphs were traced as wholes; their kernels are missing (nsys profile "
                "--cuda-graph-trace=node has them)"
            )
        calls, ranges = _calls(export), _ranges(export)
        names = {
            thread: str(export.texts.get(name, ""))
            for name, thread in export.rows("ThreadNames", ("nameId", "globalTid"))
        }
        origin = next((int(ns) for (ns,) in export.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)) if ns), 0)
        env = export.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"))
        host = next((str(value) for name, value in env if name == "Hostname"), "")
    units = sorted(works, key=lambda unit: (unit[1], unit[0] or 0))
    told = _RANK.search(path.name)
    first = int(told[1]) if told and len(units) == 1 else first_rank
    if len(units) > 1:
        notes.append(f"{path.name}: ranks {first} to {first + len(units) - 1} are its devices, in their order")
    found = []
    for place, unit in enumerate(units):
        process = unit[0]
        file = path.name if len(units) == 1 else f"{path.name}, rank {first + place}"  # files tell ranks apart
        profile = RankProfile(file, first + place, host, origin, ProcessGroups(), on_device=True)
        _fill(profile, works[unit], calls.get(process, {}), ranges.get(process, ()), names)
        found.append(profile)
    return found


def _works(export: NsightFile) -> dict[Unit, list[_Work]]:
    """Kernels, copies and memsets by process and device."""
    found: dict[Unit, list[_Work]] = defaultdict(list)
    common = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    texts = export.texts
    for start, end, device, stream, correlation, process, long, short in export.rows(
        KERNELS, (*common, "demangledName", "shortName")
    ):
        name = texts.get(long) or texts.get(short) or f"kernel {long if long is not None else short}"
        found[process, device or 0].append(_Work(start, end, stream or 0, correlation, name, copy=False))
    kernels = dict.fromkeys(found)
    for table, what in (("MEMCPY", "copyKind"), ("MEMSET", "value")):
        for start, end, device, stream, correlation, process, kind in export.rows(
            f"CUPTI_ACTIVITY_KIND_{table}", (*common, what)
        ):
            if (process, device or 0) in kernels:
                name = f"Memcpy {_COPIES.get(kind, 'other')}" if table == "MEMCPY" else "Memset"
                found[process, device or 0].append(_Work(start, end, stream or 0, correlation, name, copy=True))
    _refuse_open(export, [work for works in found.values() for work in works], "a kernel or copy")
    return dict(found)


def _refuse_open(export: NsightFile, works: Sequence[_Work | _Launch], what: str) -> None:
    """InputError for what has no start or no end; ranges may have none."""
    for part, open_ in (("start", [work.start for work in works]), ("end", [work.end for work in works])):
        if None in open_:
            raise InputError(
                f"cannot read {export.path}: {what} has no {part}; the file is damaged: export the report again"
            )


def _calls(export: NsightFile) -> dict[int | None, dict[int, _Launch]]:
    """Calls of the runtime and the driver by process and correlation; all under None where kernels name no process."""
    found: dict[int | None, dict[int, _Launch]] = defaultdict(dict)
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        for start, end, thread, correlation, name in export.rows(
            table, ("start", "end", "globalTid", "correlationId", "nameId")
        ):
            launch = _Launch(start, end, thread or 0, _VERSION.sub("", export.texts.get(name, "")))
            for process in (process_of(thread), None):
                found[process].setdefault(correlation, launch)
    _refuse_open(export, list(found[None].values()), "a call")
    return found


def _ranges(export: NsightFile) -> dict[int | None, list[tuple[int, int, int, str]]]:
    """Start, end, thread and text of NVTX ranges, by process."""
    found: dict[int | None, list[tuple[int, int, int, str]]] = defaultdict(list)
    for start, end, kind, text, name, thread in export.rows(
        "NVTX_EVENTS", ("start", "end", "eventType", "text", "textId", "globalTid")
    ):
        if start is not None and end is not None and kind in _RANGES:
            each = start, end, thread or 0, str(text or export.texts.get(name, ""))
            found[process_of(thread)].append(each)
            found[None].append(each)
    return found


def _fill(
    profile: RankProfile, works: Sequence[_Work], calls: dict[int, _Launch],
    ranges: Iterable[tuple[int, int, int, str]], names: dict[int, str],
) -> None:  # fmt: skip
    """A rank's lists, in seconds from its first work; an export's times count from the begin of its session."""
    own = [calls.get(work.correlation) if work.correlation is not None else None for work in works]
    first = min([work.start for work in works] + [call.start for call in own if call is not None])
    profile.origin += first

    def seconds(time: int) -> float:
        return (time - first) * 1e-9

    for number, (work, call) in enumerate(zip(works, own, strict=True)):
        comm = _comm(work) if not work.copy and is_comm(work.name, {}) else None
        profile.ops.append(StreamOp(
            work.name, work.stream, seconds(work.start), seconds(work.end), seconds(call.start) if call else math.nan,
            seconds(call.end) if call else math.nan, call.thread if call else -1, number, work.copy, comm,
        ))  # fmt: skip
    profile.ops.sort(key=lambda op: (op.start, op.event))
    for number, (start, end, thread, text) in enumerate(ranges):
        _range(profile, HostCall(text, thread, seconds(start), seconds(end), number))
    threads = dict.fromkeys(op.thread for op in profile.ops)
    for call in calls.values():
        if call.thread in threads:
            if call.name in BLOCKING:
                profile.syncs.append(HostCall(call.name, call.thread, seconds(call.start), seconds(call.end), 0))
            elif "StreamWaitEvent" in call.name:
                profile.wait_calls.append(seconds(call.start))
    profile.wait_calls.sort()
    profile.steps.sort(key=lambda step: step[1:])
    if not any(call.sequence >= 0 for call in profile.operators):
        _phases(profile, names)
    for calls_ in (profile.operators, profile.annotations, profile.syncs):
        calls_.sort(key=lambda call: (call.start, -call.end, call.event))


def _range(profile: RankProfile, call: HostCall) -> None:
    """An NVTX range: a step, an operator of autograd's (``emit_nvtx``), or an annotation."""
    step, sequence = STEP.fullmatch(call.name.strip()), _SEQUENCE.search(call.name)
    if step:
        profile.steps.append((int(step[1]), call.start, call.end))
    elif sequence:
        backward = call.name.startswith("autograd::")
        profile.operators.append(call._replace(sequence=int(sequence[1]), forward=not backward))
    else:
        profile.annotations.append(call)


def _phases(profile: RankProfile, names: dict[int, str]) -> None:
    """Backward is what autograd's threads launch; the main one forward, and behind their last launch the update."""
    threads = {op.thread for op in profile.ops if names.get(op.thread, "").startswith(_AUTOGRAD)}
    launches = [op for op in profile.ops if op.launched == op.launched]
    if not threads or not launches:
        return
    windows = [(start, end) for _, start, end in profile.steps] or [(-math.inf, math.inf)]
    for start, end in windows:
        within = [op for op in launches if start <= op.launched < end]
        backward = [op.launched for op in within if op.thread in threads]
        last = max(backward, default=math.inf)
        for thread in sorted({op.thread for op in within}):
            of_thread = [op.launched for op in within if op.thread == thread]
            reach = min(of_thread), max(of_thread) + 1e-9
            if thread in threads:
                profile.operators.append(HostCall(
                    "autograd::engine::evaluate_function: thread", thread, *reach, -1, forward=False,
                ))  # fmt: skip
                continue
            if reach[0] < last:
                profile.operators.append(HostCall("forward", thread, reach[0], min(reach[1], last), -1, sequence=0))
            if reach[1] > last:
                profile.annotations.append(HostCall("Optimizer.step#behind backward", thread, last, reach[1], -1))


def _comm(work: _Work) -> Comm:
    """A communication whose group is not known: that of its stream, with nobody that it could be matched with."""
    kind = kind_of(work.name)
    return Comm(kind, f"stream {work.stream}", "", (), 1, math.nan, "", -1, None)


def exports_in(folder: Path, endings: Sequence[str]) -> list[Path]:
    """Exports in a folder, by name."""
    return sorted(each for each in folder.iterdir() if each.name.endswith(tuple(endings)))


def read_exports(files: Sequence[Path], notes: list[str]) -> list[RankProfile]:
    """The ranks of several exports, one behind the other; InputError where two are of one rank."""
    found: list[RankProfile] = []
    for path in files:
        found += read_export(path, len(found), notes)
    known: dict[int, Any] = {}
    for profile in found:
        if profile.rank in known:
            raise InputError(
                f"{known[profile.rank]} and {profile.file} are both of rank {profile.rank}; name them by their ranks, "
                "as in rank0.sqlite"
            )
        known[profile.rank] = profile.file
    notes.append("exports of Nsight Systems name no process groups: waiting in a collective counts as its transfer")
    return found
