"""What the pieces of a rank's work are called in a profile, and what their arguments say.

Kernels of collectives bear NCCL's older names (``ncclKernel_AllReduce_RING_LL_Sum_float``): all tools know those,
HolisticTraceAnalysis' search for stragglers no others.  What a call is for stands behind in parentheses.  Sizes are
elements of a data type, as PyTorch counts them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from simcluster.collectives.relayed import COMBINE, DISPATCH, RELAYED
from simcluster.interop.export.work import RECEIVE, Track, WorkRow
from simcluster.interop.kineto.chrome import arguments, comm_arguments
from simcluster.interop.kineto.comm import Comm
from simcluster.interop.kineto.labels import BACKWARD, FORWARD, OPTIMIZER, OTHER, TraceLabel
from simcluster.planning.ops import MAIN
from simcluster.results.result import Result
from simcluster.scenario.memory_plan import ELEMENT_BYTES, recipe_of

_PHASES = {
    "forward": FORWARD, "backward": BACKWARD, "input_grad": BACKWARD, "weight_grad": BACKWARD, "recompute": BACKWARD,
    "optimizer": OPTIMIZER,
}  # fmt: skip
_CALLED = {
    "all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv", "send_recv": "send_recv", "send": "send", "recv": "recv", "broadcast": "broadcast",
    "reduce": "reduce", DISPATCH: "all_to_allv", COMBINE: "all_to_allv",
}  # fmt: skip
_COPIES = {
    "d2h": "Memcpy DtoH (Device -> Pinned)",
    "h2d": "Memcpy HtoD (Pinned -> Device)",
    "storage": "Memcpy HtoS (Pinned -> Storage)",
}
_BYTES = {"Float": 4, "BFloat16": 2, "Half": 2, "Byte": 1}
_IN_NAMES = {"Float": "float", "BFloat16": "bfloat16", "Half": "half", "Byte": "uint8_t"}
_GRADIENTS = ("gradients", "embedding_gradients")
_SINGLE = ("gradient_norm", "loss_")
"""Beginnings of the names of what is reduced in single precision whatever the model's."""
_MISTAKEN = re.compile("Sync|Memcpy|Memset")
"""HolisticTraceAnalysis counts no kernel with one of these words as computation."""


def label_of(work: WorkRow) -> TraceLabel | None:
    """What the host was in when it launched this; None for what goes with the work before it."""
    if work.stream != "compute":
        return None
    phase = _PHASES.get(work.kind, OTHER)
    return TraceLabel(phase, f"layers.{work.layer}" if work.layer >= 0 and phase in (FORWARD, BACKWARD) else "")


class Described(NamedTuple):
    """What calls of one kind have in common on a rank: the kernel's name, arguments as JSON, and the call."""

    name: str
    args: str
    comm: Comm | None


