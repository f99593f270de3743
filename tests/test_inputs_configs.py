"""Configurations of other tools: Megatron-LM's option files, recipes in Python, NeMo, DeepSpeed, logs, config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.importers.deepspeed import HOST_UPDATE, scenario_from_deepspeed
from simcluster.importers.import_result import ImportResult
from simcluster.importers.megatron import scenario_from_arguments
from simcluster.importers.megatron_bridge import scenario_from_bridge
from simcluster.importers.named_models import published_model_names, published_model_section
from simcluster.importers.nemo import scenario_from_nemo
from simcluster.importers.python_recipes import RecipeFile
from simcluster.importers.torchtitan import scenario_from_torchtitan
from simcluster.model.layers import parameters
from simcluster.model.recipes import recipe_named
from simcluster.model.transformer import Model
from simcluster.scenario.scenario import load, load_text

FOLDER = Path(__file__).parent / "inputs" / "launch"
CLUSTER = {"topology": "dgx_h100", "nodes": 4}


def read(name: str) -> str:
    return (FOLDER / name).read_text()


# --- Megatron-LM's option files ---------------------------------------------------------------------------------------


def megatron(text: str, **more: Any) -> ImportResult:
    return scenario_from_arguments(text, cluster=CLUSTER, source="args", **more)


def test_options_in_yaml_with_what_they_share() -> None:
    found = megatron(read("options.yaml"), available=32)
    document = found.document
    assert (document["model"]["layers"], document["parallel"]["pp"], document["training"]["global_batch"]) == (8, 4, 32)
    assert document["training"]["precision"] == "bf16-mixed"
    assert "of several runs in the file, only the first (MODEL_ARGS) is imported" in found.assumed
    assert found.no_effect == ("log-params-norm",)
    by_hand = read("options.yaml").replace("ENV_VARS:", "ENV_VARS:\n  NCCL_ALGO: Ring\n  NCCL_P2P_DISABLE: 0", 1)
    assert any("defaults; NCCL_ALGO=Ring is ignored" in sentence for sentence in megatron(by_hand).assumed)
    load_text(found.to_yaml_text("x"))


HYBRID_FILE = (
    "MODEL_ARGS:\n  --hidden-size: 512\n  --num-attention-heads: 8\n  --seq-length: 512\n  --micro-batch-size: 1\n"
    "  --vocab-size: 5000\n  --max-position-embeddings: 512\n  --global-batch-size: 48\n  --hybrid-override-pattern: "
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("MODE: rl\nMODEL_ARGS:\n  --num-layers: 2\n", "MODE rl is reinforcement learning, not pre-training"),
        ("MODEL_ARGS:\n  --num-layers: 2\n  --num-tokens-to-generate: 3\n", "runs a trained model; only"),
        ("MODEL_ARGS:\n  --num-layers: 2\n  --grpo-group-size: 3\n", "means reinforcement learning"),
        ("MODEL_ARGS:\n  trainer.devices: 2\n", "its options are NeMo's"),
        ("MODEL_ARGS:\n  --hybrid-attention-ratio: 0.08\n  --spec: a b\n", "other than attention and MLP"),
        ("MODEL_ARGS:\n  --encoder-num-layers: 2\n  --decoder-num-layers: 2\n", "a model with an encoder"),
        ("MODEL_ARGS:\n  --vocab-file: ${D}/bert_shard00/vocab.txt\n", "belongs to a model with an encoder"),
        ("MODEL_ARGS:\n  --img-h: 336\n  --num-layers: 2\n", "belongs to an image model; only text"),
        ("MODEL_ARGS: 7\n", "MODEL_ARGS has no options"),
        (f"{HYBRID_FILE}'*-'\n  --num-layers: 12\n", "--num-layers: 12 differs from the 2 of hybrid-override-pattern"),
        (f"{HYBRID_FILE}M-/*-/*-\n  --mtp-num-layers: 1\n", "--mtp-num-layers: 1 differs from the 2 of hybrid"),
        (f"{HYBRID_FILE}'*-/*-/*E'\n", "all layers of multi-token prediction .after /. must be equal"),
        (f"{HYBRID_FILE}'*-/*-*-'\n", "one or two different letters of .*; got '\\*-\\*-'"),
    ],
)
def test_what_is_no_pre_training_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        megatron(text)
    assert "\n" not in str(caught.value)


SIZES = (
    "--num-layers 12 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --micro-batch-size 1 "
    "--global-batch-size 48 --bf16 --vocab-size 5000 --max-position-embeddings 512"
)


MIXTURE = "--num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall"
AWARE = "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
HYBRID = (
    "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --ckpt-format fsdp_dtensor "
    "--use-distributed-optimizer --num-distributed-optimizer-instances"
)


@pytest.mark.parametrize(
    ("more", "section", "expected"),
    [
        ("--deepspeed --num-experts 1 --moe-expert-parallel-size 1 --moe-eval-capacity-factor 2", "model",
         {"moe": None, "ffn_hidden_size": 2048}),
        ("--deepspeed --num-experts 8 8 8 --expert-interval 4 --mlp-type standard", "model",
         {"moe": {"experts": 8, "top_k": 1, "expert_ffn_hidden_size": 2048, "every": 4}}),
        ("--deepspeed --num-experts 8 --expert-interval 1 --mlp-type residual", "model",
         {"moe": {"experts": 8, "top_k": 1, "expert_ffn_hidden_size": 2048,
                  "shared_ffn_hidden_size": 2048, "shared_gate": True}}),
        ("--deepspeed --mlp-type residual", "model", {"moe": None}),
        ("--num-experts 1 --moe-router-topk 1", "model",
         {"moe": {"experts": 1, "top_k": 1, "expert_ffn_hidden_size": 2048, "router_bias": True}}),
        ("--mtp-num-layers 1 --pipeline-model-parallel-layout Et*2|(tt|)*4t|t,mL", "pipeline",
         {"layout": "Ett|(tt|)*4t|tmL"}),
        ("--mtp-num-layers 1 --pipeline-model-parallel-layout Et*2|(tt|)*4tt,m|L", "pipeline",
         {"layout": "Ett|(tt|)*4ttm|L"}),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 3", "training",
         {"recompute": "full", "recompute_every": 4}),
        ("--recompute-granularity selective --recompute-modules core_attn moe_act", "training",
         {"recompute": "selective"}),
        (f"{MIXTURE} --recompute-granularity selective --recompute-modules moe_act layernorm mla_up_proj", "training",
         {"recompute": ["moe_act", "layernorm"]}),
        (f"{MIXTURE} --moe-layer-recompute", "training", {"recompute": ["moe"]}),
        (MIXTURE, "software", {"probabilities": "activation"}),
        ("--use-precision-aware-optimizer", "training", {"memory_recipe": "aware-16"}),
        (f"{AWARE} --main-grads-dtype bf16", "training", {"memory_recipe": "aware-10"}),
        (AWARE, "training", {"memory_recipe": "aware-12"}),
        (f"{AWARE} --fp8-format e4m3", "training", {"memory_recipe": "fp8-aware-14"}),
        ("--fp8-format e4m3 --grad-reduce-in-bf16", "training", {"memory_recipe": "fp8-18"}),
        ("--fp8-format e4m3 --fp8-param-gather --grad-reduce-in-bf16", "training", {"memory_recipe": "fp8-params-16"}),
        (f"{AWARE} --fp8-format e4m3 --fp8-param-gather", "training", {"memory_recipe": "fp8-params-14"}),
        ("--activation-func-fp8-input-store", "memory", {"activation_input": "fp8"}),
        ("--fine-grained-activation-offloading --offload-modules core_attn moe_act", "memory",
         {"offload": {"modules": ["core_attn"]}}),
        ("--cpu-offloading --cpu-offloading-num-layers 3", "memory", {"offload": {"activations": 0.25}}),
        ("--activations-checkpoint-method uniform", "training", {"recompute": "full"}),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 1.0 --use-precision-aware-optimizer", "memory",
         {"offload": HOST_UPDATE}),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0", "model", {"layers": 12}),
        ('--step-batch-size-schedule "0:24 200B:768 1.5T:1152"', "training", {"global_batch": 1152}),
        ("--step-batch-size-schedule 0:96", "training", {"global_batch": 96}),
        ("--swap-optimizer", "memory", {"offload": {"optimizer": "stream"}}),
        ("--num-key-value-heads 2", "model", {"kv_heads": 2}),
        ("--normalization rmsnorm --position-embedding-type alibi", "model", {"norm": "rmsnorm", "position": "none"}),
        ("--deepspeed --zero-stage 0", "parallel", {"zero": 1}),
        ("--deepspeed --num-experts 8 --moe-expert-parallel-size 4", "model",
         {"moe": {"experts": 8, "top_k": 1, "expert_ffn_hidden_size": 2048, "every": 2}}),
        ("--pipeline-model-parallel-layout Et*2\\\\\\|\\\\\\(tt\\\\\\|\\\\\\)*4t\\\\\\|t,mL --mtp-num-layers 1",
         "pipeline",
         {"layout": "Ett|(tt|)*4t|tmL"}),
        ("--swiglu --multiple-of 256 --hidden-dim-multiplier 1.3", "model", {"ffn_hidden_size": 1792}),
        ("--swiglu --multiple-of 256", "model", {"ffn_hidden_size": 1536}),
        ("--fp8-hybrid --fp8-amax-history-len 32", "training", {"precision": "fp8-mixed"}),
        ("--ds-sequence-parallel-size 4 --use-flash-attn-v2", "parallel", {"cp": 4, "cp_comm": "all_to_all"}),
        ("--hybrid-layer-pattern *-*E*E*E*E*E/*E --spec megatron.core.models.hybrid.hybrid_layer_specs "
         "hybrid_stack_spec --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 256 --disable-bias-linear",
         "model",
         {"layers": 6, "mtp_layers": 1, "mtp_pattern": "*E",
          "moe": {"experts": 8, "top_k": 2, "expert_ffn_hidden_size": 256, "first_dense_layers": 1}}),
        ("--hybrid-override-pattern *-*-*-*-*-*-", "model", {"layers": 6, "mtp_layers": None, "mtp_pattern": None}),
        ("--hybrid-override-pattern *-*-*-*-*-*-/*/* --mtp-num-layers 2", "model",
         {"layers": 12, "pattern": "*-*-*-*-*-*-", "mtp_layers": 2, "mtp_pattern": "*"}),
        ("--hybrid-override-pattern *-M-*-*-*-*-/*- --use-megatron-fsdp --ckpt-format fsdp_dtensor "
         "--data-parallel-sharding-strategy optim_grads_params", "model",
         {"pattern": "*-M-*-*-*-*-", "mtp_layers": None, "mtp_pattern": None}),
        ("--data-impl mmap", "training", {"attention": "unfused"}),
        ("--num-experts 8 --moe-shared-expert-overlap", "overlap", {"experts": None}),
        ("--deepspeed --use-flash-attn-v2", "training", {"attention": "fused"}),
        ("--deepspeed --use-flash-attn-v3", "training", {"attention": "fused"}),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 62", "training",
         {"recompute": "full", "recompute_every": None}),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 0", "training",
         {"recompute": None}),
        ("--num-experts 0 --mtp-num-layers 0", "model", {"moe": None, "mtp_layers": None}),
        ("--optimizer fusedadamw", "training", {"optimizer": None}),
        ("--cuda-graph-impl none --cuda-graph-scope full --use-mup --mup-base-hidden-size 4", "model", {"layers": 12}),
        ("--dsa-indexer-topk 4 --attention-residual-type full --engram-seed 0", "model", {"layers": 12}),
        ("--mtp-num-layers 1 --mtp-loss-scaling-factor 0.1", "model", {"layers": 12, "mtp_layers": 1}),
        ("--mtp-num-layers 1 --use-torch-fsdp2", "model", {"mtp_layers": None}),
        ("--megatron-fsdp-grad-comm-dtype bf16", "training", {"memory_recipe": "mixed-16"}),
        ("--pipeline-model-parallel-size 5", "pipeline", {"layers_per_stage": "auto"}),
        ("--pipeline-model-parallel-size 7 --account-for-embedding-in-pipeline-split "
         "--account-for-loss-in-pipeline-split", "pipeline", {"layers_per_stage": [1, 2, 2, 2, 2, 2, 1]}),
    ],
)  # fmt: skip
def test_options_of_published_scripts(more: str, section: str, expected: dict[str, Any]) -> None:
    stages = " --pipeline-model-parallel-size 7" if "layout" in more else ""
    sizes = SIZES.replace("--global-batch-size 48", "") if "batch-size" in more else SIZES
    found = megatron(f"{sizes} {more}{stages}", available=32)
    assert {key: found.document[section].get(key) for key in expected} == expected
    assert not found.unknown


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--experimental-attention-variant dsa --dsa-indexer-topk 4", "with an indexer"),
        ("--attention-residuals --attention-residual-type full", "outputs of earlier layers is not modelled"),
        ("--step-batch-size-schedule 0:24,200B", "'0:24,200B' is not a schedule; write THRESHOLD:BATCH"),
        ("--step-batch-size-schedule 0:24,200B:96", "ends with 96, but global-batch-size is 48; keep one"),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", "fraction: 0.5 is not modelled"),
        (
            "--cpu-offloading --cpu-offloading-num-layers 12",
            "is 12 of 12 layers, but the last one stays on the GPU; use at most 11",
        ),
        ("--cpu-offloading --cpu-offloading-num-layers 2 --recompute-activations", "only without recomputation"),
        ("--cpu-offloading --cpu-offloading-num-layers 2 --pipeline-model-parallel-size 2", "without a pipeline"),
        ("--engram-layer-ids 1 --engram-seed 0", "embedding tables inside layers"),
        (
            "--mtp-num-layers 2 --pipeline-model-parallel-size 7 --pipeline-model-parallel-layout Et*2|(tt|)*4ttm|mL",
            "slices 5 and 6 have 'm' .*; put all in one slice",
        ),
        (
            "--pipeline-model-parallel-size 7 --pipeline-model-parallel-layout Et*2|(tt|)*5mL",
            "has 1 x 'm' .*, but the model has none",
        ),
        (
            "--pipeline-model-parallel-size 4 --enable-zero-bubble --num-layers-per-virtual-pipeline-stage 1",
            "--num-layers-per-virtual-pipeline-stage: requests 3 model slices per stage, but zb-h1 has 1",
        ),
        (
            "--deepspeed --num-experts 64 64 128",
            "num-experts: different numbers per layer are not modelled",
        ),
    ],
)
def test_layers_of_another_kind_are_refused(more: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        megatron(f"{SIZES} {more}", available=32)


@pytest.mark.parametrize(
    ("more", "kv_heads", "told"),
    [
        ("--num-query-groups 2", 8, True),
        ("--num-query-groups 2 --group-query-attention", 2, False),
        ("--num-query-groups 8", 8, False),
    ],
)
def test_groups_of_queries_without_the_switch_that_they_count_with(more: str, kv_heads: int, told: bool) -> None:
    found = megatron(f"{SIZES} {more}", available=8)
    assert found.document["model"]["kv_heads"] == kv_heads
    assert (
        any(
            "--num-query-groups is ignored without --group-query-attention: each head has separate" in sentence
            for sentence in found.assumed
        )
        is told
    )


def test_comments_behind_backslashes_as_people_write_them() -> None:
    text = SIZES.replace(" --", " \\   # a comment\n --")
    assert megatron(text, available=8).document == megatron(SIZES, available=8).document


def test_of_an_option_that_a_file_gives_twice_the_last_counts() -> None:
    rows = "".join(
        f"  {name}: {value}\n" for name, value in zip(*[iter(SIZES.replace("--bf16", "").split())] * 2, strict=True)
    )
    found = megatron(
        f"MODEL_ARGS:\n{rows}  --attention-backend: fused\n  --num-layers: 3\n  --attention-backend: local\n"
    )
    assert found.document["model"]["layers"] == 3
    assert found.document["training"]["attention"] == "unfused"
    assert "--attention-backend is given more than once; the last value is used" in found.assumed
    several = megatron(f"MODEL_ARGS:\n{rows}MODEL_ARGS_2:\n  --num-layers: 3\n")
    assert several.document["model"]["layers"] == 12


def test_the_fewest_gpus_where_those_that_are_launched_do_not_hold_the_layout() -> None:
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} --tensor-model-parallel-size 8 "
    found = megatron(f"{text} --pipeline-model-parallel-size 4")
    assert found.document["gpus"] == 32
    assert any(sentence.startswith("32 GPUs, the fewest for tp 8 x pp 4: the 8 that") for sentence in found.assumed)
    assert megatron(text).document["gpus"] == 8
    other = megatron(f"{text.replace('_node 8', '_node 9')} --pipeline-model-parallel-size 1")
    assert any("the 9 that the script starts are not a multiple of it" in sentence for sentence in other.assumed)


def test_one_machine_where_the_cluster_does_not_hold_the_batch() -> None:
    text = f"{SIZES} --tensor-model-parallel-size 2".replace("--global-batch-size 64", "--global-batch-size 20")
    assert megatron(text, available=64, gpus_per_node=8).document["gpus"] == 8
    assert megatron(f"{text} {HYBRID} 4", available=64).document["gpus"] == 8
    assert megatron(text, available=64).document["gpus"] == 2
    cut = f"{SIZES} {MIXTURE} --expert-tensor-parallel-size 16".replace("batch-size 64", "batch-size 16")
    assert megatron(cut, available=64, gpus_per_node=8).document["gpus"] == 16


@pytest.mark.parametrize(("source", "size"), [("llama3/70B.sh", 128256), ("llama2_70b.sh", 32000), ("x.sh", 32000)])
def test_the_name_of_the_file_tells_models_of_the_same_sizes_apart(source: str, size: int) -> None:
    large = "--num-layers 80 --hidden-size 8192 --num-attention-heads 64 --ffn-hidden-size 28672 --swiglu"
    rest = "--micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --tokenizer-type HuggingFaceTokenizer --bf16"
    text = f"{large} {rest} --tokenizer-model $T"
    found = scenario_from_arguments(text, cluster=CLUSTER, gpus=8, source=source)
    assert found.document["model"]["vocab_size"] == size


@pytest.mark.parametrize(
    ("tokenizer", "size"),
    [
        ("HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-70B", 128256),
        (
            "HuggingFaceTokenizer --tokenizer-model $T --num-layers 48 --hidden-size 2048 --num-attention-heads 32 "
            "--swiglu true --num-experts 128",
            151936,
        ),
        (  # of the width, the number of experts and what is inside an MLP each tells two models of one size apart
            "HuggingFaceTokenizer --tokenizer-model $T --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
            "--swiglu true --ffn-hidden-size 14336",
            128256,
        ),
        (
            "HuggingFaceTokenizer --tokenizer-model $T --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
            "--swiglu true --ffn-hidden-size 14336 --num-experts 8",
            32000,
        ),
        (
            "HuggingFaceTokenizer --tokenizer-model $T --num-layers 28 --hidden-size 3584 --num-attention-heads 28 "
            "--swiglu true --ffn-hidden-size 18944",
            152064,
        ),
        (
            "HuggingFaceTokenizer --tokenizer-model $T --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
            "--swiglu true --ffn-hidden-size 12000",
            128000,
        ),
        ("SentencePieceTokenizer --tokenizer-model t.model", 32000),
        ("MixtralTokenizer --tokenizer-model xai-org/grok-1", 131072),
        ("DeepSeekV3Tokenizer --tokenizer-model moonshotai/Kimi-K2-Instruct", 163840),
        ("HuggingFaceTokenizer --tokenizer-model bigcode/starcoder2-tokenizer", 49152),
        ("HuggingFaceTokenizer --tokenizer-model Llama-3-8b-128k", 128256),
        (
            "HuggingFaceTokenizer --tokenizer-model $T --num-layers 40 --hidden-size 5120 --num-attention-heads 40",
            128000,
        ),
    ],
)
def test_vocabularies_that_are_in_a_tokenizer(tokenizer: str, size: int) -> None:
    sizes = " ".join(word for word in SIZES.replace("--vocab-size 5000", "").split())
    given = dict(pair.split(" ", 1) for pair in sizes[2:].split(" --") if " " in pair)
    own = dict(pair.split(" ", 1) for pair in f"tokenizer-type {tokenizer}".split(" --"))
    found = megatron(" ".join(f"--{name} {value}" for name, value in {**given, **own}.items()) + " --bf16", gpus=8)
    assert found.document["model"]["vocab_size"] == size
    assert any(f"{size} tokens" in sentence for sentence in found.assumed)


def test_fp8_says_that_the_rest_is_in_bf16() -> None:
    found = megatron(f"{SIZES} --fp8-format hybrid".replace("--bf16 ", ""), available=32)
    assert found.document["training"]["precision"] == "fp8-mixed"
    assert any("bf16 in all but the layers' matmuls, although" in sentence for sentence in found.assumed)


def test_parameters_sharded_within_one_of_several_instances() -> None:
    found = megatron(f"{SIZES} {HYBRID} 4", gpus=16)
    assert (found.document["parallel"]["zero"], found.document["fsdp"]["shard_group"]) == (3, 4)
    odd = megatron(f"{SIZES} {HYBRID} 3", gpus=16)
    assert "shard_group" not in odd.document.get("fsdp", {})
    assert any("3 optimizer instances do not divide dp x cp = 16" in sentence for sentence in odd.assumed)


def test_experts_are_whole_where_the_gpus_hold_them_in_no_other_way() -> None:
    layout = "--tensor-model-parallel-size 8 --sequence-parallel --expert-model-parallel-size 8"
    found = megatron(f"{SIZES} {MIXTURE} {layout}", gpus=8)
    assert found.document["parallel"]["etp"] == 1
    assert any("8 GPUs fit ep 8 in no other way" in sentence for sentence in found.assumed)
    assert "etp" not in megatron(f"{SIZES} {MIXTURE} {layout}", gpus=64).document["parallel"]


def test_options_of_what_is_switched_off_say_nothing() -> None:
    idle = "--moe-router-dtype fp32 --fp8-amax-history-len 3 --optimizer-offload-fraction 1 --mtp-x 3"
    found = megatron(f"{SIZES} {idle}", gpus=8)
    assert found.document == megatron(SIZES, gpus=8).document
    assert not found.unknown
    assert not found.assumed


# --- Python -----------------------------------------------------------------------------------------------------------


def torchtitan(function: str, **more: Any) -> ImportResult:
    return scenario_from_torchtitan(
        read("registry.txt"), cluster=CLUSTER, source="models/x.py", function=function, **more
    )  # fmt: skip


def test_a_registry_of_torchtitan() -> None:
    document = scenario_from_torchtitan(
        read("registry.txt"), cluster=CLUSTER, source="config_registry.py", function="llama3_8b", available=32
    ).document  # fmt: skip
    assert (document["gpus"], document["parallel"]["tp"], document["parallel"]["zero"]) == (32, 4, 3)
    assert document["model"] == {"preset": "llama3-8b", "sequence_length": 4096}
    found = scenario_from_torchtitan(
        read("registry.txt"), cluster=CLUSTER, source="config_registry.py", function="qwen3_14b", gpus=16
    )
    scenario = load_text(found.to_yaml_text("x"))
    assert (scenario.model.layers, scenario.pipeline.chunks, scenario.overlap.tensor_pieces) == (40, 2, 4)
    assert (scenario.training.precision, scenario.training.recompute) == ("fp8-mixed", "operators")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("", "has several configurations; name one after a colon"),
        ("llama3_70b", "has no function 'llama3_70b'"),
        ("picture_model", "uses FluxTrainer, which does not train a text decoder"),
    ],
)
def test_a_registry_that_says_too_little(function: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        scenario_from_torchtitan(read("registry.txt"), cluster=CLUSTER, source="r.py", function=function, gpus=8)


def bridge(function: str, **more: Any) -> ImportResult:
    return scenario_from_bridge(read("recipes.txt"), cluster=CLUSTER, source="r.py", function=function, **more)


def test_recipes_of_megatron_bridge() -> None:
    found = bridge("llama3_8b_pretrain_config", available=32)
    scenario = load_text(found.to_yaml_text("x"))
    assert parameters(scenario.model).total == 8_030_261_248
    assert (scenario.parallel.tp, scenario.training.global_batch, scenario.overlap.param_gather) == (2, 512, True)
    assert bridge("llama3_8b_sft_config", gpus=32).document["training"]["recompute"] == "full"
    assert bridge("other_pretrain_config", gpus=32).document["parallel"]["pp"] == 4
    with pytest.raises(
        InputError,
        match=r"the model of unknown_pretrain_config \(MambaProvider\) cannot be imported: it has Mamba-2 layers, but",
    ):
        bridge("unknown_pretrain_config", gpus=8)
    with pytest.raises(InputError, match="has several recipes; name one after a colon"):
        bridge("")


def test_muon_and_layouts_of_functions_in_recipes() -> None:
    found = bridge("muon_pretrain_config", gpus=8)
    assert (found.document["training"]["optimizer"], found.document["parallel"]["zero"]) == ("muon", 1)
    assert found.document["pipeline"]["layout"] == "Et*8|t*9|t*9|t*6L"
    assert (found.document["training"]["memory_recipe"], found.unknown) == ("mixed-16", ())
    odd = bridge("odd_pretrain_config", gpus=8)
    assert any("pipeline_model_parallel_layout" in each for each in odd.unknown)
    assert "layout" not in odd.document["pipeline"]


def test_python_is_read_and_not_run(tmp_path: Path) -> None:
    text = f"import os\nX = open('{tmp_path}/x', 'w')\ndef f():\n    os.system('touch {tmp_path}/y')\n    return X"
    RecipeFile(text, "x.py").read_function("f")
    assert not list(tmp_path.iterdir())
    grows = "def f():\n    y = [7] * 9_999\n    return [[a for a in y] for b in y]\n"
    for bad in ("def f(:", "def f():\n    return f()\n", "(" * 500, grows):
        with pytest.raises(InputError):
            RecipeFile(bad, "x.py").read_function("f")


@pytest.mark.parametrize(
    "body",
    [
        "x = 7\n" + "x = x * x\n" * 40,
        "x = [7]\n" + "x = x + x\n" * 40,
        "x = [7] * 99_999 * 99_999",
        "x = '%99999999999d' % 7",
        "x = [['decoder'] * 99_999] * 99_999",
    ],
)
def test_python_that_grows_is_not_worked_out(body: str) -> None:
    lines = ['cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-8B")', *body.splitlines()]
    lines = ["cfg = _pretrain_common()", *lines, "cfg.model.pipeline_model_parallel_layout = x", "return cfg"]
    text = "def own_config():\n" + "".join(f"    {line}\n" for line in lines)
    found = scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="own_config", gpus=8)
    assert [each.partition(",")[0] for each in found.unknown] == ["model.pipeline_model_parallel_layout"]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("qwen3-0.6b", 596_049_920), ("qwen3-14b", 14_768_307_200), ("qwen3-32b", 32_762_123_264),
        ("qwen2-32b", 32_763_876_352), ("llama3-1b", 1_235_814_400), ("llama3-3b", 3_212_749_824),
        ("kimi-k2", 1_026_408_232_448), ("moonlight-16b", 15_960_110_208),
        ("olmoe-7b", 6_919_161_856), ("gemma-2-2b", 2_614_341_888), ("gemma-2-9b", 9_241_705_984),
        ("gemma-3-1b", 999_885_952), ("mistral-7b", 7_241_732_096), ("mistral-nemo-12b", 12_247_782_400),
        ("starcoder2-3b", 3_030_371_328), ("starcoder2-7b", 7_173_923_840), ("starcoder2-15b", 15_957_889_024),
        ("phi3-mini", 3_821_079_552), ("baichuan2-7b", 7_505_973_248), ("chatglm3-6b", 6_243_584_000),
        ("nemotron-nano-9b-v2", 8_888_227_328), ("nemotron-nano-12b-v2", 12_310_001_152),
        ("gemma-2-27b", 27_227_128_320), ("gemma-2b", 2_506_172_416), ("gemma-7b", 8_537_680_896),
    ],
)  # fmt: skip
def test_parameters_of_models_by_name(name: str, count: int) -> None:
    """The "model size" of each model's page (its safetensors index)."""
    assert parameters(Model(**published_model_section(name))).total == count


