"""Search for the largest value of a scenario setting that still fits in GPU memory.

Values that are invalid (layers that stages do not share evenly, a micro batch that does not divide the batch) are
skipped, and reported. Planned bytes decide whether a value fits; the job is simulated only where they leave it open,
since data that waits between stages depends on times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.documents.argument_types import check_arguments
from simcluster.documents.overrides import Changes, list_overrides
from simcluster.documents.suggestions import divisors
from simcluster.scenario.key_paths import check_key_path
from simcluster.scenario.memory_remedies import peak_memory_bytes, queued_activation_bytes
from simcluster.scenario.scenario import BaseScenario, Scenario
from simcluster.scenario.scenario_arguments import ScenarioLike, to_base_scenario
from simcluster.step.simulate import simulate_scenario

_MOST_SCANNED = 64  # values one by one, where no common step is known
_MOST_IN_VAIN = 100  # invalid values in a row, after which the search for a valid one ends
_FRACTION = 12  # the largest denominator of such fractions
_MOST_DOUBLINGS = 12
_DOUBLINGS_TO_GROW = 3  # doublings after which memory should have grown


@dataclass(frozen=True, slots=True)
class LargestFittingValue(Displayable):
    """Largest value of a setting for which the job fits in memory, and the next larger valid value.

    ``memory`` and ``next_memory`` are bytes of the fullest GPU, as simulated, of the ``capacity`` that it has.
    ``value`` is None where nothing fits, ``next_value`` where no larger valid one was found. ``skipped`` has invalid
    values above ``value``, with the first reason. ``scenario`` is the one with that value.
    """

    path: str
    own: int
    value: int | None
    memory: float | None
    next_value: int | None
    next_memory: float | None
    capacity: float
    skipped: Mapping[int, str] = field(repr=False)
    scenario: Scenario | None = field(repr=False)

    def summary(self) -> str:
        size = f"{self.capacity / 1e9:.1f} GB"
        if self.value is None or self.memory is None:
            lines = [f"no {self.path} fits in {size}"]
        else:
            fits = f"{self.memory / 1e9:.2f} of {size} on the fullest GPU"
            lines = [f"largest {self.path} that fits: {self.value:,}   ({fits}; the scenario has {self.own:,})"]
        if self.next_value is not None and self.next_memory is not None:
            lines.append(f"  {self.next_value:,} needs {self.next_memory / 1e9:.2f} GB")
        if self.skipped:
            first = min(self.skipped)
            number = f" (and {len(self.skipped) - 1:,} more)" if len(self.skipped) > 1 else ""
            lines.append(f"  {first:,}{number} is invalid: {self.skipped[first]}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready values, documented in CONTRACT.md under "Walls and states"."""
        return {
            "path": self.path,
            "own": self.own,
            "value": self.value,
            "memory_bytes": self.memory,
            "next_value": self.next_value,
            "next_memory_bytes": self.next_memory,
            "capacity_bytes": self.capacity,
            "skipped": {str(value): why for value, why in self.skipped.items()},
        }


@check_arguments
def largest_that_fits(scenario: ScenarioLike, path: str, overrides: Changes = ()) -> LargestFittingValue:
    """Find the largest value of an integer setting, such as training.micro_batch, for which the job fits in memory.

    ``overrides`` are other changes. InputError for a path that a scenario does not have or that is not a whole number,
    and where more does not mean more memory (parallel.dp).
    """
    check_key_path(path)
    tries = _FittingSearch(to_base_scenario(scenario, "largest_that_fits"), tuple(list_overrides(overrides)), path)
    low, high = tries.bisect_between(*tries.double_until_full())
    skipped = {value: why for value, why in sorted(tries.refused.items()) if low < value < (high or math.inf)}
    return LargestFittingValue(
        path=path,
        own=tries.own,
        value=low or None,
        memory=tries.simulate_memory(low) if low else None,
        next_value=high,
        next_memory=tries.simulate_memory(high) if high else None,
        capacity=tries.capacity,
        skipped=skipped,
        scenario=tries.make_scenario(low) if low else None,
    )


class _NotMonotoneError(InputError):
    """Error raised if memory does not grow with the value of the setting."""


