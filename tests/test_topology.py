"""Clusters: what the builders make, which way traffic goes, what the report says, and what bad documents are told."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from ruamel.yaml import YAML

from simcluster.base.errors import InputError
from simcluster.studies.bench.cluster_measurement import measure_cluster
from simcluster.topology import TOPOLOGIES, Cluster, parse_topology
from simcluster.topology.links import switch_levels

SHIPPED = sorted((Path(__file__).parent.parent / "topologies").glob("*.yaml"))
sizes = st.integers(1, 6)


def link(rate="100 GB/s", latency="1 us", efficiency=1.0):
    return {"line_rate": rate, "latency": latency, "efficiency": efficiency, "source": "test"}


def dgx(nodes, gpus=8, per_unit=4, oversubscription=1.0, **more):
    document = {
        "kind": "dgx",
        "device": "A100-80GB",
        "nodes": nodes,
        "gpus_per_node": gpus,
        "nvlink": link("300 GB/s", "1.7 us", 0.8),
        "pcie": link("32 GB/s", "1 us"),
        "nic": link("25 GB/s", "6 us"),
        "fabric": {"nodes_per_unit": per_unit, "oversubscription": oversubscription},
    }
    return parse_topology({**document, **more}).build()


def pcie_box(nodes, gpus=8, per_switch=4, nics=2, per_unit=2, oversubscription=2.0):
    return parse_topology(
        {
            "kind": "pcie_box",
            "device": "A100-80GB",
            "nodes": nodes,
            "gpus_per_node": gpus,
            "gpus_per_pcie_switch": per_switch,
            "nics_per_node": nics,
            "pcie": link("24 GB/s"),
            "nic": link("12.5 GB/s"),
            "fabric": {"nodes_per_unit": per_unit, "oversubscription": oversubscription},
        }
    ).build()


def flat(gpus, **more):
    rate = {"line_rate": "50 GB/s"}
    document = {"kind": "flat", "device": "H100", "gpus": gpus, "link": rate, "path_latency": "5 us"}
    return parse_topology({**document, **more}).build()


def leaf_spine(leaves=8, gpus_per_leaf=64, spines=32):
    return parse_topology(
        {
            "kind": "leaf_spine",
            "device": "H100",
            "leaves": leaves,
            "gpus_per_leaf": gpus_per_leaf,
            "spines": spines,
            "link": {"line_rate": "50 GB/s"},
            "uplink": {"line_rate": "50 GB/s"},
            "path_latency": "6 us",
        }
    ).build()


def explicit(nodes, edges):
    """From "name:kind" or "name:kind:host" and (a, b) or (a, b, one_way)."""
    parts = [text.split(":") for text in nodes]
    specs = [{"name": p[0], "kind": p[1], **({"host": int(p[2])} if len(p) > 2 else {})} for p in parts]
    links = [{"between": list(edge[:2]), "one_way": len(edge) > 2, **link()} for edge in edges]
    return parse_topology({"kind": "graph", "device": "H100", "nodes": specs, "edges": links})


def kinds(cluster: Cluster) -> Counter[str]:
    return Counter(data.get("tier", data["kind"]) for _, data in cluster.graph.nodes(data=True))


def nodes_of(cluster, src, dst):
    return [cluster.gpus[src], *(cluster.links[i][1] for i in cluster.route(src, dst))]


def load(path):
    return YAML(typ="safe").load(path)


# --- what the builders make -----------------------------------------------------------------------------------------


@given(nodes=st.integers(1, 13), gpus=sizes, per_unit=sizes, oversubscription=st.sampled_from([1.0, 1.5, 2.0, 4.0]))
@settings(max_examples=40, deadline=None)
def test_dgx_counts_uplinks_and_oversubscription(nodes, gpus, per_unit, oversubscription):
    cluster = dgx(nodes, gpus, per_unit, oversubscription)
    on_leaf = min(nodes, per_unit)
    leaves = math.ceil(nodes / per_unit) * gpus
    spines = max(1, int(on_leaf / oversubscription + 1e-9)) if leaves > 1 else 0
    expected = {"gpu": nodes * gpus, "nvswitch": nodes, "nic": nodes * gpus, "leaf": leaves, "spine": spines}
    assert kinds(cluster) == Counter(expected) - Counter()
    assert len(cluster.links) == 2 * (3 * nodes * gpus + leaves * spines)
    for i in range(leaves if spines else 0):
        ups = [d["line_rate"] for n, d in cluster.graph.adj[f"unit{i // gpus}.leaf{i % gpus}"].items() if "spine" in n]
        assert sum(ups) == pytest.approx(on_leaf * 25e9 / oversubscription, rel=1e-12)


@given(nodes=sizes, gpus=st.integers(1, 9), per_switch=st.integers(1, 4), nics=st.integers(1, 3), per_unit=sizes)
@settings(max_examples=30, deadline=None)
def test_pcie_box_counts(nodes, gpus, per_switch, nics, per_unit):
    cluster = pcie_box(nodes, gpus, per_switch, nics, per_unit)
    switches, leaves = nodes * math.ceil(gpus / per_switch), math.ceil(nodes / per_unit)
    spines = max(1, min(nodes, per_unit) * nics // 2) if leaves > 1 else 0
    expected = {"gpu": nodes * gpus, "pcie": switches, "host": nodes, "nic": nodes * nics, "leaf": leaves}
    assert kinds(cluster) == Counter({**expected, "spine": spines}) - Counter()
    assert len(cluster.links) == 2 * (nodes * gpus + switches + 2 * nodes * nics + leaves * spines)


@given(leaves=sizes, gpus_per_leaf=sizes, spines=sizes)
@settings(max_examples=30, deadline=None)
def test_leaf_spine_counts_and_bisection(leaves, gpus_per_leaf, spines):
    cluster = leaf_spine(leaves, gpus_per_leaf, spines)
    assert kinds(cluster) == {"gpu": leaves * gpus_per_leaf, "leaf": leaves, "spine": spines}
    assert len(cluster.links) == 2 * (leaves * gpus_per_leaf + leaves * spines)
    if leaves % 2 == 0:  # then the halves are whole leaves
        assert measure_cluster(cluster).bisection == pytest.approx(
            leaves / 2 * min(gpus_per_leaf, spines) * 50e9, rel=1e-12
        )


@given(gpus=st.integers(1, 40), per_host=st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_flat_is_a_star(gpus, per_host):
    cluster = flat(gpus, gpus_per_host=per_host)
    assert cluster.host_of == tuple(i // per_host for i in range(gpus))
    assert set(cluster.links) == {p for i in range(gpus) for p in ((f"gpu{i}", "switch"), ("switch", f"gpu{i}"))}
    if gpus > per_host:  # halves are of machines
        half = math.ceil(gpus / per_host) // 2 * per_host
        assert measure_cluster(cluster).bisection == pytest.approx(min(half, gpus - half) * 50e9, rel=1e-12)


@pytest.mark.parametrize("units", [2, 4])
@pytest.mark.parametrize("oversubscription", [1.0, 2.0])
def test_dgx_bisection_is_that_of_the_uplinks_of_half_the_units(units, oversubscription):
    cluster = dgx(4 * units, 8, 4, oversubscription)
    assert measure_cluster(cluster).bisection == pytest.approx(units / 2 * 8 * 4 * 25e9 / oversubscription, rel=1e-12)


@given(leaves=st.integers(1, 4), gpus_per_leaf=st.integers(1, 4), spines=st.integers(1, 3), data=st.data())
@settings(max_examples=25, deadline=None)
def test_bisection_between_classes_is_the_maximum_flow_of_the_whole_graph(leaves, gpus_per_leaf, spines, data):
    cluster = leaf_spine(leaves, gpus_per_leaf, spines)
    faults = data.draw(st.lists(st.tuples(st.sampled_from(cluster.links), st.sampled_from([0.5, 0.25])), max_size=3))
    cluster = cluster.with_scaled_links([(a, b, factor) for (a, b), factor in faults])
    half = len(cluster.gpus) // 2
    if half == 0:
        return
    graph = nx.DiGraph()
    for a, b, attributes in cluster.graph.edges(data=True):
        graph.add_edge(a, b, capacity=attributes["bandwidth"])
    for i, gpu in enumerate(cluster.gpus):
        graph.add_edge(*(("from", gpu) if i < half else (gpu, "to")))
    expected = nx.maximum_flow_value(graph, "from", "to", flow_func=nx.algorithms.flow.edmonds_karp)
    assert measure_cluster(cluster).bisection == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("cluster", [dgx(5), pcie_box(5), flat(9), leaf_spine(3, 4, 2)], ids=lambda c: c.name)
def test_every_link_has_its_other_direction_and_numbers(cluster):
    assert cluster.link_index == {pair: i for i, pair in enumerate(cluster.links)}
    assert list(cluster.graph.edges) == list(cluster.links)
    for i, (a, b) in enumerate(cluster.links):
        data = cluster.graph[a][b]
        assert cluster.graph[b][a] == data
        assert data["bandwidth"] == data["line_rate"] * data["efficiency"] == cluster.capacity[i] > 0
        assert data["latency"] == cluster.latency[i] >= 0


def test_gpus_are_placed_machine_by_machine():
    cluster = dgx(11, 2)  # node10 after node9, not after node1
    assert cluster.gpus[-4:] == ("node9.gpu0", "node9.gpu1", "node10.gpu0", "node10.gpu1")
    assert cluster.host_of == tuple(i // 2 for i in range(22))


# --- which way traffic goes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cluster", [dgx(7, 3, 2), pcie_box(5, 5, 2, 2), flat(9), leaf_spine(3, 4, 2)], ids=lambda c: c.name
)
def test_routes_are_shortest_paths_that_no_gpu_forwards(cluster):
    fabric_only = cluster.graph.copy()
    fabric_only.remove_nodes_from(cluster.gpus)
    for src in range(len(cluster.gpus)):
        for dst in range(len(cluster.gpus)):
            nodes = nodes_of(cluster, src, dst)
            assert (nodes[0], nodes[-1]) == (cluster.gpus[src], cluster.gpus[dst])
            assert [cluster.links[i] for i in cluster.route(src, dst)] == list(itertools.pairwise(nodes))
            assert not set(nodes[1:-1]) & set(cluster.gpus)
            if src != dst:
                graph = nx.subgraph(cluster.graph, [*fabric_only, nodes[0], nodes[-1]])
                assert len(nodes) - 1 == nx.shortest_path_length(graph, nodes[0], nodes[-1])


def test_dgx_routes_by_nvswitch_by_rail_and_over_a_spine():
    cluster = dgx(8, 8, 4)
    assert nodes_of(cluster, 0, 5) == ["node0.gpu0", "node0.nvswitch", "node0.gpu5"]
    assert nodes_of(cluster, 3, 11) == ["node0.gpu3", "node0.nic3", "unit0.leaf3", "node1.nic3", "node1.gpu3"]
    across = nodes_of(cluster, 3, 35)  # the same rail in the other unit
    assert [across[i] for i in (2, 4)] == ["unit0.leaf3", "unit1.leaf3"]
    assert across[3].startswith("spine")
    assert cluster.path_latency(cluster.route(3, 11)) == pytest.approx(14e-6, rel=1e-12)
    assert cluster.path_latency(cluster.route(3, 35)) == pytest.approx(15.2e-6, rel=1e-12)
    assert cluster.path_bandwidth(cluster.route(0, 5)) == 240e9
    assert cluster.exit_nics(11) == ("node1.nic3",)


def test_a_rail_spreads_over_all_spines():
    cluster = dgx(32, 8, 16)
    spines = Counter(nodes_of(cluster, node * 8 + 3, (node + 16) * 8 + 3)[3] for node in range(16))
    assert spines == {f"spine{i}": 1 for i in range(16)}  # an index taken from the GPU number would meet on two of them


@given(leaves=st.integers(2, 5), gpus_per_leaf=st.integers(1, 9), spines=st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_leaf_spine_takes_spine_d_mod_k(leaves, gpus_per_leaf, spines):
    cluster = leaf_spine(leaves, gpus_per_leaf, spines)
    for dst in range(gpus_per_leaf, len(cluster.gpus)):
        assert nodes_of(cluster, 0, dst)[2] == f"spine{dst % spines}"


def test_the_contended_rings_of_512_gpus_share_each_uplink_by_two():
    cluster = leaf_spine()
    hops = [(leaf * 64 + j, (leaf + 1) % 8 * 64 + j) for leaf in range(8) for j in range(64)]
    load_of = Counter(i for hop in hops for i in cluster.route(*hop))
    assert Counter(load_of[i] for i, ends in enumerate(cluster.links) if "spine" in ends[0] + ends[1]) == {2: 512}
    assert {cluster.path_latency(cluster.route(*hop)) for hop in hops} == {6e-6}
    assert cluster.path_latency(cluster.route(0, 1)) == 3e-6  # two of the four links


def test_shared_nics_are_taken_in_turn_by_the_gpus_of_a_machine():
    """NCCL's rule, NIC (GPU index + channel) mod k, where a route leaves a machine and where it enters one."""
    cluster = pcie_box(2, nics=2)
    assert cluster.exit_nics(0) == ("node0.nic0", "node0.nic1")
    assert cluster.exit_nics(3) == ("node0.nic1", "node0.nic0")
    for src, dst in itertools.product(range(8), range(8, 16)):
        nodes = nodes_of(cluster, src, dst)
        assert (nodes[3], nodes[5]) == (f"node0.nic{src % 2}", f"node1.nic{dst % 2}")
    assert len(cluster.route(0, 3)) == 2  # one PCIe switch
    assert len(cluster.route(0, 4)) == 4  # across the host bridge
    assert len(cluster.route(0, 8)) == 8


