"""Disturbances of single ranks and links (speeds, stalls, capacities), in the form that lowering needs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.clock import Profile
from simcluster.planning.ops import Item, Op, StageProgram, Work


class Computations(NamedTuple):
    """Computations of a stage's program by item: each item's key, step and number of computations."""

    keys: Sequence[Hashable]
    steps: Sequence[int]
    counts: Sequence[int]


Retime = Callable[[int, Computations, Floats], Floats]
"""Function that returns new seconds of a rank's computations, given the present ones; the same array if all stay."""


@dataclass(frozen=True)
class Disturbances:
    """What makes ranks of a stage, or links, differ from each other: speeds, stalls, capacities.

    ``speeds[rank]`` multiplies the seconds of what a rank computes, over time, ``capacities[link]`` a link's
    capacity. ``program`` gives a rank's own version of its stage's program: other seconds of computation, stalls; no
    other groups, sends or collectives. ``retime`` then changes the seconds of that program's computations. ``colour``
    is equal for ranks of a stage that are disturbed equally.
    """

    speeds: Mapping[int, Profile] = field(default_factory=dict)
    capacities: Mapping[int, Profile] = field(default_factory=dict)
    colour: Callable[[int], Hashable] = lambda rank: None
    program: Callable[[int, StageProgram], StageProgram] = lambda rank, program: program
    retime: Retime = lambda rank, computations, seconds: seconds

    def capacities_of(self, links: Sequence[int]) -> dict[int, Profile]:
        """Return the capacity profiles of these links, by their positions in the list."""
        found = enumerate(links) if self.capacities else ()
        return {place: self.capacities[link] for place, link in found if link in self.capacities}

    def with_program_change(
        self, colour: Callable[[int], Hashable], program: Callable[[int, StageProgram], StageProgram]
    ) -> Disturbances:
        """Return the disturbances with another change of ranks' programs applied after the existing one."""
        first, change = self.colour, self.program
        return replace(
            self,
            colour=lambda rank: (first(rank), colour(rank)),
            program=lambda rank, own: program(rank, change(rank, own)),
        )

    def retimed_program(self, rank: int, program: StageProgram) -> StageProgram:
        """Return a rank's version of its stage's program, after ``program`` and ``retime``."""
        own = self.program(rank, program)
        items = list(chain.from_iterable(own.lanes.values()))
        works = [[op.work.seconds for op in item.segment.ops if op.work.sensitivity is not None] for item in items]
        computations = Computations([item.key for item in items], [item.step for item in items], list(map(len, works)))
        before = np.array(list(chain.from_iterable(works)))
        seconds = self.retime(rank, computations, before)
        if seconds is before:
            return own
        left = iter(seconds.tolist())
        return own.with_items(lambda item: _with_seconds(item, left))


def _with_seconds(item: Item, seconds: Iterator[float]) -> Item:

    def new_work(op: Op) -> Work:
        return op.work if op.work.sensitivity is None else op.work.slowed(0.0, next(seconds))

    return item._replace(segment=item.segment.with_works(new_work))


UNDISTURBED = Disturbances()
