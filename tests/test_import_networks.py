"""Whole clusters from other tools: graphs that networkx wrote, and ibnetdiscover's listing."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import networkx as nx
import pytest

from simcluster.importers.topology_files import import_topology
from simcluster.scenario.document_resolution import load_cluster
from simcluster.topology import parse_topology

INPUTS = Path(__file__).parent / "inputs"
SHIPPED = sorted((Path(__file__).parent.parent / "topologies").glob("*.yaml"))


def built(path, **parameters):
    return parse_topology(import_topology(path, parameters)).build()


def assert_same(one, other):
    """The same GPUs in the same order, and the same links with the same figures to the last digit."""
    assert other.gpus == one.gpus
    assert other.host_of == one.host_of
    assert set(other.links) == set(one.links)
    for link, number in one.link_index.items():
        assert other.capacity[other.link_index[link]] == one.capacity[number], link
        assert other.latency[other.link_index[link]] == one.latency[number], link


def node_link(graph: nx.MultiGraph, edges: str = "edges") -> dict[str, object]:
    """As networkx writes it, which called the list of edges link before 3.4."""
    key = "edges" if "edges" in inspect.signature(nx.node_link_data).parameters else "link"
    return nx.node_link_data(graph, **{key: edges})


def plain(cluster):
    """The cluster's graph with plain attributes, as somebody would write it."""
    graph = nx.DiGraph(name=cluster.name, device="h100")
    for node, data in cluster.graph.nodes(data=True):
        graph.add_node(node, **dict(data))
    for a, b, data in cluster.graph.edges(data=True):
        graph.add_edge(a, b, **dict(data))
    return graph


# --- networkx ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "edges"),
    [
        *((path, "edges") for path in SHIPPED),
        *((path, "links") for path in SHIPPED if path.stem == "two_nodes_explicit"),
    ],
    ids=lambda one: getattr(one, "stem", one),
)
def test_node_link_round_trip(path, edges, tmp_path):
    cluster = load_cluster(path)
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(node_link(plain(cluster), edges)))
    again = load_cluster(file)
    assert_same(cluster, again)
    assert again.name == cluster.name
    a, b = next((a, b) for a, b in cluster.links if len(cluster.gpus) > 1)
    assert again.graph[a][b]["efficiency"] == pytest.approx(cluster.graph[a][b]["efficiency"], rel=1e-15)


def test_a_degraded_cluster_comes_back_degraded(tmp_path):
    cluster = load_cluster("two_nodes_explicit").with_scaled_links([("a.nic", "leaf", 0.3)])
    (tmp_path / "graph").write_text(json.dumps(node_link(plain(cluster))))
    assert_same(cluster, built(tmp_path / "graph"))


def test_graphml_round_trip(tmp_path):
    cluster = load_cluster("two_nodes_explicit")
    nx.write_graphml(plain(cluster), tmp_path / "graph.graphml")
    assert_same(cluster, load_cluster(tmp_path / "graph.graphml"))


def test_an_undirected_multigraph_with_texts(tmp_path):
    graph = nx.MultiGraph()
    for gpu in (1, 2):  # ids that are numbers
        graph.add_node(gpu, kind="gpu", host=gpu, colour="green")
    graph.add_node(("leaf", 0), kind="switch", tier="top", network="compute")
    for gpu in (1, 2):
        for _ in range(gpu):  # one cable, two cables
            graph.add_edge(gpu, ("leaf", 0), bandwidth="400 Gbit/s", latency="2 us", colour="red")
    (tmp_path / "graph.json").write_text(json.dumps(node_link(graph)))
    cluster = built(tmp_path / "graph.json", device="h100", name="cables")
    assert cluster.gpus == ("1", "2")
    assert cluster.graph.nodes["leaf.0"]["tier"] == "top"
    assert cluster.graph["1"]["leaf.0"]["bandwidth"] == cluster.graph["leaf.0"]["1"]["bandwidth"] == 50e9
    assert cluster.graph["2"]["leaf.0"]["bandwidth"] == 100e9
    assert cluster.path_latency(cluster.route(0, 1)) == 4e-6


