"""Two-level collectives: rings inside each node, and one ring across nodes for each local rank.

m nodes of g ranks. Closed form of the all-reduce (alpha1, B1 inside; alpha2, B2 per NIC): 2(g-1)(alpha1 + S/(g B1)) +
2(m-1)(alpha2 + S/(g m B2)); the other two half of it (MODELLING.md D.2). With m = 1 or g = 1 it is the plain ring.
Source: X. Jia et al. 2018 (arXiv:1807.11205), section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simcluster.collectives.description import Hop, Phase
from simcluster.collectives.group import Group
from simcluster.collectives.ring import ring_hops


def reduce_scatter(group: Group) -> Sequence[Phase]:
    """Return the two-level reduce-scatter: first inside the nodes, then between them."""
    return rings_inside_nodes(group, reduces=True), _rings_between_nodes(group, reduces=True)


def all_gather(group: Group) -> Sequence[Phase]:
    """Return the two-level all-gather: first between the nodes, then inside them."""
    return _rings_between_nodes(group, reduces=False), rings_inside_nodes(group, reduces=False)


def unsupported_reason(group: Group) -> str:
    """Return why a group is not supported (its nodes have unequal numbers of ranks), or "" if it is."""
    return group.explain_unequal_nodes("hierarchical")


def rings_inside_nodes(group: Group, *, reduces: bool) -> Phase:
    """Return a phase with a ring inside each node; the rank at ring index l handles part l + 1 of the data."""
    machines = group.positions_by_node
    each = len(machines[0])
    hops = (
        hop
        for positions in machines
        for hop in ring_hops(positions, first=0 if reduces else 1, share=1 / each, count=len(machines))
    )
    return _make_phase(each, hops, chunks=group.num_ranks, reduces=reduces)


def _rings_between_nodes(group: Group, *, reduces: bool) -> Phase:
    """Return a phase with a ring across nodes for each local rank l; its ring handles part l + 1 of the data."""
    machines = group.positions_by_node
    each, many = len(machines[0]), len(machines)
    share = 1 / group.num_ranks
    hops = (
        hop
        for local in range(each)
        for hop in ring_hops(
            [positions[local] for positions in machines],
            first=0 if reduces else 1,
            share=share,
            base=(local + 1) % each * many,
        )
    )
    return _make_phase(many, hops, chunks=many, reduces=reduces)


def _make_phase(size: int, hops: Iterable[Hop], *, chunks: int, reduces: bool) -> Phase:
    return Phase(rounds=size - 1, hops=tuple(hops) if size > 1 else (), chunks=chunks, reduces=reduces)
