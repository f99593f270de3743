"""Base classes of faults that affect ranks or links, permanently or in windows of time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from simcluster.base.clock import Profile, WindowProfile, round_to_tick, tick_seconds
from simcluster.base.errors import InputError
from simcluster.base.units import Seconds
from simcluster.documents.diagnostics import KeyProblem
from simcluster.faults.fault_spec import FaultSpec
from simcluster.topology import Cluster

Number = Annotated[int, Field(strict=True, ge=0)]
"""Number of a rank, a node or a step, from 0."""
SHORTEST_PERIOD = 1e-6


class RankFault(FaultSpec):
    """Base class of faults on ranks."""

    rank: Number | None = None
    """Rank that the fault affects."""
    ranks: Annotated[tuple[Number, ...], Field(min_length=1)] | None = None
    """List of ranks that the fault affects."""
    node: Number | None = None
    """Number of a node; the fault affects all ranks of the job on it."""

    @model_validator(mode="after")
    def _check_ranks_key(self) -> Self:
        named = [name for name in ("rank", "ranks", "node") if getattr(self, name) is not None]
        if len(named) > 1:
            raise InputError(f"{' and '.join(named)} both set the ranks; keep one")
        return self

    @property
    def named_ranks(self) -> tuple[int, ...] | None:
        """Ranks that the fault lists; None if it names a node or nothing."""
        return (self.rank,) if self.rank is not None else self.ranks

    def affected_ranks(self, host_of: Sequence[int]) -> list[int]:
        if self.named_ranks is not None:
            return list(dict.fromkeys(self.named_ranks))
        return [rank for rank, host in enumerate(host_of) if self.node is None or host == self.node]

    @property
    def affects_all_ranks(self) -> bool:
        return self.named_ranks is None and self.node is None

    def complaints(self, scenario: Any) -> Iterator[KeyProblem]:
        gpus = scenario.gpus
        for rank in self.named_ranks or ():
            if rank >= gpus:
                name = "rank" if self.rank is not None else "ranks"
                yield (name,), f"there is no rank {rank}: the job has {gpus} GPUs, so name one of ranks 0 to {gpus - 1}"
        hosts = scenario.cluster.built.host_of[:gpus]
        if self.node is not None and self.node not in hosts:
            yield ("node",), f"the job has no node {self.node}; use one of 0 to {max(hosts, default=0)}"

    def for_remaining_ranks(self, host_of: Sequence[int], place: Mapping[int, int]) -> Self | None:
        if self.affects_all_ranks:
            return self
        ranks = tuple(place[rank] for rank in self.affected_ranks(host_of) if rank in place)
        return self.model_copy(update={"rank": None, "node": None, "ranks": ranks}) if ranks else None


class LinkFault(FaultSpec):
    """Base class of faults on links, in both directions."""

    between: tuple[str, str] | None = None
    """Ends of the affected link: two neighbours in the cluster's graph, as simcluster topology FILE prints them."""
    nic_of: Number | None = None
    """Rank whose NIC ports the fault affects."""
    uplinks_of: Number | None = None
    """Number of a node; the fault affects all its links into the network."""

    @model_validator(mode="after")
    def _check_links_key(self) -> Self:
        named = [name for name in ("between", "nic_of", "uplinks_of") if getattr(self, name) is not None]
        if len(named) != 1:
            what = f"{' and '.join(named)} are both set" if named else "no links are named"
            raise InputError(
                f"{what}; set one of between: [node, neighbour], nic_of: a rank, or uplinks_of: the number of a node"
            )
        if self.between and self.between[0] == self.between[1]:
            raise InputError(f"'between' has the end {self.between[0]!r} twice; name the two different ends of a link")
        return self

    def affected_links(self, cluster: Cluster) -> list[int]:
        if self.between is not None:
            return cluster.links_between(*self.between)
        if self.nic_of is not None:
            gpus = [self.nic_of]
        else:
            gpus = [gpu for gpu, host in enumerate(cluster.host_of) if host == self.uplinks_of]
        found = nic_switch_links(cluster, gpus)
        if not found:
            what = f"rank {self.nic_of}" if self.nic_of is not None else f"node {self.uplinks_of}"
            raise InputError(
                f"{what} of cluster {cluster.name!r} has no NIC on a switch; name links with between instead"
            )
        return found

    def complaints(self, scenario: Any) -> Iterator[KeyProblem]:
        cluster, gpus = scenario.cluster.built, scenario.gpus
        if self.nic_of is not None and self.nic_of >= gpus:
            what = f"there is no rank {self.nic_of}: the job has {gpus} GPUs, so name one of ranks 0 to {gpus - 1}"
            yield ("nic_of",), what
        elif self.uplinks_of is not None and self.uplinks_of not in cluster.host_of:
            what = f"the cluster has no node {self.uplinks_of}; use one of 0 to {max(cluster.host_of)}"
            yield ("uplinks_of",), what
        else:
            try:
                for link in self.affected_links(cluster):
                    self.remaining_share(float(cluster.capacity[link]))
            except InputError as error:
                yield (), str(error)

    def for_remaining_ranks(self, host_of: Sequence[int], place: Mapping[int, int]) -> Self | None:
        """Return the fault after some ranks have left: a NIC's or node's fault moves with the NIC or node."""
        if self.nic_of is not None:
            return self.model_copy(update={"nic_of": place[self.nic_of]}) if self.nic_of in place else None
        if self.uplinks_of is not None and self.uplinks_of in host_of:
            hosts = enumerate(host_of)
            now = [host_of[place[rank]] for rank, host in hosts if host == self.uplinks_of and rank in place]
            return self.model_copy(update={"uplinks_of": now[0]}) if now else None
        return self

    def with_cluster_numbers(self, gpus: Sequence[int], machines: Sequence[int]) -> Self:
        """Return the fault with the cluster's rank and node numbers; InputError if its node is not in the job."""
        change: dict[str, int] = {}
        if self.nic_of is not None:
            change["nic_of"] = gpus[self.nic_of]
        if self.uplinks_of is not None:
            if self.uplinks_of >= len(machines):
                raise InputError(
                    f"uplinks_of: the job has no node {self.uplinks_of}; use one of 0 to {len(machines) - 1}"
                )
            change["uplinks_of"] = machines[self.uplinks_of]
        return self.model_copy(update=change)


