"""Tables, JSON and heatmap that ``simcluster replay`` prints for a folder of profiles."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from simcluster.base.units import format_bytes, format_bytes_per_second, format_seconds
from simcluster.interop.kineto import profile_metrics as metrics
from simcluster.interop.kineto.profile_metrics import CollectiveBandwidth, ModelPartTime, RankStateSeconds
from simcluster.interop.kineto.profiled_job import ProfiledJob
from simcluster.interop.replay.straggler_metrics import StragglerMetrics
from simcluster.show.output_blocks import TableBlock

if TYPE_CHECKING:
    from simcluster.show.plot_registry import Figure

_STATES = ("step", "computing", "exposed", "waiting", "idle")
MAX_ROWS = 12
"""Rows of a displayed table or heatmap; JSON has all."""
_MAX_RANGES = 4  # in the label of a row
_NUMBERED = re.compile(r"(.*?)(\d+)")


def job_headline(job: ProfiledJob) -> str:
    """Return a one-line summary of a profiled job: name, number of ranks, device and steps."""
    kind = "GPUs" if job.profiled_steps[0].on_device else "CPUs"
    steps = f"step{'s' * (len(job.steps) > 1)} {', '.join(map(str, job.steps[:8]))}" + ", ..." * (len(job.steps) > 8)
    return f"{job.name}: profiles of {len(job.ranks)} rank{'s' * (len(job.ranks) > 1)} on {kind}, {steps}"


def rank_time_table(found: StragglerMetrics, ranks: Sequence[RankStateSeconds]) -> TableBlock:
    """Return a table of each rank's step time by state (computing, waiting, ...), slowest rank first."""
    every = [
        (f"rank {ranks[worker].rank}",
         [f"{found.by_replica[worker]:.4f}", *(format_seconds(getattr(ranks[worker], name)) for name in _STATES),
          f"{ranks[worker].overlap:.1%}"])
        for worker in sorted(range(len(ranks)), key=lambda worker: -found.by_replica[worker])
    ]  # fmt: skip
    note = "waiting: a member has not reached the collective yet; exposed: all have, and no compute overlaps it"
    title = "step time by state, slowest first"
    return _table_of_merged_rows(title, "ranks", ("rank", "S", *_STATES, "overlap"), every, note)


def _table_of_merged_rows(
    title: str, what: str, header: Sequence[str], every: Sequence[tuple[str, Sequence[str]]], note: str
) -> TableBlock:
    merged = list(merge_equal_rows(every).items())[:MAX_ROWS]
    shown = sum(len(names) for _, names in merged)
    of = f" ({shown} of {len(every)} {what})" if shown < len(every) else ""
    rows = [[join_names(names), *cells] for cells, names in merged]
    return TableBlock(header, rows, title=[f"{title}{of}"], notes=[f"  {note}"])


