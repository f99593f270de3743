"""simcluster share: simulate several jobs on one cluster, and how much they slow each other down."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcluster.base.errors import prefix_errors
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.common import read_overrides
from simcluster.show.output_blocks import OutputBlocks, TableBlock, TextLines
from simcluster.studies.multi_job import SharedJobResult, load_jobs, simulate_jobs

if TYPE_CHECKING:
    from simcluster.show.plot_registry import Figure


def run(args: argparse.Namespace) -> None:
    """Load the jobs, simulate them together, and print and draw their slowdowns."""
    placed, cluster = load_jobs(args.jobs, read_overrides(args))
    with prefix_errors(args.jobs):
        shared = simulate_jobs(placed, cluster)
    names = [f"{number}: {job.scenario.name}" for number, job in enumerate(placed)]

    moves = any(job.arrives or not job.stays for job in placed)

    def blocks() -> OutputBlocks:
        rows = [
            [
                name,
                *[f"{format_seconds(job.arrives)} to {'the end' if job.stays else format_seconds(job.leaves)}"] * moves,
                f"{job.scenario.gpus:,}",
                format_seconds(each.alone),
                format_seconds(each.step_time),
                f"{each.slowdown:.3f} x",
                f"{len(each.measured):,}",
            ]
            for name, job, each in zip(names, placed, shared, strict=True)
        ]
        title = [f"{len(placed)} jobs on {cluster.name}, {cluster.num_gpus:,} GPUs"]
        header = ["job", *["there"] * moves, "GPUs", "step alone", "step with the others", "slowdown", "steps measured"]
        return [TextLines(title), TableBlock(header, rows)]

    document = [
        {
            "job": job.scenario.name,
            "gpus": job.scenario.gpus,
            "arrives_s": job.arrives,
            "leaves_s": None if job.stays else job.leaves,
            "step_time_alone_s": each.alone,
            "step_time_s": each.step_time,
            "slowdown": each.slowdown,
            "steps_measured": len(each.measured),
            "steps_played": each.result.steps,
        }
        for job, each in zip(placed, shared, strict=True)
    ]
    common.print_answer(args, blocks, lambda: document)
    common.draw_pictures(args, (args.gantt, lambda: _draw_job_timelines(args, names, shared)))


def _draw_job_timelines(args: argparse.Namespace, names: Sequence[str], results: Sequence[SharedJobResult]) -> Figure:
    from simcluster.show.gantt import compare_gantts

    longest = max(results, key=lambda each: each.step_time)
    begin, end = longest.window
    window = begin, min(end, begin + 2 * longest.step_time)
    return compare_gantts(
        [(name, each.result.timeline) for name, each in zip(names, results, strict=True)],
        window=window,
        title=f"{len(results)} concurrent jobs, {format_seconds(window[1] - window[0])} of their time\n"
        "at the right: step time of each, and its ratio to the step alone",
        remarks=[(format_seconds(each.step_time), f"{each.slowdown:.3f} x") for each in results],
        **common.picture_size_inches(args),
    )
