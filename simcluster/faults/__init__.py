"""Faults: scenario sections that slow a job down or make its work uneven, one class per kind of fault.

A fault is part of a scenario (``faults: [...]``): a spec with a ``kind`` and methods (``faults.fault_spec``), which
planning, the engine and the network are given as factors and programs (``rank_effects``, ``link_capacities``).

To add one: a class in a separate file, made from ``FaultSpec`` (or from ``RankFault``, ``LinkFault`` and ``TimedFault``
of ``faults.targets``, which state where and when it is), with ``kind``, ``EXAMPLE``, ``NEUTRAL``, ``is_neutral`` and
the effects that it has; and its name in the union ``Fault``, with its import. All tests of tests/test_fault_kinds.py
then simulate it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, get_args

from pydantic import Field

from simcluster.faults.device_speeds import GpuSpeeds, NicSpeeds, SlowGpu
from simcluster.faults.expert_imbalance import ExpertImbalance
from simcluster.faults.fault_spec import FaultSpec
from simcluster.faults.image_tokens import ImageTokens
from simcluster.faults.jitter import Jitter
from simcluster.faults.link_faults import BackgroundLoad, LinkFlap, SlowLink
from simcluster.faults.sequence_lengths import SequenceLengths
from simcluster.faults.stalls import HostStall

__all__ = [
    "FAULTS",
    "SAME_OPS",
    "BackgroundLoad",
    "ExpertImbalance",
    "Fault",
    "FaultSpec",
    "GpuSpeeds",
    "HostStall",
    "ImageTokens",
    "Jitter",
    "LinkFlap",
    "NicSpeeds",
    "SequenceLengths",
    "SlowGpu",
    "SlowLink",
    "assign_random_streams",
]

Fault = Annotated[
    SlowGpu
    | GpuSpeeds
    | Jitter
    | HostStall
    | SlowLink
    | NicSpeeds
    | LinkFlap
    | BackgroundLoad
    | SequenceLengths
    | ExpertImbalance
    | ImageTokens,
    Field(discriminator="kind"),
]
"""Any fault."""
FAULTS: dict[str, type[FaultSpec]] = {spec.kind_name(): spec for spec in get_args(get_args(Fault)[0])}
"""Classes of faults by their names in scenarios."""
SAME_OPS = ("speeds", "nic_speeds", "jitter", "sequence_lengths", "expert_imbalance", "image_tokens")
"""Kinds that only change the durations of ops: all ranks of a stage still run the same ops."""


def assign_random_streams(faults: Iterable[FaultSpec]) -> tuple[FaultSpec, ...]:
    """Assign random streams: each random fault without a seed gets its number among the faults of its kind.

    Its draws stay the same if faults of another kind are removed, and, once it is numbered, if any others are.
    """
    before: Counter[str] = Counter()
    found = []
    for fault in faults:
        found.append(fault.with_stream_number(before[fault.kind_name()]))
        before[fault.kind_name()] += 1
    return tuple(found)
