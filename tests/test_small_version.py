"""A job's small version: a scenario of one machine whose ranks compute what the job's do, as a file that runs."""

from __future__ import annotations

from typing import Any

import pytest

import simcluster
from simcluster.longrun.launch.small_version import STEPS, choose_small_layout, minimal_document, small_version
from simcluster.model.layers import layer_parameters_per_tp_rank
from simcluster.scenario.scenario import Scenario, from_document

JOBS = (
    "gpt3_175b_64xa100",
    "hsdp_7b_128xa100",
    "mixtral_8x7b_128xh100",
    "packing_16",
    "week_64xa100",
    "fsdp_7b_64xa100",
)


@pytest.mark.parametrize("name", JOBS)
def test_a_small_version_is_a_scenario_of_one_machine_with_the_same_ranks(name: str) -> None:
    whole = simcluster.scenario(name)
    found = small_version(whole)
    small = found.scenario
    assert simcluster.scenario(found.text()) == small == from_document(minimal_document(small))
    assert len(set(small.cluster.built.host_of[: small.gpus])) == 1
    assert found.result.fits
    parallel, before = small.parallel, whole.parallel
    room = {"tp": before.tp, "pp": before.pp, "dp": whole.dp}
    assert all((getattr(parallel, axis) > 1) == (size > 1) for axis, size in room.items())
    one, other = (layer_parameters_per_tp_rank(each.model, each.parallel.tp) for each in (whole, small))
    if whole.model.moe is None:
        assert one == other
    kept = ("overlap", "memory", "collectives", "software")
    assert all(getattr(small, section) == getattr(whole, section) for section in kept)
    assert small.pipeline.schedule_name == whole.pipeline.schedule_name
    assert small.training.micro_batch == whole.training.micro_batch


def test_kernels_of_a_rank_keep_their_shapes() -> None:
    """The matrix products of a layer, by shape, are those of the whole job."""
    whole = simcluster.scenario("gpt3_175b_64xa100")

    def shapes(scenario: Scenario) -> set[tuple[Any, ...]]:
        rows = [row for stage in (0, scenario.parallel.pp - 1) for row in simcluster.kernels(scenario, stage=stage)]
        return {(row.block, row.name, row.phase, row.m, row.k, row.n, row.batch) for row in rows if row.m}

    assert shapes(small_version(whole).scenario) == shapes(whole)


def test_its_run_goes_through_its_checkpoints() -> None:
    small = small_version(simcluster.scenario("week_64xa100")).scenario
    assert small.run is not None
    assert (small.run.steps, small.run.checkpoint.every) == (STEPS, "50 steps")
    played = simcluster.train(small, played=1)
    assert played.outcomes.steps.tolist() == [STEPS]


def test_layouts_keep_what_one_machine_has_room_for() -> None:
    whole = simcluster.scenario("gpt3_175b_64xa100")
    assert [choose_small_layout(whole, gpus).tp for gpus in (8, 4, 2, 1)] == [4, 2, 2, 1]
    assert [choose_small_layout(whole, gpus).pp for gpus in (8, 4, 2, 1)] == [2, 2, 1, 1]


def test_what_has_no_machine_says_so() -> None:
    with pytest.raises(simcluster.InputError, match="name a type of node"):
        small_version(simcluster.scenario("tiny_dp"))
