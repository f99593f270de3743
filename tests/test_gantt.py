"""Gantt pictures: what is in them (rows, boxes, words, captions), not what they look like."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from simcluster import plots
from simcluster.base.errors import InputError
from simcluster.interactive.report.colours import paint_colours
from simcluster.schedules import make_schedule
from simcluster.show import gantt_panel, gantt_texts, palette
from simcluster.show.gantt_boxes import GanttBoxes, join_small_boxes, make_boxes

COLUMNS = ["step", "rank", "stream", "kind", "name", "layer", "stage", "chunk", "microbatch", "group", "bytes"]
COLUMNS += ["ready", "start", "end"]


# --- a timeline made by hand ------------------------------------------------------------------------------------------


@dataclass
class Made:
    """A small pipeline played action by action: per-layer spans, tp after each, pp between stages, dp at the end."""

    num_stages: int
    num_microbatches: int
    chunks: int = 1
    layers: int = 3
    tp: int = 1
    schedule: str = "1f1b"
    forward: float = 4e-3  # seconds of one action without communication
    recompute: float = 0.0  # part of a forward
    slow_rank: int = -1
    rows: list[tuple[object, ...]] = field(default_factory=list)

    def order(self, stage: int) -> list[tuple[str, int, int]]:
        """(direction, microbatch, chunk) of one pipeline rank."""
        name = "interleaved" if self.chunks > 1 else self.schedule
        rows = make_schedule(name, self.num_stages, self.num_microbatches, self.chunks).rows
        return [(action.kind, action.microbatch, action.chunk) for action in rows[stage]]

    def timeline(self) -> pd.DataFrame:
        P, last = self.num_stages, self.num_stages * self.chunks - 1
        todo = [self.order(stage) for stage in range(P)]
        clock, arrived = [0.0] * P, {}
        while any(todo):
            moved = False
            for p in range(P):
                while todo[p]:
                    direction, m, c = todo[p][0]
                    s = c * P + p
                    source = ("F", m, s - 1) if direction == "F" else ("B", m, s + 1)
                    first = (direction == "F" and s == 0) or (direction == "B" and s == last)
                    if not first and source not in arrived:
                        break
                    self.receive(p, s, c, m, direction, None if first else arrived[source], clock[p])
                    end = self.play(p, s, c, m, direction, max(clock[p], 0.0 if first else arrived[source]))
                    arrived[direction, m, s] = end + 0.3e-3
                    if s != (last if direction == "F" else 0):
                        self.add(p, "pp", "send", f"send {direction}{m}", -1, s, c, m, 25e6, end, end, end + 0.3e-3)
                    clock[p] = end
                    todo[p].pop(0)
                    moved = True
            assert moved
        self.finish(clock)
        return pd.DataFrame(self.rows, columns=COLUMNS)

    def add(self, p, stream, kind, name, layer, s, c, m, size, ready, start, end, only=None):
        for rank in range(p * self.tp, (p + 1) * self.tp) if only is None else [only]:
            self.rows.append((0, rank, stream, kind, name, layer, s, c, m, f"{stream}{p}", size, ready, start, end))

    def receive(self, p, s, c, m, direction, arrival, posted):
        if arrival is not None:
            start = max(posted, arrival - 0.3e-3)
            self.add(p, "pp", "recv", f"recv {direction}{m}", -1, s, c, m, 25e6, posted, start, start + 0.3e-3)

    def play(self, p, s, c, m, direction, now):
        part = self.forward / self.layers / self.chunks * (1 if direction == "F" else 2)
        kind = "forward" if direction == "F" else "backward"
        for layer in range(self.layers):
            if direction == "B" and self.recompute:
                now = self.compute(p, "recompute", f"layer {layer}", layer, s, c, m, now, part / 2 * self.recompute)
            now = self.compute(p, kind, f"attention {layer}", layer, s, c, m, now, part * 0.4)
            now = self.compute(p, kind, f"mlp {layer}", layer, s, c, m, now, part * 0.6)
        return now

    def compute(self, p, kind, name, layer, s, c, m, now, seconds):
        slowest = 1.2 if p * self.tp <= self.slow_rank < (p + 1) * self.tp else 1.0
        together = now + seconds * slowest
        wire = seconds * 0.1 if self.tp > 1 else 0.0
        for rank in range(p * self.tp, (p + 1) * self.tp):
            end = now + seconds * (slowest if rank == self.slow_rank else 1.0)
            self.add(p, "compute", kind, name, layer, s, c, m, 0, now, now, end, only=rank)
            for which, what in enumerate(["reduce_scatter", "all_gather"] if self.tp > 1 else []):
                start = together + which * wire
                ready = end if which == 0 else start
                self.add(p, "tp", what, f"tp {name}", layer, s, c, m, 50e6, ready, start, start + wire, only=rank)
        return together + 2 * wire

    def finish(self, clock):
        for p, now in enumerate(clock):
            size = self.forward * 0.8
            for bucket in range(2):
                start = now - size + bucket * size
                self.add(p, "dp", "reduce_scatter", f"bucket {bucket}", -1, p, 0, -1, 1e9, start, start, start + size)
            self.add(p, "compute", "optimizer", "adam", -1, p, -1, -1, 0, now + size, now + size, now + 1.5 * size)
            self.add(p, "dp", "all_gather", "weights", -1, p, -1, -1, 1e9, *[now + 1.5 * size] * 2, now + 2.3 * size)


# --- what one reads off a figure --------------------------------------------------------------------------------------


def row_labels(figure: Figure) -> list[str]:
    return [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]


def legend_labels(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def numbers(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts if text.get_text().isdigit()]


def words(figure: Figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


def span(stream="compute", kind="forward", start=0.0, end=1.0, **others) -> dict[str, object]:
    row = {"step": 0, "rank": 0, "stream": stream, "kind": kind, "name": kind, "layer": -1, "stage": 0, "chunk": -1}
    row |= {"microbatch": 0, "group": "", "bytes": 0, "ready": start, "start": start, "end": end}
    return row | others


@pytest.fixture(scope="module")
def small() -> pd.DataFrame:
    """4 stages of 2 ranks, 8 microbatches."""
    return Made(4, 8, tp=2).timeline()


# --- rows -------------------------------------------------------------------------------------------------------------


WAITS = [span(rank=rank, start=0, end=1) for rank in range(6)] + [
    span("dp", "all_reduce", rank=rank, start=2, end=3, ready=1.0 if rank == 4 else 1.9) for rank in range(6)
]


@pytest.mark.parametrize(
    ("made", "options", "labels", "caption"),
    [
        (Made(4, 8, tp=2), {}, [f"rank {rank} · stage {rank // 2}" for rank in range(8)], ""),
        (Made(4, 8, tp=2), {"rows": "stage"}, [f"rank {2 * stage} · stage {stage}" for stage in range(4)],
         "4 of 8 ranks shown: the lowest rank of each of 4 stages."),
        (Made(4, 8, tp=2), {"ranks": [6, 1, 6]}, ["rank 6 · stage 3", "rank 1 · stage 0"], ""),
        (Made(2, 2, tp=16), {"ranks": range(31)}, [f"rank {rank} · stage {rank // 16}" for rank in range(31)], ""),
        (Made(2, 4, chunks=3), {}, ["rank 0 · stages 0, 2, 4", "rank 1 · stages 1, 3, 5"], ""),
        (Made(2, 4, chunks=4), {}, ["rank 0 · stages 0, 2 … 6", "rank 1 · stages 1, 3 … 7"], ""),
        (Made(4, 4, tp=8, slow_rank=11), {"max_rows": 10},
         [f"rank {rank} · stage {rank // 8}" for rank in (0, 8, 11, 16, 24)],
         "5 of 32 ranks shown: the lowest rank of each of 4 stages, rank 11 (computes longest in its stage)."),
        (WAITS, {"max_rows": 3}, ["rank 0 · stage 0", "rank 4 · stage 0"], "rank 4 (waits longest in its stage)"),
        (Made(12, 2), {"max_rows": 4}, [f"rank {rank} · stage {rank}" for rank in (0, 4, 7, 11)],
         "4 of 12 ranks shown: the lowest rank of 4 of the 12 stages."),
        (Made(4, 8, tp=2), {"num_ranks": 1024}, [f"rank {rank} · stage {rank // 2}" for rank in range(8)],
         "8 of 1,024 ranks shown: each other rank is identical to one of these."),
    ],
)  # fmt: skip
def test_rows_are_named_with_their_stages_and_the_caption_says_what_is_not_shown(made, options, labels, caption):
    figure = plots.gantt(made.timeline() if isinstance(made, Made) else pd.DataFrame(made), **options)
    assert row_labels(figure) == labels
    assert caption in words(figure)
    assert ("ranks shown" in words(figure)) == bool(caption)
    assert "num_ranks" not in options or "1,024 ranks" in figure.texts[0].get_text()


# --- boxes and numbers ------------------------------------------------------------------------------------------------


def test_one_box_and_one_number_an_action_when_layers_are_too_small_to_see(small):
    figure = plots.gantt(small, rows="stage")
    assert sorted(map(int, numbers(figure))) == sorted(list(range(8)) * 2 * 4)  # F and B of 8 microbatches on 4 stages
    boxes = make_boxes(small, (0, 2, 4, 6), (0.0, small["end"].max()), ("compute", "tp", "pp", "dp"))
    seen = join_small_boxes(boxes, small["end"].max() / 1900)
    assert int((seen.lane == 0).sum()) == 4 * (2 * 8 + 1)  # and the optimizer
    drawn = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection)]
    waiting = np.array([kind == "waiting" for _, kind, _ in seen.paints])[seen.paint]
    counts = [len(collection.get_paths()) for collection in drawn]
    assert counts[0] == 4 * 4  # white lanes: compute, tp, pp, dp of 4 stages
    assert counts[1] + counts[2] == int(waiting.sum())
    assert counts[3] == int((~waiting).sum())


def test_a_zoom_shows_every_span_by_its_name(small):
    figure = plots.gantt(small, ranks=[0], window=(0.0, 3e-3))
    here = small[(small["rank"] == 0) & (small["start"] < 3e-3)]
    shown = [text.get_text() for text in figure.axes[0].texts]
    assert [text for text in shown if " · " in text] == [
        f"0 · {part}" for part in ("attention 0", "mlp 0", "attention 1", "mlp 1")
    ]
    assert len(figure.axes[0].collections[3].get_paths()) == len(here) == 10
    closer = plots.gantt(small, ranks=[0], window=(0.4e-3, 0.8e-3))
    shown = [text.get_text() for text in closer.axes[0].texts]
    assert {"reduce-scatter 50 MB", "all-gather 50 MB"} <= set(shown)


def test_numbers_stand_in_all_passes_or_in_none_and_the_caption_knows(small):
    roomy, narrow = plots.gantt(small, rows="stage"), plots.gantt(Made(4, 24).timeline(), width=6.0, breaks=False)
    assert len(numbers(roomy)) == 4 * 2 * 8
    assert "Numbers are microbatches." in words(roomy)
    assert numbers(narrow) == []
    assert "microbatches" not in words(narrow)


def test_texts_stay_inside_their_boxes_and_apart():
    figure = plots.gantt(Made(4, 12, chunks=3).timeline(), width=40.0)
    axes = figure.axes[0]
    places = [(round(text.get_position()[1], 3), text.get_window_extent()) for text in axes.texts]
    assert len(places) > 100
    for (row, left), (other, right) in itertools.pairwise(sorted(places, key=lambda each: (each[0], each[1].x0))):
        assert row != other or left.x1 <= right.x0
    boxes = axes.collections[3]
    spans = np.array([path.get_extents().get_points() for path in boxes.get_paths()])
    pixels = axes.transData.transform(spans.reshape(-1, 2)).reshape(-1, 2, 2)
    for _, place in places:
        inside = (pixels[:, 0, 0] <= place.x0 + 1) & (pixels[:, 1, 0] >= place.x1 - 1)
        assert (inside & (pixels[:, 1, 1] <= place.y0 + 2) & (pixels[:, 0, 1] >= place.y1 - 2)).any()


def test_labels_can_be_left_out(small):
    figure = plots.gantt(small, labels=False)
    assert len(figure.axes[0].texts) == 0
    assert "microbatch" not in words(figure)


def test_a_wait_wide_enough_to_see_splits_an_action():
    rows = [span(start=0, end=1, layer=0), span(start=1.5, end=2.5, layer=1), span(start=2.51, end=3.5, layer=2)]
    boxes = make_boxes(pd.DataFrame(rows), (0,), (0.0, 3.5), ("compute",))
    assert join_small_boxes(boxes, 0.04).start.tolist() == [0.0, 1.5]
    assert join_small_boxes(boxes, 0.3).start.tolist() == [0.0]


def test_recompute_in_a_joined_backward_is_its_part_of_the_work():
    times = [(0, 1, "recompute"), (1, 4, "backward"), (4, 5, "recompute"), (5, 8, "backward")]
    rows = [span(kind=kind, start=start, end=end, layer=0) for start, end, kind in times]
    seen = join_small_boxes(make_boxes(pd.DataFrame(rows), (0,), (0.0, 8.0), ("compute",)), 1.0)
    assert len(seen) == 1
    assert seen.paints[seen.paint[0]] == ("compute", "backward", 0)
    assert seen.recompute.tolist() == [0.25]


def test_waiting_is_what_lies_between_ready_and_start_and_after_the_span_before():
    rows = [span("pp", "send", start=0, end=2), span("pp", "recv", ready=1.0, start=5, end=6)]
    boxes = make_boxes(pd.DataFrame(rows), (0,), (0.0, 6.0), ("compute", "pp"))
    kinds = [boxes.paints[at][1] for at in boxes.paint]
    assert list(zip(kinds, boxes.start, boxes.end, strict=True)) == [
        ("send", 0, 2), ("waiting", 2, 5), ("recv", 5, 6),
    ]  # fmt: skip


@st.composite
def lanes(draw) -> pd.DataFrame:
    """Spans one after the other on two streams of two ranks, with gaps and waits."""
    rows = []
    for rank, stream in itertools.product((0, 1), ("compute", "tp")):
        now = 0.0
        for _ in range(draw(st.integers(0, 12))):
            wait, gap, length = (draw(st.floats(0.0, 4.0)) for _ in range(3))
            kinds = ["forward", "backward", "recompute"] if stream == "compute" else ["all_gather", "reduce_scatter"]
            microbatch = draw(st.integers(0, 2))
            start = now + gap + wait
            kind = draw(st.sampled_from(kinds))
            rows.append(
                span(stream, kind, start, start + length, ready=now + gap, rank=rank, microbatch=microbatch)
            )  # fmt: skip
            now = start + length
    return pd.DataFrame([*rows, span(start=200.0, end=201.0)])


@settings(max_examples=30, deadline=None)
@given(timeline=lanes(), pixel=st.sampled_from([0.01, 0.3, 1.0, 5.0, 50.0]))
def test_joining_loses_no_time_and_joins_nothing_across_lanes_or_microbatches(timeline, pixel):
    boxes = make_boxes(timeline, (0, 1), (0.0, 201.0), ("compute", "tp"))
    seen = join_small_boxes(boxes, pixel)
    assert len(seen) <= len(boxes)

    def seconds(of: GanttBoxes) -> pd.Series:
        keys = [of.row, of.lane, of.microbatch]
        return pd.Series(of.share * (of.end - of.start)).groupby(keys).sum()

    pd.testing.assert_series_equal(seconds(seen), seconds(boxes), rtol=1e-9)
    same = (seen.row[1:] == seen.row[:-1]) & (seen.lane[1:] == seen.lane[:-1])
    assert (seen.start[1:] >= seen.end[:-1] - 1e-9)[same].all()


def test_too_many_boxes_are_a_raster_in_vector_formats_and_the_caption_says_so(small, monkeypatch):
    monkeypatch.setattr(gantt_panel, "VECTOR_UP_TO", 100)
    monkeypatch.setattr(gantt_texts, "_RASTER_ABOVE", 100)
    figure = plots.gantt(small)
    assert "boxes are stored as a bitmap" in words(figure)
    assert any(collection.get_rasterized() for collection in figure.axes[0].collections)
    assert "raster" not in words(plots.gantt(small, ranks=[0], window=(0.0, 1e-3)))


# --- legend, title, axis ----------------------------------------------------------------------------------------------


def test_the_legend_has_what_is_shown_and_nothing_else(small):
    assert legend_labels(plots.gantt(small)) == [
        "forward (F)", "backward (B)", "optimizer", "tp all-gather", "tp reduce-scatter", "pp recv", "pp send",
        "dp all-gather", "dp reduce-scatter", "waiting for a peer or the network", "idle",
    ]  # fmt: skip
    assert legend_labels(plots.gantt(small, ranks=[0], window=(0.0, 1e-4))) == ["forward (F)", "idle"]


def test_the_legend_shows_the_shade_of_every_chunk():
    figure = plots.gantt(Made(2, 4, chunks=3, recompute=0.5).timeline())
    assert legend_labels(figure)[:3] == [
        f"{kind}, chunks 0, 1, 2" for kind in ("forward (F)", "backward (B)", "recompute")
    ]


def test_an_unknown_stream_and_kind_are_drawn_and_named(small):
    strange = small.assign(
        stream=small["stream"].replace("dp", "nvme"), kind=small["kind"].replace("optimizer", "loss")
    )
    assert {"loss", "nvme all-gather"} <= set(legend_labels(plots.gantt(strange)))


@pytest.mark.parametrize(("scale", "unit"), [(1.0, "ms"), (1e3, "s"), (1e-3, "us"), (1e-6, "ns")])
def test_the_time_axis_has_a_unit_that_fits(small, scale, unit):
    times = {name: small[name] * scale for name in ("ready", "start", "end")}
    axes = plots.gantt(small.assign(**times)).axes[0]
    assert axes.get_xlabel() == f"time ({unit})"
    assert 1.0 <= axes.get_xlim()[1] < 1000.0


def test_the_title_says_what_is_shown(small):
    assert plots.gantt(small).texts[0].get_text() == "One training step · 8 ranks · 170.6 ms"
    zoomed = plots.gantt(small, window=(0.01, 0.02))
    assert zoomed.texts[0].get_text().endswith("from 10.00 ms to 20.00 ms")
    assert zoomed.axes[0].get_xlim() == pytest.approx((10.0, 20.0))
    assert plots.gantt(small, title="mine").texts[0].get_text() == "mine"


@pytest.mark.parametrize("columns", [{"stream": "category", "kind": "category"}, {"rank": "int32", "chunk": "int16"}])
def test_compact_column_types_and_any_index_give_the_same_picture(small, columns):
    compact = small.astype(columns).iloc[::-1]
    one, other = plots.gantt(small), plots.gantt(compact)
    assert legend_labels(one) == legend_labels(other)
    shown = [{path.vertices.tobytes() for path in each.axes[0].collections[3].get_paths()} for each in (one, other)]
    assert shown[0] == shown[1]


def test_a_window_in_which_nothing_happens_is_drawn_empty():
    timeline = pd.DataFrame([span(start=0, end=1), span(start=5, end=6)])
    figure = plots.gantt(timeline, window=(2.0, 4.0))
    assert legend_labels(figure) == ["idle"]
    assert row_labels(plots.compare_gantts([("a", timeline), ("b", timeline)], window=(2.0, 4.0))) == [
        "rank 0 · stage 0", "rank 0 · stage 0",
    ]  # fmt: skip


# --- a break in the time axis -----------------------------------------------------------------------------------------


def begun(timeline: pd.DataFrame) -> np.ndarray:
    """When rank 0 begins each forward pass."""
    here = timeline[(timeline["rank"] == 0) & (timeline["kind"] == "forward") & (timeline["name"] == "attention 0")]
    return here["start"].to_numpy()


def test_a_long_steady_phase_is_left_out_in_whole_periods_and_counted():
    timeline = Made(4, 128).timeline()
    figure = plots.gantt(timeline)
    before, behind = figure.axes
    (said,) = (text.get_text() for text in figure.texts if text.get_text().endswith(" ×"))
    left_out = int(said.removesuffix(" ×"))
    assert left_out > 100
    assert f"The break omits {left_out} microbatches like those next to it." in words(figure)
    starts = begun(timeline)
    first, last = before.get_xlim()[1], behind.get_xlim()[0]
    assert first in starts  # it goes on behind the break where it was before
    assert last in starts
    assert ((starts >= first - 1e-9) & (starts < last - 1e-9)).sum() == left_out
    scales = [(axes.get_xlim()[1] - axes.get_xlim()[0]) / axes.get_position().width for axes in figure.axes]
    assert scales[0] == pytest.approx(scales[1])


def test_nothing_is_broken_where_that_is_not_asked_for_or_would_hide_something():
    timeline = Made(4, 128).timeline()
    assert len(plots.gantt(timeline, window=(0.1, 1.4)).axes) == 1
    assert len(plots.gantt(timeline, breaks=False).axes) == 1
    late = timeline[timeline["start"] > 0.8].index
    times = ["ready", "start", "end"]
    stalled = timeline.copy()
    stalled.loc[late, times] += 0.5  # in the middle of the steady phase: it is still there in the picture
    windows = [axes.get_xlim() for axes in plots.gantt(stalled).axes]
    assert any(first < 0.82 and last > 1.29 for first, last in windows)


def test_compared_timelines_leave_out_the_same_time():
    both = [Made(4, 128).timeline(), Made(4, 128, forward=4.4e-3).timeline()]
    figure = plots.compare_gantts([("short", both[0]), ("long", both[1])])
    windows = [axes.get_xlim() for axes in figure.axes]
    assert len(windows) == 4
    assert windows[:2] == windows[2:]
    (_, first), (last, _) = windows[:2]
    counts = [int(((begun(one) >= first - 1e-9) & (begun(one) < last - 1e-9)).sum()) for one in both]
    assert [text.get_text() for text in figure.texts if text.get_text().endswith(" ×")] == [f"{n} ×" for n in counts]
    assert counts[0] > counts[1] > 90


# --- comparison -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schedules() -> list[tuple[str, pd.DataFrame]]:
    made = {"gpipe": Made(4, 8, schedule="gpipe"), "1f1b": Made(4, 8), "interleaved": Made(4, 8, chunks=2)}
    return [(name, one.timeline()) for name, one in made.items()]


def test_compared_timelines_share_one_axis_and_one_legend(schedules):
    figure = plots.compare_gantts(schedules)
    assert len(figure.axes) == 3
    assert len(figure.legends) == 1
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "time (ms)"]
    tops = [axes.get_position().y1 for axes in figure.axes]
    assert tops == sorted(tops, reverse=True)
    assert len(row_labels(figure)) == 12


def test_each_compared_timeline_has_its_name_its_length_and_the_difference(schedules):
    figure = plots.compare_gantts(schedules)
    notes = [[text.get_text() for text in axes.texts if not text.get_text().isdigit()] for axes in figure.axes]
    lengths = [timeline["end"].max() - timeline["ready"].min() for _, timeline in schedules]
    assert notes[0] == ["gpipe", f"{lengths[0] * 1e3:.4g} ms", ""]
    for note, (name, _), length in zip(notes[1:], schedules[1:], lengths[1:], strict=True):
        change = f"{(length / lengths[0] - 1) * 100:+.1f} %".replace("-", "−")
        assert note == [name, f"{length * 1e3:.4g} ms", change]


def test_compared_timelines_start_at_their_own_beginning(small):
    later = small.assign(**{name: small[name] + 1000.0 for name in ("ready", "start", "end")})
    figure = plots.compare_gantts([("one", small), ("the same, later", later)])
    first, second = (axes.collections[3].get_paths() for axes in figure.axes)
    assert len(first) == len(second)
    starts = [[path.vertices[0, 0] for path in paths] for paths in (first, second)]
    assert starts[0] == pytest.approx(starts[1], abs=1e-6)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": [3, 99]}, r"ranks \[99\] are not in the timeline; the timeline has 8 ranks: 0, 1,"),
        ({"ranks": []}, "selects no rank"),
        ({"window": (0.2, 0.1)}, "is empty; write \\(from, to\\) with from < to"),
        ({"window": (5.0, 6.0)}, "is outside the timeline; choose times between 0 and 0.17"),
        ({"rows": "node"}, 'use "rank" or "stage"'),
        ({"max_rows": 0}, "between 1 and 1000"),
        ({"width": 1.0}, "between 5 and 60 inches"),
    ],
)
def test_a_selection_that_cannot_be_drawn_is_refused(small, arguments, message):
    with pytest.raises(InputError, match=message):
        plots.gantt(small, **arguments)


def test_a_timeline_that_cannot_be_drawn_is_refused(small):
    with pytest.raises(InputError, match="the timeline is empty"):
        plots.gantt(small.iloc[:0])
    with pytest.raises(InputError, match=r"lacks the columns \['ready'\]"):
        plots.gantt(small.drop(columns="ready"))
    with pytest.raises(InputError, match="NaN or infinite"):
        plots.gantt(small.assign(end=np.nan))
    with pytest.raises(InputError, match="zero length"):
        plots.gantt(small.assign(ready=1.0, start=1.0, end=1.0))
    with pytest.raises(InputError, match="nothing to compare"):
        plots.compare_gantts([])
    with pytest.raises(InputError, match="second: the timeline is empty"):
        plots.compare_gantts([("first", small), ("second", small.iloc[:0])])


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")])
def test_a_figure_is_saved_by_its_ending_and_always_the_same(small, tmp_path, ending, magic):
    for name in ("one", "two"):
        plots.save_figure(plots.gantt(small, rows="stage"), tmp_path / f"{name}.{ending}")
    content = (tmp_path / f"one.{ending}").read_bytes()
    assert content.startswith(magic)
    assert content == (tmp_path / f"two.{ending}").read_bytes()


def test_a_file_that_cannot_be_written_is_refused(small, tmp_path: Path):
    figure = plots.gantt(small)
    with pytest.raises(InputError, match=r"must end in one of \.png, \.svg, \.pdf"):
        plots.save_figure(figure, tmp_path / "gantt.jpeg")
    with pytest.raises(InputError, match="does not exist; create it first"):
        plots.save_figure(figure, tmp_path / "none" / "gantt.png")


def test_drawing_keeps_nothing_global_and_importing_plots_is_light():
    code = (
        "import sys, simcluster.plots; assert 'matplotlib' not in sys.modules;"
        "from simcluster.show import gantt; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_result_is_as_good_as_its_timeline(small):
    @dataclass
    class Result:
        timeline: pd.DataFrame

    assert row_labels(plots.gantt(Result(small))) == row_labels(plots.gantt(small))


# --- colours ----------------------------------------------------------------------------------------------------------

# What is left of linear RGB with one cone missing: Machado, Oliveira, Fernandes, "A Physiologically-based Model for
# Simulation of Color Vision Deficiency", IEEE TVCG 15(6), 2009, table of severity 1.0.
_MISSING_CONE = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}


def lab(colour: tuple[float, float, float], cone: np.ndarray) -> np.ndarray:
    """CIE L*a*b* (D65) of an sRGB colour as seen through `cone`."""
    parts = np.array(colour)
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    linear = np.clip(cone @ linear, 0.0, 1.0)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    x, y, z = np.cbrt(np.maximum(xyz / [0.9505, 1.0, 1.089], 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", list(_MISSING_CONE))
@pytest.mark.parametrize("family", ["compute", "streams"])
def test_colours_that_share_a_lane_or_a_legend_stay_apart_for_every_reader(vision, family):
    if family == "compute":
        colours = {kind: palette.op_colour("compute", kind) for kind in [*palette.COMPUTE_KINDS, "waiting"]}
    else:
        colours = {stream: palette.op_colour(stream, "send") for stream in [*palette.STREAMS]}
    for one, other in itertools.combinations(colours, 2):
        difference = np.linalg.norm(
            lab(colours[one], _MISSING_CONE[vision]) - lab(colours[other], _MISSING_CONE[vision])
        )
        assert difference > 15, (one, other, difference)


_KINDS_OF_A_STREAM = {
    "tp": ("all_reduce", "reduce_scatter", "all_gather"),
    "cp": ("reduce_scatter", "all_gather"),
    "pp": ("all_reduce", "send", "recv"),
    "dp": ("all_reduce", "reduce_scatter", "all_gather", "broadcast"),
}


@pytest.mark.parametrize("vision", list(_MISSING_CONE))
@pytest.mark.parametrize("stream", list(_KINDS_OF_A_STREAM))
def test_collectives_of_one_stream_stay_apart_on_both_grounds(vision, stream):
    kinds = _KINDS_OF_A_STREAM[stream]
    shown = paint_colours([(stream, kind, 0) for kind in kinds])
    for ground in ("light", "dark"):
        seen = [lab(palette.parse_rgb(code), _MISSING_CONE[vision]) for code in shown[ground]]
        for one, other in itertools.combinations(range(len(kinds)), 2):
            assert np.linalg.norm(seen[one] - seen[other]) > 8, (kinds[one], kinds[other], ground)


def test_a_bubble_a_straggler_and_the_optimizer_are_three_greys():
    lightness = [lab(palette.parse_rgb(grey), np.eye(3))[0] for grey in (palette.WAITING, palette.STRAGGLING)]
    lightness.append(lab(palette.op_colour("compute", "optimizer"), np.eye(3))[0])
    assert lightness[0] - lightness[1] > 15
    assert lightness[1] - lightness[2] > 15


def test_text_is_readable_on_every_fill():
    """Contrast of at least 3 to 1, the least that WCAG 2.2 asks of graphics."""

    def luminance(colour: tuple[float, float, float]) -> float:
        return float((lab(colour, np.eye(3))[0] + 16) / 116) ** 3

    fills = [palette.op_colour("compute", kind, chunk) for kind in palette.COMPUTE_KINDS for chunk in range(4)]
    fills += [palette.op_colour(stream, kind) for stream in palette.STREAMS for kind in ("send", "recv", "all_reduce")]
    for fill in fills:
        dark, light = sorted((luminance(fill), luminance(palette.parse_rgb(palette.text_colour_on(fill)))))
        assert (light + 0.05) / (dark + 0.05) > 3.0
