"""Patterns of layers: layers of several types against equal models of one type, arithmetic, engines and messages."""

from __future__ import annotations

from typing import Any

import pytest

import simcluster
from simcluster.base.errors import InputError
from simcluster.model.flops import hardware_flops_per_sequence, model_flops_per_sequence
from simcluster.model.layers import parameters
from simcluster.model.transformer import Model

LLAMA: dict[str, Any] = {
    "layers": 8, "hidden_size": 1024, "heads": 16, "kv_heads": 4, "ffn_hidden_size": 2816, "vocab_size": 32000,
    "sequence_length": 2048, "gated_mlp": True,
}  # fmt: skip
MOE = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 512}


def scenario(model: dict[str, Any], **changes: Any) -> simcluster.Scenario:
    """Return a small job with this model; ``changes`` are paths with two underscores for a dot."""
    document: dict[str, Any] = {
        "model": model,
        "cluster": {"topology": "dgx_h100", "nodes": 1},
        "parallel": {"tp": 2, "pp": 2, "dp": 2},
        "training": {"global_batch": 8, "micro_batch": 1, "precision": "bf16-mixed"},
    }
    return simcluster.scenario(document, **changes)


def same(one: simcluster.Scenario, other: simcluster.Scenario) -> None:
    """Assert that two scenarios have equal timelines, memory, parameters and FLOP, to the bit."""
    first, second = simcluster.simulate(one), simcluster.simulate(other)
    assert first.step_time == second.step_time
    assert first.memory.total == second.memory.total
    counts = parameters(one.model), parameters(other.model)
    assert [(each.total, each.active) for each in counts] == [(counts[0].total, counts[0].active)] * 2
    assert model_flops_per_sequence(one.model) == model_flops_per_sequence(other.model)
    columns = ["rank", "stream", "start", "end"]
    assert first.timeline[columns].equals(second.timeline[columns])


