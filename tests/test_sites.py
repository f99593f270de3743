"""Sites joined by a wide-area network, and an outer step across them: closed forms, the graph, the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Tiny

from simcluster import load_cluster, simulate
from simcluster.base.errors import InputError
from simcluster.longrun.studies.cluster_states import ClusterStateSimulator
from simcluster.longrun.studies.periodic_work import list_periodic_work, periodic_work_answer
from simcluster.model.layers import parameters
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.studies.bench.collective import collective_times
from simcluster.studies.whatif.extra_steps import simulate_outer_step
from simcluster.topology import Cluster, parse_topology
from simcluster.topology.cluster import make_cluster
from simcluster.topology.regular_wiring import RegularWiring

WAN = {"line_rate": "80 Gbit/s", "latency": "5 ms"}
RATE, LATENCY = 10e9, 5e-3  # of that
PORT = {"line_rate": "400 Gbit/s"}
FLAT = {"kind": "flat", "gpus": 4, "link": PORT, "path_latency": "4 us"}


def sites(count: int = 2, site: dict[str, Any] = FLAT, **more: Any) -> dict[str, Any]:
    return {"kind": "sites", "device": "h100", "sites": count, "site": site, "wan": WAN, **more}


def built(*given: Any, **more: Any) -> Cluster:
    return parse_topology(sites(*given, **more)).build()


def test_a_way_between_sites_is_over_border_and_wan() -> None:
    cluster = built()
    names = [cluster.links[link] for link in cluster.route(1, 6)]
    assert names == [
        ("gpu1", "site0.switch"), ("site0.switch", "site0.border"), ("site0.border", "wan"), ("wan", "site1.border"),
        ("site1.border", "site1.switch"), ("site1.switch", "gpu6"),
    ]  # fmt: skip
    assert cluster.mean_route_latency(cluster.spread_route(1, 6)) == pytest.approx(LATENCY + 4e-6)
    assert (cluster.spans_sites([0, 4]), cluster.spans_sites([4, 7])) == (True, False)
    assert [cluster.links[link][1] for link in cluster.route(4, 6)] == ["site1.switch", "gpu6"]


@pytest.mark.parametrize("name", ["two_sites_h100", "machines", "leaf_spine", "three"])
def test_sites_in_closed_form_are_their_graph(name: str) -> None:
    machine = {"gpus": 2, "nvlink": {"line_rate": "400 GB/s", "latency": "1 us"}, "pcie": {**PORT, "latency": "1 us"},
               "nics": [{"count": 2, "link": {**PORT, "latency": "1 us"}}]}  # fmt: skip
    fabric = {"kind": "fat_tree", "nodes_per_unit": 2, "units_per_pod": 1}
    two_leaves = {"kind": "leaf_spine", "leaves": 2, "gpus_per_leaf": 2, "spines": 2, "path_latency": "4 us"}
    cluster = {
        "two_sites_h100": lambda: load_cluster(name, [("site.nodes", 3), ("site.fabric.nodes_per_unit", 2)]),
        "machines": lambda: built(2, {"kind": "machines", "nodes": 4, "machine": machine, "fabric": fabric}),
        "leaf_spine": lambda: built(2, {**two_leaves, "link": PORT, "uplink": PORT}),
        "three": lambda: built(3),
    }[name]()
    assert isinstance(cluster.wiring, RegularWiring)
    drawn = make_cluster(cluster.name, "h100", cluster.graph)
    assert (drawn.gpus, drawn.links) == (cluster.gpus, cluster.links)
    pairs = [(a, b) for a in range(cluster.num_gpus) for b in range(cluster.num_gpus) if a != b]
    source, target = np.array(pairs[:: max(1, len(pairs) // 400)]).T
    flow = np.zeros_like(source)
    found = []
    for each in (cluster, drawn):
        row, link, fraction, seconds = each.route_rows(source, target, flow)
        order = np.lexsort((link, row))
        found.append((row[order], link[order], fraction[order], seconds))
    for own, graph in zip(*found, strict=True):
        np.testing.assert_array_equal(own, graph)


@pytest.mark.parametrize("count", [2, 3])
def test_a_ring_over_sites_takes_what_the_wan_allows(count: int) -> None:
    """Of n GPUs, a site each: 2 (n - 1) rounds of S / n at the WAN's rate, each as late as a way is long."""
    cluster = built(count, {**FLAT, "gpus": 1})
    size = 1e9
    found = collective_times(cluster, range(count), "all_reduce", size, algorithm="ring").duration
    assert found == pytest.approx(2 * (count - 1) * (size / count / RATE + LATENCY + 4e-6), rel=1e-9)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_step_over_sites_is_the_reference_s(tiny: Tiny, zero: int) -> None:
    over = {"gpus": 8, "parallel": {"tp": 1, "pp": 2, "dp": 4, "zero": zero, "order": ["tp", "cp", "pp", "dp"]},
            "cluster": {"topology": {**sites(), "device": "h100"}}}  # fmt: skip
    plain = simulate(tiny(**over, engine="reference"))
    fast = simulate(tiny(**over))
    assert fast.step_time == plain.step_time > 2 * LATENCY


