"""simcluster run: replay a scenario, print what a person needs, write what a program needs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from simcluster.base.errors import InputError
from simcluster.cli import common, drawing, tracing
from simcluster.results.distribution import Distribution
from simcluster.scenario.scenario import load
from simcluster.show import plots
from simcluster.show.explanation import explanation
from simcluster.show.summary import replicas, summary
from simcluster.simulate import simulate
from simcluster.studies.whatif.free import Free, what_if_free


def run(args: argparse.Namespace) -> None:
    """Load, check where results go, replay, print, write."""
    begun = time.perf_counter()
    more = [("replicas", args.replicas)] if args.replicas is not None else []
    scenario = load(args.scenario, common.overrides_of(args, args.scenario) + more)
    window, ranks = drawing.window_of(args.window), drawing.ranks_of(args.ranks, scenario.gpus)
    trace = tracing.trace_of(args, scenario)
    if args.histogram and scenario.replicas < 2:
        raise InputError(f"--histogram {args.histogram}: there is one replica; ask for more, as in --replicas 200")
    distribution = None
    if scenario.replicas > 1:
        result, distribution = drawing.play_replicas(scenario)
    else:
        result = simulate(scenario)
    free = what_if_free(result) if args.explain or args.critical else []

    def text() -> str:
        told = [summary(result), *([replicas(distribution)] if distribution else [])]
        return "\n\n".join([*told, *([explanation(result, free)] if args.explain else [])])

    common.answer(args, text, lambda: {**result.to_dict(), **_played(free, distribution)})
    if args.timeline:
        common.write_table(args.timeline, result.timeline)
    if trace:
        trace.write(result, apart=args.json == "-")
    if args.links:
        drawing.write_links(result, args.links)
    if args.memory:
        drawing.write_memory(result, args.memory, window, ranks)
    common.draw(
        (args.gantt, lambda: drawing.gantt(result, window, ranks)),
        (args.critical, lambda: plots.critical(result, free)),
        (args.overlap, lambda: plots.overlap([(scenario.name, result)])),
        (args.levels, lambda: plots.link_levels(result)),
        (args.roofline, lambda: plots.roofline(result)),
        (args.histogram, lambda: drawing.histogram(scenario, distribution)),
    )
    if args.verbose:
        print(f"simulated in {time.perf_counter() - begun:.2f} s, {common.peak_memory()}", file=sys.stderr)


def _played(free: Sequence[Free], distribution: Distribution | None) -> dict[str, dict[str, Any]]:
    """What was played beside the step, for the result JSON."""
    found: dict[str, dict[str, Any]] = {}
    if free:
        found["step_time_if_free_s"] = {each.kind: each.step_time for each in free}
    if distribution:
        found["step_time_distribution_s"] = distribution.to_dict()
    return found
