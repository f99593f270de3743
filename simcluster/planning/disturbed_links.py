"""From faults of links to what is left of each link's capacity, for ever or as time goes on.

Pure; imports the faults, profiles and the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simcluster.errors import InputError
from simcluster.faults import BackgroundLoad, Fault, LinkFlap, SlowLink
from simcluster.faults.by_effect import LinkFault, by_effect
from simcluster.faults.draws import stream
from simcluster.faults.where import OnLinks, window
from simcluster.planning.profiles import STEADY, Profile, Spells, Watched, product
from simcluster.topology import Cluster


def permanently(faults: Sequence[Fault], cluster: Cluster) -> list[tuple[str, str, float]]:
    """Pairs of neighbours whose links always carry a part of what they should, and which (``Cluster.scaled``)."""
    found: list[tuple[str, str, float]] = []
    for fault in by_effect(faults).links:
        if isinstance(fault, SlowLink) and fault.window(fault.factor) is None:
            if fault.between is not None:
                found.append((*fault.between, fault.factor))
                continue
            pairs = dict.fromkeys(tuple(sorted(cluster.links[link])) for link in links_of(fault, cluster))
            found += [(pair[0], pair[1], fault.factor) for pair in pairs]
    return found


def with_permanent(faults: Sequence[Fault], cluster: Cluster) -> Cluster:
    """The cluster with what is wrong with its links for ever."""
    return cluster.scaled(permanently(faults, cluster))


def capacity_profiles(
    faults: Sequence[Fault], cluster: Cluster, seed: int, watched: Sequence[OnLinks] = ()
) -> dict[int, Profile]:
    """By link, what is left of its capacity over time, where that changes or others take some of it.

    The links of ``watched`` faults have a profile, too, in which nothing changes.
    """
    parts: dict[int, list[Profile]] = {}
    for number, each in enumerate(watched):
        for link in links_of(each, cluster):
            parts.setdefault(link, []).append(Watched(number))
    for fault in by_effect(faults).links:
        if not fault.neutral:
            shared: dict[float, Profile | None] = {}
            for link in links_of(fault, cluster):
                left = left_of(fault, float(cluster.capacity[link]))
                if left not in shared:
                    shared[left] = _profile(fault, left, seed)
                profile = shared[left]
                if profile is not None:
                    parts.setdefault(link, []).append(profile)
    return {link: product(own) for link, own in parts.items()}


def links_of(fault: OnLinks, cluster: Cluster) -> list[int]:
    """The links that a fault is on, both directions of each.  InputError for what is not in the cluster."""
    if fault.between is not None:
        return cluster.links_between(*fault.between)
    if fault.nic_of is not None:
        gpus = [fault.nic_of]
    else:
        gpus = [gpu for gpu, host in enumerate(cluster.host_of) if host == fault.uplinks_of]
    ports = dict.fromkeys(port for gpu in gpus for port in cluster.uplinks(gpu))
    kind = cluster.graph.nodes(data="kind")
    found = [
        cluster.link_index[pair]
        for port in ports
        for neighbour in cluster.graph.successors(port)
        if kind[neighbour] == "switch"
        for pair in ((port, neighbour), (neighbour, port))
        if pair in cluster.link_index
    ]
    if not found:
        what = f"rank {fault.nic_of}" if fault.nic_of is not None else f"machine {fault.uplinks_of}"
        raise InputError(f"{what} of cluster {cluster.name!r} has no NIC on a switch; name links with between instead")
    return found


def left_of(fault: LinkFault, capacity: float) -> float:
    """The part of a link of so many B/s that there is while the fault is."""
    if isinstance(fault, SlowLink):
        return fault.factor
    if isinstance(fault, LinkFlap):
        return 0.0
    if fault.share is not None:
        return 1.0 - fault.share
    assert fault.rate is not None
    if fault.rate >= capacity and fault.window(0.0) is None and fault.on is None:
        raise InputError(
            f"a background load of {fault.rate / 1e9:g} GB/s leaves nothing of a link of {capacity / 1e9:g} GB/s, for "
            "ever; give a lower rate, a share below 1, or an end"
        )
    return max(0.0, 1.0 - fault.rate / capacity)


def _profile(fault: LinkFault, left: float, seed: int) -> Profile | None:
    """That over time; None where the capacity itself has it (``permanently``)."""
    if isinstance(fault, LinkFlap):
        start = fault.start or 0.0
        if fault.period is None:
            return window(left, start, start + fault.down, None, None)
        return window(left, start, None, fault.period, fault.down / fault.period)
    if isinstance(fault, BackgroundLoad) and fault.on is not None and fault.off is not None:
        return spells_of(fault.on, fault.off, left, seed, fault.seed)
    found = fault.window(left)
    if found is None and isinstance(fault, BackgroundLoad):
        return type(STEADY)(left)
    return found


def spells_of(on: float, off: float, left: float, seed: int, number: int | None) -> Spells:
    """A load that comes and goes in spells of these mean lengths (s) by a stream of draws."""
    chance = stream(seed, "background", number)
    first = bool(chance.random() < on / (on + off))

    def lengths() -> Iterator[float]:
        present = first
        while True:
            yield max(1e-9, float(chance.exponential(on if present else off)))
            present = not present

    return Spells(left, lengths(), first=first)
