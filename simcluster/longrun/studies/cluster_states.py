"""Cluster states of a long run (slow devices, missing nodes, checkpoint writes), each simulated as one step."""

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
from simcluster.base.progress import report_phase
from simcluster.faults import Fault, FaultSpec, assign_random_streams
from simcluster.results.result import Result
from simcluster.scenario.checkpoint_plan import CheckpointCost, checkpoint_cost
from simcluster.scenario.data_wait import without_loader
from simcluster.scenario.run_section import CheckpointSpec, ValidationSpec
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import plan_of, schedule_of
from simcluster.step.simulate import simulate_scenario
from simcluster.step.step_plan import plan_step
from simcluster.studies.whatif.extra_steps import is_outer_step_rare, simulate_outer_step
from simcluster.studies.whatif.mitigations import remove_nodes, simulate_reduced_job
from simcluster.topology import Cluster

Cable = tuple[str, str]
"""Cable by its two ends, the one nearer to the GPUs first."""


@dataclass(frozen=True)
class JobNetwork:
    """Network devices that a job can use: NICs, their cables, switches, and the cables between switches.

    ``ports`` are the job's NICs (GPUs, where these have switch ports), each with the first rank that leaves by it;
    ``nic_cables`` are their cables; ``switch_level`` is that of each switch that the job can use (1: next to GPUs), in
    order of levels; ``trunk_cables`` are the cables between these switches. All are empty for a single node.
    """

    ports: dict[str, int]
    nic_cables: tuple[Cable, ...]
    switch_level: dict[str, int]
    trunk_cables: tuple[Cable, ...]


def find_job_network(cluster: Cluster, gpus: int) -> JobNetwork:
    """Return the network that the first ``gpus`` GPUs can use: NICs, leaf switches, and all switches above."""
    switches = set(cluster.switches)
    ports: dict[str, int] = {}
    for rank in range(gpus):
        for port in cluster.exit_nics(rank) if switches else ():
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
    return JobNetwork(ports, tuple(edges), {switch: levels[switch] for switch in ordered}, trunks)


CLASSES = 4
"""Number of pipeline stages with simulated slow devices; those of the nearest stage represent others."""


@dataclass(frozen=True)
class RepresentativeDevice:
    """Device that represents equivalent devices in simulations: name, and faults (without ``factor``) that slow it."""

    name: str
    faults: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class DevicesByClass:
    """Job's devices of one type (such as GPU or NIC), grouped into classes that slow the job equally."""

    count: int
    machines: int
    device_label: Callable[[int], str]
    device_class: Ints
    representatives: tuple[RepresentativeDevice, ...]


