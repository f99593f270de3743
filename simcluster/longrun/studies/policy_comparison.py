"""Comparison of policies (long runs that differ in one decision) on the same random numbers, as in ``policy_bench``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simcluster.base.arrays import Floats
from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.base.units import DAY
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.base_spec import Spec
from simcluster.documents.diagnostics import type_name
from simcluster.documents.overrides import apply_overrides
from simcluster.documents.yaml_documents import Document, validate_document
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.policy_bench import PairedDifference, mean_half_width, paired_difference
from simcluster.longrun.studies.run_builder import LEAST, require_run_section, resolve_run_count
from simcluster.longrun.studies.run_chunks import Workers, open_run_simulator
from simcluster.longrun.studies.training import PreparedStage, StagedTraining, prepare_stages, simulate_policies
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.longrun.text_formats import make_frame, to_json_value
from simcluster.results.result_file import merge_assumptions
from simcluster.scenario.run_section import RunSpec
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.scenario.scenario_arguments import ScenarioLike, to_scenario
from simcluster.studies.sweep.sweep import Progress

if TYPE_CHECKING:
    import pandas as pd

Measure = Literal["goodput", "days", "dollars"]
MEASURES: Mapping[Measure, tuple[float, str]] = {"goodput": (100, "points"), "days": (1, "days"), "dollars": (1, "$")}
"""Measures that policies are compared by: factor and unit in which differences are printed."""

Policy = ScenarioLike
"""A scenario, or a mapping of changes to the first one; one with a cluster is a scenario's document."""
SimulatedPolicy = TrainingRun | StagedTraining
"""Results of simulating one policy."""


