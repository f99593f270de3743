"""Explanation of a step that is slower although its scenario only has faster parts or fewer faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from simcluster.results.longer import SlowerOps, describe_slower_ops, find_slower_ops
from simcluster.results.played import Run
from simcluster.scenario.scenario import Scenario

_LESS_IS_FASTER = ("launch", "latency")


def find_unexpected_slowdown(before: Run, after: Run, one: Scenario, other: Scenario) -> list[SlowerOps]:
    """Find why run ``after`` is slower although its scenario only has faster parts or fewer faults.

    Returns the ops that take longer on its longest path; none if the scenario differs otherwise or is not slower.
    """
    if after.step_time <= before.step_time or not is_only_faster(one, other):
        return []
    drawing = [Counter(repr(fault) for fault in each.faults if fault.by_chance) for each in (one, other)]
    return find_slower_ops(before, after, drawn=drawing[0] != drawing[1])


def describe_unexpected_slowdown(longer: Iterable[SlowerOps]) -> str:
    """Describe in one sentence the ops that take longer; "" if there are none."""
    words = describe_slower_ops(list(longer))
    return f"None of the changes slows anything down in isolation: {words}." if words else ""


def is_only_faster(one: Scenario, other: Scenario) -> bool:
    """Return whether scenario ``other`` differs from ``one`` only by fewer faults or faster GPUs and links."""
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
