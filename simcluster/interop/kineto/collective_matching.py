"""Matching of recorded collectives across ranks, and alignment of the ranks' clocks.

Members of a collective end together, and not before the last has begun: a rank's offset is the median difference
between its ends of shared collectives and those of ranks already aligned. Ranks of one host are assumed to share a
clock unless a collective would then end before one of its members began.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simcluster.base.errors import InputError
from simcluster.interop.kineto.communications import MESSAGE_KINDS, CommCall
from simcluster.interop.kineto.rank_profile import RankProfile, StreamOp

_UNEVEN_KINDS = ("all_to_all", "gather", "scatter", "reduce", "broadcast", "send_recv", "other")
"""Kinds whose members may move different sizes."""


class UnmatchedError(InputError):
    """Error for ranks of a process group that recorded different collectives in a step."""


class MatchedOp(NamedTuple):
    """A rank and the index of one of its ops in the step."""

    rank: int
    place: int


def find_common_steps(profiles: Sequence[RankProfile], notes: list[str]) -> dict[int, dict[int, list[StreamOp]]]:
    """Return the recorded ops by step and rank, for the steps that all ranks recorded.

    An op belongs to the step in which the host launched it. Steps that some rank lacks are skipped with a note; raises
    InputError if none is left.
    """
    by_rank = {profile.rank: group_ops_by_step(profile) for profile in profiles}
    marked = [profile for profile in profiles if profile.steps]
    if not marked:
        notes.append("no ProfilerStep# in the profiles: they count as one step, number 0")
        return {0: {rank: own[0] for rank, own in by_rank.items()}}
    if len(marked) < len(profiles):
        bare = next(profile for profile in profiles if not profile.steps)
        raise InputError(
            f"{bare.file} (rank {bare.rank}) has no ProfilerStep# annotation and {marked[0].file} has: every rank must "
            "call step() of its profiler, or none"
        )
    numbers = {profile.rank: {number for number, _, _ in profile.steps} for profile in profiles}
    everywhere = sorted(set.intersection(*numbers.values()))
    some = sorted(set.union(*numbers.values()))
    lacking = [number for number in some if number not in everywhere]
    if lacking:
        rank = next(rank for rank, there in numbers.items() if lacking[0] not in there)
        notes.append(f"step {lacking[0]} is not in rank {rank}'s profile; skipped: {', '.join(map(str, lacking))}")
    if not everywhere:
        raise InputError(f"no step is in the profiles of all ranks (rank {profiles[0].rank} has {some}); record again")
    found = {number: {rank: own[number] for rank, own in by_rank.items()} for number in everywhere}
    outside = sum(len(p.ops) for p in profiles) - sum(len(ops) for own in by_rank.values() for ops in own.values())
    if outside:
        notes.append(f"{outside} ops of all ranks were launched outside every step and are skipped")
    return found


def group_ops_by_step(profile: RankProfile) -> dict[int, list[StreamOp]]:
    """Return a rank's ops by the step in which the host launched them (step 0 if none is marked)."""
    if not profile.steps:
        return {0: list(profile.ops)}
    first: dict[int, tuple[float, float]] = {}
    for number, start, end in profile.steps:
        first.setdefault(number, (start, end))
    ops = profile.ops
    issued = np.array([op.launch_time for op in ops], dtype=np.float64)
    return {
        number: [ops[place] for place in np.flatnonzero((start <= issued) & (issued < end)).tolist()]
        for number, (start, end) in first.items()
    }


def match_collectives(ops: Mapping[int, Sequence[StreamOp]]) -> list[list[MatchedOp]]:
    """Return the collectives and messages of a step, each as the list of its recorded members.

    Raises UnmatchedError, naming rank, group and number, if members recorded different calls.
    """
    groups: dict[Hashable, dict[int, list[int]]] = {}
    members: dict[Hashable, tuple[int, ...]] = {}
    for rank, own in ops.items():
        for place, op in enumerate(own):
            if op.comm is None or not op.comm.has_known_members:
                continue
            key: Hashable = (op.comm.group, op.comm.ranks, op.comm.peer)
            groups.setdefault(key, {}).setdefault(rank, []).append(place)
            members[key] = op.comm.peer or op.comm.ranks or members.get(key, ())
    found = []
    for key, places in groups.items():
        named = [rank for rank in members[key] if rank in ops]
        expected = named if set(named) >= set(places) else sorted(places)
        found += _match_group(ops, {rank: places.get(rank, []) for rank in expected})
    return found


