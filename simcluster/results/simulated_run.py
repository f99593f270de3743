"""A simulated run, and measurements that are computed on first use: timeline, breakdown, overlap, memory, waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.documents.argument_types import check_arguments
from simcluster.reference.step_record import RankRecord, StepRecord
from simcluster.results.contention import SpanCalls, UncontendedDurations, identify_calls, interference_seconds
from simcluster.results.critical_path import CriticalPath, critical_path
from simcluster.results.memory_timeline import MemoryPeak, MemoryTimeline, memory_peaks, memory_timeline
from simcluster.results.overlap import Overlaps, measure_overlaps
from simcluster.results.step_account import StepAccount
from simcluster.results.step_metrics import RunMetrics
from simcluster.results.step_time import StepBreakdown, mean_breakdown, measure_step_time
from simcluster.results.timeline import COLUMNS, Spans, make_spans
from simcluster.results.traffic import AxisTraffic, axis_traffic
from simcluster.results.waits import Wait, list_waits
from simcluster.symmetry.folding import FoldedJob

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Run(RunMetrics):
    """A simulated run with the recorded times of its ops, and all measurements derived from these times.

    ``ranks`` are this job's ranks in the record, where several jobs were simulated together; its numbering begins at 0.
    ``capacity`` is B/s per class of links; ``hop_by_hop``: collectives were not simulated as flows.
    """

    record: StepRecord = field(repr=False)
    folding: FoldedJob = field(repr=False)
    capacity: Sequence[float] = field(repr=False)
    hop_by_hop: bool
    steps: int
    ranks: range

    @cached_property
    def spans(self) -> Spans:
        """Spans of the simulated ranks, stored as columns; a span is the execution of one op on one rank."""
        record = self.record
        return make_spans(record.ops, record.times, self.folding.communicators.group_name).select_job(self.ranks)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """DataFrame with a row for each span of the simulated ranks; for other ranks, call ``timeline_of``."""
        return self.spans.to_frame()

    @check_arguments
    def timeline_of(self, rank: int) -> pd.DataFrame:
        """Return the timeline of any rank of the job, copied from the simulated rank that represents it."""
        return spans_of_ranks(self, [rank]).to_frame()

    def representative_of(self, rank: int) -> int:
        """Return the simulated rank that represents any rank of the job."""
        if not (isinstance(rank, Integral) and 0 <= rank < len(self.ranks)):
            raise InputError(
                f"rank: there is no rank {rank!r}; this job has ranks 0 to {len(self.ranks) - 1}: use one of those"
            )
        classes, first = self.folding.classes, self.ranks.start
        return classes.rank_representatives[classes.of_rank[first + rank]] - first

    @cached_property
    def weights(self) -> dict[int, int]:
        """How many ranks of the job each simulated rank represents."""
        classes = self.folding.classes
        counts = zip(classes.rank_representatives, classes.count_ranks_per_class(), strict=True)
        return {rank - self.ranks.start: count for rank, count in counts if rank in self.ranks}

    @cached_property
    def times(self) -> StepBreakdown:
        """Time breakdown of the step and the metrics that follow from it."""
        return measure_step_time(self._rank_records, self.weights, steps=self.steps)

    def _rank_records(self) -> Iterator[RankRecord]:
        first, stages = self.ranks.start, self._stage_of_rank
        for rank, _, ops, times in self.record.iterate_ranks():
            if rank in self.ranks:
                yield RankRecord(rank - first, stages[rank - first], ops, times)

    @cached_property
    def stage_breakdowns(self) -> list[dict[str, float]]:
        """Time breakdown of each pipeline stage, averaged over its ranks; a stage's entries sum to the step time."""
        stages = self._stage_of_rank
        ranks = [[rank for rank in self.weights if stages[rank] == stage] for stage in range(max(stages.values()) + 1)]
        return [mean_breakdown(self.times.of_rank, self.weights, chosen, steps=self.steps) for chosen in ranks]

    @cached_property
    def step_time(self) -> float:
        """Step time in seconds."""
        ranks = self.record.lane_rank
        own = (ranks >= self.ranks.start) & (ranks < self.ranks.stop)
        return float(self.record.lane_end[own].max()) / self.steps

    @cached_property
    def overlap(self) -> Overlaps:
        """How much communication is overlapped, exposed or waiting: by collective, by parallel axis and by rank."""
        return measure_overlaps(self.spans, self.weights, self.uncontended_seconds, steps=self.steps)

    @cached_property
    def traffic(self) -> list[AxisTraffic]:
        """Bytes that a rank sends per step, averaged over ranks: in total, by parallel axis, and by collective."""
        return axis_traffic(
            self.folding.communicators, self.spans, self.span_calls, self.weights, self.overlap, steps=self.steps
        )

    @cached_property
    def span_calls(self) -> SpanCalls:
        """Each span's position in the list of distinct communication calls, and that list."""
        return identify_calls(self.folding.communicators, self.record.ops, self.spans, self.ranks.start)

    @cached_property
    def uncontended_durations(self) -> UncontendedDurations:
        """Cache of how long each communication call would take if nothing else used its links."""
        return UncontendedDurations(self.folding, self.capacity)

    @cached_property
    def uncontended_seconds(self) -> Floats:
        """Duration (s) that every span would have if no other traffic used its links."""
        if self.hop_by_hop:
            return self.spans.end - self.spans.start
        return self.uncontended_durations.span_seconds(self.spans, self.record.ops, self.span_calls)

    @cached_property
    def account(self) -> StepAccount:
        """Step time by cause and by pipeline stage, from which differences between runs are computed."""
        slowed = interference_seconds(self.record.ops, self.record.times, self.weights, self.ranks.start)
        slowed = {kind: seconds / self.steps for kind, seconds in slowed.items()}
        return StepAccount.from_measurements(self.times.breakdown, self.stage_breakdowns, slowed, self.overlap.mean)

    @cached_property
    def critical_path(self) -> CriticalPath:
        """Critical path: the chain of ops that determines the job's duration."""
        return critical_path(self.record.ops, self.record.times, self.spans, self.ranks, steps=self.steps)

    @cached_property
    def memory_timeline(self) -> MemoryTimeline:
        """Allocations and frees by the simulated ranks over time, excluding model state."""
        return memory_timeline(self._rank_records())

    @cached_property
    def peaks(self) -> list[MemoryPeak]:
        """Memory peak of every simulated rank."""
        return memory_peaks(self._rank_records())

    def memory_peak_of(self, rank: int) -> MemoryPeak:
        """Return the memory peak of a simulated rank, excluding model state; raise InputError for other ranks."""
        if rank not in self.weights:
            some = ", ".join(map(str, list(self.weights)[:8]))
            raise InputError(f"rank: {rank!r} is not simulated; use one that is ({some}), or representative_of(rank)")
        return next(peak for peak in self.peaks if peak.rank == rank)

    @cached_property
    def _stage_of_rank(self) -> dict[int, int]:
        record, first = self.record, self.ranks.start
        pairs = zip(record.lane_rank.tolist(), record.lane_stage.tolist(), strict=True)
        stages = {rank - first: stage for rank, stage in pairs if rank in self.ranks}
        lowest = min(stages.values())
        return {rank: stage - lowest for rank, stage in stages.items()}

    @cached_property
    def waits(self) -> list[Wait]:
        """Waits of one rank for another, longest first."""
        first = self.ranks.start
        found = list_waits(self._rank_records())
        return [replace(wait, culprit=wait.culprit - first) for wait in found] if first else found


def spans_of_ranks(run: Run, ranks: Sequence[int]) -> Spans:
    """Return the spans of any ranks of the job, copied from the simulated ranks that represent them."""
    words = {word: code for code, word in enumerate(run.spans.words)}
    parts = []
    for rank in ranks:
        spans = run.spans.of_rank(run.representative_of(rank))
        codes = np.arange(len(run.spans.words))
        for group in np.unique(spans.group).tolist():
            axis = spans.words[group].rstrip("0123456789")
            own = run.folding.communicators.group_name(axis, run.ranks.start + rank) if axis else ""
            codes[group] = words.setdefault(own, len(words))
        parts.append(replace(spans, rank=np.full(len(spans), rank), group=codes[spans.group]))
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("op", *COLUMNS)}
    return Spans(tuple(words), **columns)
