"""Builder of a stage's program: items lane by lane, with each distinct segment made once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from simcluster.planning.ops import MAIN, Item, MemoryChange, Need, Op, Segment, StageProgram
from simcluster.planning.parallel import get_communicator
from simcluster.planning.works import Collective, HostWork


class ProgramBuilder:
    """Program of one stage under construction, whose lanes are filled in order."""

    def __init__(self, stage: int, *, pipelined: bool) -> None:
        self.stage = stage
        self._pipelined = pipelined
        self._items: dict[str, list[Item]] = {MAIN: []}
        self._segments: dict[Hashable, Segment] = {}
        self._holding_up: tuple[Need, ...] = ()

    def append_item(self, lane: str, item: Item) -> None:
        """Append an item to a lane."""
        if lane == MAIN and self._holding_up:
            item = item._replace(needs=item.needs + self._holding_up)
            self._holding_up = ()
        self._items.setdefault(lane, []).append(item)

    def appender(self, lane: str) -> Callable[[Item], None]:
        """Return a fast function that appends items to a lane whose items are never delayed."""
        return self._items.setdefault(lane, []).append

    def delay_next_item(self, needs: tuple[Need, ...]) -> None:
        """Make the next item of the main lane wait for these needs, too."""
        self._holding_up += needs

    def last_end(self) -> tuple[Need, ...]:
        """Return a need for the end of the last item on the main lane; empty at the beginning."""
        return tuple(Need(self.stage, item.key) for item in self._items[MAIN][-1:])

    def segment(self, name: Hashable, make: Callable[[], Segment]) -> Segment:
        """Return the segment of a name, made on first use, so that equal passes share one."""
        known = self._segments.get(name)
        if known is None:
            known = self._segments[name] = make()
        return known

    def collective(
        self, kind: str, axis: str, name: str, size: float, lane: str = MAIN,
        *, layer: int = -1, memory: tuple[MemoryChange, ...] = (),
    ) -> Segment:  # fmt: skip
        """Return the segment of one collective of ``size`` bytes over the rank's group on ``axis``."""
        return self.collectives(kind, name, [(axis, size)], lane, layer=layer, memory=memory)

    def collectives(
        self, kind: str, name: str, calls: Sequence[tuple[str, float]], lane: str = MAIN,
        *, layer: int = -1, memory: tuple[MemoryChange, ...] = (), issue: float = 0.0,
    ) -> Segment:  # fmt: skip
        """Return the segment of several collectives of (axis, bytes), one after the other.

        The host is busy for ``issue`` seconds before each; the memory is allocated and freed with the last.
        """

        def make() -> Segment:
            ops = []
            for axis, size in calls:
                stream = get_communicator(axis).stream_of(pipelined=self._pipelined)
                ops.append(Op(Collective(kind, axis, size), stream, kind, name, layer, lane))
            ops = ops or [Op(HostWork(0.0), "host", kind, name, layer, lane)]  # of what holds no parameters
            ops[-1] = replace(ops[-1], memory=memory)
            if issue:
                host = Op(HostWork(issue), "host", "launch", name, layer, lane)
                ops = [each for op in ops for each in (host, op)]
            return Segment(tuple(ops))

        return self.segment((kind, name, tuple(calls), lane, layer, memory, issue), make)

    def with_memory(self, name: Hashable, segment: Segment, memory: tuple[MemoryChange, ...]) -> Segment:
        """Return the named segment, with memory allocated as it begins and freed as it ends."""
        return self.segment((name, memory), lambda: _with_memory(segment, memory))

    def program(self) -> StageProgram:
        """Return the stage program of all items so far."""
        return StageProgram(self.stage, self._items)


def _with_memory(segment: Segment, memory: tuple[MemoryChange, ...]) -> Segment:
    ops = list(segment.ops)
    comes = tuple(MemoryChange(pool, start, 0.0) for pool, start, _ in memory if start)
    goes = tuple(MemoryChange(pool, 0.0, end) for pool, _, end in memory if end)
    ops[0] = replace(ops[0], memory=ops[0].memory + comes)
    ops[-1] = replace(ops[-1], memory=ops[-1].memory + goes)
    return Segment(tuple(ops))
