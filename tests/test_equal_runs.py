"""Runs of equal values in a column."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from simcluster.base.arrays import run_start_mask, run_starts


@pytest.mark.parametrize("values", [[], [7], [3, 3], [3, 3, 5, 3], [0.0, -0.0, 1.5, 1.5], ["a", "b", "b"]])
@pytest.mark.parametrize("kind", [None, object])
def test_runs_are_those_of_groupby(values: list[object], kind: type | None) -> None:
    lengths = [len(list(run)) for _, run in itertools.groupby(values)]
    column = np.array(values, dtype=kind)
    assert run_starts(column).tolist() == list(itertools.accumulate([0, *lengths]))[: len(lengths)]
    assert np.flatnonzero(run_start_mask(column)).tolist() == run_starts(column).tolist()