def test_every_published_model_is_one() -> None:
    for name in published_model_names():
        section = published_model_section(name)
        assert "preset" in section or Model(**section).name == name


# --- NeMo and DeepSpeed -----------------------------------------------------------------------------------------------

NEMO = """
run: {name: x, results_dir: "${base_results_dir}/${.name}"}
trainer: {num_nodes: 2, devices: 8, precision: bf16-mixed, max_steps: 10}
model:
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 2
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 8
  hidden_size: 1024
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 16
  num_query_groups: 4
  kv_channels: null
  normalization: rmsnorm
  bias: false
  activation: fast-swiglu
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  tokenizer: {library: sentencepiece, model: x.model}
  activations_checkpoint_granularity: full
  activations_checkpoint_method: uniform
  activations_checkpoint_num_layers: 1
  sequence_parallel: true
  fp8: true
  optim: {name: distributed_fused_adam, lr: 2e-4, overlap_grad_sync: true}
  data:
    data_prefix: ???
"""


def test_a_configuration_of_nemo() -> None:
    more = "model:\n  torch_distributed_checkpoint: true\n  qkv_bias: true\n  override_vocab_size: 5120\n"
    text = NEMO.replace("model:\n", more, 1)
    found = scenario_from_nemo(text, cluster=CLUSTER, source="nemo.yaml")
    scenario = load_text(found.to_yaml_text("x"))
    assert (scenario.gpus, scenario.parallel.tp, scenario.parallel.zero) == (16, 2, 1)
    assert (scenario.model.ffn_hidden_size, scenario.model.kv_heads, scenario.model.bias) == (4096, 4, "qkv")
    assert scenario.model.vocab_size == 5120
    assert (scenario.training.precision, scenario.training.recompute) == ("fp8-mixed", "full")
    assert (scenario.overlap.grad_reduce, scenario.overlap.param_gather) == (True, False)
    assert not found.unknown
    with pytest.raises(InputError, match=r"trainer.precision: '8' is unknown; known: 16"):
        scenario_from_nemo(NEMO.replace("bf16-mixed", '"8"'), cluster=CLUSTER)


