"""One rank's part of a step: what its host did and which ops wait for which, in the rank's own clock.

All that can be found from one profile alone, so that profiles are worked through side by side (``reading``);
``rebuild`` puts the ranks together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.interop.kineto.events import RankProfile, StreamOp
from simcluster.interop.kineto.host import doings_of
from simcluster.interop.kineto.labels import OTHER, Labels, TraceLabel
from simcluster.interop.kineto.waits import Waits, waited_for
from simcluster.interop.recorded.graph import HOST


@dataclass(frozen=True)
class RankStep:
    """A rank's step.  Columns over the host's doings (``host.Doing``): when each ends, the op that it launches by its
    place (-1: none), where the latest that it waited for ended, the operator of a CPU that it is in ("": none).

    ``after`` has the places of ops that a doing waited for, by its number; ``waits`` those that an op waits for, by its
    place; ``labels`` what part of the model the ops are of, ``host_labels`` the doings.  ``begin`` is where it starts.
    """

    begin: float
    end: Floats
    launches: Ints
    held: Floats
    name: tuple[str, ...]
    after: dict[int, tuple[int, ...]]
    host_labels: tuple[TraceLabel, ...]
    waits: Waits
    labels: tuple[TraceLabel, ...]

    @property
    def host_ops(self) -> int:
        """How many doings the host has."""
        return len(self.end)


def rank_step(profile: RankProfile, labels: Labels, step: int, ops: Sequence[StreamOp]) -> RankStep:
    """Of these ops of a step, by start."""
    begin = _begin(profile, step, ops)
    doings, thread = doings_of(profile, ops, (begin, _end(profile, step)))
    begins = [-math.inf, *(each.end for each in doings)]
    same: dict[TraceLabel, TraceLabel] = {}
    return RankStep(
        begin=begin,
        end=np.array([each.end for each in doings], dtype=np.float64),
        launches=np.array([each.launches for each in doings], dtype=np.int64),
        held=np.array([each.held for each in doings], dtype=np.float64),
        name=tuple([each.name for each in doings]),
        after={number: each.after for number, each in enumerate(doings) if each.after},
        host_labels=tuple(
            [same.setdefault(label, label) for label in labels.at(thread, begins[:-1])]
            if thread >= 0
            else [TraceLabel(HOST, "")] * len(doings)
        ),
        waits=waited_for(profile, ops),
        labels=tuple([same.setdefault(label, label) for label in _labels_of(labels, ops)]),
    )


def _begin(profile: RankProfile, step: int, ops: Sequence[StreamOp]) -> float:
    if profile.on_device:
        return min((op.start for op in ops), default=math.inf)
    first = min((call.start for call in profile.operators), default=0.0)
    return next((start for number, start, _ in profile.steps if number == step), first)


def _end(profile: RankProfile, step: int) -> float:
    """Where the host's own work ends that counts: on a CPU with the step, on a GPU with the last launch."""
    if profile.on_device:
        return -math.inf
    last = max((call.end for call in profile.operators), default=0.0)
    return next((end for number, _, end in profile.steps if number == step), last)


def _labels_of(labels: Labels, ops: Sequence[StreamOp]) -> list[TraceLabel]:
    found = [TraceLabel(OTHER, "")] * len(ops)
    by_thread: dict[int, list[tuple[float, int]]] = {}
    for place, op in enumerate(ops):
        if not math.isnan(op.launched):
            by_thread.setdefault(op.thread, []).append((op.launched, place))
    for thread, each in by_thread.items():
        each.sort()
        for (_, place), label in zip(each, labels.at(thread, [time for time, _ in each]), strict=True):
            found[place] = label
    return found
