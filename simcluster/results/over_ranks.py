"""Where the time of all ranks' steps went, in arrays over them.  An accelerator of ``metrics`` and ``waits``.

A rank by itself takes milliseconds to measure; 16,384 that are played in arrays (``engine.rank_arrays``) are measured
in them, too.  All ranks of a stage begin and end the same spans in another order: what each of these
instants changes is one table for the stage, put in the order of each rank's times and summed up.  Sums of times on the
clock's grid have no rounding, in whatever order: the numbers are those of ``rank_time`` to the bit.  What only spans
tell is refused by name (``NotInArraysError``): copies, the host, checkpoints, computation on several lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Bools, Floats, Ints
from simcluster.engine.rank_times import RankTimes
from simcluster.planning.ops import MAIN, Op
from simcluster.results.metrics import BREAKDOWN, COMPUTE_KINDS, EXPOSED, GROUPS_OF_A_STAGE, RankTime
from simcluster.results.rank_instants import Instants, PlayedStage, SpanDepths, stages_of
from simcluster.results.step_time import StepTime
from simcluster.results.waits import Wait

_TOGETHER = 1 << 20
"""Instants of so many are put in order at a time: what fits into a cache."""
_COMPUTING, _BUSY, _ELSEWHERE = "computing", "busy", "late for other stages"


class NotInArraysError(Exception):
    """What was played has more than arrays over ranks measure; the message says what."""


@dataclass(frozen=True)
class StatesOverRanks:
    """Seconds of every rank's step, as ``metrics.RankTime`` has them, in columns [rank]; ``stage`` is each one's, and
    ``pipeline`` the seconds of microbatches' computation, step by step.  ``waited`` are rank, culprit, whether it was
    in the pipeline, and seconds; None where pairs meet (``rendezvous``)."""

    total: float
    states: dict[str, Floats]
    communication: Floats
    overlapped: Floats
    stage: Ints
    pipeline: list[float]
    waited: tuple[Ints, Ints, Bools, Floats] | None

    def of(self, rank: int) -> RankTime:
        """One rank's."""
        states = {name: float(values[rank]) for name, values in self.states.items()}
        return RankTime(states, float(self.communication[rank]), float(self.overlapped[rank]))

    def step_time(self, steps: int) -> StepTime:
        """The metrics of the step."""
        share = np.full(len(self.stage), 1.0) / len(self.stage)
        breakdown = self.breakdown(np.arange(len(self.stage)), steps)
        communication, overlapped = (float(np.dot(each, share)) for each in (self.communication, self.overlapped))
        return StepTime.of_run(
            self.total, steps, breakdown=breakdown, communication=communication, overlapped=overlapped,
            pipeline=self.pipeline, of_rank=_OfRanks(self),
        )  # fmt: skip

    def breakdown(self, ranks: Ints, steps: int) -> dict[str, float]:
        """Of the mean of some ranks, in seconds per step."""
        share = np.full(len(ranks), 1.0) / len(ranks)
        return {name: float(np.dot(values[ranks], share)) / steps for name, values in self.states.items()}

    @cached_property
    def waits(self) -> list[Wait]:
        """Who waited for whom, longest first, as ``waits.waits``."""
        assert self.waited is not None
        rank, culprit, pipeline, seconds = self.waited
        order = np.lexsort((pipeline, culprit, rank, -seconds))
        columns = [each[order].tolist() for each in (rank, culprit, pipeline, seconds)]
        where = {False: "group", True: "pipeline"}
        return [Wait(own, other, where[late], took) for own, other, late, took in zip(*columns, strict=True)]


class _OfRanks(Mapping[int, RankTime]):
    """Ranks one by one, when somebody asks."""

    def __init__(self, found: StatesOverRanks) -> None:
        self._found = found

    def __getitem__(self, rank: int) -> RankTime:
        return self._found.of(rank)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._found.stage)


def states_over_ranks(found: RankTimes, steps: int) -> StatesOverRanks:
    """Of what was played in so many steps; NotInArraysError, with the reason, for what only spans tell."""
    stages = list(stages_of(found))
    count = sum(len(stage.ranks) for stage in stages)
    states = {name: np.zeros(count) for name in BREAKDOWN}
    communication, overlapped, place = np.zeros(count), np.zeros(count), np.zeros(count, dtype=np.int64)
    several = len([stage for stage in stages if stage.ops]) > 1
    culprits = _culprits(found)
    waited: list[tuple[Ints, Ints, bool, Floats]] | None = [] if culprits is not None else None
    for number, stage in enumerate(stages):
        _require_measured(stage)
        whole = _StageStates(stage, found.over, several=several)
        place[stage.ranks] = number
        for state, seconds in whole.computed.items():
            states[state][stage.ranks] = seconds
        for some, part in whole.parts():
            ranks = stage.ranks[some]
            for state, seconds in part.states.items():
                states[state][ranks] = seconds
            communication[ranks], overlapped[ranks] = part.communication, part.overlapped
            if waited is not None and culprits is not None:
                waited += part.waited(culprits, ranks, some)
        if waited is not None:
            waited += _late_sends(stage, stages)
    together = None if waited is None else _together(waited, count)
    return StatesOverRanks(
        found.over, states, communication, overlapped, place, _pipelines(stages, steps), together
    )  # fmt: skip


