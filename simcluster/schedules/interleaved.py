"""Interleaved 1F1B: 1F1B over several chunks per stage, so that the pipeline fills sooner."""

from __future__ import annotations

from typing import Literal

from simcluster.errors import InputError
from simcluster.schedules.actions import Action, Schedule, loop_route
from simcluster.schedules.check import require_counts
from simcluster.schedules.one_f_one_b import alternate


def interleaved(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Microbatches go in groups of P through chunk 0, then the group through chunk 1, and so on; backward in reverse.

    Stage r runs min(2 (P - 1 - r) + (v - 1) P, M v) forwards ahead.  With f and b the times of one chunk the makespan
    is (M v + P - 1)(f + b): the bubble shrinks v times, for more messages and P + (P - 1) / v microbatches in flight on
    stage 0.  With one chunk the makespan is that of 1F1B.  Source: Narayanan et al., arXiv:2104.04473, section 2.2, in
    the order of Megatron-LM's ``forward_backward_pipelining_with_interleaving`` with groups of P.
    InputError for counts below one, or microbatches that are no multiple of the stages (Megatron-LM's rule).
    """
    require_counts("interleaved", num_stages, num_microbatches, num_chunks)
    if num_microbatches % num_stages:
        below = num_microbatches // num_stages * num_stages
        fix = " or ".join(str(n) for n in (below, below + num_stages) if n)
        raise InputError(
            f"schedule 'interleaved': {num_microbatches} microbatches on {num_stages} stages; the microbatches must be "
            f"a multiple of the stages, such as {fix} (or use schedule '1f1b', which takes any number)"
        )
    forwards = _in_groups("F", num_stages, num_microbatches, range(num_chunks))
    backwards = _in_groups("B", num_stages, num_microbatches, range(num_chunks - 1, -1, -1))
    ahead = [2 * (num_stages - 1 - stage) + (num_chunks - 1) * num_stages for stage in range(num_stages)]
    return Schedule(
        name="interleaved",
        rows=tuple(alternate(forwards, backwards, warmup=warmup) for warmup in ahead),
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
        routes=(loop_route(num_stages, num_chunks),),
        route_of=(0,) * num_microbatches,
    )


def _in_groups(kind: Literal["F", "B"], group: int, num_microbatches: int, chunks: range) -> list[Action]:
    return [
        Action(kind, microbatch, chunk)
        for begin in range(0, num_microbatches, group)
        for chunk in chunks
        for microbatch in range(begin, begin + group)
    ]
