"""Regular clusters in closed form are their graphs: the same nodes, links, routes and ways, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simcluster import load_cluster
from simcluster.base.errors import InputError
from simcluster.base.progress import set_estimate_limit
from simcluster.scenario.document_resolution import load_topology
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate
from simcluster.topology import Cluster, parse_topology
from simcluster.topology.cluster import make_cluster, make_cluster_from_draft
from simcluster.topology.draft import ClusterDraft, RecordingGraph
from simcluster.topology.links import COMPUTE, add_gpus
from simcluster.topology.regular_wiring import RegularWiring
from simcluster.topology.trees import FabricBuilder

LINK = {"line_rate": "100 Gbit/s", "latency": "1 us"}
FAST = {"line_rate": "400 GB/s", "latency": "2 us"}
POLICIES: list[dict[str, Any]] = [
    {"kind": "static"},
    {"kind": "static", "pxn": False},
    {"kind": "static", "pxn": True},
    {"kind": "shortest"},
    {"kind": "adaptive"},
    {"kind": "ecmp", "seed": 3, "queue_pairs": 2},
]
REGULAR = ["dgx_h100", "dgx_b200", "fat_tree_3level", "gb200_nvl72", "gcp_a3_mega", "azure_nd_h100_v5", "aws_p4d",
           "aws_p5", "oci_bm_gpu_h100_8", "leaf_spine_512", "flat", "dragonfly_plus",
           "rail_only"]  # fmt: skip


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """The section that says of a fabric how wide it is, and how high."""
    fabric: dict[str, Any] = {
        "nodes_per_unit": draw(st.integers(1, 4)),
        "oversubscription": draw(st.sampled_from([1.0, 2.0, 0.5])),
    }
    if draw(st.booleans()):
        fabric["units_per_pod"] = draw(st.integers(1, 3))
    return fabric


@st.composite
def machines(draw: st.DrawFn) -> dict[str, Any]:
    """A box with or without NVLink, PCIe switches, host bridges, fewer NICs than GPUs, and other networks."""
    gpus = draw(st.sampled_from([1, 2, 4]))
    found: dict[str, Any] = {"gpus": gpus, "pcie": LINK}
    if draw(st.booleans()):
        found["nvlink"] = FAST
        found["trays"] = draw(st.sampled_from([1, 1, 2]))
    if draw(st.booleans()):
        found["gpus_per_pcie_switch"] = draw(st.sampled_from([n for n in (1, 2, 4) if gpus % n == 0]))
    if draw(st.booleans()):
        found["host"] = {"count": 1}
    found["nics"] = [{"count": draw(st.sampled_from([1, gpus])), "link": LINK}]
    if draw(st.integers(0, 4)) == 0:
        found["nics"].append({"count": 1, "link": LINK, "network": "storage"})
    return found


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Any topology of a kind that is drafted."""
    kind = draw(st.sampled_from(["dgx", "pcie_box", "flat", "leaf_spine", "machines"]))
    nodes = draw(st.integers(1, 9))
    found: dict[str, Any] = {"kind": kind, "device": "h100", "routing": draw(st.sampled_from(POLICIES))}
    if kind == "dgx":
        sizes = {"nodes": nodes, "gpus_per_node": draw(st.integers(1, 4)), "nvlink": FAST, "pcie": LINK, "nic": LINK}
        return found | sizes | {"fabric": draw(trees())}
    if kind == "pcie_box":
        sizes = {"nodes": nodes, "gpus_per_node": 4, "gpus_per_pcie_switch": draw(st.integers(1, 4))}
        return found | sizes | {"nics_per_node": draw(st.integers(1, 2)), "pcie": LINK, "nic": LINK,
                                "fabric": draw(trees())}  # fmt: skip
    port = {"link": {"line_rate": "100 Gbit/s"}, "path_latency": "4 us", "gpus_per_host": draw(st.integers(1, 3))}
    if kind == "flat":
        return found | port | {"gpus": nodes}
    if kind == "leaf_spine":
        shape = {"leaves": draw(st.integers(1, 4)), "gpus_per_leaf": nodes, "spines": draw(st.integers(1, 3))}
        return found | port | shape | {"uplink": {"line_rate": "100 Gbit/s"}}
    machine = draw(machines())
    fabric = {"kind": draw(st.sampled_from(["fat_tree", "rail_optimised", "rail_only"]))} | draw(trees())
    others = {} if len(machine["nics"]) == 1 else {"storage": {"kind": "fat_tree", "nodes_per_unit": 4}}
    return found | {"nodes": nodes, "machine": machine, "fabric": fabric, "other_networks": others}


def built(document: dict[str, Any]) -> Cluster | None:
    """Its cluster; None for one that cannot be (rails that never meet without NVLink)."""
    try:
        return parse_topology(document).build()
    except InputError:
        return None


