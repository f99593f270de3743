"""Communication: how much of it compute hides, how much is exposed, and how long ranks wait for late members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.documents.argument_types import checked
from simcluster.results.critical_path import kind_of
from simcluster.results.overlap import Key, OverlapSeconds
from simcluster.results.played import Run
from simcluster.show.bars import bar_rows
from simcluster.show.palette import COMPUTE_KINDS, QUIET_TEXT, STREAMS, TEXT, WAITING, WAITING_HATCH, rgb, tinted

_ROW_HEIGHT = 0.27
_MOST_ROWS = 30
_HIDDEN_TINT = 0.6


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    axis: str
    value: OverlapSeconds
    gap: float = 0.0  # of rows, above it


@checked
def overlap(named: Sequence[tuple[str, Run]]) -> Figure:
    """Of one run a bar for every collective; of several a bar for each axis and run, side by side.

    Seconds a step, mean over ranks.  InputError where nothing communicates, and for no run.
    """
    rows = _collectives(named[0][1]) if len(named) == 1 else _axes_of(named)
    if not rows:
        raise InputError("nothing to draw: no rank of this step communicates; use two GPUs or more")
    figure = Figure(figsize=(10.5, 1.5 + _ROW_HEIGHT * sum(1 + row.gap for row in rows)), layout="constrained")
    axes = figure.subplots()
    _draw(axes, rows)
    axes.set_title(_title(named), fontsize=11, color=TEXT, loc="left")
    figure.legend(handles=list(_legend(rows)), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def _title(named: Sequence[tuple[str, Run]]) -> str:
    if len(named) > 1:
        return "Communication of a step: hidden, exposed, waiting (mean over ranks)"
    name, run = named[0]
    return f"{name}: {run.overlap.fraction:.1%} of communication is beside compute (mean over ranks)"


def _collectives(run: Run) -> list[_Row]:
    """The longest ones, axis by axis; what is short goes together."""
    values = {key: value for key, value in run.overlap.mean.items() if key.kind}
    longest = sorted(values, key=lambda key: -(values[key].wire + values[key].waiting))[:_MOST_ROWS]
    rows: list[_Row] = []
    for key, value in values.items():
        if key in longest and value.wire + value.waiting > 0:
            gap = 0.5 if rows and rows[-1].axis != key.axis else 0.0
            rows.append(_Row(f"{kind_of(key.axis, key.kind)}  {key.name}", key.axis, value, gap))
    return rows


def _axes_of(named: Sequence[tuple[str, Run]]) -> list[_Row]:
    """Axis by axis every run."""
    there = dict.fromkeys(key.axis for _, run in named for key in run.overlap.mean if key.axis and not key.kind)
    return [
        _Row(f"{axis}  {name}", axis, run.overlap.mean.get(Key(axis), OverlapSeconds()), 0.0 if place else 0.6)
        for axis in there
        for place, (name, run) in enumerate(named)
    ]


def _draw(axes: Axes, rows: Sequence[_Row]) -> None:
    places: list[float] = []
    for row in rows:
        places.append((places[-1] if places else -1.0) + 1.0 + row.gap)
    longest = max(row.value.wire + row.value.waiting for row in rows)
    for place, row in zip(places, rows, strict=True):
        full = rgb(STREAMS.get(row.axis, COMPUTE_KINDS["other"]))
        left = 0.0
        for seconds, colour, hatch in (
            (row.value.exposed, full, ""),
            (row.value.hidden, tinted(full, _HIDDEN_TINT), ""),
            (row.value.waiting, rgb(WAITING), "////"),
        ):
            axes.barh(place, seconds, left=left, height=0.74, color=colour, hatch=hatch, edgecolor=WAITING_HATCH, lw=0)
            left += seconds
        text = f"{format_seconds(row.value.wire)}, {row.value.hidden / row.value.wire:.0%} hidden" if left else "none"
        axes.text(left + 0.008 * longest, place, text, va="center", fontsize=7.5, color=QUIET_TEXT)
    bar_rows(axes, [row.name for row in rows], "seconds a step", places=places, size=8)
    axes.set_xlim(0, 1.16 * longest)


def _legend(rows: Iterable[_Row]) -> Iterable[Patch]:
    full = rgb(STREAMS.get(next(iter(rows)).axis, COMPUTE_KINDS["other"]))
    yield Patch(color=full, label="exposed")
    yield Patch(color=tinted(full, _HIDDEN_TINT), label="hidden behind compute")
    yield Patch(facecolor=WAITING, hatch="////", edgecolor=WAITING_HATCH, lw=0, label="waiting for a late member")
