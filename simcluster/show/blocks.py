"""Answers as data: an answer is a sequence of blocks, built once; ``show.text`` and ``show.report.html`` render it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Fact:
    """A value with its name; without a name it continues the fact above.

    ``tail`` continues the value, ``aside`` is a remark on both, and ``part`` (0 to 1) is drawn as a gauge in text.
    """

    name: str
    value: str
    tail: str = ""
    aside: str = ""
    part: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """Values that are read first: lines of a text below a ``title``, large figures of a page."""

    facts: Sequence[Fact]
    title: str = ""


@dataclass(frozen=True, slots=True)
class TableBar:
    """A bar from ``start`` to ``end`` on the scale of its table, and the class of its fill."""

    start: float
    end: float
    fill: str = "plain"


@dataclass(frozen=True, slots=True)
class TableBlock:
    """Rows of cells, the first ``left`` of them text and the others numbers.

    ``title`` are lines above, ``notes`` lines below.  A page draws ``bars``, one per row, on a scale that reaches
    ``whole`` at least; a text does so only in a ``chart``, without a header.  It indents its rows by ``indent``.
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
    """Lines of text: a ``head`` (title, then details), ``plain`` lines, each a ``warning``, or ``layout``, whose spaces
    count; a page folds those of a ``list`` below the first."""

    lines: Sequence[str]
    style: Literal["head", "plain", "warning", "list", "layout"] = "plain"


@dataclass(frozen=True, slots=True)
class Folded:
    """A text that a page folds away, and that a text leaves out."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing of pages alone: a function that returns its markup."""

    draw: Callable[[], str]


Block: TypeAlias = Figures | TableBlock | Lines | Folded | Drawing
Answer: TypeAlias = Sequence[Block]