def check_same(cluster: Cluster, routing: Any) -> None:
    """All that is known in closed form is what the graph says."""
    graph = make_cluster(cluster.name, cluster.device, cluster.graph, routing, cluster.nccl)
    assert not isinstance(graph.wiring, RegularWiring)
    assert (cluster.gpus, cluster.links, cluster.host_of) == (graph.gpus, graph.links, graph.host_of)
    assert cluster.link_index == graph.link_index
    assert cluster.capacity.tolist() == graph.capacity.tolist()
    assert cluster.latency.tolist() == graph.latency.tolist()
    links = np.arange(len(cluster.links))
    assert cluster.link_capacity.values_at(links).tolist() == cluster.capacity.tolist()
    assert cluster.link_latency.values_at(links[::-3]).tolist() == cluster.latency[::-3].tolist()
    gpus = range(len(cluster.gpus))
    for name in ("exit_nics", "nvswitch", "node_and_tray"):
        assert [getattr(cluster, name)(gpu) for gpu in gpus] == [getattr(graph, name)(gpu) for gpu in gpus], name
    for direction in ("d2h", "h2d"):
        ways = [[_or_error(each.host_memory_route, gpu, direction) for gpu in gpus] for each in (cluster, graph)]
        assert ways[0] == ways[1]
    own = [gpu for gpu in gpus if cluster.host_of[gpu] == cluster.host_of[-1]]
    assert _or_error(cluster.routes_to_common_switch, own, 0) == _or_error(graph.routes_to_common_switch, own, 0)
    _check_routes(cluster, graph)


def _check_routes(cluster: Cluster, graph: Cluster) -> None:
    random = np.random.default_rng(7)
    src, dst = random.integers(0, len(cluster.gpus), (2, 120))
    number = random.integers(0, 3, 120)
    found = []
    for each in (cluster, graph):
        flow, link, fraction, latency = each.route_rows(src, dst, number)
        assert (np.diff(flow) >= 0).all()
        parts = _by_link(zip(zip(flow.tolist(), link.tolist(), strict=True), fraction.tolist(), strict=True))
        found.append((sorted(parts), latency.tolist()))
    assert found[0] == found[1]
    flow, link, fraction, _ = cluster.route_rows(src, dst, number)
    for place in range(0, 120, 10):
        alone = graph.spread_route(int(src[place]), int(dst[place]), int(number[place]))
        there = flow == place
        parts = _by_link(zip(link[there].tolist(), fraction[there].tolist(), strict=True))
        assert sorted(parts) == sorted(_by_link(alone))


def _by_link(spread: Any) -> list[tuple[Any, float]]:
    """Return the part of the bytes on each link; connections of a flow may share some."""
    found: dict[Any, float] = {}
    for link, part in spread:
        found[link] = found.get(link, 0.0) + part
    return list(found.items())


def _or_error(ask: Any, *arguments: Any) -> Any:
    try:
        return ask(*arguments)
    except InputError as error:
        return str(error)


@settings(max_examples=30, deadline=None)
@given(document=documents())
@example(document={"kind": "dgx", "device": "h100", "nodes": 9, "gpus_per_node": 2, "nvlink": FAST, "pcie": LINK,
                   "nic": LINK, "fabric": {"nodes_per_unit": 2, "units_per_pod": 2}})  # fmt: skip
@example(document={"kind": "dgx", "device": "h100", "nodes": 2, "gpus_per_node": 1, "nvlink": FAST, "pcie": LINK,
                   "nic": LINK, "fabric": {"nodes_per_unit": 1, "oversubscription": 1.0},
                   "routing": {"kind": "ecmp", "seed": 3, "queue_pairs": 2}})  # fmt: skip
def test_closed_form_is_the_graph(document: dict[str, Any]) -> None:
    cluster = built(document)
    if cluster is not None:
        check_same(cluster, parse_topology(document).routing)


@pytest.mark.parametrize("name", REGULAR)
def test_shipped_topologies_need_no_graph(name: str) -> None:
    cluster = load_cluster(name, [])
    wiring = cluster.wiring
    assert isinstance(wiring, RegularWiring)
    gpus = np.arange(len(cluster.gpus))
    away = 24 if name == "rail_only" else 3  # between rails the graph says who hands over
    cluster.route_rows(gpus, np.roll(gpus, away), 0 * gpus)
    cluster.nvswitch_and_nic_numbers(gpus)
    assert "graph" not in vars(wiring)
    assert "link_index" not in vars(wiring)
    check_same(cluster, load_topology(name).routing)


def test_a_slow_cable_is_in_the_graph() -> None:
    cluster = load_cluster("dgx_h100", [("nodes", 2)])
    slow = cluster.with_scaled_links([("node1.gpu3", "node1.nic3", 0.5)])
    assert "graph" not in vars(cluster.wiring)
    for a, b in (("node1.gpu3", "node1.nic3"), ("node1.nic3", "node1.gpu3")):
        assert slow.graph[a][b]["bandwidth"] == 0.5 * cluster.graph[a][b]["bandwidth"]
        assert slow.capacity[slow.link_index[a, b]] == slow.graph[a][b]["bandwidth"]
    assert slow.graph["node0.gpu3"]["node0.nic3"] == cluster.graph["node0.gpu3"]["node0.nic3"]


