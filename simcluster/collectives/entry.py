"""Registry entry of a collective algorithm: its phases, the groups it does not support, its closed-form time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simcluster.base.errors import InputError
from simcluster.collectives.description import Phase
from simcluster.collectives.group import Group

MessageSizes = Sequence[Sequence[float]]
"""Message sizes of an uneven all-to-all: position i sends ``parts[i][j]`` to position j (bytes or any other unit)."""
ClosedForm = Callable[[int, float, float], float]
"""Function (ranks, latency of a path in s, size / port rate in s) -> time (s), with each rank on a separate node."""


def accept_every_group(group: Group) -> str:
    """Return "": the default of ``CollectiveEntry.requires``, for algorithms that support every group."""
    del group
    return ""


@dataclass(frozen=True, slots=True)
class CollectiveEntry:
    """Collective algorithm: ``phases`` builds it for a group, ``requires`` explains unsupported groups.

    ``requires`` returns why a group is not supported, and what would work; "" if it is. ``uneven`` returns phases of
    an all-to-all of unequal sizes. ``fewest_bytes``: no rank sends or receives more than it must without switch help.
    """

    phases: Callable[[Group], Sequence[Phase]]
    closed_form: ClosedForm | None = None
    requires: Callable[[Group], str] = accept_every_group
    uneven: Callable[[Group, MessageSizes], Sequence[Phase]] | None = None
    fewest_bytes: bool = False

    def __call__(self, group: Group, parts: MessageSizes | None = None) -> Sequence[Phase]:
        """Return the algorithm's phases for a group; raise InputError if the group is not supported."""
        if refusal := self.requires(group):
            raise InputError(refusal)
        if parts is None:
            return self.phases(group)
        if self.uneven is None:
            raise InputError("this algorithm supports only messages of equal size; use direct for unequal sizes")
        return self.uneven(group, parts)


def reduce_then_gather(reduce_scatter: CollectiveEntry, all_gather: CollectiveEntry) -> CollectiveEntry:
    """Return the entry of an all-reduce that is this reduce-scatter, then this all-gather, which takes as long.

    >>> half = CollectiveEntry(lambda group: (), n_minus_1_rounds_seconds)
    >>> reduce_then_gather(half, half).closed_form(2, 0.0, 1.0)
    1.0
    """
    half = reduce_scatter.closed_form
    return CollectiveEntry(
        lambda group: (*reduce_scatter.phases(group), *all_gather.phases(group)),
        half and (lambda ranks, latency, transfer: 2 * half(ranks, latency, transfer)),
        reduce_scatter.requires,
        fewest_bytes=reduce_scatter.fewest_bytes,
    )


def one_message_seconds(ranks: int, latency: float, transfer: float) -> float:
    """Return the time (s) of one message that carries the whole size."""
    del ranks
    return latency + transfer


def n_minus_1_rounds_seconds(ranks: int, latency: float, transfer: float) -> float:
    """Return the time (s) of N - 1 rounds that each move 1/N of the size, as in a ring.

    >>> n_minus_1_rounds_seconds(8, 1.0, 8.0)
    14.0
    """
    return (ranks - 1) * (latency + transfer / ranks)