def test_buckets_of_apex_are_told() -> None:
    text = NEMO.replace("lr: 2e-4", "bucket_cap_mb: 200")
    found = scenario_from_nemo(text, cluster=CLUSTER, source="nemo.yaml")
    assert "gradient buckets have Megatron-LM's size, although Apex" in " ".join(found.assumed)
    core = scenario_from_nemo(text.replace("distributed_fused_adam", "mcore_distributed_optim"), cluster=CLUSTER)
    assert not any("bucket" in sentence for sentence in core.assumed)


def test_what_nemo_does_where_nothing_is_said() -> None:
    text = NEMO.replace(", overlap_grad_sync: true", "")
    found = scenario_from_nemo(text, cluster=CLUSTER, source="n.yaml").document
    assert (found["overlap"]["grad_reduce"], found["training"]["attention"]) == (True, "fused")
    for said in ("  mcore_gpt: false\n", ""):  # off where not said
        changed = text.replace("  bias: false\n", f"  bias: false\n{said}  transformer_engine: false\n")
        old = scenario_from_nemo(changed, cluster=CLUSTER, source="n.yaml").document
        assert (old["training"]["attention"], old["software"]["rope"]) == ("unfused", "steps")


@pytest.mark.parametrize(
    ("changes", "overlapped", "accumulate"),
    [
        ({}, True, "separate"),
        ({"sequence_parallel": "true"}, False, "separate"),
        ({"pipeline_model_parallel_size": "2"}, False, None),
        ({"megatron_amp_O2": "false"}, False, "separate"),
        ({"optim": "{name: mcore_distributed_optim}"}, False, None),
    ],
)
def test_gradients_of_a_plain_optimizer_of_nemo_1(
    changes: dict[str, str], overlapped: bool, accumulate: str | None
) -> None:
    fields = {"sequence_parallel": "false", "megatron_amp_O2": "true", "optim": "{name: fused_adam, lr: 2e-4}"}
    fields |= {"gradient_accumulation_fusion": "true", "fp8": "false"} | changes
    lines = [line for line in NEMO.splitlines() if line.strip().partition(":")[0] not in fields]
    place = lines.index("model:") + 1
    text = "\n".join([*lines[:place], *(f"  {name}: {value}" for name, value in fields.items()), *lines[place:]])
    found = scenario_from_nemo(text, cluster=CLUSTER, source="n.yaml")
    assert found.document["overlap"]["grad_reduce"] is overlapped
    assert found.document.get("software", {}).get("accumulate") == accumulate
    assert any("NeMo keeps them in 32" in each for each in found.assumed) is ("megatron_amp_O2" in changes)
    assert not found.unknown


