"""YAML of frameworks that start Megatron-LM becomes scenarios: FlagScale's sections and Primus' overrides."""

from collections.abc import Callable
from pathlib import Path

import pytest

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.importers.import_result import ImportResult
from simcluster.importers.megatron import scenario_from_arguments
from simcluster.importers.torchtitan import scenario_from_torchtitan
from simcluster.scenario.scenario import load, load_text

FLAGSCALE = """
system:
  num_workers: 16
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  sequence_parallel: true
  use_distributed_optimizer: true
  # overlap_grad_reduce: true
  disable_bias_linear: True
  finetune: false
  precision:
    bf16: true
    accumulate_allreduce_grads_in_fp32: true
  logging:
    wandb_project: ${experiment.exp_name}

model:
  profile-step-start: 2
  transformer_impl: transformer_engine
  num_layers: 8
  hidden_size: 512
  ffn_hidden_size: 1024
  num_attention_heads: 8
  seq_length: 1024
  swiglu: true
  normalization: RMSNorm
  position_embedding_type: rope
  untie_embeddings_and_output_weights: true
  attention_dropout: 0.0
  hidden_dropout: 0.0
  num_experts: 16
  moe_router_topk: 4
  moe_ffn_hidden_size: 256
  moe_layer_freq: "[0]+[1]*7"
  recompute_modules: [core_attn, moe_act]
  recompute_granularity: selective
  micro_batch_size: 1
  global_batch_size: 64
  optimizer:
    lr_scheduler: {lr: 3.0e-3, min_lr: 3.0e-4}

data:
  tokenizer: {tokenizer_type: QwenTokenizerFS, vocab_size: 5000, make_vocab_size_divisible_by: 64}
"""
LINEAR = 'num_layers: 8\n  linear_attention_freq: "([1]*3+[0])*2"\n  attn_res_block_size: 4\n  kda_chunk_size: 64'
EXPERIMENT = """
defaults:
  - _self_
  - train: 1b
experiment:
  runner: {no_shared_fs: false, nnodes: 2}
  envs: {CUDA_VISIBLE_DEVICES: "0,1,2,3"}
"""
PRIMUS = """
work_group: ${PRIMUS_TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${PRIMUS_MODEL:own_1B}.yaml
    overrides:
      stderr_sink_level: DEBUG
      micro_batch_size: ${PRIMUS_MBS:2}
      global_batch_size: 64
      seq_length: 2048
      expert_model_parallel_size: 8
      overlap_grad_reduce: true
      gradient_accumulation_fusion: false
      save: null
      enable_primus_turbo: true
      use_turbo_deepep: true
      turbo_deepep_num_cu: 64
"""
REPOSITORY = {
    "primus/configs/modules/megatron/pre_trainer.yaml": """
extends: [../module_base.yaml]
seq_length: 4096
micro_batch_size: 4
bf16: true
use_distributed_optimizer: true
""",
    # as in the repository: defaults of Megatron-LM, most of which say nothing of a model or are of other ones
    "primus/configs/modules/module_base.yaml": "img_h: 224\ngrpo_group_size: 2\nfp8_recipe: delayed\n",
    "primus/configs/models/megatron/own_base.yaml": """
extends: [../../modules/megatron/pre_trainer.yaml]
transformer_impl: transformer_engine
add_bias_linear: false
swiglu: false
swiglu: true
sequence_parallel: 1
multi_latent_attention: false
kv_lora_rank: 32
hidden_dropout: 0.0
attention_dropout: 0.0
normalization: RMSNorm
position_embedding_type: rope
untie_embeddings_and_output_weights: true
ffn_hidden_size: null
""",
    "primus/configs/models/megatron/own_1B.yaml": """
bases: [own_base.yaml]
tokenizer_type: DeepSeekV2Tokenizer
num_layers: 4
hidden_size: 512
ffn_hidden_size: 1024
num_attention_heads: 8
num_experts: 16
moe_router_topk: 2
moe_ffn_hidden_size: 256
""",
}


def imported(
    text: str, read_file: Callable[[str], str | None] = lambda name: None, gpus: int | None = None
) -> ImportResult:
    cluster = {"topology": "dgx_h100", "nodes": 8}
    return scenario_from_arguments(text, cluster=cluster, gpus=gpus, source="x.yaml", read_file=read_file)


