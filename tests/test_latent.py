"""Latent attention (MLA): counts, shapes and traffic of DeepSeek's attention; plain attention where they meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_blocks import attention_block

from simcluster import InputError, simulate
from simcluster.model.flops import layer_flops
from simcluster.model.kernels import Kernel
from simcluster.model.layers import LAYER_KINDS, RankShape
from simcluster.model.memory import activation_bytes
from simcluster.model.transformer import Model
from simcluster.planning.ops import Segment
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.work_kinds import Collective
from simcluster.scenario.scenario import load

MLA = {"q_lora_rank": 192, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
FIELDS: dict[str, Any] = {
    "layers": 2, "hidden_size": 512, "heads": 8, "vocab_size": 1024, "sequence_length": 128, "gated_mlp": True,
    "ffn_hidden_size": 1024, "mla": MLA,
}  # fmt: skip
MODEL = Model.model_validate(FIELDS)
DIRECT = Model.model_validate({**FIELDS, "mla": {**MLA, "q_lora_rank": None}})
LAYER = PassLayers((0,))
SHAPES = st.builds(
    RankShape,
    micro_batch=st.sampled_from([1, 3]),
    tp=st.sampled_from([2, 4, 8]),
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "full"]),
    attention=st.sampled_from(["fused", "unfused"]),
)


def moved(segment: Segment) -> Counter[tuple[str, str]]:
    """Bytes by kind and name."""
    found: Counter[tuple[str, str]] = Counter()
    for op in segment.ops:
        if isinstance(op.work, Collective):
            found[op.work.kind, op.name] += int(op.work.size)
    return found


@pytest.mark.parametrize(("model", "queries"), [(MODEL, 512 * 192 + 192 + 192 * 8 * 48), (DIRECT, 512 * 8 * 48)])
def test_parameters_by_hand(model: Model, queries: int) -> None:
    """arXiv:2405.04434, section 2.1: W_DQ, W_UQ with W_QR, W_DKV with W_KR, W_UK with W_UV, W_O, two norms."""
    keys = 512 * (64 + 16) + 64 + 64 * 8 * (32 + 32)
    assert LAYER_KINDS["latent_attention"].count_parameters(model) == queries + keys + 8 * 32 * 512


@given(model=st.sampled_from([MODEL, DIRECT]), shape=SHAPES)
def test_kernels_do_the_flops(model: Model, shape: RankShape) -> None:
    """What tp ranks do together; narrow vectors are made by all of them unless each has its own tokens."""
    block, mla = attention_block(model, shape), model.mla
    assert mla is not None
    flops, tokens = layer_flops(model, shape.micro_batch), shape.micro_batch * 128
    attention = flops.qkv + flops.core + flops.projection
    again = 0.0 if shape.sequence_parallel else 2.0 * tokens * 512 * mla.narrow_width * (shape.tp - 1)
    square = 2.0 if shape.attention == "unfused" else 1.0
    sections = (block.entry, block.body, block.exit)
    for half, whole, core in (
        ("forward", attention.forward, flops.core.forward),
        ("input_grad", attention.input_grad, (1.25 if square == 1 else 1.0) * flops.core.input_grad),
        ("weight_grad", attention.weight_grad, 0.0),
    ):
        done = shape.tp * sum(kernel.flops for section in sections for kernel in getattr(section, half))
        wanted = whole - getattr(flops.core, half) + square * core + again
        assert done == pytest.approx(wanted, rel=1e-9)


@given(model=st.sampled_from([MODEL, DIRECT]), shape=SHAPES, overlap=st.booleans())
def test_every_kernel_runs_once(model: Model, shape: RankShape, overlap: bool) -> None:
    seen: list[Kernel] = []

    def timer(kernels: Sequence[Kernel]) -> float:
        seen.extend(kernels)
        return 0.0

    made = CachedPassSegmentMaker(model, shape, timer, overlap_tensor=overlap)
    block = attention_block(model, shape)
    sections = (block.entry, block.body, block.exit)
    made.segment("F", LAYER)
    assert Counter(seen) >= Counter(kernel for section in sections for kernel in section.forward)
    seen.clear()
    whole = made.segment("B", LAYER)
    together, seen[:] = Counter(seen), []
    inputs, _ = made.segment("I", LAYER), made.segment("W", LAYER)
    assert Counter(seen) == together
    assert moved(inputs) == moved(whole)


@pytest.mark.parametrize(("model", "width"), [(MODEL, 64 + 16 + 192), (DIRECT, 64 + 16 + 512)])
def test_narrow_vectors_are_gathered(model: Model, width: int) -> None:
    """Under sequence parallelism what enters the heads is narrow, forward and again for the weights' gradients."""
    made = CachedPassSegmentMaker(
        model, RankShape(micro_batch=1, tp=4, sequence_parallel=True), lambda kernels: 0.0, overlap_tensor=False
    )
    narrow, whole = 2 * 128 * width, 2 * 128 * 512
    forward, backward = moved(made.segment("F", LAYER)), moved(made.segment("B", LAYER))
    assert (forward["all_gather", "attention"], forward["reduce_scatter", "attention"]) == (narrow, whole)
    assert (backward["all_gather", "attention"], backward["all_gather", "attention_input"]) == (whole, narrow)
    assert backward["reduce_scatter", "attention_grad"] == narrow


