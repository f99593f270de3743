"""What the window of a job tells is what the whole job does: the same classes, the same program, number by number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import PLANNED, Table, Tiny
from hypothesis import given, settings
from hypothesis import strategies as st

import simcluster.symmetry.quotient as windows
from simcluster import load_cluster
from simcluster.base.arrays import Floats
from simcluster.collectives import ALGORITHMS, Group
from simcluster.collectives.description import LazyHopList
from simcluster.engine.tables import EngineTables
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.step.step_plan import fold_step, plan_step, tabulate_step
from simcluster.symmetry.folding import FoldedJob
from simcluster.symmetry.quotient import JobQuotient
from simcluster.symmetry.tree_symmetry import find_link_images
from simcluster.traffic.link_usage import batch_link_usage
from simcluster.traffic.traffic import make_group

STATIC = {"routing": {"kind": "static"}}
CLUSTERS: list[dict[str, Any]] = [  # machines of 2 GPUs, so that small jobs cover several units
    {"topology": "dgx_h100", "nodes": 16, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 2}, **STATIC},
    {"topology": "dgx_h100", "nodes": 16, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 2, "oversubscription": 2.0},
     **STATIC},
    {"topology": "dgx_h100", "nodes": 16, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 4}, **STATIC},
    {"topology": "dgx_a100", "nodes": 16, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 1}, **STATIC},
    {"topology": "dgx_a100", "nodes": 16, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 3}},
    {"topology": "dgx_h100", "nodes": 16, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 2},
     "routing": {"kind": "shortest"}},
    {"topology": "dgx_h100", "nodes": 16, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 2},
     "routing": {"kind": "ecmp", "seed": 3}},
    {"topology": "dgx_h100", "nodes": 16, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 2},
     "routing": {"kind": "adaptive"}},
    {"topology": "dgx_h100", "nodes": 16, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 2, "units_per_pod": 2}},
    {"topology": "flat", "gpus": 32},
]  # fmt: skip
SHAPES = [(2, 2, 8), (1, 1, 32), (2, 1, 16), (1, 4, 8), (2, 4, 4), (4, 2, 4), (1, 2, 16), (2, 2, 4), (2, 1, 12)]
LINKS = {"nccl": "none"}  # as the links alone allow
ORDERS = [("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"), ("pp", "dp", "cp", "tp"), ("dp", "tp", "pp", "cp")]


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Sections for ``tiny``: clusters of several units, many layouts, collectives of all kinds."""
    tp, pp, dp = draw(st.sampled_from(SHAPES))
    zero = draw(st.sampled_from([0, 1, 1, 2, 3]))
    cp = 2 if dp % 2 == 0 and draw(st.booleans()) else 1
    parallel = {"tp": tp, "pp": pp, "dp": dp // cp, "cp": cp, "zero": zero, "order": draw(st.sampled_from(ORDERS))}
    shard = 4 if zero == 3 and dp % 4 == 0 and draw(st.booleans()) else None
    model: dict[str, Any] = {"tied_embeddings": draw(st.booleans())}
    if zero < 3 and dp // cp % 2 == 0 and draw(st.booleans()):
        model["moe"] = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 128}
        parallel |= {"ep": 2, "sequence_parallel": tp > 1}
    named = draw(
        st.sampled_from([{}, {"all_reduce": "tree"}, {**LINKS, "all_gather": "pat", "reduce_scatter": "pat"}, LINKS])
    )
    return {
        "cluster": draw(st.sampled_from(CLUSTERS)),
        "gpus": tp * pp * dp,
        "model": model,
        "parallel": parallel,
        "training": {"global_batch": 2 * pp * dp},
        "fsdp": {"shard_group": shard},
        "overlap": {"grad_reduce": draw(st.booleans()), "param_gather": zero == 1 and draw(st.booleans())},
        "collectives": named,
    }


class SeenJob(NamedTuple):
    """A job's folding, its tables, and B/s of all its links."""

    folding: FoldedJob
    tables: EngineTables
    capacity: Floats


def seen_job(scenario: Scenario) -> SeenJob:
    """Return a job as folding sees it."""
    planned = plan_step(scenario)
    step = fold_step(scenario, planned)
    return SeenJob(step.folding, tabulate_step(scenario, planned, step).tables, step.cluster.capacity)


def both(scenario: Scenario) -> tuple[JobQuotient | None, SeenJob, SeenJob]:
    """The window that was looked through, the job by it, and as a whole."""
    found: list[JobQuotient | None] = [None]
    real = windows.find_windows

    def kept(*arguments: Any) -> Iterator[JobQuotient]:
        for each in real(*arguments):
            found.append(each)
            yield each

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simcluster.symmetry.folding.find_windows", kept)
        PLANNED.clear()
        seen = seen_job(scenario)
        patch.setattr("simcluster.symmetry.folding.find_windows", lambda *_: ())
        PLANNED.clear()
        whole = seen_job(scenario)
        PLANNED.clear()  # what is planned without windows is for this comparison alone
        return found[-1], seen, whole


