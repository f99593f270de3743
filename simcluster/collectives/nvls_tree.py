"""NVLink SHARP inside the nodes and double binary trees between them: NCCL's NVLSTree all-reduce.

The NVSwitch of a node adds up what its g GPUs hold and gives each a g-th of the sum; GPUs with the same local
rank add theirs up along two trees, each with half of the g-th, and the way back distributes everything. One pipeline:
a NIC carries what a double tree of S/g gives it, and NVLink S (1 + 1/g) and the hop to the NIC. Source: NCCL v2.30.7
src/graph/connect.cc and src/device/all_reduce.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from simcluster.collectives.description import SWITCH, FunctionSequence, Hop, Phase
from simcluster.collectives.group import Group, positions_of_equal_keys
from simcluster.collectives.tree import double_tree_parents, sort_deepest_first


def all_reduce(group: Group) -> Sequence[Phase]:
    """Return the all-reduce; channels 0 and 1 are its two trees, and GPU l of each node handles chunk l of both."""
    if group.num_ranks == 1:
        return ()
    return FunctionSequence(4 * len(group.ranks_per_nvswitch[1]) + 2, _NvlsTreePhases(group))


class _NvlsTreePhases:
    """Phases by index: sums in each node's NVSwitch, both trees up, both trees down, copies in each node.

    Created on access: the support of a group is checked far more often than its phases are used.
    """

    def __init__(self, group: Group) -> None:
        self._group, self._each = group, group.ranks_per_nvswitch[1][0]

    @cached_property
    def _node_ranks(self) -> Sequence[Sequence[int]]:
        return positions_of_equal_keys(self._group.nvswitch_of_position)

    def __call__(self, number: int) -> Phase:
        """Return the phase with this index."""
        inside = 2 * len(self._node_ranks)
        if number < inside:
            return self._phase_inside_node(number // 2, whole=number % 2 == 0, back=False)
        if number >= inside + 2:
            number -= inside + 2
            return self._phase_inside_node(number // 2, whole=number % 2 == 1, back=True)
        back = [replace(hop, source=hop.target, target=hop.source) for hop in reversed(self._hops_to_roots)]
        hops = self._hops_to_roots if number == inside else back
        return self._pipelined_phase(hops, reduces=number == inside)

    @cached_property
    def _hops_to_roots(self) -> list[Hop]:
        return list(_hops_up_trees(self._node_ranks))

    def _phase_inside_node(self, machine: int, *, whole: bool, back: bool) -> Phase:
        """Build a node's phase: GPUs send all data to the NVSwitch (``whole``), or each GPU gets its part of the sum.

        With ``back``: each GPU writes its part of the result to the switch, or the switch writes all parts to all GPUs.
        """
        found = [(local, position, tree) for local, position in enumerate(self._node_ranks[machine]) for tree in (0, 1)]
        if whole:
            hops = [Hop(position, SWITCH, 0.5, channel=tree, count=self._each) for _, position, tree in found]
        else:
            hops = [Hop(SWITCH, place, 0.5 / self._each, channel=tree, chunk=local) for local, place, tree in found]
        if back:
            hops = [replace(hop, source=hop.target, target=hop.source) for hop in hops]
        return self._pipelined_phase(hops, reduces=whole and not back)

    def _pipelined_phase(self, hops: Sequence[Hop], *, reduces: bool) -> Phase:
        return Phase(rounds=1, hops=hops, chunks=self._each, reduces=reduces, pipelined=True)


def _hops_up_trees(machines: Sequence[Sequence[int]]) -> Iterator[Hop]:
    each = len(machines[0])
    for tree, parents in enumerate(double_tree_parents(len(machines))):
        for node in sort_deepest_first(parents):
            for local in range(each if parents[node] >= 0 else 0):
                source, target = machines[node][local], machines[parents[node]][local]
                yield Hop(source, target, 0.5 / each, channel=tree, chunk=local)


def unsupported_reason(group: Group) -> str:
    """Return why a group is not supported (not several NVSwitches with equally many GPUs), or "" if it is."""
    lost, sizes = group.ranks_per_nvswitch
    if group.num_ranks > 1 and (lost or len(sizes) < 2 or len(set(sizes)) > 1 or min(sizes) < 2):
        return (
            "nvls_tree needs several NVSwitches, each with the same number of the group's GPUs, at least 2: use nvls "
            "for one NVSwitch, and tree or ring otherwise"
        )
    return ""
