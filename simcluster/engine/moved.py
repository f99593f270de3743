"""The communication of a stage's ops, for all its ranks at once: seconds on links of its own, and its pressure on
computation beside it.  Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.engine.communication import CommunicationLowering
from simcluster.engine.links_alone import LinksAlone
from simcluster.engine.own_works import OwnWorks
from simcluster.engine.stage_sweep import StageSweep
from simcluster.planning.ops import Op, Work
from simcluster.programs.program import Meeting

Sort = tuple[int, Work, str, int]
"""What is the same of ops that do the same: their stage, work and lane, and which loads its ranks have, 0 for none."""


class Moved(NamedTuple):
    """What an op does with others, for the ranks of its stage [place]: the communicator, and what there is to say of
    each different one: seconds, pressure; ``of`` is the place of every rank's among those."""

    numbers: Ints
    of: Ints
    seconds: Floats
    pressure: Floats
    meetings: Sequence[Meeting]


class MovedBySort:
    """What ops do with others, each sort of them made when it is asked for; NeedsEventsError for a link that carries
    nothing.  ``own`` are the works of each stage's ranks, None where these have the stage's."""

    def __init__(
        self, sweep: StageSweep, lowering: CommunicationLowering, alone: LinksAlone, own: Sequence[OwnWorks | None]
    ) -> None:
        self._sweep, self._lowering, self._alone, self._own = sweep, lowering, alone, own
        self._ranks = [ranks.tolist() for ranks in sweep.stage_ranks]
        self._numbers: dict[tuple[int, Hashable], Ints] = {}
        self.known: dict[Sort, Moved] = {}

    def sort(self, stage: int, number: int) -> Sort:
        """That of an op."""
        op, load = self._sweep.ops[stage][number][1], self._load(stage, number)
        return stage, op.work, op.lane, 0 if load is None else id(load)

    def of(self, stage: int, number: int) -> Moved:
        """What an op does with others."""
        sort = self.sort(stage, number)
        known = self.known.get(sort)
        if known is None:
            known = self.known[sort] = self._moved(stage, self._sweep.ops[stage][number][1], self._load(stage, number))
        return known

    def _load(self, stage: int, number: int) -> Floats | None:
        """How many times its bytes travel [place], where that is not what the stage's program says."""
        own = self._own[stage]
        return own.loads.get(number) if own else None

    def _moved(self, stage: int, op: Op, load: Floats | None) -> Moved:
        kind = op.work.group(stage)
        if (stage, kind) not in self._numbers:
            own = [self._lowering.communicator(op.work, rank) for rank in self._ranks[stage]]
            self._numbers[stage, kind] = np.array(own, dtype=np.int64)
        numbers, first, of = np.unique(self._numbers[stage, kind], return_index=True, return_inverse=True)
        ops = [op] * len(numbers) if load is None else [_loaded(op, each) for each in load[first].tolist()]
        meetings = [self._lowering.meeting(*each) for each in zip(numbers.tolist(), ops, strict=True)]
        takes = [self._alone.seconds(meeting.traffics) for meeting in meetings]
        return Moved(numbers, of, np.array(takes), np.array([meeting.pressure for meeting in meetings]), meetings)


def _loaded(op: Op, load: float) -> Op:
    """An op whose bytes travel so many times."""
    return replace(op, work=replace(op.work, load=load))  # type: ignore[type-var]
