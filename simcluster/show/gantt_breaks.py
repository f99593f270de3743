"""Where a Gantt picture of many microbatches may leave some out: the steady phase of a pipeline, in which every pass
comes again after a period.

Pure: reads a timeline, draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from simcluster.base.arrays import Bools, Floats

Window = tuple[float, float]

_PASSES = ("forward", "backward", "input_grad")
_LONGEST = 64  # microbatches of a period that is looked for
_UNEVEN = 0.15  # of a microbatch's time: passes that come so much earlier or later are still in step
_KEPT = 3  # microbatches, at least, that stay on either side of a break
_FEWEST = 16  # microbatches that a break stands for
_WORTH = 0.5  # of the time: a break that leaves out less is not drawn


@dataclass(frozen=True, slots=True)
class Steady:
    """A stretch of time in which every pass of every row comes again after `period` seconds; `begins` is when
    microbatches enter it on the first row, each of which stands for `each` microbatches of the job."""

    start: float
    end: float
    period: float
    per_period: int
    begins: Floats
    each: float

    @property
    def inner(self) -> Window:
        """Without some whole periods at both ends, which show what is in it."""
        kept = self.period * max(1, -(-_KEPT // self.per_period))
        return self.start + kept, self.end - kept

    def whole_periods(self) -> Window:
        """The inner part from the beginning of a pass to that of one some periods later."""
        start, end = self.inner
        inside = self.begins[(self.begins >= start) & (self.begins <= end)]
        last = (len(inside) - 1) // self.per_period * self.per_period
        return (float(inside[0]), float(inside[last])) if len(inside) else (start, start)

    def microbatches(self, cut: Window) -> int:
        """How many begin in a part of it."""
        inside = (self.begins >= cut[0] - 1e-6 * self.period) & (self.begins < cut[1] - 1e-6 * self.period)
        return round(float(inside.sum()) * self.each)


def steady_of(timeline: pd.DataFrame, ranks: Sequence[int], origin: float = 0.0) -> Steady | None:
    """The steady phase of one step of the job, as these ranks are in it, in seconds behind `origin`; None where there
    is none to speak of."""
    series = [begins - origin for begins in _passes(timeline, ranks)]
    if not series:
        return None
    shortest = min(len(begins) for begins in series)
    for shift in range(1, min(_LONGEST, shortest // 4) + 1):
        period = float(np.median([_typical(begins, shift) for begins in series]))
        ends = [_steadiest(begins, shift, period) for begins in series]
        start, end = max(first for first, _ in ends), min(last for _, last in ends)
        if end - start >= 4 * period:
            count = int(timeline["microbatch"].max()) + 1
            return Steady(start, end, period, shift, series[0], count / len(series[0]))
    return None


def cut_of(steady: Sequence[Steady | None], whole: Window) -> Window | None:
    """What pictures that share a time axis leave out: a part of the steady phases of all of them; None where that is
    not worth a break.

    Alone, whole periods, so that the picture goes on behind the break as it was before.
    """
    found = [each for each in steady if each is not None]
    if not found or len(found) < len(steady):
        return None
    if len(found) == 1:
        cut = found[0].whole_periods()
    else:
        cut = max(each.inner[0] for each in found), min(each.inner[1] for each in found)
    enough = all(each.microbatches(cut) >= _FEWEST for each in found)
    return cut if enough and cut[1] - cut[0] >= _WORTH * (whole[1] - whole[0]) else None


def _passes(timeline: pd.DataFrame, ranks: Sequence[int]) -> list[Floats]:
    """When the passes of every rank, stage and direction begin, in order; empty for several steps."""
    if "step" in timeline.columns and timeline["step"].nunique() > 1:
        return []
    here = (
        timeline["rank"].isin(list(ranks))
        & (timeline["stream"] == "compute")
        & timeline["kind"].isin(_PASSES)
        & (timeline["microbatch"] >= 0)
    )
    shown = timeline.loc[here, ["rank", "kind", "stage", "chunk", "microbatch", "start"]].astype({"kind": str})
    begins = shown.groupby(["rank", "kind", "stage", "chunk", "microbatch"], sort=True)["start"].min()
    order: dict[object, int] = {rank: at for at, rank in enumerate(ranks)}
    series = [
        ((order[rank], kind != "forward"), np.sort(each.to_numpy(np.float64)))
        for (rank, kind, *_), each in begins.groupby(["rank", "kind", "stage", "chunk"])
    ]
    return [each for _, each in sorted(series, key=lambda pair: pair[0])]


def _typical(begins: Floats, shift: int) -> float:
    """Seconds from one pass to that `shift` later, in the middle of the step."""
    apart = begins[shift:] - begins[:-shift]
    quarter = len(apart) // 4
    return float(np.median(apart[quarter : len(apart) - quarter]))


def _steadiest(begins: Floats, shift: int, period: float) -> Window:
    """From when to when passes come again after a period, at the longest."""
    steady: Bools = np.abs(begins[shift:] - begins[:-shift] - period) <= _UNEVEN * period / shift
    edges = np.flatnonzero(np.diff(np.concatenate([[False], steady, [False]])))
    runs = list(pairwise(edges.tolist()))[::2]
    if not runs:
        return float(begins[-1]), float(begins[0])
    first, last = max(runs, key=lambda run: run[1] - run[0])
    return float(begins[first]), float(begins[last + shift - 1])
