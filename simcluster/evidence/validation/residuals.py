"""What validation teaches about the certainty of a step time: quantiles of residuals of runs alike, as a small table.

A residual is ln(measured / predicted) of one row of a study of steps.  A group's interval goes from its quantile
(1 - level) / 2 to the opposite one, at ranks that keep the promise for one more run of the group (split conformal
prediction; Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005).  A study counts for
``MOST`` rows at most, since its rows share its errors; a group needs ``FEWEST`` of them and two studies.  Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.evidence.validation.reports import Report, score_of
from simcluster.evidence.validation.study import Steps
from simcluster.scenario.likely import ANY, SPANS, RunKind, of_kind

LEVEL = 0.8
MOST = 20.0
FEWEST = 4.0


@dataclass(frozen=True, slots=True)
class Residual:
    """One validated row: ln(measured / predicted), its study, and what kind of run it is."""

    value: float
    study: str
    kind: RunKind


def residuals_of(reports: Iterable[Report]) -> list[Residual]:
    """Of all rows of studies of whole steps."""
    return [
        Residual(-math.log(point.predicted / point.measured), report.study.name, point.kind)
        for report in reports
        if isinstance(report.study, Steps) and not (report.study.measured.parts or report.study.measured.less)
        for point in report.points
        if point.kind is not None
    ]


def table_of(residuals: Sequence[Residual], level: float = LEVEL) -> dict[str, Any]:
    """The table that ``scenario.likely`` reads: for each group factors on the prediction, and what was in it."""
    names: dict[str, list[Residual]] = {}
    for each in residuals:
        for name in each.kind.groups:
            names.setdefault(name, []).append(each)
    groups = {name: _group(rows, level) for name, rows in sorted(names.items()) if _enough(name, rows)}
    return {"level": level, "groups": groups, "studies": _studies(residuals)}


def _studies(residuals: Sequence[Residual]) -> list[dict[str, Any]]:
    """How far predictions are from the rows of each study, kind by kind: what ``scenario.likely.nearest`` sorts."""
    found: dict[tuple[str, str], list[Residual]] = {}
    for each in residuals:
        found.setdefault((each.study, each.kind.groups[0]), []).append(each)
    rows = []
    for (study, like), own in found.items():
        score = score_of([math.expm1(-each.value) for each in own])
        rows.append(
            {
                "study": study,
                "like": like,
                "rows": len(own),
                **{name: round(getattr(score, name), 4) for name in ("mean", "worst", "bias")},
                **_spans(own),
            }
        )
    return rows


def covered(residuals: Sequence[Residual]) -> dict[str, tuple[int, int]]:
    """For every study how many of its rows fall into intervals learned from all other studies, and of how many."""
    found = {}
    for study in dict.fromkeys(each.study for each in residuals):
        own = [each for each in residuals if each.study == study]
        table = table_of([each for each in residuals if each.study != study])
        inside = 0
        for each in own:
            expected = of_kind(each.kind, 1.0, table)
            inside += expected.low <= math.exp(each.value) <= expected.high
        found[study] = (inside, len(own))
    return found


def _weights(rows: Sequence[Residual]) -> Floats:
    many = Counter(each.study for each in rows)
    return np.minimum(1.0, MOST / np.array([many[each.study] for each in rows]))


def _enough(name: str, rows: Sequence[Residual]) -> bool:
    studies = {each.study for each in rows}
    return name == ANY or (len(studies) > 1 and float(_weights(rows).sum()) >= FEWEST)


def _group(rows: Sequence[Residual], level: float) -> dict[str, Any]:
    values, weights, part = np.array([each.value for each in rows]), _weights(rows), (1.0 + level) / 2.0
    low, high = -_quantile(-values, weights, part), _quantile(values, weights, part)
    studies = len({each.study for each in rows})
    return {
        "low": round(math.exp(low), 3),
        "high": round(math.exp(high), 3),
        "rows": len(rows),
        "studies": studies,
        **_spans(rows),
    }


def _spans(rows: Sequence[Residual]) -> dict[str, list[int]]:
    sizes = [(each.kind.gpus, each.kind.hidden, each.kind.sequence) for each in rows]
    return {name: [min(values), max(values)] for name, values in zip(SPANS, zip(*sizes, strict=True), strict=True)}


def _quantile(values: Floats, weights: Floats, part: float) -> float:
    """The smallest value at which ``part`` of the weight is reached, one more run of weight 1 counted beyond all; the
    largest, where the values are too few for the promise."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    place = np.searchsorted(reached, part * (reached[-1] + 1.0) - 1e-12)
    return float(values[order][min(int(place), len(values) - 1)])


def told(table: Mapping[str, Any], coverage: Mapping[str, tuple[int, int]], command: str) -> str:
    """The table as the file that ships."""
    inside, rows = (sum(each[place] for each in coverage.values()) for place in (0, 1))
    mean = math.fsum(own / many for own, many in coverage.values()) / len(coverage)
    lines = [
        "# Where measured step times were, as factors on predicted ones, for groups of validated runs.  Made by",
        f"#   {command}",
        f"# {table['level']:.0%} intervals; with its own study left out, {inside / rows:.0%} of {rows:,} rows fall into"
        " theirs,",
        f"# {mean:.0%} in the mean over {len(coverage)} studies:",
        *(f"#   {study}: {own} of {many}" for study, (own, many) in coverage.items()),
        "",
        f"level: {table['level']}",
        "groups:",
    ]
    for name, group in table["groups"].items():
        lines.append(f'  "{name}": {{{_inner(group)}}}')
    lines.append("studies:  # errors: predicted over measured, minus 1")
    lines += [f"  - {{{_inner(row)}}}" for row in table["studies"]]
    return "\n".join(lines) + "\n"


def _inner(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f'{key}: "{value}"' if isinstance(value, str) else f"{key}: {value}" for key, value in values.items()
    )
