"""DualPipe: microbatches enter at both ends, and a forward of one way runs fused with a backward of the other."""

from __future__ import annotations

from simcluster.base.errors import InputError
from simcluster.schedules.actions import Schedule, two_ways
from simcluster.schedules.check import require_counts, require_own_chunks
from simcluster.schedules.dualpipe_v import eight_steps


def dualpipe(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Schedule:
    """Stage r holds slice r for the microbatches that go down and slice P - 1 - r, a second copy, for those that go up.

    The first half of the microbatches goes down (chunk 0), the second half up (chunk 1).  With F = I >= W and F + B the
    time of a fused pair the makespan is M (F + B) + (P/2 - 1)(F + 2 B - 3 W); at most P + 1 microbatches in flight.
    Source: DeepSeek-V3, arXiv:2412.19437, figure 5 and table 2; its repository DualPipe.
    InputError for counts below one, stages or microbatches that are odd, or fewer than 2 P microbatches.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(dualpipe(2, 4))[0]
    'r0 F0.0 F2.1 F1.0 B2.1 [F3.1|B0.0] B3.1 I1.0 W1.0'
    """
    require_counts("dualpipe", num_stages, num_microbatches, num_chunks)
    require_own_chunks("dualpipe", num_chunks, 2, "a copy of the model for each direction")
    if num_stages % 2 or num_microbatches % 2 or num_microbatches < 2 * num_stages:
        raise InputError(
            f"schedule 'dualpipe': {num_microbatches} microbatches on {num_stages} stages; it needs an even number of "
            f"stages, and an even number of microbatches from twice the stages, such as "
            f"{2 * (num_stages + num_stages % 2)} on {num_stages + num_stages % 2} (or use schedule 'dualpipe-v')"
        )
    half, each_way = num_stages // 2, num_microbatches // 2
    written = []
    for stage in range(num_stages):
        place = min(stage, num_stages - 1 - stage)
        near = int(stage >= half)
        written.append(eight_steps(half, place, each_way, (0, each_way), middle=place == half - 1, near=near))
    return Schedule(
        name="dualpipe",
        rows=tuple(tuple(row.actions) for row in written),
        num_microbatches=num_microbatches,
        num_chunks=2,
        routes=two_ways(num_stages),
        route_of=(0,) * each_way + (1,) * each_way,
        fused=tuple(tuple(row.fused) for row in written),
    )