def test_sections_of_flagscale() -> None:
    found = imported(FLAGSCALE, gpus=8)
    scenario = load_text(found.to_yaml_text("x"))
    assert (scenario.parallel.tp, scenario.parallel.pp, scenario.parallel.zero) == (2, 2, 1)
    assert (scenario.model.vocab_size, scenario.training.global_batch) == (5000, 64)
    assert found.document["model"]["moe"]["first_dense_layers"] == 1
    assert (
        found.document["training"]["recompute"] == ["core_attn", "moe_act"] or found.document["training"]["recompute"]
    )
    assert not found.document["overlap"]["grad_reduce"]
    assert not found.unknown


def test_an_experiment_of_flagscale_names_its_training(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "1b.yaml").write_text(FLAGSCALE)
    (tmp_path / "train.yaml").write_text(EXPERIMENT)
    out = tmp_path / "own.yaml"
    command = ["import", "megatron", str(tmp_path / "train.yaml"), "--cluster", "dgx_h100", "-o", str(out)]
    assert main(command) == 0
    assert (load(out).gpus, load(out).model.layers) == (8, 8)
    there = {"train/1b.yaml": (out.parent / "train" / "1b.yaml").read_text()}
    found = imported(EXPERIMENT.replace("envs: {", "envs: {CUDA_LAUNCH_BLOCKING: 1, "), there.get, gpus=8)
    assert any("default settings; CUDA_LAUNCH_BLOCKING=1 is ignored" in sentence for sentence in found.assumed)
    with pytest.raises(InputError, match=r"needs train/1b.yaml, which is neither next to it"):
        imported(EXPERIMENT)


def test_overrides_of_primus_over_the_files_of_its_repository() -> None:
    found = imported(PRIMUS, REPOSITORY.get, gpus=8)
    scenario = load_text(found.to_yaml_text("x"))
    assert (scenario.model.layers, scenario.model.sequence_length, scenario.model.bias) == (4, 2048, False)
    assert (scenario.training.micro_batch, scenario.training.global_batch, scenario.parallel.zero) == (2, 64, 1)
    assert (scenario.parallel.ep, found.document["parallel"]["expert_dispatch"]) == (8, {"kind": "deepep"})
    assert (scenario.model.mla, scenario.overlap.grad_reduce) == (None, True)
    assert found.document["software"]["accumulate"] == "separate"
    assert not found.unknown
    fields = (
        "clone_scatter_output_in_embedding",
        "bias_gelu_fusion",
        "tp_comm_split_ag",
        "tp_comm_bulk_dgrad",
        "pp_warmup",
    )
    said = "".join(f"      {name}: true\n" for name in fields)
    assert not imported(f"{PRIMUS}{said}", REPOSITORY.get, gpus=8).unknown
    together = imported(f"{PRIMUS}{said}      tp_comm_overlap: true\n", REPOSITORY.get, gpus=8)
    assert "--tp-comm-split-ag: one kind of overlap for all matmuls" in together.assumed
    sinks = f"{PRIMUS}      use_sink_attention: true\n      sink_sliding_window: 128\n"
    model = imported(sinks, REPOSITORY.get, gpus=8).document["model"]
    assert (model["attention_sinks"], model["attention_window"], model["full_attention_every"]) == (True, 129, 2)


DEEP = "      pipeline_model_parallel_size: 2\n      num_virtual_stages_per_pipeline_rank: 2\n"
SHIPPED = "enable_zero_bubble: true\nzero_bubble_max_pending_backward: auto\npp_algorithm: zbv-formatted\n"


