"""A step of profiled ranks as a graph: streams in order, launches by the host, waits, collectives that meet.

Lanes of a rank: "main" (its host: all threads that launch work, in one order) and one for each stream.  On a GPU an op
waits for its launch; on a CPU the host is what computes.  Where PyTorch recorded no events between streams, waits are
inferred (``waits``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simcluster.interop.kineto.events import RankProfile, StreamOp
from simcluster.interop.kineto.host import WAIT, doings_of
from simcluster.interop.kineto.labels import OTHER, Label, Labels
from simcluster.interop.kineto.match import MatchedOp
from simcluster.interop.kineto.waits import waited_for
from simcluster.interop.recorded.graph import COPY, HOST, MAIN, GraphMaker, StepGraph

GAP = 10e-6
"""Seconds between two kernels that nothing explains and that are counted with the second: drain and launch."""


@dataclass(frozen=True)
class Profiled(StepGraph):
    """A step with what its ops were: ``source[op]`` the profile's op (None for the host's own work), ``labels`` what
    part of the model each is of.  ``offset`` is when the step began in the aligned clock; ``left_out`` the seconds of
    gaps by rank that nothing explains, which a replay leaves out."""

    source: tuple[StreamOp | None, ...]
    labels: tuple[Label, ...]
    names: tuple[str, ...]
    offset: float
    left_out: dict[int, float]
    on_device: bool


@dataclass
class _Maker(GraphMaker):
    """The graph in the making, with what was recorded; times in seconds of the step."""

    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    source: list[StreamOp | None] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add_recorded(
        self, worker: int, lane: str, kind: str, times: tuple[float, float], *, name: str, label: Label,
        seconds: float, after: Sequence[int] = (), source: StreamOp | None = None,
    ) -> int:  # fmt: skip
        self.began.append(times[0])
        self.ended.append(times[1])
        self.source.append(source)
        self.labels.append(label)
        self.names.append(name)
        return self.add(lane, kind, worker, np.array([seconds]), after=after)


def rebuild(
    step: int,
    profiles: Sequence[RankProfile],
    ops: Mapping[int, Sequence[StreamOp]],
    meet: Sequence[Sequence[MatchedOp]],
    shift: Mapping[int, float],
    labels: Mapping[int, Labels],
) -> Profiled:
    """The graph of a step; ``shift`` is what to add to each rank's times."""
    begin = min(_begin(profile, step, ops[profile.rank]) + shift[profile.rank] for profile in profiles)
    maker, place_of, gaps, left_out = _Maker(1, (step,)), dict[MatchedOp, int](), dict[int, float](), {}
    for worker, profile in enumerate(profiles):
        own, rank = ops[profile.rank], profile.rank
        adding = _Rank(maker, worker, profile, own, shift[rank] - begin, labels[rank])
        adding.add((_begin(profile, step, own), _end(profile, step, own)))
        place_of.update({MatchedOp(rank, place): number for place, number in adding.placed.items()})
        gaps.update({number: adding.gaps[place] for place, number in adding.placed.items()})
        left_out[rank] = adding.left_out
    maker.groups = [tuple(place_of[member] for member in each) for each in meet if len(each) > 1]
    for group in maker.groups:
        arrived = max(maker.began[op] for op in group)
        gap = gaps[max(group, key=lambda op: maker.began[op])]  # what the last one needed to begin
        for op in group:
            maker.seconds[op] = np.array([max(0.0, maker.ended[op] - arrived) + gap])
    recorded = {name: np.array(getattr(maker, name), dtype=np.float64)[:, None] for name in ("began", "ended")}
    return Profiled(
        **vars(maker.made()) | recorded, source=tuple(maker.source), labels=tuple(maker.labels),
        names=tuple(maker.names), offset=begin, left_out=left_out, on_device=profiles[0].on_device,
    )  # fmt: skip


def _begin(profile: RankProfile, step: int, ops: Sequence[StreamOp]) -> float:
    if profile.on_device:
        return min((op.start for op in ops), default=math.inf)
    first = min((call.start for call in profile.operators), default=0.0)
    return next((start for number, start, _ in profile.steps if number == step), first)


