"""A recorded job in another order: the same measured times under another schedule's rows.

What a trace does not say is assumed: I and W take half of a backward each; a stage's time is shared out evenly over its
chunks, but what the last stage takes longer than the others (the head and the loss) stays with the last slice of the
model; a message that was not recorded takes what is typical of its kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.interop.recorded.graph import MAIN, GraphMaker, StepGraph
from simcluster.interop.recorded.trace import BACKWARD, FORWARD, MESSAGES, WEIGHT
from simcluster.schedules import SCHEDULES, Action, Hop, Schedule, schedule_function

_SPLIT = 0.5  # of a backward is the gradient of the input
_OPTYPES = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT}


def microbatches_of(graph: StepGraph) -> int:
    """Microbatches of a replica in a step."""
    last = int(graph.microbatch.max())
    there = np.unique(graph.microbatch[graph.microbatch >= 0])
    if len(there) <= last:
        lost = int(np.argmin(there == np.arange(len(there)))) if (there != np.arange(len(there))).any() else len(there)
        raise InputError(f"another schedule: no op of microbatch {lost} was recorded, and the last one is {last}")
    return last + 1


def schedule_of(graph: StepGraph) -> str:
    """The name of the schedule whose rows were recorded, "" for none that is known (chunks are not looked at)."""
    rows = _rows(graph)
    for name in SCHEDULES:
        try:
            schedule = schedule_function(name)(graph.stages, microbatches_of(graph))
        except InputError:
            continue
        if schedule.num_chunks == 1 and [list(row) for row in schedule.rows] == rows:
            return name
    return ""


def _rows(graph: StepGraph) -> list[list[Action]]:
    """What the workers of the first replica did, in order."""
    kinds = {FORWARD: "F", BACKWARD: "B"}
    rows = []
    for stage in range(graph.stages):
        lane = graph.lanes.get((stage, MAIN), ())
        rows.append(
            [Action(kinds[graph.optype[op]], int(graph.microbatch[op])) for op in lane if graph.optype[op] in kinds]  # type: ignore[arg-type]
        )
    return rows


def rescheduled(graph: StepGraph, schedule: Schedule) -> StepGraph:
    """The graph with its pipeline in the order of a schedule for as many stages and microbatches.

    What each worker does before its first pass and behind its last stays.  InputError where a job has chunks already,
    or collectives beside its passes: their place in another order is not known.
    """
    beside = [ops[0] for (_, name), ops in graph.lanes.items() if name != MAIN]
    if any(graph.optype[op] not in MESSAGES for op in beside):
        raise InputError("another schedule: this job runs collectives beside its passes, and a trace does not say "
                         "where they would be in another order")  # fmt: skip
    if graph.chunk.max() >= graph.stages:
        raise InputError("another schedule: this job has several chunks a stage; what each stage takes for the whole "
                         "of its share is not recorded")  # fmt: skip
    return _Rescheduling(graph, schedule).graph()


@dataclass
class _Rescheduling:
    old: StepGraph
    schedule: Schedule

    def __post_init__(self) -> None:
        old = self.old
        self._new = GraphMaker(old.stages, old.steps)
        self._moved: dict[int, int] = {}  # op of the old graph -> of the new
        # (replica, kind, microbatch, virtual stage) -> op, and where it is
        self._passes: dict[tuple[int, str, int, int], tuple[int, Hop]] = {}
        self._measured = {
            (int(worker), optype, int(microbatch)): old.seconds[op]
            for op, (worker, optype, microbatch) in enumerate(zip(old.worker, old.optype, old.microbatch, strict=True))
            if optype in (FORWARD, BACKWARD)
        }
        self._head = {optype: self._excess(optype) for optype in (FORWARD, BACKWARD)}
        self._transfers = self._recorded_transfers()

    def graph(self) -> StepGraph:
        for worker in sorted(set(self.old.worker.tolist())):
            self._worker(worker)
        self._connect()
        for group in self.old.groups:
            if self.old.optype[group[0]] not in MESSAGES:
                self._new.groups.append(tuple(self._moved[op] for op in group))
        return self._new.made()

    def _excess(self, optype: str) -> float:
        """Seconds that the last stage takes longer for a pass than the others do."""
        old = self.old
        passes, last = np.array(old.optype) == optype, old.stage == old.stages - 1
        if old.stages == 1:
            return 0.0
        return max(0.0, float(old.seconds[passes & last].mean() - old.seconds[passes & ~last].mean()))

    def _recorded_transfers(self) -> dict[tuple[str, int, int, int], Floats]:
        """(kind, sending worker, receiving worker, microbatch) -> seconds."""
        old, found = self.old, {}
        served = {other: op for op in range(len(old)) for other in old.after[op] if old.optype[other] in MESSAGES}
        for group in old.groups:
            receive = next((op for op in group if old.optype[op].endswith("-recv")), None)
            if receive is not None:
                send = next(op for op in group if op != receive)
                kind = "F" if old.optype[receive] == "forward-recv" else "B"
                microbatch = int(old.microbatch[served[receive]])
                found[kind, int(old.worker[send]), int(old.worker[receive]), microbatch] = old.seconds[receive]
        return found

    def _worker(self, worker: int) -> None:
        """The main lane: what came before the passes, the schedule's row, what came behind them."""
        lane = self.old.lanes[worker, MAIN]
        passes = [place for place, op in enumerate(lane) if self.old.optype[op] in (FORWARD, BACKWARD)]
        inside = range(passes[0], passes[-1] + 1)
        between = [op for place, op in enumerate(lane) if place in inside and place not in set(passes)]
        for op in lane[: passes[0]]:
            self._move(op)
        for action in self.schedule.rows[worker % self.old.stages]:
            self._pass(worker, action)
        for op in (*between, *lane[passes[-1] + 1 :]):
            self._move(op)

    def _move(self, op: int) -> None:
        old = self.old
        self._moved[op] = self._new.add(MAIN, old.optype[op], int(old.worker[op]), old.seconds[op])

    def _pass(self, worker: int, action: Action) -> None:
        replica, stage = divmod(worker, self.old.stages)
        here = self.schedule.virtual_stage(action.microbatch, stage, action.chunk)
        op = self._new.add(
            MAIN, _OPTYPES[action.kind], worker, self._seconds(worker, action), microbatch=action.microbatch, chunk=here
        )
        made = "B" if action.kind == "I" else action.kind
        self._passes[replica, made, action.microbatch, here] = op, (stage, action.chunk)

    def _seconds(self, worker: int, action: Action) -> Floats:
        """What was measured on this worker for this microbatch, for this chunk's share of it."""
        stage, optype = worker % self.old.stages, BACKWARD if action.kind in "BIW" else FORWARD
        measured = self._measured.get((worker, optype, action.microbatch))
        if measured is None:
            raise InputError(f"another schedule: no {optype} of microbatch {action.microbatch} was recorded on "
                             f"dp_rank {worker // self.old.stages}, stage {stage}")  # fmt: skip
        head = self._head[optype]
        own = head if stage == self.old.stages - 1 else 0.0
        ends = self.schedule.next_hop(action.microbatch, stage, action.chunk) is None
        chunks = len([hop for hop in self.schedule.route(action.microbatch) if hop[0] == stage])
        seconds = np.maximum(measured - own, 0.0) / chunks + (head if ends else 0.0)
        part = {"I": _SPLIT, "W": 1.0 - _SPLIT}.get(action.kind, 1.0)
        return np.asarray(part * seconds)

    def _connect(self) -> None:
        """Messages between passes on different stages, after all passes are there."""
        hops = {"F": self.schedule.next_hop, "B": self.schedule.previous_hop}
        for (replica, made, microbatch, _), (op, source) in self._passes.items():
            target = hops[made](microbatch, *source) if made in hops else None
            if target is None:
                continue
            user, _ = self._passes[replica, made, microbatch, self.schedule.virtual_stage(microbatch, *target)]
            if target[0] == source[0]:
                self._new.after[user].append(op)
            else:
                self._message(replica, made, source, target, microbatch, op, user)
        self._order_receives()

    def _message(self, replica: int, made: str, source: Hop, target: Hop, microbatch: int, op: int, user: int) -> None:
        kind = "forward" if made == "F" else "backward"
        ends = replica * self.old.stages + source[0], replica * self.old.stages + target[0]
        recorded = self._transfers.get((made, *ends, microbatch))
        seconds = self._typical(f"{kind}-recv") if recorded is None else recorded
        name = f"{kind} {source[1]} to {target[0]}.{target[1]}"
        send = self._new.add(f"send {name}", f"{kind}-send", ends[0], seconds, microbatch=microbatch, after=[op])
        receive = self._new.add(f"recv {name}", f"{kind}-recv", ends[1], seconds, microbatch=microbatch)
        self._new.groups.append((send, receive))
        self._new.after[user].append(receive)

    def _typical(self, optype: str) -> Floats:
        chosen = np.array(self.old.optype) == optype
        seconds = float(np.median(self.old.seconds[chosen])) if chosen.any() else 0.0
        return np.full(len(self.old.steps), seconds)

    def _order_receives(self) -> None:
        """A receive is posted when the pass before the one that it serves, of its kind on that chunk, is over."""
        new = self._new
        serves = {other: op for op, others in enumerate(new.after) for other in others if new.optype[other] in MESSAGES}
        for (worker, name), ops in new.lanes.items():
            if name.startswith("recv"):
                main = {op: place for place, op in enumerate(new.lanes[worker, MAIN])}
                ops.sort(key=lambda receive, main=main: main[serves[receive]])  # type: ignore[misc]
                for before, receive in pairwise(ops):
                    new.after[receive].append(serves[before])
