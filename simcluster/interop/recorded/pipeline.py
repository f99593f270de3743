"""Which pass of a microbatch feeds which: the chain of chunks that a recorded job's pipeline ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple


class RecordedPass(NamedTuple):
    """A forward or backward of one microbatch through one chunk; ``place`` is the chunk's in the whole model."""

    op: int
    forward: bool
    worker: int
    microbatch: int
    place: int


class RecordedPipeline:
    """The passes of all workers, those of one worker in its order."""

    def __init__(self, passes: Sequence[RecordedPass], stages: int) -> None:
        self.passes = passes
        self._at = {(p.worker // stages, p.forward, p.microbatch, p.place): p for p in passes}
        self._stages = stages
        self._order = {each.op: number for number, each in enumerate(passes)}

    @cached_property
    def edges(self) -> list[tuple[RecordedPass, RecordedPass]]:
        """Every pass that gets its input from another of its kind, with that one."""
        found = []
        for each in self.passes:
            before = self._before(each)
            if before is not None:
                found.append((before, each))
        return found

    def in_order(self, ops: Iterable[int]) -> list[int]:
        """Ops of one worker in its order."""
        return sorted(ops, key=self._order.__getitem__)

    def _before(self, each: RecordedPass) -> RecordedPass | None:
        place = each.place + (-1 if each.forward else 1)
        return self._at.get((each.worker // self._stages, each.forward, each.microbatch, place))
