"""One clock for all ranks: members of a collective end it together, and none before the last has begun.

A rank's offset is the median difference between its ends of shared collectives and those of ranks already aligned.
Ranks of one host are taken to share its clock unless that would have a collective end before one of its members began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Ends = Mapping[int, tuple[float, float]]
"""(start, end) of a collective by rank, in seconds of each rank's own clock."""

TOLERANCE = 20e-6
"""Seconds that an end may lie before another member's start: what a kernel needs to be over everywhere."""


@dataclass(frozen=True)
class Clocks:
    """Seconds to add to each rank's times, and what was assumed."""

    offset: dict[int, float]
    notes: tuple[str, ...]


def align(ranks: Sequence[int], hosts: Mapping[int, str], collectives: Sequence[Ends]) -> Clocks:
    """Offsets of all ranks to the first; ``hosts`` gives the name of each rank's machine, "" where not known."""
    shared = [ends for ends in collectives if len(ends) > 1]
    if len(ranks) < 2:
        return Clocks(dict.fromkeys(ranks, 0.0), ())
    names = {hosts[rank] for rank in ranks}
    zero = dict.fromkeys(ranks, 0.0)
    if len(names) == 1 and "" not in names and not _contradictions(shared, zero):
        return Clocks(zero, (f"clocks: all ranks are on host {hosts[ranks[0]]!r}, which has one",))
    offset, loose = _offsets(ranks, shared)
    notes = [_said(offset, _spread(shared, offset))] if len(loose) < len(ranks) - 1 else []
    if loose:
        notes.append(
            f"clocks: rank{'s' * (len(loose) > 1)} {', '.join(map(str, loose))} shared no collective with the others; "
            "their clocks are taken as they are"
        )
    wrong = _contradictions(shared, offset)
    if wrong:
        notes.append(
            f"clocks: after aligning, {len(wrong)} of {len(shared)} collectives still end on a rank before another "
            f"began, by up to {max(wrong) * 1e6:.0f} us: a clock drifts, or calls were matched that do not belong "
            "together; such transfers are taken to last 0 s"
        )
    notes += _drift(ranks, shared, offset)
    return Clocks(offset, tuple(notes))


def _said(offset: Mapping[int, float], spread: float) -> str:
    apart = ", ".join(
        f"rank {rank} {round(-seconds * 1e6, 1) + 0.0:+.1f} us" for rank, seconds in list(offset.items())[1:9]
    )
    more = f" and {len(offset) - 9} more" if len(offset) > 9 else ""
    first = next(iter(offset))
    return (
        f"clocks: against rank {first}'s, by the ends of shared collectives (which lie {spread * 1e6:.1f} us apart "
        f"after it): {apart}{more}"
    )


def _offsets(ranks: Sequence[int], shared: Sequence[Ends]) -> tuple[dict[int, float], list[int]]:
    """From the first rank outwards, then all again against all; and the ranks that nothing connects."""
    of_rank: dict[int, list[Ends]] = {rank: [] for rank in ranks}
    for ends in shared:
        for rank in ends:
            of_rank[rank].append(ends)
    offset = {ranks[0]: 0.0}
    todo = [ranks[0]]
    for known in todo:  # grows while it is gone through
        near: dict[int, list[float]] = {}
        for ends in of_rank[known]:
            for rank in ends:
                if rank not in offset:
                    near.setdefault(rank, []).append(ends[known][1] + offset[known] - ends[rank][1])
        for rank, differences in sorted(near.items()):
            offset[rank] = float(np.median(differences))
            todo.append(rank)
    loose = [rank for rank in ranks if rank not in offset]
    return {rank: offset.get(rank, 0.0) for rank in ranks}, loose


def _spread(shared: Sequence[Ends], offset: Mapping[int, float]) -> float:
    """The median distance of ends of one collective from each other, after aligning; seconds."""
    aligned = [[end + offset[rank] for rank, (_, end) in ends.items()] for ends in shared]
    apart = [max(ends) - min(ends) for ends in aligned]
    return float(np.median(apart)) if apart else 0.0


def _contradictions(shared: Sequence[Ends], offset: Mapping[int, float]) -> list[float]:
    """By how many seconds collectives ended on one member before the last had begun."""
    found = []
    for ends in shared:
        last = max(start + offset[rank] for rank, (start, _) in ends.items())
        first = min(end + offset[rank] for rank, (_, end) in ends.items())
        if last - first > TOLERANCE:
            found.append(last - first)
    return found


def _drift(ranks: Sequence[int], shared: Sequence[Ends], offset: Mapping[int, float]) -> list[str]:
    """Ranks whose clock runs faster or slower than the first's, by more than its ends scatter."""
    notes = []
    for rank in ranks[1:]:
        both = [
            (ends[ranks[0]][1], ends[rank][1] + offset[rank]) for ends in shared if rank in ends and ranks[0] in ends
        ]
        if len(both) < 16:
            continue
        times = np.array(both)
        apart = times[:, 1] - times[:, 0]
        slope, start = np.polyfit(times[:, 0] - times[0, 0], apart, 1)
        rest = apart - start - slope * (times[:, 0] - times[0, 0])
        change = abs(slope) * float(np.ptp(times[:, 0]))
        if change > max(TOLERANCE, 4 * float(np.median(np.abs(rest)))):
            notes.append(
                f"clocks: rank {rank}'s drifts by {slope * 1e6:+.1f} us a second; one offset was taken for all of it"
            )
    return notes
