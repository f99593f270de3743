"""Products and tensor-parallel collectives cut into pieces: the closed form, nothing lost, and where it pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from segment_times import segment_seconds

from simcluster.model.kernels import Kernel, split_matmul
from simcluster.model.layers import RankShape
from simcluster.model.transformer import Model
from simcluster.planning.ops import Op, Segment
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.segment_builder import SegmentBuilder
from simcluster.planning.work_kinds import Collective, Compute
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate

MODEL = Model(
    layers=2, hidden_size=512, heads=8, kv_heads=8, ffn_hidden_size=2048, vocab_size=1024, sequence_length=128,
    gated_mlp=False,
)  # fmt: skip
ALL = PassLayers((0, 1), embedding=True, lm_head=True)


def product(seconds: float) -> Kernel:
    return Kernel("product", "matmul", seconds, 1.0, m=1024, n=8, k=8)


def by_flops(kernels: Sequence[Kernel]) -> Compute:
    return Compute(sum(kernel.flops for kernel in kernels))


def length(segment: Segment, byte_seconds: float = 1.0) -> float:
    """Seconds of a segment whose collectives take their bytes and whose kernels take their FLOP."""

    def seconds(op: Op) -> float:
        return op.work.size * byte_seconds if isinstance(op.work, Collective) else op.work.seconds  # type: ignore[union-attr]

    return segment_seconds(segment, seconds)


@given(
    product_unit=st.integers(1, 64),
    comm_unit=st.integers(1, 64),
    pieces=st.sampled_from([1, 2, 4, 8]),
    way=st.sampled_from(["gathered", "reduced"]),
)
def test_two_things_in_pieces_take_the_longer_and_a_piece_of_the_shorter(
    product_unit: int, comm_unit: int, pieces: int, way: str
) -> None:
    """T = max(g, c) + min(g, c) / pieces, exactly."""
    g, c = float(product_unit * pieces), float(comm_unit * pieces)
    ops = SegmentBuilder(by_flops, pieces=pieces)
    ops.add_kernels((product(1.0),), "forward", "before", 0)
    if way == "gathered":
        ops.add_gathered_matmul(product(g), "forward", "block", c, 0)
    else:
        ops.add_reduced_matmul(product(g), "forward", "block", ("reduce_scatter", "block", c), 0)
        ops.join_collectives()
    ops.add_kernels((product(1.0),), "forward", "after", 0)
    assert length(ops.build_segment()) == 1.0 + max(g, c) + min(g, c) / pieces + 1.0


def test_pieces_read_the_weights_again() -> None:
    whole = Kernel("product", "matmul", 2.0 * 100 * 30 * 20, 2.0 * (100 * 20 + 20 * 30 + 100 * 30), m=100, n=30, k=20)
    parts = split_matmul(whole, 4)
    assert sum(part.flops for part in parts) == whole.flops
    assert sum(part.bytes for part in parts) == pytest.approx(whole.bytes + 3 * 2.0 * 20 * 30)


@pytest.mark.parametrize("kind", "FBIW")
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_no_byte_and_no_flop_is_lost(kind: str, sequence_parallel: bool, overlap: bool) -> None:
    shape = RankShape(2, tp=4, sequence_parallel=sequence_parallel, recompute="full")
    totals = []
    for pieces in (1, 4):
        made = CachedPassSegmentMaker(
            MODEL, shape, lambda kernels: sum(kernel.flops for kernel in kernels), overlap_tensor=overlap,
            tensor_pieces=pieces,
        )  # fmt: skip
        segment = made.segment(kind, ALL)
        moved: Counter[tuple[str, int]] = Counter()
        for op in segment.ops:
            if isinstance(op.work, Collective):
                own = 4 if op.work.kind == "send_recv" else 3  # of four: a rank does not send itself what it has
                moved[op.name, op.layer] += int(op.work.size) * own
        computed = sum(op.work.seconds for op in segment.ops if isinstance(op.work, Compute))
        totals.append((moved, computed, length(segment, 1e-3)))
    assert totals[0][0] == totals[1][0]
    assert totals[0][1] == pytest.approx(totals[1][1])
    assert totals[1][2] <= totals[0][2] + 1e-9
    if kind != "W":
        assert totals[1][2] < totals[0][2]


def test_pieces_pay_in_a_step_where_tensor_parallelism_is_exposed() -> None:
    """Part of the exposed communication goes, and what smaller kernels lose shows."""
    small = {"training.global_batch": 8, "overlap.interference": "none"}
    base = simulate(load("gpt3_175b_64xa100", small))
    cut = simulate(load("gpt3_175b_64xa100", {**small, "overlap.tensor_pieces": 4}))
    assert cut.times.breakdown["exposed_tp"] < base.times.breakdown["exposed_tp"]
    assert cut.times.breakdown["forward"] > base.times.breakdown["forward"]