def test_positions_in_steps_are_copies_of_every_part() -> None:
    """One token, 8 heads of 32 + 16 and values of 32, by hand: 14 goes over what is turned, then three copies."""
    one = MODEL.model_copy(update={"sequence_length": 1})
    shapes = RankShape(micro_batch=1), RankShape(micro_batch=1, rope="steps")
    bodies = (attention_block(one, shape).body.forward for shape in shapes)
    fused, steps = ([kernel for kernel in body if kernel.name.startswith("latent")] for body in bodies)
    moved = sum(kernel.bytes for kernel in steps if kernel.kind == "memory")
    turned, query, value = 9 * 16, 8 * 48, 8 * 32
    assert moved == 2 * (14 * turned + 2 * query + (2 * query - 8 * 16) + 2 * value)
    assert [kernel for kernel in steps if kernel.kind == "matmul"] == [k for k in fused if k.kind == "matmul"]


def test_where_it_meets_plain_attention_the_core_is_the_same() -> None:
    """Equal widths of keys and values: the kernel of plain attention with as many heads."""
    same = {"kv_lora_rank": 64, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "v_head_dim": 64}
    latent = Model.model_validate({**FIELDS, "mla": same})
    plain = Model.model_validate({**FIELDS, "mla": None})
    cores = []
    for model in (latent, plain):
        body = attention_block(model, RankShape(micro_batch=2)).body
        cores.append([kernel for kernel in (*body.forward, *body.input_grad) if kernel.kind == "attention"])
    assert cores[0] == cores[1]
    assert layer_flops(latent, 1).core == layer_flops(plain, 1).core


def test_activations_by_hand() -> None:
    parts, n = activation_bytes(MODEL, RankShape(micro_batch=1)), 128
    assert (parts["latent"], parts["latent_normed"]) == (2 * n * (64 + 16 + 192), 2 * n * (64 + 192))
    assert (parts["query"], parts["key"], parts["value"]) == (2 * n * 8 * 48, 2 * n * 8 * 48, 2 * n * 8 * 32)


@pytest.mark.parametrize("changes", [{}, {"training.recompute": "full"}, {"pipeline.schedule": "zb-h1"}])
def test_folded_is_unfolded_to_the_bit(changes: dict[str, Any]) -> None:
    fields = {f"model.{name}": value for name, value in FIELDS.items()}
    made = load("tiny_3d", {**fields, **changes})
    folded, unfolded = simulate(made), simulate(made, folded=False)
    assert folded.step_time == unfolded.step_time
    assert folded.timeline_of(0).drop(columns="group").equals(unfolded.timeline_of(0).drop(columns="group"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_heads": 2}, "remove kv_heads"),
        (
            {"bias": True},
            "has keys for each of the 8 heads, no biases, .*remove kv_heads, qk_norm, attention_gate and bias",
        ),
        ({"head_dim": 64}, "head_dim 64 does not equal mla.s .* = 48; remove head_dim"),
    ],
)
def test_what_does_not_go_says_why(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, ValueError), match=words):
        Model.model_validate({**FIELDS, **changes})
