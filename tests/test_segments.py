"""One pass of a microbatch through a chunk: no kernel lost, and the tensor-parallel traffic of the papers, op by op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_blocks import attention_block, mlp_block

from simcluster.model.flops import layer_flops, lm_head_flops
from simcluster.model.kernels import Kernel
from simcluster.model.layer_block import embedding_block, lm_head_block
from simcluster.model.layers import RankShape
from simcluster.model.transformer import Model
from simcluster.planning.ops import MAIN, Op, Segment
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.work_kinds import Collective, Compute

MODEL = Model(
    layers=2,
    hidden_size=512,
    heads=8,
    kv_heads=8,
    ffn_hidden_size=2048,
    vocab_size=1024,
    sequence_length=128,
    gated_mlp=False,
)
GATED = MODEL.model_copy(update={"gated_mlp": True, "kv_heads": 4, "bias": False, "position": "rope"})
ALL = PassLayers((0, 1), embedding=True, lm_head=True)
SHAPES = st.builds(
    RankShape,
    micro_batch=st.sampled_from([1, 3]),
    tp=st.sampled_from([2, 4, 8]),
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
    attention=st.sampled_from(["fused", "unfused"]),
    dropout=st.booleans(),
)


def one(kernels: Sequence[Kernel]) -> float:
    return float(len(kernels))


def passes(shape: RankShape, *, overlap: bool = False, model: Model = MODEL) -> CachedPassSegmentMaker:
    return CachedPassSegmentMaker(model, shape, one, overlap_tensor=overlap)


def traffic(segment: Segment, layer: int | None = None) -> Counter[tuple[str, float]]:
    """Collectives by kind and size; those of one layer, or all."""
    return Counter(
        (op.work.kind, op.work.size)
        for op in segment.ops
        if isinstance(op.work, Collective) and layer in (None, op.layer)
    )


def lines(segment: Segment) -> list[str]:
    """The ops as text: kind and name; [..] on the tp lane; < i waits for op i as well."""
    return [line(op) for op in segment.ops]


def line(op: Op) -> str:
    text = f"{op.kind} {op.name}"
    text = text if op.lane == MAIN else f"[{text}]"
    return text + "".join(f" < {index}" for index in op.after)


# --- what holds for every shape --------------------------------------------------------------------------------------


@given(shape=SHAPES, overlap=st.booleans(), gated=st.booleans())
def test_every_kernel_runs_once(shape: RankShape, overlap: bool, gated: bool) -> None:
    """However a pass is cut into ops, it launches the blocks' kernels, each as often as the model says."""
    model = GATED if gated else MODEL
    seen: list[Kernel] = []

    def timer(kernels: Sequence[Kernel]) -> float:
        seen.extend(kernels)
        return 0.0

    made = CachedPassSegmentMaker(model, shape, timer, overlap_tensor=overlap)
    layer = (attention_block(model, shape), mlp_block(model, shape))
    blocks = [embedding_block(model, shape), *layer, *layer, lm_head_block(model, shape)]
    sections = [section for block in blocks for section in (block.entry, block.body, block.exit)]
    made.segment("F", ALL)
    assert Counter(seen) == Counter(kernel for section in sections for kernel in section.forward)
    seen.clear()
    made.segment("B", ALL)
    backward = [section.recompute + section.input_grad + section.weight_grad for section in sections]
    assert Counter(seen) == Counter(kernel for kernels in backward for kernel in kernels)
    seen.clear()
    made.segment("I", ALL)
    made.segment("W", ALL)
    assert Counter(seen) == Counter(kernel for kernels in backward for kernel in kernels)
    seen.clear()
    made.segment("W", PassLayers((0,)))
    assert Counter(seen) == Counter(
        kernel for block in layer for part in (block.entry, block.body, block.exit) for kernel in part.weight_grad
    )


@given(shape=SHAPES, overlap=st.booleans(), cut=st.booleans())
def test_time_does_not_depend_on_where_a_chunk_is_cut(shape: RankShape, overlap: bool, cut: bool) -> None:
    """Buckets of gradients cut a backward pass: same compute, same traffic."""
    made = passes(shape, overlap=overlap)
    whole = [made.segment("F", ALL), made.segment("B", ALL)]
    first, second = PassLayers((0,), embedding=True), PassLayers((1,), lm_head=True)
    parts = [
        [made.segment("F", first), made.segment("F", second)],
        [made.segment("B", second), made.segment("B", first)],
    ]
    for together, apart in zip(whole, parts, strict=True):
        assert [replace(op, after=()) for op in together.ops] == [
            replace(op, after=()) for part in apart for op in part.ops
        ]


