"""Context parallelism: the work of attention is shared, what is handed round is counted, and what hides it hides it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcluster import InputError, simulate
from simcluster.model.context_parallel import fused_core_section, make_cp_exchange
from simcluster.model.kernels import Kernel
from simcluster.model.layers import RankShape
from simcluster.model.rank_shape import local_sizes
from simcluster.model.transformer import Model
from simcluster.planning.ops import Segment
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.work_kinds import Collective
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate_scenario

MODEL = Model(
    layers=2, hidden_size=512, heads=8, kv_heads=4, ffn_hidden_size=2048, vocab_size=1024, sequence_length=128,
    gated_mlp=True,
)  # fmt: skip
WAYS = ("ring", "all_gather", "all_to_all")
LAYER = PassLayers((0,))


def passes(cp: int, by: str, **changes: object) -> CachedPassSegmentMaker:
    shape = replace(RankShape(micro_batch=3, cp=cp, cp_comm=by), **changes)  # type: ignore[arg-type]
    return CachedPassSegmentMaker(
        MODEL, shape, lambda kernels: sum(kernel.flops for kernel in kernels), overlap_tensor=False
    )


def moved(segment: Segment) -> Counter[str]:
    """Bytes by kind of collective over cp."""
    found: Counter[str] = Counter()
    for op in segment.ops:
        if isinstance(op.work, Collective) and op.work.axis == "cp":
            found[op.work.kind] += int(op.work.size)
    return found


def work(segment: Segment) -> float:
    return sum(op.work.seconds for op in segment.ops if op.stream == "compute")


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("cp", [2, 4])
def test_ranks_share_the_work(cp: int, by: str) -> None:
    whole = CachedPassSegmentMaker(
        MODEL, RankShape(micro_batch=3), lambda ks: sum(k.flops for k in ks), overlap_tensor=False
    )
    mine = passes(cp, by)
    for make in "FBIW":
        assert work(mine.segment(make, LAYER)) == pytest.approx(work(whole.segment(make, LAYER)) / cp, rel=1e-12)


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_traded_heads_are_whole_sequences_of_fewer_heads(cp: int) -> None:
    """A rank computes the attention of a model with heads / cp heads; four heads of keys are repeated for 8 ranks."""
    traded = RankShape(micro_batch=3, cp=cp, cp_comm="all_to_all")
    fewer = MODEL.model_copy(update={"heads": 8 // cp, "kv_heads": max(4 // cp, 1)})
    core = fused_core_section(MODEL, traded, local_sizes(MODEL, traded)).forward[0]
    assert (
        core
        == fused_core_section(fewer, RankShape(micro_batch=3), local_sizes(fewer, RankShape(micro_batch=3))).forward[0]
    )


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_what_is_handed_round(cp: int) -> None:
    """Ring: keys and values go cp - 1 hops and their gradients cp; gathers move the same without the last hop home."""
    tokens = 3 * 128 // cp
    keys, queries = 2 * 2 * tokens * 256, 2 * tokens * 512
    ring, gather, trade = (passes(cp, by) for by in WAYS)
    assert moved(ring.segment("F", LAYER)) == {"send_recv": (cp - 1) * keys}
    assert moved(ring.segment("B", LAYER)) == {"send_recv": (cp - 1) * keys + cp * keys}
    assert moved(gather.segment("F", LAYER)) == {"all_gather": cp * keys}
    assert moved(gather.segment("B", LAYER)) == {"all_gather": cp * keys, "reduce_scatter": cp * keys}
    traded = queries + keys * max(4, cp) // 4  # four heads of keys are repeated for eight ranks
    assert moved(trade.segment("F", LAYER)) == moved(trade.segment("B", LAYER)) == {"all_to_all": traded + queries}
    for each in (ring, gather, trade):
        assert moved(each.segment("I", LAYER)) == moved(each.segment("B", LAYER))
        assert not moved(each.segment("W", LAYER))


def test_full_recompute_hands_round_again() -> None:
    again = passes(4, "ring", recompute="full")
    forward = moved(again.segment("F", LAYER))["send_recv"]
    assert (
        moved(again.segment("B", LAYER))["send_recv"]
        == forward + moved(passes(4, "ring").segment("B", LAYER))["send_recv"]
    )


@given(sent=st.integers(0, 40), piece=st.integers(1, 40), cp=st.sampled_from([2, 4, 8]))
@settings(max_examples=30)
def test_a_ring_takes_the_longer_of_piece_and_hop(sent: int, piece: int, cp: int) -> None:
    """cp pieces of p seconds and cp - 1 hops of h beside all but the last: (cp - 1) max(p, h) + p."""
    mine = passes(cp, "ring")
    ops = mine.segment("F", LAYER).ops
    attention = {index for index, op in enumerate(ops) if op.name == "attention" and op.stream == "compute"}
    hops = [index for index, op in enumerate(ops) if op.lane == "cp"]
    assert len(hops) == cp - 1
    pieces = [index for index in sorted(attention) if index > min(hops)][:cp]
    took = {index: sent if index in hops else piece if index in pieces else 0 for index in range(len(ops))}
    ends: dict[int, float] = {}
    last_of: dict[str, int] = {}
    for index, op in enumerate(ops):
        waits = [*op.after, *([last_of[op.lane]] if op.lane in last_of else [])]
        ends[index] = max((ends[other] for other in waits), default=0) + took[index]
        last_of[op.lane] = index
    assert max(ends.values()) == (cp - 1) * max(piece, sent) + piece


def test_pieces_read_every_key_once() -> None:
    """Bytes of the pieces: keys and values as in one kernel, queries and outputs with every piece."""
    shape = RankShape(micro_batch=3, cp=4)
    context = make_cp_exchange(MODEL, shape)
    own = context.queries
    core = Kernel("attention", "attention", 1e9, 2 * own + 4 * context.keys, 32, 128, 64, 24)
    pieces = [piece[0] for piece in context.split_kernel(core)]
    assert sum(piece.bytes for piece in pieces) == pytest.approx(4 * 2 * own + 4 * context.keys)
    assert sum(piece.flops for piece in pieces) == core.flops


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize("by", ["ring", "all_gather"])
def test_contiguous_shares_wait_for_the_last_rank(cp: int, by: str) -> None:
    """Of cp^2 squares on and under the diagonal it has one half and cp - 1 whole: (2 cp - 1) / cp of the mean."""
    shape = RankShape(micro_batch=3, cp=cp, cp_comm=by)  # type: ignore[arg-type]
    even, uneven = make_cp_exchange(MODEL, shape), make_cp_exchange(MODEL, replace(shape, cp_shares="contiguous"))
    core = Kernel("attention", "attention", 4e9 * cp, 1e9, 128 // cp, 128, 64, 24)
    work = [sum(kernel.flops for piece in each.split_kernel(core) for kernel in piece) for each in (even, uneven)]
    assert work == pytest.approx([core.flops, core.flops * (2 * cp - 1) / cp], rel=1e-12)


@pytest.mark.parametrize("by", ["ring", "all_gather"])
def test_pytorchs_ring(by: str) -> None:
    """Keys and values of every query head, gathered or handed on; their gradients hop by hop and home, in fp32."""
    tokens = 3 * 128 // 4
    handed = 2 * 2 * tokens * 512
    mine = passes(4, by, ring="torch", kernels="compiled")
    gathered = {"all_gather": 4 * handed} if by == "all_gather" else {}
    keys = {} if gathered else {"send_recv": 3 * handed}
    assert moved(mine.segment("F", LAYER)) == gathered | keys
    assert moved(mine.segment("B", LAYER)) == gathered | {"send_recv": keys.get("send_recv", 0) + 4 * 2 * handed}
    assert not any(op.lane == "cp" for op in mine.segment("B", LAYER).ops)  # a traced graph waits where it asks
    eager = passes(4, by, ring="torch", kernels="eager").segment("B", LAYER)
    assert moved(eager) == moved(mine.segment("B", LAYER))
    assert any(op.lane == "cp" for op in eager.ops)


def test_each_piece_of_a_backward_has_passes_of_its_own() -> None:
    """Before and behind a flash kernel: all queries for the diagonal piece, three quarters on average for others."""
    timer = {"attention_row_sums": 0.0, "attention_query_grad": 0.0}

    def noted(kernels: Sequence[Kernel]) -> float:
        for kernel in kernels:
            if kernel.name in timer:
                timer[kernel.name] += kernel.bytes
        return 0.0

    found = []
    for cp in (1, 4):
        timer.update(dict.fromkeys(timer, 0.0))
        CachedPassSegmentMaker(MODEL, RankShape(micro_batch=3, cp=cp), noted, overlap_tensor=False).segment("B", LAYER)
        found.append(dict(timer))
    for name in timer:
        assert found[1][name] == pytest.approx(found[0][name] / 4 * (1 + 3 * 0.75), rel=1e-12)


# --- scenarios --------------------------------------------------------------------------------------------------------

TINY = {
    "parallel.pp": 2, "parallel.dp": 2, "parallel.tp": 2, "parallel.cp": 2, "gpus": 16, "cluster.nodes": 8,
    "model.sequence_length": 256, "training.global_batch": 8, "training.attention": "fused",
}  # fmt: skip


@pytest.mark.parametrize(
    ("by", "more"),
    [
        *((way, {}) for way in WAYS),
        ("ring", {"parallel.cp_shares": "contiguous"}),
        ("all_gather", {"software": "torchtitan"}),
    ],
)
def test_folded_is_unfolded_to_the_bit(by: str, more: dict[str, str]) -> None:
    scenario = load("tiny_3d", {**TINY, "parallel.cp_comm": by, **more})
    folded, unfolded = simulate_scenario(scenario), simulate(scenario, folded=False)
    assert folded.step_time == unfolded.step_time
    for rank in range(16):
        left, right = (result.timeline_of(rank).drop(columns="group") for result in (folded, unfolded))
        assert left.equals(right)
    assert folded.times.breakdown["exposed_cp"] > 0


@pytest.mark.parametrize("by", WAYS)
def test_slower_links_are_never_faster(by: str) -> None:
    scenario = load("tiny_3d", {**TINY, "parallel.cp_comm": by})
    slower = load(
        "tiny_3d", {**TINY, "parallel.cp_comm": by, "cluster.scale.network": 0.5, "cluster.scale.nvlink": 0.5}
    )
    assert simulate(slower).step_time > simulate(scenario).step_time


def test_it_divides_activations() -> None:
    """Twice the sequence on twice the ranks: as many bytes of activations on each."""
    short = simulate(load("tiny_3d", {**TINY, "parallel.cp": 1, "gpus": 8, "cluster.nodes": 4}))
    long = simulate(load("tiny_3d", {**TINY, "model.sequence_length": 512}))
    assert long.facts.footprints[0].activations == pytest.approx(short.facts.footprints[0].activations, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training.attention": "unfused"}, ["fused", "training.attention"]),
        ({"model.sequence_length": 254}, ["254", "is not divisible by"]),
        ({"parallel.cp": 4, "gpus": 32, "cluster.nodes": 16, "model.heads": 4, "model.kv_heads": 4,
          "parallel.cp_comm": "all_to_all"}, ["heads", "ring"]),
        ({"parallel.cp_comm": "rings"}, ["parallel.cp_comm", "ring"]),
    ],
)  # fmt: skip
def test_what_does_not_go_says_why(changes: dict[str, object], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load("tiny_3d", {**TINY, **changes})
    for word in words:
        assert word in str(caught.value)
