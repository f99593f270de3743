"""Entry of a collective algorithm: its phases, the groups that it cannot serve, and its time in closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simcluster.base.errors import InputError
from simcluster.collectives.description import Phase
from simcluster.collectives.group import Group

Parts = Sequence[Sequence[float]]
"""Sizes of an uneven all-to-all: ``parts[i][j]`` is what position i has for position j, in any one unit."""
ClosedForm = Callable[[int, float, float], float]
"""Seconds on one switch, a machine each: of the ranks, a path's latency in s, and the size over a port's rate in s."""


def serves_all(group: Group) -> str:
    """Return "", which means that the algorithm can serve every group."""
    del group
    return ""


@dataclass(frozen=True, slots=True)
class CollectiveEntry:
    """Collective algorithm: its function ``phases``, and what that assumes of a group (``requires``).

    ``requires`` returns why a group cannot be served, and what would work; "" where it can. ``uneven`` describes an
    all-to-all of given sizes. ``fewest_bytes``: no rank sends or receives more than it must without help of switches.
    """

    phases: Callable[[Group], Sequence[Phase]]
    closed_form: ClosedForm | None = None
    requires: Callable[[Group], str] = serves_all
    uneven: Callable[[Group, Parts], Sequence[Phase]] | None = None
    fewest_bytes: bool = False

    def __call__(self, group: Group, parts: Parts | None = None) -> Sequence[Phase]:
        """Return the phases for a group; raise InputError for one that cannot be served."""
        if refusal := self.requires(group):
            raise InputError(refusal)
        if parts is None:
            return self.phases(group)
        if self.uneven is None:
            raise InputError("this algorithm sends messages of one size only: use direct for those of given sizes")
        return self.uneven(group, parts)


def double_closed_form(seconds: ClosedForm) -> ClosedForm:
    """Return the closed form of an all-reduce made of a reduce-scatter and an all-gather.

    >>> double_closed_form(rounds_seconds)(2, 0.0, 1.0)
    1.0
    """
    return lambda ranks, latency, transfer: 2 * seconds(ranks, latency, transfer)


def one_message_seconds(ranks: int, latency: float, transfer: float) -> float:
    """Return the time (s) of one message of the whole size."""
    del ranks
    return latency + transfer


def rounds_seconds(ranks: int, latency: float, transfer: float) -> float:
    """Return the time (s) of N - 1 rounds, each with 1/N of the size.

    >>> rounds_seconds(8, 1.0, 8.0)
    14.0
    """
    return (ranks - 1) * (latency + transfer / ranks)
