"""Gated DeltaNet, Kimi Delta Attention, lightning attention: FLOP, bytes and tensors by hand, published models."""

from __future__ import annotations

from typing import Any

import pytest
from test_layer_patterns import scenario

import simcluster
from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.importers.hugging_face import classify_config_keys, count_config_parameters, model_from_config
from simcluster.importers.megatron import scenario_from_arguments
from simcluster.model.flops import layer_flops
from simcluster.model.kernels import Kernel
from simcluster.model.kind_documents import find_kind_sizes, load_kind_document
from simcluster.model.layers import LAYER_KINDS, RankShape, layer_parameters_per_tp_rank, parameters
from simcluster.model.memory import activation_bytes
from simcluster.model.saved_tensors import is_saved
from simcluster.model.transformer import Model

QWEN: dict[str, Any] = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "vocab_size": 151936,
    "max_position_embeddings": 262144, "full_attention_interval": 4, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "decoder_sparse_step": 1, "mlp_only_layers": [], "num_experts": 512,
    "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "partial_rotary_factor": 0.25, "tie_word_embeddings": False,
}  # fmt: skip
FULL = [4, 8, 12, 16, 20, 24, 27]
KIMI: dict[str, Any] = {
    "model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304, "num_attention_heads": 32,
    "num_key_value_heads": 32, "head_dim": 72, "intermediate_size": 9216, "vocab_size": 163840, "kv_lora_rank": 512,
    "model_max_length": 1048576, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "moe_layer_freq": 1,
    "moe_intermediate_size": 1024, "first_k_dense_replace": 1, "num_expert_group": 1, "topk_group": 1,
    "tie_word_embeddings": False,
    "linear_attn_config": {
        "full_attn_layers": FULL, "kda_layers": [n for n in range(1, 28) if n not in FULL], "head_dim": 128,
        "num_heads": 32, "short_conv_kernel_size": 4,
    },
}  # fmt: skip
MINIMAX: dict[str, Any] = {
    "model_type": "minimax_m1", "num_hidden_layers": 80, "hidden_size": 6144, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9216, "vocab_size": 200064,
    "max_position_embeddings": 10240000, "attn_type_list": ([0] * 7 + [1]) * 10, "num_local_experts": 32,
    "num_experts_per_tok": 2, "rotary_dim": 64, "shared_intermediate_size": 0, "tie_word_embeddings": False,
}  # fmt: skip
PUBLISHED = {  # preset: its config, and the parameters that transformers 5.24 makes of it on the meta device
    "qwen3-next-80b": (QWEN, 79_674_391_296),
    "kimi-linear-48b": (KIMI, 49_122_675_072 + 26 * 256),  # and the router's biases, which are buffers there
    "minimax-m1": (MINIMAX, 456_089_655_296),
}
SIZES: dict[str, dict[str, int]] = {
    "gated_delta_net": {"value_heads": 32, "key_heads": 16}, "kda": {"heads": 32}, "lightning": {"heads": 32},
}  # fmt: skip
SMALL: dict[str, Any] = {
    "layers": 4, "hidden_size": 512, "heads": 8, "kv_heads": 2, "ffn_hidden_size": 1024, "vocab_size": 3200,
    "sequence_length": 1024, "norm": "rmsnorm", "position": "rope", "bias": False, "qk_norm": "head",
    "attention_gate": True,
}  # fmt: skip
SMALL_SIZES = {
    "gated_delta_net": {"value_heads": 8, "key_heads": 4, "key_head_dim": 64, "value_head_dim": 64},
    "kda": {"heads": 8, "head_dim": 64}, "lightning": {"heads": 8, "head_dim": 64},
}  # fmt: skip
every_kind = pytest.mark.parametrize("name", SIZES)


def layer_of(name: str, **more: Any) -> Model:
    """A model of Qwen3-Next's width whose layers all have the kind."""
    sizes = {**SMALL, "hidden_size": 2048, "sequence_length": 4096, "position": "none", "qk_norm": None}
    return Model(**{**sizes, "attention_gate": None, "mixer": name, "layer_kinds": {name: SIZES[name]}, **more})


