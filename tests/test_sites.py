"""Sites joined by a wide-area network, and an outer step across them: closed forms, the graph, the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Tiny

from simcluster import load_cluster, simulate
from simcluster.base.errors import InputError
from simcluster.bench.collective import collective_times
from simcluster.topology import Cluster, parse_topology
from simcluster.topology.cluster import make_cluster
from simcluster.topology.regular import Regular

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
    assert cluster.spread_latency(cluster.spread(1, 6)) == pytest.approx(LATENCY + 4e-6)
    assert cluster.far([0, 4]) and not cluster.far([4, 7])
    assert [cluster.links[link][1] for link in cluster.route(4, 6)] == ["site1.switch", "gpu6"]


@pytest.mark.parametrize("name", ["two_sites_h100", "machines", "leaf_spine", "three"])
def test_sites_in_closed_form_are_their_graph(name: str) -> None:
    machine = {"gpus": 2, "nvlink": {"line_rate": "400 GB/s", "latency": "1 us"}, "pcie": {**PORT, "latency": "1 us"},
               "nics": [{"count": 2, "link": {**PORT, "latency": "1 us"}}]}  # fmt: skip
    fabric = {"kind": "fat_tree", "nodes_per_unit": 2, "units_per_pod": 1}
    cluster = {
        "two_sites_h100": lambda: load_cluster("two_sites_h100", [("site.nodes", 3), ("site.fabric.nodes_per_unit", 2)]),
        "machines": lambda: built(2, {"kind": "machines", "nodes": 4, "machine": machine, "fabric": fabric}),
        "leaf_spine": lambda: built(2, {"kind": "leaf_spine", "leaves": 2, "gpus_per_leaf": 2, "spines": 2, "link": PORT,
                                        "uplink": PORT, "path_latency": "4 us"}),
        "three": lambda: built(3),
    }[name]()  # fmt: skip
    assert isinstance(cluster.wiring, Regular)
    drawn = make_cluster(cluster.name, "h100", cluster.graph)
    assert (drawn.gpus, drawn.links) == (cluster.gpus, cluster.links)
    pairs = [(a, b) for a in range(cluster.num_gpus) for b in range(cluster.num_gpus) if a != b]
    source, target = np.array(pairs[:: max(1, len(pairs) // 400)]).T
    flow = np.zeros_like(source)
    found = []
    for each in (cluster, drawn):
        row, link, fraction, seconds = each.routes(source, target, flow)
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
        ({**FLAT, "gpus": 3, "gpus_per_host": 2}, "no whole machines of 2"),
    ],
)
def test_sites_that_cannot_be(site: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, ValueError), match=words):
        built(2, site)


def test_rails_that_never_meet_cannot_be_joined() -> None:
    with pytest.raises(InputError, match="never meet"):
        load_cluster({"kind": "sites", "device": "h100", "sites": 2, "wan": WAN,
                      "site": {"kind": "machines", "nodes": 4, "device": "h100", "machine": {
                          "gpus": 2, "nvlink": {"line_rate": "400 GB/s", "latency": "1 us"},
                          "pcie": {**PORT, "latency": "1 us"},
                          "nics": [{"count": 2, "link": {**PORT, "latency": "1 us"}}]},
                          "fabric": {"kind": "rail_only", "nodes_per_unit": 2}}})  # fmt: skip
