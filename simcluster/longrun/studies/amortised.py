"""Periodic work of a run in seconds per step: checkpoints, validations, and outer steps of local training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.longrun.pattern import SnapshotCost
from simcluster.longrun.studies.build import rollback_causes
from simcluster.longrun.studies.run_closed_forms import CheckpointCosts, parse_interval
from simcluster.longrun.studies.states import StepStates
from simcluster.results.result import Result
from simcluster.scenario.checkpoint_plan import checkpoint_cost
from simcluster.scenario.run_section import RunSpec
from simcluster.show.blocks import Answer, Fact, Figures
from simcluster.studies.whatif.extra_steps import is_outer_step_rare, outer_step_seconds


@dataclass(frozen=True, slots=True)
class AmortisedRow:
    """Periodic interruption of training for ``seconds``, once in ``every`` steps."""

    name: str
    seconds: float
    every: int

    @property
    def each_step(self) -> float:
        """Cost of the interruption in seconds per step."""
        return self.seconds / self.every


def amortised_rows(result: Result) -> tuple[AmortisedRow, ...]:
    """Return the periodic work that a run adds to its steps: checkpoints, validations, outer steps."""
    section, outer = result.scenario.run, result.scenario.training.outer
    found: list[AmortisedRow] = []
    if outer is not None and is_outer_step_rare(result.scenario):
        found.append(AmortisedRow("outer step", outer_step_seconds(result.scenario, result.step_time), outer.every))
    return (*found, *(() if section is None or section.stages else _run_periodic_work(result, section)))


def amortised_answer(result: Result) -> tuple[Answer, dict[str, Any]]:
    """Return the printed answer and the JSON of a run's periodic work per step; both empty without any."""
    if not (rows := amortised_rows(result)):
        return [], {}
    whole = result.step_time + sum(row.each_step for row in rows)
    facts = [
        Fact("" if number else "amortised", f"{row.name} {format_seconds(row.each_step)} per step",
             f" ({format_seconds(row.seconds)} every {row.every:,})")
        for number, row in enumerate(rows)
    ]  # fmt: skip
    facts.append(Fact("", f"the step then takes {format_seconds(whole)}, {whole / result.step_time - 1:+.2%}"))
    found = {row.name: {"seconds": row.seconds, "every": row.every, "step_s": row.each_step} for row in rows}
    return [Figures(facts)], {"amortised": {"step_time_s": whole, **found}}


def _run_periodic_work(result: Result, section: RunSpec) -> Iterator[AmortisedRow]:
    scenario, spec, validation = result.scenario, section.checkpoint, section.validation
    states = StepStates(scenario)
    seconds = states.validation_step_time(validation) if validation else 0.0
    if spec.to is not None or spec.stall is not None:
        weight = checkpoint_cost(scenario, spec)
        savings = CheckpointCosts(SnapshotCost(weight.stall, weight.write, weight.slowed), None, spec.verify, 1)
        try:
            found = parse_interval(
                spec.every, result.step_time + seconds, savings, rollback_causes(scenario, section, states)
            )
        except InputError:
            found = None  # auto, and nothing fails: never
        if found is not None and spec.memory is None:
            yield AmortisedRow("checkpoint", weight.stall + spec.verify, found.steps)
    if validation is not None:
        yield AmortisedRow("validation", seconds * validation.every, validation.every)
