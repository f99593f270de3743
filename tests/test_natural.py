"""Names in natural order, one by one and many at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.texts import natural_sort_key, natural_sort_keys


def test_numbers_in_names_are_numbers() -> None:
    assert sorted(["spine10", "spine2", "leaf3", "7"], key=natural_sort_key) == ["leaf3", "spine2", "spine10", "7"]


@given(names=st.lists(st.text("ab.019²", max_size=8), max_size=6))
def test_many_names_have_the_keys_of_each(names: list[str]) -> None:
    assert natural_sort_keys(names) == [natural_sort_key(name) for name in names]
