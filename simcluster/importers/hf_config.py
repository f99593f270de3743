"""The values of one ``config.json`` by key, each checked, and the keys that were looked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simcluster.base.errors import InputError
from simcluster.importers.layer_lists import MOST_LAYERS

_LARGEST = 10**9


@dataclass(frozen=True, slots=True)
class Config:
    """A parsed config and its ``model_type``; ``asked`` are the keys that were looked for."""

    data: Mapping[str, Any]
    kind: str
    asked: set[str] = field(default_factory=set, compare=False)

    def value(self, key: str) -> Any:
        """Return what the config has under a key, None where it is not there; InputError for Infinity and NaN."""
        self.asked.add(key)
        value = self.data.get(key)
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{key} {value} is not a finite number; write one")
        return value

    def size(self, keys: str, what: str = "") -> int | None:
        """Return the first of ``keys`` (one text) that is not null, if one is; ``what`` the model calls it."""
        self.asked.update(keys.split())
        for key in keys.split():
            value = self.data.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
                belongs = f"; it is the model's {what}" if what else ""
                raise InputError(
                    f"{key} {_short(value)} is not a positive whole number (of at most {_LARGEST:,}); write "
                    f"one{belongs}"
                )
            return value
        return None

    def needed(self, keys: str) -> int:
        """As ``size``; InputError where there is none."""
        value = self.size(keys)
        if value is None:
            named = keys.replace(" ", " or ")
            lacks = f"lacks {named}, which must be there"
            raise InputError(f"the config of model_type {self.kind!r} {lacks}; add what is missing to it")
        return value

    def natural(self, key: str, default: int) -> int:
        """Return a whole number from 0."""
        value = self.value(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
            raise InputError(f"{key} {_short(value)} is not a whole number from 0 on")
        return value

    def switch(self, key: str, default: bool) -> bool:
        """True or false; the default where the key is not there or null."""
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InputError(f"{key} {_short(value)} is neither true nor false; write one of them")
        return value

    def layer_types(self, layers: int) -> list[str] | None:
        """Return what kind of attention every layer has, where the config lists it."""
        value = self.value("layer_types")
        if value is None:
            return None
        known = ("full_attention", "sliding_attention")
        wrong = not isinstance(value, list) or len(value) != layers or layers > MOST_LAYERS
        if wrong or any(item not in known for item in value):
            raise InputError(f"layer_types is to name one of {' and '.join(known)} for each of the {layers} layers")
        return list(value)

    def numbers(self, key: str) -> list[int]:
        """Return a list of layer numbers; empty where the key is not there or null."""
        value = self.value(key)
        if value is None:
            return []
        if not isinstance(value, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in value):
            raise InputError(f"{key} {_short(value)} is not a list of layer numbers; write one, as in [0, 1]")
        return list(dict.fromkeys(value))


def _short(value: object) -> str:
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits
        return "of thousands of digits"
    return repr(text[:40])