def test_a_hundred_thousand_gpus_are_not_objects() -> None:
    cluster = load_cluster("dgx_h100", [("nodes", 16384)])
    assert len(cluster.host_of) == 131072
    assert not {"graph", "links", "link_index", "gpus"} & set(vars(cluster.wiring))


def test_a_job_on_a_built_in_cluster_is_simulated_without_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """As jobs of a million GPUs have to be; their flows are split evenly over all spines."""
    monkeypatch.setattr("simcluster.topology.draft.MAX_DRAWN_GPUS", 15)
    size = {"cluster.nodes": 144, "gpus": 1152, "parallel.dp": 9, "training.global_batch": 144}
    scenario = load("llama3_405b_16384xh100", size)
    assert load_topology("dgx_h100").routing.kind == "adaptive"
    assert simulate(scenario).step_time > 0
    assert "graph" not in vars(scenario.cluster.built.wiring)


def test_an_irregular_cluster_that_is_too_large_says_what_its_graph_would_take(monkeypatch) -> None:
    monkeypatch.setattr("simcluster.topology.draft.MAX_DRAWN_GPUS", 15)
    load_cluster("dgx_h100", [("nodes", 2)])
    with pytest.raises(InputError, match=r"has 16 GPUs, and its graph must be built .* \(.* GB, about .* s\)"):
        load_cluster("dgx_h100", [("nodes", 2)]).graph  # noqa: B018
    with pytest.raises(
        InputError, match=r"mixed_nics: cluster has 128 GPUs, and .* built link by link .* up to 15 GPUs; use fewer"
    ):
        load_cluster("mixed_nics")


def test_an_irregular_cluster_that_takes_longer_to_draw_than_is_begun_says_so() -> None:
    with (
        set_estimate_limit(1e-3),
        pytest.raises(InputError, match=r"GPUs, 8 per node; .* would take about .* --yes"),
    ):
        load_cluster("mixed_nics")


@pytest.mark.parametrize("name", ["dgx_h100", "gb200_nvl72", "azure_nd_h100_v5", "aws_p4d", "rail_only", "flat"])
def test_links_have_the_numbers_of_the_graph(name: str) -> None:
    found = load_cluster(name).wiring
    assert isinstance(found, RegularWiring)
    index = {link: number for number, link in enumerate(found.graph.edges)}
    assert found.link_index == index
    owned, back = found.machines.machine_links, found.machines.numbers.back
    for column in range(owned.shape[1]):
        for machine in (0, len(owned) - 1):
            link, turned = owned[machine, [column, back[column]]].tolist()
            assert found.links[turned] == found.links[link][::-1]
    first = found.machines.numbers.first_switch_link
    for link, turned in enumerate(found.machines.numbers.turned.tolist()):
        assert found.links[turned] == found.links[first + link][::-1]


def ring_of_gpus(count: int, *, switched: bool) -> Cluster:
    """Each a machine of its own, linked to the next; with a port on a switch, too."""
    pattern, draft = RecordingGraph(), ClusterDraft()
    add_gpus(pattern, [("gpu0", 0, 0)])
    draft.add_machines(pattern, count, "gpu")
    edge = {"bandwidth": 10e9, "latency": 1e-6, "medium": "network"}
    draft.connect_switches(draft.nodes, np.roll(draft.nodes, -1, axis=0), edge)
    if switched:
        (switch,) = FabricBuilder(draft, COMPUTE).add_switches(["switch"], "leaf")
        draft.connect_switches(draft.nodes, np.full(draft.nodes.shape, switch), edge)
    return make_cluster_from_draft("ring", "h100", draft)


@pytest.mark.parametrize(("count", "switched", "hops"), [(3, False, [1, 1]), (5, True, [1, 2, 2, 1])])
def test_gpus_that_are_linked_directly_are_a_graph(count: int, switched: bool, hops: list[int]) -> None:
    """Not regular: the graph routes, one flow or many."""
    cluster = ring_of_gpus(count, switched=switched)
    assert not isinstance(cluster.wiring, RegularWiring)
    assert [len(cluster.route(0, other)) for other in range(1, count)] == hops
    src, dst = (np.array(ends) for ends in zip(*[(0, other) for other in range(1, count)], strict=True))
    flow, link, fraction, _ = cluster.route_rows(src, dst, np.zeros(count - 1, dtype=np.int64))
    assert [tuple(link[flow == number].tolist()) for number in range(count - 1)] == [
        cluster.route(0, other) for other in range(1, count)
    ]
    assert set(fraction.tolist()) == {1.0}


def test_gpus_do_not_forward_for_others() -> None:
    with pytest.raises(InputError, match=r"gpu0 cannot reach GPU gpu2.* add a switch between NICs"):
        ring_of_gpus(5, switched=False)
