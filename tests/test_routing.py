"""Routing policies: every path is a shortest one, bytes are conserved at every node, hashes collide as balls do."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Table, Tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from test_loads import collective_loads

from simcluster.base.errors import InputError
from simcluster.scenario.document_resolution import load_cluster
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.studies.bench.collective import collective_times, concurrent_collective_times
from simcluster.topology import Cluster, parse_topology
from simcluster.topology.policies import mix_bits

NVLINK = {"line_rate": "450 GB/s", "latency": "1.7 us"}
PCIE = {"line_rate": "64 GB/s", "latency": "1 us"}
NIC = {"line_rate": "50 GB/s", "latency": "5 us"}
POLICIES: list[dict[str, Any]] = [
    {"kind": "shortest"},
    {"kind": "static"},
    {"kind": "ecmp", "seed": 3},
    {"kind": "ecmp", "seed": 3, "queue_pairs": 7},
    {"kind": "adaptive"},
]


def leaf_spine(
    spines: int, routing: dict[str, Any], *, leaves: int = 2, ports: int = 32, uplink: float = 50
) -> Cluster:
    document = {
        "kind": "leaf_spine", "device": "h100", "leaves": leaves, "gpus_per_leaf": ports, "spines": spines,
        "link": {"line_rate": "50 GB/s"}, "uplink": {"line_rate": f"{uplink} GB/s"}, "path_latency": "4 us",
        "routing": routing,
    }  # fmt: skip
    return parse_topology(document).build()


def dgx_document(routing: dict[str, Any], **fabric: Any) -> dict[str, Any]:
    return {
        "kind": "dgx", "device": "h100", "nodes": 6, "gpus_per_node": 4, "nvlink": NVLINK, "pcie": PCIE, "nic": NIC,
        "fabric": {"nodes_per_unit": 3, **fabric}, "routing": routing,
    }  # fmt: skip


def dgx(routing: dict[str, Any], **fabric: Any) -> Cluster:
    return parse_topology(dgx_document(routing, **fabric)).build()


def rail_only(routing: dict[str, Any]) -> Cluster:
    document = {
        "kind": "machines", "device": "h100", "nodes": 4, "fabric": {"kind": "rail_only", "nodes_per_unit": 2},
        "machine": {"gpus": 4, "nvlink": NVLINK, "pcie": PCIE, "nics": [{"count": 4, "link": NIC}]},
        "routing": routing,
    }  # fmt: skip
    return parse_topology(document).build()


def pcie_box(routing: dict[str, Any]) -> Cluster:
    document = {
        "kind": "pcie_box", "device": "h100", "nodes": 4, "gpus_per_node": 4, "gpus_per_pcie_switch": 2,
        "nics_per_node": 2, "pcie": PCIE, "nic": NIC, "fabric": {"nodes_per_unit": 2, "oversubscription": 2.0 / 3},
        "routing": routing,
    }  # fmt: skip
    return parse_topology(document).build()


MAKERS = {
    "leaf_spine": lambda routing: leaf_spine(6, routing, leaves=3, ports=4),
    "dgx": dgx,
    "pods": lambda routing: dgx(routing, nodes_per_unit=1, units_per_pod=2, oversubscription=1.5),
    "pcie_box": pcie_box,
}


def nodes_of(cluster: Cluster, links: tuple[int, ...], src: int) -> list[str]:
    return [cluster.gpus[src], *(cluster.links[link][1] for link in links)]


# --- every policy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pxn", [None, True])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: "-".join(map(str, policy.values())))
@pytest.mark.parametrize("maker", MAKERS)
def test_what_enters_a_node_leaves_it(maker: str, policy: dict[str, Any], pxn: bool | None) -> None:
    """To the bit, for some flows of every fifth GPU, so of all places in a machine, to every GPU; and each byte crosses
    as many links as a shortest path has."""
    cluster = MAKERS[maker]({**policy, "pxn": pxn})
    static = MAKERS[maker]({"kind": "static", "pxn": pxn})
    for src, dst, flow in itertools.product(range(0, len(cluster.gpus), 5), range(len(cluster.gpus)), (0, 5)):
        spread = cluster.spread_route(src, dst, flow)
        balance: Counter[str] = Counter()
        for link, fraction in spread:
            assert 0 < fraction <= 1
            a, b = cluster.links[link]
            balance[a] -= fraction  # type: ignore[assignment]
            balance[b] += fraction  # type: ignore[assignment]
        ends = {cluster.gpus[src]: -1.0, cluster.gpus[dst]: 1.0} if src != dst else {}
        assert {node: flows for node, flows in balance.items() if flows} == ends
        assert len(dict(spread)) == len(spread)
        assert sum(fraction for _, fraction in spread) == len(static.route(src, dst))
        assert cluster.mean_route_latency(spread) == pytest.approx(
            static.path_latency(static.route(src, dst)), rel=1e-12
        )


@pytest.mark.parametrize("policy", POLICIES[:4], ids=lambda policy: "-".join(map(str, policy.values())))
def test_a_route_is_a_path_and_part_of_the_spread(policy: dict[str, Any]) -> None:
    cluster = dgx(policy)
    for src, dst in itertools.product(range(24), repeat=2):
        route = cluster.route(src, dst)
        path = nodes_of(cluster, route, src)
        assert [cluster.links[link] for link in route] == list(itertools.pairwise(path))
        assert path[-1] == cluster.gpus[dst]
        assert set(route) <= set(dict(cluster.spread_route(src, dst)))
        if policy.get("queue_pairs", 1) == 1:
            assert cluster.spread_route(src, dst) == tuple((link, 1.0) for link in route)


def test_the_default_is_static_and_shortest_takes_the_first() -> None:
    static, shortest = leaf_spine(8, {"kind": "static"}), leaf_spine(8, {"kind": "shortest"})
    assert leaf_spine(8, {"kind": "static"}).route(0, 37) == static.route(0, 37)
    for dst in range(32, 64):
        assert nodes_of(static, static.route(0, dst), 0)[2] == f"spine{dst % 8}"
        assert nodes_of(shortest, shortest.route(0, dst), 0)[2] == "spine0"
    document = {"kind": "flat", "device": "h100", "gpus": 2, "link": {"line_rate": "1 GB/s"}, "path_latency": "1 us"}
    assert parse_topology(document).routing.kind == "static"


@pytest.mark.parametrize(
    "policy", [*POLICIES, {"kind": "static", "pxn": True}], ids=lambda policy: "-".join(map(str, policy.values()))
)
@pytest.mark.parametrize("maker", [*MAKERS, "rail_only"])
def test_many_flows_together_are_the_sum_of_each(maker: str, policy: dict[str, Any]) -> None:
    """``routes`` is a shortcut and nothing else: the same links, weights and longest latency as flow by flow."""
    cluster = {**MAKERS, "rail_only": rail_only}[maker](policy)
    many = len(cluster.gpus)
    pairs = [(src, dst) for src in range(many) for dst in range(many) if src != dst]
    flows = [(src, dst, (src + 3 * dst) % 5, 1.0 + (src * dst) % 3) for src, dst in pairs]
    src, dst, number = (np.array([flow[column] for flow in flows]) for column in range(3))
    row, link, fraction, latencies = cluster.route_rows(src, dst, number)
    load = np.bincount(link, np.array([weight for *_, weight in flows])[row] * fraction, len(cluster.links))
    due = np.zeros(len(cluster.links))
    slowest = 0.0
    for one, other, flow, weight in flows:
        spread = cluster.spread_route(one, other, flow)
        slowest = max(slowest, cluster.mean_route_latency(spread))
        for link, fraction in spread:
            due[link] += weight * fraction
    np.testing.assert_allclose(load, due, rtol=1e-12)
    assert latencies.max() == pytest.approx(slowest, rel=1e-12)
    assert (np.diff(row) >= 0).all()


def test_an_all_to_all_of_hundreds_of_gpus_does_not_take_its_time() -> None:
    """A hundred thousand pairs, in two blocks; flow by flow that took three seconds."""
    cluster = load_cluster("dgx_h100", [("nodes", 40)])
    loads = collective_loads(cluster, [range(320)], "all_to_all", 320.0 * 1024)
    out = [load for load in loads.links if ".nic" in load.link[0] and "leaf" in load.link[1]]
    assert len(out) == 320
    assert {load.bytes for load in out} == {312.0 * 1024}  # to 312 GPUs of other machines


# --- several NICs near a GPU ----------------------------------------------------------------------------------------


def test_nics_near_a_gpu_are_taken_in_turn_by_flow_number() -> None:
    """NCCL's rule, NIC (GPU index + channel) mod k, at both ends and under every policy that picks a path."""
    for policy in POLICIES[:3]:
        cluster = pcie_box(policy)
        for src, dst, flow in itertools.product(range(4), range(4, 16), range(4)):
            nodes = nodes_of(cluster, tuple(link for link, _ in cluster.spread_route(src, dst, flow)), src)
            nics = [node for node in nodes if "nic" in node]
            assert nics == [f"node0.nic{(src + flow) % 2}", f"node{dst // 4}.nic{(dst % 4 + flow) % 2}"]
            assert nics[0] == cluster.exit_nics(src)[flow % 2]


