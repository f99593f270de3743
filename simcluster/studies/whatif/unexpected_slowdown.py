"""Explanation of a run that became slower although only faster parts or fewer faults were set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from simcluster.results.simulated_run import Run
from simcluster.results.slower_ops import SlowerOps, describe_slower_ops, find_slower_ops
from simcluster.scenario.scenario import Scenario

_LESS_IS_FASTER = ("launch", "latency")


def find_unexpected_slowdown(before: Run, after: Run, one: Scenario, other: Scenario) -> list[SlowerOps]:
    """Return the ops that make a run slower after a change to faster parts or fewer faults.

    Returns the ops that take longer on its longest path; none if the scenario differs otherwise or is not slower.
    """
    if after.step_time <= before.step_time or not has_only_faster_parts(one, other):
        return []
    drawing = [Counter(repr(fault) for fault in each.faults if fault.is_random) for each in (one, other)]
    return find_slower_ops(before, after, random_times=drawing[0] != drawing[1])


def describe_unexpected_slowdown(longer: Iterable[SlowerOps]) -> str:
    """Return a sentence that names the ops that take longer; "" if no op does."""
    words = describe_slower_ops(list(longer))
    return f"None of the changes slows anything down in isolation: {words}." if words else ""


def has_only_faster_parts(one: Scenario, other: Scenario) -> bool:
    """Return whether scenario ``other`` differs from ``one`` only in faster GPUs or links, or in fewer faults."""
    apart = ("name", "measured", "faults", "cluster", "run", "prices")
    mine, theirs = ({k: v for k, v in each.document().items() if k not in apart} for each in (one, other))
    new_faults = Counter(map(_fault_key, other.faults)) - Counter(map(_fault_key, one.faults))
    return mine == theirs and not new_faults and _has_no_slower_parts(one, other)


def _fault_key(fault: Any) -> str:
    return repr(fault.model_copy(update={"seed": 0}) if "seed" in type(fault).model_fields else fault)


def _has_no_slower_parts(one: Scenario, other: Scenario) -> bool:
    mine, theirs = one.cluster, other.cluster
    if mine.topology == theirs.topology:
        scales = mine.scale.model_dump(), theirs.scale.model_dump()
        pairs = {name: (value, scales[1][name]) for name, value in scales[0].items()}
        return all(b <= a if name in _LESS_IS_FASTER else b >= a for name, (a, b) in pairs.items())
    before, after = mine.built, theirs.built
    same = mine.scale == theirs.scale and mine.device == theirs.device and before.links == after.links
    return same and bool(np.all(after.capacity >= before.capacity) and np.all(after.latency <= before.latency))
