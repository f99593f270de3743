"""Latent experts (Nemotron 3 Super): what they count, keep and send, against forms worked out by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from conftest import tiny_scenario
from hypothesis import given
from hypothesis import strategies as st

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.importers.hugging_face import assumptions_of_config, model_from_config
from simcluster.importers.megatron import scenario_from_arguments
from simcluster.model.flops import hardware_flops_per_sequence, layer_flops, model_flops_per_sequence
from simcluster.model.layers import LAYER_KINDS, RankShape, parameters
from simcluster.model.memory import activation_bytes
from simcluster.model.mixture_sections import make_mixture_sections
from simcluster.model.quantization import torch_quantization
from simcluster.model.transformer import Model
from simcluster.planning.expert_dispatch import ExpertDispatch
from simcluster.planning.owned_parameters import megatron_te_buffer_bytes
from simcluster.planning.pass_segments import CachedPassSegmentMaker, PassLayers
from simcluster.planning.work_kinds import Collective
from simcluster.scenario.scenario import Scenario, from_document
from simcluster.step.simulate import simulate

SUPER = Model.model_validate(load_model_entry("nemotron-3-super-120b"))
H, NARROW, FFN, SHARED, EXPERTS, TOP_K = 4096, 1024, 2688, 5376, 512, 22
MOE: dict[str, Any] = {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 512, "shared_experts": 1}
FIELDS: dict[str, Any] = {
    "layers": 2, "hidden_size": 1024, "heads": 16, "kv_heads": 4, "vocab_size": 32000, "sequence_length": 1024,
    "gated_mlp": True, "moe": MOE,
}  # fmt: skip
SHAPES = st.builds(
    RankShape,
    micro_batch=st.sampled_from([1, 3]),
    tp=st.sampled_from([2, 4]),
    ep=st.sampled_from([1, 2, 8]),
    etp=st.sampled_from([0, 1, 2]),
    sequence_parallel=st.just(True),
    recompute=st.sampled_from(["none", "selective", "full"]),
    relayed=st.booleans(),
    quantization=st.sampled_from([None, torch_quantization()]),
)


def model(latent: int | None, **more: Any) -> Model:
    return Model.model_validate({**FIELDS, "moe": {**MOE, "latent_size": latent, **more}})


# --- counting ---------------------------------------------------------------------------------------------------------


def test_parameters_of_nemotron_3_super() -> None:
    """120.67e9 parameters, 12.77e9 of them active: the model card's 120B-A12B."""
    router, shared = H * EXPERTS + EXPERTS, 2 * H * SHARED
    expert, between = 2 * NARROW * FFN, 2 * H * NARROW
    d_in, bc = 128 * 64, 2 * 8 * 128
    mamba = H * (2 * d_in + bc + 128) + 5 * (d_in + bc) + 3 * 128 + d_in + d_in * H
    attention = H * (32 + 2 * 2) * 128 + 32 * 128 * H
    rest = 40 * mamba + 8 * attention + 40 * (router + shared + between) + 89 * H + 2 * 131072 * H
    count = parameters(SUPER)
    assert (count.total, count.active) == (rest + 40 * EXPERTS * expert, rest + 40 * TOP_K * expert)
    assert (round(count.total / 1e9, 2), round(count.active / 1e9, 2)) == (120.67, 12.77)


def test_flops_of_a_token() -> None:
    """Two projections, experts at the narrow width, shared experts at the full one; the router is not counted."""
    (layer,) = [first for (word, *_), (first, _) in SUPER.count_layer_types().items() if word == "E"]
    flops = layer_flops(SUPER, 1, layer=layer)
    token = 4 * H * NARROW + 4 * TOP_K * NARROW * FFN + 4 * H * SHARED
    assert flops.total.forward == flops.mlp.input_grad == 8192.0 * token
    again = hardware_flops_per_sequence(SUPER, "selective", modules=("moe",)) - model_flops_per_sequence(SUPER)
    assert again == pytest.approx(40 * 8192.0 * token, rel=1e-9)


@given(shape=SHAPES)
def test_kernels_do_the_flops(shape: RankShape) -> None:
    """Each tp rank projects the tokens of its sequence shard with whole matrices."""
    parts, tokens = make_mixture_sections(model(256), shape), shape.micro_batch * 1024 // shape.tp
    for phase in ("forward", "input_grad", "weight_grad"):
        for part in (parts.dispatch, parts.combine):
            (kernel,) = [each for each in getattr(part, phase) if each.kind == "matmul"]
            assert kernel.flops == 2.0 * tokens * 1024 * 256
            assert kernel.name.startswith("latent_fc1" if part is parts.dispatch else "latent_fc2")
        experts = sum(kernel.flops for kernel in getattr(parts.experts, phase) if kernel.kind == "matmul")
        assert experts == pytest.approx(2.0 * tokens * 2 * 3 * 256 * 512, rel=1e-9)
        shared = sum(kernel.flops for kernel in getattr(parts.shared, phase) if kernel.kind == "matmul")
        assert shared == pytest.approx(2.0 * tokens * 3 * 1024 * 512, rel=1e-9)


