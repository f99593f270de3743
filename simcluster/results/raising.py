"""Results whose links were raised against another scenario's, or by ``cluster.scale``: what holds it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simcluster.faults.capacities import with_permanent
from simcluster.results.calls import calls
from simcluster.results.raised import HeldBack, Raise, held_back

if TYPE_CHECKING:
    from simcluster.results.played import Run
    from simcluster.scenario.scenario import Scenario

LINKS = ("nvlink", "network", "pcie", "between_machines")
"""Factors of ``cluster.scale`` that are on links."""


def held_between(before: Scenario, after: Scenario, run: Run) -> HeldBack | None:
    """What holds a scenario's ``run`` back whose links are faster than those of the one before.

    None if nothing does, if no link is faster, and where the two clusters do not have the same links.
    """
    was, now = (with_permanent(each.faults, each.cluster.built) for each in (before, after))
    if was.capacity.shape != now.capacity.shape or not (now.capacity > was.capacity).any() or was.links != now.links:
        return None
    if run.lowered.steps:  # played step by step: its calls have no rates of their own
        return None
    made = calls(run.lowered, run.spans, run.weights, run.ranks.start)
    pace = before.cluster.scale.pace, after.cluster.scale.pace
    by_scale = before.cluster.topology == after.cluster.topology
    return held_back(made, Raise(now, was.capacity, now.capacity, *pace, by_scale))


def held_by_scale(scenario: Scenario, run: Run) -> str:
    """What holds a scenario's ``run`` back whose links its own ``cluster.scale`` raises, in a line; "" for nothing."""
    scale = scenario.cluster.scale
    raised = {name: factor for name in LINKS if (factor := getattr(scale, name)) > 1}
    if not raised:
        return ""
    plain = scale.model_copy(update=dict.fromkeys(raised, 1.0))
    before = scenario.model_copy(update={"cluster": scenario.cluster.with_scale(plain)})
    what = ", ".join(f"cluster.scale.{name} {factor:g}" for name, factor in raised.items())
    if np.array_equal(before.cluster.built.capacity, scenario.cluster.built.capacity):
        return f"{what}: no gain: the cluster has no such links"
    held = held_between(before, scenario, run)
    return f"{what}: {held.in_words()}" if held else ""
