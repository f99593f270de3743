"""What goes over dp beside the passes of a stage, and how long these take with it at the least."""

from __future__ import annotations

from collections.abc import Mapping

from simcluster.planning.job import Job
from simcluster.planning.replicas import buckets_of
from simcluster.studies.search.free_links import Call
from simcluster.studies.search.pipelines import PipelineRoute, Turns
from simcluster.studies.search.stage_calls import StageCalls
from simcluster.studies.search.stretches import Occupied, hidden


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


def in_buckets(calls: StageCalls, job: Job, number: int, many: int, least: Mapping[Call, float]) -> float:
    """Seconds of the dp lane of a stage by its ``number`` under ZeRO 0, 1 and 2, where gradients are reduced, or
    parameters gathered, in buckets beside the passes of ``many`` microbatches."""
    data, fsdp = calls.data, calls.base.fsdp
    held = [each for buckets in buckets_of(job, number).values() for _, each in buckets]
    seconds = 0.0
    if data.overlap_reduce:
        times = many if calls.zero == 2 and fsdp.sync_every_microbatch else 1
        kind = "reduce_scatter" if calls.zero else "all_reduce"
        seconds += times * sum(least[call] for each in held for call in calls.over(kind, each, data.gradient_bytes))
    if data.overlap_gather and calls.zero in (1, 2):
        seconds += sum(least[call] for each in held for call in calls.over("all_gather", each, data.parameter_bytes))
    return seconds


def pressed(own: Occupied, many: int, pressure: float, outside: float, lane: float) -> float:
    """When ``many`` microbatches' passes, each with ``own`` forward and backward, are over at the least on a stage that
    computes nothing for ``outside`` seconds besides, while collectives over dp are under way for ``lane`` seconds.

    As in ``stretches``: what of these does not fit beside time in which nothing is computed slows down computation.
    """
    idle = outside + many * own.idle
    computed = {sensitivity: many * seconds for sensitivity, seconds in own.computed.items()}
    slowed = sum(computed.values()) + hidden(computed, lane - idle, pressure)
    return idle + max(many * (own.seconds - own.idle), slowed)
