"""Builder of a stage's program: appends work items to lanes, and makes each distinct segment only once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from simcluster.planning.ops import MAIN, Dependency, HostWork, MemoryChange, Op, Segment, StageProgram, WorkItem
from simcluster.planning.rank_grid import get_communicator
from simcluster.planning.work_kinds import Collective


class ProgramBuilder:
    """Builder of one stage's program: appends work items to the lanes in order."""

    def __init__(self, stage: int, *, pipelined: bool) -> None:
        self.stage = stage
        self._pipelined = pipelined
        self._items: dict[str, list[WorkItem]] = {MAIN: []}
        self._segments: dict[Hashable, Segment] = {}
        self._holding_up: tuple[Dependency, ...] = ()

    def append_item(self, lane: str, item: WorkItem) -> None:
        """Append a work item to a lane."""
        if lane == MAIN and self._holding_up:
            item = item._replace(needs=item.needs + self._holding_up)
            self._holding_up = ()
        self._items.setdefault(lane, []).append(item)

    def append_op(
        self, op: Op, key: Hashable, needs: tuple[Dependency, ...], step: int, chunk: int = -1, microbatch: int = -1
    ) -> None:
        """Append a work item of a single op to the op's lane."""
        self.append_item(op.lane, WorkItem(self.op_segment(op), key, needs, step, chunk, microbatch))

    def lane_appender(self, lane: str) -> Callable[[WorkItem], None]:
        """Return a fast append function for a lane whose work items are never delayed."""
        return self._items.setdefault(lane, []).append

    def delay_next_item(self, needs: tuple[Dependency, ...]) -> None:
        """Make the next work item of the main lane also wait for these dependencies."""
        self._holding_up += needs

    def main_lane_end(self) -> tuple[Dependency, ...]:
        """Return a dependency on the end of the main lane's last work item; empty if the lane has no item."""
        return tuple(Dependency(self.stage, item.key) for item in self._items[MAIN][-1:])

    def cached_segment(self, name: Hashable, make: Callable[[], Segment]) -> Segment:
        """Return the segment of this name; ``make`` is called only at the name's first use."""
        known = self._segments.get(name)
        if known is None:
            known = self._segments[name] = make()
        return known

    def op_segment(self, op: Op) -> Segment:
        """Return the segment that has only this op."""
        return self.cached_segment(op, lambda: Segment((op,)))

    def collectives_segment(
        self, kind: str, name: str, calls: Sequence[tuple[str, float]], lane: str = MAIN,
        *, layer: int = -1, memory: tuple[MemoryChange, ...] = (), issue: float = 0.0,
    ) -> Segment:  # fmt: skip
        """Return the segment of several collectives, each given as (axis, bytes), which run one after the other.

        The host is busy for ``issue`` seconds before each; the memory is allocated and freed with the last.
        """

        def make() -> Segment:
            ops = []
            for axis, size in calls:
                stream = get_communicator(axis).stream_name(pipelined=self._pipelined)
                ops.append(Op(Collective(kind, axis, size), stream, kind, name, layer, lane))
            ops = ops or [Op(HostWork(0.0), "host", kind, name, layer, lane)]  # of what holds no parameters
            ops[-1] = replace(ops[-1], memory=memory)
            if issue:
                host = Op(HostWork(issue), "host", "launch", name, layer, lane)
                ops = [each for op in ops for each in (host, op)]
            return Segment(tuple(ops))

        return self.cached_segment((kind, name, tuple(calls), lane, layer, memory, issue), make)

    def build_program(self) -> StageProgram:
        """Return the stage program with all work items appended so far."""
        return StageProgram(self.stage, self._items)
