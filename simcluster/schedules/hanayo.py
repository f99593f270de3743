"""Hanayo schedule: microbatches go through the stages in waves, down and up, with one copy of the model."""

from __future__ import annotations

from simcluster.base.errors import InputError
from simcluster.schedules.actions import Action, Route, Schedule, snake_route
from simcluster.schedules.check import require_counts


def hanayo(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Make Hanayo: microbatches go down and up the stages W times; each stage has 2 W chunks (1 chunk means W = 1).

    The order is that of list scheduling in slots of equal length, backward before forward, later slices before earlier
    ones, with at most P microbatches in flight. With f and b the times of one chunk and M = k P the makespan is 2 W M
    (f + b) + 2 (P - 1)(max(f, b) + (k - 1) |b - f|); for M >= P, 2 W P - (P - 1 - r) chunks are in flight on stage r.
    Source of placement and waves: Liu et al., arXiv:2308.15762; the order is simcluster's. InputError for counts below
    one, or an odd number of chunks other than 1.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(hanayo(2, 2, 2))
    ['r0 F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0', 'r1 F0.0 F0.1 F1.0 F1.1 B0.1 B0.0 B1.1 B1.0']
    """
    require_counts("hanayo", num_stages, num_microbatches, num_chunks)
    if num_chunks > 1 and num_chunks % 2:
        raise InputError(
            f"schedule 'hanayo': {num_chunks} chunks per stage must be even, since a wave has two (down and up); use "
            f"{num_chunks - 1} or {num_chunks + 1}"
        )
    route = snake_route(num_stages, max(2, num_chunks))
    rows = _order_by_slots(num_stages, num_microbatches, route)
    return Schedule.with_single_route(route, "hanayo", rows, num_microbatches)


def _order_by_slots(num_stages: int, num_microbatches: int, route: Route) -> list[list[Action]]:
    """Order passes by list scheduling: in each time slot, each stage runs its most urgent pass that is ready."""
    rows: list[list[Action]] = [[] for _ in range(num_stages)]
    num_slices, under_way = len(route), list[int]()  # microbatches from the oldest to the youngest
    passes, entered = [0] * num_microbatches, 0
    while entered < num_microbatches or under_way:
        if entered < num_microbatches and len(under_way) < num_stages:
            under_way.append(entered)
            entered += 1
        best: dict[int, tuple[tuple[int, int], int, Action]] = {}
        for microbatch in under_way:
            done = passes[microbatch]
            back = done >= num_slices
            stage, chunk = route[2 * num_slices - 1 - done if back else done]
            rank = (-1, 0) if back else (0, -done)
            if stage not in best or rank < best[stage][0]:
                best[stage] = (rank, microbatch, Action("B" if back else "F", microbatch, chunk))
        for stage, (_, microbatch, action) in best.items():
            rows[stage].append(action)
            passes[microbatch] += 1
        under_way = [microbatch for microbatch in under_way if passes[microbatch] < 2 * num_slices]
    return rows
