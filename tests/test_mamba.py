"""Mamba-2 layers: parameters of published models, FLOP and bytes of the published kernels, memory, rejections."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_layer_patterns import scenario

import simcluster
from simcluster.base.errors import InputError
from simcluster.importers.hugging_face import model_from_config
from simcluster.importers.megatron import scenario_from_arguments
from simcluster.model.flops import layer_flops
from simcluster.model.layers import LAYER_KINDS, RankShape, layer_kinds, layer_parameters_per_tp_rank, parameters
from simcluster.model.memory import activation_bytes
from simcluster.model.transformer import Model
from simcluster.scenario.prediction_intervals import _list_unusual_features

H56: dict[str, Any] = {
    "layers": "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-", "hidden_size": 8192, "heads": 64, "kv_heads": 8,
    "head_dim": 128, "ffn_hidden_size": 32768, "vocab_size": 131072, "sequence_length": 8192, "norm": "rmsnorm",
    "position": "none", "bias": False, "tied_embeddings": False,
    "layer_kinds": {"mamba2": {"heads": 256, "state": 256}},
}  # fmt: skip
NANO: dict[str, Any] = {
    "model_type": "nemotron_h", "num_hidden_layers": 52, "hidden_size": 2688, "num_attention_heads": 32,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "num_key_value_heads": 2,
    "head_dim": 128, "intermediate_size": 1856, "vocab_size": 131072, "max_position_embeddings": 8192,
    "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
    "chunk_size": 128, "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
    "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 3712, "tie_word_embeddings": False,
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid", "num_hidden_layers": 40, "hidden_size": 4096, "num_attention_heads": 32,
    "layer_types": ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
    "num_key_value_heads": 8, "intermediate_size": 768, "shared_intermediate_size": 1536, "num_local_experts": 72,
    "num_experts_per_tok": 10, "vocab_size": 100352, "max_position_embeddings": 131072, "mamba_n_heads": 128,
    "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_chunk_size": 256,
    "position_embedding_type": "nope", "tie_word_embeddings": True,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "hidden_size": 512, "heads": 8, "kv_heads": 2, "ffn_hidden_size": 1024, "vocab_size": 3200,
    "sequence_length": 1024, "norm": "rmsnorm", "position": "rope", "bias": False, "qk_norm": "head",
    "layer_kinds": {"mamba2": {"heads": 16, "head_dim": 64, "groups": 4, "state": 64}},
}  # fmt: skip


def test_published_models_have_their_parameters() -> None:
    """Nemotron-H 56B (arXiv:2504.03624), Nemotron 3 Nano 30B-A3B, Granite 4.0 H Small 32B-A9B."""
    assert parameters(Model(**H56)).total == pytest.approx(56.32e9, rel=1e-3)
    nano = Model(**model_from_config(NANO))
    assert parameters(nano).total == 31_577_940_288  # Mamba 23 x 38,744,256 + experts 23 x 1,297,...: by hand below
    assert parameters(nano).active == pytest.approx(3.6e9, rel=0.01)
    granite = parameters(Model(**model_from_config(GRANITE)))
    assert granite.total == pytest.approx(32.2e9, rel=1e-3)
    assert granite.active == pytest.approx(8.8e9, rel=1e-2)


def test_a_layers_parameters_are_those_of_its_tensors() -> None:
    """Megatron-Core's MambaMixer: in_proj, conv1d with bias, dt_bias, A_log and D, gated norm, out_proj; one norm."""
    model = Model(**{**SMALL, "layers": "M*"})
    width, groups, state, heads, h = 16 * 64, 4, 64, 16, 512
    convolved = width + 2 * groups * state
    made = 2 * width + 2 * groups * state + heads
    assert layer_parameters_per_tp_rank(model, 1, 0) == made * h + convolved * 5 + 3 * heads + width + h * width + h
    ranks = sum(layer_parameters_per_tp_rank(model, 2, 0) for _ in range(2))
    assert ranks - layer_parameters_per_tp_rank(model, 1, 0) == h  # the norm is on both


