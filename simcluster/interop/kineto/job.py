"""Profiles of all ranks as one job that can be played, measured and asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from simcluster.base.arrays import Floats, Ints
from simcluster.base.errors import InputError
from simcluster.base.gc_paused import collector_off
from simcluster.base.runs import opens
from simcluster.base.units import format_seconds
from simcluster.documents.given_files import why_missing
from simcluster.interop.kineto.chrome import ENDINGS
from simcluster.interop.kineto.clocks import Ends, align
from simcluster.interop.kineto.events import RankProfile, StreamOp
from simcluster.interop.kineto.match import MatchedOp, UnmatchedError, meetings, steps_of
from simcluster.interop.kineto.rank_step import RankStep
from simcluster.interop.kineto.reading import Read, read_ranks, worked
from simcluster.interop.kineto.rebuild import Profiled, rebuild
from simcluster.interop.nsight.reading import exports_in, read_exports
from simcluster.interop.recorded.checks import require_steps
from simcluster.interop.recorded.graph import StepGraph, is_communication
from simcluster.interop.recorded.recorded import Recorded

NSIGHT = (".sqlite", ".sqlite3")
"""How exports of Nsight Systems end."""


@dataclass(frozen=True)
class ProfiledJob(Recorded):
    """A job recorded by PyTorch's profiler; worker w is rank ``ranks[w]``, and there is one stage.

    What is typical of an op: the mean over all ranks and steps of the op of the same name and place; of a collective
    the median over those of the same kind, group and place.
    """

    @property
    def steps_of_ranks(self) -> tuple[Profiled, ...]:
        """The steps, with what their ops were."""
        return tuple(graph for graph in self.graphs if isinstance(graph, Profiled))

    @cached_property
    def _typical(self) -> dict[int, Floats]:
        """The typical seconds of every op, by the identity of its step."""
        graphs, words = self.steps_of_ranks, dict[tuple[str, str], int]()
        named = [_words_of(graph, words) for graph in graphs]
        number = np.concatenate([_number_of_its_word(graph, of) for graph, of in zip(graphs, named, strict=True)])
        word, seconds = np.concatenate(named), np.concatenate([graph.seconds[:, 0] for graph in graphs])
        order = np.lexsort((number, word))  # stable: of equals the steps and ranks in their order
        first = np.flatnonzero(opens(word[order]) | opens(number[order]))
        shared = [is_communication(optype) for optype, _ in words]
        typical = np.empty(len(word))
        for pool in np.split(order, first[1:]):
            own = seconds[pool]
            typical[pool] = np.median(own) if shared[word[pool[0]]] else own.mean()
        parts = np.split(typical, np.cumsum([len(graph) for graph in graphs])[:-1])
        return {id(graph): part for graph, part in zip(graphs, parts, strict=True)}

    def typical_of(self, graph: StepGraph) -> Floats:
        """The typical seconds of every op of a graph, as a column."""
        return self._typical[id(graph)][:, None]


def _words_of(graph: Profiled, words: dict[tuple[str, str], int]) -> Ints:
    """Of every op the number of its type and (of what is no communication) name among ``words``, which grow."""
    named = {optype: not is_communication(optype) for optype in graph.kinds[0]}
    pairs = zip(graph.optype, graph.names, strict=True)
    return np.array([words.setdefault((kind, name if named[kind] else ""), len(words)) for kind, name in pairs])


def _number_of_its_word(graph: Profiled, word: Ints) -> Ints:
    """The number of every op among its rank's with the same word: alike on ranks that do the same."""
    order = np.lexsort((word, graph.worker))
    begins = np.diff(graph.worker[order], prepend=-1) | np.diff(word[order], prepend=-1)
    places = np.arange(len(order))
    found = np.empty(len(order), dtype=np.int64)
    found[order] = places - np.maximum.accumulate(np.where(begins != 0, places, 0))
    return found


def is_profile(path: str | Path) -> bool:
    """Is that a trace of PyTorch's profiler (.json, .json.gz), an export of Nsight Systems (.sqlite), or a folder?"""
    return Path(path).is_dir() or str(path).endswith((*ENDINGS, *NSIGHT))


