"""Periodic work of a run: checkpoints, validations, and outer steps of local training, in seconds per step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.longrun.checkpoint_pattern import SnapshotCost
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.run_builder import build_rollback_causes
from simcluster.longrun.studies.run_closed_forms import CheckpointCosts, parse_interval
from simcluster.results.result import Result
from simcluster.scenario.checkpoint_plan import checkpoint_cost
from simcluster.scenario.run_section import RunSpec
from simcluster.show.output_blocks import HeadlineValues, NamedValue, OutputBlocks
from simcluster.studies.whatif.extra_steps import is_outer_step_rare, simulate_outer_step


@dataclass(frozen=True, slots=True)
class PeriodicWork:
    """Periodic work that interrupts training for ``seconds`` every ``interval_steps`` steps."""

    name: str
    seconds: float
    interval_steps: int

    @property
    def seconds_per_step(self) -> float:
        """Duration of the periodic work divided by its interval in steps (s per step)."""
        return self.seconds / self.interval_steps


def list_periodic_work(result: Result) -> tuple[PeriodicWork, ...]:
    """Return the periodic work that a run adds to its steps: checkpoints, validations, outer steps."""
    section, outer = result.scenario.run, result.scenario.training.outer
    found: list[PeriodicWork] = []
    if outer is not None and is_outer_step_rare(result.scenario):
        found.append(PeriodicWork("outer step", simulate_outer_step(result.scenario, result.step_time), outer.every))
    return (*found, *(() if section is None or section.stages else _list_run_periodic_work(result, section)))


def periodic_work_answer(result: Result) -> tuple[OutputBlocks, dict[str, Any]]:
    """Return printed answer and JSON of a run's periodic work per step; both empty if the run has no such work."""
    if not (rows := list_periodic_work(result)):
        return [], {}
    whole = result.step_time + sum(row.seconds_per_step for row in rows)
    facts = [
        NamedValue("" if number else "amortised", f"{row.name} {format_seconds(row.seconds_per_step)} per step",
             f" ({format_seconds(row.seconds)} every {row.interval_steps:,})")
        for number, row in enumerate(rows)
    ]  # fmt: skip
    facts.append(NamedValue("", f"the step then takes {format_seconds(whole)}, {whole / result.step_time - 1:+.2%}"))
    found = {
        row.name: {"seconds": row.seconds, "every": row.interval_steps, "step_s": row.seconds_per_step} for row in rows
    }
    return [HeadlineValues(facts)], {"amortised": {"step_time_s": whole, **found}}


def _list_run_periodic_work(result: Result, section: RunSpec) -> Iterator[PeriodicWork]:
    scenario, spec, validation = result.scenario, section.checkpoint, section.validation
    states = ClusterStateSimulator(scenario)
    seconds = states.validation_seconds_per_step(validation) if validation else 0.0
    if spec.to is not None or spec.stall is not None:
        weight = checkpoint_cost(scenario, spec)
        savings = CheckpointCosts(SnapshotCost(weight.stall, weight.write, weight.slowed), None, spec.verify, 1)
        try:
            found = parse_interval(
                spec.every, result.step_time + seconds, savings, build_rollback_causes(scenario, section, states)
            )
        except InputError:
            found = None  # auto, and nothing fails: never
        if found is not None and spec.memory is None:
            yield PeriodicWork("checkpoint", weight.stall + spec.verify, found.steps)
    if validation is not None:
        yield PeriodicWork("validation", seconds * validation.every, validation.every)
