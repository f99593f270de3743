"""Results whose links were raised against another scenario's, or by ``cluster.scale``: what holds their communication.

Imports measuring, scenarios and faults on links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcluster.measuring.calls import calls
from simcluster.measuring.raised import Held, Raise, held_back
from simcluster.planning.disturbed_links import permanently

if TYPE_CHECKING:
    from simcluster.result import Result
    from simcluster.scenario.scenario import Scenario
    from simcluster.topology import Cluster

LINKS = ("nvlink", "network", "pcie", "between_machines")
"""Factors of ``cluster.scale`` that are on links."""


def held_between(before: Scenario, after: Result) -> Held | None:
    """What holds a result back whose links are faster than a scenario's.

    None if nothing does, if no link is faster, and where the two clusters do not have the same links.
    """
    was, now = _cluster(before), _cluster(after.scenario)
    if was.capacity.shape != now.capacity.shape or not (now.capacity > was.capacity).any() or was.links != now.links:
        return None
    if after.lowered.steps:  # played step by step: its calls have no rates of their own
        return None
    made = calls(after.lowered, after.spans, after.weights, after.ranks.start)
    pace = before.cluster.scale.pace, after.scenario.cluster.scale.pace
    by_scale = before.cluster.topology == after.scenario.cluster.topology
    return held_back(made, Raise(now, was.capacity, now.capacity, *pace, by_scale))


def held_by_scale(result: Result) -> str:
    """What holds a result back whose links its own ``cluster.scale`` raises, in one line; "" if nothing does."""
    scale = result.scenario.cluster.scale
    raised = {name: factor for name in LINKS if (factor := getattr(scale, name)) > 1}
    if not raised:
        return ""
    plain = scale.model_copy(update=dict.fromkeys(raised, 1.0))
    before = result.scenario.model_copy(update={"cluster": result.scenario.cluster.with_scale(plain)})
    what = ", ".join(f"cluster.scale.{name} {factor:g}" for name, factor in raised.items())
    if np.array_equal(before.cluster.built.capacity, result.scenario.cluster.built.capacity):
        return f"{what}: no gain: the cluster has no such links"
    held = held_between(before, result)
    return f"{what}: {held.in_words()}" if held else ""


def _cluster(scenario: Scenario) -> Cluster:
    """The cluster with what is wrong with its links for ever."""
    healthy = scenario.cluster.built
    return healthy.scaled(permanently(scenario.faults, healthy))
