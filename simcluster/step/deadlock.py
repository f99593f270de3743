"""Explanations of deadlocks: a link that is down for ever, or an order that blocking sends cannot have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from simcluster.base.errors import DeadlockError
from simcluster.base.profiles import Profile
from simcluster.base.units import format_seconds
from simcluster.faults.spec import acting
from simcluster.scenario.scenario import Scenario
from simcluster.step.planned import FoldedStep, Planned

_CHANGES = 1_000


@contextmanager
def explained_deadlocks(scenario: Scenario, planned: Planned, step: FoldedStep) -> Iterator[None]:
    """Explain a deadlock by the fault that takes a link away, or by blocking sends."""
    try:
        yield
    except DeadlockError as error:
        found = [*_links_down(scenario, step), str(error)]
        if scenario.pipeline.p2p == "rendezvous":
            found.append(
                f"  The order of {planned.job.schedule.name} does not work in blocking pairs (pipeline.p2p: "
                "rendezvous): a send waits for a receive that comes later; use pipeline.p2p: async, or another schedule"
            )
        raise DeadlockError("\n".join(found)) from None


def _links_down(scenario: Scenario, step: FoldedStep) -> Iterator[str]:
    """Yield a sentence for the first link that is down for ever, if there is one."""
    cluster = step.cluster
    for link, profile in step.disturbances.capacities.items():
        since = _down_since(profile)
        if since is None:
            continue
        faults = [
            f"faults.{scenario.faults.index(fault)} ({fault.kind})"
            for fault in acting(scenario.faults, "left")
            if link in fault.links(cluster) and fault.left(float(cluster.capacity[link])) == 0
        ]
        one, other = cluster.links[link]
        yield (
            f"the link from {one} to {other} is down for ever from {format_seconds(since)} on: {' and '.join(faults)} "
            "leaves nothing of it, and what has to cross it never ends; give the fault an end, or let it leave a part"
        )
        return


def _down_since(profile: Profile) -> float | None:
    """Return when a link goes down for ever (s); None if it comes back, or changes for ever."""
    now = 0.0
    for _ in range(_CHANGES):
        change = profile.after(now)
        if change == math.inf:
            return now if profile.at(now) == 0 else None
        now = change
    return None
