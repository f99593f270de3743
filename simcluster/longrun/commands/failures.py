"""``simcluster failures``: fit failure rates to a failure log, or list the built-in failure rates (--list)."""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError, prefix_errors
from simcluster.base.units import DAY
from simcluster.cli import common
from simcluster.longrun.event_log import is_simulated_log, parse_column_names, read_log_rows
from simcluster.longrun.failure_catalogue import published_failures
from simcluster.longrun.failure_fit import CauseFit, FailureLogFit, fit_failures
from simcluster.longrun.studies.failure_replay import resolve_log_path
from simcluster.longrun.studies.logged_failures import fit_scenario_log
from simcluster.longrun.text_formats import table_blocks
from simcluster.scenario.scenario import load
from simcluster.show.output_blocks import OutputBlocks, TextLines

_YEAR = 365.25
_GPUS = 1024
_WIDE = 118
_OF_A_LOG = ("log", "scenario", "columns", "began", "days", "by", "source", "output")


def run(args: argparse.Namespace) -> None:
    """Fit failure rates to a log and print the result, or list the built-in failures."""
    if args.list:
        given = [name for name in _OF_A_LOG if getattr(args, name)]
        if given:
            name = "LOG" if given[0] == "log" else f"--{given[0]}"
            raise InputError(f"--list prints built-in failures, but {name} is for fitting a log; remove one of the two")
        gpus = args.gpus or _GPUS
        rows = _catalogue_rows(gpus)
        common.print_answer(args, lambda: _catalogue_answer(rows, gpus), lambda: {"gpus": gpus, "failures": rows})
        return
    if args.log is None:
        raise InputError("no log is given; name one, as in failures LOG.csv, or use --list for built-in failures")
    log = read_log_rows(resolve_log_path(args.log), parse_column_names(args.columns), args.began)
    if is_simulated_log(log) and not args.scenario:
        raise InputError(f"{args.log} is the log of a simulated run; name its scenario with --scenario FILE")
    how: dict[str, Any] = {"gpus": args.gpus, "days": args.days, "by": args.by}
    source = args.source or f"{Path(args.log).name}: simcluster failures"
    with prefix_errors(args.log):
        fits = (fit_scenario_log(load(args.scenario), log, source, **how) if args.scenario
                else fit_failures(log, source, **how))  # fmt: skip
    if args.output:
        common.write_text_atomic(args.output, _format_failures_yaml(fits))
    written = common.report_written_file(args, args.output) if args.output else ""
    common.print_answer(args, lambda: _failure_fit_answer(fits, written=written), lambda: _fits_document(fits))


def _format_failures_yaml(fits: FailureLogFit) -> str:
    seen = [each for each in fits.causes if each.count]
    lines = [
        f"  - {json.dumps(mode, ensure_ascii=False)}"
        f"  # {each.low / each.count:.2f} to {each.high / each.count:.2f} times the rate (95 %)"
        for mode, each in zip(fits.to_failures_section(), seen, strict=True)
    ]
    return "\n".join(["failures:  # for the run: section of a scenario", *lines]) + "\n"


def _failure_fit_answer(fits: FailureLogFit, *, written: str) -> OutputBlocks:
    rows = (*fits.causes, fits.total)
    lives = any(each.lives for each in rows)
    columns = [("cause", "{name}"), ("failures", "{count:g}"), ("95 % interval", "{low:.1f} to {high:.1f}"),
               ("every", "{every}")]  # fmt: skip
    more = [("shape", "{shape}"), ("scale", "{scale}"), ("gain", "{gain:.1f}"), ("law", "{law}")]
    gain = "gain: log-likelihood ratio of Weibull to exponential; above 3.3 (1 % level) the Weibull law is used"
    whose: dict[str, list[str]] = {}
    for each in rows:
        for note in each.notes:
            whose.setdefault(note, []).append(each.name)
    section = TextLines([written]) if written else TextLines(_format_failures_yaml(fits).splitlines(), "layout")
    notes = [gain] if lives else []
    return [
        *table_blocks(map(_cause_fit_row, rows), [*columns, *(more if lives else [])], notes=notes, indent=0),
        TextLines([f"{', '.join(names)}: {note}" for note, names in whose.items()]),
        TextLines(fits.notes),
        section,
    ]


