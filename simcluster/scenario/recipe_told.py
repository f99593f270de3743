"""The recipe of a scenario in words and numbers: bytes a parameter, and who chose them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from simcluster.model.recipes import Recipe
from simcluster.scenario.memory_plan import recipe_of

if TYPE_CHECKING:
    from simcluster.scenario.scenario import Scenario


def recipe_document(scenario: Scenario) -> dict[str, Any]:
    """As in the result JSON: bytes of each part before any sharding; ``default``: it follows from the precision."""
    recipe = recipe_of(scenario)
    return {
        "weight": recipe.weight,
        "gradient": recipe.gradient,
        "optimizer": recipe.optimizer,
        "recipe": recipe.name,
        "default": scenario.training.memory_recipe is None,
    }


def recipe_words(scenario: Scenario) -> str:
    """One line: 18 B a parameter (weights 2, gradients 4, optimizer 12: mixed-18, by default)."""
    recipe = recipe_of(scenario)
    default = ", by default" if scenario.training.memory_recipe is None else ""
    return f"{recipe.total:g} B a parameter ({parts_of(recipe)}: {recipe.name}{default})"


def parts_of(recipe: Recipe) -> str:
    """Bytes by part: weights 2, gradients 4, optimizer 12."""
    return f"weights {recipe.weight:g}, gradients {recipe.gradient:g}, optimizer {recipe.optimizer:g}"


def change_words(before: Recipe, after: Recipe) -> str:
    """What another recipe changes: gradients 4 -> 2 B a parameter, in memory and over dp."""
    return "; ".join(_changes(before, after)) or "what the update reads and writes"


def _changes(before: Recipe, after: Recipe) -> Iterator[str]:
    """Parts that differ; gradients are what replicas reduce, weights what ZeRO gathers."""
    if before.gradient != after.gradient:
        yield f"gradients {before.gradient:g} -> {after.gradient:g} B a parameter, in memory and over dp"
    if before.weight != after.weight:
        yield f"weights {before.weight:g} -> {after.weight:g} B"
    if before.optimizer != after.optimizer:
        yield f"optimizer {before.optimizer:g} -> {after.optimizer:g} B"
