"""Fast path: simulate one representative of each class of equal ranks, groups and links.

Proved for collectives simulated in flow, on any fabric, with all that ``Disturbances`` can change on ranks and links
(``step.step_plan`` lists the scenarios). Classes are looked for in quotients of the job: through a window, by orbits
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
from simcluster.planning.disturbances import UNDISTURBED, Disturbances
from simcluster.planning.ops import StageProgram
from simcluster.planning.rank_grid import RankLayout
from simcluster.symmetry.classes import EquivalenceClasses, find_classes, trivial_classes
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.irregular_jobs import Irregularities, divide_into_cells
from simcluster.symmetry.quotient import JobQuotient, NotSymmetricError, find_windows
from simcluster.traffic.collective_methods import MethodChooser
from simcluster.traffic.traffic import Fabric


class FoldedJob(NamedTuple):
    """Result of folding a job: its communicators, and its classes of equal ranks, groups and links."""

    communicators: Communicators
    classes: EquivalenceClasses


class SymmetryFinder:
    """Finder of equal ranks, groups and links of a job, under given disturbances.

    The windows of the undisturbed job, and its groups as seen there or in full, are cached.
    """

    def __init__(self, programs: Sequence[StageProgram], plan: RankLayout, fabric: Fabric, how: MethodChooser) -> None:
        self._job = programs, plan, fabric, how
        self._left = find_windows(plan, fabric)
        self._known: list[tuple[JobQuotient, Communicators]] = []

    def fold_job(
        self, capacity: LinkValues, slowness: Sequence[float], disturbances: Disturbances = UNDISTURBED
    ) -> FoldedJob:
        """Return the job's communicators and its classes of equal ranks and links under these disturbances."""
        odd = None
        for window, communicators in self._usable_windows():
            assert window.links is not None
            odd = odd or Irregularities.from_disturbances(window.links.wired, capacity, slowness, disturbances)
            with suppress(NotSymmetricError):
                return fold_window(communicators, window, odd)
        odd = odd or Irregularities.from_disturbances(capacity, capacity, slowness, disturbances)
        return fold_window(self.all_communicators, JobQuotient.trivial_quotient(len(slowness)), odd)

    def trivial_folding(self, num_links: int) -> FoldedJob:
        """Return the trivial folding, in which every rank, communicator and link represents only itself."""
        whole = self.all_communicators
        return FoldedJob(whole, trivial_classes(len(whole.stage_of), whole.seen, num_links))

    @cached_property
    def all_communicators(self) -> Communicators:
        """All communicators of the job, each with its link usage; used if the job cannot be reduced to a part."""
        return Communicators(*self._job)

    def _usable_windows(self) -> Iterator[tuple[JobQuotient, Communicators]]:
        yield from list(self._known)
        for window in self._left:
            try:
                self._known.append((window, Communicators(*self._job, window)))
            except NotSymmetricError:
                continue
            yield self._known[-1]


def fold_window(communicators: Communicators, window: JobQuotient, odd: Irregularities) -> FoldedJob:
    """Find the classes of a job from its window (representative part); divide an irregular job into cells first."""
    if odd.has_irregularities and window.shifts:
        window, communicators = divide_into_cells(window, communicators, odd)
    own = communicators.stage_of[window.ranks] * (int(odd.ranks.max()) + 1) + odd.ranks[window.ranks]
    return FoldedJob(communicators, find_classes(own, window, communicators.seen, odd.link_colours, len(odd.capacity)))
