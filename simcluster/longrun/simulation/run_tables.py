"""Causes of a run by number: what each does, and the draws that it has."""

from __future__ import annotations

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.longrun.outcome import names_of
from simcluster.longrun.run import NOW, FailureMode, LongRun
from simcluster.longrun.simulation.draws import Draws


def causes_of(run: LongRun) -> list[FailureMode]:
    """Return the causes, then maintenance and missing machines, which never strike."""
    return [*run.causes, *(FailureMode(name, "stop", 0.0) for name in names_of(run)[len(run.causes) :])]


def add_draws(run: LongRun, cause: FailureMode, machines: int, draws: Draws) -> None:
    """Add the draws of a cause, in the same order for all: repairs of as many ``machines`` as any cause has."""
    repair = first = cause.repair or NOW
    if cause.bad is not None and cause.bad.replaced is not None and cause.repair is not None:
        first = cause.bad.replaced  # of a machine that is retired
    draws.add_law(f"{cause.name}.detect", cause.detect)
    draws.add_law(f"{cause.name}.lasts", cause.lasts)
    draws.add_law(f"{cause.name}.noticed", run.noticed)
    _add_pace(cause, draws)
    if run.wrong:
        share = np.log(run.wrong)
        draws.add(f"{cause.name}.wrong", (0,), lambda uniform: np.floor(np.log(uniform[:, 0]) / share))
    else:
        draws.add_constant(0.0)
    draws.add_law(f"{cause.name}.repair.0", first)
    for machine in range(machines):
        draws.add_law(f"{cause.name}.repair.{machine}", repair)
    for part in run.restart:
        for law in (part.memory, part.storage):
            draws.add_law(f"{cause.name}.restart.{part.name}", law)


def _add_pace(cause: FailureMode, draws: Draws) -> None:
    """Add the draw of a slow device's pace."""
    paces, of = cause.paces, cause.column
    if paces is None:
        draws.add_constant(1.0)
        return

    def pace(uniform: Floats) -> Floats:
        level = np.searchsorted(np.cumsum(cause.shares)[:-1], uniform[:, 0], side="right")
        device = np.minimum((uniform[:, 1] * cause.devices).astype(np.int64), cause.devices - 1)
        return np.asarray(paces[level, of(device) if of else 0])

    draws.add(f"{cause.name}.spell", range(2), pace)
