"""GPipe (all forwards, then all backwards) and the breadth-first schedule (GPipe chunk after chunk)."""

from __future__ import annotations

from simcluster.schedules.actions import Action, Schedule, loop_route
from simcluster.schedules.check import require_counts, require_one_chunk


def breadth_first(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Make the breadth-first schedule: all forwards of chunk 0, of chunk 1, ...; then the backwards in reverse order.

    A chunk's weights are needed once in each direction, which is what makes sharded weights cheap. With f and b the
    times of one chunk the makespan is (M v + P - 1)(f + b) for M >= P; all M v chunks are in flight. Source:
    Lamy-Poirier, arXiv:2211.05953, section 4.1, with B in the reverse order of F as torch's ``ScheduleLoopedBFS``.
    InputError for counts below one.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(breadth_first(2, 2, 2))
    ['r0 F0.0 F1.0 F0.1 F1.1 B1.1 B0.1 B1.0 B0.0', 'r1 F0.0 F1.0 F0.1 F1.1 B1.1 B0.1 B1.0 B0.0']
    """
    require_counts("breadth-first", num_stages, num_microbatches, num_chunks)
    forwards = [(m, chunk) for chunk in range(num_chunks) for m in range(num_microbatches)]
    row = [Action("F", *each) for each in forwards] + [Action("B", *each) for each in reversed(forwards)]
    route = loop_route(num_stages, num_chunks)
    return Schedule.with_single_route(route, "breadth-first", (row,) * num_stages, num_microbatches)


def gpipe(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Make GPipe: every stage runs the forwards of all microbatches in order, then their backwards in order.

    Makespan (M + P - 1)(F + B); all M microbatches are in flight. Source: Huang et al., arXiv:1811.06965, figure 2.
    InputError for counts below one or several chunks.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(gpipe(2, 3))
    ['r0 F0 F1 F2 B0 B1 B2', 'r1 F0 F1 F2 B0 B1 B2']
    """
    require_counts("gpipe", num_stages, num_microbatches, num_chunks)
    require_one_chunk("gpipe", num_chunks)
    row = tuple([Action("F", m) for m in range(num_microbatches)] + [Action("B", m) for m in range(num_microbatches)])
    return Schedule.with_single_route(loop_route(num_stages, 1), "gpipe", (row,) * num_stages, num_microbatches)
