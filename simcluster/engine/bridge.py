"""Records of programs that today's engines simulate op by op; lowering will make them, and this module goes.

``reference.record`` says what a record is.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain

import numpy as np

from simcluster.engine.lower import Lowered
from simcluster.engine.record import Record as EngineRecord
from simcluster.programs.program import Program, SpanRow
from simcluster.reference.record import Label, Ops, OpTimes, Record, Waits


def record_of(lowered: Lowered, record: EngineRecord) -> Record:
    """Return the record of a lowered program that an engine has simulated."""
    return program_record(lowered.played, record)


def program_record(program: Program, record: EngineRecord) -> Record:
    """Return the record of a program that an engine has simulated."""
    assert not program.in_step, "chains are off"
    return Record(
        lane_rank=np.array(program.lane_rank, dtype=np.int32),
        lane_stage=np.array(program.lane_stage, dtype=np.int32),
        lane_end=record.lanes,
        events=record.events,
        engine=record.kind,
        why=record.why,
        make_ops=lambda: ops_of(program),
        make_times=lambda: OpTimes(record.ready, record.start, record.end, record.last),
    )


def ops_of(program: Program) -> Ops:
    """Return the ops of a program; every op has one row at most."""
    meeting = np.array(program.meeting, dtype=np.int32)
    parties = np.array([*(each.parties for each in program.meetings), 1], dtype=np.int32)
    rows = np.array(program.rows, dtype=np.int64)
    numbers: dict[Hashable, int] = {}
    labels: list[Label] = []
    known: dict[int, int] = {}  # by the identity of a row set
    places, seconds = [], []
    for own in program.row_sets:
        assert len(own) <= 1, "chains are off"
        place = known.get(id(own))
        if place is None:
            place = -1
            if own:
                name = (*own[0][:6], own[0].traffic, own[0].memory, _sensitivity(own[0]))
                place = numbers.setdefault(name, len(numbers))
                if place == len(labels):
                    labels.append(_label(program, own[0]))
            known[id(own)] = place
        places.append(place)
        communicates = not own or own[0].traffic >= 0 or own[0].axis
        seconds.append(0.0 if communicates else own[0].end - own[0].start)
    sends, receivers = np.array(program.receives, dtype=np.int64).reshape(-1, 2).T
    return Ops(
        labels=labels,
        label=np.array(places, dtype=np.int32)[rows],
        lane=np.array(program.lane, dtype=np.int32),
        step=np.array(program.step, dtype=np.int32),
        chunk=np.array(program.chunk, dtype=np.int32),
        microbatch=np.array(program.microbatch, dtype=np.int32),
        seconds=np.array(seconds, dtype=np.float64)[rows],
        meeting=meeting,
        parties=parties[meeting],
        receives=(sends, receivers),
        lane_rank=np.array(program.lane_rank, dtype=np.int32),
        lane_stage=np.array(program.lane_stage, dtype=np.int32),
        lane_name=program.lane_name,
        speeds=program.speeds,
        make_waits=lambda: _waits(program),
    )


def _label(program: Program, row: SpanRow) -> Label:
    traffics = program.traffics[row.traffic] if row.traffic >= 0 else ()
    return Label(*row[:6], row.memory, traffics, _sensitivity(row))


def _sensitivity(row: SpanRow) -> float | None:
    return row.pace.sensitivity if row.pace else None


def _waits(program: Program) -> Waits:
    counts = np.fromiter(map(len, program.after), dtype=np.int64, count=len(program.after))
    awaited = np.fromiter(chain.from_iterable(program.after), dtype=np.int64, count=int(counts.sum()))
    return Waits(np.concatenate([[0], np.cumsum(counts)]), awaited)