def equal(one: Any, other: Any) -> bool:
    """Return whether tables, or parts of them, are equal."""
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def assert_same(one: SeenJob, other: SeenJob) -> None:
    classes, whole = one.folding.classes, other.folding.classes
    assert classes == whole
    assert np.array_equal(classes.used_links, whole.used_links)
    assert np.array_equal(classes.used_link_classes, whole.used_link_classes)
    assert equal(one.tables, other.tables)
    ours, theirs = one.folding.communicators, other.folding.communicators
    for number in range(len(classes.of_communicator)):
        assert ours.table_of_communicator(number).name == theirs.table_of_communicator(number).name
        assert ours.member_ranks(number) == theirs.member_ranks(number)
        assert theirs.seen.of_group[number] == number
        assert len(ours.link_usages(number)) == len(theirs.link_usages(number))


SEEN: dict[str, int] = {}


@settings(max_examples=18)
@given(document=documents())
def test_the_window_tells_what_the_whole_does(tiny: Tiny, document: dict[str, Any]) -> None:
    window, seen, whole = both(tiny(**document))
    assert_same(seen, whole)
    fewer = len(seen.folding.communicators.seen.link) < len(whole.folding.communicators.seen.link)
    assert window is not None or not fewer
    SEEN["through" if fewer else "whole"] = SEEN.get("through" if fewer else "whole", 0) + 1


def test_some_of_them_were_looked_at_through_a_window() -> None:
    assert not SEEN or min(SEEN.get("through", 0), SEEN.get("whole", 0)) > 4


def test_a_window_is_looked_through_where_there_is_one(tiny: Tiny) -> None:
    """By units of two machines: sixteen replicas of a machine each come back after eight shifts by two, and the two
    rails of each take each other's places."""
    job = {"gpus": 32, "parallel": {"tp": 2, "dp": 16}, "training": {"global_batch": 16}}
    window, seen, whole = both(tiny(cluster=CLUSTERS[0], **job))
    assert window is not None
    assert len(window.rank) == 16 * len(window.ranks)
    assert window.ranks.tolist() == [0, 2]
    rows = len(seen.folding.communicators.seen.link)
    assert rows * 14 < len(whole.folding.communicators.seen.link)
    assert seen.folding.classes.count_ranks_per_class() == [32]


@pytest.mark.parametrize("change", [
    {"cluster": CLUSTERS[0] | {"routing": {"kind": "ecmp"}}},
    {"cluster": CLUSTERS[0] | {"routing": {"kind": "static", "pxn": True}}},
    {"cluster": CLUSTERS[0] | {"fabric": {"nodes_per_unit": 3}}},
    {"cluster": CLUSTERS[0] | {"fabric": {"nodes_per_unit": 16}}},
    {"cluster": {"topology": "flat", "gpus": 32}},
])  # fmt: skip
def test_what_is_not_alike_is_looked_at_whole(tiny: Tiny, change: dict[str, Any]) -> None:
    job = {"gpus": 32, "parallel": {"tp": 2, "dp": 16}, "training": {"global_batch": 16}}
    window, seen, whole = both(tiny(**{"cluster": CLUSTERS[0], **job, **change}))
    assert window is None
    assert_same(seen, whole)


@pytest.mark.parametrize("routing", ["static", "adaptive"])
@pytest.mark.parametrize("split", [{"tp": 1, "pp": 2}, {"tp": 2, "pp": 1}])
def test_folded_through_a_window_is_unfolded_to_the_bit(
    tiny: Tiny, table: Table, split: dict[str, int], routing: str
) -> None:
    """With traffic of neighbours on oversubscribed links, so that shares of links decide."""
    job = {"gpus": 32, "parallel": {**split, "dp": 16, "zero": 1}, "training": {"global_batch": 64}}
    scenario = tiny(
        cluster={**CLUSTERS[1], "routing": {"kind": routing}},
        **job,
        overlap={"grad_reduce": True, "interference": "none"},
    )
    assert both(scenario)[0] is not None
    folded, plain = simulate_scenario(scenario), simulate(scenario, folded=False)
    assert len(folded.weights) < len(plain.weights) == 32
    assert folded.step_time == plain.step_time
    for rank in range(32):
        assert table(folded, rank).equals(table(plain, rank))


@pytest.mark.parametrize(("nodes", "unit", "kind"), [(16, 2, "static"), (24, 4, "static"), (16, 2, "shortest"),
                                                    (16, 2, "adaptive"), (24, 4, "adaptive")])  # fmt: skip
