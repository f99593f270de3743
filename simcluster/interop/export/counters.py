"""Counters of a trace: what every rank holds in memory, and how full the hottest links are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcluster.interop.export.rank_events import BEFORE
from simcluster.interop.kineto.chrome import counter, named, nanoseconds, quoted
from simcluster.results.loads import hottest_over_time
from simcluster.results.memory_changes import POOLS
from simcluster.results.result import Result

LINKS, BINS = 16, 1000
"""How many links have a counter, and into how many equal parts the run is cut for them."""
_STATE = ("parameters", "gradients", "optimizer", "buffers")


def memory_counters(result: Result, rank: int) -> Iterator[str]:
    """Bytes on a rank: model state, which stays, and each pool of what comes and goes, at every change."""
    simulated = result.simulated_for(rank)
    time, pools = result.memory_timeline.curve(simulated)
    footprint = result.facts.footprints[result.peak_of(simulated).stage].holding(dict.fromkeys(POOLS, 0.0))
    state = round(sum(getattr(footprint, name) for name in _STATE))
    pools["lost to fragmentation"] = (footprint.fragmentation - 1.0) * sum(pools.values(), np.zeros(len(time)))
    there = [(name, size.round().astype(int).tolist()) for name, size in pools.items() if size.any()]
    yield counter("memory (B)", rank, 0, _levels(state, [(name, 0) for name, _ in there]))
    moments = [BEFORE + nanoseconds(moment) for moment in time.tolist()]
    for place, moment in enumerate(moments):
        if place + 1 == len(moments) or moments[place + 1] > moment:
            yield counter("memory (B)", rank, moment, _levels(state, [(name, size[place]) for name, size in there]))


def _levels(state: int, pools: list[tuple[str, int]]) -> str:
    total = state + sum(size for _, size in pools)
    levels = [("total", total), ("model state", state), *pools]
    return ",".join(f"{quoted(name)}:{size}" for name, size in levels)


def link_counters(result: Result, process: int) -> Iterator[str]:
    """Percent of capacity on the hottest links, as a process of their own; of links that are alike, on the first."""
    if len(result.folding.classes.of_rank) > result.facts.ranks:
        return  # one of several jobs: their links are of a cluster that the scenario does not know
    table, edges, matrix = hottest_over_time(result, LINKS, BINS)
    if table.empty:
        return
    yield named("process_name", process, 0, name="~ links (% of capacity)")
    yield named("process_sort_index", process, 0, sort_index=process)
    ends = list(zip(table["link_from"].tolist(), table["link_to"].tolist(), strict=True))
    moments = [BEFORE + nanoseconds(edge) for edge in edges.tolist()]
    percent = (matrix * 100).clip(0, 100).round(2).tolist()
    for (start, end), alike, levels in zip(ends, table["links"].tolist(), percent, strict=True):
        name = f"{start} -> {end}" + (f" (and {alike - 1} alike)" if alike > 1 else "")
        before = None
        for moment, level in zip(moments, [*levels, 0.0], strict=True):
            if level != before:
                yield counter(name, process, moment, f'"%":{level}')
            before = level
