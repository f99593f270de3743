"""simcluster train: play a scenario's run of weeks, say what comes of it, write what a program needs."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.longrun.eventlog import read_log
from simcluster.longrun.logrows import columns_of
from simcluster.scenario.scenario import Scenario, load
from simcluster.show import plots
from simcluster.studies.long_run.replays import log_path, replay_failures
from simcluster.studies.long_run.train import TrainingRun, train
from simcluster.studies.long_run.train_stages import train_stages

_OF_ONE = ("gantt", "fates", "plot", "power", "log", "weeks")


def run(args: argparse.Namespace) -> None:
    """Load, check where results go, play, print, write."""
    begun = time.perf_counter()
    if args.played is not None and args.played < 1:
        raise InputError(f"--played {args.played}: play at least one run")
    if args.replay:
        _replay(args, begun)
        return
    if args.columns or args.began:
        raise InputError("--columns and --began are of a log: --replay LOG")
    scenario = load(args.scenario, common.overrides_of(args, args.scenario))
    if scenario.run is not None and scenario.run.stages:
        _stages(args, scenario)
        return
    training = train(scenario, played=args.played, workers=args.workers)
    common.answer(args, training.summary, training.to_dict)
    _write(args, training, {scenario.name: training})
    if args.verbose:
        _verbose(training, begun)


def _replay(args: argparse.Namespace, begun: float) -> None:
    """The log as it was, and with what the command line changes."""
    log = read_log(log_path(args.replay), columns=columns_of(args.columns), began=args.began)
    changes = common.overrides_of(args, args.scenario)
    found = replay_failures(load(args.scenario), log, dict(changes), played=args.played)
    found = replace(found, name=Path(args.replay).stem)
    common.answer(args, found.summary, found.to_dict)
    _write(args, found.last, found.compared)
    if args.verbose:
        _verbose(found.last, begun)


def _write(args: argparse.Namespace, training: TrainingRun, compared: dict[str, TrainingRun]) -> None:
    """Pictures and tables."""
    common.draw(
        (args.gantt, lambda: plots.weeks(training)),
        (args.fates, lambda: plots.fates(compared)),
        (args.plot, lambda: plots.goodput(training)),
        (args.power, lambda: plots.power(training)),
    )
    if args.log:
        common.write_table(args.log, training.log)
    if args.weeks:
        common.write_table(args.weeks, training.weeks)


def _verbose(training: TrainingRun, begun: float) -> None:
    states = len(training.states)
    print(
        f"{states} state{'s' * (states > 1)} and {training.played:,} runs in {time.perf_counter() - begun:.2f} s, "
        f"{common.peak_memory()}",
        file=sys.stderr,
    )


def _stages(args: argparse.Namespace, scenario: Scenario) -> None:
    """A run of stages: text and JSON; pictures and tables are those of a run without."""
    given = [name for name in _OF_ONE if getattr(args, name)]
    if given:
        raise InputError(f"--{given[0]} is of a run without stages; --set run.stages=null leaves them out")
    training = train_stages(scenario, played=args.played, workers=args.workers)
    common.answer(args, training.summary, training.to_dict)
