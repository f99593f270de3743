"""HTML report with one control per varied scenario key; the controls switch between simulated variants.

Everything shown follows the controls, without a network and without simulation. Without JavaScript the page shows one
variant, with a table of all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from typing import Any
from urllib.parse import quote

from simcluster.base.units import format_seconds
from simcluster.interactive.report import summary
from simcluster.interactive.report.details import small_print
from simcluster.interactive.report.entry import ReportEntry
from simcluster.interactive.report.html import (
    Markup,
    bar_html,
    element,
    fill_asset,
    html_table,
    join_html,
    json_block,
    typeset_numbers,
    void_element,
)
from simcluster.interactive.report.packing import BinaryColumns, deflate_to_base64
from simcluster.interactive.report.page import (
    CONTENTS,
    content_policy,
    page_script,
    run_descriptions,
    script_data,
    section_contents,
    style_sheet,
)
from simcluster.show.output_blocks import TableBar
from simcluster.show.yaml_text import flow_text

_ABOUT_TWO = ("differences", "trace")  # sections that are about more than one run
_MOST_PINNED = 48  # simulated variants of which each can be pinned: pairs are a kilobyte each
_MOST_BUTTONS = 6  # values that stand side by side; more are a list
_LONGEST_VALUE = 60


@dataclass(frozen=True)
class VariedKey:
    """A scenario key (dotted path) that varies in the report, and its values."""

    path: str
    values: tuple[Any, ...]

    @property
    def labels(self) -> list[str]:
        """Texts for the key's values, no two of which are equal."""
        found = [value_label(value) for value in self.values]
        return [text if found.count(text) == 1 else f"{text} ({at + 1})" for at, text in enumerate(found)]

    @property
    def is_slider(self) -> bool:
        """Whether the control is a slider, which requires three or more ascending or descending numbers."""
        numbers = [value for value in self.values if isinstance(value, int | float) and not isinstance(value, bool)]
        ordered = numbers in (sorted(numbers), sorted(numbers, reverse=True))
        return len(numbers) == len(self.values) > 2 and ordered


@dataclass(frozen=True)
class VariantContent:
    """Report content for one simulated variant of the scenario.

    ``entry`` has its numbers (with the document) and time account, without result and timeline; ``texts`` the HTML of
    each section by place, and the text below the heading; ``data`` the JSON that the script reads, and ``columns`` its
    numbers.
    """

    entry: ReportEntry
    texts: Mapping[str, str]
    data: str
    columns: tuple[bytes, ...]


@dataclass(frozen=True)
class VariantGrid:
    """All combinations of the varied keys' values, each with its report content, or with why it is invalid.

    Combinations vary the last key fastest. ``base`` is the combination shown first, with which others are compared
    until the user pins another.
    """

    keys: tuple[VariedKey, ...]
    variants: tuple[VariantContent | str, ...]
    base: int

    @cached_property
    def names(self) -> list[str]:
        """Names of all combinations of values, such as "tp 4, schedule 1f1b"."""
        return combination_names([(key.path, key.labels) for key in self.keys])

    @cached_property
    def simulated_variants(self) -> dict[int, VariantContent]:
        """Report content of the combinations that were simulated, by index of the combination."""
        return {at: state for at, state in enumerate(self.variants) if isinstance(state, VariantContent)}

    def value_indices(self, index: int) -> tuple[int, ...]:
        """Return which value (by index) each varied key has in the combination with this number."""
        return next(islice(product(*(range(len(key.values)) for key in self.keys)), index, None))

    def url_fragment(self, index: int) -> str:
        """Return the part of the page's URL after "#" that selects a combination of values."""
        pairs = zip(self.keys, self.value_indices(index), strict=True)
        return "&".join(f"{quote(key.path, safe='.')}={quote(key.labels[place], safe='')}" for key, place in pairs)


def make_variant_content(entry: ReportEntry, most_spans: int) -> VariantContent:
    """Return the report content for one run, whose timeline is limited to ``most_spans`` spans."""
    shown, blob = replace(entry, replays=False), BinaryColumns()
    data, notes = script_data([shown], blob, most_spans=most_spans)
    texts = {place: str(part) for place, part in section_contents([shown], notes).items() if place not in _ABOUT_TWO}
    texts["told"] = str(join_html(run_descriptions([shown])))
    light = replace(shown, result=None, scenario=None)  # which hold what cannot be sent
    return VariantContent(light, texts, json.dumps(data, allow_nan=False, separators=(",", ":")), blob.column_bytes)


