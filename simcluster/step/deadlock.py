"""Explanations of deadlocks: a link that stays down, or an order that is impossible with blocking sends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from simcluster.base.errors import DeadlockError
from simcluster.base.profiles import Profile, first_open
from simcluster.base.units import format_seconds
from simcluster.faults.spec import acting
from simcluster.scenario.scenario import Scenario
from simcluster.step.planned import FoldedStep, Planned

_CHANGES = 1_000


@contextmanager
def explain_deadlocks(scenario: Scenario, planned: Planned, step: FoldedStep) -> Iterator[None]:
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
    """Yield a sentence for the first link that stays down, or for links of which one is always down."""
    cluster, capacities = step.cluster, step.disturbances.capacities
    faults = {
        f"faults.{scenario.faults.index(fault)} ({fault.kind})": {
            link for link in fault.links(cluster) if fault.left(float(cluster.capacity[link])) == 0
        }
        for fault in acting(scenario.faults, "left")
    }
    taken = sorted(set[int]().union(*faults.values()))
    for links in [*([link] for link in taken), *([taken] if taken else [])]:
        since = _down_since([capacities[link] for link in links])
        if since is None:
            continue
        causes = {name: min(own.intersection(links)) for name, own in faults.items() if own.intersection(links)}
        shown = [" to ".join(cluster.links[link]) for link in dict.fromkeys(causes.values())]
        one, it = f"the link from {shown[0]} stays down from {format_seconds(since)} on", "it"
        if shown[1:]:
            one = f"one of the links from {' and from '.join(shown)} is always down from {format_seconds(since)} on"
            it = "all of them"
        cause, remedy = "leaves it no capacity", "give the fault an end, or let it leave some capacity"
        if len(causes) > 1:
            cause, remedy = "take turns", "let them be down at the same times, or one of them only once"
        yield f"{one}: {' and '.join(causes)} {cause}, and transfers that cross {it} never end; {remedy}"
        return


def _down_since(profiles: Sequence[Profile]) -> float | None:
    """Return the time (s) from which one profile is always 0; None if they are all up again and again, or never 0."""
    now = 0.0
    for _ in range(_CHANGES):
        up = first_open(profiles, now)
        if up == math.inf:
            return now
        now = min(profile.after(up) for profile in profiles)
        if now == math.inf:
            return None
    return None