@dataclass(frozen=True)
class PolicyComparison(Displayable):
    """Outcomes of policies simulated on the same random numbers; ``measure`` decides which policy is best.

    ``runs`` are by name. ``refused`` has the reason for each policy that is invalid, if that was not to be an error.
    There are ``played`` runs of each; ``assumed`` is what the answer depends on and the policies do not state.
    """

    runs: Mapping[str, SimulatedPolicy]
    measure: Measure = "goodput"
    refused: Mapping[str, str] = field(default_factory=dict)
    played: int = field(init=False)
    assumed: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        assumed = merge_assumptions({name: run.assumed for name, run in self.runs.items()})
        vars(self).update(played=next(iter(self.runs.values())).played, assumed=assumed)

    @cached_property
    def tables(self) -> Mapping[Measure, pd.DataFrame]:
        """Comparison table of each measure (goodput, days, dollars), with one row per policy.

        Its mean, half the 95 % interval of that (half_width), the difference from the first policy, half the interval
        of that (difference_half_width), and how much variance the common numbers saved (variance_gained). Dollars are
        there where every policy has a price.
        """
        found: dict[Measure, pd.DataFrame] = {}
        for measure in MEASURES:
            values = {}
            for name, run in self.runs.items():
                by_measure = {"goodput": run.goodput_by_run, "days": run.wall / DAY, "dollars": run.dollars_by_run}
                if (each := by_measure[measure]) is not None:
                    values[name] = each
            if len(values) == len(self.runs):
                found[measure] = difference_table(values)
        return found

    @property
    def table(self) -> pd.DataFrame:
        """Comparison table of the measure that decides which policy is best, with one row per policy."""
        return self.tables[self.measure]

    @property
    def best(self) -> str:
        """Name of the policy with the highest goodput, or the fewest days or dollars."""
        means = self.table["mean"]
        return str(means.idxmax() if self.measure == "goodput" else means.idxmin())

    @property
    def sentence(self) -> str:
        """Result in one sentence: the best policy, its advantage, and whether that is significant."""
        table, best = self.table, self.best
        first, (scale, unit) = str(table.index[0]), MEASURES[self.measure]
        ties = [str(name) for name in table.index if table["mean"][name] == table["mean"][best]]
        head = f"{' and '.join(ties)} {'are equal, and' if len(ties) > 1 else 'is'} the best of the {len(table)}"
        if first in ties:
            return f"{head}."
        gap, half = (scale * float(table[name][best]) for name in ("difference", "difference_half_width"))
        known = "" if abs(gap) > half else ": not distinguishable with this number of runs"
        text = f"{gap:+,.0f} +- {half:,.0f}" if unit == "$" else f"{gap:+.3f} +- {half:.3f}"
        return f"{head}: {text} {unit} against {first}{known}."

    def combined_table(self) -> pd.DataFrame:
        """Return a table of all measures with one row per policy; a rejected policy's row has the error.

        Columns are ``goodput``, ``goodput_half_width``, ``goodput_difference``, ..., ``days``, ..., status and error.
        """
        import pandas as pd

        parts = [
            table.rename(columns={name: f"{measure}_{name}" for name in table} | {"mean": measure})
            for measure, table in self.tables.items()
        ]
        whole = pd.concat(parts, axis=1).reset_index().assign(status="ok", error="")
        others = [{"policy": name, "status": "refused", "error": why} for name, why in self.refused.items()]
        return pd.concat([whole, pd.DataFrame(others)], ignore_index=True) if others else whole

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as a JSON document (CONTRACT.md, "Policies compared")."""
        rows = {measure: to_json_value(table.to_dict("records")) for measure, table in self.tables.items()}
        policies = [
            {"policy": name, **{measure: each[number] for measure, each in rows.items()}}
            for number, name in enumerate(self.runs)
        ]
        refused = [{"policy": name, "error": why} for name, why in self.refused.items()]
        about = {"measure": self.measure, "played": self.played, "best": self.best, "answer": self.sentence}
        return {**about, "policies": policies, "refused": refused, "assumed": list(self.assumed)}


@check_arguments
def compare_policies(
    policies: Mapping[str, Policy],
    *,
    measure: Measure = "goodput",
    played: int | None = None,
    workers: Workers = 1,
    store: str | Path | None = None,
    strict: bool = True,
    progress: Progress = lambda done, total, failed: None,
) -> PolicyComparison:
    """Simulate and compare named policies: scenarios, or changes to the first such as {"run.spares.hot": 4}.

    A scenario may be given by name or file. The steps of scenarios that differ only in their run are simulated once.
    All use the random numbers of the first one's seed. ``workers`` and ``store`` are as in ``train``. InputError where
    the first is not a scenario, there is only one, one has no price and dollars decide, or one is invalid (if not
    ``strict``, it is omitted and listed in ``refused``).
    """
    if not isinstance(policies, Mapping) or len(policies) < 2:
        got = (", ".join(policies) if isinstance(policies, Mapping) else type_name(policies)) or "none"
        raise InputError(
            f'compare_policies: needs two or more policies by name, as {{"now": scenario, "other": changes}}; got {got}'
        )
    if measure not in MEASURES:
        raise InputError(f"compare_policies: measure {measure!r} must be one of {', '.join(MEASURES)}")
    with open_run_simulator(workers, store, progress) as player:
        made: dict[str, tuple[Scenario, list[PreparedStage]]] = {}
        refused: dict[str, str] = {}
        known: dict[str, ClusterStateSimulator] = {}
        for name, policy in policies.items():
            try:
                scenario = _policy_scenario(name, policy, next(iter(made.values()))[0] if made else None)
                made[name] = scenario, prepare_stages(scenario, known)
            except InputError as problem:
                if strict or not made:
                    raise
                refused[name] = str(problem)
        if len(made) < 2:
            raise InputError(f"compare_policies: fewer than two valid policies: {next(iter(refused.values()))}")
        runs = simulate_policies(made, resolve_run_count(next(iter(made.values()))[0], played, LEAST), player)
    priceless = [name for name, run in runs.items() if run.price is None]
    if measure == "dollars" and priceless:
        raise InputError(f"compare_policies: {priceless[0]} has no price; set one, as in run.price: 2.5")
    return PolicyComparison(runs, measure, refused)


def _policy_scenario(name: str, policy: Policy, first: Scenario | None) -> Scenario:
    if not isinstance(policy, Mapping) or "cluster" in policy:
        return to_scenario(policy, f"compare_policies ({name})")
    if first is None:
        raise InputError(f"compare_policies: {name} must be a scenario, as it is the first policy: others change it")
    return _apply_changes(first, policy)


class _RunDocument(Spec):
    run: RunSpec | None


def _apply_changes(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    if any(path != "run" and not path.startswith("run.") for path in changes):
        return from_document(scenario.document(), changes)
    stated = require_run_section(scenario).model_dump(mode="json", exclude_unset=True)
    section = Document({"run": stated}, source="<document>", folder=Path())
    return scenario.model_copy(update={"run": validate_document(_RunDocument, apply_overrides(section, changes)).run})


def difference_table(values: Mapping[str, Floats]) -> pd.DataFrame:
    """Return one measure's comparison table, from arrays of values per run for each policy."""
    first = next(iter(values.values()))
    rows: list[tuple[Any, ...]] = []
    for name, each in values.items():
        gap = paired_difference(first, each) if rows else PairedDifference(0.0, 0.0, math.nan)
        rows.append((name, float(each.mean()), mean_half_width(each), gap.mean, gap.half_width, gap.variance_gain))
    return make_frame(rows, "policy mean half_width difference difference_half_width variance_gained", "policy")
