"""A job recorded by profilers: each step is a graph of ops, waits and matched collectives.

Lanes of a rank: "main" (its host: all launching threads as one sequence) and one per stream. On a GPU an op waits for
its launch; on a CPU the host does the computation. Where PyTorch recorded no events between streams, waits are inferred
(``rank_step``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats, run_start_mask
from simcluster.interop.kineto.collective_matching import MatchedOp
from simcluster.interop.kineto.rank_profile import WAIT_NAME, PhaseLayer, StreamOp
from simcluster.interop.kineto.rank_step import ProfiledRankStep
from simcluster.interop.replay.recorded_job import RecordedJob
from simcluster.interop.replay.step_graph import COPY, HOST, MAIN_LANE, Lane, StepGraph, is_communication_type

MAX_COUNTED_GAP = 10e-6
"""Longest unexplained gap (s) between two kernels that counts towards the second: drain and launch."""


@dataclass(frozen=True)
class ProfiledStep(StepGraph):
    """Step graph built from profiles, plus each op's profiled event, phase and layer.

    ``offset`` is when the step began on the aligned clock; ``removed_gap_seconds`` are the seconds of unexplained
    stream gaps per rank, which a replay removes.
    """

    sources: tuple[StreamOp | None, ...]
    labels: tuple[PhaseLayer, ...]
    names: tuple[str, ...]
    offset: float
    removed_gap_seconds: dict[int, float]
    on_device: bool

    @property
    def last_arrival_times(self) -> Floats:
        """Time (s) when the last rank arrived at each op's collective, at most the op's end."""
        arrived = self.recorded_start[:, 0].copy()
        for group in self.groups:
            arrived[list(group)] = arrived[list(group)].max()
        return np.minimum(arrived, self.recorded_end[:, 0])


def build_profiled_step(
    step: int, steps: Mapping[int, ProfiledRankStep], ops: Mapping[int, list[StreamOp]],
    matches: Sequence[Sequence[MatchedOp]], shift: Mapping[int, float], *, on_device: bool,
) -> ProfiledStep:  # fmt: skip
    """Build the graph of a profiled step from its ranks' work, after correcting each rank's clock."""
    begin = min(own.begin + shift[rank] for rank, own in steps.items())
    parts: list[dict[str, Any]] = []
    first, left_out, lanes, count = dict[int, int](), dict[int, float](), dict[Lane, tuple[int, ...]](), 0
    for worker, (rank, own) in enumerate(steps.items()):
        first[rank] = count + own.num_activities
        columns, left_out[rank] = _build_rank_columns(lanes, worker, own, ops[rank], shift[rank] - begin, count)
        parts.append(columns)
        count += own.num_activities + len(ops[rank])
    groups = tuple([tuple([first[rank] + place for rank, place in each]) for each in matches if len(each) > 1])
    began, ended, seconds, gaps, worker_of = (
        np.concatenate([part[name] for part in parts]) for name in ("began", "ended", "seconds", "gaps", "worker")
    )
    _set_collective_seconds(groups, began, ended, seconds, gaps)
    nowhere = np.full(count, -1)
    texts = {
        name: tuple(chain.from_iterable([part[name] for part in parts]))
        for name in ("optype", "after", "sources", "labels", "names")
    }
    return ProfiledStep(
        stages=1, steps=(step,), worker=worker_of, microbatch=nowhere, chunk=nowhere, lanes=lanes, groups=groups,
        seconds=seconds[:, None], recorded_start=began[:, None], recorded_end=ended[:, None], offset=begin,
        removed_gap_seconds=left_out, on_device=on_device, **texts,
    )  # fmt: skip


def _set_collective_seconds(
    groups: Sequence[tuple[int, ...]], began: Floats, ended: Floats, seconds: Floats, gaps: Floats
) -> None:
    """Set each collective's duration: from the last rank's arrival to the end, plus that rank's gap before it."""
    if not groups:
        return
    ops, sizes = np.array(list(chain.from_iterable(groups))), np.array([len(group) for group in groups])
    group, begins = np.repeat(np.arange(len(groups)), sizes), np.cumsum(sizes) - sizes
    arrived = np.maximum.reduceat(began[ops], begins)[group]
    last = np.flatnonzero(began[ops] == arrived)
    gap = gaps[ops[last[np.unique(group[last], return_index=True)[1]]]]
    seconds[ops] = np.maximum(0.0, ended[ops] - arrived) + gap[group]


