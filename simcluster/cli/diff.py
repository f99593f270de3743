"""simcluster diff: explain the difference of two steps, or of a simulated step and a trace."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.base.satellites import load_provided
from simcluster.cli import common
from simcluster.cli.common import read_overrides
from simcluster.results.file import is_result_file
from simcluster.scenario.scenario import load
from simcluster.show.pictures import picture
from simcluster.show.study_answers import describe_difference
from simcluster.studies.whatif.difference import Difference, diff

if TYPE_CHECKING:
    from simcluster.show.pictures import Figure


def run(args: argparse.Namespace) -> None:
    """Simulate or read both steps, print the causes of the difference, draw them."""
    overrides = read_overrides(args)
    if args.other is None and not overrides:
        raise InputError(
            f"a difference needs two scenarios: simcluster diff {args.base} OTHER, or one with changes, as in "
            f"simcluster diff {args.base} --training.micro_batch 2"
        )
    is_trace = load_provided("is a trace")
    if args.other is not None and (is_trace(args.other) or Path(args.other).is_dir()):  # a folder is not a scenario
        load_provided("difference from a trace")(args, overrides)
        return
    refused = [name for name in ("kernels", "gantt", "steps", "ranks") if getattr(args, name) is not None]
    if refused:
        raise InputError(
            f"--{refused[0]} applies to your traces, and {args.other or args.base} is not a trace; name "
            f"a folder of profiles as B, or omit it"
        )
    if is_trace(args.base):
        raise InputError(f"{args.base} is a trace: name the scenario first, as in simcluster diff SCENARIO {args.base}")
    files = [args.base, args.other or args.base]
    changes = [overrides if args.other else [], overrides]
    for file, change in zip(files, changes, strict=True):
        if change and is_result_file(file):
            raise InputError(f"--set cannot change {file}, a saved result; name its scenario instead")
    sides = [file if is_result_file(file) else load(file, change) for file, change in zip(files, changes, strict=True)]
    found = diff(*sides)
    common.print_answer(args, lambda: describe_difference(found), found.to_dict)
    common.draw_pictures(args, (args.waterfall, lambda: _draw_waterfall(found)))


def _draw_waterfall(found: Difference) -> Figure:
    import pandas as pd

    names = list(found.names)
    causes = pd.DataFrame([dict.fromkeys(found.causes, 0.0), found.causes], index=names)
    return picture("waterfall")(dict(zip(names, (found.base.step_time, found.other.step_time), strict=True)), causes)
