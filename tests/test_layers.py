"""The kernels of blocks: FLOPs against the closed forms of ``flops``, bytes against hand counts."""

from dataclasses import replace
from itertools import chain
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_blocks import attention_block, mlp_block

from simcluster.base.errors import InputError
from simcluster.devices.device import kernel_seconds, load_device
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.model.flops import layer_flops, lm_head_flops
from simcluster.model.kernels import Block, Kernel, Section
from simcluster.model.layer_block import embedding_block, lm_head_block
from simcluster.model.layers import RankShape
from simcluster.model.transformer import Model

PHASES = ("forward", "recompute", "input_grad", "weight_grad")
BLOCKS = (attention_block, mlp_block, embedding_block, lm_head_block)


def preset(name: str) -> Model:
    return Model(**load_model_entry(name))


def sections(block: Block) -> tuple[Section, Section, Section]:
    return block.entry, block.body, block.exit


def kernels(block: Block, phase: str) -> tuple[Kernel, ...]:
    return tuple(chain.from_iterable(getattr(section, phase) for section in sections(block)))


def flops(block: Block, phase: str) -> float:
    return float(sum(kernel.flops for kernel in kernels(block, phase)))


def size(section: Section) -> float:
    every = chain.from_iterable((section.forward, section.recompute, section.input_grad, section.weight_grad))
    return float(sum(kernel.bytes for kernel in every))


def named(block: Block) -> dict[str, Kernel]:
    return {kernel.name: kernel for phase in PHASES for kernel in kernels(block, phase)}


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Models that divide by tp 4 and cp 2 with sequence parallelism, and whose vocabulary needs no padding."""
    kv_heads = draw(st.sampled_from([4, 8]))
    return Model(
        layers=1,
        hidden_size=draw(st.sampled_from([64, 96, 256])),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([8, 16, 80])),
        ffn_hidden_size=4 * draw(st.integers(1, 100)),
        vocab_size=512 * draw(st.integers(1, 8)),
        sequence_length=8 * draw(st.integers(1, 32)),
        gated_mlp=draw(st.booleans()),
        position=draw(st.sampled_from(["learned", "rope", "none"])),
        bias=draw(st.booleans()),
        causal=draw(st.booleans()),
    )


shapes = st.builds(
    RankShape,
    micro_batch=st.integers(1, 4),
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2]),
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
    attention=st.sampled_from(["fused", "unfused"]),
    dropout=st.booleans(),
    element_bytes=st.sampled_from([1.0, 2.0, 4.0]),
    grad_accumulate_bytes=st.sampled_from([0.0, 2.0, 4.0]),
)


# --- invariants -----------------------------------------------------------------------------------------------------


@given(models(), shapes)
def test_every_kernel_moves_bytes_and_only_products_compute(model: Model, shape: RankShape) -> None:
    for build in BLOCKS:
        block = build(model, shape)
        for kernel in chain.from_iterable(kernels(block, phase) for phase in PHASES):
            assert kernel.bytes > 0
            if kernel.kind == "memory":
                assert (kernel.flops, kernel.m, kernel.n, kernel.k) == (0, 0, 0, 0)
            else:
                assert min(kernel.m, kernel.n, kernel.k, kernel.batch) >= 1
            if kernel.kind == "matmul":
                assert kernel.flops == 2 * kernel.batch * kernel.m * kernel.n * kernel.k


@given(models(), shapes)
def test_names_are_distinct_within_a_phase(model: Model, shape: RankShape) -> None:
    for build in BLOCKS:
        for phase in PHASES:
            names = [kernel.name for kernel in kernels(build(model, shape), phase)]
            assert len(names) == len(set(names))


@given(models(), shapes)
def test_flops_of_all_ranks_are_the_closed_form(model: Model, shape: RankShape) -> None:
    """F, I and W of every block, times the ranks that share it, against ``flops`` (unfused: the whole square)."""
    shape = replace(shape, recompute="none")
    counted = model if shape.attention == "fused" else model.model_copy(update={"causal": False})
    expected = layer_flops(
        counted, shape.micro_batch, attention_backward="flash" if shape.attention == "fused" else "model"
    )
    ranks = shape.tp * shape.cp
    parts = (
        (attention_block, expected.qkv + expected.core + expected.projection),
        (mlp_block, expected.mlp),
        (lm_head_block, lm_head_flops(model, shape.micro_batch)),
    )
    for build, part in parts:
        block = build(model, shape)
        assert ranks * flops(block, "forward") == pytest.approx(part.forward, rel=1e-12)
        assert ranks * flops(block, "input_grad") == pytest.approx(part.input_grad, rel=1e-12)
        assert ranks * flops(block, "weight_grad") == pytest.approx(part.weight_grad, rel=1e-12)
    embedding = embedding_block(model, shape)
    assert all(flops(embedding, phase) == 0 for phase in PHASES)


@given(models(), shapes)
def test_every_weight_product_has_its_two_gradients(model: Model, shape: RankShape) -> None:
    """Of one product (m x k)(k x n): I is (m x n)(n x k) and W is (k x m)(m x n)."""
    for build, names in (
        (attention_block, ("qkv", "projection")),
        (mlp_block, ("mlp_up", "mlp_down")),
        (lm_head_block, ("logits",)),
    ):
        by_name = named(build(model, shape))
        for name in names:
            forward, i, w = by_name[name], by_name[f"{name}_input_grad"], by_name[f"{name}_weight_grad"]
            assert (i.m, i.n, i.k) == (forward.m, forward.k, forward.n)
            assert (w.m, w.n, w.k) == (forward.k, forward.n, forward.m)
            assert forward.flops == i.flops == w.flops
            assert forward.bytes == i.bytes


@given(models(), shapes)
def test_full_recompute_runs_exactly_the_forward_of_layers_again(model: Model, shape: RankShape) -> None:
    full, none = replace(shape, recompute="full"), replace(shape, recompute="none")
    for build in (attention_block, mlp_block):
        for section, plain in zip(sections(build(model, full)), sections(build(model, none)), strict=True):
            assert section.recompute == section.forward == plain.forward
            assert plain.recompute == ()
            assert (section.input_grad, section.weight_grad) == (plain.input_grad, plain.weight_grad)
    for build in (embedding_block, lm_head_block):
        assert build(model, full) == build(model, none)


@given(models(), shapes)
def test_selective_recompute_runs_core_attention_again(model: Model, shape: RankShape) -> None:
    selective = replace(shape, recompute="selective")
    block = attention_block(model, selective)
    again = [kernel.name for kernel in kernels(block, "recompute")]
    names = [kernel.name for kernel in kernels(block, "forward")]
    fused = shape.attention == "fused"
    core = ["attention"] if fused else names[names.index("scores") : names.index("context") + 1]
    assert again == core
    left = attention_block(model, replace(selective, keeps_fused_core=True))
    assert kernels(left, "recompute") == (() if fused else kernels(block, "recompute"))
    assert kernels(mlp_block(model, selective), "recompute") == ()


@given(models(), shapes)
def test_sequence_parallelism_divides_the_edges_and_leaves_the_body(model: Model, shape: RankShape) -> None:
    """Entry and exit on n / tp tokens; the position table's update has s / tp rows, so it divides too."""
    whole, split = replace(shape, sequence_parallel=False), replace(shape, sequence_parallel=True)
    for build in BLOCKS:
        a, b = build(model, whole), build(model, split)
        assert a.body == b.body
        assert size(b.entry) * shape.tp == pytest.approx(size(a.entry), rel=1e-12)
        assert size(b.exit) * shape.tp == pytest.approx(size(a.exit), rel=1e-12)


