"""Fabrics and machines part by part: counts and capacities by formula, ways, presets, networks apart, bad documents."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import load_link_entry, load_presets
from simcluster.documents.catalogue.devices import device_names
from simcluster.documents.yaml_documents import DocumentUnion, parse_document, read_document, validate_document
from simcluster.scenario.document_resolution import load_cluster
from simcluster.studies.bench.cluster_measurement import measure_cluster
from simcluster.topology import AnyTopology, LinkSpec, RateSpec, parse_topology
from simcluster.topology.links import collective_network

SHIPPED = sorted((Path(__file__).parent.parent / "topologies").glob("*.yaml"))
FABRICS = ("fat_tree", "rail_optimised", "rail_only", "dragonfly_plus")
B = 25e9  # B/s of a port


def link(rate="100 GB/s", latency="1 us", efficiency=1.0):
    return {"line_rate": rate, "latency": latency, "efficiency": efficiency, "source": "test"}


def machine(gpus=4, **more):
    nics = [{"count": gpus, "link": link("25 GB/s", "6 us")}]
    return {"gpus": gpus, "nvlink": link("300 GB/s"), "pcie": link("32 GB/s"), "nics": nics, **more}


def document(nodes, fabric, of=None, **more):
    return {"kind": "machines", "device": "h100", "nodes": nodes, "machine": of or machine(), "fabric": fabric, **more}


def build(nodes, fabric, of=None, **more):
    return parse_topology(document(nodes, fabric, of, **more)).build()


def fabric_document(kind, per_unit=2):
    if kind == "dragonfly_plus":
        return dragonfly(nodes_per_leaf=1, leaves=per_unit, spines=1, links=60)
    return {"kind": kind, "nodes_per_unit": per_unit}


def dragonfly(nodes_per_leaf, leaves, spines, links, **more):
    sizes = {"nodes_per_leaf": nodes_per_leaf, "leaves_per_group": leaves, "spines_per_group": spines}
    return {"kind": "dragonfly_plus", **sizes, "global_links_per_spine": links, **more}


def kinds(cluster):
    return Counter(data.get("tier", data["kind"]) for _, data in cluster.graph.nodes(data=True))


def nodes_of(cluster, src, dst):
    return [cluster.gpus[src], *(cluster.links[i][1] for i in cluster.route(src, dst))]


def uplink_rate(cluster, switch, tier):
    above = cluster.graph.adj[switch].items()
    return sum(data["line_rate"] for node, data in above if cluster.graph.nodes[node].get("tier") == tier)


# --- trees ----------------------------------------------------------------------------------------------------------


@given(
    units=st.integers(1, 4),
    per_unit=st.integers(1, 4),
    gpus=st.integers(1, 4),
    oversubscription=st.sampled_from([1.0, 1.5, 2.0, 4.0]),
)
@settings(max_examples=40, deadline=None)
def test_two_level_trees_by_formula(units, per_unit, gpus, oversubscription):
    sizes = {"nodes_per_unit": per_unit, "oversubscription": oversubscription}
    tree = build(units * per_unit, {"kind": "fat_tree", **sizes}, machine(gpus))
    rails = build(units * per_unit, {"kind": "rail_optimised", **sizes}, machine(gpus))
    only = build(units * per_unit, {"kind": "rail_only", **sizes}, machine(gpus))
    ports = units * per_unit * gpus
    spines_of_tree = max(1, int(per_unit * gpus / oversubscription + 1e-9))
    spines_of_rail = max(1, int(per_unit / oversubscription + 1e-9))
    assert [kinds(cluster)["leaf"] for cluster in (tree, rails, only)] == [units, units * gpus, units * gpus]
    assert kinds(tree)["spine"] == (spines_of_tree if units > 1 else 0)
    assert kinds(rails)["spine"] == (spines_of_rail if units * gpus > 1 else 0)
    assert kinds(only)["spine"] == (spines_of_rail * gpus if units > 1 else 0)
    for cluster in (tree, rails, only):
        assert (len(cluster.gpus), kinds(cluster)["nic"]) == (ports, ports)
        ups = {leaf: uplink_rate(cluster, leaf, "spine") for leaf in cluster.graph if "leaf" in leaf}
        if kinds(cluster)["spine"]:
            assert sum(ups.values()) == pytest.approx(ports * B / oversubscription, rel=1e-12)
            assert len({round(rate) for rate in ups.values()}) == 1
        if units % 2 == 0:
            half = ports * B / 2 / oversubscription
            assert measure_cluster(cluster).bisection == pytest.approx(half, rel=1e-12)


@given(
    pods=st.integers(2, 4), units=st.integers(1, 3), per_unit=st.integers(1, 3), over=st.sampled_from([1.0, 2.0, 3.0])
)
@settings(max_examples=25, deadline=None)
def test_three_level_tree_by_formula(pods, units, per_unit, over):
    sizes = {"nodes_per_unit": per_unit, "units_per_pod": units, "spine_oversubscription": over}
    cluster = build(pods * units * per_unit, {"kind": "fat_tree", **sizes})
    spines = per_unit * 4  # as many as NICs on a leaf
    cores = max(1, int(units / over + 1e-9))
    expected = {"leaf": pods * units, "spine": pods * spines, "core": spines * cores}
    assert {tier: kinds(cluster)[tier] for tier in expected} == expected
    down = units * B
    for spine in (node for node in cluster.graph if "spine" in node):
        assert uplink_rate(cluster, spine, "leaf") == pytest.approx(down, rel=1e-12)
        assert uplink_rate(cluster, spine, "core") == pytest.approx(down / over, rel=1e-12)
    assert dict(measure_cluster(cluster).oversubscription) == pytest.approx({"leaf": 1.0, "spine": over}, rel=1e-12)
    if pods % 2 == 0:
        expected_bisection = pods / 2 * units * per_unit * 4 * B / over
        assert measure_cluster(cluster).bisection == pytest.approx(expected_bisection, rel=1e-12)


def test_between_pods_a_route_has_two_links_more_than_inside_one():
    cluster = build(8, {"kind": "fat_tree", "nodes_per_unit": 2, "units_per_pod": 2})
    assert [len(cluster.route(0, machine * 4)) for machine in (1, 2, 4)] == [4, 6, 8]
    across = [node.split(".")[0][:4] for node in nodes_of(cluster, 0, 16)]
    assert across == ["node", "node", "leaf", "pod0", "core", "pod1", "leaf", "node", "node"]


def test_a_cable_of_its_own_kind_between_switches():
    faster = {"line_rate": "100 GB/s", "latency": "2 us", "efficiency": 0.5}
    cluster = build(8, {"kind": "fat_tree", "nodes_per_unit": 4, "leaf_to_spine": faster})
    data = cluster.graph["leaf0"]["spine0"]
    assert kinds(cluster)["spine"] == 4  # 16 ports of 25 GB/s are 4 cables of 100 GB/s
    assert (data["line_rate"], data["efficiency"], data["latency"]) == (100e9, 0.5, 2e-6)


# --- rails ----------------------------------------------------------------------------------------------------------


def test_rail_only_goes_to_another_rail_by_nvlink_first():
    cluster = build(4, {"kind": "rail_only", "nodes_per_unit": 2})
    assert nodes_of(cluster, 0, 4) == ["node0.gpu0", "node0.nic0", "unit0.leaf0", "node1.nic0", "node1.gpu0"]
    relayed = nodes_of(cluster, 0, 14)  # rail 2 of the other unit
    assert relayed[:5] == ["node0.gpu0", "node0.nvswitch", "node0.gpu2", "node0.nic2", "unit0.leaf2"]
    assert relayed[5].startswith("rail2.spine")
    assert relayed[6:] == ["unit1.leaf2", "node3.nic2", "node3.gpu2"]


def test_rail_only_without_nvlink_crosses_the_host_bridge():
    of = machine(nvlink=None, gpus_per_pcie_switch=1, host={"count": 1})
    cluster = build(2, {"kind": "rail_only", "nodes_per_unit": 2}, of)
    way = nodes_of(cluster, 0, 6)
    assert "node0.host0" in way or "node1.host0" in way
    assert not set(way[1:-1]) & set(cluster.gpus)


def test_rail_only_without_a_way_between_rails_is_an_error():
    with pytest.raises(InputError, match="cannot reach"):
        build(2, {"kind": "rail_only", "nodes_per_unit": 2}, machine(nvlink=None))


# --- dragonfly+ -----------------------------------------------------------------------------------------------------


@given(
    groups=st.integers(1, 6),
    leaves=st.integers(1, 3),
    spines=st.integers(1, 4),
    per_leaf=st.integers(1, 2),
    each=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_dragonfly_by_formula(groups, leaves, spines, per_leaf, each):
    links = each * max(1, groups - 1)  # per spine: divides among the other groups
    cluster = build(
        groups * leaves * per_leaf, dragonfly(per_leaf, leaves, spines, links, spine_to_spine={"line_rate": "25 GB/s"})
    )
    assert (kinds(cluster)["leaf"], kinds(cluster)["spine"]) == (groups * leaves, groups * spines)
    over = [(a, b, d) for a, b, d in cluster.graph.edges(data=True) if "spine" in a and "spine" in b]
    between = Counter()
    out_of = Counter()
    for a, b, data in over:
        pair = tuple(sorted({a.split(".")[0], b.split(".")[0]}))
        assert len(pair) == 2
        between[pair] += data["line_rate"] / 2  # both directions are in the graph
        out_of[a] += data["line_rate"]
    pairs = groups * (groups - 1) // 2
    assert len(between) == pairs
    assert set(between.values()) <= {spines * each * B}
    assert set(out_of.values()) <= {links * B}
    if groups % 2 == 0:
        cut = (groups / 2) ** 2 * spines * each * B
        ports = groups / 2 * leaves * per_leaf * 4 * B
        assert measure_cluster(cluster).bisection <= min(cut * 2, ports) * (
            1 + 1e-9
        )  # a detour uses a second global link
        assert measure_cluster(cluster).bisection >= min(cut, ports) * (1 - 1e-9)


def test_dragonfly_route_takes_one_global_link():
    cluster = build(12, dragonfly(1, 2, 2, 5))
    for src, dst in itertools.product(range(0, 48, 4), repeat=2):
        groups = [node.split(".")[0] for node in nodes_of(cluster, src, dst) if node.startswith("group")]
        assert len(list(itertools.groupby(groups))) <= 2
    assert dict(measure_cluster(cluster).oversubscription) == pytest.approx({"leaf": 1.0, "spine across": 0.4})


# --- machines -------------------------------------------------------------------------------------------------------

TREE = {"kind": "fat_tree", "nodes_per_unit": 4}


def test_gpu_and_nic_under_one_pcie_switch_do_not_cross_the_host_bridge():
    of = machine(
        gpus_per_pcie_switch=2, host={"count": 2, "between": link("20 GB/s")}, nics=[{"count": 2, "link": link()}]
    )
    cluster = build(2, TREE, of)
    expected = {"gpu": 8, "nvswitch": 2, "pcie": 4, "host": 4, "nic": 4, "leaf": 1}
    assert kinds(cluster) == Counter(expected)
    way = ["node0.gpu2", "node0.pcie1", "node0.nic1", "leaf0", "node1.nic1", "node1.pcie1", "node1.gpu3"]
    assert nodes_of(cluster, 2, 7) == way
    assert nodes_of(cluster, 2, 3) == ["node0.gpu2", "node0.nvswitch", "node0.gpu3"]  # as short by PCIe, but slower
    assert [cluster.exit_nics(gpu) for gpu in range(4)] == [("node0.nic0",)] * 2 + [("node0.nic1",)] * 2


def test_without_nvlink_gpus_cross_bridges_and_sockets():
    of = machine(
        nvlink=None, gpus_per_pcie_switch=1, host={"count": 2, "upstream": link("16 GB/s"), "between": link("10 GB/s")}
    )
    cluster = build(1, TREE, of)
    assert nodes_of(cluster, 0, 1) == ["node0.gpu0", "node0.pcie0", "node0.host0", "node0.pcie1", "node0.gpu1"]
    assert nodes_of(cluster, 0, 3)[2:4] == ["node0.host0", "node0.host1"]
    assert cluster.path_bandwidth(cluster.route(0, 1)) == 16e9
    assert cluster.path_bandwidth(cluster.route(0, 3)) == 10e9


@pytest.mark.parametrize(("count", "own"), [(1, 4), (2, 2), (4, 1), (8, 1), (12, 1)])
def test_nics_spread_evenly_over_gpus(count, own):
    of = machine(nics=[{"count": count, "link": link("25 GB/s")}])
    cluster = build(1, TREE, of)
    sharing = Counter(nic for gpu in range(4) for nic in cluster.exit_nics(gpu))
    assert len(sharing) == count
    assert set(sharing.values()) == {own}
    assert {len(cluster.exit_nics(gpu)) for gpu in range(4)} == {max(1, count // 4)}
    assert measure_cluster(cluster).nics_per_gpu == count / 4


def test_a_striped_nic_is_as_fast_as_its_ports():
    nics = [{"count": 4, "ports": 4, "slots": 2, "link": link("12.5 GB/s", efficiency=0.9)}]
    cluster = build(2, TREE, machine(nics=nics, gpus_per_pcie_switch=1))
    graph = cluster.graph
    assert graph["node0.nic0"]["leaf0"]["line_rate"] == 50e9
    assert graph["node0.nic0"]["leaf0"]["bandwidth"] == 45e9
    assert graph["node0.pcie0"]["node0.nic0"]["line_rate"] == 64e9
    assert measure_cluster(cluster).nics == 16


def test_mixed_nics_each_have_their_speed():
    nics = [{"count": 4, "link": link("50 GB/s")}, {"count": 4, "link": link("25 GB/s")}]
    cluster = build(4, {"kind": "rail_optimised", "nodes_per_unit": 2}, machine(nics=nics))
    graph = cluster.graph
    assert [graph[f"node0.nic{i}"][f"unit0.leaf{i}"]["line_rate"] for i in (0, 3, 4, 7)] == [50e9, 50e9, 25e9, 25e9]
    assert [uplink_rate(cluster, f"unit0.leaf{i}", "spine") for i in (0, 7)] == [100e9, 50e9]
    assert measure_cluster(cluster).outside == 57e9  # 25 GB/s, and of 50 GB/s the 32 of its PCIe link


def test_two_groups_of_few_nics_take_turns():
    nics = [{"count": 2, "link": link("50 GB/s")}, {"count": 2, "link": link("25 GB/s")}]
    cluster = build(1, TREE, machine(nics=nics, gpus_per_pcie_switch=1))
    assert [cluster.exit_nics(gpu) for gpu in range(4)] == [(f"node0.nic{i}",) for i in (0, 2, 1, 3)]


def test_planes_never_meet():
    nics = [{"count": 4, "link": link("25 GB/s"), "plane": plane} for plane in (0, 1)]
    cluster = build(4, {"kind": "fat_tree", "nodes_per_unit": 2}, machine(nics=nics))
    assert kinds(cluster)["leaf"] == 4
    switches = {node for node, data in cluster.graph.nodes(data=True) if data["kind"] == "switch"}
    assert {tuple(sorted({a[:6], b[:6]})) for a, b in cluster.links if {a, b} <= switches} == {("plane0",), ("plane1",)}
    assert measure_cluster(cluster).bisection == 8 * 2 * B


# --- racks ----------------------------------------------------------------------------------------------------------


@given(racks=st.integers(1, 3), trays=st.integers(2, 6), gpus=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_a_rack_of_trays_is_one_nvlink_domain(racks, trays, gpus):
    cluster = build(racks, {"kind": "rail_optimised", "nodes_per_unit": 2}, machine(gpus, trays=trays))
    size = trays * gpus
    assert kinds(cluster)["nvswitch"] == racks
    assert cluster.host_of == tuple(i // size for i in range(racks * size))
    trays_of = [cluster.graph.nodes[gpu]["tray"] for gpu in cluster.gpus]
    assert trays_of == [i % size // gpus for i in range(racks * size)]
    assert nodes_of(cluster, 0, size - 1) == [cluster.gpus[0], "rack0.nvswitch", cluster.gpus[size - 1]]
    assert kinds(cluster)["leaf"] == -(-racks // 2) * gpus  # a rail for each place in a tray


def test_gb200_nvl72():
    cluster = load_cluster("gb200_nvl72", [("nodes", 2)])
    report = measure_cluster(cluster)
    assert (report.gpus, report.machines, report.nics, report.rails) == (144, 2, 72, 4)
    assert report.inside == pytest.approx(721.8e9)
    assert report.outside == 48e9
    assert measure_cluster(load_cluster("gb200_nvl72", [])).bisection == pytest.approx(36 * 721.8e9)
    assert dict(report.nodes)["host"] == 2 * 36


# --- second networks ------------------------------------------------------------------------------------------------

STORAGE = {"count": 2, "link": link("12.5 GB/s"), "network": "storage", "at": "host"}


@pytest.mark.parametrize("kind", FABRICS)
def test_collectives_do_not_use_another_network(kind):
    of = machine(host={"count": 2, "between": link()}, gpus_per_pcie_switch=2)
    plain = build(4, fabric_document(kind), of)
    both = build(
        4,
        fabric_document(kind),
        {**of, "nics": [*of["nics"], STORAGE]},
        other_networks={"storage": {"kind": "fat_tree", "nodes_per_unit": 2, "oversubscription": 2}},
    )
    for src, dst in itertools.product(range(16), repeat=2):
        assert nodes_of(plain, src, dst) == nodes_of(both, src, dst)
    names = [node for node in both.graph if "storage" in node]
    assert Counter(both.graph.nodes[node]["kind"] for node in names) == {"nic": 8, "switch": 4}
    assert list(collective_network(both.graph)) == list(plain.graph)
    mine, theirs = measure_cluster(plain), measure_cluster(both)
    assert (mine.bisection, mine.nodes, mine.links) == (theirs.bisection, theirs.nodes, theirs.links)
    (network,) = theirs.networks
    assert (network.name, network.per_machine, network.bisection) == ("storage", 25e9, 25e9)
    assert network.oversubscription == (("leaf", 2.0),)


def test_another_network_of_an_explicit_graph():
    node = [("a", "gpu"), ("b", "gpu"), ("s", "switch"), ("t", "switch"), ("n", "nic")]
    nodes = [{"name": name, "kind": kind, **({"network": "storage"} if name in "tn" else {})} for name, kind in node]
    pairs = [("a", "s"), ("b", "s"), ("a", "n"), ("b", "n"), ("n", "t")]
    edges = [{"between": list(pair), **link()} for pair in pairs]
    cluster = parse_topology({"kind": "graph", "device": "h100", "nodes": nodes, "edges": edges}).build()
    assert nodes_of(cluster, 0, 1) == ["a", "s", "b"]
    assert [network.name for network in measure_cluster(cluster).networks] == ["storage"]
    nodes[0]["network"] = "storage"
    with pytest.raises(ValidationError, match="only nic and switch have a network; remove network 'storage'"):
        parse_topology({"kind": "graph", "device": "h100", "nodes": nodes, "edges": edges})


# --- routes on all of them ------------------------------------------------------------------------------------------


@given(
    kind=st.sampled_from(FABRICS),
    nodes=st.integers(1, 3).map(lambda n: 2 * n),
    per_switch=st.sampled_from([None, 1, 2]),
    nics=st.sampled_from([1, 2, 4, 8]),
    trays=st.sampled_from([1, 2]),
)
@settings(max_examples=40, deadline=None)
def test_every_gpu_reaches_every_other_one(kind, nodes, per_switch, nics, trays):
    host = {"count": 2, "between": link("20 GB/s")} if per_switch else None
    of = machine(
        4, trays=trays, gpus_per_pcie_switch=per_switch, host=host, nics=[{"count": nics, "link": link("25 GB/s")}]
    )
    cluster = build(nodes, fabric_document(kind), of)
    gpus = set(cluster.gpus)
    for src, dst in itertools.product(range(0, len(cluster.gpus), 3), repeat=2):
        way = nodes_of(cluster, src, dst)
        assert [cluster.links[i] for i in cluster.route(src, dst)] == list(itertools.pairwise(way))
        assert (way[0], way[-1]) == (cluster.gpus[src], cluster.gpus[dst])
        assert len(set(way)) == len(way)
        relays = [node for node in way[1:-1] if node in gpus]
        assert all(cluster.graph.nodes[node]["host"] == cluster.host_of[src] for node in relays)
        assert len(relays) <= (kind == "rail_only")
        if cluster.host_of[src] == cluster.host_of[dst]:
            assert len(way) <= 3


# --- presets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", load_presets("links.yaml"))
def test_every_preset_is_a_link_with_its_source(name):
    spec = TypeAdapter(LinkSpec).validate_python({"preset": name})
    assert spec.line_rate > 1e9
    assert spec.medium in ("nvlink", "pcie", "infiniband", "ethernet")
    assert len(spec.source) > 20
    without = "assumed" in spec.source or "payload" in spec.source or "NCCL" in spec.source
    assert without, "an efficiency or latency without a source says that it is assumed"


def test_what_is_written_beside_a_preset_wins():
    spec = LinkSpec.model_validate({"preset": "ndr", "efficiency": 0.5, "latency": "3 us"})
    assert (spec.line_rate, spec.efficiency, spec.latency, spec.medium) == (50e9, 0.5, 3e-6, "infiniband")
    assert RateSpec.model_validate({"preset": "roce-400g"}).line_rate == 50e9  # no latency: not a key of a rate
    assert load_link_entry("ndr")["line_rate"] == "400 Gbit/s"
    assert parse_topology({**document(2, TREE), "machine": machine(pcie={"preset": "pcie5-x16"})}).build()


def test_a_dump_of_a_document_with_presets_is_the_same_cluster():
    spec = parse_topology(document(2, TREE, machine(nvlink={"preset": "nvlink4"})))
    again = parse_topology(spec.model_dump(mode="json"))
    assert again == spec


# --- bad documents --------------------------------------------------------------------------------------------------


def nic(**more):
    return {"count": 4, "link": link(), **more}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"machine": machine(nics=[])}, "machine.nics: has no entry; add at least one group"),
        ({"machine": machine(nics=[nic(ports=0)])}, "^x.yaml: machine.nics.0.ports: [^\n]*$"),
        ({"machine": machine(pcie={"preset": "ndrr"})}, "no link preset 'ndrr'; did you mean 'ndr'"),
        ({"machine": machine(pcie=link("0 GB/s"))}, "machine.pcie.line_rate: '0 GB/s' must be greater than zero"),
        ({"machine": machine(pcie=link("-5 GB/s"))}, "machine.pcie.line_rate: '-5 GB/s' must be greater than zero"),
        ({"machine": machine(gpus_per_pcie_switch=3)}, "gpus_per_pcie_switch: 4 GPUs are not divisible by 3 .*1, 2, 4"),
        ({"machine": machine(nics=[nic(count=3)])}, "nics.0.count: 3 NICs do not spread evenly over 4 GPUs"),
        ({"machine": machine(nics=[nic(at="pcie")])}, "nics.0.at: the node has no PCIe switches .* add gpus_per"),
        ({"machine": machine(nics=[nic(at="host")])}, "nics.0.at: the node has no host bridges .* add host"),
        ({"machine": machine(trays=2, nvlink=None)}, "machine.trays: 2 trays form one node only by NVLink"),
        ({"machine": machine(host={"count": 2})}, "2 host bridges need a link to each other"),
        ({"machine": machine(nics=[nic(), nic(network="storage")])}, "nics.1.network: network 'storage' has no fabric"),
        ({"machine": machine(nics=[nic(network="storage")])}, "no NIC is on the compute network"),
        ({"other_networks": {"storage": TREE}}, "other_networks.storage: no NIC is on this network"),
        ({"fabric": {**TREE, "oversubscription": 0}}, "oversubscription is 0"),
        ({"fabric": {**TREE, "spine_oversubscription": 2}}, "need pods: add units_per_pod"),
        ({"fabric": {"kind": "torus"}}, "torus"),
        ({"fabric": {**TREE, "nodes_per_unit": 0}}, "nodes_per_unit"),
        (
            {"fabric": dragonfly(1, 2, 2, 2), "nodes": 5},
            "5 nodes do not fill whole groups of .* = 2 nodes; use 4 or 6 nodes",
        ),
        (
            {"fabric": dragonfly(1, 2, 2, 1), "nodes": 12},
            "global_links_per_spine: .* 2 spines x 1 global links per spine = 2 links must be a multiple of 5, .*use 5",
        ),
        ({"nodes": 500_001}, "2,000,004 GPUs; at most 2,000,000"),
        ({"nodes": 10**9}, "4,000,000,000 GPUs; at most 2,000,000"),
        ({"machine": machine(gpus=4, nics=[nic(count=2000)])}, "nics.0.count"),
    ],
)
def test_a_wrong_document_is_one_clear_error(change, message):
    text = parse_document("kind: machines", source="x.yaml")
    changed = type(text)({**document(4, TREE), **change}, "x.yaml", text.folder)
    with pytest.raises(InputError, match=message) as caught:
        validate_document(DocumentUnion(AnyTopology), changed)
    assert len(str(caught.value).splitlines()) <= 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"fabric": {**TREE, "leaf_to_spine": {"line_rate": "1 bit/s"}}, "nodes": 8},
        {"fabric": {**TREE, "units_per_pod": 1, "spine_to_core": {"line_rate": "1 bit/s"}}, "nodes": 8},
        {"fabric": dragonfly(1, 1, 1000, 2000), "nodes": 3},
        {"machine": machine(1, nics=[nic(count=1000)]), "nodes": 8000},
    ],
)
def test_links_beyond_reason_are_refused_before_they_take_the_memory(wrong):
    with pytest.raises(InputError, match="at most 4,000,000 per kind"):
        parse_topology({**document(4, TREE), **wrong}).build()


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "flat", "gpus": 2_000_001, "link": {"line_rate": "1 GB/s"}, "path_latency": "1 us"},
        {
            "kind": "leaf_spine",
            "leaves": 6000,
            "gpus_per_leaf": 600,
            "spines": 1,
            "link": {"line_rate": "1 GB/s"},
            "uplink": {"line_rate": "1 GB/s"},
            "path_latency": "1 us",
        },
    ],
)
def test_old_kinds_are_capped_too(wrong):
    with pytest.raises(ValidationError, match="GPUs; at most 2,000,000"):
        parse_topology({"device": "h100", **wrong})


# --- shipped files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_files_name_a_device_and_draw(path):
    from simcluster.plots import topology

    data = read_document(path).data
    assert data["device"] in device_names()
    assert path.read_text().startswith("# ")
    figure = topology(load_cluster(path, []))
    assert sum(len(ax.lines) + len(ax.patches) for ax in figure.axes) < 250


@pytest.mark.parametrize(
    ("name", "gpus", "line_rate", "ports"),
    [
        ("aws_p4d", 8, 400e9, 4),
        ("aws_p5", 8, 3200e9, 32),
        ("aws_p5en", 8, 3200e9, 16),
        ("azure_nd_h100_v5", 8, 3200e9, 8),
        ("gcp_a3_mega", 8, 1600e9, 8),
        ("oci_bm_gpu_b4_8", 8, 1600e9, 16),
        ("oci_bm_gpu_h100_8", 8, 3200e9, 16),
        ("dgx_b200", 8, 3200e9, 8),
        ("gb200_nvl72", 72, 72 * 400e9, 72),
        ("dgx_b300", 8, 6400e9, 8),
        ("gb300_nvl72", 72, 72 * 800e9, 72),
        ("vera_rubin_nvl72", 72, 72 * 1600e9, 144),
        ("mi355x_8", 8, 3200e9, 8),
        ("multi_plane_h800", 8, 3200e9, 8),
        ("dual_plane_h100", 8, 3200e9, 16),
    ],
)
def test_cloud_shapes_have_the_bits_that_are_sold(name, gpus, line_rate, ports):
    cluster = load_cluster(name, [("nodes", 1)])
    report = measure_cluster(cluster)
    assert (report.gpus, report.nics) == (gpus, ports)
    out = sum(g.count * g.line_rate for g in report.links if g.ends == "nic - leaf")
    assert out * 8 == pytest.approx(line_rate)


@pytest.mark.parametrize(
    ("name", "planes", "plane_of"),
    [
        ("multi_plane_h800", 8, lambda nic: nic % 8),  # NIC i of each node
        ("dual_plane_h100", 2, lambda nic: nic // 8),  # 8 ports of each, those of plane 0 first
    ],
)
def test_shipped_planes_meet_in_nodes_only(name, planes, plane_of):
    """NICs and switches alone fall apart into one network for each plane, which has one port of each of its NICs."""
    cluster = load_cluster(name, [("nodes", 70)])  # more nodes than a leaf or a unit takes
    graph = cluster.graph
    fabric = [node for node, data in graph.nodes(data=True) if data["kind"] in ("nic", "switch")]
    parts = list(nx.weakly_connected_components(graph.subgraph(fabric)))
    assert len(parts) == planes
    for part in parts:
        numbers = [int(node.rpartition("nic")[2]) for node in part if graph.nodes[node]["kind"] == "nic"]
        assert len({plane_of(number) for number in numbers}) == 1
        assert len(numbers) == 70 * len(set(numbers))
    far = len(cluster.gpus) - 8
    assert not any("nvswitch" in node for node in nodes_of(cluster, 0, far))
    across = [node for node in nodes_of(cluster, 0, far + 1) if "nvswitch" in node]
    assert len(across) == (1 if name == "multi_plane_h800" else 0)  # to another plane, by the node's own NVLink


def test_vera_rubin_nvl72():
    """Totals of the rack, as NVIDIA announces them: 260 TB/s of NVLink 6, 65 TB/s of NVLink-C2C (both ways)."""
    links = {group.ends: group for group in measure_cluster(load_cluster("vera_rubin_nvl72", [])).links}
    both_ways = {ends: 2 * group.count * group.line_rate for ends, group in links.items()}
    assert both_ways["gpu - nvswitch"] == pytest.approx(260e12, rel=0.01)
    assert both_ways["gpu - host"] == pytest.approx(65e12, rel=0.01)
