"""Ring collectives: laid along the machines, no byte too many, and the times of the textbooks; what cannot be played.

What every algorithm must do is in test_algorithms.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.clock import round_to_tick
from simcluster.base.errors import InputError
from simcluster.collectives import ALGORITHMS, CollectiveEntry, Hop, Phase, Ring
from simcluster.collectives.group import build_node_rings
from simcluster.scenario.document_resolution import load_cluster
from simcluster.studies.bench.collective import collective_times, concurrent_collective_times, count_transfers
from simcluster.studies.bench.collective_loads import busiest_links_of_collective
from simcluster.topology import Cluster, parse_topology
from simcluster.traffic.traffic import find_group_rings, link_patterns, make_group

GIB = 2.0**30
RANKS = [2, 3, 4, 6, 7, 8, 16, 24]


def flat(gpus: int, rate: str = "50 GB/s", latency: str = "5 us") -> Cluster:
    return parse_topology(
        {"kind": "flat", "device": "h100", "gpus": gpus, "link": {"line_rate": rate}, "path_latency": latency}
    ).build()


def dgx(nodes: int, gpus: int = 8, per_unit: int = 64) -> Cluster:
    def link(rate: str, latency: str) -> dict[str, object]:
        return {"line_rate": rate, "latency": latency}

    return parse_topology(
        {
            "kind": "dgx",
            "device": "h100",
            "nodes": nodes,
            "gpus_per_node": gpus,
            "nvlink": link("450 GB/s", "1 us"),
            "pcie": link("64 GB/s", "1 us"),
            "nic": link("50 GB/s", "2 us"),
            "fabric": {"nodes_per_unit": per_unit},
        }
    ).build()


def ring_sets(ranks: int) -> dict[str, tuple[Ring, ...]]:
    """Rings of a group of this size in every way that machines give: one, one per rail, half as many rails."""
    sets = {"one machine": build_node_rings([0] * ranks, [("nic",)] * ranks)}
    for machines in (2, 3):
        if ranks % machines == 0 and ranks > machines:
            each = ranks // machines
            hosts = [position // each for position in range(ranks)]
            sets[f"{machines} machines, own NICs"] = build_node_rings(hosts, [(f"nic{p}",) for p in range(ranks)])
            shared = [(f"nic{p // each}.{p % each // 2}",) for p in range(ranks)]
            sets[f"{machines} machines, NICs of pairs"] = build_node_rings(hosts, shared)
    return sets


# --- rings along the machines -----------------------------------------------------------------------------------------


def link_bytes(cluster: Cluster, gpus: Sequence[int], size: float) -> dict[tuple[str, str], float]:
    """Bytes that a ring all-reduce puts on every directed link that it uses."""
    phases = ALGORITHMS["all_reduce"]["ring"](make_group(cluster, gpus))
    carried: dict[tuple[str, str], float] = {}
    for pattern in link_patterns(cluster, gpus, phases):
        for link, flows in pattern.usage:
            key = cluster.links[link]
            carried[key] = carried.get(key, 0.0) + flows * pattern.share * size * pattern.rounds
    return carried


def between(cluster: Cluster, carried: dict[tuple[str, str], float], source: str, target: str) -> list[float]:
    kind = {node: data["kind"] for node, data in cluster.graph.nodes(data=True)}
    return [size for (a, b), size in carried.items() if (kind[a], kind[b]) == (source, target)]


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 8), (4, 8), (3, 2), (16, 8)])
def test_one_ring_per_rail_keeps_every_nic_on_its_rail(nodes: int, gpus: int) -> None:
    """MODELLING.md D.3: 2(N-1)/N S/NICs each way through every NIC, as much per GPU over NVLink as all hops (PXN)."""
    cluster = dgx(nodes, gpus)
    ranks = nodes * gpus
    rings = find_group_rings(cluster, range(ranks))
    carried = link_bytes(cluster, range(ranks), GIB)
    volume = 2 * (ranks - 1) / ranks * GIB
    assert len(rings) == gpus
    for ends in (("nic", "switch"), ("switch", "nic")):
        assert between(cluster, carried, *ends) == pytest.approx([volume / gpus] * ranks, rel=1e-12)
    assert between(cluster, carried, "gpu", "nvswitch") == pytest.approx([volume] * ranks, rel=1e-12)
    assert between(cluster, carried, "switch", "switch") == []  # a rail has a leaf of its own: no spine
    assert all(a[-1] == b[-1] for a, b in carried if "nic" in a and "leaf" in b)


def test_a_ring_enters_and_leaves_every_machine_by_the_owner_of_its_nic() -> None:
    rings = find_group_rings(dgx(2, 4), range(8))
    assert [ring.order for ring in rings] == [
        (0, 1, 2, 3, 4, 5, 6, 7),
        (1, 2, 3, 0, 5, 6, 7, 4),
        (2, 3, 0, 1, 6, 7, 4, 5),
        (3, 0, 1, 2, 7, 4, 5, 6),
    ]
    assert [ring.relays for ring in rings] == [(-1, -1, -1, r, -1, -1, -1, 4 + r) for r in range(4)]


def test_part_of_a_machine_uses_its_own_rails_only() -> None:
    cluster = dgx(2)
    carried = link_bytes(cluster, [0, 1, 8, 9], GIB)
    out = {a: size for (a, b), size in carried.items() if "nic" in a and "leaf" in b}
    assert sorted(out) == ["node0.nic0", "node0.nic1", "node1.nic0", "node1.nic1"]
    assert list(out.values()) == pytest.approx([2 * 3 / 4 * GIB / 2] * 4, rel=1e-12)


def test_one_rank_a_machine_makes_one_ring_and_uses_no_nvlink() -> None:
    cluster = dgx(4)
    gpus = [0, 8, 16, 24]
    carried = link_bytes(cluster, gpus, GIB)
    assert len(find_group_rings(cluster, gpus)) == 1
    assert between(cluster, carried, "nic", "switch") == pytest.approx([2 * 3 / 4 * GIB] * 4, rel=1e-12)
    assert between(cluster, carried, "gpu", "nvswitch") == []


@pytest.mark.parametrize("ranks", [(3, 2), (8, 1), (7, 2), (4, 8), (8, 8, 5), (1, 2, 3)])
def test_unequal_ranks_a_machine_have_the_rings_of_the_machine_with_the_fewest(ranks: tuple[int, ...]) -> None:
    """As NCCL takes the fewest channels of all ranks; every NIC of the smallest machine carries its part."""
    cluster = dgx(len(ranks))
    gpus = [8 * host + place for place in range(8) for host, count in enumerate(ranks) if place < count]  # mixed
    rings = find_group_rings(cluster, gpus)
    assert len(rings) == min(ranks)
    for ring in rings:
        assert sorted(ring.order) == list(range(len(gpus)))
        hosts = [cluster.host_of[gpus[position]] for position in ring.order]
        assert sum(one != other for one, other in zip(hosts, [*hosts[1:], hosts[0]], strict=True)) == len(ranks)
    out = between(cluster, link_bytes(cluster, gpus, GIB), "nic", "switch")
    whole = 2 * (len(gpus) - 1) / len(gpus) * GIB
    assert out == pytest.approx([whole / min(ranks)] * min(ranks) * len(ranks), rel=1e-12)


def test_shared_nics_carry_a_ring_each() -> None:
    """Boxes of 8 GPUs with 2 NICs: two rings, half the data through every NIC (and one ring where there is one NIC)."""
    cluster = load_cluster("pcie_ethernet")
    gpus = range(16)
    volume = 2 * 15 / 16 * GIB
    assert len(find_group_rings(cluster, gpus)) == 2
    for ends in (("nic", "switch"), ("switch", "nic")):
        assert between(cluster, link_bytes(cluster, gpus, GIB), *ends) == pytest.approx([volume / 2] * 4, rel=1e-12)
    single = load_cluster("pcie_ethernet", [("nics_per_node", 1)])
    assert len(find_group_rings(single, gpus)) == 1
    assert between(single, link_bytes(single, gpus, GIB), "nic", "switch") == pytest.approx([volume] * 2, rel=1e-12)


def test_every_ring_visits_every_position_once() -> None:
    for ranks in RANKS:
        for rings in ring_sets(ranks).values():
            assert all(sorted(ring.order) == list(range(ranks)) for ring in rings)


# --- times ------------------------------------------------------------------------------------------------------------


FLAT_RINGS = [
    (8, "450 GB/s", "1 us", "4.189663"),
    (64, "50 GB/s", "5 us", "42.908584"),
    (256, "50 GB/s", "5 us", "45.331901"),
    (1024, "50 GB/s", "5 us", "53.137730"),
]


@pytest.mark.parametrize(
    ("ranks", "rate", "latency", "milliseconds", "detail"),
    [(*ring, "flow") for ring in FLAT_RINGS] + [(*ring, "steps") for ring in FLAT_RINGS[:3]],
)
def test_flat_ring_all_reduce_of_a_gibibyte(
    ranks: int, rate: str, latency: str, milliseconds: str, detail: str
) -> None:
    time = collective_times(flat(ranks, rate, latency), range(ranks), "all_reduce", GIB, detail=detail)
    assert f"{time.duration * 1e3:.6f}" == milliseconds
    assert time.finishes == (time.duration,) * ranks


@pytest.mark.benchmark
def test_a_thousand_ranks_in_steps() -> None:
    """2.1 million transfers."""
    times = [
        collective_times(flat(1024), range(1024), "all_reduce", GIB, detail=detail) for detail in ("flow", "steps")
    ]
    assert times[0].finishes == times[1].finishes
    assert f"{times[1].duration * 1e3:.6f}" == "53.137730"


def test_64_rings_at_once_over_a_2_to_1_tree() -> None:
    """Ring j is GPU j of every leaf, so every hop crosses leaves: two flows on each uplink."""
    cluster = load_cluster("leaf_spine_512")
    groups = [[64 * leaf + j for leaf in range(8)] for j in range(64)]
    flow = concurrent_collective_times(cluster, groups, "all_reduce", GIB, detail="flow")
    steps = concurrent_collective_times(cluster, groups, "all_reduce", GIB, detail="steps")
    assert {f"{time.duration * 1e3:.6f}" for time in (*flow, *steps)} == {"75.245928"}
    assert [time.finishes for time in flow] == [time.finishes for time in steps]
    limit = busiest_links_of_collective(cluster, groups, "all_reduce", GIB)
    assert (limit.ends, limit.links, limit.load) == ("leaf -> spine", 256, 2 * 14 / 8 * GIB)
    alone = collective_times(cluster, groups[0], "all_reduce", GIB).duration
    assert f"{alone * 1e3:.6f}" == f"{14 * (6e-6 + GIB / 8 / 50e9) * 1e3:.6f}"


@pytest.mark.parametrize(
    ("ranks", "size", "rate", "milliseconds"), [(8, 14e9, "600 GB/s", 40.8), (16, 200e6, "100 GB/s", 3.75)]
)
def test_data_parallel_examples(ranks: int, size: float, rate: str, milliseconds: float) -> None:
    """Worked by hand: 2 (N-1)/N S / B."""
    time = collective_times(flat(ranks, rate, "0 s"), range(ranks), "all_reduce", size)
    assert time.duration * 1e3 == pytest.approx(milliseconds, abs=0.05)
    assert time.duration == pytest.approx(2 * (ranks - 1) / ranks * size / float(rate.split()[0]) / 1e9, rel=1e-9)


def test_volumes_of_the_requirements() -> None:
    """39.4 GB sent per GPU by 64 for 20 GB; 235 MB for an activation of 8192 x 8192 in fp16 by 8, 90.2 GB a step."""

    def sent(ranks: int, size: float) -> float:
        cluster = flat(ranks)
        carried = link_bytes(cluster, range(ranks), size)
        (per_gpu,) = {round(carried[f"gpu{rank}", "switch"]) for rank in range(ranks)}
        return per_gpu

    assert sent(64, 20e9) / 1e9 == pytest.approx(39.4, abs=0.05)
    activation = 8192 * 8192 * 2.0
    assert sent(8, activation) / 1e6 == pytest.approx(235, abs=0.5)
    assert 96 * 4 * sent(8, activation) / 1e9 == pytest.approx(90.2, abs=0.05)


@pytest.mark.parametrize("detail", ["flow", "steps"])
def test_closed_forms(detail: str) -> None:
    """MODELLING.md D.1: 14 (10 us + 1 GB / 8 / 50 GB/s) = 35.14 ms, its halves, and alpha + S/B for a send."""
    cluster = flat(8, latency="10 us")
    seconds = {
        kind: collective_times(cluster, range(8), kind, 1e9, detail=detail).duration
        for kind in ("all_reduce", "reduce_scatter", "all_gather")
    }
    assert seconds["all_reduce"] == pytest.approx(35.14e-3, rel=1e-10)
    assert seconds["reduce_scatter"] == pytest.approx(17.57e-3, rel=1e-10)
    send = collective_times(cluster, [3, 5], "send", 1e9, detail=detail)
    assert send.duration == pytest.approx(10e-6 + 1e9 / 50e9, rel=1e-10)


@given(ranks=st.integers(2, 12), size=st.integers(1, 2**34), detail=st.sampled_from(["flow", "steps"]))
def test_all_reduce_is_reduce_scatter_and_all_gather(ranks: int, size: int, detail: str) -> None:
    """To the bit, in time and in bytes."""
    cluster = flat(12)
    seconds = {
        kind: collective_times(cluster, range(ranks), kind, size, detail=detail).duration
        for kind in ("all_reduce", "reduce_scatter", "all_gather")
    }
    assert seconds["all_reduce"] == seconds["reduce_scatter"] + seconds["all_gather"]
    loads = {kind: busiest_links_of_collective(cluster, [range(ranks)], kind, size).load for kind in seconds}
    assert loads["all_reduce"] == loads["reduce_scatter"] + loads["all_gather"]


@given(ranks=st.integers(2, 8), slow=st.data(), percent=st.integers(1, 99))
def test_a_slow_link_multiplies_the_bandwidth_term(ranks: int, slow: st.DataObject, percent: int) -> None:
    """One link at the fraction phi of its speed: 2(N-1)(alpha + S/(N phi B)) exactly, in both details."""
    cluster = flat(ranks)
    phi, gpu = percent / 100, slow.draw(st.integers(0, ranks - 1))
    slowed = cluster.with_scaled_links([(f"gpu{gpu}", "switch", phi)])
    expected = 2 * (ranks - 1) * (round_to_tick(5e-6) + round_to_tick(1.0 / ranks * GIB / (phi * 50e9)))
    for detail in ("flow", "steps"):
        assert collective_times(slowed, range(ranks), "all_reduce", GIB, detail=detail).duration == expected


@pytest.mark.parametrize("halvings", [1, 2, 5])
def test_without_latency_half_the_speed_is_twice_the_time_bit_for_bit(halvings: int) -> None:
    cluster = flat(8, "64 GiB/s", "0 s")
    slowed = cluster.with_scaled_links([("gpu3", "switch", 0.5**halvings)])
    times = [collective_times(each, range(8), "all_reduce", GIB).duration for each in (cluster, slowed)]
    assert times[1] == 2**halvings * times[0] == 2**halvings * 14 / 8 / 64


def test_the_same_bytes_are_slower_across_machines_than_inside_one() -> None:
    cluster = dgx(8)
    inside = collective_times(cluster, range(8), "all_reduce", GIB).duration
    across = collective_times(cluster, range(0, 64, 8), "all_reduce", GIB).duration
    assert across == pytest.approx(14 * (6e-6 + GIB / 8 / 50e9), rel=1e-9)
    assert inside == pytest.approx(14 * (2e-6 + GIB / 8 / 450e9), rel=1e-9)


def test_phases_of_different_sizes_are_played_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth there, a fifth back in two rounds: rounds that load the links differently stay apart."""
    there = Phase(rounds=1, hops=(Hop(0, 1, 0.1),), chunks=1, reduces=True)
    back = Phase(rounds=2, hops=(Hop(1, 0, 0.2),), chunks=1, reduces=False)
    monkeypatch.setitem(ALGORITHMS["all_reduce"], "uneven", CollectiveEntry(lambda group: (there, back)))
    time = collective_times(flat(2), [0, 1], "all_reduce", 50e9, algorithm="uneven")
    assert time.duration == pytest.approx(3 * 5e-6 + 0.1 + 2 * 0.2, rel=1e-12)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kind": "all_redoce"}, ["all_redoce", "did you mean 'all_reduce'"]),
        ({"algorithm": "rnig"}, ["rnig", "did you mean 'ring'"]),
        ({"kind": "send", "algorithm": "ring"}, ["unknown algorithm 'ring' for send", "direct"]),
        ({"detail": "step"}, ["step", "did you mean 'steps'"]),
        ({"size": 0}, ["size is 0", "positive"]),
        ({"size": -1.0}, ["size is -1.0"]),
        ({"size": float("nan")}, ["nan"]),
        ({"gpus": [0, 1, 2, 1]}, ["GPU 1 appears twice"]),
        ({"gpus": [2]}, ["1 GPU:", "at least 2"]),
        ({"gpus": []}, ["0 GPUs", "at least 2"]),
        ({"gpus": range(5)}, ["no GPU 4", "it has GPUs 0 to 3", "larger cluster"]),
        ({"gpus": [-1, 0]}, ["no GPU -1"]),
        ({"kind": "send", "gpus": [0, 1, 2]}, ["send over 3 GPUs", "give 2"]),
        ({"arrivals": [0.0, 1.0]}, ["arrivals", "each rank"]),
        ({"arrivals": [0.0, 1.0, 2.0, -3.0]}, ["-3.0"]),
    ],
)
def test_what_cannot_be_played(arguments: dict[str, object], words: list[str]) -> None:
    asked = {"gpus": range(4), "kind": "all_reduce", "size": 1.0, **arguments}
    with pytest.raises(InputError) as refused:
        collective_times(flat(4), **asked)
    assert [word for word in words if word not in str(refused.value)] == [], str(refused.value)


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_pipelines_of_nccl_have_no_steps(kind: str) -> None:
    with pytest.raises(InputError, match=f"NCCL runs {kind} as a pipeline.*detail: flow.*with rounds: binomial$"):
        collective_times("dgx_a100", range(8), kind, GIB, detail="steps")


def test_no_groups_are_refused() -> None:
    with pytest.raises(InputError, match="at least one group"):
        concurrent_collective_times(flat(4), [], "all_reduce", 1.0)


def test_the_number_of_transfers_is_known_beforehand() -> None:
    assert count_transfers(flat(64), range(64), "all_reduce", 1e6) == 2 * 63 * 64
    assert count_transfers(dgx(2), range(16), "all_gather", 1e6) == 15 * 16 * 8
