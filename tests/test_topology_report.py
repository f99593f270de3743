"""What is said and drawn of a cluster: measures against brute force and measurements, text, pictures."""

from __future__ import annotations

import itertools
import os
from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fabrics import FABRICS, STORAGE, build, document, dragonfly, fabric_document, link, machine

from simcluster.collectives import ALGORITHMS
from simcluster.scenario.document_resolution import load_cluster
from simcluster.studies.bench.cluster_measurement import measure_cluster
from simcluster.studies.bench.equivalence_classes import LinkTable, find_node_classes
from simcluster.topology import parse_topology
from simcluster.traffic.fairness import solo_rate
from simcluster.traffic.traffic import link_patterns, make_group

# --- classes --------------------------------------------------------------------------------------------------------


@st.composite
def random_graphs(draw):
    count = draw(st.integers(1, 12))
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=30))
    graph = nx.DiGraph()
    graph.add_nodes_from(f"n{i}" for i in range(count))
    for a, b in pairs:
        rate = draw(st.sampled_from([1e9, 2e9]))
        data = {"medium": "m", "line_rate": rate, "efficiency": 1.0, "bandwidth": rate, "latency": 0.0, "source": ""}
        if a != b:
            graph.add_edge(f"n{a}", f"n{b}", **data)
    return graph


def refined(graph, colour):
    """Colour refinement as in the textbook."""
    while True:
        around = {node: [] for node in graph}
        for a, b, data in graph.edges(data=True):
            around[a].append(("to", data["bandwidth"], colour[b]))
            around[b].append(("from", data["bandwidth"], colour[a]))
        labels = {node: (colour[node], tuple(sorted(around[node]))) for node in graph}
        numbers = {label: i for i, label in enumerate(sorted(set(labels.values())))}
        finer = {node: numbers[labels[node]] for node in graph}
        if len(numbers) == len(set(colour.values())):
            return colour
        colour = finer


