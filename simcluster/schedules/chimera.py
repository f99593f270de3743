"""Chimera: two pipelines in opposite directions, each filling the other's bubble."""

from __future__ import annotations

from simcluster.base.errors import InputError
from simcluster.schedules.actions import Action, Schedule, two_ways
from simcluster.schedules.check import require_counts, require_own_chunks


def chimera(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Half of the microbatches go down (chunk 0), half up (chunk 1, a second copy); units of P microbatches in turn.

    Unit after unit is put behind each other ("direct concatenation"): for M = k P the makespan is
    M (F + B) + (P - 2)(max(F, B) + (k - 1) |B - F|), and P/2 + 1 + min(r, P - 1 - r) microbatches are in flight on
    stage r.  Source: Li and Hoefler, arXiv:2107.06925, section 3.
    InputError for counts below one, or stages or microbatches that are odd.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(chimera(2, 2))
    ['r0 F0.0 F1.1 B1.1 B0.0', 'r1 F1.1 F0.0 B0.0 B1.1']
    """
    require_counts("chimera", num_stages, num_microbatches, num_chunks)
    require_own_chunks("chimera", num_chunks, 2, "a copy of the model for each direction")
    if num_stages % 2 or num_microbatches % 2:
        raise InputError(
            f"schedule 'chimera': {num_microbatches} microbatches on {num_stages} stages; both must be even, half of "
            f"the microbatches for each direction, such as {num_microbatches + num_microbatches % 2} on "
            f"{num_stages + num_stages % 2}"
        )
    half = num_microbatches // 2
    return Schedule(
        name="chimera",
        rows=tuple(_row(num_stages, stage, half) for stage in range(num_stages)),
        num_microbatches=num_microbatches,
        num_chunks=2,
        routes=two_ways(num_stages),
        route_of=(0,) * half + (1,) * half,
    )


def _row(num_stages: int, stage: int, each_way: int) -> tuple[Action, ...]:
    """The actions of a stage in the order of their slots, F and B taking one slot each; no slot is wanted twice."""
    slots: dict[int, Action] = {}
    for chunk, place in ((0, stage), (1, num_stages - 1 - stage)):
        for index in range(each_way):
            unit, turn = divmod(index, num_stages // 2)
            forward = 2 * num_stages * unit + 2 * turn + place
            backward = 2 * num_stages * unit + 2 * turn + 2 * num_stages - 1 - place
            microbatch = chunk * each_way + index
            slots[forward] = Action("F", microbatch, chunk)
            slots[backward] = Action("B", microbatch, chunk)
    return tuple(slots[slot] for slot in sorted(slots))
