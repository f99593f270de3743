"""The ranks of a collective, where their GPUs are, and the rings that can be laid through them.

What an algorithm may know of the cluster.  Imports errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from simcluster.errors import InputError


@dataclass(frozen=True, slots=True)
class Ring:
    """A closed walk over the positions of a group; ``relays[i]`` is the relay of the hop that leaves ``order[i]``."""

    order: tuple[int, ...]
    relays: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """The ranks of a collective, by position.

    ``hosts[i]`` is the machine of position i, ``nics[i]`` the NICs by which it can leave it, ``nvswitches[i]`` the
    NVSwitch that its GPU is linked to ("" for none).
    """

    hosts: tuple[int, ...]
    nics: tuple[tuple[str, ...], ...]
    nvswitches: tuple[str, ...]

    @property
    def num_ranks(self) -> int:
        """Ranks in the group."""
        return len(self.hosts)

    @cached_property
    def machines(self) -> tuple[tuple[int, ...], ...]:
        """Positions machine by machine, machines in the order of their first position."""
        members: dict[int, list[int]] = {}
        for position, host in enumerate(self.hosts):
            members.setdefault(host, []).append(position)
        return tuple(tuple(positions) for positions in members.values())

    @cached_property
    def places(self) -> tuple[int, ...]:
        """All positions, those of a machine next to each other: ``places[k]`` is the k-th."""
        return tuple(position for positions in self.machines for position in positions)

    @cached_property
    def rings(self) -> tuple[Ring, ...]:
        """Rings along the machines, one per rail (``rings_along``)."""
        return rings_along(self.hosts, self.nics)

    def equal_machines(self, algorithm: str) -> tuple[tuple[int, ...], ...]:
        """``machines``, if they have equally many ranks.

        Raises InputError otherwise, naming the algorithm that needs it.
        """
        sizes = [len(positions) for positions in self.machines]
        if min(sizes) != max(sizes):
            raise InputError(
                f"{algorithm} needs equally many ranks on every machine; this group has {max(sizes)} on one and "
                f"{min(sizes)} on another: use whole machines, or another algorithm"
            )
        return self.machines


def rings_along(hosts: Sequence[int], nics: Sequence[Sequence[str]]) -> tuple[Ring, ...]:
    """Rings of a group laid along the machines: one per rail that the group can use (NCCL's rule, modelling.md D.3).

    ``hosts[i]`` is the machine of position i and ``nics[i]`` the NICs it can use.  Within one machine, or with one rank
    a machine, there is one ring in the group's order.  Otherwise ring r enters every machine at the owner of its r-th
    NIC, visits the machine's ranks and leaves through that same NIC, so that it stays on its rail; the last rank
    reaches the owner over NVLink.  With unequal numbers of ranks a machine there is one ring, machine by machine.
    """
    members: dict[int, list[int]] = {}
    for position, host in enumerate(hosts):
        members.setdefault(host, []).append(position)
    sizes = {len(positions) for positions in members.values()}
    if len(members) == 1 or max(sizes) == 1:
        return (_plain(range(len(hosts))),)
    machine_by_machine = [position for positions in members.values() for position in positions]
    owners = [_owners(positions, nics) for positions in members.values()]
    count = min(len(of_host) for of_host in owners)
    if len(sizes) > 1 or count <= 1:
        return (_plain(machine_by_machine),)
    return tuple(_rail_ring(list(members.values()), [of_host[rail] for of_host in owners]) for rail in range(count))


def _plain(order: Sequence[int]) -> Ring:
    return Ring(order=tuple(order), relays=(-1,) * len(order))


def _owners(positions: Sequence[int], nics: Sequence[Sequence[str]]) -> list[int]:
    """For each NIC of a machine that the group reaches, the first of its ranks that does."""
    owner: dict[str, int] = {}
    for position in positions:
        for nic in nics[position]:
            if nic not in owner:
                owner[nic] = position
                break
    return list(owner.values())


def _rail_ring(members: Sequence[Sequence[int]], entries: Sequence[int]) -> Ring:
    order: list[int] = []
    relays: list[int] = []
    for positions, entry in zip(members, entries, strict=True):
        turn = positions.index(entry)
        visit = [*positions[turn:], *positions[:turn]]
        order += visit
        relays += [-1] * (len(visit) - 1) + [entry]
    return Ring(order=tuple(order), relays=tuple(relays))
