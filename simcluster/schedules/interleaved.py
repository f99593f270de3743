"""Interleaved 1F1B: several chunks per stage shorten the pipeline's fill and drain."""

from __future__ import annotations

from typing import Literal

from simcluster.base.errors import InputError
from simcluster.schedules.actions import Action, Schedule, loop_route
from simcluster.schedules.check import require_counts
from simcluster.schedules.one_f_one_b import alternate_passes


def interleaved(
    num_stages: int, num_microbatches: int, num_chunks: int = 1, *, group_size: int | None = None, pairs: bool = False
) -> Schedule:
    """Make interleaved 1F1B: a group of microbatches passes through chunk 0, then chunk 1, ...; backward in reverse.

    Stage r runs min(2 (P - 1 - r) + (v - 1) g, M v) forwards ahead, g the group size (default: P). With f and b the
    times of one chunk the makespan is (M v + P - 1)(f + b): the bubble shrinks v times, for more messages and 2 (P - 1
    - r) + (v - 1) g + 1 chunks in flight on stage r; larger groups hide messages better and hold more. With one chunk
    the makespan is that of 1F1B. Source: Narayanan et al., arXiv:2104.04473, section 2.2, in the order of Megatron-LM's
    ``forward_backward_pipelining_with_interleaving``; ``group_size`` is its
    ``--microbatch-group-size-per-virtual-pipeline-stage``.

    With ``pairs`` one more forward runs ahead, and from then on a forward and a backward are one fused pair [F|B], so
    that the communication of each can overlap with the other: Megatron-LM's ``--overlap-moe-expert-parallel-comm``. The
    makespan of pairs that take f + b stays the same, with one chunk more in flight. InputError for counts below one;
    without a group size, microbatches that are not a multiple of the stages; with one, groups (the last one too) of
    fewer microbatches than stages (Megatron-LM's rules).

    >>> from simcluster.schedules.text import order_lines
    >>> order_lines(interleaved(2, 2, 2))
    ['r0 F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0', 'r1 F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0']
    """
    require_counts("interleaved", num_stages, num_microbatches, num_chunks)
    group = num_stages if group_size is None else group_size
    _require_valid_groups(num_stages, num_microbatches, group, given=group_size is not None)
    forwards = _list_grouped_actions("F", group, num_microbatches, range(num_chunks))
    backwards = _list_grouped_actions("B", group, num_microbatches, range(num_chunks - 1, -1, -1))
    ahead = [2 * (num_stages - 1 - stage) + (num_chunks - 1) * group + pairs for stage in range(num_stages)]
    rows = [alternate_passes(forwards, backwards, warmup=warmup) for warmup in ahead]
    fused = [range(warmup, 2 * len(forwards) - warmup, 2) for warmup in ahead] if pairs else ()
    return Schedule.with_single_route(loop_route(num_stages, num_chunks), "interleaved", rows, num_microbatches, fused)


def interleaved_first_forwards(num_stages: int, num_microbatches: int, num_chunks: int, stage: int) -> int:
    """Return the number of forwards before a stage's first backward, for groups of ``num_stages`` microbatches."""
    ahead = 2 * (num_stages - 1 - stage) + (num_chunks - 1) * num_stages
    return min(ahead + 1, num_microbatches * num_chunks)


def _require_valid_groups(num_stages: int, num_microbatches: int, group: int, *, given: bool) -> None:
    where = f"schedule 'interleaved': {num_microbatches} microbatches on {num_stages} stages"
    if not given and num_microbatches % num_stages:
        below = num_microbatches // num_stages * num_stages
        fix = " or ".join(str(n) for n in (below, below + num_stages) if n)
        raise InputError(
            f"{where}; the microbatches must be a multiple of the stages, such as {fix} (or use schedule '1f1b', which "
            f"takes any number)"
        )
    if isinstance(group, bool) or not isinstance(group, int) or group < num_stages:
        raise InputError(
            f"{where} in groups of {group!r}; a group needs at least one microbatch per stage: use {num_stages} or more"
        )
    if 0 < num_microbatches % group < num_stages:
        raise InputError(
            f"{where} in groups of {group} leave {num_microbatches % group} for the last group, which needs "
            f"{num_stages} or more; use {num_microbatches // group * group or group} or "
            f"{num_microbatches // group * group + num_stages} microbatches, or another group size"
        )


def _list_grouped_actions(kind: Literal["F", "B"], group: int, num_microbatches: int, chunks: range) -> list[Action]:
    return [
        Action(kind, microbatch, chunk)
        for begin in range(0, num_microbatches, group)
        for chunk in chunks
        for microbatch in range(begin, min(begin + group, num_microbatches))
    ]
