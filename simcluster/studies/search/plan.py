"""Layout plan: the best layouts of a job; lower bounds of the step time prove that no other layout is faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simcluster.base.display import Displayable, one_line_text
from simcluster.base.errors import InputError
from simcluster.base.store import RowStore
from simcluster.base.time_limit import TimeLimitExpired, limit_time
from simcluster.base.units import format_seconds
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.trusted_text import mark_trusted_text
from simcluster.results.result import VERSION
from simcluster.scenario.cost_advice import describe_zero_support
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.scenario.scenario_arguments import ScenarioLike, to_scenario
from simcluster.studies.search.anytime_search import AnytimeSearch
from simcluster.studies.search.evaluation import Progress, Row, SimulatedLayouts, make_workers
from simcluster.studies.search.frontier import BoundCache, LayoutEvaluator
from simcluster.studies.search.layout import Layout, layout_changes
from simcluster.studies.search.layout_memory import LayoutMemory
from simcluster.studies.search.layout_space import LayoutSpace, make_layout_space
from simcluster.studies.search.own_layout import MemoryLadderRung, OwnLayout, evaluate_own_layout, make_memory_ladder
from simcluster.studies.search.plan_request import (
    IgnoredParts,
    MemoryLimit,
    Objective,
    check_plan_request,
    explain_no_layout,
    make_searchable_scenario,
    parse_memory_limit,
    parse_time_limit,
    require_legal_layouts,
)
from simcluster.studies.search.search_tally import SearchTally
from simcluster.studies.search.step_time_bounds import StepTimeBounds

if TYPE_CHECKING:
    import pandas as pd

MAX_LISTED = 10
"""Most layouts in a table: the proven best ones, then the next best of those that had to be simulated."""
TIME_LIMIT, INTERRUPT = "time limit", "interrupt"
"""Reasons for which a search stops early."""
_RESERVE, _MOST_RESERVE = 0.05, 5.0
"""Fraction of a time limit, and most seconds, reserved for the time breakdowns of the best layouts."""
_ACCOUNTED = ("bubble_fraction", "exposed_communication_s")
"""Metrics that a layout has only with its time breakdown."""


class RankedLayout(NamedTuple):
    """One simulated layout in a plan: its score, memory and metrics.

    ``score`` is the value of the objective (seconds, dollars, GPU seconds per step), ``memory`` the bytes of its
    fullest GPU with data that may wait between stages. ``same_program_layouts`` are layouts of the same program under
    another order of ranks, which were simulated too and take equally long.
    """

    score: float
    layout: Layout
    memory: float
    row: Row
    same_program_layouts: tuple[Layout, ...] = ()

    def __repr__(self) -> str:
        return one_line_text(self)

    @property
    def step_time(self) -> float:
        """Step time in seconds."""
        return float(self.row["step_time_s"])

    def note(self, base: Scenario) -> str:
        """Return a note on the frameworks that can launch the layout; "" if most can."""
        layout = self.layout
        reshards = base.fsdp.reshard_after_forward is not False
        return describe_zero_support(layout.zero, layout.pp, layout.dp, reshards=reshards)

    def to_dict(self, base: Scenario) -> dict[str, Any]:
        """Return the layout as JSON-ready values; metrics that a stopped search did not compute are None."""
        return {
            "set": layout_changes(base, self.layout),
            "same_as": [layout_changes(base, layout) for layout in self.same_program_layouts],
            "note": self.note(base),
            "score": self.score,
            "planned_memory_bytes": self.memory,
            **_with_missing_as_none(self.row),
        }


def _numbers_of_row(row: Row) -> dict[str, float]:
    return {name: value for name, value in row.items() if isinstance(value, int | float)}


def _with_missing_as_none(row: Row) -> dict[str, float | None]:
    return {**_numbers_of_row(row), **{name: None for name in _ACCOUNTED if name not in row}}


@dataclass(frozen=True)
class PlanResult(Displayable):
    """Result of a layout search: the ``best`` layouts, best first, with a time breakdown of each.

    ``counts`` are the numbers of combinations that were not simulated, by reason; with ``num_simulated`` they sum
    to ``num_combinations``. ``other_layouts`` are simulated layouts not among the best, ``bounds_elsewhere`` for every
    other tp and pp, by axis and size, the lower bound of the score of its layouts (none of them was simulated).
    ``front`` are the fastest layouts in less and less memory, if it was asked for. ``tight`` are the best of those that
    beat the winner and leave less than the headroom free, if asked for: no recommendation. ``own_layout`` is that of
    the scenario, if it is on one of the numbers of GPUs and was simulated, and ``memory_ladder`` the memory of layouts
    from one GPU up. ``ignored_parts`` names the parts of the scenario that are not in times and memory.

    ``proven`` is true if it is the best of all. Where it is not, since the search was ``stopped`` ("time limit" or
    "interrupt"), another layout may be better than the first by the fraction ``gap`` at most (None: no bound is known
    yet), and up to ``left`` layouts may still be among the best. ``seconds`` is the duration of the search.
    """

    base: Scenario
    objective: Objective
    memory_limit: MemoryLimit
    num_combinations: int
    counts: dict[str, int]
    num_simulated: int
    best: tuple[RankedLayout, ...]
    other_layouts: tuple[RankedLayout, ...]
    bounds_elsewhere: dict[tuple[str, int], float]
    front: tuple[RankedLayout, ...]
    tight: tuple[RankedLayout, ...]
    own_layout: OwnLayout | None
    memory_ladder: tuple[MemoryLadderRung, ...]
    proven: bool = True
    gap: float | None = 0.0
    left: int | None = 0
    stopped: str = ""
    seconds: float = field(default=0.0, compare=False)
    ignored_parts: IgnoredParts = field(default_factory=lambda: IgnoredParts((), ()))

    @property
    def capacity(self) -> float:
        """Bytes of memory that a layout may use on each GPU."""
        return self.memory_limit.usable_bytes

    @property
    def scenario(self) -> Scenario:
        """The validated scenario with the best layout."""
        return from_document(self.base.document(), tuple(layout_changes(self.base, self.best[0].layout).items()))

    @property
    def runners_up(self) -> tuple[RankedLayout, ...]:
        """Simulated layouts ranked after ``best``, without time breakdowns; at most ten layouts with ``best`` included.

        Layouts that were not simulated may lie between them.
        """
        known = {layout for each in self.best for layout in each.same_program_layouts}
        found: list[RankedLayout] = []
        for each in self.other_layouts:
            if len(self.best) + len(found) < MAX_LISTED and each.layout not in known:
                known.update(each.same_program_layouts)
                found.append(each._replace(row={name: each.row[name] for name in each.row if name not in _ACCOUNTED}))
        return tuple(found)

    @property
    def table(self) -> pd.DataFrame:
        """Table with a row per simulated layout, best first; layouts with too little free memory come last.

        Columns: the layout's values, its score and numbers, and whether it leaves the headroom free.
        """
        import pandas as pd

        rows = []
        shown = {id(each) for each in (*self.best, *self.tight, *self.front)}
        every = (*self.best, *self.other_layouts, *self.tight)
        for each in sorted(every, key=lambda one: (one.memory > self.capacity, one.score, one.layout)):
            values = {path: ",".join(value) if isinstance(value, list) else value
                      for path, value in each.layout.scenario_changes().items()}  # fmt: skip
            room = {"planned_memory_bytes": each.memory, "leaves_headroom": each.memory <= self.capacity}
            full = id(each) in shown
            numbers = {key: value for key, value in _numbers_of_row(each.row).items() if full or key not in _ACCOUNTED}
            rows.append({**values, "score": each.score, **room, **numbers})
        return pd.DataFrame.from_records(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the search result as JSON-ready values."""
        named = {"best": self.best, "behind": self.runners_up, "tight": self.tight, "front": self.front}
        lists = {name: [each.to_dict(self.base) for each in layouts] for name, layouts in named.items()}
        return {
            "faults_left_out": list(self.ignored_parts.faults),
            "keys_left_out": list(self.ignored_parts.keys),
            "proven": self.proven,
            "gap": self.gap,
            "left": self.left,
            "stopped": self.stopped,
            "objective": self.objective,
            "memory_limit_bytes": self.capacity,
            "headroom": self.memory_limit.headroom,
            "combinations": self.num_combinations,
            "not_played": dict(self.counts),
            "played": self.num_simulated,
            **lists,
            "own": self.own_layout and {
                "score": self.own_layout.score, "over_winner": self.own_layout.score / self.best[0].score - 1,
                "planned_memory_bytes": self.own_layout.memory,
                **_with_missing_as_none(self.own_layout.row),
            },
            "ladder": [
                {"words": rung.words, "set": dict(rung.changes), "planned_memory_bytes": rung.memory,
                 "why": rung.invalid_reason} for rung in self.memory_ladder
            ],
        }  # fmt: skip


