"""Policies side by side: runs that differ in what is decided, on the same random numbers, and what that is worth.

What strikes and how long it lasts is drawn by entity, kind and occurrence (``longrun.streams``), so that two policies
meet the same failures, and the difference of the two is known far better than either (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.longrun.outcome import Outcomes
from simcluster.longrun.replicas import play_replicas
from simcluster.longrun.run import LongRun
from simcluster.scenario.scenario import Scenario, from_document, load
from simcluster.studies.long_run.build import long_run_of, section_of
from simcluster.studies.long_run.states import StepStates

if TYPE_CHECKING:
    import pandas as pd

SEED = 0
LEAST = 2
"""Runs that an interval takes."""

Measure = Literal["goodput", "days"]


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """A mean difference of two policies over the same runs, half its 95 % interval, and ``gained``: how many times as
    many independent draws would be needed for as narrow a one (inf where the runs differ alike, nan where not at all).
    """

    mean: float
    half_width: float
    gained: float

    @property
    def holds(self) -> bool:
        """Is zero outside the interval?"""
        return abs(self.mean) > self.half_width


def paired(first: Floats, second: Floats) -> PairedDifference:
    """second - first, run by run."""
    difference = second - first
    independent = float(np.var(first, ddof=1) + np.var(second, ddof=1))
    spread = float(np.var(difference, ddof=1))
    gained = independent / spread if spread else math.inf if independent else math.nan
    return PairedDifference(float(difference.mean()), _wide(len(difference)) * math.sqrt(spread), gained)


def _wide(count: int) -> float:
    """Half a 95 % interval of a mean, in standard deviations of one: Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.975)) / math.sqrt(count)


def half_width(values: Floats) -> float:
    """Half the 95 % interval of the mean of runs."""
    return _wide(len(values)) * float(np.std(values, ddof=1))


def share_of(outcomes: Outcomes, fate: str = "productive") -> Floats:
    """The share of each run's wall time with that fate; the productive one is its goodput."""
    return np.asarray(outcomes.spent()[fate] / outcomes.wall)


def played_of(scenario: Scenario, played: int | None) -> int:
    """How many runs are played: as asked, or as the scenario says; InputError below two, which have no interval."""
    count = section_of(scenario).played if played is None else played
    if count < LEAST:
        raise InputError(f"played: {count} run has no interval; play at least {LEAST}, better 100 or more")
    return count


@dataclass(frozen=True)
class PolicyComparison:
    """Policies on common random numbers: ``table`` by name with the mean of the measure, half its 95 % interval
    (half_width), difference from the first policy, half the interval of that (difference_half_width), and how much
    variance the common numbers saved (variance_gained)."""

    table: pd.DataFrame
    measure: str
    played: int
    outcomes: Mapping[str, Outcomes]

    @property
    def sentence(self) -> str:
        """Which is best, by how much, and whether the runs are enough to say so."""
        rows = {str(row["policy"]): row for row in self.table.reset_index().to_dict("records")}
        choose, first = max if self.measure == "goodput" else min, next(iter(rows))
        better = choose(rows, key=lambda name: float(rows[name]["mean"]))
        row = rows[better]
        unit, scale = ("points", 100) if self.measure == "goodput" else ("days", 1)
        if better == first:
            return f"{first} is the best of the {len(self.table)}."
        gap, half = scale * float(row["difference"]), scale * float(row["difference_half_width"])
        known = "" if abs(gap) > half else ": too close to say with so few runs"
        return f"{better} is the best of the {len(self.table)}: {gap:+.3f} +- {half:.3f} {unit} against {first}{known}."

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        rows = [{"policy": name, **row} for name, row in zip(self.table.index, records(self.table), strict=True)]
        return {"measure": self.measure, "played": self.played, "answer": self.sentence, "policies": rows}


def compare_policies(
    policies: Mapping[str, Scenario | str | Mapping[str, Any]],
    *,
    measure: Measure = "goodput",
    played: int | None = None,
) -> PolicyComparison:
    """Policies by name, each a scenario (its name or file, too) or changes to the first, as ``{"run.spares.hot": 4}``.

    The steps of scenarios that differ only in their run are played once.  InputError where the first is no scenario, or
    there is only one.
    """
    if len(policies) < 2:
        raise InputError(f"compare_policies: two policies or more; got {', '.join(policies) or 'none'}")
    scenarios = _scenarios(policies)
    first = next(iter(scenarios.values()))
    count = played_of(first, played)
    known: dict[str, StepStates] = {}
    outcomes = {}
    for name, scenario in scenarios.items():
        alike = repr({key: value for key, value in scenario.document().items() if key not in ("run", "name")})
        states = known.setdefault(alike, StepStates(scenario))
        outcomes[name] = play_replicas(long_run_of(scenario, states), SEED, count)
    values = {name: share_of(each) if measure == "goodput" else each.wall / 86400 for name, each in outcomes.items()}
    return PolicyComparison(difference_table(values), measure, count, outcomes)


def _scenarios(policies: Mapping[str, Scenario | str | Mapping[str, Any]]) -> dict[str, Scenario]:
    found: dict[str, Scenario] = {}
    for name, policy in policies.items():
        if isinstance(policy, Mapping):
            if not found:
                raise InputError(
                    f"compare_policies: {name} comes first, so it must be a scenario: the others change it"
                )
            found[name] = from_document(next(iter(found.values())).document(), policy)
        else:
            found[name] = policy if isinstance(policy, Scenario) else load(policy)
    return found


def difference_table(values: Mapping[str, Floats]) -> pd.DataFrame:
    """The rows of a ``PolicyComparison``, of values by run."""
    first = next(iter(values.values()))
    rows = []
    for number, each in enumerate(values.values()):
        gap = paired(first, each) if number else PairedDifference(0.0, 0.0, math.nan)
        rows.append((float(each.mean()), half_width(each), gap.mean, gap.half_width, gap.gained))
    columns = ["mean", "half_width", "difference", "difference_half_width", "variance_gained"]
    import pandas as pd

    return pd.DataFrame(rows, index=pd.Index(list(values), name="policy"), columns=columns)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON: what is not finite is None."""
    found = table.to_dict("records")
    return [
        {
            str(key): None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in row.items()
        }
        for row in found
    ]


@dataclass(frozen=True)
class PolicyBench:
    """Where variants of one run are played on the same numbers: its scenario, the states of its cluster, and runs."""

    scenario: Scenario
    states: StepStates
    played: int

    def with_section(self, **changes: Any) -> LongRun:
        """The scenario's run with fields of its ``run:`` section changed."""
        section = section_of(self.scenario).model_copy(update=changes)
        return long_run_of(self.scenario.model_copy(update={"run": section}), self.states)

    def play(self, run: LongRun) -> Outcomes:
        """Its runs."""
        return play_replicas(run, SEED, self.played)

    def goodput(self, run: LongRun) -> Floats:
        """Of each of its runs."""
        return share_of(self.play(run))


def bench_of(scenario: Scenario | str, states: StepStates | None, played: int | None) -> PolicyBench:
    """A bench for a scenario, or its name or file; ``states`` may be shared between questions."""
    scenario = load(scenario) if isinstance(scenario, str) else scenario
    count = played_of(scenario, played)
    return PolicyBench(scenario, states or StepStates(scenario), count)


def table_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a table."""
    import pandas as pd

    return pd.DataFrame(rows)
