"""Experts, latent attention and shared sequences of other tools become scenarios that run."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_inputs_hugging_face import MIXTURES
from test_inputs_megatron import GPT_345M, bridge, imported

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.documents.catalogue import load_presets
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.importers.hugging_face import model_from_config
from simcluster.importers.layer_lists import describe_expert_layers, parse_layer_list
from simcluster.model.layers import parameters
from simcluster.model.mixture import Moe
from simcluster.model.transformer import Model
from simcluster.scenario.scenario import Scenario, from_document, load_text
from simcluster.step.simulate import simulate

# --- which layers -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 9), st.integers(1, 6), st.integers(0, 5), st.integers(1, 30))
def test_layers_with_experts_are_found_again(first: int, every: int, offset: int, layers: int) -> None:
    moe = Moe(
        experts=2, top_k=1, expert_ffn_hidden_size=1,
        first_dense_layers=first, every=every, offset=offset % every,
    )  # fmt: skip
    listed = [moe.is_moe_layer(layer) for layer in range(layers)]
    assert moe.count_moe_layers(layers) == sum(listed)
    found = describe_expert_layers(listed)
    assert (found is None) == (not any(listed))
    if found is not None:
        again = Moe(experts=2, top_k=1, expert_ffn_hidden_size=1, **found)  # type: ignore[arg-type]
        assert [again.is_moe_layer(layer) for layer in range(layers)] == listed


@given(st.lists(st.booleans(), max_size=12))
def test_what_is_said_of_a_list_is_true_of_it(listed: list[bool]) -> None:
    found = describe_expert_layers(listed)
    if found is not None:
        moe = Moe(experts=2, top_k=1, expert_ffn_hidden_size=1, **found)  # type: ignore[arg-type]
        assert [moe.is_moe_layer(layer) for layer in range(len(listed))] == listed
    gaps = {b - a for a, b in zip(*[[n for n, here in enumerate(listed) if here][k:] for k in (0, 1)], strict=False)}
    assert len(gaps) < 2 or found is None


def test_an_offset_is_within_a_period() -> None:
    with pytest.raises(ValueError, match=r"offset .2. must be less than 'every' .2."):
        Moe(experts=2, top_k=1, expert_ffn_hidden_size=1, every=2, offset=2)


NUMBERS = st.integers(0, 9).map(str) | st.lists(st.integers(0, 1).map(str), max_size=3).map(
    lambda items: f"[{','.join(items)}]"
)


@given(st.recursive(NUMBERS, lambda inner: st.tuples(inner, st.sampled_from(["+", "*", " * "]), inner).map(
    lambda parts: f"({''.join(parts)})"), max_leaves=5))  # fmt: skip
def test_lists_mean_what_they_mean_in_python(text: str) -> None:
    try:
        expected = eval(text)  # made of numbers, brackets, + and * above
    except TypeError:
        with pytest.raises(InputError, match="not a list of layers"):
            parse_layer_list(text)
    else:
        assert parse_layer_list(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "operators"),
        ("[0]*999999999", "more than 100,000 layers"),
        ("[0]*50000+[1]*60000", "more than 100,000 layers"),
        ("9*9*9*9*9*9*9*9*9*9*9", "more than 9 digits"),
        ("9" * 5000, "more than 9 digits"),
        ("(" * 200 + "1" + ")" * 200, "nested more than 20 deep"),
        ("[" * 200, "nested more than 20 deep"),
        ("__import__('os')", "'_' is not allowed"),
        ("[0]*3**9", "operators"),
        ("[0,[1]]", "a list inside a list"),
        ("[0]+1", "a list inside a list"),
        ("[0] [1]", "operators"),
        ("1.5", "'.' is not allowed"),
        ("-1", "'-' is not allowed"),
        ("[0" * 9000, "longer than 10,000 characters"),
    ],
)
def test_hostile_lists_are_one_clear_message(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        parse_layer_list(text)
    assert len(str(caught.value)) < 200


# --- transformers -----------------------------------------------------------------------------------------------------


def small(config: dict[str, Any]) -> dict[str, Any]:
    """Four layers of it."""
    return {**config, "num_hidden_layers": 4, "vocab_size": 32000}


@pytest.mark.parametrize("name", MIXTURES)
def test_every_family_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its config beside a scenario, two stages and experts on four ranks; on two, each holds more."""
    (tmp_path / "config.json").write_text(json.dumps(small(MIXTURES[name][0])))
    (tmp_path / "scenario.yaml").write_text(
        "cluster: {topology: dgx_h100, nodes: 1}\nmodel: {preset: ./config.json, sequence_length: 512}\n"
        "parallel: {pp: 2, ep: 4}\ntraining: {global_batch: 8}\n"
    )
    command = ["run", str(tmp_path / "scenario.yaml"), "--json", "-"]
    found = []
    for ep in (4, 2):
        assert main([*command, "--set", f"parallel.ep={ep}"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert 0 < found[0]["mfu"] < 1
    assert found[0]["memory_bytes"]["parameters"] < found[1]["memory_bytes"]["parameters"]


def test_whole_experts_on_ranks_that_split_attention(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small(MIXTURES["DeepSeek-V3"][0])))
    document = {
        "cluster": {"topology": "dgx_h100", "nodes": 1},
        "model": {"preset": "./config.json", "sequence_length": 1024},
        "parallel": {"tp": 2, "ep": 8, "etp": 1, "sequence_parallel": True, "zero": 1},
        "training": {"global_batch": 8},
    }
    assert 0 < simulate(from_document(document, folder=tmp_path)).mfu < 1


def test_the_import_says_what_a_token_meets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**MIXTURES["DeepSeek-V3"][0], "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16"})
    )
    assert main(["import", "hugging-face", str(tmp_path / "config.json"), "--sequence-length", "4096"]) == 0
    written = capsys.readouterr().out
    assert "# 671,026,419,200 parameters, of which 37,552,297,472 are active per token" in written
    assert "# Assumed: time and parameters exclude the 1 layer of multi-token prediction" in written


