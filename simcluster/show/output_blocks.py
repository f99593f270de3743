"""Blocks of printed output (values, tables, lines), rendered as text here and as HTML in ``report.html``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

from simcluster.base.texts import escape_table_cell


@dataclass(frozen=True, slots=True)
class NamedValue:
    """A value to print with its name, such as "step time 13.69 s"; without a name it continues the previous value.

    ``tail`` continues the value, ``remark`` is on both, and ``gauge_fraction`` (0 to 1) is drawn as a gauge in text.
    """

    name: str
    value: str
    tail: str = ""
    remark: str = ""
    gauge_fraction: float | None = None


@dataclass(frozen=True, slots=True)
class HeadlineValues:
    """A result's main values below a title: printed as lines, or shown as large numbers in HTML."""

    values: Sequence[NamedValue]
    title: str = ""


@dataclass(frozen=True, slots=True)
class TableBar:
    """A bar next to a table row, with its start and end on the table's scale and a CSS class for its colour."""

    start: float
    end: float
    fill: str = "plain"


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table to print: the left columns hold text, the other columns hold numbers.

    ``title`` has the lines above, ``notes`` those below. A page draws ``bars``, one per row, on a scale that reaches
    ``bar_scale`` at least; text draws them only in a ``chart``, without a header. Text indents rows by ``indent``.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: Sequence[str] = ()
    notes: Sequence[str] = ()
    bars: Sequence[TableBar] = ()
    bar_scale: float = 0.0
    text_columns: int = 1
    indent: int = 0
    chart: bool = False


@dataclass(frozen=True, slots=True)
class TextLines:
    """Lines of text that are printed in the same style.

    Kinds: ``head`` (title, then details), ``plain``, ``warning`` (one per line), ``layout`` (spaces count). A page
    folds the lines of a ``list`` below the first.
    """

    lines: Sequence[str]
    style: Literal["head", "plain", "warning", "list", "layout"] = "plain"


@dataclass(frozen=True, slots=True)
class FoldedText:
    """A text that HTML shows collapsed and that printed output omits."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class HtmlDrawing:
    """A drawing that only HTML output shows, stored as a function that returns HTML."""

    draw: Callable[[], str]


OutputBlock: TypeAlias = HeadlineValues | TableBlock | TextLines | FoldedText | HtmlDrawing
OutputBlocks: TypeAlias = Sequence[OutputBlock]


# --- as text, for terminals and logs ----------------------------------------------------------------------------------

_BAR = 36  # characters of the longest bar

TextStyler = Callable[[str], str]


def render_as_text(answer: Iterable[OutputBlock], *, bold: TextStyler = str) -> str:
    """Return output blocks as text with empty lines between blocks; ``bold`` is applied to table headers."""
    blocks = ("\n".join(block_lines(block, bold=bold)) for block in answer)
    return "\n\n".join(text for text in blocks if text)


def block_lines(block: OutputBlock, *, bold: TextStyler = str) -> Iterator[str]:
    """Yield the text lines of an output block."""
    match block:
        case HeadlineValues():
            yield from [block.title] * bool(block.title)
            yield from map(_named_value_text, block.values)
        case TableBlock():
            yield from block.title
            top = () if block.chart else block.header
            yield from table_lines(top, _rows_with_bars(block), indent=block.indent, left=block.text_columns, bold=bold)
            yield from block.notes
        case TextLines():
            yield from block.lines
        case FoldedText() | HtmlDrawing():
            pass
        case _:
            assert_never(block)


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: int = 0, left: int = 1, bold: TextStyler = str
) -> list[str]:
    """Return a table as aligned lines of text: ``left`` columns left-aligned, the others right-aligned."""
    every = [[*map(escape_table_cell, row)] for row in ((header, *rows) if header else rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    places = [f"{'<' if at < left else '>'}{width}" for at, width in enumerate(widths)]
    lines = [(" " * indent + "  ".join(map(format, row, places))).rstrip() for row in every]
    return [bold(lines[0]), *lines[1:]] if header else lines


def _named_value_text(fact: NamedValue) -> str:
    gauge = ""
    if fact.gauge_fraction is not None:
        filled = round(_BAR * min(fact.gauge_fraction, 1.0))
        gauge = f"  {'█' * filled}{'░' * (_BAR - filled)}"
    aside = f"   ({fact.remark})" if fact.remark else ""
    return f"  {fact.name:<12} {fact.value}{fact.tail}{aside}{gauge}"


def _rows_with_bars(table: TableBlock) -> Sequence[Sequence[str]]:
    if not table.chart:
        return table.rows
    longest = max(bar.end for bar in table.bars)
    bars = ["█" * round(_BAR * bar.end / longest) or "▏" for bar in table.bars]
    return [[*row, f"{bar:<{_BAR}}"] for row, bar in zip(table.rows, bars, strict=True)]
