"""A float for each link: by sort or one by one, with factors on some."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.link_columns import LinkValues

floats = st.lists(st.sampled_from([0.1, 0.7, 3.0]), min_size=1, max_size=4)
factors = st.lists(st.tuples(st.integers(0, 8), st.sampled_from([0.3, 0.5, 1.0])), max_size=5)


@given(of_sort=floats, factors=factors, by_sort=st.booleans())
def test_of_some_links_is_that_of_all(of_sort: list[float], factors: list[tuple[int, float]], by_sort: bool) -> None:
    plain = np.resize(np.array(of_sort), 9)
    sorts = np.arange(9, dtype=np.uint8) % len(of_sort)
    values = LinkValues(np.array(of_sort), sorts) if by_sort else LinkValues(plain.copy())
    scaled = values.multiply(factors[:2]).multiply(factors[2:])
    expected = plain.copy()
    for link, factor in factors:
        expected[link] *= factor
    links = np.array([3, 8, 0, 3, 1])
    assert len(scaled) == 9
    assert scaled.values_at(links).tolist() == expected[links].tolist()
    assert values.values_at(links).tolist() == plain[links].tolist()
    assert scaled.changed_links(values).tolist() == np.flatnonzero(expected != plain).tolist()
    assert values.changed_links(LinkValues(expected)).tolist() == np.flatnonzero(expected != plain).tolist()
    assert values.changed_links(values).tolist() == []
    assert scaled.all_values.tolist() == expected.tolist()
    assert values.all_values.tolist() == plain.tolist()


def test_an_array_of_all_is_shared_and_not_written_to() -> None:
    values = LinkValues(np.ones(3))
    assert values.all_values is values.all_values
    with pytest.raises(ValueError, match="read-only"):
        values.all_values[0] = 2.0
    assert values.multiply([(0, 2.0)]).all_values.tolist() == [2.0, 1.0, 1.0]
    assert values.all_values.tolist() == [1.0, 1.0, 1.0]
