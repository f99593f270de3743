"""Launch scripts of forks of Megatron-LM become scenarios: of MindSpeed-LLM experts, context, idle layers and
schedules, of Pai-Megatron-Patch latent attention and shared experts, of Gaudi optimizers and bins of tokens."""

from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.importers.import_result import ImportResult
from simcluster.importers.megatron import scenario_from_arguments
from simcluster.scenario.scenario import load_text

SIZES = (
    "--hidden-size 512 --ffn-hidden-size 1024 --num-attention-heads 8 --seq-length 512 --vocab-size 5000 "
    "--micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu --disable-bias-linear --normalization RMSNorm "
    "--position-embedding-type rope --use-distributed-optimizer --attention-dropout 0.0 --hidden-dropout 0.0 "
    "--spec mindspeed_llm.tasks.models.spec.deepseek_spec layer_spec --use-mcore-models"
)
EXPERTS = (
    "--num-experts 16 --moe-router-topk 4 --moe-intermediate-size 256 --n-shared-experts 2 --first-k-dense-replace 3 "
    "--moe-layer-freq 1 --moe-token-dispatcher-type alltoall_seq --moe-grouped-gemm --moe-permute-fusion "
    "--moe-router-load-balancing-type noaux_tc --moe-aux-loss-coeff 0.001 --router-gating-in-fp32"
)
LATENT = (
    "--multi-head-latent-attention --qk-rope-head-dim 32 --qk-nope-head-dim 64 --kv-lora-rank 128 --v-head-dim 64 "
    "--qk-layernorm"
)


def imported(more: str) -> ImportResult:
    cluster = {"topology": "dgx_h100", "nodes": 8}
    return scenario_from_arguments(f"{SIZES} {more}", cluster=cluster, gpus=64, source="run.sh")


def test_experts_latent_attention_and_layers_that_do_nothing() -> None:
    found = imported(
        f"{EXPERTS} {LATENT} --num-layers 16 --noop-layers 14,15 --tensor-model-parallel-size 2 "
        "--pipeline-model-parallel-size 2 --expert-model-parallel-size 4 --moe-tp-extend-ep --sequence-parallel "
        "--schedules-method dualpipev --moe-fb-overlap"
    )
    scenario = load_text(found.to_yaml_text("x"))
    assert scenario.model.layers == 14
    assert found.document["model"]["moe"] == {
        "experts": 16, "top_k": 4, "expert_ffn_hidden_size": 256, "shared_ffn_hidden_size": 512,
        "first_dense_layers": 3,
    }  # fmt: skip
    assert scenario.model.mla is not None
    assert (scenario.model.mla.qk_nope_head_dim, scenario.model.mla.qk_rope_head_dim) == (64, 32)
    assert (scenario.parallel.ep, scenario.parallel.etp) == (8, 1)
    assert found.document["pipeline"] == {"schedule": "dualpipe-v", "layers_per_stage": [4, 4, 4, 2]}
    assert scenario.overlap.pairs
    assert found.document["software"]["experts"] == {"router_dtype": "fp32"}
    assert not found.unknown


def test_layers_of_minimax_and_fused_accumulation() -> None:
    cluster = {"topology": "dgx_h100", "nodes": 1}
    more = "--num-layers 12 --no-gradient-accumulation-fusion --gemm-gradient-accumulation-fusion --qk-layernorm"
    text = f"{SIZES.replace('deepseek_spec', 'minimax_spec')} {more}"
    found = scenario_from_arguments(text, cluster=cluster, gpus=8, source="run.sh")
    assert found.document["model"]["qk_norm"] == "head"
    assert any("one over all heads" in sentence for sentence in found.assumed)
    assert "accumulate" not in found.document.get("software", {})