def _cause_fit_row(fit: CauseFit) -> dict[str, Any]:
    law, years = fit.lives, 365.25 * DAY
    row: dict[str, Any] = {name: getattr(fit, name) for name in ("name", "count", "low", "high", "law")}
    every = _format_interval(1 / fit.rate, "") if fit.count else "never"
    row |= {"every": every, "shape": "", "scale": "", "gain": math.nan}
    if law is not None:
        scale = f"{law.scale / years:.3g} +- {law.scale_error / years:.2g} y"
        row |= {"shape": f"{law.shape:.3f} +- {law.shape_error:.3f}", "scale": scale, "gain": law.likelihood_gain}
    return row


def _format_interval(seconds: float, comma: str = ",") -> str:
    hours = seconds / 3600
    return f"{hours:{comma}.4g} h" if hours < 2000 else f"{hours / 24 / _YEAR:{comma}.4g} y"


def _fits_document(fits: FailureLogFit) -> dict[str, Any]:
    return {
        "causes": [_cause_fit_document(each) for each in fits.causes],
        "total": _cause_fit_document(fits.total),
        "notes": list(fits.notes),
        "failures": fits.to_failures_section(),
    }


def _cause_fit_document(fit: CauseFit) -> dict[str, Any]:
    law = fit.lives
    weibull = None if law is None else {
        "shape": law.shape, "shape_error": law.shape_error, "scale_s": law.scale, "scale_error_s": law.scale_error,
        "log_likelihood_gain": law.likelihood_gain,
    }  # fmt: skip
    return {
        "cause": fit.cause, "batch": fit.batch, "count": fit.count, "count_low": fit.low, "count_high": fit.high,
        "watched_s": fit.watched, "rate_per_s": fit.rate, "law": fit.law, "weibull": weibull, "notes": list(fit.notes),
    }  # fmt: skip


def _catalogue_rows(gpus: int) -> list[dict[str, Any]]:
    rows = []
    for entry in published_failures():
        job = 1 / entry.job_failure_rate(gpus) if entry.counted_device == "gpu" else None
        low, high = entry.rate_interval_factors or (None, None)
        rows.append({
            "name": entry.name, "device": entry.counted_device, "mtbf_s": 1 / entry.job_failure_rate(1),
            "job_mtbf_s": job, "rate_low": low, "rate_high": high, "causes": [cause.name for cause in entry.causes],
            "holds": entry.holds, "source": entry.source,
        })  # fmt: skip
    return rows


def _catalogue_answer(entries: list[dict[str, Any]], gpus: int) -> OutputBlocks:
    rows, notes = [], []
    for row in entries:
        job = "" if row["job_mtbf_s"] is None else _format_interval(row["job_mtbf_s"])
        rate = "" if row["rate_low"] is None else f"x {row['rate_low']:.2f} to {row['rate_high']:.2f}"
        rows.append(
            {**row, "every": _format_interval(row["mtbf_s"]), "job": job, "rate": rate, "count": len(row["causes"])}
        )
        notes += textwrap.wrap(f"{row['name']}: {row['holds']}", _WIDE, subsequent_indent="  ")
        notes += textwrap.wrap(row["source"], _WIDE, initial_indent="  ", subsequent_indent="  ")
    columns = [("name", "{name}"), ("per", "{device}"), ("fails every", "{every}"),
               (f"a job of {gpus:,} GPUs", "{job}"), ("rate, 95 %", "{rate}"), ("causes", "{count}")]  # fmt: skip
    how = "In a scenario: run: {failures: NAME}; to add others: run: {failures: {of: NAME, also: [...]}}"
    return [*table_blocks(rows, columns, indent=0), TextLines(notes, "layout"), TextLines([how])]
