"""1F1B schedule: warm-up forwards, then alternating forward and backward passes."""

from __future__ import annotations

from collections.abc import Sequence

from simcluster.schedules.actions import Action, Schedule, loop_route
from simcluster.schedules.check import require_counts, require_one_chunk


def one_f_one_b(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Make 1F1B: each stage runs warm-up forwards, then alternates F and B, then runs the remaining backwards.

    Stage r of P runs min(P - 1 - r, M) of M forwards ahead.
    Makespan (M + P - 1)(F + B) as GPipe, but only min(P - r, M) microbatches in flight on stage r. Source:
    PipeDream-Flush, Narayanan et al., arXiv:2006.09503, section 3.2; arXiv:2104.04473, figure 4. InputError for counts
    below one or several chunks.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(one_f_one_b(2, 3))
    ['r0 F0 F1 B0 F2 B1 B2', 'r1 F0 B0 F1 B1 F2 B2']
    """
    require_counts("1f1b", num_stages, num_microbatches, num_chunks)
    require_one_chunk("1f1b", num_chunks)
    forwards = [Action("F", m) for m in range(num_microbatches)]
    backwards = [Action("B", m) for m in range(num_microbatches)]
    rows = [alternate_passes(forwards, backwards, warmup=num_stages - 1 - stage) for stage in range(num_stages)]
    return Schedule.with_single_route(loop_route(num_stages, 1), "1f1b", rows, num_microbatches)


def one_f_one_b_first_forwards(num_stages: int, num_microbatches: int, num_chunks: int, stage: int) -> int:
    """Return the number of forwards that a stage of 1F1B runs before its first backward.

    >>> [one_f_one_b_first_forwards(4, 8, 1, stage) for stage in range(4)]
    [4, 3, 2, 1]
    """
    del num_chunks  # one
    return min(num_stages - stage, num_microbatches)


def alternate_passes(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> tuple[Action, ...]:
    """Return a stage's row: ``warmup`` forwards, then forwards and backwards in turn, then the remaining backwards."""
    warmup = min(warmup, len(forwards))
    row = list(forwards[:warmup])
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        row += (forward, backward)
    row += backwards[len(forwards) - warmup :]
    return tuple(row)
