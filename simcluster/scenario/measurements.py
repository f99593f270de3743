"""A measured step of a scenario, and which run it is of: the one in the file, not what overrides make of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, model_validator

from simcluster.base.counts import parse_count
from simcluster.base.errors import InputError
from simcluster.base.units import Seconds, format_seconds
from simcluster.documents.spec import NUMBER_OR_TEXT, Spec

NOT_OF_THE_STEP = ("name", "measured", "run", "memory", "engine", "steps", "seed", "replicas")
"""Sections and fields by which the step of a scenario stays what it is: names, what it is asked, how it is played."""
_NAMED = 3
"""Changes that a sentence names."""


class Measured(Spec):
    """A measurement of this scenario, shown next to the prediction and never used for it: step_time or tokens_per_s."""

    step_time: Seconds | None = None
    """Measured time of a step."""
    tokens_per_s: (
        Annotated[float, BeforeValidator(lambda value: parse_count(value, "tokens_per_s")), NUMBER_OR_TEXT] | None
    ) = None
    """Measured tokens per second of the whole job, instead of step_time."""
    source: str = ""
    changed: tuple[str, ...] | None = None
    """Keys that differ from the measured run (overrides are put here); then the step is not compared with it."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.step_time is None) == (self.tokens_per_s is None):
            both = "both are given" if self.step_time is not None else "neither is"
            raise InputError(f'give one of step_time (as in "7.5 s") and tokens_per_s (of all GPUs); {both}')
        if self.step_time == 0:
            raise InputError(
                "step_time is 0 s; a step that was measured took longer: write what it took, or leave it out"
            )
        return self

    def seconds(self, tokens: int) -> float:
        """Of a step of so many tokens."""
        return self.step_time if self.step_time is not None else tokens / (self.tokens_per_s or 1.0)

    def of_another_run(self) -> str:
        """'13.75 s (arXiv:2205.05198 table 5) is of the run without a change of pipeline.schedule: not compared';
        nothing where it is of this run."""
        if not self.changed:
            return ""
        what = f"{self.tokens_per_s:,.0f} tokens/s" if self.step_time is None else format_seconds(self.step_time)
        more = f" and {len(self.changed) - _NAMED} more" if len(self.changed) > _NAMED else ""
        source = f" ({self.source})" if self.source else ""
        return (
            f"{what}{source} is of the run without a change of {', '.join(self.changed[:_NAMED])}{more}: not compared"
        )


def no_longer_measured(
    document: Mapping[str, Any], given: Mapping[str, Any], overrides: Iterable[tuple[str, Any]]
) -> dict[str, Any]:
    """A document whose measurement says what these overrides have changed of the step that was measured.

    ``given`` is the document without them.  An override that says what is there already changes nothing; one of
    ``measured`` itself says that the measurement is of what the others make.
    """
    pairs = list(overrides)
    measured = document.get("measured")
    if not isinstance(measured, Mapping) or any(_section(path) == "measured" for path, _ in pairs):
        return dict(document)
    changed = [
        path for path, value in pairs if _section(path) not in NOT_OF_THE_STEP and _value(given, path) != str(value)
    ]
    if not changed:
        return dict(document)
    before = [path for path in measured.get("changed") or () if path not in changed]
    return {**document, "measured": {**measured, "changed": [*before, *dict.fromkeys(changed)]}}


def _section(path: str) -> str:
    return path.partition(".")[0].rstrip("+")


def _value(document: Mapping[str, Any], path: str) -> str | None:
    """What a document says at a dotted path, as text; None for nothing, and for what is added to a list."""
    value: Any = document
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return str(value)
