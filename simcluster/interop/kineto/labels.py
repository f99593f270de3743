"""What part of the model an op is of: its phase and its layer, from what the host was in when it launched it.

The layer comes from an annotation (``record_function``) or module around the launch whose name has a layer's number;
in backward from the forward operator of the same autograd sequence number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simcluster.interop.kineto.events import HostCall, RankProfile

FORWARD, BACKWARD, OPTIMIZER, OTHER = "forward", "backward", "optimizer", "other"

_LAYER = re.compile(r"(?:^|[._/ ])((?:layers?|blocks?|h|resblocks)[._]\d+)(?=$|[._/ ])")
_MODULE = re.compile(r"nn\.Module: (\w*(?:Layer|Block)_\d+)")
_BACKWARD = re.compile(r"autograd::engine::evaluate_function")
_OPTIMIZER = re.compile(r"Optimizer\.(?:step|zero_grad)|^optimizer", re.IGNORECASE)
_FRAMEWORK = re.compile(
    r"Optimizer\.|DistributedDataParallel|DataParallel|nccl:|gloo:|FSDP|torch::|nn\.Module|record_param_comms|"
    r"enumerate\(DataLoader|## "
)


class TraceLabel(NamedTuple):
    """Phase (forward, backward, optimizer, other) and layer ("" for none)."""

    phase: str
    layer: str


class Labels:
    """The label of any moment of a rank's host threads."""

    def __init__(self, profile: RankProfile) -> None:
        spans = _by_thread(profile.annotations)
        backward = [call for call in profile.operators if _BACKWARD.match(call.name)]
        forward = [
            call for call in profile.operators if call.sequence >= 0 and call.forward and not _BACKWARD.match(call.name)
        ]
        self._layer_of: dict[int, str] = {}  # by autograd's sequence number, from annotations around forward operators
        for thread, calls in _by_thread(forward).items():
            stacks = _enclosing(spans[thread], [call.start for call in calls])
            for call, stack in zip(calls, stacks, strict=True):
                self._layer_of.setdefault(call.sequence, _layer(stack))
        self._threads = _by_thread(
            sorted((*profile.annotations, *forward, *backward), key=lambda call: (call.start, -call.end, call.event))
        )

    def at(self, thread: int, times: Sequence[float]) -> list[TraceLabel]:
        """The labels of moments on a thread, ascending."""
        known: dict[tuple[int, ...], TraceLabel] = {}  # most moments are within the same calls as the one before them
        found = []
        for stack in _enclosing(self._threads[thread], times):
            within = tuple(map(id, stack))
            label = known.get(within)
            if label is None:
                label = known[within] = self._label(stack)
            found.append(label)
        return found

    def _label(self, stack: Sequence[HostCall]) -> TraceLabel:
        layer = _layer([call for call in stack if call.sequence < 0 and not _BACKWARD.match(call.name)])
        for call in stack:
            if _BACKWARD.match(call.name):
                return TraceLabel(BACKWARD, self._layer_of.get(call.sequence, "") or layer)
            if _OPTIMIZER.search(call.name):
                return TraceLabel(OPTIMIZER, "")
        known = any(call.sequence >= 0 for call in stack) or layer
        return TraceLabel(FORWARD if known else OTHER, layer)


def _by_thread(calls: Iterable[HostCall]) -> dict[int, list[HostCall]]:
    found: dict[int, list[HostCall]] = defaultdict(list)
    for call in calls:
        found[call.thread].append(call)
    return found


def _layer(stack: Iterable[HostCall]) -> str:
    """The outermost layer that is numbered; else the innermost annotation of the user's."""
    inner = ""
    for call in stack:
        match = _LAYER.search(call.name) or _MODULE.fullmatch(call.name)
        if match:
            return match[1]
        if not _FRAMEWORK.search(call.name):
            inner = call.name
    return inner


def _enclosing(calls: Sequence[HostCall], times: Sequence[float]) -> list[list[HostCall]]:
    """For every moment, ascending, the calls around it from the outside in; calls by start, nested."""
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
