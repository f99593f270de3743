"""Runs of a log that was played again, in numbers: what the log says, as it was, in the what-if, and the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from simcluster.base.units import DAY, HOUR
from simcluster.longrun.eventlog import STANDS, EventLog
from simcluster.longrun.events.record import TRAINING
from simcluster.longrun.outcome import Outcomes
from simcluster.longrun.replayed import stood_in, struck_in
from simcluster.longrun.run import FATES, LongRun
from simcluster.longrun.studies.policies import paired
from simcluster.longrun.studies.training_run import TrainingRun
from simcluster.results.assumptions import merge_assumptions

if TYPE_CHECKING:
    import pandas as pd

HOURS = (
    "productive",
    "lost",
    "checkpoint",
    "write",
    "verification",
    "validation",
    *(fate for fate in FATES if fate != "lost"),
)
_SAME = 1e-6


@dataclass(frozen=True)
class ReplayedRuns:
    """A log played again: ``as_it_was`` under the scenario's own policy, and, where there is one, the ``what_if``.

    Run r of both has the same strikes and the same draws; what a log does not say (how long a repair takes) is drawn.
    """

    name: str
    log: EventLog
    as_it_was: TrainingRun
    what_if: TrainingRun | None
    changed: Mapping[str, Any]

    @property
    def last(self) -> TrainingRun:
        """The what-if, or the replay as it was where nothing was changed."""
        return self.what_if or self.as_it_was

    @property
    def compared(self) -> dict[str, TrainingRun]:
        """All that was played, by what it is called."""
        return {"as it was": self.as_it_was} | ({"what if": self.what_if} if self.what_if else {})

    @property
    def assumed(self) -> tuple[str, ...]:
        """Assumptions that the answer depends on and the scenario does not state."""
        return merge_assumptions({name: run.assumed for name, run in self.compared.items()})

    @cached_property
    def logged(self) -> dict[str, float]:
        """What the log itself says, in the table's units: days, strikes, and of a run's own log more."""
        return _logged(self.log, self.as_it_was.run)

    @cached_property
    def table(self) -> pd.DataFrame:
        """By measure (days, steps, goodput, strikes, outages, hours of each fate): what the log says (``logged``, nan
        where it does not), means of the runs ``as_it_was`` and ``what_if``, their ``difference``, run by run, and
        half of its 95 % interval (``half_width``; nan of a single run)."""
        import pandas as pd

        was, then = (_measures(each.outcomes) for each in (self.as_it_was, self.last))
        rows = []
        for measure, values in was.items():
            gap, half = (math.nan, math.nan)
            if self.what_if is not None:
                gap = float((then[measure] - values).mean())
                half = paired(values, then[measure]).half_width if len(values) > 1 else math.nan
            what_if = float(then[measure].mean()) if self.what_if is not None else math.nan
            rows.append((measure, self.logged.get(measure, math.nan), float(values.mean()), what_if, gap, half))
        columns = ["measure", "logged", "as_it_was", "what_if", "difference", "half_width"]
        return pd.DataFrame(rows, columns=columns).set_index("measure")


def _measures(outcomes: Outcomes) -> dict[str, Any]:
    """By run."""
    spent = outcomes.spent()
    return {
        "days": outcomes.wall / DAY,
        "steps": outcomes.steps,
        "goodput": spent["productive"] / outcomes.wall,
        "strikes": outcomes.strikes.sum(axis=1).astype(float),
        "outages": outcomes.outages.sum(axis=1).astype(float),
        "stood_h": sum(spent[fate] for fate in STANDS) / HOUR,
        **{f"{fate}_h": spent[fate] / HOUR for fate in HOURS},
    }


def _logged(log: EventLog, run: LongRun) -> dict[str, float]:
    """What a log says; of one of incidents how long the job stood is said as one."""
    found = {"days": log.end / DAY, "strikes": float(len(struck_in(run, log)))}
    if log.stands is None:
        return found | ({"stood_h": stood_in(run, log) / HOUR} if any(each.lasts > 0 for each in log.incidents) else {})
    for fate in STANDS:
        found[f"{fate}_h"] = sum(end - begin for begin, end, what, _ in log.stands if what == fate) / HOUR
    found["stood_h"] = sum(found[f"{fate}_h"] for fate in STANDS)
    return found | _trained(log, run)


def _trained(log: EventLog, run: LongRun) -> dict[str, float]:
    """Steps and goodput of a run's own log, where its checkpoints and its step are those of the run."""
    first = next((row for row in log.rows if row.what == TRAINING and row.steps), None)
    steps = run.pattern.spent("steps", np.array([first.at if first else 0.0]))
    if first is None or abs(float(steps[0]) - first.steps) > _SAME * first.steps:
        return {}
    last = max(log.rows, key=lambda row: row.end)
    kept = min(float(run.pattern.spent("steps", np.array([last.at]))[0]), run.goal)
    return {"steps": kept, "goodput": kept * run.pattern.step / last.end}
