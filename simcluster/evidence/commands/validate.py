"""Command ``simcluster validate``: compare predictions with measured steps, pipelines, memory and collectives."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.common import join_error_lines, read_overrides
from simcluster.cli.terminal import catch_stopping_signals, show_progress_text, signal_exit_status
from simcluster.evidence.validation import find_data_folder, load_study, score_overall, validate_studies
from simcluster.evidence.validation.reports import OverallScores, Report, Score, ScoredPoint
from simcluster.evidence.validation.residuals import collect_residuals, interval_file_text
from simcluster.show.output_blocks import OutputBlock, TableBlock, TextLines, render_as_text
from simcluster.show.plot_registry import load_plot

_MAX_ROWS = 20  # shown of a step study without --rows
_MAX_WORST = 3
_SHOWN_PARTS = ("forward", "backward", "bubble", "optimizer")  # shown even if all are 0


def run(args: argparse.Namespace) -> None:
    """Validate studies: simulate their measured runs, then print and plot the prediction errors."""
    if args.workers < 1:
        raise InputError(f"--workers {args.workers} is too small; give 1 or more")
    if args.store:
        raise InputError(
            "--store: validation rows are no longer stored; validate each study in a separate command with --json "
            "FILE, so that a killed command loses one study only"
        )
    files = [load_study(path, read_overrides(args)) for path in args.studies]
    reports: list[Report] = []

    def print_report(report: Report) -> None:
        reports.append(report)
        if args.json != "-":
            blocks = study_report_blocks(report, all_rows=args.rows)
            print(render_as_text(blocks, bold=common.make_bold), end="\n\n", flush=True)

    def show_progress(name: str, done: int, runs: int) -> None:
        show_progress_text(f"{name}: run {done} of {runs}")

    folder = find_data_folder(args.data)
    with catch_stopping_signals() as signals:
        try:
            validate_studies(files, data=folder, workers=args.workers, progress=show_progress, ended=print_report)
        except KeyboardInterrupt:
            _print_overall(args, reports)
            left = ", ".join(file.study.name for file in files[len(reports) :])
            print(f"stopped before scoring {left}", file=sys.stderr)
            raise SystemExit(signal_exit_status(signals)) from None
    _print_overall(args, reports)
    common.draw_pictures(args, (args.plot, lambda: load_plot("validation_errors")(reports)))
    if args.residuals:
        _write_residuals(reports, args.residuals)


def _print_overall(args: argparse.Namespace, reports: Sequence[Report]) -> None:
    totals = score_overall(reports)
    common.fail_without_results(args, sum(len(report.points) for report in reports), lambda: _failure_reason(reports))
    common.print_answer(
        args,
        lambda: [TextLines(list(_overall_lines(totals, len(reports))))],
        lambda: {"studies": [report.to_dict() for report in reports], "overall": totals.to_dict()},
    )


def _failure_reason(reports: Sequence[Report]) -> str:
    for report in reports:
        for each in report.refused:
            reason = join_error_lines(each.reason.replace("<document>: ", ""))
            return f"{report.study.name}: no row could be compared; first reason: {reason}"
    reasons = [report.skipped or "excludes all its rows" for report in reports]
    return f"nothing was compared: {reports[0].study.name} {reasons[0]}"


def _write_residuals(reports: Sequence[Report], path: Path) -> None:
    residuals = collect_residuals(reports)
    if not residuals:
        raise InputError("--residuals: no training step was simulated; give studies of kind 'steps'")
    if len({each.study for each in residuals}) < 2:
        raise InputError(
            f"--residuals: all training steps are from {residuals[0].study}, but each study is "
            "tested with intervals learned from other studies: give studies of steps from two sources or more"
        )
    command = f"simcluster validate scenarios/validation/*.yaml --data DIR --residuals {path}"
    common.write_text_atomic(path, interval_file_text(residuals, command))


def study_report_blocks(report: Report, *, all_rows: bool = False) -> list[OutputBlock]:
    """Return a study's report as output blocks: source, assumptions, scores, and rows that failed."""
    study = report.study
    head = [f"{study.name}: {study.about}" if study.about else study.name, f"  source: {study.source}"]
    if report.skipped:
        return [TextLines([*head, f"  skipped: {report.skipped}"])]
    head += [f"  assumed: {what}" for what in study.assumed]
    constants = getattr(study, "constants", {}).items()
    head += [f"  constant: {name} = {constant.value:g}: {constant.source}" for name, constant in constants]
    body = _collective_blocks(report, all_rows) if study.kind == "collectives" else _step_blocks(report, all_rows)
    left_out = (f"  excluded: {_format_row_count(rows)}, {reason}" for reason, rows in report.left_out)
    return [TextLines(head), *body, TextLines([*_failed_row_lines(report), *left_out])]


