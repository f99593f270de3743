"""Builder of step graphs: reconstructs the ops for which each recorded op waited.

The rules are those of arXiv:2505.05713, section 3: compute runs in order; a message begins when both sides are ready, a
collective when all members are; a forward needs its activation, a backward its gradient; a receive is posted after the
preceding compute of the same kind. Where a trace shows that a rule did not hold (a receive that began before that
compute ended, a collective that overlaps with compute), the recording prevails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.errors import InputError
from simcluster.interop.replay.recorded_trace import (
    BACKWARD,
    COLLECTIVE_SCOPES,
    FORWARD,
    LAUNCH_PREFIX,
    MESSAGE_TYPES,
    RecordedTrace,
    find_overlapped_collectives,
    group_equal_steps,
)
from simcluster.interop.replay.step_graph import MAIN_LANE, Lane, StepGraph

_OVERLAP_SLACK = 1e-5  # seconds by which recorded ops of a stream may overlap: clocks and rounding
_PASS_SLACK_SHARE = 0.01  # and at most this share of a typical pass


def build_step_graphs(trace: RecordedTrace) -> tuple[StepGraph, ...]:
    """Return one step graph for each set of steps in which every worker runs the same ops in the same order.

    ``seconds`` is still zero (``trace_checks.set_op_seconds`` sets it). Raises InputError naming the row for a
    message without its other half, a compute without its message and a collective that lacks a member.
    """
    passes = trace.duration[trace.type_mask([FORWARD, BACKWARD])]
    if not len(passes):
        raise InputError(f"trace {trace.name!r} has neither {FORWARD} nor {BACKWARD} ops; record both")
    slack = min(_OVERLAP_SLACK, _PASS_SLACK_SHARE * float(np.median(passes)))
    overlapped = find_overlapped_collectives(trace, slack)
    return tuple(_GraphBuilder(trace, rows, overlapped, slack).build() for rows in group_equal_steps(trace, overlapped))


class _RecordedPass(NamedTuple):
    op: int
    is_forward: bool
    worker: int
    microbatch: int
    model_chunk: int


class _GraphBuilder:
    """Builder of one graph for steps that run the same ops; ``rows[op, step]`` is an op's row in the trace."""

    def __init__(self, trace: RecordedTrace, rows: Ints, overlapped: tuple[str, ...], tolerance: float) -> None:
        self._trace, self._rows, self._overlapped, self._slack = trace, rows, overlapped, tolerance
        self._stages = trace.stages
        first = rows[:, 0]
        self._optype = [trace.optype_names[code] for code in trace.optype[first]]
        self._worker: list[int] = trace.worker_numbers[first].tolist()
        self._seq: list[int] = trace.seq_id[first].tolist()
        self._chunk: list[int] = trace.mc[first].tolist()
        self._began: Floats = trace.start_ts[rows]
        self._ended: Floats = self._began + trace.duration[rows]
        self._after: list[dict[int, None]] = [{} for _ in first]
        self._lanes: dict[Lane, list[int]] = {}
        self._waiting: dict[int, list[int]] = defaultdict(list)  # the passes that wait for a receive
        self._groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        self._launch_times: list[tuple[Floats, Floats]] = []  # start and end of the added launch ops

    def build(self) -> StepGraph:
        self._fill_lanes()
        passes = self._find_passes()
        self._pair_messages(passes)
        self._split_message_lanes()
        self._group_collectives()
        for worker in sorted(set(self._worker)):
            self._connect_overlapped_ops(worker)
        trace = self._trace
        return StepGraph(
            stages=self._stages, steps=tuple(trace.step[self._rows[0]].tolist()), optype=tuple(self._optype),
            worker=np.array(self._worker, dtype=np.int64),
            microbatch=np.array([passes[op].microbatch if op in passes else -1 for op in range(len(self._optype))]),
            chunk=np.array([passes[op].model_chunk if op in passes else -1 for op in range(len(self._optype))]),
            lanes={lane: tuple(ops) for lane, ops in self._lanes.items()},
            after=tuple(tuple(found) for found in self._after),
            groups=tuple(tuple(ops) for ops in self._groups.values() if len(ops) > 1),
            seconds=np.zeros((len(self._optype), self._began.shape[1])),
            recorded_start=np.vstack([self._began, *(began for began, _ in self._launch_times)]),
            recorded_end=np.vstack([self._ended, *(ended for _, ended in self._launch_times)]),
        )  # fmt: skip

    def _fill_lanes(self) -> None:
        """Assign ops to lanes (in-order queues): messages sorted by seq_id, other ops by recorded time."""
        for op in np.lexsort((self._ended[:, 0], self._began[:, 0], np.array(self._worker))).tolist():
            optype = self._optype[op]
            name = optype if optype in MESSAGE_TYPES or optype in self._overlapped else MAIN_LANE
            self._lanes.setdefault((self._worker[op], name), []).append(op)
        for (_, name), ops in self._lanes.items():
            if name in MESSAGE_TYPES:
                ops.sort(key=lambda op: self._seq[op])

    def _find_passes(self) -> dict[int, _RecordedPass]:
        trace, rows = self._trace, self._rows[:, 0]
        share = np.maximum(trace.mc, 0) * self._stages + trace.stage
        place = np.where(trace.gmc < 0, share, trace.gmc)[rows].tolist()
        number = np.where(trace.mb_id < 0, trace.seq_id, trace.mb_id)[rows].tolist()
        return {
            op: _RecordedPass(op, self._optype[op] == FORWARD, worker, number[op], place[op])
            for (worker, name), ops in self._lanes.items()
            for op in ops
            if name == MAIN_LANE and self._optype[op] in (FORWARD, BACKWARD)
        }

    def _pair_messages(self, passes: Mapping[int, _RecordedPass]) -> None:
        """Pair each send with the receive that connects the same two passes, and add the waits of both."""
        at = {(each.worker // self._stages, *each[3:], each.is_forward): each for each in passes.values()}
        edges = []  # pairs of a pass and the one that produces its input
        for each in passes.values():
            place = each.model_chunk + (-1 if each.is_forward else 1)
            before = at.get((each.worker // self._stages, each.microbatch, place, each.is_forward))
            if before is not None:
                edges.append((before, each))
        order = {op: number for number, op in enumerate(passes)}
        across = [(before, each) for before, each in edges if before.worker != each.worker]
        sends = self._match_messages("send", [before for before, _ in across], order)
        receives = self._match_messages("recv", [each for _, each in across], order)
        for before, each in edges:
            if before.worker == each.worker:
                self._after[each.op][before.op] = None
                continue
            send, receive = sends[before.op], receives[each.op]
            self._groups["message", send].extend([send, receive])
            self._after[send][before.op] = None
            self._after[each.op][receive] = None
            self._waiting[receive].append(each.op)
            if self._trace.blocking:
                main = self._lanes[before.worker, MAIN_LANE]
                for held_up in main[main.index(before.op) + 1 :][:1]:
                    self._after[held_up][send] = None
        for receive in receives.values():
            self._add_receive_wait(receive)

    def _match_messages(self, half: str, served: Sequence[_RecordedPass], order: Mapping[int, int]) -> dict[int, int]:
        """Match passes with their sends (or receives): a worker's k-th message belongs to the worker's k-th pass."""
        found: dict[int, int] = {}
        for forward, kind in ((True, "forward"), (False, "backward")):
            wanted: dict[int, list[int]] = defaultdict(list)
            for each in served:
                if each.is_forward == forward:
                    wanted[each.worker].append(each.op)
            optype = f"{kind}-{half}"
            for worker in sorted(set(self._worker)):
                passes = sorted(wanted[worker], key=order.__getitem__)
                self._check_message_count(optype, worker, passes)
                found.update(zip(passes, self._lanes.get((worker, optype), ()), strict=True))
        return found

    def _check_message_count(self, optype: str, worker: int, passes: list[int]) -> None:
        ops = self._lanes.get((worker, optype), [])
        if len(ops) == len(passes):
            return
        if len(ops) > len(passes):
            row = self._describe_op(ops[len(passes)])
            raise self._trace_error(f"{row} belongs to no recorded microbatch pass; add the pass, or skip the step")
        seqs = {self._seq[op] for op in ops}
        missing = next(k for k in range(len(passes)) if k not in seqs)
        served = self._describe_op(passes[min(missing, len(passes) - 1)])
        raise self._trace_error(
            f"{served} needs a {optype}, but number {missing} of dp_rank {worker // self._stages}, stage "
            f"{worker % self._stages} is missing ({len(ops)} of {len(passes)} were recorded), so the message is "
            "unmatched.  Skip the step (--steps), or record it again"
        )

    def _trace_error(self, message: str) -> InputError:
        steps = self._trace.step[self._rows[0]].tolist()
        some = ", ".join(map(str, steps[:4])) + (", ..." if len(steps) > 4 else "")
        return InputError(f"trace {self._trace.name!r}, steps {some}: {message}")

    def _describe_op(self, op: int) -> str:
        return self._trace.describe(int(self._rows[op, 0]))

    def _add_receive_wait(self, receive: int) -> None:
        """Make a receive wait for the pass that used the previous receive, if recorded times suggest so."""
        lane = self._lanes[self._worker[receive], self._optype[receive]]
        place = lane.index(receive)
        if not place:
            return
        kind = FORWARD if self._optype[receive] == "forward-recv" else BACKWARD
        served = next(op for op in self._waiting[lane[place - 1]] if self._optype[op] == kind)
        if self._begins_after(receive, served):
            self._after[receive][served] = None

    def _begins_after(self, op: int, other: int) -> bool:
        """Return whether an op began after another op's end in most steps."""
        later = int(np.count_nonzero(self._began[op] >= self._ended[other] - self._slack))
        return later > len(self._began[op]) / 2

    def _split_message_lanes(self) -> None:
        """Sort each lane's messages by recorded start, and move messages in flight at once to separate lanes."""
        for (worker, name), ops in list(self._lanes.items()):
            if name not in MESSAGE_TYPES:
                continue
            lanes: list[list[int]] = []
            for op in sorted(ops, key=lambda op: (self._began[op, 0], self._seq[op])):
                for lane in lanes:
                    if self._begins_after(op, lane[-1]):
                        lane.append(op)
                        break
                else:
                    lanes.append([op])
            del self._lanes[worker, name]
            for number, lane in enumerate(lanes):
                self._lanes[worker, f"{name} {number}"] = lane

    def _group_collectives(self) -> None:
        for op, (optype, worker) in enumerate(zip(self._optype, self._worker, strict=True)):
            keys = {"replicas": (worker % self._stages,), "pipeline": (worker // self._stages,), "job": ()}
            scope = COLLECTIVE_SCOPES.get(optype)
            if scope in keys:
                self._groups[optype, self._seq[op], self._chunk[op], *keys[scope]].append(op)
        everybody = sorted(set(self._worker))
        of_stage = [[worker for worker in everybody if worker % self._stages == each] for each in range(self._stages)]
        for (optype, *_), ops in self._groups.items():
            scope, stage = COLLECTIVE_SCOPES.get(str(optype)), self._worker[ops[0]] % self._stages
            if scope not in ("replicas", "job"):
                continue  # the trace decides which stages hold an embedding
            members = everybody if scope == "job" else of_stage[stage]
            there = {self._worker[op] for op in ops}
            if lost := [worker for worker in members if worker not in there]:
                raise self._trace_error(
                    f"{self._describe_op(ops[0])} has {len(ops)} of {len(members)} members; the op of dp_rank "
                    f"{lost[0] // self._stages}, stage {lost[0] % self._stages} is missing, so the collective is "
                    "unmatched; skip the step (--steps), or record it again"
                )

    def _connect_overlapped_ops(self, worker: int) -> None:
        """Connect overlapped collectives to the ops that launch them and the ops that need their results."""
        main = self._lanes[worker, MAIN_LANE]
        begins, ends = self._began[main, 0], self._ended[main, 0]
        last_backward = max((k for k, op in enumerate(main) if self._optype[op] == BACKWARD), default=-1)
        for optype in self._overlapped:
            for number, op in enumerate(self._lanes.get((worker, optype), ())):
                began, ended = float(self._began[op, 0]), float(self._ended[op, 0])
                early, late = began - self._slack, began + self._slack
                busy = np.flatnonzero((begins < early) & (ends > late))
                lane, params = self._lanes[worker, optype], optype.startswith("params")
                if params and number > 0 and began <= self._ended[lane[number - 1], 0] + self._slack:
                    pass  # it follows the one before at once: it waited for its lane
                elif len(busy):
                    self._after[op][self._add_launch_op(main[busy[0]], op, f"{LAUNCH_PREFIX}{optype} {number}")] = None
                elif len(before := np.flatnonzero(ends <= late)):
                    self._after[op][main[before[-1]]] = None
                for other in self._find_ops_needing_result(op, main, last_backward, ended)[:1]:
                    self._after[other][op] = None

    def _add_launch_op(self, outer_op: int, op: int, optype: str) -> int:
        """Add an op for the part of op ``outer_op`` that precedes a collective's launch; return the new op's number."""
        number, worker = len(self._optype), self._worker[op]
        main = self._lanes[worker, MAIN_LANE]
        place = main.index(outer_op)
        self._optype.append(optype)
        self._worker.append(worker)
        self._after.append({**dict.fromkeys(main[place - 1 : place] if place else []), **self._after[outer_op]})
        self._lanes[worker, optype] = [number]
        began = self._began[outer_op]
        self._launch_times.append((began, np.maximum(self._began[op], began)))
        return number

    def _find_ops_needing_result(self, op: int, main: list[int], last_backward: int, end_time: float) -> list[int]:
        """Return the ops that need a collective's result: later forwards, or all ops after the last backward."""
        if not self._optype[op].startswith("params"):
            return main[last_backward + 1 :]
        return [
            other
            for other in main
            if self._optype[other] == FORWARD
            and self._chunk[op] in (self._chunk[other], -1)
            and self._began[other, 0] >= end_time - self._slack
        ]
