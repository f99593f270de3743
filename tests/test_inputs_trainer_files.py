"""Options of a training in YAML files, and DeepSpeed as accelerate and ms-swift say it: no file of DeepSpeed's own."""

import json
from pathlib import Path
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.importers.import_result import ImportResult
from simcluster.importers.trainer_scripts import scenario_from_trainer

CLUSTER = {"topology": "dgx_h100", "nodes": 4}
OPTIONS = """
model_name_or_path: Qwen/Qwen3-8B
stage: sft
finetuning_type: full
deepspeed: ds.json
cutoff_len: 1024
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 1.0e-4
bf16: true
do_eval: false
report_to: [none]
resume_from_checkpoint: null
my_own: 3
"""
ACCELERATE = """
compute_environment: LOCAL_MACHINE
deepspeed_config:
  offload_param_device: none
  zero3_init_flag: true
  zero_stage: 3
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
FILES = {
    "ds.json": json.dumps({
        "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2},
    }),
    "own.yaml": OPTIONS,
    "sft.yaml": OPTIONS.replace("deepspeed: ds.json\n", "").replace("bf16: true\n", ""),
    "zero3.yaml": ACCELERATE,
}  # fmt: skip
TRAINS = "train.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 --max_length 2048"


def trainer(text: str, **more: Any) -> ImportResult:
    files = {**FILES, **more.pop("files", {})}
    return scenario_from_trainer(text, cluster=CLUSTER, read_file=files.get, available=32, source="run.sh", **more)


@pytest.mark.parametrize(
    "text",
    [
        OPTIONS,
        "llamafactory-cli train own.yaml",
        "#!/bin/bash\nFORCE_TORCHRUN=1 llamafactory-cli train configs/../own.yaml\n",
        "torchrun --nproc_per_node 32 src/train.py own.yaml",
    ],
)
def test_options_in_a_file_in_the_place_of_options(text: str) -> None:
    found = trainer(text, files={"configs/own.yaml": OPTIONS})
    document = found.document
    assert (document["gpus"], document["parallel"]["zero"]) == (32, 2)
    assert (document["model"]["layers"], document["model"]["sequence_length"]) == (36, 1024)
    training = document["training"]
    assert (training["micro_batch"], training["global_batch"], training["recompute"]) == (2, 256, "full")
    assert training["precision"] == "bf16-mixed"
    assert found.unknown == ("--my-own",)
    assert "learning-rate" in found.no_effect


def test_options_beside_the_file_go_before_those_in_it() -> None:
    found = trainer("llamafactory-cli train own.yaml per_device_train_batch_size=8 cutoff_len=512").document
    assert (found["training"]["micro_batch"], found["model"]["sequence_length"]) == (8, 512)
    dashed = trainer("accelerate launch train.py --config own.yaml --per_device_train_batch_size 1").document
    assert dashed["training"]["micro_batch"] == 1


def test_deepspeed_as_accelerate_says_it() -> None:
    found = trainer("accelerate launch --config_file zero3.yaml sft.py --config sft.yaml")
    document = found.document
    assert (document["gpus"], document["parallel"]["zero"]) == (16, 3)
    assert document["training"]["precision"] == "bf16-mixed"
    assert document["training"]["global_batch"] == 2 * 4 * 16
    assert document["overlap"] == {"grad_reduce": True, "param_gather": True}  # DeepSpeed's own of stage 3
    own = trainer(f"accelerate launch --config_file zero3.yaml --num_processes 4 --mixed_precision fp16 {TRAINS}")
    assert own.document["gpus"] == 4
    assert own.document["training"]["precision"] == "fp16-mixed"
    said = trainer(f"accelerate launch --use_deepspeed --zero_stage 1 --num_processes 8 {TRAINS} --bf16")
    assert (said.document["gpus"], said.document["parallel"]["zero"]) == (8, 1)


def test_what_accelerate_has_no_field_for_is_told_and_its_own_file_read() -> None:
    more = ACCELERATE.replace("  zero_stage", "  overlap_comm: false\n  gradient_accumulation_steps: 8\n  zero_stage")
    found = trainer(f"accelerate launch --config_file a.yaml {TRAINS}", files={"a.yaml": more})
    assert any("no field deepspeed_config.overlap_comm, and" in sentence for sentence in found.assumed)
    assert found.document["training"]["global_batch"] == 2 * 8 * 16
    named = ACCELERATE.replace("  zero_stage: 3", "  deepspeed_config_file: ds.json")
    found = trainer(f"accelerate launch --config_file a.yaml {TRAINS}", files={"a.yaml": named})
    assert found.document["parallel"]["zero"] == 2


@pytest.mark.parametrize(
    ("name", "zero", "overlap"), [("zero2", 2, False), ("zero3", 3, False), ("default-zero3", 3, True)]
)
def test_configurations_that_ms_swift_ships(name: str, zero: int, overlap: bool) -> None:
    text = (
        f"NPROC_PER_NODE=4 \\\nswift sft --model Qwen/Qwen3-8B --train_type full --deepspeed {name} --max_length 2048"
    )
    found = trainer(f"#!/bin/bash\n{text} --num_train_epochs 1\n")
    document = found.document
    assert (document["gpus"], document["parallel"]["zero"]) == (4, zero)
    assert document["overlap"]["grad_reduce"] is overlap
    training = document["training"]
    assert (training["precision"], training["recompute"]) == ("bf16-mixed", "full")
    assert (training["micro_batch"], training["global_batch"]) == (1, 16)
    assert any(name in sentence and "ms-swift's built-in" in sentence for sentence in found.assumed)
    half = trainer(f"#!/bin/bash\n{text} --batch_size 2 --dtype fp16\n").document["training"]
    assert (half["micro_batch"], half["precision"]) == (2, "fp16-mixed")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("llamafactory-cli train other.yaml", "reads other.yaml, which is neither next to it"),
        (OPTIONS.replace("deepspeed: ds.json", "fsdp: full_shard"), "does not use DeepSpeed .deepspeed: FILE"),
        (OPTIONS.replace("finetuning_type: full", "finetuning_type: lora"), "adapters with frozen"),
        (f"accelerate launch --config_file other.yaml {TRAINS}", "with other.yaml, which is neither next to it"),
        (f"accelerate launch --config_file fsdp.yaml {TRAINS}", "distributed_type FSDP is not DEEPSPEED"),
        (f"accelerate launch --config_file cpu.yaml {TRAINS}", "offload_param.device: parameters in host memory"),
        (f"accelerate launch --config_file named.yaml {TRAINS}", "with gone.json, which is neither next to it"),
        (f"swift pt --deepspeed zero3_offload {TRAINS.removeprefix('train.py')}", "parameters in host memory"),
    ],
)
def test_what_is_refused_of_files_that_say_how_a_training_is(text: str, words: str) -> None:
    files = {
        "fsdp.yaml": ACCELERATE.replace("DEEPSPEED", "FSDP"),
        "cpu.yaml": ACCELERATE.replace("offload_param_device: none", "offload_param_device: cpu"),
        "named.yaml": ACCELERATE.replace("zero_stage: 3", "deepspeed_config_file: gone.json"),
    }
    with pytest.raises(InputError, match=words):
        trainer(text, files=files)


@pytest.mark.parametrize(("more", "precision"), [("", "fp16-mixed"), ("--dtype bf16", "bf16-mixed")])
def test_a_configuration_that_deepspeed_chat_makes_of_its_options(more: str, precision: str) -> None:
    command = f"deepspeed --num_gpus 8 main.py --model_name_or_path Qwen/Qwen3-8B --deepspeed --zero_stage 2 {more}"
    found = trainer(f"{command} --num_train_epochs 1 --gradient_accumulation_steps 2")
    document = found.document
    assert (document["gpus"], document["parallel"]["zero"], document["model"]["sequence_length"]) == (8, 2, 512)
    training = document["training"]
    assert (training["micro_batch"], training["global_batch"]) == (16, 256)
    assert (training["precision"], training.get("recompute")) == (precision, None)
    assert document["overlap"]["grad_reduce"]
    assert any("for --zero-stage 2" in sentence for sentence in found.assumed)
    on_host = trainer(f"{command} --offload --per_device_train_batch_size 4")
    assert on_host.document["memory"]["offload"]["optimizer"] == "host"
    with pytest.raises(InputError, match="--lora-dim 128: training adapters"):
        trainer(f"{command} --lora_dim 128")


def test_models_by_names_of_other_places() -> None:
    dotted = trainer(f"deepspeed {TRAINS} --deepspeed ds.json".replace("Qwen/Qwen3-8B", "/m/Qwen2___5-7B-Instruct"))
    coder = trainer(f"deepspeed {TRAINS} --deepspeed ds.json".replace("Qwen3-8B", "Qwen2.5-Coder-7B"))
    assert dotted.document["model"] == coder.document["model"]
    assert coder.document["model"]["hidden_size"] == 3584


def test_the_command_reads_a_file_of_options(tmp_path: Path) -> None:
    for name in ("own.yaml", "ds.json"):
        (tmp_path / name).write_text(FILES[name])
    written = tmp_path / "out.yaml"
    command = ["import", "deepspeed", str(tmp_path / "own.yaml"), "--cluster", "dgx_h100", "-o", str(written)]
    assert main([*command, "--gpus", "8"]) == 0
    assert "gpus: 8" in written.read_text()
