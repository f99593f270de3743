"""Loader of profiled jobs: reads one profile per rank, matches collectives across ranks, and aligns clocks."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from simcluster.base.errors import InputError
from simcluster.base.gc_pause import pause_gc
from simcluster.base.processes import multiprocessing_context
from simcluster.base.units import format_seconds
from simcluster.documents.input_files import missing_file_hint
from simcluster.interop.kineto import collective_matching as matching
from simcluster.interop.kineto.chrome_trace import PROFILE_SUFFIXES
from simcluster.interop.kineto.collective_matching import MatchedOp
from simcluster.interop.kineto.nsight import NSIGHT_SUFFIXES, read_nsight_exports
from simcluster.interop.kineto.profile_reader import read_profile
from simcluster.interop.kineto.profiled_job import ProfiledJob, ProfiledStep, build_profiled_step
from simcluster.interop.kineto.rank_profile import HostPhaseLookup, RankProfile, StreamOp
from simcluster.interop.kineto.rank_step import ProfiledRankStep, build_rank_step
from simcluster.interop.replay.trace_checks import require_steps

ReadProgress = Callable[[int, int], object]
"""Called after every file with the number of files read and the total."""

_SMALL_BYTES = 4e6
"""Bytes of JSON that are read faster than processes start."""
_GZIP_RATIO = 12
"""Bytes of JSON per byte of a gzipped file."""


class RankSteps(NamedTuple):
    """A rank's profile without its host events, plus the rank's work in each step."""

    profile: RankProfile
    steps: dict[int, ProfiledRankStep]


def is_profile(path: str | Path) -> bool:
    """Return whether a path may be a profile: a Kineto JSON file, an Nsight Systems file, or a folder."""
    return Path(path).is_dir() or str(path).endswith((*PROFILE_SUFFIXES, *NSIGHT_SUFFIXES))


REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
_HEAD_BYTES = 1 << 20
"""Bytes within which a profile names its events; a simulation's result has other keys."""


def is_kernel_trace(path: str | Path) -> bool:
    """Return whether a path holds kernel traces: PyTorch profiles or Nsight Systems exports.

    Raises InputError for a missing folder, and for an Nsight Systems report that was not exported.
    """
    if str(path).endswith("/") and not Path(path).exists():
        raise InputError(f"cannot read {path}: there is no such file or folder{missing_file_hint(Path(path))}")
    path = Path(path)
    if path.name.endswith(REPORT_SUFFIXES):
        raise InputError(
            f"{path} is an Nsight Systems report; export it to SQLite first: nsys export --type sqlite {path}"
        )
    if path.is_dir():
        suffixes = (*PROFILE_SUFFIXES, *NSIGHT_SUFFIXES, *REPORT_SUFFIXES)
        return any(each.name.endswith(suffixes) for each in path.iterdir())
    if path.suffix != ".json":
        return path.name.endswith((*PROFILE_SUFFIXES, *NSIGHT_SUFFIXES))
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return b'"traceEvents"' in head or (head.lstrip().startswith(b"[") and b'"ph"' in head)


def load_profiles(
    path: str | Path, steps: Sequence[int] | None = None, *, workers: int = 1,
    progress: ReadProgress = lambda done, total: None,
) -> ProfiledJob:  # fmt: skip
    """Load a profiled job from a folder with one file per rank, or from a single file.

    ``notes`` of the job list repairs and assumptions. ``workers`` processes read; the result does not depend on their
    number. Exports of Nsight Systems may hold several ranks per file. Raises InputError, naming file and event, for
    profiles that cannot be replayed.
    """
    notes: list[str] = []
    files = _find_profile_files(Path(path))
    if files[0].name.endswith(NSIGHT_SUFFIXES):
        read = [_split_into_steps(profile, steps) for profile in read_nsight_exports(files, notes)]
    else:
        read = _read_profiles(files, steps, workers, progress)
    profiles = _check_and_sort_ranks([each.profile for each in read], notes)
    parts = {each.profile.rank: each.steps for each in read}
    with pause_gc():
        return _build_job(profiles, parts, steps, Path(path).name.partition(".")[0] or "profiles", notes)