@given(models(), shapes)
def test_without_sequence_parallelism_the_edges_do_not_depend_on_tp(model: Model, shape: RankShape) -> None:
    alone, many = (replace(shape, sequence_parallel=False, tp=tp) for tp in (1, 4))
    for build in BLOCKS:
        a, b = build(model, alone), build(model, many)
        assert (a.entry, a.exit) == (b.entry, b.exit)


@given(models(), shapes)
def test_backward_runs_in_reverse(model: Model, shape: RankShape) -> None:
    """Each I kernel belongs to a forward kernel; read backwards they are in forward order.

    But for two around a fused attention's, which sum rows and cast its dQ.
    """
    body = attention_block(model, replace(shape, attention="fused")).body
    forward = [kernel.name for kernel in body.forward]
    around = ("attention_row_sums", "attention_query_grad")
    back = [kernel.name.removesuffix("_input_grad") for kernel in reversed(body.input_grad)]
    place = back.index("attention")
    assert (back[place + 1], back[place - 1]) == around
    assert [name for name in back if name not in around] == forward


# --- figures --------------------------------------------------------------------------------------------------------

LLAMA_8B = [  # worked by hand: n = 8192, tp 1, bf16, fp32 main gradient: GFLOP, MB of F and I, MB of W
    ("qkv", 412.3, 218.1, 369.1),
    ("projection", 274.9, 167.8, None),
    ("mlp_up", 1924.1, 771.8, 1476.4),
    ("mlp_down", 962.1, 419.4, None),
]


