"""Routes of many flows at once are those of the flows one by one; so are the pictures of many groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simcluster import load_cluster
from simcluster.collectives import ALGORITHMS, Group
from simcluster.collectives.description import HopList
from simcluster.collectives.tree import DoubleTreeHops
from simcluster.symmetry.quotient import group_layout_numbers
from simcluster.topology import Cluster
from simcluster.topology.regular_wiring import PROVED, RegularWiring
from simcluster.topology.wiring import Wiring
from simcluster.traffic.link_usage import batch_link_usage, link_usage_one_by_one
from simcluster.traffic.traffic import link_patterns, make_group

CLUSTERS: list[tuple[str, dict[str, Any]]] = [
    ("dgx_h100", {"nodes": 70}),
    ("dgx_h100", {"nodes": 70, "routing": {"kind": "ecmp", "queue_pairs": 2}}),
    ("dgx_h100", {"nodes": 70, "routing": {"kind": "static"}}),
    ("dgx_h100", {"nodes": 70, "routing": {"kind": "static", "pxn": True}}),
    ("fat_tree_3level", {"routing": {"kind": "ecmp"}}),
    ("rail_only", {}),
    ("mixed_nics", {}),
    ("dragonfly_plus", {}),
    ("gb200_nvl72", {}),
    ("pcie_ethernet", {}),
    ("two_nodes_explicit", {}),
    ("dgx_h100", {"nodes": 70, "fabric": {"nodes_per_unit": 24, "units_per_pod": 2, "oversubscription": 2.0}}),
]


def made(name: str, changes: dict[str, Any]) -> Cluster:
    return load_cluster(name, list(changes.items()))


@pytest.mark.parametrize(("name", "changes"), CLUSTERS)
def test_routes_of_many_flows_are_those_of_each(name: str, changes: dict[str, Any]) -> None:
    cluster = made(name, changes)
    random = np.random.default_rng(3)
    src, dst = random.integers(0, len(cluster.gpus), (2, 150))
    number = random.integers(0, 3, 150)
    flow, link, fraction, latency = cluster.route_rows(src, dst, number)
    assert (np.diff(flow) >= 0).all()
    for place in range(150):
        spread = cluster.spread_route(int(src[place]), int(dst[place]), int(number[place]))
        found: dict[int, float] = {}
        wanted: dict[int, float] = {}
        there = flow == place
        for which, part in zip(link[there].tolist(), fraction[there].tolist(), strict=True):
            found[which] = found.get(which, 0.0) + part
        for which, part in spread:
            wanted[which] = wanted.get(which, 0.0) + part
        assert found == wanted
        assert latency[place] == pytest.approx(cluster.mean_route_latency(spread), rel=1e-15)


@pytest.mark.parametrize(("name", "changes"), [*CLUSTERS[:1], *CLUSTERS[4:8], ("two_sites_h100", {})])
def test_links_are_named_without_a_graph_as_in_one(name: str, changes: dict[str, Any]) -> None:
    cluster = made(name, changes)
    some = np.random.default_rng(7).permutation(len(cluster.capacity))[:400]
    ends, (number, kinds) = cluster.link_names(some), cluster.link_kinds(some)
    assert ("graph" in vars(cluster.wiring)) is not isinstance(cluster.wiring, RegularWiring)
    assert ends == [cluster.links[link] for link in some.tolist()]
    meant, kinds_meant = Wiring.link_kinds(cluster.wiring, some)  # from the graph
    assert [kinds[each] for each in number.tolist()] == [kinds_meant[each] for each in meant.tolist()]
    assert len(set(kinds)) == len(kinds) == len(kinds_meant)


@pytest.mark.parametrize("name", ["dgx_h100", "pcie_ethernet", "mixed_nics"])
@pytest.mark.parametrize(
    ("kind", "algorithm"), [("all_reduce", "ring"), ("all_reduce", "tree"), ("all_gather", "ring"), ("send", "direct")]
)
def test_a_picture_of_many_groups_is_that_of_each(name: str, kind: str, algorithm: str) -> None:
    cluster = made(name, {"nodes": 4})
    width = len(cluster.gpus) // 4
    grid = np.arange(len(cluster.gpus)).reshape(4, width)
    table = grid.T.copy() if kind != "send" else grid[:2].T.copy()
    layout = group_layout_numbers(cluster, table)
    table = table[layout == layout[0]]
    phases = ALGORITHMS[kind][algorithm](make_group(cluster, table[0].tolist()))
    together = batch_link_usage(cluster, table, phases)
    parts = link_usage_one_by_one(cluster, table, phases) if together is None else together
    for number, ranks in enumerate(table.tolist()):
        alone = link_patterns(cluster, ranks, ALGORITHMS[kind][algorithm](make_group(cluster, ranks)))
        assert [(part.share, part.rounds, part.latency[number]) for part in parts] == [
            (each.share, each.rounds, each.latency) for each in alone
        ]
        for part, each in zip(parts, alone, strict=True):
            own = part.groups == number
            assert tuple(zip(part.links[own].tolist(), part.flows[own].tolist(), strict=True)) == each.usage


def test_trees_over_equal_machines_are_those_along_their_rings() -> None:
    """Of many ranks whose NICs have numbers the machines are not looked at one by one."""
    numbered = make_group(made("dgx_h100", {"nodes": 65}), range(65 * 8))
    named = Group(tuple(numbered.hosts), tuple(numbered.nics[:]), tuple(numbered.nvswitches[:]))
    for one, other in zip(*(ALGORITHMS["all_reduce"]["tree"](group) for group in (numbered, named)), strict=True):
        assert isinstance(one.hops, DoubleTreeHops)
        assert isinstance(other.hops, HopList)
        assert list(one.hops) == list(other.hops)
        assert one.hops[5] == other.hops[5]
        assert one.hops[-1] == other.hops[-1]
        assert (one.rounds, one.chunks, one.reduces) == (other.rounds, other.chunks, other.reduces)


@pytest.mark.parametrize("without", ["adaptive", "latency"])
def test_what_is_not_proved_for_regular_clusters_is_routed_in_the_graph(
    without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = made("dgx_h100", {"nodes": 3})
    assert isinstance(known.wiring, RegularWiring)
    monkeypatch.setattr(
        "simcluster.topology.regular_wiring.PROVED", {name: kinds - {without} for name, kinds in PROVED.items()}
    )
    found = made("dgx_h100", {"nodes": 4})  # no cluster that was kept
    assert not isinstance(found.wiring, RegularWiring)
