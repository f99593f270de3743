"""``simcluster train``: simulate a scenario's long run, or compare several policies, and print the results."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.answers import build_text_blocks
from simcluster.cli.common import read_overrides
from simcluster.cli.sweep import ProgressBar
from simcluster.cli.terminal import show_progress_text
from simcluster.documents.overrides import parse_override, parse_vary_option
from simcluster.longrun.event_log import parse_column_names, read_event_log
from simcluster.longrun.studies.failure_replay import replay_failures, resolve_log_path
from simcluster.longrun.studies.policy_comparison import Policy, compare_policies
from simcluster.longrun.studies.training import StagedTraining, TrainingRun, train
from simcluster.scenario.key_paths import check_key_path
from simcluster.scenario.scenario import Scenario, load
from simcluster.show.plot_registry import load_plot
from simcluster.studies.variations import number_repeated_names

_OF_ONE = ("gantt", "power", "log", "weeks")
"""Output options for a single policy."""
_OF_SEVERAL = ("measure", "output")


def run(args: argparse.Namespace) -> None:
    """Simulate the long run of a scenario, or compare policies; print the results and write files."""
    if args.played is not None and args.played < 1:
        raise InputError(f"--played {args.played}: simulate at least one run")
    begun = time.perf_counter()
    scenario = load(args.scenario, [] if args.replay else read_overrides(args, args.scenario))
    several = not args.replay and bool(args.vary or args.against)
    refused: tuple[str, ...] = ("columns", "began")
    why = "applies only to a replayed log; add --replay LOG"
    if args.replay:
        refused, why = ("vary", "against", "executor", "store", *_OF_SEVERAL), "is not compatible with --replay"
    for options, reason in (
        (refused, why),
        (_OF_ONE if several else (),
         "is for one policy; with --vary or --against use --plot, --fates, --json and -o"),
        (() if several or args.replay else _OF_SEVERAL, "is for several policies: add --vary or --against"),
    ):  # fmt: skip
        if given := [option for option in options if getattr(args, option)]:
            raise InputError(f"--{given[0]} {reason}")
    if several:
        _run_policy_comparison(args, scenario)
    elif args.replay:
        log = read_event_log(resolve_log_path(args.replay), columns=parse_column_names(args.columns), began=args.began)
        found = replay_failures(scenario, log, dict(read_overrides(args, args.scenario)), played=args.played)
        found = replace(found, name=Path(args.replay).stem)
        common.print_answer(args, lambda: build_text_blocks(found), found.to_dict)
        _write_files(args, found.last_training, found.trainings_by_name)
    else:
        how = {"played": args.played, "workers": common.read_executor(args), "store": args.store}
        with show_progress(args) as bar:
            training = train(scenario, **how, progress=bar)
        common.print_answer(args, lambda: build_text_blocks(training), training.to_dict)
        _write_files(args, training, {scenario.name: training})
    if args.verbose:
        print(f"{time.perf_counter() - begun:.2f} s, {common.format_peak_memory()}", file=sys.stderr)


def _run_policy_comparison(args: argparse.Namespace, scenario: Scenario) -> None:
    policies = parse_policies(args, scenario)
    how = {"measure": args.measure or "goodput", "played": args.played}
    with show_progress(args) as bar:
        found = compare_policies(
            policies, **how, workers=common.read_executor(args), store=args.store, strict=False, progress=bar
        )
    common.print_answer(args, lambda: build_text_blocks(found), found.to_dict)
    stages = {
        name if run is stage else f"{name}, stage {number}": stage
        for name, run in found.runs.items()
        for number, stage in enumerate(run.stages if isinstance(run, StagedTraining) else [run], 1)
    }
    draw_fates, draw_policies = load_plot("lost_time"), load_plot("policies")
    common.draw_pictures(args, (args.fates, lambda: draw_fates(stages)), (args.plot, lambda: draw_policies(found)))
    if args.output:
        common.write_table(args.output, found.combined_table())


def _write_files(
    args: argparse.Namespace,
    training: TrainingRun | StagedTraining,
    compared: Mapping[str, TrainingRun | StagedTraining],
) -> None:
    title = ""
    if isinstance(training, StagedTraining):
        compared = {f"stage {number}": stage for number, stage in enumerate(training.stages, 1)}
        title = f"{training.scenario.name}: {training.goodput:.1%} of all GPU-hours was productive; by stage"
    common.draw_pictures(
        args,
        (args.gantt, lambda: load_plot("run_calendar")(training)),
        (args.fates, lambda: load_plot("lost_time")(compared, title)),
        (args.plot, lambda: load_plot("goodput")(training)),
        (args.power, lambda: load_plot("power")(training)),
    )
    for path, name in ((args.log, "log"), (args.weeks, "weeks")):
        if path:
            common.write_table(path, getattr(training, name))
    if args.verbose and isinstance(training, TrainingRun):
        states = len(training.states)
        print(f"{states} state{'s' * (states > 1)} and {training.played:,} runs", file=sys.stderr)


@contextmanager
def show_progress(args: argparse.Namespace) -> Iterator[ProgressBar]:
    """Show how many runs are finished and the remaining time; on Ctrl-C print how to resume."""
    bar = ProgressBar()
    try:
        yield bar
    except KeyboardInterrupt:
        show_progress_text()
        if args.store:
            print(
                f"{bar.done:,} of {bar.total:,} runs are saved in {args.store}; run the same command to resume",
                file=sys.stderr,
            )
        raise
    show_progress_text()


def parse_policies(args: argparse.Namespace, scenario: Scenario) -> dict[str, Policy]:
    """Return the policies to compare, by name: the scenario, each combination of --vary, each --against."""
    found: list[tuple[str, Policy]] = [(scenario.name, scenario)]
    grid = [parse_vary_option(text) for text in args.vary]
    for path, _ in grid:
        check_key_path(path)
    if grid:
        for values in product(*(values for _, values in grid)):
            changes = {path: value for (path, _), value in zip(grid, values, strict=True)}
            found.append((_name_policy(changes), changes))
    for text in args.against:
        if not text.strip():
            raise InputError("--against: the text is empty; write changes, as in 'run.spares.hot=8 run.short=shrink'")
        if "=" in text:
            changes = dict(_parse_changes(text))
            found.append((_name_policy(changes), changes))
        else:
            try:
                other = load(text, read_overrides(args))
            except InputError as problem:
                raise InputError(
                    f"--against {text!r}: {problem}; give a scenario, or changes such as 'run.spares.hot=8'"
                ) from None
            found.append((other.name, other))
    return dict(zip(number_repeated_names([name for name, _ in found]), (policy for _, policy in found), strict=True))


def _parse_changes(text: str) -> Iterator[tuple[str, Any]]:
    try:
        words = shlex.split(text)
    except ValueError as problem:
        raise InputError(f"--against {text!r}: {problem}; write e.g. 'run.spares.hot=8 run.short=shrink'") from None
    for word in words:
        if word.endswith("="):
            raise InputError(f"--against: {word!r} has no value; to remove a key, write {word}null")
        path, value = parse_override(word)
        check_key_path(path.removesuffix("+"))
        yield path, value


def _name_policy(changes: Mapping[str, Any]) -> str:
    shown = {path: str(value).lower() if isinstance(value, bool) else value for path, value in changes.items()}
    return ", ".join(
        f"{path.removeprefix('run.')} {'null' if value is None else value}" for path, value in shown.items()
    )
