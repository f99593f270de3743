"""simcluster plan: search for the best layouts of a job, and show progress on stderr."""

from __future__ import annotations

import argparse
import sys
import time

from simcluster.base.errors import InputError
from simcluster.base.processes import count_cores
from simcluster.base.units import format_seconds
from simcluster.cli import common, terminal
from simcluster.cli.common import read_overrides, write_table, write_text_atomic
from simcluster.cli.sweep import ROWS
from simcluster.cli.terminal import add_elapsed_time, catch_stopping_signals, show_progress_text, signal_exit_status
from simcluster.documents.overrides import parse_vary_option
from simcluster.scenario.scenario import Scenario, load
from simcluster.show.plan_answer import describe_plan, layout_name
from simcluster.show.plot_registry import load_plot
from simcluster.show.yaml_text import yaml_text
from simcluster.studies.search.evaluation import SearchState
from simcluster.studies.search.plan import PlanResult, plan

_REPORT_INTERVAL = 0.25  # seconds
_PHASE_TEXTS = {
    "bounds": "bounding layouts",
    "layouts": "simulating layouts",
    "less memory free": "checking layouts outside the headroom",
    "less memory": "simulating layouts with less memory",
    "accounts": "computing the best layouts' results",
}
_ENDLESS_SEARCH = 4 * 3600.0  # seconds left above which the search is not expected to end
_LINE_INTERVAL = 1.0  # seconds between lines about better layouts


class SearchProgressReporter:
    """Reporter of a layout search's progress: on the progress line, or as lines if stderr is not a terminal."""

    def __init__(self) -> None:
        self._looked = self._line = time.monotonic()
        self._best: object = None

    def report(self, state: SearchState) -> None:
        """Show the state of the search, at most a few times per second."""
        now, news = time.monotonic(), _progress_line_key(state) != self._best
        if now - self._looked < _REPORT_INTERVAL and not news:
            return
        self._looked = now
        show_progress_text(progress_text(state))
        if news and now - self._line >= _LINE_INTERVAL and not sys.stderr.isatty():
            self._line, self._best = now, _progress_line_key(state)
            print(add_elapsed_time(progress_text(state)), file=sys.stderr, flush=True)


def progress_text(state: SearchState) -> str:
    """Return the progress of a layout search as one line.

    Examples: simulating layouts, best so far 16.39 s, gap 3.2 %, 12 simulated, at most 40 left, about 25 s left: tp 4,
    ...; before the first simulation: bounding layouts, the first layout takes at least 16.39 s. The layout comes last,
    so that a narrow terminal cuts it first.
    """
    proven = state.gap == 0.0
    parts = ["simulating the next-best layouts" if proven and state.phase == "layouts" else _PHASE_TEXTS[state.phase]]
    if state.layout is None and state.first_layout is not None:
        parts.append(f"the first layout takes at least {format_seconds(state.first_layout_bound)}")
    endless = state.seconds_left is not None and state.seconds_left > _ENDLESS_SEARCH
    if state.layout is not None:
        best = "the best" if proven else "best found" if endless else "best so far"
        parts.append(f"{best} {format_seconds(state.step_time)}{' (yours)' if state.is_own_layout else ''}")
    if state.gap is not None:
        within = f"within {state.gap:.1%} of the bound" if endless else f"proven gap {state.gap:.1%}"
        parts.append("proven" if proven else within)
    parts.append(f"{state.num_simulated:,} simulated")
    if state.num_left:
        parts.append(f"at most {state.num_left:,} left")
    if state.seconds_left is not None and not endless:
        left = state.seconds_left
        rest = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min" if left < 5400 else f"{left / 3600:.1f} h"
        parts.append(f"about {rest} left")
    layout = state.layout or state.first_layout
    return ", ".join(parts) + (f": {layout_name(layout)}" if layout else "")


def _progress_line_key(state: SearchState) -> object:
    """Return a key that changes when a new progress line is due: first layout, better layout, proof."""
    return state.first_layout, state.layout, state.gap == 0.0


def run(args: argparse.Namespace) -> None:
    """Search for the best layouts and print them.

    After a signal print the best so far and exit with the signal's status.
    """
    scenario = load(args.scenario, read_overrides(args))
    with catch_stopping_signals() as signals:
        try:
            found = plan(
                scenario,
                _parse_gpus(args.gpus),
                objective=args.objective,
                max_memory=args.max_memory,
                headroom=args.headroom,
                price=args.price,
                top=args.top,
                vary=dict(parse_vary_option(text) for text in args.vary),
                front=args.pareto is not None,
                near_misses=args.near_misses,
                time_limit=args.time_limit,
                executor=_parse_processes(args.executor),
                store=args.output.with_name(args.output.name + ROWS) if args.output else None,
                progress=SearchProgressReporter().report,
            )
        except KeyboardInterrupt:
            show_progress_text()
            print("stopped before any layout was simulated", file=sys.stderr)
            raise SystemExit(signal_exit_status(signals)) from None
    show_progress_text()
    _print_plan(args, scenario, found)
    if found.stopped == "interrupt":
        raise SystemExit(signal_exit_status(signals))


def _print_plan(args: argparse.Namespace, scenario: Scenario, plan: PlanResult) -> None:
    if args.output:
        write_table(args.output, plan.table)
    common.print_answer(args, lambda: describe_plan(plan, terminal.terminal_width()), plan.to_dict)
    common.draw_pictures(args, (args.pareto, lambda: load_plot("pareto")(plan, scenario.title)))
    if args.write:
        write_text_atomic(args.write, yaml_text(plan.scenario.document()))


def _parse_gpus(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--gpus {text!r} must be a whole number, or several with commas, as in 512,1024")
    return [int(part) for part in parts]


def _parse_processes(text: str | None) -> int:
    if text is None:
        return count_cores()
    if not text.isdecimal() or not int(text):
        raise InputError(f"--executor {text!r} must be a number of processes, at least 1")
    return int(text)