@pytest.mark.parametrize(
    ("more", "section", "expected"),
    [
        ("--num-layers 12 --no-gradient-accumulation-fusion", "software",
         {"accumulate": "separate", "source": "no-gradient-accumulation-fusion"}),
        ("--num-layers 12 --context-parallel-size 4", "parallel", {"cp": 4, "cp_comm": "all_to_all"}),
        ("--num-layers 12 --context-parallel-size 4 --context-parallel-algo megatron_cp_algo", "parallel",
         {"cp": 4, "cp_comm": None}),
        ("--num-layers 12 --context-parallel-size 1 --context-parallel-algo hybrid_cp_algo", "parallel", {"cp": 1}),
        ("--num-layers 16 --noop-layers 0,15 --pipeline-model-parallel-size 4", "pipeline",
         {"schedule": "1f1b", "layers_per_stage": [3, 4, 4, 3]}),
        ("--num-layers 16 --noop-layers 0,15 --pipeline-model-parallel-size 4 "
         "--num-layers-per-virtual-pipeline-stage 2", "pipeline",
         {"schedule": "interleaved", "chunks": 2, "layers_per_stage": [1, 2, 2, 2, 2, 2, 2, 1]}),
        ("--num-layers 12 --decoder-num-layers-per-pipeline-stage 2 4 4 2 --pipeline-model-parallel-size 4", "pipeline",
         {"schedule": "1f1b", "layers_per_stage": [2, 4, 4, 2]}),
        ("--num-layers 12 --num-layer-list 2,4,4,2 --pipeline-model-parallel-size 4", "pipeline",
         {"layers_per_stage": [2, 4, 4, 2]}),
        ("--num-layers 12 --pipeline-model-parallel-blocks 2,4,4,2 --pipeline-model-parallel-size 4", "pipeline",
         {"layers_per_stage": [2, 4, 4, 2]}),
        ("--num-layers 12 --reuse-fp32-param", "training", {"memory_recipe": "aware-16"}),
        ("--num-layers 12 --tensor-model-parallel-size 4 --use-mc2", "overlap", {"tensor_pieces": 4}),
        ("--num-layers 12 --tensor-model-parallel-size 4 --use-ascend-coc", "overlap", {"tensor_pieces": 4}),
        ("--num-layers 16 --pipeline-model-parallel-size 4 --enable-zero-bubble", "pipeline", {"schedule": "zb-h1"}),
        ("--num-layers 16 --pipeline-model-parallel-size 4 --enable-zero-bubble --zero-bubble-max-pending-backward 8",
         "pipeline", {"schedule": "zb-h2"}),
        ("--num-layers 16 --pipeline-model-parallel-size 4 --enable-zero-bubble --zero-bubble-v-schedule "
         "--zero-bubble-v-schedule-mem-setup half", "pipeline", {"schedule": "v-half"}),
        ("--num-layers 16 --pipeline-model-parallel-size 4 --enable-zbh1-pipeline --enable-zbh1-exact-semantics",
         "pipeline", {"schedule": "zb-h1"}),
        ("--num-layers 14 --pipeline-model-parallel-size 4 --enable-zbh1-pipeline "
         "--decoder-first-pipeline-num-layers 2", "pipeline", {"schedule": "zb-h1", "layers_per_stage": [2, 4, 4, 4]}),
        ("--num-layers 16 --pipeline-model-parallel-size 4 --zero-bubble-v-schedule-mem-setup half", "pipeline",
         {"schedule": "1f1b"}),
    ],
)  # fmt: skip
def test_single_options(more: str, section: str, expected: dict[str, Any]) -> None:
    found = imported(more)
    assert {key: found.document[section].get(key) for key in expected} == expected
    assert not found.unknown
    load_text(found.to_yaml_text("x"))


PLAIN = SIZES[: SIZES.index("--spec")]
PAI = (
    "--num-layers 12 --num-experts 16 --moe-router-topk 4 --moe-ffn-hidden-size 256 --enable-shared-expert "
    "--num-shared-experts 2 --kv-lora-rank 128 --qk-nope-head-dim 64 --qk-rope-head-dim 32 "
    "--v-head-dim 64 --expert-model-parallel-size 4 --patch-tokenizer-type DeepSeekV2Tokenizer --extra-vocab-size 2400"
)
GAUDI = (
    "--num-layers 12 --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 1024 --optimizer fusedadamw "
    "--use-fused-sdpa 1 --use-fused-sdpa-with-recompute 0 --moe-capacity-bins-num 10 "
    "--moe-pad-expert-input-to-capacity --moe-capacity-bins-exp-base 1.5 --expert-model-parallel-size 4"
)


def plain(more: str) -> ImportResult:
    cluster = {"topology": "dgx_h100", "nodes": 8}
    return scenario_from_arguments(f"{PLAIN} {more}", cluster=cluster, gpus=64, source="run.sh")


