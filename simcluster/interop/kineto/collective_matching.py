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


class UnmatchedCollectiveError(InputError):
    """Error raised if ranks of a process group recorded different collectives in the same step."""


MatchedOp = tuple[int, int]
"""Op of one rank that takes part in a collective matched across ranks: the rank, and the op's index in the step."""


def find_common_steps(profiles: Sequence[RankProfile], notes: list[str]) -> dict[int, dict[int, list[StreamOp]]]:
    """Return the steps that all ranks recorded, each as a map from rank to recorded ops.

    An op belongs to the step in which the host launched it. Steps that some rank lacks are skipped with a note; raises
    InputError if none is left.
    """
    by_rank = {profile.rank: group_ops_by_step(profile) for profile in profiles}
    marked = [profile for profile in profiles if profile.steps]
    if not marked:
        notes.append("the profiles have no ProfilerStep# annotation: they count as one step, number 0")
        return {0: {rank: own[0] for rank, own in by_rank.items()}}
    if len(marked) < len(profiles):
        bare = next(profile for profile in profiles if not profile.steps)
        raise InputError(
            f"{bare.file} (rank {bare.rank}) has no ProfilerStep# annotation, but {marked[0].file} has: call "
            "step() of the profiler on every rank, or on none"
        )
    numbers = {profile.rank: {number for number, _, _ in profile.steps} for profile in profiles}
    everywhere = sorted(set.intersection(*numbers.values()))
    some = sorted(set.union(*numbers.values()))
    lacking = [number for number in some if number not in everywhere]
    if lacking:
        rank = next(rank for rank, there in numbers.items() if lacking[0] not in there)
        notes.append(f"rank {rank}'s profile lacks step {lacking[0]}; skipped steps: {', '.join(map(str, lacking))}")
    if not everywhere:
        raise InputError(f"no step is in the profiles of all ranks (steps of any rank: {some}); record the same steps")
    found = {number: {rank: own[number] for rank, own in by_rank.items()} for number in everywhere}
    outside = sum(len(p.ops) for p in profiles) - sum(len(ops) for own in by_rank.values() for ops in own.values())
    if outside:
        notes.append(f"{outside} ops of all ranks were launched outside every step and are skipped")
    return found


def group_ops_by_step(profile: RankProfile) -> dict[int, list[StreamOp]]:
    """Group a rank's ops by the step in which the host launched them (one step 0 if the profile marks none)."""
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
    """Match the collectives and messages of a step across ranks; return each as a list of its recorded ops.

    Raises UnmatchedCollectiveError, naming rank, group and number, if members recorded different calls.
    """
    groups: dict[Hashable, dict[int, list[int]]] = {}
    members: dict[Hashable, tuple[int, ...]] = {}
    for rank, own in ops.items():
        for place, op in enumerate(own):
            if op.comm is None or not op.comm.has_known_members:
                continue
            key: Hashable = (op.comm.group, op.comm.ranks, op.comm.sender_and_receiver)
            groups.setdefault(key, {}).setdefault(rank, []).append(place)
            members[key] = op.comm.sender_and_receiver or op.comm.ranks or members.get(key, ())
    found = []
    for key, places in groups.items():
        named = [rank for rank in members[key] if rank in ops]
        expected = named if set(named) >= set(places) else sorted(places)
        found += _match_group_calls(ops, {rank: places.get(rank, []) for rank in expected})
    return found


def _match_group_calls(ops: Mapping[int, Sequence[StreamOp]], places: dict[int, list[int]]) -> list[list[MatchedOp]]:
    """Match the n-th call of every rank in a process group, sorted by sequence number (Seq) if known."""
    ordered = {}
    for rank, own in places.items():
        numbers = {place: _require_comm_call(ops[rank][place]).sequence for place in own}
        known = min(numbers.values(), default=-1) >= 0 and len(set(numbers.values())) == len(numbers)
        ordered[rank] = sorted(own, key=numbers.__getitem__) if known else list(own)
    counts = {rank: len(own) for rank, own in ordered.items()}
    longest = max(counts, key=lambda rank: counts[rank])
    for number, place in enumerate(ordered[longest]):
        op = ops[longest][place]
        for rank, own in ordered.items():
            other = ops[rank][own[number]] if number < len(own) else None
            if other is not None and not _calls_differ(_require_comm_call(op), _require_comm_call(other)):
                continue
            against = (
                f"rank {rank} has only {counts[rank]} calls in that group, rank {longest} has {counts[longest]}"
                if other is None
                else f"rank {rank} has {_require_comm_call(other).describe()} in this place (event {other.event})"
            )
            raise UnmatchedCollectiveError(
                f"rank {longest}, event {op.event} ({op.name[:60]}): {_require_comm_call(op).describe()} is call "
                f"number {number} of its group in the step, but {against}; all ranks of a group must record the same "
                "calls: record the whole step on each rank"
            )
    return [[(rank, own[number]) for rank, own in ordered.items()] for number in range(counts[longest])]


def _require_comm_call(op: StreamOp) -> CommCall:
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
    """Offset (s) to add to each rank's clock, and notes on the assumptions made."""

    by_rank: dict[int, float]
    notes: tuple[str, ...]


def align_clocks(ranks: Sequence[int], hosts: Mapping[int, str], collectives: Sequence[EndTimes]) -> ClockOffsets:
    """Estimate each rank's clock offset from the first rank; ranks on the same host share a clock."""
    shared = [ends for ends in collectives if len(ends) > 1]
    if len(ranks) < 2:
        return ClockOffsets(dict.fromkeys(ranks, 0.0), ())
    names = {hosts[rank] for rank in ranks}
    zero = dict.fromkeys(ranks, 0.0)
    if len(names) == 1 and "" not in names and not _find_causality_violations(shared, zero):
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
            f"clocks: offsets to rank {ranks[0]}, estimated from the ends of shared collectives (after alignment "
            f"{spread * 1e6:.1f} us apart): {apart}{more}"
        )
    if loose:
        notes.append(
            f"clocks: rank{'s' * (len(loose) > 1)} {', '.join(map(str, loose))} shared no collective with the others; "
            "their clocks are not adjusted"
        )
    wrong = _find_causality_violations(shared, offset)
    if wrong:
        notes.append(
            f"clocks: after aligning, {len(wrong)} of {len(shared)} collectives still end on one rank before "
            f"they begin on another, by up to {max(wrong) * 1e6:.0f} us: a clock drifts, or unrelated calls were "
            "matched; the transfers of these collectives take 0 s"
        )
    return ClockOffsets(offset, (*notes, *_make_drift_notes(ranks, shared, offset)))


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


def _find_causality_violations(shared: Sequence[EndTimes], offset: Mapping[int, float]) -> list[float]:
    """Return by how many seconds each violating collective ends on one rank before it begins on another."""
    found = []
    for ends in shared:
        last = max(start + offset[rank] for rank, (start, _) in ends.items())
        first = min(end + offset[rank] for rank, (_, end) in ends.items())
        if last - first > CLOCK_TOLERANCE:
            found.append(last - first)
    return found


def _make_drift_notes(ranks: Sequence[int], shared: Sequence[EndTimes], offset: Mapping[int, float]) -> list[str]:
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
            notes.append(f"clocks: rank {rank}'s clock drifts by {slope * 1e6:+.1f} us per s; its offset is fixed")
    return notes
