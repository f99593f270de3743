"""Policies side by side: runs that differ in what is decided, on the same random numbers, and what that is worth.

What strikes and how long it lasts is drawn by entity, kind and occurrence (``longrun.streams``), so that two policies
meet the same failures, and the difference of the two is known far better than either (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.shown import Shown
from simcluster.base.units import DAY
from simcluster.documents.argument_types import checked
from simcluster.documents.diagnostics import type_name
from simcluster.documents.overrides import apply_overrides
from simcluster.documents.reading import Document, validate
from simcluster.documents.spec import Spec
from simcluster.longrun.ending import check_end
from simcluster.longrun.outcome import Outcomes
from simcluster.longrun.run import LongRun
from simcluster.longrun.studies.build import long_run_of, section_of
from simcluster.longrun.studies.chunks import Workers, player_of
from simcluster.longrun.studies.policies import PairedDifference, half_width, paired, played_of, records
from simcluster.longrun.studies.states import StepStates
from simcluster.longrun.studies.train_stages import StagedTraining, first_of_stage, stage_scenarios
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.results.assumptions import merge_assumptions
from simcluster.results.result import Result
from simcluster.scenario.given import ScenarioLike, scenario_of
from simcluster.scenario.run_section import RunSpec
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.studies.sweep.sweep import Progress

if TYPE_CHECKING:
    import pandas as pd

Measure = Literal["goodput", "days", "dollars"]
MEASURES: Mapping[Measure, tuple[float, str]] = {"goodput": (100, "points"), "days": (1, "days"), "dollars": (1, "$")}
"""What policies are compared by: how a difference is scaled for people, and its unit."""

Policy = ScenarioLike
"""A scenario, or a mapping of changes to the first one; one with a cluster is a scenario's document."""
PlayedPolicy = TrainingRun | StagedTraining
"""What comes of one."""


