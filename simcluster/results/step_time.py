"""The breakdown of a step over all ranks: means of each rank's (``metrics``), and the numbers that follow.

``bubble_fraction`` is the bubble's share of the step (bubble = bubble_fraction x step time), ``bubble_over_ideal`` what
it adds to the step without it.  Of a pipeline that does nothing else they are the formulas' (P-1)/(M+P-1) and (P-1)/M;
what the formula gives for the schedule stands beside them (``schedules.comparison``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.results.metrics import BREAKDOWN, RankTime, rank_time
from simcluster.results.span_states import StateCodes
from simcluster.results.streams import require_known
from simcluster.results.timeline import Spans


@dataclass(frozen=True)
class StepTime:
    """A step on all ranks: means weighted by how many ranks each simulated one stands for, in seconds per step.

    ``bubble_fraction`` is bubble / step, ``bubble_over_ideal`` bubble / (step - bubble).  ``pipeline_seconds`` is from
    the first start to the last end of the microbatches' compute.  ``of_rank`` are the simulated ranks, each over the
    whole run.
    """

    step_seconds: float
    breakdown: dict[str, float]
    communication: float
    overlap_fraction: float
    bubble_fraction: float
    bubble_over_ideal: float
    pipeline_seconds: float
    of_rank: Mapping[int, RankTime] = field(compare=False, repr=False)

    @classmethod
    def of_run(
        cls, total: float, steps: int, *, breakdown: dict[str, float], communication: float, overlapped: float,
        pipeline: Iterable[float], of_rank: Mapping[int, RankTime],
    ) -> Self:  # fmt: skip
        """Of a run of so many steps: seconds of all of them together, but a breakdown in seconds per step."""
        seconds, bubble = total / steps, breakdown["bubble"]
        return cls(
            step_seconds=seconds,
            breakdown=breakdown,
            communication=communication / steps,
            overlap_fraction=overlapped / communication if communication else 0.0,
            bubble_fraction=bubble / seconds if seconds else 0.0,
            bubble_over_ideal=bubble / (seconds - bubble) if seconds > bubble else 0.0,
            pipeline_seconds=sum(pipeline) / steps,
            of_rank=of_rank,
        )


class RunEnds(NamedTuple):
    """When all of a run is over (s), when each stage's work is and when all work is: a write to storage is none."""

    total: float
    of_stage: Mapping[int, float]
    worked: float

    @classmethod
    def of_spans(cls, spans: Spans) -> Self:
        """Return the ends of all spans of a run."""
        work = spans.stream != spans.code("storage")  # a write may go on when all else is over
        stages = np.unique(spans.stage).tolist()
        of_stage = {stage: float(spans.end[work & (spans.stage == stage)].max()) for stage in stages}
        return cls(float(spans.end.max(initial=0.0)), of_stage, float(spans.end[work].max(initial=0.0)))


class PartTimes(NamedTuple):
    """The times of some ranks of a run, and per step when computation of microbatches begins and ends on them."""

    of_rank: dict[int, RankTime]
    pipeline_begin: Floats
    pipeline_end: Floats


def part_times(spans: Spans, ranks: Iterable[int], ends: RunEnds, *, steps: int) -> PartTimes:
    """Return the times of these ranks, whose spans are among ``spans``, in a run that ends then."""
    require_known(spans)
    codes = StateCodes(spans.words)
    of_rank = {rank: rank_time(spans.of_rank(rank), *ends, codes) for rank in ranks}
    work = np.flatnonzero((spans.microbatch >= 0) & (spans.stream == codes.compute))
    begin, end = np.full(steps, np.inf), np.full(steps, -np.inf)
    np.minimum.at(begin, spans.step[work], spans.start[work])
    np.maximum.at(end, spans.step[work], spans.end[work])
    return PartTimes(of_rank, begin, end)


def step_time(spans: Spans, weights: dict[int, int], *, steps: int) -> StepTime:
    """Return the metrics of a timeline; ``weights[rank]`` is how many ranks a simulated rank represents."""
    ends = RunEnds.of_spans(spans)
    return step_time_of_parts([part_times(spans, weights, ends, steps=steps)], weights, ends.total, steps=steps)


def step_time_of_parts(
    parts: Sequence[PartTimes], weights: dict[int, int], total: float, *, steps: int
) -> StepTime:  # fmt: skip
    """Return the metrics of a run from those of all its ranks; ``weights[rank]`` is how many ranks a simulated rank
    represents."""
    found = {rank: times for part in parts for rank, times in part.of_rank.items()}
    of_rank = {rank: found[rank] for rank in weights}
    share = np.array(list(weights.values()), dtype=np.float64) / sum(weights.values())
    begin, end = (np.array(columns) for columns in zip(*(part[1:] for part in parts), strict=True))
    seconds = end.max(axis=0) - begin.min(axis=0)
    return StepTime.of_run(
        total,
        steps,
        breakdown=mean_breakdown(of_rank, weights, list(weights), steps=steps),
        communication=_mean([rank.communication for rank in of_rank.values()], share),
        overlapped=_mean([rank.overlapped for rank in of_rank.values()], share),
        pipeline=[each if each >= 0 else 0.0 for each in seconds.tolist()],
        of_rank=of_rank,
    )


def mean_breakdown(
    of_rank: Mapping[int, RankTime], weights: Mapping[int, int], ranks: Sequence[int], *, steps: int
) -> dict[str, float]:
    """The breakdown of the mean of some ranks, in seconds per step; ``weights[rank]`` is how many each stands for."""
    share = np.array([weights[rank] for rank in ranks], dtype=np.float64)
    share /= share.sum()
    return {name: _mean([of_rank[rank].states[name] for rank in ranks], share) / steps for name in BREAKDOWN}


def _mean(values: Sequence[float], share: Floats) -> float:
    return float(np.dot(np.array(values), share))