def test_what_the_families_mean() -> None:
    deepseek = model_from_config(MIXTURES["DeepSeek-V3"][0])
    assert deepseek["moe"] == {
        "experts": 256, "top_k": 8, "expert_ffn_hidden_size": 2048, "shared_experts": 1, "first_dense_layers": 3,
        "router_bias": True, "groups": 8, "top_groups": 4,
    }  # fmt: skip
    assert deepseek["mla"]["q_lora_rank"] == 1536
    assert "q_lora_rank" not in model_from_config(MIXTURES["DeepSeek-V2-Lite"][0])["mla"]
    oss = model_from_config(MIXTURES["gpt-oss-20b"][0])
    assert (oss["attention_sinks"], oss["attention_window"], oss["full_attention_every"]) == (True, 128, 2)
    assert (oss["bias"], oss["moe"]["router_bias"]) == (True, True)
    qwen = model_from_config(MIXTURES["Qwen1.5-MoE-A2.7B"][0])
    assert (qwen["moe"]["shared_ffn_hidden_size"], qwen["moe"]["shared_gate"], qwen["bias"]) == (5632, True, "qkv")
    assert "ffn_hidden_size" not in qwen
    assert model_from_config(MIXTURES["Llama-4-Maverick"][0])["moe"]["every"] == 2


def test_layers_without_experts() -> None:
    qwen, total = MIXTURES["Qwen3-30B-A3B"]
    first = model_from_config({**qwen, "mlp_only_layers": [0, 1]})
    assert first["moe"]["first_dense_layers"] == 2
    expert = 3 * 2048 * 768
    change = 2 * (3 * 2048 * 8192 - 128 * expert - 2048 * 128)  # two MLPs for two mixtures
    assert parameters(Model(**first)).total == total + change
    assert model_from_config({**qwen, "decoder_sparse_step": 2})["moe"]["every"] == 2
    odd = model_from_config({**qwen, "mlp_only_layers": list(range(1, 48, 2))})["moe"]
    assert (odd["every"], odd["offset"]) == (2, 1)
    deepseek = model_from_config({**MIXTURES["DeepSeek-V3"][0], "moe_layer_freq": 2})["moe"]
    assert (deepseek["every"], deepseek["offset"], deepseek["first_dense_layers"]) == (2, 1, 3)
    listed = model_from_config({**MIXTURES["Llama-4-Scout"][0], "moe_layers": list(range(1, 48, 2))})
    assert listed["moe"]["every"] == 2


def test_irregular_expert_layers_become_a_pattern() -> None:
    qwen, total = MIXTURES["Qwen3-30B-A3B"]
    model = Model(**model_from_config({**qwen, "mlp_only_layers": [3, 17]}))
    assert [layer for layer in range(48) if not model.has_experts(layer)] == [3, 17]
    change = 2 * (3 * 2048 * 8192 - 128 * 3 * 2048 * 768 - 2048 * 128)  # two MLPs for two mixtures
    assert parameters(model).total == total + change
    scout = Model(**model_from_config({**MIXTURES["Llama-4-Scout"][0], "moe_layers": [1, 2, 5]}))
    assert [layer for layer in range(48) if scout.has_experts(layer)] == [1, 2, 5]