@given(tp=st.sampled_from([1, 2, 4]), micro_batch=st.integers(1, 3), chunk=st.sampled_from([64, 128, 256]))
def test_the_scan_executes_the_flop_of_the_published_kernels(tp: int, micro_batch: int, chunk: int) -> None:
    """Per token 4 d n + 2 c d f + 2 c g n forward, 10 d n + 6 c d f + 6 c g n backward; f of a causal block is run."""
    model = Model(
        **{**SMALL, "layers": "M*", "layer_kinds": {"mamba2": {**SMALL["layer_kinds"]["mamba2"], "chunk": chunk}}}
    )
    shape = RankShape(micro_batch=micro_batch, tp=tp)
    body = LAYER_KINDS["mamba2"].block(model.layer_model(0), shape).body
    d, n, g, c = 16 * 64, 64, 4, chunk
    inside = c * d * (chunk + 64) / 2 / chunk
    tokens = micro_batch * model.sequence_length
    for kernels, states, blocks in ((body.forward, 4, 2), (body.input_grad, 10, 6)):
        scan = [
            each for each in kernels if each.kind == "matmul" and not each.name.startswith(("mamba2_in", "mamba2_out"))
        ]
        scan += [each for each in kernels if each.name == "mamba2_output_states_grad"]
        executed = tp * sum(each.flops for each in scan)
        assert executed == pytest.approx(tokens * (states * d * n + blocks * (inside + c * g * n)), rel=1e-12)


@pytest.mark.parametrize(
    ("model", "tp", "forward", "backward"),
    [(Model(**H56), 8, 92e3, 270e3), (Model(**model_from_config(NANO)), 1, 149e3, 463e3)],
)
def test_the_scan_moves_the_bytes_of_the_published_kernels(
    model: Model, tp: int, forward: float, backward: float
) -> None:
    """Bytes per token, summed by hand over the tensors that each kernel of ssd_combined.py reads and writes."""
    body = LAYER_KINDS["mamba2"].block(model.layer_model(0), RankShape(micro_batch=1, tp=tp)).body
    for kernels, expected in ((body.forward, forward), (body.input_grad, backward)):
        own = [each for each in kernels if each.name not in ("mamba2_in", "mamba2_out")]
        own = [each for each in own if each.name not in ("mamba2_in_input_grad", "mamba2_out_input_grad")]
        assert sum(each.bytes for each in own) / model.sequence_length == pytest.approx(expected, rel=0.01)


def test_what_the_scan_keeps() -> None:
    """2 T (2 d + 2 g n + nh) + 6 T d + 4 T g bytes: zxbcdt, scan output, and input, rows and output of the norm."""
    model = Model(**{**SMALL, "layers": "M*"})
    kept = activation_bytes(model, RankShape(micro_batch=1), 0)
    tokens, d, g, n, heads = 1024, 1024, 4, 64, 16
    own = sum(size for name, size in kept.items() if name not in ("mamba2_norm_input", "mamba2_input"))
    assert own == 2 * tokens * (2 * d + 2 * g * n + heads) + 6 * tokens * d + 4 * tokens * g


def test_megatrons_flop_formula() -> None:
    """2 b s h (2 d + 2 g n + nheads) + 7 b s d n + 2 b s d h forward, times 3 (training.py, mamba_layer_flops)."""
    model = Model(**H56)
    h, d, g, n, heads, s = 8192, 16384, 8, 256, 256, 8192
    forward = 2 * s * h * (2 * d + 2 * g * n + heads) + 7 * s * d * n + 2 * s * d * h
    assert layer_flops(model, 1).total.total == pytest.approx(3 * forward, rel=1e-12)


HYBRID = {**SMALL, "layers": "M*-ME-M*", "moe": {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"parallel__ep": 2, "pipeline__layers_per_stage": "auto"},
        {"parallel__zero": 3, "parallel__pp": 1, "parallel__dp": 4},
        {"training__optimizer": "muon", "parallel__zero": 1},
        {"pipeline__schedule": "zb-h1", "training__recompute": "selective"},
        {"training__precision": "fp8-mixed"},
    ],
)
def test_every_engine_simulates_it(changes: dict[str, Any]) -> None:
    base = scenario(HYBRID, parallel__sequence_parallel=True, **changes)
    compiled, reference = (simcluster.simulate(base, engine=engine) for engine in ("compiled", "reference"))
    assert compiled.step_time == reference.step_time
    assert compiled.memory.total == reference.memory.total


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel__tp": 8, "parallel__dp": 1, "parallel__pp": 1}, "model.layer_kinds.mamba2.groups 4"),
        ({"training__recompute": "full"}, "does not recompute Mamba layers"),
        ({"model__layer_kinds": None}, "layer_kinds.mamba2: heads is missing"),
        ({"model__layers": "*-*-*-*-"}, "layer_kinds.mamba2 has no effect"),
        ({"model__layer_kinds__mamba2__groups": 3}, "heads 16 is not divisible by groups 3"),
    ],
)
def test_what_is_rejected(changes: dict[str, Any], message: str) -> None:
    changes = {"parallel__sequence_parallel": True, "model__moe": None, "model__layers": "M*-M*-M*", **changes}
    with pytest.raises(InputError, match=message):
        scenario(HYBRID, **changes)


