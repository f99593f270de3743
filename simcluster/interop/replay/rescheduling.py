"""Replay of recorded durations in the order of another pipeline schedule.

Assumptions where a trace has no data: I and W take half of a backward each; a stage's time is split evenly over its
chunks, but the extra time of the last stage (the head and the loss) stays with the last slice of the model; a message
that was not recorded takes the typical time of its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.base.errors import InputError
from simcluster.interop.replay.recorded_trace import BACKWARD, FORWARD, MESSAGE_TYPES, WEIGHT_GRADIENT
from simcluster.interop.replay.step_graph import MAIN_LANE, Lane, StepGraph, make_op_filter
from simcluster.schedules import SCHEDULES, Action, Hop, Schedule, schedule_entry

_I_SHARE = 0.5  # share of a backward that is the input gradient
_OPTYPES = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT_GRADIENT}


def count_microbatches(graph: StepGraph) -> int:
    """Return the number of microbatches per replica and step."""
    last = int(graph.microbatch.max())
    there = np.unique(graph.microbatch[graph.microbatch >= 0])
    if len(there) <= last:
        lost = next(number for number in range(last) if number not in there)
        raise InputError(f"cannot change the schedule: microbatch {lost} was not recorded; record all from 0 to {last}")
    return last + 1


def identify_schedule(graph: StepGraph) -> str:
    """Identify the pipeline schedule that the first replica ran; return its name, or an empty string."""
    kinds = {FORWARD: "F", BACKWARD: "B"}
    rows = [
        [
            Action(kinds[graph.optype[op]], int(graph.microbatch[op]))  # type: ignore[arg-type]
            for op in graph.lanes.get((stage, MAIN_LANE), ())
            if graph.optype[op] in kinds
        ]
        for stage in range(graph.stages)
    ]
    for name in SCHEDULES:
        try:
            schedule = schedule_entry(name)(graph.stages, count_microbatches(graph))
        except InputError:
            continue
        if schedule.num_chunks == 1 and [list(row) for row in schedule.rows] == rows:
            return name
    return ""


def reschedule_step(graph: StepGraph, schedule: Schedule) -> StepGraph:
    """Return a copy of a step graph whose passes are in the order of another pipeline schedule.

    Each worker's ops before its first pass and after its last stay. Raises InputError if the job already has chunks, or
    collectives that overlap with its passes: their position in another order is unknown.
    """
    others = [ops[0] for (_, name), ops in graph.lanes.items() if name != MAIN_LANE]
    if any(graph.optype[op] not in MESSAGE_TYPES for op in others):
        raise InputError(
            "cannot change the schedule: the job's collectives overlap with passes, and their position in another "
            "order is unknown; remove 'schedule=' from the question"
        )
    if graph.chunk.max() >= graph.stages:
        raise InputError(
            "cannot change the schedule: the job has several chunks per stage, so the time of a stage's whole share "
            "is not recorded; remove 'schedule=' from the question"
        )
    return _Rescheduler(graph, schedule).build()


class _Rescheduler:
    def __init__(self, old: StepGraph, schedule: Schedule) -> None:
        self._old, self._schedule = old, schedule
        self._ops: list[tuple[str, int, int, int]] = []  # type, worker, microbatch, position of the chunk
        self._op_seconds: list[Floats] = []
        self._after: list[list[int]] = []
        self._lanes: dict[Lane, list[int]] = {}
        self._groups: list[tuple[int, ...]] = []
        self._new_op: dict[int, int] = {}  # op of the old graph -> op of the new one
        # (replica, kind, microbatch, virtual stage) -> op and its stage and chunk
        self._passes: dict[tuple[int, str, int, int], tuple[int, Hop]] = {}
        rows = zip(old.worker.tolist(), old.optype, old.microbatch.tolist(), old.seconds, strict=True)
        self._measured = {(worker, optype, number): seconds for worker, optype, number, seconds in rows}
        last = old.stage == old.stages - 1
        self._head = dict.fromkeys((FORWARD, BACKWARD), 0.0)  # extra seconds per pass of the last stage
        for optype in self._head if old.stages > 1 else ():
            own = make_op_filter("types", optype)(old)
            self._head[optype] = max(0.0, float(old.seconds[own & last].mean() - old.seconds[own & ~last].mean()))
        # seconds by kind, sending worker, receiving worker and microbatch; typical seconds by kind
        self._transfers: dict[tuple[str, int, int, int], Floats] = {}
        served = {other: op for op in range(len(old)) for other in old.after[op] if old.optype[other] in MESSAGE_TYPES}
        taken: dict[str, list[Floats]] = {"F": [], "B": []}
        for group in old.groups:
            receive = next((op for op in group if old.optype[op].endswith("-recv")), None)
            if receive is not None:
                send = next(op for op in group if op != receive)
                kind = "F" if old.optype[receive] == "forward-recv" else "B"
                ends = int(old.worker[send]), int(old.worker[receive])
                self._transfers[kind, *ends, int(old.microbatch[served[receive]])] = old.seconds[receive]
                taken[kind].append(old.seconds[receive])
        self._typical = {kind: float(np.median(found)) if found else 0.0 for kind, found in taken.items()}

    def build(self) -> StepGraph:
        old = self._old
        for worker in sorted(set(old.worker.tolist())):
            self._fill_main_lane(worker)
        self._connect_passes()
        for group in old.groups:
            if old.optype[group[0]] not in MESSAGE_TYPES:
                self._groups.append(tuple(self._new_op[op] for op in group))
        optype, *columns = zip(*self._ops, strict=True)
        worker, microbatch, chunk = (np.array(each, dtype=np.int64) for each in columns)
        nothing = np.zeros((len(self._ops), len(old.steps)))  # no recorded times
        return StepGraph(
            old.stages, old.steps, optype, worker, microbatch, chunk,
            lanes={lane: tuple(ops) for lane, ops in self._lanes.items()}, after=tuple(map(tuple, self._after)),
            groups=tuple(self._groups), seconds=np.array(self._op_seconds).reshape(nothing.shape),
            recorded_start=nothing, recorded_end=nothing,
        )  # fmt: skip

    def _add_op(
        self, lane: str, optype: str, worker: int, seconds: Floats, *, microbatch: int = -1, chunk: int = -1,
        after: Sequence[int] = (),
    ) -> int:  # fmt: skip
        self._ops.append((optype, worker, microbatch, chunk))
        self._op_seconds.append(seconds)
        self._after.append(list(after))
        self._lanes.setdefault((worker, lane), []).append(len(self._ops) - 1)
        return len(self._ops) - 1

    def _fill_main_lane(self, worker: int) -> None:
        """Queue a worker's ops in order: those before the first pass, the schedule's passes, then the rest."""
        old = self._old
        lane = old.lanes[worker, MAIN_LANE]
        passes = [place for place, op in enumerate(lane) if old.optype[op] in (FORWARD, BACKWARD)]
        others = [op for op in lane[passes[0] :] if old.optype[op] not in (FORWARD, BACKWARD)]
        replica, stage = divmod(worker, old.stages)
        for op in lane[: passes[0]]:
            self._new_op[op] = self._add_op(MAIN_LANE, old.optype[op], worker, old.seconds[op])
        for action in self._schedule.rows[stage]:
            here = self._schedule.virtual_stage(action.microbatch, stage, action.chunk)
            number = self._add_op(
                MAIN_LANE, _OPTYPES[action.kind], worker, self._pass_seconds(worker, action),
                microbatch=action.microbatch, chunk=here,
            )  # fmt: skip
            made = "B" if action.kind == "I" else action.kind
            self._passes[replica, made, action.microbatch, here] = number, (stage, action.chunk)
        for op in others:
            self._new_op[op] = self._add_op(MAIN_LANE, old.optype[op], worker, old.seconds[op])

    def _pass_seconds(self, worker: int, action: Action) -> Floats:
        stage, optype = worker % self._old.stages, BACKWARD if action.kind in "BIW" else FORWARD
        measured = self._measured.get((worker, optype, action.microbatch))
        if measured is None:
            raise InputError(
                f"cannot change the schedule: no {optype} of microbatch {action.microbatch} was recorded on dp_rank "
                f"{worker // self._old.stages}, stage {stage}; record all microbatches"
            )
        head = self._head[optype]
        own = head if stage == self._old.stages - 1 else 0.0
        ends = self._schedule.next_hop(action.microbatch, stage, action.chunk) is None
        chunks = len([hop for hop in self._schedule.microbatch_route(action.microbatch) if hop[0] == stage])
        seconds = np.maximum(measured - own, 0.0) / chunks + (head if ends else 0.0)
        return np.asarray({"I": _I_SHARE, "W": 1.0 - _I_SHARE}.get(action.kind, 1.0) * seconds)

    def _connect_passes(self) -> None:
        """Add messages between passes on different stages, once all passes exist.

        A receive is posted when the preceding pass of its kind on that chunk has ended.
        """
        hops = {"F": self._schedule.next_hop, "B": self._schedule.previous_hop}
        for (replica, made, microbatch, _), (op, source) in self._passes.items():
            target = hops[made](microbatch, *source) if made in hops else None
            if target is None:
                continue
            user, _ = self._passes[replica, made, microbatch, self._schedule.virtual_stage(microbatch, *target)]
            if target[0] == source[0]:
                self._after[user].append(op)
            else:
                self._add_message_ops(replica, made, source, target, microbatch, op, user)
        pairs = ((other, op) for op, own in enumerate(self._after) for other in own)
        serves = {other: op for other, op in pairs if self._ops[other][0] in MESSAGE_TYPES}
        for (worker, name), ops in self._lanes.items():
            if name.startswith("recv"):
                main = {op: place for place, op in enumerate(self._lanes[worker, MAIN_LANE])}
                ops.sort(key=lambda receive, main=main: main[serves[receive]])  # type: ignore[misc]
                for before, receive in pairwise(ops):
                    self._after[receive].append(serves[before])

    def _add_message_ops(
        self, replica: int, made: str, source: Hop, target: Hop, microbatch: int, op: int, user: int
    ) -> None:
        old, kind = self._old, "forward" if made == "F" else "backward"
        ends = replica * old.stages + source[0], replica * old.stages + target[0]
        seconds = self._transfers.get((made, *ends, microbatch), np.full(len(old.steps), self._typical[made]))
        name = f"{kind} {source[1]} to {target[0]}.{target[1]}"
        send = self._add_op(f"send {name}", f"{kind}-send", ends[0], seconds, microbatch=microbatch, after=[op])
        receive = self._add_op(f"recv {name}", f"{kind}-recv", ends[1], seconds, microbatch=microbatch)
        self._groups.append((send, receive))
        self._after[user].append(receive)
