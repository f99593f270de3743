"""Numbers told by rows are those of the links one by one; so are flows of trees and turns of links."""

from __future__ import annotations

from ast import literal_eval
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster import load_cluster
from simcluster.base.link_columns import LinkRows, PerLink
from simcluster.collectives.description import Phase
from simcluster.collectives.group import NodeWalks
from simcluster.collectives.tree import ChainedTrees
from simcluster.topology import Cluster
from simcluster.topology.hops import ByMachine
from simcluster.traffic.hop_columns import load_chained_trees
from simcluster.traffic.link_usage import ClusterWidePattern, usage_at_once


@st.composite
def rows(draw: st.DrawFn) -> LinkRows:
    """Links dealt to tables in any order, or ascending, some to none."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=3))
    used = sum(height * width for height, width in shapes)
    size = used + draw(st.integers(0, 5)) + (not used)
    links = np.array(draw(st.permutations(range(size))) if draw(st.booleans()) else range(size), dtype=np.int64)
    tables, first = [], 0
    for height, width in shapes:
        tables.append(links[first : first + height * width].reshape(height, width))
        first += height * width
    return LinkRows.from_tables([table.astype(np.int32) for table in tables], size)


@st.composite
def numbers(draw: st.DrawFn, on: LinkRows, least: int, most: int) -> PerLink:
    """Any numbers of these links."""
    value = st.integers(least, most)

    def some(*shape: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        count = int(np.prod(shape))
        return np.array(draw(st.lists(value, min_size=count, max_size=count)), dtype=np.int32).reshape(shape)

    kinds, values = [], []
    for table in on.tables:
        several = draw(st.integers(1, len(table) + 1))  # some may be of no row
        kinds.append(np.array(draw(st.lists(st.integers(0, several - 1), min_size=len(table), max_size=len(table)))))
        values.append(some(several, table.shape[1]))
    return PerLink(on, tuple(kinds), tuple(values), some(len(on.rest)))


def one_by_one(numbers: PerLink) -> list[int]:
    """From the definition."""
    found = dict(zip(numbers.rows.rest.tolist(), numbers.rest.tolist(), strict=True))
    for table, kind, values in zip(numbers.rows.tables, numbers.kinds, numbers.values, strict=True):
        for row, links in enumerate(table.tolist()):
            found.update(zip(links, values[kind[row]].tolist(), strict=True))
    return [found[link] for link in range(len(numbers.rows.place))]


@given(data=st.data())
def test_every_link_has_its_number(data: st.DataObject) -> None:
    on = data.draw(rows())
    made = data.draw(numbers(on, -1, len(on.place) - 1))
    plain = one_by_one(made)
    some = np.array(data.draw(st.lists(st.integers(0, len(plain) - 1))), dtype=np.int64)
    assert made.all.tolist() == plain
    assert made.of(some).tolist() == [plain[link] for link in some.tolist()]
    assert PerLink.uncompressed(made.all).of(some).tolist() == made.of(some).tolist()
    assert made.apply(lambda values: 2 * values + 1).all.tolist() == [2 * number + 1 for number in plain]
    assert max(plain) <= made.maximum or made.maximum == 0
    assert {*plain} - {-1} <= {*made.distinct.tolist()}  # and those of kinds that no row is of


@given(data=st.data())
def test_firsts_places_and_pairs_are_those_of_the_links_one_by_one(data: st.DataObject) -> None:
    on = data.draw(rows())
    made, other = (data.draw(numbers(on, 0, 3)) for _ in range(2))
    plain, another = one_by_one(made), one_by_one(other)
    assert made.first_links(5).tolist() == [plain.index(number) if number in plain else -1 for number in range(5)]
    flat = PerLink.uncompressed(np.array(another, dtype=np.int32))
    for each in (other, flat):
        both = [(each.maximum + 1) * a + b for a, b in zip(plain, another, strict=True)]
        assert made.combine(each).all.tolist() == both
    links = data.draw(numbers(on, -1, len(plain) - 1))
    those = np.unique(data.draw(st.lists(st.integers(0, len(plain) - 1)))).astype(np.int64)
    place = {link: number for number, link in enumerate(those.tolist())}
    wide = LinkRows.from_tables(
        [np.arange(len(plain), dtype=np.int32).reshape(1, -1)], 100 * len(plain)
    )  # so few that they are looked up
    few = PerLink(wide, (np.zeros(1, dtype=np.int64),), (links.all[None],), np.zeros(0, dtype=np.int32))
    for each in (links, few):
        assert each.positions_in(those).of(np.arange(len(plain))).tolist() == [
            place.get(link, len(those)) for link in one_by_one(links)
        ]


@given(table=st.lists(st.lists(st.integers(-1, 2), min_size=2, max_size=2), min_size=1, max_size=8), data=st.data())
def test_machines_of_a_kind_have_equal_rows(table: list[list[int]], data: st.DataObject) -> None:
    made = ByMachine.of(np.array(table))
    assert made.table[made.kind].tolist() == table
    assert len(np.unique(made.table, axis=0)) == len(made.table)
    onto = np.array(data.draw(st.permutations(range(len(table)))))
    own, there = made.moved(np.arange(len(table)), onto)
    pairs = {(*own, *there) for own, there in zip(own.tolist(), there.tolist(), strict=True)}
    assert pairs == {(*table[a], *table[b]) for a, b in enumerate(onto.tolist())}


FABRICS: list[tuple[str, list[tuple[str, object]]]] = [
    ("dgx_h100", [("nodes", 16), ("fabric", {"nodes_per_unit": 4})]),
    ("dgx_h100", [("nodes", 16), ("fabric", {"nodes_per_unit": 3})]),
    ("dgx_h100", [("nodes", 16), ("fabric", {"nodes_per_unit": 4}), ("routing", {"kind": "shortest"})]),
    ("dgx_h100", [("nodes", 16), ("fabric", {"nodes_per_unit": 4}), ("routing", {"kind": "ecmp", "seed": 5})]),
    ("dgx_h100", [("nodes", 16), ("fabric", {"nodes_per_unit": 4}), ("routing", {"kind": "static"})]),
    ("dgx_h100", [("nodes", 16), ("fabric", {"nodes_per_unit": 3, "oversubscription": 2.0})]),
    (
        "dgx_h100",
        [("nodes", 16), ("fabric", {"nodes_per_unit": 2, "units_per_pod": 2}), ("routing", {"kind": "static"})],
    ),
    ("dgx_a100", [("nodes", 12), ("fabric", {"nodes_per_unit": 4})]),
    ("fat_tree_3level", []),
]


@cache
def built(name: str, changes: str) -> Cluster:
    """Once for all examples."""
    return load_cluster(name, literal_eval(changes))


@pytest.mark.parametrize("fabric", FABRICS)
@settings(max_examples=15)
@given(data=st.data())
def test_trees_of_chains_told_by_rows_are_drawn_hop_by_hop(
    fabric: tuple[str, list[tuple[str, object]]], data: st.DataObject
) -> None:
    """On any machines, in any order, with chains in any order on any rails."""
    cluster = built(fabric[0], repr(fabric[1]))
    gpus = np.arange(len(cluster.host_of)).reshape(-1, 8)
    chosen = data.draw(st.lists(st.integers(0, len(gpus) - 1), min_size=2, max_size=12, unique=True))
    orders = data.draw(st.lists(st.permutations(range(8)), min_size=1, max_size=3))
    walks = NodeWalks(len(chosen), 8, tuple(map(tuple, orders)))
    phases = [Phase(1, ChainedTrees(walks, up=up), 1, reduces=up, pipelined=True) for up in (True, False)]
    members = gpus[chosen].ravel()
    found = load_chained_trees(cluster, members, phases)
    assert found is not None
    (slow,) = usage_at_once(cluster, members[None], phases, timed=True)
    quick = ClusterWidePattern(*found)
    assert quick.name == slow.name
    assert quick.on_links(slow.link).tolist() == slow.flows.tolist()
