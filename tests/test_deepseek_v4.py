"""DeepSeek-V4: compressed attention, residual streams and hash routing, by hand, in all engines, from config.json."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simcluster
from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.importers.hugging_face import model_from_config
from simcluster.model.flops import layer_flops, model_flops_per_sequence
from simcluster.model.hyper_connections import connect_streams, streams_section
from simcluster.model.kernels import Block, Kernel, Section
from simcluster.model.layers import LAYER_KINDS, RankShape, layer_kinds, layer_matrices, parameters
from simcluster.model.memory import activation_bytes, layer_backward_tensors
from simcluster.model.quantization import torch_quantization
from simcluster.model.rank_shape import local_sizes
from simcluster.model.transformer import Model
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.work_kinds import Collective
from simcluster.scenario.job_conversion import pass_maker_of, stage_send_bytes_of

FLASH, PRO = (Model(**load_model_entry(f"deepseek-v4-{name}")) for name in ("flash", "pro"))
WINDOW, SPARSE, HEAVY = "shared_window_attention", "compressed_sparse_attention", "heavily_compressed_attention"
PLACES = {WINDOW: 0, SPARSE: 4, HEAVY: 3}
"""A layer of Flash of each kind; the first is hash-routed."""
ONE = RankShape(micro_batch=1)
SIZES = {"heads": 8, "head_dim": 32, "rotated": 16, "query_rank": 96, "groups": 4, "group_rank": 64, "window": 64}
SMALL: dict[str, Any] = {
    "layers": "scHCHC", "hidden_size": 256, "heads": 8, "vocab_size": 1024, "sequence_length": 256, "gated_mlp": True,
    "position": "none", "residual_streams": 4, "clamped_activation": True,
    "layer_types": {
        "s": {"mixer": WINDOW, "hash_routing": True}, "c": {"mixer": SPARSE, "hash_routing": True},
        "H": {"mixer": HEAVY}, "C": {"mixer": SPARSE},
    },
    "layer_kinds": {
        WINDOW: SIZES, HEAVY: {**SIZES, "ratio": 32},
        SPARSE: {**SIZES, "index_heads": 4, "index_head_dim": 32, "top_k": 32},
    },
    "moe": {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 128, "shared_experts": 1, "router_bias": True},
}  # fmt: skip
DENSE: dict[str, Any] = {
    "layers": 4, "hidden_size": 256, "heads": 8, "vocab_size": 1024, "sequence_length": 256, "residual_streams": 4,
    "norm": "rmsnorm",
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "hidden_size": 7168,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 1, "head_dim": 512,
    "vocab_size": 129280, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "o_groups": 16, "o_lora_rank": 1024,
    "sliding_window": 128,
    "index_n_heads": 64, "index_head_dim": 128, "index_topk": 1024, "n_routed_experts": 384, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "moe_intermediate_size": 3072, "num_hash_layers": 3, "hc_mult": 4, "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20, "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0], "compress_rope_theta": 160000,
    "max_position_embeddings": 1048576, "num_nextn_predict_layers": 1, "swiglu_limit": 10.0, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False, "attention_bias": False, "expert_dtype": "fp4", "scoring_func": "sqrtsoftplus",
}  # fmt: skip
"""Of DeepSeek-V4-Pro, the keys that matter; Flash differs in sizes."""
FLASH_CONFIG = CONFIG | {
    "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64, "q_lora_rank": 1024, "o_groups": 8,
    "index_topk": 512, "n_routed_experts": 256, "moe_intermediate_size": 2048,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
}  # fmt: skip


def kernels(kind: str, phase: str, model: Model = FLASH, shape: RankShape = ONE) -> dict[str, Kernel]:
    """Return the kernels of attention by name, without the kind in front."""
    layer = next(n for n in range(model.layers) if kind in model.layer_kind_names(n))
    block = LAYER_KINDS[kind].block(model.layer_model(layer), shape)
    return {each.name.removeprefix(f"{kind}_"): each for part in block.sections for each in getattr(part, phase)}


def scenario(model: dict[str, Any], **changes: Any) -> simcluster.Scenario:
    """Return a small job with this model; ``changes`` are paths with two underscores for a dot."""
    document: dict[str, Any] = {
        "model": model,
        "cluster": {"topology": "dgx_h100", "nodes": 1},
        "parallel": {"pp": 2, "dp": 4},
        "training": {"global_batch": 8, "micro_batch": 1, "precision": "bf16-mixed"},
    }
    return simcluster.scenario(document, **changes)


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "published", "routed"), [(FLASH, 284_332_230_231, 40), (PRO, 1_572_997_179_491, 58)])
def test_presets_have_the_parameters_of_transformers(model: Model, published: int, routed: int) -> None:
    """DeepseekV4ForCausalLM of transformers 5.24 on meta tensors; its router biases are buffers."""
    assert model.moe is not None
    assert parameters(model).total == published + routed * model.moe.experts


@pytest.mark.parametrize("config", [CONFIG, FLASH_CONFIG])
def test_presets_are_what_their_configs_say(config: dict[str, Any]) -> None:
    preset = PRO if config is CONFIG else FLASH
    found = Model(**model_from_config(config, sequence_length=4096))
    assert [found.layer_type(n)[1:] for n in range(found.layers)] == [
        preset.layer_type(n)[1:] for n in range(found.layers)
    ]
    assert parameters(found) == parameters(preset)
    assert model_flops_per_sequence(found) == model_flops_per_sequence(preset)
    for layer in (0, 2, 3, 4):
        assert activation_bytes(found, ONE, layer) == activation_bytes(preset, ONE, layer)


def test_layers_by_hand() -> None:
    """Attention of layers 0, 2 and 3 of Flash as in transformers, and what mixes the streams in front of each half."""
    counts = [LAYER_KINDS[kind].count_parameters(FLASH.layer_model(PLACES[kind])) for kind in (WINDOW, SPARSE, HEAVY)]
    common = 4096 * 1024 + 1024 * 64 * 512 + 4096 * 512 + 8192 * 4096 + 8192 * 4096 + 1024 + 512 + 64
    heavy = 2 * 4096 * 512 + 128 * 512 + 512
    sparse = 2 * 4096 * 1024 + 4 * 1024 + 512 + 2 * 4096 * 256 + 4 * 256 + 128 + 1024 * 64 * 128 + 4096 * 64
    assert counts == [common, common + sparse, common + heavy] == [106_956_352, 126_098_624, 111_216_704]
    streams = 24 * (4 * 4096) + 24 + 3
    assert FLASH.layer_norm_parameters == 2 * (4096 + streams)
    assert FLASH.final_norm_parameters == 4096 + 4 * 4 * 4096 + 4 + 1
    mixing = [each for each in layer_matrices(FLASH, 0, tp=1, ep=1, etp=1) if each.columns == 4 * 4096]
    assert [(each.rows, each.split) for each in mixing] == [(24, "none")] * 2


# --- kernels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "keys"),
    [(WINDOW, 128 * (1 - 128 / 8192)), (SPARSE, 128 + 512), (HEAVY, 128 * (1 - 128 / 8192) + 32 / 2)],
)
def test_the_core_by_hand(kind: str, keys: float) -> None:
    """Per token of Flash: all heads read the keys of a token once; their gradients are added in fp32.

    With an indexer the kernel runs its whole list; elsewhere it stops at the last key.
    """
    forward, back = (kernels(kind, phase)["core" + end] for phase, end in (("forward", ""), ("input_grad", "_grad")))
    heads = 2 * 64 * 512
    assert forward.flops / 4096 == pytest.approx(2 * keys * 64 * (512 + 512), rel=1e-12)
    assert back.flops / 4096 == pytest.approx(2 * keys * 64 * (3 * 512 + 2 * 512), rel=1e-12)
    listed = (2 * 512 + 4) * keys
    assert forward.bytes / 4096 == pytest.approx(listed + 2 * heads + 4 * 64, rel=1e-12)
    assert back.bytes / 4096 == pytest.approx(listed + 3 * heads + 8 * 64 + 4 * 512 * keys, rel=1e-12)


def test_the_indexer_by_hand() -> None:
    """Index queries score entries of 4 tokens; the loss reads the chosen ones, as in DeepSeek-V3.2."""
    forward, back, weight = (kernels(SPARSE, phase) for phase in ("forward", "input_grad", "weight_grad"))
    assert forward["index_scores"].flops / 4096 == 2 * (1024 / 2) * 64 * 128
    assert forward["index_top_k"].bytes / 4096 == 4 * 1024 / 2 + 8 * 512
    assert back["index_target"].flops / 4096 == 2 * 512 * 64 * 512
    assert back["index_scores_grad"].flops / 4096 == 3 * 2 * 512 * 64 * 128
    for name in ("index_query", "index_value", "index_gate", "index_weights"):
        assert f"{name}_input_grad" not in back
        assert weight[f"{name}_weight_grad"].flops == forward[name].flops > 0
    assert back["input_grad_add"].launches == 3  # queries, keys, compressor's values and gates


def test_the_output_projection_has_groups() -> None:
    """8 groups of 8 heads, 4096 wide, to 1024 each: an eighth of a whole matrix's FLOP; tokens are read once."""
    down = kernels(HEAVY, "forward")["output_down"]
    assert (down.m, down.n, down.k, down.batch) == (4096, 1024, 4096, 8)
    assert down.flops == 2 * 4096 * (64 * 512) * 8192 / 8
    assert down.bytes == 2 * (4096 * 64 * 512 + 8192 * 4096 + 4096 * 8192)


