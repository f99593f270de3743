"""simcluster failures --list: the failures that ship, how often they strike, and what they were seen on."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from simcluster.cli import common
from simcluster.cli.common import format_table
from simcluster.longrun.catalogue import WatchedFailures, watched_failures

_GPUS = 1024
_WIDE = 118


def run(args: argparse.Namespace) -> None:
    """Say them."""
    gpus = args.gpus or _GPUS
    common.answer(args, lambda: _text(gpus), lambda: {"gpus": gpus, "failures": _rows(gpus)})


def _rows(gpus: int) -> list[dict[str, Any]]:
    return [_row(entry, gpus) for entry in watched_failures()]


def _row(entry: WatchedFailures, gpus: int) -> dict[str, Any]:
    """For JSON; rates of devices that are no GPUs have no job."""
    job = 1 / entry.rate(gpus) if entry.device == "gpu" else None
    low, high = entry.interval or (None, None)
    return {
        "name": entry.name, "device": entry.device, "mtbf_s": 1 / entry.rate(1), "job_mtbf_s": job,
        "rate_low": low, "rate_high": high, "causes": [cause.name for cause in entry.causes],
        "holds": entry.holds, "source": entry.source,
    }  # fmt: skip


def _text(gpus: int) -> str:
    entries = _rows(gpus)
    header = ["name", "of a", "fails every", f"a job of {gpus:,} GPUs", "rate, 95 %", "causes"]
    rows = [
        [
            row["name"],
            row["device"],
            _long(row["mtbf_s"]),
            "" if row["job_mtbf_s"] is None else _long(row["job_mtbf_s"]),
            "" if row["rate_low"] is None else f"x {row['rate_low']:.2f} to {row['rate_high']:.2f}",
            str(len(row["causes"])),
        ]
        for row in entries
    ]
    notes = [line for row in entries for line in _note(row)]
    how = ["In a scenario: run: {failures: NAME}; with others beside: run: {failures: {of: NAME, also: [...]}}"]
    return common.in_blocks([format_table(header, rows).splitlines(), notes, how])


def _note(row: dict[str, Any]) -> list[str]:
    """What it was seen on, and where that stands."""
    own = textwrap.wrap(f"{row['name']}: {row['holds']}", _WIDE, subsequent_indent="  ")
    return [*own, *textwrap.wrap(row["source"], _WIDE, initial_indent="  ", subsequent_indent="  ")]


def _long(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.4g} h" if hours < 2000 else f"{hours / 24 / 365.25:,.4g} y"
