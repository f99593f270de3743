"""simcluster run: replay a scenario, print what a person needs, write what a program needs."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simcluster.cli import common, drawing, tracing
from simcluster.show import plots

if TYPE_CHECKING:
    from simcluster.results.distribution import Distribution
    from simcluster.results.result import Result
    from simcluster.scenario.scenario import Scenario
    from simcluster.studies.whatif.free import Free


def run(args: argparse.Namespace) -> int:
    """Load, check where results go, replay, print, write."""
    from simcluster.scenario.scenario import load
    from simcluster.show.explanation import explanation
    from simcluster.show.summary import replicas, summary
    from simcluster.simulate import simulate
    from simcluster.studies.whatif.free import what_if_free

    begun = time.perf_counter()
    more = [("replicas", args.replicas)] if args.replicas is not None else []
    scenario = load(args.scenario, common.overrides_of(args, args.scenario) + more)
    window, ranks = drawing.window_of(args.window), drawing.ranks_of(args.ranks, scenario.gpus)
    timeline = common.table_path(args.timeline) if args.timeline else None
    trace = tracing.trace_of(args, scenario)
    paths = _paths(args, scenario)
    distribution = None
    if scenario.replicas > 1:
        result, distribution = drawing.play_replicas(scenario)
    else:
        result = simulate(scenario)
    free = what_if_free(result) if args.explain or "critical" in paths else []
    if args.json != "-":
        print(summary(result))
        if distribution:
            print("\n" + replicas(distribution))
        if args.explain:
            print("\n" + explanation(result, free))
    if timeline:
        common.write_table(timeline, result.timeline)
    if trace:
        trace.write(result, apart=args.json == "-")
    for name, path in paths.items():
        _draw(name, path, _Drawn(result, window, ranks, free, distribution))
    if args.json:
        common.write_json(args.json, {**result.to_dict(), **_played(free, distribution)})
    if args.verbose:
        print(f"simulated in {time.perf_counter() - begun:.2f} s, {common.peak_memory()}", file=sys.stderr)
    return 0


def _paths(args: argparse.Namespace, scenario: Scenario) -> dict[str, Path]:
    """Where the pictures that were asked for go, by option; refused before the work is done if they cannot."""
    checks: dict[str, Callable[[str], Path | None]] = {
        **dict.fromkeys(("gantt", "critical", "overlap", "levels", "roofline"), drawing.figure_path),
        "links": drawing.links_path,
        "memory": drawing.memory_path,
        "histogram": lambda name: drawing.replicas_path(name, scenario),
    }
    found = {name: check(getattr(args, name)) for name, check in checks.items() if getattr(args, name)}
    return {name: path for name, path in found.items() if path}


class _Drawn(NamedTuple):
    """What pictures are of."""

    result: Result
    window: tuple[float, float] | None
    ranks: list[int] | None
    free: Sequence[Free]
    distribution: Distribution | None


def _draw(name: str, path: Path, what: _Drawn) -> None:
    """Write one of the pictures, or the table that may be in its place."""
    result, title = what.result, what.result.scenario.name
    if name == "gantt":
        drawing.draw(result, path, what.window, what.ranks)
    elif name == "links":
        drawing.write_links(result, path)
    elif name == "memory":
        drawing.write_memory(result, path, what.window, what.ranks)
    elif name == "critical":
        plots.save_figure(plots.critical(result, what.free), path)
    elif name == "overlap":
        plots.save_figure(plots.overlap([(title, result)]), path)
    elif name == "levels":
        plots.save_figure(plots.link_levels(result), path)
    elif name == "roofline":
        plots.save_figure(plots.roofline(result), path)
    elif what.distribution:
        title += drawing.faults_line(result.scenario)
        plots.save_figure(plots.replicas(what.distribution, title=title), path)


def _played(free: Sequence[Free], distribution: Distribution | None) -> dict[str, dict[str, Any]]:
    """What was played beside the step, for the result JSON."""
    found: dict[str, dict[str, Any]] = {}
    if free:
        found["step_time_if_free_s"] = {each.kind: each.step_time for each in free}
    if distribution:
        found["step_time_distribution_s"] = distribution.to_dict()
    return found
