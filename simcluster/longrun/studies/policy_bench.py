"""Simulation of variants of one long run with the same random numbers; paired differences; advice.

Failures and their durations are drawn by entity, kind and occurrence (``longrun.random_streams``), so that two policies
meet the same failures, and their difference is known far better than either (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.display import Displayable
from simcluster.base.tables import rows_to_frame
from simcluster.longrun.long_run import LongRun, RunOutcomes
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.run_builder import build_long_run, require_run_section
from simcluster.longrun.studies.run_chunks import Name, RunSimulator
from simcluster.longrun.text_formats import to_json_value
from simcluster.scenario.run_section import RunSpec
from simcluster.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean difference between two policies over paired runs, and half of the mean's 95 % confidence interval.

    ``variance_gain``: how many times as many independent draws an interval of that width takes (inf if all runs differ
    equally, nan if none differs).
    """

    mean: float
    half_width: float
    variance_gain: float

    def choose_text_by_sign(self, better: str, worse: str, equal: str) -> str:
        """Return the text ``better`` or ``worse`` by the sign of the difference; ``equal`` if insignificant."""
        is_significant = abs(self.mean) > self.half_width
        return equal if not is_significant else better if self.mean > 0 else worse


def paired_difference(first: Floats, second: Floats) -> PairedDifference:
    """Return the mean of ``second`` minus ``first`` over paired runs, with its 95 % confidence interval."""
    difference = second - first
    independent = float(np.var(first, ddof=1) + np.var(second, ddof=1))
    spread = float(np.var(difference, ddof=1))
    gained = independent / spread if spread else math.inf if independent else math.nan
    return PairedDifference(float(difference.mean()), _student_half_width(len(difference)) * math.sqrt(spread), gained)


def _student_half_width(count: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, 0.975)) / math.sqrt(count)


def mean_half_width(values: Floats) -> float:
    """Return half of the 95 % confidence interval of a mean over runs."""
    return _student_half_width(len(values)) * float(np.std(values, ddof=1))


def category_share(outcomes: RunOutcomes, category: str = "productive") -> Floats:
    """Return each run's share of wall time in a time category (default: productive time, that is, the goodput)."""
    return np.asarray(outcomes.seconds_by_category()[category] / outcomes.wall)


@dataclass(frozen=True, slots=True)
class AdviceLine:
    """Line in an advice plot: table column, label, dashed or solid, and the column of the interval's half width."""

    column: str
    label: str
    is_dashed: bool = False
    half_width_column: str = ""


_SIMULATED = AdviceLine("goodput", "simulated", half_width_column="half_width")
GOODPUT = (_SIMULATED, AdviceLine("closed_form", "closed form", is_dashed=True))
"""Plot lines of a goodput table: simulated, and by closed form."""


@dataclass(frozen=True, slots=True)
class AdviceMark:
    """Labelled point in an advice plot, at (x, y) in the units of the advice's table."""

    x: float
    y: float
    label: str
    chosen: bool = True


@dataclass(frozen=True, slots=True)
class AdvicePlot:
    """Plot of an advice: lines over one table column, with axis labels, units, and logarithmic or linear axes.

    Values are divided by ``x_unit`` and ``y_unit`` (seconds to minutes, shares to percent).
    ``log_axes`` names the logarithmic axes: "", "x", "y" or "xy".
    """

    x: str
    x_label: str
    y_label: str = "goodput, %"
    lines: tuple[AdviceLine, ...] = GOODPUT
    marks: tuple[AdviceMark, ...] = ()
    x_unit: float = 1.0
    y_unit: float = 0.01
    log_axes: str = ""


@dataclass(frozen=True)
class Advice(Displayable):
    """Answer of ``simcluster advise``: one sentence, tables, notes, assumptions, and a plot.

    The ``table`` supports it (seconds, shares and hours as its columns name), a ``second`` table may follow; ``notes``
    are on validity, ``assumed`` on inputs.
    """

    question: str
    name: str
    sentence: str
    table: pd.DataFrame
    picture: AdvicePlot
    played: int
    notes: tuple[str, ...] = ()
    second: pd.DataFrame | None = None
    assumed: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the advice as a JSON document; unknown values are null."""
        return {
            "question": self.question,
            "name": self.name,
            "answer": self.sentence,
            "played": self.played,
            "table": to_json_value(self.table.to_dict("records")),
            "second": None if self.second is None else to_json_value(self.second.to_dict("records")),
            "assumed": list(self.assumed),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class PolicyBench:
    """Simulator of variants of one scenario's long run with the same random numbers."""

    scenario: Scenario
    states: ClusterStateSimulator
    played: int
    run_simulator: RunSimulator = field(default_factory=RunSimulator)

    @property
    def section(self) -> RunSpec:
        """The scenario's ``run:`` section."""
        return require_run_section(self.scenario)

    def build_variant(self, **changes: Any) -> LongRun:
        """Return the scenario's long run with fields of its ``run:`` section changed."""
        section = self.section.model_copy(update=changes)
        return build_long_run(self.scenario.model_copy(update={"run": section}), self.states)

    def simulate(self, run: LongRun) -> RunOutcomes:
        """Simulate one variant of the run; return the outcomes."""
        return self.simulate_all({"": run})[""]

    def simulate_all(self, runs: Mapping[Name, LongRun]) -> dict[Name, RunOutcomes]:
        """Simulate each named variant of the run, concurrently if possible; return outcomes by name."""
        return self.run_simulator.simulate_named_runs(runs, self.scenario.seed, self.played)

    def simulate_goodputs(self, runs: Mapping[Name, LongRun]) -> dict[Name, Floats]:
        """Simulate each named variant of the run; return the goodput of each run by name."""
        return {name: category_share(outcomes) for name, outcomes in self.simulate_all(runs).items()}

    def make_advice(
        self,
        question: str,
        sentence: str,
        table: pd.DataFrame,
        picture: AdvicePlot,
        notes: tuple[str, ...],
        second: pd.DataFrame | None = None,
    ) -> Advice:
        """Return the answer to an ``advise`` question, with the scenario's name and the number of simulated runs."""
        return Advice(question, self.scenario.name, sentence, table, picture, self.played, notes, second)


def goodput_table(
    goodput: Mapping[Name, Floats],
    base: Name,
    columns: Callable[[Name], dict[str, float]],
    closed_form: Callable[[Name], float],
) -> pd.DataFrame:
    """Return a table with a row per variant: own columns, goodput, closed form, and difference from ``base``."""
    rows = []
    for name, values in goodput.items():
        gap = paired_difference(goodput[base], values)
        known = closed_form(name)
        half = mean_half_width(values)
        measured = {"goodput": float(values.mean()), "half_width": half, "closed_form": known}
        rows.append({**columns(name), **measured, "difference": gap.mean, "difference_half_width": gap.half_width})
    return rows_to_frame(rows)
