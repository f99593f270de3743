"""Memory over time: nothing leaks, nothing is freed twice, and the peaks of the formulas (MODELLING.md B.2 to B.4)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from activation_bytes import (
    activation_bytes_per_layer,
    backward_tensors,
    embedding_activation_bytes,
    head_activation_bytes,
    lm_head_working_bytes,
    working_bytes,
)
from conftest import Tiny, counts_of, tiny_scenario
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_by_hand import HandOp, label, ops_of

import simcluster
from simcluster import plots
from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.model.layers import RankShape
from simcluster.model.memory import activation_bytes
from simcluster.planning.ops import MemoryChange
from simcluster.reference.step_record import OpSpanLabel, OpTimes, split_record_by_rank
from simcluster.results.memory_timeline import COLUMNS, POOLS, MemoryTimeline, memory_peaks, memory_timeline
from simcluster.results.result import Result
from simcluster.schedules import SCHEDULES, make_schedule
from simcluster.step.simulate import simulate
from simcluster.studies.bench.fixed_durations import Costs, simulate_costs

SCENARIOS = Path(__file__).parent.parent / "scenarios"
CHUNKS = {
    name: make_schedule(name, 4, 8, counts_of(name, 4)[0]).num_chunks
    for name, entry in SCHEDULES.items()
    if entry.route and not entry.depends_on_times
}
"""Schedules that hold the model once, with their chunks."""


def run(
    schedule: str = "1f1b",
    P: int = 2,
    M: int = 4,
    *,
    tp: int = 1,
    steps: int = 1,
    gpus: int = 0,
    folded: bool = True,
    **other: Any,
) -> Result:
    """A step of the tiny model with two layers a chunk; ``other`` are sections."""
    training = {
        "global_batch": M * ((gpus or P * tp) // (P * tp)),
        "attention": "unfused",
        "dropout": True,
        **other.pop("training", {}),
    }
    scenario = tiny_scenario(
        cluster={"topology": "flat", "gpus": gpus or P * tp},
        model={"layers": 2 * P * CHUNKS[schedule], **other.pop("model", {})},
        parallel={"pp": P, "tp": tp, **other.pop("parallel", {})},
        pipeline=pipeline_of(schedule),
        training=training,
        steps=steps,
        **other,
    )
    return simulate(scenario, folded=folded)


def pipeline_of(schedule: str) -> dict[str, Any]:
    return {"schedule": schedule, "chunks": counts_of(schedule, 4)[0]}


def shape_of(result: Result) -> RankShape:
    scenario = result.scenario
    return RankShape(
        micro_batch=1, tp=scenario.parallel.tp, sequence_parallel=scenario.parallel.sequence_parallel,
        recompute=scenario.training.recompute, attention=scenario.training.attention,
        dropout=scenario.training.dropout,
    )  # fmt: skip


def balanced(timeline: MemoryTimeline) -> None:
    """In every step, pool and rank what comes goes; and no pool ever holds less than nothing."""
    for rank in np.unique(timeline.rank).tolist():
        for number, pool in enumerate(POOLS):
            own = (timeline.rank == rank) & (timeline.pool == number)
            for step in np.unique(timeline.step).tolist():
                assert timeline.delta[own & (timeline.step == step)].sum() == 0, (rank, pool, step)
            assert timeline.curve(rank)[1][pool].min(initial=0.0) >= 0, (rank, pool)


pipelines = st.tuples(st.sampled_from(sorted(CHUNKS)), st.sampled_from([2, 4]), st.integers(1, 2))
modes = st.sampled_from(["none", "selective", "full"])


# --- invariants -----------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(pipelines, modes, st.sampled_from([(1, False), (2, False), (2, True)]), st.booleans())
def test_what_comes_goes_and_the_peak_is_the_walk_of_the_schedule(
    pipeline: tuple[str, int, int], mode: str, tensor: tuple[int, bool], overlapped: bool
) -> None:
    """The clock moves no peak: a rank does its row in order, and only buffers between stages depend on times."""
    schedule, P, groups = pipeline
    result = run(
        schedule, P, 2 * P * groups, tp=tensor[0], training={"recompute": mode},
        parallel={"sequence_parallel": tensor[1]}, overlap={"tensor": overlapped},
    )  # fmt: skip
    timeline = result.memory_timeline
    balanced(timeline)
    for rank, stage in zip(sorted(result.weights), range(P), strict=True):
        planned = result.facts.footprints[stage]
        alone = peak_pools(without_receives(timeline), rank)
        assert alone["activations"] == planned.activations
        assert alone["other"] == planned.other
        peak = result.memory_peak_of(rank)
        assert peak.stage == stage
        assert peak.pools == peak_pools(timeline, rank)
        assert peak.total >= sum(alone.values())
    assert result.memory.total >= max(each.total for each in result.facts.footprints)


def without_receives(timeline: MemoryTimeline) -> MemoryTimeline:
    """The same without the buffers between stages."""
    kept = np.array([kind != "recv" for kind, _, _ in timeline.rows])[timeline.row]
    names = ("time", "rank", "stage", "step", "chunk", "microbatch", "row", "pool", "delta")
    return MemoryTimeline(timeline.rows, **{name: getattr(timeline, name)[kept] for name in names})


def peak_pools(timeline: MemoryTimeline, rank: int) -> dict[str, float]:
    """Bytes in each pool at the first instant at which a rank holds most."""
    _, pools = timeline.curve(rank)
    at = int(sum(pools.values()).argmax())
    return {name: float(held[at]) for name, held in pools.items()}


@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1", "zb-v"])
def test_every_step_is_balanced_by_itself(schedule: str) -> None:
    result = run(schedule, 2, 4, steps=2, parallel={"zero": 1}, gpus=4)
    balanced(result.memory_timeline)
    once = run(schedule, 2, 4, parallel={"zero": 1}, gpus=4)
    assert len(result.memory_timeline) == 2 * len(once.memory_timeline)
    assert result.memory == once.memory


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
@pytest.mark.parametrize("overlap", [{}, {"grad_reduce": True, "pipeline": False}])
def test_folded_is_unfolded(schedule: str, overlap: dict[str, bool], tiny: Tiny) -> None:
    scenario = tiny(
        cluster={"topology": "flat", "gpus": 8}, model={"layers": 4}, parallel={"pp": 2, "tp": 2}, overlap=overlap,
        pipeline=pipeline_of(schedule), training={"recompute": "selective"},
    )  # fmt: skip
    folded, whole = simulate(scenario), simulate(scenario, folded=False)
    assert len(folded.weights) < len(whole.weights) == 8
    assert folded.memory_peak == whole.memory_peak
    assert folded.memory == whole.memory
    for rank in folded.weights:
        ours, theirs = folded.memory_timeline.curve(rank), whole.memory_timeline.curve(rank)
        assert np.array_equal(ours[0], theirs[0])
        assert all(np.array_equal(ours[1][pool], theirs[1][pool]) for pool in POOLS)


def test_played_in_steps_balances_too(tiny: Tiny) -> None:
    scenario = tiny(
        cluster={"topology": "flat", "gpus": 4}, parallel={"pp": 2, "tp": 2}, collectives={"detail": "steps"}
    )
    balanced(simulate(scenario).memory_timeline)


def test_slowed_by_communication_it_balances_too() -> None:
    """Slower kernels hold for longer, not more; folded is unfolded to the bit."""
    other: dict[str, Any] = {
        "tp": 2, "gpus": 8, "training": {"recompute": "selective"}, "parallel": {"sequence_parallel": True},
    }  # fmt: skip
    plain = run("1f1b", 2, 4, **other, overlap={"tensor": True})
    slowed = {"tensor": True, "interference": {"kind": "factor", "compute": 1.0}}
    slow, whole = (run("1f1b", 2, 4, **other, overlap=slowed, folded=folded) for folded in (True, False))
    assert slow.step_time > plain.step_time
    balanced(slow.memory_timeline)
    assert slow.memory_peak == whole.memory_peak
    for rank in slow.weights:
        slowed_peak, plain_peak = (peak_pools(without_receives(each.memory_timeline), rank) for each in (slow, plain))
        assert slowed_peak == plain_peak
        ours, theirs = slow.memory_timeline.curve(rank), whole.memory_timeline.curve(rank)
        assert np.array_equal(ours[0], theirs[0])
        assert not np.array_equal(ours[0], plain.memory_timeline.curve(rank)[0])


def test_given_times_have_no_memory() -> None:
    result = simulate_costs(Costs(forward=1.0, backward=2.0, send=0.1), stages=2, microbatches=2)
    timeline = result.memory_timeline
    assert len(timeline) == 0
    assert result.memory_peak_of(0).total == 0
    assert result.memory_peak_of(1).describe() == ""
    assert timeline.frame().empty


# --- formulas -------------------------------------------------------------------------------------------------------

IN_FLIGHT = {  # chunks in flight at the peak of each rank (MODELLING.md B.3), and how many of them hold a head
    ("gpipe", 4, 8): [8, 8, 8, 8],
    ("1f1b", 4, 8): [4, 3, 2, 1],
    ("1f1b", 4, 2): [2, 2, 2, 1],
    ("interleaved", 4, 8): [11, 9, 7, 5],
    ("breadth-first", 4, 8): [16, 16, 16, 16],
    ("hanayo", 4, 8): [5, 6, 7, 8],
}


@pytest.mark.parametrize(("case", "expected"), IN_FLIGHT.items())
def test_chunks_in_flight(case: tuple[str, int, int], expected: list[int]) -> None:
    """The pool of activations alone, over what one chunk keeps; stages with an end of the model are left out."""
    schedule, P, M = case
    result = run(schedule, P, M)
    unit = 2 * activation_bytes_per_layer(result.scenario.model, shape_of(result))
    found = [result.memory_timeline.curve(rank)[1]["activations"].max() / unit for rank in sorted(result.weights)]
    assert found[1:-1] == expected[1:-1]


@pytest.mark.parametrize(("schedule", "first", "last"), [("1f1b", 4, 1), ("gpipe", 8, 8)])
def test_chunks_in_flight_at_the_ends(schedule: str, first: int, last: int) -> None:
    result = run(schedule, 4, 8)
    model, shape = result.scenario.model, shape_of(result)
    chunk = 2 * activation_bytes_per_layer(model, shape)
    held = [result.memory_timeline.curve(rank)[1]["activations"].max() for rank in sorted(result.weights)]
    assert held[0] == first * (chunk + embedding_activation_bytes(model, shape))
    assert held[-1] == last * (chunk + head_activation_bytes(model, shape))


def test_split_backward_keeps_34_and_then_32() -> None:
    """GPT without parallelism: F keeps s b h (34 + 5 a s / h) a layer, I leaves 32 s b h of it to W (MODELLING.md B.3).

    14 are inputs of products that F made, 18 gradients that I made.
    """
    result = run("zb-h1", 4, 8, training={"attention": "unfused", "dropout": True})
    model, shape = result.scenario.model, shape_of(result)
    s, h, a = model.sequence_length, model.hidden_size, model.heads
    rank = sorted(result.weights)[1]
    timeline = result.memory_timeline
    own = (timeline.rank == rank) & (timeline.microbatch == 0) & (timeline.pool == 0)
    by_kind = {
        kind: float(timeline.delta[own & np.array([row[0] == kind for row in timeline.rows])[timeline.row]].sum())
        for kind in ("forward", "input_grad", "weight_grad")
    }
    layers = 2
    assert by_kind["forward"] == layers * s * h * (34 + 5 * a * s / h)
    assert by_kind["weight_grad"] == -layers * s * h * 32
    assert by_kind["input_grad"] == -by_kind["forward"] - by_kind["weight_grad"]
    read_by_weights = [tensor for tensor in backward_tensors(model, shape) if tensor.block in ("attention", "mlp")]
    made = {half: sum(t.bytes for t in read_by_weights if t.read == "W" and t.made == half) for half in ("F", "I")}
    assert made == {"F": 14 * s * h, "I": 18 * s * h}


def test_zero_bubble_h1_holds_what_1f1b_holds_on_its_first_rank_at_most() -> None:
    """Peaks of ZB-H1 (MODELLING.md B.3): P microbatches on every rank, of which W's share is 32 of 34.

    While the first I runs, its gradients are there beside what it has not freed yet: 10 s b h of the MLP at most.
    """
    result = run("zb-h1", 4, 12, training={"attention": "fused", "dropout": True})
    model, shape = result.scenario.model, shape_of(result)
    unit = 2 * activation_bytes_per_layer(model, shape)
    gradients = 10 * model.sequence_length * model.hidden_size
    for rank in sorted(result.weights)[1:-1]:
        assert 3.8 * unit < result.memory_timeline.curve(rank)[1]["activations"].max() <= 4 * unit + gradients


def test_recomputation_lives_for_one_layer() -> None:
    """Full recompute keeps 2 s b h a layer; the rest of one layer comes back for its backward, in pool "other"."""
    result = run("1f1b", 1, 4, training={"recompute": "full"})
    model, shape = result.scenario.model, shape_of(result)
    s, h, layers = model.sequence_length, model.hidden_size, model.layers
    head, mask = head_activation_bytes(model, shape), s * h
    timeline = result.memory_timeline
    assert timeline.curve(0)[1]["activations"].max() == layers * 2 * s * h + mask + head
    assert timeline.curve(0)[1]["other"].max() == max(working_bytes(model, shape), lm_head_working_bytes(model, shape))
    peak = result.memory_peak
    assert peak.pools["activations"] == layers * 2 * s * h + mask
    assert peak.pools["other"] == working_bytes(model, shape)
    assert (peak.kind, peak.name, peak.layer, peak.microbatch) == ("recompute", "mlp", layers - 1, 0)


def test_logits_live_inside_one_microbatch() -> None:
    """fp32 logits from the last F to its B, 16-bit ones while the loss copies them: 4 n V and 2 n V."""
    result = run("1f1b", 1, 3, model={"layers": 1, "vocab_size": 64 * 1024}, training={"recompute": "none"})
    model, shape = result.scenario.model, shape_of(result)
    n, V = model.sequence_length, 64 * 1024
    peak = result.memory_peak
    assert peak.pools["other"] == lm_head_working_bytes(model, shape) == 2 * n * V
    assert (peak.kind, peak.name, peak.microbatch) == ("forward", "lm_head", 0)
    layer = activation_bytes_per_layer(model, shape) + embedding_activation_bytes(model, shape)
    assert peak.pools["activations"] == layer + 4 * n * V + 2 * 2 * n * model.hidden_size


def test_core_comes_back_when_the_mlp_of_its_layer_is_gone() -> None:
    result = run("1f1b", 1, 2, training={"recompute": "selective"}, model={"layers": 3, "sequence_length": 1024})
    model, shape = result.scenario.model, shape_of(result)
    parts = activation_bytes(model, shape)
    mlp = sum(size for name, size in parts.items() if name.startswith(("mlp", "gelu")))
    peak = result.memory_peak
    assert (peak.kind, peak.name, peak.layer) == ("recompute", "attention", 2)
    assert peak.pools["other"] == working_bytes(model, shape) == 5 * model.heads * 1024**2
    assert peak.pools["activations"] == 3 * sum(parts.values()) - mlp + embedding_activation_bytes(model, shape)


# --- by hand --------------------------------------------------------------------------------------------------------


def op_label(kind: str, *memory: MemoryChange, size: float = 0.0) -> OpSpanLabel:
    return label(kind, f"{kind} op", bytes=size, memory=memory)


def test_small_timeline_by_hand() -> None:
    """Rank 0: two ops, the second working in 5 bytes; then a send.  Rank 1 receives 3 bytes and uses them.

    Rank 0 arrives at a collective at 4 s that begins at 6 s, when rank 1 has come: its buffer counts from 4 s.
    """
    act, work = MemoryChange("activations", 10.0, 0.0), MemoryChange("other", 5.0, -5.0)
    free, buffer = MemoryChange("activations", 0.0, -10.0), MemoryChange("gradients", 2.0, -2.0)
    labels = [
        op_label("forward", act),
        op_label("forward", work),
        op_label("send", size=3.0),
        op_label("all_reduce", buffer),
        op_label("backward", free),
        op_label("forward"),
    ]
    ops = [
        HandOp(0, 0, 1.0, microbatch=7),
        HandOp(0, 1, 2.0, microbatch=7),
        HandOp(0, 2, meeting=0),
        HandOp(0, 3, meeting=1),
        HandOp(0, 4, 2.0),
        HandOp(1, 5, 2.0, microbatch=7),
    ]
    ready = np.array([0.0, 1.0, 3.0, 4.0, 8.0, 4.0])
    start = np.array([0.0, 1.0, 3.0, 6.0, 8.0, 4.0])
    end = np.array([1.0, 3.0, 4.0, 8.0, 10.0, 6.0])
    record = ops_of([(0, 0, "main"), (1, 1, "main")], labels, ops, [(2, 5)])
    ranks = list(split_record_by_rank(record, OpTimes(ready, start, end, np.arange(6))))
    table = memory_timeline(ranks).frame()
    assert table[["rank", "time", "pool", "bytes", "held"]].to_numpy().tolist() == [
        [0, 0.0, "activations", 10.0, 10.0],
        [0, 1.0, "other", 5.0, 5.0],
        [0, 3.0, "other", -5.0, 0.0],
        [0, 4.0, "gradients", 2.0, 2.0],
        [0, 8.0, "gradients", -2.0, 0.0],
        [0, 10.0, "activations", -10.0, 0.0],
        [1, 3.0, "other", 3.0, 3.0],
        [1, 6.0, "other", -3.0, 0.0],
    ]
    peak, other = memory_peaks(ranks)
    assert (peak.time, peak.total, peak.kind, peak.microbatch) == (1.0, 15.0, "forward", 7)
    assert dict(peak.pools) == {"activations": 10.0, "parameters": 0.0, "gradients": 0.0, "other": 5.0}
    assert (other.kind, other.time, other.total) == ("recv", 3.0, 3.0)


def test_what_is_freed_at_an_instant_makes_room_for_what_comes_at_it() -> None:
    labels = [
        op_label("backward", MemoryChange("activations", 4.0, -4.0)),
        op_label("forward", MemoryChange("activations", 3.0, -3.0)),
    ]
    times = np.array([0.0, 1.0])
    ops = ops_of([(0, 0, "main")], labels, [HandOp(0, 0, 1.0), HandOp(0, 1, 1.0)])
    ranks = list(split_record_by_rank(ops, OpTimes(times, times, times + 1, np.arange(2))))
    assert memory_timeline(ranks).delta.tolist() == [4.0, -4.0, 3.0, -3.0]
    (peak,) = memory_peaks(ranks)
    assert peak.total == 4.0


# --- the result -----------------------------------------------------------------------------------------------------


def test_gpt3_175b_peaks_on_its_first_stage() -> None:
    """34 s b h / t a layer times L / P (P + (P - 1) / v) in flight: arXiv:2205.05198 section 4.2 and table 2."""
    result = simcluster.simulate(simcluster.scenario(SCENARIOS / "gpt3_175b_64xa100.yaml"))
    s, h, t, P, v, L = 2048, 12288, 8, 8, 3, 96
    masks = s * h / t * 2 * P
    kept = 34 * s * h / t * L / P * (P + (P - 1) / v) / P * P
    timeline = result.memory_timeline
    assert timeline.curve(0)[1]["activations"].max() == pytest.approx(kept + masks, rel=1e-12)
    assert result.memory_peak.rank == result.memory_peak.stage == 0
    peaks = [timeline.curve(rank)[1]["activations"].max() for rank in sorted(result.weights)]
    assert all(earlier > later for earlier, later in pairwise(peaks[:-1]))
    document = result.to_dict()
    assert document["memory_peak"]["op"]["name"] == "attention"
    assert document["peak_memory_bytes"] == result.memory.total
    assert sum(document["memory_bytes"].values()) == pytest.approx(document["peak_memory_bytes"], rel=1e-12)
    boundary = 2 * s * h / t  # a tensor between stages, split over tp
    over = result.memory.total - result.facts.footprints[0].total
    assert 0 <= over <= 3 * boundary
    assert over % boundary == 0


# --- files and pictures ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Result:
    return run("1f1b", 2, 4, gpus=8, tp=2, training={"recompute": "selective"})


def test_a_table_has_a_row_per_change_of_the_ranks_asked_for(small: Result) -> None:
    table = small.memory_table()
    assert tuple(table.columns) == COLUMNS
    assert len(table) == len(small.memory_timeline)
    assert sorted(table["rank"].unique()) == sorted(small.weights)
    assert (table.groupby(["rank", "pool"])["bytes"].sum() == 0).all()
    assert (table["held"] >= 0).all()
    one = small.memory_table([7])
    assert set(one["rank"]) == {7}
    stands = table[table["rank"] == small.representative_of(7)]
    assert one["bytes"].tolist() == stands["bytes"].tolist()
    highest = one.groupby("pool")["held"].max()
    assert highest["activations"] == small.memory_timeline.curve(small.representative_of(7))[1]["activations"].max()


def test_picture_shows_ranks_capacity_and_peak(small: Result) -> None:
    figure = plots.memory(small)
    panels = figure.axes
    assert len(panels) == len(small.weights)
    titles = [axes.get_title(loc="left") for axes in panels]
    assert any(small.memory_peak.describe() in title for title in titles)
    for axes in panels:
        lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
        assert np.asarray(lines["capacity"])[0] == small.facts.memory / 1e9
        assert axes.get_ylim()[1] > small.facts.memory / 1e9
    marked = panels[0].get_lines()[-1].get_xydata()[0]
    size = small.facts.footprints[0].with_pool_bytes(small.memory_peak_of(0).pools).total
    assert marked[1] == pytest.approx(size / 1e9)
    assert len(plots.memory(small, ranks=[0, 7], window=(0.0, 1e-4)).axes) == 2


def test_pictures_that_cannot_be_drawn(small: Result) -> None:
    with pytest.raises(InputError, match="name at most 12"):
        plots.memory(small, ranks=list(range(8)) * 2)


def test_command_line_writes_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = str(SCENARIOS / "tiny_3d.yaml")
    for name in ("memory.svg", "memory.csv"):
        assert main(["run", scenario, "--memory", str(tmp_path / name), "--ranks", "0,1"]) == 0
        assert (tmp_path / name).stat().st_size > 1000
    assert "on the fullest GPU" in capsys.readouterr().out
    assert main(["run", scenario, "--memory", str(tmp_path / "memory.txt")]) == 2
    assert "memory.txt" in capsys.readouterr().err
