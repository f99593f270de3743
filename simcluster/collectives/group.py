"""Group of ranks as collective algorithms see it: the nodes, NICs and NVSwitches of its GPUs, and its rings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simcluster.base.arrays import run_starts, unique_inverse


@cache
def disjoint_mesh_rings(ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return rings through all ranks of a full mesh such that no two rings share a directed link.

    Walecki's construction, every cycle both ways: N - 1 walks for an odd number of ranks, N - 2 for an even one, of the
    N - 1 links that a rank has (Alspach, "The wonderful Walecki construction", 2008); one for two ranks.

    >>> disjoint_mesh_rings(4)
    ((3, 0, 1, 2), (3, 2, 1, 0))
    """
    if ranks <= 2:
        return (tuple(range(ranks)),)
    rim, hub = ranks - 1, ranks - 1
    found = []
    for turn in range(rim // 2):
        steps = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(rim)]  # 0, 1, -1, 2, -2, ...
        cycle = (hub, *((turn + step) % rim for step in steps))
        found += [cycle, (hub, *cycle[:0:-1])]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Ring:
    """Ring over a group's positions; ``relays[i]`` is the relay GPU of the hop that leaves ``order[i]``."""

    order: tuple[int, ...]
    relays: tuple[int, ...]


Name = TypeVar("Name")


def positions_of_equal_keys(keys: Iterable[Hashable]) -> tuple[tuple[int, ...], ...]:
    """Return the positions of each key, one tuple per different key in order of first appearance."""
    members: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        members.setdefault(key, []).append(position)
    return tuple(map(tuple, members.values()))


class LazyNames(Sequence[Name]):
    """Sequence of NIC or NVSwitch names, one per rank, created on access; equal ``numbers`` have equal names."""

    def __init__(self, numbers: NDArray[np.signedinteger[Any]], name: Callable[[int], Name]) -> None:
        self.numbers, self._name = numbers, name

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> Any:
        places = range(len(self))[index]
        return self._name(places) if isinstance(places, int) else [self._name(place) for place in places]


@dataclass(frozen=True)
class EqualNodeRings:
    """Rings of a group whose nodes all have ``size`` consecutive positions and the same layout of NICs."""

    many: int
    size: int
    orders: tuple[tuple[int, ...], ...]

    @property
    def positions_by_node(self) -> NDArray[np.int64]:
        """Positions of the group as an array [node, index in the node]."""
        return np.arange(self.many * self.size).reshape(self.many, self.size)


