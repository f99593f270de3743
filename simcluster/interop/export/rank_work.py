"""Simulated ops of every rank and their dependencies, for export as a trace.

A profile needs causes (events between streams, launches), which spans do not have. So this reads the ops: an op waits
for the one before it on its lane and for those that it names; a receive, which has no label, is a separate work.

Kernels of collectives have NCCL's older names (``ncclKernel_AllReduce_RING_LL_Sum_float``), because every tool
recognizes them, and HolisticTraceAnalysis' straggler search no others. The purpose of a call follows in parentheses.
Sizes are numbers of elements of a data type, as PyTorch counts them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count
from typing import NamedTuple

import numpy as np

from simcluster.collectives.token_relay import COMBINE, DISPATCH, RELAYED
from simcluster.interop.kineto.chrome_trace import collective_arguments, format_arguments
from simcluster.interop.kineto.communications import CommCall
from simcluster.interop.kineto.rank_profile import BACKWARD, FORWARD, OPTIMIZER, OTHER, PhaseLayer
from simcluster.planning.ops import MAIN
from simcluster.reference.step_record import OpSpanLabel
from simcluster.results.result import Result
from simcluster.results.simulated_run import Run
from simcluster.results.span_states import EXPOSED
from simcluster.scenario.memory_plan import ELEMENT_BYTES, recipe_of

RECEIVE, HOST = "recv", "host"
Track = tuple[str, str, int]
"""Stream, lane (a receive's: its sender's) and the stage that a receive comes from (-1: none); work on it is serial."""


COMPUTE: Track = ("compute", MAIN, -1)


class OpRow(NamedTuple):
    """Simulated op of a rank, with its times (s) and the ops for which the op waited.

    ``after`` are indices, in the rank's list, of the ops that it waited for (except the one before it on its track).
    ``peer_stage`` is the stage that a message goes to or comes from, -1 for none.
    """

    track: Track
    kind: str
    name: str
    layer: int
    axis: str
    bytes: float
    step: int
    chunk: int
    microbatch: int
    ready_time: float
    start: float
    end: float
    peer_stage: int = -1
    after: tuple[int, ...] = ()

    @property
    def stream(self) -> str:
        """Name of the timeline stream on which the op ran."""
        return self.track[0]

    @property
    def is_communication(self) -> bool:
        """Whether the op moves bytes between ranks; false for copies to or from the host."""
        return self.track[0] in EXPOSED


class RunOpRows:
    """Rows for export to a trace: one per op of a run's simulated ranks.

    ``lanes`` and ``receives`` (send, op that waits for it) are by rank. ``receiver_stages`` are the stages that receive
    what ops send, ``lane_stages`` every lane's pipeline stage in its job, which may be one of several in the record.
    """

    def __init__(self, run: Run) -> None:
        self.ops, self.times = run.record.ops, run.record.times
        self.lanes: dict[int, list[int]] = defaultdict(list)
        for lane, rank in enumerate(self.ops.lane_rank.tolist()):
            self.lanes[rank].append(lane)
        stages = self.ops.lane_stage.tolist()
        first = min(stages[lane] for rank in run.ranks for lane in self.lanes[rank])
        self.lane_stages = [stage - first for stage in stages]
        self.receives: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.receiver_stages: dict[int, int] = {}
        sends, receivers = self.ops.receives
        lanes = self.ops.lane[receivers].tolist()
        for send, op, lane in zip(sends.tolist(), receivers.tolist(), lanes, strict=True):
            self.receives[int(self.ops.lane_rank[lane])].append((send, op))
            self.receiver_stages[send] = self.lane_stages[lane]

    def make_rank_rows(self, rank: int) -> list[OpRow]:
        """Return all ops of a simulated rank as rows, lane by lane (a lane is an in-order queue)."""
        ops, times, receives = self.ops, self.times, self.receives[rank]
        sends = {int(ops.meeting[send]): send for send, _ in receives}
        found: list[OpRow] = []
        before: list[list[int]] = []  # indices of what each waited for
        places: dict[int, int] = {}  # by op
        received: dict[int, int] = {}  # send -> index of its receive

        def add_row(op: int, prior: int, track: Track, label: OpSpanLabel, ready: float, timed: int, peer: int) -> None:
            kind, layer, axis = (RECEIVE, -1, "") if track[2] >= 0 else (label.kind, label.layer, label.axis)
            found.append(OpRow(
                track, kind, label.name, layer, axis, label.bytes, int(ops.step[op]), int(ops.chunk[op]),
                int(ops.microbatch[op]), float(ready), float(times.start[timed]), float(times.end[timed]), peer,
            ))  # fmt: skip
            before.append([prior] if prior >= 0 else [])

        def add_receive_row(send: int, op: int, previous: int, ready: float) -> None:
            received[send] = len(found)
            lane = ops.lane[send]
            track = "pp", ops.lane_name[lane], self.lane_stages[lane]
            add_row(op, previous, track, ops.labels[ops.label[send]], ready, send, self.lane_stages[lane])

        for lane in self.lanes[rank]:
            previous = -1
            for op in ops.ops_of_lanes[lane].tolist():
                places[op] = len(found)
                if ops.label[op] >= 0:
                    label, peer = ops.labels[ops.label[op]], self.receiver_stages.get(op, -1)
                    add_row(op, previous, (label.stream, ops.lane_name[lane], -1), label, times.ready[op], op, peer)
                else:
                    add_receive_row(sends[int(ops.meeting[op])], op, previous, times.ready[op])
                previous = places[op]
        for send, op in receives:
            if send not in received:  # not posted: it begins with the message
                add_receive_row(send, op, -1, times.start[send])
            before[places[op]].append(received[send])
        waits = ops.dependencies
        for op, place in places.items():
            awaited = waits.op[waits.offsets[op] : waits.offsets[op + 1]].tolist()
            before[place] += [places[other] for other in awaited if other in places]
        for place, (work, others) in enumerate(zip(found, before, strict=True)):
            latest: dict[Track, int] = {}  # the last awaited work on every other track
            for other in others:
                track, end = found[other].track, found[other].end
                if track != work.track and (track not in latest or end >= found[latest[track]].end):
                    latest[track] = other
            if latest:
                found[place] = work._replace(after=tuple(latest.values()))
        return found

    @cached_property
    def _stream_numbers(self) -> dict[tuple[str, str], int]:
        """CUDA stream numbers by (stream, lane), receives excluded; compute has number 7, as in PyTorch."""
        ops = self.ops
        shown = ops.label >= 0
        pairs = np.unique(np.stack([ops.label[shown], ops.lane[shown]]), axis=1).T.tolist()
        used = {(ops.labels[label].stream, ops.lane_name[lane]) for label, lane in pairs}
        others = sorted(used - {COMPUTE[:2]})
        return {COMPUTE[:2]: 7, **{pair: 20 + place for place, pair in enumerate(others)}}

    def cuda_stream_numbers(self, works: Sequence[OpRow]) -> dict[Track, int]:
        """Return the CUDA stream number of each track (stream and lane) of a rank.

        Numbers are equal on all ranks, since tools compare streams, except those of receives, which come last.
        """
        tracks = sorted({work.track for work in works})
        receive_numbers = count(20 + len(self._stream_numbers))
        return {track: next(receive_numbers) if track[2] >= 0 else self._stream_numbers[track[:2]] for track in tracks}


_PHASES = {
    "forward": FORWARD, "backward": BACKWARD, "input_grad": BACKWARD, "weight_grad": BACKWARD, "recompute": BACKWARD,
    "optimizer": OPTIMIZER,
}  # fmt: skip
_PYTORCH_NAMES = {
    "all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv", "send_recv": "send_recv", "send": "send", "recv": "recv", "broadcast": "broadcast",
    "reduce": "reduce", DISPATCH: "all_to_allv", COMBINE: "all_to_allv",
}  # fmt: skip
_COPY_NAMES = {
    "d2h": "Memcpy DtoH (Device -> Pinned)", "h2d": "Memcpy HtoD (Pinned -> Device)",
    "storage": "Memcpy HtoS (Pinned -> Storage)",
}  # fmt: skip
_ELEMENT_BYTES = {"Float": 4, "BFloat16": 2, "Half": 2, "Byte": 1}
_NCCL_TYPES = {"Float": "float", "BFloat16": "bfloat16", "Half": "half", "Byte": "uint8_t"}
_GRADIENT_NAMES = ("gradients", "embedding_gradients")
_SINGLE_PRECISION = ("gradient_norm", "loss_")
"""Prefixes of the names of calls that reduce in single precision whatever the model's."""
_NON_COMPUTE_WORDS = re.compile("Sync|Memcpy|Memset")
"""HolisticTraceAnalysis counts no kernel with one of these words as computation."""


