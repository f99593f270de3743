"""Classification of kernels by name (``kernel_kinds.yaml``), and parsing of recorded collective calls.

The arguments of a collective are named as in PyTorch's ParamCommsUtils.hpp ("Collective name", "In msg nelems", "Group
size", "dtype", "Process Group Name", "Process Group Ranks", "Seq", "Src Rank", "Dst Rank").
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from simcluster.base.errors import InputError
from simcluster.documents.base_spec import Spec
from simcluster.documents.yaml_documents import read_document, validate_document
from simcluster.interop.replay.recorded_trace import COLLECTIVE_PREFIX

KernelWork = Literal[
    "product", "attention", "softmax", "norm", "elementwise", "reduction", "embedding", "loss", "routing", "optimizer",
    "copy", "communication",
]  # fmt: skip
"""Kinds of kernels, in the order of tables."""
UNMATCHED_KERNEL = ""
"""Kind of a kernel that matches no pattern."""


class KernelPattern(Spec):
    """Row of the kernel table: a regular expression for kernel names, and the kind of the matching kernels."""

    kind: KernelWork
    pattern: Annotated[str, Field(min_length=1)]
    of: str = ""

    @model_validator(mode="after")
    def _check_pattern(self) -> Self:
        try:
            re.compile(self.pattern)
        except re.error as problem:
            raise InputError(
                f"pattern {self.pattern!r} is not a Python regular expression: {problem}; write one, as in .*gemm.*, "
                "with a backslash before literal ( [ { * + ?"
            ) from None
        return self


class KernelTable(Spec):
    """Kernel table: name patterns in the order in which they are tried."""

    kernels: Annotated[tuple[KernelPattern, ...], Field(min_length=1)]


@cache
def _load_builtin_table() -> KernelTable:
    return validate_document(KernelTable, read_document(Path(__file__).with_name("kernel_kinds.yaml")))


class KernelClassifier:
    """Classifier of kernels by name: a user's kernel table is tried first, then the built-in table.

    Raises InputError if the file is not such a table.
    """

    def __init__(self, table: str | Path | None = None) -> None:
        rows = (
            *(validate_document(KernelTable, read_document(Path(table))).kernels if table is not None else ()),
            *_load_builtin_table().kernels,
        )
        self._rows = [(re.compile(row.pattern), row.kind) for row in rows]
        self._known: dict[str, str] = {}

    def classify(self, name: str) -> str:
        """Return the kind of a kernel from its name, or ``UNMATCHED_KERNEL`` if no pattern matches."""
        found = self._known.get(name)
        if found is None:
            found = next((kind for pattern, kind in self._rows if pattern.search(name)), UNMATCHED_KERNEL)
            self._known[name] = found
        return found


@cache
def builtin_classifier() -> KernelClassifier:
    """Return the classifier that uses only the built-in table of kernel names."""
    return KernelClassifier()


_COLLECTIVE_KINDS = (
    *("reduce_scatter", "all_reduce", "all_gather", "all_to_all", "broadcast", "send_recv", "send", "recv", "barrier"),
    *("reduce", "gather", "scatter"),  # after those that contain them
)
_ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "int": 4, "long": 8, "short": 2, "char": 1, "byte": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "long int": 8,
    "unsigned char": 1, "signed char": 1, "c10::bfloat16": 2, "c10::half": 2, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


_MAX_ELEMENTS = 2**62
MESSAGE_KINDS = ("send", "recv", "send_recv")
"""Kinds between two ranks."""


class CommCall(NamedTuple):
    """A collective or message, as recorded by one rank.

    ``group_text`` is the group's description, ``ranks`` the group's ranks, () if unknown. ``bytes`` follow nccl-tests'
    convention (the full buffer), NaN if unknown. ``sequence`` is the number in the group, -1 if unknown;
    ``sender_and_receiver`` is (sender, receiver) of a message.
    """

    kind: str
    group: str
    group_text: str  # the group's description
    ranks: tuple[int, ...]
    group_size: int
    bytes: float
    dtype: str
    sequence: int
    sender_and_receiver: tuple[int, int] | None

    @property
    def op_type(self) -> str:
        """Type of the call's op in a replay, composed of its kind and process group."""
        return f"{COLLECTIVE_PREFIX}{self.kind}:{self.group_text or self.group}"

    @property
    def has_known_members(self) -> bool:
        """Whether the participating ranks are known; unknown if one kernel carries several messages."""
        if self.kind in MESSAGE_KINDS and self.sender_and_receiver is None:
            return self.group_size == 2
        return self.group_size != 1

    def describe(self) -> str:
        """Describe the call for error messages, as in 'all_reduce of 4096 B in group 0 (default_pg), Seq 12'."""
        size = "" if math.isnan(self.bytes) else f" of {self.bytes:.0f} B"
        turn = f", Seq {self.sequence}" if self.sequence >= 0 else ""
        return f"{self.kind}{size} in group {self.group}" + (f" ({self.group_text})" if self.group_text else "") + turn


@dataclass
class ProcessGroups:
    """Process groups listed in a profile: description and ranks by group name."""

    by_name: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    assumed_calls: int = 0  # calls without a group name, where several groups exist

    @staticmethod
    def from_distributed_info(spread: Mapping[str, Any]) -> ProcessGroups:
        """Parse the process groups listed under ``distributedInfo`` in a profile."""
        groups = ProcessGroups()
        for each in spread.get("pg_config") or []:
            ranks = tuple(int(rank) for rank in each.get("ranks") or () if isinstance(rank, int))
            groups.by_name[str(each.get("pg_name"))] = str(each.get("pg_desc") or ""), ranks
        if not groups.by_name and isinstance(spread.get("world_size"), int):
            groups.by_name["0"] = "default_pg", tuple(range(spread["world_size"]))
        return groups


