"""The page that moves: variants that were simulated beforehand, a control for each key that varies.

Everything shown follows the controls, without a network and without simulating anything.  Without JavaScript it is the
page of one variant, with a table of all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simcluster.base.units import format_seconds
from simcluster.interactive.moving.varied import VariedKey, address, control, digits, names_of, short_names
from simcluster.show.blocks import TableBar
from simcluster.show.report import summary
from simcluster.show.report.details import quiet
from simcluster.show.report.entry import Entry
from simcluster.show.report.html import Markup, bar_html, element, filled, joined, json_block, table, typeset
from simcluster.show.report.packing import Blob, deflated
from simcluster.show.report.page import CONTENTS, data_of, hashed, parts_of, script_of, style_sheet, told_of

ABOUT_TWO = ("differences", "trace")
"""Sections that are about more than one run."""


@dataclass(frozen=True)
class PageState:
    """One variant on the page.

    ``entry`` is its numbers (the document among them) and account, without result and timeline; ``texts`` the HTML of
    each section by its place, and of "told", which stands under the heading; ``data`` the JSON that the script reads
    and ``columns`` its numbers.
    """

    entry: Entry
    texts: Mapping[str, str]
    data: str
    columns: tuple[bytes, ...]


def state_of(entry: Entry, most_spans: int) -> PageState:
    """The state of a run, its timeline of at most so many spans; nothing is played for it but what its faults cost."""
    shown, blob = replace(entry, replays=False), Blob()
    data, notes = data_of([shown], blob, most_spans=most_spans)
    texts = {place: str(part) for place, part in parts_of([shown], notes).items() if place not in ABOUT_TWO}
    texts["told"] = str(joined(told_of([shown])))
    light = replace(shown, result=None, scenario=None)  # which hold what cannot be sent
    return PageState(light, texts, json.dumps(data, allow_nan=False, separators=(",", ":")), blob.parts)


_MOST_PINNED = 48  # played variants of which each can be pinned: pairs are a kilobyte each


@dataclass(frozen=True)
class Varied:
    """A grid of variants: its ``keys``, and for every combination, the last key fastest, its state or why there is
    none; ``base`` is the combination that the page begins with, and that the others are compared with until another is
    pinned."""

    keys: tuple[VariedKey, ...]
    states: tuple[PageState | str, ...]
    base: int

    def names(self) -> list[str]:
        """Return what every combination is called: "tp 4, schedule 1f1b"."""
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


def moving_page(varied: Varied, *, title: str = "") -> str:
    """Return the page as HTML, which begins with the base."""
    names = varied.names()
    base = varied.state(varied.base)
    texts = {
        at: {**state.texts, "differences": _against(varied, names, varied.base, at)} for at, state in varied.played()
    }
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
    return element("div", Markup(texts[place]), data_state=place)


def _against(varied: Varied, names: Sequence[str], pinned: int, at: int) -> str:
    if at == pinned:
        return str(quiet(f"This is A, which the others are compared with ({names[at]}); choose another one above."))
    entries = [replace(varied.state(each).entry, name=names[each]) for each in (pinned, at)]
    return str(summary.differences(entries))


# --- the controls -----------------------------------------------------------------------------------------------------


def _bar(varied: Varied, names: Sequence[str]) -> Markup:
    places = digits(varied.base, varied.keys)
    names_of_keys = short_names([key.path for key in varied.keys])
    controls = [
        control(number, key, name, at)
        for number, (key, name, at) in enumerate(zip(varied.keys, names_of_keys, places, strict=True))
    ]
    return filled(
        "moving.html", controls=controls, base=names[varied.base], told=_told(varied.state(varied.base).entry)
    )


def _told(entry: Entry) -> str:
    return f"{format_seconds(entry.account.step_time)} a step; {_rest_told(entry)}"


def _rest_told(entry: Entry) -> str:
    numbers = entry.shown_numbers
    mfu, bubble = (typeset(f"{numbers[name]:.1%}") for name in ("mfu", "bubble_fraction"))
    memory, room = f"{numbers['peak_memory_bytes'] / 1e9:,.1f} GB", "" if numbers.get("fits") else ", does not fit"
    return f"MFU {mfu}; bubble {bubble}; memory {memory}{room}"


# --- all of them ------------------------------------------------------------------------------------------------------


def _variants(varied: Varied, names: Sequence[str]) -> Markup:
    """Return which is the fastest, and a row for every combination, also for those that cannot be."""
    base = varied.state(varied.base)
    longest = max(state.entry.account.step_time for _, state in varied.played())
    header = ["variant", "a step", "", "difference", "MFU", "bubble", "exposed", "memory"]
    rows = []
    for at, state in enumerate(varied.states):
        link = element("a", names[at], href=f"#{address(varied.keys, at)}", data_at=str(at))
        if isinstance(state, str):
            rows.append([link, "refused", *[""] * 6])
            continue
        seconds, numbers = state.entry.account.step_time, state.entry.shown_numbers
        change = f"{seconds / base.entry.account.step_time - 1:+.1%}"
        rows.append([
            link, format_seconds(seconds), bar_html(TableBar(0.0, seconds, "whole"), 0.0, 1000 / longest),
            "A" if at == varied.base else change, f"{numbers['mfu']:.1%}", f"{numbers['bubble_fraction']:.1%}",
            format_seconds(numbers["exposed_communication_s"]),
            f"{numbers['peak_memory_bytes'] / 1e9:,.1f} GB" + ("" if numbers.get("fits") else " (does not fit)"),
        ])  # fmt: skip
    caption = "All variants; differences are from A, which is pinned"
    return element(
        "section", element("h2", "Variants"), element("p", _fastest(varied, names), class_="verdict"),
        table(header, rows, caption=caption, class_="variants tall"), _refused(varied, names), id="variants",
    )  # fmt: skip


def _refused(varied: Varied, names: Sequence[str]) -> Markup:
    of: dict[str, list[str]] = {}
    for name, state in zip(names, varied.states, strict=True):
        if isinstance(state, str):
            of.setdefault(state, []).append(name)
    said = [
        element("li", element("strong", f"{known[0]}{f' and {len(known) - 1} more' if len(known) > 1 else ''}: "), why)
        for why, known in of.items()
    ]
    return element("ul", said, class_="notes") if said else Markup()


def _fastest(varied: Varied, names: Sequence[str]) -> str:
    played = list(varied.played())
    fitting = [(at, state) for at, state in played if state.entry.numbers.get("fits")]
    at = min(fitting or played, key=lambda each: each[1].entry.account.step_time)[0]
    refused = len(varied.states) - len(played)
    told = f"Of {len(varied.states)} variants {names[at]} is the fastest{' that fits' if fitting else ''}: "
    told += f"{_told(varied.state(at).entry)}."
    if not fitting:
        told += " None of them fits its GPU."
    elif len(fitting) < len(played):
        told += f" {len(played) - len(fitting)} of them {'do' if len(played) - len(fitting) > 1 else 'does'} not fit."
    return told + (f" {refused} cannot be." if refused else "")


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
    """Return what the script reads: keys and states as JSON, and the pieces that states are made of.

    A section's texts stand one after the other: they are much alike, and deflate well.
    """
    pieces, played = _Pieces(), dict(varied.played())
    sections = {place: {at: pieces.number(text[place].encode()) for at, text in texts.items()}
                for place in texts[varied.base]}  # fmt: skip
    pinnable = list(played) if len(played) <= _MOST_PINNED else [varied.base]
    against = {at: {pinned: pieces.number(_against(varied, names, pinned, at).encode()) for pinned in pinnable}
               for at in played}  # fmt: skip
    data = {at: pieces.number(state.data.encode()) for at, state in played.items()}
    seconds = {at: state.entry.account.step_time for at, state in played.items()}
    columns = {at: [pieces.number(column) for column in state.columns] for at, state in played.items()}
    states: list[dict[str, Any]] = [
        {"name": names[at], "seconds": seconds[at], "step": format_seconds(seconds[at]),
         "told": _rest_told(played[at].entry), "against": against[at], "data": data[at], "columns": columns[at],
         "texts": {place: numbers[at] for place, numbers in sections.items()}}
        if at in played else {"name": names[at], "refused": state}
        for at, state in enumerate(varied.states)
    ]  # fmt: skip
    sizes, content = pieces.all()
    keys = [{"path": key.path, "labels": key.labels} for key in varied.keys]
    return {"keys": keys, "base": varied.base, "states": states, "pieces": sizes}, deflated(content, 9)
