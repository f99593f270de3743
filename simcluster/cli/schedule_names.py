"""What a NAME of ``simcluster schedule`` means: a shipped schedule, all of them, a CSV file, or one's own function."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from simcluster.base.errors import InputError
from simcluster.importers.schedule_files import function_in, is_csv, is_function, schedule_in_csv
from simcluster.schedules import SCHEDULES, Schedule, check, make_schedule, schedules_with
from simcluster.schedules.comparison import PlayedSchedule, StageTimes, play_stages
from simcluster.schedules.interleaved import interleaved
from simcluster.schedules.zb_auto import Automatic, Goal, automatic

_MOST_ACTIONS = 1_000_000


@dataclass(frozen=True, slots=True)
class Meant:
    """The counts and times of the command line; None where they were left out."""

    stages: int | None
    microbatches: int | None
    chunks: int | None
    group_size: int | None
    pairs: bool
    memory_limit: int | None
    goal: Goal
    times: StageTimes


def played(names: list[str], meant: Meant) -> tuple[list[PlayedSchedule], list[tuple[str, str]]]:
    """The schedules of these names, played; and of "all" those that refuse the counts, with their reasons.

    InputError where a name of its own is refused, and where all are.
    """
    several = len(names) > 1 or names == ["all"]
    wanted = [(name, each) for name in names for each in (SCHEDULES if name == "all" else [name])]
    if several and meant.chunks and not any(each in schedules_with("takes_chunks") for _, each in wanted):
        raise InputError(
            f"--chunks {meant.chunks}: none of these takes chunks; {', '.join(schedules_with('takes_chunks'))} do"
        )
    shown: list[PlayedSchedule] = []
    refused: list[tuple[str, str]] = []
    for name, each in wanted:
        try:
            made = _schedule(each, meant, several=several)
            if isinstance(made, Automatic):
                shown.append(replace(play_stages(check(made.schedule), meant.times), automatic=made))
            else:
                shown.append(play_stages(made, meant.times))
        except InputError as error:
            if name != "all":
                raise
            refused.append((each, str(error)))
    if not shown:
        raise InputError(f"no schedule takes these counts; the first says: {refused[0][1]}")
    return shown, refused


def _schedule(name: str, meant: Meant, *, several: bool) -> Schedule | Automatic:
    """The checked schedule behind a name (zb-auto with what is known about it); of several, chunks only where taken."""
    if is_csv(name):
        return _from_csv_file(name, meant)
    chunks = meant.chunks or 1
    if several and not is_function(name):
        chunks = (meant.chunks or 2) if name in schedules_with("takes_chunks") else 1
    stages, microbatches = _counts(meant, chunks)
    if is_function(name):
        return make_schedule(function_in(name), stages, microbatches, chunks)
    if name == "interleaved":
        return check(interleaved(stages, microbatches, chunks, group_size=meant.group_size, pairs=meant.pairs))
    if name == "zb-auto":
        return automatic(
            stages, microbatches, chunks, costs=meant.times.times(), latency=meant.times.latency,
            memory_limit=meant.memory_limit, goal=meant.goal,
        )  # fmt: skip
    return check(make_schedule(name, stages, microbatches, chunks))


def _counts(meant: Meant, chunks: int) -> tuple[int, int]:
    """Stages and microbatches, both given and not too many."""
    stages, microbatches = meant.stages, meant.microbatches
    if stages is None or microbatches is None:
        missing = [name for name in ("stages", "microbatches") if getattr(meant, name) is None]
        raise InputError(f"--{' and --'.join(missing)} required, as in --stages 4 --microbatches 8")
    actions = 2 * stages * microbatches * chunks
    if actions > _MOST_ACTIONS:
        raise InputError(f"{actions:,} actions are too many; stages x microbatches x chunks may be up to "
                         f"{_MOST_ACTIONS // 2:,} here")  # fmt: skip
    return stages, microbatches


def _from_csv_file(name: str, meant: Meant) -> Schedule:
    """A schedule in torch's format; says on stderr which actions it left out."""
    schedule, left_out = schedule_in_csv(name)
    for what, wanted in (("stages", meant.stages), ("microbatches", meant.microbatches)):
        has = getattr(schedule, f"num_{what}")
        if wanted not in (None, has):
            raise InputError(f"{name} has {has} {what}, and --{what} is {wanted}; leave --{what} out, or change it")
    if left_out:
        counts = ", ".join(f"{count} {kind}" for kind, count in left_out.items())
        print(f"note: {name}: left out {counts}: messages follow from the order, sharding is no part of it",
              file=sys.stderr)  # fmt: skip
    return schedule
