"""Assumptions of an answer about a long run: what it depends on and its scenario does not state, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcluster.longrun.defaults import (
    DETECTION_SOURCE,
    NODES_PER_SPARE,
    RESTART_SOURCE,
    SPARES_SOURCE,
    detection_of,
)
from simcluster.longrun.run import LongRun
from simcluster.longrun.studies.build import section_of
from simcluster.longrun.text import duration
from simcluster.scenario.run_failures import FailuresSpec
from simcluster.scenario.run_section import RunSpec, SparesSpec

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario

_REPAIR_SOURCE = "no cluster published it; AIReSim takes 2 d by hand, arXiv:2603.07041"


def assumptions_of(scenario: Scenario, run: LongRun) -> tuple[str, ...]:
    """Return what a run takes for granted, each with its source and the key that states it."""
    return tuple(_assumptions(section_of(scenario), run))


def _assumptions(section: RunSpec, run: LongRun) -> Iterator[str]:
    stops = any(cause.stops for cause in run.causes)
    if section.restart is None and (stops or run.maintenance is not None):
        phases = ", ".join(f"{part.name} {duration(part.storage.mean)}" for part in run.restart)
        yield f"a restart takes {phases} ({RESTART_SOURCE}; run.restart)"
    if stops:
        if section.detection is None:
            seconds = duration(detection_of(section).mean)
            yield f"a failure is noticed after {seconds} ({DETECTION_SOURCE}; run.detection)"
        if "wrong_diagnosis" not in section.model_fields_set:
            yield "no diagnosis blames the wrong node (run.wrong_diagnosis)"
        names = {cause.name for cause in run.causes}
        for spec in section.failures.also:
            of_a_node = spec.effect == "stop" and spec.of in ("gpu", "memory", "host", "rack")
            if of_a_node and spec.repair is None and spec.name in names:
                yield f"{spec.name}: the job restarts on the same nodes, none is repaired (run.failures: repair)"
    if any(cause.repair is not None for cause in run.causes):
        yield from _of_repairs(section.failures, section.spares, run)
    if not run.pattern.keep:
        yield "no checkpoint is written, for nothing fails (run.checkpoint.every, run.failures)"
    elif "mode" not in section.checkpoint.model_fields_set:
        yield "a checkpoint stops training until it is written (run.checkpoint.mode)"


def _of_repairs(failures: FailuresSpec, spares: SparesSpec, run: LongRun) -> Iterator[str]:
    """Yield what is assumed of nodes in repair and of those that replace them."""
    own = {spec.name for spec in failures.also}
    known = [(cause.rate, cause.repair.mean) for cause in run.causes if cause.repair and cause.name not in own]
    if failures.of is not None and known:
        mean = duration(sum(rate * repair for rate, repair in known) / sum(rate for rate, _ in known))
        yield f"a failed node is repaired in {mean} on average, as {failures.of} has it ({_REPAIR_SOURCE})"
    if spares.unlimited:
        return
    if not spares.stated:
        yield (
            f"{run.spares.count:,} spare node{'s' * (run.spares.count > 1)}, 1 per {NODES_PER_SPARE} of the job's "
            f"{run.machines:,} ({SPARES_SOURCE}; run.spares.warm)"
        )
    for kind, seconds in zip(("hot", "warm", "cold"), run.spares.ready, strict=True):
        if getattr(spares, f"{kind}_ready") is None and getattr(run.spares, kind):
            ready = f"after {duration(seconds)}" if seconds else "at once"
            yield f"a {kind} spare is ready {ready} (not published; run.spares.{kind}_ready)"
    if spares.crews is None:
        yield "all nodes that failed are repaired at once (run.spares.crews)"
