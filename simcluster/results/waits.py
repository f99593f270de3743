"""Who waited for whom, and how long: at collectives for the last member, in the pipeline for the sender or receiver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcluster.planning.ops import MAIN
from simcluster.programs.program import Program


@dataclass(frozen=True, slots=True)
class Wait:
    """``rank`` waited ``seconds`` for ``culprit``: at collectives ("group"), or for its tensors ("pipeline")."""

    rank: int
    culprit: int
    where: str
    seconds: float


def waits(
    program: Program,
    ready: npt.NDArray[np.float64],
    start: npt.NDArray[np.float64],
    end: npt.NDArray[np.float64],
    last: npt.NDArray[np.int64],
) -> list[Wait]:
    """All waiting between simulated ranks, longest first (ties by rank).

    What waits beside computation (a bucket of gradients for the other replicas') counts only while its rank has nothing
    else to do.
    """
    lane = np.array(program.lane, dtype=np.int64)
    rank_of = np.array(program.lane_rank, dtype=np.int64)[lane]
    found: dict[tuple[int, int, str], float] = {}
    late = np.flatnonzero((ready < start) & (last != np.arange(len(last))))
    late = late[np.lexsort((start[late], ready[late]))]
    met = dict.fromkeys(send for send, _ in program.receives if program.meetings[program.meeting[send]].parties > 1)
    busy = _Busy(program, start, end)
    until: dict[tuple[int, int, str], float] = {}  # a send and a receive may wait for the same rank at the same time
    for op in late.tolist():
        pair = op in met or not program.row_sets[program.rows[op]]  # a send or its receive at a rendezvous
        key = (int(rank_of[op]), int(rank_of[last[op]]), "pipeline" if pair else "group")
        begin = max(float(ready[op]), until.get(key, 0.0)) if pair else float(ready[op])
        idle = busy.idle(op, begin, float(start[op]))
        if idle > 0:
            found[key] = found.get(key, 0.0) + idle
        until[key] = max(until.get(key, 0.0), float(start[op]))
    before = np.full(len(lane), -1, dtype=np.int64)
    for ops in program.lanes:
        before[ops[1:]] = ops[:-1]
    for send, receiver in program.receives:
        if send in met:
            continue
        free = end[before[receiver]] if before[receiver] >= 0 else 0.0
        gap = float(min(start[send], ready[receiver]) - free)
        if gap > 0:  # until the send began; from then on it is communication
            key = (int(rank_of[receiver]), int(rank_of[send]), "pipeline")
            found[key] = found.get(key, 0.0) + gap
    rows = [Wait(rank, culprit, where, seconds) for (rank, culprit, where), seconds in found.items()]
    return sorted(rows, key=lambda wait: (-wait.seconds, wait.rank, wait.culprit, wait.where))


class _Busy:
    """When the main lane of each rank is at work."""

    def __init__(self, program: Program, start: npt.NDArray[np.float64], end: npt.NDArray[np.float64]) -> None:
        self._program = program
        self._main: dict[int, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]] = {}
        for ops, rank, name in zip(program.lanes, program.lane_rank, program.lane_name, strict=True):
            if name == MAIN and ops:
                done = np.concatenate([[0.0], np.cumsum(end[ops] - start[ops])])
                self._main[rank] = start[ops], end[ops], done

    def idle(self, op: int, begin: float, until: float) -> float:
        """Seconds between the two times in which the op's rank does nothing that the op runs beside."""
        lane = self._program.lane[op]
        rank = self._program.lane_rank[lane]
        if self._program.lane_name[lane] == MAIN or rank not in self._main:
            return max(0.0, until - begin)
        return max(0.0, until - begin - (self._before(rank, until) - self._before(rank, begin)))

    def _before(self, rank: int, instant: float) -> float:
        """Seconds of work on a rank's main lane before an instant."""
        start, end, done = self._main[rank]
        count = int(np.searchsorted(start, instant))
        under_way = max(0.0, float(end[count - 1]) - instant) if count else 0.0
        return float(done[count]) - under_way
