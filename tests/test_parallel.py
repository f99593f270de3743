"""The rank grid: every axis splits the ranks, groups are what the order of the axes says, peers have the same place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.planning.rank_grid import AXES, ParallelPlan

SIZES = st.sampled_from([1, 2, 3, 4])
PLANS = st.builds(ParallelPlan, tp=SIZES, cp=SIZES, dp=SIZES, pp=SIZES, order=st.permutations(AXES).map(tuple))
SPANS = {  # communicator -> axes along which its members differ
    "tp": {"tp"},
    "cp": {"cp"},
    "dp": {"dp", "cp"},
    "pp": {"pp"},
    "model": {"tp", "pp"},
    "world": {"tp", "cp", "dp", "pp"},
}


@given(plan=PLANS, axis=st.sampled_from(sorted(SPANS)))
def test_groups_partition_the_ranks(plan: ParallelPlan, axis: str) -> None:
    groups = plan.groups(axis)
    assert sorted(groups.ravel().tolist()) == list(range(plan.num_ranks))
    assert groups.shape[1] == np.prod([getattr(plan, name) for name in SPANS[axis]], dtype=int)


@given(plan=PLANS, axis=st.sampled_from(sorted(SPANS)))
def test_members_of_a_group_differ_along_its_axes_alone(plan: ParallelPlan, axis: str) -> None:
    for group in plan.groups(axis).tolist():
        places = [plan.coordinates(rank) for rank in group]
        for other in set(AXES) - SPANS[axis]:
            assert len({place[other] for place in places}) == 1


@given(plan=PLANS, axis=st.sampled_from(["tp", "cp", "pp"]))
def test_a_group_lists_its_ranks_along_the_axis(plan: ParallelPlan, axis: str) -> None:
    for group in plan.groups(axis).tolist():
        assert [plan.coordinates(rank)[axis] for rank in group] == list(range(getattr(plan, axis)))


@given(plan=PLANS)
def test_groups_come_by_their_first_rank_and_wide_ones_in_placement_order(plan: ParallelPlan) -> None:
    for axis in (*SPANS, "embedding"):
        first = plan.groups(axis)[:, 0].tolist()
        assert first == sorted(first)
    for axis in ("dp", "model", "world"):
        if sum(getattr(plan, name) > 1 for name in SPANS[axis]) > 1:
            assert all(group == sorted(group) for group in plan.groups(axis).tolist())


@given(plan=PLANS)
def test_a_rank_is_the_mixed_radix_number_of_its_coordinates(plan: ParallelPlan) -> None:
    """``order`` lists the digits of the rank's number, fastest first."""
    for rank in range(plan.num_ranks):
        place, number, weight = plan.coordinates(rank), 0, 1
        for axis in plan.order:
            number += place[axis] * weight
            weight *= getattr(plan, axis)
        assert number == rank


@given(plan=PLANS)
def test_stages_and_grid_agree(plan: ParallelPlan) -> None:
    stages = plan.stage_of_every_rank().tolist()
    assert stages == [plan.coordinates(rank)["pp"] for rank in range(plan.num_ranks)]


@given(plan=PLANS)
def test_peers_share_their_place_on_every_other_axis(plan: ParallelPlan) -> None:
    for stage, other in itertools.product(range(plan.pp), repeat=2):
        ranks, peers = plan.stage_ranks()[stage], plan.stage_ranks()[other]
        assert sorted(ranks.tolist()) == [
            rank for rank, at in enumerate(plan.stage_of_every_rank().tolist()) if at == stage
        ]
        for rank, peer in zip(ranks.tolist(), peers.tolist(), strict=True):
            assert plan.coordinates(peer) == {**plan.coordinates(rank), "pp": other}


@given(plan=PLANS.filter(lambda plan: plan.pp > 1))
def test_the_embedding_is_shared_by_first_and_last_stage(plan: ParallelPlan) -> None:
    ranks, peers = plan.stage_ranks()[0], plan.stage_ranks()[-1]
    pairs = sorted(zip(ranks.tolist(), peers.tolist(), strict=True))
    assert plan.groups("embedding").tolist() == [list(pair) for pair in pairs]


def test_megatron_order() -> None:
    """tp neighbours are consecutive, then dp, and stages are farthest apart (Megatron-LM, parallel_state)."""
    plan = ParallelPlan(tp=2, dp=2, pp=2)
    assert plan.groups("tp").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert plan.groups("dp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert plan.groups("pp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert plan.groups("model").tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert plan.groups("embedding").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_stages_inside_and_replicas_outside() -> None:
    plan = ParallelPlan(tp=2, dp=2, pp=2, order=("tp", "cp", "pp", "dp"))
    assert plan.groups("tp").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert plan.groups("pp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert plan.groups("dp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("sizes", [{"tp": 0}, {"dp": -1}, {"tp": 2, "pp": 0}])
def test_a_size_below_one(sizes: dict[str, int]) -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        ParallelPlan(**sizes)
