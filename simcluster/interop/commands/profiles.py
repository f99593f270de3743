"""Tables, JSON and heatmap of ``simcluster replay FOLDER``: ranks, parts of the model and collectives of profiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from simcluster.base.units import format_bytes, format_bytes_per_second, format_seconds
from simcluster.cli.alike import AlikeRows, alike, together
from simcluster.cli.common import format_table
from simcluster.interop.kineto.job import ProfiledJob
from simcluster.interop.kineto.measures import LayerTime, ProfiledRankTime, Reached, slowdown_by_type
from simcluster.interop.recorded.measure import Straggling

if TYPE_CHECKING:
    from simcluster.show.pictures import Figure

_STATES = ("step", "computing", "exposed", "waiting", "idle")
MOST = 12
"""Rows of a table or heatmap that people see; JSON has all."""


def headline(job: ProfiledJob) -> str:
    """Return how many ranks were recorded, on what, and in which steps."""
    kind = "GPUs" if job.steps_of_ranks[0].on_device else "CPUs"
    steps = f"step{'s' * (len(job.steps) > 1)} {', '.join(map(str, job.steps[:8]))}" + ", ..." * (len(job.steps) > 8)
    return f"{job.name}: profiles of {len(job.ranks)} rank{'s' * (len(job.ranks) > 1)} on {kind}, {steps}"


def ranks_table(found: Straggling, ranks: Sequence[ProfiledRankTime]) -> list[str]:
    """Return where the time of ranks went, slowest first."""
    order = sorted(range(len(ranks)), key=lambda worker: -found.by_replica[worker])
    every = [
        (f"rank {ranks[worker].rank}",
         [f"{found.by_replica[worker]:.4f}", *(format_seconds(getattr(ranks[worker], name)) for name in _STATES),
          f"{ranks[worker].overlap:.1%}"])
        for worker in order
    ]  # fmt: skip
    rows = alike(every)[:MOST]
    table = format_table(("rank", "S", *_STATES, "overlap"), [[together(row.names), *row.cells] for row in rows])
    note = "waiting: in a collective that not all have reached; exposed: all have, and nothing computes beside it"
    return [f"where time went, slowest first{_shown(rows, len(every), 'ranks')}", *table.splitlines(), f"  {note}"]


def _shown(rows: Sequence[AlikeRows], count: int, what: str) -> str:
    shown = sum(len(row.names) for row in rows)
    return f" ({shown} of {count} {what})" if shown < count else ""


def layers_table(job: ProfiledJob, parts: Sequence[LayerTime]) -> list[str]:
    """Return the compute of parts of the model, most uneven first."""
    if not parts:
        return []
    every = []
    for part in sorted(parts, key=lambda part: -round(part.slowest[1], 3) if part.slowest else 0.0):
        name = f"{part.label.phase} {part.label.layer}".strip()
        over = f"{part.slowest[1]:+.1%} (rank {job.ranks[part.slowest[0]]})" if part.slowest else ""
        every.append((name, [str(len(part.owners)), format_seconds(part.mean), over]))
    rows = alike(every)[:MOST]
    title = f"compute by part of the model, most uneven first{_shown(rows, len(every), 'parts')}"
    table = format_table(("part", "ranks", "time", "slowest"), [[together(row.names), *row.cells] for row in rows])
    note = (
        "time: mean of a step on the ranks that have the part; slowest: against the mean of others with the same parts"
    )
    return [title, *table.splitlines(), f"  {note}"]


def calls_table(calls: Sequence[Reached]) -> list[str]:
    """Return what collectives took and reached, next to a cluster's model where there is one."""
    if not calls:
        return []
    with_model = any(call.modelled is not None for call in calls)
    header = ["collective", "groups", "ranks", "size", "calls", "median", "bus bandwidth"]
    header += ["model", "its bus bandwidth"] * with_model

    def known(value: float | None, text: Callable[[float], str]) -> str:
        return "-" if value is None or math.isnan(value) else text(value)

    every, counts = [], dict[tuple[str, ...], int]()
    for call in calls:
        cells = [
            f"{call.kind} {call.group}", str(len(call.ranks)), known(call.bytes, format_bytes),
            format_seconds(call.seconds), known(call.bus_bandwidth, format_bytes_per_second),
        ]  # fmt: skip
        if with_model:
            cells.append(known(call.modelled, format_seconds))
            cells.append(known(call.modelled_bus_bandwidth, format_bytes_per_second))
        every.append((",".join(map(str, call.ranks)), cells))
        counts[tuple(cells)] = counts.get(tuple(cells), 0) + call.count
    rows = alike(every)[:MOST]
    shown = []
    for row in rows:
        what, ranks, size, *rest = row.cells
        shown.append([what, str(len(row.names)), ranks, size, f"{counts[row.cells]:,}", *rest])
    title = f"collectives, from the last arrival on{_shown(rows, len(every), 'groups and sizes')}"
    note = "groups: so many of as many ranks each have the same median; calls are those of all of them"
    return [title, *format_table(header, shown).splitlines(), f"  {note}"]


def document(
    job: ProfiledJob, found: Straggling, ranks: Sequence[ProfiledRankTime], parts: Sequence[LayerTime],
    calls: Sequence[Reached],
) -> dict[str, Any]:  # fmt: skip
    """Return all of it for JSON."""
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


def heatmap(job: ProfiledJob, found: Straggling) -> Figure:
    """Draw who straggles, by type of op."""
    from simcluster.show.heatmaps import straggler_heatmap

    types = list(found.by_type)[:MOST]
    return straggler_heatmap(
        slowdown_by_type(job, types),
        by_replica=found.by_replica.tolist(),
        by_stage=[found.by_type[name] for name in types],
        title=f"{job.name}: a step takes {found.slowdown - 1:.1%} longer; how much by each rank's ops of a type",
        column="rank",
        row="op type",
        rows=types,
    )
