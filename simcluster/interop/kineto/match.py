"""Which collectives of which ranks are one: by step, process group and number."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simcluster.base.errors import InputError
from simcluster.interop.kineto.comm import MESSAGES, Comm
from simcluster.interop.kineto.events import RankProfile, StreamOp

_UNEVEN = ("all_to_all", "gather", "scatter", "reduce", "broadcast", "send_recv", "other")
"""Kinds whose members may move different sizes."""


class UnmatchedError(InputError):
    """Members of a group made different collectives in a step."""


class MatchedOp(NamedTuple):
    """An op of a rank, by its place in the rank's ops of the step."""

    rank: int
    place: int


def steps_of(profiles: Sequence[RankProfile], notes: list[str]) -> dict[int, dict[int, list[StreamOp]]]:
    """Ops by step and rank.  An op is of the step in which the host launched it.

    Steps that not every rank has are left out with a note; InputError if no step is left.
    """
    by_rank = {profile.rank: own_steps(profile) for profile in profiles}
    marked = [profile for profile in profiles if profile.steps]
    if not marked:
        notes.append("no ProfilerStep# in the profiles: all of them is taken for one step, number 0")
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
        notes.append(f"step {lacking[0]} is not in rank {rank}'s profile; left out: {', '.join(map(str, lacking))}")
    if not everywhere:
        raise InputError(f"no step is in the profiles of all ranks (rank {profiles[0].rank} has {some}); record again")
    found = {number: {rank: own[number] for rank, own in by_rank.items()} for number in everywhere}
    outside = sum(len(p.ops) for p in profiles) - sum(len(ops) for own in by_rank.values() for ops in own.values())
    if outside:
        notes.append(f"{outside} ops of all ranks were launched outside of every step: left out")
    return found


def own_steps(profile: RankProfile) -> dict[int, list[StreamOp]]:
    """A rank's ops by the step in which the host launched them; all of step 0 where no steps are marked."""
    if not profile.steps:
        return {0: list(profile.ops)}
    first: dict[int, tuple[float, float]] = {}
    for number, start, end in profile.steps:
        first.setdefault(number, (start, end))
    ops = profile.ops
    issued = np.array([op.issued for op in ops], dtype=np.float64)
    return {
        number: [ops[place] for place in np.flatnonzero((start <= issued) & (issued < end)).tolist()]
        for number, (start, end) in first.items()
    }


def meetings(ops: Mapping[int, Sequence[StreamOp]]) -> list[list[MatchedOp]]:
    """The collectives and messages of a step, each with the members that were recorded, in an order of their own.

    Raises UnmatchedError, naming rank, group and number, where members did not do the same.
    """
    groups: dict[Hashable, dict[int, list[int]]] = {}
    members: dict[Hashable, tuple[int, ...]] = {}
    for rank, own in ops.items():
        for place, op in enumerate(own):
            if op.comm is None or not op.comm.meets:
                continue
            key: Hashable = (op.comm.group, op.comm.ranks, op.comm.peer)
            groups.setdefault(key, {}).setdefault(rank, []).append(place)
            members[key] = op.comm.peer or op.comm.ranks or members.get(key, ())
    found = []
    for key, places in groups.items():
        named = [rank for rank in members[key] if rank in ops]
        expected = named if set(named) >= set(places) else sorted(places)
        found += _matched(ops, {rank: places.get(rank, []) for rank in expected})
    return found


def _matched(ops: Mapping[int, Sequence[StreamOp]], places: Mapping[int, Sequence[int]]) -> list[list[MatchedOp]]:
    """The collectives of one group: the n-th of every member, in the order of Seq where it is known."""
    ordered = {rank: _in_order(ops[rank], own) for rank, own in places.items()}
    counts = {rank: len(own) for rank, own in ordered.items()}
    longest = max(counts, key=lambda rank: counts[rank])
    for number, place in enumerate(ordered[longest]):
        op = ops[longest][place]
        for rank, own in ordered.items():
            other = ops[rank][own[number]] if number < len(own) else None
            if other is None or _differ(_comm(op), _comm(other)):
                raise UnmatchedError(_unlike(longest, op, rank, other, number, counts))
    return [[MatchedOp(rank, own[number]) for rank, own in ordered.items()] for number in range(counts[longest])]


def _in_order(ops: Sequence[StreamOp], places: Sequence[int]) -> list[int]:
    numbers = {place: _comm(ops[place]).sequence for place in places}
    told = min(numbers.values(), default=-1) >= 0 and len(set(numbers.values())) == len(numbers)
    return sorted(places, key=numbers.__getitem__) if told else list(places)


def _comm(op: StreamOp) -> Comm:
    assert op.comm is not None
    return op.comm


def _differ(one: Comm, other: Comm) -> bool:
    if one.kind in MESSAGES and other.kind in MESSAGES:
        return False
    sized = one.kind not in _UNEVEN and not math.isnan(one.bytes) and not math.isnan(other.bytes)
    return (
        one.kind != other.kind
        or (sized and one.bytes != other.bytes)
        or (one.sequence >= 0 and other.sequence >= 0 and one.sequence != other.sequence)
    )


def _unlike(rank: int, op: StreamOp, other: int, found: StreamOp | None, number: int, counts: Mapping[int, int]) -> str:
    what = f"rank {rank}, event {op.event} ({op.name[:60]}): {_comm(op).describe()}"
    against = (
        f"rank {other} has only {counts[other]} in that group, rank {rank} {counts[rank]}"
        if found is None
        else f"rank {other} has {_comm(found).describe()} there (event {found.event})"
    )
    return (
        f"{what} is number {number} of its group in the step, but {against}; every rank of a group must "
        f"record as many: record all of the step on each"
    )