def page_with_controls(grid: VariantGrid, *, title: str = "") -> str:
    """Return the HTML report with controls; it opens with the base scenario's values."""
    played = grid.simulated_variants
    texts = {at: {**state.texts, "differences": _difference_text(grid, grid.base, at)} for at, state in played.items()}
    base, shown = played[grid.base].entry, texts[grid.base]
    states, columns = _script_data(grid, texts)
    script, sheet = page_script("moving.js"), style_sheet()
    contents = [(place, name) for place, name in CONTENTS if place in shown]
    names = shorten_paths([key.path for key in grid.keys])
    places = grid.value_indices(grid.base)
    controls = [
        _control_html(at, key, name, place)
        for at, (key, name, place) in enumerate(zip(grid.keys, names, places, strict=True))
    ]
    bar = fill_asset("moving.html", controls=controls, base=grid.names[grid.base], told=_summary_html(base))
    return "<!doctype html>\n" + fill_asset(
        "page.html",
        policy=content_policy(script, sheet),
        heading=title or base.document.get("name", base.name), style=Markup(sheet),
        told=element("div", Markup(shown["told"]), data_state="told"),
        contents=(element("a", name, href=f"#{place}") for place, name in [("variants", "Variants"), *contents]),
        sections=join_html(bar, _variants_html(grid), (
            element("section", element("h2", name), element("div", Markup(shown[place]), data_state=place), id=place)
            for place, name in contents
        )),
        version=str(base.numbers.get("version", "")),
        data=json_block("states", states), columns=Markup(columns), script=Markup(script),
    ) + "\n"  # fmt: skip


# --- the controls -----------------------------------------------------------------------------------------------------


