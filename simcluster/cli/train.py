"""simcluster train: play a scenario's run of weeks, say what comes of it, write what a program needs."""

from __future__ import annotations

import argparse
import sys
import time

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.scenario.scenario import load
from simcluster.show import plots
from simcluster.studies.long_run.train import train


def run(args: argparse.Namespace) -> None:
    """Load, check where results go, play, print, write."""
    begun = time.perf_counter()
    if args.played is not None and args.played < 1:
        raise InputError(f"--played {args.played}: play at least one run")
    scenario = load(args.scenario, common.overrides_of(args, args.scenario))
    training = train(scenario, played=args.played, workers=args.workers)
    common.answer(args, training.summary, training.to_dict)
    common.draw(
        (args.gantt, lambda: plots.weeks(training)),
        (args.fates, lambda: plots.fates({scenario.name: training})),
        (args.plot, lambda: plots.goodput(training)),
    )
    if args.log:
        common.write_table(args.log, training.log)
    if args.weeks:
        common.write_table(args.weeks, training.weeks)
    if args.verbose:
        states = len(training.states)
        print(
            f"{states} state{'s' * (states > 1)} and {training.played:,} runs in {time.perf_counter() - begun:.2f} s, "
            f"{common.peak_memory()}",
            file=sys.stderr,
        )