MIXTRAL = MIXTURES["Mixtral-8x7B"][0]
QWEN3 = MIXTURES["Qwen3-30B-A3B"][0]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**MIXTRAL, "num_local_experts": "8"}, "num_local_experts '8' is not a positive whole number"),
        ({**MIXTRAL, "num_local_experts": None}, "lacks num_local_experts or num_experts"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than the 8 experts"),
        ({**MIXTRAL, "num_experts_per_tok": 10**5000}, "num_experts_per_tok of thousands of digits is not"),
        ({**QWEN3, "mlp_only_layers": list(range(48))}, "mlp_only_layers: none of the 48 layers has experts"),
        ({**QWEN3, "mlp_only_layers": "all"}, "'all' is not a list of layer numbers"),
        ({**QWEN3, "mlp_only_layers": [1], "num_hidden_layers": 10**9}, "1,000,000,000 layers"),
        ({**QWEN3, "decoder_sparse_step": 100}, "none of the 48 layers has experts"),
        ({**QWEN3, "moe_intermediate_size": None}, "lacks moe_intermediate_size"),
        ({**MIXTURES["DeepSeek-V3"][0], "kv_lora_rank": None}, "lacks kv_lora_rank"),
        ({**MIXTURES["DeepSeek-V3"][0], "attention_bias": True}, "attention_bias is true, which is not modelled"),
        (
            {**MIXTURES["DeepSeek-V3"][0], "first_k_dense_replace": 61},
            "first_k_dense_replace .*: none of the 61 layers has experts",
        ),
        ({**MIXTURES["DeepSeek-V3"][0], "num_nextn_predict_layers": "one"}, "num_nextn_predict_layers 'one' is not"),
        ({**MIXTURES["gpt-oss-20b"][0], "attention_bias": False}, "attention_bias is false"),
        ({**MIXTURES["gpt-oss-20b"][0], "layer_types": ["full_attention"] * 23}, "must be a list of 24 words"),
        (
            {**MIXTURES["Llama-4-Scout"][0], "no_rope_layers": [1] * 47},
            "no_rope_layers must be a list of 48 numbers, each 0 or 1",
        ),
        (
            {**MIXTURES["Llama-4-Scout"][0], "layer_types": ["sliding_attention"] * 48},
            "each full_attention or chunked_att",
        ),
        ({**MIXTURES["Llama-4-Scout"][0], "num_hidden_layers": 10**6}, "1,000,000 layers are too many"),
        ({**MIXTURES["DeepSeek-V3.2"][0], "index_topk": None}, "lacks index_topk, which is required"),
        ({**MIXTURES["DeepSeek-V3.2"][0], "index_topk_freq": 4}, "without their own indexer .* are not modelled"),
        ({**MIXTURES["DeepSeek-V3.2"][0], "indexer_types": ["full", "shared"]}, "without their own indexer"),
        ({**MIXTURES["GLM-5"][0], "index_topk_pattern": "FSSF"}, "without their own indexer"),
        ({**MIXTURES["GLM-5"][0], "indexer_types": 10**5000}, "indexer_types of thousands of digits is not a list"),
    ],
)
def test_a_mixture_that_cannot_be_read_is_one_clear_message(config: dict[str, Any], words: str) -> None:
    with pytest.raises((InputError, ValueError), match=words) as caught:
        Model(**model_from_config(config))
    assert len(str(caught.value)) < 600


# --- Megatron-LM ------------------------------------------------------------------------------------------------------

