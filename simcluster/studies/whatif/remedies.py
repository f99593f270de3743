"""Changes of a scenario that are played to see what they give: each whole, so that a command with it gives the same."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from simcluster.base.errors import InputError
from simcluster.results.result import Result
from simcluster.scenario.effort import plays_within
from simcluster.scenario.fits import applied
from simcluster.scenario.scenario import Scenario
from simcluster.step.simulate import replay

Verdict = Literal["pass", "warn", "fail"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""From good to bad."""

Values = Mapping[str, Any]
"""Values at dotted paths of a scenario."""

Again = Callable[[Values], Scenario]
"""The scenario with these values in place of its own; InputError where it cannot have them."""


def graded(value: float, warn: float, fail: float) -> Verdict:
    """What a number is by two bounds."""
    return "fail" if value > fail else "warn" if value > warn else "pass"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of the scenario that was played, with all values that differ, dp included.

    ``step_time`` is its step in seconds, ``before`` the scenario's own; ``memory`` the bytes on its fullest GPU.
    ``then`` is what the point that it is for says of it, verdict and number; None where it is for the whole job.
    """

    values: Values
    step_time: float
    before: float
    memory: float
    then: tuple[Verdict, str] | None = None

    @property
    def change(self) -> float:
        """Of the step: -0.1 is a tenth less."""
        return self.step_time / self.before - 1

    def options(self) -> str:
        """For a shell: what to write behind ``simcluster run SCENARIO``."""
        return " ".join(f"--set {shlex.quote(text)}" for text in written(self.values))

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "set": dict(self.values),
            "step_time_s": self.step_time,
            "change": self.change,
            "peak_memory_bytes": self.memory,
            "then": self.then and {"verdict": self.then[0], "found": self.then[1]},
        }


class Trials:
    """What was played of one scenario: each change once, and no more than so many."""

    def __init__(self, result: Result, again: Again | None, most: int) -> None:
        """Of the scenario of a result; ``again`` makes its changed scenarios, left out from the scenario itself.

        Where a step takes minutes fewer than ``most`` are played, or none.
        """
        self._base, self._again, self._left = result, again, plays_within(result.scenario, most, ops=result.ops_played)
        self._played: dict[tuple[tuple[str, str], ...], tuple[Values, Result] | None] = {}

    def play(self, values: Values) -> tuple[Values, Result] | None:
        """The whole change and its result; None where a rule forbids it, where it does not fit in memory, and where
        enough was played."""
        base = self._base.scenario
        changed = applied(base, values)
        if changed is None:
            return None
        whole = {path: value for path, value in values.items() if path != "parallel.dp" and value != _now(base, path)}
        if changed.dp != base.dp:
            whole["parallel.dp"] = changed.dp
        key = tuple(sorted((path, str(value)) for path, value in whole.items()))
        if key not in self._played:
            if not self._left:
                return None
            self._played[key] = self._result(whole, changed)
        return self._played[key]

    def _result(self, whole: Values, changed: Scenario) -> tuple[Values, Result] | None:
        try:
            if self._again is not None:
                changed = self._again(whole)
            self._left -= 1
            played = replay(changed)
            return (whole, played) if played.fits else None
        except InputError:
            return None


def _now(scenario: Scenario, path: str) -> object:
    section, key = path.split(".")
    return getattr(getattr(scenario, section), key)


def written(values: Values) -> Iterator[str]:
    """A change as the command line takes it."""
    for path, value in values.items():
        if isinstance(value, tuple | list):
            text = f"[{', '.join(map(str, value))}]"
        elif isinstance(value, Mapping):
            text = json.dumps(value)  # which is YAML
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
        yield f"{path}={text}"
