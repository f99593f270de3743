"""Folding: one rank plays for its whole class, and every span of every rank is the plain run's, to the bit."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from bindings import Communicator, bindings_of
from conftest import Table, Tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.arrays import float_bits, hash64
from simcluster.scenario.scenario import Scenario
from simcluster.scenario.sections import Engine
from simcluster.step import engine_run
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.symmetry.classes import EquivalenceClasses, find_classes, find_link_sharing, trivial_classes
from simcluster.symmetry.folding import SymmetryFinder
from simcluster.symmetry.quotient import JobQuotient

TOPOLOGIES: list[dict[str, Any]] = [
    {"topology": "dgx_a100", "nodes": 2, "gpus_per_node": 4},
    {"topology": "dgx_a100", "nodes": 4, "gpus_per_node": 2, "fabric": {"nodes_per_unit": 2, "oversubscription": 2.0}},
    {"topology": "dgx_a100", "nodes": 1},
    {"topology": "pcie_ethernet", "nodes": 1, "gpus_per_pcie_switch": 2},
    {"topology": "pcie_ethernet", "nodes": 2, "gpus_per_node": 4, "gpus_per_pcie_switch": 2},
    {"topology": "pcie_ethernet", "nodes": 4, "gpus_per_node": 2, "nics_per_node": 1},
    {"topology": "flat", "gpus": 8},
    {"topology": "flat", "gpus": 8, "gpus_per_host": 4},
]
CABLES = {  # one cable of each kind of cluster, near the first GPUs
    "dgx_a100": ["node0.gpu1", "node0.nic1"],
    "pcie_ethernet": ["node0.gpu1", "node0.pcie0"],
    "flat": ["gpu1", "switch"],
}
SHAPES = [  # tp, pp, dp: whole jobs and jobs smaller than the cluster
    (1, 1, 8), (2, 2, 2), (2, 1, 4), (1, 4, 2), (4, 2, 1), (2, 4, 1), (1, 2, 3), (2, 2, 1), (4, 1, 1), (1, 2, 4),
]  # fmt: skip


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Sections for ``tiny``: any cluster, layout, schedule, overlap and fault."""
    cluster = draw(st.sampled_from(TOPOLOGIES))
    tp, pp, dp = draw(st.sampled_from(SHAPES))
    schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved"] if pp > 1 else ["gpipe", "1f1b"]))
    microbatches = pp * draw(st.sampled_from([1, 2])) if schedule == "interleaved" else draw(st.integers(1, 4))
    zero = draw(st.sampled_from([0, 1]))
    faults: list[dict[str, Any]] = []
    if draw(st.booleans()):
        slow = {"kind": "slow_gpu", "factor": draw(st.sampled_from([1.0, 1.5]))}
        faults += [{**slow, "rank": rank} for rank in draw(st.lists(st.integers(0, tp * pp * dp - 1), max_size=2))]
    if draw(st.booleans()):
        faults.append({"kind": "slow_link", "between": CABLES[cluster["topology"]], "factor": 0.5})
    return {
        "cluster": cluster,
        "gpus": tp * pp * dp,
        "model": {
            "layers": 8,
            "tied_embeddings": draw(st.booleans()),
            "hidden_size": draw(st.sampled_from([256, 512])),
        },
        "parallel": {
            "tp": tp,
            "pp": pp,
            "dp": dp,
            "zero": zero,
            "sequence_parallel": tp > 1 and draw(st.booleans()),
            "order": draw(
                st.sampled_from([("tp", "cp", "dp", "pp"), ("pp", "dp", "cp", "tp"), ("dp", "tp", "pp", "cp")])
            ),
        },
        "pipeline": {
            "schedule": schedule,
            "chunks": 2 if schedule == "interleaved" else 1,
            "scatter_gather": draw(st.booleans()),
        },
        "training": {
            "global_batch": microbatches * dp,
            "recompute": draw(st.sampled_from(["none", "selective", "full"])),
            "attention": draw(st.sampled_from(["fused", "unfused"])),
        },
        "overlap": {
            "grad_reduce": draw(st.booleans()),
            "param_gather": zero == 1 and draw(st.booleans()),
            "tensor": draw(st.booleans()),
            "pipeline": draw(st.booleans()),
            "bucket_size": draw(st.sampled_from(["1 MB", "8 MB"])),
        },
        "faults": faults,
        "steps": draw(st.sampled_from([1, 1, 2])),
    }


@settings(max_examples=10)
@given(document=documents())
def test_folded_is_unfolded_to_the_bit(tiny: Tiny, table: Table, document: dict[str, Any]) -> None:
    scenario = tiny(**document)
    _compare(scenario, table)


