"""The layout of a Gantt picture: panels under each other on one time axis, which may have a break, legend and caption.

All sizes are in typographic points from the top, so that a picture of more rows is higher and its
texts are not smaller.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from matplotlib.transforms import Affine2D, ScaledTranslation

from simcluster.base.errors import InputError
from simcluster.show import palette
from simcluster.show.bars import DPI, text_width, time_unit
from simcluster.show.gantt_panel import LaneHeights, Panel, draw_panel, streams_of
from simcluster.show.gantt_rows import RowChoice, Window
from simcluster.show.gantt_words import BoxText, draw_footer, footer_of, texts_of, write

_TITLE, _LINE, _HEADER, _AXIS = 24.0, 15.0, 17.0, 36.0  # points of height; _LINE: of each further one of the title
_TITLE_FONT = 11.0
_STEP_TIME = 74.0  # points of width, right of compared panels
_SIDE = 12.0  # points
_BREAK = 34.0  # points of width that a break in the time axis takes
_LOWEST = 0.22  # of their usual height: lower lanes cannot be told apart
_TICKS = 14  # over the whole width, at most

Header = tuple[str, str, str]
"""Above a panel its name, and at its right two texts."""


@dataclass(frozen=True)
class Drawn:
    """A timeline with its rows; `origin` is the second that its time axis calls zero, `left_out` the number of
    microbatches in the picture's break."""

    timeline: pd.DataFrame
    choice: RowChoice
    origin: float = 0.0
    left_out: int = 0


@dataclass(frozen=True)
class Axis:
    """The time that a picture shows, in seconds behind each timeline's origin, without what a break leaves out."""

    window: Window
    cut: Window | None = None

    @property
    def parts(self) -> tuple[Window, ...]:
        """What is shown: all, or what lies before and behind the break."""
        start, end = self.window
        return ((start, self.cut[0]), (self.cut[1], end)) if self.cut else (self.window,)

    @property
    def seconds(self) -> float:
        """How much of the time is shown."""
        return sum(end - start for start, end in self.parts)

    @property
    def unit(self) -> tuple[str, float]:
        """The largest unit of which the window holds at least one."""
        return time_unit(self.window[1] - self.window[0])


@dataclass(frozen=True)
class GanttSize:
    """Inches across and, where that does not follow from the rows, high."""

    width: float
    height: float | None = None


def gantt_figure(
    drawn: Sequence[Drawn], axis: Axis, title: str,
    *, headers: Sequence[Header] | None, labels: bool, size: GanttSize,
) -> Figure:  # fmt: skip
    """Timelines with their rows on one time axis.  InputError where they do not fit into the height."""
    return _Layout(drawn, axis, title, headers, labels, size).fitted().figure()


