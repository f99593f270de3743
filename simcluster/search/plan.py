"""The best layouts of a job: the whole space, pruned by a bound that is never above what is played.

Imports the space, bounds, memory, the frontier, what plays layouts, and differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from simcluster.errors import InputError
from simcluster.result import VERSION
from simcluster.scenario.scenario import Scenario, from_document, load
from simcluster.search.asked import Objective, check_asked, memory_limit, nothing_found, require_some
from simcluster.search.changes import overrides
from simcluster.search.frontier import NO_ROOM, Frontier, Judge, Known
from simcluster.search.link_bound import LinkBounds
from simcluster.search.memory import Memory
from simcluster.search.playing import Player, Progress, Row, workers_of
from simcluster.search.space import Layout, Space, space_of
from simcluster.sweeps.store import Store

PRUNED = "slower: the bound alone is at or above the last of the best"
_NARROWER = 0.95  # of the memory of a point of the front: the next one's


class Ranked(NamedTuple):
    """A layout that was played: what the objective counts (seconds, dollars, GPU seconds of a step), the bytes of its
    fullest GPU with what may wait between stages, and its numbers."""

    score: float
    layout: Layout
    memory: float
    row: Row

    @property
    def step_time(self) -> float:
        """Seconds."""
        return float(self.row["step_time_s"])

    def to_dict(self, base: Scenario) -> dict[str, Any]:
        """As JSON."""
        numbers = {name: value for name, value in self.row.items() if isinstance(value, int | float)}
        return {
            "set": overrides(base, self.layout),
            "score": self.score,
            "planned_memory_bytes": self.memory,
            **numbers,
        }


@dataclass(frozen=True)
class Found:
    """What a search has found: the ``best`` layouts, best first, each with its account.

    ``counts`` are how many combinations there are besides the ``played`` that had to be, by reason; they sum to
    ``total`` with them.  ``others`` are played layouts not among the best, ``elsewhere`` for every other tp and
    pp, by axis and size, the least score that a layout with it can have (none of them was played).  ``front`` are the
    fastest layouts that hold at most so much, if it was asked for.
    """

    base: Scenario
    objective: Objective
    capacity: float
    total: int
    counts: dict[str, int]
    played: int
    best: tuple[Ranked, ...]
    others: tuple[Ranked, ...]
    elsewhere: dict[tuple[str, int], float]
    front: tuple[Ranked, ...]

    @property
    def scenario(self) -> Scenario:
        """The winner's scenario, checked."""
        changes = tuple(overrides(self.base, self.best[0].layout).items())
        return from_document(self.base.document(), changes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "objective": self.objective,
            "memory_limit_bytes": self.capacity,
            "combinations": self.total,
            "not_played": dict(self.counts),
            "played": self.played,
            "best": [each.to_dict(self.base) for each in self.best],
            "front": [each.to_dict(self.base) for each in self.front],
        }


