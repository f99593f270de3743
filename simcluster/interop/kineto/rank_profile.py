"""One rank's profile, the host's activities in a step, and the phase and layer that launched each op.

The layer comes from an annotation (``record_function``) or module around the launch whose name has a layer's number; in
backward from the forward operator of the same autograd sequence number. All launching threads count as one (autograd's
runs while the main one waits for it). On a GPU the host's activities are launches, and returns of calls that waited for
the device. On a CPU they include its operators, which do the computation.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from simcluster.interop.kineto.communications import CommCall, ProcessGroups

LAUNCH_CALL = re.compile(r"c10d::\w+")


class StreamOp(NamedTuple):
    """Op on a CUDA stream, or collective on a host thread, with start and end times (s).

    ``launch_start`` and ``launch_end`` are the times of the call that launched it, NaN if unknown; ``event`` is its
    index in the file.
    """

    name: str
    stream: int
    start: float
    end: float
    launch_start: float
    launch_end: float
    thread: int  # the launching thread, -1 if unknown
    event: int
    is_copy: bool
    comm: CommCall | None

    @property
    def launch_time(self) -> float:
        """Time (s) at which the host launched the op, or the op's start if unknown."""
        return self.launch_start if self.launch_start == self.launch_start else self.start


def launch_order(ops: Sequence[StreamOp]) -> list[int]:
    """Return the indices of ops in the order in which the host launched them."""
    keys = [(op.launch_time, op.event) for op in ops]
    return sorted(range(len(ops)), key=keys.__getitem__)


class HostCall(NamedTuple):
    """Function call or annotated range on a host thread, from ``start`` to ``end`` (s)."""

    name: str
    thread: int
    start: float
    end: float
    event: int
    sequence: int = -1  # autograd's sequence number, -1 for none
    is_forward: bool = True  # False on autograd's backward threads


class StreamWait(NamedTuple):
    """Wait of one CUDA stream for another: later launches on the first wait for earlier launches on the second."""

    stream: int
    waiting_after: float
    awaited_stream: int
    awaited_before: float


@dataclass
class RankProfile:
    """Recorded ops and host calls of one rank, with times in seconds since ``origin`` (a clock time in ns)."""

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
    on_device: bool = False  # it has kernels, not only CPU operators


FORWARD, BACKWARD, OPTIMIZER, OTHER = "forward", "backward", "optimizer", "other"

_LAYER = re.compile(r"(?:^|[._/ ])((?:layers?|blocks?|h|resblocks)[._]\d+)(?=$|[._/ ])")
_MODULE = re.compile(r"nn\.Module: (\w*(?:Layer|Block)_\d+)")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function")
_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)|^optimizer", re.IGNORECASE)
_FRAMEWORK = re.compile(
    r"Optimizer\.|DistributedDataParallel|DataParallel|nccl:|gloo:|FSDP|torch::|nn\.Module|record_param_comms|"
    r"enumerate\(DataLoader|## "
)


class PhaseLayer(NamedTuple):
    """Phase of an op (forward, backward, optimizer, other), and its layer or an empty string."""

    phase: str
    layer: str


class HostPhaseLookup:
    """Lookup of the phase and layer that a host thread of a rank is executing at a given time."""

    def __init__(self, profile: RankProfile) -> None:
        spans = _group_by_thread(profile.annotations)
        backward = [call for call in profile.operators if _BACKWARD.match(call.name)]
        found = [op for op in profile.operators if op.sequence >= 0 and op.is_forward and not _BACKWARD.match(op.name)]
        self._layer_of: dict[int, str] = {}  # by autograd's sequence number, from annotations around forward operators
        for thread, calls in _group_by_thread(found).items():
            stacks = _find_enclosing_calls(spans[thread], [call.start for call in calls])
            for call, stack in zip(calls, stacks, strict=True):
                self._layer_of.setdefault(call.sequence, _find_stack_layer(stack))
        self._threads = _group_by_thread(
            sorted((*profile.annotations, *found, *backward), key=lambda call: (call.start, -call.end, call.event))
        )

    def labels_at(self, thread: int, times: Sequence[float]) -> list[PhaseLayer]:
        """Return the phase and layer of a host thread at each of several ascending times (s)."""
        known: dict[tuple[int, ...], PhaseLayer] = {}  # most times are within the same calls as the one before
        found = []
        for stack in _find_enclosing_calls(self._threads[thread], times):
            within = tuple(map(id, stack))
            label = known.get(within)
            if label is None:
                label = known[within] = self._label_call_stack(stack)
            found.append(label)
        return found

    def _label_call_stack(self, stack: Sequence[HostCall]) -> PhaseLayer:
        layer = _find_stack_layer([call for call in stack if call.sequence < 0 and not _BACKWARD.match(call.name)])
        for call in stack:
            if _BACKWARD.match(call.name):
                return PhaseLayer(BACKWARD, self._layer_of.get(call.sequence, "") or layer)
            if _OPTIMIZER.search(call.name):
                return PhaseLayer(OPTIMIZER, "")
        known = any(call.sequence >= 0 for call in stack) or layer
        return PhaseLayer(FORWARD if known else OTHER, layer)


def _group_by_thread(calls: Iterable[HostCall]) -> dict[int, list[HostCall]]:
    found: dict[int, list[HostCall]] = defaultdict(list)
    for call in calls:
        found[call.thread].append(call)
    return found


