"""Export of a simulated result as a Kineto trace, in one file or in a folder with one file per rank.

A folder gets ``rank000.json.gz`` and so on, which HolisticTraceAnalysis and ``simcluster replay`` read, and
``merged/all_ranks.json.gz`` for Perfetto, in a separate folder because those readers would take it for another rank.

What HolisticTraceAnalysis (HTA) finds, in this package's words, for a rank from its first kernel to its last end (read
with HTA_DISABLE_NS_ROUNDING=1, or it rounds times to microseconds):

* ``compute_time``: the breakdown's forward, backward, recompute, and the kernels of optimizer and other;
* ``non_compute_time``: exposed_*, and copies to and from the host that nothing overlaps; with collectives that start on
  arrival also waiting for late members (straggler_wait, and the bubble spent inside a collective);
* ``idle_time``: the rest, that is bubble, waiting for the host and, with collectives that start on the wire,
  straggler_wait (each only up to the rank's last end);
* ``comp_comm_overlap``: with collectives that start on the wire the result's overlap_fraction, for one rank; with those
  that start on arrival, waiting counts as communication;
* ``get_potential_stragglers``: for the last long collective of a name, the rank that begins it last.  That is the slow
  rank if all ranks end a collective together, as HTA assumes (hta/analyzers/straggler.py): among replicas, or the ranks
  of one stage.  Over pipeline stages it is a rank of the first stage, whose last backward ends last, whichever rank is
  slow: write the ranks of one stage (``ranks``) and ask about these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from simcluster.base.display import Displayable
from simcluster.base.errors import InputError
from simcluster.documents.argument_types import check_arguments
from simcluster.interop.export.rank_events import (
    LEAD_NS,
    KernelStart,
    RankTimeline,
    merged_file_events,
    rank_file_events,
    span_kernel_shares,
)
from simcluster.interop.export.rank_work import KernelNaming, RunOpRows
from simcluster.interop.kineto import chrome_trace as chrome
from simcluster.interop.kineto.chrome_trace import PROFILE_SUFFIXES, quote_json, seconds_to_ns
from simcluster.results.link_loads import hottest_links_over_time
from simcluster.results.memory_timeline import POOLS
from simcluster.results.result import VERSION, Result
from simcluster.step.simulate import ResultLike, to_result

MAX_LINKS, TIME_BINS = 16, 1000
"""Number of links with a counter, and of equal time bins of the run."""
_STATE_PARTS = ("parameters", "gradients", "optimizer", "buffers")


def memory_counter_events(result: Result, rank: int) -> Iterator[str]:
    """Yield counter events of a rank's memory use (bytes): total, model state, and each memory pool."""
    simulated = result.representative_of(rank)
    time, pools = result.memory_timeline.curve(simulated)
    static = result.facts.footprints[result.memory_peak_of(simulated).stage].with_pool_bytes(dict.fromkeys(POOLS, 0.0))
    state = round(sum(getattr(static, name) for name in _STATE_PARTS))
    pools["lost to fragmentation"] = (static.fragmentation - 1.0) * sum(pools.values(), np.zeros(len(time)))
    there = {name: size.round().astype(int).tolist() for name, size in pools.items() if size.any()}

    def make_memory_event(moment: int, sizes: Sequence[int]) -> str:
        every = {"total": state + sum(sizes), "model state": state, **dict(zip(there, sizes, strict=True))}
        values = ",".join(f"{quote_json(name)}:{size}" for name, size in every.items())
        return chrome.counter_event("memory (B)", rank, moment, values)

    yield make_memory_event(0, [0] * len(there))
    moments = [LEAD_NS + seconds_to_ns(moment) for moment in time.tolist()]
    for place, moment in enumerate(moments):
        if place + 1 == len(moments) or moments[place + 1] > moment:
            yield make_memory_event(moment, [size[place] for size in there.values()])


def link_counter_events(result: Result, process: int) -> Iterator[str]:
    """Yield counter events of the load (%) on the busiest links; equally loaded links share one counter."""
    if len(result.folding.classes.of_rank) > result.facts.ranks:
        return  # one of several jobs, whose shared cluster the scenario lacks
    table, edges, matrix = hottest_links_over_time(result, MAX_LINKS, TIME_BINS)
    if table.empty:
        return
    yield chrome.metadata_event("process_name", process, 0, name="~ links (% of capacity)")
    yield chrome.metadata_event("process_sort_index", process, 0, sort_index=process)
    ends = list(zip(table["link_from"].tolist(), table["link_to"].tolist(), strict=True))
    moments = [LEAD_NS + seconds_to_ns(edge) for edge in edges.tolist()]
    percent = (matrix * 100).clip(0, 100).round(2).tolist()
    for (start, end), count, levels in zip(ends, table["links"].tolist(), percent, strict=True):
        name = f"{start} -> {end}" + (f" (and {count - 1} equal links)" if count > 1 else "")
        before = None
        for moment, level in zip(moments, [*levels, 0.0], strict=True):
            if level != before:
                yield chrome.counter_event(name, process, moment, f'"%":{level}')
            before = level


MAX_RANKS = 64
"""Number of ranks written by default."""
MERGED_FILE = Path("merged") / "all_ranks.json.gz"


