"""The profiles of a job's ranks, read and worked through on several processes, one file each at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.base.processes import Crew
from simcluster.interop.kineto.events import RankProfile, StreamOp, read_profile
from simcluster.interop.kineto.labels import Labels
from simcluster.interop.kineto.match import own_steps
from simcluster.interop.kineto.rank_step import RankStep, rank_step

Read = Callable[[int, int], object]
"""Told after every file how many of how many are read."""

_SMALL = 4e6
"""Bytes of JSON that are read sooner than processes are begun."""
_PACKED = 12
"""Bytes of JSON in one of a gzipped file."""


class WorkedRank(NamedTuple):
    """A profile without what the host did, and the rank's part of every step, by the step's number."""

    profile: RankProfile
    steps: dict[int, RankStep]


def read_ranks(
    files: Sequence[Path], steps: Sequence[int] | None, workers: int, progress: Read = lambda done, total: None
) -> list[WorkedRank]:
    """Every file, in the order given, worked through as far as a rank by itself goes.

    Raises the InputError of the first file in that order which cannot be read, whatever the number of workers.
    """
    size = sum(file.stat().st_size * (_PACKED if file.name.endswith(".gz") else 1) for file in files)
    workers = 1 if size < _SMALL else min(workers, len(files))
    found: list[WorkedRank | InputError] = []
    if workers == 1:
        for done, file in enumerate(files, 1):
            found.append(_tried(steps, file))
            if isinstance(found[-1], InputError):
                break
            progress(done, len(files))
    else:
        found = _side_by_side(files, partial(_packed, steps), workers, progress)
    read = []
    for each in found:
        if isinstance(each, InputError):
            raise each
        read.append(each)
    return read


def _tried(steps: Sequence[int] | None, file: Path) -> WorkedRank | InputError:
    try:
        return worked(read_profile(file), steps)
    except InputError as problem:
        return problem


@collector_off()
def worked(profile: RankProfile, steps: Sequence[int] | None) -> WorkedRank:
    """A rank's part of these steps (left out: of all), as far as it has them."""
    labels = Labels(profile)
    there = own_steps(profile)
    parts = {
        number: rank_step(profile, labels, number, ops)
        for number, ops in there.items()
        if steps is None or number in steps
    }
    # what only ``rank_step`` needs; where there were some is asked later
    return WorkedRank(
        replace(
            profile, operators=profile.operators[:1], annotations=[], syncs=[], waits=profile.waits[:1], wait_calls=[]
        ),
        parts,
    )


_Packed = tuple[WorkedRank, list[tuple[object, ...]]] | InputError


def _packed(steps: Sequence[int] | None, file: Path) -> _Packed:
    """As ``_tried``, with the ops as columns, which pass between processes four times as fast."""
    found = _tried(steps, file)
    if isinstance(found, InputError):
        return found
    return WorkedRank(replace(found.profile, ops=[]), found.steps), list(zip(*found.profile.ops, strict=True))


@collector_off()
def _unpacked(answer: _Packed) -> WorkedRank | InputError:
    if isinstance(answer, InputError):
        return answer
    found, columns = answer
    found.profile.ops += map(StreamOp._make, zip(*columns, strict=True))
    return found


def _side_by_side(
    files: Sequence[Path], call: Callable[[Path], _Packed], workers: int, progress: Read
) -> list[WorkedRank | InputError]:
    crew, at, begun = Crew(call, workers), dict[int, int](), 0
    found: dict[int, WorkedRank | InputError] = {}
    done = False
    try:
        while len(found) < len(files):
            for member in range(workers):
                if member not in at and begun < len(files):
                    crew.begin(member, files[begun])
                    at[member], begun = begun, begun + 1
            for member, answer in crew.finished(list(at)):
                number = at.pop(member)
                found[number] = _unpacked(answer) if answer is not None else _ended(files[number])
                progress(len(found), len(files))
        done = True
    finally:
        crew.close(now=not done)
    return [found[number] for number in range(len(files))]


def _ended(file: Path) -> InputError:
    return InputError(f"cannot read {file}: the process that read it was ended (memory?); read fewer ranks or steps")