def launch_phase_and_layer(work: OpRow) -> PhaseLayer | None:
    """Return the phase and layer in which the host launched an op, or None if unchanged since the previous op."""
    if work.stream != "compute":
        return None
    phase = _PHASES.get(work.kind, OTHER)
    return PhaseLayer(phase, f"layers.{work.layer}" if work.layer >= 0 and phase in (FORWARD, BACKWARD) else "")


class KernelDescription(NamedTuple):
    """Description of an op's kernel: name, arguments as JSON, and communication call (None for compute)."""

    name: str
    args: str
    comm: CommCall | None


class KernelNaming:
    """Kernel names and arguments for the ops of one simulated result."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._first = result.ranks.start
        precision = result.scenario.training.precision
        halves = "Half" if precision == "fp16-mixed" else "BFloat16"
        self._activation = "Float" if ELEMENT_BYTES[precision] == 4 else halves
        self._gradient = "Float" if recipe_of(result.scenario).gradient == 4 else halves
        self._stage_ranks: list[list[int]] = [ranks.tolist() for ranks in result.job.plan.stage_ranks()]
        self._place = {rank: (stage, at) for stage, own in enumerate(self._stage_ranks) for at, rank in enumerate(own)}

    def stage_of_rank(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return self._place[rank][0]

    def peer_rank(self, rank: int, stage: int) -> int:
        """Return the rank on another pipeline stage with which a rank exchanges messages."""
        return self._stage_ranks[stage][self._place[rank][1]]

    def make_describer(self, rank: int) -> Callable[[OpRow], KernelDescription]:
        """Return a cached function that gives the kernel name, arguments and communication of a rank's op."""
        known: dict[tuple[object, ...], KernelDescription] = {}

        def describe_op(work: OpRow) -> KernelDescription:
            key = (work.stream, work.kind, work.name, work.axis, work.bytes, work.peer_stage)
            found = known.get(key)
            if found is None:
                comm = self._make_comm_call(work, rank) if work.is_communication else None
                name, args = self._kernel_name(work, comm, rank), self._format_comm_arguments(work, comm)
                found = known[key] = KernelDescription(name, args, comm)
            return found

        return describe_op

    def _make_comm_call(self, work: OpRow, rank: int) -> CommCall:
        kind = _PYTORCH_NAMES.get(work.kind, work.kind)
        if work.peer_stage >= 0:
            other = self.peer_rank(rank, work.peer_stage)
            at = self._place[rank][1]
            ranks = tuple(each[at] for each in self._stage_ranks)
            peer = (other, rank) if work.kind == RECEIVE else (rank, other)
            return CommCall(kind, f"pipeline{at}", "pipeline", ranks, len(ranks), work.bytes, "", -1, peer)
        if not work.axis:  # a message without a waiting rank
            return CommCall(kind, "", "pipeline", (), 0, work.bytes, "", -1, None)
        communicators = self._result.folding.communicators
        number = communicators.find_communicator(work.axis, self._first + rank)
        ranks = tuple(each - self._first for each in communicators.member_ranks(number))
        group = communicators.group_name(work.axis, self._first + rank)
        return CommCall(kind, group, work.axis, ranks, len(ranks), work.bytes, "", -1, None)

    def _format_comm_arguments(self, work: OpRow, comm: CommCall | None) -> str:
        if comm is None:
            return f'"bytes":{int(work.bytes)}' if work.bytes else ""
        dtype = self._element_type_name(work)
        whole = int(work.bytes) // _ELEMENT_BYTES[dtype]
        part = -(-whole // max(comm.group_size, 1))
        elements = {"all_gather": (part, whole), "reduce_scatter": (whole, part)}.get(work.kind, (whole, whole))
        splits = {"In split size": "[]", "Out split size": "[]"}
        return format_arguments(collective_arguments(comm, elements, dtype) | splits)

    def _kernel_name(self, work: OpRow, comm: CommCall | None, rank: int) -> str:
        if work.stream in _COPY_NAMES:
            return f"{_COPY_NAMES[work.stream]} {work.name}"
        if comm is None:
            return _NON_COMPUTE_WORDS.sub(lambda found: found[0].lower(), f"{work.kind} {work.name}")
        if comm.group_text == "pipeline":
            return f"ncclKernel_SendRecv({work.name})"
        if work.kind in RELAYED:
            return f"deep_ep::{work.kind.removeprefix('expert_')}({work.name})"
        communicators = self._result.folding.communicators
        number = communicators.find_communicator(work.axis, self._first + rank)
        size = communicators.planned_size(number, work.kind, work.bytes)
        assert size is not None
        method = communicators.method_of_call(number, work.kind, size)
        how = f"{method.algorithm}_{method.protocol or 'simple'}".upper()
        kind = work.kind.title().replace("_", "")
        return f"ncclKernel_{kind}_{how}_Sum_{_NCCL_TYPES[self._element_type_name(work)]}({work.name})"

    def _element_type_name(self, work: OpRow) -> str:
        """Return the data type that an op transfers, or "Byte" if the size is not a multiple of the type's size."""
        wanted = self._gradient if work.name in _GRADIENT_NAMES else self._activation
        if work.name.startswith(_SINGLE_PRECISION):
            wanted = "Float"
        return wanted if int(work.bytes) % _ELEMENT_BYTES[wanted] == 0 else "Byte"


def format_call_details(work: OpRow, sequence: int) -> str:
    """Format the arguments that differ between calls as JSON: sequence number, wait, layer, microbatch."""
    found = [f'"Seq":{sequence}'] if sequence >= 0 else []
    if work.start > work.ready_time:
        found.append(f'"waited (us)":{(work.start - work.ready_time) * 1e6:.3f}')
    places = {"layer": work.layer, "chunk": work.chunk, "microbatch": work.microbatch}
    found += [f'"{name}":{place}' for name, place in places.items() if place >= 0]
    return ",".join(found)


def rank_process_name(rank: int, ranks: int, stage: int) -> str:
    """Return a rank's process name in a trace, zero-padded because Perfetto sorts names as text."""
    return f"rank {rank:0{max(3, len(str(ranks - 1)))}} (stage {stage})"


def track_display_name(track: Track) -> str:
    """Return a track's display name: the stream, then the sending stage or any lane other than the main lane."""
    stream, lane, stage = track
    if stage >= 0:
        return f"{stream}, {'recv' if lane == MAIN else lane.replace('send', 'recv')} from stage {stage}"
    if lane == stream:
        return f"{stream} (overlaps compute)"
    return stream if lane == MAIN else f"{stream}, {lane}"