def _find_profile_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"cannot read {path}: there is no such file or folder{missing_file_hint(path, '.json')}")
    found, exports = (
        sorted(file for file in path.iterdir() if file.name.endswith(endings))
        for endings in (PROFILE_SUFFIXES, NSIGHT_SUFFIXES)
    )
    if found and exports:
        raise InputError(
            f"folder {path} has profiles of PyTorch ({found[0].name}) and exports of Nsight Systems "
            f"({exports[0].name}); keep only one of the two"
        )
    if not found and not exports:
        raise InputError(
            f"folder {path} has no profiles: files of PyTorch's profiler end in .json or .json.gz, exports of Nsight "
            "Systems in .sqlite; name the folder that has them"
        )
    return found or exports


_PackedSteps = tuple[RankSteps, list[tuple[object, ...]]]


def _read_profiles(
    files: Sequence[Path], steps: Sequence[int] | None, workers: int, progress: ReadProgress
) -> list[RankSteps]:
    """Read all profile files in parallel; return the ranks in file order.

    Raises the InputError of the first file that cannot be read, whatever the number of workers.
    """
    size = sum(file.stat().st_size * (_GZIP_RATIO if file.name.endswith(".gz") else 1) for file in files)
    workers = 1 if size < _SMALL_BYTES else min(workers, len(files))
    pool = ProcessPoolExecutor(workers, multiprocessing_context(), _ignore_interrupts) if workers > 1 else None
    answers: Iterable[_PackedSteps] = ((_split_into_steps(read_profile(file), steps), []) for file in files)
    if pool:
        answers = pool.map(partial(_read_as_columns, steps), files)
    read = []
    try:
        with pause_gc():
            for done, (found, ops) in enumerate(answers, 1):
                found.profile.ops += map(StreamOp._make, zip(*ops, strict=True))
                read.append(found)
                progress(done, len(files))
    except BrokenProcessPool:
        raise InputError(
            f"cannot read {files[len(read)]}: a process that read profiles was killed (out of memory?); "
            "read fewer ranks or steps"
        ) from None
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
    return read


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts all processes; the parent ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _read_as_columns(steps: Sequence[int] | None, file: Path) -> _PackedSteps:
    """Read a profile and return its ops by column, a format that worker processes return four times as fast."""
    found = _split_into_steps(read_profile(file), steps)
    return RankSteps(replace(found.profile, ops=[]), found.steps), list(zip(*found.profile.ops, strict=True))


@pause_gc()
def _split_into_steps(profile: RankProfile, steps: Sequence[int] | None) -> RankSteps:
    labels = HostPhaseLookup(profile)
    parts = {
        number: build_rank_step(profile, labels, number, ops)
        for number, ops in matching.group_ops_by_step(profile).items()
        if steps is None or number in steps
    }
    # drop what only ``rank_step`` needs; of some lists an item stays, since later code asks whether they were empty
    kept = replace(
        profile, operators=profile.operators[:1], annotations=[], syncs=[], waits=profile.waits[:1], wait_calls=[]
    )
    return RankSteps(kept, parts)


def _check_and_sort_ranks(profiles: list[RankProfile], notes: list[str]) -> list[RankProfile]:
    found: dict[int, RankProfile] = {}
    for profile in profiles:
        if profile.rank < 0:
            if len(profiles) > 1:
                raise InputError(
                    f"{profile.file} does not state its rank (distributedInfo.rank); name it as in rank0.json"
                )
            profile.rank = 0
            notes.append(f"{profile.file} does not state its rank: assumed to be rank 0")
        if profile.rank in found:
            raise InputError(
                f"{found[profile.rank].file} and {profile.file} are both of rank {profile.rank}; keep one file per "
                "rank, or name exports by their ranks, as in rank0.sqlite"
            )
        found[profile.rank] = profile
    profiles = [found[rank] for rank in sorted(found)]
    bare = next((profile for profile in profiles if not profile.on_device), None)
    if bare is not None and any(profile.on_device for profile in profiles):
        raise InputError(
            f"{bare.file} (rank {bare.rank}) has no kernels, but other ranks have: record CUDA on all ranks"
        )
    for profile in profiles:
        if not profile.ops and not profile.operators:
            raise InputError(f"{profile.file} (rank {profile.rank}) has neither kernels nor operators; record it again")
    return profiles