def _require_measured(stage: PlayedStage) -> None:
    lanes = set()
    for _, op in stage.ops:
        if op.work.joins:
            continue
        if op.stream == "compute":
            lanes.add(op.lane)
            if not any(op.kind in kinds for kinds in COMPUTE_KINDS.values()):
                raise NotInArraysError(f"computation of kind {op.kind}")
        elif op.stream not in EXPOSED or op.kind == "checkpoint":
            raise NotInArraysError(f"{op.kind} on stream {op.stream}")
    if len(lanes) > 1:
        raise NotInArraysError("computation on several lanes")


class _StageStates:
    """A stage's spans as instants; ``computed`` is what its ranks compute, by state [rank]."""

    def __init__(self, stage: PlayedStage, total: float, *, several: bool) -> None:
        self._stage, self._several = stage, several
        spans = self._spans = SpanDepths()
        own = [(op, times) for (_, op), times in zip(stage.ops, stage.times, strict=True)]
        spans.add_row(_COMPUTING, [(start, end) for op, (_, start, end) in own if _computes(op)])
        self.computed = {
            state: _sum([end - start for op, (_, start, end) in own if _computes(op) and op.kind in kinds], stage)
            for state, kinds in COMPUTE_KINDS.items()
        }
        self._late: dict[int, int] = {}  # by number, where its wait begins among instants
        for number, (op, (ready, start, end)) in enumerate(own):
            if op.work.joins or _computes(op):
                continue
            spans.add(op.stream, start, end)
            if (ready < start).any():
                self._late[number] = spans.add("late" if op.stream in GROUPS_OF_A_STAGE else _ELSEWHERE, ready, start)
        for _, _, _, (_, start, end), _ in stage.received:
            spans.add("pp", start, end)
        if any(stage.ops[number][1].lane != MAIN for number in self._late):
            spans.add_row(_BUSY, [(start, end) for op, (_, start, end) in own if op.lane == MAIN])
        ends = [end for op, (_, _, end) in own if not op.work.joins]
        ends += [end for _, _, _, (_, _, end), _ in stage.received]
        self._done = np.max(np.stack(ends), axis=0) if ends else np.zeros(len(stage.ranks))
        self._borders = [0.0, float(self._done.max(initial=0.0)), total]

    def parts(self) -> Iterator[tuple[slice, _Part]]:
        """Some of the ranks after the other."""
        many = len(self._spans.columns) + len(self._borders)
        size = max(1, _TOGETHER // many)
        for first in range(0, len(self._stage.ranks), size):
            some = slice(first, min(first + size, len(self._stage.ranks)))
            yield some, self._part(some)

    def _part(self, some: slice) -> _Part:
        size = some.stop - some.start
        low = len(self._borders)
        columns = [np.full(size, border) for border in self._borders]
        columns += [each[some] for each in self._spans.columns]
        instants = Instants(columns)
        inside = self._spans.depths(instants, low)
        length = np.diff(instants.time, axis=1)
        nowhere = np.zeros(length.shape, dtype=bool)
        computing = inside.get(_COMPUTING, nowhere)
        free, communicating = ~computing, nowhere.copy()
        states = {}
        for axis in EXPOSED:
            if axis in inside:
                communicating |= inside[axis]
                states[f"exposed_{axis}"] = _seconds(length, inside[axis] & free)
                free &= ~inside[axis]
        waiting = free
        if self._several:
            begin, end = instants.time[:, :-1], instants.time[:, 1:]
            waiting = free & (
                (begin >= self._done[some, None]) & (end <= self._borders[1]) | inside.get("late", nowhere)
            )
        states["straggler_wait"] = _seconds(length, waiting)
        states["bubble"] = _seconds(length, free & ~waiting)
        busy = None
        if _BUSY in inside:
            busy = np.zeros(instants.time.shape)
            np.cumsum(length * inside[_BUSY], axis=1, out=busy[:, 1:])
        waits = _Waits(self._stage, {number: low + at for number, at in self._late.items()}, instants, busy)
        overlapped = _seconds(length, communicating & computing)
        return _Part(states, _seconds(length, communicating), overlapped, waits)


class _Waits(NamedTuple):
    """Ops that begin late, by number with the place of that among instants; ``busy`` are seconds of work on the main
    lane before each instant."""

    stage: PlayedStage
    late: dict[int, int]
    instants: Instants
    busy: Floats | None


class _Part(NamedTuple):
    """What became of some ranks of a stage."""

    states: dict[str, Floats]
    communication: Floats
    overlapped: Floats
    waits: _Waits

    def waited(self, culprits: dict[int, Ints], ranks: Ints, some: slice) -> Iterator[tuple[Ints, Ints, bool, Floats]]:
        """Of whose ops began late: rank, culprit, not in the pipeline, and seconds in which it did nothing else."""
        stage, late, instants, busy = self.waits
        rows = np.arange(len(ranks))
        for number, at in late.items():
            ready, start, _ = stage.times[number]
            idle = start[some] - ready[some]
            if stage.ops[number][1].lane != MAIN and busy is not None:
                begin, end = instants.places[:, at], instants.places[:, at + 1]
                idle = idle - (busy[rows, end] - busy[rows, begin])
            there = np.flatnonzero(idle > 0)
            yield ranks[there], culprits[stage.nodes[number]][some][there], False, idle[there]


def _computes(op: Op) -> bool:
    return op.stream == "compute" and not op.work.joins


def _sum(parts: Sequence[Floats], stage: PlayedStage) -> Floats:
    found = np.zeros(len(stage.ranks))
    for part in parts:
        found += part
    return found


def _seconds(length: Floats, where: Bools) -> Floats:
    """Seconds of the pieces where something is so [rank]."""
    return np.asarray(np.einsum("rp,rp->r", length, where))


def _culprits(found: RankTimes) -> dict[int, Ints] | None:
    """For nodes that met others who came last, of equals the first rank [place]; None where pairs met."""
    sweep, last = found.sweep, dict[int, Ints]()
    for nodes, groups in sweep.met():
        if groups is None:
            return None
        here = [
            np.where(found.times[node][0] == found.times[node][1], sweep.stage_ranks[sweep.name_of(node)[0]], np.inf)
            for node in nodes
        ]
        first = -groups.latest(-np.concatenate(here, axis=1))[0]
        ends = np.cumsum([each.shape[1] for each in here])[:-1]
        last.update(zip(nodes, (each.astype(np.int64) for each in np.split(first, ends)), strict=True))
    return last


def _late_sends(stage: PlayedStage, stages: Sequence[PlayedStage]) -> Iterator[tuple[Ints, Ints, bool, Floats]]:
    """What ranks wait for sends of other stages, from when they were free until these begin."""
    before: dict[int, int] = {}
    last: dict[str, int] = {}
    for number, (_, op) in enumerate(stage.ops):
        if op.lane in last:
            before[number] = last[op.lane]
        last[op.lane] = number
    for _, _, sender, (_, begin, _), number in stage.received:
        free = stage.times[before[number]][2] if number in before else 0.0
        gap = np.minimum(begin, stage.times[number][0]) - free
        there = np.flatnonzero(gap > 0)
        yield stage.ranks[there], stages[sender].ranks[there], True, gap[there]


def _together(waited: Sequence[tuple[Ints, Ints, bool, Floats]], count: int) -> tuple[Ints, Ints, Bools, Floats]:
    """Waits of a rank for the same one in one."""
    nothing = np.zeros(0, dtype=np.int64)
    names = np.concatenate([nothing, *((rank * count + other) * 2 + late for rank, other, late, _ in waited)])
    seconds = np.concatenate([np.zeros(0), *(each[3] for each in waited)])
    found, of = np.unique(names, return_inverse=True)
    pairs = found // 2
    took = np.bincount(of, seconds, minlength=len(found)).astype(np.float64)
    return pairs // count, pairs % count, np.asarray(found % 2 == 1), took


def _pipelines(stages: Sequence[PlayedStage], steps: int) -> list[float]:
    """From the first begin to the last end of a step's computation for microbatches, on any rank."""
    first, last = np.full(steps, np.inf), np.full(steps, -np.inf)
    for stage in stages:
        for (item, op), (_, start, end) in zip(stage.ops, stage.times, strict=True):
            if item.microbatch >= 0 and _computes(op):
                first[item.step] = min(first[item.step], float(start.min()))
                last[item.step] = max(last[item.step], float(end.max()))
    return [float(over - begun) if over > begun else 0.0 for begun, over in zip(first, last, strict=True)]
