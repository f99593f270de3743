"""simcluster advise: what to decide for a run of weeks, as one sentence, a table and a picture."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.overrides import overrides_of
from simcluster.longrun.commands.train import show_progress
from simcluster.longrun.studies.advice import advise
from simcluster.longrun.text import within
from simcluster.results.file import assumed_lines
from simcluster.scenario.scenario import load
from simcluster.show.pictures import picture

if TYPE_CHECKING:
    import pandas as pd


def run(args: argparse.Namespace) -> None:
    """Play what the question asks for; print the answer and what it rests on."""
    options: dict[str, Any] = {
        name: _share(name, text) for name in ("slower", "target") if (text := getattr(args, name)) is not None
    }
    scenario = load(args.scenario, overrides_of(args, args.scenario))
    how: dict[str, Any] = {"played": args.played, "workers": common.workers_of(args), "store": args.store}
    with show_progress(args) as bar:
        found = advise(args.question, scenario, **how, progress=bar, **options)
    tables = [found.table] if found.second is None else [found.table, found.second]
    blocks = [
        [f"{found.name}: {found.question}, {found.played:,} runs each"],
        [found.sentence],
        *([common.format_table(*_cells(table))] for table in tables),
        [*assumed_lines(found.assumed), *(f"note: {note}" for note in found.notes)],
    ]
    common.answer(args, lambda: common.in_blocks(blocks), found.to_dict)
    common.draw(args, (args.plot, lambda: picture("advice")(found)))


def _share(name: str, text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"--{name} {text!r} must be a share, as in 1% or 0.01")
    return value / 100 if text.strip().endswith("%") else value


def _cells(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    wide = {column: half for column in table for half in _halves(column) if half in table}
    kept = [str(column) for column in table if column not in wide.values()]
    header = [_HEADS.get(column, column.replace("_", " ")) for column in kept]
    rows = table.to_dict("records")
    return header, [[_cell(column, row[column], row.get(wide.get(column))) for column in kept] for row in rows]


def _halves(column: object) -> tuple[str, ...]:
    name = str(column)
    found = (f"{name}_half_width", f"{name.removesuffix('_simulated')}_half_width")
    return (*found, "half_width") if name == "goodput" else found


_HEADS = {
    "interval_s": "interval, s", "interruption_s": "interruption, s", "mean_s": "mean, s", "hours": "slow, h",
    "left": "left, GPU-h", "at_once": "at once, GPU-h", "checkpoint": "checkpoint, GPU-h", "gpus_plain": "whole GPUs",
    "gpus": "GPUs", "short": "short of machines", "erlang_b": "Erlang B",
    "gain_per_min": "gain a minute",
}  # fmt: skip
_SHARES = ("goodput", "closed_form", "difference", "short", "erlang_b", "gain", "gain_per_min", "blocking", "snapshot")


def _cell(column: str, value: Any, half: Any) -> str:
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "-"
    share = column in _SHARES or column.endswith("_closed_form")
    digits, scale = (3, 100) if share else (0 if isinstance(value, int) else 1 if abs(value) >= 100 else 3, 1)
    known = half is not None and math.isfinite(half)
    text = within(scale * value, scale * half, digits) if known else f"{scale * value:,.{digits}f}"
    return text + (" %" if share else "")
