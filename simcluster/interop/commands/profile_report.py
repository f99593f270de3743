"""Tables, JSON and heatmap that ``simcluster replay`` prints for a folder of profiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from simcluster.base.units import format_bytes, format_bytes_per_second, format_seconds
from simcluster.cli.alike import group_rows, join_names
from simcluster.interop.kineto.profile_metrics import CollectiveBandwidth, LayerTime, ProfiledRankTime, slowdown_by_type
from simcluster.interop.kineto.profiled_job import ProfiledJob
from simcluster.interop.replay.straggler_metrics import Straggling
from simcluster.show.blocks import TableBlock

if TYPE_CHECKING:
    from simcluster.show.pictures import Figure

_STATES = ("step", "computing", "exposed", "waiting", "idle")
MAX_ROWS = 12
"""Rows of a displayed table or heatmap; JSON has all."""


def job_headline(job: ProfiledJob) -> str:
    """Return a line with a profiled job's name, number of ranks, device and steps."""
    kind = "GPUs" if job.profiled_steps[0].on_device else "CPUs"
    steps = f"step{'s' * (len(job.steps) > 1)} {', '.join(map(str, job.steps[:8]))}" + ", ..." * (len(job.steps) > 8)
    return f"{job.name}: profiles of {len(job.ranks)} rank{'s' * (len(job.ranks) > 1)} on {kind}, {steps}"


def ranks_table(found: Straggling, ranks: Sequence[ProfiledRankTime]) -> TableBlock:
    """Return a table of where each rank's step time went, slowest rank first."""
    every = [
        (f"rank {ranks[worker].rank}",
         [f"{found.by_replica[worker]:.4f}", *(format_seconds(getattr(ranks[worker], name)) for name in _STATES),
          f"{ranks[worker].overlap:.1%}"])
        for worker in sorted(range(len(ranks)), key=lambda worker: -found.by_replica[worker])
    ]  # fmt: skip
    note = "waiting: in a collective that some rank has not reached; exposed: all have, and no compute overlaps it"
    return _grouped_table("where time went, slowest first", "ranks", ("rank", "S", *_STATES, "overlap"), every, note)


def _grouped_table(
    title: str, what: str, header: Sequence[str], every: Sequence[tuple[str, Sequence[str]]], note: str
) -> TableBlock:
    rows = group_rows(every)[:MAX_ROWS]
    shown = sum(len(row.names) for row in rows)
    of = f" ({shown} of {len(every)} {what})" if shown < len(every) else ""
    cells = [[join_names(row.names), *row.cells] for row in rows]
    return TableBlock(header, cells, title=[f"{title}{of}"], notes=[f"  {note}"])


def layers_table(job: ProfiledJob, parts: Sequence[LayerTime]) -> list[TableBlock]:
    """Return a table of compute time by model part, with the most uneven part first."""
    every = []
    for part in sorted(parts, key=lambda part: -round(part.slowest[1], 3) if part.slowest else 0.0):
        over = f"{part.slowest[1]:+.1%} (rank {job.ranks[part.slowest[0]]})" if part.slowest else ""
        name = f"{part.label.phase} {part.label.layer}".strip()
        every.append((name, [str(len(part.owners)), format_seconds(part.mean), over]))
    note = "time: mean per step on the ranks that have the part; slowest: relative to other ranks with the same parts"
    title = "compute by part of the model, most uneven first"
    return [_grouped_table(title, "parts", ("part", "ranks", "time", "slowest"), every, note)] if parts else []


def collectives_table(calls: Sequence[CollectiveBandwidth]) -> list[TableBlock]:
    """Return a table of collective times and bandwidths, with a cluster's modelled times if known."""
    with_model = any(call.modelled is not None for call in calls)
    header = ["collective", "groups", "ranks", "size", "calls", "median", "bus bandwidth"]
    header += ["model", "its bus bandwidth"] * with_model

    def known(value: float | None, text: Callable[[float], str]) -> str:
        return "-" if value is None or math.isnan(value) else text(value)

    every: dict[tuple[str, ...], list[int]] = {}
    for call in calls:
        cells = [
            f"{call.kind} {call.group}", str(len(call.ranks)), known(call.bytes, format_bytes),
            format_seconds(call.seconds), known(call.bus_bandwidth, format_bytes_per_second),
        ]  # fmt: skip
        if with_model:
            cells.append(known(call.modelled, format_seconds))
            cells.append(known(call.modelled_bus_bandwidth, format_bytes_per_second))
        every.setdefault(tuple(cells), []).append(call.count)
    shown = list(every.items())[:MAX_ROWS]
    rows = [[cells[0], str(len(counts)), *cells[1:3], f"{sum(counts):,}", *cells[3:]] for cells, counts in shown]
    many = sum(len(counts) for _, counts in shown)
    of = f" ({many} of {len(calls)} groups and sizes)" if many < len(calls) else ""
    note = "  groups: number of groups with this size and median; calls: total over these groups"
    table = TableBlock(header, rows, title=[f"collectives, timed from the last arrival{of}"], notes=[note])
    return [table] if calls else []


def report_document(
    job: ProfiledJob, found: Straggling, ranks: Sequence[ProfiledRankTime], parts: Sequence[LayerTime],
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
             "ranks": [job.ranks[owner] for owner in part.owners], "mean_s": part.mean}
            for part in parts
        ],
        "collectives": [call.to_dict() for call in calls],
    }  # fmt: skip


def draw_heatmap(job: ProfiledJob, found: Straggling) -> Figure:
    """Draw a heatmap of the slowdown by rank and op type."""
    from simcluster.show.heatmaps import straggler_heatmap

    types = list(found.by_type)[:MAX_ROWS]
    return straggler_heatmap(
        slowdown_by_type(job, types), by_replica=found.by_replica.tolist(),
        by_stage=[found.by_type[name] for name in types],
        title=f"{job.name}: steps take {found.slowdown - 1:.1%} longer; slowdown by rank and op type", column="rank",
        row="op type", rows=types,
    )  # fmt: skip
