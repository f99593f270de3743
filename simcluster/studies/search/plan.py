"""The best layouts of a job: the whole space, pruned by a bound that is never above what is played."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.base.shown import Shown, line_of
from simcluster.base.store import Store
from simcluster.base.tables import frame_of
from simcluster.results.result import VERSION
from simcluster.scenario.advice import launch_words
from simcluster.scenario.given import ScenarioLike, scenario_of
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.studies.search.asked import (
    MemoryLimit,
    Objective,
    check_asked,
    memory_limit,
    nothing_found,
    require_some,
)
from simcluster.studies.search.bound import Bounds
from simcluster.studies.search.changes import overrides
from simcluster.studies.search.frontier import NO_ROOM, BoundCache, Evaluator, Frontier
from simcluster.studies.search.memory import LayoutMemory
from simcluster.studies.search.own import OwnLayout, Rung, ladder, own_layout
from simcluster.studies.search.playing import LayoutPlayer, Progress, Row, workers_of
from simcluster.studies.search.ranking import program
from simcluster.studies.search.space import Layout, Space, space_of

if TYPE_CHECKING:
    import pandas as pd

PRUNED = "slower: the bound alone is at or above the last of the best"
_MOST_TIGHT = 3
_NARROWER = 0.95  # of the memory of a point of the front: the next one's


class Ranked(NamedTuple):
    """A layout that was played: what the objective counts (seconds, dollars, GPU seconds of a step), the bytes of its
    fullest GPU with what may wait between stages, and its numbers.

    ``same`` are layouts of the same program under another order of ranks, which were played too and take as long.
    """

    score: float
    layout: Layout
    memory: float
    row: Row
    same: tuple[Layout, ...] = ()

    def __repr__(self) -> str:
        return line_of(self)

    @property
    def step_time(self) -> float:
        """Seconds."""
        return float(self.row["step_time_s"])

    def note(self, base: Scenario) -> str:
        """Which framework launches it, where few do."""
        layout = self.layout
        return launch_words(layout.zero, layout.pp, layout.dp, reshards=base.fsdp.reshard_after_forward)

    def to_dict(self, base: Scenario) -> dict[str, Any]:
        """As JSON."""
        numbers = {name: value for name, value in self.row.items() if isinstance(value, int | float)}
        return {
            "set": overrides(base, self.layout),
            "same_as": [overrides(base, layout) for layout in self.same],
            "note": self.note(base),
            "score": self.score,
            "planned_memory_bytes": self.memory,
            **numbers,
        }


@dataclass(frozen=True)
class Found(Shown):
    """What a search has found: the ``best`` layouts, best first, each with its account.

    ``counts`` are how many combinations there are besides the ``played`` that had to be, by reason; they sum to
    ``total`` with them.  ``others`` are played layouts not among the best, ``elsewhere`` for every other tp and
    pp, by axis and size, the least score that a layout with it can have (none of them was played).  ``front`` are the
    fastest layouts that hold at most so much, if it was asked for.  ``tight`` are the best of those that beat the
    winner and leave less than the headroom free: no recommendation.  ``own`` is the scenario's own layout, where it is
    on one of the numbers of GPUs, and ``ladder`` what layouts from one GPU up hold.
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
    ladder: tuple[Rung, ...]

    @property
    def capacity(self) -> float:
        """Bytes that a layout may hold."""
        return self.limit.usable

    @property
    def scenario(self) -> Scenario:
        """The winner's scenario, checked."""
        changes = tuple(overrides(self.base, self.best[0].layout).items())
        return from_document(self.base.document(), changes)

    @property
    def table(self) -> pd.DataFrame:
        """The best, a row a layout: what it sets, its score, the bytes that are planned, its numbers."""
        rows = [each.to_dict(self.base) for each in self.best]
        return frame_of({**row.pop("set"), **row, "same_as": len(row["same_as"])} for row in rows)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "objective": self.objective,
            "memory_limit_bytes": self.capacity,
            "headroom": self.limit.headroom,
            "combinations": self.total,
            "not_played": dict(self.counts),
            "played": self.played,
            "best": [each.to_dict(self.base) for each in self.best],
            "tight": [each.to_dict(self.base) for each in self.tight],
            "front": [each.to_dict(self.base) for each in self.front],
            "own": self.own and {
                "score": self.own.score, "over_winner": self.own.score / self.best[0].score - 1,
                "planned_memory_bytes": self.own.memory,
                **{name: value for name, value in self.own.row.items() if isinstance(value, int | float)},
            },
            "ladder": [
                {"words": rung.words, "set": dict(rung.changes), "planned_memory_bytes": rung.memory, "why": rung.why}
                for rung in self.ladder
            ],
        }  # fmt: skip


