"""What of a job's cluster can fail, by name, and which of it stand for others in a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.scenario.scenario import Scenario

CLASSES = 4
"""Places in the pipeline whose devices are played: others are taken for the nearest of them."""


@dataclass(frozen=True)
class Devices:
    """Devices of a kind: ``label`` names one on the graph, ``column`` is the class that it belongs to, and
    ``stand_for`` the ranks that are played for the classes."""

    count: int
    machines: int
    label: Callable[[int], str]
    column: Callable[[Ints], Ints]
    stand_for: tuple[int, ...]


def devices_of(scenario: Scenario, of: str) -> Devices:
    """Those of a job that a failure of that kind can hit."""
    cluster, gpus = scenario.cluster.built, scenario.gpus
    hosts = sorted(set(cluster.host_of[:gpus]))
    first_of = {host: rank for rank, host in reversed(list(enumerate(cluster.host_of[:gpus])))}
    stage_of, stand_for = _stages(scenario)
    if of in ("gpu", "memory"):
        names = cluster.gpus
        return Devices(gpus, len(hosts), lambda place: names[place], lambda places: stage_of[places], stand_for)
    if of == "job":
        return Devices(1, len(hosts), lambda place: "job", lambda places: np.zeros(len(places), np.int64), stand_for[:1])
    ranks = np.array([first_of[host] for host in hosts])
    count = {"host": len(hosts), "switch": max(1, len(hosts) // 32)}.get(of, gpus)
    each = count / len(hosts)

    def rank_of(places: Ints) -> Ints:
        return ranks[np.minimum((np.asarray(places) / each).astype(np.int64), len(hosts) - 1)]

    def label(place: int) -> str:
        return f"{of} of {cluster.gpus[int(rank_of(np.array([place]))[0])]}" if of != "host" else f"host {hosts[place]}"

    return Devices(count, len(hosts), label, lambda places: stage_of[rank_of(places)], stand_for)


def _stages(scenario: Scenario) -> tuple[Ints, tuple[int, ...]]:
    """(class of every rank, rank that is played for each class): places along the pipeline."""
    from simcluster.planning.parallel import Plan  # noqa: F401
    from simcluster.scenario.schedule_plan import plan_of, schedule_of

    plan = plan_of(scenario, schedule_of(scenario))
    stages = plan.grid.shape[0]
    stage = np.empty(plan.num_ranks, dtype=np.int64)
    for number in range(stages):
        stage[plan.grid[number].ravel()] = number
    chosen = np.unique(np.linspace(0, stages - 1, min(CLASSES, stages)).round().astype(np.int64))
    nearest = np.abs(chosen[None, :] - np.arange(stages)[:, None]).argmin(axis=1)
    return nearest[stage], tuple(int(plan.grid[number].ravel()[0]) for number in chosen)