MIXTRAL_ARGUMENTS = """
torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 4096
    --max-position-embeddings 32768 --swiglu --normalization RMSNorm --position-embedding-type rope
    --disable-bias-linear --untie-embeddings-and-output-weights --no-masked-softmax-fusion --bf16
    --tokenizer-type Llama2Tokenizer --attention-dropout 0.0 --hidden-dropout 0.0
    --num-experts 8 --moe-router-topk 2 --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2
    --moe-grouped-gemm --moe-token-dispatcher-type alltoall --overlap-param-gather --overlap-grad-reduce
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 --expert-model-parallel-size 8
    --sequence-parallel --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 64
"""
DEEPSEEK_ARGUMENTS = """
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --kv-channels 128
    --seq-length 4096 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
    --untie-embeddings-and-output-weights --vocab-size 129280 --bf16 --attention-dropout 0 --hidden-dropout 0
    --multi-latent-attention --qk-layernorm --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128
    --qk-pos-emb-head-dim 64 --v-head-dim 128 --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0
    --num-experts 256 --moe-layer-freq ([0]*3+[1]*58) --moe-ffn-hidden-size 2048 --moe-router-topk 8
    --moe-shared-expert-intermediate-size 2048 --moe-router-enable-expert-bias --moe-router-score-function sigmoid
    --moe-router-num-groups 8 --moe-router-group-topk 4 --moe-router-topk-scaling-factor 2.5
    --moe-token-dispatcher-type flex --moe-enable-deepep --moe-shared-expert-overlap --moe-permute-fusion
    --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 15 --decoder-last-pipeline-num-layers 16
    --tensor-model-parallel-size 2 --sequence-parallel --expert-model-parallel-size 64
    --expert-tensor-parallel-size 1 --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 512
"""


def big(text: str, **more: Any) -> Scenario:
    return load_text(imported(text, cluster={"topology": "dgx_h100", "nodes": 64}, **more).to_yaml_text("a test"))


def test_mixtral_as_megatron_launches_it() -> None:
    found = big(MIXTRAL_ARGUMENTS)
    assert parameters(found.model).total == 46_702_792_704
    assert (found.gpus, found.parallel.ep, found.parallel.etp, found.parallel.dp) == (64, 8, None, 16)
    said = imported(MIXTRAL_ARGUMENTS)
    assert not any("all-to-all" in sentence or "grouped" in sentence for sentence in said.assumed)
    assert not found.parallel.expert_dispatch.model_fields_set
    assert found.model.moe.aux_loss
    assert 0 < simulate(found.model_copy(update={"model": found.model.model_copy(update={"layers": 2})})).mfu < 1


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_scores_of_the_router_are_as_wide_as_the_options_say(dtype: str) -> None:
    plain = imported(MIXTRAL_ARGUMENTS)
    wide = imported(f"{MIXTRAL_ARGUMENTS} --moe-router-dtype {dtype}")
    assert "router_dtype" not in plain.document["software"].get("experts", {})
    assert wide.document["software"]["experts"]["router_dtype"] == "fp32"
    assert [said for said in wide.assumed if said not in plain.assumed] == [
        "router scores are in fp32: fp64 (--moe-router-dtype) is not modelled"
    ] * (dtype == "fp64")
    with pytest.raises(InputError, match="moe-router-dtype"):
        imported(f"{MIXTRAL_ARGUMENTS} --moe-router-dtype bf16")


def test_rounds_of_sinkhorn_are_told() -> None:
    by_loss = imported(MIXTRAL_ARGUMENTS)
    rounds = imported(MIXTRAL_ARGUMENTS.replace("aux_loss --", "sinkhorn --"))
    assert "aux_loss" not in rounds.document["model"]["moe"]
    assert [said for said in rounds.assumed if said not in by_loss.assumed] == [
        "sinkhorn balancing takes no time: its iterations over router scores are not modelled"
    ]


def test_deepseek_as_megatron_launches_it() -> None:
    found = big(DEEPSEEK_ARGUMENTS, gpus=512)
    assert parameters(found.model).total == 671_026_419_200
    assert (found.parallel.ep, found.parallel.etp) == (64, 1)
    ours, published = (
        model.model_dump(exclude={"name", "vocab_multiple"})
        for model in (found.model, Model(**load_model_entry("deepseek-v3")))
    )
    ours["moe"] |= {"shared_experts": 1, "shared_ffn_hidden_size": None, "aux_loss": False}  # the one shared expert
    assert ours == published
    text = imported(DEEPSEEK_ARGUMENTS, gpus=512).to_yaml_text("x")
    assert "# Assumed: moe-shared-expert-overlap also overlaps the computation that delay-wgrad-compute" in text
    assert found.overlap.experts
    assert 0 < simulate(found).mfu < 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"kind": "allgather"}),  # Megatron-LM's own default
        ("--moe-token-dispatcher-type alltoall", None),
        ("--moe-token-dispatcher-type flex --moe-enable-deepep", {"kind": "deepep"}),
        ("--moe-token-dispatcher-type flex --moe-deepep-num-sms 24", {"kind": "deepep", "sms": 24}),
        (
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep --moe-hybridep-num-sms 32",
            {"kind": "hybridep", "sms": 32},
        ),
    ],
)
def test_dispatchers_as_megatron_names_them(text: str, expected: dict[str, Any] | None) -> None:
    found = section(f"--num-experts 8 --expert-model-parallel-size 8 {text}", "parallel")
    assert found.get("expert_dispatch") == expected
    assert "expert_dispatch" not in section(f"--num-experts 8 {text}", "parallel")  # on one rank nothing travels


