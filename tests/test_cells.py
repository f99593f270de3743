"""A job with which something is wrong, seen through the window of the job without: the same as looked at whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Table, Tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from test_window import CLUSTERS, SeenJob, assert_same, documents, seen_job
from test_window import both as through_a_window

from simcluster import load_cluster
from simcluster.base.clock import WindowProfile
from simcluster.base.link_columns import LinkValues
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import simulate, simulate_scenario
from simcluster.symmetry.communicators import Communicators
from simcluster.symmetry.folding import SymmetryFinder
from simcluster.symmetry.irregular_jobs import Irregularities, divide_into_cells
from simcluster.symmetry.quotient import JobQuotient
from simcluster.symmetry.tree_symmetry import find_link_images

JOB = {"gpus": 32, "parallel": {"tp": 2, "dp": 16, "zero": 1}, "training": {"global_batch": 32}}


def both(scenario: Scenario) -> tuple[SeenJob, SeenJob]:
    """The job as it is seen, and as a whole."""
    with pytest.MonkeyPatch.context() as patch:
        seen = seen_job(scenario)
        patch.setattr(SymmetryFinder, "_usable_windows", lambda _: iter(()))
        return seen, seen_job(scenario)


@st.composite
def faults(draw: st.DrawFn, gpus: int, scenario: Scenario) -> list[dict[str, Any]]:
    """What may be wrong with a job: on some ranks, and on some links, for ever or at times."""
    links = scenario.cluster.built.links
    found: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        ranks = draw(st.lists(st.integers(0, gpus - 1), min_size=1, max_size=3))
        times = draw(st.sampled_from([{}, {}, {"start": "10 us", "end": "50 us"}]))
        kind = draw(st.sampled_from(["slow_gpu", "slow_gpu", "slow_link", "slow_link", "host_stall", "jitter", "flap"]))
        link = list(links[draw(st.integers(0, len(links) - 1))])
        factor = draw(st.sampled_from([0.25, 0.5]))
        kinds: dict[str, dict[str, Any]] = {
            "slow_gpu": {"kind": kind, "ranks": ranks, "factor": 1 + factor, **times},
            "slow_link": {"kind": kind, "between": link, "factor": factor, **times},
            "flap": {"kind": "link_flap", "between": link, "start": "20 us", "down": "5 us"},
            "host_stall": {"kind": kind, "ranks": ranks, "cause": "data_loading", "seconds": "100 us"},
            "jitter": {"kind": kind, "ranks": ranks, "factor": {"kind": "lognormal", "sigma": 0.1}},
        }
        found.append(kinds[kind])
    return found


def assert_as_fast_alone(seen: SeenJob, whole: SeenJob) -> None:
    """What a group of each class may reach at most, of the links that tell of those that it uses."""
    capacity, (ours, theirs) = seen.capacity, (each.folding.communicators for each in (seen, whole))
    _, first = np.unique(seen.folding.classes.of_communicator, return_index=True)
    for number in first.tolist():
        for some, every in zip(ours.link_usages(number), theirs.link_usages(number), strict=True):
            rates = [{float(capacity[link]) / flows for link, flows in each} for each in (some, every)]
            assert rates[0] == rates[1]


SEEN: dict[str, int] = {}


@settings(max_examples=24)
@given(document=documents(), data=st.data())
def test_cells_tell_what_the_whole_does(tiny: Tiny, document: dict[str, Any], data: st.DataObject) -> None:
    wrong = data.draw(faults(document["gpus"], tiny(**document)))
    seen, whole = both(tiny(**document, faults=wrong))
    assert_same(seen, whole)
    assert_as_fast_alone(seen, whole)
    through = seen.folding.communicators.seen.many is not None
    SEEN["cells" if through else "whole"] = SEEN.get("cells" if through else "whole", 0) + 1


def test_some_of_them_were_seen_by_cells() -> None:
    assert not SEEN or min(SEEN.get("cells", 0), SEEN.get("whole", 0)) > 4


def cells_seen(scenario: Scenario) -> tuple[JobQuotient, Communicators]:
    """Return the cells by which a job is seen as it is looked at whole, and its communicators."""
    found: list[tuple[JobQuotient, Communicators]] = []

    def kept(*arguments: Any) -> tuple[JobQuotient, Communicators]:
        found.append(divide_into_cells(*arguments))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simcluster.symmetry.folding.divide_into_cells", kept)
        seen, whole = both(scenario)
    assert_same(seen, whole)
    assert seen.folding.communicators is found[-1][1]
    return found[-1]


def test_one_slow_gpu_makes_four_copies(tiny: Tiny) -> None:
    """Its rail and the other, its block of two replicas and the seven others: of two ranks each."""
    slow = [{"kind": "slow_gpu", "rank": 13, "factor": 1.5}]
    cells, communicators = cells_seen(tiny(cluster=CLUSTERS[0], **JOB, faults=slow))
    assert cells.ranks.tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    assert cells.rank[[13, 15, 12, 5, 31]].tolist() == [13, 15, 12, 1, 3]
    bindings = communicators.seen
    of_dp = bindings.of_group[communicators.find_communicator("dp", 13)]
    rows = slice(*bindings.member[of_dp : of_dp + 2])
    assert cells.ranks[bindings.rank[rows]].tolist() == [1, 3, 13, 15]
    assert bindings.many is not None
    assert bindings.many[rows].tolist() == [7, 7, 1, 1]


def test_what_is_wrong_everywhere_makes_one(tiny: Tiny) -> None:
    cluster = CLUSTERS[0]
    wrong: list[dict[str, Any]] = [{"kind": "slow_gpu", "ranks": list(range(32)), "factor": 1.5}]
    names = [f"node{node}" for node in range(16)]
    wrong += [
        {"kind": "slow_link", "between": [f"{n}.gpu{i}", f"{n}.nic{i}"], "factor": 0.5} for n in names for i in (0, 1)
    ]
    cells, _ = cells_seen(tiny(cluster=cluster, **JOB, faults=wrong))
    assert cells.ranks.tolist() == [0, 2]


def test_links_are_told_of_by_the_first_of_their_cell(tiny: Tiny) -> None:
    """A slow cable splits its rail and its block, in both directions; what it carries is told of all the same."""
    scenario = tiny(
        cluster=CLUSTERS[0],
        **JOB,
        faults=[{"kind": "slow_link", "between": ["node6.gpu1", "node6.nic1"], "factor": 0.5}],
    )
    cells, _ = cells_seen(scenario)
    assert cells.link_image is not None
    index = scenario.cluster.built.link_index
    for a, b in (("gpu1", "nic1"), ("nic1", "gpu1")):
        become = [cells.link_image.all_values[index[f"node{node}.{a}", f"node{node}.{b}"]] for node in range(16)]
        assert become[8] == become[0] != become[9] == become[1]
        assert len({*become[6:10]}) == 4


def test_usages_have_all_links_that_carry_the_same(tiny: Tiny) -> None:
    """One of them is looked at, but a group's usages have every link that becomes one of its in the window."""
    scenario = tiny(cluster=CLUSTERS[0], **JOB, faults=[{"kind": "slow_gpu", "rank": 13, "factor": 1.5}])
    window, clean, _ = through_a_window(scenario.without_faults())
    _, communicators = cells_seen(scenario)
    bindings = communicators.seen
    assert window is not None
    assert window.link_image is not None
    rows = 0
    for number in np.unique(bindings.of_group, return_index=True)[1].tolist():
        if bindings.of_group[number] in bindings.apart:
            continue
        own, usual = communicators.link_usages(number), clean.folding.communicators.link_usages(number)
        rows += sum(map(len, own))
        for every, some in zip(own, usual, strict=True):
            links, flows = zip(*every, strict=True)
            assert list(links) == sorted(set(links))
            assert {*zip(window.link_image.values_at(np.array(links)).tolist(), flows, strict=True)} == set(some)
    assert rows > len(bindings.link)


