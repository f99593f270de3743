"""Slow or stalled ranks and slow links, as planning applies them to the ops of each rank. No side effects."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import Profile
from simcluster.planning.ops import Op, OpWork, StageProgram, WorkItem


class ComputationColumns(NamedTuple):
    """Work items of a stage's program as columns: key, step, and number of compute ops of each item."""

    keys: Sequence[Hashable]
    steps: Sequence[int]
    counts: Sequence[int]


Retime = Callable[[int, ComputationColumns, Floats], Floats]
"""Function that returns the new seconds of a rank's computations; the same array if none of them changes."""


@dataclass(frozen=True)
class Disturbances:
    """Speeds and stalls of single ranks, and capacities of single links, which break the symmetry of equal ranks.

    ``speeds[rank]`` multiplies the seconds of what a rank computes, over time, ``capacities[link]`` a link's
    capacity. ``change_program`` gives a rank's own version of its stage's program: other seconds of computation,
    stalls; no other groups, sends or collectives. ``retime`` then changes the seconds of that program's computations.
    ``symmetry_key`` is equal for ranks of a stage that are disturbed equally.
    """

    speeds: Mapping[int, Profile] = field(default_factory=dict)
    capacities: Mapping[int, Profile] = field(default_factory=dict)
    symmetry_key: Callable[[int], Hashable] = lambda rank: None
    change_program: Callable[[int, StageProgram], StageProgram] = lambda rank, program: program
    retime: Retime = lambda rank, computations, seconds: seconds

    def capacities_by_position(self, links: Sequence[int]) -> dict[int, Profile]:
        """Return the changing capacities of these links, keyed by each link's position in ``links``."""
        found = enumerate(links) if self.capacities else ()
        return {place: self.capacities[link] for place, link in found if link in self.capacities}

    def with_program_change(
        self, new_key: Callable[[int], Hashable], modify: Callable[[int, StageProgram], StageProgram]
    ) -> Disturbances:
        """Return the disturbances with one more change of each rank's program, applied after the existing changes."""
        first, change = self.symmetry_key, self.change_program
        return replace(
            self,
            symmetry_key=lambda rank: (first(rank), new_key(rank)),
            change_program=lambda rank, own: modify(rank, change(rank, own)),
        )

    def disturbed_program(self, rank: int, program: StageProgram) -> StageProgram:
        """Return a stage's program as one rank runs it under these disturbances."""
        own = self.change_program(rank, program)
        items = list(chain.from_iterable(own.lanes.values()))
        works = [[op.work.seconds for op in item.segment.ops if op.work.sensitivity is not None] for item in items]
        columns = ComputationColumns([item.key for item in items], [item.step for item in items], list(map(len, works)))
        before = np.array(list(chain.from_iterable(works)))
        seconds = self.retime(rank, columns, before)
        if seconds is before:
            return own
        left = iter(seconds.tolist())
        return own.with_replaced_items(lambda item: _with_seconds(item, left))


def _with_seconds(item: WorkItem, seconds: Iterator[float]) -> WorkItem:

    def new_work(op: Op) -> OpWork:
        return op.work if op.work.sensitivity is None else op.work.with_slowdown(0.0, next(seconds))

    return item._replace(segment=item.segment.with_replaced_works(new_work))


UNDISTURBED = Disturbances()
