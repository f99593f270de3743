"""Plan: the best layouts of a job from the whole space, pruned by a proven lower bound of the step time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.base.shown import Displayable, one_line_text
from simcluster.base.store import Store
from simcluster.base.time_limit import TimeUp, raise_after
from simcluster.base.units import format_seconds
from simcluster.documents.argument_types import checked
from simcluster.documents.own_words import trust_text
from simcluster.results.result import VERSION
from simcluster.scenario.advice import describe_zero_support
from simcluster.scenario.given import ScenarioLike, scenario_of
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.studies.search.anytime import AnytimeSearch
from simcluster.studies.search.bound import Bounds
from simcluster.studies.search.evaluation import LayoutPlayer, Progress, Row, make_workers
from simcluster.studies.search.frontier import BoundCache, Evaluator
from simcluster.studies.search.layout import Layout, layout_changes
from simcluster.studies.search.memory import LayoutMemory
from simcluster.studies.search.own import MemoryRung, OwnLayout, evaluate_own_layout, memory_ladder
from simcluster.studies.search.plan_request import (
    IgnoredParts,
    MemoryLimit,
    Objective,
    check_request,
    explain_no_layout,
    memory_limit,
    require_legal_layouts,
    searchable_scenario,
    seconds_of,
)
from simcluster.studies.search.space import Space, make_space
from simcluster.studies.search.tally import Tally

if TYPE_CHECKING:
    import pandas as pd

MAX_LISTED = 10
"""Layouts in a table: those that are proven, and the next of those that had to be simulated."""
TIME_LIMIT, INTERRUPT = "time limit", "interrupt"
"""What stops a search."""
_RESERVE, _MOST_RESERVE = 0.05, 5.0
"""Part of a time limit, and seconds: for the accounts of the best so far."""
_ACCOUNTED = ("bubble_fraction", "exposed_communication_s")
"""Numbers that a layout has with its account only."""


class Ranked(NamedTuple):
    """A simulated layout with its score, memory and numbers.

    ``score`` is the value of the objective (seconds, dollars, GPU seconds per step), ``memory`` the bytes of its
    fullest GPU with data that may wait between stages. ``same`` are layouts of the same program under another order of
    ranks, which were simulated too and take equally long.
    """

    score: float
    layout: Layout
    memory: float
    row: Row
    same: tuple[Layout, ...] = ()

    def __repr__(self) -> str:
        return one_line_text(self)

    @property
    def step_time(self) -> float:
        """Step time in seconds."""
        return float(self.row["step_time_s"])

    def note(self, base: Scenario) -> str:
        """Return which frameworks can launch the layout, if few can; else ""."""
        layout = self.layout
        return describe_zero_support(layout.zero, layout.pp, layout.dp, reshards=base.fsdp.reshard_after_forward)

    def to_dict(self, base: Scenario) -> dict[str, Any]:
        """Return the layout as JSON-ready values; None for numbers that a stopped search did not reach."""
        return {
            "set": layout_changes(base, self.layout),
            "same_as": [layout_changes(base, layout) for layout in self.same],
            "note": self.note(base),
            "score": self.score,
            "planned_memory_bytes": self.memory,
            **_with_missing_as_none(self.row),
        }


def _numbers(row: Row) -> dict[str, float]:
    return {name: value for name, value in row.items() if isinstance(value, int | float)}


def _with_missing_as_none(row: Row) -> dict[str, float | None]:
    return {**_numbers(row), **{name: None for name in _ACCOUNTED if name not in row}}


@dataclass(frozen=True)
class Found(Displayable):
    """Result of a plan search: the ``best`` layouts, best first, each with a breakdown of its time.

    ``counts`` are the numbers of combinations that were not simulated, by reason; with ``played``, the number that had
    to be simulated, they sum to ``total``. ``others`` are simulated layouts not among the best, ``elsewhere`` for every
    other tp and pp, by axis and size, the lower bound of the score of its layouts (none of them was simulated).
    ``front`` are the fastest layouts in less and less memory, if it was asked for. ``tight`` are the best of those that
    beat the winner and leave less than the headroom free, if those were asked for: no recommendation. ``own`` is the
    scenario's own layout, where it is on one of the numbers of GPUs and was simulated, and ``ladder`` the memory of
    layouts from one GPU up. ``left_out`` names the parts of the scenario that are not in times and memory.

    ``proven`` is true if it is the best of all. Where it is not, since the search was ``stopped`` ("time limit" or
    "interrupt"), another layout may be better than the first by the fraction ``gap`` at most (None: no bound is known
    yet), and up to ``left`` layouts may still be among the best. ``seconds`` is the duration of the search.
    """

    base: Scenario
    objective: Objective
    limit: MemoryLimit
    total: int
    counts: dict[str, int]
    played: int
    best: tuple[Ranked, ...]
    others: tuple[Ranked, ...]
    elsewhere: dict[tuple[str, int], float]
    front: tuple[Ranked, ...]
    tight: tuple[Ranked, ...]
    own: OwnLayout | None
    ladder: tuple[MemoryRung, ...]
    proven: bool = True
    gap: float | None = 0.0
    left: int | None = 0
    stopped: str = ""
    seconds: float = field(default=0.0, compare=False)
    left_out: IgnoredParts = field(default_factory=lambda: IgnoredParts((), ()))

    @property
    def capacity(self) -> float:
        """Bytes that a layout may use on each GPU."""
        return self.limit.usable

    @property
    def scenario(self) -> Scenario:
        """Checked scenario of the best layout."""
        return from_document(self.base.document(), tuple(layout_changes(self.base, self.best[0].layout).items()))

    @property
    def behind(self) -> tuple[Ranked, ...]:
        """Next best simulated layouts, without breakdowns, which make ten with the best.

        Layouts that were not simulated may lie between them.
        """
        known = {layout for each in self.best for layout in each.same}
        found: list[Ranked] = []
        for each in self.others:
            if len(self.best) + len(found) < MAX_LISTED and each.layout not in known:
                known.update(each.same)
                found.append(each._replace(row={name: each.row[name] for name in each.row if name not in _ACCOUNTED}))
        return tuple(found)

    @property
    def table(self) -> pd.DataFrame:
        """Table with one row per simulated layout, best first; those that leave too little headroom come last.

        Columns: the layout's values, its score and numbers, and whether it leaves the headroom free.
        """
        import pandas as pd

        rows = []
        shown = {id(each) for each in (*self.best, *self.tight, *self.front)}
        every = (*self.best, *self.others, *self.tight)
        for each in sorted(every, key=lambda one: (one.memory > self.capacity, one.score, one.layout)):
            values = {path: ",".join(value) if isinstance(value, list) else value
                      for path, value in each.layout.values().items()}  # fmt: skip
            room = {"planned_memory_bytes": each.memory, "leaves_headroom": each.memory <= self.capacity}
            accounted = id(each) in shown
            numbers = {name: value for name, value in _numbers(each.row).items() if accounted or name not in _ACCOUNTED}
            rows.append({**values, "score": each.score, **room, **numbers})
        return pd.DataFrame.from_records(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the search result as JSON-ready values."""
        lists = {name: [each.to_dict(self.base) for each in getattr(self, name)]
                 for name in ("best", "behind", "tight", "front")}  # fmt: skip
        return {
            "faults_left_out": list(self.left_out.faults),
            "keys_left_out": list(self.left_out.keys),
            "proven": self.proven,
            "gap": self.gap,
            "left": self.left,
            "stopped": self.stopped,
            "objective": self.objective,
            "memory_limit_bytes": self.capacity,
            "headroom": self.limit.headroom,
            "combinations": self.total,
            "not_played": dict(self.counts),
            "played": self.played,
            **lists,
            "own": self.own and {
                "score": self.own.score, "over_winner": self.own.score / self.best[0].score - 1,
                "planned_memory_bytes": self.own.memory,
                **_with_missing_as_none(self.own.row),
            },
            "ladder": [
                {"words": rung.words, "set": dict(rung.changes), "planned_memory_bytes": rung.memory, "why": rung.why}
                for rung in self.ladder
            ],
        }  # fmt: skip