def load_profiles(
    path: str | Path,
    steps: Sequence[int] | None = None,
    *,
    workers: int = 1,
    progress: Read = lambda done, total: None,
) -> ProfiledJob:
    """A job (or these steps of it) from a folder with one file a rank, or one rank's file; ``notes`` say what was
    repaired or assumed.  So many ``workers`` (processes) read, and ``progress`` is told how many files of how many they
    have read; the job is the same for any number of them.  Exports of Nsight Systems may have several ranks a file.

    Raises InputError, naming file and event, for profiles that cannot be replayed.
    """
    notes: list[str] = []
    files = _files(Path(path))
    if files[0].name.endswith(NSIGHT):
        read = [worked(profile, steps) for profile in read_exports(files, notes)]
    else:
        read = read_ranks(files, steps, workers, progress)
    profiles = _ranked([each.profile for each in read], notes)
    parts = {each.profile.rank: each.steps for each in read}
    return _job_of(profiles, parts, steps, Path(path).name.partition(".")[0] or "profiles", notes)


def job_of(profiles: Sequence[RankProfile], steps: Sequence[int] | None, *, name: str, notes: list[str]) -> ProfiledJob:
    """As ``load_profiles``, of profiles in memory, by rank."""
    read = [worked(each, steps) for each in profiles]
    parts = {each.profile.rank: each.steps for each in read}
    return _job_of([each.profile for each in read], parts, steps, name, notes)


@collector_off()
def _job_of(
    profiles: Sequence[RankProfile],
    parts: Mapping[int, Mapping[int, RankStep]],
    steps: Sequence[int] | None,
    name: str,
    notes: list[str],
) -> ProfiledJob:
    """A job of profiles and what each rank did in each step, by the rank."""
    _check(profiles, notes)
    by_step = steps_of(profiles, notes)
    by_step = _chosen(by_step, steps, name)
    matched = _matched(by_step, notes)
    shift = _shift(profiles, by_step, matched, notes)
    graphs = []
    for step, meet in matched.items():
        own = {profile.rank: parts[profile.rank][step] for profile in profiles}
        graphs.append(rebuild(step, own, by_step[step], meet, shift, on_device=profiles[0].on_device))
    _note_collectives(profiles, notes)
    _note_assumptions(profiles, graphs, notes)
    return ProfiledJob(name, tuple(graphs), tuple(profile.rank for profile in profiles), tuple(notes))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"cannot read {path}: there is no such file or folder{why_missing(path, '.json')}")
    found = sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS))
    exports = exports_in(path, NSIGHT)
    if found and exports:
        raise InputError(
            f"folder {path} has profiles of PyTorch ({found[0].name}) and exports of Nsight Systems "
            f"({exports[0].name}); keep one kind"
        )
    if not found and not exports:
        raise InputError(
            f"folder {path} has no profiles: files of PyTorch's profiler end in .json or .json.gz, exports of Nsight "
            "Systems in .sqlite; name the folder that has them"
        )
    return found or exports


def _ranked(profiles: list[RankProfile], notes: list[str]) -> list[RankProfile]:
    """By rank; a single file may lack its rank."""
    for profile in profiles:
        if profile.rank < 0:
            if len(profiles) > 1:
                raise InputError(
                    f"{profile.file} does not say which rank it is (distributedInfo.rank); name it rank0.json, say"
                )
            profile.rank = 0
            notes.append(f"{profile.file} does not say which rank it is: taken for rank 0")
    found: dict[int, RankProfile] = {}
    for profile in profiles:
        if profile.rank in found:
            raise InputError(
                f"{found[profile.rank].file} and {profile.file} are both of rank {profile.rank}; keep one file a rank"
            )
        found[profile.rank] = profile
    return [found[rank] for rank in sorted(found)]


def _check(profiles: Sequence[RankProfile], notes: list[str]) -> None:
    kinds = {profile.on_device for profile in profiles}
    if len(kinds) > 1:
        bare = next(profile for profile in profiles if not profile.on_device)
        raise InputError(
            f"{bare.file} (rank {bare.rank}) has no kernels and other ranks have: record CUDA on all ranks"
        )
    for profile in profiles:
        if not profile.ops and not profile.operators:
            raise InputError(
                f"{profile.file} (rank {profile.rank}) has neither kernels nor operators: nothing to replay"
            )
    there = {profile.rank for profile in profiles}
    members = {rank for profile in profiles for _, ranks in profile.groups.known.values() for rank in ranks}
    members |= {rank for profile in profiles for op in profile.ops if op.comm for rank in op.comm.ranks}
    missing = sorted(members - there)
    if missing:
        names = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        notes.append(
            f"{len(missing)} of {len(members)} ranks have no profile ({names}): whether collectives waited for them is "
            "not known, and counts as transfer"
        )


