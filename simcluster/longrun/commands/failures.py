"""simcluster failures: rates and shapes of a log of one's own, as the failures of a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError, located
from simcluster.base.units import DAY
from simcluster.cli import common
from simcluster.cli.common import format_table
from simcluster.longrun.commands import failures_listed
from simcluster.longrun.eventlog import is_own
from simcluster.longrun.fitting import CauseFit, FailureFits, fit_failures
from simcluster.longrun.logrows import columns_of, log_rows
from simcluster.longrun.studies.fitted import fit_log
from simcluster.longrun.studies.replays import log_path
from simcluster.scenario.scenario import load

_YEAR = 365.25
_OF_A_LOG = ("log", "scenario", "columns", "began", "days", "by", "source", "output")


def run(args: argparse.Namespace) -> None:
    """Fit, and say it; or list those that ship."""
    if args.list:
        given = [name for name in _OF_A_LOG if getattr(args, name)]
        if given:
            name = "a log" if given[0] == "log" else f"--{given[0]}"
            raise InputError(f"--list says what ships; {name} is of a log that is fitted: leave one of them out")
        failures_listed.run(args)
        return
    if args.log is None:
        raise InputError("which log? simcluster failures LOG.csv; those that ship: simcluster failures --list")
    source = args.source or f"{Path(args.log).name}: simcluster failures"
    path, columns = log_path(args.log), columns_of(args.columns)
    rows = log_rows(path, columns, args.began)
    if args.scenario:
        with located(args.log):
            fits = fit_log(load(args.scenario), rows, source, gpus=args.gpus, days=args.days, by=args.by)
    elif is_own(rows):
        raise InputError(f"{args.log}: is the log of a run; which? --scenario says it")
    else:
        with located(args.log):
            fits = fit_failures(rows, source, gpus=args.gpus, days=args.days, by=args.by)
    if args.output:
        common.write_text(args.output, _yaml(fits))
    common.answer(
        args,
        lambda: _text(fits, written=common.wrote(args, args.output) if args.output else ""),
        lambda: _document(fits),
    )


def _yaml(fits: FailureFits) -> str:
    """The section: JSON is YAML, so that any name may stand in it.  How sure a rate is stands behind each."""
    seen = [each for each in fits.causes if each.count]
    lines = [
        f"  - {json.dumps(mode, ensure_ascii=False)}"
        f"  # {each.low / each.count:.2f} to {each.high / each.count:.2f} times as often with 95 %"
        for mode, each in zip(fits.section(), seen, strict=True)
    ]
    return "\n".join(["failures:  # of a scenario's run", *lines]) + "\n"


def _text(fits: FailureFits, *, written: str) -> str:
    lives = any(each.lives for each in (*fits.causes, fits.total))
    table = format_table(
        ["cause", "failures", "95 % interval", "every", *(["shape", "scale", "gain", "law"] if lives else [])],
        [_row(each, lives=lives) for each in (*fits.causes, fits.total)],
    ).splitlines()
    whose: dict[str, list[str]] = {}
    for each in (*fits.causes, fits.total):
        for note in each.notes:
            whose.setdefault(note, []).append(each.name)
    said = [f"{', '.join(names)}: {note}" for note, names in whose.items()]
    gain = "gain: log-likelihood of the Weibull law above the exponential's; above 3.3 it is taken (1 %)"
    section = [written] if written else _yaml(fits).splitlines()
    return common.in_blocks([table, [gain] if lives else [], said, [*fits.notes], section])


def _row(fit: CauseFit, *, lives: bool) -> list[str]:
    cells = [fit.name, f"{fit.count:g}", f"{fit.low:.1f} to {fit.high:.1f}", _every(fit)]
    if lives and fit.lives is not None:
        law = fit.lives
        years = law.scale / DAY / _YEAR
        error = law.scale_error / DAY / _YEAR
        cells += [
            f"{law.shape:.3f} +- {law.shape_error:.3f}",
            f"{years:.3g} +- {error:.2g} y",
            f"{law.gain:.1f}",
            fit.law,
        ]
    elif lives:
        cells += ["", "", "", fit.law]
    return cells


def _every(fit: CauseFit) -> str:
    """How long from one to the next."""
    if not fit.count:
        return "never"
    hours = 1 / fit.rate / 3600
    return f"{hours:.4g} h" if hours < 2000 else f"{hours / 24 / _YEAR:.4g} y"


def _document(fits: FailureFits) -> dict[str, Any]:
    return {
        "causes": [_as_json(each) for each in fits.causes],
        "total": _as_json(fits.total),
        "notes": list(fits.notes),
        "failures": fits.section(),
    }


def _as_json(fit: CauseFit) -> dict[str, Any]:
    law = fit.lives
    weibull = None if law is None else {
        "shape": law.shape, "shape_error": law.shape_error, "scale_s": law.scale, "scale_error_s": law.scale_error,
        "log_likelihood_gain": law.gain,
    }  # fmt: skip
    return {
        "cause": fit.cause, "batch": fit.batch, "count": fit.count, "count_low": fit.low, "count_high": fit.high,
        "watched_s": fit.watched, "rate_per_s": fit.rate, "law": fit.law, "weibull": weibull, "notes": list(fit.notes),
    }  # fmt: skip
