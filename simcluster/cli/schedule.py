"""simcluster schedule: the order of a pipeline schedule as a grid, its bubble and its in-flight peak."""

from __future__ import annotations

import argparse
import math
import shutil
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from simcluster.cli.common import format_table, output_path, write_json
from simcluster.errors import InputError

if TYPE_CHECKING:
    from simcluster.schedules import Schedule, ScheduleTiming

_EXAMPLES = """\
examples:
  simcluster schedule 1f1b --stages 4 --microbatches 8
  simcluster schedule interleaved --stages 4 --microbatches 8 --chunks 2 --latency 0.5
  simcluster schedule gpipe --stages 8 --microbatches 32 --forward 100 --backward 210 --json -

Times are in one unit of your choice. F is the forward and B the whole backward of one microbatch through one chunk;
the latency lies between two stages and occupies neither of them (asynchronous send and receive).
"""

_MOST_ACTIONS = 1_000_000
_MOST_PRINTED_ACTIONS = 4_096
_MOST_COLUMNS = 4_000
_MOST_GRID_LINES = 100
_WIDTH_OF_A_FILE = 200


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "schedule",
        help="the order of a pipeline schedule as a grid, its bubble and its in-flight peak",
        description="Print a pipeline schedule: the order on each stage, the same in time, bubble and in-flight peak.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="the schedule, such as gpipe, 1f1b or interleaved")
    parser.add_argument("--stages", type=_count, required=True, metavar="P", help="pipeline ranks")
    parser.add_argument("--microbatches", type=_count, required=True, metavar="M", help="microbatches of one step")
    parser.add_argument("--chunks", type=_count, default=1, metavar="V", help="model chunks per stage (default 1)")
    parser.add_argument("--forward", type=_time, default=Fraction(1), metavar="F", help="time of one F (default 1)")
    parser.add_argument("--backward", type=_time, default=Fraction(2), metavar="B", help="time of one B (default 2)")
    parser.add_argument("--latency", type=_time, default=Fraction(0), metavar="C", help="between stages (default 0)")
    parser.add_argument(
        "--json", metavar="FILE", help="write the numbers as JSON; - for stdout, and nothing else there"
    )


def run(args: argparse.Namespace) -> int:
    """Print the schedule; InputError for an unknown name or counts that the schedule cannot have."""
    from simcluster.schedules import Costs, check, play, schedule_function

    make = schedule_function(args.name)
    if args.json not in (None, "-"):
        output_path(args.json)
    actions = 2 * args.stages * args.microbatches * args.chunks
    if actions > _MOST_ACTIONS:
        raise InputError(f"{actions:,} actions are too many; stages x microbatches x chunks may be up to "
                         f"{_MOST_ACTIONS // 2:,} here")  # fmt: skip
    if not args.forward + args.backward:
        raise InputError("--forward and --backward are both zero; give at least one of them a time")
    schedule = check(make(args.stages, args.microbatches, args.chunks))
    timing = play(schedule, Costs(F=args.forward, B=args.backward), args.latency)
    if args.json is not None:
        write_json(args.json, _document(args, schedule, timing))
    if args.json != "-":
        print("\n".join(_report(args, schedule, timing)))
    return 0


def _report(args: argparse.Namespace, schedule: Schedule, timing: ScheduleTiming[Fraction]) -> list[str]:
    chunks = f", {schedule.num_chunks} chunks per stage" if schedule.num_chunks > 1 else ""
    lines = [
        f"{schedule.name}: {schedule.num_stages} stages, {schedule.num_microbatches} microbatches{chunks}",
        f"assumed: F = {_number(args.forward)}, B = {_number(args.backward)} for one microbatch through one chunk, "
        f"latency {_number(args.latency)} between stages, all stages equal",
        "",
        *_order(schedule),
        "",
        *_time_grid(args, schedule, timing),
        "",
        *_numbers(args, schedule, timing),
        "",
    ]
    header = ("stage", "busy", "idle", "span", "peak in flight")
    columns = zip(timing.busy, timing.idle, timing.spans, timing.peak_in_flight, strict=True)
    rows = [
        (f"r{stage}", *(_number(time) for time in times), str(peak)) for stage, (*times, peak) in enumerate(columns)
    ]
    what = "microbatches" if schedule.num_chunks == 1 else f"chunks, each 1/{schedule.num_chunks} of a stage's layers"
    lines.append(format_table(header, rows))
    lines.append(f"(span: first start to last end on the stage; peak in flight: activations held at once, in {what})")
    if schedule.name == "interleaved" and schedule.num_chunks == 1:
        lines.append("note: with one chunk per stage nothing is interleaved; try --chunks 2")
    return lines


def _order(schedule: Schedule) -> list[str]:
    from simcluster.schedules.grid import order_lines

    actions = sum(map(len, schedule.rows))
    if actions > _MOST_PRINTED_ACTIONS:
        return [f"order: left out, {actions:,} actions; --json FILE has it"]
    example = "F0.1: forward of microbatch 0, chunk 1" if schedule.num_chunks > 1 else "F0: forward of microbatch 0"
    return [f"order ({example}; each stage runs its row strictly in order)", *order_lines(schedule)]


def _time_grid(args: argparse.Namespace, schedule: Schedule, timing: ScheduleTiming[Fraction]) -> list[str]:
    """The grid where a person can still read it, else a line that says why it is left out."""
    from simcluster.schedules.grid import common_unit, grid

    unit = common_unit((args.forward, args.backward, args.latency))
    if timing.makespan / unit <= _MOST_COLUMNS and sum(map(len, schedule.rows)) <= _MOST_PRINTED_ACTIONS:
        width = shutil.get_terminal_size((_WIDTH_OF_A_FILE, 24)).columns
        lines = grid(schedule, timing, unit=unit, width=width)
        if len(lines) <= _MOST_GRID_LINES:
            return [f"time (one column = {_number(unit)}, a dot is idle)", *lines]
    return ["time: left out, too large to read as text"]


def _numbers(args: argparse.Namespace, schedule: Schedule, timing: ScheduleTiming[Fraction]) -> list[str]:
    per_stage = schedule.num_microbatches * schedule.num_chunks
    ideal = per_stage * (args.forward + args.backward)
    return [
        f"makespan           {_number(timing.makespan)}",
        f"without bubble     {_number(ideal)}  (microbatches x chunks x (F + B))",
        f"bubble over total  {float(timing.bubble_over_total):.2%}  (idle / makespan, mean over stages)",
        f"bubble over ideal  {float(timing.bubble_over_ideal):.2%}  (idle / busy, mean over stages)",
    ]


def _document(args: argparse.Namespace, schedule: Schedule, timing: ScheduleTiming[Fraction]) -> dict[str, object]:
    """What --json writes: times in the unit of the arguments, actions as text."""
    return {
        "schedule": schedule.name,
        "stages": schedule.num_stages,
        "microbatches": schedule.num_microbatches,
        "chunks": schedule.num_chunks,
        "forward": float(args.forward),
        "backward": float(args.backward),
        "latency": float(args.latency),
        "makespan": float(timing.makespan),
        "bubble_over_total": float(timing.bubble_over_total),
        "bubble_over_ideal": float(timing.bubble_over_ideal),
        "busy": [float(time) for time in timing.busy],
        "idle": [float(time) for time in timing.idle],
        "spans": [float(time) for time in timing.spans],
        "peak_in_flight": list(timing.peak_in_flight),
        "rows": [" ".join(action.label(schedule.num_chunks) for action in row) for row in schedule.rows],
    }


def _number(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):.6g}"


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
