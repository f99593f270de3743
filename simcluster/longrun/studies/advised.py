"""A piece of advice: one sentence, the table that it rests on, and what of it a picture shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcluster.base.shown import Shown
from simcluster.base.units import DAY
from simcluster.longrun.studies.policies import records

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class AdviceLine:
    """A column of the table as a line: ``theory`` is drawn dashed; ``wide`` is the column of half an interval."""

    column: str
    label: str
    theory: bool = False
    wide: str = ""


@dataclass(frozen=True, slots=True)
class AdviceMark:
    """A point that is named: where (in the table's units), and what it is."""

    x: float
    y: float
    label: str
    chosen: bool = True


@dataclass(frozen=True, slots=True)
class AdvicePicture:
    """Lines over a column ``x``: divided by ``x_unit`` and ``y_unit`` (seconds to minutes, shares to percent), with
    labels that say so; ``log`` axes are "", "x" or "xy"."""

    x: str
    x_label: str
    y_label: str
    lines: tuple[AdviceLine, ...]
    marks: tuple[AdviceMark, ...] = ()
    x_unit: float = 1.0
    y_unit: float = 0.01
    log: str = ""


@dataclass(frozen=True)
class Advice(Shown):
    """An answer: ``sentence``, the ``table`` it rests on (seconds, shares and hours as its columns say), a ``second``
    table where there is one, ``notes`` on what it holds for, what is ``assumed``, and what to draw."""

    question: str
    name: str
    sentence: str
    table: pd.DataFrame
    picture: AdvicePicture
    played: int
    notes: tuple[str, ...] = ()
    second: pd.DataFrame | None = None
    assumed: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what is not known is None."""
        return {
            "question": self.question,
            "name": self.name,
            "answer": self.sentence,
            "played": self.played,
            "table": records(self.table),
            "second": None if self.second is None else records(self.second),
            "assumed": list(self.assumed),
            "notes": list(self.notes),
        }


def percent(share: float, digits: int = 2) -> str:
    """ "86.41 %"."""
    return f"{100 * share:.{digits}f} %"


def points(gap: float, half: float) -> str:
    """A difference of shares: "1.23 +- 0.04 points"."""
    return f"{within(100 * gap, 100 * half)} points"


def within(value: float, half: float, digits: int = 2) -> str:
    """A value and half its interval, "1.23 +- 0.04": with more digits where the half would be 0."""
    if half > 0:
        digits = max(digits, min(5, math.ceil(-math.log10(half))))
    return f"{value:,.{digits}f} +- {half:,.{digits}f}"


def duration(seconds: float) -> str:
    """For people: "17.5 s", "18.3 min", "16.7 h"."""
    for unit, scale, below in (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, 48 * 3600.0)):
        if seconds < below:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / DAY:,.3g} d"


def left_out_note(what: tuple[str, ...]) -> tuple[str, ...]:
    """Why closed form and simulation may differ."""
    return (f"the closed form leaves out: {', '.join(what)}",) if what else ()
