"""What every rank did and what each piece of it waited for: the program's rows with the times that were played.

Spans have no order of cause; a profile needs it (events between streams, launches).  So this goes over the program:
an op follows the one before it on its lane and what it names; a receive, which leaves no row, is a piece of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import count
from typing import NamedTuple

from simcluster.planning.ops import MAIN
from simcluster.programs.program import RowTimes, SpanRow
from simcluster.results.metrics import EXPOSED
from simcluster.results.played import Run

RECEIVE, HOST = "recv", "host"
Track = tuple[str, str, int]
"""Stream, lane (of a receive that of its sender) and the stage that a receive comes from (-1: none): in order, so
nothing on a track overlaps."""


COMPUTE: Track = ("compute", MAIN, -1)


class WorkRow(NamedTuple):
    """A row of an op on a rank, in seconds, as the timeline has it.

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
    """The work of a run's simulated ranks, by the program's numbers of ranks.

    ``lanes`` and ``receives`` (send, op that waits for it) are those of every rank, ``receiver`` the stage that gets
    what an op sends, ``stage`` that of every lane's rank in its own job, which may be one of several in the program.
    """

    def __init__(self, run: Run) -> None:
        self.program, self.slowed = run.lowered.program, run.record.slowed
        self.times = [each.tolist() for each in (run.record.ready, run.record.start, run.record.end)]
        self.lanes: dict[int, list[int]] = defaultdict(list)
        for lane, rank in enumerate(self.program.lane_rank):
            self.lanes[rank].append(lane)
        first = min(self.program.lane_stage[lane] for rank in run.ranks for lane in self.lanes[rank])
        self.stage = [stage - first for stage in self.program.lane_stage]
        self.receives: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for send, op in self.program.receives:
            self.receives[self.program.lane_rank[self.program.lane[op]]].append((send, op))
        self.receiver = {send: self.stage[self.program.lane[op]] for send, op in self.program.receives}

    def of_rank(self, rank: int) -> list[WorkRow]:
        """All that a simulated rank did, in the order of its lanes."""
        return _Rank(self, rank).work()

    @cached_property
    def _numbers(self) -> dict[tuple[str, str], int]:
        """CUDA streams by stream and lane, but for receives: 7 for compute, as in PyTorch, others from 20 on."""
        program = self.program
        pairs = {(row, program.lane_name[lane]): None for row, lane in zip(program.rows, program.lane, strict=True)}
        used = {(row.stream, row.lane or lane) for rows, lane in pairs for row in program.row_sets[rows]}
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

    def __init__(self, played: RunWork, rank: int) -> None:
        self._played, self._rank = played, rank
        self._program = played.program
        self._found: list[WorkRow] = []
        self._before: list[list[int]] = []
        self._first: dict[int, int] = {}  # op -> the place of its first row
        self._last: dict[int, int] = {}
        self._received: dict[int, int] = {}  # send -> the place of its receive here

    def work(self) -> list[WorkRow]:
        """In the order of lanes, with what each waited for."""
        program, lanes = self._program, self._played.lanes[self._rank]
        sends = {program.meeting[send]: send for send, _ in self._played.receives[self._rank]}
        for lane in lanes:
            previous = -1
            for op in program.lanes[lane]:
                rows = program.row_sets[program.rows[op]]
                if rows:
                    self._add_rows(op, lane, rows, previous)
                else:
                    self._add_receive(sends[program.meeting[op]], op, previous)
                previous = self._last[op]
        for send, op in self._played.receives[self._rank]:
            if send not in self._received:
                self._add_receive(send, op, -1, posted=False)
            self._before[self._first[op]].append(self._received[send])
        for op, place in self._first.items():
            self._before[place] += [self._last[other] for other in program.after[op] if other in self._last]
        return [self._ordered(place, work) for place, work in enumerate(self._found)]

    def _ordered(self, place: int, work: WorkRow) -> WorkRow:
        """With the latest on every other track that it waited for."""
        latest: dict[Track, int] = {}
        for other in self._before[place]:
            found = self._found[other]
            known = latest.get(found.track)
            if found.track != work.track and (known is None or found.end >= self._found[known].end):
                latest[found.track] = other
        return work._replace(after=tuple(latest.values())) if latest else work

    def _add_rows(self, op: int, lane: int, rows: tuple[SpanRow, ...], previous: int) -> None:
        program, played, (ready, start, end) = self._program, self._played, self._played.times
        base, own = len(self._found), program.lane_name[lane]
        times: RowTimes = played.slowed[op] if op in played.slowed else [(row.start, row.end) for row in rows]
        on_lane = {own: previous}
        peer = played.receiver.get(op, -1)
        met = program.meeting[op] >= 0
        for row, (begin, finish) in zip(rows, times, strict=True):
            name = row.lane or own
            span = (
                (ready[op], start[op], end[op]) if met else (start[op] + begin, start[op] + begin, start[op] + finish)
            )
            self._found.append(WorkRow(
                (row.stream, name, -1), row.kind, row.name, row.layer, row.axis, row.bytes, program.step[op],
                program.chunk[op], program.microbatch[op], *span, peer,
            ))  # fmt: skip
            before = [base + place for place in row.after]
            if on_lane.get(name, -1) >= 0:
                before.append(on_lane[name])
            self._before.append(before)
            on_lane[name] = len(self._found) - 1
        self._first[op], self._last[op] = base, len(self._found) - 1

    def _add_receive(self, send: int, op: int, previous: int, *, posted: bool = True) -> None:
        """The receiver's side of a message; where it was not posted it begins with the message."""
        program, (ready, start, end) = self._program, self._played.times
        place, lane = len(self._found), program.lane[send]
        sent = program.row_sets[program.rows[send]][0]
        stage = self._played.stage[lane]
        self._found.append(WorkRow(
            ("pp", program.lane_name[lane], stage), RECEIVE, sent.name, -1, "", sent.bytes, program.step[op],
            program.chunk[op], program.microbatch[op], ready[op] if posted else start[send], start[send], end[send],
            stage,
        ))  # fmt: skip
        self._before.append([previous] if previous >= 0 else [])
        self._received[send] = place
        if posted:
            self._first[op] = self._last[op] = place
