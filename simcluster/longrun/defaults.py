"""Defaults of a scenario's ``run:`` section and their sources; notes on assumptions and on keys without effect."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from simcluster.longrun.checkpoint_pattern import MEMORY
from simcluster.longrun.failure_catalogue import resolve_failure_causes
from simcluster.longrun.long_run import FailureMode, LongRun, SpareNodes
from simcluster.longrun.text_formats import format_duration
from simcluster.scenario.run_failures import FailureSpec, FailuresSpec
from simcluster.scenario.run_section import RestartPhaseSpec, RunSpec, SparesSpec
from simcluster.scenario.run_times import FixedTime

DETECTION = FixedTime(seconds="2 min")
DETECTION_SOURCE = "half of the 5 min between health checks, arXiv:2410.21680"

QUORUM = FixedTime(seconds="60 s")
QUORUM_SOURCE = "timeout of a collective in torchft, meta-pytorch/torchft@000c1760:torchft/manager.py"
"""Detection where the other replicas continue: they form a new quorum without the one that failed."""

RESTART = (
    RestartPhaseSpec(part="stop and reschedule", takes="2 min", exposed=False),
    RestartPhaseSpec(part="communicators", takes="17 s"),
    RestartPhaseSpec(part="load"),
    RestartPhaseSpec(part="warm up", takes="3 min"),
)
RESTART_SOURCE = "as in llama3_405b_54_days; communicators: arXiv:2602.00277; the rest is an assumption"

NODES_PER_SPARE = 12
"""Nodes of a job per spare node."""
SPARES_SOURCE = "BLOOM kept 4 spares for 48 nodes, arXiv:2211.05100"

_REPAIR = "no cluster publishes it; AIReSim assumes 2 d for a manual repair, arXiv:2603.07041"

READY = (0.0, 120.0, 1200.0)
"""Seconds until a hot, a warm and a cold spare is ready; not published."""


def restart_phases(section: RunSpec) -> tuple[RestartPhaseSpec, ...]:
    """Return the phases of a restart: the scenario's, or the defaults."""
    return RESTART if section.restart is None else section.restart


def build_spare_nodes(spec: SparesSpec, nodes: int, causes: Sequence[FailureMode]) -> SpareNodes:
    """Return a job's spare nodes; default: 1 warm spare per 12 nodes if a failure can remove a node."""
    known = spec.hot_ready, spec.warm_ready, spec.cold_ready
    ready = [default if stated is None else stated for stated, default in zip(known, READY, strict=True)]
    hot, warm, cold = spec.hot or 0, spec.warm or 0, spec.cold or 0
    if not spec.has_count and any(cause.repair is not None for cause in causes):
        warm = math.ceil(nodes / NODES_PER_SPARE)
    return SpareNodes(hot, warm, cold, (ready[0], ready[1], ready[2]), spec.crews, spec.unlimited)


# --- fields without effect --------------------------------------------------------------------------------------------

_SAVING = ("mode", "to", "read", "bytes_per_parameter", "stall", "write", "slowed", "memory", "verify", "keep", "price")


def ineffective_key_notes(section: RunSpec, run: LongRun) -> Iterator[str]:
    """Yield a note for each ``run:`` key that the scenario sets although it has no effect."""
    told: set[str] = set()
    for path, idle, why in _ineffective_keys(section, run):
        owner, _, key = path.rpartition(".")
        if idle and path not in told and _has_stated_key(getattr(section, owner) if owner else section, key):
            told.add(path)
            yield f"run.{path} has no effect: {why}"
    known = {spec.name for spec in resolve_failure_causes(section.failures)}
    for number, spec in enumerate(section.failures.also):
        idle_keys = {key: why for key, idle, why in reversed(_ineffective_failure_keys(spec, section)) if idle}
        for key, why in idle_keys.items() if spec.name in known else ():
            if _has_stated_key(spec, key):
                yield f"run.failures.also.{number}.{key} has no effect: {why}"


def _has_stated_key(spec: BaseModel, key: str) -> bool:
    return key in spec.model_fields_set and getattr(spec, key) != type(spec).model_fields[key].default


