"""Links that may hold traffic up, and collectives that have the cluster to themselves."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from bindings import Communicator, bindings_of
from conftest import Tiny
from fair_rates import fair_rates
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster.base.link_values import LinkValues
from simcluster.scenario.scenario import Scenario
from simcluster.simulate import simulate
from simcluster.symmetry.bottleneck_links import tight_rows
from simcluster.traffic.fairness import Usage


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[Usage], list[float]]:
    capacity = draw(st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=1, max_size=6))
    usage = st.dictionaries(st.integers(0, len(capacity) - 1), st.sampled_from([1.0, 2.0]), min_size=1, max_size=5)
    return [tuple(sorted(flows.items())) for flows in draw(st.lists(usage, min_size=1, max_size=5))], capacity


def rows_of(usages: list[Usage], capacity: list[float], varying: tuple[int, ...] = ()) -> list[Usage]:
    found = [Communicator("tp", (number,), (usage,), number) for number, usage in enumerate(usages)]
    bindings = bindings_of(found)
    rows = tight_rows(bindings, LinkValues(np.array(capacity)), varying, np.zeros(len(found), dtype=bool))
    kept = zip(bindings.user.tolist(), bindings.link.tolist(), bindings.flows.tolist(), rows.tolist(), strict=True)
    left: list[list[tuple[int, float]]] = [[] for _ in usages]
    for user, link, flows, tight in kept:
        if tight:
            left[user].append((link, flows))
    return [tuple(each) for each in left]


@settings(max_examples=100)
@given(case=loads(), under_way=st.sets(st.integers(0, 4)))
def test_rates_are_the_same_without_the_other_links(case: tuple[list[Usage], list[float]], under_way: set[int]) -> None:
    """Whatever is under way."""
    usages, capacity = case
    left = rows_of(usages, capacity)
    some = [number for number in range(len(usages)) if number in under_way]
    whole = fair_rates({number: usages[number] for number in some}, capacity)
    less = fair_rates({number: left[number] for number in some}, capacity)
    assert less == whole


def test_a_link_that_changes_stays() -> None:
    usages: list[Usage] = [((0, 1.0), (1, 1.0), (2, 1.0))]
    assert rows_of(usages, [1.0, 2.0, 4.0]) == [((0, 1.0),)]
    assert rows_of(usages, [1.0, 2.0, 4.0], (2,)) == [((0, 1.0), (2, 1.0))]


def classes(tiny: Tiny, **sections: Any) -> Counter[int]:
    scenario: Scenario = tiny(
        cluster={"topology": "dgx_h100", "nodes": 128},
        parallel={"tp": 8, "pp": 2, "dp": 64, "zero": 1},
        training={"global_batch": 128},
        **sections,
    )
    return Counter(simulate(scenario).folding.classes.of_rank)


def test_rings_and_sends_across_units_do_not_split_stages(tiny: Tiny) -> None:
    """The gradient norm's tree and the rings' way over the spines load links unevenly, and hold nobody up."""
    assert sorted(classes(tiny).values()) == [512, 512]
