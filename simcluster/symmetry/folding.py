"""Accelerator: ranks, groups and links of a job that do alike are one class each, of which one member is played.

Proved for collectives played in flow, on any fabric, with all that ``Disturbances`` can say of ranks and links
(``step.planned`` lists the scenarios).  Classes are looked for in quotients of the job: through a window,
by orbits (cells) where something is wrong with it, or as a whole.

What groups do in a window does not depend on what is wrong, so it is kept for the next who looks (in Llama 3 405B on
16,384 GPUs that is 0.04 s of the second replay of a job with a fault).  Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

from simcluster.base.link_columns import LinkValues
from simcluster.planning.ops import StageProgram
from simcluster.planning.parallel import RankLayout
from simcluster.planning.perturbations import UNDISTURBED, Disturbances
from simcluster.symmetry.classes import Classes, find_classes, unfolded
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.orbits import Irregularities, cells_of
from simcluster.symmetry.quotient import NotAlikeError, Quotient, windows_of
from simcluster.traffic.methods import Methods
from simcluster.traffic.traffic import Fabric


class Folding(NamedTuple):
    """What of a job is played: its communicators, and the classes of its ranks, groups and links."""

    communicators: Communicators
    classes: Classes


class Symmetry:
    """Which ranks, groups and links of a job are equal: ``folding`` says it of the job with what is wrong with it.

    The windows of the job with which nothing is wrong, and its groups as they are seen there or all drawn, are kept.
    """

    def __init__(self, programs: Sequence[StageProgram], plan: RankLayout, fabric: Fabric, methods: Methods) -> None:
        self._job = programs, plan, fabric, methods
        self._left = windows_of(plan, fabric)
        self._known: list[tuple[Quotient, Communicators]] = []

    def folding(
        self, capacity: LinkValues, slowness: Sequence[float], disturbances: Disturbances = UNDISTURBED
    ) -> Folding:
        """Return the communicators and classes of the job with these disturbances (see ``engine.tabulate``)."""
        odd = None
        for window, communicators in self._through():
            assert window.links is not None
            odd = odd or Irregularities.of(window.links.wired, capacity, slowness, disturbances)
            with suppress(NotAlikeError):
                return seen_by(communicators, window, odd)
        odd = odd or Irregularities.of(capacity, capacity, slowness, disturbances)
        return seen_by(self.whole, Quotient.whole(len(slowness)), odd)

    def unfolded(self, num_links: int) -> Folding:
        """Every rank, group and link by itself: the plain run that folding must equal."""
        return Folding(self.whole, unfolded(len(self.whole.stage_of), self.whole.seen, num_links))

    @cached_property
    def whole(self) -> Communicators:
        """All groups of the job drawn, for who finds no window that tells of all."""
        return Communicators(*self._job)

    def _through(self) -> Iterator[tuple[Quotient, Communicators]]:
        yield from list(self._known)
        for window in self._left:
            try:
                self._known.append((window, Communicators(*self._job, window)))
            except NotAlikeError:
                continue
            yield self._known[-1]


def seen_by(communicators: Communicators, window: Quotient, odd: Irregularities) -> Folding:
    """Return the classes of a job as its window shows them, or cells of that if something is wrong with the job."""
    if odd.something and window.shifts:
        window, communicators = cells_of(window, communicators, odd)
    ranks = communicators.stage_of[window.ranks] * (int(odd.ranks.max()) + 1) + odd.ranks[window.ranks]
    return Folding(communicators, find_classes(ranks, window, communicators.seen, odd.colours, len(odd.capacity)))