def _build_job(
    profiles: Sequence[RankProfile], parts: Mapping[int, Mapping[int, ProfiledRankStep]], steps: Sequence[int] | None,
    name: str, notes: list[str],
) -> ProfiledJob:  # fmt: skip
    ranks = [profile.rank for profile in profiles]
    members = {rank for profile in profiles for _, own in profile.groups.by_name.values() for rank in own}
    members |= {rank for profile in profiles for op in profile.ops if op.comm for rank in op.comm.ranks}
    if missing := sorted(members - set(ranks)):
        names = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        notes.append(
            f"{len(missing)} of {len(members)} ranks have no profile ({names}): waiting for them in collectives is "
            "unknown and counts as transfer"
        )
    by_step = matching.find_common_steps(profiles, notes)
    if steps is not None:
        require_steps(name, steps, by_step)
        by_step = {step: ops for step, ops in by_step.items() if step in steps}
    matched = _match_collectives_by_step(by_step, notes)
    origin = {profile.rank: (profile.origin - profiles[0].origin) * 1e-9 for profile in profiles}
    shared = []
    for step, meet in matched.items():
        for each in meet:
            met = {rank: by_step[step][rank][place] for rank, place in each}
            shared.append({rank: (op.start + origin[rank], op.end + origin[rank]) for rank, op in met.items()})
    clocks = matching.align_clocks(ranks, {profile.rank: profile.host for profile in profiles}, shared)
    notes += clocks.notes
    shift = {rank: origin[rank] + offset for rank, offset in clocks.by_rank.items()}
    graphs = tuple(
        build_profiled_step(
            step, {n: parts[n][step] for n in ranks}, by_step[step], meet, shift, on_device=profiles[0].on_device,
        )
        for step, meet in matched.items()
    )  # fmt: skip
    _append_assumption_notes(profiles, graphs, notes)
    return ProfiledJob(name, graphs, tuple(ranks), tuple(notes))


def _match_collectives_by_step(
    by_step: dict[int, dict[int, list[StreamOp]]], notes: list[str]
) -> dict[int, list[list[MatchedOp]]]:
    found: dict[int, list[list[MatchedOp]]] = {}
    for step, ops in by_step.items():
        try:
            found[step] = matching.match_collectives(ops)
        except matching.UnmatchedCollectiveError as problem:
            if len(by_step) == 1 or step in [*by_step][1:-1]:
                raise InputError(f"step {step}: {problem}") from None
            notes.append(f"step {step} is skipped as truncated: {problem}")
    if not found:
        raise InputError(f"no step has collectives that match across ranks; {notes[-1]}")
    return found


def _append_assumption_notes(profiles: Sequence[RankProfile], graphs: Sequence[ProfiledStep], notes: list[str]) -> None:
    ops = [op for profile in profiles for op in profile.ops]
    if assumed := sum(profile.groups.assumed_calls for profile in profiles):
        notes.append(
            f"{assumed} collectives do not state their process group: they are matched by order, as calls of one group"
        )
    if alone := [op for op in ops if op.comm and op.comm.group_size != 1 and not op.comm.has_known_members]:
        notes.append(
            f"{len(alone)} messages do not state their ranks (the first: {alone[0].name[:40]}, event "
            f"{alone[0].event}): each takes its recorded time, including the wait for the other rank"
        )
    if not profiles[0].on_device:
        notes.append(
            "profiles of CPUs: operators count as compute; pauses of the host in which a collective ended count "
            "as waits for that collective"
        )
    elif not all(profile.waits for profile in profiles) and len({op.stream for op in ops}) > 1:
        notes.append(
            "which streams waited for each other is inferred from launches, cudaStreamWaitEvent calls and pauses; "
            "set _ExperimentalConfig(enable_cuda_sync_events=True) to record it"
        )
    if profiles[0].on_device and any(op.launch_start != op.launch_start for op in ops):
        notes.append("some kernels have no launch in the profile: their launches are assumed to delay nothing")
    left = sum(sum(graph.removed_gap_seconds.values()) for graph in graphs) / (len(graphs) * len(profiles))
    if left > 0:
        notes.append(f"unexplained stream gaps removed: {format_seconds(left)} per rank and step, summed over streams")