@given(shape=SHAPES, overlap=st.booleans(), norms=st.sampled_from([1, 2]))
def test_a_parallel_residual_sums_once(shape: RankShape, overlap: bool, norms: int) -> None:
    """GPT-J's sum: one reduction forward instead of two; with one norm one backward, too, and half of the gathers."""
    model = MODEL.model_copy(update={"parallel_residual": True, "layer_norms": norms})
    shape = replace(shape, recompute="none")
    made, apart = passes(shape, overlap=overlap, model=model), passes(shape, overlap=overlap)
    size = 2.0 * shape.micro_batch * 128 * 512
    reduction = "reduce_scatter" if shape.sequence_parallel else "all_reduce"
    forward, backward = traffic(made.segment("F", ALL), 0), traffic(made.segment("B", ALL), 0)
    assert forward[reduction, size] == 1
    assert backward[reduction, size] == norms
    if shape.sequence_parallel:
        assert forward["all_gather", size] == norms
        assert backward["all_gather", size] == 1 + norms  # of the output's gradient, and of inputs
    assert traffic(made.segment("I", ALL), 0) == backward
    blocks = passes(shape, overlap=overlap, model=model.model_copy(update={"parallel_residual": None}))
    computing = [
        sum(op.work.seconds for op in one.segment("B", ALL).ops if isinstance(op.work, Compute))
        for one in (made, blocks)
    ]
    assert computing[0] == computing[1]
    assert sum(traffic(apart.segment("F", ALL), 0).values()) > sum(forward.values())


@given(shape=SHAPES)
def test_a_split_backward_moves_what_the_whole_one_moves(shape: RankShape) -> None:
    """I has all the traffic of B, W none: what W needs gathered I has gathered."""
    made = passes(shape)
    assert traffic(made.segment("I", ALL)) == traffic(made.segment("B", ALL))
    assert all(isinstance(op.work, Compute) and op.kind == "weight_grad" for op in made.segment("W", ALL).ops)
    kinds = {op.kind for op in made.segment("I", ALL).ops if isinstance(op.work, Compute)}
    assert kinds <= {"input_grad", "recompute", "forward"}


@given(shape=SHAPES, overlap=st.booleans())
def test_a_layer_is_the_same_wherever_it_is(shape: RankShape, overlap: bool) -> None:
    made = passes(shape, overlap=overlap)
    for segment in (made.segment("F", ALL), made.segment("B", ALL)):
        mine, other = ([replace(op, layer=0, after=()) for op in segment.ops if op.layer == n] for n in (0, 1))
        assert mine
        assert mine == other


@given(shape=SHAPES.map(lambda shape: replace(shape, tp=1, sequence_parallel=False)), overlap=st.booleans())
def test_alone_a_rank_sends_nothing(shape: RankShape, overlap: bool) -> None:
    made = passes(shape, overlap=overlap)
    for segment in (made.segment("F", ALL), made.segment("B", ALL)):
        assert all(isinstance(op.work, Compute) for op in segment.ops)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("model", [MODEL, GATED], ids=["gpt", "llama"])
def test_flops_are_those_of_the_closed_forms(model: Model, tp: int) -> None:
    """The kernels' FLOPs, summed over ops and tp ranks, are the model's: two independent countings."""
    made = CachedPassSegmentMaker(
        model, RankShape(2, tp), lambda kernels: sum(kernel.flops for kernel in kernels), overlap_tensor=True
    )
    layer = layer_flops(model, 2, attention_backward="flash").total
    head = lm_head_flops(model, 2)
    for segment, expected in (
        (made.segment("F", ALL), 2 * layer.forward + head.forward),
        (made.segment("B", ALL), 2 * layer.backward + head.backward),
    ):
        total = tp * sum(op.work.seconds for op in segment.ops if isinstance(op.work, Compute))
        assert total == pytest.approx(expected, rel=1e-12)


# --- traffic: MODELLING.md D.7 --------------------------------------------------------------------------------------

ACTIVATION = 2.0 * 3 * 128 * 512  # 2 s b h bytes


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_tensor_parallel_reduces_twice_a_pass(recompute: str, overlap: bool) -> None:
    """arXiv:1909.08053 section 3: g and f, one all-reduce a block and a direction."""
    made = passes(RankShape(3, 4, recompute=recompute), overlap=overlap)
    again = 2 if recompute == "full" else 0
    assert traffic(made.segment("F", ALL), layer=1) == {("all_reduce", ACTIVATION): 2}
    assert traffic(made.segment("B", ALL), layer=1) == {("all_reduce", ACTIVATION): 2 + again}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_sequence_parallel_gathers_and_scatters(recompute: str, overlap: bool) -> None:
    """arXiv:2205.05198 section 4.2.2: as many bytes as all-reduces, and the stored shard gathered again for W."""
    shape = RankShape(3, 4, sequence_parallel=True, recompute=recompute)
    made = passes(shape, overlap=overlap)
    again = 2 if recompute == "full" else 0
    forward = {("all_gather", ACTIVATION): 2, ("reduce_scatter", ACTIVATION): 2}
    backward = {("all_gather", ACTIVATION): 2 + 2 + again, ("reduce_scatter", ACTIVATION): 2 + again}
    assert traffic(made.segment("F", ALL), layer=0) == forward
    assert traffic(made.segment("B", ALL), layer=0) == backward


