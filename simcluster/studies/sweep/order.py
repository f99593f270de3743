"""A topological order of the actions of a schedule's stages, in columns: each stands behind what it waits for.

Columns, because there are up to 70,000 of them, of which little is asked: a walk (``stepping``) is made in 0.7 us an
action, where names in dicts took 1.2.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simcluster.base.arrays import Ints
from simcluster.base.errors import InputError
from simcluster.schedules import Action, Schedule
from simcluster.studies.sweep.skeleton import ActionWork, Sent, SkeletonPart, part_of

_LEAVES = {"F": 0, "B": 1}
"""What is handed on to other stages."""


class ActionRows:
    """The actions of all stages, row by row, for a schedule that holds the model once.

    Of every action: ``work``, what it is (``number`` says the number of that); ``send``, what leaves behind it, or -1;
    ``needs`` and ``makes``, the outputs that come from another stage and go to another one, or 0.  There are
    ``outputs`` with that 0.  ``starts`` is where rows begin, and the end.
    """

    def __init__(self, schedule: Schedule, number: Callable[[ActionWork | Sent], int]) -> None:
        self._name, self._count, self._slices = schedule.name, schedule.num_microbatches, len(schedule.routes[0])
        self.outputs = len(_LEAVES) * self._slices * self._count + 1
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
            part = part_of(schedule, stage, Action(kind, microbatches[names.index((kind, chunk))], chunk))
            send = -1 if part.sent is None else number(part.sent)
            table.append((number(part.work), send, *self._handed_on(part)))
        own = np.array(table).T[:, [known[name] for name in names]]
        own[2:] += np.where(own[2:] > 0, np.array(microbatches), 0)
        return own

    def _handed_on(self, part: SkeletonPart) -> tuple[int, int]:
        """What it needs and makes of the first microbatch."""
        needs = makes = 0
        if part.made in _LEAVES:
            first = _LEAVES[part.made] * self._slices
            needs = 1 + (first + part.needs) * self._count if part.work.arrives else 0
            makes = 1 + (first + part.place) * self._count if part.sent is not None else 0
        return needs, makes

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
