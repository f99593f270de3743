"""Choice of what a Gantt chart shows: which ranks, and which microbatches of the pipeline's steady phase it omits.

Pure: it reads a timeline and draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import pandas as pd

from simcluster.base.arrays import Bools, Floats
from simcluster.base.errors import InputError

RowKind = Literal["rank", "stage"]
TimeWindow = tuple[float, float]
Stages = tuple[int, ...]

MOST_ROWS = 1000
"""Maximum number of rows in a picture."""
_NOTABLE = 1e-3  # of the timeline's length: less is not seen, and symmetric ranks differ by rounding only


@dataclass(frozen=True, slots=True)
class RowChoice:
    """The ranks that a Gantt chart draws from top to bottom, their labels, and a note on omitted ranks."""

    ranks: tuple[int, ...]
    labels: tuple[str, ...]
    caption: str


def choose_rows(
    timeline: pd.DataFrame, *, ranks: Sequence[int] | None, rows: RowKind, max_rows: int, num_ranks: int | None
) -> RowChoice:
    """Choose the ranks that a Gantt chart draws: the caller's ranks, one rank per stage, or some representatives.

    Ranks that the caller names are all drawn. Representatives are the lowest rank of every stage (of evenly spaced
    stages if there are more of them than rows), the rank that computes longest compared with the median of its stage,
    and the rank that waits longest likewise. `num_ranks` is the size of the job if the timeline holds only
    representatives of equal ranks. InputError for ranks that the timeline does not have.
    """
    stages_of: dict[int, Stages] = {}
    for rank, stage in sorted(timeline[["rank", "stage"]].drop_duplicates().to_numpy(np.int64).tolist()):
        stages_of[rank] = (*stages_of.get(rank, ()), *([stage] if stage >= 0 else []))
    wanted = (
        sorted(stages_of, key=lambda rank: (stages_of[rank], rank)) if ranks is None else _check_ranks(ranks, stages_of)
    )
    total = max(num_ranks or 0, len(stages_of))
    groups: dict[Stages, list[int]] = {}
    for rank in sorted(wanted):
        groups.setdefault(stages_of[rank], []).append(rank)
    groups = dict(sorted(groups.items()))
    lowest = [members[0] for members in groups.values()]
    if ranks is not None:
        chosen, reason = wanted, ""
    elif rows == "stage":
        chosen = pick_evenly_spaced(lowest, max_rows)
        reason = "" if len(chosen) == len(wanted) == total else _describe_lowest_ranks(len(chosen), len(lowest))
    elif len(wanted) <= max_rows:
        chosen, reason = wanted, "" if total == len(wanted) else "each other rank is identical to one of these"
    else:
        notable = _find_outlier_ranks(timeline, groups)
        chosen = pick_evenly_spaced(lowest, max(1, max_rows - len(notable)))
        reason = _describe_lowest_ranks(len(chosen), len(lowest))
        for rank, why in notable:
            if rank not in chosen and len(chosen) < max_rows:
                chosen = [*chosen, rank]
                reason += f", rank {rank} ({why})"
        chosen.sort(key=lambda rank: (stages_of[rank], rank))
    caption = f"{len(chosen):,} of {total:,} ranks shown: {reason}." if reason else ""
    return RowChoice(tuple(chosen), tuple(_row_label(rank, stages_of[rank]) for rank in chosen), caption)


def _check_ranks(ranks: Sequence[int], stages_of: dict[int, Stages]) -> list[int]:
    """Return the ranks that the caller named, without duplicates; raise InputError for a rank not in the timeline."""
    missing = [rank for rank in ranks if rank not in stages_of]
    if missing or not ranks:
        have = ", ".join(map(str, list(stages_of)[:8])) + (", ..." if len(stages_of) > 8 else "")
        what = f"ranks {missing[:8]} are not in the timeline" if missing else "ranks=[] selects no rank"
        raise InputError(f"{what}; the timeline has {len(stages_of):,} ranks: {have}")
    if len(set(ranks)) > MOST_ROWS:
        raise InputError(f"{len(set(ranks)):,} ranks cannot be drawn in one picture; name at most {MOST_ROWS:,}")
    return list(dict.fromkeys(int(rank) for rank in ranks))


def _find_outlier_ranks(timeline: pd.DataFrame, groups: dict[Stages, list[int]]) -> list[tuple[int, str]]:
    ready, start, end = (timeline[name].to_numpy(np.float64) for name in ("ready", "start", "end"))
    computed = np.where((timeline["stream"] == "compute").to_numpy(), end - start, 0.0)
    ranks = [rank for members in groups.values() for rank in members]
    group = np.repeat(np.arange(len(groups)), [len(members) for members in groups.values()])
    position = pd.Index(ranks).get_indexer(pd.Index(timeline["rank"].to_numpy(np.int64)))
    found: dict[int, str] = {}
    for seconds, what in ((computed, "computes"), (start - ready, "waits")):
        total = pd.Series(np.bincount(position, weights=seconds))
        excess = (total - total.groupby(group).transform("median")).to_numpy()
        if excess.max() > _NOTABLE * (end.max() - start.min()):
            found.setdefault(ranks[int(excess.argmax())], f"{what} longest in its stage")
    return list(found.items())


def pick_evenly_spaced(ranks: list[int], count: int) -> list[int]:
    """Return at most ``count`` ranks at equal distances in the list, including the first and last rank."""
    if len(ranks) <= count:
        return list(ranks)
    return [ranks[at] for at in np.linspace(0, len(ranks) - 1, count).round().astype(int).tolist()]


def _describe_lowest_ranks(count: int, num_groups: int) -> str:
    if count == num_groups:
        return f"the lowest rank of each of {num_groups} stages" if num_groups > 1 else "the lowest rank"
    return f"the lowest rank of {count} of the {num_groups} stages"


def _row_label(rank: int, stages: Stages) -> str:
    shown = [str(stage) for stage in (stages if len(stages) <= 3 else stages[:2])]
    text = ", ".join(shown) + (f" … {stages[-1]}" if len(stages) > 3 else "")
    return f"rank {rank}" + (f" · stage{'s' if len(stages) > 1 else ''} {text}" if stages else "")


# --- the steady phase -------------------------------------------------------------------------------------------------

_PASSES = ("forward", "backward", "input_grad")
_LONGEST = 64  # microbatches of a period that is looked for
_UNEVEN = 0.15  # of a microbatch's time: passes that come so much earlier or later are still in step
_KEPT = 3  # microbatches, at least, that stay on either side of a break
_FEWEST = 16  # microbatches that a break stands for
_WORTH = 0.3  # of the time: a break that omits less is not drawn


@dataclass(frozen=True, slots=True)
class SteadyPhase:
    """Steady phase of a pipeline, in which the passes of the drawn ranks repeat every ``period`` seconds.

    `entry_times` are those at which microbatches enter it on the first row; each is `microbatches_per_entry` of them.
    """

    start: float
    end: float
    period: float
    entries_per_period: int
    entry_times: Floats
    microbatches_per_entry: float

    @property
    def inner_window(self) -> TimeWindow:
        """Time window (s) that a chart may omit: the steady phase without its first and last periods."""
        kept = self.period * max(1, -(-_KEPT // self.entries_per_period))
        return self.start + kept, self.end - kept

    def whole_period_window(self) -> TimeWindow:
        """Shorten the inner window to a whole number of periods, beginning at the start of a pass."""
        start, end = self.inner_window
        inside = self.entry_times[(self.entry_times >= start) & (self.entry_times <= end)]
        last = (len(inside) - 1) // self.entries_per_period * self.entries_per_period
        return (float(inside[0]), float(inside[last])) if len(inside) else (start, start)

    def count_microbatches(self, cut: TimeWindow) -> int:
        """Return the number of microbatches that enter the pipeline within a time window."""
        start, end = np.searchsorted(self.entry_times, np.array(cut) - 1e-6 * self.period)
        return round(float(end - start) * self.microbatches_per_entry)


def find_steady_phase(timeline: pd.DataFrame, ranks: Sequence[int], origin: float = 0.0) -> SteadyPhase | None:
    """Find the time in which the passes of these ranks repeat periodically; None if they never do."""
    series = [begins - origin for begins in _pass_starts(timeline, ranks)]
    shortest = min(map(len, series), default=0)
    for shift in range(1, min(_LONGEST, shortest // 4) + 1):
        period = float(np.median([_typical_period(begins, shift) for begins in series]))
        ends = [_longest_steady_window(begins, shift, period) for begins in series]
        start, end = max(first for first, _ in ends), min(last for _, last in ends)
        if end - start >= 4 * period:
            count = int(timeline["microbatch"].max()) + 1
            return SteadyPhase(start, end, period, shift, series[0], count / len(series[0]))
    return None


def find_omitted_window(steady: Sequence[SteadyPhase | None], whole: TimeWindow) -> TimeWindow | None:
    """Find a time window to omit, in which all timelines only repeat; None if omitting saves too little space.

    For a single picture it has whole periods, so that the picture continues after the break as before it.
    """
    found = [each for each in steady if each is not None]
    if not found or len(found) < len(steady):
        return None
    cut = max(each.inner_window[0] for each in found), min(each.inner_window[1] for each in found)
    cut = found[0].whole_period_window() if len(found) == 1 else cut
    enough = all(each.count_microbatches(cut) >= _FEWEST for each in found)
    return cut if enough and cut[1] - cut[0] >= _WORTH * (whole[1] - whole[0]) else None


def _pass_starts(timeline: pd.DataFrame, ranks: Sequence[int]) -> list[Floats]:
    if "step" in timeline.columns and timeline["step"].nunique() > 1:
        return []
    here = (
        timeline["rank"].isin(list(ranks))
        & (timeline["stream"] == "compute")
        & timeline["kind"].isin(_PASSES)
        & (timeline["microbatch"] >= 0)
    )
    shown = timeline.loc[here, ["rank", "kind", "stage", "chunk", "microbatch", "start"]].astype({"kind": str})
    begins = shown.groupby(["rank", "kind", "stage", "chunk", "microbatch"], sort=True)["start"].min()
    order: dict[object, int] = {rank: at for at, rank in enumerate(ranks)}
    series = [
        ((order[rank], kind != "forward"), np.sort(each.to_numpy(np.float64)))
        for (rank, kind, *_), each in begins.groupby(["rank", "kind", "stage", "chunk"])
    ]
    return [each for _, each in sorted(series, key=lambda pair: pair[0])]


def _typical_period(starts: Floats, shift: int) -> float:
    apart = starts[shift:] - starts[:-shift]
    quarter = len(apart) // 4
    return float(np.median(apart[quarter : len(apart) - quarter]))


def _longest_steady_window(starts: Floats, shift: int, period: float) -> TimeWindow:
    steady: Bools = np.abs(starts[shift:] - starts[:-shift] - period) <= _UNEVEN * period / shift
    edges = np.flatnonzero(np.diff(np.concatenate([[False], steady, [False]])))
    runs = list(pairwise(edges.tolist()))[::2]
    if not runs:
        return float(starts[-1]), float(starts[0])
    first, last = max(runs, key=lambda run: run[1] - run[0])
    return float(starts[first]), float(starts[last + shift - 1])
