"""Files that are no launch script or configuration of the kind that is asked for are named back."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import for_each

from simcluster.cli import main

NOT_READ = {
    "verl": [
        ("run.sh", "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B\n"),
        ("ppo.yaml", "data:\n  train_batch_size: 1024\nactor_rollout_ref:\n  hybrid_engine: true\n"),
    ],
    "OpenRLHF": [("run.sh", "deepspeed --module openrlhf.cli.train_sft --max_len 2048 --zero_stage 2\n")],
    "NeMo-RL": [("grpo.yaml", "grpo:\n  num_prompts_per_step: 32\npolicy:\n  model_name: Qwen/Qwen3-8B\n")],
    "MaxText": [
        ("base.yml", "run_name: ''\nbase_emb_dim: 2048\nbase_num_decoder_layers: 16\nici_fsdp_parallelism: -1\n"),
        ("run.sh", "python3 -m MaxText.train base.yml per_device_batch_size=4 ici_tensor_parallelism=4\n"),
    ],
    "axolotl": [
        ("llama.yml", "base_model: meta-llama/Llama-2-7b-hf\nsequence_len: 4096\ndeepspeed: z.json\n"),
        ("run.sh", "accelerate launch -m axolotl.cli.train examples/llama.yml\n"),
    ],
    "Levanter": [
        ("llama.yaml", "model:\n  type: llama\ntrainer:\n  mp: p=f32,c=bfloat16\n  train_batch_size: 64\n"),
    ],
    "EasyLM": [("run.sh", "python -m EasyLM.models.llama.llama_train --mesh_dim='-1,1,1' --load_llama_config='7b'\n")],
    "nanotron": [
        ("config.yaml", "general:\n  project: x\nparallelism:\n  dp: 2\n  pp: 2\n  pp_engine: 1f1b\n  tp: 2\n"
         "tokens:\n  batch_accumulation_per_replica: 4\n"),
    ],
    "GPT-NeoX": [
        ("1-3B.yml", '{\n  "pipe-parallel-size": 1,\n  "num-layers": 24,\n  "hidden-size": 2048\n}\n'),
        ("20B.yml", '"pipe_parallel_size": 4\n"zero_optimization": {"stage": 1}\n"train_batch_size": 8\n'),
    ],
    "LLM Foundry": [
        ("mpt.yaml", "max_seq_len: 2048\nglobal_train_batch_size: 256\ndevice_train_microbatch_size: 4\n"),
        ("run.sh", "composer train/train.py train/yamls/pretrain/mpt-7b.yaml\n"),
    ],
    "OLMo": [("o.yaml", "model:\n  d_model: 4096\n  mlp_ratio: 8\nglobal_train_batch_size: 2048\n")],
    "torchtune": [("full.yaml", "model:\n  _component_: torchtune.models.llama3.llama3_8b\nbatch_size: 2\n")],
    "LitGPT": [("p.sh", "litgpt pretrain pythia-14m --train.max_tokens 10\n")],
    "Colossal-AI": [("t.py", "import colossalai\nfrom colossalai.booster import Booster\n")],
    "NeMo AutoModel": [("a.yaml", "model:\n  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained\n")],
}  # fmt: skip
KINDS = ("megatron", "megatron-bridge", "torchtitan", "nemo", "deepspeed", "hugging-face")
JOB = '[model]\nname = "llama3"\n[training]\nseq_len = 2048\n'
CONFIG = '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096}'
ZERO = '{"train_batch_size": 64, "zero_optimization": {"stage": 2}}'
OTHERS = {
    "torchtitan": ("job.toml", JOB),
    "hugging-face": ("config.json", CONFIG),
    "deepspeed": ("ds.json", ZERO),
    "astra-network": ("n.yaml", "topology: [ Ring ]\nnpus_count: [ 8 ]\n"),
    "megatron": ("m.yaml", "MODEL_ARGS:\n  --num-layers: 8\n"),
}


def refused(folder: Path, kind: str, name: str, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    (folder / name).write_text(text)
    more = ["--model", "llama3-8b"] if kind == "deepspeed" else []
    cluster = [] if kind == "astra-network" else ["--cluster", "dgx_h100"]
    assert main(["import", kind, str(folder / name), *cluster, *more]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("framework", NOT_READ)
@for_each("kind", KINDS)
def test_a_framework_that_no_import_reads_is_named(
    framework: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in NOT_READ[framework]:
        err = refused(tmp_path, kind, name, text, capsys)
        assert f"this is a file of {framework}" in err
        assert "cannot be imported" in err


@pytest.mark.parametrize("kind", [*KINDS, "astra-network"])
@pytest.mark.parametrize("own", OTHERS)
def test_the_import_that_a_file_is_for_is_named(
    own: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind != own:
        err = refused(tmp_path, kind, *OTHERS[own], capsys)
        assert f"run simcluster import {own}" in err


@pytest.mark.parametrize(
    ("kind", "name", "text", "words"),
    [
        ("deepspeed", "a.json", '{"a": 1, "lr": 2}', "is not a configuration of DeepSpeed: it has no DeepSpeed keys"),
        ("deepspeed", "a.json", '{"name": "x", "scripts": {"test": "jest"}}', "is not a configuration of DeepSpeed"),
        ("torchtitan", "a.toml", '[project]\nname = "x"\n[tool.ruff]\nlength = 8\n', "is not a job config of"),
        ("torchtitan", "a.yaml", "name: x\nversion: 2\n", "is YAML; give the configuration as TOML or JSON"),
        ("deepspeed", "a.yaml", "name: x\nversion: 2\n", "is YAML; give the configuration as JSON"),
        ("nemo", "s.yaml", "cluster: dgx_h100\nmodel: {preset: llama3-8b}\nparallel: {tp: 2}\n", "simcluster run"),
        ("deepspeed", "acc.yaml", "compute_environment: LOCAL_MACHINE\n", "is a configuration of accelerate"),
    ],
)  # fmt: skip
def test_a_file_of_no_kind_is_not_taken_for_one(
    kind: str, name: str, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(tmp_path, kind, name, text, capsys)
