"""simcluster validate: predicted against measured, for training steps, pipelines of given times and collectives."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.common import format_table, on_one_line
from simcluster.cli.overrides import overrides_of
from simcluster.cli.terminal import exit_status, progress, stopping_signals
from simcluster.evidence.validation import data_folder, load_study, overall, validate_studies
from simcluster.evidence.validation.reports import Overall, Report, Score, ScoredPoint
from simcluster.evidence.validation.residuals import residuals_of, table_text
from simcluster.evidence.validation.study import StudyFile
from simcluster.show.pictures import picture

_MOST_ROWS = 20  # of a study of steps without --rows
_WORST = 3
_KEPT = ("forward", "backward", "bubble", "optimizer")  # columns of the breakdown that stand also where all are 0


def run(args: argparse.Namespace) -> None:
    """Load and check all studies, then simulate, print, draw."""
    if args.workers < 1:
        raise InputError(f"--workers {args.workers}: give 1 or more")
    files = [load_study(path, overrides_of(args)) for path in args.studies]
    reports: list[Report] = []

    def ended(report: Report) -> None:
        reports.append(report)
        if args.json != "-":
            print("\n".join(_study_lines(report, all_rows=args.rows)), end="\n\n", flush=True)

    folder = data_folder(args.data)
    with stopping_signals() as signals:
        try:
            validate_studies(
                files, data=folder, workers=args.workers, store=args.store, progress=_progress, ended=ended
            )
        except KeyboardInterrupt:
            _stopped(args, files, reports)
            raise SystemExit(exit_status(signals)) from None
    _answer(args, reports)
    common.draw(args, (args.plot, lambda: picture("errors")(reports)))
    if args.residuals:
        _learn(reports, args.residuals)


def _answer(args: argparse.Namespace, reports: Sequence[Report]) -> None:
    """Print the scores over all studies."""
    together = overall(reports)
    common.came_to(args, sum(len(report.points) for report in reports), lambda: _nothing(reports))
    common.answer(
        args,
        lambda: "\n".join(_overall_lines(together, len(reports))),
        lambda: {"studies": [report.to_dict() for report in reports], "overall": together.to_dict()},
    )


def _nothing(reports: Sequence[Report]) -> str:
    """Return why there is no row to compare."""
    for report in reports:
        for each in report.refused:
            reason = on_one_line(each.reason.replace("<document>: ", ""))
            return f"{report.study.name}: no row could be compared with what was measured; the first says: {reason}"
    reasons = [report.skipped or "leaves all of its rows out" for report in reports]
    return f"nothing was compared with what was measured: {reports[0].study.name} {reasons[0]}"


def _stopped(args: argparse.Namespace, files: Sequence[StudyFile], reports: Sequence[Report]) -> None:
    """Print what is there when it was stopped; nothing is learned or drawn of a part."""
    _answer(args, reports)
    rest = ", ".join(file.study.name for file in files[len(reports) :])
    where = f"; {args.store} has what was played of it" if args.store else "; with --store FILE rows are kept"
    print(f"stopped: not scored: {rest}{where}", file=sys.stderr)


def _learn(reports: Sequence[Report], path: Path) -> None:
    """Write the table of intervals, and say what it is worth."""
    residuals = residuals_of(reports)
    if not residuals:
        raise InputError("--residuals: no step was simulated, so there is nothing to learn from; give studies of steps")
    if len({each.study for each in residuals}) < 2:
        raise InputError(
            f"--residuals: all rows of steps are of {residuals[0].study}; an interval is judged by the rows of a study "
            "that it was not learned from: give studies of steps from two sources or more"
        )
    command = f"simcluster validate scenarios/validation/*.yaml --data DIR --residuals {path}"
    common.write_text(path, table_text(residuals, command))


def _progress(name: str, done: int, rows: int, left: float | None) -> None:
    words = ""
    if left is not None and not math.isnan(left):
        words = f", about {f'{max(1, round(left))} s' if left < 90 else f'{round(left / 60)} min'} left"
    progress(f"{name}: run {done} of {rows}{words}")


def _study_lines(report: Report, *, all_rows: bool) -> list[str]:
    """Return a study's table and summary."""
    study = report.study
    lines = [f"{study.name}: {study.about}" if study.about else study.name, f"  source: {study.source}"]
    if report.skipped:
        return [*lines, f"  skipped: {report.skipped}"]
    lines += [f"  assumed: {what}" for what in study.assumed]
    lines += [
        f"  constant: {name} = {constant.value:g}: {constant.source}"
        for name, constant in getattr(study, "constants", {}).items()
    ]
    body = _collectives if study.kind == "collectives" else _steps
    lines += ["", *body(report, all_rows)]
    lines += _refused(report)
    return lines + [f"  left out: {rows} {_rows(rows)}, {reason}" for reason, rows in report.left_out]