def value_label(value: Any) -> str:
    """Return the text by which a control shows a value; lists and mappings appear as YAML, as in [tp, cp]."""
    if value is None or isinstance(value, bool) or value == []:
        return {"True": "true", "False": "false", "None": "not set", "[]": "none"}[str(value)]
    text = flow_text(value) if isinstance(value, list | tuple | Mapping) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def combination_names(keys: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Return a name for each combination of the keys' values; the last key varies fastest.

    Keys with a single value are omitted if another key varies.
    """
    keys = [each for each in keys if len(each[1]) > 1] or keys
    names = shorten_paths([path for path, _ in keys])
    parts = product(*([f"{name} {label}" for label in labels] for name, (_, labels) in zip(names, keys, strict=True)))
    return [", ".join(each) for each in parts]


def shorten_paths(paths: Sequence[str]) -> list[str]:
    """Shorten dotted paths to their last parts, except those whose last parts are equal."""
    last = [path.rpartition(".")[2] for path in paths]
    return [name if last.count(name) == 1 else path for name, path in zip(last, paths, strict=True)]


def _control_html(number: int, key: VariedKey, name: str, chosen: int) -> Markup:
    labels, place = key.labels, f"key-{number}"
    if key.is_slider:
        slider = void_element("input", type="range", id=place, min="0", max=str(len(labels) - 1), step="1",
                              value=str(chosen), aria_valuetext=labels[chosen])  # fmt: skip
        inside = element("span", slider, element("output", labels[chosen], for_=place))
    elif len(labels) > _MOST_BUTTONS:
        options = (element("option", label, value=str(at), selected="" if at == chosen else None)
                   for at, label in enumerate(labels))  # fmt: skip
        inside = element("select", options, id=place)
    else:
        buttons = (
            element("label", void_element("input", type="radio", name=place, value=str(at),
                                  checked="" if at == chosen else None), element("span", label))
            for at, label in enumerate(labels)
        )  # fmt: skip
        hidden = "" if len(labels) == 1 else None  # nothing to choose
        legend = element("legend", name)
        return element("fieldset", legend, buttons, data_key=str(number), title=key.path, hidden=hidden)
    label = element("label", name, for_=place)
    return element("div", label, inside, class_="slider", data_key=str(number), title=key.path)


# --- all of them ------------------------------------------------------------------------------------------------------


def _difference_text(grid: VariantGrid, pinned: int, index: int) -> str:
    if index == pinned:
        text = f"This is A ({grid.names[index]}), to which other variants are compared; choose another variant above."
        return str(small_print(text))
    entries = [replace(grid.simulated_variants[each].entry, name=grid.names[each]) for each in (pinned, index)]
    return str(summary.differences_section(entries))


def _summary_html(entry: ReportEntry) -> str:
    return f"{format_seconds(entry.account.step_time)} per step; {_short_summary(entry)}"


def _short_summary(entry: ReportEntry) -> str:
    numbers = entry.shown_numbers
    mfu, bubble = (typeset_numbers(f"{numbers[name]:.1%}") for name in ("mfu", "bubble_fraction"))
    memory, room = f"{numbers['peak_memory_bytes'] / 1e9:,.1f} GB", "" if numbers.get("fits") else ", out of memory"
    return f"MFU {mfu}; bubble {bubble}; memory {memory}{room}"


def _variants_html(grid: VariantGrid) -> Markup:
    played = {at: (run.entry.account.step_time, run.entry.shown_numbers) for at, run in grid.simulated_variants.items()}
    longest = max(seconds for seconds, _ in played.values())
    header = ["variant", "per step", "", "difference", "MFU", "bubble", "exposed", "memory"]
    rows, refused = [], dict[str, list[str]]()
    for at, (name, state) in enumerate(zip(grid.names, grid.variants, strict=True)):
        link = element("a", name, href=f"#{grid.url_fragment(at)}", data_at=str(at))
        if isinstance(state, str):
            refused.setdefault(state, []).append(name)
            rows.append([link, "refused", *[""] * 6])
            continue
        seconds, numbers = played[at]
        change = f"{seconds / played[grid.base][0] - 1:+.1%}"
        rows.append([
            link, format_seconds(seconds), bar_html(TableBar(0.0, seconds, "whole"), 0.0, 1000 / longest),
            "A" if at == grid.base else change, f"{numbers['mfu']:.1%}", f"{numbers['bubble_fraction']:.1%}",
            format_seconds(numbers["exposed_communication_s"]),
            f"{numbers['peak_memory_bytes'] / 1e9:,.1f} GB" + ("" if numbers.get("fits") else " (out of memory)"),
        ])  # fmt: skip
    reasons = [
        element("li", element("strong", f"{known[0]}{f' and {len(known) - 1} more' if len(known) > 1 else ''}: "), why)
        for why, known in refused.items()
    ]
    return element(
        "section", element("h2", "Variants"), element("p", _describe_fastest(grid), class_="verdict"),
        html_table(header, rows, caption="All variants; differences are from the pinned A", class_="variants tall"),
        element("ul", reasons, class_="notes") if reasons else "", id="variants",
    )  # fmt: skip


def _describe_fastest(grid: VariantGrid) -> str:
    played = {at: state.entry for at, state in grid.simulated_variants.items()}
    fitting = {at: entry for at, entry in played.items() if entry.numbers.get("fits")}
    among = fitting or played
    at = min(among, key=lambda each: among[each].account.step_time)
    refused, large = len(grid.variants) - len(played), len(played) - len(fitting)
    which = f"{grid.names[at]} is the fastest{' that fits' if fitting else ''}"
    text = f"Of {len(grid.variants)} variants {which}: {_summary_html(played[at])}."
    if not fitting:
        text += " All are out of memory."
    elif large:
        text += f" {large} of them {'are' if large > 1 else 'is'} out of memory."
    return text + (f" {refused} {'are' if refused > 1 else 'is'} invalid." if refused else "")


# --- data -------------------------------------------------------------------------------------------------------------


def _script_data(grid: VariantGrid, texts: Mapping[int, Mapping[str, str]]) -> tuple[dict[str, Any], str]:
    """Return the page's keys and variants as JSON, and the texts and columns they refer to, compressed.

    Equal pieces are stored once; texts of a section follow each other, because similar texts compress well.
    """
    pieces, played = dict[bytes, int](), grid.simulated_variants

    def store_piece(piece: str | bytes) -> int:
        return pieces.setdefault(piece.encode() if isinstance(piece, str) else piece, len(pieces))

    sections = {place: {at: store_piece(text[place]) for at, text in texts.items()} for place in texts[grid.base]}
    pinnable = list(played) if len(played) <= _MOST_PINNED else [grid.base]
    against = {at: {pinned: store_piece(_difference_text(grid, pinned, at)) for pinned in pinnable} for at in played}
    data = {at: store_piece(state.data) for at, state in played.items()}
    columns = {at: [store_piece(column) for column in state.columns] for at, state in played.items()}
    seconds = {at: state.entry.account.step_time for at, state in played.items()}
    states: list[dict[str, Any]] = [
        {"name": name, "seconds": seconds[at], "step": format_seconds(seconds[at]),
         "told": _short_summary(played[at].entry), "against": against[at], "data": data[at], "columns": columns[at],
         "texts": {place: numbers[at] for place, numbers in sections.items()}}
        if at in played else {"name": name, "refused": grid.variants[at]}
        for at, name in enumerate(grid.names)
    ]  # fmt: skip
    keys = [{"path": key.path, "labels": key.labels} for key in grid.keys]
    document = {"keys": keys, "base": grid.base, "states": states, "pieces": [len(piece) for piece in pieces]}
    return document, deflate_to_base64(b"".join(pieces), 9)