def test_the_nic_on_the_destinations_leaf_is_preferred():
    nodes = ["a:gpu:0", "na0:nic", "na1:nic", "b:gpu:1", "nb1:nic", "l0:switch", "l1:switch", "s:switch"]
    edges = [
        ("a", "na0"),
        ("a", "na1"),
        ("na0", "l0"),
        ("na1", "l1"),
        ("b", "nb1"),
        ("nb1", "l1"),
        ("l0", "s"),
        ("l1", "s"),
    ]
    cluster = explicit(nodes, edges).build()
    assert nodes_of(cluster, 0, 1) == ["a", "na1", "l1", "nb1", "b"]
    assert cluster.exit_nics(0) == ("na0", "na1")


def test_a_shared_nic_is_no_way_between_the_gpus_of_a_machine():
    nodes = ["a:gpu", "b:gpu", "x:nvswitch", "nic:nic", "s:switch"]
    edges = [("a", "x"), ("b", "x"), ("a", "nic"), ("b", "nic"), ("nic", "s")]
    cluster = explicit(nodes, edges).build()
    assert [nodes_of(cluster, *pair)[1] for pair in ((0, 1), (1, 0))] == ["x", "x"]
    assert measure_cluster(cluster).inside == 100e9


def test_direct_links_and_one_way_links():
    cluster = explicit(["a:gpu", "b:gpu", "c:nvswitch"], [("a", "b", True), ("b", "c", True), ("c", "a", True)]).build()
    assert nodes_of(cluster, 0, 1) == ["a", "b"]
    assert nodes_of(cluster, 1, 0) == ["b", "c", "a"]
    assert len(cluster.links) == 3
    assert cluster.exit_nics(0) == ()