def own_kernels(model: Model, name: str, shape: RankShape, phase: str) -> list[Kernel]:
    """The kernels between the weight matmuls."""
    ends = {f"{name}_{each}{end}" for each in load_kind_document(name).weights for end in ("", "_input_grad")}
    kernels = getattr(LAYER_KINDS[name].block(model.layer_model(0), shape).body, phase)
    return [kernel for kernel in kernels if kernel.name not in ends]


@pytest.mark.parametrize("preset", PUBLISHED)
def test_published_models_have_their_parameters(preset: str) -> None:
    config, total = PUBLISHED[preset]
    assert count_config_parameters({**config, "max_position_embeddings": 4096}).total == total
    assert parameters(Model(**load_model_entry(preset))).total == total


@pytest.mark.parametrize("preset", PUBLISHED)
def test_presets_are_what_configs_say(preset: str) -> None:
    config, _ = PUBLISHED[preset]
    entry = load_model_entry(preset)
    read, written = (
        Model(**fields) for fields in (model_from_config(config, sequence_length=entry["sequence_length"]), entry)
    )
    for layer in range(read.layers):
        assert read.layer_kind_names(layer) == written.layer_kind_names(layer)
    differ = {"name", "pattern", "layer_types", "layer_kinds", "ffn_hidden_size"}  # words and defaults
    assert read.model_dump(exclude=differ) == written.model_dump(exclude=differ)
    assert {name: find_kind_sizes(name, read.layer_kinds) for name in read.layer_kinds or {}} == {
        name: find_kind_sizes(name, written.layer_kinds) for name in written.layer_kinds or {}
    }
    assert classify_config_keys(config, sequence_length=4096)[2] == ()


@every_kind
@pytest.mark.parametrize("tp", [1, 4])
def test_it_executes_the_flop_of_the_published_kernels(name: str, tp: int) -> None:
    """Per token and head of 128 x 128, chunks of 64 (fla_core 0.6.0), summed kernel by kernel."""
    k = v = 128
    c = 64
    again = 2 * c * (k + v) + 4 * k * v  # w and u, states
    backward = again + 2 * c * (k + v) + 6 * k * v  # and what the backward computes first: dv inside chunks, dh
    forward = {
        "gated_delta_net": 2 * c * k * 10 // 16 + 2048 + again + 2 * k * v + 2 * c * (k + v),
        "kda": 34 * k + 2 * 2 * c * k * 6 // 16 + 2048 + again + 2 * k * v + 2 * c * v,
        "lightning": 4 * k * v + 4 * c * v,
    }[name]
    behind = {
        "gated_delta_net": backward + 6 * k * v + 2 * c * (v + 2 * k) + 2 * c * (5 * k + 2 * v) + 4 * c * c,
        "kda": backward + 6 * k * v + 2 * c * (2 * v + 2 * k) + 4 * c * c + 4 * 2 * c * k * 10 // 16,
        "lightning": 10 * k * v + 10 * c * v,
    }[name]
    assert (forward, behind) == {
        "gated_delta_net": (176_128, 507_904), "kda": (166_144, 450_560), "lightning": (98_304, 245_760),
    }[name]  # fmt: skip
    model, shape = layer_of(name), RankShape(micro_batch=2, tp=tp)
    for phase, expected in (("forward", forward), ("input_grad", behind)):
        done = tp * sum(kernel.flops for kernel in own_kernels(model, name, shape, phase))
        assert done == pytest.approx(2 * 4096 * 32 * expected, rel=1e-12)


def test_the_delta_rule_moves_the_bytes_of_its_tensors() -> None:
    """Of the five kernels of a forward (chunk.py), with queries and keys of all 32 heads."""
    kernels = {
        each.name: each for each in own_kernels(layer_of("gated_delta_net"), "gated_delta_net", RankShape(1), "forward")
    }
    head, row, block, state = 2 * 32 * 128, 4 * 32, 2 * 32 * 64, 2 * 32 * 128 * 128 // 64
    expected = {
        "solve": head + 2 * row + 2 * block,  # reads k, g, beta; clears and writes A
        "w_u": block + 2 * head + 2 * row + 2 * head,  # reads A, k, v, g, beta; writes w, u
        "states": 3 * head + row + state + head,  # reads k, w, u, g; writes h and v'
        "output": 3 * head + row + state + head,  # reads q, k, v', g, h; writes o
    }
    found = {name: kernels[f"gated_delta_net_{name}"].bytes / 4096 for name in expected}
    assert found == expected


