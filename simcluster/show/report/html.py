"""HTML assembled from files in ``assets/`` and from Python; all text is escaped here, exactly once.

A ``Markup`` is finished HTML; any other text is data, whatever it contains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import assert_never

from simcluster.base.texts import escape_controls
from simcluster.show.blocks import Block, Drawing, Fact, Figures, Folded, Lines, TableBar, TableBlock

_WIDTH = 1000.0  # units across a drawing, whatever its width on the screen
_MOST_TEXT = 40_000  # characters of a text as it is


class Markup(str):
    """Finished HTML, which is not escaped again."""

    __slots__ = ()


Content = str | Iterable[str]


def read_asset(name: str) -> str:
    """Return the text of a file in the report's ``assets/`` folder."""
    return (files("simcluster.show.report") / "assets" / name).read_text(encoding="utf-8")


def fill_asset(name: str, /, **values: Content) -> Markup:
    """Return the HTML of an asset file with values for its $names, without line breaks and indents."""
    text = "".join(line.strip() for line in read_asset(name).splitlines())
    return Markup(
        escape_controls(Template(text).substitute({key: concatenate(value) for key, value in values.items()}))
    )


def element(tag: str, *content: Content, **attributes: str | float | None) -> Markup:
    """Return an HTML element with escaped content: ``class_`` sets class, ``data_x`` data-x; None is omitted."""
    return Markup(f"<{tag}{_attributes_html(attributes)}>{concatenate(*content)}</{tag}>")


def void_element(tag: str, **attributes: str | float | None) -> Markup:
    """Return an HTML element without content: <tag attributes>.

    SVG has no such elements: what follows would become its content.
    """
    return Markup(f"<{tag}{_attributes_html(attributes)}>")


def concatenate(*content: Content) -> Markup:
    """Concatenate pieces of HTML; plain text is escaped."""
    parts = []
    for piece in content:
        if isinstance(piece, Markup):
            parts.append(str(piece))
        elif isinstance(piece, str):
            parts.append(escape(piece))
        else:
            parts.append(concatenate(*piece))
    return Markup("".join(parts))


