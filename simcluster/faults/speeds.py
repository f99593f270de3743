"""Faults of slow GPUs and NICs: one slow device, or a speed for each device, random or measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import Complaint
from simcluster.documents.kinds import OR_TABLE
from simcluster.faults.draws import Lognormal, Normal, random_stream
from simcluster.faults.pace import PaceFault
from simcluster.faults.spec import FaultSpec
from simcluster.faults.where import During, Number, OnRanks, cables_to_switches
from simcluster.topology import Cluster


class SlowGpu(PaceFault, OnRanks, During):
    """A GPU that runs every kernel slower; a kernel in progress continues at the new speed."""

    EXAMPLE: ClassVar = {"kind": "slow_gpu", "rank": 1, "slowdown": 1.5}
    NEUTRAL: ClassVar = {"kind": "slow_gpu", "rank": 1, "slowdown": 1.0}

    FACTOR = "slowdown"

    kind: Literal["slow_gpu"]
    factor: Annotated[float, Field(strict=True, ge=1, le=1e6)]
    """Slowdown factor, 1 or more; an older name of slowdown."""

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        if self.named is None and self.node is None:
            raise InputError("rank is required: name the slow GPU; or set ranks, or node for all GPUs of a node")
        return self

    @property
    def neutral(self) -> bool:
        return self.factor == 1

    def slowness(self) -> float:
        return self.factor


SLOWEST = 0.01
MOST_LINES = 1 << 21


class DeviceSpeeds(FaultSpec):
    """Base of faults with a speed per device, from a distribution (``law``) or a ``table``.

    Messages call the devices ``MANY``, one of them ``ONE``, and its number ``NUMBER``. Raises InputError for law and
    table at once, for neither, and for two speeds of one number.
    """

    MANY: ClassVar[str]
    ONE: ClassVar[str]
    NUMBER: ClassVar[str]

    kind: str  # each kind has its own word; here, so that it stands first in a document
    law: Annotated[Normal | Lognormal, Field(discriminator="kind")] | None = None
    """Distribution of the speeds, where 1 is full speed; NIC speeds are capped at 1."""
    table: Annotated[
        Annotated[tuple[tuple[Number, float], ...], Field(min_length=1, max_length=MOST_LINES)] | None, OR_TABLE
    ] = None
    seed: Number | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.law is None) == (self.table is None):
            both = f"law and table both set the speeds of {self.MANY}; keep one"
            what = both if self.law else f"the speed of each {self.ONE} is missing; set one"
            choice = f"law: {{kind: normal, sigma: 0.03}}, or table: the path of a CSV file, {self.NUMBER},speed"
            raise InputError(f"{what}: {choice}")
        seen: set[int] = set()
        for number, _ in self.table or ():
            if number in seen:
                raise InputError(f"table has two speeds for {self.NUMBER} {number}; keep one")
            seen.add(number)
        return self

    @property
    def neutral(self) -> bool:
        return self.law.neutral if self.law else all(speed == 1 for _, speed in self.table or ())

    @property
    def by_chance(self) -> bool:
        return self.law is not None and not self.neutral


Speed = Annotated[float, Field(strict=False, ge=SLOWEST, le=100)]


class Speeds(DeviceSpeeds):
    """A random or measured speed for every GPU; its kernels take 1 / speed times as long.

    Equal GPUs of one cluster differ by 8 % on average (Sinha et al., Not All GPUs Are Created Equal, SC 2022).
    Each replica of the simulation draws other speeds.
    """

    EXAMPLE: ClassVar = {"kind": "speeds", "law": {"kind": "normal", "sigma": 0.3}}
    NEUTRAL: ClassVar = {"kind": "speeds", "law": {"kind": "normal", "sigma": 0}}
    ONCE: ClassVar = "a GPU has one speed"
    MANY: ClassVar = "GPUs"
    ONE: ClassVar = "GPU"
    NUMBER: ClassVar = "rank"

    kind: Literal["speeds"]
    table: Annotated[
        Annotated[tuple[tuple[Number, Speed], ...], Field(min_length=1, max_length=MOST_LINES)] | None, OR_TABLE
    ] = None
    """Measured speeds: pairs of a rank and its speed, or a CSV file of them (rank,speed per line); others have 1."""

    def slowdowns(self, ranks: int, seed: int) -> Floats:
        """Return the factor on the computation times of every rank."""
        if self.law is not None:
            return 1.0 / np.maximum(self.law.draw(random_stream(seed, "speeds", self.seed), ranks), SLOWEST)
        found = np.ones(ranks)
        number, speed = np.array(self.table, dtype=np.float64).T
        found[number.astype(np.int64)] = 1.0 / speed
        return found

    def complaints(self, scenario: Any) -> Iterator[Complaint]:
        """Yield an error for ranks in the table that are not in the job."""
        beyond = max((rank for rank, _ in self.table or ()), default=-1)
        if beyond >= scenario.gpus:
            what = f"there is no rank {beyond}: the job has {scenario.gpus} GPUs, so ranks 0 to {scenario.gpus - 1}"
            yield ("table",), what

    def moved(self, host_of: Sequence[int], place: Mapping[int, int]) -> Self | None:
        """Return the fault for the remaining ranks: a table's speeds move with their GPUs, random ones are redrawn."""
        if self.table is None:
            return self
        table = tuple([(place[rank], speed) for rank, speed in self.table if rank in place])
        return self.model_copy(update={"table": table}) if table else None


