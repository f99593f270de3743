"""The timeline: columns of the contract, receives shown, every rank on demand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import Tiny
from ops_by_hand import HandOp, label, ops_of

from simcluster.reference.step_record import OpTimes
from simcluster.results.timeline import COLUMNS, Spans, make_spans
from simcluster.step.simulate import simulate

PIPELINE: dict[str, Any] = {
    "cluster": {"topology": "dgx_a100", "nodes": 1},
    "parallel": {"tp": 2, "pp": 2, "dp": 2},
    "training": {"global_batch": 8},
}


def spans() -> Spans:
    """Rank 0 computes twice and sends; rank 5 (stage 1) receives and meets it."""
    reduce = label("all_reduce", "gradients", stream="dp", axis="dp", bytes=8.0)
    labels = [
        label("forward", "norm", layer=2),
        label("forward", "mlp", layer=2),
        label("send", "activation", stream="pp", bytes=64.0),
        label("backward", "all"),
        reduce,
    ]
    ops = [
        HandOp(0, 0, 1.0, step=1, chunk=1, microbatch=7),
        HandOp(0, 1, 2.0, step=1, chunk=1, microbatch=7),
        HandOp(1, 2, meeting=0, microbatch=7),
        HandOp(2, 3, 4.0, microbatch=7),
        HandOp(0, 4, meeting=1),
        HandOp(2, 4, meeting=1),
    ]
    lanes = [(0, 0, "main"), (0, 0, "send F"), (5, 1, "main")]
    ready, start = np.array([0.0, 1.0, 3.0, 5.0, 3.0, 9.0]), np.array([0.0, 1.0, 3.0, 5.0, 9.0, 9.0])
    end, last = np.array([1.0, 3.0, 5.0, 9.0, 10.0, 10.0]), np.array([0, 1, 2, 3, 5, 5])
    times = OpTimes(ready, start, end, last)
    return make_spans(ops_of(lanes, labels, ops, [(2, 3)]), times, lambda axis, rank: f"{axis}{rank}")


def test_a_whole_table() -> None:
    frame = spans().to_frame()
    assert tuple(frame.columns) == COLUMNS
    found = list(frame.itertuples(index=False, name=None))
    assert found == [
        # step rank stream kind name layer stage chunk microbatch group bytes ready start end
        (1, 0, "compute", "forward", "norm", 2, 0, 1, 7, "", 0.0, 0.0, 0.0, 1.0),
        (1, 0, "compute", "forward", "mlp", 2, 0, 1, 7, "", 0.0, 1.0, 1.0, 3.0),
        (0, 0, "pp", "send", "activation", -1, 0, -1, 7, "", 64.0, 3.0, 3.0, 5.0),
        (0, 0, "dp", "all_reduce", "gradients", -1, 0, -1, -1, "dp0", 8.0, 3.0, 9.0, 10.0),
        (0, 5, "pp", "recv", "activation", -1, 1, -1, 7, "", 64.0, 3.0, 3.0, 5.0),
        (0, 5, "compute", "backward", "all", -1, 1, -1, 7, "", 0.0, 5.0, 5.0, 9.0),
        (0, 5, "dp", "all_reduce", "gradients", -1, 1, -1, -1, "dp5", 8.0, 9.0, 9.0, 10.0),
    ]


def test_columns_have_the_types_of_numbers_and_texts() -> None:
    frame = spans().to_frame()
    for name in ("step", "rank", "layer", "stage", "chunk", "microbatch"):
        assert frame[name].dtype == np.int64
    for name in ("bytes", "ready", "start", "end"):
        assert frame[name].dtype == np.float64
    for name in ("stream", "kind", "name", "group"):
        assert all(isinstance(word, str) for word in frame[name])


def test_spans_of_one_rank_and_words() -> None:
    table = spans()
    assert len(table) == 7
    assert len(table.of_rank(0)) == 4
    assert len(table.of_rank(3)) == 0
    assert table.words[table.word_code("recv")] == "recv"
    assert table.word_code("nothing of the kind") == -1


def test_every_rank_has_a_timeline(tiny: Tiny) -> None:
    result = simulate(tiny(**PIPELINE))
    assert len(result.weights) == 2
    groups = result.folding.communicators
    for rank in range(8):
        frame = result.timeline_of(rank)
        assert set(frame["rank"]) == {rank}
        assert set(frame["stage"]) == {rank // 4}
        assert set(frame.loc[frame["stream"] == "tp", "group"]) == {groups.group_name("tp", rank)} == {f"tp{rank // 2}"}
    # the timeline itself holds the simulated ranks only
    assert sorted(set(result.timeline["rank"])) == sorted(result.weights)
    pd.testing.assert_frame_equal(
        result.timeline_of(0), result.timeline[result.timeline["rank"] == 0].reset_index(drop=True)
    )


def test_spans_are_sane(tiny: Tiny) -> None:
    """On every stream: ready <= start <= end, in order, never two at once; a send and its receive are one interval."""
    result = simulate(tiny(**PIPELINE), folded=False)
    frame = result.timeline
    assert (frame["ready"] <= frame["start"]).all()
    assert (frame["start"] <= frame["end"]).all()
    assert (frame["end"] <= result.step_time).all()
    for _, one in frame[frame["stream"] != "pp"].groupby(["rank", "stream"]):
        assert (one["start"].to_numpy()[1:] >= one["end"].to_numpy()[:-1]).all()
    columns = ["name", "microbatch", "bytes", "start", "end"]
    sent = frame[frame["kind"] == "send"].sort_values(columns)[columns].to_numpy().tolist()
    received = frame[frame["kind"] == "recv"].sort_values(columns)[columns].to_numpy().tolist()
    assert sent == received
    assert len(sent) == 2 * 4 * 4  # directions, microbatches, pairs of ranks


def test_every_span_of_the_model_is_there(tiny: Tiny) -> None:
    """Layer by layer and microbatch by microbatch, on the stage that holds the layer."""
    frame = simulate(tiny(**PIPELINE)).timeline
    mlp = frame[(frame["kind"] == "forward") & (frame["name"] == "mlp")]
    found = sorted(mlp[["stage", "layer", "microbatch"]].itertuples(index=False, name=None))
    assert found == [(layer // 2, layer, microbatch) for layer in range(4) for microbatch in range(4)]


@pytest.mark.parametrize("name", ["ready", "start", "end"])
def test_times_lie_on_the_grid(tiny: Tiny, name: str) -> None:
    times = simulate(tiny(**PIPELINE)).timeline[name].to_numpy() * 2.0**44
    assert (times == np.round(times)).all()
