"""simcluster replay FOLDER: PyTorch profiles of a job's ranks, replayed, measured and asked what if."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.base.processes import cores
from simcluster.base.units import format_bytes, format_bytes_per_second, format_seconds
from simcluster.cli.alike import AlikeRows, alike, together
from simcluster.cli.common import format_table
from simcluster.cli.overrides import cluster_overrides_of
from simcluster.cli.terminal import progress
from simcluster.interop.commands import waits
from simcluster.interop.kineto import ProfiledJob, load_profiles
from simcluster.interop.kineto.bandwidth import Reached, reached
from simcluster.interop.kineto.breakdown import LayerTime, ProfiledRankTime, breakdown, layers, slowdown_by_type
from simcluster.interop.kineto.spans import spans
from simcluster.interop.kineto.whatif import ask, changed
from simcluster.interop.kineto.written import write_profiles
from simcluster.interop.recorded import Straggling, measure
from simcluster.interop.recorded.waiting import waited
from simcluster.interop.recorded.whatif import ReplayAnswer

if TYPE_CHECKING:
    from simcluster.show.pictures import Figure


_STATES = ("step", "computing", "exposed", "waiting", "idle")
_ROWS = 12  # of a heatmap
_MOST = 12
"""Rows of a table that people see; JSON has all."""


def run(args: argparse.Namespace, steps: Sequence[int] | None) -> None:
    """Read the profiles, replay, measure, print, write."""
    if args.export and len(args.what_if) > 1:
        raise InputError("--export writes one timeline: give it one --what-if at most (several changes with + in it)")
    cluster = None
    if args.cluster:
        from simcluster.scenario.files import load_cluster

        cluster = load_cluster(args.cluster, cluster_overrides_of(args))
    job = load_profiles(args.trace, steps, workers=cores(), progress=_read)
    progress(f"replaying {len(job.ranks)} ranks, {sum(map(len, job.graphs)):,} ops")
    with waits.played_as_events(job) as counted:
        answers = [ask(job, question) for question in args.what_if]
        found, ranks, parts, calls = measure(job), breakdown(job), layers(job), reached(job, cluster)
        seconds = waited(job)
        events = counted(found)
    written = _export(job, args) if args.export else []
    blocks = [
        _answer(job, found), _ranks(found, ranks), waits.waits_table(job.ranks, seconds),
        waits.types_table(found, _MOST), _layers(job, parts), _calls(calls),
        waits.answers_table(answers), written, [f"note: {note}" for note in job.notes],
        [waits.played_line(job, events)],
    ]  # fmt: skip
    document = _document(job, found, ranks, parts, calls, answers, events)
    waits.tell(args, blocks, document, job, seconds)
    waits.draw(args, job, lambda: spans(job).frame(), lambda: _heatmap(job, found))


def _read(done: int, total: int) -> None:
    progress(f"{done} of {total} profiles read")


def _heatmap(job: ProfiledJob, found: Straggling) -> Figure:
    from simcluster.show.heatmaps import straggler_heatmap

    types = list(found.by_type)[:_ROWS]
    return straggler_heatmap(
        slowdown_by_type(job, types),
        by_replica=found.by_replica.tolist(),
        by_stage=[found.by_type[name] for name in types],
        title=f"{job.name}: a step takes {found.slowdown - 1:.1%} longer; how much by each rank's ops of a type",
        column="rank",
        row="op type",
        rows=types,
    )


def _export(job: ProfiledJob, args: argparse.Namespace) -> list[str]:
    what = f"with {args.what_if[0]}" if args.what_if else "as replayed"
    paths = write_profiles(changed(job, args.what_if[0]) if args.what_if else job, args.export)
    return [f"wrote {len(paths)} profiles {what} to {args.export}"]


def _answer(job: ProfiledJob, found: Straggling) -> list[str]:
    line = waits.seconds_line
    kind = "GPUs" if job.steps_of_ranks[0].on_device else "CPUs"
    steps = f"step{'s' * (len(job.steps) > 1)} {', '.join(map(str, job.steps[:8]))}" + ", ..." * (len(job.steps) > 8)
    return [
        f"{job.name}: profiles of {len(job.ranks)} rank{'s' * (len(job.ranks) > 1)} on {kind}, {steps}",
        line("measured", found.measured.mean(), "mean of a step, first start to last end"),
        line("replayed", found.replayed.mean(), f"mean error {found.error:.2%}"),
        line("T_ideal", found.ideal.mean(), "if every op took what is typical of it over ranks and steps"),
        waits.slowdown_line(found),
    ]


def _ranks(found: Straggling, ranks: Sequence[ProfiledRankTime]) -> list[str]:
    order = sorted(range(len(ranks)), key=lambda worker: -found.by_replica[worker])
    every = [
        (f"rank {ranks[worker].rank}",
         [f"{found.by_replica[worker]:.4f}", *(format_seconds(getattr(ranks[worker], name)) for name in _STATES),
          f"{ranks[worker].overlap:.1%}"])
        for worker in order
    ]  # fmt: skip
    rows = alike(every)[:_MOST]
    table = format_table(("rank", "S", *_STATES, "overlap"), [[together(row.names), *row.cells] for row in rows])
    note = "waiting: in a collective that not all have reached; exposed: all have, and nothing computes beside it"
    return [f"where time went, slowest first{_of(rows, len(every), 'ranks')}", *table.splitlines(), f"  {note}"]


def _of(rows: Sequence[AlikeRows], count: int, what: str) -> str:
    """How many are shown where not all are."""
    shown = sum(len(row.names) for row in rows)
    return f" ({shown} of {count} {what})" if shown < count else ""


def _layers(job: ProfiledJob, parts: Sequence[LayerTime]) -> list[str]:
    if not parts:
        return []
    every = []
    for part in sorted(parts, key=lambda part: -round(part.slowest[1], 3) if part.slowest else 0.0):
        name = f"{part.label.phase} {part.label.layer}".strip()
        over = f"{part.slowest[1]:+.1%} (rank {job.ranks[part.slowest[0]]})" if part.slowest else ""
        every.append((name, [str(len(part.owners)), format_seconds(part.mean), over]))
    rows = alike(every)[:_MOST]
    title = f"compute by part of the model, most uneven first{_of(rows, len(every), 'parts')}"
    table = format_table(("part", "ranks", "time", "slowest"), [[together(row.names), *row.cells] for row in rows])
    note = (
        "time: mean of a step on the ranks that have the part; slowest: against the mean of others with the same parts"
    )
    return [title, *table.splitlines(), f"  {note}"]


def _calls(calls: Sequence[Reached]) -> list[str]:
    if not calls:
        return []
    with_model = any(call.modelled is not None for call in calls)
    header = ["collective", "groups", "ranks", "size", "calls", "median", "bus bandwidth"]
    header += ["model", "its bus bandwidth"] * with_model
    every, counts = [], dict[tuple[str, ...], int]()
    for call in calls:
        cells = [
            f"{call.kind} {call.group}", str(len(call.ranks)), _known(call.bytes, format_bytes),
            format_seconds(call.seconds), _known(call.bus_bandwidth, format_bytes_per_second),
        ]  # fmt: skip
        if with_model:
            cells.append("-" if call.modelled is None else format_seconds(call.modelled))
            cells.append(_known(call.modelled_bus_bandwidth, format_bytes_per_second))
        every.append((",".join(map(str, call.ranks)), cells))
        counts[tuple(cells)] = counts.get(tuple(cells), 0) + call.count
    rows = alike(every)[:_MOST]
    shown = []
    for row in rows:
        what, ranks, size, *rest = row.cells
        shown.append([what, str(len(row.names)), ranks, size, f"{counts[row.cells]:,}", *rest])
    title = f"collectives, from the last arrival on{_of(rows, len(every), 'groups and sizes')}"
    note = "groups: so many of as many ranks each have the same median; calls are those of all of them"
    return [title, *format_table(header, shown).splitlines(), f"  {note}"]


def _known(value: float | None, text: Any) -> str:
    return "-" if value is None or math.isnan(value) else str(text(value))


def _document(
    job: ProfiledJob, found: Straggling, ranks: Sequence[ProfiledRankTime], parts: Sequence[LayerTime],
    calls: Sequence[Reached], answers: Sequence[ReplayAnswer], events: int,
) -> dict[str, Any]:  # fmt: skip
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
        **waits.played_document(job, answers, events),
    }  # fmt: skip
