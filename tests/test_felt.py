"""Links that nobody has to look at: rates without them are those with them, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.step.planned import prepare
from simcluster.traffic.fairness import Usage, fair_rates, solo_rate
from simcluster.traffic.redundant_links import felt, narrowest

CAPACITIES = [48e9, 48e9, 48e9, 50e9, 24e9, 449.3e9]


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Usage], list[float]]:
    """Few links, so that many are used by the same, in like or in other numbers."""
    capacity = draw(st.lists(st.sampled_from(CAPACITIES), min_size=2, max_size=8))
    links = st.sampled_from(range(len(capacity)))
    flows = st.sampled_from([1.0, 1.0, 1.0, 2.0, 3.0, 0.125])
    usage = st.dictionaries(links, flows, min_size=1, max_size=len(capacity))
    usages = [tuple(sorted(each.items())) for each in draw(st.lists(usage, min_size=1, max_size=8))]
    return usages, capacity


SEEN = {"fewer": 0, "all": 0}


@settings(max_examples=150)
@given(network=networks(), data=st.data())
def test_rates_are_the_same(network: tuple[list[Usage], list[float]], data: st.DataObject) -> None:
    usages, capacity = network
    left = felt([[usage] for usage in usages], capacity, ())
    there = data.draw(st.lists(st.sampled_from(range(len(usages))), unique=True, min_size=1))
    bounds = {number: data.draw(st.sampled_from([1e9, 7e9, 30e9, 1e12])) for number in there if number % 2}
    whole = fair_rates({number: usages[number] for number in there}, capacity, bounds)
    few = fair_rates({number: left[number, usages[number]] for number in there}, capacity, bounds)
    assert few == whole
    SEEN["fewer" if any(left[number, usages[number]] != usages[number] for number in there) else "all"] += 1


def test_some_links_were_left_out() -> None:
    assert not sum(SEEN.values()) or min(SEEN.values()) > 10


def test_which_links_are_left() -> None:
    """A cable behind a NIC, as wide: one of both.  A link with others as well: it alone.  A narrower one stays."""
    usages: list[list[Usage]] = [[((0, 1.0), (1, 1.0), (2, 1.0))], [((2, 1.0), (3, 1.0))]]
    assert felt(usages, [5.0, 5.0, 5.0, 5.0], ()) == {(0, usages[0][0]): ((2, 1.0),), (1, usages[1][0]): ((2, 1.0),)}
    assert felt(usages, [4.0, 5.0, 5.0, 5.0], ())[0, usages[0][0]] == ((0, 1.0), (2, 1.0))
    assert felt(usages, [5.0, 5.0, 5.0, 5.0], {0: None})[0, usages[0][0]] == ((0, 1.0),)


@pytest.mark.parametrize("usage", [(), ((3, 2.0),), ((1, 1.0), (2, 4.0), (3, 1.0))])
def test_alone_the_narrowest_link_decides(usage: Usage) -> None:
    capacity = [1.0, 7.0, 9.0, 11.0]
    assert solo_rate(narrowest(usage, capacity), capacity) == solo_rate(usage, capacity)


@pytest.mark.parametrize("change", [{}, {"faults": [{"kind": "slow_link", "between": ["node0.gpu1", "node0.nic1"],
                                                     "factor": 0.5, "start": "1 ms"}]}])  # fmt: skip
def test_what_changes_on_the_way_is_felt(tiny: Tiny, change: dict[str, Any]) -> None:
    cluster = {"topology": "dgx_h100", "nodes": 4, "gpus_per_node": 2}
    job = {"gpus": 8, "parallel": {"tp": 2, "dp": 4}, "training": {"global_batch": 8}}
    program = prepare(tiny(cluster=cluster, **job, **change)).lowered.program
    moving = [traffic for traffics in program.traffics for traffic in traffics if traffic.usage]
    assert moving
    assert all((traffic.felt is None) == bool(change) for traffic in moving)
