"""Type-checked reading of values of a Hugging Face ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simcluster.base.errors import InputError

_LARGEST = 10**9


@dataclass(frozen=True, slots=True)
class CheckedConfig:
    """A parsed ``config.json`` that checks the types of its values and records the keys that were read."""

    data: Mapping[str, Any]
    kind: str
    read_keys: set[str] = field(default_factory=set, compare=False)

    def finite_value(self, key: str) -> Any:
        """Return a config key's value, or None if the key is absent; raise InputError for Infinity and NaN."""
        self.read_keys.add(key)
        value = self.data.get(key)
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{key} {value} is not a finite number; write one")
        return value

    def checked_value(self, key: str, is_valid: Callable[[Any], bool], problem: str, default: Any = None) -> Any:
        """Return a key's value (null: the default); raise InputError if ``is_valid`` returns False for the value."""
        value = self.finite_value(key)
        if value is not None and not is_valid(value):
            try:
                said = repr(str(value)[:40])
            except ValueError:  # an integer of thousands of digits
                said = "of thousands of digits"
            raise InputError(f"{key} {said} {problem}")
        return default if value is None else value

    def optional_size(self, keys: str, quantity: str = "") -> int | None:
        """Return the first non-null value of several keys (separated by spaces) as a positive int, or None."""
        wrong = f"is not a positive whole number (of at most {_LARGEST:,}); write one"
        wrong += f"; it is the model's {quantity}" if quantity else ""
        self.read_keys.update(keys.split())
        key = next((key for key in keys.split() if self.data.get(key) is not None), "")
        found: int | None = self.checked_value(key, lambda value: _is_int(value, 1), wrong) if key else None
        return found

    def required_size(self, keys: str) -> int:
        """Return the first non-null value of several keys as a positive int; raise InputError if all are null."""
        value = self.optional_size(keys)
        if value is None:
            lacks = f"lacks {keys.replace(' ', ' or ')}, which is required"
            raise InputError(f"the config of model_type {self.kind!r} {lacks}; add it")
        return value

    def whole_number_value(self, key: str, default: int) -> int:
        """Return a key's value as a whole number of at least 0, or the default if the value is null."""
        wrong = "is not a whole number of at least 0"
        return int(self.checked_value(key, lambda value: _is_int(value, 0), wrong, default))

    def boolean_value(self, key: str, default: bool) -> bool:
        """Return a key's value as a boolean, or the default if the value is null."""
        wrong = "is neither true nor false; write one of them"
        return bool(self.checked_value(key, lambda value: isinstance(value, bool), wrong, default))

    def layer_numbers(self, key: str) -> list[int]:
        """Return the layer numbers listed under a key, without duplicates."""

        def is_number_list(value: Any) -> bool:
            return isinstance(value, list) and all(type(each) is int for each in value)

        wrong = "is not a list of layer numbers; write one, as in [0, 1]"
        return list(dict.fromkeys(self.checked_value(key, is_number_list, wrong, [])))


def _is_int(value: Any, minimum: int) -> bool:
    return type(value) is int and minimum <= value <= _LARGEST