@pytest.mark.parametrize(("kind", "series", "entries"), [(SPARSE, 2, 1024), (HEAVY, 1, 32)])
def test_the_compressor_by_hand(kind: str, series: int, entries: int) -> None:
    """Values and gates of all tokens make one entry per window; backward reads them again and writes both gradients."""
    forward, back = (kernels(kind, phase) for phase in ("forward", "input_grad"))
    inputs, made = 2 * 4096 * 2 * series * 512, 2 * entries * 512
    assert forward["compressor_value"].n == forward["compressor_gate"].n == series * 512
    assert forward["compress"].bytes == inputs + made
    assert back["compress_grad"].bytes == 2 * inputs + made


@pytest.mark.parametrize("length", [1024, 4096, 131072])
def test_model_flops_are_those_of_megatron(length: int) -> None:
    """NVIDIA/Megatron-LM, tests/unit_tests/training/test_training.py@18954586: expected_dsv4_hybrid_extra_term.

    Whole windows, half of the entries (all of them for index scores), and the chosen entries as in a window.
    """
    model = FLASH.model_copy(update={"sequence_length": length})
    chosen = min(512, length // 4)
    keys = {WINDOW: 128, HEAVY: 128 + length // 128 / 2, SPARSE: 128 + chosen * (1 - chosen * 4 / (2 * length))}
    for kind, place in PLACES.items():
        core = layer_flops(model, 1, layer=place).core
        scores = 64 * 128 * (length // 4) if kind == SPARSE else 0
        assert core.total / length == pytest.approx(3 * 2 * (64 * keys[kind] * 512 * 2 + scores), rel=1e-12)
        narrow = {WINDOW: 0, HEAVY: 4096 * 512 * 2, SPARSE: 4096 * 2 * 512 * 2}[kind]
        indexer = 4096 * 2 * 128 * 2 + 1024 * 64 * 128 + 4096 * 64 if kind == SPARSE else 0
        shared = 4096 * 1024 + 1024 * 64 * 512 + 4096 * 512 + 8 * 4096 * 1024 + 8 * 1024 * 4096
        work = layer_flops(model, 1, layer=place)
        assert (work.qkv + work.projection).total / length == 3 * 2 * (shared + narrow + indexer)


def test_long_sequences_cost_little() -> None:
    """1M tokens of Flash: attention of all earlier tokens would be over 20 times the core of these layers."""
    length = 1 << 20
    model = FLASH.model_copy(update={"sequence_length": length})
    cores = sum(layer_flops(model, 1, layer=layer).core.forward for layer in range(43))
    assert 43 * 4 * length * (length / 2) * 64 * 512 > 20 * cores


# --- residual streams -------------------------------------------------------------------------------------------------


def bytes_of(section: Section, phase: str) -> float:
    return sum(each.bytes for each in getattr(section, phase))


@given(count=st.sampled_from([2, 3, 4]), tokens=st.sampled_from([128, 512]), hidden=st.sampled_from([256, 1024]))
@settings(max_examples=12, deadline=None)
def test_streams_by_hand(count: int, tokens: int, hidden: int) -> None:
    """Of one token: 4 n + 2 rows forward, 11 n + 3 backward, and small fp32 numbers: 2 n + n^2 weights."""
    model = Model(**{**DENSE, "residual_streams": count, "sequence_length": tokens, "hidden_size": hidden})
    row, local = 2 * hidden, local_sizes(model, ONE)
    read = streams_section("x", model, ONE, local)
    add = connect_streams(Block("x", Section(), Section(), Section()), model, ONE, local).exit
    table, weights = 4 * (count * (2 + count)) * (count * hidden) / tokens, count * (2 + count)
    small = 4 * (weights + 2 + weights + 2 + weights + 3 * count**2)
    forward = (bytes_of(read, "forward") + bytes_of(add, "forward")) / tokens
    assert forward == pytest.approx((4 * count + 2) * row + table + small, rel=1e-12)
    inside = 4 * (2 * (weights + 2) + 2 * weights + 3 * count**2 + 2 * 20 * (2 * count**2 + 2 * count))
    back = (bytes_of(read, "input_grad") + bytes_of(add, "input_grad")) / tokens
    assert back == pytest.approx((11 * count + 3) * row + 2 * table + inside, rel=1e-12)


@pytest.mark.parametrize("model", [SMALL, DENSE], ids=["v4", "dense"])
def test_one_stream_is_none(model: dict[str, Any]) -> None:
    none = {name: value for name, value in model.items() if name != "residual_streams"}
    one, without = (simcluster.simulate(scenario(each)) for each in ({**none, "residual_streams": 1}, none))
    assert one.step_time == without.step_time
    assert one.memory.total == without.memory.total
    assert parameters(one.scenario.model) == parameters(without.scenario.model)


def test_more_streams_take_more_of_everything() -> None:
    steps = [simcluster.simulate(scenario({**DENSE, "residual_streams": count})) for count in (1, 2, 4, 8)]
    for quantity in ([each.step_time for each in steps], [each.memory.total for each in steps],
                     [parameters(each.scenario.model).total for each in steps]):  # fmt: skip
        assert quantity == sorted(set(quantity))


@pytest.mark.parametrize("changes", [{}, {"parallel__tp": 2, "parallel__dp": 2, "pipeline__scatter_gather": True}])
def test_stages_send_all_streams(changes: dict[str, Any]) -> None:
    assert _boundary(4, changes) == 4 * _boundary(1, changes) > 0


def _boundary(count: int, changes: dict[str, Any]) -> float:
    made = scenario({**DENSE, "residual_streams": count}, **changes)
    return stage_send_bytes_of(made, pass_maker_of(made, made.cluster.device))


def test_tensor_parallel_traffic_is_of_one_stream() -> None:
    """Attention and MLP read and write one stream; only what arrives from a stage split over tp has all."""

    def moved(count: int) -> list[tuple[str, str, float]]:
        shape = RankShape(micro_batch=1, tp=4, sequence_parallel=True)
        made = CachedPassSegmentMaker(
            Model(**{**DENSE, "residual_streams": count}), shape, lambda kernels: 0.0, overlap_tensor=False
        )
        ops = made.segment("F", PassLayers((0,), gathers_input=True)).ops
        return [(op.work.kind, op.name, op.work.size) for op in ops if isinstance(op.work, Collective)]

    (one, *others), (four, *same) = moved(1), moved(4)
    assert one[1] == four[1] == "boundary"
    assert four[2] == 4 * one[2]
    assert others == same


@pytest.mark.parametrize(("tp", "sequence_parallel"), [(1, False), (4, False), (4, True)])
def test_streams_are_kept_by_each_half(tp: int, sequence_parallel: bool) -> None:
    """Per token: all streams, the collapsed one (norm's input), the half's output, and small weights."""
    shape = RankShape(micro_batch=1, tp=tp, sequence_parallel=sequence_parallel)
    one, four = (activation_bytes(Model(**{**DENSE, "residual_streams": n}), shape) for n in (1, 4))
    row = 2 * 256 * 256 / (tp if sequence_parallel else 1)
    more = {name: size for name, size in four.items() if name not in one}
    weights = 256 / (tp if sequence_parallel else 1) * (4 * (24 + 2 + 16) + 2 * 24)
    assert more == {
        f"{half}_{name}": size
        for half in ("attention", "mlp")
        for name, size in (("streams", 4 * row), ("stream_weights", weights), ("output", row))
    }
    assert {name: size for name, size in four.items() if name in one} == one


def test_full_recompute_keeps_the_streams_alone() -> None:
    full = RankShape(micro_batch=1, recompute="full")
    assert activation_bytes(Model(**DENSE), full) == {"attention_streams": 4 * 2 * 256 * 256}
    assert activation_bytes(FLASH, full, 3) == {f"{HEAVY}_streams": 4 * 2 * 4096 * 4096}
    again = [each for kind in layer_kinds(FLASH, 3) for part in kind.sections(FLASH.layer_model(3), full)
             for each in part.recompute]  # fmt: skip
    assert sum("stream" in each.name for each in again) == 2 * 5


@pytest.mark.parametrize(
    "changes", [{}, {"quantization": torch_quantization()}, {"tp": 4, "sequence_parallel": True}, {"recompute": "full"}]
)
@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_streams_replace_the_residual_alone(bias: bool, experts: bool, changes: dict[str, Any]) -> None:
    """All other kernels are those of a model with one stream."""
    base = {**DENSE, "bias": bias} | ({"moe": SMALL["moe"], "gated_mlp": True} if experts else {})
    shape = RankShape(micro_batch=1, **changes)
    for phase in ("forward", "recompute", "input_grad", "weight_grad"):
        one, four = (
            [each for kind in layer_kinds(model, 0) for part in kind.sections(model, shape)
             for each in getattr(part, phase)]
            for model in (Model(**{**base, "residual_streams": n}) for n in (1, 4))
        )  # fmt: skip
        kept = [each for each in one if not each.name.endswith(("_residual_add", "_residual_grad"))]
        assert [each for each in four if "_stream_" not in each.name] == kept
        assert len(four) > len(kept) or phase == "weight_grad" or not one


def test_recomputation_repeats_what_backward_reads() -> None:
    """The MLP's output, for the gradient of its weight in each stream; a module's recompute reads no streams again."""
    early, whole, module = (
        {each.name for part in layer_kinds(model, 0)[1].sections(model, shape) for each in part.recompute}
        for model in [Model(**DENSE)]
        for shape in (
            RankShape(micro_batch=1, recompute="full", stops_early=True), RankShape(micro_batch=1, recompute="full"),
            RankShape(micro_batch=1, recompute="selective", modules=("mlp",)),
        )
    )  # fmt: skip
    assert whole - early == {"mlp_stream_mix"}
    assert {"mlp_norm", "mlp_down"} <= early & module
    assert not [name for name in module if "stream" in name]


# --- memory -----------------------------------------------------------------------------------------------------------


def test_kept_tensors_by_hand() -> None:
    """Bytes per token of a layer of Flash with an indexer."""
    found = {name.removeprefix(f"{SPARSE}_"): size / 4096 for name, size in activation_bytes(FLASH, ONE, 4).items()}
    expected = {
        "streams": 2 * 4 * 4096, "output": 2 * 4096, "norm_input": 2 * 4096, "input": 2 * 4096,
        "query_norm_input": 2 * 1024, "normed_query": 2 * 1024, "query_head_norm_input": 2 * 64 * 512,
        "query": 2 * 64 * 512, "key_norm_input": 2 * 512, "bank": 2 * 512 * (1 + 1 / 4),
        "compressor_inputs": 2 * 2 * 1024, "compressed_norm_input": 2 * 512 / 4, "index_query": 2 * 64 * 128,
        "index_compressor_inputs": 2 * 2 * 256, "index_norm_input": 2 * 128 / 4, "index_keys": 2 * 128 / 4,
        "index_weights": 2 * 64, "top_k_scores": 4 * 512, "key_numbers": 4 * (128 + 512), "log_sum_exp": 2 * 4 * 64,
        "output_down_input": 2 * 64 * 512, "output_up_input": 2 * 8192,
    }  # fmt: skip
    assert {name: size for name, size in found.items() if name in expected} == expected
    assert not [
        name for name in found if name.startswith(("index", "query", "key", "compress")) and name not in expected
    ]


def test_a_split_backward_keeps_the_gradients_of_outputs() -> None:
    made = {each.name: each.bytes for each in layer_backward_tensors(FLASH, ONE, 4) if each.made == "I"}
    assert made[f"{SPARSE}_output_down_output_grad"] == 2 * 4096 * 8192
    assert made[f"{SPARSE}_index_query_output_grad"] == 2 * 4096 * 64 * 128


# --- hash routing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aux_loss", [False, True])
def test_hash_routing_looks_experts_up(aux_loss: bool) -> None:
    """Six numbers of 8 bytes for each token, read and written, instead of a selection among all experts."""
    moe = {**load_model_entry("deepseek-v4-flash")["moe"], "aux_loss": aux_loss}
    model = Model(**{**load_model_entry("deepseek-v4-flash"), "moe": moe})

    def router(layer: int, phase: str) -> dict[str, Kernel]:
        section = LAYER_KINDS["mixture"].sections(model.layer_model(layer), ONE)[1]
        return {each.name: each for each in getattr(section, phase)}

    hashed, learned = router(0, "forward"), router(3, "forward")
    assert hashed["router_choice"].bytes == 8 * 4096 * (1 + 2 * 6)
    assert (hashed["router_choice"].passes, learned["router_choice"].passes) == (0, 16)
    assert not [name for name in hashed if "loss" in name]
    assert any("loss" in name for name in learned) == aux_loss
    assert hashed["router"] == learned["router"]
    assert "router_bias_grad" in router(3, "weight_grad").keys() - router(0, "weight_grad").keys()


def test_hash_routing_saves_time_and_no_traffic() -> None:
    types = SMALL["layer_types"]
    learned = {
        word: {name: each for name, each in own.items() if name != "hash_routing"} for word, own in types.items()
    }
    steps = [simcluster.simulate(scenario({**SMALL, "layer_types": each}, parallel__ep=4)) for each in (types, learned)]
    assert steps[0].step_time < steps[1].step_time
    assert [parameters(each.scenario.model).total for each in steps] == [
        parameters(steps[0].scenario.model).total, parameters(steps[0].scenario.model).total + 2 * 8,
    ]  # fmt: skip


# --- engines and messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["reference", "compiled"])
@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (SMALL, {}),
        (SMALL, {"parallel__ep": 4, "overlap__experts": True}),
        (SMALL, {"training__recompute": "full", "parallel__ep": 2}),
        (SMALL, {"training__recompute": "selective", "training__recompute_modules": ["moe_act", "layernorm"]}),
        (SMALL, {"pipeline__schedule": "zb-h1"}),
        (SMALL, {"parallel__zero": 3, "parallel__pp": 1, "parallel__dp": 8}),
        (SMALL, {"training__optimizer": "muon", "parallel__zero": 1}),
        (SMALL, {"pipeline__schedule": "interleaved", "pipeline__chunks": 3, "training__global_batch": 16}),
        (DENSE, {"parallel__tp": 2, "parallel__dp": 2}),
        (DENSE, {"parallel__tp": 2, "parallel__dp": 2, "pipeline__scatter_gather": True}),
        (DENSE, {"parallel__tp": 2, "parallel__dp": 2, "parallel__sequence_parallel": True, "overlap__tensor": True}),
        (DENSE, {"parallel__cp": 2, "parallel__dp": 2, "training__precision": "fp8-mixed"}),
        ({**DENSE, "tied_embeddings": False, "bias": True}, {"pipeline__schedule": "zb-h1"}),
        (
            DENSE,
            {"training__recompute": "full", "software__checkpoint": "early-stop", "parallel__tp": 2, "parallel__dp": 2},
        ),
        (DENSE, {"training__recompute": "selective", "training__recompute_modules": ["mlp"]}),
    ],
)
def test_engines_agree(engine: str, model: dict[str, Any], changes: dict[str, Any]) -> None:
    base = scenario(model, **changes)
    folded, other = simcluster.simulate(base), simcluster.simulate(base, engine=engine)
    assert other.step_time == folded.step_time == simcluster.simulate(base, folded=False).step_time


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (
            SMALL,
            {"parallel__tp": 2, "parallel__dp": 2},
            r"parallel\.tp: attention with one shared head of keys has tp 1",
        ),
        (SMALL, {"parallel__cp": 2, "parallel__dp": 2}, r"parallel\.cp: is not modelled with layers of kind"),
        (SMALL, {"training__precision": "fp8-mixed"}, r"training\.precision: is not modelled with layers of kind"),
        (SMALL, {"training__attention": "unfused"}, r"training\.attention: is not modelled with layers of kind"),
        (SMALL, {"model__position": "rope"}, r"model\.position: is not modelled with layers of kind"),
        (SMALL, {"data__documents": {"kind": "lognormal", "median": 64, "sigma": 1.0}}, r"data: is not modelled with"),
        (SMALL, {"training__dropout": True}, r"training\.dropout: is not modelled with model\.residual_streams"),
        (SMALL, {"model__mtp_layers": 1}, r"model\.mtp_layers: is not modelled with model\.residual_streams"),
        (DENSE, {"model__layer_norms": 4}, r"model\.layer_norms: is not modelled with model\.residual_streams"),
        (DENSE, {"model__parallel_residual": True}, r"model\.parallel_residual: is not modelled with model\.residual"),
        (DENSE, {"training__recompute": "operators"}, r"training\.recompute: is not modelled with model\.residual"),
        (DENSE, {"model__residual_streams": 0}, "0 is not a whole number"),
        (
            {**DENSE, "pattern": "ab", "layer_types": {"a": {"hash_routing": True}, "b": {}}},
            {},
            "has no effect, since layers of type a have attention and mlp",
        ),
        (
            {**SMALL, "layer_kinds": {**SMALL["layer_kinds"], HEAVY: {**SIZES, "groups": 3}}},
            {},
            "weights.output_down: 'width / groups' gives 85.3",
        ),
    ],
)
def test_what_is_not_modelled_is_rejected_by_name(model: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario(model, **changes)


def test_kinds_with_their_own_residual_have_one_stream() -> None:
    model = {**DENSE, "layers": "SF", "position": "none", "causal": False, "bias": False,
             "layer_types": {"S": {"blocks": ["diffusion_attention"]}, "F": {"blocks": ["diffusion_mlp"]}},
             "layer_kinds": {"diffusion_attention": {"heads": 8}, "diffusion_mlp": {"ffn": 512}}}  # fmt: skip
    with pytest.raises(InputError, match=r"model\.residual_streams: is not modelled with layers of kind diffusion_att"):
        scenario(model)


@pytest.mark.parametrize(
    ("model", "changes", "field"),
    [
        ({**DENSE, "hash_routing": True}, {}, "model.hash_routing"),
        (SMALL, {"training__recompute": "selective"}, "training.recompute"),  # there is no core_attn
    ],
)
def test_fields_without_effect_are_noted(model: dict[str, Any], changes: dict[str, Any], field: str) -> None:
    assert any(field in str(note) for note in simcluster.simulate(scenario(model, **changes)).notes())


# --- config.json ------------------------------------------------------------------------------------------------------


def test_layers_by_the_words_of_transformers() -> None:
    words = ["sliding_attention", SPARSE, HEAVY, SPARSE]
    found = model_from_config(
        {**CONFIG, "num_hidden_layers": 4, "layer_types": words, "mlp_layer_types": ["moe", "hash_moe", "moe", "moe"],
         "compress_rates": {SPARSE: 8, HEAVY: 64}, "qk_rope_head_dim": 32}
    )  # fmt: skip
    assert (found["pattern"], found["layer_types"]["c"]) == ("ScHC", {"mixer": SPARSE, "hash_routing": True})
    sizes = found["layer_kinds"]
    assert (sizes[SPARSE]["ratio"], sizes[HEAVY]["ratio"], sizes[WINDOW]["rotated"]) == (8, 64, 32)
    assert "ratio" not in sizes[WINDOW]


def test_other_sizes_have_the_parameters_of_transformers() -> None:
    """DeepseekV4ForCausalLM of transformers 5.24 on meta tensors, of this config as it writes it."""
    words = ["sliding_attention", SPARSE, HEAVY, SPARSE, "sliding_attention"]
    sizes = {
        "hidden_size": 512, "num_hidden_layers": 5, "num_attention_heads": 8, "head_dim": 64, "q_lora_rank": 96,
        "o_groups": 4, "o_lora_rank": 32, "sliding_window": 32, "index_n_heads": 4, "index_head_dim": 16,
        "index_topk": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
        "vocab_size": 1000, "hc_mult": 3, "compress_rates": {SPARSE: 8, HEAVY: 64}, "layer_types": words,
        "mlp_layer_types": ["moe", "hash_moe", "moe", "hash_moe", "moe"], "partial_rotary_factor": 0.125,
    }  # fmt: skip
    config = {key: value for key, value in CONFIG.items() if key not in ("compress_ratios", "qk_rope_head_dim")}
    found = parameters(Model(**model_from_config(config | sizes, sequence_length=4096)))
    assert found.total == 11_614_944 + 3 * 8


def test_missing_keys_mean_the_defaults_of_transformers() -> None:
    usual = model_from_config({key: CONFIG[key] for key in CONFIG if key not in ("compress_ratios", "hc_mult")})
    assert usual["pattern"][:6] == "hhhCHC"  # heavily compressed twice, then in turn
    assert usual["residual_streams"] == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compress_ratios": [8] * 61}, "compress_ratios must be a list of 61 numbers, each 0 or 4 or 128"),
        ({"compress_ratios": [4] * 60}, "compress_ratios must be a list of 61 numbers"),
        ({"compress_ratios": 4}, "compress_ratios must be a list of 61 numbers"),
        ({"layer_types": ["full_attention"] * 61}, "layer_types must be a list of 61 words, each sliding_attention or"),
        ({"mlp_layer_types": ["dense"] * 61}, "mlp_layer_types must be a list of 61 words, each hash_moe or moe"),
        ({"num_key_value_heads": 8}, "num_key_value_heads must be 1"),
        ({"hc_sinkhorn_iters": 10}, "hc_sinkhorn_iters is modelled as 20 alone"),
        ({"attention_bias": True}, "attention_bias is true, which is not modelled for attention of DeepSeek-V4"),
        ({"compress_rates": [4]}, "compress_rates .* is not a mapping"),
        ({"compress_rates": {SPARSE: 0}}, "0' is not a positive whole number"),
        ({"n_routed_experts": None}, "lacks n_routed_experts"),
    ],
)
def test_wrong_configs_are_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model_from_config({**CONFIG, **change})
