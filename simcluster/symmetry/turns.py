"""Automorphisms of a regular fat tree: permutations of its machines that map every route to a route.

A job whose replicas are all alike looks the same from each of them, if the cluster does; and one with a rank on every
GPU of a machine looks the same from each rail.  What has to hold for that is checked here, in arrays: then one part of
the cluster, the *window*, tells what all others carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simcluster.base.arrays import Int32s, Ints, Numbers
from simcluster.base.link_columns import PerLink
from simcluster.base.link_values import LinkValues
from simcluster.base.multiset_hash import compact
from simcluster.topology.cluster import Cluster
from simcluster.topology.hops import Ground, Machines
from simcluster.topology.regular import Regular

_BY_DESTINATION = ("static", "shortest", "adaptive")


@dataclass(frozen=True, eq=False)
class Step:
    """GPUs in place p of machine m take those of GPUs in place ``place[p]`` of machine ``machine[m]``; -1 for machines
    that are not used."""

    machine: Ints
    place: Ints

    @property
    def stays(self) -> bool:
        """Does every GPU come to a GPU in the same place?"""
        return bool((self.place == np.arange(len(self.place))).all())


@dataclass(frozen=True, eq=False)
class Automorphism:
    """A group of automorphisms: ``steps`` that bring a cluster onto itself, one after the other as often as one likes.

    The ``window`` has one GPU of all ``count`` that take each other's places so; it says which one each becomes there,
    and which link of a machine each of its ``links`` becomes (places).  Each is taken along with the GPU in place
    ``owner`` of its machine.
    """

    steps: tuple[Step, ...]
    window: Step
    links: Ints
    owner: Ints
    count: int


@dataclass(frozen=True, eq=False)
class LinkImages:
    """``become`` has for every link the one that it becomes in the window, -1 for links that are not used.

    ``wired`` is the capacity of every link (B/s), with nothing wrong with it.
    """

    become: PerLink
    wired: LinkValues
    _ground: Ground
    _turn: Automorphism

    @property
    def settled(self) -> bool:
        """Was every way inside a machine found, of those asked for so far, once for all machines?"""
        return all(len(way) for way in self._ground.machines.known.values())

    @cached_property
    def owner(self) -> Int32s:
        """For every link a GPU that each turn takes along with it, -1 for links that are not used."""
        ground, turn, machines = self._ground, self._turn, self._ground.machines
        used = np.flatnonzero(turn.window.machine >= 0)
        gpus, leaf = machines.gpus[used], np.full(ground.hops.size, -1, dtype=np.int32)
        leaf[ground.ends.leaf[gpus]] = gpus
        found = np.full(len(self.wired), -1, dtype=np.int32)
        found[machines.owned[used]] = gpus[:, turn.owner[machines.origin]]
        for number, table in enumerate(ground.rows.tables[1:], start=1):
            there = np.flatnonzero(ground.table == number)
            found[table[ground.row[there]]] = leaf[there, None]
        return found

    def along(self, turns: Sequence[Ints]) -> bool:
        """Is each link of a way inside a machine, of those asked for so far, as often turned as one of its two GPUs?

        ``turns`` say how often GPUs are, step by step.  Ways between machines are: of the links of two machines, and
        those up from their leaves.
        """
        machines, owner = self._ground.machines, self._turn.owner
        gpus = machines.gpus[np.unique(self._turn.window.machine[self._turn.window.machine >= 0])]
        pairs = [(*divmod(pair, machines.size), owner[way]) for pair, way in machines.known.items()]
        return all(
            ((times[:, link] == times[:, [one]]) | (times[:, link] == times[:, [other]])).all()
            for times in (each[gpus] for each in turns)
            for one, other, link in pairs
        )


def step_of(machines: Machines, gpus: Numbers) -> Step | None:
    """What takes GPU i, of those used, to GPU ``gpus[i]``; None if machines or places do not stay together."""
    size, used = machines.size, -(-len(gpus) // machines.size)
    machine, place = np.full(machines.count, -1, dtype=np.int64), np.full(size, -1, dtype=np.int64)
    machine[:used] = gpus[::size] // size
    place[: min(size, len(gpus))] = gpus[:size] % size
    whole = len(gpus) // size
    full, rest = gpus[: whole * size].reshape(whole, size), gpus[whole * size :]
    first, onto = (machine[:used, None] * size).astype(gpus.dtype), place.astype(gpus.dtype)
    if (full != first[:whole] + onto).any() or (rest != first[whole:] + onto[: len(rest)]).any():
        return None
    return Step(machine, place)


def parts_onto(part: Numbers, onto: Numbers) -> Ints | None:
    """Return the part that each one becomes, -1 for those that are not there; None if one becomes several."""
    found = np.full(int(part.max(initial=-1)) + 1, -1, dtype=np.int64)
    found[part] = onto
    return found if (found[part] == onto).all() else None


def stay_together(part: Ints, step: Step) -> bool:
    """Do machines of one part all come to machines of one part?"""
    used = np.flatnonzero(step.machine >= 0)
    return parts_onto(part[used], part[step.machine[used]]) is not None


def link_images(
    cluster: Cluster, steps: Sequence[Numbers], window: Numbers, count: int
) -> LinkImages | None:  # fmt: skip
    """Return what becomes of every link if, by any of the ``steps``, GPU i takes the place of GPU ``step[i]``.

    ``window[i]`` is what GPU i becomes in the window, which has one of all ``count`` that take each other's places.
    None where that changes a route, a machine, or a link's wired capacity or latency, and for a cluster that is not
    regular.
    """
    regular = cluster.wiring
    if not isinstance(regular, Regular) or not regular.one_fabric:
        return None
    found = [step_of(regular.machines, gpus) for gpus in (*steps, window)]
    known = [step for step in found if step is not None]
    if len(known) < len(found):
        return None
    *those, into = known
    if not all(stay_together(np.arange(regular.draft.stamped) // regular.draft.per_host, step) for step in those):
        return None
    links = _links_turned(regular, those, into)
    if links is None:
        return None
    return _counterparts(regular, Automorphism(tuple(those), into, *links, count))


def leaves_together(cluster: Cluster, gpus: Numbers) -> bool:
    """Return whether ``link_images`` may know a step that takes GPU i, of the first few, to GPU ``gpus[i]``."""
    if not isinstance(cluster.wiring, Regular):
        return False
    leaf = cluster.wiring.ends.leaf
    return parts_onto(leaf[: len(gpus)], leaf[gpus]) is not None


def _links_turned(regular: Regular, steps: Sequence[Step], window: Step) -> tuple[Ints, Ints] | None:
    """Return ``Automorphism.links`` and ``owner``, from machine 0.

    What a GPU leaves by goes where it goes, everything else stays.  None unless that brings links onto equal links, and
    as many of them onto each of the window as GPUs.
    """
    ground, machines = regular.ground, regular.machines
    columns = np.arange(machines.numbers.width)
    if window.stays and all(step.stays for step in steps):
        return columns, np.zeros_like(columns)
    inside = {pair: column for pair, column in regular.sample_index.items() if column < len(columns)}
    maps = [_columns(regular, inside, step.place) for step in (*steps, window)]
    links = machines.owned[0, np.stack([columns, machines.numbers.back[columns]])]
    kind = ground.kind[machines.numbers.sorts[links]]
    if any(to is None or (kind != kind[:, to]).any() for to in maps):
        return None
    orbit = columns
    for _ in columns:  # until the lowest of all that take each other's places is known
        for to in maps[:-1]:
            orbit = np.minimum(orbit, orbit[to])
    found = maps[-1]
    assert found is not None
    several = len(window.place) // len(np.unique(window.place))
    if (orbit[found] != orbit).any() or (np.bincount(found)[np.unique(found)] != several).any():
        return None
    owner = np.where(found == columns, window.place.min(), -1)
    for _ in columns:  # from the window on
        for to, step in zip(maps, steps, strict=False):
            owner[to] = np.where(owner[to] < 0, np.where(owner < 0, -1, step.place[owner]), owner[to])
    return found, owner


def _columns(regular: Regular, inside: Mapping[tuple[str, str], int], place: Ints) -> Ints | None:
    """Where every link of a machine comes to if the GPUs come to these places; None if that is no link."""
    to: dict[str, str] = {}
    if (place < 0).any():
        return None
    ways = regular.ways
    walks = [
        [*(ways.only_walk_inside(gpu, port.node) or ()), port.switch]
        for gpu, (port,) in zip(regular.locals, ways.near.exits, strict=True)
    ]
    for own, other in enumerate(place.tolist()):
        if len(walks[own]) != len(walks[other]) or any(
            to.setdefault(a, b) != b for a, b in zip(walks[own], walks[other], strict=True)
        ):
            return None
    found = np.full(len(inside), -1, dtype=np.int64)
    for (a, b), column in inside.items():
        found[column] = inside.get((to.get(a, a), to.get(b, b)), -1)
    return None if (found < 0).any() else found


def _counterparts(regular: Regular, turn: Automorphism) -> LinkImages | None:
    """Return what becomes of every link.

    None unless each route between used GPUs is turned into the route between the GPUs that these become: leaves are
    turned as their machines are, all under the same top switches, which stay, and the policy picks the same of those.
    Nor where a link above leaves becomes one of another sort; those of machines are alike.
    """
    ground, policy = regular.ground, regular.routing
    hops, used = ground.hops, np.flatnonzero(turn.window.machine >= 0)
    if policy.kind not in _BY_DESTINATION or policy.pxn:
        return None
    found = _leaves(ground, turn, used)
    if found is None:
        return None
    below, window = found
    number, top = ground.table[below[0]], hops.onto[below[0]]
    same = (ground.table[below] == number).all() and number > 0 and (hops.onto[below] == top).all()
    if not same or len(below) != turn.count * len(np.unique(window)):
        return None
    steps = [step for step in turn.steps if policy.kind == "static"]
    if any((own != there[:, step.place]).any() for step in steps
           for own, there in [ground.order.moved(used, step.machine[used])]):  # fmt: skip
        return None
    sort = ground.unlike[number - 1]
    if (sort[ground.row[below]] != sort[ground.row[window]]).any():
        return None
    return LinkImages(_become(ground, turn, used, (below, window)), regular.link_capacity, ground, turn)


def _leaves(ground: Ground, turn: Automorphism, used: Ints) -> tuple[Ints, Ints] | None:
    """The leaves of these machines, and those that they become in the window; None if they do not go together."""
    onto: Ints | None = None
    for step in (*turn.steps, turn.window):  # the window comes last
        own, there = ground.ends.leaves.moved(used, step.machine[used])
        onto = parts_onto(own, there[:, step.place])
        if onto is None or (step is not turn.window and np.bincount(onto[onto >= 0]).max() > 1):
            return None
    assert onto is not None
    below = np.flatnonzero(onto >= 0)
    return below, onto[below]


def _become(ground: Ground, turn: Automorphism, used: Ints, leaves: tuple[Ints, Ints]) -> PerLink:
    """What the links of these machines become, and of these leaves: those of machines and leaves of the window."""
    rows, machines = ground.rows, ground.machines
    begin = machines.numbers.width
    column = turn.links[machines.origin]
    outside = np.full(begin, -1, dtype=np.int64)
    outside[machines.origin[begin:]] = np.arange(begin, len(column))
    column[begin:] = outside[column[begin:]]
    those, which = compact(turn.window.machine[used])
    below, window = (ground.row[each] for each in leaves)
    kinds, values = [], []
    for number, table in enumerate(rows.tables):
        own, into, kept = (used, which, table[those][:, column]) if not number else (below[:0], below[:0], table[:0])
        if number == ground.table[leaves[0][0]]:
            near, into = compact(window)
            own, kept = below, table[near]
        kind = np.full(len(table), len(kept), dtype=np.int64)
        kind[own] = into
        kinds.append(kind)
        values.append(np.concatenate([kept, np.full((1, table.shape[1]), -1, dtype=np.int32)]))
    return PerLink(rows, tuple(kinds), tuple(values), np.full(len(rows.rest), -1, dtype=np.int32))
