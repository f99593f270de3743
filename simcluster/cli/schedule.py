"""simcluster schedule: pipeline schedules as grids, compared by bubble and activations, drawn, read and written."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from fractions import Fraction
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.cli import drawing
from simcluster.cli.common import answer, write_text
from simcluster.show import plots

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from simcluster.cli.schedule_names import Meant
    from simcluster.schedules import Schedule
    from simcluster.schedules.comparison import PlayedSchedule, StageTimes


_GALLERY = (4, 8)


def run(args: argparse.Namespace) -> None:
    """Print what was asked for; InputError for an unknown name or counts that a schedule cannot have."""
    from simcluster.cli.schedule_names import Meant, played

    if not args.names and not args.gallery:
        raise InputError("a NAME is required: a schedule such as 1f1b, or all; or --gallery FILE for a page of all")
    if not args.names and (args.json or args.csv or args.plot):
        raise InputError("--json, --csv and --plot need a NAME, such as 1f1b or all; --gallery alone needs none")
    if args.csv and (len(args.names) > 1 or args.names == ["all"]):
        raise InputError("--csv writes one schedule, and several were named; name one")
    meant = Meant(
        args.stages, args.microbatches, args.chunks, args.group_size, args.pairs, args.memory_limit, args.goal,
        _times(args),
    )  # fmt: skip
    if args.names:
        _answer(args, *played(args.names, meant))
    drawing.save((args.gallery, lambda: _gallery(args, meant)))


def _answer(args: argparse.Namespace, shown: list[PlayedSchedule], refused: list[tuple[str, str]]) -> None:
    """Text, JSON, CSV and picture of the schedules that were named."""
    from simcluster.cli.schedule_report import comparison, document, report

    one = len(shown) == 1 and args.names != ["all"]
    in_full = one and not args.table
    answer(
        args,
        lambda: "\n".join(report(shown[0]) if in_full else comparison(shown, refused, grids=not args.table)),
        lambda: document(shown[0]) if one else {"schedules": [document(each) for each in shown]},
    )
    if args.csv:
        _write_csv(args.csv, shown[0].schedule)
    drawing.save((args.plot, lambda: plots.schedules(shown)))


def _times(args: argparse.Namespace) -> StageTimes:
    """F, B, I and W from those of them that were given."""
    from simcluster.schedules.comparison import StageTimes

    backward, input_, weight = args.backward, args.input, args.weight
    if backward is None:
        input_ = Fraction(1) if input_ is None else input_
        weight = Fraction(1) if weight is None else weight
        backward = input_ + weight
    elif input_ is None:
        input_ = backward / 2 if weight is None else backward - weight
    if weight is None:
        weight = backward - input_
    if input_ + weight != backward or input_ < 0 or weight < 0:
        raise InputError("--backward B is the sum of --input I and --weight W; leave one of the three out")
    if not args.forward + backward:
        raise InputError("--forward and --backward are both zero; give at least one of them a time")
    return StageTimes(args.forward, backward, input_, weight, args.latency, args.pair)


def _write_csv(name: Path, schedule: Schedule) -> None:
    from simcluster.schedules.torch_csv import to_csv, torch_can_run

    write_text(name, to_csv(schedule))
    if not torch_can_run(schedule):
        print(
            f"note: {schedule.name} holds every slice of the model on two ranks; simcluster reads {name}, torch, which "
            f"keeps a slice on one rank, does not",
            file=sys.stderr,
        )


def _gallery(args: argparse.Namespace, meant: Meant) -> Figure:
    """A page of all schedules that take the counts, whatever else was named."""
    from simcluster.cli.schedule_names import played
    from simcluster.show.schedule_plot import plot_gallery

    stages, microbatches = args.stages or _GALLERY[0], args.microbatches or _GALLERY[1]
    everything = dataclasses.replace(meant, stages=stages, microbatches=microbatches)
    return plot_gallery(played(["all"], everything)[0])