def test_machines_of_an_explicit_graph_without_hosts_are_found():
    cluster = explicit(
        ["s:switch", "a1:gpu", "b1:gpu", "a2:gpu"], [("a1", "a2"), ("a1", "s"), ("a2", "s"), ("b1", "s")]
    ).build()
    assert cluster.gpus == ("a1", "a2", "b1")
    assert cluster.host_of == (0, 0, 1)


def test_routes_and_link_order_do_not_depend_on_the_order_of_questions():
    one, other = dgx(6, 2, 2), dgx(6, 2, 2)
    pairs = [(a, b) for a in range(12) for b in range(12)]
    assert [one.route(*p) for p in pairs] == list(reversed([other.route(*p) for p in reversed(pairs)]))


# --- slow links -----------------------------------------------------------------------------------------------------


def test_a_slow_link_is_slow_both_ways_and_nothing_else_changes():
    cluster = dgx(2)
    slow = cluster.with_scaled_links([("node0.gpu3", "node0.nic3", 0.5), ("node0.nic3", "node0.gpu3", 0.5)])
    changed = np.flatnonzero(slow.capacity != cluster.capacity)
    assert {cluster.links[i] for i in changed} == {("node0.gpu3", "node0.nic3"), ("node0.nic3", "node0.gpu3")}
    assert set(slow.capacity[changed] / cluster.capacity[changed]) == {0.25}  # factors on one link multiply
    assert slow.graph["node0.gpu3"]["node0.nic3"]["bandwidth"] == 8e9
    assert cluster.graph["node0.gpu3"]["node0.nic3"]["bandwidth"] == 32e9
    assert slow.route(0, 9) == cluster.route(0, 9)
    assert cluster.with_scaled_links([]) is cluster


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (("node0.gpu3", "node0.nick3", 0.5), "no node 'node0.nick3'.*did you mean node0.nic3"),
        (("node0.gpu3", "node0.nic4", 0.5), "no such link; node0.gpu3 is linked to node0.nvswitch, node0.nic3"),
        (("node0.gpu3", "node0.nic3", 0.0), "factor is 0.0, but must be above 0"),
    ],
)
def test_a_slow_link_that_is_not_there_is_an_error(fault, message):
    with pytest.raises(InputError, match=message):
        dgx(2).with_scaled_links([fault])