@given(shape=SHAPES)
def test_as_wide_as_the_model_only_the_projections_are_new(shape: RankShape) -> None:
    """All other kernels, kept tensors and working bytes equal those of experts on the hidden state, bit by bit."""
    kind, plain, wide = LAYER_KINDS["mixture"], model(None), model(1024)
    for phase in ("forward", "recompute", "input_grad", "weight_grad"):
        ours, theirs = (
            [kernel for part in kind.sections(own, shape) for kernel in getattr(part, phase)] for own in (wide, plain)
        )
        assert [kernel for kernel in ours if not kernel.name.startswith("latent_")] == theirs
        assert len(ours) > len(theirs) or phase == "recompute"
    kept = [each for each in kind.saved_tensors(wide, shape) if not each.name.startswith("latent_")]
    assert kept == kind.saved_tensors(plain, shape)
    assert kind.forward_working_bytes(wide, shape) == kind.forward_working_bytes(plain, shape)


def test_kernels_run_in_the_order_of_the_layer() -> None:
    """The first projection comes before the permutation, the second after it and before the shared experts' output."""
    parts = make_mixture_sections(
        model(256), RankShape(1, tp=2, ep=2, sequence_parallel=True, quantization=torch_quantization())
    )
    names = [kernel.name for kernel in (*parts.dispatch.forward, *parts.combine.forward)]
    assert names == ["latent_fc1_cast", "latent_fc1", "permute_map", "permute",
                     "unpermute", "latent_fc2_cast", "latent_fc2", "experts_shared_add"]  # fmt: skip
    grads = [kernel.name for kernel in (*parts.combine.input_grad, *parts.dispatch.input_grad)]
    assert grads == ["latent_fc2_grad_cast", "latent_fc2_input_grad", "unpermute_input_grad",
                     "permute_input_grad", "latent_fc1_grad_cast", "latent_fc1_input_grad"]  # fmt: skip


def test_biases_are_those_of_linear_layers() -> None:
    """Megatron-LM's --add-bias-linear: both projections have a bias, and the experts' outputs one of narrow width."""
    biased, plain = (
        parameters(Model.model_validate({**FIELDS, "bias": bias, "moe": {**MOE, "latent_size": 256}})).total
        for bias in (True, "attention")
    )
    experts, shared, between = 8 * (2 * 512 + 256), 2 * 512 + 1024, 256 + 1024
    assert biased - plain == 2 * (experts + shared + between)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_kept_tensors() -> None:
    """Routed tensors are narrow; of the projections only the second adds an input, since the first reads the router's.

    In fp8 both keep a copy that was cast.
    """
    shape = RankShape(1, tp=2, ep=2, sequence_parallel=True)
    narrow, wide = (activation_bytes(model(latent), shape, 1) for latent in (256, None))
    edge, rows = 512, 2 * 1024
    assert narrow["latent_fc2_input"] == 2 * edge * 256
    assert (narrow["experts_input"], wide["experts_input"]) == (2 * rows * 256, 2 * rows * 1024)
    assert (narrow["experts_output"], wide["experts_output"]) == (2 * 2 * edge * 256, 2 * 2 * edge * 1024)
    changed = {"latent_fc2_input", "experts_input", "experts_output"}
    assert {name for name in narrow if narrow[name] != wide.get(name)} == changed
    low = activation_bytes(model(256), replace(shape, quantization=torch_quantization()), 1)
    assert (low["latent_fc1_input"], low["latent_fc2_input"]) == (edge * 1024, edge * 256)


def test_working_bytes() -> None:
    """Rows as they left and arrived, sorted and as they came, are narrow; the shared experts' output is not."""
    shape = RankShape(1, tp=2, ep=2, sequence_parallel=True, temporaries=True)
    kind, sent, rows = LAYER_KINDS["mixture"], 2 * 512, 2 * 1024
    assert kind.forward_working_bytes(model(256), shape) == (
        2 * 2 * sent * 256 + 2 * 512 * 1024 + 2 * 2 * rows * 256, 2 * 2 * rows * 256,
    )  # fmt: skip
    assert kind.backward_working_bytes(model(256), shape)[0] == 2 * rows * 256 + 2 * rows * 2 * 256


