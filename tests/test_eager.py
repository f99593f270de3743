"""What software does to a layer's kernels: the same products, more traffic; what is recomputed; fp8 and its casts."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_blocks import attention_block, mlp_block

from simcluster.base.errors import InputError
from simcluster.devices.device import kernel_seconds, load_device
from simcluster.model.flops import hardware_flops_per_sequence, model_flops_per_sequence
from simcluster.model.kernels import Block, Kernel
from simcluster.model.layer_block import lm_head_block
from simcluster.model.layers import RankShape
from simcluster.model.memory import activation_bytes
from simcluster.model.quantization import torch_quantization
from simcluster.model.transformer import Model
from simcluster.planning.segment_builder import SegmentBuilder
from simcluster.planning.work_kinds import Collective, Compute
from simcluster.scenario.scenario import load
from simcluster.step.simulate import simulate

LLAMA = Model(
    layers=2, hidden_size=512, heads=8, kv_heads=2, vocab_size=1024, sequence_length=256,
    gated_mlp=True, ffn_hidden_size=1536,
)  # fmt: skip
GPT = Model(layers=2, hidden_size=512, heads=8, vocab_size=1024, sequence_length=256)
PHASES = ("forward", "recompute", "input_grad", "weight_grad")


def kernels(block: Block, phase: str) -> list[Kernel]:
    sections = (block.entry, block.body, block.exit)
    return list(chain.from_iterable(getattr(section, phase) for section in sections))


def flops(block: Block, phase: str) -> float:
    return sum(kernel.flops for kernel in kernels(block, phase))


def moved(block: Block, phase: str) -> float:
    return sum(kernel.bytes for kernel in kernels(block, phase))


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt"])
@pytest.mark.parametrize("block", [attention_block, mlp_block, lm_head_block])
@given(micro_batch=st.integers(1, 4), recompute=st.sampled_from(["none", "operators", "full"]))
def test_eager_computes_the_same_and_moves_more(model, block, micro_batch, recompute) -> None:  # type: ignore[no-untyped-def]
    fused = RankShape(micro_batch=micro_batch, recompute=recompute)
    compiled, eager = replace(fused, kernels="compiled"), replace(fused, kernels="eager")
    for phase in PHASES:
        amounts = [flops(block(model, shape), phase) for shape in (fused, compiled, eager)]
        assert amounts[0] == amounts[1] == amounts[2]
        sizes = [moved(block(model, shape), phase) for shape in (fused, compiled, eager)]
        assert sizes[1] <= sizes[2]
        if block is not lm_head_block:  # Megatron-LM's loss, no kernel of which is fused, moves more than PyTorch's
            assert sizes[0] <= sizes[1]


def test_bytes_of_an_eager_llama_layer() -> None:
    """By hand, bytes an element of 16 bits: RMSNorm 36, rope 20, silu and product 10; backward 76 + 6, 20, 18."""
    shape = RankShape(micro_batch=1, kernels="eager")
    elements = LLAMA.sequence_length * LLAMA.hidden_size
    entry = attention_block(LLAMA, shape).entry
    assert sum(kernel.bytes for kernel in entry.forward) == 36 * elements
    assert sum(kernel.bytes for kernel in entry.input_grad) == (76 + 6) * elements
    body = mlp_block(LLAMA, shape).body
    wide = LLAMA.sequence_length * LLAMA.ffn_hidden_size
    assert sum(kernel.bytes for kernel in body.forward if kernel.name.startswith("swiglu")) == 10 * wide
    assert sum(kernel.bytes for kernel in body.input_grad if kernel.name.startswith("swiglu")) == 18 * wide
    rope = [kernel for kernel in attention_block(LLAMA, shape).body.forward if kernel.name.startswith("rope")]
    assert sum(kernel.bytes for kernel in rope) == 20 * LLAMA.sequence_length * (LLAMA.query_size + LLAMA.kv_size)


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt"])
def test_an_early_stop_leaves_out_the_last_product(model: Model) -> None:
    whole = RankShape(micro_batch=2, recompute="full")
    early = replace(whole, stops_early=True)
    last = 2.0 * 2 * model.sequence_length * model.hidden_size * model.ffn_hidden_size
    assert flops(mlp_block(model, whole), "recompute") - flops(mlp_block(model, early), "recompute") == last
    assert not mlp_block(model, early).exit.recompute
    assert attention_block(model, early) == attention_block(model, whole)


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=["llama", "gpt"])
def test_every_second_product_runs_again(model: Model) -> None:
    shape = RankShape(micro_batch=1, recompute="operators")
    again = sum(flops(block(model, shape), "recompute") for block in (attention_block, mlp_block))
    counted = hardware_flops_per_sequence(model, "operators") - model_flops_per_sequence(model)
    assert model.layers * again == counted > 0
    run = [kernel for kernel in kernels(attention_block(model, shape), "recompute") if kernel.kind == "attention"]
    assert not run


def test_what_is_kept_when_every_second_product_is() -> None:
    kept = activation_bytes(LLAMA, RankShape(micro_batch=1, recompute="operators"))
    assert set(kept) == {"attention_norm_input", "query", "value", "log_sum_exp", "projection_input", "gate"}
    everything = activation_bytes(LLAMA, RankShape(micro_batch=1))
    assert all(everything[name] == size for name, size in kept.items())


def test_fp8_speeds_up_layers_and_not_the_head() -> None:
    device = load_device("h100")
    model = LLAMA.model_copy(update={"hidden_size": 8192, "ffn_hidden_size": 8192, "sequence_length": 8192})
    fp8 = RankShape(micro_batch=1, quantization=torch_quantization())
    (head,) = [kernel for kernel in lm_head_block(model, fp8).body.forward if kernel.kind == "matmul"]
    assert kernel_seconds(device, head, precision="fp8") == kernel_seconds(device, head, precision="bf16")
    up, _ = [kernel for kernel in mlp_block(model, fp8).body.forward if kernel.kind == "matmul"]
    assert kernel_seconds(device, up, precision="fp8") < 0.7 * kernel_seconds(device, up, precision="bf16")
    casts = [kernel for phase in PHASES for kernel in kernels(mlp_block(model, fp8), phase) if "cast" in kernel.name]
    assert len(casts) == 4  # two operands forward, two gradients back
    assert not [
        kernel for kernel in kernels(mlp_block(model, RankShape(micro_batch=1)), "forward") if "cast" in kernel.name
    ]


@given(gather=st.integers(1, 9), product=st.integers(1, 9), pieces=st.integers(1, 4))
def test_gathered_pieces_may_begin_a_pass(gather: int, product: int, pieces: int) -> None:
    """As in the backward of a layer on its own: the first gather is waited for, the others go beside the products."""
    ops = SegmentBuilder(lambda some: Compute(sum(kernel.flops for kernel in some)), pieces=pieces)
    kernel = Kernel("k", "matmul", float(product * pieces), 1.0, m=pieces, n=1, k=1)
    ops.add_gathered_matmul(kernel, "backward", "k", float(gather * pieces), 0)
    ends: dict[int, float] = {}
    lanes: dict[str, float] = {}
    for number, op in enumerate(ops.build_segment().ops):
        size = op.work.size if isinstance(op.work, Collective) else op.work.seconds  # type: ignore[union-attr]
        ends[number] = max([lanes.get(op.lane, 0.0), *(ends[earlier] for earlier in op.after)]) + size
        lanes[op.lane] = ends[number]
    longer, shorter = max(gather, product), min(gather, product)
    assert max(ends.values()) == longer * pieces + shorter


@pytest.mark.parametrize("name", ["torch-eager", "torch-compile", "torch-1-eager"])
def test_eager_takes_longer_and_an_early_stop_less(name: str) -> None:
    base = simulate(load("tiny_dp", {"training.recompute": "full"}))
    other = simulate(load("tiny_dp", {"training.recompute": "full", "software": name}))
    assert other.step_time != base.step_time
    if name == "torch-1-eager":
        assert other.step_time > base.step_time


def test_every_second_product_needs_fused_attention() -> None:
    with pytest.raises(InputError, match="set attention to fused, or recompute to selective"):
        load("tiny_dp", {"training.recompute": "operators", "training.attention": "unfused"})
