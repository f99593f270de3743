"""Builder of a long run's numerical description from a scenario's ``run:`` section."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simcluster.base.errors import InputError
from simcluster.longrun.checkpoint_pattern import MEMORY, STORAGE, CheckpointPattern, SnapshotCost
from simcluster.longrun.defaults import DETECTION, QUORUM, build_spare_nodes, ineffective_key_notes, restart_phases
from simcluster.longrun.failure_catalogue import resolve_failure_causes
from simcluster.longrun.long_run import DefectiveBatch, FailureMode, LongRun, Maintenance, RestartPhase
from simcluster.longrun.part_lifetimes import PartLifetimes
from simcluster.longrun.scaling.request import tokens_to_loss
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator, DevicesByClass
from simcluster.longrun.studies.run_closed_forms import CheckpointCosts, parse_interval
from simcluster.scenario.checkpoint_plan import CheckpointCost, describe_host_memory
from simcluster.scenario.job_conversion import unpadded_tokens_per_step
from simcluster.scenario.run_failures import DefectiveNodesSpec, FailureSpec, WeibullLifetimes
from simcluster.scenario.run_section import RestartPhaseSpec, RunSpec
from simcluster.scenario.run_times import DurationSpec, FixedTime, WeibullTime
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.schedule_plan import plan_of, schedule_of
from simcluster.studies.whatif.mitigations import ReducedJob, remove_nodes


def require_run_section(scenario: Scenario) -> RunSpec:
    """Return the scenario's ``run:`` section; raise InputError if the section is missing."""
    if scenario.run is None:
        raise InputError(
            f"{scenario.name}: has no run: section (length of training, failures); "
            "add one, as in --run.days '54 d' --run.failures llama3 --run.checkpoint.to '100 GB/s', or in Python "
            "with_({'run.days': '54 d', 'run.failures': 'llama3', 'run.checkpoint.to': '100 GB/s'})"
        )
    return scenario.run


LEAST = 2
"""Least number of runs for a confidence interval."""


def resolve_run_count(scenario: Scenario, played: int | None, least: int = 1) -> int:
    """Return the number of runs to simulate: the requested number, or the scenario's; InputError if too few."""
    count = require_run_section(scenario).played if played is None else played
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        why = "" if least == 1 else " (fewer give no confidence interval; 100 or more are better)"
        raise InputError(f"played: {count!r} must be a whole number of at least {least}{why}")
    return count


def build_long_run(scenario: Scenario, states: ClusterStateSimulator) -> LongRun:
    """Build a scenario's long run from simulated cluster states; collect notes in ``states.notes``."""
    section, gpus = require_run_section(scenario), scenario.gpus
    planned = section.maintenance
    if section.stages:
        raise InputError(f"{scenario.name}: this command does not support run.stages; add --set run.stages=null")
    states.reset_for_next_run()
    causes = tuple(_build_failure_modes(scenario, section, states, resolve_failure_causes(section.failures)))
    weight = _UNSAVED
    goal = goal_steps(scenario, section)
    may_stop = any(cause.effect != "slow" or section.straggler != "leave" for cause in causes)
    if section.checkpoint.every != "auto" or planned is not None or may_stop:
        weight = _find_checkpoint_cost(section, states)
    pattern = _build_checkpoint_pattern(section, states, weight, causes, goal)
    hosts = len(set(scenario.cluster.built.host_of[:gpus]))
    short, running = _simulate_shrunk_paces(section, states, causes)
    run = LongRun(
        pattern=pattern,
        causes=causes,
        machines=hosts,
        gpus=gpus,
        goal=goal,
        until=section.days if section.days is not None else math.inf,
        restart=tuple(_build_restart_phase(part, weight, gpus) for part in restart_phases(section)),
        spares=build_spare_nodes(section.spares, hosts, causes),
        shrunk_paces=short,
        shrunk_shares=running,
        straggler=section.straggler,
        notice_time=section.noticed.for_gpu_count(gpus),
        misdiagnosis_share=section.wrong_diagnosis,
        timeout=section.timeout,
        maintenance=Maintenance(planned.every, planned.lasts) if planned else None,
    )
    states.notes += ineffective_key_notes(section, run)
    return run


