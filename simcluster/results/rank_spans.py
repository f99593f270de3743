"""The spans of one rank of a step that arrays over ranks played, made for the rank that is asked for.  Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simcluster.engine.rank_times import RankTimes
from simcluster.results.rank_instants import stages_of
from simcluster.results.timeline import COLUMNS, Spans

_TEXT = ("stream", "kind", "name", "group")


def spans_of_rank(found: RankTimes, rank: int, group_name: Callable[[str, int], str]) -> Spans:
    """As ``timeline.expand`` has them of all ranks; their ``op`` counts from the rank's first."""
    number, played = next((at, each) for at, each in enumerate(stages_of(found)) if rank in each.ranks)
    place = int(np.flatnonzero(played.ranks == rank)[0])
    loads = played.own.loads if played.own else {}
    rows: list[tuple[object, ...]] = []
    for at, ((item, op), times) in enumerate(zip(played.ops, played.times, strict=True)):
        if op.work.joins:
            continue
        axis = op.work.axis
        where = item.step, rank, op.stream, op.kind, op.name, op.layer, number, item.chunk, item.microbatch
        size = op.work.size * (float(loads[at][place]) if at in loads else op.work.load)
        rows.append((at, *where, group_name(axis, rank) if axis else "", size, *(float(each[place]) for each in times)))
    for _, sent, _, (_, start, end), at in played.received:
        item = played.ops[at][0]
        where = item.step, rank, "pp", "recv", sent.name, -1, number, item.chunk, item.microbatch
        begun = float(start[place])
        rows.append((at, *where, "", sent.work.size * sent.work.load, begun, begun, float(end[place])))
    names = ("op", *COLUMNS)
    codes: dict[object, int] = {}
    columns: list[Any] = []
    for name, values in zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True):
        if name in _TEXT:
            columns.append(np.array([codes.setdefault(value, len(codes)) for value in values], dtype=np.int64))
        else:
            real = name in ("bytes", "ready", "start", "end")
            columns.append(np.array(values, dtype=np.float64 if real else np.int64))
    order = np.lexsort((columns[0], columns[-1], columns[-2]))
    return Spans(tuple(map(str, codes)), *(column[order] for column in columns))
