"""What of a job's cluster can fail, by name, and which of it stand for others in a step that is played."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import plan_of, schedule_of
from simcluster.topology import Cluster

Cable = tuple[str, str]
"""The two ends, the one nearer to the GPUs first."""


@dataclass(frozen=True)
class JobFabric:
    """``ports`` are the job's NICs (GPUs, where those have switch ports of their own), each with the first rank that
    leaves by it; ``edges`` their cables; ``level`` of each switch that the job can use (1: next to GPUs), in the order
    of levels; ``trunks`` the cables between those.  All of them may be empty: a single machine."""

    ports: dict[str, int]
    edges: tuple[Cable, ...]
    level: dict[str, int]
    trunks: tuple[Cable, ...]

    def cables_of(self, node: str) -> list[Cable]:
        """Those of a NIC or a switch."""
        return [cable for cable in (*self.edges, *self.trunks) if node in cable]


def fabric_of(cluster: Cluster, gpus: int) -> JobFabric:
    """What the first ``gpus`` GPUs can use: their leaves, and all that lies above those."""
    switches = set(cluster.switches)
    ports: dict[str, int] = {}
    for rank in range(gpus):
        for port in cluster.uplinks(rank) if switches else ():
            ports.setdefault(port, rank)
    above: dict[str, list[str]] = defaultdict(list)
    leaves: dict[str, None] = {}
    edges: list[Cable] = []
    for a, b in cluster.links:
        if b not in switches:
            continue
        if a in switches:
            above[a].append(b)
            continue
        leaves[b] = None
        if a in ports:
            edges.append((a, b))
    levels = _levels(list(leaves), above)
    used = dict.fromkeys(leaf for _, leaf in edges)
    if len(used) > 1:  # what meets in one leaf goes no higher
        for switch in (reached := list(used)):
            more = [other for other in above[switch] if levels[other] > levels[switch] and other not in used]
            used.update(dict.fromkeys(more))
            reached += more
    trunks = tuple((a, b) for a in used for b in above[a] if b in used and (levels[a], a) < (levels[b], b))
    ordered = sorted(used, key=lambda switch: levels[switch])
    return JobFabric(ports, tuple(edges), {switch: levels[switch] for switch in ordered}, trunks)


def _levels(leaves: list[str], above: dict[str, list[str]]) -> dict[str, int]:
    """How far each switch is from the GPUs."""
    found = dict.fromkeys(leaves, 1)
    reached = list(leaves)
    for switch in reached:
        for other in above[switch]:
            if other not in found:
                found[other] = found[switch] + 1
                reached.append(other)
    return found


CLASSES = 4
"""Places along the pipeline whose devices are played: others are taken for the nearest of them."""


@dataclass(frozen=True)
class StandIn:
    """A device that is played for all of its class: ``words`` name it, ``faults`` are its documents but for ``factor``,
    which is added when it is slow."""

    words: str
    faults: tuple[Mapping[str, Any], ...]

    def slow(self, factor: float) -> list[dict[str, Any]]:
        """The faults of a step in which it takes that many times as long (GPUs), or carries that share (links)."""
        return [{**fault, "factor": factor} for fault in self.faults]


@dataclass(frozen=True)
class Devices:
    """Devices of a kind: ``label`` names one on the graph, ``column`` is the class that it belongs to, and
    ``stand_for`` those that are played for the classes.  ``count`` may be 0: the cluster has none."""

    count: int
    machines: int
    label: Callable[[int], str]
    column: Callable[[Ints], Ints]
    stand_for: tuple[StandIn, ...]


class Parts:
    """All devices of a scenario's job."""

    def __init__(self, scenario: Scenario) -> None:
        self._cluster, self._gpus = scenario.cluster.built, scenario.gpus
        plan = plan_of(scenario, schedule_of(scenario))
        stages = plan.pp
        self.chosen = np.unique(np.linspace(0, stages - 1, min(CLASSES, stages)).round().astype(np.int64))
        nearest = np.abs(self.chosen[None, :] - np.arange(stages)[:, None]).argmin(axis=1)
        self._class_of = nearest[plan.stages()]
        """Of every rank."""
        self._first = [int(plan.grid[stage].ravel()[0]) for stage in self.chosen]
        hosts = self._cluster.hosts[: self._gpus]
        self.hosts, self._first_of = np.unique(hosts, return_index=True)
        self._fabric: JobFabric | None = None
        self._known: dict[tuple[str, int], Devices] = {}

    @property
    def fabric(self) -> JobFabric:
        """NICs, switches and cables; looked up when somebody asks."""
        self._fabric = self._fabric or fabric_of(self._cluster, self._gpus)
        return self._fabric

    def of(self, kind: str, machines: int = 1) -> Devices:
        """Those of a kind (``spec.Of``), looked up once: names of 32,768 cables take 3 MB.  A rack has so many
        machines."""
        if (kind, machines) not in self._known:
            self._known[kind, machines] = self._of(kind, machines)
        return self._known[kind, machines]

    def _of(self, kind: str, machines: int) -> Devices:
        if kind in ("gpu", "memory"):
            names = self._cluster.gpus
            gpus = tuple(StandIn(f"GPU {names[rank]}", ({"kind": "slow_gpu", "rank": rank},)) for rank in self._first)
            return self._devices([f"{name}" for name in names[: self._gpus]], self._class_of, gpus)
        if kind == "host":
            labels = [f"machine {host}" for host in self.hosts]
            columns, members = self._classes(self._class_of[self._first_of])
            hosts = tuple(
                StandIn(labels[place], ({"kind": "slow_gpu", "node": int(self.hosts[place])},)) for place in members
            )
            return self._devices(labels, columns, hosts)
        if kind == "rack":
            return self._racks(machines)
        if kind == "job":
            return self._devices(["job"], np.zeros(1, dtype=np.int64), ())
        looked_up = {"nic": self._nics, "cable": self._cables, "switch": self._switches, "neighbour": self._neighbour}
        return looked_up[kind]()

    def _devices(self, labels: Sequence[str], columns: Ints, stand_for: tuple[StandIn, ...]) -> Devices:
        return Devices(
            len(labels), len(self.hosts), lambda place: labels[place], lambda places: columns[places], stand_for
        )

    @staticmethod
    def _classes(of_device: Ints) -> tuple[Ints, list[int]]:
        """(number of each device's class, first device of each class) without classes that have no device."""
        _, first, number = np.unique(of_device, return_index=True, return_inverse=True)
        return number.astype(np.int64).ravel(), first.tolist()

    def _racks(self, machines: int) -> Devices:
        """Machines next to each other, so many a rack (the last may have fewer); classes are those of the first."""
        racks = [self.hosts[first : first + machines].tolist() for first in range(0, len(self.hosts), machines)]
        labels = [f"machine{'s' * (len(each) > 1)} {', '.join(map(str, each))}" for each in racks]
        columns, members = self._classes(self._class_of[self._first_of[::machines]])
        stand_for = [
            StandIn(labels[place], tuple({"kind": "slow_gpu", "node": host} for host in racks[place]))
            for place in members
        ]
        return self._devices(labels, columns, tuple(stand_for))

    def _nics(self) -> Devices:
        """Each with all of its cables; a class is a place along the pipeline of the first rank that leaves by it."""
        ports = list(self.fabric.ports)
        ranks = np.array(list(self.fabric.ports.values()), dtype=np.int64)
        columns, members = self._classes(self._class_of[ranks])
        stand_for = [StandIn(f"NIC {ports[place]}", _links(self.fabric.cables_of(ports[place]))) for place in members]
        return self._devices(ports, columns, tuple(stand_for))

    def _cables(self) -> Devices:
        """Those of NICs by place along the pipeline, those between switches by level."""
        fabric = self.fabric
        cables = [*fabric.edges, *fabric.trunks]
        ports = [int(self._class_of[fabric.ports[port]]) for port, _ in fabric.edges]
        between = [CLASSES + fabric.level[switch] for switch, _ in fabric.trunks]
        columns, members = self._classes(np.array(ports + between, dtype=np.int64))
        labels = [f"{a} - {b}" for a, b in cables]
        stand_for = [StandIn(f"cable {labels[place]}", _links([cables[place]])) for place in members]
        return self._devices(labels, columns, tuple(stand_for))

    def _switches(self) -> Devices:
        """By level: each with all of the job's cables on it."""
        switches = list(self.fabric.level)
        columns, members = self._classes(np.array(list(self.fabric.level.values()), dtype=np.int64))
        stand_for = [
            StandIn(f"switch {switches[place]}", _links(self.fabric.cables_of(switches[place]))) for place in members
        ]
        return self._devices(switches, columns, tuple(stand_for))

    def _neighbour(self) -> Devices:
        """Another job on machines of its own: it takes a share of all cables between switches that both can use."""
        trunks = self.fabric.trunks
        stand_for = (StandIn("cables between switches, beside another job,", _links(trunks)),)
        return self._devices(["another job"] if trunks else [], np.zeros(1, dtype=np.int64), stand_for)


def _links(cables: Sequence[Cable]) -> tuple[Mapping[str, Any], ...]:
    return tuple({"kind": "slow_link", "between": list(cable)} for cable in cables)
