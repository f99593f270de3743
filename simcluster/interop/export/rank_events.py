"""Trace events of one rank's simulated work, for per-rank Kineto files and for the merged file.

A collective's kernel begins when the rank arrives, as a profiler records it, or (``begins`` wire) when its last member
does and bytes move. A message's kernels begin on both sides when the transfer begins. The host launches everything as
early as possible, so that work, streams and messages decide a replay, not launches. It waits only where the simulated
host did, and for messages from ranks that are not written.

A profiler records kernels; a simulated timeline has spans of several kernels between two waits (``attention`` includes
the adjacent matmuls). A span's time is split over its kernels in proportion to their times on the device; slow GPUs and
interference lengthen all of them equally.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, groupby
from operator import itemgetter
from typing import Literal, NamedTuple

from simcluster.devices.device import kernel_seconds
from simcluster.interop.export.rank_work import (
    COMPUTE,
    HOST,
    RECEIVE,
    KernelDescription,
    KernelNaming,
    OpRow,
    Track,
    format_call_details,
    launch_phase_and_layer,
    rank_process_name,
    track_display_name,
)
from simcluster.interop.kineto import chrome_trace as chrome
from simcluster.interop.kineto.chrome_trace import (
    LAUNCH_THREAD,
    HostWait,
    KernelEvent,
    LaunchEvent,
    complete_event,
    seconds_to_ns,
)
from simcluster.model.kernels import Kernel, KernelKind
from simcluster.results.result import Result
from simcluster.scenario.job_conversion import host_costs_of, pass_maker_of
from simcluster.scenario.scenario import Scenario
from simcluster.schedules import Action
from simcluster.schedules.actions import PASS_NAMES, Kind

SpanKey = tuple[str, str, int]
"""Kind, name and layer of a span."""
KERNEL_PREFIX = "simcluster::"
"""Prefix of the names of simulated kernels in traces."""


class KernelShare(NamedTuple):
    """Kernel of a simulated span: its name, its kind, and the share of the span's time that it takes."""

    name: str
    kind: KernelKind
    share: float


def span_kernel_shares(result: Result) -> Mapping[SpanKey, list[tuple[KernelShare, ...]]]:
    """Return the kernels of every simulated span; a span that occurs repeatedly in a pass has several entries."""
    scenario, job = result.scenario, result.job
    passes = pass_maker_of(scenario, scenario.cluster.device)
    found: dict[SpanKey, list[tuple[KernelShare, ...]]] = {}
    known: dict[tuple[Kernel, ...], tuple[KernelShare, ...]] = {}
    for stage, row in enumerate(job.schedule.rows):
        for chunk, kind in sorted({(action.chunk, action.kind) for action in row}):
            seen: Counter[SpanKey] = Counter()
            for each in passes.launched_kernels(kind, replace(job.pass_over_chunk(stage, chunk), casts_weights=True)):
                key = each.kind, each.name, each.layer
                seen[key] += 1
                if each.kernels not in known:
                    known[each.kernels] = _kernel_time_shares(scenario, each.kernels, result.facts.attention)
                if len(found.setdefault(key, [])) < seen[key]:
                    found[key].append(known[each.kernels])
    return found


def _kernel_time_shares(scenario: Scenario, kernels: Sequence[Kernel], attn_scale: float) -> tuple[KernelShare, ...]:
    """Return kernels with their shares of a span's time, after scaling attention kernels by ``attn_scale``."""
    device, gap = scenario.cluster.device, host_costs_of(scenario).gap
    precision = scenario.training.precision.removesuffix("-mixed")
    times = [
        gap + kernel_seconds(device, one, precision=precision) * (attn_scale if one.kind == "attention" else 1.0)
        for one in kernels
    ]
    whole = sum(times) or 1.0
    return tuple(KernelShare(one.name, one.kind, each / whole) for one, each in zip(kernels, times, strict=True))


KernelStart = Literal["arrival", "wire"]
"""When the kernel of a collective begins: when the rank arrives, or when the last one does."""

LEAD_NS, MARKER_LEAD_NS = 10_000, 1000
"""Nanoseconds before the first step, and from the first marker to the first launch."""
_HOST_THREAD = 2
"""Thread of host computation."""
_PASS_KINDS: dict[str, Kind] = {name: kind for kind, name in PASS_NAMES.items()}
_MAX_MESSAGES = 2**20
_RECEIVE_MARK = '"Collective name":"recv"'