# --- ECMP -----------------------------------------------------------------------------------------------------------


def test_splitmix64() -> None:
    """The first outputs of the published generator with seed 0."""
    assert [mix_bits(0), mix_bits(0x9E3779B97F4A7C15)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def most_in_a_bin(balls: int, bins: int) -> dict[int, Fraction]:
    """P(the fullest of the bins has m balls), exactly: by a coefficient of (sum of x^j / j! up to m)^bins."""
    at_most = [Fraction(0)]
    for most in range(1, balls + 1):
        term = [Fraction(1, math.factorial(j)) for j in range(most + 1)]
        power = [Fraction(1)]
        for _ in range(bins):
            power = [
                sum((power[i] * term[n - i] for i in range(max(0, n - most), min(n, len(power) - 1) + 1)), Fraction(0))
                for n in range(min(balls, len(power) + most - 1) + 1)
            ]
        at_most.append((power[balls] if balls < len(power) else 0) * math.factorial(balls) / bins**balls)
    return {most: at_most[most] - at_most[most - 1] for most in range(1, balls + 1)}


@pytest.mark.parametrize(
    ("balls", "bins", "mean", "none"),
    [
        (2, 2, 1.5, 0.5),
        (4, 4, 2.125, 0.09375),
        (8, 8, 2.5972, 0.002403),
        (16, 16, 3.0782, 1.134e-6),
        (8, 16, 2.0629, 0.1208),
        (8, 32, 1.6646, 0.3857),
        (32, 8, 7.0478, 0.0),
    ],
)
def test_flows_collide_as_balls_in_bins(balls: int, bins: int, mean: float, none: float) -> None:
    """MODELLING.md C.3, by real routes: flows from one leaf to another over k spines, within 3 sigma over seeds."""
    exact = most_in_a_bin(balls, bins)
    expected = float(sum(most * chance for most, chance in exact.items()))
    no_collision = float(exact.get(1, Fraction(0)))
    assert expected == pytest.approx(mean, abs=6e-5)
    assert no_collision == pytest.approx(none, rel=5e-3)
    sigma = math.sqrt(float(sum((most - expected) ** 2 * chance for most, chance in exact.items())))
    found = []
    for seed, flow in itertools.product(range(25), range(40)):
        if flow == 0:
            cluster = leaf_spine(bins, {"kind": "ecmp", "seed": seed})
        uplinks = Counter(cluster.spread_route(gpu, 32 + gpu, flow)[1][0] for gpu in range(balls))
        found.append(max(uplinks.values()))
    draws = len(found)
    assert abs(sum(found) / draws - expected) < 3 * sigma / math.sqrt(draws)
    spread = math.sqrt(no_collision * (1 - no_collision) / draws)
    assert abs(found.count(1) / draws - no_collision) <= 3 * spread + 1e-4  # 1e-4: not one in 1,000 where 1e-6 is due


@settings(max_examples=25)
@given(seed=st.integers(0, 2**63 - 1), balls=st.integers(1, 16), spines=st.integers(1, 8), pairs=st.integers(1, 4))
def test_the_fullest_uplink_sets_the_pace(seed: int, balls: int, spines: int, pairs: int) -> None:
    """Equal sends begun together: the last one ends when the fullest uplink has passed all its bytes."""
    cluster = leaf_spine(spines, {"kind": "ecmp", "seed": seed, "queue_pairs": pairs}, ports=16)
    groups = [(gpu, 16 + gpu) for gpu in range(balls)]
    loads = collective_loads(cluster, groups, "send", 1e9)
    most = max(load.flows for load in loads.links)
    done = max(each.duration for each in concurrent_collective_times(cluster, groups, "send", 1e9))
    assert done == pytest.approx(4e-6 + most * 1e9 / 50e9, rel=1e-9)
    up, down = (next((x for x in loads.levels if x.ends == ends), None) for ends in ("leaf -> spine", "spine -> leaf"))
    assert up is not None
    assert down is not None
    assert up.links == down.links == spines
    assert up.mean == pytest.approx(balls / spines, rel=1e-12)
    assert max(up.most, down.most, 1.0) == most
    assert up.collisions == pytest.approx(up.most / max(1.0, balls / spines)) or up.most < 1


def test_queue_pairs_share_a_flow_evenly() -> None:
    cluster = leaf_spine(64, {"kind": "ecmp", "queue_pairs": 6})
    for dst in range(32, 64):
        parts = [fraction * 6 for link, fraction in cluster.spread_route(0, dst) if cluster.links[link][0] == "leaf0"]
        assert sum(parts) == pytest.approx(6, rel=1e-15)
        assert all(abs(part - round(part)) < 1e-10 for part in parts)
    spread = [len(leaf_spine(64, {"kind": "ecmp", "queue_pairs": n}).spread_route(0, 40)) for n in (1, 8, 32)]
    assert spread == sorted(spread)
    assert spread[-1] > 2 + 2 * 8


def test_flows_seeds_and_ends_are_drawn_by_themselves() -> None:
    """Nothing that a hash depends on is left out: seed, sender, destination, flow."""

    def draws(vary: str) -> set[tuple[tuple[int, float], ...]]:
        cluster = leaf_spine(32, {"kind": "ecmp"})
        if vary == "seed":
            return {leaf_spine(32, {"kind": "ecmp", "seed": seed}).spread_route(0, 40)[1:3] for seed in range(20)}
        if vary == "flow":
            return {cluster.spread_route(0, 40, flow)[1:3] for flow in range(20)}
        if vary == "source":
            return {cluster.spread_route(gpu, 40)[1:3] for gpu in range(20)}
        return {cluster.spread_route(0, 32 + gpu)[1:3] for gpu in range(20)}

    for vary in ("seed", "flow", "source", "destination"):
        assert 10 < len(draws(vary)) <= 20, vary  # 20 balls in 32 bins: 15 on average


def test_routes_do_not_depend_on_the_process() -> None:
    code = (
        "from simcluster.topology import parse_topology\n"
        f"cluster = parse_topology({dgx_document({'kind': 'ecmp', 'seed': 9, 'queue_pairs': 3})!r}).build()\n"
        "print([cluster.spread_route(s, d, 1) for s in range(24) for d in range(24)])"
    )
    own = dgx({"kind": "ecmp", "seed": 9, "queue_pairs": 3})
    here = str([own.spread_route(s, d, 1) for s in range(24) for d in range(24)])
    path = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    env = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": path}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == here


# --- adaptive -------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    spines=st.integers(1, 9),
    pairs=st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=12, unique=True),
)
def test_spraying_makes_parallel_links_one_fat_link(spines: int, pairs: list[tuple[int, int]]) -> None:
    """MODELLING.md H.38: k links of B are one of k B; to the bit where a fraction of 1 / k has no rounding."""
    groups = [(gpu, 16 + other) for gpu, other in pairs]
    many = leaf_spine(spines, {"kind": "adaptive"}, ports=16, uplink=25)
    one = leaf_spine(1, {"kind": "static"}, ports=16, uplink=25 * spines)
    times = [concurrent_collective_times(cluster, groups, "send", 1e8) for cluster in (many, one)]
    for sprayed, fat in zip(*times, strict=True):
        if spines in (1, 2, 4, 8):
            assert sprayed.duration == fat.duration
        assert sprayed.duration == pytest.approx(fat.duration, rel=1e-10)


