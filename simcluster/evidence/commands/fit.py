"""Command ``simcluster fit``: refit model constants to measured data, with cross-validation."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.terminal import show_progress_text
from simcluster.evidence.validation.fitting import load_fits, select_fits
from simcluster.evidence.validation.fitting_run import CrossValidationResult, FitEffort, FitOutcome, run_fits
from simcluster.evidence.validation.step_studies import find_data_folder
from simcluster.show.output_blocks import OutputBlock, TableBlock, TextLines

_MAX_WORST = 5
_LOSSES = {"squares": "least squares", "robust": "robust least squares", "absolute": "least absolute error"}


def run(args: argparse.Namespace) -> None:
    """Run the fits declared in a file, and print their constants, errors and cross-validation."""
    if args.workers < 1:
        raise InputError(f"--workers {args.workers} is too small; give 1 or more")
    file = load_fits(args.file)
    outcomes = run_fits(
        file, list(select_fits(file, tuple(args.only))), data=find_data_folder(args.data), workers=args.workers,
        cross_validate=not args.no_cross_validation, progress=lambda fit, what: show_progress_text(f"{fit}: {what}"),
    )  # fmt: skip
    show_progress_text()
    first = outcomes[0]
    rows = sum(len(each.rows) for each in outcomes)
    common.fail_without_results(args, rows, lambda: f"nothing was fitted: {first.name} {first.skipped}")
    common.print_answer(
        args,
        lambda: [
            *(block for each in outcomes for block in _report_blocks(each, all_rows=args.rows)),
            _overall_lines(outcomes),
        ],
        lambda: {"file": file.document.source, "fits": [_fit_document(each) for each in outcomes]},
    )


def _report_blocks(outcome: FitOutcome, *, all_rows: bool) -> Iterator[OutputBlock]:
    head = f"{outcome.name}: {outcome.fit.about}" if outcome.fit.about else outcome.name
    if outcome.skipped:
        yield TextLines([head, f"  skipped: {outcome.skipped}"])
        return
    where = (f"  {each.name}: {', '.join(each.declared.path)}; {each.declared.source}" for each in outcome.constants)
    yield TextLines([head, *where])
    constants = [
        [each.name, *(f"{value:.4g}" for value in (each.declared.unfitted, each.current, each.value)),
         "at its bound" if each.at_bound else "not determined" if each.error is None else f"{each.error:.2g}",
         f"{each.relative_change:+.1%}"]
        for each in outcome.constants
    ]  # fmt: skip
    yield TableBlock(["constant", "unfitted", "current", "fitted", "std. error", "change"], constants)
    scores = [
        [what, f"{outcome.mean_error(which):.2%}", f"{max(outcome.errors(which)):.1%}"]
        for what, which in (("unfitted", "unfitted"), ("current", "today"), ("fitted", "fitted"))
    ]
    fitted = (
        f"{_format_count(len(outcome.constants), 'constant')} on {_format_count(len(outcome.rows), 'row')}, "
        f"{_LOSSES[outcome.fit.loss]} of ln(predicted / measured)" + ("" if outcome.converged else "; NOT converged")
    )
    yield TableBlock(["rows", "mean error", "worst"], scores, title=[fitted, _interpolation_line(outcome.effort)])
    if outcome.cross_validation:
        header = ["excluded", "groups", "mean error", "vs fitted", "worst group", "constants"]
        yield TableBlock(header, list(map(_cross_validation_cells, outcome.cross_validation)))
    shown = outcome.rows if all_rows else sorted(outcome.rows, key=lambda row: -abs(row.error))[:_MAX_WORST]
    residuals = "; ".join(f"{row.sample.label} {row.error:+.1%}" for row in shown)
    yield TextLines([f"{'residuals' if all_rows else 'largest errors'}: {residuals}"])


def _interpolation_line(effort: FitEffort) -> str:
    folds = "" if effort.fold_error is None else f", {effort.fold_error:.3%} at the folds"
    return (
        f"{_format_count(effort.rows, 'row')} simulated at {_format_count(effort.points, 'point')}, interpolated in "
        f"between: largest error {effort.error:.3%} at the solution{folds}"
    )


def _cross_validation_cells(out: CrossValidationResult) -> list[str]:
    if out.skipped:
        return [f"one {out.group_key}", "", "", "", out.skipped, ""]
    columns = zip(*(values for _, values in out.values), strict=True)
    found = ", ".join(f"{min(column):.3g} to {max(column):.3g}" for column in columns)
    return [f"one {out.group_key}", str(out.groups), f"{out.error:.2%}", f"{out.error_ratio:.2f} x", out.worst, found]


def _overall_lines(outcomes: Sequence[FitOutcome]) -> TextLines:
    done = [each for each in outcomes if not each.skipped]
    constants = _format_count(sum(len(each.constants) for each in done), "constant")
    rows = _format_count(sum(len(each.rows) for each in done), "row")
    lines = [f"overall: {constants} on {rows} in {_format_count(len(done), 'fit')}"]
    for each in done:
        for left in each.cross_validation:
            if not left.skipped and left.error_ratio > 1.5:
                alone = left.group_key == "study" and left.groups == 1
                lines.append(
                    f"  {each.name}: with one {left.group_key} excluded the error is {left.error_ratio:.2f} x that "
                    f"of the fit, above 1.5 x{' (predicted unfitted: no other study)' if alone else ''}"
                )
    skipped = len(outcomes) - len(done)
    return TextLines([*lines, *[f"  skipped fits: {skipped}, because their tables are missing"] * bool(skipped)])


def _format_count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _fit_document(outcome: FitOutcome) -> dict[str, Any]:
    if outcome.skipped:
        return {"fit": outcome.name, "skipped": outcome.skipped}
    effort = outcome.effort
    return {
        "fit": outcome.name, "about": outcome.fit.about, "loss": outcome.fit.loss, "converged": outcome.converged,
        "simulated": {
            "points": effort.points, "rows": effort.rows, "interpolation_error": effort.error,
            "interpolation_error_at_folds": effort.fold_error,
        },
        "constants": [
            {
                "name": each.name, **each.declared.model_dump(), "today": each.current, "fitted": each.value,
                "standard_error": each.error, "at_bound": each.at_bound,
            }
            for each in outcome.constants
        ],
        "mean_error": {which: outcome.mean_error(which) for which in ("unfitted", "today", "fitted")},
        "cross_validation": [
            {"left_out": each.group_key, "skipped": each.skipped}
            if each.skipped
            else {
                "left_out": each.group_key, "groups": each.groups, "rows": each.rows, "mean_error": each.error,
                "of_fitted": each.error_ratio, "constants": {group: list(values) for group, values in each.values},
            }
            for each in outcome.cross_validation
        ],
        "rows": [
            {
                **{name: getattr(row.sample, name) for name in ("label", "study", "model", "scale")},
                "measured_s": row.measured, "predicted_s": row.fitted, "error": row.error,
            }
            for row in outcome.rows
        ],
    }  # fmt: skip
