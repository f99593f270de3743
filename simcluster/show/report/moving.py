"""The page that moves: variants that were played beforehand, a control for each key that varies, and all that is shown
following them, without a network and without playing anything.

Without JavaScript it is the page of one variant, with a table of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from urllib.parse import quote

from simcluster.base.units import format_seconds
from simcluster.show.report import summary, words
from simcluster.show.report.blob import deflated
from simcluster.show.report.details import quiet
from simcluster.show.report.html import Markup, element, filled, joined, json_block, table, void
from simcluster.show.report.page import CONTENTS, hashed, script_of, style_sheet
from simcluster.show.report.states import PageState
from simcluster.show.report.yaml_text import flow_text

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


@dataclass(frozen=True)
class Varied:
    """A grid of variants: its ``keys``, and for every combination, the last key fastest, its state or why there is
    none; ``base`` is the combination that the others are compared with."""

    keys: tuple[VariedKey, ...]
    states: tuple[PageState | str, ...]
    base: int

    def names(self) -> list[str]:
        """What every combination is called: "tp 4, schedule 1f1b"."""
        return names_of([(key.path, key.labels) for key in self.keys])

    def state(self, at: int) -> PageState:
        """That of a combination that could be played; ValueError of another one."""
        found = self.states[at]
        if isinstance(found, str):
            raise ValueError(f"combination {at} has no state: {found}")
        return found

    def played(self) -> Iterator[tuple[int, PageState]]:
        """Combinations that could be played, and their numbers."""
        return ((at, state) for at, state in enumerate(self.states) if isinstance(state, PageState))


def value_label(value: Any) -> str:
    """A value as a control has it; what has parts as YAML has it, [tp, cp]."""
    if value is None or isinstance(value, bool) or value == []:
        return {"True": "true", "False": "false", "None": "not set", "[]": "none"}[str(value)]
    text = flow_text(value) if isinstance(value, list | tuple | Mapping) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def names_of(keys: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Every combination of values of keys, the last one fastest; keys by their last words where those differ."""
    told = dict(zip([path for path, _ in keys], short_names([path for path, _ in keys]), strict=True))
    labelled = [[f"{told[path]} {label}" for label in labels] for path, labels in keys]
    return [", ".join(parts) for parts in product(*labelled)]


def short_names(paths: Sequence[str]) -> list[str]:
    """The last words of dotted paths; whole paths where two have the same one."""
    last = [path.rpartition(".")[2] for path in paths]
    return [name if last.count(name) == 1 else path for name, path in zip(last, paths, strict=True)]


def moving_page(varied: Varied, *, title: str = "") -> str:
    """The page as HTML, which begins with the base."""
    names = varied.names()
    base = varied.state(varied.base)
    texts = {at: {**state.texts, "differences": _against_base(varied, names, at)} for at, state in varied.played()}
    states, columns = _data(varied, names, texts)
    script, sheet = script_of("moving.js"), style_sheet()
    contents = [("variants", "Variants"), *((place, name) for place, name in CONTENTS if place in texts[varied.base])]
    return "<!doctype html>\n" + filled(
        "page.html",
        policy=f"default-src 'none'; script-src '{hashed(script)}'; style-src '{hashed(sheet)}'; img-src data:",
        heading=title or base.entry.document.get("name", base.entry.name), style=Markup(sheet),
        told=_part("told", texts[varied.base]),
        contents=(element("a", name, href=f"#{place}") for place, name in contents),
        sections=joined(_bar(varied, names), _variants(varied, names), (
            element("section", element("h2", name), _part(place, texts[varied.base]), id=place)
            for place, name in contents[1:]
        )),
        version=str(base.entry.numbers.get("version", "")),
        data=json_block("states", states), columns=Markup(columns), script=Markup(script),
    ) + "\n"  # fmt: skip


def _part(place: str, texts: Mapping[str, str]) -> Markup:
    """What follows the controls."""
    return element("div", Markup(texts[place]), data_state=place)