def test_recompute_drops_what_the_module_keeps() -> None:
    shape = RankShape(1, tp=2, ep=2, sequence_parallel=True, recompute="selective", modules=("moe",))
    assert not {"latent_fc2_input", "experts_input"} & activation_bytes(model(256), shape, 1).keys()
    parts = make_mixture_sections(model(256), shape)
    assert (parts.dispatch.recompute, parts.combine.recompute) == (parts.dispatch.forward, parts.combine.forward)


def test_transformer_engines_dummy_gradients_have_the_projections_shapes() -> None:
    shape = RankShape(1)
    narrow, wide = (megatron_te_buffer_bytes(model(latent), shape, (1,), last=False) for latent in (256, None))
    projections = {(256, 1024), (1024, 256)}  # the second is the shape of the experts' first matrix, too
    assert narrow - wide == 2 * sum(rows * columns for rows, columns in projections | {(2 * 512, 256), (256, 512)})


# --- what travels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dispatch", "kind", "sent"),
    [
        (ExpertDispatch(), "all_to_all", TOP_K * NARROW * 2),
        (ExpertDispatch(kind="allgather"), "all_gather", 4 * NARROW * 2),
        (ExpertDispatch(kind="hybridep"), "dispatch", TOP_K * NARROW * 2),
        (ExpertDispatch(kind="deepep", dtype="fp8"), "dispatch", TOP_K * NARROW * (1 + 4 / 128)),
    ],
    ids=["alltoall", "allgather", "hybridep", "deepep"],
)
def test_bytes_to_experts(dispatch: ExpertDispatch, kind: str, sent: float) -> None:
    """A token sends rows of the narrow width to its experts, a quarter of the hidden state's bytes."""
    shape = RankShape(1, ep=4, relayed=dispatch.relays_tokens, all_gathered=dispatch.kind == "allgather")
    own = SUPER.layer_model(1)
    maker = CachedPassSegmentMaker(own, shape, lambda kernels: 0.0, overlap_tensor=False, dispatch=dispatch)
    sizes: Counter[str] = Counter()
    for op in maker.segment("F", PassLayers((0,))).ops:
        if isinstance(op.work, Collective) and op.name == "dispatch":
            sizes[op.work.kind] += int(op.work.size)
    assert len(sizes) == 1
    ((found, size),) = sizes.items()
    assert kind in found
    assert size == int(8192 * sent)


# --- whole steps ------------------------------------------------------------------------------------------------------


def job(**sections: Any) -> Scenario:
    more = {**FIELDS, "sequence_length": 256, "moe": {**MOE, "latent_size": 128, **sections.pop("moe", {})}}
    parallel = {"tp": 2, "ep": 2, "sequence_parallel": True, **sections.pop("parallel", {})}
    training = {"global_batch": 8, "dropout": False, "attention": "fused", **sections.pop("training", {})}
    cluster: dict[str, Any] = {"topology": "flat", "gpus": 8}
    found = {"model": more | sections.pop("model", {}), "parallel": parallel, "training": training, **sections}
    return tiny_scenario(**{"cluster": cluster, "gpus": 8, **found})


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"parallel": {"ep": 4, "etp": 1}},
        {"parallel": {"tp": 4, "etp": 2}},
        {"parallel": {"cp": 2}},
        {"parallel": {"zero": 3}},
        {"parallel": {"expert_dispatch": {"kind": "allgather"}}},
        {"parallel": {"expert_dispatch": {"kind": "deepep", "dtype": "fp8"}}},
        {"parallel": {"expert_dispatch": {"kind": "hybridep"}}},
        {"parallel": {"pp": 2}, "pipeline": {"schedule": "zb-h1"}},
        {"parallel": {"pp": 2}, "pipeline": {"schedule": "dualpipe"}, "overlap": {"pairs": True}},
        {"training": {"recompute": "full"}},
        {"training": {"recompute": ["moe"]}},
        {"training": {"precision": "fp8-mixed"}},
        {"training": {"optimizer": "muon"}},
        {"overlap": {"experts": True}, "moe": {"shared_experts": 0}},
        {"faults": [{"kind": "expert_imbalance", "tokens": {"kind": "zipf", "exponent": 0.5}}]},
    ],
    ids=str,
)
def test_all_engines_simulate_them_alike(sections: dict[str, Any]) -> None:
    scenario = job(**sections)
    step = simulate(scenario).step_time
    assert step == simulate(scenario, engine="reference").step_time
    assert step == simulate(scenario, folded=False).step_time


def test_overlap_with_shared_experts_is_rejected() -> None:
    """Megatron-LM asserts that both are not combined (core/transformer/moe/moe_layer.py, preprocess)."""
    with pytest.raises(InputError, match=r"overlap\.experts: is not supported with model\.moe\.latent_size"):
        job(overlap={"experts": True})


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_latent_size_is_a_count(value: Any) -> None:
    with pytest.raises(InputError, match="latent_size"):
        job(moe={"latent_size": value})