Part = Annotated[float, Field(strict=False, ge=SLOWEST, le=1)]


class NicSpeeds(DeviceSpeeds):
    """A random or measured speed for the NICs of every node, in both directions; each replica draws other speeds."""

    EXAMPLE: ClassVar = {"kind": "nic_speeds", "law": {"kind": "normal", "sigma": 0.5}}
    NEUTRAL: ClassVar = {"kind": "nic_speeds", "law": {"kind": "normal", "sigma": 0}}
    ONCE: ClassVar = "the NICs of a node have one speed"
    MANY: ClassVar = "NICs"
    ONE: ClassVar = "node's NIC"
    NUMBER: ClassVar = "node"

    kind: Literal["nic_speeds"]
    table: Annotated[
        Annotated[tuple[tuple[Number, Part], ...], Field(min_length=1, max_length=MOST_LINES)] | None, OR_TABLE
    ] = None
    """Measured speeds: pairs of a node and its NICs' speed, or a CSV file of them (node,speed per line); others have
    1."""

    def lefts(self, cluster: Cluster, seed: int) -> dict[int, float]:
        """Return the remaining share of the capacity of each slowed link between NICs and switches."""
        of_machines: dict[int, list[int]] = {}
        for gpu, host in enumerate(cluster.host_of):
            of_machines.setdefault(host, []).append(gpu)
        if self.law is None:
            speeds = dict(self.table or ())
        else:
            drawn = self.law.draw(random_stream(seed, "nic_speeds", self.seed), max(of_machines) + 1)
            speeds = dict(enumerate(np.clip(drawn, SLOWEST, 1.0).tolist()))
        return {
            link: speeds[host]
            for host, gpus in of_machines.items()
            if speeds.get(host, 1.0) < 1
            for link in cables_to_switches(cluster, gpus)
        }

    def complaints(self, scenario: Any) -> Iterator[Complaint]:
        """Yield an error for nodes in the table that are not in the job, or have no NIC."""
        cluster, gpus = scenario.cluster.built, scenario.gpus
        hosts = cluster.host_of[:gpus]
        beyond = sorted({host for host, _ in self.table or ()} - {*hosts})
        if beyond:
            yield ("table",), f"the job has no node {beyond[0]}; use nodes 0 to {max(hosts, default=0)}"
        elif not cables_to_switches(cluster, range(min(1, gpus))):
            what = f"cluster {cluster.name!r} has no NIC on a switch"
            yield (), f"{what}; use slow_link, which names links (between: [node, neighbour])"

    def moved(self, host_of: Sequence[int], place: Mapping[int, int]) -> Self | None:
        """Return the fault for the remaining nodes: a table's speeds move with them, random ones are redrawn."""
        if self.table is None:
            return self
        now = {host: host_of[place[rank]] for rank, host in enumerate(host_of) if rank in place}
        table = tuple([(now[host], speed) for host, speed in self.table if host in now])
        return self.model_copy(update={"table": table}) if table else None

    def in_cluster(self, gpus: Sequence[int], machines: Sequence[int]) -> Self:
        """Return the fault with the cluster's node numbers; InputError for random speeds, drawn for one job."""
        if self.table is None:
            raise InputError("nic_speeds: a law draws for the nodes of one job; use a table for jobs that share nodes")
        beyond = max(host for host, _ in self.table)
        if beyond >= len(machines):
            what = f"the job has no node {beyond}; it has {len(machines)}, numbered from 0"
            raise InputError(f"nic_speeds: {what}; remove it from the table")
        return self.model_copy(update={"table": tuple([(machines[host], speed) for host, speed in self.table])})
