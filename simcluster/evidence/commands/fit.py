"""simcluster fit: the declared constants again, by least squares on the declared rows, with cross-validation."""

from __future__ import annotations

import argparse
from typing import Any

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.common import format_table
from simcluster.cli.terminal import progress
from simcluster.evidence.validation.fitting import chosen, load_fits
from simcluster.evidence.validation.fitting_run import FitEffort, LeftOut, Outcome, run_fits
from simcluster.evidence.validation.steps import data_folder

_WORST = 5


def run(args: argparse.Namespace) -> None:
    """Load and check everything, then fit and print."""
    if args.workers < 1:
        raise InputError(f"--workers {args.workers}: give 1 or more")
    file = load_fits(args.file)
    names = list(chosen(file, tuple(args.only)))
    outcomes = run_fits(
        file,
        names,
        data=data_folder(args.data),
        workers=args.workers,
        cross_validate=not args.no_cross_validation,
        progress=lambda fit, what: progress(f"{fit}: {what}"),
    )
    progress()
    first = outcomes[0]
    common.came_to(
        args, sum(len(each.rows) for each in outcomes), lambda: f"nothing was fitted: {first.name} {first.skipped}"
    )
    common.answer(
        args,
        lambda: common.in_blocks([*(_fit_lines(each, all_rows=args.rows) for each in outcomes), _overall(outcomes)]),
        lambda: {"file": file.document.source, "fits": [_as_json(each) for each in outcomes]},
    )


def _fit_lines(outcome: Outcome, *, all_rows: bool) -> list[str]:
    head = f"{outcome.name}: {outcome.fit.about}" if outcome.fit.about else outcome.name
    if outcome.skipped:
        return [head, f"  skipped: {outcome.skipped}"]
    constants = [
        [each.name, f"{each.declared.unfitted:.4g}", f"{each.today:.4g}", f"{each.value:.4g}",
         "at its bound" if each.at_bound else "not determined" if each.error is None else f"{each.error:.2g}",
         f"{each.off:+.1%}"]
        for each in outcome.constants
    ]  # fmt: skip
    scores = [
        [
            what,
            f"{outcome.mean_error(which):.2%}",
            f"{max(abs(getattr(row, which) / row.measured - 1.0) for row in outcome.rows):.1%}",
        ]
        for what, which in (("unfitted", "unfitted"), ("as used today", "today"), ("fitted", "fitted"))
    ]
    loss = {"squares": "least squares", "robust": "robust least squares", "absolute": "least absolute error"}
    lines = [
        head,
        *(f"  {each.name}: {', '.join(each.declared.path)}; {each.declared.source}" for each in outcome.constants),
        "",
        *format_table(["constant", "unfitted", "today", "fitted", "std. error", "off today's"], constants).splitlines(),
        "",
        f"{_count(len(outcome.constants), 'constant')} on {_count(len(outcome.rows), 'row')}, "
        f"{loss[outcome.fit.loss]} of ln(predicted / measured)" + ("" if outcome.converged else "; NOT converged"),
        _simulated(outcome.played),
        *format_table(["rows", "mean error", "worst"], scores).splitlines(),
        "",
        *_cross_validated(outcome.left_out),
    ]
    shown = outcome.rows if all_rows else sorted(outcome.rows, key=lambda row: -abs(row.error))[:_WORST]
    residuals = "; ".join(f"{row.sample.label} {row.error:+.1%}" for row in shown)
    return [*lines, f"{'residuals' if all_rows else 'furthest off'}: {residuals}"]


def _simulated(played: FitEffort) -> str:
    """Return how much was simulated, and how good the interpolation was."""
    folds = "" if played.fold_error is None else f", {played.fold_error:.3%} at the folds furthest from them"
    return (
        f"{_count(played.rows, 'row')} played at {_count(played.points, 'point')}, interpolated between: worst row "
        f"{played.error:.3%} off at what was found and beside it{folds}"
    )


def _cross_validated(left_out: tuple[LeftOut, ...]) -> list[str]:
    if not left_out:
        return []
    rows = [
        [f"one {each.by}", *((str(each.groups), f"{each.error:.2%}", f"{each.ratio:.2f} x", each.worst, _range(each))
                             if not each.skipped else ("", "", "", each.skipped, ""))]
        for each in left_out
    ]  # fmt: skip
    return [*format_table(["left out", "groups", "mean error", "of fitted", "worst", "found"], rows).splitlines(), ""]


def _range(left: LeftOut) -> str:
    columns = zip(*(values for _, values in left.values), strict=True)
    return ", ".join(f"{min(column):.3g} to {max(column):.3g}" for column in columns)


def _overall(outcomes: list[Outcome]) -> list[str]:
    done = [each for each in outcomes if not each.skipped]
    constants, rows = sum(len(each.constants) for each in done), sum(len(each.rows) for each in done)
    lines = [f"overall: {_count(constants, 'constant')} on {_count(rows, 'row')} in {_count(len(done), 'fit')}"]
    for each in done:
        for left in each.left_out:
            if not left.skipped and left.ratio > 1.5:
                alone = (
                    " (predicted unfitted: no other study decides it)"
                    if left.by == "study" and left.groups == 1
                    else ""
                )
                lines.append(
                    f"  {each.name}: with one {left.by} left out the error is {left.ratio:.2f} x the fitted one, "
                    f"above 1.5 x{alone}"
                )
    if len(done) < len(outcomes):
        lines.append(f"  skipped: {len(outcomes) - len(done)}, for want of their tables")
    return lines


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _as_json(outcome: Outcome) -> dict[str, Any]:
    if outcome.skipped:
        return {"fit": outcome.name, "skipped": outcome.skipped}
    return {
        "fit": outcome.name,
        "about": outcome.fit.about,
        "loss": outcome.fit.loss,
        "converged": outcome.converged,
        "simulated": {
            "points": outcome.played.points,
            "rows": outcome.played.rows,
            "interpolation_error": outcome.played.error,
            "interpolation_error_at_folds": outcome.played.fold_error,
        },
        "constants": [
            {
                "name": each.name,
                "path": list(each.declared.path),
                "follow": dict(each.declared.follow),
                "bounds": list(each.declared.bounds),
                "source": each.declared.source,
                "unfitted": each.declared.unfitted,
                "today": each.today,
                "fitted": each.value,
                "standard_error": each.error,
                "at_bound": each.at_bound,
            }
            for each in outcome.constants
        ],
        "mean_error": {which: outcome.mean_error(which) for which in ("unfitted", "today", "fitted")},
        "cross_validation": [
            {"left_out": each.by, "skipped": each.skipped}
            if each.skipped
            else {
                "left_out": each.by,
                "groups": each.groups,
                "rows": each.rows,
                "mean_error": each.error,
                "of_fitted": each.ratio,
                "constants": {group: list(values) for group, values in each.values},
            }
            for each in outcome.left_out
        ],
        "rows": [
            {
                "label": row.sample.label,
                "study": row.sample.study,
                "model": row.sample.model,
                "scale": row.sample.scale,
                "measured_s": row.measured,
                "predicted_s": row.fitted,
                "error": row.error,
            }
            for row in outcome.rows
        ],
    }
