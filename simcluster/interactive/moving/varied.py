"""Keys that vary on a moving page: their values in words, a control for each, and a combination as an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from urllib.parse import quote

from simcluster.show.report.html import Markup, element, void
from simcluster.show.yaml_text import flow_text

_MOST_BUTTONS = 6  # values that stand side by side; more are a list
_LONGEST_VALUE = 60


@dataclass(frozen=True)
class VariedKey:
    """A dotted path of the scenario and the values that it takes."""

    path: str
    values: tuple[Any, ...]

    @property
    def labels(self) -> list[str]:
        """The values in words, no two alike."""
        told = [value_label(value) for value in self.values]
        return [text if told.count(text) == 1 else f"{text} ({at + 1})" for at, text in enumerate(told)]

    @property
    def slides(self) -> bool:
        """Is it a slider: at least three numbers that go one way?"""
        numbers = [value for value in self.values if isinstance(value, int | float) and not isinstance(value, bool)]
        ordered = numbers in (sorted(numbers), sorted(numbers, reverse=True))
        return len(numbers) == len(self.values) > 2 and ordered


def value_label(value: Any) -> str:
    """Return a value as a control has it; what has parts as YAML has it, [tp, cp]."""
    if value is None or isinstance(value, bool) or value == []:
        return {"True": "true", "False": "false", "None": "not set", "[]": "none"}[str(value)]
    text = flow_text(value) if isinstance(value, list | tuple | Mapping) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def names_of(keys: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Every combination of values of keys, the last one fastest; keys by their last words where those differ, and those
    of one value not at all, where there are others."""
    keys = [each for each in keys if len(each[1]) > 1] or keys
    told = dict(zip([path for path, _ in keys], short_names([path for path, _ in keys]), strict=True))
    labelled = [[f"{told[path]} {label}" for label in labels] for path, labels in keys]
    return [", ".join(parts) for parts in product(*labelled)]


def short_names(paths: Sequence[str]) -> list[str]:
    """Return the last words of dotted paths; whole paths where two have the same one."""
    last = [path.rpartition(".")[2] for path in paths]
    return [name if last.count(name) == 1 else path for name, path in zip(last, paths, strict=True)]


def control(number: int, key: VariedKey, name: str, chosen: int) -> Markup:
    """Return the control of a key, of which the value at a place is chosen: a slider, buttons, or a list of many."""
    labels, place = key.labels, f"key-{number}"
    if key.slides:
        slider = void("input", type="range", id=place, min="0", max=str(len(labels) - 1), step="1", value=str(chosen),
                      aria_valuetext=labels[chosen])  # fmt: skip
        inside = element("span", slider, element("output", labels[chosen], for_=place))
    elif len(labels) > _MOST_BUTTONS:
        options = [element("option", label, value=str(at), selected="" if at == chosen else None)
                   for at, label in enumerate(labels)]  # fmt: skip
        inside = element("select", options, id=place)
    else:
        buttons = [
            element("label", void("input", type="radio", name=place, value=str(at),
                                  checked="" if at == chosen else None), element("span", label))
            for at, label in enumerate(labels)
        ]  # fmt: skip
        hidden = "" if len(labels) == 1 else None  # nothing to choose
        legend = element("legend", name)
        return element("fieldset", legend, buttons, data_key=str(number), title=key.path, hidden=hidden)
    label = element("label", name, for_=place)
    return element("div", label, inside, class_="slider", data_key=str(number), title=key.path)


def digits(number: int, keys: Sequence[VariedKey]) -> list[int]:
    """Return the place of each key's value in a combination."""
    found = []
    for key in reversed(keys):
        number, place = divmod(number, len(key.values))
        found.append(place)
    return found[::-1]


def address(keys: Sequence[VariedKey], at: int) -> str:
    """Return a combination as the page's address has it behind #; the script reads and writes the same."""
    pairs = zip(keys, digits(at, keys), strict=True)
    return "&".join(f"{quote(key.path, safe='.')}={quote(key.labels[place], safe='')}" for key, place in pairs)