class RankTimeline:
    """Simulated work of one rank, with the start and end (ns) of every op and kernel.

    ``starts`` and ``ends`` are nanoseconds of the trace for each of ``works``, ``order`` their indices by step and
    start. ``kernel_numbers`` are the indices into ``kernels`` of each work on the device. ``process_groups`` are the
    rank's groups by name, ``streams`` the CUDA stream of each track, ``steps`` the number, start and end of every step:
    each begins where the one before ends. ``shares`` are the kernels of spans, empty where spans stay whole.
    """

    def __init__(
        self, rank: int, ranks: int, works: Sequence[OpRow], streams: dict[Track, int], naming: KernelNaming,
        begins: KernelStart, shares: Mapping[SpanKey, Sequence[Sequence[KernelShare]]],
    ) -> None:  # fmt: skip
        self.rank, self.ranks, self.ops, self.streams, self.naming = rank, ranks, works, streams, naming
        arrives = begins == "arrival"
        self.starts = [LEAD_NS + seconds_to_ns(work.ready_time if arrives else work.start) for work in works]
        self.ends = [LEAD_NS + seconds_to_ns(work.end) for work in works]
        keys = [*zip((work.step for work in works), self.starts, strict=True)]
        self.order = sorted(range(len(works)), key=keys.__getitem__)
        self._described: list[KernelDescription] = list(map(naming.make_describer(rank), works))
        comms = [each.comm for each in self._described]
        self.process_groups = {comm.group: comm for comm in comms if comm is not None and comm.ranks}
        first: dict[int, int] = {}
        for place in self.order:
            first.setdefault(works[place].step, self.starts[place])
        starts = [LEAD_NS - MARKER_LEAD_NS, *list(first.values())[1:]]
        stops = [*starts[1:], max(self.ends, default=LEAD_NS) + MARKER_LEAD_NS]
        self.steps = list(zip(first, starts, stops, strict=True))
        # number each call within its group, in the order of transfers, which is equal on all ranks
        numbers = Counter[tuple[str, tuple[int, int] | None]]()
        self._sequences: dict[int, int] = {}
        for place in sorted(range(len(works)), key=lambda place: works[place].start):
            if (comm := comms[place]) is not None:
                self._sequences[place] = numbers[comm.group, comm.sender_and_receiver]
                numbers[comm.group, comm.sender_and_receiver] += 1
        self.kernel_numbers: dict[int, range] = {}
        self.kernels: list[KernelEvent] = []
        self._add_kernels(shares)

    def _add_kernels(self, shares: Mapping[SpanKey, Sequence[Sequence[KernelShare]]]) -> None:
        made_of, seen, count = dict[int, Sequence[KernelShare]](), Counter[tuple[object, ...]](), 0
        for place in self.order:
            work = self.ops[place]
            known = shares.get((work.kind, work.name, work.layer), ()) if work.stream == "compute" else ()
            if known:
                key = work.step, work.chunk, work.microbatch, work.kind, work.name, work.layer
                made_of[place] = known[seen[key] % len(known)]
                seen[key] += 1
            if work.stream != HOST:
                self.kernel_numbers[place] = range(count, count + max(1, len(made_of.get(place, ()))))
                count = self.kernel_numbers[place].stop
        for place, seats in self.kernel_numbers.items():
            work, begin, end = self.ops[place], self.starts[place], self.ends[place]
            text, made = self._described[place], made_of.get(place, ())
            args = chrome.join_formatted_arguments(text.args, format_call_details(work, self._sequences.get(place, -1)))
            category = "gpu_memcpy" if work.stream in ("d2h", "h2d", "storage") else "kernel"
            after = tuple([self.kernel_numbers[other][-1] for other in work.after if other in self.kernel_numbers])
            done, start = 0.0, begin
            for number in range(len(seats)):  # a work without known kernels is a single one
                done += made[number].share if made else 1.0
                name = f"{KERNEL_PREFIX}{made[number].name}" if made else text.name
                stop = end if number + 1 == len(seats) else begin + round((end - begin) * done)
                self.kernels.append(KernelEvent(
                    name, self.streams[work.track], start, stop, args, category, launch_phase_and_layer(work),
                    () if number else after,
                ))  # fmt: skip
                start = stop

    def message_kernels(self) -> Iterator[tuple[int, int, int]]:
        """Yield, for every message sent or received: kernel index, peer rank, message sequence number."""
        for place, seat in self.kernel_numbers.items():
            comm = self._described[place].comm
            if comm is not None and comm.sender_and_receiver is not None:
                start, end = comm.sender_and_receiver
                yield seat.start, end if start == self.rank else start, self._sequences[place]


def rank_file_events(timeline: RankTimeline, file_ranks: Container[int]) -> Iterator[str]:
    """Yield the events of one rank's trace file; ``file_ranks`` holds the ranks for which files are written."""
    yield from _metadata_events(timeline)
    yield from _annotation_events(timeline)
    host = _host_launches_and_waits(timeline, file_ranks)
    yield from chrome.gpu_step_events(timeline.rank, timeline.kernels, count(chrome.FIRST_CORRELATION), host, LEAD_NS)