@pytest.mark.parametrize("change", [
    {"faults": [{"kind": "slow_gpu", "rank": 3, "factor": 1.5}]},
    {"faults": [{"kind": "slow_link", "between": ["node0.gpu1", "node0.nic1"], "factor": 0.5}]},
    {"faults": [{"kind": "slow_gpu", "rank": 3, "factor": 1.5, "start": "20 us"},
                {"kind": "slow_link", "between": ["node5.nic1", "unit2.leaf1"], "factor": 0.5}]},
])  # fmt: skip
@pytest.mark.parametrize("split", [{"tp": 1, "pp": 2}, {"tp": 2, "pp": 1}])
def test_folded_by_cells_is_unfolded_to_the_bit(
    tiny: Tiny, table: Table, split: dict[str, int], change: dict[str, Any]
) -> None:
    """With traffic of neighbours on oversubscribed links, so that shares of links decide."""
    job = {**JOB, "parallel": {**split, "dp": 16, "zero": 1}, "training": {"global_batch": 64}}
    scenario = tiny(cluster=CLUSTERS[1], **job, overlap={"grad_reduce": True, "interference": "none"}, **change)
    cells_seen(scenario)
    folded, plain = simulate_scenario(scenario), simulate(scenario, folded=False)
    assert len(folded.weights) < len(plain.weights) == 32
    assert folded.step_time == plain.step_time
    assert folded.without_faults == plain.without_faults
    for rank in range(32):
        assert table(folded, rank).equals(table(plain, rank))


