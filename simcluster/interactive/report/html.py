"""HTML building blocks; all text is escaped here, exactly once.

A ``Markup`` is finished HTML; any other text is data, whatever it contains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, assert_never

from simcluster.base.texts import escape_controls
from simcluster.show.output_blocks import FoldedText, HeadlineValues, HtmlDrawing, NamedValue, TableBlock, TextLines

if TYPE_CHECKING:
    from simcluster.show.output_blocks import OutputBlock, TableBar

_WIDTH = 1000.0  # units across a drawing, whatever its width on the screen
_MOST_TEXT = 40_000  # characters of a text as it is


class Markup(str):
    """A string that is complete HTML already, so that it is not escaped again."""

    __slots__ = ()


HtmlContent = str | Iterable[str]


def read_asset(name: str, folder: str = "interactive/report/assets") -> str:
    """Return the text of a file of the package, by default of the report's ``assets/`` folder."""
    return (files("simcluster") / folder / name).read_text(encoding="utf-8")


def fill_asset(name: str, /, **values: HtmlContent) -> Markup:
    """Return an asset file's HTML with its $names replaced by values, without line breaks and indents."""
    text = "".join(line.strip() for line in read_asset(name).splitlines())
    return Markup(escape_controls(Template(text).substitute({key: join_html(value) for key, value in values.items()})))


def element(tag: str, *content: HtmlContent, **attributes: str | float | None) -> Markup:
    """Return an HTML element; ``class_`` sets class, ``data_x`` sets data-x, None omits the attribute."""
    return Markup(f"<{tag}{_attributes_html(attributes)}>{join_html(*content)}</{tag}>")


def void_element(tag: str, **attributes: str | float | None) -> Markup:
    """Return an HTML element that has no content and no end tag: <tag attributes>.

    SVG has no such elements: what follows would become its content.
    """
    return Markup(f"<{tag}{_attributes_html(attributes)}>")


def join_html(*content: HtmlContent) -> Markup:
    """Concatenate pieces of HTML, escaping plain text."""
    parts = []
    for piece in content:
        if isinstance(piece, Markup):
            parts.append(str(piece))
        elif isinstance(piece, str):
            parts.append(escape(piece))
        else:
            parts.append(join_html(*piece))
    return Markup("".join(parts))


def html_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, class_: str = "", left: int = 1
) -> Markup:
    """Return an HTML table whose first ``left`` columns hold text; only screen readers read the caption."""
    head = [element("th", name, scope="col", class_=None if at < left else "number") for at, name in enumerate(header)]
    body = []
    for row in rows:
        cells = [
            element("th" if not at else "td", typeset_numbers(cell) if at >= left else cell,
                    scope="row" if not at else None, class_=None if at < left else "number")
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
    """Return a script element that holds JSON data; ``<`` is escaped so that no text ends the element."""
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


def blocks_html(blocks: Iterable[OutputBlock]) -> Markup:
    """Return output blocks as HTML."""
    return join_html(map(block_html, blocks))


def block_html(block: OutputBlock) -> Markup:
    """Return one output block as HTML; "" for an empty block."""
    match block:
        case HeadlineValues():
            head = element("div", block.title, class_="head") if block.title else Markup()
            values = map(_headline_value_html, _merge_unnamed_values(block.values))
            figures = element("div", values, class_="figures") if block.values else Markup()
            return join_html(head, figures)
        case TableBlock():
            return _table_html(block)
        case TextLines():
            return _lines_html(block)
        case FoldedText():
            text = element("pre", shorten_text(block.text), tabindex=0)
            return element("details", element("summary", block.title), text, class_="block")
        case HtmlDrawing():
            return Markup(block.draw())
        case _:
            assert_never(block)


def shorten_text(text: str) -> str:
    """Shorten a long text so that a page can show it, and append the number of omitted characters."""
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}\n... and {len(text) - _MOST_TEXT:,} characters"


def _merge_unnamed_values(facts: Iterable[NamedValue]) -> list[NamedValue]:
    found: list[NamedValue] = []
    for fact in facts:
        if fact.name or not found:
            found.append(fact)
        else:
            first, more = found[-1], f"{fact.value}{fact.tail}" + (f" ({fact.remark})" if fact.remark else "")
            found[-1] = NamedValue(first.name, first.value, first.tail, "; ".join(filter(None, [first.remark, more])))
    return found


def _headline_value_html(fact: NamedValue) -> Markup:
    note = "; ".join(filter(None, [fact.tail.strip(" ,"), fact.remark]))
    return element(
        "div", element("span", fact.name, class_="name"), element("span", typeset_numbers(fact.value), class_="value"),
        element("span", typeset_numbers(note), class_="note"), class_="figure" + " pending" * (fact.value == "…"),
    )  # fmt: skip


def typeset_numbers(text: str) -> str:
    """Typeset the numbers of a text: 5.0 % and −3 ms for 5.0% and -3 ms."""
    if isinstance(text, Markup):
        return text
    return re.sub(r"(?<=\d)%", " %", re.sub(r"(?<![\w-])-(?=\d)", "−", text))


def _table_html(block: TableBlock) -> Markup:
    header, rows = [*block.header], [*block.rows]
    title = [line.strip() for line in block.title]
    if block.bars:
        low = min(0.0, *(min(bar.start, bar.end) for bar in block.bars))
        high = max(block.bar_scale, *(max(bar.start, bar.end) for bar in block.bars), 0.0)
        scale = _WIDTH / (high - low) if high > low else 0.0
        header.append("")
        rows = [[*row, bar_html(bar, low, scale)] for row, bar in zip(rows, block.bars, strict=True)]
    caption = next(filter(None, [*title, *header]), "Numbers")
    return element(
        "div", (element("p", one) for one in title), html_table(header, rows, caption=caption, left=block.text_columns),
        (element("p", line.strip(), class_="quiet") for line in block.notes),
        class_=f"block{' bars' if block.bars else ''}",
    )  # fmt: skip


def bar_html(bar: TableBar, low: float, scale: float) -> Markup:
    """Return a table bar as SVG; the SVG starts at the value ``low`` and has ``scale`` units per unit of value."""
    first, last = sorted((bar.start, bar.end))
    place = {"x": (first - low) * scale, "y": 0.0, "width": max((last - first) * scale, 1.0), "height": 13.0}
    zero = [element("line", x1=-low * scale, x2=-low * scale, y1=0, y2=13, class_="mark")] if low < 0 else []
    box = element("rect", **place, class_=bar.fill)
    view = f"0 0 {_WIDTH:g} 13"
    return element("svg", box, zero, viewBox=view, preserveAspectRatio="none", aria_hidden="true")


def _lines_html(block: TextLines) -> Markup:
    lines = [*filter(None, block.lines)]
    if not lines:
        return Markup()
    match block.style:
        case "head":
            title = element("div", lines[0], class_="head")
            return join_html(title, (element("div", line.strip(), class_="quiet") for line in lines[1:]))
        case "plain":
            return element("div", (element("div", line.strip()) for line in lines), class_="block")
        case "warning":
            return join_html(element("div", line.strip(), class_="warning") for line in lines)
        case "list":
            rest = (element("div", line.strip(), class_="quiet") for line in lines[1:])
            return element("details", element("summary", lines[0]), rest, class_="block")
        case "layout":
            return element("pre", shorten_text("\n".join(block.lines)), class_="block")
        case _:
            assert_never(block.style)