def test_what_forks_and_distillation_of_nemo_say() -> None:
    text = NEMO.replace("bias: false", "has_bias: false").replace("num_query_groups", "num_kv_heads")
    text = text.replace("devices: 8", "devices: 4, accelerator: tpu").replace("distributed_fused_adam", "adamw")
    text = text.replace("model:\n", "model:\n  wrap_with_zero: true\n  kd_teacher_restore_from_path: null\n", 1)
    found = scenario_from_nemo(text, cluster=CLUSTER, source="n.yaml", gpus_per_node=8)
    assert (found.document["model"]["bias"], found.document["model"]["kv_heads"]) == (False, 4)
    assert found.document["parallel"]["zero"] == 1
    assert not found.unknown
    said = " ".join(found.assumed)
    assert "the teacher's forward pass of distillation is not simulated" in said
    assert "the GPUs of the cluster are used, although trainer.accelerator is tpu" in said
    assert "nodes of 8 GPUs are filled, although the script starts 4 processes on each of 2 nodes" in said


def test_what_the_search_of_nemo_starts_from_is_no_training() -> None:
    text = "train_settings:\n  model_size: 7b\n  model: {tensor_parallel_size: 2, micro_batch_size: 2}\n"
    with pytest.raises(InputError, match="train_settings are the input of NeMo's configuration search"):
        scenario_from_nemo(text, cluster=CLUSTER, source="n.yaml")


