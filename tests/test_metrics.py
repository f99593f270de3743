"""Metrics on tables written by hand, and against an independent interval algebra on simulated ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from conftest import Tiny
from hypothesis import given
from hypothesis import strategies as st
from ops_by_hand import ranks_of_spans

from simcluster.results.overlap import measure_overlaps
from simcluster.results.rank_time import BREAKDOWN
from simcluster.results.result import Result
from simcluster.results.step_time import StepBreakdown, measure_step_time
from simcluster.results.timeline import Spans
from simcluster.step.simulate import simulate

Row = tuple[int, str, str, int, float, float, float]  # rank, stream, kind, microbatch, ready, start, end
Interval = tuple[float, float]


def spans(rows: Sequence[Row], steps: Sequence[int] = (), *, pipelined: bool = False) -> Spans:
    """A table of spans from what matters to metrics; ``steps[i]`` is row i's step (0).

    Ranks are replicas of one stage or, ``pipelined``, a stage each.
    """
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0], rows[i][5], rows[i][6]))
    words = tuple(dict.fromkeys(word for row in rows for word in row[1:3]))
    rank, stream, kind, microbatch, ready, start, end = zip(*(rows[i] for i in order), strict=True)
    count = np.arange(len(rows))  # what no metric reads is another in every row
    return Spans(
        words=words,
        op=np.arange(len(rows)),
        step=np.array([steps[i] if steps else 0 for i in order]),
        rank=np.array(rank),
        stream=np.array([words.index(word) for word in stream]),
        kind=np.array([words.index(word) for word in kind]),
        name=count % len(words),
        layer=count + 7,
        stage=np.array(rank) if pipelined else np.zeros(len(rows), dtype=np.int64),
        chunk=count[::-1],
        microbatch=np.array(microbatch),
        group=(count + 1) % len(words),
        bytes=count * 3.0,
        ready=np.array(ready, dtype=float),
        start=np.array(start, dtype=float),
        end=np.array(end, dtype=float),
    )


def metrics(rows: Sequence[Row], weights: dict[int, int] | None = None, *, pipelined: bool = False) -> StepBreakdown:
    return measured(spans(rows, pipelined=pipelined), weights or {rank: 1 for rank, *_ in rows})


def measured(table: Spans, weights: dict[int, int], steps: int = 1) -> StepBreakdown:
    return measure_step_time(lambda: ranks_of_spans(table), weights, steps=steps)


def only(breakdown: dict[str, float]) -> dict[str, float]:
    """The entries that are not zero."""
    return {name: seconds for name, seconds in breakdown.items() if seconds}


# --- tables by hand ---------------------------------------------------------------------------------------------------


def test_compute_alone() -> None:
    found = metrics(
        [
            (0, "compute", "forward", 0, 0, 0, 2),
            (0, "compute", "recompute", 0, 2, 2, 3),
            (0, "compute", "backward", 0, 3, 3, 7),
            (0, "compute", "optimizer", -1, 7, 7, 8),
            (0, "compute", "other", -1, 9, 9, 10),
        ]
    )
    assert found.step_seconds == 10
    assert only(found.breakdown) == {
        "forward": 2, "recompute": 1, "backward": 4, "optimizer": 1, "other": 1, "straggler_wait": 1,
    }  # fmt: skip
    assert (found.communication, found.overlap_fraction) == (0, 0)
    assert (found.pipeline_seconds, found.bubble_fraction, found.bubble_over_ideal) == (7, 0, 0)


@pytest.mark.parametrize(("stream", "kind"), [("cp_ring", "send_recv"), ("compute", "rehearsal")])
def test_time_that_no_entry_counts_is_refused(stream: str, kind: str) -> None:
    """A stream or kind that the breakdown does not know would be booked as waiting for stragglers."""
    rows: list[Row] = [(0, "compute", "forward", 0, 0.0, 0.0, 1.0), (0, stream, kind, -1, 1.0, 1.0, 2.0)]
    unknown = stream if stream != "compute" else kind
    with pytest.raises(ValueError, match=f"the time breakdown has no entry for .*{unknown!r}; known: .*"):
        metrics(rows)
    with pytest.raises(ValueError, match=f"the time breakdown has no entry for .*{unknown!r}; known: .*"):
        measure_overlaps(spans(rows), {0: 1}, np.zeros(len(rows)), steps=1)


def test_split_backward_is_backward() -> None:
    found = metrics([(0, "compute", "input_grad", 0, 0, 0, 2), (0, "compute", "weight_grad", 0, 2, 2, 5)])
    assert only(found.breakdown) == {"backward": 5}


def test_hidden_and_exposed_communication() -> None:
    """6 s on the wire, 2 of them beside compute; the rest holds the rank up."""
    found = metrics(
        [
            (0, "compute", "forward", 0, 0, 0, 4),
            (0, "tp", "all_reduce", 0, 4, 4, 6),
            (0, "compute", "backward", 0, 6, 6, 10),
            (0, "dp", "all_reduce", -1, 8, 8, 12),
        ]
    )
    assert only(found.breakdown) == {"forward": 4, "backward": 4, "exposed_tp": 2, "exposed_dp": 2}
    assert found.communication == 6
    assert found.overlap_fraction == pytest.approx(2 / 6, rel=1e-15)


def test_several_at_once_are_one_exposure() -> None:
    """Two axes in flight with nothing computing: the innermost is what blocks; time on the wire counts once."""
    found = metrics(
        [
            (0, "pp", "send", 0, 0, 0, 4),
            (0, "dp", "all_reduce", -1, 0, 0, 6),
            (0, "tp", "all_reduce", 0, 1, 1, 2),
            (0, "pp", "recv", 0, 3, 3, 5),
            (0, "compute", "forward", 0, 6, 6, 7),
        ]
    )
    assert only(found.breakdown) == {"exposed_tp": 1, "exposed_pp": 4, "exposed_dp": 1, "forward": 1}
    assert found.communication == 6


def test_waiting_is_not_communication() -> None:
    """Rank 1 is late by 3 s: rank 0 waits for it, then both move data for 1 s."""
    found = metrics(
        [
            (0, "compute", "forward", 0, 0, 0, 2),
            (0, "tp", "all_reduce", 0, 2, 5, 6),
            (1, "compute", "forward", 0, 0, 0, 5),
            (1, "tp", "all_reduce", 0, 5, 5, 6),
        ]
    )
    assert only(found.breakdown) == {"forward": 3.5, "straggler_wait": 1.5, "exposed_tp": 1}
    assert found.communication == 1


def test_waiting_across_stages_is_the_pipeline() -> None:
    """Between stages nobody is late by himself: the norm is taken when the last stage is through."""
    found = metrics(
        [
            (0, "compute", "backward", 0, 0, 0, 2),
            (0, "pp", "all_reduce", -1, 2, 4, 5),
            (1, "compute", "backward", 0, 0, 0, 4),
            (1, "pp", "all_reduce", -1, 4, 4, 5),
        ],
        pipelined=True,
    )
    assert only(found.breakdown) == {"backward": 3, "bubble": 1, "exposed_pp": 1}


def test_waiting_beside_compute_costs_nothing() -> None:
    found = metrics([(0, "compute", "forward", 0, 0, 0, 4), (0, "dp", "all_reduce", -1, 0, 3, 5)])
    assert only(found.breakdown) == {"forward": 4, "exposed_dp": 1}
    assert found.overlap_fraction == 0.5


def test_the_bubble_is_what_other_stages_cause() -> None:
    """Stage 1 begins at 1 and ends at 5 of a step of 10; stage 0 waits for it from 1 to 5."""
    rows: list[Row] = [
        (0, "compute", "forward", 0, 0, 0, 1),
        (0, "compute", "backward", 0, 5, 5, 6),
        (0, "compute", "optimizer", -1, 6, 6, 10),
        (1, "compute", "forward", 0, 1, 1, 3),
        (1, "compute", "backward", 0, 3, 3, 5),
    ]
    found = metrics(rows, pipelined=True)
    assert found.pipeline_seconds == 6
    assert found.breakdown["bubble"] == (4 + 6) / 2
    assert found.bubble_fraction == pytest.approx(5 / 10, rel=1e-15)
    assert found.bubble_over_ideal == pytest.approx(5 / 5, rel=1e-15)
    weighted = metrics(rows, {0: 3, 1: 1}, pipelined=True)
    assert weighted.bubble_fraction == pytest.approx((3 * 4 + 6) / 4 / 10, rel=1e-15)
    assert weighted.breakdown["optimizer"] == pytest.approx(3, rel=1e-15)


def test_gradients_reduced_in_a_gap_are_no_bubble() -> None:
    rows: list[Row] = [
        (0, "compute", "backward", 0, 0, 0, 2),
        (0, "dp", "all_reduce", -1, 2, 2, 4),
        (1, "compute", "backward", 0, 0, 0, 4),
    ]
    for pipelined in (False, True):
        found = metrics(rows, pipelined=pipelined)
        assert found.bubble_fraction == 0
        assert only(found.breakdown) == {"backward": 3, "exposed_dp": 1}


def test_who_is_done_waits_for_its_own_stage_first() -> None:
    """Ranks 0 and 1 are replicas of stage 0: rank 0 is done at 2, rank 1 at 5, stage 1 at 9."""
    rows: list[Row] = [
        (0, "compute", "optimizer", -1, 0, 0, 2),
        (1, "compute", "optimizer", -1, 0, 0, 5),
        (2, "compute", "optimizer", -1, 0, 0, 9),
    ]
    table = spans(rows)
    table.stage[:] = (0, 0, 1)
    of_rank = measured(table, {0: 1, 1: 1, 2: 1}).of_rank
    assert [only(of_rank[rank].states) for rank in range(3)] == [
        {"optimizer": 2, "straggler_wait": 3, "bubble": 4},
        {"optimizer": 5, "bubble": 4},
        {"optimizer": 9},
    ]


def test_two_steps_are_one_step_twice() -> None:
    """All seconds are per step, and so are fractions."""
    first: list[Row] = [
        (0, "compute", "forward", 0, 0, 0, 2),
        (0, "compute", "backward", 0, 3, 3, 4),
        (0, "compute", "optimizer", -1, 4, 4, 8),
        (1, "compute", "forward", 0, 2, 2, 8),
    ]
    second: list[Row] = [(rank, *what, ready + 8, start + 8, end + 8) for rank, *what, ready, start, end in first]
    once = metrics(first, pipelined=True)
    table = spans([*first, *second], [0] * 4 + [1] * 4, pipelined=True)
    twice = measured(table, {0: 1, 1: 1}, steps=2)
    assert once.bubble_fraction == (1 + 2) / 2 / 8
    assert twice == once


# --- against interval algebra -----------------------------------------------------------------------------------------


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals in order that cover the same points."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > start:
            found.append((start, end))
    return found


def both(one: list[Interval], other: list[Interval]) -> list[Interval]:
    return union((max(a, c), min(b, d)) for a, b in one for c, d in other if max(a, c) < min(b, d))


def length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)


TIMES = st.integers(0, 20)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["compute", "tp", "pp", "dp"]),
        st.sampled_from(["forward", "backward", "recompute", "optimizer", "other"]),
        st.integers(-1, 1),
        TIMES,
        TIMES,
        TIMES,
    ).map(lambda row: (*row[:4], *sorted(row[4:]))),
    min_size=1,
    max_size=12,
)


@given(rows=ROWS, weights=st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_identities(rows: list[Any], weights: tuple[int, int]) -> None:
    """|C| + exposed + idle = span; overlap = |C and N| / |N| as HolisticTraceAnalysis has it (MODELLING.md F.6)."""
    rows = [(rank, stream, kind if stream == "compute" else "all_reduce", *rest) for rank, stream, kind, *rest in rows]
    weight = {rank: weights[rank] for rank in sorted({row[0] for row in rows})}
    found = metrics(rows, weight)
    total = max(row[6] for row in rows)
    compute = exposed = network = overlap = 0.0
    for rank, times in weight.items():
        share = times / sum(weight.values())
        C = union((row[5], row[6]) for row in rows if row[0] == rank and row[1] == "compute")
        N = union((row[5], row[6]) for row in rows if row[0] == rank and row[1] != "compute")
        compute += share * length(C)
        network += share * length(N)
        overlap += share * length(both(C, N))
        exposed += share * (length(N) - length(both(C, N)))
    kinds = ("forward", "backward", "recompute", "optimizer", "other")
    assert found.communication == pytest.approx(network, abs=1e-12)
    assert found.overlap_fraction == pytest.approx(overlap / network if network else 0.0, abs=1e-12)
    assert sum(found.breakdown[f"exposed_{axis}"] for axis in ("tp", "pp", "dp")) == pytest.approx(exposed, abs=1e-12)
    idle = found.breakdown["bubble"] + found.breakdown["straggler_wait"]
    assert compute + exposed + idle == pytest.approx(total, abs=1e-12)
    assert all(0 <= fraction <= 1 for fraction in (found.overlap_fraction, found.bubble_fraction))
    assert all(seconds >= 0 for seconds in found.breakdown.values())
    assert sum(found.breakdown[kind] for kind in kinds) == pytest.approx(compute, abs=1e-12)
    assert sum(found.breakdown.values()) == pytest.approx(total, abs=1e-12)


CASES: list[dict[str, Any]] = [
    {"cluster": {"topology": "flat", "gpus": 1}},
    {
        "cluster": {"topology": "dgx_a100", "nodes": 2},
        "parallel": {"tp": 2, "pp": 2, "zero": 1},
        "training": {"global_batch": 16},
    },
    {
        "cluster": {"topology": "pcie_ethernet", "nodes": 2},
        "parallel": {"tp": 2, "pp": 4, "sequence_parallel": True},
        "training": {"global_batch": 8, "recompute": "full"},
        "overlap": {"grad_reduce": True, "tensor": True, "bucket_size": "1 MB"},
        "faults": [{"kind": "slow_gpu", "rank": 5, "factor": 1.5}],
    },
    {
        "cluster": {"topology": "dgx_a100", "nodes": 1},
        "parallel": {"pp": 2, "zero": 1},
        "pipeline": {"schedule": "interleaved", "chunks": 2},
        "training": {"global_batch": 16, "recompute": "selective", "attention": "unfused"},
        "overlap": {"grad_reduce": True, "param_gather": True},
        "steps": 3,
    },
]  # fmt: skip


def runs(tiny: Tiny, case: dict[str, Any]) -> Result:
    return simulate(tiny(**case))


@pytest.mark.parametrize("case", CASES)
def test_the_breakdown_sums_to_the_step(tiny: Tiny, case: dict[str, Any]) -> None:
    result = runs(tiny, case)
    assert tuple(result.times.breakdown) == BREAKDOWN
    assert sum(result.times.breakdown.values()) == pytest.approx(result.step_time, rel=1e-9)
    assert result.times.step_seconds == result.step_time
    assert all(seconds >= 0 for seconds in result.times.breakdown.values())


@pytest.mark.parametrize("case", CASES)
def test_metrics_of_a_run_are_those_of_its_published_table(tiny: Tiny, case: dict[str, Any]) -> None:
    """From ``timeline_of`` of every rank, with nothing but interval algebra."""
    result = runs(tiny, case)
    ranks, steps = result.scenario.gpus, result.scenario.steps
    compute = network = overlap = 0.0
    for rank in range(ranks):
        table = result.timeline_of(rank)
        on = table["stream"] == "compute"
        C = union(zip(table["start"][on], table["end"][on], strict=True))
        N = union(zip(table["start"][~on], table["end"][~on], strict=True))
        compute, network, overlap = compute + length(C), network + length(N), overlap + length(both(C, N))
    breakdown = result.times.breakdown
    kinds = ("forward", "backward", "recompute", "optimizer", "other")
    assert sum(breakdown[kind] for kind in kinds) == pytest.approx(compute / ranks / steps, rel=1e-9)
    assert result.times.communication == pytest.approx(network / ranks / steps, rel=1e-9)
    assert result.times.overlap_fraction == pytest.approx(overlap / network if network else 0.0, rel=1e-9)
    exposed = sum(seconds for name, seconds in breakdown.items() if name.startswith("exposed_"))
    assert exposed == pytest.approx((network - overlap) / ranks / steps, rel=1e-9, abs=1e-15)
    assert result.to_dict()["exposed_communication_s"] == exposed
