"""What is slower than it should be, and what makes work uneven, as documents.

A fault is part of a scenario (``faults: [...]``): a spec with a ``kind``; ``disturbances`` turns them into what
lowering, the engine and the network know.  Imports spec.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from simcluster.faults.data import SequenceLengths
from simcluster.faults.experts import ExpertImbalance
from simcluster.faults.gpus import HostStall, Jitter, SlowGpu
from simcluster.faults.links import BackgroundLoad, LinkFlap, SlowLink

__all__ = [
    "BackgroundLoad",
    "ExpertImbalance",
    "Fault",
    "HostStall",
    "Jitter",
    "LinkFlap",
    "SequenceLengths",
    "SlowGpu",
    "SlowLink",
    "placed",
    "without",
]

Fault = Annotated[
    SlowGpu | Jitter | HostStall | SlowLink | LinkFlap | BackgroundLoad | SequenceLengths | ExpertImbalance,
    Field(discriminator="kind"),
]
"""Any fault.  To add one: a spec with a new ``kind``, an ``EXAMPLE`` of it that acts and a ``NEUTRAL`` one that changes
nothing (the tests of all faults play both), its name here, and what it does (``by_effect`` says where)."""


def placed(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """The same faults, each that draws with the number of its stream: what it draws stays its own if another goes."""
    found: list[Fault] = []
    for place, fault in enumerate(faults):
        unnumbered = getattr(fault, "seed", 0) is None  # a kind that draws nothing has no seed
        found.append(fault.model_copy(update={"seed": place}) if unnumbered else fault)
    return tuple(found)


def without(fault: Fault) -> tuple[Fault, ...]:
    """What stands in a fault's place when it is taken away: nothing, or the same data without their imbalance."""
    return (fault.without(),) if isinstance(fault, SequenceLengths) else ()
