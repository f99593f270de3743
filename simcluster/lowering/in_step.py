"""Which ops of ranks that meet again and again go in step, so that they can be played as one chain.  Pure.

A stretch in step begins with a meeting of a segment that all before it lead to and all behind it wait for, and goes to
the segment's end; all its meetings are of one group, of ranks of one stage, on links that nothing else uses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from simcluster.lowering.blocks import Before, blocks_of
from simcluster.lowering.chains import Piece
from simcluster.lowering.program import InStep
from simcluster.planning.ops import MAIN, Collective, Segment, Timed

NOWHERE = (-1, -1)
"""From which piece on, and in which class of groups: in none."""


def in_step(
    segment: Segment, parts: Sequence[Piece], group: Callable[[Collective | Timed], int]
) -> tuple[int, int]:  # fmt: skip
    """From which piece of a segment on its ranks go in step, and the class of their group.

    ``group`` gives that of a collective, -1 where its ranks cannot go in step.
    """
    meets = [index for index, part in enumerate(parts) if part.seconds is None]
    if len(meets) < 2 or segment.ops[0].lane != MAIN:
        return NOWHERE
    begins = blocks_of(_before(parts))
    first = next((index for index in meets[:-1] if index in begins), -1)
    works = [segment.ops[parts[index].first].work for index in meets if index >= first]
    met = [work for work in works if isinstance(work, Collective | Timed)]
    if first < 0 or len(met) < len(works):
        return NOWHERE
    groups = list(dict.fromkeys(group(work) for work in met))
    return (first, groups[0]) if len(groups) == 1 and groups[0] >= 0 else NOWHERE


def _before(parts: Sequence[Piece]) -> Before:
    """What pieces wait for."""
    before: Before = []
    lanes: dict[str, int] = {}
    for index, part in enumerate(parts):
        own = (lanes[part.lane], *part.after) if part.lane in lanes else part.after
        before.append(tuple(dict.fromkeys(own)))
        lanes[part.lane] = index
    return before


class Stretches:
    """The stretches of a program, member by member: those of one group and item belong together."""

    def __init__(self) -> None:
        self._members: dict[tuple[int, Hashable], list[tuple[int, int]]] = {}

    def add(self, group: int, key: Hashable, first: int, length: int) -> None:
        """One member's."""
        self._members.setdefault((group, key), []).append((first, length))

    def all(self) -> list[InStep]:
        """All of them."""
        found = []
        for members in self._members.values():
            firsts, (length, *lengths) = zip(*members, strict=True)
            assert all(other == length for other in lengths), members
            found.append(InStep(firsts, length))
        return found
