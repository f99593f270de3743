"""What goes over dp beside the passes of a stage."""

from __future__ import annotations

from collections.abc import Mapping

from simcluster.studies.search.free_links import Call
from simcluster.studies.search.pipelines import PipelineRoute, Turns
from simcluster.studies.search.stage_calls import StageCalls


def over_dp(
    calls: StageCalls, pipeline: PipelineRoute, number: int, many: int, least: Mapping[Call, float],
    turns: Turns | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Seconds that the passes of a stage by its ``number`` are held up by what goes over dp again and again in ``many``
    microbatches, and seconds of its dp lanes.

    Without overlap a use of a unit waits for its gather, which begins when the use before it is over, and for the last
    reduction; so they all come one after the other.  Units that stay from forward to backward (as many as are there at
    once) are not counted, nor units that are not full; they may stay where a schedule ``turns`` from forward to
    backward of a chunk, or anywhere if that is not known.
    """
    fsdp, overlap = calls.base.fsdp, calls.base.overlap
    times = many if fsdp.sync_every_microbatch else 1
    if calls.zero < 3:
        return times * sum(least[call] for call in calls.each_slice(pipeline, number)), 0.0
    gather, reduction = (sum(least[call] for call in each) for each in calls.each_unit())
    stays = (fsdp.prefetch if overlap.param_gather else 0) + 1
    again = whole = 0
    for each in pipeline.held[number].slices:
        units = pipeline.counts[each] // fsdp.unit_layers
        whole += units
        again += 2 * many * units - min(stays, units) * (many if turns is None else turns[pipeline.route[each]])
    gathers = again * gather if fsdp.reshard_after_forward else 0.0
    reductions = times * whole * reduction
    combined = max if fsdp.lanes == "two" else sum
    blocking = [
        time for time, beside in ((gathers, overlap.param_gather), (reductions, overlap.grad_reduce)) if not beside
    ]
    return combined([*blocking, 0.0]), combined([gathers, reductions])
