"""What is not as planned on single ranks and links, as lowering needs it.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from simcluster.base.profiles import Profile
from simcluster.planning.ops import StageProgram


@dataclass(frozen=True)
class Disturbances:
    """What makes ranks of a stage differ, and links.

    ``speeds[rank]`` multiplies the seconds of what a rank computes as time goes on, ``capacities[link]`` a link's
    capacity.  ``program`` gives a rank's own version of its stage's program: other seconds of computation, stalls; no
    other groups, sends or collectives.  ``colour`` is equal for ranks of a stage that are disturbed alike.
    """

    speeds: Mapping[int, Profile] = field(default_factory=dict)
    capacities: Mapping[int, Profile] = field(default_factory=dict)
    colour: Callable[[int], Hashable] = lambda rank: None
    program: Callable[[int, StageProgram], StageProgram] = lambda rank, program: program

    def capacities_of(self, links: Sequence[int]) -> dict[int, Profile]:
        """The profiles of these links, by their places in the list."""
        found = enumerate(links) if self.capacities else ()
        return {place: self.capacities[link] for place, link in found if link in self.capacities}

    def beside(
        self, colour: Callable[[int], Hashable], program: Callable[[int, StageProgram], StageProgram]
    ) -> Disturbances:
        """The same with another change of programs behind its own."""
        first, change = self.colour, self.program
        return replace(
            self,
            colour=lambda rank: (first(rank), colour(rank)),
            program=lambda rank, own: program(rank, change(rank, own)),
        )


UNDISTURBED = Disturbances()
