"""Time breakdown of a step over all ranks, and the metrics that follow from it.

``bubble_fraction`` is the bubble's share of the step (bubble = bubble_fraction x step time), ``bubble_over_ideal`` what
it adds to the step without it. For a pipeline alone these are the formulas (P-1)/(M+P-1) and (P-1)/M; the schedule's
formula is in ``schedules.comparison``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.reference.step_record import RankOpTable, RankRecord
from simcluster.results.rank_states import RankStates
from simcluster.results.rank_time import BREAKDOWN, RankBreakdown
from simcluster.results.span_states import SpanBits, make_span_bits


@dataclass(frozen=True)
class StepBreakdown:
    """How long the ranks spend on each activity in a step, in seconds averaged over all ranks.

    Means are weighted by how many ranks each simulated one represents. ``bubble_fraction`` is bubble / step,
    ``bubble_over_ideal`` bubble / (step - bubble). ``pipeline_seconds`` is from the first start to the last end of the
    microbatches' compute. ``of_rank`` are the simulated ranks, each over the whole run.
    """

    step_seconds: float
    breakdown: dict[str, float]
    communication: float
    overlap_fraction: float
    bubble_fraction: float
    bubble_over_ideal: float
    pipeline_seconds: float
    of_rank: Mapping[int, RankBreakdown] = field(compare=False, repr=False)


def measure_step_time(
    ranks: Callable[[], Iterable[RankRecord]], weights: dict[int, int], *, steps: int
) -> StepBreakdown:
    """Measure a run's step time and its breakdown by activity, averaged over all ranks."""
    known: dict[RankOpTable, tuple[SpanBits, RankStates]] = {}
    states = []
    begins, ends = np.full(steps, np.inf), np.full(steps, -np.inf)  # of the microbatches' computation
    total = worked = 0.0
    stage_ends: dict[int, float] = {}
    for each in ranks():
        if each.ops not in known:
            spans = make_span_bits(each.ops)
            known[each.ops] = spans, RankStates(spans)
        spans, own = known[each.ops]
        states.append(own)
        computes = spans.pipeline >= 0
        np.minimum.at(begins, spans.pipeline[computes], each.times.start[spans.source[computes]])
        np.maximum.at(ends, spans.pipeline[computes], each.times.end[spans.source[computes]])
        end, done = own.ends(each.times.end)
        total, worked = max(total, end), max(worked, done)
        if done >= 0:
            stage_ends[each.stage] = max(stage_ends.get(each.stage, 0.0), done)
    of_rank: dict[int, RankBreakdown] = {}
    for each, own in zip(ranks(), states, strict=True):
        seconds = own.measure(*each.times[:3], total, stage_ends.get(each.stage, 0.0), worked, len(stage_ends) == 1)
        of_rank[each.rank] = RankBreakdown.from_seconds(seconds)
    share = np.array(list(weights.values()), dtype=np.float64) / sum(weights.values())
    of_rank = {rank: of_rank[rank] for rank in weights}
    breakdown = mean_breakdown(of_rank, weights, list(weights), steps=steps)
    communication = _weighted_mean([rank.communication for rank in of_rank.values()], share)
    overlapped = _weighted_mean([rank.overlapped for rank in of_rank.values()], share)
    pipeline = [each if each >= 0 else 0.0 for each in (ends - begins).tolist()]
    step_seconds = total / steps
    bubble = breakdown["bubble"]
    return StepBreakdown(
        step_seconds=step_seconds,
        breakdown=breakdown,
        communication=communication / steps,
        overlap_fraction=overlapped / communication if communication else 0.0,
        bubble_fraction=bubble / step_seconds if step_seconds else 0.0,
        bubble_over_ideal=bubble / (step_seconds - bubble) if step_seconds > bubble else 0.0,
        pipeline_seconds=sum(pipeline) / steps,
        of_rank=of_rank,
    )


def mean_breakdown(
    of_rank: Mapping[int, RankBreakdown], weights: Mapping[int, int], ranks: Sequence[int], *, steps: int
) -> dict[str, float]:
    """Return the breakdown (s per step) averaged over the job's ranks that these simulated ranks represent."""
    share = np.array([weights[rank] for rank in ranks], dtype=np.float64)
    share /= share.sum()
    return {name: _weighted_mean([of_rank[rank].states[name] for rank in ranks], share) / steps for name in BREAKDOWN}


def _weighted_mean(values: Sequence[float], share: Floats) -> float:
    return float(np.dot(np.array(values), share))