@dataclass(frozen=True)
class Group:
    """Ranks of a collective by position (0 .. N-1), with their nodes, NICs and NVSwitches.

    ``hosts[i]`` is the node of position i, ``nics[i]`` the NICs by which it leaves it on channel 0, 1, ... and round
    again, ``nvswitches[i]`` the NVSwitch that its GPU is linked to ("" for none; number 0 in ``LazyNames``).
    ``meshed``: the GPUs of a node are linked to each other directly, every one to every other. ``spans_sites``: they
    are on several sites.
    """

    hosts: Sequence[int]
    nics: Sequence[tuple[str, ...]]
    nvswitches: Sequence[str]
    meshed: bool = False
    spans_sites: bool = False

    @property
    def num_ranks(self) -> int:
        """Number of ranks in the group."""
        return len(self.hosts)

    @cached_property
    def positions_by_node(self) -> tuple[tuple[int, ...], ...]:
        """Group positions on each node, one tuple per node; nodes are ordered by first appearance in the group."""
        return positions_of_equal_keys(self.hosts)

    @cached_property
    def positions_in_node_order(self) -> Sequence[int]:
        """All positions sorted by node: ``positions[k]`` is the k-th position in that order."""
        if self._first_positions_of_nodes is not None:
            return range(self.num_ranks)
        return tuple(position for positions in self.positions_by_node for position in positions)

    @cached_property
    def _first_positions_of_nodes(self) -> NDArray[np.int64] | None:
        """First position of every node; None if positions of a node are not consecutive."""
        hosts = np.asarray(self.hosts)
        first = run_starts(hosts)
        return first if len(set(hosts[first].tolist())) == len(first) else None

    @cached_property
    def rings(self) -> tuple[Ring, ...]:
        """Rings of the group, one per NIC (``build_node_rings``)."""
        if self.num_ranks > 1 and self.equal_node_rings is not None and len(self.equal_node_rings.orders) == 1:
            return (_ring_without_relays(range(self.num_ranks)),)
        return build_node_rings(self.hosts, self.nics, meshed=self.meshed)

    @cached_property
    def ranks_per_node(self) -> tuple[int, ...]:
        """Number of the group's ranks on each node; nodes are ordered by first appearance in the group."""
        if self._first_positions_of_nodes is not None:
            return tuple(np.diff(self._first_positions_of_nodes, append=self.num_ranks).tolist())
        return tuple(Counter(self.hosts).values())

    @cached_property
    def nvswitch_of_position(self) -> Sequence[int | str]:
        """Number or name of every position's NVSwitch, equal for the same switch; 0 or "" for none."""
        named = self.nvswitches
        return named.numbers.tolist() if isinstance(named, LazyNames) else named

    @cached_property
    def ranks_per_nvswitch(self) -> tuple[int, tuple[int, ...]]:
        """Number of ranks without an NVSwitch, and the sorted numbers of ranks on each NVSwitch."""
        if isinstance(self.nvswitches, LazyNames):
            numbers = self.nvswitches.numbers
            first = run_starts(numbers)
            number, which = unique_inverse(numbers[first])
            count = np.bincount(which, np.diff(first, append=len(numbers))).astype(np.int64)
            return int(count[number == 0].sum()), tuple(np.sort(count[number > 0]).tolist())
        counts = Counter(self.nvswitches)
        lost = counts.pop("", 0)
        return lost, tuple(sorted(counts.values()))

    @cached_property
    def layout_key(self) -> Hashable:
        """Short hashable key of the ranks per node and per NVSwitch, for caches."""
        lost, on_switch = self.ranks_per_nvswitch
        both = [((each[0], len(each)),) if len(set(each)) == 1 else each for each in (self.ranks_per_node, on_switch)]
        return (*both, lost, self.spans_sites)

    @cached_property
    def equal_node_rings(self) -> EqualNodeRings | None:
        """The group's rings as arrays, if all its nodes have the same layout.

        None where that is not known: NICs have no numbers, nodes differ, or their ranks are not consecutive.
        """
        host, many = np.asarray(self.hosts, dtype=np.int64), len(self.ranks_per_node)
        size = self.num_ranks // many
        equal = many > 1 and set(self.ranks_per_node) == {size}
        if not isinstance(self.nics, LazyNames) or not equal or (self.meshed and size > 1):
            return None
        nics = self.nics.numbers.reshape(many, -1)
        if (host.reshape(many, size) != host[::size, None]).any() or (nics - nics[:, :1] != nics[0] - nics[0, 0]).any():
            return None
        gates = _ring_entries_and_exits(range(size), [self.nics[place] for place in range(size)])
        orders = [tuple(range(size))]
        if len(gates) > 1:
            orders = [_build_rail_ring([range(size)], [gate]).order for gate in gates]
        return EqualNodeRings(many, size, tuple(orders))

    def explain_unequal_nodes(self, algorithm: str) -> str:
        """Return why ``algorithm`` cannot run on nodes with unequal numbers of ranks; "" if all have the same."""
        most, least = max(self.ranks_per_node), min(self.ranks_per_node)
        if most == least:
            return ""
        return (
            f"{algorithm} needs the same number of ranks on every node; this group has {most} on one and {least} on "
            f"another: use whole nodes, or another algorithm"
        )


def build_node_rings(hosts: Sequence[int], nics: Sequence[Sequence[str]], *, meshed: bool = False) -> tuple[Ring, ...]:
    """Build a group's rings through its nodes, one ring per NIC that the group can use (MODELLING.md D.3).

    ``hosts[i]`` is the node of position i and ``nics[i]`` the NICs near it: what position i sends and receives on
    channel c goes by ``nics[i][c]``, round and round. Within one node there is one ring in the group's order. Otherwise
    ring r enters every node at a rank near its r-th NIC, visits the node's ranks and leaves through that same NIC, so
    that it stays on its rail: from another rank near it, or, where there is none, from the last rank by NVLink to the
    one that it entered at. With unequal numbers of ranks per node there are as many rings as the node with the fewest
    NICs has, as NCCL takes the fewest channels of all ranks. ``meshed`` nodes have rings that share no link inside
    (``disjoint_mesh_rings``), and between nodes theirs take turns at those walks; of unequal ones there is one ring,
    node by node.

    >>> [ring.order for ring in build_node_rings([0, 0, 1, 1], [("a",), ("b",), ("c",), ("d",)])]
    [(0, 1, 2, 3), (1, 0, 3, 2)]
    """
    machines = positions_of_equal_keys(hosts)
    if len(machines) == 1:
        orders = disjoint_mesh_rings(len(hosts)) if meshed else machines
        return tuple(map(_ring_without_relays, orders))
    known: dict[tuple[tuple[int, ...], ...], list[tuple[int, int]]] = {}
    alike = len({*map(len, machines)}) == 1
    gates = [_cached_ring_entries_and_exits(each, nics, known) for each in machines] if alike or not meshed else []
    count = min(map(len, gates), default=0)
    if count <= 1:
        return (_ring_without_relays([position for positions in machines for position in positions]),)
    if len(known) == 1 and alike:  # one layout: the walk through a machine is the same in all
        table = np.array(machines, dtype=np.int64)
        gate = next(iter(known.values()))
        return tuple(
            _ring_over_equal_nodes(table, gate[r], _rank_order_in_node(table.shape[1], r, meshed)) for r in range(count)
        )
    return tuple(
        _build_rail_ring(
            machines, [each[r] for each in gates], _rank_order_in_node(len(machines[0]), r, meshed) if alike else None
        )
        for r in range(count)
    )


