"""What is measured of a run whose spans would not fit into memory all at once: a part of its ranks at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from simcluster.reference.record_parts import LargeRecord, RecordPart
from simcluster.results.memory_timeline import MemoryPeak, memory_timeline
from simcluster.results.step_time import PartTimes, RunEnds, part_times
from simcluster.results.timeline import make_spans
from simcluster.results.waits import Wait, longest_first, waits


class MeasuredParts(NamedTuple):
    """Times, peaks of memory and waits of all simulated ranks; ``total`` is when all is over (s)."""

    total: float
    times: list[PartTimes]
    peaks: list[MemoryPeak]
    waits: list[Wait]


def measure_parts(
    record: LargeRecord, stages: Mapping[int, int], group_name: Callable[[str, int], str], *, steps: int
) -> MeasuredParts:  # fmt: skip
    """Measure a record part by part; ``stages`` has the stage of every rank."""
    total = float(record.lane_end.max(initial=0.0))
    of_stage = {
        stage: float(record.lane_end[record.lane_stage == stage].max())
        for stage in np.unique(record.lane_stage).tolist()
    }  # fmt: skip
    ends, found = RunEnds(total, of_stage, total), MeasuredParts(total, [], [], [])
    for make in record.make_parts:
        part = make(record.times)
        ranks = np.unique(part.ops.lane_rank).tolist()
        found.times.append(part_times(make_spans(part.ops, part.times, group_name), ranks, ends, steps=steps))
        found.peaks.extend(_peaks(part, ranks, stages))
        found.waits.extend(waits(*part))
    return found._replace(peaks=sorted(found.peaks, key=lambda peak: peak.rank), waits=longest_first(found.waits))


def _peaks(part: RecordPart, ranks: Iterable[int], stages: Mapping[int, int]) -> list[MemoryPeak]:
    timeline = memory_timeline(part.ops, part.times)
    return [timeline.peak(rank, stages[rank]) for rank in ranks]
