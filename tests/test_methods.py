"""NCCL's model and the links compose: NCCL's time on free links, what the links leave on others, its choice by size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.clock import TICK
from simcluster.base.errors import InputError
from simcluster.collectives import Group
from simcluster.scenario.document_resolution import load_cluster
from simcluster.step.simulate import simulate
from simcluster.studies.bench.collective import collective_times, concurrent_collective_times
from simcluster.traffic.collective_methods import MethodChooser, nccl_group_shape
from simcluster.traffic.nccl.platforms import load_platform
from simcluster.traffic.nccl.predictor import choose

A100 = load_platform("dgx-a100")


def machines_of(*sizes: int, nvswitch: bool = True) -> Group:
    hosts = tuple(host for host, size in enumerate(sizes) for _ in range(size))
    return Group(hosts, tuple(("nic",) for _ in hosts), tuple(f"s{host}" if nvswitch else "" for host in hosts))


@settings(max_examples=30, deadline=None)
@given(
    size=st.floats(1e3, 1e10),
    shape=st.sampled_from([(1, 8), (1, 4), (4, 1), (2, 8), (4, 8), (2, 2)]),
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
)
def test_on_free_links_a_call_takes_what_nccl_makes_of_it(size: float, shape: tuple[int, int], kind: str) -> None:
    """Also where the description has several phases, and never less: slower links than NCCL counts take longer."""
    nodes, each = shape
    cluster = load_cluster("dgx_a100", [("nodes", nodes), ("gpus_per_node", each)])
    found = collective_times(cluster, range(nodes * each), kind, size)
    made = choose(kind, nodes=nodes, gpus_per_node=each, size=size, platform=A100)  # type: ignore[arg-type]
    assert (found.algorithm, found.method.protocol) == (made.algorithm, made.protocol)
    rounding = 2 * nodes * each * TICK  # of every round to the clock's grid
    assert found.duration >= made.prediction.seconds * (1 - 1e-9) - rounding
    if nodes == 1:
        assert found.duration == pytest.approx(made.prediction.seconds, rel=1e-9, abs=rounding)


def test_steps_and_flow_agree_at_nccls_pace() -> None:
    cluster = load_cluster("dgx_a100")
    for size in (1e6, 1e9):
        flow, steps = (
            collective_times(cluster, range(8), "all_reduce", size, algorithm="ring", detail=detail)
            for detail in ("flow", "steps")
        )
        assert steps.finishes == flow.finishes


def test_in_steps_nccl_is_asked_for_what_has_rounds() -> None:
    cluster = load_cluster("dgx_h100")
    assert collective_times(cluster, range(8), "all_reduce", 1e9).algorithm == "nvls"
    assert collective_times(cluster, range(8), "all_reduce", 1e9, detail="steps").algorithm == "ring"


def test_what_shares_the_links_is_added_to_what_nccl_knows() -> None:
    """Two rings on the same GPUs: NCCL knows of one; each gets half of NVLink, which is less than its own pace."""
    cluster = load_cluster("dgx_a100")
    (alone,) = concurrent_collective_times(cluster, [range(8)], "all_reduce", 1e9)
    both = concurrent_collective_times(cluster, [range(8)] * 2, "all_reduce", 1e9)
    assert alone.method.pace is not None
    shared = 2 * 7 / 8 * 1e9 / (240e9 / 2) + alone.method.pace.latency
    assert [each.duration for each in both] == [pytest.approx(shared, rel=1e-9)] * 2
    assert shared > 1.5 * alone.duration


def test_nodes_as_nccl_counts_them() -> None:
    assert nccl_group_shape(machines_of(8, 8)) == (2, 8)
    assert nccl_group_shape(machines_of(1, 1, 1, nvswitch=False)) == (3, 1)
    assert nccl_group_shape(machines_of(3, 5)) == (2, 4)
    rack = Group((0, 0, 1, 1), (("nic",),) * 4, ("rack",) * 4)  # trays of one NVLink rack
    assert nccl_group_shape(rack) == (1, 4)


def test_what_cannot_be_described_or_served_is_not_chosen() -> None:
    methods = MethodChooser({}, platform=load_platform("dgx-h100"))
    assert methods.choose_method(machines_of(8), "all_reduce", 1e9).algorithm == "nvls"
    assert methods.choose_method(machines_of(8, nvswitch=False), "all_reduce", 1e9).algorithm == "ring"
    assert methods.choose_method(machines_of(4, 3), "all_reduce", 1e9).algorithm != "nvls_tree"
    assert methods.choose_method(machines_of(8), "broadcast", 1e9).algorithm == "chain"
    pairwise = MethodChooser({"all_to_all": "pairwise"}, platform=load_platform("dgx-h100"))
    assert pairwise.choose_method(machines_of(8), "all_to_all", 1e9).pace is None  # NCCL sends all messages at once


def test_an_algorithm_that_nccl_has_not_leaves_it_to_the_links() -> None:
    method = MethodChooser({"all_reduce": "halving_doubling"}, platform=A100).choose_method(
        machines_of(8), "all_reduce", 1e6
    )
    assert (method.algorithm, method.pace) == ("halving_doubling", None)


def test_a_group_that_the_platform_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="pcie-gen4 is one node without a network"):
        collective_times(load_cluster("dgx_a100"), range(16), "all_reduce", 1e6, nccl="pcie-gen4")
    with pytest.raises(InputError, match=r"no NCCL platform 'dgx-h10'; did you mean 'dgx-h100'"):
        collective_times(load_cluster("dgx_a100"), range(16), "all_reduce", 1e6, nccl="dgx-h10")


def test_training_pays_nccls_times_but_not_the_launch(tiny: Any) -> None:
    """Kernels of a step are launched ahead; a stopwatch around one call sees the launch."""
    document = {
        "cluster": {"topology": "dgx_a100", "nodes": 1},
        "parallel": {"tp": 8, "pp": 1},
        "training": {"global_batch": 8},
    }
    result = simulate(tiny(**document))
    calls = [call for call in result.collectives if call["axis"] == "tp"]
    spans = result.timeline[result.timeline["stream"] == "tp"]
    for call in calls:
        stopwatch = collective_times(load_cluster("dgx_a100"), range(8), call["kind"], call["size_bytes"])
        assert call["free_links_s"] == pytest.approx(stopwatch.duration - A100.effective.launch, rel=1e-6)
        assert ((spans["end"] - spans["start"] - call["free_links_s"]).abs() < 20 * TICK).any()
    free = simulate(tiny(**document, collectives={"nccl": "none"}))
    assert free.step_time > result.step_time  # small calls: NCCL has LL, the topology's latencies are of Simple
    assert {call["protocol"] for call in free.collectives} == {""}


def test_folded_and_unfolded_are_equal_at_nccls_pace(tiny: Any) -> None:
    scenario = tiny(
        cluster={"topology": "dgx_h100", "nodes": 4},
        parallel={"tp": 4, "pp": 2},
        training={"global_batch": 32},
        faults=[{"kind": "slow_link", "between": ["node1.nic2", "unit0.leaf2"], "factor": 0.25}],
    )
    folded, plain = (simulate(scenario, folded=folded) for folded in (True, False))
    assert len(folded.weights) < len(plain.weights) == 32
    assert all(folded.timeline_of(rank).equals(plain.timeline_of(rank)) for rank in range(32))