def _end(profile: RankProfile, step: int, ops: Sequence[StreamOp]) -> float:
    """Where the host's own work ends that counts: on a CPU with the step, on a GPU with the last launch."""
    if profile.on_device:
        return -math.inf
    last = max((call.end for call in profile.operators), default=0.0)
    return next((end for number, _, end in profile.steps if number == step), last)


class _Rank:
    """One rank's lanes."""

    def __init__(
        self, maker: _Maker, worker: int, profile: RankProfile, ops: Sequence[StreamOp], shift: float, labels: Labels
    ) -> None:
        self._maker, self._worker, self._profile = maker, worker, profile
        self._ops, self._shift, self._labels = ops, shift, labels
        self.placed: dict[int, int] = {}
        self.gaps: dict[int, float] = {}
        self.left_out = 0.0

    def add(self, window: tuple[float, float]) -> None:
        """The host in this time of its own clock, then the streams."""
        launched, waiting = self._host(window)
        self._streams(launched)
        for number, places in waiting:
            self._maker.after[number] = [self.placed[place] for place in places]

    def _host(self, window: tuple[float, float]) -> tuple[dict[int, int], list[tuple[int, tuple[int, ...]]]]:
        """Ops of the host: which launches which place, and which waits for which places."""
        doings, thread = doings_of(self._profile, self._ops, window)
        begins = [-math.inf, *(each.end for each in doings)]
        labels = self._labels.at(thread, begins[:-1]) if thread >= 0 else [Label(HOST, "")] * len(doings)
        launched, waiting, clock = dict[int, int](), [], 0.0
        for each, label in zip(doings, labels, strict=True):
            end = max(clock, each.end + self._shift)
            name = each.name or HOST
            number = self._maker.add_recorded(
                self._worker, MAIN, HOST if name in (WAIT, HOST) else label.phase, (clock, end), name=name,
                label=label, seconds=end - max(clock, min(end, each.held + self._shift)),
            )  # fmt: skip
            if each.launches >= 0:
                launched[each.launches] = number
            if each.after:
                waiting.append((number, each.after))
            clock = end
        return launched, waiting

    def _streams(self, launched: Mapping[int, int]) -> None:
        waits = waited_for(self._profile, self._ops)
        labels = self._label_ops()
        before: dict[int, float] = {}
        for place, op in enumerate(self._ops):
            start, end = op.start + self._shift, op.end + self._shift
            host = [launched[place]] if place in launched else []
            ready = max(
                before.get(op.stream, 0.0), *(self._maker.ended[number] for number in host),
                *(self._ops[other].end + self._shift for other in waits.get(place, ())), 0.0,
            )  # fmt: skip
            gap = self._gap(start - ready)
            seconds = end - start + (0.0 if op.comm else gap)
            number = self._maker.add_recorded(
                self._worker, f"stream {op.stream}", _type(op, labels[place]), (start, end), name=op.name,
                label=labels[place], seconds=seconds, after=host, source=op,
            )  # fmt: skip
            self.placed[place], self.gaps[place] = number, gap
            before[op.stream] = max(end, before.get(op.stream, 0.0))
        for place, others in waits.items():
            self._maker.after[self.placed[place]] += [self.placed[other] for other in others]

    def _gap(self, gap: float) -> float:
        """The part of a pause that is counted with the op behind it; longer ones are left out."""
        if 0 < gap <= GAP:
            return gap
        self.left_out += max(gap, 0.0)
        return 0.0

    def _label_ops(self) -> list[Label]:
        found = [Label(OTHER, "")] * len(self._ops)
        by_thread: dict[int, list[tuple[float, int]]] = {}
        for place, op in enumerate(self._ops):
            if not math.isnan(op.launched):
                by_thread.setdefault(op.thread, []).append((op.launched, place))
        for thread, each in by_thread.items():
            each.sort()
            for (_, place), label in zip(each, self._labels.at(thread, [time for time, _ in each]), strict=True):
                found[place] = label
        return found


def _type(op: StreamOp, label: Label) -> str:
    if op.comm:
        return op.comm.type
    return COPY if op.copy else label.phase