class _FittingSearch:
    """Values of a setting tried so far: the planned bytes of each, or the reason why the value is invalid."""

    def __init__(self, base: BaseScenario, overrides: tuple[tuple[str, Any], ...], path: str) -> None:
        self._base, self._overrides, self.path = base, overrides, path
        own = base.with_changes(overrides)
        self.own, self.capacity = _read_current_value(own, path), own.cluster.device.memory
        self.refused: dict[int, str] = {}
        self._in_vain = 0  # invalid values since the last valid one
        self._planned: dict[int, float] = {}
        self._simulated: dict[int, float] = {}
        self._plan_memory(self.own, own)

    def make_scenario(self, value: int) -> Scenario:
        """Return the scenario with this value of the setting; raise InputError if the value is invalid."""
        return self._base.with_changes((*self._overrides, (self.path, value)))

    def simulate_memory(self, value: int) -> float:
        """Simulate the job with this value of the setting; return the bytes of its fullest GPU."""
        if value not in self._simulated:
            self._simulated[value] = simulate_scenario(self.make_scenario(value)).memory.total
        return self._simulated[value]

    def double_until_full(self) -> tuple[int, int | None]:
        """Double the value until it does not fit; return the last fitting value (0: none) and the first other value."""
        if not self._fits(self.own):
            return 0, self.own
        low = self.own
        for doubling in range(_MOST_DOUBLINGS):
            high = self._find_valid_value(2 * low - 1, 3 * low + 1, 2 * low)
            high = high or self._find_valid_value(low, 2 * low, low + 1)
            for farther in (3, 6, 12, 24):
                high = high or self._find_valid_value(farther * low, 2 * farther * low + 1, farther * low + 1)
            if high is None:
                break
            if not self._fits(high):
                return low, high
            low = high
            if doubling + 1 >= _DOUBLINGS_TO_GROW and len(set(self._planned.values())) == 1:
                raise InputError(
                    f"{self.path}: its value ({self.own:,} to {low:,}) does not change the memory; name another path"
                )
        return low, None

    def bisect_between(self, low: int, high: int | None) -> tuple[int, int | None]:
        """Bisect between a fitting and a non-fitting value; return the last fitting value and the next valid value."""
        while high is not None:
            middle = self._find_valid_value(low, high, (low + high) // 2)
            if middle is None:
                break
            low, high = (middle, high) if self._fits(middle) else (low, middle)
        return low, high

    def _is_valid(self, value: int) -> bool:
        if value not in self._planned and value not in self.refused:
            self._in_vain += 1
            try:
                self._plan_memory(value, self.make_scenario(value))
                self._in_vain = 0
            except _NotMonotoneError:
                raise
            except InputError as problem:  # the first one, without the place in the file
                lines = [line.strip() for line in str(problem).splitlines()]
                first = lines[1] if len(lines) > 1 else lines[0]
                self.refused[value] = first.partition(": ")[2] or first
        return value in self._planned

    def _fits(self, value: int) -> bool:
        planned = self._planned[value]
        if planned <= self.capacity:
            return True
        least = planned - queued_activation_bytes(self.make_scenario(value))
        return least <= self.capacity and self.simulate_memory(value) <= self.capacity

    def _find_valid_value(self, low: int, high: int, near: int) -> int | None:
        """Return a valid value between ``low`` and ``high``, close to ``near`` if possible; None if none is found.

        Most rules want multiples of a number, which divides all valid values so far, or divisors of one, which are
        small fractions of each other: such values come first, then all if they are few.
        """
        few = range(low + 1, high) if high - low - 1 <= _MOST_SCANNED else range(0)
        for value in chain(self._likely_values(low, high, near), sorted(few, key=lambda each: abs(each - near))):
            if self._in_vain < _MOST_IN_VAIN and self._is_valid(value):
                return value
        return None

    def _likely_values(self, low: int, high: int, near: int) -> Iterator[int]:
        for step in reversed(divisors(math.gcd(*self._planned))):
            for value in (near // step * step, -(-near // step) * step):
                if low < value < high:
                    yield value
        known = max((value for value in self._planned if value <= low), default=self.own)
        parts = [known // below for below in range(1, _FRACTION) if not known % below]
        values = {value for part in parts for value in range(part, min(high, _FRACTION**2 * part), part) if low < value}
        yield from sorted(values, key=lambda each: (abs(each - near), each))[:_MOST_SCANNED]

    def _plan_memory(self, value: int, scenario: Scenario) -> None:
        self._planned[value] = size = peak_memory_bytes(scenario)
        for other, bytes_there in self._planned.items():
            if (value - other) * (size - bytes_there) < -1e-9 * abs(value - other) * size:
                less, more = sorted((value, other))
                sizes = [f"{each:,}: {self._planned[each] / 1e9:.4g} GB" for each in (less, more)]
                raise _NotMonotoneError(
                    f"{self.path}: memory does not grow with it ({', '.join(sizes)} per GPU), so there is no largest "
                    "value that fits; name a path with which memory grows, as in training.micro_batch"
                )


def _read_current_value(scenario: Scenario, path: str) -> int:
    here: Any = scenario.document()
    for part in path.split("."):
        here = here[int(part)] if isinstance(here, list) else (here or {}).get(part)
    if isinstance(here, bool) or not isinstance(here, int) or here < 1:
        raise InputError(
            f"{path} is {here!r} in this scenario, but only whole numbers above zero can be searched, as in "
            "training.micro_batch, model.layers or model.sequence_length"
        )
    return here
