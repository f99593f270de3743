"""Communication calls of a job's programs, and a test for collectives that never share links. No side effects."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter

from simcluster.base.errors import InputError
from simcluster.planning.ops import MAIN, Group, OpWork, StageProgram, WorkItem
from simcluster.planning.work_kinds import WORKS

_PASSES = 2  # each narrows down when items are under way; what is known is true at any time
Bounds = dict[int, dict[Hashable, int]]
"""Number of barriers that have begun, by stage and key of an item."""


def never_shares_links(programs: Sequence[StageProgram], axis: str) -> bool:
    """Return whether an axis's collectives, in one group of all ranks, never overlap with other communication."""
    main = {program.stage: program.lanes.get(MAIN, ()) for program in programs}
    others = [(program.stage, lane) for program in programs for name, lane in program.lanes.items() if name != MAIN]
    lanes = [*main.values(), *(lane for _, lane in others)]
    segments = {segment for lane in lanes for segment in map(itemgetter(0), lane)}
    barriers = {segment for segment in segments if any(op.work.axis == axis for op in segment.ops)}
    counts = [sum(segment in barriers for segment in map(itemgetter(0), lane)) for lane in lanes]
    if len(set(counts[: len(main)])) != 1 or any(counts[len(main) :]):
        return False
    begun: Bounds = {stage: {} for stage in main}  # before an item begins, at least
    over: Bounds = {stage: {} for stage in main}  # before it is over, at most
    for stage, lane in main.items() if any(lane for _, lane in others) else ():
        count = 0
        for segment, key, needs, _, _, _, also in lane:  # what it waits for is over before it begins
            for other, needed in needs:
                over[other][needed] = min(count, over[other].get(needed, count))
            count += segment in barriers
            begun[stage] |= dict.fromkeys((key, *also), count)
    for _ in range(_PASSES):
        for stage, lane in others:
            _raise_barrier_lower_bounds(lane, begun, begun[stage])
        for stage, lane in others:
            _lower_barrier_upper_bounds(lane, over, over[stage], counts[0])
        if all(begun[stage][item.key] == over[stage][item.key] for stage, lane in others for item in lane):
            return True
    return False


def _raise_barrier_lower_bounds(lane: Sequence[WorkItem], begun: Bounds, here: dict[Hashable, int]) -> None:
    """Raise each item's lower bound on the number of barriers that have begun when the item begins."""
    low = 0
    for item in lane:
        for stage, needed in item.needs:
            low = max(low, begun[stage].get(needed, 0))
        for key in (item.key, *item.also):
            here[key] = low


def _lower_barrier_upper_bounds(lane: Sequence[WorkItem], over: Bounds, here: dict[Hashable, int], most: int) -> None:
    """Lower each item's upper bound on the number of barriers that have begun when the item ends."""
    high = most
    for item in reversed(lane):
        high = min(high, *(here.get(key, most) for key in (item.key, *item.also)))
        here[item.key] = high
        for stage, needed in item.needs:
            over[stage][needed] = min(high, over[stage].get(needed, most))


Call = tuple[str, float]
"""Communication call: the kind of collective (or "send") and its size in bytes."""


class CommunicationDemand:
    """Communication calls (kind, size) of all programs, by communicator name and pipeline stage.

    ``calls`` are those of an axis (given times are none), of sends and of copies on each stage (of sends the sender's);
    ``overlapped`` has the axes whose communication may run at the same time as other communication of its rank, "pp"
    for all sends.
    """

    def __init__(self, programs: Sequence[StageProgram]) -> None:
        self.calls: dict[tuple[Group, int], dict[Call, None]] = {}
        self.overlapped: dict[str, None] = {}
        for program in programs:
            segments = {
                segment: name
                for name, lane in program.lanes.items()
                for segment in dict.fromkeys(map(itemgetter(0), lane))  # the first of an item is its segment
            }
            works = {id(op.work): op.work for segment in segments for op in segment.ops}
            axes = {number: self._record_call(program.stage, work) for number, work in works.items()}
            for segment, lane in segments.items():
                if lane != MAIN or len({op.lane for op in segment.ops}) > 1:
                    self.overlapped |= dict.fromkeys([axis for op in segment.ops if (axis := axes[id(op.work)])])

    def calls_of_group(self, name: Group, stages: Iterable[int]) -> tuple[Call, ...]:
        """Return the calls of a group with this name whose ranks are on these stages."""
        return tuple({call: None for stage in dict.fromkeys(stages) for call in self.calls.get((name, stage), ())})

    def _record_call(self, stage: int, work: OpWork) -> str:
        """Record the communication call of an op; return the call's axis, or "" if it has none."""
        if type(work) not in WORKS:
            raise InputError(f"unknown kind of work {type(work).__name__}; add it to planning/work_kinds.WORKS: {work}")
        group = work.group(stage)
        if group is None or work.joins:
            return ""
        calls = self.calls.setdefault((group, stage), {})
        if work.traffic_kind:
            calls[work.traffic_kind, work.size] = None
        return group if isinstance(group, str) else "pp" if group[0] == "send" else ""
