"""Faults by what they do: every part of planning that plays faults takes its own from here.

So a kind that none of them plays cannot be passed over in silence: it is refused by its name.  Imports the faults.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Never, TypeAlias

from simcluster.errors import InputError
from simcluster.faults import (
    BackgroundLoad,
    ExpertImbalance,
    Fault,
    HostStall,
    Jitter,
    LinkFlap,
    SequenceLengths,
    SlowGpu,
    SlowLink,
)

LinkFault: TypeAlias = SlowLink | LinkFlap | BackgroundLoad


@dataclass(frozen=True, slots=True)
class ByEffect:
    """Faults in their order: of a GPU's speed, of single kernels, of hosts, of the data, of the experts, of links."""

    slow_gpus: list[SlowGpu] = field(default_factory=list)
    jitters: list[Jitter] = field(default_factory=list)
    stalls: list[HostStall] = field(default_factory=list)
    lengths: list[SequenceLengths] = field(default_factory=list)
    experts: list[ExpertImbalance] = field(default_factory=list)
    links: list[LinkFault] = field(default_factory=list)


def by_effect(faults: Iterable[Fault]) -> ByEffect:
    """The faults by what they do; InputError for a kind that nothing plays."""
    found = ByEffect()
    for fault in faults:
        match fault:
            case SlowGpu():
                found.slow_gpus.append(fault)
            case Jitter():
                found.jitters.append(fault)
            case HostStall():
                found.stalls.append(fault)
            case SequenceLengths():
                found.lengths.append(fault)
            case ExpertImbalance():
                found.experts.append(fault)
            case SlowLink() | LinkFlap() | BackgroundLoad():
                found.links.append(fault)
            case _:
                raise unplayed(fault)
    return found


def unplayed(fault: Never) -> InputError:
    """What is raised for a kind that nothing plays; ``Never``, so that the type checker, too, finds one."""
    kind = getattr(fault, "kind", type(fault).__name__)
    return InputError(
        f"fault {kind!r}: nothing plays faults of this kind, so it would change nothing; say in faults/by_effect.py "
        "what it does, or leave it out"
    )
