"""The breakdown of a step over all ranks: means of each rank's (``metrics``), and the numbers that follow.

``bubble_fraction`` is the bubble's share of the step (bubble = bubble_fraction x step time), ``bubble_over_ideal`` what
it adds to the step without it.  Of a pipeline that does nothing else they are the formulas' (P-1)/(M+P-1) and (P-1)/M;
what the formula gives for the schedule stands beside them (``schedules.comparison``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.results.metrics import BREAKDOWN, RankTime, rank_time
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


def step_time(
    spans: Spans, weights: dict[int, int], *, steps: int
) -> StepTime:  # fmt: skip
    """Return the metrics of a timeline; ``weights[rank]`` is how many ranks a simulated rank represents."""
    require_known(spans)
    total = float(spans.end.max(initial=0.0))
    work = spans.stream != spans.code("storage")  # a write may go on when all else is over
    stages = np.unique(spans.stage).tolist()
    stage_ends = {stage: float(spans.end[work & (spans.stage == stage)].max()) for stage in stages}
    worked = float(spans.end[work].max(initial=0.0))
    of_rank = {rank: rank_time(spans.of_rank(rank), total, stage_ends, worked) for rank in weights}
    ranks = list(of_rank.values())
    share = np.array(list(weights.values()), dtype=np.float64) / sum(weights.values())
    breakdown = mean_breakdown(of_rank, weights, list(weights), steps=steps)
    communication = _mean([rank.communication for rank in ranks], share)
    overlapped = _mean([rank.overlapped for rank in ranks], share)
    pipeline = [_pipeline_seconds(spans, step) for step in range(steps)]
    return StepTime.of_run(
        total, steps, breakdown=breakdown, communication=communication, overlapped=overlapped, pipeline=pipeline,
        of_rank=of_rank,
    )  # fmt: skip


def mean_breakdown(
    of_rank: Mapping[int, RankTime], weights: Mapping[int, int], ranks: Sequence[int], *, steps: int
) -> dict[str, float]:
    """The breakdown of the mean of some ranks, in seconds per step; ``weights[rank]`` is how many each stands for."""
    share = np.array([weights[rank] for rank in ranks], dtype=np.float64)
    share /= share.sum()
    return {name: _mean([of_rank[rank].states[name] for rank in ranks], share) / steps for name in BREAKDOWN}


def _mean(values: Sequence[float], share: Floats) -> float:
    return float(np.dot(np.array(values), share))


def _pipeline_seconds(spans: Spans, step: int) -> float:
    """From the first start to the last end of a step's compute for microbatches, on any rank."""
    work = (spans.microbatch >= 0) & (spans.step == step) & (spans.stream == spans.code("compute"))
    return float(spans.end[work].max() - spans.start[work].min()) if work.any() else 0.0
