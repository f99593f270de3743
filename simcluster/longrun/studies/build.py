"""Builder of the numerical description of a long run from a scenario's ``run:`` section."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from simcluster.base.errors import InputError
from simcluster.longrun.catalogue import resolve_failures
from simcluster.longrun.defaults import DETECTION, build_spares, ineffective_key_notes, restart_phases
from simcluster.longrun.lives import PartLifetimes
from simcluster.longrun.pattern import MEMORY, STORAGE, CheckpointPattern, SnapshotCost
from simcluster.longrun.run import DefectiveBatch, FailureMode, LongRun, Maintenance, RestartPhase
from simcluster.longrun.scaling.request import tokens_to_loss
from simcluster.longrun.studies.run_closed_forms import CheckpointCosts, parse_interval
from simcluster.longrun.studies.states import DeviceClasses, StepStates
from simcluster.scenario.checkpoint_plan import CheckpointCost, describe_host_memory
from simcluster.scenario.job import real_tokens_per_step
from simcluster.scenario.run_failures import BadBatch, FailureSpec, WeibullLaw
from simcluster.scenario.run_section import RestartPart, RunSpec
from simcluster.scenario.run_times import FixedTime, TimeSpec, WeibullTime
from simcluster.scenario.scenario import Scenario
from simcluster.studies.whatif.mitigations import with_fewer_nodes


def run_section(scenario: Scenario) -> RunSpec:
    """Return the scenario's ``run:`` section; InputError if it has none."""
    if scenario.run is None:
        raise InputError(
            f"{scenario.name}: has no run: section (length of training, failures); "
            "add one, as in --run.days '54 d' --run.failures llama3 --run.checkpoint.to '100 GB/s', or in Python "
            "with_({'run.days': '54 d', 'run.failures': 'llama3', 'run.checkpoint.to': '100 GB/s'})"
        )
    return scenario.run


LEAST = 2
"""Least number of runs for a confidence interval."""


def number_of_runs(scenario: Scenario, played: int | None, least: int = 1) -> int:
    """Return the number of runs to simulate, as requested or as the scenario states; InputError if too few."""
    count = run_section(scenario).played if played is None else played
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        why = "" if least == 1 else " (fewer have no interval; 100 or more are better)"
        raise InputError(f"played: {count!r} must be a whole number of at least {least}{why}")
    return count


def build_long_run(scenario: Scenario, states: StepStates) -> LongRun:
    """Build the numerical description of a scenario's long run; notes go to ``states.notes``."""
    section, gpus = run_section(scenario), scenario.gpus
    planned = section.maintenance
    if section.stages:
        raise InputError(f"{scenario.name}: the run has stages; remove them with --set run.stages=null")
    states.begin_run()
    causes = tuple(_build_failure_modes(scenario, section, states, resolve_failures(section.failures)))
    weight, goal = _UNSAVED, goal_steps(scenario, section)
    if (
        section.checkpoint.every != "auto"
        or section.maintenance is not None
        or any(cause.effect != "slow" or section.straggler != "leave" for cause in causes)
    ):
        weight = _find_checkpoint_cost(section, states)
    pattern = _build_pattern(section, states, weight, causes, goal)
    hosts = len(set(scenario.cluster.built.host_of[:gpus]))
    short, running = _shrunk_paces(section, states, states.healthy_step_time)
    run = LongRun(
        pattern=pattern,
        causes=causes,
        machines=hosts,
        gpus=gpus,
        goal=goal,
        until=section.days if section.days is not None else math.inf,
        restart=tuple(_build_restart_phase(part, weight, gpus) for part in restart_phases(section)),
        spares=build_spares(section.spares, hosts, causes),
        short=short,
        running=running,
        straggler=section.straggler,
        noticed=section.noticed.for_gpus(gpus),
        wrong=section.wrong_diagnosis,
        timeout=section.timeout,
        maintenance=Maintenance(planned.every, planned.lasts) if planned else None,
    )
    states.notes += ineffective_key_notes(section, run)
    return run


def goal_steps(scenario: Scenario, section: RunSpec) -> float:
    """Return the number of steps at which the run ends; infinity if only time ends it."""
    if section.steps is not None:
        return section.steps
    tokens = section.tokens
    if tokens is None and section.loss is not None:
        tokens = tokens_to_loss(scenario, section.loss, section.law)
    return math.inf if tokens is None else math.ceil(tokens / real_tokens_per_step(scenario))


def _build_restart_phase(part: RestartPart, weight: CheckpointCost, gpus: int) -> RestartPhase:
    if part.takes == "auto":
        memory, storage = (FixedTime(seconds=f"{each!r} s") for each in (weight.load_memory, weight.load_storage))
        return RestartPhase(part.part, memory, storage, part.exposed)
    law: TimeSpec = part.takes.for_gpus(gpus)
    return RestartPhase(part.part, law, law, part.exposed)


