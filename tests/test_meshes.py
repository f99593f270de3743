"""GPUs that are linked to each other without a switch: rings that share no link, and what collectives then reach."""

from __future__ import annotations

from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.collectives import Group
from simcluster.collectives.group import disjoint_mesh_rings
from simcluster.scenario.document_resolution import load_cluster, load_topology
from simcluster.step.simulate import simulate
from simcluster.studies.bench.collective import collective_times

GIB = 2**30


@pytest.mark.parametrize("ranks", range(3, 10))
def test_walks_visit_all_and_share_no_link(ranks: int) -> None:
    orders = disjoint_mesh_rings(ranks)
    assert len(orders) == ranks - 1 - (ranks % 2 == 0)
    assert all(sorted(order) == list(range(ranks)) for order in orders)
    used = [(order[i - 1], order[i]) for order in orders for i in range(ranks)]
    assert len(set(used)) == len(used)


def test_rings_between_meshes_enter_at_their_own_nic() -> None:
    nics = [(f"nic{i}",) for i in range(8)]
    rings = Group((0,) * 4 + (1,) * 4, nics, ("",) * 8, meshed=True).rings
    assert [ring.order[0] for ring in rings] == [0, 1, 2, 3]
    assert all(sorted(ring.order) == list(range(8)) for ring in rings)
    assert len({ring.order[1] - ring.order[0] for ring in rings}) > 1  # not all along the same links


def test_what_a_mesh_of_eight_reaches() -> None:
    """Links of 64 GB/s x 0.75: a pair has one of them, an all-to-all all seven, rings six (three cycles, both ways)."""
    cluster = load_cluster("azure_nd_mi300x_v5", [("nodes", 1)])
    assert cluster.meshed
    assert not load_cluster("dgx_h100", [("nodes", 1)]).meshed
    for gpus, kind, links in ((2, "all_reduce", 1), (8, "all_reduce", 6), (4, "all_gather", 2), (8, "all_to_all", 7)):
        busbw = collective_times(cluster, range(gpus), kind, 64 * GIB).busbw
        assert busbw == pytest.approx(links * 48e9, rel=1e-3), (gpus, kind)


def test_a_step_on_meshes_folds(tiny: Any) -> None:
    scenario = tiny(
        cluster={"topology": "mi325x_8", "nodes": 2},
        gpus=16,
        parallel={"tp": 4, "pp": 2},
        training={"global_batch": 16},
    )
    folded, plain = (simulate(scenario, folded=folded) for folded in (True, False))
    assert folded.step_time == plain.step_time
    assert all(folded.timeline_of(rank).equals(plain.timeline_of(rank)) for rank in range(16))


def test_a_machine_has_switches_or_a_mesh() -> None:
    link = {"line_rate": "64 GB/s", "latency": "1 us"}
    machine = {"gpus": 4, "nvlink": link, "mesh": link, "pcie": link, "nics": [{"count": 4, "link": link}]}
    fabric = {"kind": "fat_tree", "nodes_per_unit": 1}
    with pytest.raises(InputError, match="GPUs are linked directly"):
        load_topology({"kind": "machines", "nodes": 1, "machine": machine, "fabric": fabric})
