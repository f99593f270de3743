"""simcluster schedule: pipeline schedules as grids, compared by bubble and activations, drawn, read and written."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.cli.common import output_path, write_json, write_text

if TYPE_CHECKING:
    from simcluster.cli.schedule_names import Meant
    from simcluster.schedules import Schedule
    from simcluster.schedules.comparison import PlayedSchedule, StageTimes


_GALLERY = (4, 8)


def run(args: argparse.Namespace) -> int:
    """Print what was asked for; InputError for an unknown name or counts that a schedule cannot have."""
    from simcluster.cli.schedule_names import Meant, played

    if not args.names and not args.gallery:
        raise InputError("a NAME is required: a schedule such as 1f1b, or all; or --gallery FILE for a page of all")
    _check_files(args)
    meant = Meant(
        args.stages, args.microbatches, args.chunks, args.group_size, args.pairs, args.memory_limit, args.goal,
        _times(args),
    )  # fmt: skip
    if args.names:
        _answer(args, *played(args.names, meant))
    if args.gallery:
        _draw_gallery(args, meant)
    return 0


def _answer(args: argparse.Namespace, shown: list[PlayedSchedule], refused: list[tuple[str, str]]) -> None:
    """Text, JSON, CSV and picture of the schedules that were named."""
    from simcluster.cli.schedule_report import comparison, document, report

    one = len(shown) == 1 and args.names != ["all"]
    if args.json is not None:
        write_json(args.json, document(shown[0]) if one else {"schedules": [document(each) for each in shown]})
    if args.json != "-":
        in_full = one and not args.table
        print("\n".join(report(shown[0]) if in_full else comparison(shown, refused, grids=not args.table)))
    if args.csv:
        _write_csv(args.csv, shown[0].schedule)
    if args.plot:
        from simcluster.show.gantt import save_figure
        from simcluster.show.schedule_plot import plot_schedules

        save_figure(plot_schedules(shown), Path(args.plot))


def _check_files(args: argparse.Namespace) -> None:
    """Refuse what cannot be written before the work is done."""
    from simcluster.cli.drawing import figure_path

    if not args.names and (args.json or args.csv or args.plot):
        raise InputError("--json, --csv and --plot need a NAME, such as 1f1b or all; --gallery alone needs none")
    for name in filter(None, (args.plot, args.gallery)):
        figure_path(name)
    if args.csv:
        output_path(args.csv)
        if len(args.names) > 1 or args.names == ["all"]:
            raise InputError("--csv writes one schedule, and several were named; name one")


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


def _write_csv(name: str, schedule: Schedule) -> None:
    from simcluster.schedules.torch_csv import to_csv, torch_can_run

    write_text(output_path(name), to_csv(schedule))
    if not torch_can_run(schedule):
        print(
            f"note: {schedule.name} holds every slice of the model on two ranks; simcluster reads {name}, torch, which "
            f"keeps a slice on one rank, does not",
            file=sys.stderr,
        )


def _draw_gallery(args: argparse.Namespace, meant: Meant) -> None:
    """A page of all schedules that take the counts, whatever else was named."""
    from simcluster.cli.schedule_names import played
    from simcluster.show.gantt import save_figure
    from simcluster.show.schedule_plot import plot_gallery

    stages, microbatches = args.stages or _GALLERY[0], args.microbatches or _GALLERY[1]
    everything = dataclasses.replace(meant, stages=stages, microbatches=microbatches)
    save_figure(plot_gallery(played(["all"], everything)[0]), Path(args.gallery))
