"""Variants of a scenario side by side: one row each, and where the difference from the first one went.

The breakdown of every variant sums to its step time, so the differences of its entries sum to the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.results.account import attribute
from simcluster.results.metrics import BREAKDOWN
from simcluster.results.numbers import METRICS
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario, load
from simcluster.simulate import simulate

if TYPE_CHECKING:
    import pandas as pd

Variant = str | Path | Scenario | Result


def compare(variants: Sequence[Variant], names: Sequence[str] | None = None) -> pd.DataFrame:
    """One row a variant: its step time, the difference from the first (s, and as a fraction), METRICS, breakdown,
    recipe.

    A variant is a scenario, a path, or a result; the index holds ``names`` (left out: the scenarios' own, numbered
    where two are the same).  Raises InputError for no variant, or for names that do not match.
    """
    import pandas as pd

    results, index = _results_of(variants, names)
    first = results[0].step_time
    rows = []
    for result in results:
        values = result.to_dict()
        difference = result.step_time - first
        row: dict[str, Any] = {
            "step_time_s": result.step_time, "difference_s": difference, "difference": difference / first,
        }  # fmt: skip
        row |= {name: values[name] for name in METRICS} | values["breakdown_s"]
        rows.append(row | {"recipe": values["bytes_per_parameter"]["recipe"]})
    return pd.DataFrame(rows, index=pd.Index(index, name="variant"))


def differences(variants: Sequence[Variant], names: Sequence[str] | None = None) -> pd.DataFrame:
    """One row a variant: the seconds by which its step is longer than the first one's, cause by cause.

    The columns are ``attribution.CAUSES``: those of the breakdown, with each axis' exposed communication split into
    traffic (another time on free links), hiding (another part beside compute) and contention (links shared with
    others).  A row sums to the difference of the step times.  Variants, names and errors are as in ``compare``.
    """
    import pandas as pd

    results, index = _results_of(variants, names)
    rows = [attribute(results[0].account, result.account) for result in results]
    return pd.DataFrame(rows, index=pd.Index(index, name="variant"))


def _results_of(variants: Sequence[Variant], names: Sequence[str] | None) -> tuple[list[Result], list[str]]:
    if not variants:
        raise InputError("nothing to compare: give at least one scenario")
    if names is not None and len(names) != len(variants):
        raise InputError(f"{len(names)} names for {len(variants)} variants; give one name each")
    results = [result_of(variant) for variant in variants]
    return results, distinct(names if names is not None else [result.scenario.name for result in results])


def result_of(variant: Variant) -> Result:
    """The variant's result: simulated now if it is not one yet."""
    if isinstance(variant, Result):
        return variant
    return simulate(variant if isinstance(variant, Scenario) else load(variant))


def possible_variations(
    path: str | Path, overrides: Sequence[Any], vary: Iterable[tuple[str, Sequence[Any]]]
) -> dict[str, Scenario | InputError]:
    """Every combination of the varied values, named by what was varied; the file itself if nothing is.

    The reason is in the place of each combination that cannot be; InputError if the file cannot be.
    """
    grid = list(vary)
    if not grid:
        scenario = load(path, overrides)
        return {scenario.name: scenario}
    found: dict[str, Scenario | InputError] = {}
    for values in product(*(values for _, values in grid)):
        pairs = [(key, value) for (key, _), value in zip(grid, values, strict=True)]
        name = ", ".join(f"{key.rsplit('.', 1)[-1]} {value}" for key, value in pairs)
        try:
            found[name] = load(path, [*overrides, *pairs])
        except InputError as problem:
            found[name] = problem
    return found


Outcomes = dict[str, Result | InputError]
"""By name: what was played, or why it could not be."""


def play_all(scenarios: Iterable[tuple[str, Scenario | InputError]]) -> Outcomes:
    """Play each variant that can be; names that come twice get a number.  InputError where none of them can be."""
    pairs = list(scenarios)
    found: Outcomes = {}
    for name, (_, scenario) in zip(distinct([name for name, _ in pairs]), pairs, strict=True):
        try:
            found[name] = scenario if isinstance(scenario, InputError) else simulate(scenario)
        except InputError as problem:  # a schedule that cannot be cut, for one
            found[name] = problem
    refused = [each for each in found.values() if isinstance(each, InputError)]
    if found and len(refused) == len(found):
        raise refused[0]
    return found


def attribution(table: pd.DataFrame) -> pd.DataFrame:
    """Seconds by which each entry of the breakdown differs from the first variant's; a row sums to ``difference_s``."""
    parts = table[list(BREAKDOWN)]
    return parts - parts.iloc[0]


def distinct(names: Sequence[str]) -> list[str]:
    """Names with a number behind those that come twice."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found