@checked
def plan(
    scenario: ScenarioLike,
    gpus: int | Sequence[int] | None = None,
    *,
    objective: Objective = "step_time",
    max_memory: str | float | None = None,
    headroom: str | float | None = None,
    price: float | None = None,
    top: int = 1,
    vary: Mapping[str, Sequence[Any]] | None = None,
    front: bool = False,
    near_misses: bool = False,
    time_limit: str | float | None = None,
    executor: Executor | int | None = None,
    store: str | Path | None = None,
    progress: Progress = lambda state: None,
) -> Found:
    """Find the best layout of a scenario's job on ``gpus`` GPUs (one number, or several), or the ``top`` best, proven.

    The space: every tp and pp that divide the GPUs, micro batch, recomputation, schedule with its chunks, sequence
    parallelism, ZeRO stage and order of ranks (``space``); ``vary`` names other values of an axis. The result is the
    best of it: a layout is not simulated only if it is illegal, does not fit, or a lower bound of its step shows that
    it cannot be among the best (``bound``). One step is simulated, without the scenario's faults and as flows.

    A layout leaves the fraction ``headroom`` of a GPU's memory free, 0.1 by default. With ``near_misses`` the search
    also finds and marks those that leave less and are faster than all that leave it (``Found.tight``). ``max_memory``
    (at most what the device has) is the limit itself: no headroom is subtracted unless one is given, too. ``price`` is
    dollars per GPU and hour, for the objective cost. ``front`` finds the fastest layouts in less and less memory.

    After ``time_limit`` (s, or "5 min"), or on KeyboardInterrupt, it returns the best so far with its proven gap
    (``Found.proven``, ``Found.gap``). ``executor`` is a number of processes or a concurrent.futures.Executor. With a
    ``store`` (a file) a search that was stopped or killed resumes. ``progress`` is called twice a second.

    Raises InputError for more GPUs than the cluster has, an unknown objective or axis, a missing price, where no layout
    is legal or fits (naming the closest), and if none could be simulated in time.
    """
    base = searchable_scenario(given := scenario_of(scenario, "plan"))
    counts = [gpus] if isinstance(gpus, int) else list(gpus or [base.gpus])
    check_request(base, counts, objective, price, top)
    limit, seconds, worth = memory_limit(base, max_memory, headroom), seconds_of(time_limit), _scorer(objective, price)
    search, stopped = None, ""
    reserve = min(_RESERVE * (seconds or 0.0), _MOST_RESERVE)
    with make_workers(executor) as workers, Store(Path(store) if store else Path(":memory:"), VERSION) as kept:
        try:
            with raise_after(seconds and seconds - reserve) as deadline:
                spaces = [make_space(base, count, trust_text(vary or {})) for count in dict.fromkeys(counts)]
                known = _make_bounds(base, spaces, lambda layout, seconds: worth(layout.gpus, seconds))
                search = AnytimeSearch(known, limit, top, LayoutPlayer(base, kept), workers, deadline, progress)
                search.run(own=base.gpus in counts, front=front, near_misses=near_misses)
        except (TimeUp, KeyboardInterrupt) as stop:
            stopped = _why_stopped(stop, search, seconds)
            if stopped == TIME_LIMIT and search:
                with suppress(TimeUp), raise_after(reserve) as search.deadline:
                    search.account()
    assert search is not None
    if not search.best:
        assert search.frontier is not None
        raise InputError(explain_no_layout(base, search.known, search.frontier, limit))
    return replace(_make_result(base, objective, spaces, search, worth, stopped), left_out=IgnoredParts.of(given))