def _find_stack_layer(stack: Iterable[HostCall]) -> str:
    """Return the outermost numbered layer in a call stack, or the user's innermost annotation if none is numbered."""
    inner = ""
    for call in stack:
        match = _LAYER.search(call.name) or _MODULE.fullmatch(call.name)
        if match:
            return match[1]
        if not _FRAMEWORK.search(call.name):
            inner = call.name
    return inner


def _find_enclosing_calls(calls: Sequence[HostCall], times: Sequence[float]) -> list[list[HostCall]]:
    """Return the calls in progress at each of several ascending times, outermost call first."""
    found, open_, place = [], list[HostCall](), 0
    for time in times:
        while place < len(calls) and calls[place].start <= time:
            while open_ and open_[-1].end <= calls[place].start:
                open_.pop()
            open_.append(calls[place])
            place += 1
        while open_ and open_[-1].end <= time:
            open_.pop()
        found.append([call for call in open_ if call.end > time])
    return found


WAIT_NAME, CALL_NAME = "wait", "collective call"
"""Names of CPU activities that are not operators."""
_RESOLUTION = 1e-9
"""Resolution of recorded times (s)."""
_MIN_BLOCKED = 20e-6
"""Shortest duration (s) of a call that counts as a wait."""
_MIN_PAUSE = 50e-6
"""Shortest gap (s) between two CPU operators in which the host may have waited."""


class HostActivity(NamedTuple):
    """Period of host work that ends at ``end`` (s) and may launch an op.

    ``launched_op`` is the index of the op that it launches (-1: none), ``awaited_ops`` the ops that it waited for,
    ``wait_end`` the latest end of these. On a CPU, ``name`` is the enclosing operator.
    """

    end: float
    launched_op: int
    awaited_ops: tuple[int, ...] = ()
    wait_end: float = -math.inf
    name: str = ""


def find_host_activities(
    profile: RankProfile, ops: Sequence[StreamOp], interval: tuple[float, float]
) -> tuple[list[HostActivity], int]:
    """Return the host activities that launch or await the given ops (sorted by end), and the host thread."""
    found = _find_launch_activities(profile, ops)
    thread = -1
    if profile.on_device:
        last = max((each.end for each in found), default=-math.inf)
        for call in profile.syncs:
            if call.end > last or call.end - call.start <= _MIN_BLOCKED:
                continue
            # a wait: for the op launched before the call that ended last before its return
            over = [
                place
                for place, op in enumerate(ops)
                if call.start < op.end <= call.end and op.launch_time <= call.start
            ]
            if over:
                latest = max(over, key=lambda place: ops[place].end)
                found += [HostActivity(call.start, -1), HostActivity(call.end, -1, (latest,), ops[latest].end)]
    else:
        own = [call for call in profile.operators if interval[0] <= call.start and call.end <= interval[1]]
        thread = Counter(call.thread for call in own).most_common(1)[0][0] if own else -1
        found += _find_operator_activities([call for call in own if call.thread == thread], ops, interval[1])
    found.sort(key=lambda each: each.end)
    for place in range(len(found) - 1, 0, -1) if not profile.on_device else ():
        before, each = found[place - 1], found[place]
        if before.launched_op >= 0 and each.name != WAIT_NAME:  # a launch inside an operator belongs to that operator
            found[place - 1] = before._replace(name=each.name)
    return found, thread


def _find_launch_activities(profile: RankProfile, ops: Sequence[StreamOp]) -> list[HostActivity]:
    """Return the host's op launches; on a GPU, a launch ends one launch delay after the start of its call."""
    delay = _estimate_launch_delay(ops) if profile.on_device else math.inf
    found, latest = [], -math.inf
    for place in launch_order(ops):
        op = ops[place]
        if math.isnan(op.launch_start):
            continue
        latest = max(latest, min(op.launch_end if math.isinf(delay) else op.launch_start + delay, op.start))
        found.append(HostActivity(latest, place))
    return found


def _estimate_launch_delay(ops: Sequence[StreamOp]) -> float:
    """Return the 10th percentile of the delay (s) between a launch call and the op's start on an idle stream."""
    by_stream: dict[int, list[StreamOp]] = {}
    for op in ops:
        by_stream.setdefault(op.stream, []).append(op)
    idle = [
        op.start - op.launch_start
        for own in by_stream.values()
        for before, op in pairwise(own)
        if before.end <= op.launch_start and op.comm is None
    ]
    return max(0.0, sorted(idle)[len(idle) // 10]) if idle else 0.0


def _find_operator_activities(calls: Sequence[HostCall], ops: Sequence[StreamOp], until: float) -> list[HostActivity]:
    """Return the outermost CPU operators as host activities; pauses in which a collective ended become waits."""
    found: list[HostActivity] = []
    outer: list[HostCall] = []
    for call in calls:
        if not outer or call.start >= outer[-1].end - _RESOLUTION:
            outer.append(call)
    if outer:
        found.append(HostActivity(outer[0].start, -1))
    for number, call in enumerate(outer):
        name = CALL_NAME if LAUNCH_CALL.fullmatch(call.name) else call.name
        following = outer[number + 1].start if number + 1 < len(outer) else until
        if following - call.end > _MIN_PAUSE:
            over = [
                place for place, op in enumerate(ops) if call.end < op.end <= following and op.launch_time <= call.end
            ]
            last = max((ops[place].end for place in over), default=-math.inf)
            if last - call.end > (following - call.end) / 2:
                found += [
                    HostActivity(call.end, -1, name=name), HostActivity(following, -1, tuple(over), last, WAIT_NAME),
                ]  # fmt: skip
                continue
        found.append(HostActivity(following, -1, name=name))
    return found
