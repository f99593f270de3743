"""A stage's program in the making: its items lane by lane, each segment made once.  Pure; imports ops."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from simcluster.ops import MAIN, Collective, Item, Op, Segment, StageProgram


class Lanes:
    """The lanes of one stage, filled in order."""

    def __init__(self, stage: int, *, pipelined: bool) -> None:
        self.stage = stage
        self._pipelined = pipelined
        self._items: dict[str, list[Item]] = {MAIN: []}
        self._segments: dict[Hashable, Segment] = {}

    def put(self, lane: str, item: Item) -> None:
        """The next item of a lane."""
        self._items.setdefault(lane, []).append(item)

    def once(self, name: Hashable, make: Callable[[], Segment]) -> Segment:
        """The segment of that name, made when it is first asked for: equal passes share one."""
        known = self._segments.get(name)
        if known is None:
            known = self._segments[name] = make()
        return known

    def collective(self, kind: str, axis: str, name: str, size: float, lane: str = MAIN) -> Segment:
        """One collective of ``size`` bytes over the rank's group on ``axis``."""
        stream = axis
        if axis in ("model", "world", "embedding"):  # over several axes: named after the slowest, between stages
            stream = "pp" if self._pipelined else "dp" if axis == "world" else "tp"
        op = Op(Collective(kind, axis, size), stream, kind, name, lane=lane)
        return self.once((kind, axis, name, size, lane), lambda: Segment((op,)))

    def program(self) -> StageProgram:
        """What has been put so far."""
        return StageProgram(self.stage, self._items)
