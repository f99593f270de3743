"""Steps from given times: ideal pipelines against their closed forms, and every worked number that needs no model."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.clock import round_to_tick
from simcluster.base.errors import InputError
from simcluster.results.simulated_run import Run
from simcluster.schedules import EqualCosts as ActionCosts
from simcluster.schedules import schedule_entry, time_actions
from simcluster.studies.bench.fixed_durations import Costs, simulate_costs

SECONDS = st.floats(1e-3, 2.0)
STAGES = st.integers(1, 8)


def pipeline(P: int, K: int, F: float, B: float, schedule: str = "1f1b", v: int = 1, **other: Any) -> Run:
    return simulate_costs(Costs(forward=F, backward=B, **other), stages=P, microbatches=K, schedule=schedule, chunks=v)


# --- ideal pipelines -------------------------------------------------------------------------------------------------


@given(schedule=st.sampled_from(["gpipe", "1f1b"]), P=STAGES, K=st.integers(1, 20), F=SECONDS, B=SECONDS)
def test_the_ideal_bubble(schedule: str, P: int, K: int, F: float, B: float) -> None:
    """(P - 1) / (K + P - 1) of the whole, (P - 1) / K of the ideal, whatever F and B (MODELLING.md E.1)."""
    run = pipeline(P, K, F, B, schedule)
    assert run.times.bubble_fraction == pytest.approx((P - 1) / (K + P - 1), rel=1e-12, abs=1e-15)
    assert run.times.bubble_over_ideal == pytest.approx((P - 1) / K, rel=1e-12, abs=1e-15)
    assert run.step_time == pytest.approx((K + P - 1) * (F + B), rel=1e-9)


@given(P=st.integers(2, 6), groups=st.integers(1, 4), v=st.integers(2, 4), F=SECONDS, B=SECONDS)
def test_the_ideal_bubble_of_interleaving(P: int, groups: int, v: int, F: float, B: float) -> None:
    K = groups * P
    run = pipeline(P, K, F, B, "interleaved", v)
    assert run.times.bubble_fraction == pytest.approx((P - 1) / (v * K + P - 1), rel=1e-12)
    assert run.times.bubble_over_ideal == pytest.approx((P - 1) / (v * K), rel=1e-12)
    assert run.step_time == pytest.approx((v * K + P - 1) * (F + B) / v, rel=1e-9)


@settings(max_examples=24)
@given(
    shape=st.sampled_from([("gpipe", 4, 3, 1), ("1f1b", 5, 7, 1), ("1f1b", 3, 1, 1), ("interleaved", 4, 8, 2)]),
    F=SECONDS,
    B=SECONDS,
    send=st.sampled_from([0.0, 0.01, 0.5]),
)
def test_every_action_is_where_the_longest_path_puts_it(
    shape: tuple[str, int, int, int], F: float, B: float, send: float
) -> None:
    """Against ``schedules.timing``, which knows no events (MODELLING.md I.5)."""
    schedule, P, K, v = shape
    run = pipeline(P, K, F, B, schedule, v, send=send)
    costs = ActionCosts(F=round_to_tick(F / v), B=round_to_tick(B / v))
    made = schedule_entry(schedule)(P, K, v)
    # a send occupies its lane for its length; when the next one is behind it, it waits (none does where F, B >= send)
    if send <= min(F, B) / v:
        expected = time_actions(made, costs, round_to_tick(send))
        assert run.step_time == expected.makespan
        for stage, row in enumerate(made.rows):
            table = run.timeline_of(stage)
            own = table[table["stream"] == "compute"].sort_values("start")
            assert own["start"].tolist() == list(expected.starts[stage])
            assert own["end"].tolist() == list(expected.ends[stage])
            letters = [action.kind for action in row]
            assert [kind[0].upper() for kind in own["kind"]] == letters
            assert own["microbatch"].tolist() == [action.microbatch for action in row]
            assert own["chunk"].tolist() == [action.chunk for action in row]


@settings(max_examples=33)
@given(
    shape=st.sampled_from(
        [
            ("zb-h1", 4, 8, 1), ("zb-h2", 4, 8, 1), ("zb-auto", 3, 6, 1), ("zb-v", 4, 8, 1), ("v-half", 4, 9, 1),
            ("v-min", 4, 8, 1), ("breadth-first", 3, 5, 2), ("dualpipe-v", 4, 10, 1), ("hanayo", 2, 4, 4),
            ("chimera", 4, 8, 1), ("dualpipe", 4, 8, 1),
        ]
    ),
    F=SECONDS, I=SECONDS, W=SECONDS, send=st.sampled_from([0.0, 0.0002]),
)  # fmt: skip
def test_split_and_paired_actions_are_where_the_longest_path_puts_them(
    shape: tuple[str, int, int, int],
    F: float,
    I: float,  # noqa: E741  (the papers' letter)
    W: float,
    send: float,
) -> None:
    """Every schedule with I and W, a V, two directions or pairs (which take the time of both, one after the other)."""
    schedule, P, K, v = shape
    made = schedule_entry(schedule)(P, K, v)
    share = P / len(made.routes[0])
    run = pipeline(P, K, F, I + W, schedule, v, weight_grad=W, send=send)
    times = {"F": F * share, "B": (I + W) * share, "I": (I + W - W) * share, "W": W * share}
    expected = time_actions(
        made, ActionCosts(**{kind: round_to_tick(time) for kind, time in times.items()}), round_to_tick(send)
    )
    assert run.step_time == pytest.approx(expected.makespan, rel=0, abs=1e-9)
    for stage, row in enumerate(made.rows):
        table = run.timeline_of(stage)
        own = table[table["stream"] == "compute"].sort_values("start")
        letters = {"forward": "F", "backward": "B", "input_grad": "I", "weight_grad": "W"}
        assert [letters[kind] for kind in own["kind"]] == [action.kind for action in row]
        assert own["microbatch"].tolist() == [action.microbatch for action in row]


def test_one_stage_is_all_work_and_one_microbatch_all_wait() -> None:
    """P = 1 takes M T, M = 1 takes P T (MODELLING.md H.4)."""
    for schedule in ("gpipe", "1f1b"):
        assert pipeline(1, 7, 0.5, 1.0, schedule).step_time == 7 * 1.5
        assert pipeline(7, 1, 0.5, 1.0, schedule).step_time == 7 * 1.5


@pytest.mark.parametrize(("P", "K", "expected"), [(8, 32, 0.1795), (8, 133, 0.05), (8, 134, 0.0496)])
def test_bubbles_of_the_requirements(P: int, K: int, expected: float) -> None:
    """P = 8, K = 32: 17.9 %; below 5 % needs K > 133."""
    found = pipeline(P, K, 1.0, 2.0).times.bubble_fraction
    assert found == pytest.approx(expected, abs=5e-5)
    assert (found < 0.05) == (K > 133)


@given(P=st.integers(2, 6), M=st.integers(1, 16), c=st.floats(0.0, 0.2), F=st.floats(0.3, 1), B=st.floats(0.3, 1))
def test_latency_of_sends_in_1f1b(P: int, M: int, c: float, F: float, B: float) -> None:
    """2 c [(P - 1) + (M - 1) - ceil((M - 1) / P)] on top: almost every microbatch pays (MODELLING.md E.1)."""
    extra = 2 * c * ((P - 1) + (M - 1) - math.ceil((M - 1) / P))
    assert pipeline(P, M, F, B, send=c).step_time == pytest.approx((M + P - 1) * (F + B) + extra, rel=1e-9)


@given(P=st.integers(2, 6), M=st.integers(1, 12), c=st.floats(0.0, 0.2), F=st.floats(0.3, 1), B=st.floats(0.3, 1))
def test_latency_of_sends_in_gpipe(P: int, M: int, c: float, F: float, B: float) -> None:
    found = pipeline(P, M, F, B, "gpipe", send=c).step_time
    assert found == pytest.approx((M + P - 1) * (F + B) + 2 * (P - 1) * c, rel=1e-9)


@given(P=st.integers(2, 4), groups=st.integers(1, 3), v=st.integers(2, 3), c=st.floats(0.0, 0.09), F=SECONDS)
def test_latency_of_sends_in_interleaving(P: int, groups: int, v: int, c: float, F: float) -> None:
    """2 c (v P - 1), independent of M, while c <= min(f, b)."""
    F, M = F + 0.3, groups * P
    found = pipeline(P, M, F, 2 * F, "interleaved", v, send=c).step_time
    assert found == pytest.approx((v * M + P - 1) * 3 * F / v + 2 * c * (v * P - 1), rel=1e-9)


# --- worked examples -------------------------------------------------------------------------------------------------


def test_the_composite() -> None:
    """MODELLING.md H.40: PP4 DP2, M = 8, F = 10, B = 20, gradients 6, optimizer 4 ms: 340 ms.

    Its bubble is 3/11 of the pipeline and 3/8 of the ideal one, as by the formulas, and so much less of the step.
    """
    costs = Costs(forward=0.010, backward=0.020, grad_reduce=0.006, optimizer=0.004)
    run = simulate_costs(costs, stages=4, microbatches=8, dp=2)
    assert run.step_time == pytest.approx(0.340, rel=1e-12)
    bubble, pipeline = run.times.breakdown["bubble"], run.times.pipeline_seconds
    assert pipeline == pytest.approx(0.330, rel=1e-12)
    assert bubble / pipeline == pytest.approx(3 / 11, rel=1e-12)
    assert bubble / (pipeline - bubble) == pytest.approx(3 / 8, rel=1e-12)
    assert run.times.bubble_fraction == pytest.approx(0.090 / 0.340, rel=1e-12)
    assert run.times.bubble_over_ideal == pytest.approx(0.090 / 0.250, rel=1e-12)
    assert run.times.breakdown["exposed_dp"] == pytest.approx(0.006, rel=1e-9)
    assert run.times.breakdown["optimizer"] == pytest.approx(0.004, rel=1e-9)
    assert run.times.breakdown["forward"] == pytest.approx(0.080, rel=1e-9)
    assert len(run.weights) == 4


def test_the_worked_step() -> None:
    """TP4 PP2 K8, F = 100, B = 200, two all-reduces of 10 ms in each: at least (8 + 1) x 340 ms.

    The shortcut 9 x max(F, B) = 1.98 s (with its collectives) forgets that a stage does both, F and B, for each.
    """
    costs = Costs(forward=0.100, backward=0.200, tensor_parallel=0.010, collectives=2)
    run = simulate_costs(costs, stages=2, microbatches=8, tp=4)
    assert run.step_time == pytest.approx(9 * 0.340, rel=1e-12)
    shortcut = 9 * max(0.120, 0.220)
    assert shortcut == pytest.approx(1.98)
    assert run.step_time > 1.5 * shortcut
    assert run.times.breakdown["exposed_tp"] == pytest.approx(8 * 4 * 0.010, rel=1e-9)
    busy = run.times.breakdown["forward"] + run.times.breakdown["backward"] + run.times.breakdown["exposed_tp"]
    assert busy == pytest.approx(8 * 0.340, rel=1e-9)
    assert shortcut < busy < run.step_time  # one stage alone is busier than the shortcut


def test_the_worked_step_with_its_sends() -> None:
    """5 ms a boundary, beside computation: 1F1B pays them nearly every microbatch; GPipe twice."""
    costs = Costs(forward=0.100, backward=0.200, tensor_parallel=0.010, collectives=2, send=0.005)
    one = simulate_costs(costs, stages=2, microbatches=8, tp=4)
    assert one.step_time == pytest.approx(3.06 + 2 * 0.005 * (1 + 7 - 4), rel=1e-12)
    fill = simulate_costs(costs, stages=2, microbatches=8, tp=4, schedule="gpipe")
    assert fill.step_time == pytest.approx(3.06 + 2 * 0.005, rel=1e-12)


@settings(max_examples=25)
@given(buckets=st.integers(1, 6), M=st.integers(1, 4), F=SECONDS, B=SECONDS, R=SECONDS)
def test_gradients_in_buckets_beside_the_last_backward(buckets: int, M: int, F: float, B: float, R: float) -> None:
    """One stage: all but the last backward, then a line of n pieces B / n with R / n behind each: the slower of both
    goes through, and the optimizer waits."""
    costs = Costs(forward=F, backward=B, grad_reduce=R, grad_buckets=buckets, optimizer=0.5)
    run = simulate_costs(costs, stages=1, microbatches=M, dp=2, steps=2)
    beside = max(B + R / buckets, B / buckets + R)
    assert run.step_time == pytest.approx(M * (F + B) - B + beside + 0.5, rel=1e-9)
    behind = simulate_costs(replace(costs, grad_buckets=0), stages=1, microbatches=M, dp=2, steps=2)
    assert behind.step_time == pytest.approx(M * (F + B) + R + 0.5, rel=1e-9)
    assert run.times.communication == pytest.approx(R, rel=1e-9)


def test_the_textbook_limit_of_overlap() -> None:
    """With ever smaller buckets a step comes down to max(B, R) in place of B + R; one bucket hides nothing."""
    costs = Costs(forward=0.010, backward=0.020, grad_reduce=0.030)

    def step(buckets: int) -> float:
        return simulate_costs(replace(costs, grad_buckets=buckets), stages=1, microbatches=4, dp=4).step_time

    assert step(0) == pytest.approx(0.150) == pytest.approx(step(1))
    assert step(4) == pytest.approx(0.100 + 0.005 + 0.030)
    assert step(2_000) == pytest.approx(0.100 + 0.030, rel=1e-3)
    assert step(4) < step(2) < step(1)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe"])
def test_what_buckets_hide_is_what_they_save(schedule: str) -> None:
    """Whatever ends a pipeline, more buckets never take longer, and at most the reduction is hidden."""
    chunks = 2 if schedule == "interleaved" else 1
    costs = Costs(forward=1.0, backward=2.0, tensor_parallel=0.05, send=0.01, grad_reduce=0.8, optimizer=0.1)
    job: dict[str, Any] = {"stages": 4, "microbatches": 8, "tp": 2, "dp": 2, "schedule": schedule, "chunks": chunks}
    steps = [simulate_costs(replace(costs, grad_buckets=buckets), **job).step_time for buckets in (0, 1, 2, 8)]
    assert all(after <= before + 1e-12 for before, after in pairwise(steps))
    assert 0.3 < steps[0] - steps[-1] <= 0.8 + 1e-12


def test_a_slow_rank_slows_its_tensor_parallel_group_and_the_pipeline() -> None:
    """One GPU 10 % slower holds up everyone: the step is that of its stage."""
    costs = Costs(forward=1.0, backward=2.0, tensor_parallel=0.1, grad_reduce=0.5)
    clean = simulate_costs(costs, stages=1, microbatches=4, tp=2, dp=4)
    slow = simulate_costs(costs, stages=1, microbatches=4, tp=2, dp=4, slowness={3: 1.1})
    assert clean.step_time == pytest.approx(4 * 3.4 + 0.5, rel=1e-12)
    assert slow.step_time == pytest.approx(4 * (3.3 + 0.4) + 0.5, rel=1e-12)
    assert sorted(slow.weights.values()) == [1, 1, 3, 3]


@settings(max_examples=15)
@given(
    slow=st.dictionaries(st.integers(0, 11), st.floats(1, 3), max_size=3),
    schedule=st.sampled_from(["1f1b", "gpipe"]),
    buckets=st.sampled_from([0, 3]),
)
def test_folding_and_slow_ranks(slow: dict[int, float], schedule: str, buckets: int) -> None:
    costs = Costs(
        forward=1.0, backward=2.0, tensor_parallel=0.1, send=0.05, grad_reduce=0.5, optimizer=0.25, grad_buckets=buckets
    )

    def run(*, folded: bool) -> Run:
        return simulate_costs(
            costs, stages=3, microbatches=4, tp=2, dp=2, slowness=slow, schedule=schedule, folded=folded
        )

    folded, plain = run(folded=True), run(folded=False)
    assert folded.step_time == plain.step_time
    for rank in range(12):
        assert folded.timeline_of(rank).equals(plain.timeline_of(rank))


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"forward": -1.0},
        {"backward": math.nan},
        {"send": math.inf},
        {"tensor_parallel": -1e-9},
        {"collectives": -1},
        {"grad_buckets": -1},
        {"grad_buckets": 2.5},
    ],
)
def test_times_that_are_none(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        Costs(**{"forward": 1.0, "backward": 1.0, **bad})


@pytest.mark.parametrize(
    "bad",
    [
        {"stages": 0},
        {"microbatches": 0},
        {"tp": 0},
        {"dp": -2},
        {"chunks": 2},
        {"schedule": "2f2b"},
        {"slowness": {9: 1.1}},
        {"slowness": {0: 0.0}},
        {"slowness": {0: math.nan}},
        {"engine": "reference"},
    ],
)
def test_jobs_that_are_none(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        simulate_costs(Costs(forward=1.0, backward=1.0), **{"stages": 2, "microbatches": 2, **bad})
