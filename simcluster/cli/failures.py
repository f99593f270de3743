"""simcluster failures: rates and shapes of a log of one's own, as the failures of a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from simcluster.cli import common
from simcluster.cli.common import format_table
from simcluster.documents.rows import read_csv
from simcluster.longrun.fitting import DAY, CauseFit, FailureFits, fit_failures

_YEAR = 365.25


def run(args: argparse.Namespace) -> None:
    """Fit, and say it."""
    source = args.source or f"{Path(args.log).name}: simcluster failures"
    fits = fit_failures(read_csv(Path(args.log)), source, gpus=args.gpus, days=args.days, by=args.by)
    if args.output:
        common.write_text(args.output, _yaml(fits))
    common.answer(args, lambda: _text(fits, written=args.output), lambda: _document(fits))


def _yaml(fits: FailureFits) -> str:
    """The section: JSON is YAML, so that any name may stand in it."""
    lines = [f"  - {json.dumps(mode, ensure_ascii=False)}" for mode in fits.section()]
    return "\n".join(["failures:  # of a scenario's run", *lines]) + "\n"


def _text(fits: FailureFits, *, written: Path | None) -> str:
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
    section = [f"wrote {written}"] if written else _yaml(fits).splitlines()
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