@dataclass(frozen=True)
class PolicyComparison(Shown):
    """Policies on common random numbers: what was played of each in ``runs``, by name; ``measure`` decides which is
    best.  ``refused`` says of each policy that cannot be why, where that was not to be an error."""

    runs: Mapping[str, PlayedPolicy]
    measure: Measure = "goodput"
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def played(self) -> int:
        """Runs of each."""
        return next(iter(self.runs.values())).played

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions that the answer depends on and the policies do not state."""
        return merge_assumptions({name: run.assumed for name, run in self.runs.items()})

    @cached_property
    def tables(self) -> Mapping[Measure, pd.DataFrame]:
        """By measure, a row a policy: its mean, half the 95 % interval of that (half_width), the difference from the
        first policy, half the interval of that (difference_half_width), and how much variance the common numbers
        saved (variance_gained).  Dollars are there where every policy has a price."""
        values = {measure: {name: _values(run, measure) for name, run in self.runs.items()} for measure in MEASURES}
        known = {name: {key: each for key, each in of.items() if each is not None} for name, of in values.items()}
        return {name: difference_table(of) for name, of in known.items() if len(of) == len(self.runs)}

    @property
    def table(self) -> pd.DataFrame:
        """That of its measure."""
        return self.tables[self.measure]

    @property
    def best(self) -> str:
        """The policy with the highest goodput, or the fewest days or dollars."""
        means = self.table["mean"]
        return str(means.idxmax() if self.measure == "goodput" else means.idxmin())

    @property
    def sentence(self) -> str:
        """Which is best, by how much, and whether the runs are enough to say so."""
        table, best = self.table, self.best
        first, (scale, unit) = str(table.index[0]), MEASURES[self.measure]
        if best == first:
            return f"{first} is the best of the {len(table)}."
        gap, half = (scale * float(table[name][best]) for name in ("difference", "difference_half_width"))
        known = "" if abs(gap) > half else ": too close to say with so few runs"
        told = f"{gap:+,.0f} +- {half:,.0f}" if unit == "$" else f"{gap:+.3f} +- {half:.3f}"
        return f"{best} is the best of the {len(table)}: {told} {unit} against {first}{known}."

    def frame(self) -> pd.DataFrame:
        """A row a policy with everything: ``goodput``, ``goodput_half_width``, ``goodput_difference``, ..., ``days``,
        ...; and status and error, of those that were refused as well."""
        import pandas as pd

        parts = [
            table.rename(columns={name: f"{measure}_{name}" for name in table} | {"mean": measure})
            for measure, table in self.tables.items()
        ]
        whole = pd.concat(parts, axis=1).reset_index().assign(status="ok", error="")
        others = [{"policy": name, "status": "refused", "error": why} for name, why in self.refused.items()]
        return pd.concat([whole, pd.DataFrame(others)], ignore_index=True) if others else whole

    def to_dict(self) -> dict[str, Any]:
        """For JSON: CONTRACT.md, "Policies compared"."""
        rows = {measure: records(table) for measure, table in self.tables.items()}
        policies = [
            {"policy": name, **{measure: each[number] for measure, each in rows.items()}}
            for number, name in enumerate(self.runs)
        ]
        refused = [{"policy": name, "error": why} for name, why in self.refused.items()]
        about = {"measure": self.measure, "played": self.played, "best": self.best, "answer": self.sentence}
        return {**about, "policies": policies, "refused": refused, "assumed": list(self.assumed)}


def _values(run: PlayedPolicy, measure: Measure) -> Floats | None:
    """The measure, run by run."""
    if measure == "dollars":
        return run.dollars_by_run
    return run.goodput_by_run if measure == "goodput" else run.wall / DAY


@checked
def compare_policies(
    policies: Mapping[str, Policy],
    *,
    measure: Measure = "goodput",
    played: int | None = None,
    workers: Workers = 1,
    store: str | Path | None = None,
    strict: bool = True,
    progress: Progress = lambda done, total, wrong: None,
) -> PolicyComparison:
    """Policies by name, each a scenario (its name or file, too) or changes to the first, as ``{"run.spares.hot": 4}``.

    The steps of scenarios that differ only in their run are played once.  All meet the random numbers of the first
    one's seed.  ``workers`` and ``store`` are as in ``train``.  InputError where the first is no scenario, there is
    only one, one has no price and dollars decide, or one cannot be (not ``strict``: it is left out, ``refused``).
    """
    if not isinstance(policies, Mapping) or len(policies) < 2:
        got = (", ".join(policies) if isinstance(policies, Mapping) else type_name(policies)) or "none"
        raise InputError(
            f'compare_policies: two policies or more, by name, as {{"now": scenario, "other": changes}}; got {got}'
        )
    if measure not in MEASURES:
        raise InputError(f"compare_policies: measure {measure!r} must be one of {', '.join(MEASURES)}")
    with player_of(workers, store, progress) as player:
        made: dict[str, _Made] = {}
        refused: dict[str, str] = {}
        for name, found in _made(policies):
            if isinstance(found, InputError):
                if strict or not made:
                    raise found
                refused[name] = str(found)
            else:
                made[name] = found
        if len(made) < 2:
            raise InputError(f"compare_policies: there is nothing to compare with: {next(iter(refused.values()))}")
        first = next(iter(made.values())).scenario
        count = played_of(first, played)
        outcomes: dict[str, list[Outcomes]] = {name: [] for name in made}
        for number in range(max(len(of.stages) for of in made.values())):
            there = {name: of.stages[number].run for name, of in made.items() if number < len(of.stages)}
            for name, each in player.play(there, first.seed, count, first_of_stage(number)).items():
                outcomes[name].append(each)
    runs = {name: of.played(outcomes[name]) for name, of in made.items()}
    priceless = [name for name, run in runs.items() if run.price is None]
    if measure == "dollars" and priceless:
        raise InputError(f"compare_policies: {priceless[0]} has no price; say one, as in run.price: 2.5")
    return PolicyComparison(runs, measure, refused)


class _Stage(NamedTuple):
    """A stage of a policy before it is played (all of it where it has none): its run in numbers, the states that it
    asks for, the healthy step, and what was taken for granted."""

    scenario: Scenario
    run: LongRun
    states: dict[str, float]
    step: Result
    notes: tuple[str, ...]


class _Made(NamedTuple):
    """A policy before it is played."""

    scenario: Scenario
    stages: list[_Stage]

    def played(self, outcomes: list[Outcomes]) -> PlayedPolicy:
        """What comes of it."""
        runs = tuple(
            TrainingRun(stage.scenario, stage.run, stage.states, each, stage.step, first_of_stage(number), stage.notes)
            for number, (stage, each) in enumerate(zip(self.stages, outcomes, strict=True))
        )
        return StagedTraining(self.scenario, runs) if section_of(self.scenario).stages else runs[0]


def _made(policies: Mapping[str, Policy]) -> Iterator[tuple[str, _Made | InputError]]:
    """Each of them, or why it cannot be."""
    known: dict[str, StepStates] = {}
    first: Scenario | None = None
    for name, policy in policies.items():
        try:
            scenario = _scenario(name, policy, first)
            first = first or scenario
            stages = stage_scenarios(scenario) if section_of(scenario).stages else [scenario]
            yield name, _Made(scenario, [_stage(each, known) for each in stages])
        except InputError as problem:
            yield name, problem


def _stage(scenario: Scenario, known: dict[str, StepStates]) -> _Stage:
    """A run of one stage, made of the states of all that differ from it in their run alone."""
    alike = repr({key: value for key, value in scenario.document().items() if key not in ("run", "name")})
    states = known.setdefault(alike, StepStates(scenario))
    run = long_run_of(scenario, states)
    check_end(run)
    return _Stage(scenario, run, dict(states.used), states.result, tuple(states.notes))


def _scenario(name: str, policy: Policy, first: Scenario | None) -> Scenario:
    if isinstance(policy, Mapping) and "cluster" not in policy:
        if first is None:
            raise InputError(f"compare_policies: {name} comes first, so it must be a scenario: the others change it")
        return _changed(first, policy)
    return scenario_of(policy, f"compare_policies ({name})")


class _OnlyRun(Spec):
    """The section that policies change most."""

    run: RunSpec | None


def _changed(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """The scenario with changes; where they are of its run alone, on the same cluster, which is built."""
    if any(path != "run" and not path.startswith("run.") for path in changes):
        return from_document(scenario.document(), changes)
    stated = section_of(scenario).model_dump(mode="json", exclude_unset=True)
    section = Document({"run": stated}, source="<document>", folder=Path())
    return scenario.model_copy(update={"run": validate(_OnlyRun, apply_overrides(section, changes)).run})


def difference_table(values: Mapping[str, Floats]) -> pd.DataFrame:
    """A table of a ``PolicyComparison``, of values by run."""
    first = next(iter(values.values()))
    rows = []
    for number, each in enumerate(values.values()):
        gap = paired(first, each) if number else PairedDifference(0.0, 0.0, math.nan)
        rows.append((float(each.mean()), half_width(each), gap.mean, gap.half_width, gap.gained))
    columns = ["mean", "half_width", "difference", "difference_half_width", "variance_gained"]
    import pandas as pd

    return pd.DataFrame(rows, index=pd.Index(list(values), name="policy"), columns=columns)


__all__ = ["MEASURES", "Measure", "Policy", "PolicyComparison", "compare_policies", "difference_table"]
