"""NICs of which those of no two machines are equally fast: a speed for each machine, drawn or measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import Complaint
from simcluster.faults.draws import stream
from simcluster.faults.own_speeds import MOST_LINES, SLOWEST, OwnSpeeds
from simcluster.faults.where import Number, cables_to_switches
from simcluster.topology import Cluster

Part = Annotated[float, Field(strict=False, ge=SLOWEST, le=1)]


class NicSpeeds(OwnSpeeds):
    """A speed for the NICs of every machine, for ever: the part of their bandwidth that they reach, in both directions.

    The speeds are drawn from a ``law`` with mean 1 (never above 1, a NIC's line rate, nor below 0.01), one a machine,
    machine n's the same however many there are; or they stand in a ``table`` of machines and speeds, others being at 1:
    in a scenario file it may be the path of a CSV file, relative to it, with ``node,speed`` a line.  ``seed`` is the
    number of the stream of draws, as for jitter; of several replicas each has other speeds.
    """

    EXAMPLE: ClassVar = {"kind": "nic_speeds", "law": {"kind": "normal", "sigma": 0.5}}
    NEUTRAL: ClassVar = {"kind": "nic_speeds", "law": {"kind": "normal", "sigma": 0}}
    ONCE: ClassVar = "the NICs of a machine have one speed"
    MANY: ClassVar = "NICs"
    ONE: ClassVar = "machine's NIC"
    NUMBER: ClassVar = "node"

    kind: Literal["nic_speeds"]
    table: Annotated[tuple[tuple[Number, Part], ...], Field(min_length=1, max_length=MOST_LINES)] | None = None

    def lefts(self, cluster: Cluster, seed: int) -> dict[int, float]:
        """The part that is left of every link between NICs and switches that is not as it should be."""
        of_machines: dict[int, list[int]] = {}
        for gpu, host in enumerate(cluster.host_of):
            of_machines.setdefault(host, []).append(gpu)
        if self.law is None:
            speeds = dict(self.table or ())
        else:
            drawn = self.law.draw(stream(seed, "nic_speeds", self.seed), max(of_machines) + 1)
            speeds = dict(enumerate(np.clip(drawn, SLOWEST, 1.0).tolist()))
        return {
            link: speeds[host]
            for host, gpus in of_machines.items()
            if speeds.get(host, 1.0) < 1
            for link in cables_to_switches(cluster, gpus)
        }

    def complaints(self, scenario: Any) -> Iterator[Complaint]:
        """Its machines are the job's, and have NICs."""
        cluster, gpus = scenario.cluster.built, scenario.gpus
        hosts = cluster.host_of[:gpus]
        beyond = sorted({host for host, _ in self.table or ()} - {*hosts})
        if beyond:
            yield ("table",), f"the job has no machine {beyond[0]}: it is on 0 to {max(hosts, default=0)}"
        elif not cables_to_switches(cluster, range(min(1, gpus))):
            what = f"cluster {cluster.name!r} has no NIC on a switch"
            yield (), f"{what}; use slow_link, which names links (between: [node, neighbour])"

    def moved(self, host_of: Sequence[int], place: Mapping[int, int]) -> Self | None:
        """The speeds of a table go with their machines; a law is drawn for those that are left."""
        if self.table is None:
            return self
        now = {host: host_of[place[rank]] for rank, host in enumerate(host_of) if rank in place}
        table = tuple([(now[host], speed) for host, speed in self.table if host in now])
        return self.model_copy(update={"table": table}) if table else None

    def in_cluster(self, gpus: Sequence[int], machines: Sequence[int]) -> Self:
        """A table with the cluster's numbers; InputError for a law, which is drawn for all machines of a cluster."""
        if self.table is None:
            raise InputError("nic_speeds: a law draws for the machines of one job; give jobs that share them a table")
        beyond = max(host for host, _ in self.table)
        if beyond >= len(machines):
            what = f"the job has no machine {beyond}; it has {len(machines)}, counted from 0"
            raise InputError(f"nic_speeds: {what}; leave it out of the table")
        return self.model_copy(update={"table": tuple([(machines[host], speed) for host, speed in self.table])})