def test_a_model_of_nemo_by_its_sizes_has_the_vocabulary_that_it_is_published_with() -> None:
    text = NEMO.replace("fast-swiglu", "geglu")
    for field, size in {
        "num_layers": "8",
        "hidden_size": "1024",
        "num_query_groups": "4",
        "kv_channels": "null",
    }.items():
        gemma = {"num_layers": 28, "hidden_size": 3072, "num_query_groups": 16, "kv_channels": 256}[field]
        text = text.replace(f"  {field}: {size}\n", f"  {field}: {gemma}\n")
    text = text.replace("multiply:4", "multiply:8")
    assert scenario_from_nemo(text, cluster=CLUSTER).document["model"]["vocab_size"] == 256_000
    text = text.replace("multiply:8", "multiply:4")  # no model that is published
    assert scenario_from_nemo(text, cluster=CLUSTER).document["model"]["vocab_size"] == 32_000
    odd = scenario_from_nemo(text.replace("library: sentencepiece", "library: [a, b]"), cluster=CLUSTER)
    assert odd.document["model"]["vocab_size"] == 128_000


def test_shards_and_gated_activations_of_nemo() -> None:
    shards = "model:\n  fsdp: true\n  fsdp_sharding_strategy: grad\n  fsdp_grad_reduce_dtype: bf16\n"
    text = NEMO.replace("fast-swiglu", "fast-geglu").replace("fp8: true", "fp8: false").replace("model:\n", shards, 1)
    scenario = load_text(scenario_from_nemo(text, cluster=CLUSTER).to_yaml_text("x"))
    assert (scenario.model.gated_mlp, scenario.parallel.zero, scenario.training.memory_recipe) == (True, 2, "mixed-16")
    assert (scenario.overlap.grad_reduce, scenario.overlap.param_gather) == (True, True)
    biased = scenario_from_nemo(
        NEMO.replace("position_embedding_type: rope", "position_embedding_type: ALiBi"), cluster=CLUSTER
    )
    assert biased.document["model"]["position"] == "none"
    off = NEMO.replace("model:\n", "model:\n  fsdp: false\n  fsdp_sharding_strategy: full\n  sharp: false\n", 1)
    found = scenario_from_nemo(off, cluster=CLUSTER)
    assert found.document["parallel"]["zero"] == 1
    assert not found.unknown
    narrow = scenario_from_nemo(
        off.replace("lr: 2e-4", "grad_sync_dtype: bf16").replace("fp8: true", ""), cluster=CLUSTER
    )
    assert narrow.document["training"]["memory_recipe"] == "mixed-16"


