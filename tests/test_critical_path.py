"""The chain that decides the step: no gaps, real dependencies, and paths known in closed form."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fold import documents

from simcluster.base.clock import round_to_tick
from simcluster.reference.step_record import OpTimes
from simcluster.results.simulated_run import Run
from simcluster.step.simulate import simulate
from simcluster.studies.bench.fixed_durations import Costs, simulate_costs
from simcluster.studies.whatif.free_ops import what_if_free

SECONDS = st.floats(1e-3, 2.0)


def check(run: Run) -> None:
    """From 0 to the end without a gap; each op is what the next one, or its meeting's last member, waits for."""
    path, ops, times = run.critical_path, run.record.ops, run.record.times
    assert path.start[0] == 0
    assert path.end[-1] == times.end.max()
    assert np.array_equal(path.start[1:], path.end[:-1])
    assert (path.end >= path.start).all()
    assert path.seconds == run.step_time
    assert sum(path.by_kind().values()) == pytest.approx(run.step_time, rel=1e-12)
    assert sum(path.by_rank().values()) == pytest.approx(run.step_time, rel=1e-12)
    for earlier, op in pairwise(path.spans.op[path.number].tolist()):
        needed = [
            other
            for cause in (op, int(times.last_arrival[op]))
            for other in (
                ops.previous_ops[cause],
                *ops.dependencies.op[ops.dependencies.offsets[cause] : ops.dependencies.offsets[cause + 1]],
            )
        ]
        assert earlier in needed or _only_instants_between(times, earlier, op)


def _only_instants_between(times: OpTimes, earlier: int, op: int) -> bool:
    """Ops that take no time leave no span on the path."""
    return bool(times.end[earlier] == times.ready[times.last_arrival[op]])


@settings(max_examples=12)
@given(document=documents())
def test_any_step(tiny: Tiny, document: dict[str, Any]) -> None:
    scenario = tiny(**document)
    folded, plain = simulate(scenario), simulate(scenario, folded=False)
    check(folded)
    check(plain)


@settings(max_examples=20)
@given(P=st.integers(1, 6), M=st.integers(1, 12), F=SECONDS, B=SECONDS, c=st.floats(0, 0.5))
def test_one_microbatch_and_gpipe(P: int, M: int, F: float, B: float, c: float) -> None:
    """GPipe: the path has M + P - 1 of each pass and 2 (P - 1) sends, M = 1 included (MODELLING.md E.1)."""
    F, B, c = round_to_tick(F), round_to_tick(B), round_to_tick(min(c, F, B))
    run = simulate_costs(Costs(forward=F, backward=B, send=c), stages=P, microbatches=M, schedule="gpipe")
    check(run)
    path = run.critical_path.by_kind()
    assert path["forward"] == pytest.approx((M + P - 1) * F, rel=1e-9)
    assert path["backward"] == pytest.approx((M + P - 1) * B, rel=1e-9)
    assert path.get("pp send", 0.0) == pytest.approx(2 * (P - 1) * c, rel=1e-9, abs=1e-12)


@settings(max_examples=30)
@given(P=st.integers(1, 6), M=st.integers(1, 12), F=SECONDS, B=SECONDS, share=st.floats(0.01, 1.0))
def test_1f1b_waits_for_its_sends(P: int, M: int, F: float, B: float, share: float) -> None:
    """Latency c a send adds 2c[(P - 1) + (M - 1) - ceil((M - 1) / P)], all of it on the path (MODELLING.md E.1)."""
    c = round_to_tick(share * min(F, B))
    run = simulate_costs(Costs(forward=F, backward=B, send=c), stages=P, microbatches=M)
    check(run)
    sends = 2 * ((P - 1) + (M - 1) - math.ceil((M - 1) / P))
    assert run.critical_path.by_kind().get("pp send", 0.0) == pytest.approx(sends * c if P > 1 else 0.0, rel=1e-9)


def test_it_runs_through_the_slow_rank() -> None:
    """Two replicas: all compute of the slow one, then the reduction."""
    costs = Costs(forward=10, backward=20, grad_reduce=6)
    run = simulate_costs(costs, stages=1, microbatches=1, dp=2, slowness={1: 1.5})
    check(run)
    path = run.critical_path
    assert path.by_kind() == {"backward": 30, "forward": 15, "dp all_reduce": 6}
    assert {row["rank"] for row in path.rows() if row["kind"] != "dp all_reduce"} == {1}
    assert [row["kind"] for row in path.rows()] == ["forward", "backward", "dp all_reduce"]


def test_a_slow_gpu_in_a_pipeline(tiny: Tiny) -> None:
    scenario = tiny(
        cluster={"topology": "dgx_a100", "nodes": 1},
        parallel={"tp": 2, "pp": 4},
        training={"global_batch": 16},
        faults=[{"kind": "slow_gpu", "rank": 5, "factor": 3.0}],
    )
    run = simulate(scenario)
    check(run)
    by_rank = run.critical_path.by_rank()
    assert by_rank[5] > 0.75 * run.step_time
    assert max(by_rank, key=lambda rank: by_rank[rank]) == 5


@pytest.mark.parametrize(
    "sections",
    [
        {"pipeline": {"schedule": "1f1b", "p2p": "rendezvous"}},
        {"parallel": {"zero": 3}},
        {"pipeline": {"schedule": "zb-h1"}},
        {"overlap": {"interference": {"kind": "factor", "compute": 0.5}, "grad_reduce": True}},
    ],
    ids=["rendezvous", "zero 3", "split backward", "interference"],
)
@pytest.mark.parametrize("folded", [True, False])
def test_other_ways_to_play_a_step(tiny: Tiny, sections: dict[str, Any], folded: bool) -> None:
    """Receives that block, gathers ahead of use, W apart from I, kernels that are slowed down: still no gap."""
    plan = {"tp": 2, "pp": 2, "dp": 2, **sections.get("parallel", {})}
    others = {"training": {"global_batch": 16}, **sections, "parallel": plan}
    result = simulate(tiny(cluster={"topology": "dgx_a100", "nodes": 1}, **others), folded=folded)
    check(result)
    for each in what_if_free(result, ["pp", "forward"]):
        assert each.estimate == result.step_time - each.on_path
        assert each.step_time < result.step_time


def test_steps_are_shared_out(tiny: Tiny) -> None:
    """Two steps: seconds are per step, and the JSON has the same numbers."""
    result = simulate(tiny(cluster={"topology": "flat", "gpus": 2}, parallel={"pp": 2}, steps=2))
    check(result)
    assert result.to_dict()["critical_path_s"] == result.critical_path.by_kind()
