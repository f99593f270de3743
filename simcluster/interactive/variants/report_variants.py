"""Simulation, in several processes, of all variants that a report with controls shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.processes import count_cores
from simcluster.interactive.report import make_entry
from simcluster.interactive.variants.controls_page import VariantContent, VariantGrid, VariedKey, make_variant_content
from simcluster.scenario.key_paths import check_key_path
from simcluster.scenario.scenario import BaseScenario, Scenario, ScenarioVariant
from simcluster.scenario.short_forms import value_at_path
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.sweep.sweep import Sweep, make_sweep, order_variants
from simcluster.studies.sweep.sweep_executor import open_executor
from simcluster.studies.sweep.variant_simulation import Row

MOST_VARIANTS = 200
"""Maximum number of variants on a page: more would take minutes to simulate and be too large to mail."""
_MOST_SPANS = 2_400_000  # of all timelines together

Ranks = Callable[[Scenario], Sequence[int] | None]


def check_varied_paths(paths: Sequence[str]) -> None:
    """Raise InputError if a path to vary is not a scenario key, or appears twice."""
    for path in paths:
        check_key_path(path)
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice:
        raise InputError(f"--vary {twice} is given twice; give all its values at once, as in --vary {twice}=1,2,4")


def simulate_variants(
    base: BaseScenario,
    vary: Mapping[str, Sequence[Any]],
    *,
    fixed: Sequence[tuple[str, Any]] = (),
    ranks: Ranks | None = None,
    origin: str = "",
    processes: int | None = None,
    progress: Callable[[int, int, int], object] = lambda done, total, failed: None,
) -> VariantGrid:
    """Simulate all combinations of the varied keys' values, and return the report content for each.

    The result does not depend on ``processes``. ``ranks``, a function of a module, returns the ranks whose timelines
    are shown (default: all simulated ones). InputError for more than ``MOST_VARIANTS`` combinations, and if all are
    invalid.
    """
    size = math.prod(len(values) for values in vary.values())
    if size > MOST_VARIANTS:
        raise InputError(
            f"{size:,} variants are too many for a page; give at most {MOST_VARIANTS} (simcluster sweep simulates more)"
        )
    made = make_sweep(base, vary, fixed=fixed)
    measure = partial(_simulate_variant, ranks=ranks, origin=origin, most_spans=_MOST_SPANS // size)
    keys = order_variants(made, made.numbers)
    rows: dict[int, Row] = {}
    workers = min(processes or count_cores(), size)
    with open_executor(workers if workers > 1 else None) as players:
        for done in players.simulate([(at, made.make_variant(at)) for at in keys], list(keys.values()), measure):
            rows.update(done)
            progress(len(rows), size, sum(row["status"] != "ok" for row in rows.values()))
    states = tuple(
        row["state"] if row["status"] == "ok" else " ".join(row["error"].split())
        for row in (rows[number] for number in range(size))
    )
    if not any(isinstance(state, VariantContent) for state in states):
        raise InputError(f"all {size:,} variants are invalid; the first one: {states[0]}")
    varied = tuple(VariedKey(path, tuple(values)) for path, values in vary.items())
    return VariantGrid(varied, states, _find_base_variant(made, states))


def _simulate_variant(variant: ScenarioVariant, *, ranks: Ranks | None, origin: str, most_spans: int) -> Row:
    try:
        scenario = variant.scenario()
        entry = make_entry(simulate_scenario(scenario), origin=origin, ranks=ranks(scenario) if ranks else None)
        return {"status": "ok", "error": "", "state": make_variant_content(entry, most_spans)}
    except InputError as problem:
        return {"status": "refused", "error": str(problem)}
    except Exception as problem:  # one variant must not end the page of all
        return {"status": "failed", "error": f"{type(problem).__name__}: {problem}"}


def _find_base_variant(sweep: Sweep, states: Sequence[VariantContent | str]) -> int:
    played = [number for number, state in enumerate(states) if isinstance(state, VariantContent)]
    try:
        own = sweep.base.with_changes(sweep.fixed).document()
    except InputError:  # it cannot be as it stands
        return played[0]
    alike = [
        sum(value_at_path(own, path) == value for path, value in sweep.variant_values(each).items()) for each in played
    ]
    return played[max(range(len(played)), key=lambda place: alike[place])]