def _compare(scenario: Scenario, table: Table) -> None:
    folded, plain = simulate_scenario(scenario), simulate(scenario, folded=False)
    assert len(plain.weights) == scenario.gpus
    assert sum(folded.weights.values()) == scenario.gpus
    assert folded.step_time == plain.step_time
    assert folded.without_faults == plain.without_faults
    for rank in range(scenario.gpus):
        ours, theirs = table(folded, rank), table(plain, rank)
        assert ours.equals(theirs), f"rank {rank}\n{ours.compare(theirs) if len(ours) == len(theirs) else ''}"
    for name, seconds in plain.times.breakdown.items():
        assert folded.times.breakdown[name] == pytest.approx(seconds, rel=1e-9, abs=1e-9 * plain.step_time)


@pytest.mark.parametrize("engine", ["auto", "compiled"])
def test_wrong_folding_is_found(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    slow = {"kind": "slow_gpu", "rank": 3, "factor": 1.5}
    scenario = tiny(cluster=TOPOLOGIES[0], gpus=8, parallel={"tp": 2, "dp": 4}, faults=[slow])
    right = simulate(scenario, engine=engine)
    find = SymmetryFinder.fold_job
    monkeypatch.setattr(engine_run, "engine_is_compiled", lambda: True)
    monkeypatch.setattr(SymmetryFinder, "fold_job", lambda self, rates, *_: find(self, rates, [1.0] * 8))
    with pytest.warns(RuntimeWarning, match=r"ranks simulated as one have different op times .*simulating every rank"):
        found = simulate(scenario, engine=engine)
    assert found.step_time == right.step_time
    assert [*found.weights.values()] == [1] * 8
    assert simulate_scenario(scenario).step_time < right.step_time  # studies do not check


def test_a_transfer_that_arrives_beside_a_collective(tiny: Tiny, table: Table) -> None:
    """A blocking send holds up its sender alone: the receiver may be gathering over the same PCIe lane meanwhile."""
    scenario = tiny(
        cluster={"topology": "pcie_ethernet", "nodes": 1, "gpus_per_pcie_switch": 2},
        gpus=4,
        model={"layers": 8, "hidden_size": 512},
        parallel={"tp": 2, "pp": 2},
        training={"global_batch": 5, "recompute": "full"},
        overlap={"pipeline": False},
    )
    _compare(scenario, table)
    communicators, classes = simulate(scenario).folding
    shared = find_link_sharing(classes, communicators.seen)
    every = enumerate(classes.of_communicator)
    assert any(communicators.table_of_communicator(each).name == "tp" and shared[number] for each, number in every)


def test_gradients_beside_the_collectives_of_the_layers(tiny: Tiny, table: Table) -> None:
    """Both leave a GPU by its one port: the layers' collectives take longer while gradients are under way."""

    def scenario(*, overlap: bool) -> Scenario:
        return tiny(
            cluster={"topology": "flat", "gpus": 4, "link": {"line_rate": "5 GB/s", "source": ""}},
            model={"layers": 8, "hidden_size": 512},
            parallel={"tp": 2, "dp": 2},
            overlap={"grad_reduce": overlap, "bucket_size": "1 MB"},
        )

    _compare(scenario(overlap=True), table)

    def longest(*, overlap: bool) -> float:
        frame = simulate(scenario(overlap=overlap)).timeline
        return float((frame["end"] - frame["start"])[frame["stream"] == "tp"].max())

    assert longest(overlap=True) > 1.5 * longest(overlap=False)


# --- how many classes: MODELLING.md I.1 -----------------------------------------------------------------------------


def classes(tiny: Tiny, faults: list[dict[str, Any]] | None = None) -> Counter[int]:
    """TP4 PP4 DP8 on 16 machines of 8: members of each class."""
    scenario = tiny(
        cluster={"topology": "dgx_a100", "nodes": 16},
        parallel={"tp": 4, "pp": 4, "dp": 8},
        training={"global_batch": 8},
        faults=faults or [],
    )
    result = simulate(scenario)
    assert len(set(result.folding.classes.of_rank)) == len(result.weights)
    return Counter(result.folding.classes.of_rank)


def test_a_clean_run_has_one_class_a_stage(tiny: Tiny) -> None:
    assert sorted(classes(tiny).values()) == [32] * 4


def test_one_slow_rank_splits_its_own_neighbourhood(tiny: Tiny) -> None:
    """On every stage: the slow rank's place, its tp peers (3), its dp peers (7), the rest (21)."""
    found = classes(tiny, [{"kind": "slow_gpu", "rank": 37, "factor": 1.5}])
    assert sorted(found.values()) == sorted([1, 3, 7, 21] * 4)


def test_two_slow_ranks(tiny: Tiny) -> None:
    """In different tp and dp groups of one stage: themselves, peers by tp of either and dp of either, the rest."""
    slow = [{"kind": "slow_gpu", "rank": rank, "factor": 1.5} for rank in (37, 42)]
    found = classes(tiny, slow)
    # equal factors and mirrored places: 2 slow, 2 in both neighbourhoods, tp peers 2 x 2, dp peers 2 x 6, rest 2 x 6
    assert sorted(found.values()) == sorted([2, 2, 4, 12, 12] * 4)
    different = [{**fault, "factor": 1.5 + index} for index, fault in enumerate(slow)]
    assert sorted(classes(tiny, different).values()) == sorted([1, 1, 1, 1, 2, 2, 6, 6, 12] * 4)


def test_two_slow_ranks_of_one_tp_group(tiny: Tiny) -> None:
    """MODELLING.md I.1: 24 classes: 2 slow alike, 2 tp peers; of the other replicas likewise; and by factor apart."""
    slow = [{"kind": "slow_gpu", "rank": rank, "factor": 1.5 + rank % 2} for rank in (36, 37)]
    assert sorted(classes(tiny, slow).values()) == sorted([1, 1, 2, 7, 7, 14] * 4)


def test_a_slow_cable_splits_only_who_uses_it(tiny: Tiny) -> None:
    def run(faults: list[dict[str, Any]]) -> Any:
        cluster = {"topology": "dgx_a100", "nodes": 8}
        parallel = {"tp": 8, "pp": 2}
        return simulate(tiny(cluster=cluster, parallel=parallel, training={"global_batch": 8}, faults=faults))

    clean = run([])
    slow = run([{"kind": "slow_link", "between": ["node0.gpu3", "node0.nic3"], "factor": 0.25}])
    assert len(clean.weights) == 2
    assert 2 < len(slow.weights) < 64
    assert slow.weights[3] == 1  # the GPU behind the cable
    assert slow.step_time > clean.step_time


@pytest.mark.parametrize("ranks", [(0, 1), (3, 60), (17, 18)])
def test_which_rank_is_slow_does_not_matter_among_equals(tiny: Tiny, ranks: tuple[int, int]) -> None:
    """On one switch all ranks are alike: a slow GPU costs the same wherever it is within its stage (H.25)."""

    def run(rank: int) -> Any:
        return simulate(
            tiny(
                cluster={"topology": "flat", "gpus": 64},
                parallel={"tp": 2, "dp": 32},
                training={"global_batch": 64},
                faults=[{"kind": "slow_gpu", "rank": rank, "factor": 1.3}],
            )
        )

    one, other = run(ranks[0]), run(ranks[1])
    assert one.step_time == other.step_time
    assert one.times == other.times
    assert sorted(one.weights.values()) == sorted(other.weights.values()) == [1, 1, 31, 31]


# --- the partition itself -------------------------------------------------------------------------------------------


def fold(colours: list[int], communicators: list[Communicator], links: list[float]) -> EquivalenceClasses:
    by_link = float_bits(np.array(links, dtype=float)).view(np.int64)
    found, whole = bindings_of(communicators), JobQuotient.trivial_quotient(len(colours))
    return find_classes(np.array(colours), whole, found, by_link.__getitem__, len(links))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[int], list[Communicator], list[float]]:
    """Ranks with colours, groups and pairs over them, each with some usage of links."""
    ranks = draw(st.lists(st.integers(0, 1), min_size=2, max_size=8))
    links = draw(st.lists(st.sampled_from([1.0, 2.0]), min_size=1, max_size=6))
    numbers = st.integers(0, len(ranks) - 1)
    usage = st.dictionaries(st.integers(0, len(links) - 1), st.sampled_from([1.0, 2.0]), max_size=3)
    usages = usage.map(lambda flows: tuple(sorted(flows.items())))
    found = []
    for kind in draw(st.lists(st.sampled_from(["tp", "dp", ("send", 0, 1)]), max_size=8)):
        size = (2, 2) if isinstance(kind, tuple) else (1, 4)
        members = draw(st.lists(numbers, min_size=size[0], max_size=size[1], unique=True))
        found.append(Communicator(kind, tuple(members), (draw(usages),), 0, draw(st.booleans())))
    return ranks, found, links


