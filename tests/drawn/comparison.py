"""Every way to simulate a scenario beside the reference: the step and all spans to the bit, or a reason why not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pandas as pd
from conftest import table_of

from drawn.records import record_difference
from simcluster.base.errors import InputError
from simcluster.results.result import Result
from simcluster.results.timeline import COLUMNS
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate_scenario
from simcluster.studies.fast_path_scopes import PLAN, REPLICAS
from simcluster.studies.search.layout import layout_of_scenario
from simcluster.studies.search.plan_request import make_searchable_scenario
from simcluster.studies.search.step_time_bounds import StepTimeBounds
from simcluster.studies.sweep.quick_steps import quick_step_time
from simcluster.studies.sweep.stage_network import NeedsFullRunError
from simcluster.studies.whatif.monte_carlo_study import monte_carlo


class RefusedError(Exception):
    """A way that is not proved for the scenario, with the reason."""


class Answer(NamedTuple):
    """What one way gave: "equal", "refused" or "differs", and why."""

    way: str
    verdict: str
    why: str = ""


def compared(scenario: Scenario) -> list[Answer]:
    """Return what every way gives; of a scenario that the reference refuses, whether all others do."""
    try:
        meant = meaning(scenario)
    except InputError as error:
        return [Answer("reference", "refused", reason_of(error)), *refused_as_well(scenario)]
    return [answered(name, way, scenario, meant) for name, way in WAYS.items()]


def meaning(scenario: Scenario) -> Meant:
    """Return the reference's result, with a table of spans for every rank."""
    result = simulate_scenario(scenario.model_copy(update={"engine": "reference"}))
    return Meant(result, [table_of(result, rank) for rank in range(scenario.gpus)])


def answered(name: str, way: Callable[[Scenario, Meant], None], scenario: Scenario, meant: Meant) -> Answer:
    """Return what one way gives."""
    try:
        way(scenario, meant)
    except (InputError, RefusedError, NeedsFullRunError) as error:
        if name == "default":
            return Answer(name, "differs", f"refuses what the reference simulates: {error}")
        return Answer(name, "refused", reason_of(error))
    except AssertionError as error:
        return Answer(name, "differs", str(error).splitlines()[0] if str(error) else "assertion")
    except Exception as error:
        return Answer(name, "differs", f"{type(error).__name__}: {error}")
    return Answer(name, "equal")


def refused_as_well(scenario: Scenario) -> Iterator[Answer]:
    """Yield a difference where the default simulates what the reference refuses."""
    try:
        simulate_scenario(scenario)
    except InputError:
        return
    yield Answer("default", "differs", "simulates what the reference refuses")


def reason_of(error: Exception) -> str:
    """Return a reason without its numbers."""
    return re.sub(r"\d[\d,.]*", "N", str(error).splitlines()[0])[:110]


# --- ways -------------------------------------------------------------------------------------------------------------


class Meant(NamedTuple):
    """What the reference gives: the result, and the table of spans of every rank."""

    result: Result
    tables: list[pd.DataFrame]

    @property
    def step_time(self) -> float:
        return self.result.step_time


def same(found: Result, meant: Meant) -> None:
    """Compare the step and every span."""
    assert found.step_time == meant.step_time, f"step {found.step_time!r}, reference {meant.step_time!r}"
    for rank, other in enumerate(meant.tables):
        one = table_of(found, rank)
        if not one.equals(other):
            raise AssertionError(f"rank {rank}: {first_difference(one, other)}")


def first_difference(one: Any, other: Any) -> str:
    """Return where two tables of spans differ first."""
    if len(one) != len(other):
        return f"{len(one)} spans, reference {len(other)}"
    for column in COLUMNS:
        unlike = [
            place for place, pair in enumerate(zip(one[column], other[column], strict=True)) if pair[0] != pair[1]
        ]
        if unlike:
            place = unlike[0]
            return f"{column} of {one['name'][place]} is {one[column][place]!r}, reference {other[column][place]!r}"
    return "nothing but types"