def test_latent_attention_and_shared_experts_of_pai() -> None:
    found = plain(PAI)
    model = load_text(found.to_yaml_text("x")).model
    assert model.mla is not None
    assert (model.mla.kv_lora_rank, model.mla.q_lora_rank, model.mla.v_head_dim) == (128, None, 64)
    assert found.document["model"]["moe"]["shared_ffn_hidden_size"] == 512
    assert any("attention is latent" in sentence for sentence in found.assumed)


def test_latent_attention_has_rotary_positions_at_any_rate() -> None:
    text = f"{PLAIN} {PAI}".replace("type rope", "type none")
    found = scenario_from_arguments(text, cluster={"topology": "dgx_h100", "nodes": 8}, gpus=64, source="run.sh")
    assert found.document["model"]["position"] == "rope"


def test_experts_of_megablocks_by_other_names() -> None:
    found = plain("--num-layers 12 --moe-num-experts 8 --moe-top-k 1 --moe-loss-weight 0.1 --moe-capacity-factor 1")
    moe = found.document["model"]["moe"]
    assert (moe["experts"], moe["top_k"], moe["capacity_factor"], moe["aux_loss"]) == (8, 1, 1.0, True)


def test_optimizers_and_bins_of_gaudi() -> None:
    found = plain(GAUDI)
    assert "optimizer" not in found.document["training"]
    assert found.document["model"]["moe"]["experts"] == 8
    assert any("are not padded to bins" in sentence for sentence in found.assumed)
    assert not found.unknown


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            "--num-layers 12 --context-parallel-size 4 --context-parallel-algo hybrid_cp_algo",
            "hybrid_cp_algo is not mod",
        ),
        ("--num-layers 12 --noop-layers 12", "'12' is not a list of layers from 0 to 11"),
        (
            "--num-layers 12 --num-layer-list 2,4,4,1 --pipeline-model-parallel-size 4",
            "must be 4 layer counts that sum to 12",
        ),
        (
            "--num-layers 12 --enable-hetero --hetero-process-meshes 2,1,1,1,1",
            "stages with different ranks or devices",
        ),
        ("--num-layers 12 --glu-activation swiglu", "is of EPFL's Megatron-LLM, .*: write --swiglu"),
        ("--num-layers 12 --moe-num-experts 8 --moe-expert-model-parallelism", "write expert-model-parallel-size"),
        ("--num-layers 12 --overlapped-distributed-optimizer", "write use-distributed-optimizer, overlap-grad-reduce"),
        ("--num-layers 12 --lora-r 8", "trains adapters with frozen weights"),
    ],
)
def test_what_cannot_be_read_is_one_message(more: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        imported(more)


def test_layers_of_another_kind_are_refused_by_the_name_of_what_makes_them() -> None:
    text = f"{SIZES} --num-layers 12".replace("deepseek_spec", "qwen3_next_spec")
    with pytest.raises(InputError, match=r"spec\.qwen3_next_spec selects layers"):
        scenario_from_arguments(text, cluster={"topology": "dgx_h100", "nodes": 8}, source="run.sh")


def of_llama(more: str) -> ImportResult:
    text = (
        "torchrun --nproc_per_node 8 pretrain_llama.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 "
        "--seq-length 512 --vocab-size 5000 --micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu "
        f"--ffn-hidden-size 1536 --disable-bias-linear --RMSNorm --causal-lm --no-position-embedding {more}"
    )
    return scenario_from_arguments(text, cluster={"topology": "dgx_h100", "nodes": 1}, source="run.sh")


def test_settings_of_hydra_behind_the_options_are_told() -> None:
    found = of_llama("--use-distributed-optimizer model_type=own +own.layers=3")
    assert found.unknown == ("model_type=own", "+own.layers=3")
    assert found.document["parallel"]["zero"] == 1


def test_stages_of_other_devices_are_refused_whatever_switches_them_on() -> None:
    with pytest.raises(InputError, match="--hetero-mode: stages with different ranks or devices"):
        of_llama("--hetero-mode pp --hetero-device-types ib roce --hetero-pipeline-stages 1 2 1 2")


def test_streams_of_residuals_are_refused() -> None:
    with pytest.raises(InputError, match="--enable-hyper-connections: hyper-connections"):
        of_llama("--enable-hyper-connections")
