"""Blocks of printed output (headline values, tables, lines), rendered as text here and as HTML in ``report.html``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

from simcluster.base.texts import escape_for_cell


@dataclass(frozen=True, slots=True)
class Fact:
    """A named value to print, such as step time 13.69 s; without a name it continues the value above.

    ``tail`` continues the value, ``aside`` is a remark on both, and ``part`` (0 to 1) is drawn as a gauge in text.
    """

    name: str
    value: str
    tail: str = ""
    aside: str = ""
    part: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The headline values of a result: lines below a ``title`` in text, large numbers in HTML."""

    facts: Sequence[Fact]
    title: str = ""


@dataclass(frozen=True, slots=True)
class TableBar:
    """A bar next to a table row, from ``start`` to ``end`` on the table's scale, with the CSS class of its fill."""

    start: float
    end: float
    fill: str = "plain"


@dataclass(frozen=True, slots=True)
class TableBlock:
    """A table to print; its first ``left`` columns hold text, the others numbers.

    ``title`` has the lines above, ``notes`` those below. A page draws ``bars``, one per row, on a scale that reaches
    ``whole`` at least; text draws them only in a ``chart``, without a header. Text indents rows by ``indent``.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: Sequence[str] = ()
    notes: Sequence[str] = ()
    bars: Sequence[TableBar] = ()
    whole: float = 0.0
    left: int = 1
    indent: int = 0
    chart: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of text that are printed in the same style.

    Kinds: ``head`` (title, then details), ``plain``, ``warning`` (one per line), ``layout`` (spaces count). A page
    folds the lines of a ``list`` below the first.
    """

    lines: Sequence[str]
    style: Literal["head", "plain", "warning", "list", "layout"] = "plain"


@dataclass(frozen=True, slots=True)
class Folded:
    """A text that the HTML form folds away and the text form omits."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing for HTML only: a function that returns its markup."""

    draw: Callable[[], str]


Block: TypeAlias = Figures | TableBlock | Lines | Folded | Drawing
Answer: TypeAlias = Sequence[Block]


# --- as text, for terminals and logs ----------------------------------------------------------------------------------

_BAR = 36  # characters of the longest bar

Bold = Callable[[str], str]


def blocks_text(answer: Iterable[Block], *, bold: Bold = str) -> str:
    """Return blocks as text, separated by empty lines; ``bold`` marks the headers of tables."""
    blocks = ("\n".join(block_lines(block, bold=bold)) for block in answer)
    return "\n\n".join(text for text in blocks if text)


def block_lines(block: Block, *, bold: Bold = str) -> Iterator[str]:
    """Yield the text lines of a block."""
    match block:
        case Figures():
            yield from [block.title] * bool(block.title)
            yield from map(_fact_lines, block.facts)
        case TableBlock():
            yield from block.title
            header = () if block.chart else block.header
            yield from table_lines(header, _rows_with_bars(block), indent=block.indent, left=block.left, bold=bold)
            yield from block.notes
        case Lines():
            yield from block.lines
        case Folded() | Drawing():
            pass
        case _:
            assert_never(block)


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: int = 0, left: int = 1, bold: Bold = str
) -> list[str]:
    """Return table rows as aligned text lines: the first ``left`` columns left-aligned, the others right-aligned."""
    every = [[*map(escape_for_cell, row)] for row in ((header, *rows) if header else rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    places = [f"{'<' if at < left else '>'}{width}" for at, width in enumerate(widths)]
    lines = [(" " * indent + "  ".join(map(format, row, places))).rstrip() for row in every]
    return [bold(lines[0]), *lines[1:]] if header else lines


def _fact_lines(fact: Fact) -> str:
    gauge = ""
    if fact.part is not None:
        filled = round(_BAR * min(fact.part, 1.0))
        gauge = f"  {'█' * filled}{'░' * (_BAR - filled)}"
    aside = f"   ({fact.aside})" if fact.aside else ""
    return f"  {fact.name:<12} {fact.value}{fact.tail}{aside}{gauge}"


def _rows_with_bars(table: TableBlock) -> Sequence[Sequence[str]]:
    if not table.chart:
        return table.rows
    longest = max(bar.end for bar in table.bars)
    bars = ["█" * round(_BAR * bar.end / longest) or "▏" for bar in table.bars]
    return [[*row, f"{bar:<{_BAR}}"] for row, bar in zip(table.rows, bars, strict=True)]
