"""How long each op took by itself: of a message or collective the time since its last member arrived.

Clocks of workers may differ: a message that ends before its send begins shows it.  Then every worker's clock is shifted
by one constant, so that the members of a group end together, as they do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.interop.recorded.graph import StepGraph, is_communication

_TOLERANCE = 1e-3  # seconds before the last arrival that a member may end: what one machine's clocks differ by
_ROUNDS = 50


def transferred(graphs: Sequence[StepGraph], name: str) -> tuple[tuple[StepGraph, ...], list[str]]:
    """The graphs with ``seconds``, and what was assumed about clocks.

    Raises InputError where a message ends before it begins, and no shift of clocks explains it.
    """
    notes: list[str] = []
    found = [_seconds(graph) for graph in graphs]
    if min(_worst(seconds) for seconds in found) < -_TOLERANCE:
        shifts = _shifts(graphs)
        graphs = [_shifted(graph, shifts) for graph in graphs]
        found = [_seconds(graph) for graph in graphs]
        _refuse(graphs, found, name)
        stages = graphs[0].stages
        worker = int(np.argmax(np.abs(shifts)))
        notes.append(
            "clocks differ: messages end before they begin.  Assumed that members of a group end together, and shifted "
            f"{int((np.abs(shifts) > _TOLERANCE).sum())} of {len(shifts)} workers' clocks by more than "
            f"{_TOLERANCE * 1e3:g} ms, most that of dp_rank "
            f"{worker // stages}, stage {worker % stages} (by {'-' if shifts[worker] > 0 else '+'}"
            f"{format_seconds(abs(float(shifts[worker])))})"
        )
    negative = sum(int((seconds < 0).sum()) for seconds in found)
    if negative:
        worst = min(range(len(graphs)), key=lambda k: _worst(found[k]))
        op, step = np.unravel_index(int(np.argmin(found[worst])), found[worst].shape)
        notes.append(
            f"{negative} collectives or messages end before their last member begins, by up to "
            f"{-_worst(found[worst]) * 1e6:.0f} us (step {graphs[worst].steps[step]}, "
            f"{graphs[worst].describe(int(op))}): clocks differ by that much; assumed that they took no time"
        )
    made = (replace(graph, seconds=np.maximum(seconds, 0.0)) for graph, seconds in zip(graphs, found, strict=True))
    return tuple(made), notes


def _worst(seconds: Floats) -> float:
    return float(seconds.min(initial=0.0))


def _seconds(graph: StepGraph) -> Floats:
    """Seconds of every op; both halves of a message take what the receiver saw."""
    seconds = graph.ended - graph.began
    receives = graph.of_kinds(lambda optype: optype.endswith("-recv"))
    of_size: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for group in graph.groups:
        of_size[len(group)].append(group)
    for groups in of_size.values():
        members = np.array(groups)  # [group, member]
        seconds[members] = graph.ended[members] - graph.began[members].max(axis=1, keepdims=True)
        received, first = receives[members].any(axis=1), receives[members].argmax(axis=1)
        seconds[members[received]] = seconds[members[received, first[received]]][:, None]
    return seconds


def _shifts(graphs: Sequence[StepGraph]) -> Floats:
    """How much every worker's clock is ahead, in seconds, if members of groups end together: medians, in turn."""
    ends: dict[int, list[tuple[Ints, Floats]]] = defaultdict(list)  # worker -> (peers, own end - each peer's)
    for graph in graphs:
        for group in graph.groups:
            for op in group:
                peers = [other for other in group if other != op]
                ahead = np.median(graph.ended[op] - graph.ended[peers], axis=1)
                ends[int(graph.worker[op])].append((graph.worker[peers], ahead))
    shifts = np.zeros(int(max(graph.worker.max() for graph in graphs)) + 1)
    pairs = {
        worker: [np.concatenate(columns) for columns in zip(*found, strict=True)] for worker, found in ends.items()
    }
    for _ in range(_ROUNDS):
        before = shifts.copy()
        for worker, (others, lead) in pairs.items():
            shifts[worker] = np.median(lead + shifts[others])
        shifts -= np.median(shifts)
        if np.abs(shifts - before).max() < 1e-9:
            break
    return shifts


def _shifted(graph: StepGraph, shifts: Floats) -> StepGraph:
    by = shifts[graph.worker][:, None]
    return replace(graph, began=graph.began - by, ended=graph.ended - by)


def _refuse(graphs: Sequence[StepGraph], found: Sequence[Floats], name: str) -> None:
    for graph, seconds in zip(graphs, found, strict=True):
        op, step = np.unravel_index(int(np.argmin(seconds)), seconds.shape)
        if seconds[op, step] < -_TOLERANCE and is_communication(graph.optype[op]):
            raise InputError(
                f"trace {name!r}, step {graph.steps[step]}, {graph.describe(int(op))}: ends "
                f"{-seconds[op, step] * 1e3:.3g} ms before its last member begins, and no constant shift of the "
                "workers' clocks explains it; align the clocks when recording (one clock a machine, or an offset per "
                "step), or leave the step out (--steps)"
            )
