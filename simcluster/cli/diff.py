"""simcluster diff: explain why two simulated steps, or a simulated step and a trace, differ."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.base.satellites import load_satellite_object
from simcluster.cli import common
from simcluster.cli.common import read_overrides
from simcluster.results.result_file import is_result_file
from simcluster.scenario.scenario import load
from simcluster.show.plot_registry import load_plot
from simcluster.show.study_answers import describe_difference
from simcluster.studies.whatif.difference import RunDifference, explain_difference

if TYPE_CHECKING:
    from simcluster.show.plot_registry import Figure


def run(args: argparse.Namespace) -> None:
    """Simulate or read both steps, print the causes of their difference, and draw them."""
    overrides = read_overrides(args)
    if args.other is None and not overrides:
        raise InputError(
            f"a difference needs two scenarios: simcluster diff {args.base} OTHER, or one with changes, as in "
            f"simcluster diff {args.base} --training.micro_batch 2"
        )
    is_trace = load_satellite_object("is a trace")
    if args.other is not None and (is_trace(args.other) or Path(args.other).is_dir()):  # a folder is not a scenario
        load_satellite_object("difference from a trace")(args, overrides)
        return
    refused = [name for name in ("kernels", "gantt", "steps", "ranks") if getattr(args, name) is not None]
    if refused:
        raise InputError(
            f"--{refused[0]} applies to your traces, and {args.other or args.base} is not a trace; name "
            f"a folder of profiles as B, or omit --{refused[0]}"
        )
    if is_trace(args.base):
        raise InputError(f"{args.base} is a trace: name the scenario first, as in simcluster diff SCENARIO {args.base}")
    files = [args.base, args.other or args.base]
    changes = [overrides if args.other else [], overrides]
    for file, change in zip(files, changes, strict=True):
        if change and is_result_file(file):
            raise InputError(f"--set cannot change {file}, a saved result; name its scenario instead")
    sides = [file if is_result_file(file) else load(file, change) for file, change in zip(files, changes, strict=True)]
    found = explain_difference(*sides)
    common.print_answer(args, lambda: describe_difference(found), found.to_dict)
    common.draw_pictures(args, (args.waterfall, lambda: _draw_waterfall(found)))


def _draw_waterfall(diff: RunDifference) -> Figure:
    import pandas as pd

    names = list(diff.names)
    causes = pd.DataFrame([dict.fromkeys(diff.seconds_by_cause, 0.0), diff.seconds_by_cause], index=names)
    return load_plot("waterfall")(dict(zip(names, (diff.base.step_time, diff.other.step_time), strict=True)), causes)