def section(text: str, name: str = "model") -> Any:
    return imported(f"{GPT_345M} {text}", gpus=8).document[name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--num-experts 8", {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 4096, "router_bias": True}),
        (
            "--num-experts 8 --moe-layer-freq 2 --disable-bias-linear",
            {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 4096, "every": 2, "offset": 1},
        ),
        (
            "--num-experts 8 --moe-layer-freq ([0,1]*12) --disable-bias-linear --moe-ffn-hidden-size 512",
            {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 512, "every": 2},
        ),
        (
            "--num-experts 8 --moe-layer-freq 1 --disable-bias-linear --moe-shared-expert-intermediate-size 100 "
            "--moe-shared-expert-gate",
            {
                "experts": 8,
                "top_k": 2,
                "expert_ffn_hidden_size": 4096,
                "shared_ffn_hidden_size": 100,
                "shared_gate": True,
            },
        ),
    ],
)
def test_options_of_experts(text: str, expected: dict[str, Any]) -> None:
    found = section(text)
    assert found["moe"] == expected
    assert ("ffn_hidden_size" in found) == ("every" in expected)
    load_text(imported(f"{GPT_345M} {text}", gpus=8, cluster={"topology": "dgx_h100", "nodes": 1}).to_yaml_text("x"))


def test_gpt_oss_as_megatron_has_it() -> None:
    text = (
        "--num-layers 24 --hidden-size 2880 --ffn-hidden-size 2880 --num-attention-heads 64 --kv-channels 64 "
        "--group-query-attention --num-query-groups 8 --seq-length 4096 --quick-geglu --glu-linear-offset 1.0 "
        "--activation-func-clamp-value 7.0 --normalization RMSNorm --position-embedding-type yarn --vocab-size 201088 "
        "--untie-embeddings-and-output-weights --softmax-type learnable --window-size 127,0 "
        "--window-attn-skip-freq 2 --num-experts 32 --moe-router-topk 4 --moe-ffn-hidden-size 2880 "
        "--moe-token-dispatcher-type alltoall --bf16 --micro-batch-size 1 --global-batch-size 8"
    )
    found = load_text(imported(text, gpus=8).to_yaml_text("x")).model
    assert parameters(found).total == 20_914_757_184
    assert found.model_dump(exclude={"name"}) == Model(**load_model_entry("gpt-oss-20b")).model_dump(exclude={"name"})


