"""A pipeline schedule of one's own, for --pipeline.schedule examples/mine.py:eager_1f1b."""

from simcluster.schedules.actions import Action, Schedule, loop_route
from simcluster.schedules.interleaved import alternate_passes


def eager_1f1b(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """1F1B with twice the warm-up: more microbatches in flight, and sends that are never waited for."""
    forwards = [Action("F", m) for m in range(num_microbatches)]
    backwards = [Action("B", m) for m in range(num_microbatches)]
    rows = [alternate_passes(forwards, backwards, warmup=2 * (num_stages - 1 - stage)) for stage in range(num_stages)]
    return Schedule.with_single_route(loop_route(num_stages, num_chunks), "eager 1f1b", rows, num_microbatches)