def test_what_is_shared_with_the_run_without_faults_changes_nothing(tiny: Tiny) -> None:
    """One window and its groups serve both runs, and a run by itself makes its own."""
    scenario = tiny(cluster=CLUSTERS[0], **JOB, faults=[{"kind": "slow_gpu", "rank": 5, "factor": 2.0}])
    result = simulate(scenario)
    alone, clean = simulate_scenario(scenario), simulate_scenario(scenario.without_faults())
    assert result.without_faults == clean.step_time
    assert np.array_equal(result.record.times.end, alone.record.times.end)
    assert result.folding.classes == alone.folding.classes


@pytest.mark.parametrize(("nodes", "rails"), [(16, 1), (24, 2), (16, 8)])
def test_owners_are_turned_with_their_links(nodes: int, rails: int) -> None:
    """A link becomes in the window what its owner becomes; ways use links of GPUs turned as their ends."""
    cluster = load_cluster("dgx_h100", [("nodes", nodes), ("fabric", {"nodes_per_unit": 4})])
    gpus, shift, turn = np.arange(8 * nodes), 32, 8 // rails
    steps = [(gpus + shift) % len(gpus), gpus - gpus % 8 + (gpus % 8 + turn) % 8][: 1 + (rails > 1)]
    turned = find_link_images(cluster, steps, gpus % shift // 8 * 8 + gpus % turn, nodes // 4 * rails)
    assert turned is not None
    times = [gpus // shift, gpus % 8 // turn]
    used = np.flatnonzero(turned.image.all_values >= 0)
    owner = turned.owner_gpus[used]
    assert (turned.owner_gpus[turned.image.all_values < 0] == -1).all()
    source, target = (each.ravel() for each in np.meshgrid(gpus, gpus))
    row, link, _, _ = cluster.route_rows(source, target, 0 * source)
    for each in times:
        of_link = each[turned.owner_gpus[link]]
        assert ((of_link == each[source[row]]) | (of_link == each[target[row]])).all()
    assert turned.links_move_with_gpus(times)
    place = times[0] * 8 + times[1]
    codes = turned.image.all_values[used].astype(np.int64) * 8 * nodes + place[owner]
    assert len(np.unique(codes)) == len(used)  # a link is known by what it becomes and its turns


def test_nothing_is_odd_where_all_are_slow() -> None:
    none, capacity = np.zeros(0, dtype=np.int64), LinkValues(np.ones(4))
    assert not Irregularities(np.full(4, 7), capacity, none, {}).has_irregularities
    assert Irregularities(np.array([0, 0, 1, 0]), capacity, none, {}).has_irregularities
    assert Irregularities(np.zeros(4, dtype=np.int64), capacity, np.array([3]), {}).has_irregularities


def test_links_have_the_colours_of_their_capacities_and_of_how_they_change() -> None:
    flap, load = WindowProfile(0.0), WindowProfile(0.5)
    capacity = LinkValues(np.array([2.0, 2.0, 3.0, 2.0, 2.0, 2.0]))
    odd = Irregularities(np.zeros(1, dtype=np.int64), capacity, np.arange(2), {4: flap, 1: load, 5: flap})
    assert odd.link_colours(np.array([0, 3]))[0] == odd.link_colours(np.array([3]))[0]
    assert odd.link_colours(np.array([4]))[0] == odd.link_colours(np.array([1, 5]))[1]
    assert len(set(odd.link_colours(np.array([0, 1, 2, 4])).tolist())) == 4