def test_what_belongs_to_no_experts_is_said() -> None:
    found = imported(GPT_345M + " --moe-router-topk 2 --kv-lora-rank 512 --moe-layer-freq 1", gpus=8)
    assert "moe" not in found.document["model"]
    assert found.no_effect == ("moe-router-topk", "kv-lora-rank", "moe-layer-freq")
    assert any("the model is dense, since num-experts is not given" in sentence for sentence in found.assumed)
    assert not {*found.mapped} & {*found.no_effect}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--num-experts eight", "--num-experts: 'eight' is not a whole number"),
        ("--num-experts 8 --moe-router-topk 9", "--moe-router-topk: 9 is more than the 8 experts"),
        ("--num-experts 8 --moe-layer-freq [0]*24", "has experts in no layer; remove num-experts"),
        ("--num-experts 8 --moe-layer-freq [0]*3+[1]*58", "is a list of 61 layers, but num-layers is 24"),
        ("--num-experts 8 --moe-layer-freq [2]*24", "must have 1 for a layer with experts and 0"),
        ("--num-experts 8 --moe-layer-freq ([0,0,1,1]*6)", "modelled"),
        ("--num-experts 8 --moe-layer-freq 0", "0 is neither a whole number from 1 nor"),
        ("--num-experts 8 --moe-layer-freq [0]*999999999", "more than 100,000 layers"),
        ('--num-experts 8 --moe-layer-freq __import__("os")', "'_' is not allowed"),
        ("--num-experts 8 --moe-layer-freq " + "[" * 5000, "nested more than 20 deep"),
        ("--num-experts 8 --moe-pad-expert-input-to-capacity", "needs moe-expert-capacity-factor; give it, as in 1.0"),
        ("--multi-latent-attention", "is not modelled with biases; add --disable-bias-linear"),
        (
            "--multi-latent-attention --disable-bias-linear --group-query-attention --num-query-groups 4",
            "cannot be combined with group-query-attention",
        ),
        (
            "--context-parallel-size 4 --cp-comm-type a2a+p2p",
            "--hierarchical-context-parallel-sizes: not set; cp-comm-type a2a.p2p needs an inner and an outer size",
        ),
        (
            "--context-parallel-size 4 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 2 4",
            "2 4; .* that multiply to context-parallel-size 4, such as 4 1",
        ),
        (
            "--context-parallel-size 2 --cp-comm-type p2p a2a",
            "'p2p a2a' is not modelled; use one of p2p, all_gather, a2a",
        ),
        ("--window-size 127,0 --window-attn-skip-freq [0,1]*12", "this pattern is not modelled; write a number N"),
        ("--delay-wgrad-compute", "a split backward needs another schedule"),
    ],
)
def test_bad_options_of_experts_are_one_clear_message(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        imported(f"{GPT_345M} {text}", gpus=8)
    assert "args.txt" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_changes_the_step_and_is_not_modelled_is_said() -> None:
    options = "--num-experts 8 --moe-token-drop-policy position --overlap-moe-expert-parallel-comm"
    text = imported(f"{GPT_345M} {options}", gpus=8).to_yaml_text("x")
    for words in (
        "--moe-token-drop-policy: each expert keeps its most probable tokens",
        "overlap-moe-expert-parallel-comm has no effect: expert-model-parallel-size is 1",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("options", "expected", "said"),
    [
        ("", False, None),
        (
            "--moe-shared-expert-overlap",
            True,
            "moe-shared-expert-overlap also overlaps the computation that delay-wgrad-compute would overlap",
        ),
        ("--delay-wgrad-compute", True, "also overlaps the computation that moe-shared-expert-overlap"),
        ("--moe-shared-expert-overlap --delay-wgrad-compute", True, None),
        ("--moe-shared-expert-overlap --delay-wgrad-compute --overlap-moe-expert-parallel-comm", True, "has no effect"),
    ],
)
def test_what_runs_beside_the_way_to_experts(options: str, expected: bool, said: str | None) -> None:
    shared = "--moe-shared-expert-intermediate-size 1024"
    found = imported(
        f"{GPT_345M} --num-experts 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall {shared} {options}", gpus=8
    )
    assert found.document["overlap"].get("experts", False) is expected
    sentences = [sentence for sentence in found.assumed if "overlap" in sentence]
    assert [said in sentence for sentence in sentences if said] == [True] * (said is not None)
    assert bool(sentences) == (said is not None)


def test_batches_overlap_in_pairs_of_the_interleaved_schedule() -> None:
    options = "--num-experts 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --pipeline-model-parallel-size 2"
    options += " --expert-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3"
    found = imported(f"{GPT_345M} {options} --overlap-moe-expert-parallel-comm", gpus=8)
    assert found.document["pipeline"]["schedule"] == {"name": "interleaved", "pairs": True}
    assert found.document["overlap"]["pairs"] is True
    assert "experts" not in found.document["overlap"]
    assert not [sentence for sentence in found.assumed if "overlap" in sentence]
    apart = from_document({**found.document, "overlap": {**found.document["overlap"], "pairs": False}})
    assert simulate(from_document(found.document)).step_time < simulate(apart).step_time


@pytest.mark.parametrize("delayed", [False, True])
def test_batches_overlap_without_a_pipeline(delayed: bool) -> None:
    """Megatron-LM's combined_1f1b_schedule_for_no_pipelining; delayed weight gradients leave the way to the experts."""
    options = "--num-experts 8 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --expert-model-parallel-size 4"
    options += " --overlap-moe-expert-parallel-comm" + " --delay-wgrad-compute" * delayed
    text = GPT_345M.replace("--global-batch-size 64", "--global-batch-size 256")
    found = imported(f"{text} {options}", gpus=8)
    assert found.document["pipeline"]["schedule"] == {"name": "1f1b", "pairs": "forward-backward"}
    assert found.document["overlap"]["pairs"] is True
    assert found.document["overlap"].get("experts", False) is delayed
    assert not [sentence for sentence in found.assumed if "overlap" in sentence]
    apart = from_document({**found.document, "overlap": {**found.document["overlap"], "pairs": False}})
    assert simulate(from_document(found.document)).step_time < simulate(apart).step_time


# --- Megatron-Bridge -----------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["[0]*1+[1]*3", "([0]*1+[1]*3)", "[0,1,1,1]"])
def test_experts_in_overrides(written: str) -> None:
    text = (
        "model.num_layers=4 model.hidden_size=512 model.num_attention_heads=8 model.ffn_hidden_size=1536 "
        "model.gated_linear_unit=true model.add_bias_linear=false model.share_embeddings_and_output_weights=false "
        "model.normalization=RMSNorm model.position_embedding_type=rope model.vocab_size=32000 model.seq_length=1024 "
        "model.multi_latent_attention=true model.qk_layernorm=true model.q_lora_rank=null model.kv_lora_rank=64 "
        f"model.num_moe_experts=8 model.moe_router_topk=2 model.moe_ffn_hidden_size=256 model.moe_layer_freq={written} "
        "model.moe_router_enable_expert_bias=true model.moe_router_load_balancing_type=seq_aux_loss "
        "model.expert_model_parallel_size=4 model.context_parallel_size=2 model.cp_comm_type=a2a "
        "model.moe_shared_expert_overlap=false model.moe_permute_fusion=false "
        "train.micro_batch_size=1 train.global_batch_size=128"
    )
    found = load_text(bridge(text).to_yaml_text("x"))
    assert found.model.moe == Moe(
        experts=8, top_k=2, expert_ffn_hidden_size=256, first_dense_layers=1, router_bias=True,
    )  # fmt: skip
    assert found.model.mla is not None
    assert (found.model.mla.kv_lora_rank, found.model.mla.q_lora_rank, found.model.mla.v_head_dim) == (64, None, 128)
    assert (found.parallel.ep, found.parallel.cp, found.parallel.cp_comm) == (4, 2, "all_to_all")
    experts = {"permute": "steps", "products": "sequential"}
    assert bridge(text).document["software"] == {"probabilities": "activation", "experts": experts}
    assert "experts" not in bridge(text).document["overlap"]


def test_hybrid_context_parallelism_in_overrides() -> None:
    text = (
        "model.num_layers=4 model.hidden_size=512 model.num_attention_heads=8 model.seq_length=1024 "
        "model.vocab_size=32000 model.context_parallel_size=4 model.cp_comm_type=a2a+p2p "
        "model.hierarchical_context_parallel_sizes=[2,2] train.micro_batch_size=1 train.global_batch_size=128"
    )
    found = bridge(text).document["parallel"]
    assert (found["cp"], found["cp_comm"], found["cp_inner"]) == (4, "hybrid", 2)


def test_a_list_in_yaml() -> None:
    text = "recipe: llama3_8b\nmodel: {num_moe_experts: 4, moe_layer_freq: [%s]}\ntrain: {global_batch_size: 64, "
    text = text % ", ".join("0" * 4 + "1" * 28) + "micro_batch_size: 1}\n"
    assert bridge(text).document["model"]["moe"]["first_dense_layers"] == 4


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("nemotronh_8b", "nemotron-h-8b"),
        ("nemotronh_56b", "nemotron-h-56b"),
        ("nemotron_3_nano", "nemotron-3-nano-30b"),
        ("nemotron_3_super", "nemotron-3-super-120b"),
        ("qwen3_next_80b_a3b", "qwen3-next-80b"),
        ("kimi_linear_48b_a3b", "kimi-linear-48b"),
        ("minimax_m1", "minimax-m1"),
        ("deepseek_v3_2", "deepseek-v3.2"),
        ("deepseek_v32", "deepseek-v3.2"),
        ("glm5", "glm-5"),
        ("llama4_scout", "llama4-scout"),
        ("llama4_maverick", "llama4-maverick"),
    ],
)
def test_recipes_of_several_kinds_of_layers_are_the_presets(recipe: str, name: str) -> None:
    text = f"{recipe}_pretrain_config train.micro_batch_size=1 train.global_batch_size=64"
    ours, preset = load_text(bridge(text).to_yaml_text("x")).model, Model(**load_model_entry(name))
    left_out = {"name": True, "ffn_hidden_size": bool(preset.moe and preset.moe.latent_size), "moe": {"aux_loss"}}
    assert ours.model_dump(exclude=left_out) == preset.model_dump(exclude=left_out)


