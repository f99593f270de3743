"""Comparison of a scenario's variants: a row for each variant, and the causes of differences from the first variant.

The breakdown of every variant sums to its step time, so the differences of its entries sum to the difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from simcluster.base.errors import InputError, prefix_errors
from simcluster.base.progress import report_phase
from simcluster.documents.argument_types import check_arguments
from simcluster.faults.descriptions import describe_faults
from simcluster.results.rank_time import BREAKDOWN
from simcluster.results.result import Result
from simcluster.results.result_file import result_table
from simcluster.results.step_account import attribute_difference
from simcluster.results.step_metrics import all_metrics
from simcluster.scenario.memory_plan import recipe_document
from simcluster.scenario.scenario import Scenario, load
from simcluster.scenario.short_forms import value_at_path
from simcluster.step.simulate import ResultLike, simulate_scenario, to_result
from simcluster.studies.whatif.difference import list_changed_settings

if TYPE_CHECKING:
    import pandas as pd

_SECTIONS = {*Scenario.model_fields, "framework"}
_MOST_SETTINGS = 3  # in a label

Variants = ResultLike | Sequence[ResultLike] | Mapping[str, ResultLike]
"""Scenarios and results to compare: one, a list of them, or labels with one each."""


@check_arguments
def compare(*variants: Variants, names: Sequence[str] | None = None) -> pd.DataFrame:
    """Compare variants in a table: step time, difference from the first variant, metrics, breakdown, memory recipe.

    A variant is a result, or a scenario (its name, path, document or Scenario): ``compare(one, other)``,
    ``compare([one, other])`` or, with labels, ``compare({"now": one, "then": other})``. The index holds labels or
    ``names`` (default: the scenarios' names; what differs, where those are the same). Raises InputError for no variant,
    or for names that do not match.
    """
    import pandas as pd

    results, index = resolve_variants(variants, names, "compare")
    first = results[0].step_time
    rows = []
    for result in results:
        difference = result.step_time - first
        row: dict[str, Any] = {
            "step_time_s": result.step_time, "difference_s": difference, "difference": difference / first,
        }  # fmt: skip
        row |= all_metrics(result) | {f"breakdown_s.{name}": value for name, value in result.times.breakdown.items()}
        rows.append(row | {"recipe": recipe_document(result.scenario)["recipe"]})
    return result_table(rows, index=pd.Index(index, name="variant"))


@check_arguments
def differences(*variants: Variants, names: Sequence[str] | None = None) -> pd.DataFrame:
    """Explain how much longer (s) each variant's step takes than the first variant's step, by cause.

    The columns are ``results.step_account.CAUSES``: those of the breakdown, with each axis' exposed communication split
    into traffic (another time on free links), hiding (another part overlaps with compute) and contention (links shared
    with others). A row sums to the difference of the step times. Variants, names and errors are as in ``compare``.
    """
    import pandas as pd

    results, index = resolve_variants(variants, names, "differences")
    rows = [attribute_difference(results[0].account, result.account) for result in results]
    return pd.DataFrame(rows, index=pd.Index(index, name="variant"))


def resolve_variants(
    given: Sequence[Variants], names: Sequence[str] | None, caller: str
) -> tuple[list[Result], list[str]]:
    """Return the result and label of each variant; simulate variants that are scenarios."""
    if len(given) == 2 and isinstance(given[0], list | tuple) and isinstance(given[1], list | tuple):
        given, names = given[:1], cast("Sequence[str]", given[1])  # compare(variants, names)
    variants: Sequence[Any] = given
    if len(given) == 1 and isinstance(given[0], list | tuple):
        variants = given[0]
    elif len(given) == 1 and isinstance(given[0], Mapping) and not given[0].keys() <= _SECTIONS:  # no document
        variants, names = list(given[0].values()), [str(name) for name in given[0]] if names is None else names
    if not variants:
        raise InputError(f"{caller}: there is nothing to compare; give at least one scenario or result")
    if names is not None and len(names) != len(variants):
        raise InputError(
            f"{caller}: {len(variants)} variants but {len(names)} names; give {len(variants)} names, one for each"
        )
    results = []
    for place, variant in enumerate(variants):
        with prefix_errors(f"{caller}: variant {names[place] if names else place}"):
            results.append(to_result(variant, caller))
    return results, number_repeated_names(names) if names is not None else label_scenarios(
        [result.scenario for result in results]
    )


def make_variant_scenarios(
    path: str | Path, overrides: Sequence[Any], vary: Iterable[tuple[str, Sequence[Any]]]
) -> dict[str, Scenario | InputError]:
    """Return the scenario of each combination of the varied values, keyed by a label of these values.

    An invalid combination maps to its InputError; raises InputError if the file is invalid.
    """
    grid = list(vary)
    if not grid:
        scenario = load(path, overrides)
        return {scenario.name: scenario}
    found: dict[str, Scenario | InputError] = {}
    for values in product(*(values for _, values in grid)):
        pairs = [(key, value) for (key, _), value in zip(grid, values, strict=True)]
        name = ", ".join(_setting_text(key, value) for key, value in pairs)
        try:
            found[name] = load(path, [*overrides, *pairs])
        except InputError as problem:
            found[name] = problem
    return found


def label_value(path: str, value: object) -> str:
    """Return a varied value as text for a label: faults in words, other values as YAML on one line.

    >>> label_value("faults", [{"kind": "slow_link", "nic_of": 0, "speed": 0.5}]), label_value("faults", [])
    ('slow link, nic of 0, speed 0.5', 'none')
    >>> [label_value(*each) for each in (("model.x", ["tp", "pp"]), ("model.moe", {"experts": 8}), ("model.moe", None))]
    ['[tp, pp]', '{experts: 8}', 'none']
    """
    if path == "faults" and isinstance(value, list | tuple):
        return describe_faults(value) or "none"
    if isinstance(value, list | tuple):
        return f"[{', '.join(label_value(path, each) for each in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {label_value(key, each)}' for key, each in value.items())}}}"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


Outcomes = dict[str, Result | InputError]
"""Result of each variant by name, or the error of an invalid one."""


def simulate_variants(scenarios: Iterable[tuple[str, Scenario | InputError]]) -> Outcomes:
    """Simulate all valid scenarios; return results by name, and append a number to repeated names.

    Raises InputError if no variant is valid.
    """
    pairs = list(scenarios)
    found: Outcomes = {}
    for name, (_, scenario) in zip(number_repeated_names([name for name, _ in pairs]), pairs, strict=True):
        try:
            with report_phase(f"variant {len(found) + 1} of {len(pairs)}" if len(pairs) > 1 else ""):
                found[name] = scenario if isinstance(scenario, InputError) else simulate_scenario(scenario)
        except InputError as problem:  # a schedule that cannot be cut, for one
            found[name] = problem
    refused = [each for each in found.values() if isinstance(each, InputError)]
    if found and len(refused) == len(found):
        raise refused[0]
    return found


def subtract_first_breakdown(table: pd.DataFrame) -> pd.DataFrame:
    """Return the breakdown (s) of each variant minus the breakdown of the first variant."""
    parts = table[list(BREAKDOWN)]
    return parts - parts.iloc[0]


def label_scenarios(scenarios: Sequence[Scenario]) -> list[str]:
    """Return distinct labels of scenarios: their names, and for equal names also the settings that differ."""
    names = [scenario.name for scenario in scenarios]
    found = list(names)
    for name in dict.fromkeys(names):
        places = [place for place, other in enumerate(names) if other == name]
        if len(places) > 1:
            alone = len(places) == len(names)
            for place, what in zip(places, _list_differing_settings([scenarios[each] for each in places]), strict=True):
                found[place] = what if alone and what else ": ".join(part for part in (name, what) if part)
    return number_repeated_names(found)


def _list_differing_settings(scenarios: Sequence[Scenario]) -> list[str]:
    documents = [scenario.document() for scenario in scenarios]
    paths = dict.fromkeys(each.path for other in documents[1:] for each in list_changed_settings(documents[0], other))
    if len(paths) > _MOST_SETTINGS:
        return [""] * len(scenarios)

    return [", ".join(_setting_text(path, value_at_path(each, path)) for path in paths) for each in documents]


def _setting_text(path: str, value: object) -> str:
    if path == "faults":
        return label_value(path, value) if value else "no faults"
    return f"{path.rpartition('.')[2]} {label_value(path, value)}"


def number_repeated_names(names: Sequence[str]) -> list[str]:
    """Make names distinct by appending a number to every repeated name."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found
