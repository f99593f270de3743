"""One step of a trace and of its simulation as timelines with the same columns and ranks, for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simcluster.base.errors import InputError
from simcluster.interop.own_trace.difference import TraceDifference
from simcluster.interop.own_trace.side import MESSAGE, part_of
from simcluster.results.timeline import Spans

if TYPE_CHECKING:
    import pandas as pd


def recorded_step(found: TraceDifference) -> Spans:
    """The first recorded step from its begin on, with the scenario's stages."""
    spans = found.recorded_spans
    own = spans.step == 0
    plan = found.result.job.plan.stages()
    begin = float(np.minimum(spans.ready, spans.start)[own].min())
    times = {name: getattr(spans, name) - begin for name in ("ready", "start", "end")}
    return part_of(spans, own & np.isin(spans.rank, list(found.computed)), stage=plan[spans.rank % len(plan)], **times)


def timelines(found: TraceDifference, ranks: Sequence[int] | None = None) -> dict[str, pd.DataFrame]:
    """The first step of both sides from its begin on, simulated and recorded, of these ranks (all that were recorded).

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
    for table in (played, recorded):
        begin = float(table[["ready", "start"]].min().min())
        table[["ready", "start", "end"]] = table[["ready", "start", "end"]] - begin
    return {f"simulated: {found.names[0]}": played, f"recorded: {found.names[1]}": recorded}