def merge_equal_rows(rows: Iterable[tuple[str, Sequence[str]]]) -> dict[tuple[str, ...], list[str]]:
    """Merge table rows (name, cells) with identical cells; return the names by cells, in order of first appearance."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, cells in rows:
        found.setdefault(tuple(cells), []).append(name)
    return found


def join_names(names: Sequence[str]) -> str:
    """Return a short label for several names: 'layers.24-31', 'rank 0-3, 8' or 'forward and 6 more'."""
    matches = [match for match in map(_NUMBERED.fullmatch, names) if match]
    if 1 < len(names) == len(matches) and len({match[1] for match in matches}) == 1:
        runs = _join_ranges(sorted(int(match[2]) for match in matches))
        more = f" and {len(runs) - _MAX_RANGES} more ranges" if len(runs) > _MAX_RANGES else ""
        return f"{matches[0][1]}{', '.join(runs[:_MAX_RANGES])}{more}"
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _join_ranges(numbers: Sequence[int]) -> list[str]:
    consecutive = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in run] for _, run in consecutive]
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]


def layer_time_table(job: ProfiledJob, parts: Sequence[ModelPartTime]) -> list[TableBlock]:
    """Return a table of compute time by model part, starting with the part that varies most between ranks."""
    every = []
    for part in sorted(parts, key=lambda part: -round(part.slowest_rank[1], 3) if part.slowest_rank else 0.0):
        over = f"{part.slowest_rank[1]:+.1%} (rank {job.ranks[part.slowest_rank[0]]})" if part.slowest_rank else ""
        name = f"{part.label.phase} {part.label.layer}".strip()
        every.append((name, [str(len(part.rank_indices)), format_seconds(part.mean_seconds), over]))
    note = "time: mean per step on the ranks that have the part; slowest: relative to other ranks with the same parts"
    title = "compute time by model part, parts that differ most between ranks first"
    return [_table_of_merged_rows(title, "parts", ("part", "ranks", "time", "slowest"), every, note)] if parts else []


def collective_table(calls: Sequence[CollectiveBandwidth]) -> list[TableBlock]:
    """Return a table of collective times and bandwidths: measured, and modelled if a cluster is given."""
    with_model = any(call.modelled is not None for call in calls)
    header = ["collective", "groups", "ranks", "size", "calls", "median", "bus bandwidth"]
    header += ["modelled", "modelled bandwidth"] * with_model

    def format_known(value: float | None, text: Callable[[float], str]) -> str:
        return "-" if value is None or math.isnan(value) else text(value)

    every: dict[tuple[str, ...], list[int]] = {}
    for call in calls:
        cells = [
            f"{call.kind} {call.group}", str(len(call.ranks)), format_known(call.bytes, format_bytes),
            format_seconds(call.seconds), format_known(call.bus_bandwidth, format_bytes_per_second),
        ]  # fmt: skip
        if with_model:
            cells.append(format_known(call.modelled, format_seconds))
            cells.append(format_known(call.modelled_bus_bandwidth, format_bytes_per_second))
        every.setdefault(tuple(cells), []).append(call.count)
    shown = list(every.items())[:MAX_ROWS]
    rows = [[cells[0], str(len(counts)), *cells[1:3], f"{sum(counts):,}", *cells[3:]] for cells, counts in shown]
    many = sum(len(counts) for _, counts in shown)
    of = f" ({many} of {len(calls)} groups and sizes)" if many < len(calls) else ""
    note = "  groups: process groups with equal size and median; calls: total over these groups"
    table = TableBlock(header, rows, title=[f"collectives, timed from the last rank's arrival{of}"], notes=[note])
    return [table] if calls else []


def make_report_document(
    job: ProfiledJob, found: StragglerMetrics, ranks: Sequence[RankStateSeconds], parts: Sequence[ModelPartTime],
    calls: Sequence[CollectiveBandwidth],
) -> dict[str, Any]:  # fmt: skip
    """Return the report on a profiled job as a dict for JSON."""
    measured = found.to_dict()
    keep = ("steps", "measured_s", "replayed_s", "ideal_s", "replay_error", "slowdown", "slowdown_by_type", "typical_s")
    slowdown = found.by_replica.tolist()
    return {
        "trace": job.name,
        **{key: measured[key] for key in keep},
        "ranks": [{**asdict(rank), "slowdown": slowdown[worker]} for worker, rank in enumerate(ranks)],
        "layers": [
            {"phase": part.label.phase, "layer": part.label.layer, "seconds_by_rank": part.seconds.tolist(),
             "ranks": [job.ranks[owner] for owner in part.rank_indices], "mean_s": part.mean_seconds}
            for part in parts
        ],
        "collectives": [call.to_dict() for call in calls],
    }  # fmt: skip


def draw_heatmap(job: ProfiledJob, found: StragglerMetrics) -> Figure:
    """Draw a heatmap of the slowdown by rank and op type."""
    from simcluster.show.heatmaps import straggler_heatmap

    types = list(found.by_type)[:MAX_ROWS]
    return straggler_heatmap(
        metrics.slowdown_by_rank_and_type(job, types), by_replica=found.by_replica.tolist(),
        by_stage=[found.by_type[name] for name in types],
        title=f"{job.name}: stragglers lengthen steps by {found.slowdown - 1:.1%}; slowdown by rank and op type",
        column="rank", row="op type", rows=types,
    )  # fmt: skip
