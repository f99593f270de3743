"""Variants of one run on the same random numbers, and what a difference of two is worth.

What strikes and how long it lasts is drawn by entity, kind and occurrence (``longrun.streams``), so that two policies
meet the same failures, and the difference of the two is known far better than either (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.longrun.outcome import Outcomes
from simcluster.longrun.run import LongRun
from simcluster.longrun.studies.build import asked_runs, long_run_of, section_of
from simcluster.longrun.studies.chunks import Name, RunPlayer
from simcluster.longrun.studies.states import StepStates
from simcluster.scenario.scenario import Scenario, load

if TYPE_CHECKING:
    import pandas as pd

LEAST = 2
"""Runs that an interval takes."""


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
    return asked_runs(scenario, played, LEAST)


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
    """Where variants of one run are played on the same numbers: its scenario, the states of its cluster, how many runs
    of each, and who plays them."""

    scenario: Scenario
    states: StepStates
    played: int
    player: RunPlayer = field(default_factory=RunPlayer)

    def with_section(self, **changes: Any) -> LongRun:
        """The scenario's run with fields of its ``run:`` section changed."""
        section = section_of(self.scenario).model_copy(update=changes)
        return long_run_of(self.scenario.model_copy(update={"run": section}), self.states)

    def play(self, run: LongRun) -> Outcomes:
        """Its runs."""
        return self.play_all({"": run})[""]

    def play_all(self, runs: Mapping[Name, LongRun]) -> dict[Name, Outcomes]:
        """The runs of each variant, side by side where there are players for that."""
        return self.player.play(runs, self.scenario.seed, self.played)

    def goodput(self, run: LongRun) -> Floats:
        """Of each of its runs."""
        return share_of(self.play(run))

    def goodputs(self, runs: Mapping[Name, LongRun]) -> dict[Name, Floats]:
        """Of each of the runs of each variant."""
        return {name: share_of(outcomes) for name, outcomes in self.play_all(runs).items()}


def bench_of(scenario: Scenario | str, states: StepStates | None, played: int | None, player: RunPlayer) -> PolicyBench:
    """A bench for a scenario, or its name or file; ``states`` may be shared between questions."""
    scenario = load(scenario) if isinstance(scenario, str) else scenario
    count = played_of(scenario, played)
    return PolicyBench(scenario, states or StepStates(scenario), count, player)


def table_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a table."""
    import pandas as pd

    return pd.DataFrame(rows)
