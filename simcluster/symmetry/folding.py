"""Fast path: classes of equal ranks, groups and links of a job, of which one member is simulated.

Proved for collectives simulated in flow, on any fabric, with all that ``Disturbances`` can change on ranks and links
(``step.planned`` lists the scenarios). Classes are looked for in quotients of the job: through a window, by orbits
(cells) where it has irregularities, or as a whole.

The traffic of groups in a window does not depend on irregularities, so it is kept for later calls (in Llama 3 405B on
16,384 GPUs that is 0.04 s of the second simulation of a job with a fault). Pure.
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
from simcluster.symmetry.classes import Classes, find_classes, trivial_classes
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.orbits import Irregularities, make_cells
from simcluster.symmetry.quotient import NotAlikeError, Quotient, find_windows
from simcluster.traffic.methods import Methods
from simcluster.traffic.traffic import Fabric


class Folding(NamedTuple):
    """Folded job: its communicators, and the classes of its ranks, groups and links."""

    communicators: Communicators
    classes: Classes


class Symmetry:
    """Finder of a job's equal ranks, groups and links: ``folding`` returns them for given disturbances.

    The windows of the undisturbed job, and its groups as seen there or in full, are cached.
    """

    def __init__(self, programs: Sequence[StageProgram], plan: RankLayout, fabric: Fabric, methods: Methods) -> None:
        self._job = programs, plan, fabric, methods
        self._left = find_windows(plan, fabric)
        self._known: list[tuple[Quotient, Communicators]] = []

    def folding(
        self, capacity: LinkValues, slowness: Sequence[float], disturbances: Disturbances = UNDISTURBED
    ) -> Folding:
        """Return the communicators and classes of the job with these disturbances (``engine.tabulate`` reads them)."""
        odd = None
        for window, communicators in self._windows_that_fold():
            assert window.links is not None
            odd = odd or Irregularities.of(window.links.wired, capacity, slowness, disturbances)
            with suppress(NotAlikeError):
                return fold_window(communicators, window, odd)
        odd = odd or Irregularities.of(capacity, capacity, slowness, disturbances)
        return fold_window(self.whole, Quotient.whole(len(slowness)), odd)

    def unfolded(self, num_links: int) -> Folding:
        """Return the trivial folding, with every rank, group and link in a separate class."""
        return Folding(self.whole, trivial_classes(len(self.whole.stage_of), self.whole.seen, num_links))

    @cached_property
    def whole(self) -> Communicators:
        """All groups of the job with link usage, for when no window represents them all."""
        return Communicators(*self._job)

    def _windows_that_fold(self) -> Iterator[tuple[Quotient, Communicators]]:
        yield from list(self._known)
        for window in self._left:
            try:
                self._known.append((window, Communicators(*self._job, window)))
            except NotAlikeError:
                continue
            yield self._known[-1]


def fold_window(communicators: Communicators, window: Quotient, odd: Irregularities) -> Folding:
    """Return the classes of a job from its window, or from cells of the window if the job has irregularities."""
    if odd.something and window.shifts:
        window, communicators = make_cells(window, communicators, odd)
    ranks = communicators.stage_of[window.ranks] * (int(odd.ranks.max()) + 1) + odd.ranks[window.ranks]
    return Folding(communicators, find_classes(ranks, window, communicators.seen, odd.colours, len(odd.capacity)))