def test_a_sprayed_ring_in_flow_and_in_steps() -> None:
    cluster = leaf_spine(4, {"kind": "adaptive"}, ports=4)
    times = [
        collective_times(cluster, range(8), "all_reduce", 2**26, algorithm="ring", detail=detail).duration
        for detail in ("flow", "steps")
    ]
    assert times[0] > 14 * 2**26 / 8 / 50e9
    assert times[0] == pytest.approx(times[1], rel=0.01)  # hops of unequal latency: the flow pays their mean


# --- PXN ------------------------------------------------------------------------------------------------------------


def test_pxn_goes_over_nvlink_and_one_leaf() -> None:
    plain, pxn = dgx({"kind": "static"}), dgx({"kind": "static", "pxn": True})
    assert nodes_of(pxn, pxn.route(0, 6), 0) == [
        "node0.gpu0", "node0.nvswitch", "node0.gpu2", "node0.nic2", "unit0.leaf2", "node1.nic2", "node1.gpu2",
    ]  # fmt: skip
    assert any("spine" in node for node in nodes_of(plain, plain.route(0, 6), 0))
    assert pxn.route(0, 4) == plain.route(0, 4)  # same rail
    assert pxn.route(0, 3) == plain.route(0, 3)  # same machine
    assert pxn.route(0, 14) == plain.route(0, 14)  # another unit: as many switches from either NIC


