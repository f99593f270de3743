"""``simcluster advise``: answers a planning question about a long run with a sentence, a table and a plot."""

from __future__ import annotations

import argparse
import math
from typing import Any

from simcluster.base.counts import float_or_nan
from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.answers import build_text_blocks
from simcluster.cli.common import read_overrides
from simcluster.longrun.commands.train import show_progress
from simcluster.longrun.studies.advice import advise
from simcluster.scenario.scenario import load
from simcluster.show.plot_registry import load_plot


def run(args: argparse.Namespace) -> None:
    """Simulate the runs that a planning question needs; print the answer and its assumptions."""
    options: dict[str, Any] = {
        name: _parse_share(name, text) for name in ("slower", "target") if (text := getattr(args, name)) is not None
    }
    scenario = load(args.scenario, read_overrides(args, args.scenario))
    how: dict[str, Any] = {"played": args.played, "workers": common.read_executor(args), "store": args.store}
    with show_progress(args) as bar:
        found = advise(args.question, scenario, **how, progress=bar, **options)
    common.print_answer(args, lambda: build_text_blocks(found), found.to_dict)
    common.draw_pictures(args, (args.plot, lambda: load_plot("advice")(found)))


def _parse_share(name: str, text: str) -> float:
    value = float_or_nan(text.strip().removesuffix("%"))
    if not math.isfinite(value):
        raise InputError(f"--{name} {text!r} must be a share, as in 1% or 0.01")
    return value / 100 if text.strip().endswith("%") else value