def _against_base(varied: Varied, names: Sequence[str], at: int) -> str:
    """Why a variant's step is longer or shorter than the base's."""
    base, state = varied.state(varied.base), varied.state(at)
    if at == varied.base:
        return str(
            quiet(f"This is the base that the others are compared with ({names[at]}); choose another one above.")
        )
    entries = [replace(each.entry, name=names[of]) for each, of in ((base, varied.base), (state, at))]
    return str(summary.differences(entries))


# --- the controls -----------------------------------------------------------------------------------------------------


def _bar(varied: Varied, names: Sequence[str]) -> Markup:
    """A control for every key, and what is chosen, in view wherever the reader is."""
    shown = short_names([key.path for key in varied.keys])
    places = _digits(varied.base, varied.keys)
    controls = [
        _slider(number, key, name, at) if key.slides
        else _list(number, key, name, at) if len(key.values) > _MOST_BUTTONS
        else _buttons(number, key, name, at)
        for number, (key, name, at) in enumerate(zip(varied.keys, shown, places, strict=True))
    ]  # fmt: skip
    return filled("moving.html", controls=controls, base=names[varied.base], told=_told(varied, varied.base))


def _buttons(number: int, key: VariedKey, name: str, chosen: int) -> Markup:
    buttons = [
        element("label", void("input", type="radio", name=f"key-{number}", value=str(at),
                              checked="" if at == chosen else None), element("span", label))
        for at, label in enumerate(key.labels)
    ]  # fmt: skip
    return element("fieldset", element("legend", name), buttons, data_key=str(number), title=key.path)


def _slider(number: int, key: VariedKey, name: str, chosen: int) -> Markup:
    slider = void("input", type="range", id=f"key-{number}", min="0", max=str(len(key.values) - 1), step="1",
                  value=str(chosen), aria_valuetext=key.labels[chosen])  # fmt: skip
    told = element("output", key.labels[chosen], for_=f"key-{number}")
    return element("div", element("label", name, for_=f"key-{number}"), element("span", slider, told),
                   class_="slider", data_key=str(number), title=key.path)  # fmt: skip


def _list(number: int, key: VariedKey, name: str, chosen: int) -> Markup:
    options = [element("option", label, value=str(at), selected="" if at == chosen else None)
               for at, label in enumerate(key.labels)]  # fmt: skip
    return element("div", element("label", name, for_=f"key-{number}"),
                   element("select", options, id=f"key-{number}"), class_="slider", data_key=str(number),
                   title=key.path)  # fmt: skip


def _digits(number: int, keys: Sequence[VariedKey]) -> list[int]:
    """The place of each key's value in a combination."""
    found = []
    for key in reversed(keys):
        number, place = divmod(number, len(key.values))
        found.append(place)
    return found[::-1]


def _told(varied: Varied, at: int) -> str:
    """A combination in one line: its step and what it differs by from the base, MFU, memory and bubble."""
    entry, base = varied.state(at).entry, varied.state(varied.base)
    change = entry.account.step_time / base.entry.account.step_time - 1
    differs = "" if at == varied.base else f" ({words.signed_percent(change)} against the base)"
    room = "" if entry.numbers.get("fits") else ", does not fit"
    return (
        f"{format_seconds(entry.account.step_time)} a step{differs}; MFU {words.percent(entry.numbers['mfu'])}; "
        f"bubble {words.percent(entry.account.breakdown['bubble'] / entry.account.step_time)}; "
        f"memory {words.gigabytes(entry.numbers['peak_memory_bytes'])}{room}"
    )


# --- all of them ------------------------------------------------------------------------------------------------------


