"""What of a difference is the recipe's: bytes a parameter follow from the precision unless a scenario names them, so
two precisions often differ in the width of their gradients, which is what takes the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.model.recipes import Recipe
from simcluster.scenario.memory_plan import change_words, recipe_of
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.step.simulate import replay

_PATH = "training.memory_recipe"


@dataclass(frozen=True, slots=True)
class RecipeChange:
    """Two recipes; ``default`` if neither scenario names its own.

    ``alone`` is by how many seconds the first one's step is longer with the second one's recipe and nothing else
    changed, as played; None where nothing else differs, or where that cannot be.
    """

    before: Recipe
    after: Recipe
    default: bool
    alone: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"before": self.before.name, "after": self.after.name, "default": self.default, "alone_s": self.alone}

    def in_words(self) -> str:
        """A sentence, or two."""
        why = ", which follows from the precision" if self.default else ""
        text = (
            f"Another recipe, {self.after.name} for {self.before.name}{why}: {change_words(self.before, self.after)}."
        )
        if self.alone is None:
            return text
        sense = "longer" if self.alone > 0 else "less"
        return f"{text} That alone takes {format_seconds(abs(self.alone))} {sense}."


def recipe_change(base: Mapping[str, Any], other: Mapping[str, Any], step_time: float) -> RecipeChange | None:
    """The change of the recipe between two documents of scenarios; None if there is none, or none can be read.

    ``step_time`` is what a step of ``base`` takes, in seconds.
    """
    try:
        first, second = from_document(base), from_document(other)
    except InputError:  # a saved result of files that are elsewhere
        return None
    before, after = recipe_of(first), recipe_of(second)
    if before == after:
        return None
    default = first.training.memory_recipe is None and second.training.memory_recipe is None
    return RecipeChange(before, after, default, _alone(first, second, step_time))


def _alone(first: Scenario, second: Scenario, step_time: float) -> float | None:
    """By how much the first one's step is longer with the second one's recipe."""
    name = recipe_of(second).name
    try:
        changed = from_document(first.document(), [(_PATH, name)])
    except InputError:  # a recipe that the rest of the scenario cannot have
        return None
    named = second.model_copy(update={"training": second.training.model_copy(update={"memory_recipe": name})})
    if _played(changed) == _played(named):
        return None
    return replay(changed).step_time - step_time


def _played(scenario: Scenario) -> dict[str, Any]:
    """The document without what plays no part in a step."""
    return {key: value for key, value in scenario.document().items() if key not in ("name", "measured")}