def _chosen(
    by_step: dict[int, dict[int, list[StreamOp]]], steps: Sequence[int] | None, name: str
) -> dict[int, dict[int, list[StreamOp]]]:
    if steps is None:
        return by_step
    require_steps(name, steps, by_step)
    return {step: ops for step, ops in by_step.items() if step in steps}


def _matched(by_step: dict[int, dict[int, list[StreamOp]]], notes: list[str]) -> dict[int, list[list[MatchedOp]]]:
    """The collectives of every step; the first and the last may be cut, and are then left out with a note."""
    found: dict[int, list[list[MatchedOp]]] = {}
    steps = list(by_step)
    for step, ops in by_step.items():
        try:
            found[step] = meetings(ops)
        except UnmatchedError as problem:
            if len(steps) == 1 or step not in (steps[0], steps[-1]):
                raise InputError(f"step {step}: {problem}") from None
            notes.append(f"step {step} is left out, as if it had been cut: {problem}")
    if not found:
        raise InputError(f"no step has collectives that match; {notes[-1]}")
    return found


def _shift(
    profiles: Sequence[RankProfile],
    by_step: dict[int, dict[int, list[StreamOp]]],
    matched: dict[int, list[list[MatchedOp]]],
    notes: list[str],
) -> dict[int, float]:
    """What to add to each rank's times so that all are on the first rank's clock, from its first event."""
    origin = {profile.rank: (profile.origin - profiles[0].origin) * 1e-9 for profile in profiles}
    shared: list[Ends] = []
    for step, meet in matched.items():
        for members in meet:
            ops = {rank: by_step[step][rank][place] for rank, place in members}
            shared.append({rank: (op.start + origin[rank], op.end + origin[rank]) for rank, op in ops.items()})
    clocks = align([profile.rank for profile in profiles], {p.rank: p.host for p in profiles}, shared)
    notes += clocks.notes
    return {rank: origin[rank] + offset for rank, offset in clocks.offset.items()}


def _note_collectives(profiles: Sequence[RankProfile], notes: list[str]) -> None:
    """What collectives do not say of themselves."""
    assumed = sum(profile.groups.assumed for profile in profiles)
    if assumed:
        notes.append(
            f"{assumed} collectives do not say their process group: all are taken for one "
            "group, and matched by their order"
        )
    alone = [op for p in profiles for op in p.ops if op.comm and op.comm.size != 1 and not op.comm.meets]
    if alone:
        notes.append(
            f"{len(alone)} messages do not say between which ranks they go (the first: {alone[0].name[:40]}, event "
            f"{alone[0].event}): each is taken to last as recorded, with its wait for the other side"
        )


def _note_assumptions(profiles: Sequence[RankProfile], graphs: Sequence[Profiled], notes: list[str]) -> None:
    if not profiles[0].on_device:
        notes.append(
            "profiles of CPUs: operators are the work; pauses of the host in which a collective ended are taken for "
            "waits for it"
        )
    elif not all(profile.waits for profile in profiles) and len({op.stream for p in profiles for op in p.ops}) > 1:
        notes.append(
            "which streams waited for each other is inferred from launches, cudaStreamWaitEvent calls and pauses; "
            "record with _ExperimentalConfig(enable_cuda_sync_events=True) to have it said"
        )
    if profiles[0].on_device and any(op.launched != op.launched for p in profiles for op in p.ops):
        notes.append("some kernels have no launch in the profile: they are taken to have been launched in time")
    left = sum(sum(graph.left_out.values()) for graph in graphs) / (len(graphs) * len(profiles))
    if left > 0:
        notes.append(
            f"pauses of streams that nothing explains are left out: {format_seconds(left)} per rank and step, all of "
            "its streams together"
        )