def _why_stopped(stop: BaseException, search: AnytimeSearch | None, seconds: float | None) -> str:
    """Return what stopped a search; re-raise if it found nothing."""
    timed = isinstance(stop, TimeUp)
    if search is not None and search.best:
        return TIME_LIMIT if timed else INTERRUPT
    if timed:
        raise InputError(
            f"--time-limit: no layout was simulated in {format_seconds(seconds or 0.0)}, but at least one is needed; "
            f"give it more time"
        ) from None
    raise stop


def _scorer(objective: Objective, price: float | None) -> Callable[[int, float], float]:
    """Return the function that scores a number of GPUs and the seconds of a step."""
    worth = {"step_time": 0.0, "cost": (price or 0.0) / 3600, "tokens_per_s_per_gpu": 1.0}[objective]
    return (lambda gpus, seconds: seconds * gpus * worth) if worth else (lambda gpus, seconds: seconds)


def _make_bounds(base: Scenario, spaces: Sequence[Space], score: Callable[[Layout, float], float]) -> BoundCache:
    require_legal_layouts(base, spaces)
    judges = {space.gpus: Evaluator(Bounds(base, space.found[0]), LayoutMemory(base)) for space in spaces}
    layouts = [layout for space in spaces for layout in space.found[0]]
    return BoundCache(layouts, lambda layout: judges[layout.gpus], score)


def _make_result(
    base: Scenario, objective: Objective, spaces: Sequence[Space], search: AnytimeSearch,
    worth: Callable[[int, float], float], stopped: str,
) -> Found:  # fmt: skip
    known, rows, tally = search.known, search.player.rows, Tally(search)

    def ranked(number: int) -> Ranked:
        same = tuple(known.layouts[other] for other in tally.same(number))
        return Ranked(search.score(number), known.layouts[number], known.most(number), rows[number], same)

    counts = tally.counts(spaces)
    own = None if search.own is None else evaluate_own_layout(base, search.own, worth)
    return Found(
        base, objective, search.limit, sum(counts.values()) + len(tally.asked), counts, len(tally.asked),
        tuple(ranked(number) for _, number in search.best), tuple(map(ranked, tally.others)), tally.elsewhere(),
        tuple(map(ranked, search.points)), tuple(map(ranked, search.tight)), own, memory_ladder(base), search.proven,
        search.gap, search.left(), stopped, search.seconds,
    )  # fmt: skip
