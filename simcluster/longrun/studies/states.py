"""Cluster states that a long run meets (slow devices, missing nodes, writes), each simulated as one step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from simcluster.base.arrays import Ints
from simcluster.base.errors import InputError
from simcluster.base.telling import report_phase
from simcluster.faults import Fault, FaultSpec, placed
from simcluster.results.result import Result
from simcluster.scenario.checkpoint_plan import CheckpointCost, checkpoint_cost
from simcluster.scenario.loading import without_loader
from simcluster.scenario.run_section import CheckpointSpec, ValidationSpec
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import plan_of, schedule_of
from simcluster.step.planned import plan_step
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.whatif.extra_steps import is_outer_step_rare, outer_step_seconds
from simcluster.studies.whatif.mitigations import simulate_fewer_replicas, with_fewer_nodes
from simcluster.topology import Cluster

Cable = tuple[str, str]
"""Cable by its two ends, the one nearer to the GPUs first."""


@dataclass(frozen=True)
class JobFabric:
    """Network devices that a job can use: NICs, their cables, and the switches and cables above.

    ``ports`` are the job's NICs (GPUs, where these have switch ports), each with the first rank that leaves by it;
    ``edges`` their cables; ``level`` of each switch that the job can use (1: next to GPUs), in the order of levels;
    ``trunks`` the cables between those. All of them may be empty: a single node.
    """

    ports: dict[str, int]
    edges: tuple[Cable, ...]
    level: dict[str, int]
    trunks: tuple[Cable, ...]

    def connected_cables(self, node: str) -> list[Cable]:
        """Return the cables that are connected to a NIC or a switch."""
        return [cable for cable in (*self.edges, *self.trunks) if node in cable]


def find_job_fabric(cluster: Cluster, gpus: int) -> JobFabric:
    """Return the network that the first ``gpus`` GPUs can use: leaf switches, and all switches above."""
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
    levels, found = dict.fromkeys(leaves, 1), list(leaves)
    for switch in found:
        for other in above[switch]:
            if other not in levels:
                levels[other] = levels[switch] + 1
                found.append(other)
    used = dict.fromkeys(leaf for _, leaf in edges)
    if len(used) > 1:  # traffic below one leaf goes no higher
        for switch in (reached := list(used)):
            more = [other for other in above[switch] if levels[other] > levels[switch] and other not in used]
            used.update(dict.fromkeys(more))
            reached += more
    trunks = tuple((a, b) for a in used for b in above[a] if b in used and (levels[a], a) < (levels[b], b))
    ordered = sorted(used, key=lambda switch: levels[switch])
    return JobFabric(ports, tuple(edges), {switch: levels[switch] for switch in ordered}, trunks)


CLASSES = 4
"""Number of pipeline stages whose devices are simulated; other devices count as the nearest of them."""


@dataclass(frozen=True)
class ClassRepresentative:
    """Device that represents its class in simulations: its name, and the faults that make it slow."""

    words: str
    faults: tuple[Mapping[str, Any], ...]

    def slow_faults(self, factor: float) -> list[dict[str, Any]]:
        """Return the faults for a GPU that takes ``factor`` times as long, or a link with that share left."""
        return [{**fault, "factor": factor} for fault in self.faults]


@dataclass(frozen=True)
class DeviceClasses:
    """Devices of a kind (GPU, NIC, cable, ...) in a job, by class, with a representative of each class."""

    count: int
    machines: int
    label: Callable[[int], str]
    column: Ints
    stand_for: tuple[ClassRepresentative, ...]


class JobDevices:
    """Devices of a scenario's job by kind (GPU, host, NIC, cable, switch), grouped into classes."""

    def __init__(self, scenario: Scenario) -> None:
        self._cluster, self._gpus = scenario.cluster.built, scenario.gpus
        plan = plan_of(scenario, schedule_of(scenario))
        stages = plan.pp
        self.chosen = np.unique(np.linspace(0, stages - 1, min(CLASSES, stages)).round().astype(np.int64))
        nearest = np.abs(self.chosen[None, :] - np.arange(stages)[:, None]).argmin(axis=1)
        self._class_of = nearest[plan.stages()]
        """Device class of every rank."""
        self._first = [int(plan.grid[stage].ravel()[0]) for stage in self.chosen]
        hosts = self._cluster.hosts[: self._gpus]
        self.hosts, self._first_of = np.unique(hosts, return_index=True)
        self._known: dict[tuple[str, int], DeviceClasses] = {}

    @cached_property
    def fabric(self) -> JobFabric:
        """NICs, switches and cables that the job uses."""
        return find_job_fabric(self._cluster, self._gpus)

    def devices_of_kind(self, kind: str, machines: int = 1) -> DeviceClasses:
        """Return the job's devices of a kind, cached; a rack has ``machines`` nodes."""
        if (kind, machines) not in self._known:
            self._known[kind, machines] = self._find_devices(kind, machines)
        return self._known[kind, machines]

    def _find_devices(self, kind: str, machines: int) -> DeviceClasses:
        if kind in ("gpu", "memory"):
            labels = [f"{name}" for name in self._cluster.gpus[: self._gpus]]
            return self._group_devices(
                labels, self._class_of, "GPU ", lambda rank: ({"kind": "slow_gpu", "rank": rank},), self._first
            )
        if kind in ("host", "rack"):
            each = machines if kind == "rack" else 1  # next to each other; the last rack may have fewer
            racks = [self.hosts[first : first + each].tolist() for first in range(0, len(self.hosts), each)]
            labels = [f"machine{'s' * (len(rack) > 1)} {', '.join(map(str, rack))}" for rack in racks]
            classes = self._class_of[self._first_of[::each]]
            return self._group_devices(
                labels, classes, "", lambda rack: tuple({"kind": "slow_gpu", "node": host} for host in racks[rack])
            )
        if kind == "job":
            return self._group_devices(["job"], np.zeros(1, dtype=np.int64), "", lambda _: (), [])
        fabric = self.fabric
        if kind == "neighbour":  # another job, which takes a share of all cables between switches
            there = int(bool(fabric.trunks))
            found = self._group_devices(["another job"] * there, np.zeros(there, dtype=np.int64), "", lambda _: (), [])
            stand_in = ClassRepresentative("cables between switches, next to another job,", _slow_links(fabric.trunks))
            return replace(found, stand_for=(stand_in,), column=np.zeros(1, dtype=np.int64))
        if kind == "cable":  # those of NICs by place along the pipeline, those between switches by level
            cables = [*fabric.edges, *fabric.trunks]
            between = [CLASSES + fabric.level[switch] for switch, _ in fabric.trunks]
            classes = np.array([*(self._class_of[fabric.ports[port]] for port, _ in fabric.edges), *between])
            labels = [f"{a} - {b}" for a, b in cables]
            return self._group_devices(labels, classes, "cable ", lambda place: _slow_links([cables[place]]))
        # NICs by the place of their first rank along the pipeline, switches by level: each with all of its cables
        values = np.array(list((fabric.ports if kind == "nic" else fabric.level).values()), dtype=np.int64)
        word, classes = ("NIC ", self._class_of[values]) if kind == "nic" else ("switch ", values)
        nodes = list(fabric.ports if kind == "nic" else fabric.level)
        return self._group_devices(
            nodes, classes, word, lambda place: _slow_links(fabric.connected_cables(nodes[place]))
        )

    def _group_devices(
        self,
        labels: Sequence[str],
        class_of: Ints,
        word: str,
        faults: Callable[[int], tuple[Mapping[str, Any], ...]],
        first: Sequence[int] | None = None,
    ) -> DeviceClasses:
        """Return devices with these labels; the ``first`` of each class represents it in simulations."""
        _, firsts, number = np.unique(np.asarray(class_of, dtype=np.int64), return_index=True, return_inverse=True)
        columns = number.astype(np.int64).ravel()
        chosen = firsts.tolist() if first is None else first
        stand_for = tuple(ClassRepresentative(f"{word}{labels[each]}", faults(each)) for each in chosen)
        return DeviceClasses(len(labels), len(self.hosts), lambda place: labels[place], columns, stand_for)