def _rank_order_in_node(size: int, rail: int, meshed: bool) -> Sequence[int]:
    orders = disjoint_mesh_rings(size)
    return orders[rail % len(orders)] if meshed else range(size)


def _ring_without_relays(order: Sequence[int]) -> Ring:
    return Ring(order=tuple(order), relays=(-1,) * len(order))


def _cached_ring_entries_and_exits(
    positions: Sequence[int],
    nics: Sequence[Sequence[str]],
    known: dict[tuple[tuple[int, ...], ...], list[tuple[int, int]]],
) -> list[tuple[int, int]]:
    """Return the entry and exit ranks of a node's rings (``_ring_entries_and_exits``), cached by layout of NICs."""
    numbers: dict[str, int] = {}
    layout = tuple([tuple([numbers.setdefault(nic, len(numbers)) for nic in nics[place]]) for place in positions])
    if layout not in known:
        known[layout] = _ring_entries_and_exits(range(len(positions)), [nics[place] for place in positions])
    return [(positions[entry], positions[leave]) for entry, leave in known[layout]]


def _ring_entries_and_exits(positions: Sequence[int], nics: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    """Return for each ring of a node the ranks where the ring enters and leaves; each ring uses a separate NIC.

    The same rank twice where no other one of the group is near that NIC. Ranks take turns.
    """
    of_ring = _assign_nics([{nics[p][ring % len(nics[p])]: None for p in positions if nics[p]}
                      for ring in range(len({nic for p in positions for nic in nics[p]}))])  # fmt: skip
    busy = dict.fromkeys(positions, 0)
    gates = []
    for ring, nic in enumerate(of_ring):
        near = [p for p in positions if nics[p] and nics[p][ring % len(nics[p])] == nic]
        turn = ring * len(near) // len(of_ring)  # far from where the other rings enter
        near = [*near[turn:], *near[:turn]]
        entry = min(near, key=busy.__getitem__)
        leave = near[near.index(entry) - 1]  # the last one that the ring comes to
        busy[entry] += 1
        busy[leave] += leave != entry
        gates.append((entry, leave))
    return gates


def _assign_nics(wishes: Sequence[Mapping[str, None]]) -> list[str]:
    """Assign a separate NIC to every ring, from the NICs near it; stop at the first ring that gets none.

    Rings that came before make way if they can (Kuhn's algorithm for matchings).
    """
    ring_of: dict[str, int] = {}

    def try_assign(ring: int, asked: dict[str, None]) -> bool:
        for nic in sorted(wishes[ring], key=ring_of.__contains__):  # free ones first
            if nic in asked:
                continue
            asked[nic] = None
            if nic not in ring_of or try_assign(ring_of[nic], asked):
                ring_of[nic] = ring
                return True
        return False

    for ring in range(len(wishes)):
        if not try_assign(ring, {}):
            break
    return sorted(ring_of, key=ring_of.__getitem__)


def _ring_over_equal_nodes(machines: NDArray[np.int64], gate: tuple[int, int], walk: Sequence[int]) -> Ring:
    """Build one ring over nodes (rows) with equal entry and exit index; 20 times as fast as a loop over nodes."""
    one = _build_rail_ring([range(machines.shape[1])], [gate], walk)
    relays = np.full(machines.shape, -1, dtype=np.int64)
    for place, relay in enumerate(one.relays):
        if relay >= 0:
            relays[:, place] = machines[:, relay]
    return Ring(order=tuple(machines[:, one.order].ravel().tolist()), relays=tuple(relays.ravel().tolist()))


def _build_rail_ring(
    machines: Sequence[Sequence[int]], gates: Sequence[tuple[int, int]], walk: Sequence[int] | None = None
) -> Ring:
    order: list[int] = []
    relays: list[int] = []
    for there, (entry, leave) in zip(machines, gates, strict=True):
        positions = there if walk is None else [there[place] for place in walk]
        turn = positions.index(entry)
        visit = [*positions[turn:], *positions[:turn]]
        if leave != entry:
            visit.remove(leave)
            visit.append(leave)
        order += visit
        relays += [-1] * (len(visit) - 1) + [entry if visit[-1] not in (entry, leave) else -1]
    return Ring(order=tuple(order), relays=tuple(relays))
