"""The work of every rank, and what each piece of it waited for.

Spans have no order of cause; a profile needs it (events between streams, launches).  So this goes over the ops: an op
follows the one before it on its lane and those it waits for; a receive, which has no label, is a piece of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import NamedTuple

import numpy as np

from simcluster.planning.ops import MAIN
from simcluster.reference.record import Label
from simcluster.results.played import Run
from simcluster.results.span_states import EXPOSED

RECEIVE, HOST = "recv", "host"
Track = tuple[str, str, int]
"""Stream, lane (of a receive that of its sender) and the stage that a receive comes from (-1: none): in order, so
nothing on a track overlaps."""


COMPUTE: Track = ("compute", MAIN, -1)


class WorkRow(NamedTuple):
    """An op on a rank, in seconds, as the timeline has it.

    ``after`` are places, in the rank's list, of what it waited for (without what is before it on its own track).
    ``peer`` is the stage that a message goes to or comes from, -1 for none.
    """

    track: Track
    kind: str
    name: str
    layer: int
    axis: str
    bytes: float
    step: int
    chunk: int
    microbatch: int
    ready: float
    start: float
    end: float
    peer: int = -1
    after: tuple[int, ...] = ()

    @property
    def stream(self) -> str:
        """As in the timeline."""
        return self.track[0]

    @property
    def communicates(self) -> bool:
        """With other ranks, that is; a copy to the host does not."""
        return self.track[0] in EXPOSED


class RunWork:
    """The work of a run's simulated ranks, by the record's numbers of ranks.

    ``lanes`` and ``receives`` (send, op that waits for it) are those of every rank, ``receiver`` the stage that gets
    what an op sends, ``stage`` that of every lane's rank in its own job, which may be one of several in the record.
    """

    def __init__(self, run: Run) -> None:
        self.ops, self.times = run.record.ops, run.record.times
        self.lanes: dict[int, list[int]] = defaultdict(list)
        for lane, rank in enumerate(self.ops.lane_rank.tolist()):
            self.lanes[rank].append(lane)
        stages = self.ops.lane_stage.tolist()
        first = min(stages[lane] for rank in run.ranks for lane in self.lanes[rank])
        self.stage = [stage - first for stage in stages]
        self.receives: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.receiver: dict[int, int] = {}
        sends, receivers = self.ops.receives
        lanes = self.ops.lane[receivers].tolist()
        for send, op, lane in zip(sends.tolist(), receivers.tolist(), lanes, strict=True):
            self.receives[int(self.ops.lane_rank[lane])].append((send, op))
            self.receiver[send] = self.stage[lane]

    def of_rank(self, rank: int) -> list[WorkRow]:
        """Return all that a simulated rank did, in the order of its lanes."""
        return _Rank(self, rank).work()

    @cached_property
    def _numbers(self) -> dict[tuple[str, str], int]:
        """CUDA streams by stream and lane, but for receives: 7 for compute, as in PyTorch, others from 20 on."""
        ops = self.ops
        shown = ops.label >= 0
        pairs = np.unique(np.stack([ops.label[shown], ops.lane[shown]]), axis=1).T.tolist()
        used = {(ops.labels[label].stream, ops.lane_name[lane]) for label, lane in pairs}
        others = sorted(used - {COMPUTE[:2]})
        return {COMPUTE[:2]: 7, **{pair: 20 + place for place, pair in enumerate(others)}}

    def streams_of(self, works: Sequence[WorkRow]) -> dict[Track, int]:
        """The CUDA stream of every track of a rank: the same on all ranks, since tools compare streams, but for those
        of receives, which are behind all others."""
        tracks = sorted({work.track for work in works})
        behind = count(20 + len(self._numbers))
        return {track: next(behind) if track[2] >= 0 else self._numbers[track[:2]] for track in tracks}


class _Rank:
    """The work of one rank in the making."""

    def __init__(self, run: RunWork, rank: int) -> None:
        self._run, self._rank, self._ops, self._times = run, rank, run.ops, run.times
        self._found: list[WorkRow] = []
        self._before: list[list[int]] = []
        self._place: dict[int, int] = {}  # by op
        self._received: dict[int, int] = {}  # send -> the place of its receive here

    def work(self) -> list[WorkRow]:
        """Return it in the order of lanes, with what each waited for."""
        ops, receives = self._ops, self._run.receives[self._rank]
        sends = {int(ops.meeting[send]): send for send, _ in receives}
        for lane in self._run.lanes[self._rank]:
            previous = -1
            for op in ops.lanes[lane].tolist():
                if ops.label[op] >= 0:
                    self._add(op, lane, ops.labels[ops.label[op]], previous)
                else:
                    self._add_receive(sends[int(ops.meeting[op])], op, previous)
                previous = self._place[op]
        for send, op in receives:
            if send not in self._received:
                self._add_receive(send, op, -1, posted=False)
            self._before[self._place[op]].append(self._received[send])
        waits = ops.waits
        for op, place in self._place.items():
            awaited = waits.op[waits.first[op] : waits.first[op + 1]].tolist()
            self._before[place] += [self._place[other] for other in awaited if other in self._place]
        return [self._ordered(place, work) for place, work in enumerate(self._found)]

    def _ordered(self, place: int, work: WorkRow) -> WorkRow:
        """Return work with the latest on every other track that it waited for."""
        latest: dict[Track, int] = {}
        for other in self._before[place]:
            found = self._found[other]
            known = latest.get(found.track)
            if found.track != work.track and (known is None or found.end >= self._found[known].end):
                latest[found.track] = other
        return work._replace(after=tuple(latest.values())) if latest else work

    def _add(self, op: int, lane: int, label: Label, previous: int) -> None:
        ops, times = self._ops, self._times
        self._place[op] = len(self._found)
        self._found.append(WorkRow(
            (label.stream, ops.lane_name[lane], -1), label.kind, label.name, label.layer, label.axis, label.bytes,
            int(ops.step[op]), int(ops.chunk[op]), int(ops.microbatch[op]), float(times.ready[op]),
            float(times.start[op]), float(times.end[op]), self._run.receiver.get(op, -1),
        ))  # fmt: skip
        self._before.append([previous] if previous >= 0 else [])

    def _add_receive(self, send: int, op: int, previous: int, *, posted: bool = True) -> None:
        """Add the receiver's side of a message; where it was not posted it begins with the message."""
        ops, times = self._ops, self._times
        lane, sent, stage = int(ops.lane[send]), ops.labels[ops.label[send]], self._run.stage[ops.lane[send]]
        self._received[send] = len(self._found)
        if posted:
            self._place[op] = len(self._found)
        ready = times.ready[op] if posted else times.start[send]
        self._found.append(WorkRow(
            ("pp", ops.lane_name[lane], stage), RECEIVE, sent.name, -1, "", sent.bytes, int(ops.step[op]),
            int(ops.chunk[op]), int(ops.microbatch[op]), float(ready), float(times.start[send]),
            float(times.end[send]), stage,
        ))  # fmt: skip
        self._before.append([previous] if previous >= 0 else [])