@settings(max_examples=75)
@given(graph=graphs())
def test_the_partition_is_equitable(graph: tuple[list[int], list[Communicator], list[float]]) -> None:
    """A class: alike by themselves, in as many communicators of each class; communicators of alike ranks and links."""
    colours, found, links = graph
    folded = fold(colours, found, links)
    group = folded.of_communicator
    rank = folded.of_rank

    def around(number: int) -> tuple[object, ...]:
        return colours[number], Counter(group[i] for i, each in enumerate(found) if number in each.ranks)

    def inside(i: int) -> tuple[object, ...]:
        members = [rank[member] for member in found[i].ranks]
        ordered = members if isinstance(found[i].kind, tuple) else sorted(members)
        return found[i].kind, ordered, Counter((links[link], flows) for link, flows in found[i].usages[0])

    for one, other in itertools.combinations(range(len(colours)), 2):
        assert rank[one] != rank[other] or around(one) == around(other)
    for one, other in itertools.combinations(range(len(found)), 2):
        assert group[one] != group[other] or inside(one) == inside(other)
    assert folded.count_ranks_per_class() == [rank.count(number) for number in range(len(folded.rank_representatives))]
    assert [rank.index(number) for number in range(len(folded.rank_representatives))] == list(
        folded.rank_representatives
    )