class JobDevices:
    """Devices of a scenario's job by type (GPU, host, NIC, ...), grouped into classes of equivalent devices."""

    def __init__(self, scenario: Scenario) -> None:
        self._cluster, self._gpus = scenario.cluster.built, scenario.gpus
        plan = plan_of(scenario, schedule_of(scenario))
        stages = plan.pp
        self.chosen = np.unique(np.linspace(0, stages - 1, min(CLASSES, stages)).round().astype(np.int64))
        nearest = np.abs(self.chosen[None, :] - np.arange(stages)[:, None]).argmin(axis=1)
        self._class_of = nearest[plan.stage_of_every_rank()]
        """Device class of every rank."""
        self._first = [int(plan.grid[stage].ravel()[0]) for stage in self.chosen]
        self.hosts, self._first_of = np.unique(self._cluster.node_of_gpu[: self._gpus], return_index=True)
        self._known: dict[tuple[str, int], DevicesByClass] = {}

    @cached_property
    def job_network(self) -> JobNetwork:
        """NICs, switches and cables that the job uses."""
        return find_job_network(self._cluster, self._gpus)

    def devices_of_kind(self, kind: str, machines: int = 1) -> DevicesByClass:
        """Return the job's devices of one type (such as "gpu"), cached; a rack has ``machines`` nodes."""
        if (kind, machines) not in self._known:
            self._known[kind, machines] = self._find_devices(kind, machines)
        return self._known[kind, machines]

    def _find_devices(self, kind: str, machines: int) -> DevicesByClass:
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
        fabric = self.job_network
        if kind == "neighbour":  # another job, which takes a share of all cables between switches
            there = int(bool(fabric.trunk_cables))
            found = self._group_devices(["another job"] * there, np.zeros(there, dtype=np.int64), "", lambda _: (), [])
            faults = _make_slow_link_faults(fabric.trunk_cables)
            stand_in = RepresentativeDevice("cables between switches, next to another job,", faults)
            return replace(found, representatives=(stand_in,), device_class=np.zeros(1, dtype=np.int64))
        cables = [*fabric.nic_cables, *fabric.trunk_cables]
        if kind == "cable":  # those of NICs by place along the pipeline, those between switches by level
            between = [CLASSES + fabric.switch_level[switch] for switch, _ in fabric.trunk_cables]
            classes = np.array([*(self._class_of[fabric.ports[port]] for port, _ in fabric.nic_cables), *between])
            labels = [f"{a} - {b}" for a, b in cables]
            return self._group_devices(labels, classes, "cable ", lambda place: _make_slow_link_faults([cables[place]]))
        # NICs by the place of their first rank along the pipeline, switches by level: each with all of its cables
        values_by_node = fabric.ports if kind == "nic" else fabric.switch_level
        nodes, values = list(values_by_node), np.array(list(values_by_node.values()), dtype=np.int64)
        word, classes = ("NIC ", self._class_of[values]) if kind == "nic" else ("switch ", values)

        def slow_all_cables(place: int) -> tuple[Mapping[str, Any], ...]:
            return _make_slow_link_faults([cable for cable in cables if nodes[place] in cable])

        return self._group_devices(nodes, classes, word, slow_all_cables)

    def _group_devices(
        self,
        labels: Sequence[str],
        class_of: Ints,
        word: str,
        faults: Callable[[int], tuple[Mapping[str, Any], ...]],
        first: Sequence[int] | None = None,
    ) -> DevicesByClass:
        """Group devices into classes; ``first`` lists a representative of each class (default: first device)."""
        _, firsts, number = np.unique(np.asarray(class_of, dtype=np.int64), return_index=True, return_inverse=True)
        columns = number.astype(np.int64).ravel()
        chosen = firsts.tolist() if first is None else first
        stand_for = tuple(RepresentativeDevice(f"{word}{labels[each]}", faults(each)) for each in chosen)
        return DevicesByClass(len(labels), len(self.hosts), lambda place: labels[place], columns, stand_for)


def _make_slow_link_faults(cables: Sequence[Cable]) -> tuple[Mapping[str, Any], ...]:
    return tuple({"kind": "slow_link", "between": list(cable)} for cable in cables)


def simulate_validation(scenario: Scenario) -> Result:
    """Simulate the forward passes of one validation batch, with pipeline bubble and faults."""
    alone = without_loader(scenario).model_copy(update={"steps": 1, "checkpoint": None})
    return simulate_scenario(alone, planned=plan_step(alone, trains=False))


MOST = 50
"""Most cluster states per run."""
_HEALTHY = "healthy"

_FAULT: TypeAdapter[FaultSpec] = TypeAdapter(Fault)