@pytest.mark.parametrize(("name", "giga_flops", "mega_bytes", "weight_grad_mega_bytes"), LLAMA_8B)
def test_products_of_llama_8b(
    name: str, giga_flops: float, mega_bytes: float, weight_grad_mega_bytes: float | None
) -> None:
    model, shape = preset("llama3-8b"), RankShape(micro_batch=1)
    by_name = named(attention_block(model, shape)) | named(mlp_block(model, shape))
    assert round(by_name[name].flops / 1e9, 1) == giga_flops
    assert round(by_name[name].bytes / 1e6, 1) == mega_bytes
    if weight_grad_mega_bytes is not None:
        assert round(by_name[f"{name}_weight_grad"].bytes / 1e6, 1) == weight_grad_mega_bytes


def test_intensity_of_the_qkv_product_of_llama_8b() -> None:
    qkv = named(attention_block(preset("llama3-8b"), RankShape(micro_batch=1)))["qkv"]
    assert (qkv.m, qkv.n, qkv.k) == (8192, 6144, 4096)
    assert round(qkv.flops / qkv.bytes) == 1890


def test_an_unfused_weight_gradient_is_written_once() -> None:
    model = preset("llama3-8b")
    shape = RankShape(micro_batch=1, grad_accumulate_bytes=0)
    w = named(attention_block(model, shape))["qkv_weight_grad"]
    assert w.bytes == 2 * (8192 * 4096 + 8192 * 6144 + 4096 * 6144)


def test_memory_kernels_of_a_llama_layer_by_hand() -> None:
    """Per token, in elements: norm 2h, rope 2(q + kv), residual 3h, SwiGLU 3f; flash 2q + 2kv, and 4 bytes a head."""
    model, shape = preset("llama3-8b"), RankShape(micro_batch=1)
    n, h, q, kv, f, e = 8192, 4096, 4096, 1024, 14336, 2
    by_name = named(attention_block(model, shape)) | named(mlp_block(model, shape))
    expected = {
        "attention_norm": 2 * e * n * h,
        "attention_norm_input_grad": 3 * e * n * h,
        "attention_norm_residual_grad": 3 * e * n * h,
        "rope": 2 * e * n * (q + kv),
        "attention": e * n * (2 * q + 2 * kv) + 4 * n * 32,
        "attention_input_grad": e * n * (4 * q + 4 * kv) + 4 * n * 32,
        "attention_residual_add": 3 * e * n * h,
        "swiglu": 3 * e * n * f,
        "swiglu_input_grad": 5 * e * n * f,
    }
    assert {name: by_name[name].bytes for name in expected} == expected
    assert by_name["attention"].flops == 4 * n * n * q / 2
    assert by_name["attention_input_grad"].flops == 2.5 * by_name["attention"].flops


def test_a_gpt3_layer_on_one_of_eight_ranks_kernel_by_kernel() -> None:
    """The whole launch list of the run of arXiv:2205.05198: tp 8, sequence parallel, selective, unfused, dropout."""
    shape = RankShape(
        micro_batch=1, tp=8, sequence_parallel=True, recompute="selective", attention="unfused", dropout=True
    )
    attention, mlp = attention_block(preset("gpt3-175b"), shape), mlp_block(preset("gpt3-175b"), shape)
    products = [(k.name, k.batch, k.m, k.n, k.k) for k in attention.body.forward + mlp.body.forward if k.m]
    assert products == [
        ("qkv", 1, 2048, 4608, 12288),
        ("scores", 12, 2048, 2048, 128),
        ("context", 12, 2048, 128, 2048),
        ("projection", 1, 2048, 12288, 1536),
        ("mlp_up", 1, 2048, 6144, 12288),
        ("mlp_down", 1, 2048, 12288, 6144),
    ]
    square = 12 * 2048 * 2048
    by_name = named(attention) | named(mlp)
    edge = 2048 // 8 * 12288
    expected = {
        "softmax": 4 * square,
        "probabilities_dropout": 5 * square,
        "softmax_input_grad": 6 * square,
        "attention_residual_add": 7 * edge,
        "attention_dropout_input_grad": 5 * edge,
        "attention_bias_grad": 2 * edge,
        "gelu": 4 * 2048 * 6144,
        "gelu_input_grad": 6 * 2048 * 6144,
        "mlp_up_bias_grad": 2 * 2048 * 6144,
    }
    assert {name: by_name[name].bytes for name in expected} == expected
    assert [k.name for k in attention.body.input_grad] == [
        "projection_input_grad",
        "context_probabilities_grad",
        "context_value_grad",
        "probabilities_dropout_input_grad",
        "softmax_input_grad",
        "scores_query_grad",
        "scores_key_grad",
        "qkv_input_grad",
    ]


