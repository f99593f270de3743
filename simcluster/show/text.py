"""Answers as text, for terminals and logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import assert_never

from simcluster.base.printable import on_a_line
from simcluster.show.blocks import Block, Drawing, Fact, Figures, Folded, Lines, TableBlock

_BAR = 36  # characters of the longest bar

Bold = Callable[[str], str]


def text_of(answer: Iterable[Block], *, bold: Bold = str) -> str:
    """Return an answer as text, with an empty line between blocks; ``bold`` marks the headers of tables."""
    blocks = ("\n".join(lines_of(block, bold=bold)) for block in answer)
    return "\n\n".join(text for text in blocks if text)


def lines_of(block: Block, *, bold: Bold = str) -> Iterator[str]:
    """Yield the lines of a block."""
    match block:
        case Figures():
            yield from [block.title] * bool(block.title)
            yield from map(_fact, block.facts)
        case TableBlock():
            yield from block.title
            yield from table_lines(
                () if block.chart else block.header, _with_bars(block), indent=block.indent, bold=bold
            )
            yield from block.notes
        case Lines():
            yield from block.lines
        case Folded() | Drawing():
            pass
        case _:
            assert_never(block)


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: int = 0, bold: Bold = str
) -> list[str]:
    """Return aligned columns with two spaces between them: the first to the left, the others to the right."""
    every = [[*map(on_a_line, row)] for row in ((header, *rows) if header else rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    lines = [
        (" " * indent + "  ".join(f"{cell:{'>' if at else '<'}{widths[at]}}" for at, cell in enumerate(row))).rstrip()
        for row in every
    ]
    return [bold(lines[0]), *lines[1:]] if header else lines


def _fact(fact: Fact) -> str:
    gauge = ""
    if fact.part is not None:
        filled = round(_BAR * min(fact.part, 1.0))
        gauge = f"  {'█' * filled}{'░' * (_BAR - filled)}"
    aside = f"   ({fact.aside})" if fact.aside else ""
    return f"  {fact.name:<12} {fact.value}{fact.tail}{aside}{gauge}"


def _with_bars(table: TableBlock) -> Sequence[Sequence[str]]:
    """Return the rows, with a bar behind each where the text draws them."""
    if not table.chart:
        return table.rows
    longest = max(bar.end for bar in table.bars)
    bars = ["█" * round(_BAR * bar.end / longest) or "▏" for bar in table.bars]
    return [[*row, f"{bar:<{_BAR}}"] for row, bar in zip(table.rows, bars, strict=True)]
