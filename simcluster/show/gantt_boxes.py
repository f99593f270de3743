"""Spans of a timeline as boxes on the lanes of a Gantt picture, joined where single ones would be too small to see.

Pure: arrays in, arrays out, nothing is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from simcluster.base.arrays import Floats, Ints

Paint = tuple[str, str, int]
"""What decides a colour: stream, kind (or "waiting"), chunk (0 outside of compute)."""

NARROW = 3.0  # pixels: communication below this is joined with its neighbours, and a gap below this is not seen
NARROW_COMPUTE = 48.0  # pixels: compute above this stays a box of its own
NARROW_KIND = 24.0  # pixels: recompute above this stays apart from the backward that it serves
JOIN_GAP = 8.0  # pixels: a wider gap inside an action is worth seeing; a narrower one if it is half of its neighbours
SEVERAL = "several"  # the kind of a joined box of communication with more than one kind in it
_MINOR = 0.2  # of the time: other kinds with less do not count
_BACKWARD = ("backward", "input_grad", "recompute")  # kinds that alternate inside one backward action; W is its own


@dataclass(frozen=True, slots=True)
class Boxes:
    """One box each: where (row, lane, seconds), what (an index into `paints`), and of how many spans it is made.

    lane 0 is compute, lane i > 0 the stream `streams[i]`.  `share` is the part of the box's time that work (or
    waiting) fills; `recompute` the part of that work that is recompute inside a backward.  `source` is the position in
    the timeline of a box of one span, else -1 (a joined box, or waiting).  Sorted by row, lane and start.
    """

    paints: tuple[Paint, ...]
    streams: tuple[str, ...]
    row: Ints
    lane: Ints
    paint: Ints
    microbatch: Ints
    start: Floats
    end: Floats
    share: Floats
    recompute: Floats
    source: Ints

    def __len__(self) -> int:
        return len(self.start)


def boxes_of(
    timeline: pd.DataFrame, ranks: tuple[int, ...], window: tuple[float, float], streams: tuple[str, ...]
) -> Boxes:
    """One box for each span of `ranks` inside `window`, and one for the waiting before it, clipped to the window.

    Row i is `ranks[i]`; `streams` are the streams that have a lane, "compute" first.
    """
    row = pd.Index(ranks).get_indexer(pd.Index(timeline["rank"].to_numpy(np.int64)))
    lane = pd.Index(streams).get_indexer(pd.Index(timeline["stream"]))
    ready, start, end = (timeline[name].to_numpy(np.float64) for name in ("ready", "start", "end"))
    first = np.minimum(ready, start)
    here = np.flatnonzero((row >= 0) & (lane >= 0) & (end > window[0]) & (first < window[1]))
    here = here[np.lexsort((start[here], lane[here], row[here]))]
    row, lane, first, start, end = row[here], lane[here], first[here], start[here], end[here]
    # Waiting is drawn only where its lane is free: an early-posted receive waits behind the spans before it.
    waits_from = np.maximum(first, _previous_end(row, lane, end))
    waiting = np.flatnonzero(waits_from < start)
    both = np.concatenate([np.arange(len(here)), waiting])
    waits = np.arange(len(both)) >= len(here)
    paint, paints = _paints(timeline, here[both], lane[both], waits)
    boxes = Boxes(
        paints=paints,
        streams=streams,
        row=row[both],
        lane=lane[both],
        paint=paint,
        microbatch=timeline["microbatch"].to_numpy(np.int64)[here[both]],
        start=np.clip(np.where(waits, waits_from[both], start[both]), *window),
        end=np.clip(np.where(waits, start[both], end[both]), *window),
        share=np.ones(len(both)),
        recompute=np.zeros(len(both)),
        source=np.where(waits, -1, here[both]),
    )
    order = np.lexsort((boxes.start, boxes.lane, boxes.row))
    order = order[(boxes.end > boxes.start)[order]]
    arrays = [each.name for each in fields(Boxes) if each.name not in ("paints", "streams")]
    return replace(boxes, **{name: getattr(boxes, name)[order] for name in arrays})


def joined(boxes: Boxes, seconds_per_pixel: float) -> Boxes:
    """`boxes` with the too-small ones joined: compute only within one action, communication wherever it is dense.

    A joined box has the paint that fills most of its time; `share` says how much of the box was really filled.
    """
    if len(boxes) == 0:
        return boxes
    first = np.flatnonzero(np.concatenate([[True], _splits(boxes, seconds_per_pixel)]))
    group = np.repeat(np.arange(len(first)), np.diff([*first, len(boxes)]))
    duration = boxes.end - boxes.start
    is_recompute = np.array([kind == "recompute" for _, kind, _ in boxes.paints])[boxes.paint]
    rest = np.bincount(group, weights=np.where(is_recompute, 0.0, duration))
    work = np.bincount(group, weights=duration)
    mixed = rest > 0
    # Recompute counts only where there is nothing else, since it gets its own strip.
    paint, paints = _main_paints(boxes, group, np.where(is_recompute & mixed[group], 0.0, duration))
    start, end = boxes.start[first], np.maximum.reduceat(boxes.end, first)
    single = np.diff([*first, len(boxes)]) == 1
    return replace(
        boxes,
        paints=paints,
        row=boxes.row[first],
        lane=boxes.lane[first],
        paint=paint,
        microbatch=boxes.microbatch[first],
        start=start,
        end=end,
        share=np.minimum(work / (end - start), 1.0),
        recompute=np.where(mixed, 1.0 - rest / work, 0.0),
        source=np.where(single, boxes.source[first], -1),
    )


def column_colours(
    boxes: Boxes, colours: Floats, window: tuple[float, float], num_rows: int, num_columns: int
) -> Floats:
    """Mean colour over every pixel column of every lane: a box's colour for the part that it fills, white for the rest.

    `colours` is RGB per paint.  Returns an array (num_rows, lanes, num_columns, 3).  The part of column k left of a
    time x is clip(x - k, 0, 1), so a box adds two points at each of its ends to a running sum.
    """
    num_lanes = len(boxes.streams)
    scale = num_columns / (window[1] - window[0])
    lane = (boxes.row * num_lanes + boxes.lane) * (num_columns + 2)
    index: list[Ints] = []
    weight: list[Floats] = []
    for edge, sign in ((boxes.start, 1.0), (boxes.end, -1.0)):
        position = np.clip((edge - window[0]) * scale, 0.0, num_columns)
        column = position.astype(np.int64)
        after = position - column
        index += [lane + column, lane + column + 1]
        weight += [sign * (1.0 - after), sign * after]
    where, added = np.concatenate(index), np.concatenate(weight)
    size = num_rows * num_lanes * (num_columns + 2)
    image = np.empty((num_rows, num_lanes, num_columns, 3))
    for channel in range(3):
        darkening = np.tile((colours[:, channel] - 1.0)[boxes.paint], 4)
        steps = np.bincount(where, weights=added * darkening, minlength=size)
        sums = np.cumsum(steps.reshape(num_rows, num_lanes, num_columns + 2), axis=2)
        image[..., channel] = 1.0 + sums[:, :, :num_columns]
    return np.clip(image, 0.0, 1.0)


def _splits(boxes: Boxes, seconds_per_pixel: float) -> npt.NDArray[np.bool_]:
    """For each box but the first of a lane: does it stay apart from the one before it?"""
    gap = (boxes.start - _previous_end(boxes.row, boxes.lane, boxes.end))[1:] / seconds_per_pixel  # inf in a new lane
    width = (boxes.end - boxes.start) / seconds_per_pixel
    wider = np.maximum(width[1:], width[:-1])
    key = np.array([direction(paint) for paint in boxes.paints])[boxes.paint]
    one_microbatch = ~_differ(boxes.microbatch)
    limit = np.where(_differ(boxes.paint), NARROW_KIND, NARROW_COMPUTE)
    near = gap < np.clip(wider / 2, NARROW, JOIN_GAP)
    compute = one_microbatch & ~_differ(key) & near & ((wider < limit) | (np.minimum(width[1:], width[:-1]) < NARROW))
    communication = one_microbatch & (gap < NARROW) & (wider < NARROW)
    return ~np.where(boxes.lane[1:] == 0, compute, communication)


def _main_paints(boxes: Boxes, group: Ints, seconds: Floats) -> tuple[Ints, tuple[Paint, ...]]:
    """For each group of boxes the paint with the most time, or that of several kinds of one communication stream."""
    num_paints = len(boxes.paints)
    size = (int(group[-1]) + 1) * num_paints
    totals = np.bincount(group * num_paints + boxes.paint, weights=seconds, minlength=size).reshape(-1, num_paints)
    main = totals.argmax(axis=1)
    carries = np.array([stream != "compute" and kind != "waiting" for stream, kind, _ in boxes.paints])
    carried = totals[:, carries].sum(axis=1)
    several = carries[main] & (carried - totals.max(axis=1) > _MINOR * carried)
    stream = np.array([boxes.streams.index(stream) for stream, _, _ in boxes.paints])[main]
    added: tuple[Paint, ...] = tuple((stream, SEVERAL, 0) for stream in boxes.streams)
    return np.where(several, num_paints + stream, main), boxes.paints + added


def direction(paint: Paint) -> str:
    """Return what alternates inside one action has one name."""
    stream, kind, chunk = paint
    return f"{stream} {'backward' if kind in _BACKWARD else kind} {chunk}"


def _differ(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.asarray(values[1:] != values[:-1], dtype=np.bool_)


def _previous_end(row: Ints, lane: Ints, end: Floats) -> Floats:
    """For spans sorted by row, lane and start: the latest end before each in its lane, -inf for the first."""
    lanes = pd.Series(end).groupby([row, lane], sort=False)
    previous = lanes.cummax().groupby([row, lane], sort=False).shift(1).fillna(-np.inf)
    return np.asarray(previous.to_numpy(), dtype=np.float64)


def _paints(
    timeline: pd.DataFrame, here: Ints, lane: Ints, waits: npt.NDArray[np.bool_]
) -> tuple[Ints, tuple[Paint, ...]]:
    """Paints of boxes of the spans at the positions `here`, or of the waiting before these, in order of their names."""
    stream, kind, chunk = (timeline[name].to_numpy()[here] for name in ("stream", "kind", "chunk"))
    chunk = np.where((lane == 0) & ~waits, np.maximum(chunk, 0), 0)
    looks = pd.DataFrame({"waits": waits, "stream": stream, "kind": np.where(waits, "waiting", kind), "chunk": chunk})
    alike = looks.groupby(list(looks))
    return np.asarray(alike.ngroup(), np.int64), tuple((str(s), str(k), int(at)) for _, s, k, at in alike.size().index)
