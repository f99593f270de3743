"""Faults of slow GPUs and NICs: one slow device, or a random or measured speed for every device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from pydantic import Field, model_validator

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import KeyProblem
from simcluster.documents.field_annotations import OR_TABLE
from simcluster.faults.fault_spec import FaultSpec
from simcluster.faults.random_factors import LognormalFactors, NormalFactors, random_stream
from simcluster.faults.slow_devices import SlowDeviceFault
from simcluster.faults.targets import Number, RankFault, TimedFault, nic_switch_links
from simcluster.topology import Cluster


class SlowGpu(SlowDeviceFault, RankFault, TimedFault):
    """Fault: a GPU runs all kernels slower; a change of speed also affects the kernel in progress."""

    EXAMPLE: ClassVar = {"kind": "slow_gpu", "rank": 1, "slowdown": 1.5}
    NEUTRAL: ClassVar = {"kind": "slow_gpu", "rank": 1, "slowdown": 1.0}

    FACTOR = "slowdown"

    kind: Literal["slow_gpu"]
    factor: Annotated[float, Field(strict=True, ge=1, le=1e6)]
    """Slowdown factor, 1 or more; former name of the key `slowdown`."""

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        if self.named_ranks is None and self.node is None:
            raise InputError("'rank' is missing: set the slow GPU's rank, or 'ranks', or 'node' for all GPUs of a node")
        return self

    @property
    def is_neutral(self) -> bool:
        return self.factor == 1

    def slowdown_factor(self) -> float:
        return self.factor


SLOWEST = 0.01
MOST_LINES = 1 << 21
SpeedT = TypeVar("SpeedT")
_Pairs = Annotated[tuple[tuple[Number, SpeedT], ...], Field(min_length=1, max_length=MOST_LINES)]
SpeedTable = Annotated[_Pairs[SpeedT] | None, OR_TABLE]
"""Pairs of a device's number and its speed."""


class DeviceSpeeds(FaultSpec):
    """Base class of faults that set every device's speed, from a distribution (``law``) or a ``table``.

    Messages call the devices ``MANY``, one of them ``ONE``, and its number ``NUMBER``. Raises InputError for law and
    table at once, for neither, and for two speeds of one number.
    """

    MANY: ClassVar[str]
    ONE: ClassVar[str]
    NUMBER: ClassVar[str]

    kind: str  # each kind has its own word; here, so that it stands first in a document
    law: Annotated[NormalFactors | LognormalFactors, Field(discriminator="kind")] | None = None
    """Distribution of the speeds, where 1 is full speed; NIC speeds are capped at 1."""
    table: SpeedTable[float] = None
    seed: Number | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.law is None) == (self.table is None):
            both = f"'law' and 'table' both set the speeds of {self.MANY}; keep one"
            what = both if self.law else f"the speed of each {self.ONE} is missing; set one"
            choice = f"law: {{kind: normal, sigma: 0.03}}, or table: the path of a CSV file, {self.NUMBER},speed"
            raise InputError(f"{what}: {choice}")
        seen: set[int] = set()
        for number, _ in self.table or ():
            if number in seen:
                raise InputError(f"'table' has two speeds for {self.NUMBER} {number}; keep one")
            seen.add(number)
        return self

    @property
    def is_neutral(self) -> bool:
        return self.law.is_neutral if self.law else all(speed == 1 for _, speed in self.table or ())

    @property
    def is_random(self) -> bool:
        return self.law is not None and not self.is_neutral

    def remaining_devices(self, host_of: Sequence[int], place: Mapping[int, int]) -> Mapping[int, int]:
        """Return the new number of each device that remains when some ranks have left, by its old number."""
        return place

    def for_remaining_ranks(self, host_of: Sequence[int], place: Mapping[int, int]) -> Self | None:
        """Return the fault without failed devices: speeds of a table stay with their devices, others are redrawn."""
        if self.table is None:
            return self
        now = self.remaining_devices(host_of, place)
        table = tuple([(now[number], speed) for number, speed in self.table if number in now])
        return self.model_copy(update={"table": table}) if table else None


Speed = Annotated[float, Field(strict=False, ge=SLOWEST, le=100)]


class GpuSpeeds(DeviceSpeeds):
    """Fault: every GPU has a random or measured speed; kernels take 1 / speed times as long.

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
    table: SpeedTable[Speed] = None
    """Measured speeds: pairs of a rank and its speed, or a CSV file of them (rank,speed per line); others have 1."""

    def slowdown_per_rank(self, ranks: int, seed: int) -> Floats:
        if self.law is not None:
            return 1.0 / np.maximum(self.law.draw(random_stream(seed, "speeds", self.seed), ranks), SLOWEST)
        found = np.ones(ranks)
        number, speed = np.array(self.table, dtype=np.float64).T
        found[number.astype(np.int64)] = 1.0 / speed
        return found

    def complaints(self, scenario: Any) -> Iterator[KeyProblem]:
        beyond = max((rank for rank, _ in self.table or ()), default=-1)
        if beyond >= scenario.gpus:
            what = f"there is no rank {beyond}: the job has {scenario.gpus} GPUs; use ranks 0 to {scenario.gpus - 1}"
            yield ("table",), what


Part = Annotated[float, Field(strict=False, ge=SLOWEST, le=1)]


class NicSpeeds(DeviceSpeeds):
    """Fault: the NICs of every node have a random or measured speed."""

    EXAMPLE: ClassVar = {"kind": "nic_speeds", "law": {"kind": "normal", "sigma": 0.5}}
    NEUTRAL: ClassVar = {"kind": "nic_speeds", "law": {"kind": "normal", "sigma": 0}}
    ONCE: ClassVar = "the NICs of a node have one speed"
    MANY: ClassVar = "NICs"
    ONE: ClassVar = "node's NIC"
    NUMBER: ClassVar = "node"

    kind: Literal["nic_speeds"]
    table: SpeedTable[Part] = None
    """Measured speeds: pairs of a node and its NICs' speed, or a CSV file of them (node,speed per line); others have
    1."""

    def remaining_shares(self, cluster: Cluster, seed: int) -> dict[int, float]:
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
            for link in nic_switch_links(cluster, gpus)
        }

    def complaints(self, scenario: Any) -> Iterator[KeyProblem]:
        cluster, gpus = scenario.cluster.built, scenario.gpus
        hosts = cluster.host_of[:gpus]
        beyond = sorted({host for host, _ in self.table or ()} - {*hosts})
        if beyond:
            yield ("table",), f"the job has no node {beyond[0]}; use nodes 0 to {max(hosts, default=0)}"
        elif not nic_switch_links(cluster, range(min(1, gpus))):
            what = f"cluster {cluster.name!r} has no NIC on a switch"
            yield (), f"{what}; use slow_link, which names links (between: [node, neighbour])"

    def remaining_devices(self, host_of: Sequence[int], place: Mapping[int, int]) -> Mapping[int, int]:
        return {host: host_of[place[rank]] for rank, host in enumerate(host_of) if rank in place}

    def with_cluster_numbers(self, gpus: Sequence[int], machines: Sequence[int]) -> Self:
        """Return the fault with the cluster's node numbers; InputError if speeds are random."""
        if self.table is None:
            raise InputError("nic_speeds: 'law' draws speeds for one job, but jobs share these nodes; use 'table'")
        beyond = max(host for host, _ in self.table)
        if beyond >= len(machines):
            what = f"the job has no node {beyond}; it has {len(machines)}, numbered from 0"
            raise InputError(f"nic_speeds: {what}; remove it from the table")
        return self.model_copy(update={"table": tuple([(machines[host], speed) for host, speed in self.table])})
