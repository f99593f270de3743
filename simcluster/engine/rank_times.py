"""What a step played in arrays over ranks comes to: when every op of every rank began and ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simcluster.engine.own_works import OwnWorks
from simcluster.engine.stage_sweep import StageSweep, Times
from simcluster.programs.program import OpTimes


@dataclass(frozen=True)
class RankTimes:
    """When nodes of a sweep could have begun, began and ended [1, place], and after how many sweeps that was found;
    ``own`` are the works of each stage's ranks, None where these have the stage's."""

    sweep: StageSweep
    times: list[Times]
    sweeps: int
    own: Sequence[OwnWorks | None]

    @property
    def over(self) -> float:
        """Seconds until the last op ends."""
        return max(float(end.max(initial=0.0)) for _, _, end in self.times)

    @property
    def count(self) -> int:
        """How many ops all ranks have together."""
        return sum(len(ops) * len(ranks) for ops, ranks in zip(self.sweep.ops, self.sweep.stage_ranks, strict=True))

    def columns(self) -> OpTimes:
        """Times per op, rank by rank, as a program has them whose ranks are not folded nor its ops collapsed."""
        sweep = self.sweep
        counts = np.zeros(sum(map(len, sweep.stage_ranks)), dtype=np.int64)
        for ops, ranks in zip(sweep.ops, sweep.stage_ranks, strict=True):
            counts[ranks] = len(ops)
        first = np.cumsum(counts) - counts
        columns = np.empty((3, int(counts.sum())))
        last = np.arange(columns.shape[1])
        for node, times in enumerate(self.times):
            stage, number = sweep.name_of(node)
            columns[:, first[sweep.stage_ranks[stage]] + number] = np.concatenate(times)
        for nodes, groups in sweep.met():
            names = [sweep.name_of(node) for node in nodes]
            numbers = [first[sweep.stage_ranks[stage]] + number for stage, number in names]
            here = [np.where(columns[0, own] == columns[1, own], own, np.inf)[None] for own in numbers]
            if groups is None:
                earliest = [np.minimum(*here)] * 2
            else:
                wide = -groups.latest(-np.concatenate(here, axis=1))
                earliest = np.split(wide, np.cumsum([len(own) for own in numbers])[:-1], axis=1)
            for own, each in zip(numbers, earliest, strict=True):
                last[own] = each[0]
        ready, start, end = columns
        return OpTimes(ready, start, end, last)