# --- the report -----------------------------------------------------------------------------------------------------


def test_report_of_dgx():
    report = measure_cluster(dgx(8, 8, 4, 2.0))
    assert (report.gpus, report.machines) == (64, 8)
    assert (report.inside, report.outside, report.outside_shared) == (240e9, 25e9, 25e9)
    assert report.oversubscription == (("leaf", 2.0),)
    assert report.longest_hops == 6
    assert report.longest_latency == pytest.approx(15.2e-6, rel=1e-12)
    assert [(group.ends, group.count) for group in report.links] == [
        ("gpu - nvswitch", 64), ("gpu - nic", 64), ("nic - leaf", 64), ("leaf - spine", 32)
    ]  # fmt: skip
    text = report.format()
    assert "64 x 240 GB/s each way = 300 GB/s x 0.8, 1.700 us, nvlink" in text
    assert "bisection    400 GB/s from 4 nodes to the other 4" in text


def test_report_of_shared_nics_says_what_is_left_when_all_send():
    report = measure_cluster(pcie_box(4))
    assert (report.inside, report.outside, report.outside_shared) == (24e9, 24e9, 3.125e9)


def test_longest_route_of_the_report_is_the_longest_of_all_pairs():
    cluster = pcie_box(5, 5, 2, 2)
    routes = [cluster.route(a, b) for a in range(25) for b in range(25)]
    report = measure_cluster(cluster)
    assert report.longest_hops == max(map(len, routes))
    assert report.longest_latency == max(map(cluster.path_latency, routes))


