"""No prediction is faster than the links that its algorithm has to cross, on any platform of a built-in topology."""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from typing import Any

import pytest

from simcluster.documents.builtin_documents import builtin_names
from simcluster.scenario.document_resolution import load_cluster, load_topology
from simcluster.traffic.nccl.constants import ALGORITHMS, COLLECTIVES, PROTOCOLS, Algorithm, Collective
from simcluster.traffic.nccl.platforms import load_platform
from simcluster.traffic.nccl.predictor import choose, predict
from simcluster.traffic.nccl.tuner_query import TunerQuery, explain_unavailable

PLATFORMS = {name: platform for name in builtin_names("topologies") if (platform := load_topology(name).nccl)}
SIZES = (2.0**20, 2.0**24, 2.0**30, 2.0**34, 2.0**40)


@cache
def line_rates(topology: str) -> tuple[float, float]:
    """Line rates of a GPU's NVLink and of all NICs of a node, in one direction."""
    two: dict[str, Any] = {} if topology == "two_sites_h100" else {"nodes": 2}
    graph = load_cluster(topology, two).graph
    gpu, first = next((name, data["host"]) for name, data in graph.nodes(data=True) if data["kind"] == "gpu")
    (switch,) = [other for other in graph[gpu] if graph.nodes[other]["kind"] == "nvswitch"]
    domain = gpu.partition(".")[0]
    assert first == 0
    nics = sum(
        data["line_rate"]
        for nic, other, data in graph.edges(data=True)
        if nic.startswith(f"{domain}.") and graph.nodes[nic]["kind"] == "nic" and graph.nodes[other]["kind"] == "switch"
        if "network" not in graph.nodes[nic]
    )
    return graph[gpu][switch]["line_rate"], nics


def fastest(case: TunerQuery, nvlink: float, nics: float) -> float:
    """Most bytes a second of a call's size S that links leave an algorithm, m nodes of g ranks, N in all.

    What a rank sends and receives of S, the factor of bus bandwidth f, over its NVLink: f (g - 1) / g by a ring and a
    tree over nodes, f in one node; 1 + 1/g of an all-reduce by NVLink SHARP and 1 of its halves; 2 (g - 1) / g by
    CollNet.  Over all NICs of a node: f by a ring, 2 (m - 1) / m by a tree or nvls_tree, 1 where the network reduces.
    """
    m, g, n, algorithm = case.nodes, case.gpus_per_node, case.ranks, case.algorithm
    everywhere = case.collective == "all_reduce"
    f = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0, "reduce": 1.0}.get(case.collective, (n - 1) / n)
    if algorithm in ("nvls", "nvls_tree"):
        inside = 1 + 1 / g if everywhere else 1.0
    elif algorithm.startswith("collnet"):
        inside = 2 * (g - 1) / g
    else:
        inside = f * (g - 1) / g if m > 1 else f
    outside = 0.0
    if m > 1:
        outside = 2 * (m - 1) / m if algorithm in ("tree", "nvls_tree") else f
        outside = 1.0 if algorithm.startswith("collnet") or algorithm == "nvls" else outside
    return min(nvlink / inside if inside else math.inf, nics / outside if outside else math.inf)


@pytest.mark.parametrize("topology", PLATFORMS)
def test_every_algorithm_is_within_its_links(topology: str) -> None:
    platform = load_platform(PLATFORMS[topology])
    nvlink, nics = line_rates(topology)
    each = sorted({1, 2, 3, 4, 8, platform.gpus_per_node // 2, platform.gpus_per_node})
    tried = 0
    for nodes, gpus, algorithm, protocol, collective in product(
        (1, 2, 3, 4, 8, 64), each, ALGORITHMS, PROTOCOLS, COLLECTIVES
    ):
        if nodes * gpus < 2:
            continue
        case = TunerQuery(collective, algorithm, protocol, nodes, gpus, platform)
        if explain_unavailable(case):
            continue
        limit = fastest(case, nvlink, nics * gpus / platform.gpus_per_node)
        for size in SIZES:
            shape = {"nodes": nodes, "gpus_per_node": gpus, "size": size, "platform": platform}
            found = predict(collective, algorithm, protocol, **shape, model="effective")
            assert size / found.seconds <= limit, (case, size, found.bus_bandwidth)
            tried += 1
    assert tried > 2000


@pytest.mark.parametrize(("racks", "each"), [(2, 72), (2, 64), (8, 72), (16, 36)])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_racks_are_no_faster_than_a_gpus_nvlink(racks: int, each: int, collective: Collective) -> None:
    """144 GPUs of GB200 reached 2,990 GB/s of bus bandwidth: the rate of 72 NICs, not of a GPU's NVLink."""
    gb200, nvlink = load_platform("gb200-nvl72"), 900e9
    found = choose(collective, nodes=racks, gpus_per_node=each, size=2.0**34, platform=gb200).prediction
    assert 400e9 < found.bus_bandwidth < 0.9 * nvlink
    algorithms: list[Algorithm] = ["ring"]
    ring = choose(
        collective, nodes=racks, gpus_per_node=each, size=2.0**40, platform=gb200, algorithms=algorithms
    ).prediction
    assert ring.bus_bandwidth == pytest.approx(
        720e9 * each / (each - 1), rel=0.01
    )  # that of one rack, g / (g - 1) of it