@pytest.mark.parametrize("split", [False, True])
def test_ends_of_the_model(split: bool) -> None:
    """The embedding's partial rows are summed, the head's input gathered (sequence parallel), its gradient summed."""
    made = passes(RankShape(3, 4, sequence_parallel=split))
    loss = ("all_reduce", 4.0 * 3 * 128)  # a number in fp32 for each token: maximum, true logit, sum
    forward = (
        {("reduce_scatter", ACTIVATION): 1, ("all_gather", ACTIVATION): 1} if split else {("all_reduce", ACTIVATION): 1}
    )
    backward = (
        {("reduce_scatter", ACTIVATION): 1, ("all_gather", ACTIVATION): 2} if split else {("all_reduce", ACTIVATION): 1}
    )
    assert traffic(made.segment("F", ALL), layer=-1) == {**forward, loss: 3}
    assert traffic(made.segment("B", ALL), layer=-1) == backward
    assert traffic(made.segment("F", PassLayers((0,))), layer=-1) == {}


def test_a_boundary_that_came_split_is_gathered_first() -> None:
    made = passes(RankShape(3, 4))
    for segment in (
        made.segment("F", PassLayers((0,), gathers_input=True)),
        made.segment("B", PassLayers((0,), gathers_input=True)),
    ):
        assert lines(segment)[0] == "all_gather boundary"
        assert segment.ops[0].work == Collective("all_gather", "tp", ACTIVATION)


# --- goldens ---------------------------------------------------------------------------------------------------------


def test_forward_of_a_layer() -> None:
    assert lines(passes(RankShape(1, 4)).segment("F", PassLayers((0,)))) == [
        "forward attention_norm",
        "forward attention",
        "all_reduce attention",
        "forward attention_add",
        "forward mlp_norm",
        "forward mlp",
        "all_reduce mlp",
        "forward mlp_add",
    ]


def test_backward_of_a_layer_with_everything_beside() -> None:
    """The gather of the kept shard runs beside dX, the scatter of dX beside dW; each is joined where it is needed."""
    made = passes(RankShape(1, 4, sequence_parallel=True), overlap=True)
    assert lines(made.segment("B", PassLayers((0,)))) == [
        "backward mlp_add",
        "all_gather mlp",
        "backward mlp",
        "[all_gather mlp_input] < 2",
        "backward mlp_input_grad",
        "[reduce_scatter mlp_grad] < 4",
        "backward mlp_weight_grad < 3",
        "backward mlp_norm < 5",
        "backward attention_add",
        "all_gather attention",
        "backward attention",
        "[all_gather attention_input] < 10",
        "backward attention_input_grad",
        "[reduce_scatter attention_grad] < 12",
        "backward attention_weight_grad < 11",
        "backward attention_norm < 13",
    ]


def test_backward_of_a_layer_one_after_the_other() -> None:
    assert lines(passes(RankShape(1, 4, recompute="full")).segment("B", PassLayers((0,)))) == [
        "recompute attention_norm",
        "recompute attention",
        "all_reduce attention",
        "recompute attention_add",
        "recompute mlp_norm",
        "recompute mlp",
        "all_reduce mlp",
        "recompute mlp_add",
        "backward mlp_add",
        "backward mlp",
        "backward mlp_input_grad",
        "backward mlp_weight_grad",
        "all_reduce mlp_grad",
        "backward mlp_norm",
        "backward attention_add",
        "backward attention",
        "backward attention_input_grad",
        "backward attention_weight_grad",
        "all_reduce attention_grad",
        "backward attention_norm",
    ]


def test_weight_gradient_of_the_column_parallel_product_comes_last() -> None:
    """What hides the reduction is exactly that product's W; everything else of the body's backward comes before."""
    seen: list[tuple[str, ...]] = []

    def timer(kernels: Sequence[Kernel]) -> float:
        seen.append(tuple(kernel.name for kernel in kernels))
        return 0.0

    made = CachedPassSegmentMaker(MODEL, RankShape(1, 4), timer, overlap_tensor=True)
    made.segment("B", PassLayers((0,)))
    assert ("qkv_input_grad",) in seen
    assert ("qkv_weight_grad", "qkv_bias_grad") in seen
    assert ("mlp_up_input_grad",) in seen
    assert ("mlp_up_weight_grad", "mlp_up_bias_grad") in seen