def plan(
    scenario: ScenarioLike,
    gpus: int | Sequence[int] | None = None,
    *,
    objective: Objective = "step_time",
    max_memory: str | float | None = None,
    headroom: str | float | None = None,
    price: float | None = None,
    top: int = 10,
    vary: Mapping[str, Sequence[Any]] | None = None,
    front: bool = False,
    executor: Executor | int | None = None,
    store: str | Path | None = None,
    progress: Progress = lambda played, limit, bound: None,
) -> Found:
    """The ``top`` best layouts of a scenario's job on so many GPUs (of one number, or of several).

    The space: every tp and pp that divide the GPUs, micro batch, recomputation, schedule with its chunks, sequence
    parallelism, ZeRO stage and order of ranks (``space``); ``vary`` names other values of an axis.  What is found is
    the best of it: a layout is left out only if it is illegal, does not fit, or a lower bound of its step says that it
    cannot be among the best (``bound``).  One step is played, without the scenario's faults and as flows.

    A layout leaves the part ``headroom`` of a GPU's memory free, 0.1 unless said otherwise; those that leave less and
    are faster than all that leave it are found, too, and marked (``Found.tight``).  ``max_memory`` (at most what the
    device has) is the limit itself: no headroom goes off it unless one is given, too.  ``price`` is dollars per GPU and
    hour, for the objective cost.  With ``front`` the search goes on for the fastest layouts in less and less memory.
    ``executor`` is a number of processes or any concurrent.futures.Executor.  With a ``store`` (a file) a search that
    was killed goes on.

    Raises InputError for what the cluster cannot give, an unknown objective or axis, a price that is missing, and
    where no layout is legal or fits, with the closest.
    """
    base = alone(scenario_of(scenario, "plan"))
    counts = [gpus] if isinstance(gpus, int) else list(gpus or [base.gpus])
    check_asked(base, counts, objective, price, top)
    limit = memory_limit(base, max_memory, headroom)
    spaces = [space_of(base, count, vary or {}) for count in dict.fromkeys(counts)]
    layouts = [layout for space in spaces for layout in space.found[0]]
    require_some(base, spaces, layouts)
    worth = _score(objective, price)

    def score(layout: Layout, seconds: float) -> float:
        return worth(layout.gpus, seconds)

    known = _judged(base, layouts, counts, score)
    with Store(Path(store) if store else Path(":memory:"), VERSION) as kept, workers_of(executor) as (pool, workers):
        player = LayoutPlayer(base, kept, pool, workers)
        frontier = Frontier(known, limit.usable)
        best = player.best(frontier, top, score, progress)
        if not best:
            raise InputError(nothing_found(base, known, frontier, limit))
        for _, number in best:
            player.detailed(number, layouts[number])
        _detail_rivals(player, layouts, best)
        points = _front(player, known, best[0], score, progress) if front else []
        done = dict.fromkeys(player.rows)
        tight = _tight(player, known, limit, best[0], score, progress)
    found = _found(base, objective, limit, spaces, known, frontier, player, best, points, tight, done, top)
    own = own_layout(base, worth) if base.gpus in counts else None
    return replace(found, own=own, ladder=ladder(base))


def _score(objective: Objective, price: float | None) -> Callable[[int, float], float]:
    """What a step of so many GPUs and seconds is worth to the objective."""
    worth = {"step_time": 0.0, "cost": (price or 0.0) / 3600, "tokens_per_s_per_gpu": 1.0}[objective]
    return (lambda gpus, seconds: seconds * gpus * worth) if worth else (lambda gpus, seconds: seconds)


def _judged(
    base: Scenario, layouts: Sequence[Layout], counts: Sequence[int], score: Callable[[Layout, float], float]
) -> BoundCache:
    """The layouts with those who judge them: one for each number of GPUs."""
    judges = {
        count: Evaluator(Bounds(base, [each for each in layouts if each.gpus == count]), LayoutMemory(base))
        for count in counts
    }
    return BoundCache(layouts, lambda layout: judges[layout.gpus], score)


