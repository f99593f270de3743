"""The loader of a job's data beside its step: how late batches are, and the scenario that is played with that.

The step that the loader sees is the scenario's, played without a loader: with its faults, its checkpoint and all else,
the mean of its steps.  ``reference.loader`` says how late batches are for steps of that length; what it says behind the
first ones, in which the queue fills, is played as stalls of hosts.
"""

from __future__ import annotations

from collections.abc import Callable

from simcluster.base.clock import on_grid
from simcluster.reference.loader import late_batches
from simcluster.scenario.loading import Loading, host_tokens, without_loader
from simcluster.scenario.scenario import Scenario

BEFORE = 100
"""Steps that the loader has run before those that are played."""


def with_loading(scenario: Scenario, alone: Callable[[Scenario], float]) -> tuple[Scenario, Loading | None]:
    """(the scenario that is played, its loading); ``alone`` says what a step takes without a loader."""
    if scenario.data is None or scenario.data.loader is None:
        return scenario, None
    loading = loading_of(scenario, alone(without_loader(scenario)))
    return (loading.on(scenario) if loading else scenario), loading


def loading_of(scenario: Scenario, step: float) -> Loading | None:
    """The loader of a scenario whose step takes so many seconds without it; None if it has none."""
    loader = scenario.data.loader if scenario.data else None
    if loader is None:
        return None
    hosts, tokens = host_tokens(scenario)
    alike = not loader.by_chance and len(set(tokens.tolist())) == 1
    takes = loader.takes(tokens[:1] if alike else tokens, BEFORE + scenario.steps, scenario.seed)
    found = late_batches(takes, loader.workers, loader.prefetch, step)[:, BEFORE:]
    late = tuple(tuple(on_grid(seconds) for seconds in own) for own in found.tolist())
    slowest = loader.seconds(float(tokens.max()))
    return Loading(step, slowest, loader.workers, loader.prefetch > 0, late * len(hosts) if alike else late, hosts)