def test_three_tiers_have_levels_and_oversubscription_each():
    nodes = ["g0:gpu:0", "g1:gpu:1", "l0:switch", "l1:switch", "s0:switch", "s1:switch", "c:switch"]
    edges = [("g0", "l0"), ("g1", "l1"), ("l0", "s0"), ("l1", "s1"), ("s0", "c"), ("s1", "c")]
    cluster = explicit(nodes, edges).build()
    assert switch_levels(cluster.graph) == {"l0": 1, "l1": 1, "s0": 2, "s1": 2, "c": 3}
    assert measure_cluster(cluster).longest_hops == 6


# --- shipped files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_topologies_build_say_their_sources_and_round_trip(path):
    spec = parse_topology(load(path))
    cluster = spec.build()
    assert all(data["source"] for _, _, data in cluster.graph.edges(data=True))
    assert measure_cluster(cluster).format_lines()
    again = parse_topology(spec.model_dump(mode="json")).build()
    assert again.links == cluster.links
    assert (again.capacity == cluster.capacity).all()
    assert (again.latency == cluster.latency).all()


@pytest.mark.parametrize(("name", "nvlink", "nic"), [("dgx_a100", 240e9, 23.7e9), ("dgx_h100", 370.8e9, 48e9)])
def test_shipped_dgx_have_the_rates_and_step_latencies_of_nccl(name, nvlink, nic):
    path = next(path for path in SHIPPED if path.stem == name)
    cluster = parse_topology({**load(path), "nodes": 2}).build()
    assert cluster.path_bandwidth(cluster.route(0, 1)) == pytest.approx(nvlink, rel=1e-12)
    assert cluster.path_bandwidth(cluster.route(0, 8)) == pytest.approx(nic, rel=1e-12)
    assert cluster.path_latency(cluster.route(0, 1)) == pytest.approx(3.4e-6, rel=1e-12)
    assert cluster.path_latency(cluster.route(0, 8)) == pytest.approx(14e-6, rel=1e-12)