def test_rails_that_never_meet_need_pxn() -> None:
    needed, always = rail_only({"kind": "static"}), rail_only({"kind": "adaptive", "pxn": True})
    for src, dst in itertools.product(range(16), repeat=2):
        assert nodes_of(needed, needed.route(src, dst), src)[-1] == needed.gpus[dst]
        assert always.route(src, dst) == needed.route(src, dst)
    with pytest.raises(InputError, match=r"GPU node0\.gpu0 cannot reach GPU node1\.gpu1.*set routing\.pxn to true"):
        rail_only({"kind": "static", "pxn": False})
    dgx({"kind": "static", "pxn": False})  # rails meet in the spines: nothing to complain about


# --- documents ------------------------------------------------------------------------------------------------------


def test_a_scenario_sets_the_routing(tiny: Tiny) -> None:
    cluster = {"topology": "dgx_a100", "nodes": 2, "routing": {"kind": "ecmp", "queue_pairs": 2}}
    scenario = tiny(cluster=cluster, training={"global_batch": 16})
    assert scenario.cluster.topology.routing.model_dump() == {"kind": "ecmp", "pxn": None, "seed": 0, "queue_pairs": 2}
    assert load_cluster("leaf_spine_512", [("routing.kind", "adaptive")]).spread_route(0, 100)[1][1] == 1 / 32