def _step_blocks(report: Report, all_rows: bool) -> Iterator[OutputBlock]:
    (part,) = report.parts
    if part.score is None:
        yield TextLines(["no row could be simulated"])
        return
    few = all_rows or len(part.points) <= _MAX_ROWS
    shown = part.points if few else report.worst_points(_MAX_ROWS)
    memory = report.study.kind == "memory"
    rest = f"(the {len(shown)} rows with the largest errors, of {len(part.points)}; --rows shows all)"
    header = ["run", getattr(report.study, "against", "measured"), "predicted", "error", ""]
    yield TableBlock(header, _comparison_rows(shown, memory=memory), notes=[] if few else [rest])
    aim = "" if part.aim is None else f"; aim: below {100 * part.aim:g}%, {'met' if part.meets_aim else 'not met'}"
    yield TextLines([f"{_score_text(part.score)}{aim}", f"constants fitted on these rows: {part.why or 'none'}"])
    if part.by:  # scores by value of the study's columns
        scores = [[f"{column} {value}", *_score_cells(score)] for column, value, score in part.by]
        yield TableBlock(["group", "rows", "error", "worst", "bias"], scores)
    if not memory:
        worst = report.worst_points(_MAX_WORST)
        names = [
            name
            for name in worst[0].breakdown
            if name in _SHOWN_PARTS or any(point.breakdown[name] >= 5e-4 * point.predicted for point in worst)
        ]
        rows = [[p.label, f"{p.error:+.1%}", *(f"{p.breakdown[name]:.4g}" for name in names)] for p in worst]
        title = ["largest errors; predicted step time by state (s)"]
        yield TableBlock(["run", "error", *names], rows, title=title)


def _comparison_rows(points: Iterable[ScoredPoint], *, memory: bool = False) -> list[list[str]]:
    rows = []
    for point in points:
        both = point.measured, point.predicted
        cells = [f"{size / 1e9:.2f} GB" for size in both] if memory else [*map(format_seconds, both)]
        rows.append([point.label, *cells, f"{point.error:+.{2 if memory else 1}%}", point.note])
    return rows


def _collective_blocks(report: Report, all_rows: bool) -> Iterator[OutputBlock]:
    rows = [
        [
            f"{part.name}, {part.collective}", part.role, *_score_cells(part.score),
            f"{part.small.mean:.1%} of {part.small.rows}" if part.small else "",
            "" if part.aim is None else f"< {100 * part.aim:g}% {'met' if part.meets_aim else 'NOT MET'}",
        ]
        for part in report.parts
        if part.role != "degraded"
    ]  # fmt: skip
    degraded = [
        f"degraded: {part.name}, {part.collective}: measured {1 / (1 + part.score.bias):.2f} x slower than "
        f"expected ({_format_row_count(part.score.rows)}; {part.why})"
        for part in report.parts
        if part.role == "degraded" and part.score
    ]
    small = getattr(report.study, "small", 0.0)
    header = ["set, collective", "constants", "sizes", "error", "worst", "bias", f"below {small / 2**20:g} MiB", "aim"]
    yield TableBlock(header, rows, notes=degraded) if rows else TextLines(["no row could be predicted", *degraded])
    for part in report.parts if all_rows else ():
        header = ["size", "measured", "predicted", "error", "NCCL picks"]
        yield TableBlock(header, _comparison_rows(part.points), title=[f"{part.name}, {part.collective}"])


def _score_cells(score: Score | None) -> list[str]:
    if score is None:
        return ["0", "", "", ""]
    return [str(score.rows), f"{score.mean:.1%}", f"{score.worst:.1%}", f"{score.bias:+.1%}"]


def _score_text(score: Score, mean: str = "mean absolute error") -> str:
    return f"{_format_row_count(score.rows)}: {mean} {score.mean:.1%}, max {score.worst:.1%}, bias {score.bias:+.1%}"


def _failed_row_lines(report: Report) -> Iterator[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for each in report.refused:
        found.setdefault((each.group, each.reason), []).append(each.label)
    for (group, reason), labels in found.items():
        which = labels[0] if len(labels) == 1 else f"{len(labels)} rows, {labels[0]} to {labels[-1]}"
        where = "" if group == report.study.name else f"{group}, "
        yield f"  failed: {where}{which}: {' '.join(reason.split())}"


def _overall_lines(totals: OverallScores, studies: int) -> Iterator[str]:
    yield f"overall: {studies} {'study' if studies == 1 else 'studies'}"
    for what, score, mean in (
        ("training steps", totals.steps, "mean absolute error"),
        ("memory", totals.memory, "mean absolute error"),
        ("pipelines with given pass times", totals.schedules, "mean absolute error"),
        ("collectives, constants fitted on them", totals.collectives_fitted, "geometric mean error"),
        ("collectives, held out", totals.collectives_held_out, "geometric mean error"),
    ):
        if score:
            yield f"  {what}: {_score_text(score, mean)}"
    if totals.refused_rows:
        yield f"  failed: {_format_row_count(totals.refused_rows)}, each named above"
    if totals.skipped_studies:
        yield f"  skipped studies: {totals.skipped_studies}, because their tables are missing"


def _format_row_count(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"
