"""Replicas of a recorded job that are alike: the same seconds, to the bit, as with all of them in every case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.interop.recorded import Recorded, recorded
from simcluster.interop.recorded.graph import StepGraph, having
from simcluster.interop.recorded.recorded import AlikeReplicas, alike_replicas
from simcluster.interop.recorded.written import trace_of_result, trace_of_run
from simcluster.planning.parallel import Plan
from simcluster.step.simulate import simulate
from simcluster.studies.bench.given_times import Costs, simulate_costs

COSTS = Costs(forward=0.010, backward=0.020, weight_grad=0.009, send=0.001, grad_reduce=0.004, optimizer=0.003)


def drawn(job: Recorded, seed: int) -> Recorded:
    """The job with every op of every worker as long as nobody else's."""
    chance = np.random.default_rng(seed)
    (graph,) = job.graphs
    return replace(job, graphs=(replace(graph, seconds=graph.seconds * chance.lognormal(0, 0.3, graph.seconds.shape)),))


def same(job: Recorded) -> AlikeReplicas | None:
    """Every replica by classes is every replica by itself; the classes."""
    of_each = [having("dp_rank", replica) for replica in range(job.replicas)]
    assert np.array_equal(job.keeping_each_replica(), job.keeping(*of_each))
    return alike_replicas(job.graphs[0])


@given(
    stages=st.integers(1, 3),
    dp=st.integers(25, 40),
    extra=st.integers(0, 2),
    schedule=st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
    slow=st.integers(0, 47),
    seed=st.integers(0, 99),
)
@settings(max_examples=5)
def test_alike_replicas_take_what_they_take_among_all(
    stages: int, dp: int, extra: int, schedule: str, slow: int, seed: int
) -> None:
    slowness = {slow % (dp * stages): 1.5}
    run = simulate_costs(COSTS, stages=stages, dp=dp, microbatches=stages + extra, schedule=schedule, slowness=slowness)
    job = recorded(trace_of_run(run, Plan(tp=1, dp=dp, pp=stages), name="own"))
    assert same(drawn(job, seed)) is not None


@pytest.mark.parametrize("slow", [[], [{"kind": "slow_gpu", "rank": 3, "factor": 1.4}]])
def test_collectives_beside_passes(tiny: Any, slow: list[Any]) -> None:
    beside = {"grad_reduce": True, "param_gather": True, "bucket_size": "100 kB"}
    job = {"cluster": {"topology": "flat", "gpus": 26}, "training": {"global_batch": 26}}
    result = simulate(tiny(parallel={"zero": 1}, overlap=beside, faults=slow, **job))
    found = recorded(trace_of_result(result, "own"))
    assert any(optype.startswith("launch") for optype in found.graphs[0].optype)
    assert same(drawn(found, 1)) is not None


def graph_of(dp: int = 30, stages: int = 2) -> StepGraph:
    run = simulate_costs(COSTS, stages=stages, dp=dp, microbatches=3)
    (graph,) = recorded(trace_of_run(run, Plan(tp=1, dp=dp, pp=stages), name="own")).graphs
    return graph


def test_what_is_not_alike_is_swept_with_all() -> None:
    graph = graph_of()
    assert alike_replicas(graph) is not None
    of_two = next(group for group in graph.groups if len(group) == 2)  # a message
    of_all = next(group for group in graph.groups if len(group) == 30)
    others = [group for group in graph.groups if group not in (of_two, of_all)]
    one, other = (next(op for op in of_all if graph.dp_rank[op] == replica) for replica in (0, 1))
    after = list(graph.after)
    after[one] = (other,)
    assert alike_replicas(replace(graph, after=tuple(after))) is None  # replica 0 waits for replica 1
    assert alike_replicas(replace(graph, groups=(*others, of_two, of_all[:10], of_all[10:]))) is None
    lonely = replace(graph, groups=(*others, of_all))  # one replica sends without its receiver
    assert alike_replicas(lonely) is not None
    some = enumerate(graph.groups)
    many = tuple([group for number, group in some if len(group) > 2 or graph.dp_rank[group[0]] > number % 9])
    assert alike_replicas(replace(graph, groups=many)) is None  # each is alike to hardly any other


def test_few_replicas_are_swept_with_all() -> None:
    assert alike_replicas(graph_of(dp=4)) is None
