"""The beginning of a job's first stages: what can be played of them that waits for nothing left out.

Where transfers hold each other back on links they do so from the begin (of sends of a pipeline the first): what is to
be left to events is told by the first items of two stages, before all ops of all stages are tied together.  Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from simcluster.planning.ops import Item, StageProgram
from simcluster.planning.works import Receive, Transfer

_STAGES = 2
_ITEMS = 6
"""Of every lane."""


def beginning(programs: Sequence[StageProgram]) -> list[StageProgram] | None:
    """The programs with the first items of the first stages alone; None where these are most of it."""
    if len(programs) <= _STAGES:
        return None
    kept = [
        {lane: items[: _ITEMS * (number < _STAGES)] for lane, items in program.lanes.items()}
        for number, program in enumerate(programs)
    ]
    while True:
        there = {
            (number, key)
            for number, lanes in enumerate(kept)
            for items in lanes.values()
            for item in items
            for key in (item.key, *item.also)
        }
        cut = False
        for lanes in kept:
            for lane, items in lanes.items():
                missing = [any(need not in there for need in _needs(item)) for item in items]
                end = missing.index(True) if True in missing else len(items)
                cut |= end < len(items)
                lanes[lane] = items[:end]
        if not cut:
            return [StageProgram(program.stage, lanes) for program, lanes in zip(programs, kept, strict=True)]


def _needs(item: Item) -> Iterator[tuple[int, Hashable]]:
    """Yield what an item waits for, by stage and key: at a rendezvous also the other end of its message."""
    yield from item.needs
    work = item.segment.ops[0].work
    if isinstance(work, Receive):
        assert isinstance(item.key, tuple), item.key
        yield work.from_stage, item.key[1]
    elif isinstance(work, Transfer) and work.rendezvous:
        yield work.to_stage, ("receive", item.key)