def test_states_wait_for_memory_once_per_chunk() -> None:
    """64 chunks in turn: a block of threads for 64 of a head's 128 columns."""
    for name, blocks in (("gated_delta_net", 2 * 32 * 2), ("kda", 2 * 32 * 2), ("lightning", 2 * 32 * 4)):
        for phase in ("forward", "input_grad"):
            serial = [each for each in own_kernels(layer_of(name), name, RankShape(2), phase) if each.passes]
            assert [(each.passes, each.rows, each.kind) for each in serial] == [(63, blocks, "memory")] * (
                1 if phase == "forward" else 2
            )


@pytest.mark.parametrize(
    ("name", "width", "kept"),
    [
        # conv input; l2 norms' outputs, rows; q, k repeated; v; A; gate; core's, norm's output; out's input; fp32 rows
        ("gated_delta_net", 4096, 2 * 8192 + 8192 + 128 + 16384 + 8192 + 4096 + 8192 + 2 * 8192 + 8192 + 512 + 64),
        # conv input; q, k, v; decay, gate, norm input, out's input; two blocks; narrow inputs; fp32 rows; beta
        ("kda", 4096, 3 * 8192 + 3 * 8192 + 4 * 8192 + 2 * 4096 + 2 * 256 + 3 * 128 + 64),
        # before and after SiLU; gate, norm's input and output, out's input; the norm's rows
        ("lightning", 4096, 6 * 8192 + 4 * 8192 + 4),
    ],
)
def test_kept_bytes_per_token(name: str, width: int, kept: int) -> None:
    found = activation_bytes(layer_of(name), RankShape(micro_batch=1), 0)
    own = {key: size for key, size in found.items() if key.startswith(f"{name}_")}
    assert own.pop(f"{name}_norm_input") == own.pop(f"{name}_input") == width * 4096
    assert sum(own.values()) == kept * 4096


@pytest.mark.parametrize("name", ["gated_delta_net", "kda"])
def test_megatrons_flop_formula(name: str) -> None:
    """2 s (h (2 dk + 2 dv + 2 nv) + 4 (2 dk + dv) + 4 nv v^2 + h dv), times 3 (training.py, gdn_layer_flops)."""
    h, s, nv, v = 2048, 4096, 32, 128
    dk, dv = (2048 if name == "gated_delta_net" else 4096), 4096
    into = {"gated_delta_net": 2 * dk + 2 * dv + 2 * nv, "kda": 3 * dv + nv + 2 * v}[name]
    narrow = {"gated_delta_net": 0, "kda": 2 * v * dv}[name]
    forward = 2 * s * (h * into + narrow + 4 * (2 * dk + dv) + 4 * nv * v * v + h * dv)
    flops = layer_flops(layer_of(name), 1)
    assert (flops.qkv + flops.core + flops.projection).total == pytest.approx(3 * forward, rel=1e-12)


@every_kind
def test_a_layers_parameters_are_those_of_its_tensors(name: str) -> None:
    """Gated DeltaNet as in Qwen3-Next, KDA as in Kimi Linear, 5 h H D + H D of lightning attention."""
    model = layer_of(name, hidden_size=2304) if name == "kda" else layer_of(name)
    kda = 4 * 2304 * 4096 + 2 * (2304 * 128 + 128 * 4096) + 2304 * 32 + 3 * 4096 * 4 + 32 + 4096 + 128  # 39.514 M
    expected = {"gated_delta_net": 33_718_464, "kda": kda, "lightning": 5 * 2048 * 4096 + 4096}[name]
    assert LAYER_KINDS[name].count_parameters(model) == expected
    whole, half = (layer_parameters_per_tp_rank(model, tp) for tp in (1, 2))
    shared = {"gated_delta_net": 128, "kda": 2 * 2304 * 128 + 32 * 2304 + 128, "lightning": 0}[name]
    assert 2 * half - whole == shared + model.layer_norm_parameters


HYBRID = {**SMALL, "layers": 4, "pattern": "LF", "moe": {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256}}