@pytest.mark.parametrize(
    ("tp", "micro_batch", "element_bytes", "kernels_", "steps"),
    [
        (8, 2, 2.0, "fused", 1),  # 4 squares of scores: the kernel takes them
        (8, 1, 2.0, "fused", 5),  # 2 squares
        (1, 1, 2.0, "fused", 1),
        (8, 2, 4.0, "fused", 3),  # in fp32 there is no such kernel, and nothing to convert
        (8, 2, 2.0, "eager", 5),
    ],
)
def test_softmax_is_one_kernel_only_where_blocks_of_threads_come_out_even(
    tp: int, micro_batch: int, element_bytes: float, kernels_: Literal["fused", "eager"], steps: int
) -> None:
    """16 heads, as Megatron-LM's FusedScaleMaskSoftmax decides; every step moves fp32 scores once in and once out."""
    model = Model(layers=1, hidden_size=1024, heads=16, vocab_size=512, sequence_length=1024, gated_mlp=False)
    shape = RankShape(
        micro_batch=micro_batch, tp=tp, element_bytes=element_bytes, kernels=kernels_, attention="unfused"
    )
    block = attention_block(model, shape)
    names = [kernel.name for kernel in kernels(block, "forward")]
    core = kernels(block, "forward")[names.index("scores") + 1 : names.index("context")]
    back = [kernel.name for kernel in kernels(block, "input_grad")]
    core_back = kernels(block, "input_grad")[back.index("context_value_grad") + 1 : back.index("scores_query_grad")]
    assert (len(core), len(core_back)) == (steps, steps)
    square = micro_batch * 16 // tp * 1024 * 1024
    if steps == 1:
        assert [kernel.bytes / square for kernel in (*core, *core_back)] == [4, 6]
    elif steps == 5:
        assert [kernel.bytes / square for kernel in core] == [6, 8, 9, 8, 6]
        assert [kernel.bytes / square for kernel in core_back] == [6, 12, 9, 8, 6]


def test_the_embedding_by_hand() -> None:
    """GPT-3 on one of eight ranks: look-up on n tokens, then positions and dropout on n / 8."""
    shape = RankShape(micro_batch=1, tp=8, sequence_parallel=True, dropout=True)
    by_name = named(embedding_block(preset("gpt3-175b"), shape))
    n, h = 2048, 12288
    assert {name: kernel.bytes for name, kernel in by_name.items()} == {
        "embedding": 4 * n * h,
        "embedding_weight_grad": 2 * n * h + 8 * n / 8 * h,
        "position_embedding": 6 * n // 8 * h,
        "position_embedding_weight_grad": 2 * n // 8 * h + 8 * n // 8 * h,
        "embedding_dropout": 5 * n // 8 * h,
        "embedding_dropout_input_grad": 5 * n // 8 * h,
    }


def test_a_batch_larger_than_the_vocabulary_touches_every_row_once() -> None:
    model = Model(layers=1, hidden_size=8, heads=1, vocab_size=128, sequence_length=1024, position="none")
    w = named(embedding_block(model, RankShape(micro_batch=1)))["embedding_weight_grad"]
    assert w.bytes == 2 * 1024 * 8 + 8 * 128 * 8


def test_the_lm_head_pads_the_vocabulary_and_computes_the_loss_in_fp32() -> None:
    by_name = named(lm_head_block(preset("llama3-8b"), RankShape(micro_batch=1, tp=8)))
    logits = 8192 * 129024 // 8
    assert (by_name["logits"].m, by_name["logits"].n, by_name["logits"].k) == (8192, 16128, 4096)
    assert by_name["logits_to_fp32"].bytes == 6 * logits
    passes = [kernel for name, kernel in by_name.items() if name.startswith("logits_") and kernel.kind == "memory"]
    assert sum(kernel.bytes for kernel in passes if "grad" not in kernel.name) == 38 * logits
    assert sum(kernel.bytes for kernel in passes if "grad" in kernel.name) == 14 * logits
    assert by_name["final_norm"].bytes == 4 * 8192 * 4096
    assert by_name["final_norm_input_grad"].bytes == 6 * 8192 * 4096
    assert "final_norm_residual_grad" not in by_name  # no path leads around it


