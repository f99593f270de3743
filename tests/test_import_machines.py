"""Machines from NCCL's topology XML and from nvidia-smi topo -m: what is built, what it carries, which way it goes."""

from __future__ import annotations

import itertools
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.importers.nvidia_smi import CLASSES, parse_topology_matrix
from simcluster.importers.topology_files import import_topology
from simcluster.scenario.document_resolution import load_cluster
from simcluster.scenario.scenario import from_document, load_text
from simcluster.topology import parse_topology

INPUTS = Path(__file__).parent / "inputs"


def built(name, **parameters):
    return parse_topology(import_topology(INPUTS / name, parameters)).build()


def kinds(cluster):
    found = {}
    for _, data in cluster.graph.nodes(data=True):
        kind = data.get("tier", data["kind"])
        found[kind] = found.get(kind, 0) + 1
    return found


def way(cluster, src, dst):
    """Names of the nodes that a transfer passes, without those of its ends' machines' prefix."""
    return [cluster.gpus[src], *(cluster.links[link][1] for link in cluster.route(src, dst))]


def path_class(graph, a, b):
    """The class that nvidia-smi gives to the PCIe path between two nodes of one machine."""
    inner = [node for node, data in graph.nodes(data=True) if data["kind"] in ("pcie", "host")]
    path = nx.shortest_path(graph.subgraph([a, b, *inner]), a, b)
    media = [graph[u][v]["medium"] for u, v in itertools.pairwise(path)]
    passed = [graph.nodes[node]["kind"] for node in path[1:-1]]
    if "socket" in media:
        return "SYS"
    if "host" in passed:
        return "PHB" if passed.count("host") == 1 else "NODE"
    return "PIX" if len(passed) == 1 else "PXB"


def each_way(cluster):
    return all((b, a) in cluster.link_index for a, b in cluster.links)


# --- NCCL's dump ------------------------------------------------------------------------------------------------------


def test_dgx_a100_dump():
    cluster = built("nccl_dgx_a100.xml")
    assert cluster.device == "a100-80gb"  # by its PCI id
    assert kinds(cluster) == {"gpu": 8, "nvswitch": 1, "nic": 8, "pcie": 8, "host": 4}  # the NVMe disk is not there
    assert each_way(cluster)
    assert cluster.gpus == tuple(f"node0.gpu{i}" for i in range(8))
    edge = cluster.graph["node0.gpu0"]["node0.nvswitch"]
    assert edge["line_rate"] == 12 * 25e9
    assert edge["bandwidth"] == pytest.approx(240e9, rel=1e-12)  # NCCL: 12 links of 20 GB/s
    for a, b in itertools.combinations(range(8), 2):  # never over the PCIe switch that pairs share
        assert way(cluster, a, b) == [f"node0.gpu{a}", "node0.nvswitch", f"node0.gpu{b}"]
    assert cluster.path_latency(cluster.route(0, 1)) == pytest.approx(3.4e-6)


def test_dgx_a100_dump_pcie_classes_and_rates():
    graph = built("nccl_dgx_a100.xml").graph
    for gpu, nic in itertools.product(range(8), range(8)):
        wanted = "PIX" if gpu // 2 == nic // 2 else "SYS"
        assert path_class(graph, f"node0.gpu{gpu}", f"node0.mlx5_{nic}") == wanted
    for a, b, data in graph.edges(data=True):
        if data["medium"] == "pcie":
            assert (data["line_rate"], data["bandwidth"]) == (32e9, 0.82 * 32e9), (a, b)  # Gen4 x16
        if data["medium"] == "socket":
            assert data["bandwidth"] == 16e9  # AMD
    assert (
        sum(data["medium"] == "socket" for _, _, data in graph.edges(data=True)) == 2 * 6
    )  # four NUMA nodes, all pairs


