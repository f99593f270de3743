"""Runs of several stages that were played, in numbers: the sums of their stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.units import DAY, HOUR
from simcluster.longrun.power import KWH
from simcluster.longrun.studies.accounts import interval
from simcluster.longrun.studies.build import section_of
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.results.assumptions import merge_assumptions
from simcluster.scenario.run_section import StageSpec
from simcluster.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

CHANGE = "change of stage"
"""What the seconds between two stages are counted under."""


@dataclass(frozen=True)
class StagedRuns:
    """Runs of several stages that were played, each stage a ``TrainingRun`` of its own, in order.

    Between two stages the job stands for the later one's ``change``, idle.  What a stage begins with is what the run
    says: parts as old, spares all there.
    """

    scenario: Scenario
    stages: tuple[TrainingRun, ...]

    @property
    def specs(self) -> tuple[StageSpec, ...]:
        """The stages as the document has them."""
        return section_of(self.scenario).stages

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions that the answer depends on and the scenario does not state."""
        return merge_assumptions({f"stage {number}": stage.assumed for number, stage in enumerate(self.stages, 1)})

    @property
    def played(self) -> int:
        """Runs."""
        return self.stages[0].played

    @cached_property
    def wall(self) -> Floats:
        """Seconds of each run."""
        return self._sum(lambda stage, change: stage.outcomes.wall + change)

    @cached_property
    def gpu_hours(self) -> Floats:
        """Of each run: of the job's GPUs, spares left out."""
        return self._sum(lambda stage, change: (stage.outcomes.wall + change) * stage.run.gpus / HOUR)

    @cached_property
    def dollars(self) -> Floats | None:
        """Of each run, of all that has a price; None where nothing has."""
        return None if self.stages[0].money is None else self._sum(_dollars)

    @property
    def dollars_by_run(self) -> Floats | None:
        """The same, as a ``TrainingRun`` calls it."""
        return self.dollars

    @property
    def price(self) -> float | None:
        """Dollars a GPU and hour, where the scenario says it."""
        return section_of(self.scenario).price

    @cached_property
    def kwh(self) -> Floats | None:
        """Of each run; None where nobody says what its GPUs draw."""
        return None if any(stage.energy is None for stage in self.stages) else self._sum(_kwh)

    @property
    def spare_gpu_hours(self) -> float:
        """Of the machines that stand by, on average."""
        return sum(stage.spare_gpu_hours for stage in self.stages)

    @property
    def lost_to_failures(self) -> float | None:
        """Dollars of what has a cause, planned work left out; None where nothing has a price."""
        each = [stage.money.failures for stage in self.stages if stage.money is not None]
        return sum(each) if each else None

    @property
    def tokens(self) -> float:
        """Tokens of the steps that are kept."""
        return sum(stage.tokens for stage in self.stages)

    @property
    def goodput(self) -> float:
        """The productive share of all GPU-hours."""
        return self._of_gpu_hours(lambda stage: stage.goodput)

    @cached_property
    def goodput_by_run(self) -> Floats:
        """The productive share of each run's GPU-hours."""
        useful = self._sum(lambda stage, _: stage.goodput_by_run * stage.wall * stage.run.gpus / HOUR)
        return useful / self.gpu_hours

    @property
    def effective_mfu(self) -> float:
        """Of the whole run, over the wall."""
        return self._of_gpu_hours(lambda stage: stage.effective_mfu)

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """Days, GPU-hours, failures, and dollars and kWh where they are known: mean, low and high (95 %), p5, p50, p95
        of the runs."""
        import pandas as pd

        measured = {"days": self.wall / DAY, "gpu_hours": self.gpu_hours, "failures": self._sum(_failures)}
        measured |= {name: each for name, each in (("dollars", self.dollars), ("kwh", self.kwh)) if each is not None}
        rows = [[*interval(values), *np.quantile(values, (0.05, 0.5, 0.95))] for values in measured.values()]
        index = pd.Index(list(measured), name="what")
        return pd.DataFrame(rows, index=index, columns=["mean", "low", "high", "p5", "p50", "p95"])

    @cached_property
    def table(self) -> pd.DataFrame:
        """By stage: tokens, tokens_per_step, sequence_length, gpus, step_time_s, step_mfu, steps, days, goodput,
        failures, gpu_hours, dollars, kwh (nan where they are not known)."""
        import pandas as pd

        rows = [_row(stage) for stage in self.stages]
        return pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1, name="stage"))

    @cached_property
    def breakdown(self) -> pd.Series[float]:
        """Seconds of a run by fate, all stages together; they sum to the mean wall."""
        import pandas as pd

        fates = self.stages[0].breakdown.index
        seconds = {
            str(fate): sum(float(stage.breakdown.loc[fate, "mean_s"]) for stage in self.stages) for fate in fates
        }
        return pd.Series(seconds | {CHANGE: sum(stage.change for stage in self.specs)}, name="mean_s")

    @cached_property
    def log(self) -> pd.DataFrame:
        """Run 0, event by event, as ``TrainingRun.log`` with a column stage; times are since the first stage began, and
        at_s since its own did."""
        return self._first(lambda stage: stage.log, ("begin_s", "end_s"))

    @cached_property
    def weeks(self) -> pd.DataFrame:
        """By stage and week of it, as ``TrainingRun.weeks``."""
        return self._first(lambda stage: stage.weeks, ())

    def _first(self, of: Callable[[TrainingRun], pd.DataFrame], times: Sequence[str]) -> pd.DataFrame:
        """The stages' tables one after another, ``times`` counted from where the run begins."""
        import pandas as pd

        begun, found = 0.0, []
        for number, (stage, change) in enumerate(self._each(), 1):
            begun += change
            table = of(stage)
            table = table.assign(**{name: table[name] + begun for name in times})
            table.insert(0, "stage", number)
            found.append(table)
            begun += float(stage.outcomes.wall[0])
        return pd.concat(found, ignore_index=True)

    def _each(self) -> Iterator[tuple[TrainingRun, float]]:
        return zip(self.stages, (stage.change for stage in self.specs), strict=True)

    def _sum(self, of: Callable[[TrainingRun, float], Floats]) -> Floats:
        return np.asarray(sum(of(stage, change) for stage, change in self._each()), dtype=np.float64)

    def _of_gpu_hours(self, of: Callable[[TrainingRun], float]) -> float:
        return sum(of(stage) * stage.gpu_hours for stage in self.stages) / float(self.gpu_hours.mean())


