"""Prediction intervals of step times: quantiles of validation residuals for similar runs.

A residual is ln(measured / predicted) of one row of a study of steps. A group's interval goes from its quantile (1 -
level) / 2 to the opposite one, at ranks that hold for one more run of the group (split conformal prediction; Vovk,
Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005). A study counts for at most ``MAX_STUDY_ROWS``
rows, because its rows share its errors and the next run is of another study (for rows in groups see Dunn, Wasserman and
Ramdas, arXiv:1809.07441). A group needs ``MIN_STUDIES`` studies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcluster.base.arrays import Floats
from simcluster.evidence.validation.reports import Report, arithmetic_score
from simcluster.evidence.validation.study import StepStudy
from simcluster.scenario.prediction_intervals import ANY, SPANS, RunFeatures, interval_for_features

LEVEL = 0.8
MAX_STUDY_ROWS = 4.0
MIN_STUDIES = 2


@dataclass(frozen=True, slots=True)
class Residual:
    """Residual of a validated row: ln(measured / predicted), the row's study, and features of the run."""

    value: float
    study: str
    kind: RunFeatures


def collect_residuals(reports: Iterable[Report]) -> list[Residual]:
    """Return the residuals of all validated whole training steps."""
    return [
        Residual(-math.log(point.predicted / point.measured), report.study.name, point.kind)
        for report in reports
        if isinstance(report.study, StepStudy) and not (report.study.measured.parts or report.study.measured.less)
        for point in report.points
        if point.kind is not None
    ]


def interval_table(residuals: Sequence[Residual], level: float = LEVEL) -> dict[str, Any]:
    """Return interval factors and row counts for groups of runs, as ``scenario.prediction_intervals`` reads them."""
    names: dict[str, list[Residual]] = {}
    for each in residuals:
        for name in each.kind.group_names:
            names.setdefault(name, []).append(each)
    groups = {
        name: _group_interval(rows, level)
        for name, rows in sorted(names.items())
        if name == ANY or len({each.study for each in rows}) >= MIN_STUDIES
    }
    traits = sorted({trait for each in residuals for trait in each.kind.traits})
    return {"level": level, "traits": traits, "groups": groups, "studies": _study_error_rows(residuals)}


def _study_error_rows(residuals: Sequence[Residual]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[Residual]] = {}
    for each in residuals:
        found.setdefault((each.study, each.kind.group_names[0]), []).append(each)
    rows = []
    for (study, like), own in found.items():
        score = arithmetic_score([math.expm1(-each.value) for each in own])
        errors = {name: round(getattr(score, name), 4) for name in ("mean", "worst", "bias")}
        rows.append({"study": study, "like": like, "rows": len(own), **errors, **_size_ranges(own)})
    return rows


def are_within_intervals(residuals: Sequence[Residual]) -> list[bool]:
    """Return whether each residual lies within the interval learned from all other studies."""
    tables = {
        study: interval_table([each for each in residuals if each.study != study])
        for study in dict.fromkeys(each.study for each in residuals)
    }
    expected = [interval_for_features(each.kind, 1.0, tables[each.study]) for each in residuals]
    return [own.low <= math.exp(each.value) <= own.high for own, each in zip(expected, residuals, strict=True)]


def count_coverage(names: Sequence[str], within: Sequence[bool]) -> dict[str, tuple[int, int]]:
    """Count, for each name (a study or group of runs), the rows within their intervals, and all rows."""
    rows, found = Counter(names), Counter(name for name, is_in in zip(names, within, strict=True) if is_in)
    return {name: (found[name], many) for name, many in rows.items()}


def _group_interval(rows: Sequence[Residual], level: float) -> dict[str, Any]:
    many = Counter(each.study for each in rows)
    weights = np.minimum(1.0, MAX_STUDY_ROWS / np.array([many[each.study] for each in rows]))
    values, part = np.array([each.value for each in rows]), (1.0 + level) / 2.0
    low, high = -_weighted_quantile(-values, weights, part), _weighted_quantile(values, weights, part)
    ends = {"low": round(math.exp(low), 3), "high": round(math.exp(high), 3)}
    return {**ends, "rows": len(rows), "studies": len(many), **_size_ranges(rows)}


def _size_ranges(rows: Sequence[Residual]) -> dict[str, list[int]]:
    sizes = [(each.kind.gpus, each.kind.hidden, each.kind.sequence) for each in rows]
    return {name: [min(values), max(values)] for name, values in zip(SPANS, zip(*sizes, strict=True), strict=True)}


def _weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return the smallest value whose cumulative weight reaches a share ``share`` of the total weight.

    The total includes one more run (weight 1) above all values; with too few values, the largest is returned.
    """
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    place = np.searchsorted(reached, share * (reached[-1] + 1.0) - 1e-12)
    return float(values[order][min(int(place), len(values) - 1)])


def interval_file_text(residuals: Sequence[Residual], command: str) -> str:
    """Return the text of the built-in interval file: a table of intervals, with their coverage in comments."""
    table, within = interval_table(residuals), are_within_intervals(residuals)
    studies = count_coverage([each.study for each in residuals], within)
    kinds = count_coverage([each.kind.group_names[1] for each in residuals], within)  # GPU generation and sharding
    mean = math.fsum(own / many for own, many in studies.values()) / len(studies)
    lines = [
        "# Where measured step times were, as factors on predicted ones, for groups of validated runs.  Made by",
        f"#   {command}",
        f"# {table['level']:.0%} intervals; with its own study excluded, {sum(within) / len(within):.0%} of"
        f" {len(within):,} rows fall into theirs,",
        f"# {mean:.0%} in the mean over {len(studies)} studies; by kind of run:",
        *(f"#   {kind}: {own / many:.0%} of {many}" for kind, (own, many) in sorted(kinds.items())),
        "# by study:",
        *(f"#   {study}: {own} of {many}" for study, (own, many) in studies.items()),
        "",
        f"level: {table['level']}",
        f"traits: [{', '.join(table['traits'])}]",
        "groups:",
    ]
    for name, group in table["groups"].items():
        lines.append(f'  "{name}": {{{_yaml_items(group)}}}')
    lines.append("studies:  # errors: predicted over measured, minus 1")
    lines += [f"  - {{{_yaml_items(row)}}}" for row in table["studies"]]
    return "\n".join(lines) + "\n"


def _yaml_items(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f'{key}: "{value}"' if isinstance(value, str) else f"{key}: {value}" for key, value in values.items()
    )
