"""simcluster schedule: pipeline schedules as grids, compared by bubble and activations, drawn, read and written."""

from __future__ import annotations

import argparse
import dataclasses
import math
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

HELP = "pipeline schedules as grids: their bubbles and in-flight peaks, compared and drawn"
DESCRIPTION = "Print pipeline schedules: the order on each stage, the same in time, bubble and in-flight peak."
EXAMPLES = """examples:
  simcluster schedule 1f1b --stages 4 --microbatches 8
  simcluster schedule 1f1b zb-h1 zb-v dualpipe-v --stages 4 --microbatches 8 --plot schedules.png
  simcluster schedule all --stages 8 --microbatches 32 --table --forward 100 --input 110 --weight 90 --latency 5
  simcluster schedule zb-auto --stages 4 --microbatches 8 --memory-limit 6 --csv mine.csv
  simcluster schedule mine.csv my_schedules.py:my_schedule --stages 4 --microbatches 8
  simcluster schedule --gallery schedules.png

NAME is a schedule's name, "all", a CSV file of torch.distributed.pipelining, or FILE.py:FUNCTION of one's own, called
as FUNCTION(stages, microbatches, chunks).  Times are in one unit of your choice, for one microbatch through one stage's
share of the model, so that schedules with other chunks do the same work; the latency lies between two stages and
occupies neither of them (asynchronous send and receive).
"""

_GALLERY = (4, 8)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="a schedule, such as 1f1b or zb-v; several are compared"
    )
    parser.add_argument("--stages", type=_count, metavar="P", help="pipeline ranks")
    parser.add_argument("--microbatches", type=_count, metavar="M", help="microbatches of one step")
    parser.add_argument(
        "--chunks", type=_count, metavar="V", help="model chunks per stage, where it is open (default 1; compared: 2)"
    )
    parser.add_argument("--forward", type=_time, default=Fraction(1), metavar="F", help="time of F (default 1)")
    parser.add_argument("--backward", type=_time, metavar="B", help="time of the whole B (default I + W)")
    parser.add_argument("--input", type=_time, metavar="I", help="time of I, the input gradient (default B / 2, or 1)")
    parser.add_argument("--weight", type=_time, metavar="W", help="time of W, the weight gradient (default B - I)")
    parser.add_argument("--pair", type=_time, metavar="FB", help="time of a fused pair [F|B] (default F + B)")
    parser.add_argument("--latency", type=_time, default=Fraction(0), metavar="C", help="between stages (default 0)")
    parser.add_argument(
        "--group-size", type=_count, metavar="G", help="microbatches of a group of interleaved (default P)"
    )
    parser.add_argument("--pairs", action="store_true", help="interleaved: F and B in turn are fused pairs [F|B]")
    parser.add_argument("--memory-limit", type=_count, metavar="N", help="microbatches alive on a stage, for zb-auto")
    parser.add_argument(
        "--goal", choices=("span", "step"), default="span",
        help="zb-auto: make the longest span of a stage short (default), or one step whose optimizer waits for all",
    )  # fmt: skip
    parser.add_argument("--table", action="store_true", help="only the table of numbers, without the grids in time")
    parser.add_argument("--json", metavar="FILE", help="write the numbers; - for stdout, and nothing else there")
    parser.add_argument("--csv", metavar="FILE", help="write the one schedule as torch.distributed.pipelining reads it")
    parser.add_argument("--plot", metavar="FILE", help="draw the schedules under each other (.png, .svg or .pdf)")
    parser.add_argument(
        "--gallery", metavar="FILE", help="draw all schedules on one page (default 4 stages, 8 microbatches)"
    )


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


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:20]) <= 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _time(text: str) -> Fraction:
    """A number exactly as written: 0.1 is one tenth."""
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not (size == 0 or 1e-12 <= size <= 1e12):  # also keeps Fraction("1e999999999") from being built
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; write a number without unit, 0 or between 1e-12 and 1e12: all times of this "
            f"command are in one unit of your choice"
        )
    return Fraction(text) if size else Fraction(0)