def plan(
    scenario: str | Path | Scenario,
    gpus: int | Sequence[int] | None = None,
    *,
    objective: Objective = "step_time",
    max_memory: str | float | None = None,
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

    ``max_memory`` of a GPU is at most what the device has; ``price`` is dollars per GPU and hour, for the objective
    cost.  With ``front`` the search goes on for the fastest layouts in less and less memory.  ``executor`` is a number
    of processes or any concurrent.futures.Executor.  With a ``store`` (a file) a search that was killed goes on.

    Raises InputError for what the cluster cannot give, an unknown objective or axis, a price that is missing, and
    where no layout is legal or fits, with the closest.
    """
    base = alone(load(scenario) if not isinstance(scenario, Scenario) else scenario)
    counts = [gpus] if isinstance(gpus, int) else list(gpus or [base.gpus])
    check_asked(base, counts, objective, price, top)
    capacity = memory_limit(base, max_memory)
    spaces = [space_of(base, count, vary or {}) for count in dict.fromkeys(counts)]
    layouts = [layout for space in spaces for layout in space.found[0]]
    require_some(base, spaces, layouts)
    worth = {"step_time": 0.0, "cost": (price or 0.0) / 3600, "tokens_per_s_per_gpu": 1.0}[objective]

    def score(layout: Layout, seconds: float) -> float:
        return seconds * layout.gpus * worth if worth else seconds

    judges = {
        count: Judge(LinkBounds(base, [each for each in layouts if each.gpus == count]), Memory(base))
        for count in counts
    }
    known = Known(layouts, lambda layout: judges[layout.gpus], score)
    with Store(Path(store) if store else Path(":memory:"), VERSION) as kept, workers_of(executor) as (pool, workers):
        player = Player(base, kept, pool, workers)
        frontier = Frontier(known, capacity)
        best = player.best(frontier, top, score, progress)
        if not best:
            raise InputError(nothing_found(base, known, frontier, capacity))
        for _, number in best:
            player.detailed(number, layouts[number])
        _detail_rivals(player, layouts, best)
        points = _front(player, known, best[0], score, progress) if front else []
    return _found(base, objective, capacity, spaces, known, frontier, player, best, points, top)


def alone(scenario: Scenario) -> Scenario:
    """The scenario as it is planned for: one step, no faults, collectives as flows."""
    flows = scenario.collectives.model_copy(update={"detail": "flow"})
    updates = {"steps": 1, "replicas": 1, "collectives": flows, "measured": None}
    return scenario.without_faults().model_copy(update=updates)


def _found(
    base: Scenario, objective: Objective, capacity: float, spaces: Sequence[Space], known: Known, frontier: Frontier,
    player: Player, best: Sequence[tuple[float, int]], points: Sequence[int], top: int,
) -> Found:  # fmt: skip
    """Everything counted, whatever an executor played besides what had to be."""
    limit = best[-1][0] if len(best) == top else float("inf")
    counts: dict[str, int] = {}
    for space in spaces:
        for reason, number in space.found[1].items():
            counts[reason] = counts.get(reason, 0) + number
    if frontier.without_room:
        counts[NO_ROOM] = frontier.without_room
    for bound, reason in frontier.refused:
        if bound < limit:
            counts[reason] = counts.get(reason, 0) + 1
    total = len(known.layouts) + sum(number for space in spaces for number in space.found[1].values())
    played = sum(known.bounds[number][0] < limit for number in player.rows)
    pruned = total - played - sum(counts.values())
    if pruned > 0:
        counts[PRUNED] = pruned

    def ranked(number: int) -> Ranked:
        layout, row = known.layouts[number], player.rows[number]
        return Ranked(known.score(layout, row["step_time_s"]), layout, known.most(number), row)

    chosen = [number for _, number in best]
    others = sorted((ranked(number) for number in player.rows if number not in chosen), key=lambda each: each.score)
    played_sizes = [known.layouts[number] for number in player.rows]
    elsewhere: dict[tuple[str, int], float] = {}
    for bound, number in frontier.left:
        for axis in ("tp", "pp"):
            size = getattr(known.layouts[number], axis)
            if all(getattr(each, axis) != size for each in played_sizes):
                elsewhere[axis, size] = min(bound, elsewhere.get((axis, size), float("inf")))
    return Found(
        base, objective, capacity, total, counts, played, tuple(map(ranked, chosen)), tuple(others), elsewhere,
        tuple(map(ranked, points)),
    )  # fmt: skip


def _detail_rivals(player: Player, layouts: Sequence[Layout], best: Sequence[tuple[float, int]]) -> None:
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


def _front(player: Player, known: Known, first: tuple[float, int], score: Any, progress: Progress) -> list[int]:
    """The best layouts in less and less memory, each in at most 95 % of what the one before it holds."""
    points = [first[1]]
    while True:
        best = player.best(Frontier(known, _NARROWER * known.most(points[-1])), 1, score, progress)
        if not best:
            return points
        points.append(best[0][1])