@pytest.mark.parametrize(
    ("shipped", "own", "expected"),
    [
        ("patch_zero_bubble: false\n", DEEP, {"schedule": "interleaved", "chunks": 2}),
        (
            "patch_zero_bubble: false\n",
            f"{DEEP}      enable_zero_bubble: true\n",
            {"schedule": "interleaved", "chunks": 2},
        ),
        (
            "patch_zero_bubble: false\n",
            DEEP.replace("2\n      num_virtual_stages_per_pipeline_rank: 2", "4")
            + '      pipeline_model_parallel_layout: "Et|tt|t|L"\n',
            {"schedule": "1f1b", "layout": "Et|tt|t|L"},
        ),
        (
            "patch_zero_bubble: false\n",
            "      pipeline_model_parallel_size: 2\n      patch_zero_bubble: true\n",
            {"schedule": "zb-h1"},
        ),
        (
            "patch_zero_bubble: false\npatch_primus_pipeline: false\n",
            f"{DEEP}      patch_primus_pipeline: true\n",
            {"schedule": "zb-v"},
        ),
        (
            "",
            "      pipeline_model_parallel_size: 2\n      decoder_pipeline_manual_split_list: [3, 1]\n"
            "      patch_zero_bubble: false\n",
            {"schedule": "1f1b", "layers_per_stage": [3, 1]},
        ),
    ],
)  # fmt: skip
def test_schedules_that_primus_ships_count_where_its_switches_are_on(
    shipped: str, own: str, expected: dict[str, object]
) -> None:
    base = "primus/configs/modules/module_base.yaml"
    files = {**REPOSITORY, base: REPOSITORY[base] + SHIPPED + shipped}
    found = imported(
        PRIMUS.replace("expert_model_parallel_size: 8", "expert_model_parallel_size: 2") + own, files.get, gpus=8
    )
    assert {key: found.document["pipeline"].get(key) for key in expected} == expected
    assert not found.unknown
    idle = "enable_zero_bubble has no effect: patch_zero_bubble is not true" in found.assumed
    assert idle == ("enable_zero_bubble" in own)
    load_text(found.to_yaml_text("x"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PRIMUS, "needs primus/configs/modules/megatron/pre_trainer.yaml, which is neither"),
        (PRIMUS.replace("    model: ${PRIMUS_MODEL:own_1B}.yaml\n", ""), "the trainer module names no model"),
        (FLAGSCALE.replace("num_layers: 8", "num_layers: -8"), "num-layers: '-8' is not a whole number"),
        (FLAGSCALE.replace("num_layers: 8", LINEAR), "attention over the outputs of earlier layers"),
        (
            FLAGSCALE.replace("num_layers: 8", "num_layers: 8\n  routed_expert_hidden_size: 128"),
            "--routed-expert-hidden-size: .*latent",
        ),
        (
            FLAGSCALE.replace("num_layers: 8", "num_layers: 8\n  attn_res_block_size: 4"),
            "--attn-res-block-size: .*earlier",
        ),
    ],
)
def test_what_cannot_be_read_is_one_message(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        imported(text)


def test_files_that_extend_each_other_come_to_an_end() -> None:
    model = "primus/configs/models/megatron/own_1B.yaml"
    files = {**REPOSITORY, model: REPOSITORY[model].replace("own_base", "own_1B")}
    assert imported(PRIMUS, files.get, gpus=8).document["model"]["layers"] == 4


TITAN = """
modules:
  pre_trainer:
    framework: torchtitan
    config: pre_trainer.yaml
    model: own_8B.yaml
    overrides:
      sink_level: null
      training: {local_batch_size: 2, seq_len: "${OWN_LENGTH:4096}", dataloader: {num_workers: 1}}
      activation_checkpoint: {mode: none}
      primus_turbo: {enable_primus_turbo: true, use_turbo_own: true}
"""
TITAN_FILES = {
    "primus/configs/modules/torchtitan/pre_trainer.yaml": """
includes: [../module_base.yaml]
training: {local_batch_size: 8, seq_len: 2048, seed: null}
parallelism: {tensor_parallel_degree: 2, pipeline_parallel_layers_per_stage: null, pipeline_parallel_split_points: []}
activation_checkpoint:
  mode: full
  per_op_sac_force_recompute_mm_shapes_by_fqns: [moe.router.gate]
compile: {enable: true, components: [model, loss]}
""",
    "primus/configs/modules/module_base.yaml": "trainable: true\n",
    "primus/configs/models/torchtitan/own_8B.yaml": (
        "model: {name: llama3, flavor: 8B, converters: [primus_turbo, quantize.linear.float8]}\n"
    ),
}


def titan(text: str, files: dict[str, str]) -> ImportResult:
    return scenario_from_torchtitan(
        text, cluster={"topology": "dgx_h100", "nodes": 1}, gpus=8, read_file=files.get, source="own.yaml"
    )  # fmt: skip


def test_primus_starts_torchtitan_with_the_sections_of_a_job_config() -> None:
    found = titan(TITAN, TITAN_FILES)
    document = found.document
    assert document["model"] == {"preset": "llama3-8b", "sequence_length": 4096}
    assert (document["parallel"]["tp"], document["parallel"]["dp"]) == (2, 4)
    training = document["training"]
    assert (training["micro_batch"], training["recompute"], training["precision"]) == (2, "none", "fp8-mixed")
    assert document["software"] == "torch-compile"
    assert found.unknown == ("primus_turbo.use_turbo_own",)
    assert any("Primus-Turbo's kernels" in sentence for sentence in found.assumed)
    with pytest.raises(InputError, match="enable_attention_float8: true is not modelled"):
        titan(TITAN.replace("use_turbo_own", "enable_attention_float8"), TITAN_FILES)
    with pytest.raises(InputError, match=r"needs primus/configs/models/torchtitan/own_8B\.yaml"):
        titan(TITAN, {name: text for name, text in TITAN_FILES.items() if "models" not in name})


TUNES = PRIMUS.replace("pre_trainer:", "post_trainer:").replace(
    "    overrides:\n", "    overrides:\n      use_packed_attention: true\n      lora: {enabled: false, dim: 8}\n"
)


def test_fine_tuning_of_all_weights_is_read_as_pre_training_is() -> None:
    found = imported(TUNES, REPOSITORY.get, gpus=8)
    assert found.document == imported(PRIMUS, REPOSITORY.get, gpus=8).document
    assert any(sentence.startswith("--use-packed-attention") for sentence in found.assumed)
    with pytest.raises(InputError, match=r"lora\.enabled: adapters with frozen weights are"):
        imported(TUNES.replace("enabled: false", "enabled: true"), REPOSITORY.get, gpus=8)


@pytest.mark.parametrize("field", ["use_dualpipev: true", "schedules_method: dualpipev"])
def test_dual_pipe_v_of_flagscale(field: str) -> None:
    plain = FLAGSCALE.replace("pipeline_model_parallel_size: 2", f"pipeline_model_parallel_size: 2\n  {field}")
    assert imported(plain, gpus=8).document["pipeline"]["schedule"] == "dualpipe-v"


def test_a_framework_is_told_which_import_it_is_for() -> None:
    with pytest.raises(
        InputError, match="the trainer module is for framework torchtitan: run simcluster import torchtitan"
    ):
        imported(TITAN)
    with pytest.raises(InputError, match="is for framework maxtext: it cannot be imported"):
        titan(TITAN.replace("torchtitan", "maxtext"), TITAN_FILES)


def test_what_a_model_of_primus_says_of_its_own_is_listed() -> None:
    model = "primus/configs/models/megatron/own_1B.yaml"
    files = {**REPOSITORY, model: REPOSITORY[model] + "own_softcapping: 30.0\nrotary_base: 5000\nimg_h: 224\n"}
    found = imported(PRIMUS, files.get, gpus=8)
    assert found.unknown == ("--own-softcapping",)
    assert "rotary-base" in found.no_effect


def test_what_primus_says_of_its_own_is_listed() -> None:
    text = PRIMUS + "      turbo_sync_free_moe_stage: 2\n"
    found = imported(text, REPOSITORY.get)
    assert "stderr-sink-level" in found.no_effect
    said = [each.partition(":")[0] for each in found.assumed]
    assert {"--enable-primus-turbo", "--turbo-deepep-num-cu", "--turbo-sync-free-moe-stage"} <= {*said}


FIELDS = """
run_name: own
num_layers: 4
hidden_size: 512
num_attention_heads: 8
seq_length: 2048
micro_batch_size: 1
global_batch_size: 64
vocab_size: 32000
add_bias_linear: false
bf16: true
fp8: null
"""
STARTS = "#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py --config specs/own.yaml MORE\n"


def test_fields_of_megatron_alone_and_in_the_file_that_a_script_names() -> None:
    model = imported(FIELDS).document["model"]
    assert (model["layers"], model["bias"]) == (4, False)
    started = STARTS.replace("MORE", "--micro-batch-size 2 --num-layers 8")
    found = imported(started, {"specs/own.yaml": FIELDS}.get).document
    assert (found["gpus"], found["model"]["layers"], found["training"]["micro_batch"]) == (8, 8, 2)
    assert found["model"]["hidden_size"] == 512


def test_a_script_whose_options_are_in_a_file_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"the file named by --config \(specs/own\.yaml\), which is missing"):
        imported(STARTS.replace("MORE", ""))
    with pytest.raises(InputError, match=r"reads files that are neither .*: specs/own\.yaml"):
        imported(STARTS.replace("MORE", "--micro-batch-size 2"))
