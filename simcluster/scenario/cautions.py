"""What a scenario asks for that costs more than it looks: said with every result, with what would not.

Pure functions of a scenario and of what its ranks hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from simcluster.base.units import format_seconds
from simcluster.scenario.memory_plan import shape_of

if TYPE_CHECKING:
    from simcluster.planning.footprint import Footprint
    from simcluster.scenario.scenario import Scenario


def cautions(scenario: Scenario, footprints: Sequence[Footprint], recompute: float) -> Iterator[str]:
    """Each in a line; ``recompute`` is what the mean rank runs again in a step (s)."""
    yield from _whole_gradients(scenario, footprints)
    if shape_of(scenario).core_again and scenario.training.attention == "fused":
        yield (
            f"recompute: selective runs the fused attention again, {format_seconds(recompute)} a step, and frees only "
            "its softmax statistics; recompute: none is faster and holds hardly more"
        )


def _whole_gradients(scenario: Scenario, footprints: Sequence[Footprint]) -> Iterator[str]:
    """ZeRO 2 whose reductions wait for the end of the backward holds a microbatch's gradients whole till then.

    DeepSpeed's stage 2 reduces bucket by bucket (``reduce_bucket_size``) in the backward, with overlap_comm or without
    (runtime/zero/stage_1_and_2.py, ``reduce_independent_p_g_buckets_and_remove_grads``), and FSDP's SHARD_GRAD_OP unit
    by unit; whole they are there only where one bucket has them all.
    """
    if scenario.parallel.zero != 2 or scenario.overlap.grad_reduce:
        return
    whole = max(each.unsharded for each in footprints)
    most = max(each.gradients + each.unsharded for each in footprints)
    if whole:
        yield (
            f"ZeRO 2 without overlap.grad_reduce holds up to {_size(most)} of gradients a GPU: its shard, and "
            f"{_size(whole)} whole until the backward is over, where ZeRO 1 has them whole and nothing else; with "
            "overlap.grad_reduce: true they go out in buckets, as DeepSpeed's do"
        )


def _size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
