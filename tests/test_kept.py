"""The cache that gives up what was not used for longest."""

from __future__ import annotations

import copy
import pickle

from simcluster.base.lru_cache import LruCache
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate


def test_what_was_not_used_for_longest_is_given_up() -> None:
    made: list[int] = []
    kept = LruCache(2)
    for name in (1, 2, 1, 3, 1, 2):
        assert kept.get_or_make(name, lambda name=name: made.append(name) or 10 * name) == 10 * name  # type: ignore[misc]
    assert made == [1, 2, 3, 2]


def test_a_copy_is_empty_and_a_scenario_that_was_played_can_be_copied() -> None:
    kept = LruCache(2)
    kept.get_or_make(1, lambda: 2)
    for other in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert len(other) == 0
        assert other.get_or_make(1, lambda: 3) == 3
    scenario = load("tiny_3d")
    result = simulate(scenario)
    assert simulate(copy.deepcopy(scenario)).step_time == copy.deepcopy(result).step_time == result.step_time