def test_no_validated_run_has_such_layers() -> None:
    assert "mamba2 layers" in _list_unusual_features(scenario(HYBRID, parallel__sequence_parallel=True))


def test_attention_alone_has_its_positions_and_norms() -> None:
    model = Model(**{**SMALL, "layers": "M*"})
    names = [[kind.name for kind in layer_kinds(model, layer)] for layer in (0, 1)]
    assert names == [["mamba2"], ["attention"]]
    assert model.layer_model(0).layer_norm_parameters == 512
    assert model.layer_model(1).layer_norm_parameters == 512 + 2 * 64


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**NANO, "hybrid_override_pattern": "M*"}, "hybrid_override_pattern .*for each of the 52 layers"),
        ({**NANO, "hybrid_override_pattern": None}, "lacks hybrid_override_pattern"),
        ({**NANO, "moe_latent_size": -1}, "moe_latent_size '-1' is not a positive whole number"),
        ({**GRANITE, "layer_types": ["mamba"] * 3}, "list of 40 words, each mamba or linear_attention"),
    ],
)
def test_configs_that_cannot_be_read(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model_from_config(config)


SCRIPT = (
    "torchrun --nproc_per_node 8 --nnodes 4 pretrain_mamba.py --is-hybrid-model --spec megatron.core.models.mamba."
    "mamba_layer_specs mamba_stack_spec --mamba-state-dim 256 --mamba-num-groups 8 --num-layers 4 --hidden-size 8192 "
    "--num-attention-heads 64 --group-query-attention --num-query-groups 8 --ffn-hidden-size 32768 --seq-length 8192 "
    "--max-position-embeddings 8192 --tensor-model-parallel-size 8 --sequence-parallel --micro-batch-size 1 "
    "--global-batch-size 64 --bf16 --squared-relu --normalization RMSNorm --position-embedding-type none "
    "--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 131072 --attention-dropout 0 "
    "--hidden-dropout 0 --hybrid-override-pattern "
)
"""As in examples/mamba of NVIDIA/Megatron-LM."""


def test_a_launch_script_of_megatron() -> None:
    found = scenario_from_arguments(SCRIPT + "M-M*", cluster={"topology": "dgx_h100"}, gpus_per_node=8)
    model = Model(**found.document["model"])
    assert [model.layer_kind_names(layer) for layer in range(4)] == [("mamba2",), ("mlp",), ("mamba2",), ("attention",)]
    assert model.layer_kinds == {"mamba2": {"heads": 256, "state": 256, "groups": 8}}  # 2 x hidden / 64 heads
    assert found.unknown == ()
    for ahead in ("'*E'", '\\"*E\\"', "*E"):  # arguments.py of Megatron-LM makes M-M*/*E/*E of both
        more = f" --mtp-num-layers 2 --mtp-hybrid-override-pattern {ahead} --num-experts 8 --moe-router-topk 2"
        model = scenario_from_arguments(SCRIPT + "M-M*" + more, cluster={"topology": "dgx_h100"}, gpus_per_node=8)
        one = f"{SCRIPT}M-M*/*E/*E{more.partition(ahead)[2]}"
        same = scenario_from_arguments(one, cluster={"topology": "dgx_h100"}, gpus_per_node=8)
        assert model.document == same.document
        assert (model.document["model"]["mtp_layers"], model.document["model"]["mtp_pattern"]) == (2, "*E")
        assert model.unknown == ()
    plain = scenario_from_arguments(SCRIPT + "*-*-", cluster={"topology": "dgx_h100"}, gpus_per_node=8)
    assert "layer_kinds" not in plain.document["model"]
    idle = "no layer is Mamba-2 (M in hybrid-override-pattern); so mamba-num-groups, mamba-state-dim has no effect"
    for pattern in ("*-*-", "*-**"):
        found = scenario_from_arguments(SCRIPT + pattern, cluster={"topology": "dgx_h100"}, gpus_per_node=8)
        assert idle in found.assumed
