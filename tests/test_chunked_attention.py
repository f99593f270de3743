"""Attention in chunks (Llama 4): pairs, kernels against shorter sequences, engines, and what is rejected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_blocks import attention_block

import simcluster
from simcluster.base.errors import InputError
from simcluster.devices.device import kernel_seconds, load_device
from simcluster.model.flops import layer_flops, model_flops_per_sequence
from simcluster.model.kernels import Kernel
from simcluster.model.layers import RankShape, parameters
from simcluster.model.memory import activation_bytes
from simcluster.model.transformer import Model

LLAMA: dict[str, Any] = {
    "layers": 4, "hidden_size": 1024, "heads": 16, "kv_heads": 4, "ffn_hidden_size": 2816, "vocab_size": 32000,
    "sequence_length": 2048, "gated_mlp": True,
}  # fmt: skip
TYPES = {"C": {"attention_chunk": 512, "qk_norm": "unscaled"}, "F": {"position": "none"}}


def scenario(model: dict[str, Any], **changes: Any) -> simcluster.Scenario:
    """Return a small job with this model; ``changes`` are paths with two underscores for a dot."""
    document: dict[str, Any] = {
        "model": model,
        "cluster": {"topology": "dgx_h100", "nodes": 1},
        "parallel": {"tp": 2, "pp": 2, "dp": 2},
        "training": {"global_batch": 8, "micro_batch": 1, "precision": "bf16-mixed"},
    }
    return simcluster.scenario(document, **changes)


def cores(model: Model, shape: RankShape) -> list[Kernel]:
    """Return the attention kernels of the forward and of the backward."""
    body = attention_block(model, shape).body
    return [kernel for kernel in (*body.forward, *body.input_grad) if kernel.kind == "attention"]


@given(length=st.integers(1, 3000), chunk=st.integers(1, 4000))
def test_pairs_are_those_of_a_causal_mask_in_each_chunk(length: int, chunk: int) -> None:
    """A token meets itself and the earlier ones of its chunk; half of each diagonal is left out, as without chunks."""
    model = Model(**{**LLAMA, "sequence_length": length}, attention_chunk=chunk)
    pairs = sum(token % chunk + 1 for token in range(length))
    assert model.causal_factor * length**2 == pytest.approx(pairs - length / 2, rel=1e-12)


@pytest.mark.parametrize("chunk", [512, 1024])
def test_kernels_are_those_of_sequences_as_long_as_a_chunk(chunk: int) -> None:
    long = cores(Model(**LLAMA, attention_chunk=chunk), RankShape(micro_batch=2, tp=2))
    short = Model(**{**LLAMA, "sequence_length": chunk})
    pieces = cores(short, RankShape(micro_batch=2 * 2048 // chunk, tp=2))
    assert [(each.name, each.flops, each.bytes) for each in long] == [
        (each.name, each.flops, each.bytes) for each in pieces
    ]
    device = load_device("h100")
    for one, other in zip(long, pieces, strict=True):
        took = [kernel_seconds(device, each, precision="bf16") for each in (one, other)]
        assert took[0] == pytest.approx(took[1], rel=1e-12)


def test_chunks_that_differ_are_as_long_as_their_mean() -> None:
    """2048 tokens in chunks of 1536 and 512: 1536^2 + 512^2 = 2048 x 1280."""
    forward, back = cores(Model(**LLAMA, attention_chunk=1536), RankShape(micro_batch=1))
    assert (forward.n, back.n) == (1280, 1280)
    assert forward.flops == 4 * 2048 * 1280 * 1024 / 2


@pytest.mark.parametrize("chunk", [2048, 5000])
def test_a_chunk_as_long_as_the_sequence_is_no_chunk(chunk: int) -> None:
    plain, whole = scenario(LLAMA), scenario({**LLAMA, "attention_chunk": chunk})
    first, second = simcluster.simulate(plain), simcluster.simulate(whole)
    assert first.step_time == second.step_time
    assert first.memory.total == second.memory.total
    assert first.timeline.equals(second.timeline)
    assert model_flops_per_sequence(plain.model) == model_flops_per_sequence(whole.model)


def test_unfused_attention_works_on_the_whole_square() -> None:
    shape = RankShape(micro_batch=1, attention="unfused")
    chunked, plain = (attention_block(Model(**LLAMA, **own), shape) for own in ({"attention_chunk": 512}, {}))
    assert chunked == plain


def test_normed_queries_without_parameters() -> None:
    """Kernels and kept tensors of a norm per head, and no scales."""
    bare, head, unscaled = (Model(**LLAMA, qk_norm=how) for how in (None, "head", "unscaled"))
    assert parameters(bare).total == parameters(unscaled).total == parameters(head).total - 4 * 2 * 64
    shape = RankShape(micro_batch=1)
    assert attention_block(unscaled, shape) == attention_block(head, shape) != attention_block(bare, shape)
    assert activation_bytes(unscaled, shape) == activation_bytes(head, shape)


@pytest.mark.parametrize("engine", ["reference", "compiled"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training__recompute": "full", "parallel__sequence_parallel": True},
        {"training__recompute": "selective", "pipeline__schedule": "zb-h1"},
        {"parallel__cp": 2, "parallel__dp": 1, "parallel__cp_comm": "all_to_all"},
        {"parallel__zero": 3, "parallel__pp": 1, "parallel__dp": 4},
    ],
)
def test_engines_agree_on_layers_with_and_without_chunks(engine: str, changes: dict[str, Any]) -> None:
    base = scenario({**LLAMA, "pattern": "CCCF", "layer_types": TYPES}, **changes)
    folded, other = simcluster.simulate(base), simcluster.simulate(base, engine=engine)
    assert other.step_time == folded.step_time == simcluster.simulate(base, folded=False).step_time
    whole = simcluster.simulate(scenario({**LLAMA, "pattern": "CCCF", "layer_types": {**TYPES, "C": {}}}, **changes))
    assert folded.step_time != whole.step_time


def test_flops_of_a_pattern_are_those_of_its_layers() -> None:
    model = Model(**LLAMA, pattern="CCCF", layer_types=TYPES)
    found = [layer_flops(model, 1, layer=layer).core.total for layer in (0, 3)]
    assert found[0] == found[1] / 4
    plain = model_flops_per_sequence(Model(**LLAMA))
    assert model_flops_per_sequence(model) == pytest.approx(plain - 3 * 0.75 * found[1], rel=1e-12)


def test_heads_traded_for_whole_sequences_see_the_same_chunks() -> None:
    model = Model(**LLAMA, attention_chunk=512)
    (one, _), (part, _) = (
        cores(model, RankShape(micro_batch=1, **own)) for own in ({}, {"cp": 2, "cp_comm": "all_to_all"})
    )
    assert part == replace(one, batch=one.batch // 2, flops=one.flops / 2, bytes=part.bytes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_chunk": 512, "attention_window": 64}, "attention_chunk excludes attention_window"),
        ({"attention_chunk": 512, "causal": False}, "attention_chunk needs a causal mask"),
        ({"attention_chunk": 0}, "0 is not a whole number"),
        ({"pattern": "C", "layer_types": {"C": {"attention_chunk": -1}}}, "layer_types.C.attention_chunk"),
        ({"pattern": "CC", "layer_types": {"C": {"blocks": ["mlp"], "attention_chunk": 64}}}, "has no effect, since"),
    ],
)
def test_messages(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario({**LLAMA, **fields})


@pytest.mark.parametrize("how", ["ring", "all_gather"])
def test_keys_that_travel_are_rejected(how: str) -> None:
    changes = {"parallel__cp": 2, "parallel__dp": 1, "parallel__cp_comm": how}
    with pytest.raises(
        InputError, match=rf"parallel.cp_comm: {how} is not modelled with model\.attention_chunk; use all_to"
    ):
        scenario({**LLAMA, "pattern": "CF", "layer_types": TYPES}, **changes)
    assert scenario({**LLAMA, "attention_chunk": 2048}, **changes).model.attention_chunk == 2048


def test_masks_within_documents_are_rejected() -> None:
    documents = {"kind": "lognormal", "median": 64, "sigma": 1.0}
    model = {**LLAMA, "pattern": "CF", "layer_types": TYPES}
    with pytest.raises(InputError, match=r"data\.mask: document is not modelled with model\.attention_chunk; set mask"):
        scenario(model, data__documents=documents)
    with pytest.raises(InputError, match=r"faults: sequence_lengths is not modelled with model\.attention_chunk"):
        scenario(model, faults=[{"kind": "sequence_lengths", "documents": documents}])
    assert scenario(model, data__documents=documents, data__mask="none").data
