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
from simcluster.longrun.studies.advised import duration
from simcluster.longrun.studies.build import section_of
from simcluster.scenario.run_failures import FailureSpec, FailuresSpec
from simcluster.scenario.run_section import RunSpec, SparesSpec

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario

_REPAIR_SOURCE = "no cluster published it; AIReSim takes 2 d by hand, arXiv:2603.07041"


def assumptions_of(scenario: Scenario, run: LongRun) -> tuple[str, ...]:
    """Return what a run takes for granted, each with its source and the key that states it."""
    section = section_of(scenario)
    stops = any(cause.stops for cause in run.causes)
    found = [*(_of_outages(section, run) if stops else ()), *_of_repairs(section, run)]
    if section.restart is None and (stops or run.maintenance is not None):
        phases = ", ".join(f"{part.name} {duration(part.storage.mean)}" for part in run.restart)
        found.insert(0, f"a restart takes {phases} ({RESTART_SOURCE}; run.restart)")
    if not run.pattern.keep:
        found.append("no checkpoint is written, for nothing fails (run.checkpoint.every, run.failures)")
    elif "mode" not in section.checkpoint.model_fields_set:
        found.append("a checkpoint stops training until it is written (run.checkpoint.mode)")
    return tuple(found)


def _of_outages(section: RunSpec, run: LongRun) -> Iterator[str]:
    if section.detection is None:
        yield f"a failure is noticed after {duration(detection_of(section).mean)} ({DETECTION_SOURCE}; run.detection)"
    if "wrong_diagnosis" not in section.model_fields_set:
        yield "no diagnosis blames the wrong node (run.wrong_diagnosis)"
    for spec in section.failures.also:
        if _replaceable(spec) and any(cause.name == spec.name for cause in run.causes):
            yield f"{spec.name}: the job restarts on the same nodes, none is repaired (run.failures: repair)"


def _replaceable(spec: FailureSpec) -> bool:
    return spec.effect == "stop" and spec.repair is None and spec.of in ("gpu", "memory", "host", "rack")


def _of_repairs(section: RunSpec, run: LongRun) -> Iterator[str]:
    """Yield what is assumed of nodes in repair and of those that replace them."""
    leaving = [cause for cause in run.causes if cause.repair is not None]
    if not leaving:
        return
    yield from _of_catalogue(section.failures, run)
    if section.spares.unlimited:
        return
    yield from _of_spares(section.spares, run)
    if section.spares.crews is None:
        yield "all nodes that failed are repaired at once (run.spares.crews)"


def _of_catalogue(failures: FailuresSpec, run: LongRun) -> Iterator[str]:
    """Yield the mean repair of the failures that the catalogue has."""
    stated = {spec.name for spec in failures.also}
    known = [(cause.rate, cause.repair.mean) for cause in run.causes if cause.repair and cause.name not in stated]
    if failures.of is None or not known:
        return
    mean = sum(rate * repair for rate, repair in known) / sum(rate for rate, _ in known)
    yield f"a failed node is repaired in {duration(mean)} on average, as {failures.of} has it ({_REPAIR_SOURCE})"


def _of_spares(spec: SparesSpec, run: LongRun) -> Iterator[str]:
    if not spec.stated:
        yield (
            f"{run.spares.count:,} spare node{'s' * (run.spares.count > 1)}, 1 per {NODES_PER_SPARE} of the job's "
            f"{run.machines:,} ({SPARES_SOURCE}; run.spares.warm)"
        )
    stated = {"hot": spec.hot_ready, "warm": spec.warm_ready, "cold": spec.cold_ready}
    for (kind, given), seconds in zip(stated.items(), run.spares.ready, strict=True):
        if given is None and getattr(run.spares, kind):
            yield f"a {kind} spare is ready {_after(seconds)} (not published; run.spares.{kind}_ready)"


def _after(seconds: float) -> str:
    return f"after {duration(seconds)}" if seconds else "at once"
