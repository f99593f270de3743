"""The actions and sends of a schedule's stages, before any duration, in a topological order: each stands behind what it
waits for.

The order does not depend on what they cost, so variants with the same schedule share it.  In columns, because there are
up to 70,000 of them, of which little is asked: a walk (``stepping``) is made in 0.7 us an action, where names in dicts
took 1.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.errors import InputError
from simcluster.programs.program import Meeting, SpanRow
from simcluster.schedules import Action, Schedule


class ActionWork(NamedTuple):
    """What an action is: a letter F, B, I or W of a stage's chunk; ``arrives``: its input comes from another stage;
    ``casts``: it casts the weights."""

    kind: str
    stage: int
    chunk: int
    arrives: bool
    casts: bool = False


class Sent(NamedTuple):
    """What a send carries: an activation (of F) or a gradient, from a stage to another."""

    kind: str
    stage: int
    target: int


class Costed(NamedTuple):
    """What an op takes: seconds and rows of the timeline, or a meeting."""

    seconds: float
    rows: tuple[SpanRow, ...] = ()
    meeting: Meeting | None = None


@dataclass(frozen=True)
class Last:
    """An op of a stage behind its last action: what it takes, and the name under which it meets others."""

    costed: Costed
    name: object = None


class ActionRows:
    """The actions of all stages, row by row, for a schedule that holds the model once.

    Of every action: ``work``, what it is (``number`` says the number of that); ``send``, what leaves behind it, or -1;
    ``needs`` and ``makes``, the outputs that come from another stage and go to another one, or 0.  There are
    ``outputs`` with that 0.  ``starts`` is where rows begin, and the end.  ``casts``: the first F of each chunk casts
    its weights, so it is a work of its own.
    """

    def __init__(self, schedule: Schedule, number: Callable[[ActionWork | Sent], int], *, casts: bool) -> None:
        self._casts = casts
        self._name, self._count, self._slices = schedule.name, schedule.num_microbatches, len(schedule.routes[0])
        self.outputs = 2 * self._slices * self._count + 1  # of forwards, and of backwards
        columns = [self._row(schedule, stage, number) for stage in range(schedule.num_stages)]
        self.starts = np.cumsum([0, *(own.shape[1] for own in columns)])
        self.work, self.send, self.needs, self.makes = np.concatenate(columns, axis=1)

    def _row(self, schedule: Schedule, stage: int, number: Callable[[ActionWork | Sent], int]) -> Ints:
        """Work, send, needs and makes of a stage's actions."""
        kinds, microbatches, chunks = zip(*schedule.rows[stage], strict=True)
        names = list(zip(kinds, chunks, strict=True))
        known = {name: at for at, name in enumerate(dict.fromkeys(names))}
        table = []
        for kind, chunk in known:
            action = Action(kind, microbatches[names.index((kind, chunk))], chunk)
            work, sent, *handed_on = self._role(schedule, stage, action)
            table.append((number(work), -1 if sent is None else number(sent), *handed_on))
        own = np.array(table).T[:, [known[name] for name in names]]
        for chunk in dict.fromkeys(chunks) if self._casts else ():
            first = names.index(("F", chunk))
            work = self._role(schedule, stage, Action("F", microbatches[first], chunk))[0]
            own[0, first] = number(work._replace(casts=True))
        own[2:] += np.where(own[2:] > 0, np.array(microbatches), 0)
        return own

    def _role(self, schedule: Schedule, stage: int, action: Action) -> tuple[ActionWork, Sent | None, int, int]:
        """What an action is and how its output leaves, the same of all of a kind on a chunk; and the outputs that it
        needs and makes, of the first microbatch."""
        here = action.microbatch, stage, action.chunk
        forward, place = action.kind == "F", schedule.virtual_stage(*here)
        ends = schedule.previous_hop(*here), schedule.next_hop(*here)
        source, target = (None, None) if action.kind == "W" else ends if forward else reversed(ends)
        arrives = source is not None and source[0] != stage
        sent = None if target is None or target[0] == stage else Sent("F" if forward else "B", stage, target[0])
        first = place if forward else self._slices + place
        needs = 1 + (first + (-1 if forward else 1)) * self._count if arrives else 0
        makes = 0 if sent is None else 1 + first * self._count
        return ActionWork(action.kind, stage, action.chunk, arrives), sent, needs, makes

    def order(self) -> Ints:
        """Each stage goes on as far as it can, the one that has been waited for next; InputError for actions that wait
        for each other."""
        needs, makes = self.needs.tolist(), self.makes.tolist()
        at, ends = self.starts[:-1].tolist(), self.starts[1:].tolist()
        there = bytearray(self.outputs)
        there[0] = 1
        waiting = [-1] * self.outputs
        todo = list(range(len(at)))
        begins, counts = [], []
        while todo:
            stage = todo.pop()
            place, end = at[stage], ends[stage]
            begins.append(place)
            while place < end:
                if not there[needs[place]]:
                    waiting[needs[place]] = stage
                    break
                made = makes[place]
                there[made] = 1
                if waiting[made] >= 0:
                    todo.append(waiting[made])
                    waiting[made] = -1
                place += 1
            counts.append(place - at[stage])
            at[stage] = place
        left = sum(ends) - sum(at)
        if left:
            raise InputError(f"{left} actions of {self._name} wait for each other")
        return ranges(np.array(begins), np.array(counts))


def ranges(begins: Ints, counts: Ints) -> Ints:
    """The numbers of ranges, one behind the other."""
    whole = np.repeat(begins - np.cumsum(counts) + counts, counts)
    return whole + np.arange(len(whole))