# --- bad documents --------------------------------------------------------------------------------------------------

FLAT = {"kind": "flat", "device": "H100", "gpus": 4, "link": {"line_rate": "50 GB/s"}, "path_latency": "5 us"}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"kind": "torus"}, "torus"),
        ({"gpus": 0}, "gpus"),
        ({"gpus": -1}, "gpus"),
        ({"gpus": "many"}, "gpus"),
        ({"gpus": True}, "gpus"),
        ({"speed": 1}, "speed"),
        ({"link": {"line_rate": "0 GB/s"}}, "line_rate"),
        ({"link": {"line_rate": "-5 GB/s"}}, "line_rate"),
        ({"link": {"line_rate": 50}}, "has no unit"),
        ({"link": {"line_rate": "50 GB/s", "efficiency": 0}}, "efficiency"),
        ({"link": {"line_rate": "50 GB/s", "efficiency": 1.01}}, "efficiency"),
        ({"path_latency": "-1 us"}, "path_latency"),
    ],
)
def test_a_wrong_key_or_value_is_an_error_that_names_it(change, where):
    with pytest.raises(ValidationError, match=where):
        parse_topology({**FLAT, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nics_per_node": 4}, "one NIC per GPU"),
        ({"fabric": {"nodes_per_unit": 4, "oversubscription": 0.0}}, "oversubscription is 0.0"),
        ({"fabric": {"nodes_per_unit": 0}}, "nodes_per_unit"),
    ],
)
def test_a_wrong_dgx_is_an_error(change, message):
    with pytest.raises(ValidationError, match=message):
        dgx(2, **change)


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (["a:gpu", "a:gpu"], [], "two nodes have the name 'a'"),
        (["gpu0:gpu", "gpu1:gpu"], [("gpu0", "gpu2")], "no node 'gpu2'; did you mean gpu"),
        (["a:gpu", "b:gpu"], [("a", "b"), ("b", "a")], "two links lead from 'b' to 'a'"),
        (["a:gpu"], [("a", "a")], "must join two different nodes"),
        (["a:gpu:0", "b:gpu"], [("a", "b")], "'b' has no 'host'"),
        (["a:cpu"], [], "kind"),
        ([], [], "nodes"),
    ],
)
def test_a_wrong_graph_is_an_error_when_it_is_read(nodes, edges, message):
    with pytest.raises(ValidationError, match=message):
        explicit(nodes, edges)


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (["s:switch"], [], "has no GPU"),
        (["a:gpu", "b:gpu"], [], "GPU a cannot reach GPU b"),
        (["a:gpu", "b:gpu"], [("a", "b", True)], "GPU b cannot reach GPU a"),
        (["a:gpu", "b:gpu", "c:gpu"], [("a", "b"), ("b", "c")], "GPU a cannot reach GPU c"),  # b does not forward
        (
            ["a:gpu", "b:gpu", "s:switch", "t:switch"],
            [("a", "s"), ("b", "t"), ("s", "t", True)],
            "GPU b cannot reach GPU a",
        ),
    ],
)
def test_a_graph_that_is_no_cluster_is_an_error_when_it_is_built(nodes, edges, message):
    with pytest.raises(InputError, match=message):
        explicit(nodes, edges).build()