def nic_switch_links(cluster: Cluster, gpus: Iterable[int]) -> list[int]:
    """Return the links, in both directions, between these GPUs' NICs and their switches."""
    ports = dict.fromkeys(port for gpu in gpus for port in cluster.exit_nics(gpu))
    kind = cluster.graph.nodes(data="kind")
    return [
        cluster.link_index[pair]
        for port in ports
        for neighbour in cluster.graph.successors(port)
        if kind[neighbour] == "switch"
        for pair in ((port, neighbour), (neighbour, port))
        if pair in cluster.link_index
    ]


class TimedFault(FaultSpec):
    """Base class of faults with a start, end or period; times count from the start of the first step."""

    start: Seconds | None = None
    """Time at which the fault begins; default: the beginning of the first step."""
    end: Seconds | None = None
    """Time at which the fault ends; default: never."""
    period: Seconds | None = None
    """Time from one occurrence of the fault to the next; requires `duty`."""
    duty: Annotated[float, Field(strict=True, gt=0, lt=1)] | None = None
    """Share (0 to 1) of every period in which the fault is present, from the period's beginning; requires `period`."""

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.end is not None and self.end <= (self.start or 0.0):
            raise InputError(f"'end' ({self.end:g} s) must be later than 'start' ({self.start or 0.0:g} s)")
        if (self.period is None) != (self.duty is None):
            given, other = ("period", "duty") if self.duty is None else ("duty", "period")
            raise InputError(f"'{given}' requires '{other}'; 'duty' is the faulty share of each period, as in 0.2")
        if self.period is not None and self.period < SHORTEST_PERIOD:
            raise InputError(f"'period' = {self.period:g} s is too short; use at least 1 us")
        return self

    @property
    def is_permanent(self) -> bool:
        return not self.start and self.end is None and self.period is None

    def count_starts(self, seconds: float) -> float:
        there = min(seconds, seconds if self.end is None else self.end) - (self.start or 0.0)
        return max(0.0, there) / self.period if self.period else 0.0

    def profile(self, value: float, seed: int) -> Profile:
        return window_profile(value, self.start, self.end, self.period, self.duty)


def window_profile(
    value: float, start: float | None, end: float | None = None, period: float | None = None, duty: float | None = None
) -> WindowProfile:
    """Return a factor over time that is ``value`` from ``start`` to ``end`` (s), or in part of each period."""
    ends = math.inf if end is None else round_to_tick(end)
    if period is None or duty is None:
        return WindowProfile(value, round_to_tick(start or 0.0), ends)
    if round_to_tick(period) == 0:
        raise InputError(
            f"faults: a period of {period:g} s is too short: times in steps this long are multiples of "
            f"{tick_seconds():.2g} s; use a longer period"
        )
    return WindowProfile(value, round_to_tick(start or 0.0), ends, round_to_tick(period), round_to_tick(duty * period))