def _failures(stage: TrainingRun, _: float) -> Floats:
    stops = [number for number, cause in enumerate(stage.run.causes) if cause.stops]
    return np.asarray(stage.outcomes.strikes[:, stops].sum(axis=1), dtype=np.float64)


def _dollars(stage: TrainingRun, change: float) -> Floats:
    assert stage.money is not None
    return stage.money.total + stage.money.rates["restart"] * change


def _kwh(stage: TrainingRun, change: float) -> Floats:
    assert stage.energy is not None
    return stage.energy.total + (stage.energy.watts("restart") + stage.energy.standing_by) * change / KWH


def _row(stage: TrainingRun) -> dict[str, float]:
    return {
        "tokens": stage.tokens,
        "tokens_per_step": stage.scenario.tokens_per_step,
        "sequence_length": stage.scenario.model.sequence_length,
        "gpus": stage.run.gpus,
        "step_time_s": stage.run.pattern.step,
        "step_mfu": stage.step_mfu,
        "steps": float(stage.outcomes.steps.mean()),
        "days": stage.days,
        "goodput": stage.goodput,
        "failures": float(_failures(stage, 0.0).mean()),
        "gpu_hours": stage.gpu_hours,
        "dollars": np.nan if stage.dollars is None else stage.dollars,
        "kwh": np.nan if stage.energy is None else float(stage.energy.total.mean()),
    }