@check_arguments
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
) -> PlanResult:
    """Find the proven best layout, or the ``top`` best layouts, of a scenario's job on ``gpus`` GPUs.

    The space: every tp and pp that divide the GPUs, micro batch, recomputation, schedule with its chunks, sequence
    parallelism, ZeRO stage and order of ranks (``layout_space``); ``vary`` names other values of an axis. The result is
    the best of it: a layout is not simulated only if it is illegal, does not fit, or cannot be among the best by a
    lower bound of its step (``step_time_bounds``). One step is simulated, without the scenario's faults and as flows.

    A layout leaves the fraction ``headroom`` of a GPU's memory free, 0.1 by default. With ``near_misses`` the search
    also finds and marks faster layouts that leave less (``PlanResult.tight``). ``max_memory`` (at most what the device
    has) is the limit itself: no headroom is subtracted unless one is given, too. ``price`` is dollars per GPU and hour,
    for the objective cost. ``front`` finds the fastest layouts in ever less memory.

    After ``time_limit`` (s, or "5 min"), or on KeyboardInterrupt, it returns the best so far with its proven gap
    (``PlanResult.proven``, ``PlanResult.gap``). ``executor`` is a number of processes or a concurrent.futures.Executor.
    With a ``store`` (a file) a search that was stopped or killed resumes. ``progress`` is called twice a second.

    Raises InputError for more GPUs than the cluster has, an unknown objective or axis, a missing price, where no layout
    is legal or fits (naming the closest), and if none could be simulated in time.
    """
    base = make_searchable_scenario(given := to_scenario(scenario, "plan"))
    sizes = [gpus] if isinstance(gpus, int) else list(gpus or [base.gpus])
    check_plan_request(base, sizes, objective, price, top)
    limit, seconds = parse_memory_limit(base, max_memory, headroom), parse_time_limit(time_limit)
    search, stopped, worth = None, "", _make_scorer(objective, price)
    reserve = min(_RESERVE * (seconds or 0.0), _MOST_RESERVE)
    with make_workers(executor) as workers, RowStore(Path(store) if store else Path(":memory:"), VERSION) as kept:
        try:
            with limit_time(seconds and seconds - reserve) as deadline:
                spaces = [make_layout_space(base, size, mark_trusted_text(vary or {})) for size in dict.fromkeys(sizes)]
                known = _make_bounds(base, spaces, lambda layout, seconds: worth(layout.gpus, seconds))
                search = AnytimeSearch(known, limit, top, SimulatedLayouts(base, kept), workers, deadline, progress)
                search.run(own=base.gpus in sizes, front=front, near_misses=near_misses)
        except (TimeLimitExpired, KeyboardInterrupt) as stop:
            stopped = _stop_reason(stop, search, seconds)
            if stopped == TIME_LIMIT and search:
                with suppress(TimeLimitExpired), limit_time(reserve) as search.deadline:
                    search.simulate_breakdowns()
    assert search is not None
    if not search.best:
        assert search.frontier is not None
        raise InputError(explain_no_layout(base, search.known, search.frontier, limit))
    found = _make_result(base, objective, spaces, search, worth, stopped)
    return replace(found, ignored_parts=IgnoredParts.from_scenario(given))