def test_context_parallel_queries_meet_all_keys() -> None:
    one, four = (attention_block(preset("llama3-8b"), RankShape(micro_batch=1, cp=cp)) for cp in (1, 4))
    whole, part = named(one)["attention"], named(four)["attention"]
    assert (part.m, part.n) == (2048, 8192)
    assert part.flops == whole.flops / 4
    assert whole.bytes / 4 < part.bytes < whole.bytes


def test_gradients_of_unfused_attention_have_the_shapes_of_what_they_are_gradients_of() -> None:
    """With cp 2 a rank has s / 2 query rows against s keys, so rows and columns cannot be mistaken for each other."""
    by_name = named(attention_block(preset("gpt3-175b"), RankShape(micro_batch=1, tp=8, cp=2, attention="unfused")))
    gradients = ("scores_query_grad", "scores_key_grad", "context_probabilities_grad", "context_value_grad")
    core = ("scores", "context", *gradients)
    assert {name: (by_name[name].m, by_name[name].n, by_name[name].k) for name in core} == {
        "scores": (1024, 2048, 128),
        "context": (1024, 128, 2048),
        "scores_query_grad": (1024, 128, 2048),
        "scores_key_grad": (2048, 128, 1024),
        "context_probabilities_grad": (1024, 2048, 128),
        "context_value_grad": (2048, 128, 1024),
    }


def test_sequences_of_a_batch_share_the_rows_of_the_position_table() -> None:
    w = named(embedding_block(preset("gpt3-175b"), RankShape(micro_batch=4)))["position_embedding_weight_grad"]
    assert w.bytes == 2 * 4 * 2048 * 12288 + 8 * 2048 * 12288


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"micro_batch": 0}, "micro_batch 0 must be at least 1"),
        ({"micro_batch": 1, "tp": 0}, "tp 0 must be at least 1"),
        ({"micro_batch": 1, "element_bytes": 0.0}, "element_bytes 0.0 must be positive"),
        ({"micro_batch": 1, "grad_accumulate_bytes": -1.0}, "not negative"),
        ({"micro_batch": 1, "tp": 5}, "tp 5 does not split heads 96"),
        ({"micro_batch": 1, "cp": 3}, "sequence_length 2048 is not divisible by cp 3"),
        ({"micro_batch": 1, "tp": 3, "sequence_parallel": True}, "= 2048 is not divisible by tp 3"),
    ],
)
def test_impossible_shapes_are_errors(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        attention_block(preset("gpt3-175b"), RankShape(**fields))


# --- windows, and biases by a kernel of their own ---------------------------------------------------------------------


@pytest.mark.parametrize(("every", "edges"), [(None, 2.0), (2, 1.5)])
def test_a_window_is_computed_in_whole_tiles_at_both_edges(every: int | None, edges: float) -> None:
    """A block of 128 queries in a window of 1,024 meets 1,152 keys: 128 more than a query sees, 64 at each edge."""
    fields = {"layers": 4, "hidden_size": 1024, "heads": 8, "vocab_size": 1000, "sequence_length": 4096}
    model = Model.model_validate({**fields, "attention_window": 1024, "full_attention_every": every})
    device = load_device("a100-80gb")  # whose kernel has no diagonal of its own: half a block of 128
    kernel = named(attention_block(model, RankShape(micro_batch=8)))["attention"]
    assert kernel.edges == edges
    exact = kernel_seconds(device, replace(kernel, edges=0.0), precision="bf16") - device.launch
    took = kernel_seconds(device, kernel, precision="bf16") - device.launch
    seen = model.causal_factor * 4096
    assert took / exact == pytest.approx((seen + 64 * edges) / seen, rel=1e-9)


def test_a_bias_by_a_kernel_of_its_own_reads_and_writes_queries_keys_and_values() -> None:
    fields = {"layers": 4, "hidden_size": 1024, "heads": 8, "vocab_size": 1000, "sequence_length": 4096, "bias": True}
    model = Model.model_validate(fields)
    of_product, own = (
        attention_block(model, RankShape(micro_batch=2, tp=2, bias=how)).body for how in ("product", "own")
    )
    (more,) = set(own.forward) - set(of_product.forward)
    assert (more.kind, more.bytes) == ("memory", 2 * 2 * (2 * 4096) * 3 * 512)
    assert (own.input_grad, own.weight_grad) == (of_product.input_grad, of_product.weight_grad)
    plain = model.model_copy(update={"bias": False})
    bare = (attention_block(plain, RankShape(micro_batch=2, tp=2, bias=how)).body for how in ("product", "own"))
    assert len(set(bare)) == 1
