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
from simcluster.base.link_columns import LinkColumn, LinkRows
from simcluster.collectives.description import Phase
from simcluster.collectives.group import EqualNodeRings
from simcluster.collectives.tree import DoubleTreeHops
from simcluster.topology import Cluster
from simcluster.topology.switch_links import MachineRows
from simcluster.traffic.hop_columns import find_double_tree_loads
from simcluster.traffic.link_usage import ClusterWidePattern, batch_link_usage


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
def numbers(draw: st.DrawFn, on: LinkRows, least: int, most: int) -> LinkColumn:
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
    return LinkColumn(on, tuple(kinds), tuple(values), some(len(on.rest)))


def one_by_one(numbers: LinkColumn) -> list[int]:
    """From the definition."""
    found = dict(zip(numbers.rows.rest.tolist(), numbers.rest.tolist(), strict=True))
    for table, kind, values in zip(numbers.rows.tables, numbers.row_kinds, numbers.values, strict=True):
        for row, links in enumerate(table.tolist()):
            found.update(zip(links, values[kind[row]].tolist(), strict=True))
    return [found[link] for link in range(len(numbers.rows.position_of_link))]


@given(data=st.data())
def test_every_link_has_its_number(data: st.DataObject) -> None:
    on = data.draw(rows())
    made = data.draw(numbers(on, -1, len(on.position_of_link) - 1))
    plain = one_by_one(made)
    some = np.array(data.draw(st.lists(st.integers(0, len(plain) - 1))), dtype=np.int64)
    assert made.all_values.tolist() == plain
    assert made.values_at(some).tolist() == [plain[link] for link in some.tolist()]
    assert LinkColumn.from_array(made.all_values).values_at(some).tolist() == made.values_at(some).tolist()
    assert made.map_values(lambda values: 2 * values + 1).all_values.tolist() == [2 * number + 1 for number in plain]
    assert max(plain) <= made.largest_value or made.largest_value == 0
    assert {*plain} - {-1} <= {*made.distinct_links.tolist()}  # and those of kinds that no row is of


@given(data=st.data())
def test_firsts_places_and_pairs_are_those_of_the_links_one_by_one(data: st.DataObject) -> None:
    on = data.draw(rows())
    made, other = (data.draw(numbers(on, 0, 3)) for _ in range(2))
    plain, another = one_by_one(made), one_by_one(other)
    assert made.first_link_of_each(5).tolist() == [
        plain.index(number) if number in plain else -1 for number in range(5)
    ]
    flat = LinkColumn.from_array(np.array(another, dtype=np.int32))
    for each in (other, flat):
        both = [(each.largest_value + 1) * a + b for a, b in zip(plain, another, strict=True)]
        assert made.combine_with(each).all_values.tolist() == both
    links = data.draw(numbers(on, -1, len(plain) - 1))
    those = np.unique(data.draw(st.lists(st.integers(0, len(plain) - 1)))).astype(np.int64)
    place = {link: number for number, link in enumerate(those.tolist())}
    wide = LinkRows.from_tables(
        [np.arange(len(plain), dtype=np.int32).reshape(1, -1)], 100 * len(plain)
    )  # so few that they are looked up
    few = LinkColumn(wide, (np.zeros(1, dtype=np.int64),), (links.all_values[None],), np.zeros(0, dtype=np.int32))
    for each in (links, few):
        assert each.replace_by_positions(those).values_at(np.arange(len(plain))).tolist() == [
            place.get(link, len(those)) for link in one_by_one(links)
        ]


@given(table=st.lists(st.lists(st.integers(-1, 2), min_size=2, max_size=2), min_size=1, max_size=8), data=st.data())
def test_machines_of_a_kind_have_equal_rows(table: list[list[int]], data: st.DataObject) -> None:
    made = MachineRows.from_rows(np.array(table))
    assert made.table[made.kind].tolist() == table
    assert len(np.unique(made.table, axis=0)) == len(made.table)
    onto = np.array(data.draw(st.permutations(range(len(table)))))
    own, there = made.pair_rows(np.arange(len(table)), onto)
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
    walks = EqualNodeRings(len(chosen), 8, tuple(map(tuple, orders)))
    phases = [Phase(1, DoubleTreeHops(walks, up=up), 1, reduces=up, pipelined=True) for up in (True, False)]
    members = gpus[chosen].ravel()
    found = find_double_tree_loads(cluster, members, phases)
    assert found is not None
    (slow,) = batch_link_usage(cluster, members[None], phases, timed=True)
    quick = ClusterWidePattern(*found)
    assert quick.usage_key == slow.usage_key
    assert quick.flows_on_links(slow.links).tolist() == slow.flows.tolist()