@dataclass
class ClusterStateSimulator:
    """Simulator of a scenario's step time in different cluster states; each state is simulated once and cached.

    ``used_times`` are the states of the run that is being built, ``notes`` are remarks on the run. InputError for more
    than 50 states of one scenario.
    """

    scenario: Scenario
    step_times: dict[str, float] = field(default_factory=dict)
    used_times: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checkpoint_costs: dict[CheckpointSpec, CheckpointCost] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.scenario = self.scenario.model_copy(update={"checkpoint": None})  # steps between checkpoints

    def reset_for_next_run(self) -> None:
        """Clear the cluster states and notes collected for the previous run."""
        self.used_times, self.notes = {}, []

    def _cached_step_time(self, name: str, simulate: Callable[[], float]) -> float:
        if name not in self.used_times and len(self.used_times) >= MOST:
            raise InputError(
                f"run: more than {MOST} cluster states to simulate ({name} would be the next); "
                "give fewer slowdown levels (failures.by, failures.left)"
            )
        if name not in self.step_times:
            with report_phase("" if name == _HEALTHY else f"state {len(self.step_times) + 1} of the cluster ({name})"):
                self.step_times[name] = simulate()
        self.used_times[name] = self.step_times[name]
        return self.step_times[name]

    @cached_property
    def devices(self) -> JobDevices:
        """Devices of the job by type (GPU, NIC, ...), grouped into classes of equivalent devices."""
        return JobDevices(self.scenario)

    @cached_property
    def result(self) -> Result:
        """Simulated step on the healthy cluster."""
        with report_phase(f"state 1 of the cluster ({_HEALTHY})"):
            return simulate_scenario(self.scenario)

    def checkpoint_cost(self, spec: CheckpointSpec) -> CheckpointCost:
        """Return the cost of one checkpoint; raise InputError if the scenario does not determine its duration."""
        of_each = spec.model_copy(update={"every": "auto"})
        if of_each not in self.checkpoint_costs:
            self.checkpoint_costs[of_each] = checkpoint_cost(self.scenario, of_each)
        return self.checkpoint_costs[of_each]

    @property
    def healthy_step_time(self) -> float:
        """Step time (s) without failures, but with the faults that the scenario states."""
        return self._cached_step_time(_HEALTHY, lambda: self.result.step_time) + self.outer_seconds_per_step

    @cached_property
    def outer_seconds_per_step(self) -> float:
        """Cost of local training's outer steps (s per inner step), equal in every cluster state."""
        section = self.scenario.training.outer
        if section is None or not is_outer_step_rare(self.scenario):
            return 0.0
        return simulate_outer_step(self.scenario, self.result.step_time) / section.every

    def step_time_with_faults(self, label: str, faults: Iterable[Mapping[str, Any]]) -> float:
        """Return the step time (s) with additional faults and with the scenario's random draws."""

        def simulate_step() -> float:
            more = [_FAULT.validate_python(dict(fault)) for fault in faults]
            changed = self.scenario.model_copy(update={"faults": assign_random_streams((*self.scenario.faults, *more))})
            return simulate_scenario(changed).step_time

        return self._cached_step_time(label, simulate_step) + self.outer_seconds_per_step

    def step_time_with_slow_device(self, device: RepresentativeDevice, level: float) -> float:
        """Return the step time (s) with a device ``level`` times slower, or a link at that share of its bandwidth."""
        how = f"{level:g} x slower" if level >= 1 else f"at {level:.3g} of its bandwidth"
        faults = [{**fault, "factor": level} for fault in device.faults]
        return self.step_time_with_faults(f"{device.name} {how}", faults)

    def step_time_during_write(self, label: str, shares: Mapping[int, float]) -> float:
        """Return the step time (s) while checkpoint writes take a share of NIC bandwidth on each node."""
        most = max(shares.values(), default=0.0)
        if not most:
            return self.healthy_step_time
        ports, hosts = self.devices.job_network.ports, self.scenario.cluster.built.node_of_gpu
        taken = {cable: shares.get(int(hosts[ports[cable[0]]]), 0.0) for cable in self.devices.job_network.nic_cables}
        faults = (
            {"kind": "slow_link", "between": cable, "speed": 1 - share} for cable, share in taken.items() if share
        )
        return self.step_time_with_faults(f"{label} in flight (up to {most:.2%} of NICs)", faults)

    def validation_seconds_per_step(self, spec: ValidationSpec) -> float:
        """Return the cost of validations in seconds per step: forward passes on the healthy cluster."""
        if spec.seconds is not None:
            return spec.seconds / spec.every
        one = self._cached_step_time("a batch of validation", lambda: simulate_validation(self.scenario).step_time)
        return spec.batches * one / spec.every

    def step_time_with_missing_nodes(self, machines: int) -> tuple[float, float]:
        """Return step time (s) and share of the batch with nodes missing; InputError if no replica remains."""
        job = remove_nodes(self.scenario, machines)
        if job is None:
            raise InputError(
                f"run.short: shrink: {machines} missing nodes leave none of {self.scenario.dp} replicas; use 'wait'"
            )
        missing = self.scenario.dp - job.scenario.dp
        words = f"{missing} replica{'s' * (missing > 1)} fewer"
        share = job.scenario.training.global_batch / self.scenario.training.global_batch
        return self._cached_step_time(words, lambda: simulate_reduced_job(job)), share