@pytest.mark.parametrize(
    ("routing", "says"),
    [
        ({"kind": "valiant"}, ["routing", "valiant", "shortest", "static", "ecmp", "adaptive"]),
        ({"kind": "ecmp", "queue_pairs": 0}, ["routing", "queue_pairs", "1"]),
        ({"kind": "static", "seed": 1}, ["routing", "seed"]),
        ({"kind": "ecmp", "seed": -1}, ["routing", "seed", "0"]),
        ("ecmp", ["routing"]),
    ],
)
def test_bad_routing(routing: Any, says: list[str]) -> None:
    with pytest.raises(InputError) as error:
        load_cluster("flat", [("routing", routing)])
    for word in says:
        assert word in str(error.value)


# --- in a training step ---------------------------------------------------------------------------------------------


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    tp, pp, dp = draw(st.sampled_from([(2, 2, 2), (1, 2, 4), (2, 1, 4), (1, 1, 8), (1, 4, 2), (4, 2, 1)]))
    routing = draw(st.sampled_from(POLICIES))
    if routing["kind"] == "ecmp":
        routing = {**routing, "seed": draw(st.integers(0, 50))}
    pxn = draw(st.sampled_from([None, True]))
    clusters = [
        {"topology": "dgx_a100", "nodes": 4, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 2}},
        {"topology": "leaf_spine_512", "leaves": 4, "gpus_per_leaf": 2, "spines": draw(st.integers(1, 5))},
    ]
    return {
        "cluster": {**draw(st.sampled_from(clusters)), "routing": {**routing, "pxn": pxn}},
        "gpus": tp * pp * dp,
        "parallel": {"tp": tp, "pp": pp, "dp": dp, "order": draw(st.permutations(["tp", "cp", "dp", "pp"]))},
        "training": {"global_batch": 2 * dp},
        "overlap": {"grad_reduce": draw(st.booleans()), "pipeline": draw(st.booleans())},
    }


@settings(max_examples=12)
@given(document=jobs())
def test_folded_is_unfolded_under_every_policy(tiny: Tiny, table: Table, document: dict[str, Any]) -> None:
    folded, plain = simulate_scenario(tiny(**document)), simulate(tiny(**document), folded=False)
    assert folded.step_time == plain.step_time
    for rank in range(document["gpus"]):
        assert table(folded, rank).equals(table(plain, rank)), rank