def _stop_reason(stop: BaseException, search: AnytimeSearch | None, seconds: float | None) -> str:
    """Return what stopped a search ("time limit" or "interrupt"); raise if the search has no result yet."""
    timed = isinstance(stop, TimeLimitExpired)
    if search is not None and search.best:
        return TIME_LIMIT if timed else INTERRUPT
    if timed:
        raise InputError(
            f"--time-limit: no layout was simulated in {format_seconds(seconds or 0.0)}, but at least one is needed; "
            f"give it more time"
        ) from None
    raise stop


def _make_scorer(objective: Objective, price: float | None) -> Callable[[int, float], float]:
    worth = {"step_time": 0.0, "cost": (price or 0.0) / 3600, "tokens_per_s_per_gpu": 1.0}[objective]
    return (lambda gpus, seconds: seconds * gpus * worth) if worth else (lambda gpus, seconds: seconds)


def _make_bounds(base: Scenario, spaces: Sequence[LayoutSpace], score: Callable[[Layout, float], float]) -> BoundCache:
    require_legal_layouts(base, spaces)
    spread = {space.gpus: space.layouts_and_counts[0] for space in spaces}
    judges = {gpus: LayoutEvaluator(StepTimeBounds(base, own), LayoutMemory(base)) for gpus, own in spread.items()}
    layouts = [layout for own in spread.values() for layout in own]
    return BoundCache(layouts, lambda layout: judges[layout.gpus], score)


def _make_result(
    base: Scenario, objective: Objective, spaces: Sequence[LayoutSpace], search: AnytimeSearch,
    worth: Callable[[int, float], float], stopped: str,
) -> PlanResult:  # fmt: skip
    known, rows, tally = search.known, search.simulated.rows, SearchTally(search)

    def make_ranked_layout(index: int) -> RankedLayout:
        same = tuple(known.layouts[other] for other in tally.same_program_layouts(index))
        return RankedLayout(search.score(index), known.layouts[index], known.planned_bytes(index), rows[index], same)

    counts = tally.count_not_simulated(spaces)
    own = None if search.own is None else evaluate_own_layout(base, search.own, worth)
    return PlanResult(
        base, objective, search.limit, sum(counts.values()) + len(tally.required_layouts), counts,
        len(tally.required_layouts), tuple(make_ranked_layout(number) for _, number in search.best),
        tuple(map(make_ranked_layout, tally.other_layouts)), tally.bounds_elsewhere(),
        tuple(map(make_ranked_layout, search.points)), tuple(map(make_ranked_layout, search.tight)), own,
        make_memory_ladder(base), search.proven, search.gap, search.count_layouts_left(), stopped,
        search.seconds_since_start,
    )  # fmt: skip
