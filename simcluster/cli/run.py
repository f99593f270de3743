"""simcluster run: replay a scenario, print what a person needs, write what a program needs."""

from __future__ import annotations

import argparse

from simcluster.cli.common import add_override_arguments

EXAMPLE = """examples:
  simcluster run scenarios/gpt3_175b_64xa100.yaml --gantt step.png
  simcluster run gpt3_175b_64xa100 --pipeline.schedule 1f1b
  simcluster run gpt3_175b_64xa100 --explain --critical path.png
  simcluster run gpt3_175b_64xa100 --memory memory.png --ranks 0,32
  simcluster run gpt3_175b_64xa100 --json -
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's arguments."""
    parser = subparsers.add_parser(
        "run",
        help="replay a scenario's step and say where the time went",
        description="Replay one step of a scenario (or its `steps`) as events and summarise it.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", help="a scenario file, or the name of one that ships")
    add_override_arguments(parser, "change the scenario; also --a.b c")
    parser.add_argument("--json", metavar="FILE", help='write the result as JSON; "-" prints it alone')
    parser.add_argument("--timeline", metavar="FILE", help="write one row per span (.csv or .parquet)")
    parser.add_argument("--links", metavar="FILE", help="what every link carried (.csv, or a picture)")
    parser.add_argument("--gantt", metavar="FILE", help="draw the timeline (.png, .svg or .pdf)")
    parser.add_argument(
        "--explain", action="store_true", help="also print overlap, the critical path, and the step if a kind were free"
    )
    parser.add_argument("--critical", metavar="FILE", help="draw the critical path, and the step if a kind were free")
    parser.add_argument(
        "--overlap", metavar="FILE", help="draw what communication compute hides, collective by collective"
    )
    parser.add_argument("--memory", metavar="FILE", help="memory over time (a picture; .csv or .parquet: every change)")
    parser.add_argument("--histogram", metavar="FILE", help="draw the step times of all `replicas` (--replicas too)")
    parser.add_argument("--replicas", metavar="N", type=int, help="play the step so often, with other draws each time")
    parser.add_argument("--window", metavar="T0:T1", help='draw only this part, as in "1.2 s:1.3 s"')
    parser.add_argument("--ranks", metavar="R,R", help="draw only these ranks, as in 0,8,16")
    parser.add_argument("--verbose", action="store_true", help="say on stderr what the simulator itself took")


def run(args: argparse.Namespace) -> int:
    """Load, check where results go, replay, print, write."""
    import sys
    import time

    from simcluster import plots
    from simcluster.cli import common, drawing
    from simcluster.scenario.scenario import load
    from simcluster.show.explanation import explanation
    from simcluster.show.summary import replicas, summary
    from simcluster.simulate import simulate
    from simcluster.whatif.free import what_if_free

    begun = time.perf_counter()
    more = [("replicas", args.replicas)] if args.replicas is not None else []
    scenario = load(args.scenario, common.overrides_of(args) + more)
    window, ranks = drawing.window_of(args.window), drawing.ranks_of(args.ranks, scenario.gpus)
    timeline = common.table_path(args.timeline) if args.timeline else None
    gantt = drawing.figure_path(args.gantt) if args.gantt else None
    critical, overlap = (drawing.figure_path(name) if name else None for name in (args.critical, args.overlap))
    links = common.output_path(args.links) if args.links else None
    if links and links.suffix != ".csv":
        drawing.figure_path(args.links)
    memory = drawing.memory_path(args.memory) if args.memory else None
    histogram = drawing.replicas_path(args.histogram, scenario)
    common.check_json_path(args.json)
    distribution = None
    if scenario.replicas > 1:
        result, distribution = drawing.play_replicas(scenario)
    else:
        result = simulate(scenario)
    free = what_if_free(result) if args.explain or critical else []
    if args.json != "-":
        print(summary(result))
        if distribution:
            print("\n" + replicas(distribution))
        if args.explain:
            print("\n" + explanation(result, free))
    if timeline:
        common.write_table(timeline, result.timeline)
    if gantt:
        drawing.draw(result, gantt, window, ranks)
    if critical:
        plots.save_figure(plots.critical(result, free), critical)
    if overlap:
        plots.save_figure(plots.overlap([(scenario.name, result)]), overlap)
    if links:
        drawing.write_links(result, links)
    if histogram and distribution:
        plots.save_figure(plots.replicas(distribution, title=scenario.name), histogram)
    if memory:
        drawing.write_memory(result, memory, window, ranks)
    if args.json:
        played = {"step_time_if_free_s": {each.kind: each.step_time for each in free}} if free else {}
        if distribution:
            played["step_time_distribution_s"] = distribution.to_dict()
        common.write_json(args.json, {**result.to_dict(), **played})
    if args.verbose:
        print(f"simulated in {time.perf_counter() - begun:.2f} s, {common.peak_memory()}", file=sys.stderr)
    return 0