# --- imports ----------------------------------------------------------------------------------------------------------


PATTERN = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
CONFIG: dict[str, Any] = {
    "model_type": "nemotron_h", "num_hidden_layers": 88, "hidden_size": 4096, "num_attention_heads": 32,
    "hybrid_override_pattern": PATTERN, "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 2688,
    "vocab_size": 131072, "max_position_embeddings": 262144, "mamba_num_heads": 128, "mamba_head_dim": 64,
    "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "chunk_size": 128, "n_routed_experts": 512,
    "num_experts_per_tok": 22, "moe_intermediate_size": 2688, "n_shared_experts": 1, "moe_latent_size": 1024,
    "moe_shared_expert_intermediate_size": 5376, "tie_word_embeddings": False, "num_nextn_predict_layers": 1,
    "mtp_hybrid_override_pattern": "*E",
}  # fmt: skip
SCRIPT = (
    f"torchrun --nproc_per_node 8 pretrain_gpt.py --is-hybrid-model --hybrid-override-pattern {PATTERN} "
    "--num-layers 88 --hidden-size 4096 --num-attention-heads 32 --kv-channels 128 --group-query-attention "
    "--num-query-groups 2 --ffn-hidden-size 2688 --seq-length 8192 --max-position-embeddings 8192 "
    "--tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 4 --micro-batch-size 1 "
    "--global-batch-size 8 --bf16 --squared-relu --normalization RMSNorm --position-embedding-type none "
    "--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 131072 --attention-dropout 0 "
    "--hidden-dropout 0 --mamba-num-heads 128 --num-experts 512 --moe-router-topk 22 --moe-ffn-hidden-size 2688 "
    "--moe-shared-expert-intermediate-size 5376 --moe-router-enable-expert-bias"
)
"""As the launches of Nemotron 3 Super that are public, with the options of its Megatron-Bridge provider."""


def test_the_config_of_nemotron_3_super() -> None:
    found = Model(**model_from_config(CONFIG, sequence_length=8192))
    assert found.moe == SUPER.moe
    assert parameters(found) == parameters(SUPER)
    (said,) = assumptions_of_config(CONFIG)
    assert "exclude the 1 layer of multi-token prediction (mtp_layers: 1 and mtp_pattern: '*E' in the model" in said


def test_a_launch_of_nemotron_3_super() -> None:
    found = scenario_from_arguments(f"{SCRIPT} --moe-latent-size 1024", cluster={"topology": "dgx_h100"})
    assert Model(**found.document["model"]).moe == SUPER.moe
    assert found.unknown == ()


def test_a_launch_with_multi_token_prediction() -> None:
    """Its Megatron-Bridge provider trains two such layers of attention and experts."""
    script = SCRIPT.replace(PATTERN, f"{PATTERN}/*E/*E")
    found = scenario_from_arguments(f"{script} --moe-latent-size 1024", cluster={"topology": "dgx_h100"})
    model = Model(**found.document["model"])
    assert (model.layers, model.mtp_layers, model.mtp_pattern) == (88, 2, "*E")
    attention = H * (32 + 2 * 2) * 128 + 32 * 128 * H
    mixture = H * EXPERTS + EXPERTS + 2 * H * SHARED + 2 * H * NARROW + EXPERTS * 2 * NARROW * FFN
    assert parameters(model).total - parameters(SUPER).total == 2 * (attention + mixture + 2 * H + 2 * H * H + 3 * H)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (f"{SCRIPT} --moe-latent-size 0", "moe-latent-size"),
        (
            f"{SCRIPT} --moe-latent-size 1024 --moe-grouped-gemm --moe-use-legacy-grouped-gemm",
            "moe-latent-size: is not supported with moe-use-legacy-grouped-gemm",
        ),
        (f"{SCRIPT} --moe-latent-size 1024 --moe-shared-expert-overlap", r"overlap\.experts: is not supported"),
    ],
)
def test_launches_that_cannot_be_read(script: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_document(scenario_from_arguments(script, cluster={"topology": "dgx_h100"}).document)


def test_without_experts_the_option_says_nothing() -> None:
    dense = SCRIPT.partition(" --num-experts")[0].replace(PATTERN, "M-M*").replace("-layers 88", "-layers 4")
    found = scenario_from_arguments(
        f"{dense} --moe-latent-size 1024".replace("--expert-model-parallel-size 4 ", ""),
        cluster={"topology": "dgx_h100"},
    )
    assert "moe" not in found.document["model"]
    assert any("moe-latent-size" in each for each in found.assumed)