@every_kind
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training__recompute": "full"},
        {"parallel__zero": 3, "parallel__pp": 1, "parallel__dp": 4},
        {"pipeline__schedule": "zb-h1", "training__recompute": "selective"},
        {"training__optimizer": "muon", "parallel__zero": 1},
    ],
)
def test_every_engine_simulates_it(name: str, changes: dict[str, Any]) -> None:
    types = {"L": {"mixer": name}, "F": {}}
    model = {**HYBRID, "layer_types": types, "layer_kinds": {name: SMALL_SIZES[name]}}
    base = scenario(model, parallel__sequence_parallel=True, **changes)
    compiled, reference = (simcluster.simulate(base, engine=engine) for engine in ("compiled", "reference"))
    assert compiled.step_time == reference.step_time
    assert compiled.memory.total == reference.memory.total


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("lightning", {"parallel__cp": 2, "parallel__dp": 1}, "parallel.cp: .*layers of kind lightning"),
        ("kda", {"training__precision": "fp8-mixed"}, "training.precision: .*layers of kind kda"),
        ("kda", {"training__recompute": "operators", "model__moe": None}, "saving every second matmul's output"),
        ("gated_delta_net", {"parallel__tp": 8, "parallel__dp": 1, "parallel__pp": 1}, "gated_delta_net.key_heads 4"),
        ("gated_delta_net", {"model__layer_kinds__gated_delta_net__key_heads": 3}, "8 is not divisible by key_heads 3"),
    ],
)
def test_what_is_rejected(name: str, changes: dict[str, Any], message: str) -> None:
    types = {"L": {"mixer": name}, "F": {}}
    model = {**HYBRID, "layer_types": types, "layer_kinds": {name: SMALL_SIZES[name]}}
    with pytest.raises(InputError, match=message):
        scenario(model, parallel__sequence_parallel=True, **changes)


# --- context parallelism ----------------------------------------------------------------------------------------------

WIDTHS = {  # of a tp rank of two, in the order of Megatron-Core's all-to-alls
    "mamba2": ([512, 512, 128, 128, 8], [512]),
    "gated_delta_net": ([128, 128, 256, 256, 4, 4], [256]),
    "kda": ([256, 256, 256, 256, 4, 256], [256]),
}
TRADING = {**SMALL_SIZES, "mamba2": {"heads": 16, "groups": 4, "state": 64}}
every_trading_kind = pytest.mark.parametrize("name", WIDTHS)


@every_trading_kind
def test_context_parallel_ranks_trade_tokens_for_heads(name: str) -> None:
    """All-to-alls of 1024 / 2 tokens: those before the kernels on whole sequences, and after; backward in reverse."""
    types = {"L": {"mixer": name}, "F": {}}
    model = {**HYBRID, "layer_types": types, "layer_kinds": {name: TRADING[name]}}
    base = scenario(model, parallel__sequence_parallel=True, parallel__cp=2, parallel__dp=1)
    line = simcluster.simulate(base).timeline
    own = line[(line["kind"] == "all_to_all") & (line["rank"] == 0) & (line["layer"] == 0) & (line["microbatch"] == 0)]
    before, after = ([2.0 * 512 * width for width in widths] for widths in WIDTHS[name])
    assert own["bytes"].tolist() == [*before, *after, *after, *before]
    assert own["name"].unique().tolist() == [f"{name}_heads"]


@every_trading_kind
def test_ranks_share_the_kernels_of_whole_sequences(name: str) -> None:
    model = Model(
        **{**SMALL, "pattern": "L", "layer_types": {"L": {"mixer": name}}, "layer_kinds": {name: TRADING[name]}}
    )
    one, two = (LAYER_KINDS[name].block(model.layer_model(0), RankShape(2, cp=cp)).body for cp in (1, 2))
    for phase in ("forward", "input_grad"):
        alone, shared = ({each.name: each for each in getattr(body, phase)} for body in (one, two))
        assert shared.keys() - alone.keys() == {f"{name}_heads_copies", f"{name}_tokens_copies"}
        for key, kernel in alone.items():
            assert shared[key].flops == kernel.flops / 2
            assert shared[key].passes == kernel.passes  # chunks of a whole sequence
            assert shared[key].rows == kernel.rows // 2
    kept, half = (activation_bytes(model, RankShape(2, cp=cp), 0) for cp in (1, 2))
    assert half == {key: size / 2 for key, size in kept.items()}