def test_sizes_of_presets_that_options_do_not_describe_can_be_changed() -> None:
    run = "train.micro_batch_size=1 train.global_batch_size=64"
    changed = bridge(f"glm5_pretrain_config model.vocab_size=131072 model.seq_length=4096 {run}").document["model"]
    assert changed == {"preset": "glm-5", "vocab_size": 131072, "sequence_length": 4096}


def test_hybrids_that_are_not_known_are_refused_by_name() -> None:
    for recipe in ("nemotron_3_nano_4b", "deepseek_v3_mamba"):  # names begin as those of known models
        with pytest.raises(InputError, match=f"recipe '{recipe}_pretrain_config' is unknown"):
            bridge(f"{recipe}_pretrain_config train.micro_batch_size=1 train.global_batch_size=64")
    with pytest.raises(InputError, match=r"jamba.*layers of Mamba-1 are not modelled"):
        model_from_config({"model_type": "jamba", "num_hidden_layers": 32, "hidden_size": 4096})


ENTRIES = {name: load_model_entry(name) for name in load_presets("models.yaml")}
MOES = [
    name
    for name, entry in ENTRIES.items()
    if {"moe"} == {"moe", "layer_kinds", "pattern"} & entry.keys() and "indexer" not in entry.get("mla", {})
]


