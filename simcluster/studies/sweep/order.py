"""The actions and sends of a schedule's stages as columns, before any duration.

They do not depend on costs, so all variants of one schedule share them.  There are up to 150,000, of few kinds.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np

from simcluster.base.arrays import Int32s, Ints
from simcluster.planning.ops import MAIN
from simcluster.schedules import Action, Schedule


class ActionWork(NamedTuple):
    """The work of an action: a letter F, B, I or W of a stage's chunk.

    ``arrives``: its input comes from another stage; ``casts``: it casts the weights.
    """

    kind: str
    stage: int
    chunk: int
    arrives: bool
    casts: bool = False


class Sent(NamedTuple):
    """The content of a send: an activation (of F) or a gradient, from a stage to another."""

    kind: str
    stage: int
    target: int

    def lane(self, *, overlap: bool) -> str:
        """Return the lane of its stage that it is on."""
        return f"send {self.kind}" if overlap else MAIN


class End(NamedTuple):
    """The work of a stage after its last action."""

    stage: int


Work: TypeAlias = ActionWork | Sent | End


class Items(NamedTuple):
    """Actions and sends, stage by stage in program order, then the ends of all stages.

    ``work`` has the number of each item in ``works``; each ``waiting`` item waits for the ``awaited`` one besides the
    item before it on its lane.
    """

    works: tuple[Work, ...]
    work: Ints
    waiting: Ints
    awaited: Ints


def schedule_items(schedule: Schedule, *, overlap: bool, casts: bool) -> Items:
    """Return the items of a schedule of whose chunks none is on two routes; an action's send directly follows it.

    A fused pair waits for what both of its actions need, and its sends follow the second one.  Sends are on the main
    lane of their stage, or on separate lanes (``overlap``).  ``casts``: the first F of each chunk casts its weights.
    """
    rows = _Rows(schedule, casts=casts)
    columns = [rows.row(stage) for stage in range(schedule.num_stages)]
    work, send, needs, makes = np.concatenate(columns, axis=1)
    starts = np.cumsum([0, *[row.shape[1] for row in columns]])
    halves = np.array(
        [starts[stage] + at for stage in range(schedule.num_stages) for at in schedule.fused_at(stage)], int
    )
    sends = send >= 0
    actions = np.arange(len(work)) + np.cumsum(sends) - sends
    begins, sent = actions.copy(), actions + 1
    actions[halves + 1] = sent[halves]  # both actions, then the sends of both
    begins[halves + 1] = begins[halves]
    sent[halves] += 1
    ends = actions.copy()
    ends[halves] = ends[halves + 1]
    items = np.empty(len(work) + int(sends.sum()), dtype=np.int64)
    items[actions], items[sent[sends]] = work, send[sends]
    source = np.empty(rows.outputs, dtype=np.int64)
    source[makes[sends]] = sent[sends]
    waiting, awaited = begins[needs > 0], source[needs[needs > 0]]
    if overlap:
        waiting, awaited = np.append(waiting, sent[sends]), np.append(awaited, ends[sends])
    works = (*rows.works, *map(End, range(schedule.num_stages)))
    return Items(works, np.append(items, np.arange(len(rows.works), len(works))), waiting, awaited)


class _Rows:
    """The actions of stages, one row for each; there are ``outputs`` that may cross stages, with 0 for none."""

    def __init__(self, schedule: Schedule, *, casts: bool) -> None:
        self.works: list[ActionWork | Sent] = []
        self._numbers: dict[ActionWork | Sent, int] = {}
        self._schedule, self._casts, self._slices = schedule, casts, len(schedule.routes[0])
        self.outputs = 2 * self._slices * schedule.num_microbatches + 1

    def _number(self, work: ActionWork | Sent) -> int:
        if work not in self._numbers:
            self._numbers[work] = len(self.works)
            self.works.append(work)
        return self._numbers[work]

    def row(self, stage: int) -> Ints:
        """Return the work of a stage's actions, their sends (-1: none), and the outputs that they need and make."""
        kinds, microbatches, chunks = zip(*self._schedule.rows[stage], strict=True)
        names = [*zip(kinds, chunks, strict=True)]
        known = {name: place for place, name in enumerate(dict.fromkeys(names))}
        which = np.array([*map(known.__getitem__, names)])
        first = np.unique(which, return_index=True)[1].tolist()
        table = []
        for (kind, chunk), place in zip(known, first, strict=True):
            work, sent, *outputs = self._role(stage, Action(kind, microbatches[place], chunk))
            table.append((self._number(work), -1 if sent is None else self._number(sent), *outputs))
        row: Ints = np.array(table).T[:, which]
        for (kind, chunk), place in zip(known, first, strict=True):
            if self._casts and kind == "F":
                work = self._role(stage, Action(kind, microbatches[place], chunk))[0]
                row[0, place] = self._number(work._replace(casts=True))
        row[2:] += np.where(row[2:] > 0, np.array(microbatches), 0)
        return row

    def _role(self, stage: int, action: Action) -> tuple[ActionWork, Sent | None, int, int]:
        """Return an action's work and send, equal for all of its kind on a chunk, and the outputs of microbatch 0."""
        schedule, count = self._schedule, self._schedule.num_microbatches
        here = action.microbatch, stage, action.chunk
        forward, place = action.kind == "F", schedule.virtual_stage(*here)
        ends = schedule.previous_hop(*here), schedule.next_hop(*here)
        source, target = (None, None) if action.kind == "W" else ends if forward else reversed(ends)
        arrives = source is not None and source[0] != stage
        sent = None if target is None or target[0] == stage else Sent("F" if forward else "B", stage, target[0])
        first = place if forward else self._slices + place
        needs = 1 + (first + (-1 if forward else 1)) * count if arrives else 0
        makes = 0 if sent is None else 1 + first * count
        return ActionWork(action.kind, stage, action.chunk, arrives), sent, needs, makes


def ranges(begins: Int32s, counts: Int32s) -> Int32s:
    """Return the numbers of several ranges, one after the other."""
    whole = np.repeat(begins - np.cumsum(counts, dtype=np.int32) + counts, counts)
    return whole + np.arange(len(whole), dtype=np.int32)
