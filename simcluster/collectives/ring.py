"""Ring collectives and the rings they run on.

Closed forms on a uniform network (N ranks, port B, alpha per step): all-reduce 2(N-1)(alpha + S/(N B)), reduce-scatter
and all-gather half of it.  Source: Patarasuk & Yuan 2009 (bandwidth-optimal all-reduce); modelling.md D.1.
Imports collectives.description.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.collectives.description import Hop, Phase, Ring


def reduce_scatter(rings: Sequence[Ring]) -> tuple[Phase, ...]:
    """N-1 rounds; position i ends with the sum of chunk i + 1 (modulo N) of every ring."""
    return (_phase(rings, first_chunk=0, reduces=True),)


def all_gather(rings: Sequence[Ring]) -> tuple[Phase, ...]:
    """N-1 rounds; position i begins with chunk i + 1 (modulo N), as reduce_scatter leaves it."""
    return (_phase(rings, first_chunk=1, reduces=False),)


def all_reduce(rings: Sequence[Ring]) -> tuple[Phase, ...]:
    """Reduce-scatter, then all-gather, on the same rings."""
    return reduce_scatter(rings) + all_gather(rings)


def send(rings: Sequence[Ring]) -> tuple[Phase, ...]:
    """A point-to-point transfer of the whole size from position 0 to position 1 (rings are not used)."""
    del rings
    return (Phase(rounds=1, hops=(Hop(source=0, target=1, share=1.0),), chunks=1, reduces=False),)


def _phase(rings: Sequence[Ring], first_chunk: int, *, reduces: bool) -> Phase:
    num_ranks = len(rings[0].order)
    hops = tuple(
        Hop(
            source=source,
            target=ring.order[(place + 1) % num_ranks],
            share=1.0 / (num_ranks * len(rings)),
            relay=ring.relays[place],
            channel=channel,
            chunk=(place + first_chunk) % num_ranks,
        )
        for channel, ring in enumerate(rings)
        for place, source in enumerate(ring.order)
    )
    return Phase(rounds=num_ranks - 1, hops=hops if num_ranks > 1 else (), chunks=num_ranks, reduces=reduces)


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
