"""What of a job's cluster can fail, by name, and which of it stand for others in a step that is played."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
            labels = [f"{name}" for name in self._cluster.gpus[: self._gpus]]
            return self._devices(
                labels, self._class_of, "GPU ", lambda rank: ({"kind": "slow_gpu", "rank": rank},), self._first
            )
        if kind in ("host", "rack"):
            each = machines if kind == "rack" else 1  # next to each other; the last rack may have fewer
            racks = [self.hosts[first : first + each].tolist() for first in range(0, len(self.hosts), each)]
            labels = [f"machine{'s' * (len(rack) > 1)} {', '.join(map(str, rack))}" for rack in racks]
            classes = self._class_of[self._first_of[::each]]
            return self._devices(
                labels, classes, "", lambda rack: tuple({"kind": "slow_gpu", "node": host} for host in racks[rack])
            )
        if kind == "job":
            return self._devices(["job"], np.zeros(1, dtype=np.int64), "", lambda _: (), [])
        fabric = self.fabric
        if kind == "neighbour":  # another job, which takes a share of all cables between switches
            there = int(bool(fabric.trunks))
            found = self._devices(["another job"] * there, np.zeros(there, dtype=np.int64), "", lambda _: (), [])
            stand_in = StandIn("cables between switches, beside another job,", _links(fabric.trunks))
            return replace(found, stand_for=(stand_in,), column=lambda places: np.zeros(1, dtype=np.int64)[places])
        if kind == "cable":  # those of NICs by place along the pipeline, those between switches by level
            cables = [*fabric.edges, *fabric.trunks]
            between = [CLASSES + fabric.level[switch] for switch, _ in fabric.trunks]
            classes = np.array([*(self._class_of[fabric.ports[port]] for port, _ in fabric.edges), *between])
            labels = [f"{a} - {b}" for a, b in cables]
            return self._devices(labels, classes, "cable ", lambda place: _links([cables[place]]))
        # NICs by the place of their first rank along the pipeline, switches by level: each with all of its cables
        values = np.array(list((fabric.ports if kind == "nic" else fabric.level).values()), dtype=np.int64)
        word, classes = ("NIC ", self._class_of[values]) if kind == "nic" else ("switch ", values)
        nodes = list(fabric.ports if kind == "nic" else fabric.level)
        return self._devices(nodes, classes, word, lambda place: _links(fabric.cables_of(nodes[place])))

    def _devices(
        self,
        labels: Sequence[str],
        class_of: Ints,
        word: str,
        faults: Callable[[int], tuple[Mapping[str, Any], ...]],
        first: Sequence[int] | None = None,
    ) -> Devices:
        """Return devices by label; the ``first`` of each class is simulated for the others of it."""
        _, firsts, number = np.unique(np.asarray(class_of, dtype=np.int64), return_index=True, return_inverse=True)
        columns = number.astype(np.int64).ravel()
        chosen = firsts.tolist() if first is None else first
        stand_for = tuple(StandIn(f"{word}{labels[each]}", faults(each)) for each in chosen)
        return Devices(
            len(labels), len(self.hosts), lambda place: labels[place], lambda places: columns[places], stand_for
        )


def _links(cables: Sequence[Cable]) -> tuple[Mapping[str, Any], ...]:
    return tuple({"kind": "slow_link", "between": list(cable)} for cable in cables)