def _ineffective_keys(section: RunSpec, run: LongRun) -> tuple[tuple[str, bool, str], ...]:
    """Return (key path, whether the key has no effect, reason); of equal paths the first counts."""
    effects, pool, pattern = {cause.effect for cause in run.causes}, section.spares.unlimited, run.pattern
    leaves, never_slow = section.straggler == "leave", "slow" not in effects
    never_stops = run.maintenance is None and not effects - {"slow"} and (leaves or not effects)
    never_replaced = never_stops or all(cause.repair is None for cause in run.causes)
    stops, repairs, always = (
        "nothing stops the job", "no failure removes a node", "with run.spares.unlimited a spare is always there",
    )  # fmt: skip
    return (
        *((key, never_stops, stops) for key in ("detection", "restart", "wrong_diagnosis")),
        ("failures.times", not run.causes, "there are no failures"),
        ("short", pool, always),
        ("short", never_replaced, repairs),
        ("recovery", not any(cause.leaves for cause in run.causes), "no failure removes only some replicas"),
        ("shrink_to", section.short == "wait" and section.recovery == "restart",
         "run.short is wait, which removes no replica"),
        ("shrink_to", section.short == "shrink" and not run.shrunk_paces, always),
        *((key, never_slow, "no failure slows a device (effect: slow)") for key in ("straggler", "noticed")),
        ("noticed", leaves, "run.straggler is leave, which ignores slow devices"),
        ("timeout", "pause" not in effects, "no failure pauses the job"),
        *((f"spares.{key}", pool, always)
          for key in ("hot", "warm", "cold", "hot_ready", "warm_ready", "cold_ready", "crews", "price")),
        *((f"spares.{key}", never_replaced, repairs) for key in ("hot_ready", "warm_ready", "cold_ready", "crews")),
        ("spares.price", not run.spares.count, "there is no spare"),
        *((f"spares.{kind}_ready", not getattr(run.spares, kind), f"no spare is {kind}")
          for kind in ("hot", "warm", "cold")),
        *((f"checkpoint.{key}", not pattern.keep, "nothing fails, so no checkpoint is written (run.checkpoint.every)")
          for key in _SAVING),
        ("checkpoint.slowed", not pattern.storage.write and pattern.memory is None,
         "training stops until a checkpoint is written (run.checkpoint.mode)"),
        ("checkpoint.read", all(part.takes != "auto" for part in restart_phases(section)),
         "no phase of the restart loads a checkpoint (takes: auto)"),
        ("checkpoint.read", all(cause.survives == MEMORY for cause in run.causes),
         "copies in memory survive all failures (key survives)"),
    )  # fmt: skip


def _ineffective_failure_keys(spec: FailureSpec, section: RunSpec) -> tuple[tuple[str, bool, str], ...]:
    slow, alone = spec.effect == "slow", "a slow device is left in place (run.straggler)"
    left, saved = slow and section.straggler == "leave", slow and section.straggler == "checkpoint"
    return (
        ("survives", section.checkpoint.memory is None, "no checkpoint copy is in memory (run.checkpoint.memory)"),
        *((key, left, alone) for key in ("detect", "repair", "survives")),
        ("machines", left and spec.of != "rack", f"each slowdown has one device, and {alone}"),
        *((key, saved, "a slow device is replaced after a checkpoint") for key in ("detect", "survives")),
        *((key, spec.effect == "alarm", "an alarm is handled after a checkpoint") for key in ("detect", "survives")),
    )  # fmt: skip


# --- assumptions ------------------------------------------------------------------------------------------------------


def list_assumptions(section: RunSpec, run: LongRun) -> Iterator[str]:
    """Yield each assumption of a run with a source and the scenario key that overrides the assumption."""
    stops = any(cause.stops_job for cause in run.causes)
    if section.restart is None and (stops or run.maintenance is not None):
        phases = ", ".join(f"{part.name} {format_duration(part.storage.mean)}" for part in run.restart)
        yield f"a restart takes {phases} ({RESTART_SOURCE}; run.restart)"
    if stops:
        if section.detection is None and any(cause.leaves for cause in run.causes):
            yield (
                f"replicas continue {format_duration(QUORUM.mean)} after another has failed ({QUORUM_SOURCE}; "
                "run.detection)"
            )
        if section.detection is None and any(cause.restarts_job for cause in run.causes):
            yield f"a failure is noticed after {format_duration(DETECTION.mean)} ({DETECTION_SOURCE}; run.detection)"
        if "wrong_diagnosis" not in section.model_fields_set:
            yield "no diagnosis blames the wrong node (run.wrong_diagnosis)"
        names = {cause.name for cause in run.causes}
        for spec in section.failures.also:
            of_a_node = spec.effect == "stop" and spec.of in ("gpu", "memory", "host", "rack")
            if of_a_node and spec.repair is None and spec.name in names:
                yield f"{spec.name}: no node is repaired, the job restarts on the same nodes (run.failures: repair)"
    if any(cause.repair is not None for cause in run.causes):
        yield from _repair_assumptions(section.failures, section.spares, run)
    if not run.pattern.keep:
        yield "no checkpoint is written, because nothing fails (run.checkpoint.every, run.failures)"
    elif "mode" not in section.checkpoint.model_fields_set:
        yield "a checkpoint stops training until it is written (run.checkpoint.mode)"


def _repair_assumptions(failures: FailuresSpec, spares: SparesSpec, run: LongRun) -> Iterator[str]:
    own = {spec.name for spec in failures.also}
    known = [(cause.rate, cause.repair.mean) for cause in run.causes if cause.repair and cause.name not in own]
    if failures.of is not None and known:
        mean = format_duration(sum(rate * repair for rate, repair in known) / sum(rate for rate, _ in known))
        yield f"a failed node is repaired in {mean} on average, as in {failures.of} ({_REPAIR})"
    if spares.unlimited:
        return
    if not spares.has_count:
        yield (
            f"{run.spares.count:,} spare node{'s' * (run.spares.count > 1)}, 1 per {NODES_PER_SPARE} of the job's "
            f"{run.machines:,} ({SPARES_SOURCE}; run.spares.warm)"
        )
    for kind, seconds in zip(("hot", "warm", "cold"), run.spares.ready, strict=True):
        if getattr(spares, f"{kind}_ready") is None and getattr(run.spares, kind):
            ready = f"after {format_duration(seconds)}" if seconds else "at once"
            yield f"a {kind} spare is ready {ready} (not published; run.spares.{kind}_ready)"
    if spares.crews is None:
        yield "any number of failed nodes is repaired concurrently (run.spares.crews)"
