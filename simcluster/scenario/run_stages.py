"""A recipe over time, as a document: the ``stages`` of a run, in tokens, and what each sets in the scenario."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from simcluster.base.counts import LETTERS
from simcluster.base.errors import InputError
from simcluster.base.units import Seconds
from simcluster.documents.diagnostics import RuleError, shown
from simcluster.documents.spec import NUMBER_OR_TEXT, Spec

_COUNT = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kMBT]?)\s*(tokens)?\s*")


def _tokens(value: object) -> object:
    """ "15.6T" is 15.6e12, and so is "15.6T tokens"."""
    if not isinstance(value, str):
        return value
    if found := _COUNT.fullmatch(value):
        return float(found[1]) * LETTERS[found[2]]
    raise InputError(f"{shown(value)} is no number of tokens; write it as 252M tokens, 15.6T or 3e12")


_OWN = ("run", "run.stages", "run.tokens", "run.steps", "run.days", "run.played")
"""What a stage cannot set."""

Tokens = Annotated[float, Field(strict=False, gt=0), BeforeValidator(_tokens), NUMBER_OR_TEXT]


class StageSpec(Spec):
    """A stage of a recipe, ``until`` the run has trained so many tokens (the last: left out, to the run's end).

    ``set`` are values at dotted paths of the scenario, as in {training.global_batch: 1024}: of this stage alone, not of
    those after it.  To begin it takes ``change``: the job is stopped and started with another layout.
    """

    until: Tokens | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    change: Seconds = 0.0


def tokens_of_stages(stages: Sequence[StageSpec], goal: float | None) -> list[float]:
    """How many tokens each trains, in a run of ``goal`` tokens.

    RuleError, by the keys of a run, where stages do not follow each other, or the run does not end in tokens.
    """
    if goal is None:
        raise RuleError(
            [(("stages",), "stages are counted in tokens, and so the run must be: give tokens, as in 15.6T")]
        )
    begin, counts, last = 0.0, [], len(stages) - 1
    for number, stage in enumerate(stages):
        end = goal if stage.until is None and number == last else stage.until
        if end is None:
            needed = "is required and missing; the last stage alone goes on to the run's end: write until: 252M tokens"
            raise RuleError([(("stages", number, "until"), needed)])
        if wrong := _misplaced(number, end, begin, goal, number == last):
            raise RuleError([(("stages", number, "until"), f"stage {number + 1} {wrong}")])
        if bad := [path for path in stage.set if path in _OWN]:
            told = "is the run's, not a stage's; write it under run"
            raise RuleError([(("stages", number, "set", bad[0]), f"stage {number + 1}: {bad[0]} {told}")])
        counts.append(end - begin)
        begin = end
    return counts


def _misplaced(number: int, end: float, begin: float, goal: float, last: bool) -> str:
    """What is wrong with the tokens at which a stage ends; "" if nothing is."""
    if end <= begin:
        before = f"where stage {number} ends; they come in their order: write more than {begin:g}"
        return f"ends at {end:g} tokens and begins at {begin:g}, {before}"
    if last and end != goal:
        return f"is the last and ends at {end:g} tokens, the run at {goal:g}; leave its until out"
    if not last and end >= goal:
        return f"ends at {end:g} tokens, the run at {goal:g}; another stage comes after it: write less, or a longer run"
    return ""