@dataclass(frozen=True)
class _Layout:
    """Where everything of a picture is; `scale` is that of the lanes' heights."""

    drawn: Sequence[Drawn]
    axis: Axis
    title: str
    headers: Sequence[Header] | None
    labels: bool
    size: GanttSize
    scale: float = 1.0

    @cached_property
    def left(self) -> float:
        names = (label for each in self.drawn for label in each.choice.labels)
        return max(text_width(label, 8.0) for label in names) + _SIDE + 6.0

    @cached_property
    def right(self) -> float:
        return self.size.width * 72 - (_STEP_TIME if self.headers else _SIDE + 6.0)

    @cached_property
    def widths(self) -> list[float]:
        """Points across of every part of the axis."""
        room = self.right - self.left - _BREAK * (len(self.axis.parts) - 1)
        return [room * (end - start) / self.axis.seconds for start, end in self.axis.parts]

    @cached_property
    def heading(self) -> str:
        """The title in lines that fit."""
        letters = max(20, int((self.size.width * 72 - self.left - _SIDE) / (0.56 * _TITLE_FONT)))
        return "\n".join(textwrap.fill(line, letters) for line in self.title.splitlines())

    @cached_property
    def panels(self) -> list[list[Panel]]:
        """For every timeline a panel for each part of the axis."""
        rows = sum(len(each.choice.ranks) for each in self.drawn)
        return [[*self._parts(each, rows)] for each in self.drawn]

    def _parts(self, drawn: Drawn, rows: int) -> Iterator[Panel]:
        lanes = LaneHeights.fitting(streams_of(drawn.timeline, drawn.choice.ranks), rows).scaled(self.scale)
        for (start, end), width in zip(self.axis.parts, self.widths, strict=True):
            window, columns = (start + drawn.origin, end + drawn.origin), max(20, round(width / 72 * DPI))
            yield Panel(drawn.timeline, drawn.choice, lanes, window, self.axis.unit[1], drawn.origin, columns)

    @cached_property
    def texts(self) -> list[list[list[BoxText]]]:
        return [texts_of(parts) if self.labels else [[] for _ in parts] for parts in self.panels]

    @property
    def numbered(self) -> bool:
        return any(text.numbered for parts in self.texts for texts in parts for text in texts)

    @property
    def body(self) -> float:
        return sum(parts[0].height + (_HEADER if self.headers else 0.0) for parts in self.panels)

    @property
    def top(self) -> float:
        return _TITLE + _LINE * self.heading.count("\n") if self.heading else 6.0

    @property
    def footer_width(self) -> float:
        return self.right - _SIDE

    @property
    def left_out(self) -> str:
        """What is said of a break."""
        if not self.axis.cut:
            return ""
        counts = sorted({each.left_out for each in self.drawn})
        many = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
        return f"The break stands for {many} microbatches that go as those beside it."

    def fitted(self) -> _Layout:
        """Return the same with lanes as high as the picture's height lets them be, where that is given."""
        if self.size.height is None:
            return self
        flat = [panel for parts in self.panels for panel in parts]
        foot = footer_of(flat, width=self.footer_width, numbered=True, left_out=self.left_out).height
        others = self.top + foot + _AXIS + (_HEADER * len(self.panels) if self.headers else 0.0)
        lanes = sum(parts[0].height for parts in self.panels)
        scale = (self.size.height * 72 - others) / lanes
        if scale < _LOWEST:
            least = (others + _LOWEST * lanes) / 72
            raise InputError(
                f"the picture's rows do not fit into {self.size.height:g} inches; give it at least {least:.1f}, "
                "or draw fewer ranks"
            )
        return replace(self, scale=scale)

    def figure(self) -> Figure:
        figure = Figure(dpi=DPI)
        FigureCanvasAgg(figure)
        flat = [panel for parts in self.panels for panel in parts]
        footer = footer_of(flat, width=self.footer_width, numbered=self.numbered, left_out=self.left_out)
        height = self.size.height * 72 if self.size.height else self.top + self.body + _AXIS + footer.height
        figure.set_size_inches(self.size.width, height / 72)
        if self.heading:
            corner = figure.transFigure + ScaledTranslation(self.left / 72, -8.0 / 72, figure.dpi_scale_trans)
            figure.text(0, 1, self.heading, transform=corner, fontsize=_TITLE_FONT, va="top", color=palette.TEXT)
        draw_footer(figure, footer, left=_SIDE)
        at = height - self.top
        for number, parts in enumerate(self.panels):
            at -= (_HEADER if self.headers else 0.0) + parts[0].height
            self._draw(figure, number, at, height)
        return figure

    def _draw(self, figure: Figure, number: int, at: float, height: float) -> None:
        """One timeline, its lower edge `at` points above the figure's."""
        parts, last = self.panels[number], number == len(self.panels) - 1
        x, all_axes = self.left, []
        for part, (panel, texts) in enumerate(zip(parts, self.texts[number], strict=True)):
            width = self.widths[part]
            across = self.size.width * 72
            axes = figure.add_axes((x / across, at / height, width / across, panel.height / height))
            draw_panel(axes, panel, named=part == 0)
            write(axes, panel, texts)
            _draw_time(axes, named=last, ticks=max(2, round(_TICKS * width / sum(self.widths))))
            all_axes.append(axes)
            if part:
                _draw_break(figure, (x - _BREAK, x), at, panel, self.drawn[number].left_out)
            x += width + _BREAK
        if last:
            widest = max(range(len(parts)), key=self.widths.__getitem__)
            all_axes[widest].set_xlabel(f"time ({self.axis.unit[0]})", fontsize=9, labelpad=2)
        if self.headers:
            _draw_header(all_axes, parts[-1], *self.headers[number])


def _draw_time(axes: Axes, *, named: bool, ticks: int) -> None:
    """Ticks in the axis's unit; written under the last panel only."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, steps=[1, 2, 2.5, 5, 10]))
    formatter = ScalarFormatter(useOffset=False)
    formatter.set_scientific(False)
    axes.xaxis.set_major_formatter(formatter)
    axes.tick_params(axis="x", labelsize=8, length=3.5 if named else 0, labelbottom=named)
    axes.grid(visible=True, axis="x", color="#C8CCD0", linewidth=0.4, zorder=-1)


def _draw_break(figure: Figure, across: Window, at: float, panel: Panel, left_out: int) -> None:
    """Between two parts of a panel: how many microbatches are not drawn, and slanted strokes at every row."""
    points = Affine2D().scale(1 / 72) + figure.dpi_scale_trans
    lanes, middle = panel.lanes, (across[0] + across[1]) / 2
    for row in range(len(panel.choice.ranks)):
        centre = at + panel.height - (row * lanes.pitch + lanes.gap / 2 + lanes.compute / 2)
        for x in (across[0] + 3.0, across[1] - 3.0):
            low, high = centre - 0.6 * lanes.compute, centre + 0.6 * lanes.compute
            stroke = Line2D([x - 2.0, x + 2.0], [low, high], transform=points, color=palette.QUIET_TEXT, linewidth=0.9)
            figure.add_artist(stroke)
    figure.text(
        middle, at + panel.height / 2, f"{left_out:,} ×", transform=points, fontsize=8.0, ha="center", va="center",
        color=palette.TEXT, weight="bold",
    )  # fmt: skip


def _draw_header(parts: Sequence[Axes], panel: Panel, name: str, length: str, change: str) -> None:
    """The name above a compared panel, its length at the right, a line where it ends."""
    parts[0].annotate(
        name, (0, 1), xytext=(0, 3), xycoords="axes fraction", textcoords="offset points", fontsize=9, weight="bold"
    )
    for words, offset, weight in ((length, 6 if change else 0, "bold"), (change, -6, "normal")):
        parts[-1].annotate(
            words, (1, 0.5), xytext=(8, offset), xycoords="axes fraction", textcoords="offset points",
            va="center", fontsize=9, weight=weight,
        )  # fmt: skip
    end = (float(panel.timeline["end"].max()) - panel.origin) / panel.unit
    parts[-1].axvline(end, color=palette.TEXT, linewidth=1.0)
