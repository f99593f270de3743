"""The most that ranks of a stage hold when their experts get unequally many rows: a level for every rank at once.

The walk of ``residency`` over a stage's row, visit by visit, with the part of each change that goes with the rows as
large as the rank's load makes it.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.planning.ops import MemoryChange
from simcluster.planning.residency import Level, Residencies, Visit
from simcluster.schedules import Action

Order = Callable[[Action], Sequence[Visit]]
"""The blocks that an action goes through."""


class UnevenExperts(Protocol):
    """What the experts of ranks get; ``by_pass``: drawn anew for every pass of a microbatch."""

    @property
    def by_pass(self) -> bool: ...
    def of_stage(self, layer: int, step: int, microbatch: int) -> Floats:
        """What multiplies an even share, [rank of the stage], of those ranks that differ."""
        ...


class _Levels(NamedTuple):
    """Bytes in the pools "activations" and "other" on every rank, [rank]."""

    activations: Floats
    other: Floats

    def most(self, other: _Levels) -> _Levels:
        """Rank by rank the one that is higher altogether; this one where they are as high."""
        higher = other.activations + other.other > self.activations + self.other
        pairs = zip(self, other, strict=True)
        return _Levels(*(np.where(higher, theirs, own) for own, theirs in pairs))


def uneven_peak(
    blocks: Residencies, row: Sequence[Action], order: Order, experts: UnevenExperts, steps: int
) -> Level:  # fmt: skip
    """What the fullest rank of a stage holds when it holds most, over ``steps`` steps."""
    found = Level(0.0, 0.0)
    for step in range(steps if experts.by_pass else 1):
        levels = _walked(blocks, row, order, experts, step)
        fullest = int((levels.activations + levels.other).argmax())
        level = Level(float(levels.activations[fullest]), float(levels.other[fullest]))
        found = max(found, level, key=lambda level: level.total)
    return found


def _walked(blocks: Residencies, row: Sequence[Action], order: Order, experts: UnevenExperts, step: int) -> _Levels:
    """One pass after the other; those of a kind and chunk are alike unless each draws anew."""
    known: dict[tuple[str, int, int], tuple[_Levels, Floats]] = {}
    held = np.zeros(1)
    found = _Levels(held, held)
    for action in row:
        name = action.kind, action.chunk, action.microbatch if experts.by_pass else -1
        if name not in known:
            known[name] = _passed(blocks, action, order(action), experts, step)
        peak, left = known[name]
        found = found.most(_Levels(held + peak.activations, peak.other))
        held = held + left
    return found


def _passed(
    blocks: Residencies, action: Action, visits: Sequence[Visit], experts: UnevenExperts, step: int
) -> tuple[_Levels, Floats]:
    """The highest levels of a pass, counted from its start, and the activations that it leaves or frees."""
    split = action.kind in ("I", "W")
    now = {"activations": np.zeros(1), "other": np.zeros(1)}
    peak = _Levels(now["activations"], now["other"])
    for visit in visits:
        block = blocks.of(visit.block, visit.layer)
        changes: list[tuple[MemoryChange, float | Floats]] = [
            (change, 1.0) for change in block.changes(visit.phase, split=split)
        ]
        if block.routed:
            more = experts.of_stage(visit.layer, step, action.microbatch) - 1.0
            changes += [(change, more) for change in block.routed_changes(visit.phase, split=split)]
        for change, times in changes:
            now[change.pool] = now[change.pool] + times * change.start
        peak = peak.most(_Levels(now["activations"], now["other"]))
        for change, times in changes:
            now[change.pool] = now[change.pool] + times * change.end
    return peak.most(_Levels(now["activations"], now["other"])), now["activations"]