class Naming:
    """Names and arguments for one result; ranks are those of the job."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._first = result.ranks.start
        precision = result.scenario.training.precision
        halves = "Half" if precision == "fp16-mixed" else "BFloat16"
        self._activation = "Float" if ELEMENT_BYTES[precision] == 4 else halves
        self._gradient = "Float" if recipe_of(result.scenario).gradient == 4 else halves
        self._stage_ranks: list[list[int]] = [ranks.tolist() for ranks in result.job.plan.stage_ranks()]
        self._place = {rank: (stage, at) for stage, own in enumerate(self._stage_ranks) for at, rank in enumerate(own)}

    def stage(self, rank: int) -> int:
        """The rank's stage."""
        return self._place[rank][0]

    def peer(self, rank: int, stage: int) -> int:
        """The rank of another stage that this one sends to, or receives from."""
        return self._stage_ranks[stage][self._place[rank][1]]

    def describer(self, rank: int) -> Callable[[WorkRow], Described]:
        """What a rank's work is called; what is alike is made once."""
        known: dict[tuple[object, ...], Described] = {}

        def described(work: WorkRow) -> Described:
            key = (work.stream, work.kind, work.name, work.axis, work.bytes, work.peer)
            found = known.get(key)
            if found is None:
                comm = self._comm(work, rank) if work.communicates else None
                found = known[key] = Described(self._name(work, comm, rank), self._arguments(work, comm), comm)
            return found

        return described

    def _comm(self, work: WorkRow, rank: int) -> Comm:
        kind = _CALLED.get(work.kind, work.kind)
        if work.peer >= 0:
            other = self.peer(rank, work.peer)
            at = self._place[rank][1]
            ranks = tuple(each[at] for each in self._stage_ranks)
            peer = (other, rank) if work.kind == RECEIVE else (rank, other)
            return Comm(kind, f"pipeline{at}", "pipeline", ranks, len(ranks), work.bytes, "", -1, peer)
        if not work.axis:  # a message that nobody waits for
            return Comm(kind, "", "pipeline", (), 0, work.bytes, "", -1, None)
        communicators = self._result.folding.communicators
        number = communicators.number(work.axis, self._first + rank)
        ranks = tuple(each - self._first for each in communicators.ranks(number))
        group = communicators.group_name(work.axis, self._first + rank)
        return Comm(kind, group, work.axis, ranks, len(ranks), work.bytes, "", -1, None)

    def _arguments(self, work: WorkRow, comm: Comm | None) -> str:
        if comm is None:
            return f'"bytes":{int(work.bytes)}' if work.bytes else ""
        dtype = self._dtype(work)
        split = {"In split size": "[]", "Out split size": "[]"}
        return arguments(comm_arguments(comm, _elements(work, comm.size, dtype), dtype) | split)

    def _name(self, work: WorkRow, comm: Comm | None, rank: int) -> str:
        if work.stream in _COPIES:
            return f"{_COPIES[work.stream]} {work.name}"
        if comm is None:
            return _MISTAKEN.sub(lambda found: found[0].lower(), f"{work.kind} {work.name}")
        if comm.what == "pipeline":
            return f"ncclKernel_SendRecv({work.name})"
        if work.kind in RELAYED:
            return f"deep_ep::{work.kind.removeprefix('expert_')}({work.name})"
        communicators = self._result.folding.communicators
        number = communicators.number(work.axis, self._first + rank)
        method = communicators.nearest_method(number, work.kind, work.bytes)
        how = f"{method.algorithm}_{method.protocol or 'simple'}".upper()
        kind = work.kind.title().replace("_", "")
        return f"ncclKernel_{kind}_{how}_Sum_{_IN_NAMES[self._dtype(work)]}({work.name})"

    def _dtype(self, work: WorkRow) -> str:
        """The type whose elements are moved; bytes where they do not come out whole."""
        wanted = self._gradient if work.name in _GRADIENTS else self._activation
        if work.name.startswith(_SINGLE):
            wanted = "Float"
        return wanted if int(work.bytes) % _BYTES[wanted] == 0 else "Byte"


def _elements(work: WorkRow, ranks: int, dtype: str) -> tuple[int, int]:
    """Elements in and out of a call on one rank."""
    whole = int(work.bytes) // _BYTES[dtype]
    part = -(-whole // max(ranks, 1))
    return {"all_gather": (part, whole), "reduce_scatter": (whole, part)}.get(work.kind, (whole, whole))


def details(work: WorkRow, sequence: int) -> str:
    """What differs from call to call, as JSON: its number in its group (-1: none), how long it waited, where it is."""
    found = [f'"Seq":{sequence}'] if sequence >= 0 else []
    if work.start > work.ready:
        found.append(f'"waited (us)":{(work.start - work.ready) * 1e6:.3f}')
    places = {"layer": work.layer, "chunk": work.chunk, "microbatch": work.microbatch}
    found += [f'"{name}":{place}' for name, place in places.items() if place >= 0]
    return ",".join(found)


def process_name(rank: int, ranks: int, stage: int) -> str:
    """Rank and stage; Perfetto sorts processes by name, so numbers have leading zeros."""
    return f"rank {rank:0{max(3, len(str(ranks - 1)))}} (stage {stage})"


def track_name(track: Track) -> str:
    """The stream and, where it has a lane of its own, which; what is on the main one holds computation up."""
    stream, lane, stage = track
    if stage >= 0:
        return f"{stream}, {'recv' if lane == MAIN else lane.replace('send', 'recv')} from stage {stage}"
    if lane == stream:
        return f"{stream} beside compute"
    return stream if lane == MAIN else f"{stream}, {lane}"