def _build_rank_columns(
    lanes: dict[Lane, tuple[int, ...]], index: int, own: ProfiledRankStep, ops: list[StreamOp], shift: float, first: int
) -> tuple[dict[str, Any], float]:
    """Return the columns of a rank's ops (host ops first), and the total length of removed gaps (s).

    Adds the rank's lanes; ``shift`` converts its times to those of the step, ``first`` is the number of its first op.
    """
    count, base = own.num_activities, first + own.num_activities
    host_end = np.maximum.accumulate(np.maximum(0.0, own.ends + shift)) if count else own.ends
    host_begin = np.concatenate([[0.0], host_end[:-1]]) if count else own.ends
    host_names = [name or HOST for name in own.operator_names]
    if count:
        lanes[index, MAIN_LANE] = tuple(range(first, base))
    start = np.array([op.start for op in ops], dtype=np.float64) + shift
    end = np.array([op.end for op in ops], dtype=np.float64) + shift
    ready = np.zeros(len(ops))  # end of the preceding op on the stream
    by_stream: dict[int, list[int]] = {}
    for place, op in enumerate(ops):
        by_stream.setdefault(op.stream, []).append(place)
    for stream, places in by_stream.items():
        ready[places[1:]] = np.maximum.accumulate(np.maximum(0.0, end[places]))[:-1]
        lanes[index, f"stream {stream}"] = tuple([base + place for place in places])
    after: list[tuple[int, ...]] = [()] * len(ops)
    by_host = np.flatnonzero(own.launched_ops >= 0)
    launched = own.launched_ops[by_host]
    ready[launched] = np.maximum(ready[launched], host_end[by_host])
    for place, number in zip(launched.tolist(), by_host.tolist(), strict=True):
        after[place] = (first + number,)
    for place, others in own.waits_of_ops.items():
        ready[place] = max(ready[place], *(end[other] for other in others))
        after[place] += tuple([base + other for other in others])
    gaps = start - ready
    counted = (gaps > 0) & (gaps <= MAX_COUNTED_GAP)
    left = np.cumsum(np.maximum(gaps[~counted], 0.0))  # summed in order
    gaps[~counted] = 0.0
    host_seconds = host_end - np.maximum(host_begin, np.minimum(host_end, own.wait_ends + shift))
    seconds = end - start + np.where([op.comm is None for op in ops], gaps, 0.0)
    host_types = [HOST if name in (WAIT_NAME, HOST) else label.phase
                  for name, label in zip(host_names, own.host_labels, strict=True)]  # fmt: skip
    types = [op.comm.op_type if op.comm else COPY if op.is_copy else label.phase
             for op, label in zip(ops, own.labels, strict=True)]  # fmt: skip
    columns = {
        "worker": np.full(count + len(ops), index), "began": np.concatenate([host_begin, start]),
        "ended": np.concatenate([host_end, end]), "gaps": np.concatenate([np.zeros(count), gaps]),
        "seconds": np.concatenate([host_seconds, seconds]), "names": host_names + [op.name for op in ops],
        "optype": host_types + types, "labels": [*own.host_labels, *own.labels], "sources": [None] * count + [*ops],
        "after": [tuple([base + op for op in own.waits_of_activities.get(one, ())]) for one in range(count)] + after,
    }  # fmt: skip
    return columns, float(left[-1]) if len(left) else 0.0


@dataclass(frozen=True)
class ProfiledJob(RecordedJob):
    """Job recorded by a profiler, replayed as one pipeline stage with one worker per profiled rank.

    The typical duration of an op is the mean over all ranks and steps of the op of the same name and position; for a
    collective it is the median over those of the same kind, group and position.
    """

    @property
    def profiled_steps(self) -> tuple[ProfiledStep, ...]:
        """Step graphs of the job, typed as ``ProfiledStep``."""
        return tuple(graph for graph in self.graphs if isinstance(graph, ProfiledStep))

    @cached_property
    def _typical_seconds_by_step(self) -> dict[int, Floats]:
        graphs, words = self.profiled_steps, dict[tuple[str, str], int]()
        named, numbers = [], []
        for graph in graphs:
            names = {optype: not is_communication_type(optype) for optype in graph.type_codes[0]}  # also known by name?
            pairs = zip(graph.optype, graph.names, strict=True)
            word = np.array([words.setdefault((kind, name if names[kind] else ""), len(words)) for kind, name in pairs])
            order = np.lexsort((word, graph.worker))
            begins = np.diff(graph.worker[order], prepend=-1) | np.diff(word[order], prepend=-1)
            places = np.arange(len(order))
            number = np.empty(len(order), dtype=np.int64)  # index among the rank's ops of this word
            number[order] = places - np.maximum.accumulate(np.where(begins != 0, places, 0))
            named.append(word)
            numbers.append(number)
        word, number = np.concatenate(named), np.concatenate(numbers)
        seconds = np.concatenate([graph.seconds[:, 0] for graph in graphs])
        order = np.lexsort((number, word))  # stable: equal ones stay in order of steps and ranks
        first = np.flatnonzero(run_start_mask(word[order]) | run_start_mask(number[order]))
        shared = [is_communication_type(optype) for optype, _ in words]
        typical = np.empty(len(word))
        for pool in np.split(order, first[1:]):
            own = seconds[pool]
            typical[pool] = np.median(own) if shared[word[pool[0]]] else own.mean()
        parts = np.split(typical, np.cumsum([len(graph) for graph in graphs])[:-1])
        return {id(graph): part for graph, part in zip(graphs, parts, strict=True)}

    def typical_op_seconds(self, graph: StepGraph) -> Floats:
        """Return the typical duration (s) of every op of a graph, as a one-column array."""
        return self._typical_seconds_by_step[id(graph)][:, None]
