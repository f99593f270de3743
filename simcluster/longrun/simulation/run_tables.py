"""A run in flat arrays, as the compiled simulation reads it."""

from __future__ import annotations

from typing import NamedTuple, get_args

import numpy as np

from simcluster.base.arrays import Floats, Int32s
from simcluster.longrun.outcome import names_of
from simcluster.longrun.pattern import STORAGE
from simcluster.longrun.run import NOW, Effect, FailureMode, LongRun
from simcluster.longrun.simulation.draws import Draws

EFFECTS: tuple[str, ...] = get_args(Effect)
"""Effects of a cause by the number that stands in ``RunTables.effect``."""


class RunTables(NamedTuple):
    """Columns by cause (then those of maintenance and of missing machines), by part of a restart, and by machine.

    ``detect``, ``lasts``, ``noticed``, ``pace``, ``wrong``, ``restart[cause, part, tier]``, ``repair[cause, machine]``
    and ``replace`` are numbers of draws; ``leave`` machines go to repair, and ``replace`` (-1: as a repair) takes one
    that is retired.  By machine: ``ready`` seconds of the n-th spare; ``paces``, ``shares`` of the rates and ``faster``
    (``LongRun.faster``) with 0, 1, ... machines missing.
    """

    effect: Int32s
    stored: Int32s
    detect: Int32s
    lasts: Int32s
    noticed: Int32s
    pace: Int32s
    wrong: Int32s
    leave: Int32s
    replace: Int32s
    repair: Int32s
    restart: Int32s
    exposed: Int32s
    faster: Int32s
    ready: Floats
    paces: Floats
    shares: Floats


def tables_of(run: LongRun, draws: Draws) -> RunTables:
    """Return the tables of a run, whose draws are added to ``draws``."""
    others = [FailureMode(name, "stop", 0.0) for name in names_of(run)[len(run.causes) :]]
    causes = [*run.causes, *others]
    machines = max([1, *(cause.machines for cause in run.causes)])
    spares = run.spares
    columns = {
        "effect": [EFFECTS.index(cause.effect) for cause in causes],
        "stored": [cause.survives == STORAGE for cause in causes],
        "detect": [draws.add_law(f"{cause.name}.detect", cause.detect) for cause in causes],
        "lasts": [draws.add_law(f"{cause.name}.lasts", cause.lasts) for cause in causes],
        "noticed": [draws.add_law(f"{cause.name}.noticed", run.noticed) for cause in causes],
        "pace": [_pace_of(cause, draws) for cause in causes],
        "wrong": [_wrong_of(cause, run, draws) for cause in causes],
        "leave": [0 if cause.repair is None else cause.machines for cause in causes],
        "replace": [_replace_of(cause, draws) for cause in causes],
        "repair": [
            draws.add_law(f"{cause.name}.repair.{machine}", cause.repair or NOW)
            for cause in causes
            for machine in range(machines)
        ],
        "restart": [
            draws.add_law(f"{cause.name}.restart.{part.name}", law)
            for cause in causes
            for part in run.restart
            for law in (part.memory, part.storage)
        ],
        "exposed": [part.exposed for part in run.restart],
        "faster": run.faster,
    }
    return RunTables(
        **{name: np.array(values, dtype=np.int32) for name, values in columns.items()},
        ready=np.repeat(np.array(spares.ready, dtype=float), [spares.hot, spares.warm, spares.cold]),
        paces=np.array([1.0, *run.short]),
        shares=run.exposed,
    )


def _pace_of(cause: FailureMode, draws: Draws) -> int:
    """Return the draw of a slow device's pace."""
    paces, of = cause.paces, cause.column
    if paces is None:
        return draws.add_constant(1.0)

    def pace(uniform: Floats) -> Floats:
        level = np.searchsorted(np.cumsum(cause.shares)[:-1], uniform[:, 0], side="right")
        device = np.minimum((uniform[:, 1] * cause.devices).astype(np.int64), cause.devices - 1)
        return np.asarray(paces[level, of(device) if of else 0])

    return draws.add(f"{cause.name}.spell", range(2), pace)


def _wrong_of(cause: FailureMode, run: LongRun, draws: Draws) -> int:
    """Return the draw of the number of wrong diagnoses."""
    if not run.wrong:
        return draws.add_constant(0.0)
    share = np.log(run.wrong)
    return draws.add(f"{cause.name}.wrong", (0,), lambda uniform: np.floor(np.log(uniform[:, 0]) / share))


def _replace_of(cause: FailureMode, draws: Draws) -> int:
    """Return the draw of the seconds until a retired machine is replaced, -1 where it is repaired like others."""
    if cause.bad is None or cause.bad.replaced is None or cause.repair is None:
        return -1
    return draws.add_law(f"{cause.name}.repair.0", cause.bad.replaced)