@pytest.mark.parametrize("rails", [1, 2, 8])
def test_links_are_turned_as_routes_are(nodes: int, unit: int, kind: str, rails: int) -> None:
    """For all pairs: the links of the route between the GPUs that two become are those that its links become."""
    fabric = {"nodes_per_unit": unit}
    cluster = load_cluster("dgx_h100", [("nodes", nodes), ("fabric", fabric), ("routing", {"kind": kind})])
    gpus, shift, turn = np.arange(8 * nodes), 8 * unit, 8 // rails
    count = nodes // unit * rails
    steps = [(gpus + shift) % len(gpus), gpus - gpus % 8 + (gpus % 8 + turn) % 8][: 1 + (rails > 1)]
    turned = find_link_images(cluster, steps, gpus % shift // 8 * 8 + gpus % turn, count)
    assert turned is not None
    used = np.flatnonzero(turned.image.all_values >= 0)
    assert np.array_equal(
        np.bincount(turned.image.all_values[used])[np.unique(turned.image.all_values[used])],
        np.full(len(used) // count, count),
    )
    source, target = (each.ravel() for each in np.meshgrid(gpus, gpus))
    row, link, _, _ = cluster.route_rows(source, target, 0 * source)
    for onto in steps:
        row_there, link_there, _, _ = cluster.route_rows(onto[source], onto[target], 0 * source)
        assert np.array_equal(row, row_there)
        assert np.array_equal(turned.image.all_values[link], turned.image.all_values[link_there])
        to = np.full(len(turned.image.all_values), -1)
        to[link] = link_there  # one link becomes one link, whichever flow crosses it
        assert np.array_equal(to[link], link_there)
        assert len(np.unique(link_there)) == len(np.unique(link))


def test_what_takes_no_turn() -> None:
    cluster = load_cluster("dgx_h100", [("nodes", 16), ("fabric.nodes_per_unit", 2)])
    gpus = np.arange(128)
    assert find_link_images(cluster, [(gpus + 16) % 128], gpus % 16, 8) is not None
    assert (
        find_link_images(cluster, [(gpus + 8) % 128], gpus % 8, 16) is None
    )  # machines of a unit come to different leaves
    assert find_link_images(cluster, [(gpus + 4) % 128], gpus % 4, 32) is None  # half a machine
    assert find_link_images(cluster, [gpus ^ 1, (gpus + 16) % 128], gpus % 16 & ~1, 16) is not None  # rails in pairs
    assert find_link_images(cluster, [gpus ^ 1, (gpus + 16) % 128], gpus % 16 & ~3, 32) is None  # which are not four
    slower = cluster.with_scaled_links([("node3.gpu1", "node3.nic1", 0.5)])
    turned, healthy = (find_link_images(each, [(gpus + 16) % 128], gpus % 16, 8) for each in (slower, cluster))
    assert turned is not None  # routes are, and links as they are wired
    assert healthy is not None
    assert np.array_equal(turned.image.all_values, healthy.image.all_values)
    assert turned.wired is cluster.link_capacity


def test_rails_of_one_leaf_take_no_turn() -> None:
    """All NICs of a machine on one leaf: what one rail sends up is not what another does."""
    cluster = load_cluster("fat_tree_3level")
    gpus = np.arange(len(cluster.gpus))
    assert find_link_images(cluster, [gpus - gpus % 8 + (gpus + 1) % 8], gpus - gpus % 8, 8) is None


@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_trees_of_chains_are_counted_as_they_are_gone_through(kind: str) -> None:
    """Hop by hop, and by pairs of GPUs."""
    cluster = load_cluster("dgx_h100", [("nodes", 70), ("routing", {"kind": kind})])
    for first, count in ((0, 560), (16, 520)):
        gpus = np.arange(first, first + count)
        phases = ALGORITHMS["all_reduce"]["tree"](make_group(cluster, gpus.tolist()))
        (quick,), (slow,) = (batch_link_usage(cluster, gpus[None], phases, timed=timed) for timed in (False, True))
        assert quick.usage_key == slow.usage_key
        assert (quick.share, quick.rounds) == (slow.share, slow.rounds)
        assert quick.latency.tolist() == [0.0]


@given(ranks=st.integers(1, 70), each=st.integers(1, 3))
def test_rounds_of_pat_in_columns_are_those_one_by_one(ranks: int, each: int) -> None:
    group = Group(tuple(rank // each for rank in range(ranks)), (("nic",),) * ranks, ("",) * ranks)
    for kind in ("all_gather", "reduce_scatter"):
        for phase in ALGORITHMS[kind]["pat"](group):
            hops = list(phase.hops)
            assert [phase.hops[number] for number in range(len(hops))] == hops
            assert isinstance(phase.hops, LazyHopList)
            assert [replace(hop, count=1, stride=1) for hop in hops] == list(phase.hops.hop_list)