@given(graph=random_graphs(), seed=st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_classes_are_the_coarsest_equitable_partition(graph, seed):
    colour = {node: (i * seed) % 3 for i, node in enumerate(graph)}
    classes = dict(zip(graph, find_node_classes(LinkTable.from_graph(graph), colour).tolist(), strict=True))
    expected = refined(graph, colour)
    assert all((classes[a] == classes[b]) == (expected[a] == expected[b]) for a, b in itertools.combinations(graph, 2))
    assert list(dict.fromkeys(classes.values())) == list(range(len(set(classes.values()))))  # by first appearance


@given(graph=random_graphs())
@settings(max_examples=60, deadline=None)
def test_the_table_of_links_knows_ways_back(graph):
    table = LinkTable.from_graph(graph)
    edges = list(graph.edges)
    assert [(table.nodes[a], table.nodes[b]) for a, b in zip(table.start, table.end, strict=True)] == edges
    assert table.attribute_values("bandwidth").tolist() == [data["bandwidth"] for _, _, data in graph.edges(data=True)]
    back = [edges.index((b, a)) if (b, a) in edges else -1 for a, b in edges]
    assert table.find_reverse_links().tolist() == back


# --- ring all-reduce over all GPUs ----------------------------------------------------------------------------------


def in_full(cluster):
    """The same, with every hop of every ring counted."""
    gpus = range(len(cluster.gpus))
    group = make_group(cluster, gpus)
    (pattern, *_) = link_patterns(cluster, gpus, ALGORITHMS["all_reduce"]["ring"](group))
    return len(group.rings) * solo_rate(pattern.usage, cluster.capacity)


CLUSTERS = {
    **{kind: (4, fabric_document(kind), machine()) for kind in FABRICS},
    "odd rail": (5, fabric_document("rail_optimised"), machine()),
    "odd tree": (7, {"kind": "fat_tree", "nodes_per_unit": 3, "oversubscription": 4}, machine()),
    "pods": (8, {"kind": "fat_tree", "nodes_per_unit": 1, "units_per_pod": 2, "spine_oversubscription": 8}, machine()),
    "thin dragonfly": (12, dragonfly(2, 1, 1, 5, spine_to_spine={"line_rate": "3 GB/s"}), machine()),
    "shared NICs": (4, fabric_document("fat_tree"), machine(nics=[{"count": 2, "link": link("25 GB/s")}])),
    "mixed NICs": (
        4,
        fabric_document("rail_optimised"),
        machine(
            nics=[{"count": 2, "link": link("25 GB/s")}, {"count": 2, "link": link("12 GB/s")}], gpus_per_pcie_switch=1
        ),
    ),
    "racks": (3, fabric_document("rail_optimised"), machine(2, trays=3)),
    "no NVLink": (4, fabric_document("fat_tree"), machine(nvlink=None, gpus_per_pcie_switch=2, host={"count": 1})),
    "one machine": (1, fabric_document("fat_tree"), machine()),
}


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("routing", ["static", "adaptive"])
def test_expected_busbw_is_that_of_all_hops_counted(name, routing):
    nodes, fabric, of = CLUSTERS[name]
    cluster = build(nodes, fabric, of, routing={"kind": routing})
    report = measure_cluster(cluster).all_reduce
    assert report.busbw == pytest.approx(in_full(cluster), rel=1e-12)


def test_expected_busbw_where_it_was_measured():
    # nccl-tests, 2 x 8 A100, 8 GiB, NCCL 2.29.3 (oracle-quickstart/oci-hpc-oke): 189.6 GB/s
    assert measure_cluster(load_cluster("oci_bm_gpu_b4_8", [])).all_reduce.busbw == pytest.approx(189.6e9)
    # one machine of 8 H100: 365 to 370 GB/s by rings (NVIDIA/nccl issue 1455)
    assert measure_cluster(load_cluster("dgx_h100", [("nodes", 1)])).all_reduce.busbw == pytest.approx(370.8e9)


def test_the_limit_of_the_rings_is_named():
    assert measure_cluster(build(4, fabric_document("fat_tree"))).all_reduce.limit == "nic - leaf"
    thin = measure_cluster(build(*CLUSTERS["thin dragonfly"])).all_reduce
    assert thin.limit == "spine - spine"
    assert measure_cluster(load_cluster("flat", [("gpus", 1)])).all_reduce is None


# --- other measures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_longest_path_is_that_of_all_pairs(name):
    cluster = build(*CLUSTERS[name])
    routes = [cluster.route(a, b) for a in range(len(cluster.gpus)) for b in range(len(cluster.gpus))]
    report = measure_cluster(cluster)
    assert report.longest_hops == max(map(len, routes))
    assert report.longest_latency == pytest.approx(max(map(cluster.path_latency, routes)), rel=1e-12)


@pytest.mark.parametrize("name", CLUSTERS)
def test_bisection_is_the_maximum_flow_of_the_graph(name):
    cluster = build(*CLUSTERS[name])
    machines = cluster.host_of[-1] + 1
    if machines == 1:
        return
    graph = nx.DiGraph()
    for a, b, data in cluster.graph.edges(data=True):
        graph.add_edge(a, b, capacity=data["bandwidth"])
    for gpu, host in zip(cluster.gpus, cluster.host_of, strict=True):
        graph.add_edge(*(("from", gpu) if host < machines // 2 else (gpu, "to")))
    expected = nx.maximum_flow_value(graph, "from", "to", flow_func=nx.algorithms.flow.edmonds_karp)
    assert measure_cluster(cluster).bisection == pytest.approx(expected, rel=1e-9)


def test_what_a_gpu_can_send():
    shared = measure_cluster(
        build(2, fabric_document("fat_tree"), machine(nics=[{"count": 2, "link": link("25 GB/s")}]))
    )
    assert (shared.inside, shared.outside, shared.outside_shared) == (300e9, 25e9, 12.5e9)
    bridged = machine(gpus_per_pcie_switch=2, host={"count": 1})
    assert measure_cluster(build(1, fabric_document("fat_tree"), bridged)).inside == 300e9  # NVLink alone, as routes go
    assert measure_cluster(build(1, fabric_document("fat_tree"), {**bridged, "nvlink": None})).inside == 32e9


@pytest.mark.parametrize(
    ("kind", "rails"), [("fat_tree", 1), ("rail_optimised", 4), ("rail_only", 4), ("dragonfly_plus", 1)]
)
def test_rails(kind, rails):
    assert measure_cluster(build(4, fabric_document(kind))).rails == rails


def test_link_groups_count_every_link_once():
    cluster = build(4, fabric_document("rail_optimised"), machine(gpus_per_pcie_switch=2, host={"count": 1}))
    groups = measure_cluster(cluster).links
    assert sum(group.count * (1 if group.one_way else 2) for group in groups) == len(cluster.links)
    assert Counter(group.ends for group in groups) == Counter(
        ["gpu - nvswitch", "gpu - pcie", "pcie - host", "pcie - nic", "nic - leaf", "leaf - spine"]
    )


# --- text -----------------------------------------------------------------------------------------------------------


def with_storage():
    of = machine(host={"count": 1})
    networks = {"storage": {"kind": "fat_tree", "nodes_per_unit": 2, "oversubscription": 2}}
    nics = [*machine()["nics"], STORAGE]
    return build(
        4,
        fabric_document("rail_optimised"),
        {**of, "nics": [{**nics[0], "at": "gpu"}, STORAGE]},
        other_networks=networks,
    )


def test_the_text_has_every_fact():
    text = measure_cluster(with_storage()).format()
    for part in (
        "NICs         4 ports per node; 1 per GPU; 4 rails",
        "leaf switch  not oversubscribed (1:1)",
        "all-reduce   busbw 100 GB/s over all GPUs, large messages: 4 rings at 25 GB/s, bound by nic - leaf",
        "storage network, which collectives do not use",
        "storage nic - storage leaf    8 x 12.5 GB/s each way, 1.000 us",
        "per node     25 GB/s",
        "bisection    25 GB/s between halves of its NICs",
        "leaf switch  2:1 oversubscribed",
    ):
        assert part in text, part
    assert max(map(len, text.splitlines())) <= 120


def test_the_text_does_not_depend_on_hash_seeds():
    import subprocess
    import sys

    code = "from simcluster.scenario.document_resolution import load_cluster; "
    code += "from simcluster.studies.bench.cluster_measurement import measure_cluster; "
    code += "print(measure_cluster(load_cluster('mixed_nics', [])).format())"
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    there = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.strip() == measure_cluster(load_cluster("mixed_nics", [])).format().strip()
    assert "management network" in there.stdout


# --- pictures -------------------------------------------------------------------------------------------------------


def drawn(cluster, path):
    from matplotlib.text import Text

    from simcluster.plots import topology

    figure = topology(cluster)
    figure.savefig(path, dpi=50)
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    return figure, "\n".join(text.get_text() for text in texts)


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (
            build(8, fabric_document("rail_only")),
            ["4 separate rails, 2 spine switches each, which no switch joins", "unit 3"],
        ),
        (
            build(12, fabric_document("dragonfly_plus")),
            ["6 groups, each pair of them joined directly", "3 more\ngroups"],
        ),
        (
            build(8, {**fabric_document("fat_tree"), "units_per_pod": 2}),
            ["pod 1", "8 spine switches", "16 core switches"],
        ),
        (
            build(2, fabric_document("rail_optimised"), machine(4, trays=18)),
            ["2 racks × 72 GPUs", "one of the 18 trays"],
        ),
        (
            with_storage(),
            ["separate networks: storage network, 25 GB/s per node", "to storage: 2 × 12.5 GB/s", "4 leaf"],
        ),
    ],
    ids=["rail_only", "dragonfly_plus", "pods", "racks", "storage"],
)
def test_the_picture_shows_what_is_special(cluster, said, tmp_path):
    figure, texts = drawn(cluster, tmp_path / "x.png")
    assert [part for part in said if part not in texts] == []
    (legend,) = figure.legends
    box = legend.get_window_extent()
    width, height = figure.get_size_inches() * figure.dpi
    assert box.x0 >= 0
    assert box.x1 <= width
    assert box.y1 <= height


def test_marks_do_not_grow_with_the_cluster(tmp_path):
    marks = []
    for nodes in (16, 256):
        figure, _ = drawn(build(nodes, {"kind": "rail_optimised", "nodes_per_unit": 4}), tmp_path / "x.png")
        marks.append(sum(len(ax.lines) + len(ax.patches) for ax in figure.axes))
    assert abs(marks[0] - marks[1]) < 40


@pytest.mark.benchmark
@pytest.mark.parametrize("kind", FABRICS)
def test_describing_16384_gpus(kind, capsys):
    import time

    of = machine(8, gpus_per_pcie_switch=1, host={"count": 2, "between": link()})
    fabric = {"kind": kind, "nodes_per_unit": 32}
    if kind == "dragonfly_plus":
        fabric = dragonfly(4, 16, 16, 62)
    spec = parse_topology(document(2048, fabric, of))
    start = time.perf_counter()
    cluster = spec.build()
    middle = time.perf_counter()
    measure_cluster(cluster)
    end = time.perf_counter()
    with capsys.disabled():
        print(f"{kind}: {len(cluster.links):,} links, built {middle - start:.2f} s, described {end - middle:.2f} s")  # noqa: T201 - a measurement
    assert np.isfinite(cluster.capacity).all()
