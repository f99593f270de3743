"""simcluster share: several jobs on one cluster, each slowed by the others."""

from __future__ import annotations

import argparse

from simcluster.cli.common import add_override_arguments

EXAMPLE = """example of a jobs file:
  cluster: {topology: dgx_h100, nodes: 16}
  jobs:
    - {scenario: a.yaml, machines: [0, 2, 4, 6]}
    - {scenario: b.yaml, set: {training.micro_batch: 2}}
examples:
  simcluster share jobs.yaml --gantt jobs.png
  simcluster share jobs.yaml --cluster.nodes 32 --set jobs.0.set.training.micro_batch=4
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's arguments."""
    parser = subparsers.add_parser(
        "share",
        help="play several jobs on one cluster at once",
        description="Play several jobs on one cluster, each alone and all at once, and say how much each is slowed.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("jobs", help="a file that names the cluster and the jobs")
    add_override_arguments(parser, "change the file; also --cluster.nodes 32, --jobs.0.set.training.micro_batch 4")
    parser.add_argument("--gantt", metavar="FILE", help="draw the jobs under each other (.png, .svg or .pdf)")
    parser.add_argument("--json", metavar="FILE", help='write the slowdowns as JSON; "-" prints them alone')


def run(args: argparse.Namespace) -> int:
    """Load, play, print, draw."""
    from simcluster.cli import common, drawing
    from simcluster.together import load_jobs, simulate_together
    from simcluster.units import format_seconds

    placed, cluster = load_jobs(args.jobs, common.overrides_of(args))
    gantt = drawing.figure_path(args.gantt) if args.gantt else None
    common.check_json_path(args.json)
    shared = simulate_together(placed, cluster)
    names = [f"{number}: {job.scenario.name}" for number, job in enumerate(placed)]
    if args.json != "-":
        rows = [
            [
                name,
                f"{job.scenario.gpus:,}",
                format_seconds(each.alone),
                format_seconds(each.result.step_time),
                f"{each.slowdown:.3f} x",
            ]
            for name, job, each in zip(names, placed, shared, strict=True)
        ]
        print(f"{len(placed)} jobs on {cluster.name}, {len(cluster.gpus):,} GPUs\n")
        print(common.format_table(["job", "GPUs", "step alone", "step beside the others", "slowdown"], rows))
    if gantt:
        from simcluster.show.gantt import compare_gantts, save_figure

        timelines = [(name, each.result.timeline) for name, each in zip(names, shared, strict=True)]
        save_figure(compare_gantts(timelines), gantt)
    if args.json:
        common.write_json(
            args.json,
            [
                {
                    "job": job.scenario.name,
                    "gpus": job.scenario.gpus,
                    "step_time_alone_s": each.alone,
                    "step_time_s": each.result.step_time,
                    "slowdown": each.slowdown,
                }
                for job, each in zip(placed, shared, strict=True)
            ],
        )
    return 0
