"""simcluster run: simulate a training step, print its summary, write result files."""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.satellites import load_satellite_object
from simcluster.base.units import format_seconds, parse_seconds
from simcluster.cli import common
from simcluster.cli.common import read_overrides
from simcluster.cli.terminal import show_progress_text
from simcluster.faults.descriptions import describe_faults
from simcluster.results.distribution import Distribution
from simcluster.results.result import Result
from simcluster.results.simulated_run import spans_of_ranks
from simcluster.scenario.effort_estimate import require_time_for_steps
from simcluster.scenario.scenario import Scenario, load
from simcluster.show.explanation import describe_distribution, explain_run
from simcluster.show.output_blocks import OutputBlocks, TextLines
from simcluster.show.plot_registry import load_plot
from simcluster.show.step_answer import describe_step
from simcluster.step.simulate import simulate
from simcluster.studies.whatif.free_ops import FreeOpsResult, count_free_steps, what_if_free

if TYPE_CHECKING:
    from simcluster.show.plot_registry import Figure

MAX_REPLICAS = 10_000
"""Maximum number of replicas that --until simulates."""

_TITLE_WIDTH = 100  # characters, of the narrowest picture


def run(args: argparse.Namespace) -> None:
    """Load the scenario, check the outputs, simulate, print and write the results."""
    begun = time.perf_counter()
    most = MAX_REPLICAS if args.until is not None else None
    most = most if args.replicas is None else args.replicas
    more = [("replicas", most)] if most is not None else []
    first = [("checkpoint.after", 0)] if args.checkpoint else []
    scenario = load(args.scenario, first + read_overrides(args, args.scenario) + more)
    if args.checkpoint:
        scenario = load_satellite_object("steps of a checkpoint")(scenario)
    window = None if args.window is None else _parse_window(args.window)
    ranks = common.parse_ranks(args.ranks, scenario.gpus)
    trace = _make_trace_writer(args, scenario) if args.trace or args.trace_ranks or args.trace_kernels else None
    if args.histogram and scenario.replicas < 2:
        raise InputError(f"--histogram {args.histogram}: there is only one replica; use more, as in --replicas 200")
    if args.explain or args.critical:
        require_time_for_steps(scenario, count_free_steps(scenario), "--explain" if args.explain else "--critical")
    distribution, planned = None, scenario
    if scenario.replicas > 1:
        result, planned, distribution, sweep_errors = load_satellite_object("replicas of a step")(scenario, args.until)
    else:
        result = simulate(scenario)
    free = what_if_free(result) if args.explain or args.critical else []
    verified = load_satellite_object("simulation of all ranks")(scenario) if args.verify else None

    has_costs = scenario.run or scenario.training.outer
    more, spread = load_satellite_object("costs per step")(result) if has_costs else ([], {})

    def blocks() -> OutputBlocks:
        found = [*describe_step(result), TextLines([verified.summary()] if verified else []), *more]
        if distribution:
            found += describe_distribution(distribution, sweep_errors())
        return [*found, *(explain_run(result, free) if args.explain else [])]

    common.print_answer(
        args, blocks, lambda: {**result.to_dict(), **_additional_results(free, distribution, verified), **spread}
    )
    if args.timeline:
        common.write_table(args.timeline, result.timeline)
    if trace:
        show_progress_text(f"writing {args.trace}")
        print(trace(result).summary(), file=sys.stderr if args.json == "-" else sys.stdout)
        sys.stderr.write(f"wrote {args.trace}\n")
    _draw_pictures(args, result, planned, free, distribution, window, ranks)
    if args.verbose:
        print(f"simulated in {time.perf_counter() - begun:.2f} s, {common.format_peak_memory()}", file=sys.stderr)
    if verified and verified.difference:
        sys.stderr.write(
            f"simcluster run: --verify: a simulation of all ranks differs, a bug in simcluster: {verified.difference}\n"
        )
        raise SystemExit(1)


def _make_trace_writer(args: argparse.Namespace, scenario: Scenario) -> Callable[[Result], Any]:
    if args.trace is None:
        if args.trace_ranks:
            raise InputError(f"--trace-ranks {args.trace_ranks} applies to a trace; name its file with --trace")
        raise InputError("--trace-kernels applies to a trace; name its file with --trace")
    if scenario.replicas > 1:
        raise InputError(
            f"--trace {args.trace}: a trace has one run, and this scenario has {scenario.replicas} replicas; "
            "use --replicas 1"
        )
    ranks = common.parse_ranks(args.trace_ranks, scenario.gpus, "--trace-ranks")
    return partial(
        load_satellite_object("trace of a result"),
        path=load_satellite_object("path of a trace")(args.trace),
        ranks=ranks,
        begins=args.trace_begins,
        kernels=args.trace_kernels,
    )


def _draw_pictures(
    args: argparse.Namespace,
    result: Result,
    planned: Scenario,
    free: Sequence[FreeOpsResult],
    distribution: Distribution | None,
    window: tuple[float, float] | None,
    ranks: list[int] | None,
) -> None:
    scenario = result.scenario
    common.draw_pictures(
        args,
        (args.links, lambda: load_plot("links")(result), lambda: result.link_table),
        (
            args.memory,
            lambda: load_plot("memory")(result, ranks=ranks, window=window),
            lambda: result.memory_table(ranks),
        ),
        (args.gantt, lambda: _draw_gantt(args, result, planned, window, ranks)),
        (args.critical, lambda: load_plot("critical_path")(result, free)),
        (args.overlap, lambda: load_plot("overlap")([(scenario.title, result)])),
        (args.levels, lambda: load_plot("link_levels")(result)),
        (args.roofline, lambda: load_plot("roofline")(result)),
        (args.histogram, lambda: load_plot("replicas")(distribution, title=scenario.title + _fault_title(scenario))),
    )


def _additional_results(
    free: Sequence[FreeOpsResult], distribution: Distribution | None, verified: Any
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    if free:
        found["step_time_if_free_s"] = {each.kind: each.step_time for each in free}
        found["longer_if_free"] = {each.kind: each.note for each in free if each.note}
    if distribution:
        found["step_time_distribution_s"] = distribution.to_dict()
    if verified:
        found["verified"] = verified.to_dict()
    return found


def _parse_window(text: str) -> tuple[float, float]:
    first, colon, last = text.partition(":")
    if not colon:
        raise InputError(f'--window {text!r}: give a start and an end, as in "1.2 s:1.3 s"')
    window = parse_seconds(first), parse_seconds(last)
    if not 0 <= window[0] < window[1]:
        raise InputError(
            f"--window {text!r}: the end must come after the start, and the start not before 0 s, as in "
            f"--window '1 ms:5 ms'"
        )
    return window


def _draw_gantt(
    args: argparse.Namespace,
    result: Result,
    planned: Scenario,
    window: tuple[float, float] | None,
    ranks: list[int] | None,
) -> Figure:
    timeline = result.timeline if ranks is None else spans_of_ranks(result, ranks).to_frame()
    title = f"{result.scenario.title}: {format_seconds(result.step_time)} per step{_fault_title(planned)}"
    shown = {"window": window, "ranks": ranks, "num_ranks": result.facts.ranks}
    return load_plot("gantt")(timeline, title=title, **shown, **common.picture_size_inches(args))


def _fault_title(scenario: Scenario) -> str:
    return "\n" + textwrap.fill(f"faults: {describe_faults(scenario.faults)}", _TITLE_WIDTH) if scenario.faults else ""