@every_trading_kind
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parallel__cp_comm": "all_to_all"},
        {"pipeline__schedule": "zb-h1", "training__recompute": "selective"},
        {"parallel__tp": 1, "parallel__sequence_parallel": False, "parallel__cp": 4},
        {"parallel__zero": 3, "parallel__pp": 1, "parallel__dp": 2},
    ],
)
def test_every_engine_simulates_context_parallelism(name: str, changes: dict[str, Any]) -> None:
    types = {"L": {"mixer": name}, "F": {}}
    model = {**HYBRID, "layer_types": types, "layer_kinds": {name: TRADING[name]}}
    changes = {"parallel__sequence_parallel": True, "parallel__cp": 2, "parallel__dp": 1, **changes}
    if changes["parallel__cp"] == 4:
        changes["parallel__pp"] = 2
    base = scenario(model, **changes)
    compiled = simcluster.simulate(base)
    assert compiled.step_time == simcluster.simulate(base, engine="reference").step_time
    assert compiled.step_time == simcluster.simulate(base, folded=False).step_time


def test_heads_that_cp_does_not_divide_are_rejected() -> None:
    model = {**HYBRID, "layer_types": {"L": {"mixer": "mamba2"}, "F": {}}, "layer_kinds": {"mamba2": TRADING["mamba2"]}}
    changes = {"parallel__sequence_parallel": True, "parallel__cp": 4, "parallel__dp": 1, "parallel__pp": 1}
    with pytest.raises(InputError, match=r"parallel.cp: the 2 groups of layers of kind mamba2 on a tp rank .*by cp 4"):
        scenario(model, **changes)


# --- attention with an output gate ------------------------------------------------------------------------------------


def test_the_gate_of_attention() -> None:
    """A second width of queries in the QKV matmul, one kernel behind the core, its two inputs kept."""
    gated, plain = (Model(**{**SMALL, "attention_gate": gate}) for gate in (True, None))
    shape, tokens, query, hidden = RankShape(micro_batch=2, tp=2), 2048, 256, 512
    attention = LAYER_KINDS["attention"]
    assert attention.count_parameters(gated) - attention.count_parameters(plain) == hidden * 512
    body, other = (attention.block(model, shape).body for model in (gated, plain))
    for phase, sizes in (("forward", 3), ("input_grad", 5)):
        names = {each.name for each in getattr(other, phase)}
        (gate,) = [each for each in getattr(body, phase) if each.name not in names]
        assert gate.bytes == sizes * 2 * tokens * query
    assert sum(each.flops for each in body.forward) - sum(each.flops for each in other.forward) == (
        2 * tokens * hidden * query
    )
    kept, less = ({each.name: each.bytes for each in attention.saved_tensors(model, shape) if is_saved(each, shape)}
                  for model in (gated, plain))  # fmt: skip
    assert {name: kept[name] for name in kept.keys() - less.keys()} == dict.fromkeys(
        ("output_gate", "output_gate_input"), 2.0 * tokens * query
    )
    more = layer_flops(gated, 1).total.total - layer_flops(plain, 1).total.total
    assert more == 3 * 2 * 1024 * hidden * 512


def test_the_gate_by_layer_type_and_where_it_is_rejected() -> None:
    types = {"a": {"attention_gate": True}, "b": {}}
    model = {**SMALL, "attention_gate": None, "pattern": "ab", "layer_types": types}
    base = scenario(model, parallel__sequence_parallel=True)
    assert simcluster.simulate(base).step_time == simcluster.simulate(base, engine="reference").step_time
    less = scenario({**SMALL, "attention_gate": None}, parallel__sequence_parallel=True)
    assert simcluster.simulate(base).step_time > simcluster.simulate(less).step_time
    mla = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32}
    with pytest.raises(ValueError, match="no biases, no gate"):
        Model(**{**SMALL, "mla": mla, "kv_heads": 8, "qk_norm": None})


