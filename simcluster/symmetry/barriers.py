"""Collectives of all ranks that never overlap with other communication.

They hold up every rank's main lane.  So what is on another lane is out of the way if it must be over before (the main
lane of some rank waits for it) or cannot begin until after (it waits for something after them).  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter

from simcluster.planning.ops import MAIN, Item, Segment, StageProgram

_PASSES = 2  # each narrows down when items are under way; what is known is true at any time
Bounds = dict[int, dict[Hashable, int]]
"""How many barriers have begun, by stage and key of an item."""


def is_alone(programs: Sequence[StageProgram], axis: str) -> bool:
    """Return whether collectives of this axis, which has one group of all ranks, have all links to themselves."""
    main = {program.stage: program.lanes.get(MAIN, ()) for program in programs}
    others = [(program.stage, lane) for program in programs for name, lane in program.lanes.items() if name != MAIN]
    barriers = _of_axis(axis, main.values())
    counts = {sum(segment in barriers for segment in map(itemgetter(0), lane)) for lane in main.values()}
    if len(counts) != 1 or _of_axis(axis, [lane for _, lane in others]):
        return False
    if not any(lane for _, lane in others):
        return True
    most = counts.pop()
    begun: Bounds = {stage: {} for stage in main}  # before an item begins, at least
    over: Bounds = {stage: {} for stage in main}  # before it is over, at most
    for stage, lane in main.items():
        _go_along(lane, barriers, begun[stage], over)
    for _ in range(_PASSES):
        for stage, lane in others:
            _forward(lane, begun, begun[stage])
        for stage, lane in others:
            _backward(lane, over, over[stage], most)
        if all(begun[stage][item.key] == over[stage][item.key] for stage, lane in others for item in lane):
            return True
    return False


def _of_axis(axis: str, lanes: Iterable[Sequence[Item]]) -> set[Segment]:
    """Return the segments with collectives of an axis."""
    segments = {segment for lane in lanes for segment in map(itemgetter(0), lane)}
    return {segment for segment in segments if any(op.work.axis == axis for op in segment.ops)}


def _go_along(lane: Sequence[Item], barriers: set[Segment], here: dict[Hashable, int], over: Bounds) -> None:
    """Count barriers along a main lane: what an item, which may be one, waits for is over before it begins."""
    count = 0
    for segment, key, needs, _, _, _, also in lane:
        for stage, needed in needs:
            over[stage][needed] = min(count, over[stage].get(needed, count))
        count += segment in barriers
        here[key] = count
        for other in also:
            here[other] = count


def _forward(lane: Sequence[Item], begun: Bounds, here: dict[Hashable, int]) -> None:
    """Raise bounds of a lane: nothing begins before what it waits for is over."""
    low = 0
    for item in lane:
        for stage, needed in item.needs:
            low = max(low, begun[stage].get(needed, 0))
        here[item.key] = low
        for key in item.also:
            here[key] = low


def _backward(lane: Sequence[Item], over: Bounds, here: dict[Hashable, int], most: int) -> None:
    """Lower bounds of a lane and of what it waits for: everything is over before what waits for it begins."""
    high = most
    for item in reversed(lane):
        for key in (item.key, *item.also):
            high = min(high, here.get(key, most))
        here[item.key] = high
        for stage, needed in item.needs:
            over[stage][needed] = min(high, over[stage].get(needed, most))
