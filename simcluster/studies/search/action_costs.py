"""What the actions of a schedule take at the least on their stage's main lane."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from simcluster.planning.works import Transfer
from simcluster.schedules.actions import Kind
from simcluster.studies.search.free_links import Call
from simcluster.studies.search.pass_times import LeastPassTimes, slice_times
from simcluster.studies.search.pipelines import PipelineRoute


def action_costs(
    pipeline: PipelineRoute, times: LeastPassTimes, least: Sequence[Mapping[Call, float]], *, sends_block: bool
) -> Callable[[Kind, int, int], float]:
    """Seconds of an action by kind, stage and chunk: the pass, the gather before it, a send that blocks."""
    slices = slice_times(pipeline, times)
    route, made = pipeline.route, times.made_of

    def seconds(kind: Kind, stage: int, chunk: int) -> float:
        number = route.index((stage, chunk))
        found = slices[number][kind]
        before = number - 1 if kind == "F" else number + 1
        after = number + 1 if kind == "F" else number - 1
        if kind == "W":
            return found
        if made.gathered and 0 <= before < len(route) and route[before][0] != stage:
            found += times.boundary[kind]
        if sends_block and 0 <= after < len(route) and route[after][0] != stage:
            found += least[stage][Transfer(route[after][0], made.send_bytes)]
        return found

    return seconds
