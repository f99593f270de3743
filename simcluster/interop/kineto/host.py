"""What the host of a rank does in a step: one doing after the other, each up to a moment.

All threads that launch work are taken for one (autograd's runs while the main one waits for it).  On a GPU the moments
are launches, and returns of calls that waited for the device.  On a CPU the host is what computes: its operators too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from simcluster.interop.kineto.events import LAUNCHED, HostCall, RankProfile, StreamOp, by_launch

WAIT, CALL = "wait", "collective call"
"""Names of doings of a CPU that are no operator's."""
_RESOLUTION = 1e-9
"""Seconds that times are recorded to."""
_BLOCKED = 20e-6
"""Seconds that a call must last to count as one that waited."""
_PAUSE = 50e-6
"""Seconds between two operators of a CPU from which on the host may have waited."""


class Doing(NamedTuple):
    """The host's work that ends at ``end``; ``launches`` an op by its place (-1: none); ``after`` are ops that it
    waited for; ``held`` is where the latest of them ended.  On a CPU, ``name`` is the operator it is in."""

    end: float
    launches: int
    after: tuple[int, ...] = ()
    held: float = -math.inf
    name: str = ""


def doings_of(profile: RankProfile, ops: Sequence[StreamOp], window: tuple[float, float]) -> tuple[list[Doing], int]:
    """The host's doings for these ops, by their ends; on a CPU all that it does in the window, and its thread."""
    found = _launches(profile, ops)
    thread = -1
    if profile.on_device:
        last = max((each.end for each in found), default=-math.inf)
        for call in profile.syncs:
            if call.end <= last and call.end - call.start > _BLOCKED:
                found += _blocked(call.start, call.end, ops)
    else:
        own = [call for call in profile.operators if window[0] <= call.start and call.end <= window[1]]
        thread = Counter(call.thread for call in own).most_common(1)[0][0] if own else -1
        found += _operators([call for call in own if call.thread == thread], ops, window[1])
    found.sort(key=lambda each: each.end)
    return found if profile.on_device else _named(found), thread


def _named(doings: Sequence[Doing]) -> list[Doing]:
    """A launch from inside an operator is of that operator."""
    found: list[Doing] = []
    for each in reversed(doings):
        inside = each.launches >= 0 and found and found[-1].name != WAIT
        found.append(each._replace(name=found[-1].name) if inside else each)
    return found[::-1]


def _launches(profile: RankProfile, ops: Sequence[StreamOp]) -> list[Doing]:
    """On a GPU, work arrives there a little after its call begins: as long as idle streams took to begin."""
    delay = _delay(ops) if profile.on_device else math.inf
    found, latest = [], -math.inf
    for place in by_launch(ops):
        op = ops[place]
        if math.isnan(op.launched):
            continue
        latest = max(latest, min(op.called if math.isinf(delay) else op.launched + delay, op.start))
        found.append(Doing(latest, place))
    return found


def _delay(ops: Sequence[StreamOp]) -> float:
    """Seconds from a launch to its begin on a stream that had nothing to do; the lowest tenth, as others waited."""
    by_stream: dict[int, list[StreamOp]] = {}
    for op in ops:
        by_stream.setdefault(op.stream, []).append(op)
    idle = [
        op.start - op.launched
        for own in by_stream.values()
        for before, op in pairwise(own)
        if before.end <= op.launched and op.comm is None
    ]
    return max(0.0, sorted(idle)[len(idle) // 10]) if idle else 0.0


def _blocked(start: float, end: float, ops: Sequence[StreamOp]) -> list[Doing]:
    """A call that waited for the device: for what ended last before it returned and had been launched before it."""
    over = [place for place, op in enumerate(ops) if start < op.end <= end and op.issued <= start]
    if not over:
        return []
    last = max(over, key=lambda place: ops[place].end)
    return [Doing(start, -1), Doing(end, -1, (last,), ops[last].end)]


def _operators(calls: Sequence[HostCall], ops: Sequence[StreamOp], until: float) -> list[Doing]:
    """Outermost operators of a CPU, each up to the start of the next; pauses in which collectives ended were waits."""
    found: list[Doing] = []
    outer: list[HostCall] = []
    for call in calls:
        if not outer or call.start >= outer[-1].end - _RESOLUTION:
            outer.append(call)
    if outer:
        found.append(Doing(outer[0].start, -1))
    for number, call in enumerate(outer):
        name = CALL if LAUNCHED.fullmatch(call.name) else call.name
        following = outer[number + 1].start if number + 1 < len(outer) else until
        if following - call.end > _PAUSE:
            over = [place for place, op in enumerate(ops) if call.end < op.end <= following and op.issued <= call.end]
            last = max((ops[place].end for place in over), default=-math.inf)
            if last - call.end > (following - call.end) / 2:
                found += [Doing(call.end, -1, name=name), Doing(following, -1, tuple(over), last, WAIT)]
                continue
        found.append(Doing(following, -1, name=name))
    return found
