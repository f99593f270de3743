"""simcluster schedule: print, compare, draw, read and write pipeline schedules."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.cli import common
from simcluster.cli.schedule_report import comparison_blocks, schedule_json, schedule_text_blocks
from simcluster.documents.trusted_text import TrustedText, is_function_reference
from simcluster.scenario.schedule_files import is_csv, load_schedule_function, read_csv_schedule
from simcluster.schedules import SCHEDULES, Schedule, check_schedule, make_schedule, schedules_with
from simcluster.schedules.comparison import StageTimes, TimedSchedule, require_few_actions, time_schedule
from simcluster.schedules.interleaved import interleaved
from simcluster.schedules.torch_csv import to_csv, torch_can_run
from simcluster.schedules.zb_auto import OptimizedSchedule, optimize_schedule
from simcluster.show.plot_registry import load_plot

if TYPE_CHECKING:
    from simcluster.show.plot_registry import Figure


_GALLERY = (4, 8)


def run(args: argparse.Namespace) -> None:
    """Print the named schedules; raise InputError for an unknown name or invalid counts."""
    if not args.names and not args.gallery:
        raise InputError("NAME is required: give a schedule such as 1f1b, or all; or --gallery FILE for a page of all")
    if not args.names and (args.json or args.csv or args.plot):
        raise InputError("--json, --csv and --plot need a NAME, such as 1f1b or all; --gallery alone needs none")
    if args.csv and (len(args.names) > 1 or args.names == ["all"]):
        raise InputError("--csv writes one schedule, and several were named; name one")
    args.times = _read_times(args)
    if args.names:
        _print_schedules(args, *simulate_schedules(args.names, args))
    common.draw_pictures(args, (args.gallery, lambda: _draw_gallery(args)))


def _print_schedules(args: argparse.Namespace, shown: list[TimedSchedule], refused: list[tuple[str, str]]) -> None:
    one = len(shown) == 1 and args.names != ["all"]
    in_full = one and not args.table
    common.print_answer(
        args,
        lambda: schedule_text_blocks(shown[0]) if in_full else comparison_blocks(shown, refused, grids=not args.table),
        lambda: schedule_json(shown[0]) if one else {"schedules": [schedule_json(each) for each in shown]},
    )
    if args.csv:
        _write_csv(args.csv, shown[0].schedule)
    common.draw_pictures(args, (args.plot, lambda: load_plot("schedules")(shown, width=_figure_width(args, 14.0))))


def _read_times(args: argparse.Namespace) -> StageTimes:
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
        raise InputError("--backward B is the sum of --input I and --weight W; omit one of the three")
    if not args.forward + backward:
        raise InputError("--forward and --backward are both zero; set at least one of them")
    return StageTimes(args.forward, backward, input_, weight, args.latency, args.pair)


def _write_csv(name: Path, schedule: Schedule) -> None:
    common.write_text_atomic(name, to_csv(schedule))
    if not torch_can_run(schedule):
        print(
            f"note: {schedule.name} holds every model slice on two ranks; simcluster can read {name}, but torch "
            f"cannot, since it keeps each slice on one rank",
            file=sys.stderr,
        )


def _figure_width(args: argparse.Namespace, usual: float) -> float:
    width: float = common.picture_size_inches(args).get("width", usual)
    return max(width, 0.85 * usual)


def _draw_gallery(args: argparse.Namespace) -> Figure:
    counts = {"stages": args.stages or _GALLERY[0], "microbatches": args.microbatches or _GALLERY[1]}
    shown, _ = simulate_schedules(["all"], argparse.Namespace(**{**vars(args), **counts}))
    return load_plot("schedules")(shown, columns=2, width=_figure_width(args, 16.0))


# --- the schedules of a NAME: a built-in one, all of them, a CSV file, or your own function --------------------------


def simulate_schedules(names: list[str], args: argparse.Namespace) -> tuple[list[TimedSchedule], list[tuple[str, str]]]:
    """Simulate the named schedules; for "all", also return (name, reason) of invalid schedules.

    InputError if a schedule named explicitly is invalid, or if all are.
    """
    several = len(names) > 1 or names == ["all"]
    wanted = [(name, each) for name in names for each in (SCHEDULES if name == "all" else [name])]
    if several and args.chunks and not any(each in schedules_with("takes_chunks") for _, each in wanted):
        raise InputError(
            f"--chunks {args.chunks}: no such schedule takes chunks; use {', '.join(schedules_with('takes_chunks'))}"
        )
    shown: list[TimedSchedule] = []
    refused: list[tuple[str, str]] = []
    for name, each in wanted:
        try:
            made = _make_schedule(each, args, several=several)
            if isinstance(made, OptimizedSchedule):
                shown.append(replace(time_schedule(check_schedule(made.schedule), args.times), optimization=made))
            else:
                shown.append(time_schedule(made, args.times))
        except InputError as error:
            if name != "all":
                raise
            refused.append((each, str(error)))
    if not shown:
        raise InputError(f"no schedule allows these counts; first reason: {refused[0][1]}")
    return shown, refused


def _make_schedule(name: str, args: argparse.Namespace, *, several: bool) -> Schedule | OptimizedSchedule:
    if is_csv(name):
        return _read_csv(name, args)
    chunks = args.chunks or 1
    if several and not is_function_reference(name):
        chunks = (args.chunks or 2) if name in schedules_with("takes_chunks") else 1
    stages, microbatches = _require_counts(args, chunks)
    if is_function_reference(name):
        return make_schedule(load_schedule_function(TrustedText(name)), stages, microbatches, chunks)
    if name == "interleaved":
        return check_schedule(interleaved(stages, microbatches, chunks, group_size=args.group_size, pairs=args.pairs))
    if name == "zb-auto":
        return optimize_schedule(
            stages, microbatches, chunks, costs=args.times.pass_times(), latency=args.times.latency,
            memory_limit=args.memory_limit, goal=args.goal,
        )  # fmt: skip
    return check_schedule(make_schedule(name, stages, microbatches, chunks))


def _require_counts(args: argparse.Namespace, chunks: int) -> tuple[int, int]:
    stages, microbatches = args.stages, args.microbatches
    if stages is None or microbatches is None:
        missing = [name for name in ("stages", "microbatches") if getattr(args, name) is None]
        raise InputError(f"missing options: --{' and --'.join(missing)}; write them, as in --stages 4 --microbatches 8")
    require_few_actions(stages, microbatches, chunks)
    return stages, microbatches


def _read_csv(name: str, args: argparse.Namespace) -> Schedule:
    schedule, left_out = read_csv_schedule(name)
    for what, wanted in (("stages", args.stages), ("microbatches", args.microbatches)):
        has = getattr(schedule, f"num_{what}")
        if wanted not in (None, has):
            raise InputError(f"{name} has {has} {what}, but --{what} is {wanted}; omit --{what}")
    if left_out:
        counts = ", ".join(f"{count} {kind}" for kind, count in left_out.items())
        print(f"note: {name}: ignored {counts}: messages follow from the order, and sharding is not part of a schedule",
              file=sys.stderr)  # fmt: skip
    return schedule
