"""SHARP (CollNet) all-reduce: switches of the network sum the nodes' data and multicast the result.

Every NIC sends and receives the size once, whatever the number of nodes: alpha + S/B with one rank per node. With g
ranks per node they first reduce-scatter among each other, then each NIC's rail reduces its g-th of the data in a
separate tree of switches, then they all-gather. Source: R. L. Graham et al., "Scalable Hierarchical Aggregation
Protocol (SHArP)", COMHPC 2016; MODELLING.md C.4.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.collectives.description import SWITCH, Hop, Phase
from simcluster.collectives.group import Group
from simcluster.collectives.hierarchical import rings_inside_nodes


def unsupported_reason(group: Group) -> str:
    """Return why a group is not supported (not several nodes with equally many ranks), or "" if it is."""
    if group.num_ranks > 1 and len(group.ranks_per_node) == 1:
        return (
            "sharp reduces in the switches between nodes, and this group is inside one node: use nvls or ring, or "
            "ranks on several nodes"
        )
    return group.explain_unequal_nodes("sharp")


def all_reduce(group: Group) -> Sequence[Phase]:
    """Return the all-reduce: reduce-scatter in each node, sum and multicast in the switches, all-gather in each."""
    if group.num_ranks == 1:
        return ()
    machines = group.positions_by_node
    each, many = len(machines[0]), len(machines)
    parts = [
        (positions[local], (local + 1) % each * many)  # as ``rings_inside_nodes`` leaves them
        for local in range(each)
        for positions in machines
    ]
    up = tuple(Hop(position, SWITCH, 1 / each, chunk=chunk, count=many) for position, chunk in parts)
    down = tuple(Hop(SWITCH, position, 1 / each, chunk=chunk, count=many) for position, chunk in parts)
    return (
        rings_inside_nodes(group, reduces=True),
        Phase(rounds=1, hops=up, chunks=group.num_ranks, reduces=True, pipelined=True),
        Phase(rounds=1, hops=down, chunks=group.num_ranks, reduces=False, pipelined=True),
        rings_inside_nodes(group, reduces=False),
    )
