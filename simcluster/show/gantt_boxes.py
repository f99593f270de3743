"""Boxes of a Gantt chart, one per span; neighbouring spans too short to be seen share one box.

Pure: arrays in, arrays out, nothing is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from simcluster.base.arrays import Bools, Floats, Ints

PaintKey = tuple[str, str, int]
"""Key of a box's colour: stream, kind (or "waiting"), chunk (0 outside of compute)."""

NARROW = 3.0  # pixels: communication below this is joined with its neighbours, and a gap below this is not seen
NARROW_COMPUTE = 48.0  # pixels: compute above this stays a box of its own
NARROW_KIND = 24.0  # pixels: recompute above this stays apart from the backward that it serves
JOIN_GAP = 8.0  # pixels: a wider gap inside an action is worth seeing; a narrower one if it is half of its neighbours
SEVERAL = "several"  # the kind of a joined box of communication with more than one kind in it
_MINOR = 0.2  # of the time: other kinds with less do not count
_BACKWARD = ("backward", "input_grad", "recompute")  # kinds that alternate inside one backward action; W is its own
_ARRAYS = ("row", "lane", "paint", "microbatch", "start", "end", "share", "recompute", "source")


@dataclass(frozen=True, slots=True)
class GanttBoxes:
    """Boxes of a Gantt chart, stored as columns: row, lane, start and end (s), colour, and other attributes.

    `paint` is an index into `paints`. Lane 0 is compute, lane i > 0 is `streams[i]`. `share` is the fraction of the
    box's time that is work (or waiting), `recompute` the fraction of that work that is recompute inside a backward.
    `source` is the timeline row of a box of one span, else -1 (a joined box, or waiting). Sorted by row, lane, start.
    """

    paints: tuple[PaintKey, ...]
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

    def select(self, indices: Ints) -> GanttBoxes:
        """Return only the boxes with the numbers in ``indices``."""
        return replace(self, **{name: getattr(self, name)[indices] for name in _ARRAYS})

    @property
    def waiting_mask(self) -> Bools:
        """Boolean mask that is true for boxes in which a rank waits."""
        return np.array([kind == "waiting" for _, kind, _ in self.paints], dtype=np.bool_)[self.paint]


def make_boxes(
    timeline: pd.DataFrame, ranks: tuple[int, ...], window: tuple[float, float], streams: tuple[str, ...]
) -> GanttBoxes:
    """Return Gantt boxes for some ranks' spans in a time window, and for the waiting time before each span.

    Row i is `ranks[i]`; `streams` are the streams that have a lane, "compute" first.
    """
    row = pd.Index(ranks).get_indexer(pd.Index(timeline["rank"].to_numpy(np.int64)))
    lane = pd.Index(streams).get_indexer(pd.Index(timeline["stream"]))
    ready, start, end = (timeline[name].to_numpy(np.float64) for name in ("ready", "start", "end"))
    first = np.minimum(ready, start)
    here = np.flatnonzero((row >= 0) & (lane >= 0) & (end > window[0]) & (first < window[1]))
    here = here[np.lexsort((start[here], lane[here], row[here]))]
    # Waiting is drawn only where its lane is free: an early-posted receive waits after the spans before it.
    waits_from = np.maximum(first[here], _previous_end(row[here], lane[here], end[here]))
    of = np.concatenate([here, here])
    waits = np.repeat([False, True], len(here))
    begins = np.clip(np.concatenate([start[here], waits_from]), *window)
    ends = np.clip(np.concatenate([end[here], start[here]]), *window)
    seen = np.flatnonzero(ends > begins)
    seen = seen[np.lexsort((begins[seen], lane[of[seen]], row[of[seen]]))]
    of, waits = of[seen], waits[seen]
    stream, kind, chunk = (timeline[name].to_numpy()[of] for name in ("stream", "kind", "chunk"))
    chunk = np.where((lane[of] == 0) & ~waits, np.maximum(chunk, 0), 0)
    looks = pd.DataFrame({"waits": waits, "stream": stream, "kind": np.where(waits, "waiting", kind), "chunk": chunk})
    equal = looks.groupby(list(looks))
    return GanttBoxes(
        paints=tuple((str(s), str(k), int(at)) for _, s, k, at in equal.size().index),
        streams=streams,
        row=row[of],
        lane=lane[of],
        paint=np.asarray(equal.ngroup(), np.int64),
        microbatch=timeline["microbatch"].to_numpy(np.int64)[of],
        start=begins[seen],
        end=ends[seen],
        share=np.ones(len(of)),
        recompute=np.zeros(len(of)),
        source=np.where(waits, -1, of),
    )


