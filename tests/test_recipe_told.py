"""The recipe as part of the answer: bytes a parameter in text and JSON, and as the cause of a difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import simcluster
from simcluster import cli
from simcluster.model.layers import stage_parameters_per_tp_rank
from simcluster.model.recipes import RECIPES
from simcluster.scenario.memory_plan import describe_recipe, describe_recipe_change
from simcluster.studies.whatif.difference import explain_difference

PLAIN: dict[str, Any] = {"gpus": 1, "parallel": {"dp": 1}, "training.global_batch": 4, "overlap": {}}


def test_the_json_says_the_bytes_and_who_chose_them() -> None:
    said = simcluster.simulate(simcluster.scenario("tiny_dp")).to_dict()["bytes_per_parameter"]
    assert said == {"weight": 2, "gradient": 4, "optimizer": 12, "recipe": "mixed-18", "default": True}
    named = simcluster.scenario("tiny_dp", {"training.memory_recipe": "bf16-12"})
    said = simcluster.simulate(named).to_dict()["bytes_per_parameter"]
    assert said == {"weight": 2, "gradient": 2, "optimizer": 8, "recipe": "bf16-12", "default": False}


@pytest.mark.parametrize("recipe", ["mixed-16", "mixed-18", "fp32-16", "bf16-12"])
def test_they_are_those_that_memory_counts(recipe: str) -> None:
    """On one GPU, which shards nothing: parameters x bytes is the model state held."""
    scenario = simcluster.scenario("tiny_dp", {**PLAIN, "training.memory_recipe": recipe})
    result = simcluster.simulate(scenario)
    document, model = result.to_dict(), scenario.model
    number = stage_parameters_per_tp_rank(model, 1, layers=model.layers, first=True, last=True)
    said, held = document["bytes_per_parameter"], document["memory_bytes"]
    assert held["parameters"] == number * said["weight"]
    assert held["gradients"] == number * said["gradient"]
    assert held["optimizer"] == number * said["optimizer"]


def test_the_run_says_it_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "tiny_dp"]) == 0
    line = "18 B per parameter (weights 2, gradients 4, optimizer 12: mixed-18, by default)"
    assert line in [each.strip() for each in capsys.readouterr().out.splitlines()]
    assert describe_recipe(simcluster.scenario("tiny_dp", {"training.memory_recipe": "mixed-16"})) == (
        "16 B per parameter (weights 2, gradients 2, optimizer 12: mixed-16)"
    )


def test_another_precision_is_another_width_of_gradients(tmp_path: Path) -> None:
    """tiny_dp with fp16-mixed is faster because its recipe has gradients of 2 B: the recipe alone does as much."""
    sides = [simcluster.scenario("tiny_dp"), simcluster.scenario("tiny_dp", {"training.precision": "fp16-mixed"})]
    found = explain_difference(*sides)
    assert found.recipe is not None
    assert found.recipe.step_time_change is not None
    alone = simcluster.simulate(simcluster.scenario("tiny_dp", {"training.memory_recipe": "mixed-16"})).step_time
    assert found.recipe.step_time_change == alone - found.base.step_time
    assert abs(found.seconds - found.recipe.step_time_change) < 0.03 * abs(found.seconds)
    why = "from mixed-18 to mixed-16, which follows from the precision: gradients 4 -> 2 B per parameter"
    assert f"The memory recipe changes {why}" in found.describe()
    assert "This alone makes a step 3.884 ms shorter." in found.describe()
    assert found.to_dict()["recipe"] == {
        "before": "mixed-18", "after": "mixed-16", "default": True, "alone_s": found.recipe.step_time_change,
    }  # fmt: skip
    saved = [tmp_path / f"{name}.json" for name in ("before", "after")]
    for path, side in zip(saved, sides, strict=True):
        path.write_text(json.dumps(simcluster.simulate(side).to_dict()))
    assert explain_difference(*saved).recipe == found.recipe


def test_a_recipe_that_is_all_that_differs_is_not_played_again() -> None:
    found = explain_difference("tiny_dp", simcluster.scenario("tiny_dp", {"training.memory_recipe": "mixed-16"}))
    assert found.recipe is not None
    assert (found.recipe.step_time_change, found.recipe.follows_precision) == (None, False)
    assert "The memory recipe changes from mixed-18 to mixed-16: gradients" in found.describe()
    assert (
        explain_difference("tiny_dp", simcluster.scenario("tiny_dp", {"training.memory_recipe": "mixed-18"})).recipe
        is None
    )


def test_compare_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "tiny_dp", "--vary", "training.precision=bf16-mixed,fp16-mixed"]) == 0
    assert "recipe of 'precision fp16-mixed': mixed-16 for mixed-18, gradients 4 -> 2 B" in capsys.readouterr().out
    assert cli.main(["compare", "tiny_dp", "--vary", "training.micro_batch=1,2"]) == 0
    assert "recipe of" not in capsys.readouterr().out


def test_every_change_of_recipe_has_words() -> None:
    for before in RECIPES.values():
        for after in RECIPES.values():
            parts = ("weight", "gradient", "optimizer")
            changed = sum(getattr(before, part) != getattr(after, part) for part in parts)
            words = describe_recipe_change(before, after)
            assert words.count(" -> ") == changed
            assert words