def _shrunk_paces(section: RunSpec, states: StepStates, step: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the job's pace with 1, 2, ... nodes missing, and the share of its GPUs that then run.

    A pace is seconds for the samples of a whole step, over a whole job's. At most ``shrink_to`` replicas may be
    missing; the nodes of a replica that has left replace those that fail next.
    """
    if section.short == "wait" or section.spares.unlimited:
        return (), ()
    most = min(section.shrink_to, states.scenario.dp - 1)
    if not most:
        raise InputError("run.short: shrink: the job has a single replica (dp 1), so none can be missing; use wait")
    paces: list[float] = []
    running: list[float] = []
    while (job := with_fewer_nodes(states.scenario, len(paces) + 1)) is not None:
        if paces and states.scenario.dp - job.scenario.dp > most:
            break
        seconds, share = states.short_step_time(len(paces) + 1)
        paces.append(seconds / share / step)
        running.append(job.scenario.gpus / states.scenario.gpus)
    return tuple(paces), tuple(running)


def _build_failure_modes(
    scenario: Scenario, section: RunSpec, states: StepStates, specs: Iterable[FailureSpec]
) -> Iterator[FailureMode]:
    for spec in specs:
        devices = states.devices.devices_of_kind(spec.of, spec.machines)
        if devices.count:
            yield _build_failure_mode(spec, devices, section, scenario, states)
        else:
            states.notes.append(f"{spec.name} does not occur: the job's nodes have no {spec.of}")


def rollback_causes(scenario: Scenario, section: RunSpec, states: StepStates) -> tuple[FailureMode, ...]:
    """Return the failure causes that set a run back to a checkpoint, without simulating cluster states."""
    specs = [spec for spec in resolve_failures(section.failures) if spec.effect in ("stop", "silent")]
    return tuple(_build_failure_modes(scenario, section, states, specs))


def _build_failure_mode(
    spec: FailureSpec, devices: DeviceClasses, section: RunSpec, scenario: Scenario, states: StepStates
) -> FailureMode:
    rate = spec.rate(devices.count, devices.machines, scenario.gpus) * section.failures.times
    lives = None
    if isinstance(spec.law, WeibullLaw):
        mean = devices.count / rate
        law = WeibullTime(kind="weibull", mean=f"{mean!r} s", shape=spec.law.shape)
        lives = PartLifetimes(devices.count, law, spec.law.youngest, spec.law.oldest)
    bad = None if spec.bad is None else build_defective_batch(spec.bad, devices.machines)
    shares, paces = _simulate_paces(spec, devices, states)
    return FailureMode(
        name=spec.name,
        effect=spec.effect,
        rate=rate,
        devices=devices.count,
        lives=lives,
        bad=bad,
        detect=(spec.detect or section.detection or DETECTION).for_gpus(scenario.gpus),
        repair=spec.repair and spec.repair.for_gpus(scenario.gpus),
        machines=spec.machines,
        survives=STORAGE if spec.survives == "storage" or section.checkpoint.memory is None else MEMORY,
        lasts=(spec.lasts or FixedTime(seconds="0 s")).for_gpus(scenario.gpus),
        shares=shares,
        paces=paces,
        column=devices.column,
        label=devices.label,
    )


def build_defective_batch(batch: BadBatch, machines: int) -> DefectiveBatch:
    """Return the defective nodes that a batch in the scenario describes, among ``machines`` nodes."""
    window = math.inf if batch.within is None else batch.within
    count = round(batch.share * machines)
    return DefectiveBatch(count, batch.times, batch.cured, batch.retire, window, batch.rule, batch.replaced)


def _simulate_paces(
    spec: FailureSpec, devices: DeviceClasses, states: StepStates
) -> tuple[tuple[float, ...], np.ndarray | None]:
    """Return the probability of each slowdown level, and the simulated slowdown by level and device class."""
    if spec.effect != "slow":
        return (1.0,), None
    levels = spec.by or spec.left
    weights = np.array(spec.shares or [1.0] * len(levels))
    rows = [
        [max(1.0, states.slow_step_time(device, level) / states.healthy_step_time) for device in devices.stand_for]
        for level in levels
    ]
    if len(devices.stand_for) < devices.count:
        named = ", ".join(device.words for device in devices.stand_for)
        states.notes.append(f"{spec.name}: simulated on {named}, which represent the nearest of {devices.count:,}")
    return tuple((weights / weights.sum()).tolist()), np.array(rows)


# --- checkpoints ------------------------------------------------------------------------------------------------------

_UNSAVED = CheckpointCost(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, load_memory=0.0, load_storage=0.0)
"""Checkpoint cost of a run that writes none."""


def _find_checkpoint_cost(section: RunSpec, states: StepStates) -> CheckpointCost:
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
        slowed = 1 - healthy / max(healthy, states.writing_step_time("write", dict(weight.shares)))
    if spec.memory is not None and weight.memory_write:
        copying = states.writing_step_time("copies to peers", dict(weight.memory_shares))
        memory_slowed = 1 - states.healthy_step_time / max(states.healthy_step_time, copying)
    return replace(weight, slowed=slowed, memory_slowed=memory_slowed)


def _build_pattern(
    section: RunSpec, states: StepStates, weight: CheckpointCost, causes: tuple[FailureMode, ...], goal: float
) -> CheckpointPattern:
    spec = section.checkpoint
    storage = SnapshotCost(weight.stall, weight.write, weight.slowed)
    memory = (
        None if spec.memory is None else SnapshotCost(weight.memory_stall, weight.memory_write, weight.memory_slowed)
    )
    cycles = 1 if spec.memory is None else spec.memory.storage_every
    validation = states.validation_step_time(section.validation) if section.validation else 0.0
    step = states.healthy_step_time
    if weight is _UNSAVED:
        whole = goal if math.isfinite(goal) else (section.days or 0.0) / step + 1
        return CheckpointPattern(step, math.ceil(whole), SnapshotCost(0.0), keep=0, validation=validation)
    costs = CheckpointCosts(storage, memory, spec.verify, cycles)
    found = parse_interval(spec.every, step + validation, costs, causes)
    states.notes += found.notes
    if spec.every.strip() == "auto" and any(cause.bad is not None for cause in causes):
        states.notes.append("the checkpoint interval is chosen without defective batches")
    return CheckpointPattern(step, found.steps, storage, memory, found.cycles, spec.verify, spec.keep, validation)
