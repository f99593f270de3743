"""A policy's choices for many flows at once, for ``paths``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.topology.access_paths import WHOLE, split
from simcluster.topology.policies import Flow, RoutingSpec


def shares_of(policy: RoutingSpec) -> list[float]:
    """The part of a flow's bytes on each of its paths; none where every path has a share (sprayed)."""
    paths = len(policy.picks(Flow(0, 0, 0, 0)))
    return [part / WHOLE for part in split(WHOLE, paths)] if paths else []


def turns(policy: RoutingSpec, columns: Sequence[Ints], path: int, position: Any, ways: int) -> Ints:
    """Which of the ways each flow goes on from its switch: the policy's arithmetic, on arrays.

    ``columns`` are the flows' fields (sender, receiver, order, number); ``position`` is their switch's, one or each.
    """
    of_flow: Sequence[Any] = columns
    if policy.by_flow:  # they are hashed
        of_flow = [each.astype(np.uint64) for each in columns]
    turn: Any = policy.picks(Flow(*of_flow))[path](position, ways)
    return np.broadcast_to(turn, len(columns[0])).astype(np.int64)


def of_equal_keys(keys: Ints) -> list[Ints]:
    """The places of equal keys, together."""
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1) if len(keys) else []
