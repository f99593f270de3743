"""A simulated run and its measurements, each computed on first use: timeline, breakdown, overlap, memory, waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.errors import InputError
from simcluster.documents.argument_types import checked
from simcluster.reference.record import RankRecord, Record
from simcluster.results.account import Account
from simcluster.results.contention import CallKey, FreeCalls, call_ids, interference_seconds
from simcluster.results.critical_path import CriticalPath, critical_path
from simcluster.results.memory_timeline import MemoryPeak, MemoryTimeline, memory_peaks, memory_timeline
from simcluster.results.numbers import TimedNumbers
from simcluster.results.overlap import Overlaps, measure_overlaps
from simcluster.results.step_time import StepTime, mean_breakdown, measure_step_time
from simcluster.results.timeline import Spans, make_spans
from simcluster.results.traffic import AxisTraffic, axis_traffic
from simcluster.results.waits import Wait, list_waits
from simcluster.symmetry.folding import Folding

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Run(TimedNumbers):
    """A simulated run with its timeline and measurements.

    ``ranks`` are this job's ranks in the record, where several jobs were simulated together; its numbering begins at 0.
    ``capacity`` is B/s per class of links; ``hop_by_hop``: collectives were not simulated as flows.
    """

    record: Record = field(repr=False)
    folding: Folding = field(repr=False)
    capacity: Sequence[float] = field(repr=False)
    hop_by_hop: bool
    steps: int
    ranks: range

    @cached_property
    def spans(self) -> Spans:
        """Spans of the simulated ranks, as columns."""
        record = self.record
        return make_spans(record.ops, record.times, self.folding.communicators.group_name).only(self.ranks)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """DataFrame with one row per span of every simulated rank; ``timeline_of`` returns that of any other rank."""
        return self.spans.frame()

    @checked
    def timeline_of(self, rank: int) -> pd.DataFrame:
        """Return the timeline of any rank, copied from the simulated rank that represents it."""
        own = self.spans.of_rank(self.simulated_for(rank))
        words, group_name = list(own.words), self.folding.communicators.group_name
        group = np.arange(len(words))
        for code in np.flatnonzero(np.bincount(own.group)).tolist():
            group[code] = len(words)
            words.append(group_name(own.words[code].rstrip("0123456789"), self.ranks.start + rank))
        return replace(own, words=tuple(words), rank=np.full(len(own), rank), group=group[own.group]).frame()

    def simulated_for(self, rank: int) -> int:
        """Return the simulated rank that represents any rank of the job."""
        classes, first = self.folding.classes, self.ranks.start
        return classes.rank_representatives[classes.of_rank[first + self._check_rank(rank)]] - first

    def _check_rank(self, rank: int) -> int:
        if not (isinstance(rank, Integral) and 0 <= rank < len(self.ranks)):
            raise InputError(
                f"rank: there is no rank {rank!r}; this job has ranks 0 to {len(self.ranks) - 1}: use one of those"
            )
        return rank

    @cached_property
    def weights(self) -> dict[int, int]:
        """Number of ranks that every simulated rank represents."""
        classes = self.folding.classes
        counts = zip(classes.rank_representatives, classes.multiplicity(), strict=True)
        return {rank - self.ranks.start: count for rank, count in counts if rank in self.ranks}

    @cached_property
    def times(self) -> StepTime:
        """Time breakdown of the step and the metrics that follow from it."""
        return measure_step_time(self._rank_records, self.weights, steps=self.steps)

    def _rank_records(self) -> Iterator[RankRecord]:
        first, stages = self.ranks.start, self._stage_of_rank
        for rank, _, ops, times in self.record.ranks():
            if rank in self.ranks:
                yield RankRecord(rank - first, stages[rank - first], ops, times)

    @cached_property
    def breakdown_of_stages(self) -> list[dict[str, float]]:
        """Time breakdown of the mean rank of each pipeline stage; each adds up to the step time."""
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
        """Overlapped, exposed and waiting communication per collective, per axis and per rank."""
        return measure_overlaps(self.spans, self.weights, self.free_seconds, steps=self.steps)

    @cached_property
    def traffic(self) -> list[AxisTraffic]:
        """Bytes that the mean rank sends per step: in total, per axis, per collective."""
        return axis_traffic(
            self.folding.communicators, self.spans, self.called, self.weights, self.overlap, steps=self.steps
        )

    @cached_property
    def called(self) -> tuple[Ints, list[CallKey]]:
        """Index of every span's communication call, and the distinct calls (``call_ids``)."""
        return call_ids(self.folding.communicators, self.record.ops, self.spans, self.ranks.start)

    @cached_property
    def free_calls(self) -> FreeCalls:
        """Cache of the seconds that communication calls would take on free links."""
        return FreeCalls(self.folding, self.capacity)

    @cached_property
    def free_seconds(self) -> Floats:
        """Seconds of every span on free links; its duration if that was given or simulated hop by hop."""
        if self.hop_by_hop:
            return self.spans.end - self.spans.start
        return self.free_calls.of_spans(self.spans, self.record.ops, self.called)

    @cached_property
    def account(self) -> Account:
        """Breakdown of the step by cause and by stage, from which differences to other runs are computed."""
        slowed = interference_seconds(self.record.ops, self.record.times, self.weights, self.ranks.start)
        slowed = {kind: seconds / self.steps for kind, seconds in slowed.items()}
        return Account.of(self.times.breakdown, self.breakdown_of_stages, slowed, self.overlap.mean)

    @cached_property
    def critical_path(self) -> CriticalPath:
        """Chain of ops that decides how long the job takes."""
        return critical_path(self.record.ops, self.record.times, self.spans, self.ranks, steps=self.steps)

    @cached_property
    def memory_timeline(self) -> MemoryTimeline:
        """Allocations and frees of the simulated ranks over time, without model state."""
        return memory_timeline(self._rank_records())

    @cached_property
    def peaks(self) -> list[MemoryPeak]:
        """Memory peak of every simulated rank."""
        return memory_peaks(self._rank_records())

    def peak_of(self, rank: int) -> MemoryPeak:
        """Return the memory peak of a simulated rank, without model state; raise InputError for other ranks."""
        if rank not in self.weights:
            some = ", ".join(map(str, list(self.weights)[:8]))
            raise InputError(f"rank: {rank!r} is not simulated; use one that is ({some}), or simulated_for(rank)")
        return self.memory_timeline.peak(rank, self._stage_of_rank[rank])

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
