"""NVLink SHARP inside the nodes and double binary trees between them: NCCL's NVLSTree all-reduce.

The NVSwitch of a node adds up what its g GPUs hold and gives each a g-th of the sum; those with the same place in their
nodes add theirs up along two trees, each with half of the g-th, and the way back distributes everything. One pipeline:
a NIC carries what a double tree of S/g gives it, and NVLink S (1 + 1/g) and the hop to the NIC. Source: NCCL v2.30.7
src/graph/connect.cc and src/device/all_reduce.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from simcluster.collectives.description import SWITCH, Hop, Lazy, Phase
from simcluster.collectives.group import Group
from simcluster.collectives.tree import deepest_first, double_tree


def all_reduce(group: Group) -> Sequence[Phase]:
    """Return the all-reduce; channels 0 and 1 are the two trees, and GPU l of every node handles chunk l of each."""
    if group.num_ranks == 1:
        return ()
    return Lazy(4 * len(group.on_switches[1]) + 2, _Phases(group))


class _Phases:
    """Phases by number: sums in each node's switch, trees up, trees down, and copies in each node.

    Made on access: whether a group could do it is asked far more often than it is done.
    """

    def __init__(self, group: Group) -> None:
        self._group, self._each = group, group.on_switches[1][0]

    @cached_property
    def _node_ranks(self) -> Sequence[Sequence[int]]:
        members: dict[int | str, list[int]] = {}
        for position, switch in enumerate(self._group.switch_of):
            members.setdefault(switch, []).append(position)
        return list(members.values())

    def __call__(self, number: int) -> Phase:
        """Return the phase with this number."""
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
        """Return a phase inside a node: its switch reads the ``whole`` data, or gives each GPU its part of the sum.

        Or ``back``: each GPU writes its part of the result to the switch, or that writes the whole to all.
        """
        found = [(local, position, tree) for local, position in enumerate(self._node_ranks[machine]) for tree in (0, 1)]
        if whole:
            hops = [Hop(position, SWITCH, 0.5, channel=tree, count=self._each) for _, position, tree in found]
        else:
            hops = [
                Hop(SWITCH, position, 0.5 / self._each, channel=tree, chunk=local) for local, position, tree in found
            ]
        if back:
            hops = [replace(hop, source=hop.target, target=hop.source) for hop in hops]
        return self._pipelined_phase(hops, reduces=whole and not back)

    def _pipelined_phase(self, hops: Sequence[Hop], *, reduces: bool) -> Phase:
        return Phase(rounds=1, hops=hops, chunks=self._each, reduces=reduces, pipelined=True)


def _hops_up_trees(machines: Sequence[Sequence[int]]) -> Iterator[Hop]:
    each = len(machines[0])
    for tree, parents in enumerate(double_tree(len(machines))):
        for node in deepest_first(parents):
            for local in range(each if parents[node] >= 0 else 0):
                source, target = machines[node][local], machines[parents[node]][local]
                yield Hop(source, target, 0.5 / each, channel=tree, chunk=local)


def requires(group: Group) -> str:
    """Return why a group cannot be served: it needs several NVSwitches with equally many GPUs; "" if it has."""
    lost, sizes = group.on_switches
    if group.num_ranks > 1 and (lost or len(sizes) < 2 or len(set(sizes)) > 1 or min(sizes) < 2):
        return (
            "nvls_tree joins several NVSwitches with equally many GPUs of the group on each, at least 2: use nvls on "
            "one switch, tree or ring elsewhere"
        )
    return ""
