"""Link loads: bytes are what the collectives move, however ranks are folded, and time adds up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.results.link_loads import LINK_COLUMNS, hottest_links, hottest_links_over_time, link_table
from simcluster.results.result import Result
from simcluster.scenario.document_resolution import load_cluster
from simcluster.show.link_plots import links
from simcluster.step.simulate import simulate
from simcluster.studies.bench.collective import collective_transfers, concurrent_collective_times
from simcluster.studies.bench.collective_loads import CollectiveLoads, link_utilization_over_time, measure_link_loads
from simcluster.topology import Cluster

DGX = {"topology": "dgx_a100", "nodes": 4, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 2}}
POLICIES = [{"kind": "static"}, {"kind": "ecmp", "seed": 4, "queue_pairs": 3}, {"kind": "adaptive"}]


def job(tiny: Tiny, tp: int, pp: int, dp: int, **changes: Any) -> Any:
    document: dict[str, Any] = {
        "cluster": DGX,
        "gpus": tp * pp * dp,
        "parallel": {"tp": tp, "pp": pp, "dp": dp},
        "training": {"global_batch": 2 * dp},
    }
    return tiny(**{**document, **changes})


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    tp, pp, dp = draw(st.sampled_from([(2, 2, 2), (1, 2, 4), (2, 1, 4), (1, 1, 8), (1, 4, 2)]))
    return {
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "cluster": {**DGX, "routing": draw(st.sampled_from(POLICIES))},
        "collectives": {"detail": draw(st.sampled_from(["flow", "flow", "steps"]))},
        "overlap": {"grad_reduce": draw(st.booleans())},
        "faults": draw(st.sampled_from([[], [{"kind": "slow_gpu", "rank": 1, "factor": 1.5}]])),
        "steps": draw(st.sampled_from([1, 2])),
    }


def carried(result: Result) -> float:
    """Bytes that leave machines by their NICs, per step."""
    table = link_table(result)
    return float(
        table.loc[table["link_from"].str.contains("nic") & table["link_to"].str.contains("leaf"), "bytes"].sum()
    )


@settings(max_examples=12)
@given(document=scenarios())
def test_loads_are_those_of_the_unfolded_run_and_add_up(tiny: Tiny, document: dict[str, Any]) -> None:
    scenario = job(tiny, **document)
    result, plain = simulate(scenario), simulate(scenario, folded=False)
    table, other = link_table(result), link_table(plain)
    assert list(table.columns) == list(LINK_COLUMNS)
    names = ["link_from", "link_to", "medium"]
    assert table[names].equals(other[names])
    for name in LINK_COLUMNS[3:]:
        np.testing.assert_allclose(table[name], other[name], rtol=1e-9)
    assert (table["bytes"] > 0).all()
    assert (table["busy_s"] <= result.step_time * (1 + 1e-9)).all()
    assert (table["bytes"] <= table["capacity"] * table["busy_s"] * (1 + 1e-9)).all()
    assert (table["utilisation"] <= table["peak_utilisation"] * (1 + 1e-9)).all()
    top, edges, matrix = hottest_links_over_time(result, len(table), 7)
    assert matrix.shape == (len(top), 7)
    assert edges[-1] == result.step_time * result.steps
    moved = (matrix * np.diff(edges)).sum(axis=1) * top["capacity"]
    np.testing.assert_allclose(moved, top["bytes"] * result.steps, rtol=1e-9)


@pytest.mark.parametrize("routing", POLICIES, ids=lambda policy: policy["kind"])
def test_nics_carry_what_the_ring_says(tiny: Tiny, routing: dict[str, Any]) -> None:
    """One rank a machine: every rank sends 2 (N - 1) / N x S of an all-reduce, and S of a send, through its NIC."""
    layout = {"tp": 1, "dp": 2, "pp": 2, "order": ["tp", "cp", "dp", "pp"]}
    alone = {**DGX, "gpus_per_node": 1, "routing": routing}
    result = simulate(job(tiny, 1, 2, 2, cluster=alone, parallel=layout))
    due = 0.0
    for rank in range(4):
        spans = result.timeline_of(rank)
        for kind, factor in (
            ("all_reduce", 2 * (2 - 1) / 2),
            ("reduce_scatter", 0.5),
            ("all_gather", 0.5),
            ("send", 1),
        ):
            due += factor * float(spans.loc[spans["kind"] == kind, "bytes"].sum())
    assert due > 0
    assert carried(result) == pytest.approx(due, rel=1e-12)


def test_a_slow_link_is_busy_longer_with_the_same_bytes(tiny: Tiny) -> None:
    link = {"kind": "slow_link", "between": ["node0.nic0", "unit0.leaf0"], "factor": 0.5}
    clean, slow = (link_table(simulate(job(tiny, 1, 1, 8, faults=faults))) for faults in ([], [link]))
    place = (clean["link_from"] == "node0.nic0") & (clean["link_to"] == "unit0.leaf0")
    assert slow["bytes"].equals(clean["bytes"])
    assert slow.loc[place, "capacity"].item() == clean.loc[place, "capacity"].item() / 2
    assert slow.loc[place, "busy_s"].item() > 1.3 * clean.loc[place, "busy_s"].item()


def test_hottest_links_are_the_table_by_utilisation(tiny: Tiny) -> None:
    result = simulate(job(tiny, 2, 2, 2))
    table, top = link_table(result), hottest_links(result, 1000)
    assert top["utilisation"].is_monotonic_decreasing
    assert top["utilisation"].max() == table["utilisation"].max()
    assert top["links"].sum() == len(table)
    assert len(hottest_links(result, 2)) == 2
    plain = hottest_links(simulate(result.scenario, folded=False), 1000)
    assert top[["link_from", "link_to", "links"]].equals(plain[["link_from", "link_to", "links"]])


def test_one_gpu_loads_no_link(tiny: Tiny) -> None:
    result = simulate(tiny())
    assert link_table(result).empty
    assert list(hottest_links(result).columns) == [*LINK_COLUMNS, "links"]
    with pytest.raises(InputError, match="no link carries traffic"):
        links(result)


def test_the_picture_shows_the_table(tiny: Tiny, tmp_path: Path) -> None:
    result = simulate(job(tiny, 2, 2, 2))
    figure = links(result, n=6, bins=50)
    heat, bars, _ = figure.axes
    top = hottest_links(result, 6)
    assert [text.get_text().split(" → ")[0] for text in heat.get_yticklabels()] == top["link_from"].tolist()
    widths = [float(getattr(bar, "get_width")()) for bar in bars.patches]  # noqa: B009  # stubs know only Patch
    assert widths == pytest.approx((100 * top["utilisation"]).tolist())
    values = np.asarray(heat.collections[0].get_array())
    assert values.shape == (6, 50)
    assert values.max() <= 1.0
    figure.savefig(tmp_path / "links.png")
    assert (tmp_path / "links.png").stat().st_size > 10_000


# --- a single collective --------------------------------------------------------------------------------------------


def collective_loads(cluster: Cluster, *what: Any, **how: Any) -> CollectiveLoads:
    return measure_link_loads(cluster, collective_transfers(cluster, *what, **how))


def test_a_ring_loads_every_nic_alike() -> None:
    """MODELLING.md H.9 and D.3: 2 (N - 1) / N x S / 2 through each of two NICs a machine, one flow on each."""
    cluster = load_cluster("dgx_a100", [("nodes", 4), ("gpus_per_node", 2)])
    size = 2.0**20
    found = collective_loads(cluster, [range(8)], "all_reduce", size, algorithm="ring")
    nics = [load for load in found.links if "nic" in load.link[0] and "leaf" in load.link[1]]
    assert len(nics) == 8
    assert {load.flows for load in nics} == {1.0}
    assert sum(load.bytes for load in nics) == pytest.approx(4 * 2 * (2 * 7 / 8) * size / 2, rel=1e-12)
    assert all(level.collisions == 1 for level in found.levels if "nic" in level.ends)
    assert [load.busy for load in found.links] == sorted((load.busy for load in found.links), reverse=True)


def test_utilisation_of_a_collective_adds_up_to_its_bytes() -> None:
    """Groups that share uplinks, in phases; what is drawn is what was moved, and a full link is full."""
    cluster = load_cluster("leaf_spine_512", [("routing.kind", "ecmp")])
    groups = [range(start, 512, 64) for start in range(8)]
    loads = collective_loads(cluster, groups, "all_reduce", 1e9, algorithm="halving_doubling")
    traffics = collective_transfers(cluster, groups, "all_reduce", 1e9, algorithm="halving_doubling")
    edges, matrix = link_utilization_over_time(cluster, traffics, [load.link for load in loads.links], 50)
    times = concurrent_collective_times(cluster, groups, "all_reduce", 1e9, algorithm="halving_doubling")
    assert edges[-1] == max(time.duration for time in times)
    moved = (matrix * np.diff(edges)).sum(axis=1) * [load.capacity for load in loads.links]
    np.testing.assert_allclose(moved, [load.bytes for load in loads.links], rtol=1e-9)
    alone = collective_transfers(cluster, groups[:1], "all_reduce", 1e9, algorithm="ring")
    links = [load.link for load in collective_loads(cluster, groups[:1], "all_reduce", 1e9, algorithm="ring").links]
    assert link_utilization_over_time(cluster, alone, links[:1], 50)[1].max() == pytest.approx(1.0, rel=1e-2)


def test_hashed_rings_collide_and_sprayed_ones_do_not() -> None:
    """64 GPUs of one leaf send to another over 32 uplinks, 2:1: an even share is 2 flows an uplink."""
    pairs = [(gpu, 64 + gpu) for gpu in range(64)]
    levels = {}
    for kind in ("static", "ecmp", "adaptive"):
        cluster = load_cluster("leaf_spine_512", [("routing.kind", kind)])
        (levels[kind],) = (
            level for level in collective_loads(cluster, pairs, "send", 1e6).levels if level.ends == "leaf -> spine"
        )
    assert [(level.links, level.mean) for level in levels.values()] == [(32, 2.0)] * 3
    assert levels["static"].most == levels["adaptive"].most == 2.0
    assert levels["static"].collisions == levels["adaptive"].collisions == 1.0
    assert levels["ecmp"].most >= 4
    assert levels["ecmp"].collisions == levels["ecmp"].most / 2
    assert levels["ecmp"].used < 32
    hashed = load_cluster("leaf_spine_512", [("routing.kind", "ecmp")])
    worst = max(collective_loads(hashed, pairs, "send", 1e6).links, key=lambda load: load.collisions)
    assert worst.collisions == levels["ecmp"].collisions
