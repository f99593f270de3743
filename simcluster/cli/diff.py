"""simcluster diff: why one step takes longer than another, by cause, by stage and in words; or than one's own trace."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.base.satellites import provided
from simcluster.cli import common
from simcluster.cli.common import format_difference, format_table
from simcluster.cli.overrides import overrides_of
from simcluster.results.file import is_saved
from simcluster.scenario.scenario import load
from simcluster.show.pictures import picture
from simcluster.show.report.yaml_text import setting_text
from simcluster.studies.whatif.difference import Difference, diff, phrase

if TYPE_CHECKING:
    from simcluster.show.pictures import Figure


_MOST_SETTINGS = 20
_MOST_STAGES = 32


def run(args: argparse.Namespace) -> None:
    """Play or read both, print where the difference went, draw it."""
    overrides = overrides_of(args)
    if args.other is None and not overrides:
        raise InputError(
            f"a difference needs two: simcluster diff {args.base} OTHER, or what another has otherwise, as in "
            f"simcluster diff {args.base} --training.micro_batch 2"
        )
    is_trace = provided("is a trace")
    if args.other is not None and (is_trace(args.other) or Path(args.other).is_dir()):  # a folder is no scenario
        provided("difference from a trace")(args, overrides)
        return
    refused = [name for name in ("kernels", "gantt", "steps", "ranks") if getattr(args, name) is not None]
    if refused:
        raise InputError(
            f"--{refused[0]} is for traces of your own, and {args.other or args.base} is none; name "
            f"a folder of profiles as B, or leave it out"
        )
    if is_trace(args.base):
        raise InputError(f"{args.base} is a trace: name the scenario first, as in simcluster diff SCENARIO {args.base}")
    files = [args.base, args.other or args.base]
    changes = [overrides if args.other else [], overrides]
    for file, change in zip(files, changes, strict=True):
        if change and is_saved(file):
            raise InputError(f"--set cannot change {file}, which was played already; name its scenario instead")
    sides = [file if is_saved(file) else load(file, change) for file, change in zip(files, changes, strict=True)]
    found = diff(*sides)
    common.answer(args, lambda: text_of(found), found.to_dict)
    common.draw(args, (args.waterfall, lambda: _waterfall(found)))


def _waterfall(found: Difference) -> Figure:
    import pandas as pd

    names = list(found.names)
    causes = pd.DataFrame([dict.fromkeys(found.causes, 0.0), found.causes], index=names)
    return picture("waterfall")(dict(zip(names, (found.base.step_time, found.other.step_time), strict=True)), causes)


def text_of(found: Difference) -> str:
    """What a person reads."""
    parts = [f"A: {found.names[0]}\nB: {found.names[1]}" if found.names != ("A", "B") else ""]
    held = f"faster links: {found.held.in_words()}" if found.held else ""
    parts += [found.in_words(), held, _settings(found), _causes(found), _stages(found)]
    return "\n\n".join(part for part in parts if part)


def _settings(found: Difference) -> str:
    if not found.settings:
        return "no setting differs"
    shown = [
        f"  {each.path}: {setting_text(each.before)} -> {setting_text(each.after)}"
        for each in found.settings[:_MOST_SETTINGS]
    ]
    more = len(found.settings) - len(shown)
    return "\n".join(["what differs in the scenario", *shown, *([f"  and {more} more"] if more else [])])


def _causes(found: Difference) -> str:
    whole = found.base.step_time
    rows = [
        [phrase(name), format_difference(seconds), f"{seconds / whole:+.1%}"]
        for name, seconds in found.causes.items()
        if abs(seconds) > 1e-12
    ]
    if not rows:
        return ""
    total = ["sum", format_difference(sum(found.causes.values())), f"{found.seconds / whole:+.1%}"]
    return "where it went (a step, mean over ranks)\n" + format_table(["cause", "B - A", "of A"], [*rows, total])


def _stages(found: Difference) -> str:
    if len(found.stages) < 2:
        counts = len(found.base.stages), len(found.other.stages)
        return f"no table by stage: A has {counts[0]} stages, B {counts[1]}" if counts[0] != counts[1] else ""
    shown = [name for name in found.stages[0] if any(abs(stage[name]) > 1e-12 for stage in found.stages)]
    if not shown:
        return ""
    rows = [
        [str(number), *(format_difference(stage[name]) for name in shown), format_difference(sum(stage.values()))]
        for number, stage in enumerate(found.stages[:_MOST_STAGES])
    ]
    more = len(found.stages) - len(rows)
    table = format_table(["stage", *shown, "sum"], rows) + (f"\nand {more} more stages (--json)" if more else "")
    return f"by stage (the mean of its ranks)\n{table}"