def _slow_links(cables: Sequence[Cable]) -> tuple[Mapping[str, Any], ...]:
    return tuple({"kind": "slow_link", "between": list(cable)} for cable in cables)


def simulate_validation(scenario: Scenario) -> Result:
    """Simulate the forward pass of a batch, as validation runs it, with its own bubble and faults."""
    alone = without_loader(scenario).model_copy(update={"steps": 1, "checkpoint": None})
    return simulate_scenario(alone, planned=plan_step(alone, trains=False))


MOST = 50
"""Most cluster states per run."""
_HEALTHY = "healthy"

_FAULT: TypeAdapter[FaultSpec] = TypeAdapter(Fault)


@dataclass
class StepStates:
    """Step times of a scenario in every cluster state requested so far, each simulated once.

    ``used`` are the states of the run that is being built, ``notes`` remarks on it. InputError for more than 50 states
    of one scenario.
    """

    scenario: Scenario
    asked: dict[str, float] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    weights: dict[CheckpointSpec, CheckpointCost] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.scenario = self.scenario.model_copy(update={"checkpoint": None})  # steps between checkpoints

    def begin_run(self) -> None:
        """Clear the states and notes collected for the previous run."""
        self.used, self.notes = {}, []

    def _cached_step_time(self, words: str, play: Callable[[], float]) -> float:
        if words not in self.used and len(self.used) >= MOST:
            raise InputError(
                f"run: more than {MOST} states of the cluster: {words} would be the next; "
                "give fewer levels (failures.by, failures.left)"
            )
        if words not in self.asked:
            with report_phase("" if words == _HEALTHY else f"state {len(self.asked) + 1} of the cluster ({words})"):
                self.asked[words] = play()
        self.used[words] = self.asked[words]
        return self.asked[words]

    @cached_property
    def devices(self) -> JobDevices:
        """Devices of the job by kind, grouped into classes."""
        return JobDevices(self.scenario)

    @cached_property
    def result(self) -> Result:
        """Simulated step on the healthy cluster."""
        with report_phase(f"state 1 of the cluster ({_HEALTHY})"):
            return simulate_scenario(self.scenario)

    def checkpoint_cost(self, spec: CheckpointSpec) -> CheckpointCost:
        """Return the cost of a checkpoint, whatever its interval; InputError if its duration is not stated."""
        of_each = spec.model_copy(update={"every": "auto"})
        if of_each not in self.weights:
            self.weights[of_each] = checkpoint_cost(self.scenario, of_each)
        return self.weights[of_each]

    @property
    def healthy_step_time(self) -> float:
        """Step time (s) on the healthy cluster, with the scenario's own faults."""
        return self._cached_step_time(_HEALTHY, lambda: self.result.step_time) + self.outer_step_time

    @cached_property
    def outer_step_time(self) -> float:
        """Cost of the outer steps of local training in seconds per step, equal in every cluster state."""
        section = self.scenario.training.outer
        if section is None or not is_outer_step_rare(self.scenario):
            return 0.0
        return outer_step_seconds(self.scenario, self.result.step_time) / section.every

    def step_time_with_faults(self, words: str, faults: Iterable[Mapping[str, Any]]) -> float:
        """Return the step time (s) with additional faults, on the scenario's own random draws."""

        def simulate_step() -> float:
            more = [_FAULT.validate_python(dict(fault)) for fault in faults]
            changed = self.scenario.model_copy(update={"faults": placed((*self.scenario.faults, *more))})
            return simulate_scenario(changed).step_time

        return self._cached_step_time(words, simulate_step) + self.outer_step_time

    def slow_step_time(self, device: ClassRepresentative, level: float) -> float:
        """Return the step time (s) with a GPU or node slower by a factor, or a link at a share of its bandwidth."""
        how = f"{level:g} x slower" if level >= 1 else f"at {level:.3g} of its bandwidth"
        return self.step_time_with_faults(f"{device.words} {how}", device.slow_faults(level))

    def writing_step_time(self, words: str, shares: Mapping[int, float]) -> float:
        """Return the step time (s) while checkpoint writes take these shares of the nodes' NIC bandwidth."""
        most = max(shares.values(), default=0.0)
        if not most:
            return self.healthy_step_time
        ports, hosts = self.devices.fabric.ports, self.scenario.cluster.built.hosts
        taken = {cable: shares.get(int(hosts[ports[cable[0]]]), 0.0) for cable in self.devices.fabric.edges}
        faults = (
            {"kind": "slow_link", "between": cable, "speed": 1 - share} for cable, share in taken.items() if share
        )
        return self.step_time_with_faults(f"{words} in flight (up to {most:.2%} of NICs)", faults)

    def validation_step_time(self, spec: ValidationSpec) -> float:
        """Return the cost of validations in seconds per step: forward passes on the healthy cluster."""
        if spec.seconds is not None:
            return spec.seconds / spec.every
        one = self._cached_step_time("a batch of validation", lambda: simulate_validation(self.scenario).step_time)
        return spec.batches * one / spec.every

    def short_step_time(self, machines: int) -> tuple[float, float]:
        """Return (step time (s), share of the batch) with nodes missing; InputError if no replica is left."""
        job = with_fewer_nodes(self.scenario, machines)
        if job is None:
            raise InputError(
                f"run.short: shrink: the job has {self.scenario.dp} replicas; {machines} nodes cannot be missing"
            )
        missing = self.scenario.dp - job.scenario.dp
        words = f"{missing} replica{'s' * (missing > 1)} fewer"
        share = job.scenario.training.global_batch / self.scenario.training.global_batch
        return self._cached_step_time(words, lambda: simulate_fewer_replicas(job)), share
