"""Communicators by hand, for tests of what is known of them in columns."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcluster.traffic.communicator_usage import CommunicatorLinkUsage
from simcluster.traffic.fairness import Usage


@dataclass(frozen=True, slots=True)
class Communicator:
    """Ranks that meet (a group), or a sender and its receiver, and how their traffic uses the links."""

    kind: Hashable  # what its ops call it ("tp", ("send", 3))
    ranks: tuple[int, ...]
    usages: tuple[Usage, ...]
    nature: Hashable  # everything else that must be equal for two communicators to take equal time
    blocking: bool = False  # do all its ops hold up their rank's main lane?


def bindings_of(communicators: Sequence[Communicator]) -> CommunicatorLinkUsage:
    """The same in columns."""
    numbers: dict[Hashable, int] = {}
    rows = [
        (place, link, flows)
        for each in communicators
        for place, usage in enumerate(each.usages)
        for link, flows in usage
    ]
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return CommunicatorLinkUsage(
        colour=_ints([numbers.setdefault((each.kind, each.nature), len(numbers)) for each in communicators]),
        ordered=np.array([isinstance(each.kind, tuple) for each in communicators], dtype=bool),
        blocking=np.array([each.blocking for each in communicators], dtype=bool),
        member=_starts([len(each.ranks) for each in communicators]),
        rank=_ints([rank for each in communicators for rank in each.ranks]),
        use=_starts([sum(map(len, each.usages)) for each in communicators]),
        place=_ints(columns[0]),
        link=_ints(columns[1]),
        flows=np.array(columns[2], dtype=np.float64),
        places=_ints([len(each.usages) for each in communicators]),
        of_group=np.arange(len(communicators), dtype=np.int32),
    )


def _ints(values: Sequence[Any]) -> Any:
    return np.array(values, dtype=np.int64)


def _starts(counts: Sequence[int]) -> Any:
    return np.cumsum(_ints([0, *counts]))