def _variants(varied: Varied, names: Sequence[str]) -> Markup:
    """Which is the fastest, and a row for every combination, also for those that cannot be."""
    base = varied.state(varied.base)
    longest = max(state.entry.account.step_time for _, state in varied.played())
    header = ["variant", "a step", "", "difference", "MFU", "bubble", "exposed", "memory"]
    rows = []
    for at, state in enumerate(varied.states):
        link = element("a", names[at], href=f"#{address(varied.keys, at)}", data_at=str(at))
        if isinstance(state, str):
            rows.append([link, "refused", element("span", state, class_="why"), *[""] * 5])
            continue
        account, numbers = state.entry.account, state.entry.numbers
        change = account.step_time / base.entry.account.step_time - 1
        rows.append([
            link, format_seconds(account.step_time), _length(account.step_time / longest),
            "base" if at == varied.base else words.signed_percent(change), words.percent(numbers["mfu"]),
            words.percent(account.breakdown["bubble"] / account.step_time),
            format_seconds(numbers["exposed_communication_s"]),
            words.gigabytes(numbers["peak_memory_bytes"]) + ("" if numbers.get("fits") else " (does not fit)"),
        ])  # fmt: skip
    caption = f"All variants; differences from the base, {names[varied.base]}"
    return element(
        "section", element("h2", "Variants"), element("p", _fastest(varied, names), class_="verdict"),
        table(header, rows, caption=caption, class_="variants tall"), id="variants",
    )  # fmt: skip


def _length(part: float) -> Markup:
    """A bar of a row, from 0."""
    bar = void("rect", x=0, y=2, width=1000 * part, height=12, class_="whole")
    return element("svg", bar, viewBox="0 0 1000 16", preserveAspectRatio="none", aria_hidden="true")


def _fastest(varied: Varied, names: Sequence[str]) -> str:
    played = list(varied.played())
    fitting = [(at, state) for at, state in played if state.entry.numbers.get("fits")]
    at = min(fitting or played, key=lambda each: each[1].entry.account.step_time)[0]
    refused = len(varied.states) - len(played)
    told = f"Of {len(varied.states)} variants {names[at]} is the fastest{' that fits' if fitting else ''}: "
    told += f"{_told(varied, at)}."
    if not fitting:
        told += " None of them fits its GPU."
    elif len(fitting) < len(played):
        told += f" {len(played) - len(fitting)} of them {'do' if len(played) - len(fitting) > 1 else 'does'} not fit."
    return told + (f" {refused} cannot be: the table says why." if refused else "")


def address(keys: Sequence[VariedKey], at: int) -> str:
    """A combination as the page's address has it behind #; the script reads and writes the same."""
    pairs = zip(keys, _digits(at, keys), strict=True)
    return "&".join(f"{quote(key.path, safe='.')}={quote(key.labels[place], safe='')}" for key, place in pairs)


# --- data -------------------------------------------------------------------------------------------------------------


class _Pieces:
    """Bytes that are kept once however often they come; a piece is named by its number."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def number(self, piece: bytes) -> int:
        return self._numbers.setdefault(piece, len(self._numbers))

    def all(self) -> tuple[list[int], bytes]:
        """Their lengths, and all of them one after the other."""
        return [len(piece) for piece in self._numbers], b"".join(self._numbers)


def _data(varied: Varied, names: Sequence[str], texts: Mapping[int, Mapping[str, str]]) -> tuple[dict[str, Any], str]:
    """What the script reads: keys and states as JSON, and the pieces that states are made of.

    A section's texts stand one after the other: they are much alike, and deflate well.
    """
    pieces, played = _Pieces(), dict(varied.played())
    sections = {place: {at: pieces.number(text[place].encode()) for at, text in texts.items()}
                for place in texts[varied.base]}  # fmt: skip
    data = {at: pieces.number(state.data.encode()) for at, state in played.items()}
    lengths = {at: state.entry.account.step_time for at, state in played.items()}
    columns = {at: [pieces.number(column) for column in state.columns] for at, state in played.items()}
    states: list[dict[str, Any]] = [
        {"name": names[at], "told": _told(varied, at), "part": lengths[at] / max(lengths.values()),
         "data": data[at], "columns": columns[at],
         "texts": {place: numbers[at] for place, numbers in sections.items()}}
        if at in played else {"name": names[at], "refused": state}
        for at, state in enumerate(varied.states)
    ]  # fmt: skip
    sizes, content = pieces.all()
    keys = [{"path": key.path, "labels": key.labels} for key in varied.keys]
    return {"keys": keys, "base": varied.base, "states": states, "pieces": sizes}, deflated(content, 9)
