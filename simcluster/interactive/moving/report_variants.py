"""Variants for a report with controls, simulated in several processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.processes import count_cores
from simcluster.interactive.controls.settings import value_at
from simcluster.interactive.moving.moving import VariantGrid, VariantPage, VariedKey, variant_page
from simcluster.scenario.paths import check_path
from simcluster.scenario.scenario import Base, Scenario, Variant
from simcluster.show.report import make_entry
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.sweep.players import open_executor
from simcluster.studies.sweep.playing import Row
from simcluster.studies.sweep.sweep import Sweep, make_sweep, order_variants

MOST_STATES = 200
"""Of one page: more would take minutes to simulate and be too large to mail."""
_MOST_SPANS = 2_400_000  # of all timelines together

Ranks = Callable[[Scenario], Sequence[int] | None]


def default_ranks(scenario: Scenario) -> Sequence[int] | None:
    """Return the simulated ranks of a scenario, whose timelines the report shows by default."""
    return None


def check_vary(paths: Sequence[str]) -> None:
    """Raise InputError for an unknown scenario path, and for a path that occurs twice."""
    for path in paths:
        check_path(path)
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice:
        raise InputError(f"--vary {twice} is given twice; give all its values at once, as in --vary {twice}=1,2,4")


def simulate_variants(
    base: Base,
    vary: Mapping[str, Sequence[Any]],
    *,
    fixed: Sequence[tuple[str, Any]] = (),
    ranks: Ranks = default_ranks,
    origin: str = "",
    processes: int | None = None,
    progress: Callable[[int, int, int], object] = lambda done, total, wrong: None,
) -> VariantGrid:
    """Simulate every combination of values of the varied paths, and return them as page content.

    The result does not depend on ``processes``. ``ranks``, a function of a module, returns the ranks whose timelines
    are shown. InputError for more than ``MOST_STATES`` combinations, and if all are invalid.
    """
    count = math.prod(len(values) for values in vary.values())
    if count > MOST_STATES:
        raise InputError(
            f"{count:,} variants are too many for a page; give at most {MOST_STATES} (simcluster sweep simulates more)"
        )
    made = make_sweep(base, vary, fixed=fixed)
    measure = partial(_simulate_variant, ranks=ranks, origin=origin, most_spans=_MOST_SPANS // count)
    keys = order_variants(made, made.numbers)
    rows: dict[int, Row] = {}
    workers = min(processes or count_cores(), count)
    with open_executor(workers if workers > 1 else None) as players:
        for finished in players.play([(number, made.variant(number)) for number in keys], list(keys.values()), measure):
            rows.update(finished)
            progress(len(rows), count, sum(row["status"] != "ok" for row in rows.values()))
    states = tuple(
        row["state"] if row["status"] == "ok" else " ".join(row["error"].split())
        for row in (rows[number] for number in range(count))
    )
    if not any(isinstance(state, VariantPage) for state in states):
        raise InputError(f"all {count:,} variants are invalid; the first: {states[0]}")
    varied = tuple(VariedKey(path, tuple(values)) for path, values in vary.items())
    return VariantGrid(varied, states, _find_base(made, states))


def _simulate_variant(variant: Variant, *, ranks: Ranks, origin: str, most_spans: int) -> Row:
    try:
        scenario = variant.scenario()
        entry = make_entry(simulate_scenario(scenario), origin=origin, ranks=ranks(scenario))
        return {"status": "ok", "error": "", "state": variant_page(entry, most_spans)}
    except InputError as problem:
        return {"status": "refused", "error": str(problem)}
    except Exception as problem:  # one variant must not end the page of all
        return {"status": "failed", "error": f"{type(problem).__name__}: {problem}"}


def _find_base(made: Sweep, states: Sequence[VariantPage | str]) -> int:
    played = [number for number, state in enumerate(states) if isinstance(state, VariantPage)]
    try:
        own = made.base.scenario(made.fixed).document()
    except InputError:  # it cannot be as it stands
        return played[0]
    alike = [sum(value_at(own, path) == value for path, value in made.values(number).items()) for number in played]
    return played[max(range(len(played)), key=lambda place: alike[place])]