def _steps(report: Report, all_rows: bool) -> list[str]:
    (part,) = report.parts
    if part.score is None:
        return ["no row could be simulated"]
    few = all_rows or len(part.points) <= _MOST_ROWS
    shown = part.points if few else report.worst(_MOST_ROWS)
    memory = report.study.kind == "memory"
    rows = [[*_compared(point, memory=memory), point.note] for point in shown]
    against = getattr(report.study, "against", "measured")
    lines = format_table(["run", against, "predicted", "error", ""], rows).splitlines()
    if not few:
        lines.append(f"(the {len(shown)} rows that are furthest off, of {len(part.points)}; --rows shows all)")
    aim = "" if part.aim is None else f"; aim: below {100 * part.aim:g}%, {'met' if part.met else 'not met'}"
    lines += ["", f"{_score_text(part.score)}{aim}", f"constants fitted on these rows: {part.why or 'none'}"]
    if part.by:  # the score for each value of the columns that the study names
        scores = [[f"{column} {value}", *_score_cells(score)] for column, value, score in part.by]
        lines += ["", *format_table(["of these", "rows", "error", "worst", "bias"], scores).splitlines()]
    return lines if memory else [*lines, "", *_worst(report.worst(_WORST))]


def _compared(point: ScoredPoint, *, memory: bool = False) -> list[str]:
    if memory:
        return [point.label, *(f"{size / 1e9:.2f} GB" for size in (point.measured, point.predicted)),
                f"{point.error:+.2%}"]  # fmt: skip
    return [point.label, format_seconds(point.measured), format_seconds(point.predicted), f"{point.error:+.1%}"]


def _worst(points: Sequence[ScoredPoint]) -> list[str]:
    """Return where the predicted steps went in the rows that are furthest off."""
    names = [
        name
        for name in points[0].breakdown
        if name in _KEPT or any(point.breakdown[name] >= 5e-4 * point.predicted for point in points)
    ]
    rows = [
        [point.label, f"{point.error:+.1%}", *(f"{point.breakdown[name]:.4g}" for name in names)] for point in points
    ]
    return [
        "furthest off; where the predicted step went (s)",
        *format_table(["run", "error", *names], rows).splitlines(),
    ]


def _collectives(report: Report, all_rows: bool) -> list[str]:
    rows = [
        [
            f"{part.name}, {part.collective}",
            part.role,
            *_score_cells(part.score),
            f"{part.small.mean:.1%} of {part.small.rows}" if part.small else "",
            ("" if part.aim is None else f"< {100 * part.aim:g}% {'met' if part.met else 'NOT MET'}"),
        ]
        for part in report.parts
        if part.role != "degraded"
    ]
    small = getattr(report.study, "small", 0.0)
    header = ["set, collective", "constants", "sizes", "error", "worst", "bias", f"below {small / 2**20:g} MiB", "aim"]
    lines = format_table(header, rows).splitlines() if rows else ["no row could be predicted"]
    for part in report.parts:
        if part.role == "degraded" and part.score:
            lines.append(
                f"degraded: {part.name}, {part.collective}: measured is {1 / (1 + part.score.bias):.2f} x slower than "
                f"it should be ({part.score.rows} {_rows(part.score.rows)}; {part.why})"
            )
    for part in report.parts if all_rows else ():
        rows = [[*_compared(point), point.note] for point in part.points]
        header = ["size", "measured", "predicted", "error", "NCCL picks"]
        lines += ["", f"{part.name}, {part.collective}", *format_table(header, rows).splitlines()]
    return lines


def _score_cells(score: Score | None) -> list[str]:
    if score is None:
        return ["0", "", "", ""]
    return [str(score.rows), f"{score.mean:.1%}", f"{score.worst:.1%}", f"{score.bias:+.1%}"]


def _score_text(score: Score) -> str:
    return (
        f"{score.rows} {_rows(score.rows)}: mean absolute error {score.mean:.1%}, max {score.worst:.1%}, "
        f"bias {score.bias:+.1%}"
    )


def _refused(report: Report) -> list[str]:
    """Return rows without a prediction: a line per reason, with the rows that it hit."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in report.refused:
        found.setdefault((each.group, each.reason), []).append(each.label)
    lines = []
    for (group, reason), labels in found.items():
        which = labels[0] if len(labels) == 1 else f"{len(labels)} rows, {labels[0]} to {labels[-1]}"
        where = "" if group == report.study.name else f"{group}, "
        lines.append(f"  failed: {where}{which}: {' '.join(reason.split())}")
    return lines


def _overall_lines(together: Overall, studies: int) -> list[str]:
    lines = [f"overall: {studies} {'study' if studies == 1 else 'studies'}"]
    kinds = {
        "training steps": together.steps,
        "memory": together.memory,
        "pipelines of given times": together.schedules,
    }
    lines += [f"  {what}: {_score_text(score)}" for what, score in kinds.items() if score]
    collectives = {"constants fitted on them": together.collectives_fitted, "held out": together.collectives_held_out}
    for what, score in collectives.items():
        if score:
            lines.append(
                f"  collectives, {what}: {score.rows} {_rows(score.rows)}: geometric mean error {score.mean:.1%}, "
                f"max {score.worst:.1%}, bias {score.bias:+.1%}"
            )
    if together.refused_rows:
        lines.append(f"  failed: {together.refused_rows} {_rows(together.refused_rows)}, each named above")
    if together.skipped_studies:
        lines.append(f"  skipped: {together.skipped_studies}, for want of their tables")
    return lines


def _rows(count: int) -> str:
    return "row" if count == 1 else "rows"
