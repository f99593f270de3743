"""What every optimizer promises, whoever adds it: it acts on its state or its time, and no engine takes it for another.

The optimizers are those of ``OPTIMIZERS``.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
from conftest import tiny_scenario
from test_reference import compare_scenario

from simcluster import InputError, Scenario, simulate
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.model.recipes import RECIPES
from simcluster.model.transformer import Model
from simcluster.planning.optimizer import Optimizer, UpdateContext, get_optimizer_class
from simcluster.planning.optimizer_registry import OPTIMIZERS
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.scenario.scenario import load
from simcluster.scenario.training_section import Training
from simcluster.studies.fast_path_scopes import PLAN, QUICK

every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
SPLIT = {"parallel.zero": (0, 1, 2, 3), "memory.offload.optimizer": ("none", "stream", "host")}
MODEL = Model(**{**load_model_entry("deepseek-v2-lite"), "sequence_length": 4096})


def job(name: str, **changes: Any) -> Scenario:
    return load("tiny_3d", {"training.optimizer": name, "parallel.zero": 0, "model.layers": 4, **changes})


def made(name: str, plan: ParallelPlan, zero: int = 0) -> Optimizer:
    """Bound to a job whose passes over memory take a second for each byte, and whose matmuls a second for each FLOP."""
    times = (lambda size: size), (lambda kernels: sum(kernel.flops for kernel in kernels))
    update = UpdateContext(MODEL, plan, RECIPES["mixed-18"], zero, 1e6, *times)
    return get_optimizer_class(name).from_training_section(update, Training(global_batch=1))


@every_optimizer
def test_no_engine_takes_it_for_another(name: str) -> None:
    compare_scenario(job(name))


@every_optimizer
def test_it_is_adam_or_it_differs(name: str) -> None:
    """In its time, its calls or its state."""
    adam, own = (simulate(job(each)) for each in ("adam", name))
    same = adam.step_time == own.step_time and adam.facts.footprints == own.facts.footprints
    assert same == (name == "adam")


@every_optimizer
@pytest.mark.parametrize("path", SPLIT)
def test_it_is_modelled_with_what_splits_its_state_or_refuses_it_by_name(name: str, path: str) -> None:
    allowed = get_optimizer_class(name).MODELLED_WITH.get(path)
    for value in SPLIT[path]:
        changes = {path: value, "memory.offload.host_update": "10 GB/s"} if value == "host" else {path: value}
        if allowed is None or value in allowed.values:
            assert simulate(job(name, **changes)).step_time > 0
        else:
            with pytest.raises(InputError, match=name):
                job(name, **changes)


@every_optimizer
def test_fields_that_it_names_are_those_of_a_scenario(name: str) -> None:
    for path, allowed in get_optimizer_class(name).MODELLED_WITH.items():
        assert attrgetter(path)(job(name)) in allowed.values


@every_optimizer
@pytest.mark.parametrize("plan", [ParallelPlan(), ParallelPlan(tp=2, dp=4), ParallelPlan(tp=2, dp=8, ep=4, etp=1)])
def test_its_state_is_at_most_adams_and_none_is_below_nothing(name: str, plan: ParallelPlan) -> None:
    layers = [0, 1, MODEL.layers - 1]
    own = made(name, plan)
    matrices = sum(each.elements * each.count for held in own.held_matrices(layers) for each in held)
    assert 0 <= own.saved_state_bytes(layers) <= matrices * RECIPES["mixed-18"].optimizer
    assert own.saved_state_bytes(layers) == own.unneeded_adam_state(layers).total
    one, two = (own.unneeded_adam_state(each).total for each in ([0], [1]))
    assert own.unneeded_adam_state([0, 1]).total == pytest.approx(one + two)


@every_optimizer
def test_the_whole_model_spares_what_its_layers_do(name: str) -> None:
    whole = made(name, ParallelPlan())
    assert 0 <= whole.unneeded_bytes_per_parameter < RECIPES["mixed-18"].optimizer
    assert (whole.unneeded_bytes_per_parameter > 0) == (whole.saved_state_bytes([0]) > 0)


@every_optimizer
def test_an_update_takes_time_and_names_what_it_sends(name: str) -> None:
    plan = ParallelPlan(tp=2, dp=4)
    update = made(name, plan).update_work([0, 1])
    held = sum(each.elements * each.count for mine in made(name, plan).held_matrices([0, 1]) for each in mine)
    assert update.seconds + held * RECIPES["mixed-18"].update_traffic > 0
    assert all(size > 0 and len(plan.groups(axis)) for axis, size in (*update.calls, *update.exchanges))
    assert made(name, plan).update_work([0, 1]) == update


@every_optimizer
def test_a_fast_path_knows_it_or_refuses_it(name: str) -> None:
    for scope in (QUICK, PLAN):
        known = scope.field_limits["training.optimizer"].values
        obstacle = scope.find_obstacle(tiny_scenario(training={"optimizer": name}))
        assert ("optimizer" in obstacle) == (name not in known)


def test_an_optimizer_that_says_nothing_is_refused_wherever_its_state_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """The neutral answers allow none of it."""
    monkeypatch.setitem(OPTIMIZERS, "own", "simcluster.planning.optimizer:Optimizer")
    job("own")
    for changes, words in (
        ({"parallel.zero": 1}, "parallel.zero: is not modelled with training.optimizer: own; use 0"),
        ({"memory.offload.optimizer": "stream"}, "is not modelled with training.optimizer: own; use none"),
    ):
        with pytest.raises(InputError, match=words):
            job("own", **changes)
    assert PLAN.find_obstacle(job("own")) == "the search for layouts does not support training.optimizer own"
