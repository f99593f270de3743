"""The rounds of a collective's description in which the same hops repeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simcluster.base.errors import InputError
from simcluster.collectives.description import Hop, Phase


def repeated_rounds(phases: Sequence[Phase]) -> Iterator[tuple[Sequence[Hop], int]]:
    """Return hops, and in how many rounds on end they repeat (with other chunks).

    Raises InputError for pipelined phases, which have no rounds.
    """
    if any(phase.pipelined for phase in phases):
        raise InputError(
            "detail: steps plays algorithms that go round by round; this one is a pipeline (tree and chain, nvls and "
            "sharp are): use detail: flow, or an algorithm in rounds such as ring or binomial"
        )
    return _repeated(phases)


def _repeated(phases: Sequence[Phase]) -> Iterator[tuple[Sequence[Hop], int]]:
    hops: Sequence[Hop] = ()
    rounds = 0
    for phase in phases:
        if phase.hops and not _alike(hops, phase.hops):
            if rounds:
                yield hops, rounds
            hops, rounds = tuple(phase.hops), 0
        rounds += phase.rounds if phase.hops else 0
    if rounds:
        yield hops, rounds


def _alike(some: Sequence[Hop], others: Sequence[Hop]) -> bool:
    return len(some) == len(others) and all(
        _route(one) == _route(other) for one, other in zip(some, others, strict=True)
    )


def _route(hop: Hop) -> tuple[int, int, float, int, int]:
    return hop.source, hop.target, hop.share, hop.relay, hop.channel
