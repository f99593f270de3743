"""What a profile must hold for it to be read: events that are objects, whole numbers where PyTorch writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import shown

MOST_RANKS = 1_000_000
"""Of a job, as a damaged number may say it."""
_WHOLE = (
    "correlation", "Sequence number", "stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id", "Group size",
    "Seq",
)  # fmt: skip
_USED = (
    "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cuda_sync", "cpu_op", "user_annotation",
    "python_function",
)  # fmt: skip
_LARGEST = 2**64
_DIGITS = re.compile(r"-?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16}")


def about_of(path: Path, document: Any) -> tuple[Mapping[str, Any], Mapping[str, Any], list[Any]]:
    """What a file says of itself, of the job (``distributedInfo``), and its events; InputError for another document."""
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError(f"{path} has no list traceEvents: it is no trace of PyTorch's profiler")
    about = document if isinstance(document, dict) else {}
    spread = about.get("distributedInfo") or {}
    if not isinstance(spread, dict):
        raise InputError(f"{path}: distributedInfo is {shown(spread)}; it is an object with rank and world_size")
    for name in ("rank", "world_size"):
        if not _is_whole(spread.get(name, 0)) or abs(spread.get(name, 0)) > MOST_RANKS:
            raise InputError(f"{path}: distributedInfo.{name} is {shown(spread[name])}, no number of a rank")
    groups = spread.get("pg_config") or []
    if not isinstance(groups, list) or not all(isinstance(each, dict) for each in groups):
        raise InputError(f"{path}: distributedInfo.pg_config is {shown(groups)}; it is a list of process groups")
    if not all(isinstance(each.get("ranks") or [], list) for each in groups):
        raise InputError(f"{path}: distributedInfo.pg_config: the ranks of a group are a list")
    begin = about.get("baseTimeNanoseconds") or 0
    if not _is_whole(begin):
        raise InputError(
            f"{path}: baseTimeNanoseconds is {shown(begin)}; it is a whole number: export the profile again"
        )
    strange = next((number for number, event in enumerate(events) if type(event) is not dict), None)
    if strange is not None:
        what = f"is {shown(events[strange])}; an event is an object {{...}}"
        raise InputError(f"{path}, event {strange}: {what}: record the profile again")
    return about, spread, events


def check_numbers(path: Path, timed: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
    """Check that threads, streams and correlations of events are whole numbers; convert those in text in place.

    ROCm's Kineto writes streams in hexadecimal text, as in "0x0".  InputError for the first that is not a number.
    """
    for number, event in timed:
        args = event.get("args")
        if args is None:
            args = {}
        elif type(args) is not dict:
            raise _wrong(path, number, event, "args", args, "an object")
        for name in _WHOLE:
            if name in args and not _is_whole(args[name]):
                whole = _whole_of_text(args[name])
                if whole is None:
                    raise _wrong(path, number, event, name, args[name], "a whole number")
                args[name] = whole
        category = event.get("cat")
        if category is not None and type(category) is not str:
            raise _wrong(path, number, event, "cat", category, "text")
        if category in _USED and not _is_whole(event.get("tid", 0)):
            raise _wrong(path, number, event, "tid", event["tid"], "a whole number")
        if args.get("Group size", 0) > MOST_RANKS:
            raise _wrong(path, number, event, "Group size", args["Group size"], f"at most {MOST_RANKS:,}")


def _is_whole(value: object) -> bool:
    return type(value) is int and -_LARGEST < value < _LARGEST


def _whole_of_text(value: object) -> int | None:
    """Return the whole number that a text has, in decimal or hexadecimal digits; None for anything else."""
    if type(value) is not str or not _DIGITS.fullmatch(value):
        return None
    whole = int(value, 16 if "x" in value.lower() else 10)
    return whole if _is_whole(whole) else None


def _wrong(path: Path, number: int, event: Mapping[str, Any], field: str, value: object, rule: str) -> InputError:
    return InputError(
        f"{path}, event {number} ({shown(event.get('name'))}): {field} is {shown(value)}; it is {rule}. Take the event "
        "out of the file, or record it again"
    )
