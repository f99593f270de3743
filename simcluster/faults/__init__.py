"""Faults: deviations that make a job slower or more uneven, as specs whose methods are their effects.

A fault is part of a scenario (``faults: [...]``): a spec with a ``kind`` and methods (``faults.spec``), which planning,
the engine and the network are given as factors, profiles and programs (``ranks``, ``capacities``).

To add one: a class in a separate file, made from ``FaultSpec`` (or from ``OnRanks``, ``OnLinks`` and ``During`` of
``faults.where``, which state where and when it is), with ``kind``, ``EXAMPLE``, ``NEUTRAL``, ``neutral`` and the
effects that it has; and its name in the union ``Fault``, with its import. All tests of tests/test_fault_kinds.py then
simulate it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, get_args

from pydantic import Field

from simcluster.faults.data import SequenceLengths
from simcluster.faults.experts import ExpertImbalance
from simcluster.faults.jitter import Jitter
from simcluster.faults.links import BackgroundLoad, LinkFlap, SlowLink
from simcluster.faults.spec import FaultSpec
from simcluster.faults.speeds import NicSpeeds, SlowGpu, Speeds
from simcluster.faults.stalls import HostStall

__all__ = [
    "FAULTS",
    "SAME_OPS",
    "BackgroundLoad",
    "ExpertImbalance",
    "Fault",
    "FaultSpec",
    "HostStall",
    "Jitter",
    "LinkFlap",
    "NicSpeeds",
    "SequenceLengths",
    "SlowGpu",
    "SlowLink",
    "Speeds",
    "placed",
]

Fault = Annotated[
    SlowGpu
    | Speeds
    | Jitter
    | HostStall
    | SlowLink
    | NicSpeeds
    | LinkFlap
    | BackgroundLoad
    | SequenceLengths
    | ExpertImbalance,
    Field(discriminator="kind"),
]
"""Any fault."""
FAULTS: dict[str, type[FaultSpec]] = {spec.word(): spec for spec in get_args(get_args(Fault)[0])}
"""The kinds of faults by their names."""
SAME_OPS = ("speeds", "nic_speeds", "jitter", "sequence_lengths", "expert_imbalance")
"""Kinds that only change the durations of ops: all ranks of a stage still run the same ops."""


def placed(faults: Iterable[FaultSpec]) -> tuple[FaultSpec, ...]:
    """Return the faults with random streams assigned: each random one is numbered among those of its kind.

    Its draws stay the same if faults of another kind are removed, and, once it is numbered, if any others are.
    """
    before: Counter[str] = Counter()
    found = []
    for fault in faults:
        found.append(fault.numbered(before[fault.word()]))
        before[fault.word()] += 1
    return tuple(found)
