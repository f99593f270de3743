"""A played program, measured once a number is asked for: its timeline, and where the time went."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.errors import InputError
from simcluster.documents.argument_types import checked
from simcluster.engine.lower import Lowered
from simcluster.engine.record import Record
from simcluster.results.account import Account
from simcluster.results.alike_ranks import first_alike, part_of
from simcluster.results.calls import CallKey, calls_of
from simcluster.results.contention import FreeCalls, free_seconds, slowed_seconds
from simcluster.results.critical_path import CriticalPath, critical_path
from simcluster.results.flat import TimedNumbers
from simcluster.results.memory_over_ranks import PeaksOverRanks
from simcluster.results.memory_timeline import MemoryPeak, MemoryTimeline, memory_timeline
from simcluster.results.over_ranks import NotInArraysError, StatesOverRanks, states_over_ranks
from simcluster.results.overlap import Overlaps, overlaps
from simcluster.results.rank_spans import spans_of_rank
from simcluster.results.step_time import StepTime, mean_breakdown, step_time
from simcluster.results.timeline import PlacedSpans, Spans, expand
from simcluster.results.traffic import AxisTraffic, axis_traffic
from simcluster.results.waits import Wait, waits

if TYPE_CHECKING:
    import pandas as pd

_WORTH = 2
"""So many times fewer ranks that differ, or all are told."""


@dataclass(frozen=True, kw_only=True)
class Run(TimedNumbers):
    """A played program: its timeline, and where the time went.

    ``ranks`` are this job's among the program's, where several jobs were played together; its own
    numbering begins at 0.
    """

    lowered: Lowered
    record: Record
    steps: int
    ranks: range

    @cached_property
    def placed_spans(self) -> PlacedSpans:
        """The spans of all simulated ranks of the program by reference; let go of once they are told in columns."""
        group_name = self.lowered.communicators.group_name
        return expand(self.lowered.told, self.record.columns, group_name, self.record.slowed)

    @cached_property
    def spans(self) -> Spans:
        """The spans of the simulated ranks, as columns."""
        placed = self.placed_spans
        self.__dict__.pop("placed_spans")  # as large as half of the columns
        return placed.spans().only(self.ranks)

    @cached_property
    def timeline(self) -> pd.DataFrame:
        """One row per span of every simulated rank; ``timeline_of`` gives any other rank's."""
        return self.spans.frame()

    @checked
    def timeline_of(self, rank: int) -> pd.DataFrame:
        """The timeline of any rank: that of the rank which was simulated for it, under its own name and groups."""
        found = self.record.over_ranks
        if found is not None and "spans" not in self.__dict__:
            return spans_of_rank(found, self._own(rank), self.lowered.communicators.group_name).frame()
        own = self.spans.of_rank(self.simulated_for(rank))
        words, group_name = list(own.words), self.lowered.communicators.group_name
        group = np.arange(len(words))
        for code in np.flatnonzero(np.bincount(own.group)).tolist():
            group[code] = len(words)
            words.append(group_name(own.words[code].rstrip("0123456789"), self.ranks.start + rank))
        return replace(own, words=tuple(words), rank=np.full(len(own), rank), group=group[own.group]).frame()

    def simulated_for(self, rank: int) -> int:
        """The simulated rank that stands for any rank of the job."""
        classes, first = self.lowered.classes, self.ranks.start
        return classes.rank_representatives[classes.of_rank[first + self._own(rank)]] - first

    def _own(self, rank: int) -> int:
        """The rank; InputError for one that the job does not have."""
        if not (isinstance(rank, Integral) and 0 <= rank < len(self.ranks)):
            raise InputError(
                f"rank: there is no rank {rank!r}; this job has ranks 0 to {len(self.ranks) - 1}: name one of those"
            )
        return rank

    @cached_property
    def weights(self) -> dict[int, int]:
        """How many ranks every simulated rank stands for."""
        if self.record.over_ranks is not None:
            return dict.fromkeys(self.ranks, 1)
        classes = self.lowered.classes
        counts = zip(classes.rank_representatives, classes.multiplicity(), strict=True)
        return {rank - self.ranks.start: count for rank, count in counts if rank in self.ranks}

    @cached_property
    def _over_ranks(self) -> StatesOverRanks | None:
        """Where the time of ranks went that were played in arrays; None for what only spans tell."""
        found = self.record.over_ranks
        if found is None:
            return None
        try:
            return states_over_ranks(found, self.steps)
        except NotInArraysError:
            return None

    @cached_property
    def times(self) -> StepTime:
        """Where the time went."""
        if self._over_ranks is not None:
            return self._over_ranks.step_time(self.steps)
        return step_time(self._few.spans, self.weights, steps=self.steps, alike=self._alike)

    @cached_property
    def breakdown_of_stages(self) -> list[dict[str, float]]:
        """The breakdown of the mean rank of every stage; each sums to the step time."""
        over = self._over_ranks
        if over is not None:
            numbers = range(int(over.stage.max()) + 1)
            return [over.breakdown(np.flatnonzero(over.stage == number), self.steps) for number in numbers]
        stages = self._stages
        ranks = [[rank for rank in self.weights if stages[rank] == stage] for stage in range(max(stages.values()) + 1)]
        return [mean_breakdown(self.times.of_rank, self.weights, chosen, steps=self.steps) for chosen in ranks]

    @cached_property
    def step_time(self) -> float:
        """Seconds per step."""
        if self.record.over is not None:
            return self.record.over / self.steps
        ranks = np.array(self.lowered.played.lane_rank, dtype=np.int64)
        own = (ranks >= self.ranks.start) & (ranks < self.ranks.stop)
        return float(self.record.lanes[own].max()) / self.steps

    @cached_property
    def overlap(self) -> Overlaps:
        """Communication that is hidden, exposed, or waiting for a peer: per collective, per axis and per rank."""
        few = self._few
        free = free_seconds(few.lowered, few.spans, few._calls, self._free_calls)
        return overlaps(few.spans, self.weights, free, steps=self.steps, alike=self._alike)

    @cached_property
    def traffic(self) -> list[AxisTraffic]:
        """Bytes that the mean rank sends in a step: in all, per axis, per collective."""
        return axis_traffic(
            self.lowered.communicators, self.spans, self._calls, self.weights, self.overlap, steps=self.steps,
            ranks=self.ranks,
        )  # fmt: skip

    @cached_property
    def _calls(self) -> tuple[Ints, list[CallKey]]:
        """Of every span its place among the different calls, and those."""
        return calls_of(self.lowered, self.spans, self.ranks.start)

    @cached_property
    def _alike(self) -> dict[int, int]:
        """For every simulated rank one that went through the same, the first of them."""
        return first_alike(self.lowered, self.record, self.weights, self._free_calls)

    @cached_property
    def _free_calls(self) -> FreeCalls:
        """What calls take on free links, each found once."""
        return FreeCalls(self.lowered)

    @property
    def _few(self) -> Run:
        """What the ranks played that differ: enough for what is told of ranks one by one."""
        return self if self._fewer is None else self._fewer  # it keeps not itself: that would be a cycle with all of it

    @cached_property
    def _fewer(self) -> Run | None:
        """The same, where they are worth a run of their own."""
        few = dict.fromkeys(self._alike.values())
        if "spans" in self.__dict__ or _WORTH * len(few) > len(self.weights):
            return None
        lowered, record = part_of(self.lowered, self.record, few)
        return Run(lowered=lowered, record=record, steps=self.steps, ranks=self.ranks)

    @cached_property
    def account(self) -> Account:
        """Where the step went, by cause and by stage: what differences from other runs are made of."""
        few, alike = self._few, None if self._few is self else self._alike
        slowed = slowed_seconds(few.lowered.told, few.record, self.weights, self.ranks.start, alike)
        slowed = {kind: seconds / self.steps for kind, seconds in slowed.items()}
        return Account.of(self.times.breakdown, self.breakdown_of_stages, slowed, self.overlap.mean)

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The chain of ops that decides how long the job takes."""
        return critical_path(self.lowered.program, self.record, self.spans, self.ranks, steps=self.steps)

    @cached_property
    def memory_timeline(self) -> MemoryTimeline:
        """What the simulated ranks allocate and free, over time; without model state, which stays."""
        found = memory_timeline(self.lowered.told, self.record.columns, self.record.slowed)
        return found.only(self.ranks)

    @cached_property
    def _peaks(self) -> PeaksOverRanks | None:
        """The peaks of ranks that were played in arrays."""
        return None if self.record.over_ranks is None else PeaksOverRanks(self.record.over_ranks)

    @cached_property
    def peaks(self) -> list[MemoryPeak]:
        """Of simulated ranks those at whose peaks other bytes are held than at all before them, or more ranks."""
        if self._peaks is not None:
            return self._peaks.different()
        return [self.peak_of(rank) for rank in sorted(self.weights)]

    def peak_of(self, rank: int) -> MemoryPeak:
        """When a simulated rank holds most, without model state; InputError for a rank that is not simulated."""
        if rank not in self.weights:
            some = ", ".join(map(str, list(self.weights)[:8]))
            raise InputError(f"rank: {rank!r} is not simulated; use one that is ({some}), or simulated_for(rank)")
        if self._peaks is not None:
            return self._peaks.peak(rank)
        few = None if "memory_timeline" in self.__dict__ else self._fewer
        if few is None:
            return self.memory_timeline.peak(rank, self._stages[rank])
        alike = self._alike[rank]
        return replace(few.memory_timeline.peak(alike, self._stages[alike]), rank=rank)

    @cached_property
    def _stages(self) -> dict[int, int]:
        """The job's stage of every simulated rank."""
        if self._over_ranks is not None:
            return dict(enumerate(self._over_ranks.stage.tolist()))
        program, first = self.lowered.played, self.ranks.start
        pairs = zip(program.lane_rank, program.lane_stage, strict=True)
        stages = {rank - first: stage for rank, stage in pairs if rank in self.ranks}
        lowest = min(stages.values())
        return {rank: stage - lowest for rank, stage in stages.items()}

    @cached_property
    def waits(self) -> list[Wait]:
        """Who waited for whom, longest first."""
        if self._over_ranks is not None and self._over_ranks.waited is not None:
            return self._over_ranks.waits
        first = self.ranks.start
        own = [wait for wait in waits(self.lowered.program, self.record) if wait.rank in self.ranks]
        return [replace(wait, rank=wait.rank - first, culprit=wait.culprit - first) for wait in own]
