"""Monte Carlo study: distribution of the step time over replicas, each with other random durations.

The step is planned and simulated once without randomness. Then all replicas are simulated at once with their durations
(``replica_sweep``), links and interference as in the run without randomness: exact where transfers do not delay each
other. ``method="events"`` simulates replica by replica on the engine instead, as are scenarios that the sweep is not
proved for (``studies.fast_path_scopes``), such as those with random stalls and loads on links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.base.gc_pause import pause_gc
from simcluster.base.processes import map_in_processes
from simcluster.documents.argument_types import check_arguments
from simcluster.faults import assign_random_streams
from simcluster.results.distribution import Distribution, confidence_half_width
from simcluster.results.result import Result
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.scenario.scenario_arguments import ScenarioLike, to_scenario
from simcluster.step.simulate import simulate_scenario
from simcluster.step.step_plan import plan_step
from simcluster.studies.fast_path_scopes import REPLICAS
from simcluster.studies.whatif.replica_sweep import derive_replica_seed, sweep_replicas

Method = Literal["auto", "sweep", "events"]

_REPLICAS_PER_CHECK = 10  # replicas by events between checks of how precise the mean is


@check_arguments
@pause_gc()
def monte_carlo(
    scenario: ScenarioLike,
    *,
    replicas: int | None = None,
    seed: int | None = None,
    method: Method = "auto",
    processes: int = 0,
    base: Result | None = None,
    until: float | None = None,
) -> Distribution:
    """Simulate the distribution of a scenario's step time over ``replicas`` runs with random durations.

    With ``until``, as in 0.001, it ends as soon as the mean is known to this fraction of it: half of its 95 % interval
    is at most that, checked after 50 replicas of the sweep or 10 or more by events; ``replicas`` is the most.
    ``base`` is the result of ``remove_randomness(scenario)`` if it is there already. ``processes`` simulate them
    concurrently (0: one per core where a sweep gains by it, one by events); the numbers do not depend on it. Raises
    InputError for ``method="sweep"`` where the sweep is not proved to be right (``studies.fast_path_scopes``).
    """
    scenario = to_scenario(scenario, "monte_carlo")
    asked = {name: value for name, value in (("replicas", replicas), ("seed", seed)) if value is not None}
    scenario = scenario.with_(asked) if asked else scenario
    scenario = scenario.model_copy(update={"faults": assign_random_streams(scenario.faults)})
    obstacle = REPLICAS.find_obstacle(scenario)
    if method == "sweep" and obstacle:
        raise InputError(f"replicas: {obstacle}")
    if base is None:
        base = simulate_scenario(remove_randomness(scenario))
    elif base.scenario != remove_randomness(scenario):
        raise InputError(
            f"base is the result of another scenario ({base.scenario.name}); it must be the result of "
            "remove_randomness(scenario): omit base to simulate it here"
        )
    if until is not None and not 0 < until < 1:
        raise InputError(f"until: {until:g} is not a fraction of the mean; give one above 0 and below 1, as in 0.001")

    def is_precise_enough(times: Floats) -> bool:
        return until is not None and confidence_half_width(times) <= until * float(times.mean())

    if not obstacle and method != "events":
        times = sweep_replicas(scenario, base, processes, None if until is None else is_precise_enough)
        return Distribution(times, base.step_time, "sweep")
    numbers = range(scenario.replicas)
    workers = processes or 1  # one by default: a new process lacks extensions that a script has registered
    turn = max(_REPLICAS_PER_CHECK, workers) if until else len(numbers)
    times = np.zeros(0)
    for first in range(0, len(numbers), turn):
        some = numbers[first : first + turn]
        several = min(workers, len(some))
        call = partial(_simulate_by_events, scenario)
        if several > 1:
            call = partial(_simulate_from_document, scenario.document())
        times = np.append(times, map_in_processes(call, some, several))
        if is_precise_enough(times):
            break
    return Distribution(times, base.step_time, "events")


def _simulate_from_document(document: Mapping[str, Any], numbers: Sequence[int]) -> list[float]:
    return _simulate_by_events(from_document(document), numbers)


def _simulate_by_events(scenario: Scenario, numbers: Sequence[int]) -> list[float]:
    seeded = scenario.data or scenario.model.moe  # lengths of documents, tokens of experts
    planned = None if seeded else plan_step(scenario)
    return [simulate_scenario(make_random_replica(scenario, number), planned=planned).step_time for number in numbers]


def make_random_replica(scenario: Scenario, number: int) -> Scenario:
    """Return the scenario of a random replica, with a seed derived from the replica's number."""
    return scenario.model_copy(update={"seed": derive_replica_seed(scenario.seed, number), "replicas": 1})


def remove_randomness(scenario: Scenario) -> Scenario:
    """Return the scenario without randomness, with document lengths spread evenly over the microbatches."""
    data = scenario.data and scenario.data.without_jitter
    placed = scenario.model_copy(update={"faults": assign_random_streams(scenario.faults), "replicas": 1, "data": data})
    return placed.without(*(place for place, fault in enumerate(scenario.faults) if fault.is_random))