def test_what_nccl_knows_of_itself_ends_at_the_site() -> None:
    cluster = load_cluster("two_sites_h100")
    assert cluster.nccl == "dgx-h100"
    both, one = (collective_times(cluster, gpus, "all_reduce", 4.0).duration for gpus in ([0, 64], [0, 8]))
    assert both > 2 * LATENCY > 100 * one


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ({"kind": "sites"}, "Input tag 'sites'"),
        ({**FLAT, "gpus": 3, "gpus_per_host": 2}, "needs a multiple of 2, its GPUs per node"),
    ],
)
def test_sites_that_cannot_be(site: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, ValueError), match=words):
        built(2, site)


def test_rails_that_never_meet_cannot_be_joined() -> None:
    with pytest.raises(InputError, match="separate rails or planes"):
        load_cluster({"kind": "sites", "device": "h100", "sites": 2, "wan": WAN,
                      "site": {"kind": "machines", "nodes": 4, "device": "h100", "machine": {
                          "gpus": 2, "nvlink": {"line_rate": "400 GB/s", "latency": "1 us"},
                          "pcie": {**PORT, "latency": "1 us"},
                          "nics": [{"count": 2, "link": {**PORT, "latency": "1 us"}}]},
                          "fabric": {"kind": "rail_only", "nodes_per_unit": 2}}})  # fmt: skip


# --- an outer step ----------------------------------------------------------------------------------------------------

APART = {"gpus": 8, "cluster": {"topology": {**sites(), "device": "h100"}}}
GRID = {"tp": 1, "pp": 2, "dp": 4, "order": ["tp", "cp", "pp", "dp"]}


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("outer", [{"every": 2}, {"every": 4, "parts": 2, "beside": 1}], ids=["DiLoCo", "streaming"])
def test_an_outer_step_is_the_reference_s(tiny: Tiny, zero: int, outer: dict[str, Any]) -> None:
    over = {**APART, "parallel": {**GRID, "zero": zero}, "training": {"outer": outer}, "steps": 4}
    fast, plain = (simulate(tiny(**over, engine=engine)) for engine in ("auto", "reference"))
    assert fast.step_time == plain.step_time


def test_an_outer_step_takes_the_pseudo_gradients_over_the_wan(tiny: Tiny) -> None:
    """All parameters once each way in fp32, in rings of two: 2 rounds of half of a part, and what the passes take."""
    over = {**APART, "parallel": {**GRID, "zero": 1}}
    scenario = tiny(**over, training={"outer": {"every": 100}})
    found = simulate_outer_step(scenario)
    wan = 4.0 * parameters(scenario.model).total / RATE
    assert found == pytest.approx(wan + 2 * (LATENCY + 4e-6), rel=0.02)
    result = simulate(scenario)
    (row,) = list_periodic_work(result)
    assert (row.name, row.seconds, row.interval_steps) == ("outer step", found, 100)
    assert periodic_work_answer(result)[1]["amortised"]["step_time_s"] == result.step_time + found / 100
    assert ClusterStateSimulator(scenario).healthy_step_time == result.step_time + found / 100
    assert simulate(tiny(**over)).step_time > result.step_time + 4 * LATENCY  # nothing crosses in a step of its own


def test_what_goes_on_beside_steps_holds_up_only_what_they_do_not_cover(tiny: Tiny) -> None:
    def of(**outer: Any) -> Any:
        return tiny(**APART, parallel={**GRID, "zero": 1}, training={"outer": {"every": 100, **outer}})

    step, waited = simulate(of()).step_time, simulate_outer_step(of())
    for beside in (1, 3):
        assert simulate_outer_step(of(beside=beside)) == pytest.approx(waited - beside * step, rel=0.03)
    assert simulate_outer_step(of(beside=49)) < 0.01 * waited


def test_the_outer_optimizer_takes_its_memory(tiny: Tiny) -> None:
    """What the parameters were and the momentum, fp32 both, of a rank's part; and what waits to be sent."""
    held = []
    for outer in (None, {"every": 9, "workers": 2}, {"every": 9, "workers": 2, "parts": 2, "beside": 1}):
        scenario = tiny(**APART, parallel={**GRID, "zero": 1}, training={"outer": outer} if outer else {})
        held.append([stage.optimizer for stage in plan_footprints(scenario)])
    for alone, state, copied in zip(*held, strict=True):
        own = alone / 12.0 * 2  # mixed-18 has 12 B of a quarter; a worker's replicas are two
        assert state - 12.0 * own == pytest.approx(8.0 * own)
        assert copied - state == pytest.approx(2.0 * own)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"training": {"outer": {"every": 4, "workers": 3}}}, "3 workers do not divide dp 4; use"),
        ({"training": {"outer": {"every": 4}}, "cluster": {"topology": "flat", "gpus": 8}}, r"got 1 \(one site\)"),
        ({"training": {"outer": {"every": 4, "parts": 5}}}, "must be at most 'every' = 4 steps; got 5"),
        ({"training": {"outer": {"every": 2, "beside": 2}}}, "beside: must be less than 'every' = 2 steps; got 2"),
        (
            {"training": {"outer": {"every": 4}}, "parallel": {"tp": 1, "pp": 2, "dp": 4}},
            r"order to \[tp, cp, pp, dp\]",
        ),
        (
            {"training": {"outer": {"every": 4}, "optimizer": "muon"}, "parallel": {**GRID, "zero": 1}},
            "with training.optimizer: muon",
        ),
    ],
)
def test_workers_that_cannot_be(tiny: Tiny, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tiny(**{**APART, "parallel": GRID, **change})
