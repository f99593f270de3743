"""Stragglers in a job's step times by rank: S and its parts, slow ranks and nodes, and what removing them saves.

With x the time of a rank in a step, and m its median over ranks: T is the mean over steps of the largest x, T_ideal
that of m, and S = T / T_ideal (arXiv:2505.05713).  A rank's factor p is the median over steps of x / m; the rank is
slow if p is an outlier among ranks.  A step of a rank is an event, a transient delay, if x / m - p is an outlier among
all.  S - 1 has three parts: *transient* vanishes if events take p m, *persistent* if slow ranks are then divided by p,
and *spread* is left.  S of a rank or node has all others at m; removing the k with the largest S puts them at m.

Limits: ranks do equal work (of a pipeline, one stage), fewer than half of them are slow, and steps wait for the slowest
rank once.  Times must end before ranks wait for each other: a whole step takes equally long on all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.display import Displayable
from simcluster.interop.replay.step_log import StepTable, read_step_times

OUTLIER = 5.0
"""Robust standard deviations (1.4826 times the median absolute deviation) from which a value is an outlier."""
LEAST = 0.01
"""Least relative delay that counts as one."""
EQUAL = 0.005
"""Relative difference between the slowest and the fastest rank up to which times are those of synchronised ranks."""
MOST_REMOVED = 5


@dataclass(frozen=True, slots=True)
class SlowPlace:
    """A rank or node: its factor p (of a node, its fastest rank's), S alone, steps with events, and if it is slow."""

    name: str
    ranks: tuple[int, ...]
    factor: float
    slowdown: float
    events: int
    slow: bool


@dataclass(frozen=True, slots=True)
class Removal:
    """Effect of typical times in some places: T then (s), and the share of T - T_ideal that vanishes."""

    names: tuple[str, ...]
    slowest_s: float
    excess_removed: float


@dataclass(frozen=True)
class StepStragglers(Displayable):
    """Stragglers in step times by rank; what the file cannot tell is None or empty.

    ``timed`` names what was timed, ``slowest_s`` is T, ``typical_s`` T_ideal, ``step_s`` the mean whole step, waits
    included. ``most_slowdown`` bounds S if only the fastest and the slowest rank were logged; ``times_slowest`` counts
    reports by slowest rank. ``synchronised``: all ranks take equally long.
    """

    name: str
    timed: str
    ranks: int | None
    steps: int
    slowest_s: float
    typical_s: float | None = None
    step_s: float | None = None
    synchronised: bool = False
    slowdown: float | None = None
    most_slowdown: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    by_rank: tuple[SlowPlace, ...] = ()
    by_node: tuple[SlowPlace, ...] = ()
    remove_ranks: tuple[Removal, ...] = ()
    remove_nodes: tuple[Removal, ...] = ()
    times_slowest: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the stragglers as a dict for JSON."""
        return asdict(self)


def find_step_stragglers(path: str | Path) -> StepStragglers:
    """Find stragglers in a table or log of step times by rank; raise InputError for any other file."""
    found = read_step_times(path)
    if isinstance(found, StepTable):
        return _find_in_table(found)
    slowest, fastest = float(found.slowest.mean()), float(found.fastest.mean())
    counts = sorted(Counter(found.slowest_ranks).items(), key=lambda each: (-each[1], each[0]))
    return StepStragglers(
        found.name, found.timed, None, len(found.slowest), slowest,
        most_slowdown=slowest / fastest, times_slowest=tuple(counts),
    )  # fmt: skip


def _find_in_table(table: StepTable) -> StepStragglers:
    seconds = table.seconds
    typical = np.median(seconds, axis=0)
    slowest, ideal = _mean_slowest(seconds), float(typical.mean())
    base = StepStragglers(
        table.name, table.timed, len(table.ranks), len(table.steps), slowest, ideal,
        None if table.whole_steps is None else _mean_slowest(table.whole_steps),
        bool(np.median(np.ptp(seconds, axis=0) / typical) <= EQUAL), notes=table.notes,
    )  # fmt: skip
    if base.synchronised:
        return base
    factors = np.median(seconds / typical, axis=1)
    slow, events = _find_outliers(factors - 1), _find_outliers(seconds / typical - factors[:, None])
    usual = np.where(events, factors[:, None] * typical, seconds)
    steady = _mean_slowest(usual) / ideal
    spread = _mean_slowest(np.where(slow[:, None], usual / factors[:, None], usual)) / ideal

    def places(rows_by_name: Mapping[str, Sequence[int]]) -> tuple[SlowPlace, ...]:
        found = [
            SlowPlace(
                name, tuple(table.ranks[row] for row in rows), float(factors[rows].min()),
                _mean_slowest(np.vstack([seconds[rows], typical])) / ideal, int(events[rows].all(axis=0).sum()),
                bool(slow[rows].all()),
            )
            for name, rows in rows_by_name.items()
        ]  # fmt: skip
        return tuple(sorted(found, key=lambda place: (-place.slowdown, -place.factor, place.ranks)))

    by_rank = places({f"rank {rank}": [row] for row, rank in enumerate(table.ranks)})
    rows: dict[str, list[int]] = {}
    for row, node in enumerate(table.nodes or ()):
        rows.setdefault(node, []).append(row)
    by_node = places(rows)
    parts = {"persistent": steady - spread, "transient": slowest / ideal - steady, "spread": spread - 1}
    return replace(
        base, slowdown=slowest / ideal, parts=parts, by_rank=by_rank, by_node=by_node,
        remove_ranks=_remove(table, by_rank, typical), remove_nodes=_remove(table, by_node, typical),
    )  # fmt: skip


def _remove(table: StepTable, worst: Sequence[SlowPlace], typical: Floats) -> tuple[Removal, ...]:
    slowest, found = _mean_slowest(table.seconds), []
    excess = slowest - float(typical.mean())
    for count in range(1, min(len(worst), MOST_REMOVED) + 1):
        gone = [rank for place in worst[:count] for rank in place.ranks]
        left = _mean_slowest(np.vstack([table.seconds[~np.isin(table.ranks, gone)], typical]))
        names = tuple(place.name for place in worst[:count])
        found.append(Removal(names, left, (slowest - left) / excess if excess else 0.0))
    return tuple(found)


def _mean_slowest(seconds: Floats) -> float:
    return float(seconds.max(axis=0).mean())


def _find_outliers(delays: Floats) -> Any:
    deviation = 1.4826 * float(np.median(np.abs(delays - np.median(delays))))
    return delays > max(LEAST, OUTLIER * deviation)
