"""Results of simulated training runs with several stages: totals over stages, tables and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.display import Displayable
from simcluster.base.units import DAY, HOUR
from simcluster.longrun.power import KWH
from simcluster.longrun.studies.run_builder import require_run_section
from simcluster.longrun.studies.training_run import TrainingRun, measure_table
from simcluster.longrun.text_formats import make_frame, rows_to_dicts, to_json_value
from simcluster.results.result import VERSION
from simcluster.results.result_file import merge_assumptions
from simcluster.scenario.run_section import TrainingStageSpec
from simcluster.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd


CHANGE = "change of stage"
"""Time category of the seconds between two stages."""


@dataclass(frozen=True)
class StagedTraining(Displayable):
    """Simulated long runs with several stages: a ``TrainingRun`` per stage, and totals over the stages.

    Between two stages (``specs`` as in the document) the job is idle for the later one's ``change``. Every stage begins
    as the run states: parts of the same ages, all spares available.

    Of each run there are ``wall`` seconds, ``gpu_hours`` without spare nodes, ``goodput_by_run`` (the productive share
    of its GPU-hours), ``dollars`` of everything that has a price and ``kwh`` (None if not known). Of all ``played``
    runs together there are ``goodput`` and ``effective_mfu`` (over the wall time), ``tokens`` of the kept steps,
    ``spare_gpu_hours`` on average, and ``lost_to_failures``: dollars of time that has a cause, planned work excluded.
    """

    scenario: Scenario
    stages: tuple[TrainingRun, ...]
    specs: tuple[TrainingStageSpec, ...] = field(init=False, repr=False)
    played: int = field(init=False)
    price: float | None = field(init=False)
    wall: Floats = field(init=False, repr=False)
    gpu_hours: Floats = field(init=False, repr=False)
    goodput_by_run: Floats = field(init=False, repr=False)
    tokens: float = field(init=False)
    spare_gpu_hours: float = field(init=False)
    goodput: float = field(init=False)
    effective_mfu: float = field(init=False)

    def __post_init__(self) -> None:
        section, stages = require_run_section(self.scenario), self.stages
        each = [(stage, spec.change) for stage, spec in zip(stages, section.stages, strict=True)]
        hours = _sum_arrays([(stage.wall + change) * stage.run.gpus / HOUR for stage, change in each])
        useful = _sum_arrays([stage.goodput_by_run * stage.wall * stage.run.gpus / HOUR for stage in stages])
        mean = float(hours.mean())
        vars(self).update(
            specs=section.stages, played=stages[0].played, price=section.price,
            wall=_sum_arrays([stage.wall + change for stage, change in each]), gpu_hours=hours,
            goodput_by_run=useful / hours, tokens=sum(stage.tokens for stage in stages),
            spare_gpu_hours=sum(each.spare_gpu_hours for each in stages),
            goodput=sum(stage.goodput * stage.gpu_hours for stage in stages) / mean,
            effective_mfu=sum(stage.effective_mfu * stage.gpu_hours for stage in stages) / mean,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the staged runs as a JSON document (CONTRACT.md, "A run of stages")."""
        found = {
            "name": self.scenario.name,
            "played": self.played,
            "seed": self.scenario.seed,
            "days": float(self.wall.mean()) / DAY,
            "tokens": self.tokens,
            "gpu_hours": float(self.gpu_hours.mean()),
            "spare_gpu_hours": self.spare_gpu_hours,
            "goodput": self.goodput,
            "effective_mfu": self.effective_mfu,
            "dollars": None if self.dollars is None else float(self.dollars.mean()),
            "lost_to_failures": self.lost_to_failures,
            "kwh": None if self.kwh is None else float(self.kwh.mean()),
            "numbers": self.numbers.to_dict(orient="index"),
            "breakdown_s": self.breakdown.to_dict(),
            "stages": rows_to_dicts(self.table),
            "assumed": list(self.assumed),
            "runs": [stage.to_dict() for stage in self.stages],
            "scenario": self.scenario.document(),
            "version": VERSION,
        }
        return dict(to_json_value(found))

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions, by stage, that the results depend on but the scenario does not state."""
        return merge_assumptions({f"stage {number}": stage.assumed for number, stage in enumerate(self.stages, 1)})

    @cached_property
    def dollars(self) -> Floats | None:
        """Cost (dollars) of each run, of all resources that have a price; None if no price is set."""
        each = [
            stage.money.total + stage.money.rates["restart"] * spec.change
            for stage, spec in zip(self.stages, self.specs, strict=True)
            if stage.money is not None
        ]
        return _sum_arrays(each) if each else None

    @property
    def dollars_by_run(self) -> Floats | None:
        """Cost (dollars) of each run; None if no price is set."""
        return self.dollars

    @cached_property
    def kwh(self) -> Floats | None:
        """Energy (kWh) of each run; None if the GPUs' power is unknown."""
        each = [
            stage.energy.total + (stage.energy.mean_watts("restart") + stage.energy.standing_by) * spec.change / KWH
            for stage, spec in zip(self.stages, self.specs, strict=True)
            if stage.energy is not None
        ]
        return _sum_arrays(each) if len(each) == len(self.stages) else None

    @property
    def lost_to_failures(self) -> float | None:
        """Cost (dollars) of time lost to failures, planned outages excluded; None if no price is set."""
        each = [stage.money.failures for stage in self.stages if stage.money is not None]
        return sum(each) if each else None

    @cached_property
    def numbers(self) -> pd.DataFrame:
        """Table of days, GPU-hours, failures, dollars and kWh of the runs: mean, 95 % interval, percentiles."""
        failures = _sum_arrays([stage.failures_by_run for stage in self.stages])
        measured = {"days": self.wall / DAY, "gpu_hours": self.gpu_hours, "failures": failures}
        return measure_table({**measured, "dollars": self.dollars, "kwh": self.kwh})

    @cached_property
    def table(self) -> pd.DataFrame:
        """Table with a row per stage: tokens, steps, GPUs, step time, days, goodput, failures, cost.

        Columns tokens, tokens_per_step, sequence_length, gpus, step_time_s, step_mfu, steps, days, goodput, failures,
        gpu_hours, dollars, kwh (nan if not known).
        """
        rows = []
        for number, stage in enumerate(self.stages, 1):
            scenario, energy = stage.scenario, stage.energy
            sizes = number, stage.tokens, scenario.tokens_per_step, scenario.model.sequence_length, stage.run.gpus
            step = stage.run.pattern.step, stage.step_mfu, float(stage.outcomes.steps.mean())
            whole = stage.days, stage.goodput, float(stage.failures_by_run.mean()), stage.gpu_hours
            kwh = np.nan if energy is None else float(energy.total.mean())
            rows.append([*sizes, *step, *whole, np.nan if stage.dollars is None else stage.dollars, kwh])
        columns = "stage tokens tokens_per_step sequence_length gpus step_time_s step_mfu steps"
        return make_frame(rows, f"{columns} days goodput failures gpu_hours dollars kwh", "stage")

    @cached_property
    def breakdown(self) -> pd.Series[float]:
        """Mean seconds of a run in each time category, over all stages; the sum is the mean wall time."""
        import pandas as pd

        means = [stage.breakdown["mean_s"].to_dict() for stage in self.stages]
        seconds = {str(fate): sum(each[fate] for each in means) for fate in means[0]}
        return pd.Series(seconds | {CHANGE: sum(stage.change for stage in self.specs)}, name="mean_s")

    @cached_property
    def log(self) -> pd.DataFrame:
        """Event log of the first run over all stages, with times (s) since the first stage began."""
        import pandas as pd

        begun, found = 0.0, []
        for number, (stage, spec) in enumerate(zip(self.stages, self.specs, strict=True), 1):
            begun += spec.change
            table = stage.log.assign(begin_s=stage.log["begin_s"] + begun, end_s=stage.log["end_s"] + begun)
            table.insert(0, "stage", number)
            found.append(table)
            begun += float(stage.wall[0])
        return pd.concat(found, ignore_index=True)

    @cached_property
    def weeks(self) -> pd.DataFrame:
        """Table of goodput by stage and week."""
        import pandas as pd

        tables = {number: stage.weeks for number, stage in enumerate(self.stages, 1)}
        return pd.concat(tables, names=["stage"]).reset_index("stage").reset_index(drop=True)


def _sum_arrays(each: list[Floats]) -> Floats:
    return np.asarray(sum(each), dtype=np.float64)