def alone(scenario: Scenario) -> Scenario:
    """The scenario as it is planned for: one step, no faults, collectives as flows."""
    flows = scenario.collectives.model_copy(update={"detail": "flow"})
    updates = {"steps": 1, "replicas": 1, "collectives": flows, "measured": None}
    return scenario.without_faults().model_copy(update=updates)


def _found(
    base: Scenario, objective: Objective, limit: MemoryLimit, spaces: Sequence[Space], known: BoundCache,
    frontier: Frontier, player: LayoutPlayer, best: Sequence[tuple[float, int]], points: Sequence[int],
    tight: Sequence[int], done: Collection[int], top: int,
) -> Found:  # fmt: skip
    """Everything counted, whatever an executor played besides what had to be; ``done`` are those that leave the
    headroom."""
    worst = best[-1][0] if len(best) == top else float("inf")
    counts: dict[str, int] = {}
    for space in spaces:
        for reason, number in space.found[1].items():
            counts[reason] = counts.get(reason, 0) + number
    if frontier.without_room:
        counts[NO_ROOM] = frontier.without_room
    for bound, reason in frontier.refused:
        if bound < worst:
            counts[reason] = counts.get(reason, 0) + 1
    total = len(known.layouts) + sum(number for space in spaces for number in space.found[1].values())
    asked = [number for number in done if known.bounds[number][0] < worst]
    played = len(asked)
    pruned = total - played - sum(counts.values())
    if pruned > 0:
        counts[PRUNED] = pruned

    def score(number: int) -> float:
        return known.score(known.layouts[number], player.rows[number]["step_time_s"])

    ahead = score(tight[-1]) if len(tight) == _MOST_TIGHT else best[0][0]
    beyond = [number for number in player.rows if number not in done and known.bounds[number][0] < ahead]
    programs: dict[object, list[int]] = {}
    for number in sorted((*asked, *beyond)):
        programs.setdefault(program(known.layouts[number], score(number)), []).append(number)

    def ranked(number: int) -> Ranked:
        layout, row = known.layouts[number], player.rows[number]
        alike = programs.get(program(layout, score(number)), [])
        same = tuple(known.layouts[other] for other in alike if other != number)
        return Ranked(score(number), layout, known.most(number), row, same)

    chosen = [number for _, number in best]
    others = sorted((ranked(number) for number in done if number not in chosen), key=lambda each: each.score)
    played_sizes = [known.layouts[number] for number in done]
    elsewhere: dict[tuple[str, int], float] = {}
    for bound, number in frontier.left:
        for axis in ("tp", "pp"):
            size = getattr(known.layouts[number], axis)
            if all(getattr(each, axis) != size for each in played_sizes):
                elsewhere[axis, size] = min(bound, elsewhere.get((axis, size), float("inf")))
    return Found(
        base, objective, limit, total, counts, played, tuple(map(ranked, chosen)), tuple(others), elsewhere,
        tuple(map(ranked, points)), tuple(map(ranked, tight)), None, (),
    )  # fmt: skip


def _detail_rivals(player: LayoutPlayer, layouts: Sequence[Layout], best: Sequence[tuple[float, int]]) -> None:
    """The account of the best layout with another tp and of that with another pp than the winner's, of those played."""
    winner = layouts[best[0][1]]
    for axis in ("tp", "pp"):
        rivals = [
            (row["step_time_s"], number)
            for number, row in player.rows.items()
            if getattr(layouts[number], axis) != getattr(winner, axis)
        ]
        if rivals:
            player.detailed(min(rivals)[1], layouts[min(rivals)[1]])


def _tight(
    player: LayoutPlayer,
    known: BoundCache,
    limit: MemoryLimit,
    winner: tuple[float, int],
    score: Any,
    progress: Progress,
) -> list[int]:
    """The best layouts that beat the winner, fit, and do not leave the headroom."""
    if not limit.headroom:
        return []
    frontier = Frontier(known, limit.whole, above=limit.usable)
    best = player.best(frontier, _MOST_TIGHT, score, progress, below=winner[0])
    for _, number in best:
        player.detailed(number, known.layouts[number])
    return [number for _, number in best]


def _front(
    player: LayoutPlayer, known: BoundCache, first: tuple[float, int], score: Any, progress: Progress
) -> list[int]:
    """The best layouts in less and less memory, each in at most 95 % of what the one before it holds."""
    points = [first[1]]
    while True:
        best = player.best(Frontier(known, _NARROWER * known.most(points[-1])), 1, score, progress)
        if not best:
            return points
        points.append(best[0][1])