CHANGES: list[dict[str, Any]] = [
    {},
    {"training__recompute": "full", "training__recompute_every": 2},
    {"training__recompute": "selective", "parallel__sequence_parallel": True},
    {"pipeline__schedule": "interleaved", "pipeline__chunks": 2},
    {"pipeline__schedule": "zb-h1"},
    {"pipeline__layers_per_stage": "auto"},
    {"parallel__zero": 3, "parallel__pp": 1, "parallel__dp": 4},
    {"parallel__zero": 3, "parallel__pp": 1, "parallel__dp": 4, "fsdp__unit_layers": 2, "overlap__param_gather": True},
    {"parallel__cp": 2, "parallel__dp": 1},
    {"training__optimizer": "muon", "parallel__zero": 1},
    {"overlap__grad_reduce": True, "overlap__bucket_size": "20 MB"},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_equal_types_are_one_type(changes: dict[str, Any]) -> None:
    typed = {**LLAMA, "pattern": "ABB", "layer_types": {"A": {}, "B": {"heads": 16}}}
    same(scenario(LLAMA, **changes), scenario(typed, **changes))


@pytest.mark.parametrize("changes", CHANGES)
def test_moe_placement_can_be_written_as_types(changes: dict[str, Any]) -> None:
    changes = {**changes, "parallel__sequence_parallel": True, "parallel__ep": 2}
    if changes.get("training__optimizer") == "muon" or changes.get("parallel__dp") == 1:
        changes["parallel__ep"] = 1
    placed = {**LLAMA, "moe": {**MOE, "first_dense_layers": 2}}
    words = ["dense"] * 2 + ["expert"] * 6
    types = {"dense": {"blocks": ["attention", "mlp"]}, "expert": {"blocks": ["attention", "mixture"]}}
    same(scenario(placed, **changes), scenario({**LLAMA, "layers": words, "layer_types": types, "moe": MOE}, **changes))


def test_layers_of_one_kind_are_halves_of_layers() -> None:
    whole, halves = scenario(LLAMA), scenario({**LLAMA, "layers": "*-" * 8})
    assert halves.model.layers == 16
    same(whole, halves)


def test_a_pattern_repeats_and_is_cut() -> None:
    types = {"S": {"attention_window": 512}, "F": {}}
    model = Model(**{**LLAMA, "layers": 7, "pattern": "SSF", "layer_types": types})
    assert [model.layer_type(layer)[0] for layer in range(7)] == list("SSFSSFS")
    assert model.layers_text == "7 (5 S, 2 F)"
    assert [model.layer_model(layer).attention_window for layer in range(3)] == [512, 512, None]


def test_windows_by_layer_have_the_flops_of_their_mean() -> None:
    mean = Model(**LLAMA, attention_window=512, full_attention_every=4)
    types = {"S": {"attention_window": 512}, "F": {}}
    exact = Model(**LLAMA, pattern="SSSF", layer_types=types)
    assert model_flops_per_sequence(exact) == pytest.approx(model_flops_per_sequence(mean), rel=1e-12)
    for recompute in ("selective", "full"):
        pair = [hardware_flops_per_sequence(each, recompute) for each in (exact, mean)]
        assert pair[0] == pytest.approx(pair[1], rel=1e-12)
    kernels = simcluster.kernels(scenario({**LLAMA, "pattern": "SSSF", "layer_types": types})).table
    cores = kernels[(kernels["name"] == "attention") & (kernels["phase"] == "forward")].set_index("block").flops
    part = 512 / 2048
    ratio = cores["attention (S)"] / cores["attention (F)"]
    assert ratio == pytest.approx(part * (1 - part / 2) / 0.5, rel=1e-12)


def test_sizes_of_a_type_are_counted_exactly() -> None:
    """A layer of a decoder: h (q + 2 kv) + q h + 3 h f weights, and two norms."""
    model = Model(**{**LLAMA, "pattern": "ab", "layer_types": {"a": {}, "b": {"kv_heads": 8, "ffn_hidden_size": 1024}}})
    plain = parameters(Model(**LLAMA)).total
    less = 3 * 1024 * (2816 - 1024) - 1024 * 2 * (8 - 4) * 64
    assert parameters(model).total == plain - 4 * less


@pytest.mark.parametrize("engine", ["reference", "compiled"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pipeline__schedule": "interleaved", "pipeline__chunks": 2, "training__recompute": "full"},
        {"pipeline__schedule": "zb-v", "parallel__zero": 1},
        {"parallel__zero": 3, "parallel__pp": 1, "parallel__dp": 4, "parallel__ep": 2},
        {"faults": [{"kind": "slow_gpu", "rank": 1, "slowdown": 1.5}]},
    ],
)
def test_engines_agree(engine: str, changes: dict[str, Any]) -> None:
    types = {"S": {"attention_window": 256, "kv_heads": 8}, "F": {"position": "none"}}
    model = {**LLAMA, "layers": ["S", "S", "F", "*", "E", "S", "-", "F"], "layer_types": types, "moe": MOE}
    base = scenario(model, parallel__sequence_parallel=True, **changes)
    folded = simcluster.simulate(base)
    other = simcluster.simulate(base, engine=engine)
    assert other.step_time == folded.step_time
    ranks = folded.timeline["rank"].unique()
    spans = other.timeline[other.timeline["rank"].isin(ranks)].reset_index(drop=True)
    assert spans.equals(folded.timeline)


def test_stages_are_balanced_by_each_layers_own_time() -> None:
    """Two layers with eight times the MLP come first: an even split puts both on one stage."""
    types = {"w": {"ffn_hidden_size": 8 * 2816}, "n": {}}
    model = {**LLAMA, "layers": ["w"] * 2 + ["n"] * 6, "layer_types": types}
    even = simcluster.simulate(scenario(model))
    auto = simcluster.simulate(scenario(model, pipeline__layers_per_stage="auto"))
    assert auto.job.slices.counts[0] < 4
    assert auto.step_time < even.step_time


S = {"S": {"attention_window": 512}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pattern": "xx"}, "'x' is not in layer_types"),
        ({"pattern": "*|*"}, "divides pipeline stages"),
        ({"layers": "S", "pattern": "S", "layer_types": S}, "remove one of them"),
        ({"layer_types": S}, "needs a pattern"),
        ({"pattern": "*", "layer_types": S}, "no layer of the pattern is 'S'"),
        ({"pattern": "S", "layer_types": {"S": {"hidden_size": 4}}}, "hidden_size is not a field of a type"),
        ({"pattern": "S", "layer_types": {"S": {"kv_heads": 3}}}, "kv_heads 3 does not divide heads 16"),
        ({"pattern": "S", "layer_types": {"S": {"attention_window": -1}}}, "layer_types.S.attention_window"),
        ({"pattern": "E-"}, "layers of type E have experts"),
        ({"pattern": "*-", "moe": MOE}, "none of the 8 layers has experts"),
        ({"pattern": "S", "layer_types": S, "attention_window": 4, "full_attention_every": 2}, "remove full_attention"),
        ({"blocks": ["attention", "mlp"], "mixer": "attention"}, "names the mixer, too"),
        ({"blocks": []}, "one or two layer kinds"),
        ({"blocks": ["mlp", "atention"]}, "did you mean 'attention'"),
        ({"pattern": ""}, "pattern is empty"),
        ({"pattern": "S", "layer_types": {"S": {"mixer": "mlp"}}}, "'mlp' is not a layer kind that mixes tokens"),
        ({"pattern": "S", "layer_types": {"S": {"mla": {"kv_lora_rank": 4}}}}, "may only be null"),
        ({"pattern": "S", "layer_types": {"S": {"blocks": 7}}}, "layer_types.S: blocks must be a list"),
        ({"pattern": "S", "layer_types": {"S": {"mixer": ["mlp"]}}}, "and mixer the name of one"),
        ({"pattern": "S", "layer_types": {"S": {"blocks": [["mlp"]]}}}, "S.blocks.0: must be a text, got"),
        ({"blocks": ["latent_attention"]}, "latent_attention is what attention is with model.mla; write attention"),
        ({"blocks": ["sparse_attention", "mlp"]}, "what attention is with model.mla.indexer; write attention"),
        ({"layers": "*-/*E", "moe": MOE}, "none of the 2 layers has experts; add E to the pattern, or remove moe"),
        ({"pattern": "S", "layer_types": {"S": {"blocks": "mlp"}}}, "layer_types.S: blocks must be a list"),
        ({"pattern": "S", "layer_types": {"S": {"position": "none"}}, "position": "learned"}, "learned positions are"),
    ],
)
def test_messages(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario({**LLAMA, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pattern": "*E", "moe": {**MOE, "every": 2}}, "model.moe.every: has no effect, since pattern says"),
        ({"blocks": ["attention", "mixture"], "moe": {**MOE, "first_dense_layers": 1}}, "since blocks says which"),
        (
            {"pattern": "a*", "layer_types": {"a": {"blocks": ["mlp"], "attention_window": 64}}},
            "model.layer_types.a.attention_window: has no effect, since layers of type a have mlp",
        ),
        (
            {"pattern": "a-", "layer_types": {"a": {"blocks": ["attention"], "ffn_hidden_size": 64}}},
            "model.layer_types.a.ffn_hidden_size: has no effect",
        ),
        (
            {
                "pattern": "ab",
                "attention_window": 64,
                "layer_types": {"a": {"attention_window": 128}, "b": {"attention_window": 256}},
            },
            "model.attention_window: has no effect, since every type of layer_types sets it",
        ),
        ({"pattern": "*-", "mixer": "attention"}, "model.mixer: has no effect, since the pattern names"),
        (
            {"blocks": ["mlp"], "attention_gate": True},
            "model.attention_gate: has no effect, since no layer has attention",
        ),
        ({"pattern": "-", "qk_norm": "head"}, "model.qk_norm: has no effect, since no layer has attention"),
        ({"pattern": "*-", "blocks": ["mlp"]}, "model.blocks: has no effect, since the pattern names"),
    ],
)
def test_no_field_is_silently_without_effect(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario({**LLAMA, **fields}, parallel__sequence_parallel=True)


@pytest.mark.parametrize(
    "changes",
    [{"training__recompute": "operators"}, {"model__parallel_residual": True}, {"model__layer_norms": 1}],
)
def test_options_that_need_whole_layers_are_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="layers that have a single kind"):
        scenario({**LLAMA, "layers": "*-" * 4}, **changes)


def test_documents_round_trip() -> None:
    types = {"S": {"attention_window": 256, "mla": None}, "F": {}}
    one = scenario({**LLAMA, "pattern": "SF", "layer_types": types})
    assert simcluster.scenario(one.document()) == one
    assert hash(one.model) == hash(simcluster.scenario(one.document()).model)


def test_a_misspelt_kind_is_what_is_wrong() -> None:
    """Not the sizes of the kind that was meant, which no layer has then."""
    kinds = {"mamba2": {"heads": 16}}
    with pytest.raises(InputError, match="there is no layer kind 'mamba3'; did you mean 'mamba2'"):
        scenario({**LLAMA, "blocks": ["mamba3", "mlp"], "layer_kinds": kinds})
