"""A recorded trace as a report shows it: sentences, tables and the first step, next to the only run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.errors import InputError
from simcluster.interop.kineto import load_profiles
from simcluster.interop.kineto.comm import KernelNames
from simcluster.interop.own_trace.difference import TraceDifference, diff_trace
from simcluster.interop.own_trace.states import MESSAGE, part_of
from simcluster.interop.own_trace.text import tables
from simcluster.results.result import Result
from simcluster.results.timeline import Spans
from simcluster.show.blocks import Lines
from simcluster.show.report.entry import ReportedTrace
from simcluster.show.report.html import html_of

if TYPE_CHECKING:
    import pandas as pd


def recorded_step(found: TraceDifference) -> Spans:
    """Return the first recorded step from its begin on, with the scenario's stages."""
    spans = found.recorded_spans
    own = spans.step == 0
    plan = found.result.job.plan.stages()
    begin = float(np.minimum(spans.ready, spans.start)[own].min())
    times = {name: getattr(spans, name) - begin for name in ("ready", "start", "end")}
    return part_of(spans, own & np.isin(spans.rank, list(found.computed)), stage=plan[spans.rank % len(plan)], **times)


def timelines(found: TraceDifference, ranks: Sequence[int] | None = None) -> dict[str, pd.DataFrame]:
    """Return the first step of both sides from its begin on, of these ranks (default: all that were recorded).

    Raises InputError for a rank that is not in the trace.
    """
    import pandas as pd

    chosen = list(found.computed) if ranks is None else list(ranks)
    wrong = [rank for rank in chosen if rank not in found.computed]
    if wrong:
        known = ", ".join(map(str, list(found.computed)[:8])) + (", ..." if len(found.computed) > 8 else "")
        raise InputError(f"there is no profile of rank {wrong[0]}; the trace has {known}")
    result = found.result
    played = pd.concat([result.timeline_of(rank) for rank in chosen], ignore_index=True)
    played = played[played["step"] == played["step"].min()]
    recorded = recorded_step(found).frame()
    recorded = recorded[recorded["rank"].isin(chosen)].reset_index(drop=True)
    played["kind"] = played["kind"].replace({"send": MESSAGE, "recv": MESSAGE})
    for side in (played, recorded):
        begin = float(side[["ready", "start"]].min().min())
        side[["ready", "start", "end"]] = side[["ready", "start", "end"]] - begin
    return {f"simulated: {found.names[0]}": played, f"recorded: {found.names[1]}": recorded}


def read_trace(path: str | Path, kernels: str | None) -> Callable[[Result], ReportedTrace]:
    """Read a trace, and return a function that compares a result with it; InputError for files that cannot be read."""
    KernelNames(kernels)  # rejects a table that cannot be read
    recorded = load_profiles(path)
    return lambda result: reported(diff_trace(result, recorded, kernels=kernels))


def reported(found: TraceDifference) -> ReportedTrace:
    """Return a trace as a page shows it: sentences, the largest finding first, then the tables of the command."""
    said, notes = Lines(found.sentences()), Lines([f"Note: {note}" for note in found.notes])
    shown = html_of([said, *tables(found), notes])
    return ReportedTrace(found.names[1], tuple(sorted(found.computed)), shown, recorded_step(found))