def test_copies_on_rails():
    cluster = built("nccl_dgx_a100.xml", nodes=3, fabric={"nodes_per_unit": 2, "oversubscription": 2.0})
    assert kinds(cluster) == {"gpu": 24, "nvswitch": 3, "nic": 24, "pcie": 24, "host": 12, "leaf": 16, "spine": 1}
    assert cluster.host_of == tuple(i // 8 for i in range(24))
    rail = way(cluster, 0, 8)
    assert [node.partition(".")[0] for node in rail] == ["node0"] * 3 + ["unit0"] + ["node1"] * 3
    assert rail[1:-1] == ["node0.pcie1", "node0.mlx5_0", "unit0.leaf0", "node1.mlx5_0", "node1.pcie1"]
    assert cluster.path_latency(cluster.route(0, 8)) == pytest.approx(14e-6)  # NCCL's tuner: net, ring, Simple
    assert cluster.path_bandwidth(cluster.route(0, 8)) == pytest.approx(25e9 * 0.948)
    assert "spine0" in way(cluster, 0, 16)
    uplink = cluster.graph["unit0.leaf0"]["spine0"]
    assert uplink["line_rate"] == 2 * 25e9 / 2.0


def test_several_dumps_and_one_leaf():
    files = [INPUTS / "nccl_dgx_a100.xml", INPUTS / "nccl_direct_a100.xml"]
    cluster = parse_topology(import_topology(files, {"fabric": {"rails": False}})).build()
    assert cluster.host_of == (0,) * 8 + (1,) * 4
    assert kinds(cluster)["leaf"] == 1
    assert way(cluster, 0, 8)[-1] == "node1.gpu0"
    assert sum(a.startswith("node1.mlx5") and b == "leaf0" for a, b in cluster.links) == 2


def test_direct_nvlink_and_a_card_with_two_ports():
    cluster = built("nccl_direct_a100.xml")
    assert "nvswitch" not in kinds(cluster)
    for a, b in itertools.permutations(range(4), 2):
        assert way(cluster, a, b) == [f"node0.gpu{a}", f"node0.gpu{b}"]
        assert cluster.path_bandwidth(cluster.route(a, b)) == pytest.approx(4 * 20e9)
        assert cluster.path_latency(cluster.route(a, b)) == pytest.approx(3.4e-6)
    card = cluster.graph["node0.card0"]
    assert sorted(card) == ["node0.mlx5_0", "node0.mlx5_1", "node0.numa0"]
    assert card["node0.numa0"]["bandwidth"] == 0.82 * 32e9  # both ports share it
    assert cluster.graph["node0.numa0"]["node0.numa1"]["bandwidth"] == 10e9  # Intel, model 106: between Skylake and SRP
    joined = built("nccl_direct_a100.xml", fabric={})
    assert joined.graph["node0.mlx5_0"]["unit0.leaf0"]["medium"] == "ethernet"
    assert joined.graph["node0.mlx5_0"]["unit0.leaf0"]["line_rate"] == 12.5e9


def test_a_cloud_file_leaves_nvlink_to_the_generation():
    cluster = built("nccl_cloud_h100.xml", device="h100")
    assert kinds(cluster) == {"gpu": 8, "nvswitch": 1, "nic": 8, "pcie": 8, "host": 2}
    assert cluster.graph["node0.gpu3"]["node0.nvswitch"]["bandwidth"] == pytest.approx(18 * 20.6e9)
    assert cluster.graph["node0.numa0"]["node0.numa1"]["bandwidth"] == 22e9  # Sapphire Rapids
    assert cluster.graph["node0.gpu0"]["node0.pcie0"]["bandwidth"] == 0.86 * 64e9  # Gen5 x16
    alone = built("nccl_cloud_h100.xml", device="h100", nvlinks_per_gpu=0)
    assert way(alone, 0, 1) == ["node0.gpu0", "node0.pcie0", "node0.numa0", "node0.pcie1", "node0.gpu1"]
    assert alone.path_latency(alone.route(0, 1)) == pytest.approx(5.7e-6)  # NCCL's tuner: PCI, ring, Simple
    pair = built("nccl_cloud_h100.xml", device="h100", nodes=2)
    assert pair.path_bandwidth(pair.route(0, 8)) == pytest.approx(48e9)


def test_a_rack_shares_its_nvswitches():
    cluster = built("nccl_rack_two_trays.xml", device="b200")
    assert cluster.host_of == (0, 0, 1, 1)
    assert way(cluster, 0, 3) == ["node0.gpu0", "domain0.nvswitch", "node1.gpu1"]
    assert cluster.path_bandwidth(cluster.route(0, 3)) == pytest.approx(18 * 40.1e9)
    assert cluster.graph["node0.gpu0"]["node0.numa0"]["medium"] == "c2c"  # faster than the PCIe beside it
    assert cluster.graph["node0.gpu0"]["node0.numa0"]["bandwidth"] == pytest.approx(447.12e9)


@pytest.mark.parametrize(
    ("family", "model", "gigabytes"), [(6, 79, 6), (6, 85, 10), (6, 143, 22), (6, 207, 40), (15, 143, 6)]
)
def test_between_intel_cpus(tmp_path, family, model, gigabytes):
    text = (INPUTS / "nccl_cloud_h100.xml").read_text()
    text = text.replace('familyid="6" modelid="143"', f'familyid="{family}" modelid="{model}"')
    (tmp_path / "x.xml").write_text(text)
    graph = parse_topology(import_topology(tmp_path / "x.xml", {"device": "h100"})).build().graph
    assert graph["node0.numa0"]["node0.numa1"]["bandwidth"] == gigabytes * 1e9


@pytest.mark.parametrize(
    ("speed", "width", "gigabytes"),
    [("2.5 GT/s", 16, 3.28), ("8 GT/s", 16, 13.12), ("8.0 GT/s PCIe", 8, 6.56), ("16 GT/s", 16, 26.24),
     ("32.0 GT/s PCIe", 16, 55.04), ("32.0 GT/s PCIe", 8, 27.52), ("64.0 GT/s PCIe", 16, 110.08), ("", 16, 13.12),
     ("Unknown", 0, 13.12)],
)  # fmt: skip
def test_pcie_by_the_speed_of_a_lane_and_their_number(tmp_path, speed, width, gigabytes):
    text = (INPUTS / "nccl_cloud_h100.xml").read_text()
    text = text.replace('link_speed="32.0 GT/s PCIe" link_width="16"', f'link_speed="{speed}" link_width="{width}"')
    (tmp_path / "x.xml").write_text(text)
    graph = parse_topology(import_topology(tmp_path / "x.xml", {"device": "h100"})).build().graph
    assert graph["node0.gpu0"]["node0.pcie0"]["bandwidth"] == pytest.approx(gigabytes * 1e9)


def test_figures_given_by_hand_win():
    changes = {
        "device": "h100",
        "nvlink": {"line_rate": "20 GB/s", "efficiency": 1.0, "latency": "1 us"},
        "pcie": {"efficiency": 0.8},
        "nic": {"line_rate": "200 Gbit/s", "latency": "3 us"},
        "socket": {"line_rate": "30 GB/s"},
        "fabric": {"leaf_to_spine_latency": "1 us"},
    }
    graph = built("nccl_cloud_h100.xml", **changes).graph
    assert graph["node0.gpu0"]["node0.nvswitch"]["bandwidth"] == 18 * 20e9
    assert graph["node0.gpu0"]["node0.nvswitch"]["latency"] == 1e-6
    assert graph["node0.gpu0"]["node0.pcie0"]["bandwidth"] == pytest.approx(64e9 * 0.8)
    assert graph["node0.nic0"]["unit0.leaf0"]["line_rate"] == 25e9
    assert graph["node0.nic0"]["unit0.leaf0"]["latency"] == 3e-6
    assert graph["node0.numa0"]["node0.numa1"]["bandwidth"] == 30e9
    assert graph["unit0.leaf0"]["spine0"]["latency"] == 1e-6
    assert "set by the user" in graph["node0.nic0"]["unit0.leaf0"]["source"]


# --- nvidia-smi topo -m -----------------------------------------------------------------------------------------------

OTHER = {"device": "l40s", "pcie": {"line_rate": "32 GB/s"}, "nic": {"line_rate": "100 Gbit/s"}}
OTHER["socket"] = {"line_rate": "22 GB/s"}
MATRICES = {
    "smi_dgx_h100.txt": {},
    "smi_dgx_a100.txt": {},
    "smi_pcie.txt": OTHER,
    "smi_dgx1.txt": {"device": "v100"},
}


@pytest.mark.parametrize("name", MATRICES)
def test_every_pair_meets_at_its_class(name):
    matrix = parse_topology_matrix((INPUTS / name).read_text(), name)
    cluster = built(name, **MATRICES[name])
    assert each_way(cluster)
    for a, b in itertools.combinations(matrix.column_names, 2):
        one, other = (f"node0.{x.lower() if x.startswith('GPU') else matrix.nics.get(x, x)}" for x in (a, b))
        if matrix.cells[a, b] in CLASSES:
            assert path_class(cluster.graph, one, other) == matrix.cells[a, b], (a, b)
        else:
            hops = nx.shortest_path(cluster.graph, one, other)
            assert {cluster.graph[u][v]["medium"] for u, v in itertools.pairwise(hops)} == {"nvlink"}


@pytest.mark.parametrize("name", ["smi_sys_in_numa.txt", "smi_sys_nics.txt"])
def test_sys_inside_a_numa_node_leaves_the_path_to_the_numa_column(name):
    """As virtual machines and EPYC print it: pairs of one NUMA node never cross the link between NUMA nodes."""
    matrix = parse_topology_matrix((INPUTS / name).read_text(), name)
    cluster = built(name, device="a100-80gb")
    assert each_way(cluster)
    node_of = {x: f"node0.{x.lower() if x.startswith('GPU') else matrix.nics.get(x, x)}" for x in matrix.column_names}
    for a, b in itertools.combinations(matrix.column_names, 2):
        found, cell = path_class(cluster.graph, node_of[a], node_of[b]), matrix.cells[a, b]
        together = a in matrix.numa_node_of_gpu and matrix.numa_node_of_gpu[a] == matrix.numa_node_of_gpu.get(b)
        if cell == "SYS":
            assert not together or found in ("PHB", "NODE"), (a, b)
            assert together or found != "PIX", (a, b)
        elif cell in CLASSES:
            assert found == cell, (a, b)
    assert kinds(cluster)["gpu"] == 8
    assert any("inside a NUMA node" in data["source"] for _, _, data in cluster.graph.edges(data=True))


def test_dgx_h100_matrix():
    cluster = built("smi_dgx_h100.txt", nodes=2)
    assert cluster.device == "h100"  # 18 NVLinks
    assert way(cluster, 0, 7) == ["node0.gpu0", "node0.nvswitch", "node0.gpu7"]
    assert cluster.path_bandwidth(cluster.route(0, 7)) == pytest.approx(370.8e9)
    route = way(cluster, 3, 11)
    assert route[2:5] == ["node0.mlx5_3", "unit0.leaf3", "node1.mlx5_3"]
    assert [cluster.graph.nodes[node]["kind"] for node in route[1:-1]] == ["pcie", "nic", "switch", "nic", "pcie"]


def test_hybrid_cube_mesh_is_direct():
    cluster = built("smi_dgx1.txt", device="v100")
    assert "nvswitch" not in kinds(cluster)
    assert cluster.graph["node0.gpu0"]["node0.gpu3"]["bandwidth"] == pytest.approx(2 * 20e9)
    assert cluster.graph["node0.gpu0"]["node0.gpu1"]["bandwidth"] == pytest.approx(20e9)
    assert len(way(cluster, 0, 7)) > 2  # not joined: over PCIe, GPUs do not forward


@pytest.mark.parametrize(("gpus", "count", "switch"), [(2, 12, False), (4, 4, False), (4, 12, True), (8, 12, True)])
def test_nvswitch_where_a_mesh_would_need_too_many_links(tmp_path, gpus, count, switch):
    names = [f"GPU{i}" for i in range(gpus)]
    rows = ["\t".join([a, *(" X " if a == b else f"NV{count}" for b in names)]) for a in names]
    (tmp_path / "m").write_text("\t" + "\t".join(names) + "\n" + "\n".join(rows) + "\n")
    cluster = parse_topology(import_topology(tmp_path / "m")).build()  # by content: it has no ending
    assert ("nvswitch" in kinds(cluster)) == switch
    assert cluster.device == "a100-80gb"
    assert cluster.path_bandwidth(cluster.route(0, 1)) == pytest.approx(count * 20e9)
    other = parse_topology(import_topology(tmp_path / "m", {"nvswitch": not switch})).build()
    assert ("nvswitch" in kinds(other)) != switch


@st.composite
def machines(draw):
    """Where each GPU or NIC hangs: (NUMA node, bridge, upper switch, lower switch)."""
    count = draw(st.integers(2, 9))
    return [tuple(draw(st.integers(0, 1)) for _ in range(4)) for _ in range(count)]


@given(places=machines(), gpus=st.integers(2, 9))
@settings(max_examples=60, deadline=None)
def test_any_tree_comes_back_from_its_matrix(places, gpus, tmp_path_factory):
    names = [f"GPU{i}" if i < gpus else f"NIC{i - gpus}" for i in range(len(places))]
    classes = dict(zip(range(4, -1, -1), CLASSES, strict=True))  # how many levels two places share

    def cell(i, j):
        shared = next((k for k in range(4) if places[i][k] != places[j][k]), 4)
        return " X " if i == j else classes[shared]

    rows = ["\t".join([a, *(cell(i, j) for j in range(len(names)))]) for i, a in enumerate(names)]
    path = tmp_path_factory.mktemp("matrix") / "m.txt"
    path.write_text("\t" + "\t".join(names) + "\n" + "\n".join(rows) + "\n")
    graph = parse_topology(import_topology(path, OTHER)).build().graph
    for i, j in itertools.combinations(range(len(names)), 2):
        one, other = (f"node0.{name.lower() if name.startswith('GPU') else name}" for name in (names[i], names[j]))
        assert path_class(graph, one, other) == cell(i, j)


# --- in scenarios and topology files ----------------------------------------------------------------------------------

JOB = """
model: {layers: 8, hidden_size: 1024, heads: 16, ffn_hidden_size: 4096, vocab_size: 32000, sequence_length: 1024}
parallel: {tp: 8}
training: {global_batch: 48}
"""


def test_a_scenario_names_a_dump_with_parameters():
    cluster = "cluster: {topology: nccl_dgx_a100.xml, nodes: 2, fabric: {oversubscription: 2}, nic: {efficiency: 0.9}}"
    scenario = load_text(cluster + JOB, folder=INPUTS)
    assert scenario.gpus == 16
    assert scenario.cluster.built.graph["node0.mlx5_0"]["unit0.leaf0"]["efficiency"] == 0.9
    assert from_document(scenario.document()).cluster == scenario.cluster  # a file of its own
    assert load_text(cluster + JOB, ["cluster.nodes=3"], folder=INPUTS).gpus == 24


def test_a_scenario_names_one_dump_for_each_machine():
    scenario = load_text("cluster: {topology: [nccl_dgx_a100.xml, nccl_dgx_a100.xml]}" + JOB, folder=INPUTS)
    assert scenario.cluster.built.host_of == (0,) * 8 + (1,) * 8


def test_a_topology_file_imports(tmp_path):
    (tmp_path / "host.xml").write_text((INPUTS / "nccl_dgx_a100.xml").read_text())
    (tmp_path / "ours.yaml").write_text("kind: import\nname: ours\nfiles: host.xml\nnodes: 4\n")
    cluster = load_cluster(tmp_path / "ours.yaml")
    assert (cluster.name, len(cluster.gpus)) == ("ours", 32)
    assert len(load_cluster(tmp_path / "ours.yaml", [("nodes", 2)]).gpus) == 16
    (tmp_path / "job.yaml").write_text("name: x\ncluster: {topology: ./ours.yaml, nodes: 1}" + JOB)
    scenario = load_text((tmp_path / "job.yaml").read_text(), folder=tmp_path)
    assert scenario.gpus == 8


def test_a_file_alone_is_a_cluster():
    assert len(load_cluster(INPUTS / "nccl_dgx_a100.xml").gpus) == 8
    assert len(load_cluster(INPUTS / "smi_dgx_h100.txt", [("nodes", 2)]).gpus) == 16
