"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from simcluster.schedules.actions import Action, Schedule, loop_route
from simcluster.schedules.check import require_counts, require_one_chunk


def gpipe(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Every stage runs F of all microbatches, then B of all of them, both in order.

    Makespan (M + P - 1)(F + B); all M microbatches are in flight.  Source: Huang et al., arXiv:1811.06965, figure 2.
    InputError for counts below one or several chunks.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(gpipe(2, 3))
    ['r0 F0 F1 F2 B0 B1 B2', 'r1 F0 F1 F2 B0 B1 B2']
    """
    require_counts("gpipe", num_stages, num_microbatches, num_chunks)
    require_one_chunk("gpipe", num_chunks)
    row = tuple([Action("F", m) for m in range(num_microbatches)] + [Action("B", m) for m in range(num_microbatches)])
    return Schedule.along(loop_route(num_stages, 1), "gpipe", (row,) * num_stages, num_microbatches)