def is_communication_kernel(name: str, args: Mapping[str, Any]) -> bool:
    """Return whether a kernel is part of a collective or of a message between ranks."""
    return "Collective name" in args or builtin_classifier().classify(name) == "communication"


@lru_cache(maxsize=4096)  # a job has few names
def parse_collective_kind(text: str) -> str:
    """Return the collective that a kernel name mentions, as in all_reduce for 'ncclDevKernel_AllReduce_...'."""
    flat = re.sub(r"[^a-z]", "", text.partition("(")[0].lower())
    return next((kind for kind in _COLLECTIVE_KINDS if kind.replace("_", "") in flat), "other")


def parse_comm_call(name: str, args: Mapping[str, Any], groups: ProcessGroups, rank: int) -> CommCall:
    """Parse a collective or message from the arguments of its kernel or annotation."""
    kind = parse_collective_kind(str(args.get("Collective name") or name))
    if kind == "other":
        kind = parse_collective_kind(name)
    if "Process Group Name" not in args and len(groups.by_name) != 1:
        groups.assumed_calls += 1
    group = str(args.get("Process Group Name") or next(iter(groups.by_name), "0"))
    what, ranks = groups.by_name.get(group, ("", ()))
    ranks = _parse_group_ranks(args) or ranks
    what = str(args.get("Process Group Description") or what)
    size = int(args.get("Group size") or len(ranks))
    return CommCall(
        kind, group, what, ranks if len(ranks) == size else (), size, _parse_call_bytes(kind, args, size),
        str(args.get("dtype", "")), int(args.get("Seq", -1)), _parse_sender_and_receiver(kind, args, rank),
    )  # fmt: skip


def _parse_group_ranks(args: Mapping[str, Any]) -> tuple[int, ...]:
    text, size = args.get("Process Group Ranks"), int(args.get("Group size") or 0)
    if text is not None:
        try:
            return _parse_rank_list(text) if isinstance(text, str) else tuple(int(rank) for rank in text)
        except (ValueError, TypeError):
            pass
    start, stride = args.get("Global rank start"), args.get("Global rank stride")
    if isinstance(start, int) and isinstance(stride, int) and start >= 0 and stride > 0 and size > 0:
        return tuple(range(start, start + stride * size, stride))
    return ()


@lru_cache(maxsize=4096)  # a rank is in few groups
def _parse_rank_list(text: str) -> tuple[int, ...]:
    return tuple(int(rank) for rank in json.loads(text))


def _parse_call_bytes(kind: str, args: Mapping[str, Any], ranks: int) -> float:
    each = _ELEMENT_BYTES.get(str(args.get("dtype", "")).lower())
    given, taken = args.get("In msg nelems"), args.get("Out msg nelems")
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if given is None and isinstance(shapes, list) and shapes:
        tensors = [dims for dims in shapes if isinstance(dims, list) and all(type(side) is int for side in dims)]
        given = sum(map(math.prod, tensors))
        kinds = [str(word).lower() for word in types if word] if isinstance(types, list) else []
        each = _ELEMENT_BYTES.get(kinds[0]) if kinds else None
        taken = given * ranks if kind == "all_gather" else given
    number = taken if kind in ("all_gather", "recv") else given
    if each is None or not isinstance(number, int) or not 0 <= number < _MAX_ELEMENTS:
        return math.nan
    return float(number * each)


def _parse_sender_and_receiver(kind: str, args: Mapping[str, Any], rank: int) -> tuple[int, int] | None:
    """Return (sender, receiver) of a message, or None if unknown; PyTorch records only the peer rank."""
    if kind not in ("send", "recv"):
        return None
    try:
        other = int(args["Dst Rank" if kind == "send" else "Src Rank"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    if other < 0 or rank < 0:
        return None
    return (rank, other) if kind == "send" else (other, rank)


_AXIS_PATTERNS = {
    axis: re.compile(rf"(?:^|[\W_])(?:{short})(?:$|[\W_])|{word}", re.IGNORECASE)
    for axis, short, word in (
        ("dp", "dp|fsdp|hsdp", "data"), ("tp", "tp", "tensor"), ("pp", "pp", "pipeline|embedding"),
        ("cp", "cp", "context"), ("ep", "ep", "expert"),
    )
}  # fmt: skip
"""Patterns of group descriptions by axis: Megatron's TENSOR_MODEL_PARALLEL_GROUP, a device mesh's mesh_tp.
Data first: DATA_PARALLEL_GROUP_WITH_CP, EXPERT_DATA_PARALLEL_GROUP and mesh_dp_shard_cp are data-parallel groups."""


def find_described_axis(comm: CommCall) -> str | None:
    """Return the parallel axis (dp, tp, ...) named in the description of the call's process group, or None."""
    return next((axis for axis, name in _AXIS_PATTERNS.items() if name.search(comm.group_text or comm.group)), None)


def find_timeline_axis(comm: CommCall) -> str:
    """Return the timeline stream for a call: pp for messages, else its parallel axis (dp if unknown)."""
    return "pp" if comm.kind in MESSAGE_KINDS else find_described_axis(comm) or "dp"
