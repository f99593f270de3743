"""What pictures of a run share: what they are drawn from, and the words and the colour of every fate of its seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import pandas as pd

from simcluster.base.arrays import Floats
from simcluster.base.units import DAY
from simcluster.longrun.outcome import Outcomes, names_of
from simcluster.longrun.run import FATES, LongRun
from simcluster.show.palette import COMPUTE_KINDS, MEMORY, STREAMS, Colour, rgb, tinted

CHECKPOINTS = "checkpoints"
"""What seconds are counted under that no cause of a run has: copies, writes and verifications."""

LOOKS: Mapping[str, tuple[str, Colour]] = {
    "productive": ("training that is kept", tinted(rgb(COMPUTE_KINDS["forward"]), 0.62)),
    "slow": ("slowed by a device", rgb(COMPUTE_KINDS["input_grad"])),
    "write": ("slowed by a write", tinted(rgb(COMPUTE_KINDS["weight_grad"]), 0.55)),
    "checkpoint": ("checkpoint", rgb(COMPUTE_KINDS["weight_grad"])),
    "verification": ("verification", rgb(COMPUTE_KINDS["other"])),
    "validation": ("validation", rgb(COMPUTE_KINDS["validation"])),
    "lost": ("lost, done again", rgb(STREAMS["tp"])),
    "detection": ("detection", rgb(COMPUTE_KINDS["backward"])),
    "diagnosis": ("wrong diagnosis", rgb(COMPUTE_KINDS["recompute"])),
    "waiting": ("waiting for machines", rgb(COMPUTE_KINDS["optimizer"])),
    "restart": ("restart", rgb(STREAMS["ep"])),
    "pause": ("pause", rgb(STREAMS["dp"])),
    "maintenance": ("maintenance", rgb(MEMORY["gradients"])),
}
"""Words and colour of each fate, in the order of legends."""


class NamedScenario(Protocol):
    """A scenario, as far as a title asks."""

    @property
    def name(self) -> str: ...


class PlayedRun(Protocol):
    """A run that has been played: outcomes of all its replicas and the log of the first, as `simcluster.train` gives.

    ``log`` has the columns begin_s, end_s, what, cause, which, at_s (``longrun/events/``).
    """

    @property
    def scenario(self) -> NamedScenario: ...
    @property
    def run(self) -> LongRun: ...
    @property
    def outcomes(self) -> Outcomes: ...
    @property
    def log(self) -> pd.DataFrame: ...


@runtime_checkable
class PlayedStages(Protocol):
    """A run of stages that has been played, each stage a run of its own, in order."""

    @property
    def scenario(self) -> NamedScenario: ...
    @property
    def stages(self) -> Sequence[PlayedRun]: ...


def shares_of(outcomes: Outcomes) -> pd.DataFrame:
    """Shares of the wall time of all runs: a row a fate, a column a cause (or ``CHECKPOINTS``, ""); they sum to 1."""
    whole = float(outcomes.wall.sum())
    table = pd.DataFrame(0.0, index=list(LOOKS), columns=["", CHECKPOINTS, *names_of(outcomes.run)])
    spent = outcomes.spent()
    for fate in LOOKS:
        if fate in FATES:
            by_cause = outcomes.fates[:, FATES.index(fate)].sum(axis=0)
            table.loc[fate, names_of(outcomes.run)] = by_cause / whole
        else:
            table.loc[fate, "" if fate == "productive" else CHECKPOINTS] = float(spent[fate].sum()) / whole
    return table


def weekly_goodput(outcomes: Outcomes) -> Floats:
    """Seconds of healthy steps that were kept, over those of the week: [run, week]; NaN where a run is over.

    The last week counts as far as it was begun, from half a day on.  A step that is lost after the end of its week is
    taken from the next one.
    """
    run = outcomes.run
    weeks = max(1, int(np.ceil(outcomes.wall.max() / run.week - 1e-9)))
    begins = np.arange(weeks) * run.week
    lasts = np.clip(outcomes.wall[:, None] - begins, 0.0, run.week)
    ends = np.full((len(outcomes.wall), weeks), np.nan)
    known = min(weeks, outcomes.weekly.shape[1])
    ends[:, :known] = outcomes.weekly[:, :known]
    ends = np.where(lasts < run.week * (1 - 1e-9), outcomes.steps[:, None], ends)
    ends = np.where(np.isnan(ends), outcomes.steps[:, None], ends)
    gained = np.diff(ends, axis=1, prepend=0.0) * run.pattern.step
    short = lasts < min(DAY / 2, float(outcomes.wall.min()))
    return np.where(short, np.nan, gained / np.where(short, 1.0, lasts))


def percent(share: float) -> str:
    """A share with three digits or so: "92.1 %", "0.31 %"."""
    return f"{100 * share:.2f} %" if share < 0.1 else f"{100 * share:.1f} %"
