"""The nearest settings that a scenario's rules allow, where those that were asked for are refused.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.interactive.controls.offers import offered
from simcluster.interactive.controls.settings import Settings, Value, controls, in_order
from simcluster.scenario.scenario import Scenario

_MOST_TRIED = 12  # values on the way to one that goes, of one control


@dataclass(frozen=True, slots=True)
class LegalChange:
    """Settings that the scenario's rules allow, and in words what they change of those that were refused."""

    words: str
    settings: Settings

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"words": self.words, "settings": dict(self.settings)}


def nearest_legal(
    settings: Settings,
    key: str,
    values: Mapping[str, Sequence[Value]],
    complaint: str,
    legal: Callable[[Settings], bool],
) -> list[LegalChange]:
    """What would go where settings are refused: the nearest values of the control that was changed (``key``), then of
    others that the complaint names; ``values`` are those offered, by control.  The last one takes the change back."""
    names = {each: controls()[each].label for each in values}
    found: list[LegalChange] = []
    named = [each for each in values if each != key and each.rpartition(".")[2] in _names_in(complaint)]
    for each in [key, *named]:
        for value in _near(dict(settings).get(each), values.get(each, ())):
            changed = with_setting(settings, each, value)
            if legal(changed):
                found.append(LegalChange(f"{names.get(each, each)} {_told(value)}", changed))
                if each != key or len(found) > 1:
                    break
    without = tuple(pair for pair in settings if pair[0] != key)
    if without != settings and legal(without):
        found.append(LegalChange(f"{names.get(key, key)} as it was in the file", without))
    return found


def remedies(
    base: Scenario, settings: Settings, key: str, complaint: str, made: Callable[[Settings], object]
) -> list[LegalChange]:
    """What would go where the settings of a scenario are refused with a complaint; ``key`` was changed last ("": it is
    not known which was, as of a link: then one that the complaint names), and ``made`` raises InputError for settings
    that do not go."""
    if not key:  # the last control that was set of those that are named, or of all
        keys, known = [each for each, _ in settings], _names_in(complaint)
        key = next((each for each in reversed(keys) if each.rpartition(".")[2] in known), keys[-1] if keys else "")
    if not key:
        return []
    document = base.document()
    values = {each.key: offered(base, document, each) for each in controls().values() if not each.is_fault}

    def legal(tried: Settings) -> bool:
        try:
            made(tried)
        except InputError:
            return False
        return True

    return nearest_legal(settings, key, values, complaint, legal)


def with_setting(settings: Settings, key: str, value: Value) -> Settings:
    """Settings with one of them changed or added, in the order of the controls."""
    return in_order({**dict(settings), key: value})


def _names_in(complaint: str) -> set[str]:
    return set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in complaint).split())


def _near(wanted: Value | None, values: Sequence[Value]) -> Iterator[Value]:
    """Others, the nearest first: by their ratio, or of words in their order."""
    others = [value for value in values if value != wanted]
    if isinstance(wanted, int | float) and all(isinstance(each, int | float) and each > 0 for each in others):
        others.sort(key=lambda each: abs(math.log(each / max(wanted, 1e-9))))  # type: ignore[operator]
    yield from others[:_MOST_TRIED]


def _told(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,g}" if isinstance(value, int | float) else str(value)
