"""Adapters of low rank (LoRA), frozen weights, quantized ones: counts, FLOP, memory, traffic and messages by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import simcluster
from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.model.adapters import list_adapters
from simcluster.model.flops import hardware_flops_per_sequence, layer_flops, model_flops_per_sequence
from simcluster.model.layers import RankShape, parameters
from simcluster.model.memory import activation_bytes, layer_backward_tensors
from simcluster.model.quantization import torch_quantization
from simcluster.model.trainable import QUANTIZED_BYTES, BaseWeights, Trainable
from simcluster.model.transformer import Model
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.work_kinds import Collective
from simcluster.scenario.checkpoint_plan import (
    checkpoint_bytes,
    checkpoint_bytes_by_rank,
    checkpoint_bytes_per_parameter,
)
from simcluster.scenario.run_section import CheckpointSpec

SEPARATE = ("query", "key", "value", "projection", "gate", "up", "mlp_down")
LLAMA: dict[str, Any] = {
    "layers": 4, "hidden_size": 512, "heads": 8, "kv_heads": 4, "ffn_hidden_size": 1024, "vocab_size": 1024,
    "sequence_length": 256, "gated_mlp": True,
}  # fmt: skip
FP8: dict[str, Any] = {"quantization": torch_quantization()}
H, KV, FFN, RANK, TOKENS = 512, 256, 1024, 8, 256
BASE = (H * (H + 2 * KV), H * H, H * 2 * FFN, FFN * H)  # QKV, projection, gate and up, down
LOW = tuple(RANK * each for each in (H + H + 2 * KV, H + H, H + 2 * FFN, FFN + H))


def preset(name: str, **trainable: Any) -> Model:
    """Return a published model with adapters or frozen parts."""
    return Model(**load_model_entry(name)).with_trainable(Trainable(**trainable))


def small(**trainable: Any) -> Model:
    """Return the small model with adapters or frozen parts; all trained without."""
    return Model(**LLAMA).with_trainable(Trainable(**trainable) if trainable else None)


def scenario(trainable: dict[str, Any] | None, model: dict[str, Any] | None = None, **sections: Any) -> Any:
    """Return a small job that trains this; sections replace those given here."""
    document: dict[str, Any] = {
        "model": {**LLAMA, **(model or {})},
        "cluster": {"topology": "dgx_h100", "nodes": 1},
        "parallel": {"tp": 2, "pp": 2, "dp": 2},
        **{name: each for name, each in sections.items() if name != "training"},
        "training": {"global_batch": 16, "trainable": trainable, **sections.get("training", {})},
    }
    return simcluster.scenario(document)


def segment(model: Model, kind: str, **shape: Any) -> list[Any]:
    """Return the ops of one pass over the first layer."""
    maker = CachedPassSegmentMaker(model, RankShape(1, **shape), lambda kernels: 1.0, overlap_tensor=False)
    return list(maker.segment(kind, PassLayers((0,))).ops)


def kernels(model: Model, kind: str, **shape: Any) -> list[Any]:
    """Return the kernels of one pass over the first layer."""
    maker = CachedPassSegmentMaker(model, RankShape(1, **shape), lambda kernels: 1.0, overlap_tensor=False)
    return [kernel for each in maker.launched_kernels(kind, PassLayers((0,))) for kernel in each.kernels]


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "trainable", "count"), [
    ("llama2-7b", {"rank": 8, "modules": ("query", "value")}, 4_194_304),  # huggingface/peft, README and guides
    ("llama3-8b", {"rank": 16, "modules": SEPARATE}, 41_943_040),  # "trainable params" of trainers, all linear layers
    ("llama2-70b", {"rank": 16, "modules": ("qkv", "projection")}, 80 * 16 * (8192 + 10240 + 8192 + 8192)),  # MLPerf
])  # fmt: skip
def test_adapters_have_the_parameters_that_trainers_print(name: str, trainable: Any, count: int) -> None:
    model = preset(name, **trainable)
    found = parameters(model)
    assert found.total - found.frozen == count
    assert found.frozen == parameters(Model(**load_model_entry(name))).total


def test_ranks_of_tp_hold_each_adapter_parameter_once() -> None:
    model = small(rank=RANK)
    for kind, whole in (("attention", sum(LOW[:2])), ("mlp", sum(LOW[2:]))):
        assert sum(each.parameters for each in list_adapters(model, kind)) == whole
        for tp in (2, 4):
            assert tp * sum(each.parameters for each in list_adapters(model, kind, tp)) == whole


def test_frozen_parts_are_counted_with_their_norms() -> None:
    whole, norm = parameters(Model(**LLAMA)), H
    cases: dict[tuple[str, ...], int] = {
        ("embedding",): 1024 * H, ("lm_head",): 1024 * H + norm, ("attention",): 4 * sum(BASE[:2]),
        ("attention", "mlp"): 4 * (sum(BASE) + 2 * norm),
    }  # fmt: skip
    for parts, count in cases.items():
        found = parameters(small(frozen=parts))
        assert (found.frozen, found.total) == (count, whole.total)
    assert parameters(small(frozen_layers=(1, 2))).frozen == 2 * (sum(BASE) + 2 * norm)


def test_layers_of_a_range_are_another_type() -> None:
    model = small(frozen_layers=(1, 2))
    assert model.count_layer_types() == {("", "attention", "mlp"): (0, 2), ("frozen", "attention", "mlp"): (1, 2)}
    assert [model.layer_model(layer).freezes("mlp") for layer in range(4)] == [False, True, True, False]
    assert model != small()
    assert small().count_layer_types() == {("", "attention", "mlp"): (0, 4)}


# --- FLOP -------------------------------------------------------------------------------------------------------------


def test_frozen_weights_cost_four_flop_per_token_and_trained_ones_six() -> None:
    core = 4 * 3 * layer_flops(Model(**LLAMA), 1).core.forward
    full, low = 4 * sum(BASE) + 1024 * H, 4 * sum(LOW)
    assert model_flops_per_sequence(small()) == 6 * full * TOKENS + core
    assert model_flops_per_sequence(small(rank=RANK)) == (4 * full + 6 * low) * TOKENS + core
    head = small(frozen=("lm_head", "mlp"))
    assert model_flops_per_sequence(head) == (6 * full - 2 * (1024 * H + 4 * sum(BASE[2:]))) * TOKENS + core


def test_layers_that_no_gradients_reach_have_a_forward_alone() -> None:
    model = small(frozen=("embedding",), frozen_layers=(0, 1))
    whole = layer_flops(Model(**LLAMA), 1).total
    head = 6 * 1024 * H * TOKENS
    assert model_flops_per_sequence(model) == 2 * whole.forward + 2 * whole.total + head
    assert hardware_flops_per_sequence(model, "full") == model_flops_per_sequence(model) + 2 * whole.forward
    assert not segment(model, "B")[0].work.seconds
    assert not activation_bytes(model, RankShape(1), 0)
    assert activation_bytes(model, RankShape(1), 2) == activation_bytes(Model(**LLAMA), RankShape(1), 2)


@pytest.mark.parametrize("shape", [{}, {"tp": 2, "sequence_parallel": True}, {"recompute": "full"}, FP8])
def test_kernels_execute_the_flop_that_are_counted(shape: dict[str, Any]) -> None:
    """Of F, I and W each; recomputation once more what F does."""
    model, tp = small(rank=RANK, dropout=True), shape.get("tp", 1)
    products: Counter[str] = Counter()
    for kind in "FIW":
        for kernel in kernels(model, kind, **shape):
            products[kind] += int(kernel.flops if kernel.kind == "matmul" else 0)
    work = 2 * TOKENS * (sum(BASE) + sum(LOW)) // tp
    again = work if shape.get("recompute") else 0
    assert products == {"F": work, "I": work + again, "W": 2 * TOKENS * sum(LOW) // tp}


# --- kernels ----------------------------------------------------------------------------------------------------------


def test_no_frozen_matmul_has_a_weight_gradient() -> None:
    names = {kernel.name for kernel in kernels(small(rank=RANK, modules=("qkv",)), "B")}
    assert {name for name in names if "weight_grad" in name} == {
        "qkv_adapter_a_weight_grad", "qkv_adapter_b_weight_grad"
    }  # fmt: skip
    assert {"qkv_input_grad", "mlp_down_input_grad", "projection_input_grad"} <= names
    bare = {kernel.name for kernel in kernels(small(frozen=("mlp",)), "W")}
    assert bare == {"projection_weight_grad", "qkv_weight_grad"}


def test_kernels_beyond_the_matmuls_of_an_adapter() -> None:
    """Dropout reads and writes x and writes a mask; scale reads and writes y, add reads two and writes one."""
    x, y = 2 * TOKENS * H, 2 * TOKENS * (H + 2 * KV)
    moved: dict[str, dict[str, float]] = {}
    for word in ("separate", "triton", "fused"):
        model = small(rank=RANK, modules=("qkv",), dropout=True, kernels=word)
        moved[word] = {kernel.name: kernel.bytes for kind in "FI" for kernel in kernels(model, kind)}
    own = moved["separate"]
    assert own["qkv_adapter_dropout"] == own["qkv_adapter_dropout_input_grad"] == 2.5 * x
    assert (own["qkv_adapter_scale"], own["qkv_adapter_add"]) == (2 * y, 3 * y)
    assert (own["qkv_adapter_scale_input_grad"], own["qkv_adapter_add_input_grad"]) == (2 * y, 3 * x)
    assert own.keys() - moved["triton"].keys() == {"qkv_adapter_scale", "qkv_adapter_scale_input_grad"}
    added = {"qkv_adapter_add", "qkv_adapter_add_input_grad"}
    assert moved["triton"].keys() - moved["fused"].keys() == added
    assert moved["fused"]["qkv_adapter_b"] - own["qkv_adapter_b"] == y
    assert moved["fused"]["qkv_adapter_a_input_grad"] - own["qkv_adapter_a_input_grad"] == x


def test_quantized_weights_are_dequantized_before_every_matmul() -> None:
    cases: dict[BaseWeights, tuple[float, int]] = {"nf4": (0.5625, 1), "nf4-double": (0.5 + 1 / 64 + 1 / 4096, 3)}
    for word, (each, launches) in cases.items():
        assert QUANTIZED_BYTES[word] == each
        model = small(rank=RANK, base_weights=word)
        for kind, recompute, times in (("F", "none", 1), ("B", "none", 1), ("B", "full", 2), ("W", "none", 0)):
            found = [one for one in kernels(model, kind, recompute=recompute) if one.name.endswith("_dequantize")]
            assert sum(one.bytes for one in found) == times * (2 + each) * sum(BASE)
            assert sum(one.launches for one in found) == 4 * times * launches


def test_casts_to_fp8_are_row_wise_alone_where_no_weight_gradient_reads_the_columns() -> None:
    def casts(model: Model) -> Counter[str]:
        found: Counter[str] = Counter()
        for kind in "FI":
            for kernel in kernels(model, kind, **FP8):
                found[kernel.name] += int(kernel.bytes) if kernel.name.endswith("_cast") else 0
        return +found

    whole, frozen = casts(small()), casts(small(rank=RANK))
    assert whole
    assert {name: 3 * size for name, size in whole.items()} == {name: 4 * n for name, n in frozen.items()}
    bf16 = {one.name: one for kind in "FB" for one in kernels(small(rank=RANK), kind, **FP8)}
    assert all(one.keeps_16_bits for name, one in bf16.items() if "adapter" in name and one.kind == "matmul")


# --- memory -----------------------------------------------------------------------------------------------------------


def test_frozen_matmuls_keep_no_operands_and_adapters_theirs() -> None:
    """Of a layer in 16 bits: two norms' inputs, Q, K, V, the core's output and statistics, gate and up."""
    u = 2 * TOKENS
    rest = {
        "attention_norm_input": u * H, "query": u * H, "key": u * KV, "value": u * KV, "log_sum_exp": 4 * TOKENS * 8,
        "projection_input": u * H, "mlp_norm_input": u * H, "gate": u * FFN, "up": u * FFN,
    }  # fmt: skip
    assert activation_bytes(small(frozen=("attention", "mlp")), RankShape(1)) == rest
    low = {"qkv_adapter_input": u * H, "qkv_adapter_middle": u * RANK, "projection_adapter_middle": u * RANK}
    assert activation_bytes(small(rank=RANK, modules=("qkv", "projection")), RankShape(1)) == rest | low
    parts = activation_bytes(small(rank=RANK, modules=("query", "value"), dropout=True), RankShape(1))
    assert sum(parts.values()) - sum(rest.values()) == 2 * (u * H + TOKENS * H + u * RANK)
    full = RankShape(1, recompute="full")
    assert activation_bytes(small(rank=RANK), full) == {"attention_norm_input": u * H}


def test_adapters_keep_the_whole_input_under_sequence_parallelism() -> None:
    """The norm's output comes gathered (return_layernorm_output_gathered), and is not gathered again for W."""
    shape = RankShape(1, tp=2, sequence_parallel=True)
    tensors = {each.name: each for each in layer_backward_tensors(small(rank=RANK), shape, 0)}
    assert tensors["qkv_adapter_input"].bytes == 2 * TOKENS * H
    assert not {"qkv_input", "qkv_input_gathered", "mlp_input", "mlp_input_gathered"} & tensors.keys()
    gradients = {"qkv_adapter_output_grad": (H + 2 * KV) // 2, "qkv_adapter_middle_grad": RANK // 2,
                 "projection_adapter_output_grad": H // 2, "projection_adapter_middle_grad": RANK}  # fmt: skip
    for name, size in gradients.items():
        assert (tensors[name].bytes, tensors[name].made, tensors[name].read) == (2 * TOKENS * size, "I", "W")


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_gradients_and_optimizer_states_are_those_of_the_trained_part(zero: int) -> None:
    """mixed-18 on one stage and two replicas: 2 B of all weights, 4 + 12 of adapters."""
    parallel = {"tp": 1, "pp": 1, "dp": 2, "zero": zero}
    run = simcluster.simulate(scenario({"rank": RANK}, parallel=parallel, gpus=2))
    (found,) = run.facts.footprints
    low, base = 4 * sum(LOW), 4 * (sum(BASE) + 2 * H) + 2 * 1024 * H + H
    shards = [2 if zero >= least else 1 for least in (3, 2, 1)]
    assert found.parameters == 2 * (base + low) / shards[0]
    assert found.gradients == 4 * low / shards[1]
    assert found.optimizer == 12 * low / shards[2]


def test_quantized_weights_take_four_bits_and_their_scales() -> None:
    parallel = {"tp": 1, "pp": 1, "dp": 1}
    low, ends = 4 * sum(LOW), 4 * 2 * H + 2 * 1024 * H + H
    for word, each in QUANTIZED_BYTES.items():
        run = simcluster.simulate(scenario({"rank": RANK, "base_weights": word}, parallel=parallel, gpus=1))
        assert run.facts.footprints[0].parameters == 2 * (ends + low) + each * 4 * sum(BASE)


# --- traffic ----------------------------------------------------------------------------------------------------------


def traffic(model: Model, kind: str, **shape: Any) -> Counter[tuple[str, str, float]]:
    """Return kind, name and bytes of the collectives of one layer, which its adapters add to."""
    own, all_trained = (Counter((op.work.kind, op.name, op.work.size) for op in segment(each, kind, **shape)
                                if isinstance(op.work, Collective))
                        for each in (model, small(frozen=("attention", "mlp"))))  # fmt: skip
    assert not all_trained - own
    return own - all_trained


def dp_calls(run: simcluster.Result) -> list[tuple[str, str, int]]:
    """Return kind, name and bytes of the first rank's collectives over dp, but that of the gradient norm."""
    table = run.timeline_of(0)
    table = table[(table["stream"] == "dp") & (table["name"] != "gradient_norm")]
    return [*zip(*(table[name].tolist() for name in ("kind", "name")), map(int, table["bytes"]), strict=True)]


def test_adapters_travel_over_tp_as_those_of_megatron_bridge() -> None:
    """A's output is gathered or summed; B's of row-parallel matmuls is gathered, its gradient in sequence shards."""
    narrow, hidden = 2.0 * TOKENS * RANK, 2.0 * TOKENS * H
    model = small(rank=RANK, modules=("qkv", "projection"))
    forward = {("all_gather", "qkv_adapter", narrow): 1, ("all_reduce", "projection_adapter", narrow): 1,
               ("all_gather", "projection_adapter", hidden): 1}  # fmt: skip
    summed = {("all_reduce", "qkv_adapter", narrow): 1, ("all_reduce", "projection_adapter", narrow): 1}
    for sharded in (False, True):
        shape = {"tp": 2, "sequence_parallel": sharded}
        assert traffic(model, "F", **shape) == forward
        end = ("all_gather", "projection_adapter", hidden) if sharded else ("all_reduce", "qkv_adapter", hidden)
        assert traffic(model, "B", **shape) == summed | {end: 1}
        assert not traffic(model, "W", **shape)
    swapped = small(rank=RANK, modules=("projection",), exchange="all_to_all")
    for kind in "FB":
        moved = traffic(swapped, kind, tp=2, sequence_parallel=True)
        assert moved["all_to_all", "projection_adapter", hidden / 2] == 1


def test_frozen_matmuls_gather_no_input_again() -> None:
    shape = {"tp": 2, "sequence_parallel": True}
    names = [[op.name for op in segment(model, "B", **shape)] for model in (small(), small(frozen=("attention",)))]
    assert names[0].count("attention_input") - names[1].count("attention_input") == 1
    assert names[0].count("mlp_input") == names[1].count("mlp_input") == 1


@pytest.mark.parametrize(("zero", "reduction"), [(0, "all_reduce"), (1, "reduce_scatter"), (2, "reduce_scatter")])
def test_replicas_reduce_and_gather_adapters_alone(zero: int, reduction: str) -> None:
    parallel = {"tp": 1, "pp": 1, "dp": 2, "zero": zero}
    run = simcluster.simulate(scenario({"rank": RANK}, parallel=parallel, gpus=2, training={"global_batch": 2}))
    moved = Counter[tuple[str, str]]()
    for kind, name, size in dp_calls(run):
        moved[kind, name] += size
    low = 4 * sum(LOW)
    expected = {(reduction, "gradients"): 4 * low} | ({("all_gather", "parameters"): 2 * low} if zero else {})
    assert +moved == expected


def test_fsdp_gathers_frozen_weights_whole_and_reduces_adapters() -> None:
    """Embedding, four layers and head are units: each gathered for F, all but the embedding for B."""
    parallel = {"tp": 1, "pp": 1, "dp": 2, "zero": 3}
    run = simcluster.simulate(scenario({"rank": RANK}, parallel=parallel, gpus=2, training={"global_batch": 2}))
    sizes = Counter((kind, size) for kind, _, size in dp_calls(run))
    layer, head, table = 2 * (sum(BASE) + sum(LOW) + 2 * H), 2 * (1024 * H + H), 2 * 1024 * H
    assert sizes["reduce_scatter", 4 * sum(LOW)] == 4
    assert sizes["all_gather", table] == 1
    assert sizes["all_gather", layer] in (7, 8)
    assert sizes["all_gather", head] in (1, 2)
    assert sum(sizes.values()) == 4 + 1 + sizes["all_gather", layer] + sizes["all_gather", head]


def test_checkpoints_have_adapters_alone_or_weights_without_optimizer_state() -> None:
    def saved(trainable: dict[str, Any] | None) -> float:
        job = scenario(trainable, parallel={"tp": 1, "pp": 1, "dp": 1}, gpus=1)
        each = checkpoint_bytes_per_parameter(job, CheckpointSpec())
        assert each == 14
        found = float(checkpoint_bytes_by_rank(job, each).sum())
        assert checkpoint_bytes(job, CheckpointSpec()) == pytest.approx(found, rel=1e-12)
        return found

    whole = saved(None) / 14
    assert whole == parameters(small()).total
    assert saved({"rank": RANK}) == 14 * 4 * sum(LOW)
    assert saved({"frozen": ["mlp"]}) == pytest.approx(14 * whole - 12 * 4 * sum(BASE[2:]), rel=1e-12)
    assert saved({"frozen": ["lm_head"]}) == pytest.approx(14 * whole - 12 * (1024 * H + H), rel=1e-12)


# --- schedules and engines --------------------------------------------------------------------------------------------


def test_zero_bubble_schedules_have_nearly_nothing_to_do_in_w() -> None:
    times, wide = {}, {"hidden_size": 4096, "ffn_hidden_size": 16384, "heads": 32, "sequence_length": 4096}
    for name, trainable in (("all", None), ("low", {"rank": RANK}), ("heads", {"frozen": ["attention", "mlp"]})):
        job = scenario(trainable, wide, pipeline={"schedule": "zb-h1"}, parallel={"tp": 1, "pp": 4, "dp": 2})
        rows = simcluster.simulate(job).timeline_of(2).query("kind == 'weight_grad' and stream == 'compute'")
        times[name] = (rows["end"] - rows["start"]).sum()
    assert times["heads"] == 0 < times["low"] < 0.1 * times["all"]


@pytest.mark.parametrize("trainable", [
    {"rank": RANK, "dropout": True}, {"frozen": ["attention"]}, {"frozen_layers": [1, 2]},
    {"rank": RANK, "frozen_layers": [2, 3]}, {"rank": RANK, "base_weights": "nf4"},
])  # fmt: skip
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_engines_agree_and_memory_peaks_where_the_plan_says(trainable: dict[str, Any], recompute: str) -> None:
    job = scenario(trainable, training={"recompute": recompute}, parallel={"tp": 2, "pp": 1, "dp": 4, "zero": 1})
    answers = [simcluster.simulate(job.with_(engine=name)) for name in ("reference", "simpy", "compiled")]
    assert len({each.step_time for each in answers}) == 1
    assert answers[0].peak_memory_bytes == pytest.approx(
        max(each.total for each in answers[0].facts.footprints), rel=1e-12
    )


def test_more_of_the_model_trained_takes_longer_and_more_memory() -> None:
    first, kinds, all_of_it = {"frozen": ["embedding"], "frozen_layers": [0, 1]}, {"frozen": ["mlp"]}, None
    for ordered in ([{"frozen": ["embedding", "lm_head", "mlp"]}, kinds, all_of_it], [first, all_of_it]):
        jobs = [scenario(each, parallel={"tp": 1, "pp": 1, "dp": 8}) for each in ordered]
        answers = [(each.step_time, each.peak_memory_bytes) for each in map(simcluster.simulate, jobs)]
        assert sorted(answers) == answers
        assert sorted(answers, key=lambda each: each[1]) == answers
    ranks = [simcluster.simulate(scenario({"rank": rank})).step_time for rank in (16, 64, 512)]
    assert sorted(ranks) == ranks


def test_the_answer_says_what_is_trained() -> None:
    text = str(simcluster.simulate(scenario({"rank": RANK})))
    document = simcluster.simulate(scenario({"rank": RANK})).to_dict()["bytes_per_parameter"]
    assert document["trained_parameters"] == 4 * sum(LOW)
    assert document["parameters"] == parameters(small(rank=RANK)).total
    assert "trained" in text
    assert "at most 4 FLOP per token, not 6" in text
    assert "trained" not in str(simcluster.simulate(scenario(None)))


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trainable", "sections", "message"), [
    ({}, {}, "has no setting; set rank"),
    ({"dropout": True, "frozen": ["mlp"]}, {}, "dropout is for adapters, which need a rank"),
    ({"rank": 8, "frozen": ["mlp"]}, {}, "frozen has no effect"),
    ({"rank": 8, "modules": ["qkv", "key"]}, {}, "has key twice"),
    ({"rank": 8, "modules": []}, {}, "is empty"),
    ({"rank": 9}, {}, "tp 2, over which Megatron splits adapters, does not divide rank 9"),
    ({"rank": 8, "kernels": "fused"}, {}, "fused is modelled only with tp 1"),
    ({"rank": 8, "exchange": "all_to_all"}, {}, "all_to_all is for sequence parallelism"),
    ({"rank": 8, "base_weights": "nf4"}, {"training": {"precision": "fp8-mixed"}}, "nf4 is modelled with"),
    ({"rank": 8, "base_weights": "nf4"}, {"parallel": {"dp": 8, "zero": 3}}, "nf4 is modelled with"),
    ({"rank": 8}, {"training": {"recompute": "operators"}}, "operators is not modelled with adapters"),
    ({"rank": 8}, {"training": {"optimizer": "muon"}}, "training.trainable"),
    ({"rank": 8}, {"model": {"mtp_layers": 1}}, "not modelled with multi-token prediction"),
    ({"rank": 8, "modules": ["gate"]}, {"model": {"gated_mlp": False}}, "no layer has a matmul gate"),
    ({"frozen": ["attentions"]}, {}, "no part 'attentions'; did you mean 'attention'"),
    ({"frozen": ["embedding"]}, {"model": {"tied_embeddings": True}}, "are one matrix"),
    ({"frozen": ["embedding", "attention", "mlp"]}, {}, "layer 0 has nothing to train"),
    ({"frozen": ["embedding"], "frozen_layers": [0, 1]}, {}, "modelled only without a pipeline"),
    ({"frozen": ["embedding"], "frozen_layers": [0, 3]}, {"parallel": {"dp": 8}}, "layer 3 has nothing to train"),
    ({"frozen_layers": [1, 4]}, {}, "layer 4 is not one of 0 to 3"),
    ({"frozen_layers": [2, 1]}, {}, "ends before it begins"),
])  # fmt: skip
def test_what_is_not_modelled_is_refused_by_name(trainable: Any, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario(trainable, **sections)


def test_frozen_parts_are_the_same_from_a_document_with_all_defaults() -> None:
    """As plan and the studio write scenarios."""
    frozen = Trainable(frozen=("attention",))
    assert Trainable.model_validate(frozen.model_dump()) == frozen
