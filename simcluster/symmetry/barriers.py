"""Collectives of all ranks beside which nothing else is ever under way.

They hold up every rank's main lane.  So what is on another lane is out of the way if it must be over before (the main
lane of some rank waits for it) or cannot begin until after (it waits for something behind).  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from operator import itemgetter

from simcluster.planning.ops import MAIN, Item, Segment, StageProgram

_PASSES = 2  # each narrows down when items are under way; what is known is true at any time


def is_alone(programs: Sequence[StageProgram], axis: str) -> bool:
    """Return whether collectives of this axis, which has one group of all ranks, have all links to themselves."""
    return _Order(programs, axis).settled()


class _Order:
    """Between which two barriers every item is under way: after ``low``, before the one behind ``high``."""

    def __init__(self, programs: Sequence[StageProgram], axis: str) -> None:
        self._programs = programs
        self._axis = axis
        self._barriers: set[Segment] = set()
        self._low: dict[int, dict[Hashable, int]] = {}  # by stage and key
        self._high: dict[int, dict[Hashable, int]] = {}
        self._places = [self._barriers_of(program) for program in programs]
        self._last = max(map(len, self._places), default=0)

    def settled(self) -> bool:
        """Is every item on one side of every barrier?"""
        if len(set(map(len, self._places))) != 1 or any(
            self._of_axis(item.segment) for stage in self._programs for item in _beside(stage, once=True)
        ):
            return False
        if not any(map(_beside, self._programs)):
            return True  # soon told: all is on main lanes
        for program, places in zip(self._programs, self._places, strict=True):
            self._number(program, places)
        for _ in range(_PASSES):
            for stage in self._programs:
                for name, lane in stage.lanes.items():
                    if name != MAIN:
                        self._forward(stage.stage, lane)
            for stage in self._programs:
                self._backward(stage)
            if self._apart():
                return True
        return False

    def _apart(self) -> bool:
        """Is every item known to be on one side of every barrier?"""
        for stage in self._programs:
            low, high = self._low[stage.stage], self._high[stage.stage]
            if any(low.get(item.key, 0) != high.get(item.key, self._last) for item in _beside(stage)):
                return False
        return True

    def _barriers_of(self, program: StageProgram) -> list[int]:
        """Where barriers are on the main lane."""
        segments = [item[0] for item in program.lanes.get(MAIN, ())]
        self._barriers |= {segment for segment in dict.fromkeys(segments) if self._of_axis(segment)}
        return [place for place, segment in enumerate(segments) if segment in self._barriers]

    def _number(self, program: StageProgram, places: Sequence[int]) -> None:
        """Number the items of the main lane."""
        main = program.lanes.get(MAIN, ())
        keys, also = (list(map(itemgetter(place), main)) for place in (1, 6))
        found: dict[Hashable, int] = {}
        for passed, (begin, end) in enumerate(pairwise([0, *places, len(main)])):
            found.update(dict.fromkeys(keys[begin:end], passed))
            for others in filter(None, also[begin:end]):
                found.update(dict.fromkeys(others, passed))
        self._low[program.stage], self._high[program.stage] = found, dict(found)

    def _of_axis(self, segment: Segment) -> bool:
        return any(op.work.axis == self._axis for op in segment.ops)

    def _forward(self, stage: int, lane: Sequence[Item]) -> None:
        """Nothing begins before what it waits for is over."""
        lows, here, low = self._low, self._low[stage], 0
        for item in lane:
            for there, needed in item.needs:
                low = max(low, lows[there].get(needed, 0))
            here[item.key] = max(low, here.get(item.key, 0))
            for key in item.also:
                here[key] = max(low, here.get(key, 0))

    def _backward(self, stage: StageProgram) -> None:
        """Everything is over before what waits for it begins."""
        highs, here, barriers = self._high, self._high[stage.stage], self._barriers
        for name, lane in stage.lanes.items():
            high, main = self._last, name == MAIN
            for item in reversed(lane):
                if main:
                    high -= item.segment in barriers  # what a barrier waits for is over before it
                else:
                    high = min(high, here.get(item.key, self._last))
                    here[item.key] = high
                    for other in item.also:
                        here[other] = high
                for there, needed in item.needs:
                    found = highs[there]
                    if high < found.get(needed, self._last):
                        found[needed] = high


def _beside(stage: StageProgram, *, once: bool = False) -> list[Item]:
    """Items on other lanes than the main one; or of each segment there the last."""
    items = [item for name, lane in stage.lanes.items() if name != MAIN for item in lane]
    return list({id(item.segment): item for item in items}.values()) if once else items