def by_default(scenario: Scenario, meant: Meant) -> None:
    """As ``simulate`` does it, with all that the result says."""
    found = simulate_scenario(scenario)
    same(found, meant)
    one, other = found.to_dict(), meant.result.to_dict()
    for each in (one, other):
        del each["engine"], each["scenario"]
    where = unlike(one, other)
    assert not where, f"result JSON: {where}"


def unlike(one: Any, other: Any, path: str = "") -> str:
    """Return where two results differ first; means over ranks are sums in another order, equal to nine digits."""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = ((name, one.get(name, 0.0), other.get(name, 0.0)) for name in one | other)  # what takes no time
        return next((found for name, *pair in pairs if (found := unlike(*pair, f"{path}.{name}"))), "")
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next((found for place, pair in pairs if (found := unlike(*pair, f"{path}.{place}"))), "")
    if isinstance(one, float) and isinstance(other, float):
        return "" if math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-15) else f"{path} {one!r}, reference {other!r}"
    return "" if one == other else f"{path} {one!r}, reference {other!r}"


def unfolded(scenario: Scenario, meant: Meant) -> None:
    """Rank by rank, with all that the record has of every op."""
    found = simulate_scenario(scenario.model_copy(update={"engine": "compiled"}), folded=False)
    same(found, meant)
    where = record_difference(found.record, meant.result.record)
    assert not where, f"record: {where} (the reference's)"


def by_compiled(scenario: Scenario, meant: Meant) -> None:
    """By the compiled engine, folded."""
    same(simulate_scenario(scenario.model_copy(update={"engine": "compiled"})), meant)


def by_simpy(scenario: Scenario, meant: Meant) -> None:
    """By the reference on one rank of each class."""
    found = simulate_scenario(scenario.model_copy(update={"engine": "simpy"}))
    same(found, meant)
    where = record_difference(
        simulate_scenario(scenario.model_copy(update={"engine": "compiled"})).record, found.record
    )
    assert not where, f"record: {where} (simpy's)"


def quickly(scenario: Scenario, meant: Meant) -> None:
    """Check the quick row of a sweep."""
    quick = quick_step_time(scenario)
    assert quick == meant.step_time, f"quick {quick!r}, reference {meant.step_time!r}"


def bounded(scenario: Scenario, meant: Meant) -> None:
    """Check that the tightest bound of a layout search does not exceed the reference's step time."""
    obstacle, layout = PLAN.find_obstacle(scenario), layout_of_scenario(scenario)
    if obstacle or scenario.faults:
        raise RefusedError(obstacle or "faults")
    if layout is None:
        raise RefusedError("a schedule with parameters")
    least = StepTimeBounds(make_searchable_scenario(scenario), [layout]).bound_with_schedule(layout)
    assert 0 < least <= meant.step_time * (1 + 1e-12), f"bound {least!r}, reference {meant.step_time!r}"


def as_replica(scenario: Scenario, meant: Meant) -> None:
    """As one replica of a sweep in which nothing is left to chance."""
    if any(fault.is_random for fault in scenario.faults):
        raise RefusedError("replicas draw for themselves")
    obstacle = REPLICAS.find_obstacle(scenario)
    if obstacle:
        raise RefusedError(obstacle)
    (found,) = monte_carlo(scenario, replicas=1, method="sweep").step_times.tolist()
    assert abs(found - meant.step_time) <= 1e-9 * meant.step_time, f"{found!r}, reference {meant.step_time!r}"


WAYS: dict[str, Callable[[Scenario, Meant], None]] = {
    "default": by_default,
    "compiled": by_compiled,
    "simpy": by_simpy,
    "unfolded": unfolded,
    "quick row": quickly,
    "bound": bounded,
    "replica": as_replica,
}
"""Every way to simulate a step: a new one belongs here."""