def html_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, class_: str = "", left: int = 1
) -> Markup:
    """Return an HTML table with a caption for screen readers; the first ``left`` columns are text, others numbers."""
    head = [element("th", name, scope="col", class_=None if at < left else "number") for at, name in enumerate(header)]
    body = []
    for row in rows:
        cells = [
            element("th" if not at else "td", typeset(cell) if at >= left else cell, scope="row" if not at else None,
                    class_=None if at < left else "number")
            for at, cell in enumerate(row)
        ]  # fmt: skip
        body.append(element("tr", cells))
    return element(
        "div",
        element("table", element("caption", caption), element("thead", element("tr", head)), element("tbody", body)),
        class_=f"scroll-x {class_}".strip(),
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def json_block(name: str, value: object) -> Markup:
    """Return JSON data for the page's script; ``<`` is escaped, so that no text can end the block."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{escape(name)}">{text}</script>')


def _attributes_html(attributes: Mapping[str, str | float | None]) -> str:
    found = []
    for name, value in attributes.items():
        if value is not None:
            text = value if isinstance(value, str) else f"{value:.6g}"
            found.append(f' {name.rstrip("_").replace("_", "-")}="{escape(text)}"')
    return "".join(found)


# --- blocks -----------------------------------------------------------------------------------------------------------


def blocks_html(answer: Iterable[Block]) -> Markup:
    """Return printed blocks as HTML."""
    return concatenate(map(block_html, answer))


def block_html(block: Block) -> Markup:
    """Return a block as HTML; "" for an empty one."""
    match block:
        case Figures():
            head = element("div", block.title, class_="head") if block.title else Markup()
            figures = (
                element("div", map(_figure_html, _merged(block.facts)), class_="figures") if block.facts else Markup()
            )
            return concatenate(head, figures)
        case TableBlock():
            return _table_html(block)
        case Lines():
            return _lines_html(block)
        case Folded():
            text = element("pre", shorten_text(block.text), tabindex=0)
            return element("details", element("summary", block.title), text, class_="block")
        case Drawing():
            return Markup(block.draw())
        case _:
            assert_never(block)


def shorten_text(text: str) -> str:
    """Return a text shortened to a length that a page can show."""
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}\n... and {len(text) - _MOST_TEXT:,} characters"


def _merged(facts: Iterable[Fact]) -> list[Fact]:
    found: list[Fact] = []
    for fact in facts:
        if fact.name or not found:
            found.append(fact)
        else:
            first, more = found[-1], f"{fact.value}{fact.tail}" + (f" ({fact.aside})" if fact.aside else "")
            found[-1] = Fact(first.name, first.value, first.tail, "; ".join(filter(None, [first.aside, more])))
    return found


def _figure_html(fact: Fact) -> Markup:
    note = "; ".join(filter(None, [fact.tail.strip(" ,"), fact.aside]))
    return element(
        "div", element("span", fact.name, class_="name"), element("span", typeset(fact.value), class_="value"),
        element("span", typeset(note), class_="note"), class_="figure" if fact.value != "…" else "figure pending",
    )  # fmt: skip


def typeset(text: str) -> str:
    """Return a text with numbers in typographic form: 5.0 % and −3 ms for 5.0% and -3 ms."""
    if isinstance(text, Markup):
        return text
    return re.sub(r"(?<=\d)%", " %", re.sub(r"(?<![\w-])-(?=\d)", "−", text))


def _table_html(block: TableBlock) -> Markup:
    header, rows = [*block.header], [*block.rows]
    title = [line.strip() for line in block.title]
    if block.bars:
        low = min(0.0, *(min(bar.start, bar.end) for bar in block.bars))
        high = max(block.whole, *(max(bar.start, bar.end) for bar in block.bars), 0.0)
        scale = _WIDTH / (high - low) if high > low else 0.0
        header.append("")
        rows = [[*row, bar_html(bar, low, scale)] for row, bar in zip(rows, block.bars, strict=True)]
    caption = next(filter(None, [*title, *header]), "Numbers")
    return element(
        "div", (element("p", line) for line in title), html_table(header, rows, caption=caption, left=block.left),
        (element("p", line.strip(), class_="quiet") for line in block.notes),
        class_=f"block{' bars' if block.bars else ''}",
    )  # fmt: skip


def bar_html(bar: TableBar, low: float, scale: float) -> Markup:
    """Return the HTML of a table bar; ``low`` is the start of the axis, ``scale`` its units per number."""
    first, last = sorted((bar.start, bar.end))
    place = {"x": (first - low) * scale, "y": 0.0, "width": max((last - first) * scale, 1.0), "height": 13.0}
    zero = [element("line", x1=-low * scale, x2=-low * scale, y1=0, y2=13, class_="mark")] if low < 0 else []
    box = element("rect", **place, class_=bar.fill)
    view = f"0 0 {_WIDTH:g} 13"
    return element("svg", box, zero, viewBox=view, preserveAspectRatio="none", aria_hidden="true")


def _lines_html(block: Lines) -> Markup:
    lines = [*filter(None, block.lines)]
    if not lines:
        return Markup()
    match block.style:
        case "head":
            title = element("div", lines[0], class_="head")
            return concatenate(title, (element("div", line.strip(), class_="quiet") for line in lines[1:]))
        case "plain":
            return element("div", (element("div", line.strip()) for line in lines), class_="block")
        case "warning":
            return concatenate(element("div", line.strip(), class_="warning") for line in lines)
        case "list":
            rest = (element("div", line.strip(), class_="quiet") for line in lines[1:])
            return element("details", element("summary", lines[0]), rest, class_="block")
        case "layout":
            return element("pre", shorten_text("\n".join(block.lines)), class_="block")
        case _:
            assert_never(block.style)
