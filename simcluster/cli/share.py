"""simcluster share: several jobs on one cluster, and how much each slows down the others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcluster.base.errors import prefix_errors
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.common import read_overrides
from simcluster.show.blocks import Answer, Lines, TableBlock
from simcluster.studies.multi_job import Shared, load_jobs, simulate_jobs

if TYPE_CHECKING:
    from simcluster.show.pictures import Figure


def run(args: argparse.Namespace) -> None:
    """Load the jobs, simulate them, print and draw the slowdowns."""
    placed, cluster = load_jobs(args.jobs, read_overrides(args))
    with prefix_errors(args.jobs):
        shared = simulate_jobs(placed, cluster)
    names = [f"{number}: {job.scenario.name}" for number, job in enumerate(placed)]

    def blocks() -> Answer:
        rows = [
            [
                name,
                f"{job.scenario.gpus:,}",
                format_seconds(each.alone),
                format_seconds(each.step_time),
                f"{each.slowdown:.3f} x",
                f"{len(each.measured):,}",
            ]
            for name, job, each in zip(names, placed, shared, strict=True)
        ]
        title = [f"{len(placed)} jobs on {cluster.name}, {cluster.num_gpus:,} GPUs"]
        header = ["job", "GPUs", "step alone", "step with the others", "slowdown", "steps measured"]
        return [Lines(title), TableBlock(header, rows)]

    document = [
        {
            "job": job.scenario.name,
            "gpus": job.scenario.gpus,
            "step_time_alone_s": each.alone,
            "step_time_s": each.step_time,
            "slowdown": each.slowdown,
            "steps_measured": len(each.measured),
            "steps_played": each.result.steps,
        }
        for job, each in zip(placed, shared, strict=True)
    ]
    common.print_answer(args, blocks, lambda: document)
    common.draw_pictures(args, (args.gantt, lambda: _draw_jobs(args, names, shared)))


def _draw_jobs(args: argparse.Namespace, names: Sequence[str], shared: Sequence[Shared]) -> Figure:
    from simcluster.show.gantt import compare_gantts

    longest = max(shared, key=lambda each: each.step_time)
    begin, end = longest.window
    window = begin, min(end, begin + 2 * longest.step_time)
    return compare_gantts(
        [(name, each.result.timeline) for name, each in zip(names, shared, strict=True)],
        window=window,
        title=f"{len(shared)} concurrent jobs, {format_seconds(window[1] - window[0])} of their time\n"
        "at the right: step time of each, and its ratio to the step alone",
        said=[(format_seconds(each.step_time), f"{each.slowdown:.3f} x") for each in shared],
        **common.picture_inches(args),
    )
