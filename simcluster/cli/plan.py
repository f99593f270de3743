"""simcluster plan: search for the best layouts of a job, with progress on stderr."""

from __future__ import annotations

import argparse
import sys
import time

from simcluster.base.errors import InputError
from simcluster.base.processes import count_cores
from simcluster.base.units import format_seconds
from simcluster.cli import common
from simcluster.cli.common import read_overrides, write_table, write_text
from simcluster.cli.sweep import ROWS
from simcluster.cli.terminal import add_elapsed_time, exit_status, set_progress, stopping_signals, terminal_width
from simcluster.documents.overrides import expand_vary
from simcluster.scenario.scenario import Scenario, load
from simcluster.show.pictures import picture
from simcluster.show.plan_answer import describe_plan, layout_name
from simcluster.show.yaml_text import yaml_text
from simcluster.studies.search.evaluation import SearchState
from simcluster.studies.search.plan import Found, plan

_REPORT_INTERVAL = 0.25  # seconds
_PHASE_TEXTS = {
    "bounds": "bounding layouts",
    "layouts": "simulating layouts",
    "less memory free": "checking layouts outside the headroom",
    "less memory": "simulating layouts that hold less",
    "accounts": "accounting for the best",
}
_ENDLESS_SEARCH = 4 * 3600.0  # seconds left above which the search is not expected to end
_LINE_INTERVAL = 1.0  # seconds between lines about better layouts


class SearchProgress:
    """Reporter of a search's progress: on the progress line, or as lines if stderr is not a terminal."""

    def __init__(self) -> None:
        self._looked = self._line = time.monotonic()
        self._best: object = None

    def report(self, state: SearchState) -> None:
        """Report the state of the search, at most a few times per second."""
        now, news = time.monotonic(), _news_key(state) != self._best
        if now - self._looked < _REPORT_INTERVAL and not news:
            return
        self._looked = now
        set_progress(progress_text(state))
        if news and now - self._line >= _LINE_INTERVAL and not sys.stderr.isatty():
            self._line, self._best = now, _news_key(state)
            print(add_elapsed_time(progress_text(state)), file=sys.stderr, flush=True)


def progress_text(state: SearchState) -> str:
    """Describe the progress of a search on one line.

    Examples: simulating layouts, best so far 16.39 s, gap 3.2 %, 12 simulated, at most 40 left, about 25 s left: tp 4,
    ...; before the first simulation: bounding layouts, the first takes at least 16.39 s. The layout comes last, so that
    a narrow terminal cuts it first.
    """
    proven = state.gap == 0.0
    parts = ["simulating the next best" if proven and state.phase == "layouts" else _PHASE_TEXTS[state.phase]]
    if state.layout is None and state.first is not None:
        parts.append(f"the first takes at least {format_seconds(state.first_time)}")
    endless = state.seconds_left is not None and state.seconds_left > _ENDLESS_SEARCH
    if state.layout is not None:
        best = "the best" if proven else "best found" if endless else "best so far"
        parts.append(f"{best} {format_seconds(state.step_time)}{' (yours)' if state.own else ''}")
    if state.gap is not None:
        within = f"within {state.gap:.1%} of the bound" if endless else f"proven gap {state.gap:.1%}"
        parts.append("proven" if proven else within)
    parts.append(f"{state.played:,} simulated")
    if state.left:
        parts.append(f"at most {state.left:,} left")
    if state.seconds_left is not None and not endless:
        left = state.seconds_left
        rest = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min" if left < 5400 else f"{left / 3600:.1f} h"
        parts.append(f"about {rest} left")
    layout = state.layout or state.first
    return ", ".join(parts) + (f": {layout_name(layout)}" if layout else "")


def _news_key(state: SearchState) -> object:
    """Return the part of a search's state whose change is worth a new line: first layout, best, proof."""
    return state.first, state.layout, state.gap == 0.0


def run(args: argparse.Namespace) -> None:
    """Search for the best layouts and print them.

    After a signal print the best so far and exit with the signal's status.
    """
    scenario = load(args.scenario, read_overrides(args))
    with stopping_signals() as signals:
        try:
            found = plan(
                scenario,
                _parse_gpus(args.gpus),
                objective=args.objective,
                max_memory=args.max_memory,
                headroom=args.headroom,
                price=args.price,
                top=args.top,
                vary=dict(expand_vary(text) for text in args.vary),
                front=args.pareto is not None,
                near_misses=args.near_misses,
                time_limit=args.time_limit,
                executor=_parse_processes(args.executor),
                store=args.output.with_name(args.output.name + ROWS) if args.output else None,
                progress=SearchProgress().report,
            )
        except KeyboardInterrupt:
            set_progress()
            print("stopped before any layout was simulated", file=sys.stderr)
            raise SystemExit(exit_status(signals)) from None
    set_progress()
    _print_plan(args, scenario, found)
    if found.stopped == "interrupt":
        raise SystemExit(exit_status(signals))


def _print_plan(args: argparse.Namespace, scenario: Scenario, found: Found) -> None:
    if args.output:
        write_table(args.output, found.table)
    common.print_answer(args, lambda: describe_plan(found, terminal_width()), found.to_dict)
    common.draw_pictures(args, (args.pareto, lambda: picture("pareto")(found, scenario.title)))
    if args.write:
        write_text(args.write, yaml_text(found.scenario.document()))


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
        raise InputError(f"--executor {text!r} must be a number of processes, from 1")
    return int(text)
