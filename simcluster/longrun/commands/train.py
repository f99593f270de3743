"""simcluster train: play a scenario's run of weeks, or policies side by side, and say what comes of it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.overrides import overrides_of
from simcluster.cli.sweep import Bar
from simcluster.cli.terminal import progress
from simcluster.longrun.commands.policies_output import policies_of, text_of
from simcluster.longrun.eventlog import read_log
from simcluster.longrun.logrows import columns_of
from simcluster.longrun.studies.comparing import compare_policies
from simcluster.longrun.studies.replays import log_path, replay_failures
from simcluster.longrun.studies.train import StagedTraining, TrainingRun, train
from simcluster.scenario.scenario import Scenario, load
from simcluster.show.pictures import picture

_OF_ONE = ("gantt", "power", "log", "weeks")
"""What is written of one policy alone."""
_OF_SEVERAL = ("measure", "output")
_OF_MANY_RUNS = ("vary", "against", "executor", "store", *_OF_SEVERAL)


def run(args: argparse.Namespace) -> None:
    """Load, check where results go, play, print, write."""
    if args.played is not None and args.played < 1:
        raise InputError(f"--played {args.played}: play at least one run")
    begun = time.perf_counter()
    scenario = load(args.scenario, [] if args.replay else overrides_of(args, args.scenario))
    if not args.replay:
        _refuse(args, ("columns", "began"), "is of a log: --replay LOG")
    if args.replay:
        _replay(args, scenario)
    elif args.vary or args.against:
        _compare(args, scenario)
    else:
        _train(args, scenario)
    if args.verbose:
        print(f"{time.perf_counter() - begun:.2f} s, {common.peak_memory()}", file=sys.stderr)


def _refuse(args: argparse.Namespace, options: Sequence[str], why: str) -> None:
    """InputError for the first of these that is given."""
    for option in options:
        if getattr(args, option):
            raise InputError(f"--{option} {why}")


def _train(args: argparse.Namespace, scenario: Scenario) -> None:
    _refuse(args, _OF_SEVERAL, "is of several policies: name them by --vary or --against")
    with show_progress(args) as bar:
        training = train(scenario, played=args.played, workers=common.workers_of(args), store=args.store, progress=bar)
    common.answer(args, training.summary, training.to_dict)
    if isinstance(training, StagedTraining):
        _write_stages(args, training)
    else:
        _write(args, training, {scenario.name: training})


def _replay(args: argparse.Namespace, scenario: Scenario) -> None:
    """The log as it was, and with what the command line changes."""
    _refuse(args, _OF_MANY_RUNS, "is not of a log's replay")
    log = read_log(log_path(args.replay), columns=columns_of(args.columns), began=args.began)
    changes = overrides_of(args, args.scenario)
    found = replay_failures(scenario, log, dict(changes), played=args.played)
    found = replace(found, name=Path(args.replay).stem)
    common.answer(args, found.summary, found.to_dict)
    _write(args, found.last, found.compared)


def _compare(args: argparse.Namespace, scenario: Scenario) -> None:
    _refuse(args, _OF_ONE, "is of one policy; with --vary or --against there are --plot, --fates, --json and -o")
    policies = policies_of(args, scenario)
    with show_progress(args) as bar:
        found = compare_policies(
            policies,
            measure=args.measure or "goodput",
            played=args.played,
            workers=common.workers_of(args),
            store=args.store,
            strict=False,
            progress=bar,
        )
    common.answer(args, lambda: text_of(found), found.to_dict)
    common.draw(
        args,
        (args.fates, lambda: picture("fates")(dict(_stages_of(found.runs)))),
        (args.plot, lambda: picture("policies")(found)),
    )
    if args.output:
        common.write_table(args.output, found.frame())


def _stages_of(runs: Mapping[str, TrainingRun | StagedTraining]) -> Iterator[tuple[str, TrainingRun]]:
    """Runs by name, those of stages stage by stage."""
    for name, run in runs.items():
        if isinstance(run, StagedTraining):
            yield from ((f"{name}, stage {number}", stage) for number, stage in enumerate(run.stages, 1))
        else:
            yield name, run


def _write(args: argparse.Namespace, training: TrainingRun, compared: dict[str, TrainingRun]) -> None:
    """Pictures and tables, and what was played."""
    common.draw(
        args,
        (args.gantt, lambda: picture("weeks")(training)),
        (args.fates, lambda: picture("fates")(compared)),
        (args.plot, lambda: picture("goodput")(training)),
        (args.power, lambda: picture("power")(training)),
    )
    _write_tables(args, training)
    if args.verbose:
        states = len(training.states)
        print(f"{states} state{'s' * (states > 1)} and {training.played:,} runs", file=sys.stderr)


def _write_stages(args: argparse.Namespace, training: StagedTraining) -> None:
    """Pictures and tables of a run of stages: rows and bars by stage."""
    stages = {f"stage {number}": stage for number, stage in enumerate(training.stages, 1)}
    title = f"{training.scenario.name}: {training.goodput:.1%} of all GPU-hours were productive; by stage"
    common.draw(
        args,
        (args.gantt, lambda: picture("weeks")(training)),
        (args.fates, lambda: picture("fates")(stages, title)),
        (args.plot, lambda: picture("goodput")(training)),
        (args.power, lambda: picture("power")(training)),
    )
    _write_tables(args, training)


def _write_tables(args: argparse.Namespace, training: TrainingRun | StagedTraining) -> None:
    if args.log:
        common.write_table(args.log, training.log)
    if args.weeks:
        common.write_table(args.weeks, training.weeks)


@contextmanager
def show_progress(args: argparse.Namespace) -> Iterator[Bar]:
    """Show the runs done of all and the time left; on Ctrl-C print how to resume."""
    bar = Bar()
    try:
        yield bar
    except KeyboardInterrupt:
        progress()
        if args.store:
            print(
                f"{bar.done:,} of {bar.total:,} runs are safe in {args.store}; run the same command to go on",
                file=sys.stderr,
            )
        raise
    progress()