@settings(max_examples=50)
@given(graph=graphs(), order=st.randoms(use_true_random=False))
def test_classes_do_not_depend_on_the_order_of_communicators(
    graph: tuple[list[int], list[Communicator], list[float]], order: Any
) -> None:
    colours, found, links = graph
    shuffled = found[:]
    order.shuffle(shuffled)
    assert fold(colours, shuffled, links).of_rank == fold(colours, found, links).of_rank


@given(graph=graphs())
def test_unfolded_is_everybody_alone(graph: tuple[list[int], list[Communicator], list[float]]) -> None:
    colours, found, links = graph
    plain = trivial_classes(len(colours), bindings_of(found), len(links))
    assert tuple(plain.of_rank) == plain.rank_representatives == tuple(range(len(colours)))
    assert plain.count_ranks_per_class() == [1] * len(colours)
    assert tuple(plain.quotient) == tuple(each.usages for each in found)


def pair(kind: Any, ranks: tuple[int, ...], *, blocking: bool) -> Communicator:
    return Communicator(kind, ranks, (((0, 1.0),),), None, blocking)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (pair("tp", (0, 1), blocking=True), pair("dp", (0, 2), blocking=True), False),  # rank 0 does them in turn
        (pair("tp", (0, 1), blocking=True), pair("dp", (0, 2), blocking=False), True),
        (pair("tp", (0, 1), blocking=True), pair("dp", (2, 3), blocking=True), True),  # nobody is in both
        (
            pair("tp", (0, 1), blocking=True),
            pair(("send", 0, 1), (0, 2), blocking=True),
            False,
        ),  # the sender is held up
        (pair("tp", (0, 1), blocking=True), pair(("send", 0, 1), (2, 0), blocking=True), True),  # a receiver is not
    ],
)
def test_who_may_meet_on_a_link(one: Communicator, other: Communicator, shared: bool) -> None:
    found = bindings_of([one, other])
    assert find_link_sharing(trivial_classes(4, found, 1), found) == (shared, shared)


def test_colours_that_meet_by_chance_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refinement with numbers of two bits, which meet all the time, until other ones check what they found."""
    ranks = [0, 0, 0, 0, 0, 1, 0, 0]
    found = [Communicator("pp", (rank, rank + 1), ((),), None) for rank in range(7)]
    right = fold(ranks, found, [])
    checked = []

    def poor(values: Any, salt: int = 0) -> Any:
        checked.append(salt)
        return hash64(values, salt) & np.uint64(3) if 29 <= salt < 60 else hash64(values, salt)

    monkeypatch.setattr("simcluster.symmetry.classes.hash64", poor)
    assert fold(ranks, found, []) == right
    assert max(checked) >= 200  # it had to begin again
    assert len(right.rank_representatives) == 8  # no two are as far from rank 5 on the same side of it


def test_rings_and_sends_across_units_do_not_split_stages(tiny: Tiny) -> None:
    """Ring traffic over the spines loads links unevenly, but slows down no ring."""
    scenario = tiny(
        cluster={"topology": "dgx_h100", "nodes": 128},
        parallel={"tp": 8, "pp": 2, "dp": 64, "zero": 1},
        training={"global_batch": 128},
    )
    assert sorted(Counter(simulate(scenario).folding.classes.of_rank).values()) == [512, 512]