def merged_file_events(timeline: RankTimeline, file_ranks: Container[int]) -> Iterator[str]:
    """Yield one rank's events for the merged file: arrows for messages are added, kernel launches omitted."""
    yield from _metadata_events(timeline)
    yield from _annotation_events(timeline)
    for kernel in timeline.kernels:
        at = timeline.rank, kernel.stream
        yield complete_event(kernel.category, kernel.name, at, kernel.start, kernel.end, kernel.args)
    for seat, other, number in timeline.message_kernels():
        kernel = timeline.kernels[seat]
        if other not in file_ranks or kernel.end - kernel.start < chrome.LAUNCH_GAP_NS:
            continue
        ends = _RECEIVE_MARK in kernel.args
        one, two = (other, timeline.rank) if ends else (timeline.rank, other)
        identity = (one * timeline.ranks + two) * _MAX_MESSAGES + number
        time = kernel.end - 1 if ends else kernel.start
        yield chrome.flow_event(identity, kernel.name, (timeline.rank, kernel.stream), time, is_end=ends)


def _metadata_events(timeline: RankTimeline) -> Iterator[str]:
    name = rank_process_name(timeline.rank, timeline.ranks, timeline.naming.stage_of_rank(timeline.rank))
    yield chrome.metadata_event("process_name", timeline.rank, 0, name=name)
    yield chrome.metadata_event("process_sort_index", timeline.rank, 0, sort_index=timeline.rank)
    threads = [(LAUNCH_THREAD, "host: launches"), (_HOST_THREAD, "host: work")]
    threads += [(number, track_display_name(track)) for track, number in timeline.streams.items() if track[0] != HOST]
    for number, name in sorted(threads):
        yield chrome.metadata_event("thread_name", timeline.rank, number, name=name)
        yield chrome.metadata_event("thread_sort_index", timeline.rank, number, sort_index=number)


def _annotation_events(timeline: RankTimeline) -> Iterator[str]:
    for number, begin, end in timeline.steps:
        yield chrome.step_marker_event(timeline.rank, number + 1, begin, end)
    for work, begin, end in zip(timeline.ops, timeline.starts, timeline.ends, strict=True):
        if work.stream == HOST:
            yield complete_event("cpu_op", f"{work.kind} {work.name}", (timeline.rank, _HOST_THREAD), begin, end)
    computed = [place for place in timeline.kernel_numbers if timeline.ops[place].track == COMPUTE]
    computed.sort(key=timeline.starts.__getitem__)
    chunks = 1 + max((timeline.ops[place].chunk for place in computed), default=0)
    passes: list[tuple[str, int]] = []  # the pass of each kernel, as in schedules, "" for none
    name = ""
    for place in reversed(computed):
        work = timeline.ops[place]
        if work.kind != "recompute":  # a recomputation belongs to the pass after it
            name = work.kind if work.kind == "optimizer" else ""
            if work.kind in _PASS_KINDS and work.microbatch >= 0:
                name = Action(_PASS_KINDS[work.kind], work.microbatch, max(work.chunk, 0)).label(chunks)
        passes.append((name, place))
    for name, run in groupby(reversed(passes), key=itemgetter(0)):
        within = [place for _, place in run]
        if name:
            at = timeline.rank, timeline.streams[COMPUTE]
            yield complete_event("gpu_user_annotation", name, at, timeline.starts[within[0]], timeline.ends[within[-1]])


def _host_launches_and_waits(timeline: RankTimeline, file_ranks: Container[int]) -> Iterator[LaunchEvent | HostWait]:
    """Yield the host's kernel launches in start order, and the host's waits for the device."""
    clock, begins = LEAD_NS, {number: begin for number, begin, _ in timeline.steps[1:]}
    for place in timeline.order:
        work = timeline.ops[place]
        begun = timeline.starts[place]
        if work.stream == HOST:
            if any(other in timeline.kernel_numbers for other in work.after):
                yield HostWait(clock, begun + 1)  # ends after what it waited for, despite rounding
                clock = max(clock, begun + 1)
            continue
        clock = max(clock, begins.pop(work.step, clock))
        held = [timeline.ends[other] for other in work.after if other not in timeline.kernel_numbers]
        if work.kind == RECEIVE and timeline.naming.peer_rank(timeline.rank, work.peer_stage) not in file_ranks:
            held.append(begun)  # no written rank would delay it
        clock = max([clock, *held])
        for seat in timeline.kernel_numbers[place]:
            yield LaunchEvent(seat, clock)
