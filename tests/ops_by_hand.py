"""Ops and times of a record, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simcluster.reference.step_record import OpDependencies, OpSpanLabel, OpTable, RankOpTable, RankOpTimes, RankRecord
from simcluster.results.timeline import Spans


class HandOp(NamedTuple):
    """An op; ``label`` is its place among the labels, ``after`` what it waits for besides the op before it."""

    lane: int
    label: int
    seconds: float = 0.0
    meeting: int = -1
    step: int = 0
    chunk: int = -1
    microbatch: int = -1
    after: tuple[int, ...] = ()


def label(kind: str, name: str, **other: object) -> OpSpanLabel:
    """Return the label of a computation, with some of its fields changed."""
    fields = {"stream": "compute", "layer": -1, "axis": "", "bytes": 0.0, **other}
    return OpSpanLabel(kind=kind, name=name, **fields)  # type: ignore[arg-type]


def ops_of(
    lanes: Sequence[tuple[int, int, str]],
    labels: Sequence[OpSpanLabel],
    ops: Sequence[HandOp],
    receives: Sequence[tuple[int, int]] = (),
    speeds: Mapping[int, object] = {},
) -> OpTable:
    """Return ops on ``lanes`` of (rank, stage, name)."""

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.array([getattr(op, name) for op in ops], dtype=np.int32)

    meeting = column("meeting")
    ranks, stages, names = zip(*lanes, strict=True)
    awaited = [len(op.after) for op in ops]
    sends, receivers = np.array(receives, dtype=np.int64).reshape(-1, 2).T
    return OpTable(
        labels=labels,
        **{name: column(name) for name in ("label", "lane", "step", "chunk", "microbatch")},
        seconds=np.array([op.seconds for op in ops]),
        meeting=meeting,
        parties=np.array([int((meeting == own).sum()) if own >= 0 else 1 for own in meeting], dtype=np.int32),
        receives=(sends, receivers),
        lane_rank=np.array(ranks, dtype=np.int32),
        lane_stage=np.array(stages, dtype=np.int32),
        lane_name=names,
        speeds=speeds,  # type: ignore[arg-type]
        make_dependencies=lambda: OpDependencies(
            np.cumsum([0, *awaited]), np.array([other for op in ops for other in op.after])
        ),
    )


def ranks_of_spans(spans: Spans) -> list[RankRecord]:
    """Return the ranks of a timeline, with one op per span."""
    found = []
    for rank in np.unique(spans.rank).tolist():
        own = spans.of_rank(rank)
        words = [[spans.words[code] for code in column] for column in (own.stream, own.kind, own.name)]
        zeros = np.zeros(len(own), dtype=np.int32)
        columns = {name: getattr(own, name).astype(np.int32) for name in ("step", "chunk", "microbatch")}
        ops = RankOpTable(
            labels=[OpSpanLabel(*what, layer=-1, axis="", bytes=0.0) for what in zip(*words, strict=True)],
            label=np.arange(len(own), dtype=np.int32),
            lane=zeros,
            on_main=zeros == 0,
            pair=zeros > 0,
            receiver=np.zeros(0, dtype=np.int64),
            sent=zeros[:0],
            meets=zeros[:0] > 0,
            **columns,
        )
        found.append(RankRecord(rank, int(own.stage[0]), ops, RankOpTimes(own.ready, own.start, own.end, zeros)))
    return found