# --- configs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {**QWEN, "layer_types": ["linear_attention"] * 3},
            "list of 48 values, each linear_attention or full_attention",
        ),
        ({**MINIMAX, "attn_type_list": [2] * 80}, "attn_type_list must be a list of 80 values, each 0 or 1"),
        ({**MINIMAX, "attn_type_list": None}, "attn_type_list must be a list of 80"),
        ({**MINIMAX, "attn_type_list": [[0]] * 80}, "attn_type_list must be a list of 80"),
        ({**MINIMAX, "shared_intermediate_size": 512}, "shared experts of MiniMax are not modelled"),
        (
            {**KIMI, "linear_attn_config": {"kda_layers": [1], "full_attn_layers": FULL}},
            "each layer from 1 must be in one of",
        ),
    ],
)
def test_configs_that_cannot_be_read(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model_from_config(config, sequence_length=4096)


def test_lists_of_layers() -> None:
    """Words of transformers instead of the models' own keys; dense layers among those with experts."""
    words = ["full_attention", *["linear_attention"] * 26]
    flat = {key: value for key, value in KIMI.items() if key != "linear_attn_config"}
    found = Model(**model_from_config({**flat, "layer_types": words, "linear_num_heads": 16}, sequence_length=4096))
    assert [found.layer_kind_names(layer)[0] for layer in (0, 1, 26)] == ["latent_attention", "kda", "kda"]
    assert found.layer_kinds == {"kda": {"heads": 16}}
    found = Model(**model_from_config(flat, sequence_length=4096))
    assert [layer for layer in range(27) if "kda" not in found.layer_kind_names(layer)] == [4, 8, 12, 16, 20, 24]
    found = Model(**model_from_config({**QWEN, "mlp_only_layers": [1, 4]}, sequence_length=4096))
    assert [found.layer_kind_names(layer) for layer in (0, 1, 3, 4)] == [
        ("gated_delta_net", "mixture"), ("gated_delta_net", "mlp"), ("attention", "mixture"), ("gated_delta_net", "mlp")
    ]  # fmt: skip
    full = {**MINIMAX, "model_type": "minimax", "layer_types": ["full_attention"] * 80}
    assert model_from_config(full, sequence_length=4096).get("layer_kinds") is None


# --- Megatron-LM ------------------------------------------------------------------------------------------------------

SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 48 --hidden-size 2048 --num-attention-heads 16 "
    "--group-query-attention --num-query-groups 2 --kv-channels 256 --seq-length 4096 --max-position-embeddings 4096 "
    "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --qk-layernorm "
    "--untie-embeddings-and-output-weights --vocab-size 151936 --make-vocab-size-divisible-by 1 --num-experts 512 "
    "--moe-router-topk 10 --moe-ffn-hidden-size 512 --moe-shared-expert-intermediate-size 512 --moe-shared-expert-gate "
    "--ffn-hidden-size 512 --attention-output-gate --linear-num-value-heads 32 --expert-model-parallel-size 8 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --attention-dropout 0 --hidden-dropout 0 "
)
"""Qwen3-Next by the options of Megatron-LM 0.16 (transformer_config.py, linear_attention_freq)."""
GDN = "--experimental-attention-variant gated_delta_net --linear-attention-freq "


@pytest.mark.parametrize("frequency", ["4", "([1]*3+[0])*12"])
def test_a_launch_script_of_megatron(frequency: str) -> None:
    found = scenario_from_arguments(SCRIPT + GDN + frequency, cluster={"topology": "dgx_h100"}, gpus_per_node=8)
    assert found.unknown == ()
    model, preset = Model(**found.document["model"]), Model(**load_model_entry("qwen3-next-80b"))
    assert parameters(model).total == parameters(preset).total == PUBLISHED["qwen3-next-80b"][1]
    assert model.layer_types == preset.layer_types


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--linear-attention-freq 4", "linear-attention-freq: is modelled with --experimental-attention-variant"),
        ("--experimental-attention-variant gated_delta_net", "needs the layers that it is in"),
        ("--experimental-attention-variant dsa", "dsa"),
        (GDN + "[1,0]", "is a list of 2 layers"),
    ],
)
def test_options_that_are_rejected(more: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario_from_arguments(SCRIPT + more, cluster={"topology": "dgx_h100"}, gpus_per_node=8)


def test_sizes_without_such_layers_have_no_effect() -> None:
    found = scenario_from_arguments(SCRIPT, cluster={"topology": "dgx_h100"}, gpus_per_node=8)
    assert "layer_kinds" not in found.document["model"]
    assert any("linear-num-value-heads" in each for each in found.assumed)