def join_small_boxes(boxes: GanttBoxes, seconds_per_pixel: float) -> GanttBoxes:
    """Join neighbouring boxes that are too small to see separately: one pass's compute, or dense communication.

    A joined box has the paint that fills most of its time; `share` is the fraction of the box that was filled.
    """
    if len(boxes) == 0:
        return boxes
    first = np.flatnonzero(np.concatenate([[True], _find_separate_boxes(boxes, seconds_per_pixel)]))
    sizes = np.diff([*first, len(boxes)])
    group = np.repeat(np.arange(len(first)), sizes)
    duration = boxes.end - boxes.start
    is_recompute = np.array([kind == "recompute" for _, kind, _ in boxes.paints])[boxes.paint]
    rest = np.bincount(group, weights=np.where(is_recompute, 0.0, duration))
    work = np.bincount(group, weights=duration)
    mixed = rest > 0
    # Recompute counts only where there is nothing else, since it gets its own strip.
    paint, paints = _choose_group_paints(boxes, group, np.where(is_recompute & mixed[group], 0.0, duration))
    found, end = boxes.select(first), np.maximum.reduceat(boxes.end, first)
    return replace(
        found,
        paints=paints,
        paint=paint,
        end=end,
        share=np.minimum(work / (end - found.start), 1.0),
        recompute=np.where(mixed, 1.0 - rest / work, 0.0),
        source=np.where(sizes == 1, found.source, -1),
    )


def _find_separate_boxes(boxes: GanttBoxes, seconds_per_pixel: float) -> Bools:
    gap = (boxes.start - _previous_end(boxes.row, boxes.lane, boxes.end))[1:] / seconds_per_pixel  # inf in a new lane
    width = (boxes.end - boxes.start) / seconds_per_pixel
    wider, narrower = np.maximum(width[1:], width[:-1]), np.minimum(width[1:], width[:-1])
    action = np.array([pass_name(paint) for paint in boxes.paints])[boxes.paint]
    one_microbatch = boxes.microbatch[1:] == boxes.microbatch[:-1]
    limit = np.where(boxes.paint[1:] != boxes.paint[:-1], NARROW_KIND, NARROW_COMPUTE)
    near = (action[1:] == action[:-1]) & (gap < np.clip(wider / 2, NARROW, JOIN_GAP))
    compute = near & ((wider < limit) | (narrower < NARROW))
    communication = (gap < NARROW) & (wider < NARROW)
    apart: Bools = ~(one_microbatch & np.where(boxes.lane[1:] == 0, compute, communication))
    return apart


def _choose_group_paints(boxes: GanttBoxes, group: Ints, seconds: Floats) -> tuple[Ints, tuple[PaintKey, ...]]:
    num_paints = len(boxes.paints)
    size = (int(group[-1]) + 1) * num_paints
    totals = np.bincount(group * num_paints + boxes.paint, weights=seconds, minlength=size).reshape(-1, num_paints)
    main = totals.argmax(axis=1)
    carries = np.array([stream != "compute" and kind != "waiting" for stream, kind, _ in boxes.paints])
    carried = totals[:, carries].sum(axis=1)
    several = carries[main] & (carried - totals.max(axis=1) > _MINOR * carried)
    stream = np.array([boxes.streams.index(stream) for stream, _, _ in boxes.paints])[main]
    added: tuple[PaintKey, ...] = tuple((stream, SEVERAL, 0) for stream in boxes.streams)
    return np.where(several, num_paints + stream, main), boxes.paints + added


def pass_name(paint: PaintKey) -> str:
    """Return the name of the pass that a box belongs to; recompute and backward count as one pass."""
    stream, kind, chunk = paint
    return f"{stream} {'backward' if kind in _BACKWARD else kind} {chunk}"


def _previous_end(row: Ints, lane: Ints, end: Floats) -> Floats:
    """Return, for each span, the latest end (s) of the earlier spans in the same lane; -inf for the first span."""
    lanes = pd.Series(end).groupby([row, lane], sort=False)
    previous = lanes.cummax().groupby([row, lane], sort=False).shift(1).fillna(-np.inf)
    return np.asarray(previous.to_numpy(), dtype=np.float64)