@pytest.mark.parametrize("name", MOES)
def test_recipes_of_mixtures_are_the_presets(name: str) -> None:
    text = f"{name.replace('-', '_')}_pretrain_config train.micro_batch_size=1 train.global_batch_size=64"
    ours, preset = load_text(bridge(text).to_yaml_text("x")).model, Model(**load_model_entry(name))
    assert ours.moe is not None
    assert preset.moe is not None
    assert ours.moe.shared_width == preset.moe.shared_width
    left_out = {"name": True, "moe": {"shared_experts", "shared_ffn_hidden_size"}}
    assert ours.model_dump(exclude=left_out) == preset.model_dump(exclude=left_out)


# --- presets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
        ("mixtral-8x22b", 140_620_634_112, 39_152_031_744),
        ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704),
        ("qwen3-235b-a22b", 235_093_634_560, 22_190_763_520),
        ("deepseek-v2-lite", 15_706_484_224, 2_661_150_208),
        ("deepseek-v2", 235_741_434_880, 21_375_800_320),
        ("deepseek-v3", 671_026_419_200, 37_552_297_472),
        ("deepseek-v3.2", 671_877_929_216 + 58 * 256, 38_403_822_336),
        ("glm-5", 743_911_199_232 + 75 * 256, 41_784_728_832),
        ("llama4-scout", 107_769_861_120, 17_172_894_720),
        ("llama4-maverick", 400_711_848_960, 17_184_691_200),
        ("gpt-oss-20b", 20_914_757_184, 4_187_440_704),
        ("gpt-oss-120b", 116_829_156_672, 5_711_982_912),
    ],
)
def test_presets_have_their_published_parameters(name: str, total: int, active: int) -> None:
    count = parameters(Model(**load_model_entry(name)))
    assert (count.total, count.active) == (total, active)


def test_presets_are_what_their_configs_say() -> None:
    configs = {name.lower().replace("llama-4", "llama4"): config for name, (config, _) in MIXTURES.items()}
    configs["llama4-maverick"] = {**configs["llama4-maverick"], "use_qk_norm": False}
    compared = [
        name for name in load_presets("models.yaml") if name in configs and name != "mixtral-8x22b"
    ]  # another vocabulary
    assert len(compared) == 12
    for name in compared:
        fields = model_from_config(configs[name], sequence_length=load_model_entry(name)["sequence_length"])
        assert Model(**fields, name=name) == Model(**load_model_entry(name))


def test_a_preset_is_the_callers_own_all_through() -> None:
    load_model_entry("deepseek-v3")["moe"]["experts"] = 1
    assert load_model_entry("deepseek-v3")["moe"]["experts"] == 256


def test_another_name_of_the_number_of_experts_is_not_passed_over() -> None:
    """Options of experts say nothing without experts; one that may say how many there are does."""
    found = imported(f"{GPT_345M} --moe-own-num-experts 8 --moe-router-topk 2", gpus=8)
    assert any("moe-own-num-experts" in told for told in found.unknown)
    assert not imported(f"{GPT_345M} --moe-router-topk 2", gpus=8).unknown