def _match_group(ops: Mapping[int, Sequence[StreamOp]], places: Mapping[int, Sequence[int]]) -> list[list[MatchedOp]]:
    """Match the n-th calls of all ranks of one process group, ordered by Seq if it is known."""
    ordered = {}
    for rank, own in places.items():
        numbers = {place: _call_of(ops[rank][place]).sequence for place in own}
        known = min(numbers.values(), default=-1) >= 0 and len(set(numbers.values())) == len(numbers)
        ordered[rank] = sorted(own, key=numbers.__getitem__) if known else list(own)
    counts = {rank: len(own) for rank, own in ordered.items()}
    longest = max(counts, key=lambda rank: counts[rank])
    for number, place in enumerate(ordered[longest]):
        op = ops[longest][place]
        for rank, own in ordered.items():
            other = ops[rank][own[number]] if number < len(own) else None
            if other is not None and not _calls_differ(_call_of(op), _call_of(other)):
                continue
            against = (
                f"rank {rank} has only {counts[rank]} in that group, rank {longest} {counts[longest]}"
                if other is None
                else f"rank {rank} has {_call_of(other).describe()} there (event {other.event})"
            )
            raise UnmatchedError(
                f"rank {longest}, event {op.event} ({op.name[:60]}): {_call_of(op).describe()} is number {number} of "
                f"its group in the step, but {against}; all ranks of a group must record the same calls: record the "
                "whole step on each"
            )
    return [[MatchedOp(rank, own[number]) for rank, own in ordered.items()] for number in range(counts[longest])]


def _call_of(op: StreamOp) -> CommCall:
    assert op.comm is not None
    return op.comm


def _calls_differ(one: CommCall, other: CommCall) -> bool:
    if one.kind in MESSAGE_KINDS and other.kind in MESSAGE_KINDS:
        return False
    sized = one.kind not in _UNEVEN_KINDS and not math.isnan(one.bytes) and not math.isnan(other.bytes)
    return (
        one.kind != other.kind
        or (sized and one.bytes != other.bytes)
        or (one.sequence >= 0 and other.sequence >= 0 and one.sequence != other.sequence)
    )


EndTimes = Mapping[int, tuple[float, float]]
"""(start, end) of a collective by rank, in seconds of each rank's clock."""

CLOCK_TOLERANCE = 20e-6
"""Seconds by which an end may precede another member's start, since kernels do not end at once everywhere."""


class ClockOffsets(NamedTuple):
    """Offsets (s) to add to each rank's clock, and notes on what was assumed."""

    offset: dict[int, float]
    notes: tuple[str, ...]


def align_clocks(ranks: Sequence[int], hosts: Mapping[int, str], collectives: Sequence[EndTimes]) -> ClockOffsets:
    """Return the clock offsets of all ranks to the first; ``hosts`` names each rank's node."""
    shared = [ends for ends in collectives if len(ends) > 1]
    if len(ranks) < 2:
        return ClockOffsets(dict.fromkeys(ranks, 0.0), ())
    names = {hosts[rank] for rank in ranks}
    zero = dict.fromkeys(ranks, 0.0)
    if len(names) == 1 and "" not in names and not _causality_violations(shared, zero):
        return ClockOffsets(zero, (f"clocks: all ranks are on host {hosts[ranks[0]]!r} and share its clock",))
    offset, loose = _find_clock_offsets(ranks, shared)
    notes = []
    if len(loose) < len(ranks) - 1:
        apart = ", ".join(
            f"rank {rank} {round(-seconds * 1e6, 1) + 0.0:+.1f} us" for rank, seconds in list(offset.items())[1:9]
        )
        more = f" and {len(offset) - 9} more" if len(offset) > 9 else ""
        aligned = [[end + offset[rank] for rank, (_, end) in ends.items()] for ends in shared]
        spread = float(np.median([max(ends) - min(ends) for ends in aligned])) if aligned else 0.0
        notes.append(
            f"clocks: offsets to rank {ranks[0]}, from the ends of shared collectives ({spread * 1e6:.1f} us "
            f"apart once aligned): {apart}{more}"
        )
    if loose:
        notes.append(
            f"clocks: rank{'s' * (len(loose) > 1)} {', '.join(map(str, loose))} shared no collective with the others; "
            "their clocks are not adjusted"
        )
    wrong = _causality_violations(shared, offset)
    if wrong:
        notes.append(
            f"clocks: after aligning, {len(wrong)} of {len(shared)} collectives still end on a rank before another "
            f"began, by up to {max(wrong) * 1e6:.0f} us: a clock drifts, or unrelated calls were matched; "
            "such transfers take 0 s"
        )
    return ClockOffsets(offset, (*notes, *_drift_notes(ranks, shared, offset)))


def _find_clock_offsets(ranks: Sequence[int], shared: Sequence[EndTimes]) -> tuple[dict[int, float], list[int]]:
    of_rank: dict[int, list[EndTimes]] = {rank: [] for rank in ranks}
    for ends in shared:
        for rank in ends:
            of_rank[rank].append(ends)
    offset = {ranks[0]: 0.0}
    todo = [ranks[0]]
    for known in todo:  # grows during the iteration
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


def _causality_violations(shared: Sequence[EndTimes], offset: Mapping[int, float]) -> list[float]:
    """Return by how many seconds collectives end on one rank before they begin on the last."""
    found = []
    for ends in shared:
        last = max(start + offset[rank] for rank, (start, _) in ends.items())
        first = min(end + offset[rank] for rank, (_, end) in ends.items())
        if last - first > CLOCK_TOLERANCE:
            found.append(last - first)
    return found


def _drift_notes(ranks: Sequence[int], shared: Sequence[EndTimes], offset: Mapping[int, float]) -> list[str]:
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
        if change > max(CLOCK_TOLERANCE, 4 * float(np.median(np.abs(rest)))):
            notes.append(f"clocks: rank {rank}'s drifts by {slope * 1e6:+.1f} us per second; a single offset was used")
    return notes