# --- the picture ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (dgx(128, 8, 32), ["1,024 GPUs", "32 machines × 8 GPUs", "32 spine switches", "256 × 25 GB/s", "unit 3"]),
        (leaf_spine(), ["512 GPUs", "5 more\nunits", "32 × 50 GB/s"]),
        (pcie_box(4), ["2 × PCIe switch", "host bridge", "8 × 24 GB/s"]),
        (flat(1), ["1 GPU"]),
        (explicit(["a:gpu", "b:gpu"], [("a", "b")]).build(), ["2 × GPU"]),
    ],
    ids=["dgx-1024", "leaf-spine-512", "pcie", "one-gpu", "direct"],
)
def test_the_picture_says_what_the_cluster_is_with_few_marks(cluster, said, tmp_path):
    from matplotlib.text import Text

    from simcluster.plots import topology

    figure = topology(cluster)
    figure.savefig(tmp_path / "topology.png", dpi=50)
    texts = "\n".join(text.get_text() for text in figure.findobj(Text))
    assert [part for part in said if part not in texts] == []
    assert sum(len(ax.lines) + len(ax.patches) for ax in figure.axes) < 200  # folded, whatever the size


# --- what every kind of topology obeys, by its example --------------------------------------------------------------

every_kind = pytest.mark.parametrize("kind", TOPOLOGIES)


def example(kind):
    return parse_topology({"kind": kind, "device": "h100", **TOPOLOGIES[kind].EXAMPLE})


@every_kind
def test_the_example_is_connected_both_ways(kind):
    cluster = example(kind).build()
    graph = cluster.graph
    assert len(cluster.gpus) >= 2
    assert nx.is_strongly_connected(graph)
    for a, b, data in graph.edges(data=True):
        assert graph[b][a] == data, f"{a} - {b} has another way back"
        assert data["bandwidth"] == cluster.capacity[cluster.link_index[a, b]] > 0 <= data["latency"]


@every_kind
def test_routes_of_the_example_are_paths_and_many_at_once_are_one_by_one(kind):
    cluster = example(kind).build()
    pairs = list(itertools.product(range(len(cluster.gpus)), repeat=2))
    for src, dst in pairs:
        nodes = nodes_of(cluster, src, dst)
        assert (nodes[0], nodes[-1]) == (cluster.gpus[src], cluster.gpus[dst])
        assert [cluster.links[link] for link in cluster.route(src, dst)] == list(itertools.pairwise(nodes))
        assert not set(nodes[1:-1]) & set(cluster.gpus), "a GPU forwards"
    src, dst = (np.array(ends) for ends in zip(*pairs, strict=True))
    row, link, fraction, latency = cluster.route_rows(src, dst, np.zeros(len(pairs), dtype=np.int64))
    for number, (one, other) in enumerate(pairs):
        own = row == number
        at_once = sorted(zip(link[own].tolist(), fraction[own].tolist(), strict=True))
        assert at_once == sorted(cluster.spread_route(one, other, 0))
        assert latency[number] == cluster.mean_route_latency(cluster.spread_route(one, other, 0))


@every_kind
def test_the_example_is_the_same_from_its_document(kind):
    spec = example(kind)
    cluster, again = spec.build(), parse_topology(spec.model_dump(mode="json")).build()
    assert (again.links, again.host_of) == (cluster.links, cluster.host_of)
    assert (again.capacity == cluster.capacity).all()
    assert measure_cluster(cluster).format_lines()


@pytest.mark.parametrize("box", [dgx, pcie_box])
def test_a_unit_of_more_machines_than_there_are_is_one_of_all(box):
    """Even of as many as a count can be."""
    all_in_one, larger = (box(3, per_unit=per_unit).graph for per_unit in (3, 10**9))
    assert list(larger.edges(data=True)) == list(all_in_one.edges(data=True))
