"""Command ``simcluster diff SCENARIO TRACE``: compare a recorded trace with its simulation."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simcluster.base.counts import parse_number_ranges
from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.interop.trace_comparison.comparison_text import report_blocks
from simcluster.interop.trace_comparison.trace_difference import TraceDifference, diff_trace
from simcluster.results.result_file import is_result_file
from simcluster.scenario.scenario import load
from simcluster.show.plot_registry import load_plot

if TYPE_CHECKING:
    from simcluster.show.plot_registry import Figure


def run(args: argparse.Namespace, overrides: Sequence[tuple[str, Any]]) -> None:
    """Compare a recorded trace with its simulated scenario, print the difference and draw both timelines."""
    if is_result_file(args.base):
        raise InputError(f"{args.base} is a saved result, which has no spans; compare its scenario with the trace")
    if args.waterfall is not None:
        raise InputError("--waterfall applies to two simulated steps; to draw a trace and its simulation, use --gantt")
    scenario = load(args.base, overrides)
    ranks = common.parse_ranks(args.ranks, scenario.gpus)
    if ranks is not None and args.gantt is None:
        raise InputError(f"--ranks {args.ranks} selects rows of the Gantt chart; add --gantt FILE, or remove --ranks")
    steps = None if args.steps is None else parse_number_ranges(args.steps, "--steps", "step")
    found = diff_trace(scenario, args.other, kernels=args.kernels, steps=steps)
    common.print_answer(args, lambda: report_blocks(found), found.to_dict)
    common.draw_pictures(args, (args.gantt, lambda: _draw_gantts(args, found, ranks)))


def _draw_gantts(args: argparse.Namespace, found: TraceDifference, ranks: Sequence[int] | None) -> Figure:
    from simcluster.interop.trace_comparison.trace_difference import step_timelines

    change = f"{found.seconds / found.simulated.seconds:+.1%}".replace("-", "\u2212")
    said = [(format_seconds(found.simulated.seconds), ""), (format_seconds(found.recorded.seconds), change)]
    title = "One step as simulated, and as recorded"
    both = list(step_timelines(found, ranks).items())
    return load_plot("compare_gantts")(
        both, ranks=ranks, rows="rank", title=title, remarks=said, labels=False, **common.picture_size_inches(args)
    )