def test_gradients_of_deepspeed() -> None:
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    for name, recipe in (("bf16", "mixed-16"), ("fp32", "mixed-18")):
        kept = config | {"data_types": {"grad_accum_dtype": name}}
        assert deepspeed(kept).document["training"]["memory_recipe"] == recipe
        sizes = "--num-layers 2 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 1000"
        text = (
            f"#!/bin/bash\ncat <<EOT > ds.json\n{json.dumps(kept)}\nEOT\n"
            f"deepspeed pretrain_gpt.py {sizes} --micro-batch-size 1 --deepspeed --deepspeed_config ds.json\n"
        )
        found = scenario_from_arguments(text, cluster={"topology": "dgx_h100", "nodes": 1})
        assert found.document["training"]["memory_recipe"] == recipe


def deepspeed(config: dict[str, Any], gpus: int = 8) -> ImportResult:
    return scenario_from_deepspeed(
        json.dumps(config), cluster={"topology": "dgx_h100", "nodes": 1}, model={"preset": "llama3-8b"}, gpus=gpus,
        source="ds.json",
    )  # fmt: skip


def test_a_configuration_of_deepspeed() -> None:
    zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8}
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "bf16": {"enabled": True}}
    found = deepspeed({**config, "zero_optimization": zero, "steps_per_print": 9})
    scenario = load_text(found.to_yaml_text("x"))
    assert (scenario.training.global_batch, scenario.training.micro_batch, scenario.parallel.zero) == (64, 2, 2)
    assert (scenario.overlap.grad_reduce, scenario.overlap.bucket_size) == (True, 1e9)
    assert found.no_effect == ("steps_per_print",)
    offloaded = deepspeed(
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "train_batch_size": 8}
    )
    offload = load_text(offloaded.to_yaml_text("x")).memory.offload
    assert (offload.optimizer, offload.host_update) == ("host", 109e9)
    assert offload.host_update == pytest.approx(10e9 * recipe_named("mixed-16").update_traffic / 2.57, rel=1e-3)
    assert offloaded.document["training"]["precision"] == "fp32"
    auto = deepspeed({"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}})
    assert auto.document["training"] == {
        "global_batch": 8, "micro_batch": 1, "precision": "bf16-mixed", "memory_recipe": "mixed-16"
    }  # fmt: skip
    near = deepspeed({**config, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4}}).document["fsdp"]
    assert near == {"reshard_after_forward": 4}
    second = deepspeed({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}})
    assert any("offload_param has no effect with ZeRO 2" in sentence for sentence in second.assumed)
    bf16 = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}
    for more, zero, recipe in (({}, 1, "mixed-18"), ({"data_types": {"grad_accum_dtype": "bf16"}}, 0, "mixed-16")):
        document = deepspeed(bf16 | more).document
        assert (document["parallel"]["zero"], document["training"]["memory_recipe"]) == (zero, recipe)
    alone = deepspeed({"fp16": {"enabled": "auto"}})
    assert alone.document["training"]["precision"] == "fp16-mixed"
    assert any("fp16.enabled is auto" in sentence for sentence in alone.assumed)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"train_batch_size": 12}, r"train_batch_size: 12 must equal micro batch 1 x accumulation 1 x 8 GPUs"),
        ({"optimizer": {"type": "OneBitAdam"}}, "'onebitadam' is not modelled; use Adam or AdamW"),
        ({"zero_optimization": {"stage": 4}}, "4 is not a whole number from 0 to 3"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "are not modelled"),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}},
            "ratio: 0.3 is not",
        ),
        ({"sparse_attention": {"mode": "fixed"}}, "sparse attention is not modelled"),
    ],
)
def test_what_is_not_modelled_of_deepspeed(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        deepspeed(config)


# --- logs and config.json ---------------------------------------------------------------------------------------------


def log(*times: float, batch: int = 64) -> str:
    line = " [x] iteration {:8d}/ 100 | x: 1 | elapsed time per iteration (ms): {} | global batch size: {} |\n"
    return "noise\n" + "".join(line.format(number, time, batch) for number, time in enumerate(times, 1))


def test_the_command_takes_a_script_its_values_and_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text(log(*[1500.0] * 30, batch=128))
    out = tmp_path / "job.yaml"
    command = ["import", "megatron", str(FOLDER / "arrays.sh"), "--cluster", "dgx_h100", "--arg", "NUM_NODES=4",
               "--log", str(tmp_path / "train.log"), "-o", str(out)]  # fmt: skip
    assert main(command) == 0
    scenario = load(out)
    assert scenario.gpus == 32
    assert scenario.measured is not None
    assert scenario.measured.step_time == 1.5
    assert main([*command, "--arg", "oops"]) == 2
    assert "is not NAME=VALUE" in capsys.readouterr().err


def test_a_config_json_becomes_a_whole_scenario_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    }  # fmt: skip
    path, out = tmp_path / "config.json", tmp_path / "job.yaml"
    path.write_text(json.dumps(config))
    command = ["import", "hugging-face", str(path), "--cluster", "dgx_h100", "-o", str(out)]
    assert main([*command, "--gpus", "64"]) == 0
    scenario = load(out)
    assert (scenario.gpus, scenario.model.sequence_length, scenario.training.global_batch) == (64, 8192, 512)
    assert "# Assumed: a layout that fits with 10% of memory left free" in out.read_text()
    assert "# Assumed: a batch of 512 sequences, about 4.0Mi tokens" in out.read_text()
    assert (
        main([*command, "--gpus", "64", "--set", "model.sequence_length=4096", "--set", "training.micro_batch=2"]) == 0
    )
    assert "(--sequence-length changes it)" not in out.read_text()
    assert "before --set changed model.sequence_length, training.micro_batch" in out.read_text()
    assert "# Assumed: a batch of 512 sequences\n" in out.read_text()
    assert main([*command, "--gpus", "64", "--set", "training.global_batch=128"]) == 0
    assert "(--sequence-length changes it)" in out.read_text()
    assert "a batch of" not in out.read_text()
    assert main(["import", "hugging-face", str(path), "--set", "model.layers=2"]) == 2
    assert "add --cluster to get a scenario" in capsys.readouterr().err
    deepspeed = tmp_path / "ds.json"
    deepspeed.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
    )
    given = ["import", "deepspeed", str(deepspeed), "--cluster", "dgx_h100", "--gpus", "8", "-o", str(out)]
    assert main([*given, "--model", str(path), "--sequence-length", "4096"]) == 0
    assert (load(out).parallel.zero, load(out).model.sequence_length) == (3, 4096)
    assert "sequence-length changes" not in out.read_text()
    assert main([*given, "--model", str(path)]) == 0
    assert load(out).model.sequence_length == 8192
    assert "# Assumed: sequences of 8192 tokens (--sequence-length changes it)" in out.read_text()
    capsys.readouterr()
    assert main(given) == 2
    assert "give both, as in --model llama3-8b (or a config.json) and --sequence-length" in capsys.readouterr().err
