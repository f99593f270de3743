"""Ranks that work longer after a change, while the other ranks of their pipeline stage do not and must wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.units import format_time_change
from simcluster.results.result import Result
from simcluster.results.step_account import WORK_ENTRIES

_STANDS_OUT = 0.05  # of the difference of the steps
_NAMED = 3


@dataclass(frozen=True, slots=True)
class SlowerRank:
    """By how much (s per step) one rank's work changes between two runs, and the work of its stage's other ranks."""

    rank: int
    stage: int
    own: float
    others: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {f"{key}_s" if key in ("own", "others") else key: value for key, value in asdict(self).items()}


def find_slower_ranks(before: Result, after: Result) -> list[SlowerRank]:
    """Return the ranks whose work grows more than that of the other ranks in their stage, largest difference first.

    None where the two runs have different ranks, and where the ranks of a stage change by the same.
    """
    difference = after.step_time - before.step_time
    stage = after.job.plan.stage_of_every_rank()
    if not difference or not np.array_equal(before.job.plan.stage_of_every_rank(), stage):
        return []
    change = _work_by_rank(after) - _work_by_rank(before)
    toward, excess, others = np.sign(difference) * change, np.zeros(len(change)), np.zeros(len(change))
    for number in range(stage.max() + 1):
        ranks = np.flatnonzero(stage == number)
        usual = np.sort(toward[ranks])[(len(ranks) - 1) // 2]
        excess[ranks] = toward[ranks] - usual
        others[ranks] = (change[ranks].sum() - change[ranks]) / max(len(ranks) - 1, 1)
    least = max(_STANDS_OUT * abs(difference), float(excess.max()) / 2)
    far = [rank for rank in np.argsort(-excess, kind="stable").tolist() if excess[rank] > least]
    return [SlowerRank(rank, int(stage[rank]), float(change[rank]), float(others[rank])) for rank in far]


def describe_slower_ranks(slower: Sequence[SlowerRank], gpus: Sequence[str]) -> str:
    """Return a sentence that names the ranks that became slower, and their GPUs; "" if no rank did."""
    if not slower:
        return ""
    named = [f"{each.rank} ({gpus[each.rank]})" for each in slower[:_NAMED]]
    more = f" and {len(slower) - len(named)} more" if len(slower) > len(named) else ""
    own, others = (float(np.mean(values)) for values in zip(*((each.own, each.others) for each in slower), strict=True))
    who, on_average = ("Rank", "") if len(slower) == 1 else ("Ranks", " on average")
    stages = sorted({each.stage for each in slower})
    where = f"stage {stages[0]}" if len(stages) == 1 else "their stages"
    return (
        f"{who} {', '.join(named)}{more} stand{'s' * (len(slower) == 1)} out: work changes by {format_time_change(own)}"
        f"{on_average}, that of the other ranks of {where} by {format_time_change(others)}."
    )


def _work_by_rank(run: Result) -> Floats:
    of_rank = run.times.of_rank
    known = {rank: sum(of_rank[rank].states[name] for name in WORK_ENTRIES) / run.steps for rank in run.weights}
    return np.array([known[run.representative_of(rank)] for rank in range(len(run.ranks))])
