"""1F1B with passes fused in pairs, so that the communication of one can overlap with the compute of the other."""

from __future__ import annotations

from typing import Literal, assert_never

from simcluster.base.errors import InputError
from simcluster.schedules.actions import Action, Schedule, loop_route
from simcluster.schedules.check import require_counts, require_one_chunk
from simcluster.schedules.one_f_one_b import alternate_passes, one_f_one_b

Pairs = Literal["forward-backward", "microbatches"]


def one_f_one_b_in_pairs(num_stages: int, num_microbatches: int, num_chunks: int = 1, *, pairs: Pairs) -> Schedule:
    """Make 1F1B in pairs of two passes that are fused, also on a single stage.

    "forward-backward": the forward of one microbatch with the backward of an earlier one, [F|B], for which stage r of P
    runs P - r more forwards ahead; with one stage Megatron-LM's ``combined_1f1b_schedule_for_no_pipelining``.
    "microbatches": the same pass of two microbatches, [F|F] and [B|B], such as two halves of a batch. With f and b the
    times of a pass the makespan is (M + P - 1)(f + b), or (M + 2 P - 2)(f + b) in pairs of microbatches. InputError for
    counts below one, several chunks, and an odd number of microbatches in pairs of them.

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(one_f_one_b_in_pairs(1, 4, pairs="forward-backward"))
    ['r0 F0 [F1|B0] [F2|B1] [F3|B2] B3']
    >>> order_lines(one_f_one_b_in_pairs(1, 4, pairs="microbatches"))
    ['r0 [F0|F1] [B0|B1] [F2|F3] [B2|B3]']
    """
    require_counts("1f1b", num_stages, num_microbatches, num_chunks)
    require_one_chunk("1f1b", num_chunks)
    if pairs == "forward-backward":
        forwards, backwards = ([Action(kind, m) for m in range(num_microbatches)] for kind in ("F", "B"))
        ahead = [2 * (num_stages - 1 - stage) + 1 for stage in range(num_stages)]
        rows = [alternate_passes(forwards, backwards, warmup=warmup) for warmup in ahead]
        fused = [range(warmup, 2 * num_microbatches - warmup, 2) for warmup in ahead]
    elif pairs == "microbatches":
        if num_microbatches % 2:
            what = f"schedule '1f1b' in pairs of microbatches: {num_microbatches} is not divisible by 2"
            raise InputError(f"{what}; use {num_microbatches + 1} microbatches, or pairs: forward-backward")
        single = one_f_one_b(num_stages, num_microbatches // 2)
        rows = [tuple(Action(kind, 2 * m + half) for kind, m, _ in row for half in (0, 1)) for row in single.rows]
        fused = [range(0, 2 * num_microbatches, 2)] * num_stages
    else:
        assert_never(pairs)
    return Schedule.with_single_route(loop_route(num_stages, 1), "1f1b", rows, num_microbatches, fused)
