"""simcluster failures: rates and shapes of a log, as the failures of a run; with --list, the built-in failures."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError, located
from simcluster.base.units import DAY
from simcluster.cli import common
from simcluster.longrun.catalogue import watched_failures
from simcluster.longrun.eventlog import columns_of, is_own, log_rows
from simcluster.longrun.fitting import CauseFit, FailureFits, fit_failures
from simcluster.longrun.studies.replayed import fit_log
from simcluster.longrun.studies.replays import log_path
from simcluster.scenario.scenario import load

_YEAR = 365.25
_GPUS = 1024
_WIDE = 118
_OF_A_LOG = ("log", "scenario", "columns", "began", "days", "by", "source", "output")


def run(args: argparse.Namespace) -> None:
    """Fit a log and print the result; or list the built-in failures."""
    if args.list:
        given = [name for name in _OF_A_LOG if getattr(args, name)]
        if given:
            name = "a log" if given[0] == "log" else f"--{given[0]}"
            raise InputError(f"--list says what ships; {name} is of a log that is fitted: leave one of them out")
        gpus = args.gpus or _GPUS
        rows = _list(gpus)
        common.answer(args, lambda: _list_text(rows, gpus), lambda: {"gpus": gpus, "failures": rows})
        return
    if args.log is None:
        raise InputError("which log? simcluster failures LOG.csv; those that ship: simcluster failures --list")
    log = log_rows(log_path(args.log), columns_of(args.columns), args.began)
    if is_own(log) and not args.scenario:
        raise InputError(f"{args.log}: is the log of a run; which? --scenario says it")
    how: dict[str, Any] = {"gpus": args.gpus, "days": args.days, "by": args.by}
    source = args.source or f"{Path(args.log).name}: simcluster failures"
    with located(args.log):
        fits = fit_log(load(args.scenario), log, source, **how) if args.scenario else fit_failures(log, source, **how)
    if args.output:
        common.write_text(args.output, _yaml(fits))
    written = common.wrote(args, args.output) if args.output else ""
    common.answer(args, lambda: _text(fits, written=written), lambda: _document(fits))


def _yaml(fits: FailureFits) -> str:
    """Return the section with the interval of each rate; its values are JSON, so that any name is valid."""
    seen = [each for each in fits.causes if each.count]
    lines = [
        f"  - {json.dumps(mode, ensure_ascii=False)}"
        f"  # {each.low / each.count:.2f} to {each.high / each.count:.2f} times as often with 95 %"
        for mode, each in zip(fits.section(), seen, strict=True)
    ]
    return "\n".join(["failures:  # of a scenario's run", *lines]) + "\n"


def _text(fits: FailureFits, *, written: str) -> str:
    rows = (*fits.causes, fits.total)
    lives = any(each.lives for each in rows)
    header = ["cause", "failures", "95 % interval", "every", *(["shape", "scale", "gain", "law"] if lives else [])]
    table = common.format_table(header, [_row(each, lives=lives) for each in rows]).splitlines()
    whose: dict[str, list[str]] = {}
    for each in rows:
        for note in each.notes:
            whose.setdefault(note, []).append(each.name)
    said = [f"{', '.join(names)}: {note}" for note, names in whose.items()]
    gain = "gain: log-likelihood of the Weibull law above the exponential's; above 3.3 it is taken (1 %)"
    section = [written] if written else _yaml(fits).splitlines()
    return common.in_blocks([table, [gain] if lives else [], said, [*fits.notes], section])


def _row(fit: CauseFit, *, lives: bool) -> list[str]:
    every = _every(1 / fit.rate, "") if fit.count else "never"
    cells = [fit.name, f"{fit.count:g}", f"{fit.low:.1f} to {fit.high:.1f}", every]
    if not lives:
        return cells
    if fit.lives is None:
        return [*cells, "", "", "", fit.law]
    law = fit.lives
    years, error = (seconds / DAY / _YEAR for seconds in (law.scale, law.scale_error))
    scale = f"{years:.3g} +- {error:.2g} y"
    return [*cells, f"{law.shape:.3f} +- {law.shape_error:.3f}", scale, f"{law.gain:.1f}", fit.law]


def _every(seconds: float, comma: str = ",") -> str:
    """Return a time between failures, in hours or years."""
    hours = seconds / 3600
    return f"{hours:{comma}.4g} h" if hours < 2000 else f"{hours / 24 / _YEAR:{comma}.4g} y"


def _document(fits: FailureFits) -> dict[str, Any]:
    return {
        "causes": [_cause_document(each) for each in fits.causes],
        "total": _cause_document(fits.total),
        "notes": list(fits.notes),
        "failures": fits.section(),
    }


def _cause_document(fit: CauseFit) -> dict[str, Any]:
    law = fit.lives
    weibull = None if law is None else {
        "shape": law.shape, "shape_error": law.shape_error, "scale_s": law.scale, "scale_error_s": law.scale_error,
        "log_likelihood_gain": law.gain,
    }  # fmt: skip
    return {
        "cause": fit.cause, "batch": fit.batch, "count": fit.count, "count_low": fit.low, "count_high": fit.high,
        "watched_s": fit.watched, "rate_per_s": fit.rate, "law": fit.law, "weibull": weibull, "notes": list(fit.notes),
    }  # fmt: skip


# --- the built-in failures --------------------------------------------------------------------------------------------


def _list(gpus: int) -> list[dict[str, Any]]:
    """Return the built-in failures for JSON; rates of devices that are not GPUs have no job."""
    rows = []
    for entry in watched_failures():
        job = 1 / entry.rate(gpus) if entry.device == "gpu" else None
        low, high = entry.interval or (None, None)
        rows.append({
            "name": entry.name, "device": entry.device, "mtbf_s": 1 / entry.rate(1), "job_mtbf_s": job,
            "rate_low": low, "rate_high": high, "causes": [cause.name for cause in entry.causes],
            "holds": entry.holds, "source": entry.source,
        })  # fmt: skip
    return rows


def _list_text(entries: list[dict[str, Any]], gpus: int) -> str:
    header = ["name", "of a", "fails every", f"a job of {gpus:,} GPUs", "rate, 95 %", "causes"]
    rows, notes = [], []
    for row in entries:
        job = "" if row["job_mtbf_s"] is None else _every(row["job_mtbf_s"])
        rate = "" if row["rate_low"] is None else f"x {row['rate_low']:.2f} to {row['rate_high']:.2f}"
        rows.append([row["name"], row["device"], _every(row["mtbf_s"]), job, rate, str(len(row["causes"]))])
        notes += textwrap.wrap(f"{row['name']}: {row['holds']}", _WIDE, subsequent_indent="  ")
        notes += textwrap.wrap(row["source"], _WIDE, initial_indent="  ", subsequent_indent="  ")
    how = ["In a scenario: run: {failures: NAME}; with others beside: run: {failures: {of: NAME, also: [...]}}"]
    return common.in_blocks([common.format_table(header, rows).splitlines(), notes, how])