@dataclass(frozen=True, repr=False)
class TraceFiles(Displayable):
    """Files of an exported trace, the exported ranks, and how the ranks were selected."""

    files: tuple[Path, ...]
    ranks: tuple[int, ...]
    job_ranks: int
    selection: str

    def summary(self) -> str:
        where = self.files[-1] if len(self.files) == 1 else self.files[0].parent
        return f"trace: {len(self.ranks)} of {self.job_ranks} ranks in {where} ({self.selection})"


@check_arguments
def write_trace(
    result: ResultLike, path: str | Path, *, ranks: Sequence[int] | None = None, begins: KernelStart = "arrival",
    kernels: bool = False,
) -> TraceFiles:  # fmt: skip
    """Write a result as a Kineto trace; simulate first if a scenario is passed.

    ``path`` is a file (.json or .json.gz) with all written ranks, or a folder. ``ranks`` defaults to the simulated
    ranks, one per class of equal ranks, at most 64. Kernels of collectives begin when their rank arrives, as profilers
    record them, or (``begins`` "wire") when bytes move. With ``kernels`` every kernel is an event, as profilers record
    them; otherwise an event is a span of several kernels. Raises InputError for an unknown rank or a path that cannot
    be written.
    """
    result = to_result(result, "write_trace")
    target = path = check_trace_path(path)
    chosen, why = _choose_ranks(result, ranks)
    own: dict[int, Path] = {}
    if not path.name.endswith(PROFILE_SUFFIXES):
        width = max(3, len(str(result.facts.ranks - 1)))
        own = {rank: path / f"rank{rank:0{width}}.json.gz" for rank in chosen}
        target = path / MERGED_FILE
        chrome.make_profile_folder(path, list(own.values()))
        chrome.make_profile_folder(target.parent, [target])
    about = {"trace_name": result.scenario.name, "simulated_by": f"simcluster {VERSION}"}
    head = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": 0, **about}
    chrome.write_chrome_trace(target, head, _trace_events(result, chosen, begins, own, about, kernels))
    return TraceFiles((*own.values(), target), chosen, result.facts.ranks, why)


def _trace_events(
    result: Result, ranks: Sequence[int], begins: KernelStart, files: Mapping[int, Path], about: Mapping[str, Any],
    kernels: bool,
) -> Iterator[str]:  # fmt: skip
    run_work, naming, written = RunOpRows(result), KernelNaming(result), frozenset(ranks)
    shares = span_kernel_shares(result) if kernels else {}
    for rank in ranks:
        works = run_work.make_rank_rows(result.representative_of(rank) + result.ranks.start)
        own = RankTimeline(rank, result.facts.ranks, works, run_work.cuda_stream_numbers(works), naming, begins, shares)
        if rank in files:
            head = chrome.profile_header(rank, own.ranks, own.process_groups, backend="nccl", host="simulated")
            events = chain(rank_file_events(own, written), memory_counter_events(result, rank))
            chrome.write_chrome_trace(files[rank], {**head, **about}, events)
        yield from merged_file_events(own, written)
        yield from memory_counter_events(result, rank)
    yield from link_counter_events(result, result.facts.ranks)


def check_trace_path(name: str | Path) -> Path:
    """Return the path for a trace; raise InputError if the trace cannot be written there."""
    path = Path(name)
    if not path.parent.is_dir():
        raise InputError(f"cannot write {name}: the folder {path.parent} does not exist; create it first")
    if path.name.endswith(PROFILE_SUFFIXES):
        if path.is_dir():
            raise InputError(f"cannot write {name}: it is a folder; name a file, or a folder without .json in its name")
        return path
    if path.is_file() or (path.suffix and not path.is_dir()):
        raise InputError(
            f"cannot write {name}: a trace is a file that ends in .json or .json.gz, or a folder with one per "
            "rank; choose such a name"
        )
    foreign = sorted(each.name for each in path.glob("*.json*") if not each.name.startswith(("rank", ".rank")))
    if foreign:
        raise InputError(f"cannot write to {path}: the folder contains {foreign[0]}; name an empty folder")
    return path


def _choose_ranks(result: Result, ranks: Sequence[int] | None) -> tuple[tuple[int, ...], str]:
    if ranks is not None:
        wrong = [rank for rank in ranks if not 0 <= rank < result.facts.ranks]
        if wrong or not ranks:
            what = f"no rank {wrong[0]}" if wrong else "no rank to write"
            raise InputError(
                f"cannot write the trace: there is {what}; the job has ranks 0 to {result.facts.ranks - 1}"
            )
        return tuple(sorted(dict.fromkeys(ranks))), "as requested"
    simulated = sorted(result.weights)
    if len(simulated) == result.facts.ranks <= MAX_RANKS:
        return tuple(simulated), "all"
    if len(simulated) <= MAX_RANKS:
        return tuple(simulated), "one per class of equal ranks"
    places = [place * (len(simulated) - 1) // (MAX_RANKS - 1) for place in range(MAX_RANKS)]
    chosen = tuple(simulated[place] for place in places)
    return chosen, f"{MAX_RANKS} of {len(simulated)} distinct ranks, spread over the job"
