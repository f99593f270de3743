"""A recipe over time, as a document: the ``stages`` of a run, in tokens, and what each sets in the scenario."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from simcluster.base.counts import LETTERS
from simcluster.base.errors import InputError
from simcluster.base.units import Seconds
from simcluster.documents.diagnostics import shown
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

    InputError where stages do not follow each other, or the run does not end in tokens.
    """
    if goal is None:
        raise InputError("run.stages: stages are counted in tokens, and so the run must be: give tokens, as in 15.6T")
    if any(stage.until is None for stage in stages[:-1]):
        raise InputError("run.stages: until when? the last stage alone may leave until out, and goes on to the end")
    ends = [goal if stage.until is None else stage.until for stage in stages]
    if ends[-1] != goal:
        raise InputError(f"run.stages: the last ends at {ends[-1]:g} tokens, the run at {goal:g}; leave its until out")
    counts = [end - begin for begin, end in zip([0.0, *ends[:-1]], ends, strict=True)]
    wrong = [number for number, count in enumerate(counts) if count <= 0]
    if wrong:
        number, end, begin = wrong[0] + 1, ends[wrong[0]], [0.0, *ends][wrong[0]]
        raise InputError(
            f"run.stages: stage {number} ends at {end:g} tokens and begins at {begin:g}, where the one before ends; "
            f"they come in their order: write an until above {begin:g}, and at most the run's {goal:g}"
        )
    for stage in stages:
        bad = [path for path in stage.set if path in _OWN]
        if bad:
            raise InputError(f"run.stages: {bad[0]} is the run's, not a stage's; write it under run")
    return counts