def goal_steps(scenario: Scenario, section: RunSpec) -> float:
    """Return the number of steps after which the run ends; infinity if the run ends by time alone."""
    if section.steps is not None:
        return section.steps
    tokens = section.tokens
    if tokens is None and section.loss is not None:
        tokens = tokens_to_loss(scenario, section.loss, section.law)
    return math.inf if tokens is None else math.ceil(tokens / unpadded_tokens_per_step(scenario))


def _build_restart_phase(part: RestartPhaseSpec, weight: CheckpointCost, gpus: int) -> RestartPhase:
    if part.takes == "auto":
        memory, storage = (FixedTime(seconds=f"{each!r} s") for each in (weight.load_memory, weight.load_storage))
        return RestartPhase(part.part, memory, storage, part.exposed, copies=True)
    law: DurationSpec = part.takes.for_gpu_count(gpus)
    return RestartPhase(part.part, law, law, part.exposed, copies=part.part == "load")


def _simulate_shrunk_paces(
    section: RunSpec, states: ClusterStateSimulator, causes: tuple[FailureMode, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return, for 1, 2, ... missing nodes, the job's step time factor and the share of its GPUs that run.

    A pace is seconds for the samples of a whole step, over a whole job's.
    """
    rejoin = section.recovery == "rejoin"
    if not any(cause.leaves for cause in causes) if rejoin else section.short == "wait" or section.spares.unlimited:
        return (), ()
    paces: list[float] = []
    running: list[float] = []
    for nodes, job in _iterate_reduced_jobs(section, states.scenario):
        seconds, share = states.step_time_with_missing_nodes(nodes)
        paces += [seconds / share / states.healthy_step_time] * (nodes - len(paces))
        running += [job.scenario.gpus / states.scenario.gpus] * (nodes - len(running))
    return tuple(paces), tuple(running)


def _iterate_reduced_jobs(section: RunSpec, scenario: Scenario) -> Iterator[tuple[int, ReducedJob]]:
    """Yield each number of missing nodes with which the job continues, and the job without them.

    At most ``shrink_to`` replicas may be missing. Where they rejoin they leave whole; else the nodes of a replica that
    has left replace those that fail next.
    """
    nodes, copy = find_whole_copies(scenario)[:2] if section.recovery == "rejoin" else (1, 1)
    most, missing = min(section.shrink_to * copy, scenario.dp - copy), nodes
    if not most:
        key = "recovery: rejoin" if section.recovery == "rejoin" else "short: shrink"
        use = "restart" if section.recovery == "rejoin" else "wait"
        raise InputError(f"run.{key} needs two or more replicas, but the job has one (dp {scenario.dp}); use '{use}'")
    while (job := remove_nodes(scenario, missing)) is not None:
        if missing > nodes and scenario.dp - job.scenario.dp > most:
            return
        yield missing, job
        missing += nodes


class WholeCopies(NamedTuple):
    """Whole copies of a job's weights and optimizer state: nodes and dp ranks of each, and the copies on each node."""

    nodes: int
    dp_ranks: int
    on_node: tuple[frozenset[int], ...]

    def count_leaving_nodes(self, machines: int) -> int:
        """Return the nodes that leave with ``machines`` adjacent ones, the first: those of all copies on them."""
        return machines if self.nodes == 1 else self.nodes * len(frozenset().union(*self.on_node[:machines]))


def find_whole_copies(scenario: Scenario) -> WholeCopies:
    """Return the copies of weights and optimizer state that leave as a whole when a node fails.

    A copy is a replica, or a shard group of hybrid sharding (HSDP), as in pytorch/torchtitan@41586f07:docs/torchft.md.
    InputError where no such copy is left without the node.
    """
    plan, place = plan_of(scenario, schedule_of(scenario)), "run.recovery: rejoin"
    if scenario.training.outer is not None:
        raise InputError(f"{place} does not support local training; remove training.outer, or use 'restart'")
    dp_of = np.empty(plan.num_ranks, dtype=np.int64)
    dp_of[plan.grid] = np.arange(plan.dp)[:, None, None]
    axes = (("shard", "edp_shard") if scenario.parallel.zero else ()) + (("ep", "etp") if plan.ep > 1 else ())
    together = [dp_of[plan.groups(axis)] for axis in axes]
    fits = [n for n in range(1, plan.dp + 1)
            if not plan.dp % n and all((group // n == group[:, :1] // n).all() for group in together)]  # fmt: skip
    copy = fits[0]
    if copy == plan.dp > 1:
        raise InputError(
            f"{place} needs two or more whole copies of weights and optimizer state, but all dp {plan.dp} replicas "
            "share one; set zero: 0, or zero: 3 with fsdp.shard_group below dp (HSDP), or use 'restart'"
        )
    hosts = scenario.cluster.built.node_of_gpu[: scenario.gpus]
    own, others = np.unique(hosts[dp_of < copy]), np.unique(hosts[dp_of >= copy])
    if len(own) > 1 and np.isin(own, others).any():
        raise InputError(
            f"{place} needs replicas that fill whole nodes, but nodes have ranks of several; use 'restart'"
        )
    on_node = tuple(frozenset((dp_of[hosts == host] // copy).tolist()) for host in np.unique(hosts))
    if len(on_node[0]) * copy == plan.dp > 1:
        raise InputError(f"{place} needs replicas on several nodes, but one has all of them; use 'restart'")
    return WholeCopies(len(own), copy, on_node)


_OF_ALL_REPLICAS, _SOME = ("switch", "neighbour", "job"), "failures of nodes in at most shrink_to replicas"


def _build_failure_modes(
    scenario: Scenario, section: RunSpec, states: ClusterStateSimulator, specs: Sequence[FailureSpec]
) -> Iterator[FailureMode]:
    rejoin, most, copies = section.recovery == "rejoin", 0, None
    if rejoin and any(spec.effect in ("stop", "slow") for spec in specs):
        most = max(missing for missing, _ in _iterate_reduced_jobs(section, scenario))
        copies = find_whole_copies(scenario)
    for spec in specs:
        devices = states.devices.devices_of_kind(spec.of, spec.machines)
        if devices.count:
            leaves = copies.count_leaving_nodes(spec.machines) if copies and spec.of not in _OF_ALL_REPLICAS else 0
            leaves = leaves if spec.effect in ("stop", "slow") and leaves <= most else 0
            if rejoin and spec.effect == "stop" and not leaves:
                states.notes.append(f"{spec.name}: the whole job restarts (run.recovery: rejoin is for {_SOME})")
            yield _build_failure_mode(spec, devices, section, scenario, states, leaves)
        else:
            states.notes.append(f"{spec.name} does not occur: the job's nodes have no {spec.of}")


def build_rollback_causes(
    scenario: Scenario, section: RunSpec, states: ClusterStateSimulator
) -> tuple[FailureMode, ...]:
    """Return the failure causes that undo training back to a checkpoint, without simulating cluster states."""
    specs = [spec for spec in resolve_failure_causes(section.failures) if spec.effect in ("stop", "silent")]
    return tuple(_build_failure_modes(scenario, section, states, specs))


def _build_failure_mode(
    spec: FailureSpec,
    devices: DevicesByClass,
    section: RunSpec,
    scenario: Scenario,
    states: ClusterStateSimulator,
    leaves: int,
) -> FailureMode:
    rate = spec.job_failure_rate(devices.count, devices.machines, scenario.gpus) * section.failures.times
    lives = None
    if isinstance(spec.law, WeibullLifetimes):
        law = WeibullTime(kind="weibull", mean=f"{(devices.count / rate)!r} s", shape=spec.law.shape)
        lives = PartLifetimes(devices.count, law, spec.law.youngest, spec.law.oldest)
    bad = None if spec.bad is None else build_defective_batch(spec.bad, devices.machines)
    shares, paces = _simulate_slow_device_paces(spec, devices, states)
    return FailureMode(
        name=spec.name,
        effect=spec.effect,
        rate=rate,
        devices=devices.count,
        part_lifetimes=lives,
        defective_batch=bad,
        detect=(spec.detect or section.detection or (QUORUM if leaves else DETECTION)).for_gpu_count(scenario.gpus),
        repair=spec.repair and spec.repair.for_gpu_count(scenario.gpus),
        machines=spec.machines,
        leaves=leaves,
        survives=STORAGE if spec.survives == "storage" or section.checkpoint.memory is None else MEMORY,
        lasts=(spec.lasts or FixedTime(seconds="0 s")).for_gpu_count(scenario.gpus),
        shares=shares,
        paces=paces,
        device_class=devices.device_class,
        label=devices.device_label,
    )


def build_defective_batch(batch: DefectiveNodesSpec, machines: int) -> DefectiveBatch:
    """Return the batch of defective nodes that a scenario specifies, among ``machines`` nodes."""
    window = math.inf if batch.within is None else batch.within
    count = round(batch.share * machines)
    return DefectiveBatch(count, batch.times, batch.cured, batch.retire, window, batch.rule, batch.replaced)


def _simulate_slow_device_paces(
    spec: FailureSpec, devices: DevicesByClass, states: ClusterStateSimulator
) -> tuple[tuple[float, ...], np.ndarray | None]:
    """Return each slowdown level's probability, and simulated step time factors by level and device class."""
    if spec.effect != "slow":
        return (1.0,), None
    levels, known = spec.by or spec.left, devices.representatives
    weights = np.array(spec.shares or [1.0] * len(levels))
    rows = [
        [max(1.0, states.step_time_with_slow_device(device, level) / states.healthy_step_time) for device in known]
        for level in levels
    ]
    if len(known) < devices.count:
        named = ", ".join(device.name for device in known)
        states.notes.append(f"{spec.name}: simulated on {named}, each for the nearest of {devices.count:,} devices")
    return tuple((weights / weights.sum()).tolist()), np.array(rows)


# --- checkpoints ------------------------------------------------------------------------------------------------------

_UNSAVED = CheckpointCost(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, load_memory=0.0, load_storage=0.0)
"""Checkpoint cost of a run that writes none."""


def _find_checkpoint_cost(section: RunSpec, states: ClusterStateSimulator) -> CheckpointCost:
    spec = section.checkpoint
    weight = states.checkpoint_cost(spec)
    states.notes += weight.notes
    told, _ = describe_host_memory(states.scenario, states.result.host_memory, spec)
    states.notes += [told] if told else []
    if spec.slowed is not None:
        return weight
    slowed = memory_slowed = 0.0
    if spec.mode == "snapshot" and weight.write:
        healthy = states.healthy_step_time
        slowed = 1 - healthy / max(healthy, states.step_time_during_write("write", dict(weight.shares)))
    if spec.memory is not None and weight.memory_write:
        copying = states.step_time_during_write("copies to peers", dict(weight.memory_shares))
        memory_slowed = 1 - states.healthy_step_time / max(states.healthy_step_time, copying)
    return replace(weight, slowed=slowed, memory_slowed=memory_slowed)


def _build_checkpoint_pattern(
    section: RunSpec, states: ClusterStateSimulator, cost: CheckpointCost, causes: tuple[FailureMode, ...], goal: float
) -> CheckpointPattern:
    spec = section.checkpoint
    storage = SnapshotCost(cost.stall, cost.write, cost.slowed)
    memory = None if spec.memory is None else SnapshotCost(cost.memory_stall, cost.memory_write, cost.memory_slowed)
    cycles = 1 if spec.memory is None else spec.memory.storage_every
    validation = states.validation_seconds_per_step(section.validation) if section.validation else 0.0
    step = states.healthy_step_time
    if cost is _UNSAVED:
        whole = goal if math.isfinite(goal) else (section.days or 0.0) / step + 1
        return CheckpointPattern(step, math.ceil(whole), SnapshotCost(0.0), keep=0, validation=validation)
    found = parse_interval(spec.every, step + validation, CheckpointCosts(storage, memory, spec.verify, cycles), causes)
    states.notes += found.notes
    if spec.every.strip() == "auto" and any(cause.defective_batch is not None for cause in causes):
        states.notes.append("the automatic checkpoint interval does not account for defective batches")
    cycles = found.snapshots_per_stored
    return CheckpointPattern(step, found.steps, storage, memory, cycles, spec.verify, spec.keep, validation)