def test_the_two_directions_may_differ(tmp_path):
    graph = nx.DiGraph(device="h100")
    graph.add_nodes_from(["gpu0", "gpu1"], kind="gpu")
    graph.add_edge("gpu0", "gpu1", bandwidth=3e9, latency=0)
    graph.add_edge("gpu1", "gpu0", bandwidth=2e9, latency=1e-6)
    nx.write_graphml(graph, tmp_path / "graph.xml")
    cluster = load_cluster(tmp_path / "graph.xml")
    assert [cluster.path_bandwidth(cluster.route(*pair)) for pair in ((0, 1), (1, 0))] == [3e9, 2e9]
    assert [cluster.path_latency(cluster.route(*pair)) for pair in ((0, 1), (1, 0))] == [0, 1e-6]


# --- ibnetdiscover ----------------------------------------------------------------------------------------------------

LISTING = INPUTS / "ib_two_rails.ibnetdiscover"


def test_listing():
    cluster = built(LISTING, device="h100", hosts="node*")
    assert cluster.gpus == tuple(f"node00{h}.gpu{i}" for h in (1, 2, 3, 4) for i in (0, 1))
    assert cluster.host_of == (0, 0, 1, 1, 2, 2, 3, 3)
    tiers = {node: data["tier"] for node, data in cluster.graph.nodes(data=True) if data["kind"] == "switch"}
    assert tiers == {"leaf1": "leaf", "leaf2": "leaf", "spine1": "spine", "spine2": "spine"}
    assert not any("login" in node or "Aggregation" in node for node in cluster.graph)
    port = cluster.graph["node001.mlx5_0"]["leaf1"]
    assert (port["line_rate"], port["bandwidth"]) == (50e9, pytest.approx(48e9))
    assert cluster.graph["leaf1"]["spine1"]["line_rate"] == 100e9  # two cables
    assert cluster.graph["leaf1"]["spine2"]["line_rate"] == 50e9
    assert all((b, a) in cluster.link_index for a, b in cluster.links)


def test_listing_routes():
    cluster = built(LISTING, device="h100", hosts=["node*"])
    way = [cluster.links[link] for link in cluster.route(0, 2)]
    assert [b for _, b in way] == ["node001.mlx5_0", "leaf1", "node002.mlx5_0", "node002.gpu0"]
    assert cluster.path_latency(cluster.route(0, 2)) == pytest.approx(14e-6)
    inside = [cluster.links[link][1] for link in cluster.route(0, 1)]
    assert inside == ["node001.nvswitch", "node001.gpu1"]
    cross = [cluster.links[link][1] for link in cluster.route(0, 3)]  # to another rail: over a spine
    assert any(node.startswith("spine") for node in cross)


def test_listing_without_nvlink_and_with_shared_nics():
    cluster = built(LISTING, device="a100-80gb-pcie", hosts="node*", nics="mlx5_0", gpus_per_nic=4, nvlinks_per_gpu=0)
    assert len(cluster.gpus) == 16
    inside = [cluster.links[link][1] for link in cluster.route(0, 3)]
    assert inside == ["node001.pcie0", "node001.gpu3"]
    assert cluster.path_bandwidth(cluster.route(0, 3)) == 0.82 * 32e9
    assert cluster.path_latency(cluster.route(0, 4)) == pytest.approx(14e-6)
    two = built(LISTING, device="a100-80gb-pcie", hosts="node*", nvlinks_per_gpu=0)
    over = [two.links[link][1] for link in two.route(0, 1)]
    assert over == ["node001.pcie0", "node001.host", "node001.pcie1", "node001.gpu1"]


def test_listing_of_everything():
    """Without patterns the login node is a machine too: the listing cannot know."""
    assert len(built(LISTING, device="h100").gpus) == 9


def test_speeds(tmp_path):
    for speed, gigabytes in (("4xEDR", 12.5), ("4xHDR", 25), ("2xHDR", 12.5), ("4xFDR", 6.82), ("4xXDR", 100)):
        path = tmp_path / speed
        path.write_text(LISTING.read_text().replace("4xNDR", speed))
        cluster = built(path, device="h100", hosts="node*")
        assert cluster.graph["node001.mlx5_0"]["leaf1"]["line_rate"] == pytest.approx(gigabytes * 1e9)
