"""One step of a trace and of its simulation as timelines with the same columns and ranks, for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcluster.base.errors import InputError
from simcluster.studies.own_trace.difference import TraceDifference
from simcluster.studies.own_trace.side import MESSAGE

if TYPE_CHECKING:
    import pandas as pd


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
    stage = dict(zip(played["rank"].tolist(), played["stage"].tolist(), strict=True))
    side = found.recorded_spans
    recorded = side.frame()
    recorded = recorded[(recorded["step"] == 0) & recorded["rank"].isin(chosen)].reset_index(drop=True)
    recorded["stage"] = recorded["rank"].map(stage)
    played["kind"] = played["kind"].replace({"send": MESSAGE, "recv": MESSAGE})
    for table in (played, recorded):
        begin = float(table[["ready", "start"]].min().min())
        table[["ready", "start", "end"]] = table[["ready", "start", "end"]] - begin
    return {f"simulated: {found.names[0]}": played, f"recorded: {found.names[1]}": recorded}
