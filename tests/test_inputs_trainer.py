"""Scripts that start a program of Hugging Face's Trainer, or one of their own, with a configuration of DeepSpeed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.importers.deepspeed import scenario_from_deepspeed
from simcluster.importers.import_result import ImportResult
from simcluster.importers.megatron import scenario_from_arguments
from simcluster.importers.named_models import load_published_model
from simcluster.importers.trainer_scripts import scenario_from_trainer
from simcluster.scenario.scenario import load

CLUSTER = {"topology": "dgx_h100", "nodes": 4}
AUTO: dict[str, Any] = {
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto"},
}  # fmt: skip
TRAINS = "train.py --deepspeed ds.json --model_name_or_path meta-llama/Llama-2-7b-hf --output_dir out"


def trainer(command: str, config: Mapping[str, Any] | None = None, **more: Any) -> ImportResult:
    files = {"ds.json": json.dumps(AUTO if config is None else config)}
    return scenario_from_trainer(
        f"#!/bin/bash\n{command}\n", cluster=CLUSTER, read_file=files.get, available=32, source="run.sh", **more
    )  # fmt: skip


def test_what_the_trainer_puts_in_the_place_of_auto() -> None:
    found = trainer(
        f"deepspeed --include localhost:0,1,2,3 {TRAINS} --per_device_train_batch_size 2 --bf16 True "
        "--gradient_accumulation_steps 4 --gradient_checkpointing --model_max_length 1024 --my_own 3"
    )
    document = found.document
    assert (document["gpus"], document["parallel"]["zero"]) == (4, 2)
    assert document["model"] == {"preset": "llama2-7b", "sequence_length": 1024}
    training = document["training"]
    assert (training["global_batch"], training["micro_batch"], training["recompute"]) == (32, 2, "full")
    assert training["precision"] == "bf16-mixed"
    assert document["overlap"]["bucket_size"] == f"{2 * 4096 * 4096} B"  # the width of the model, squared
    assert found.unknown == ("--my-own",)
    assert "output-dir" in found.no_effect


def test_what_is_not_said_is_the_trainers_default_or_told() -> None:
    found = trainer(f"torchrun --nproc_per_node 8 {TRAINS} --num_train_epochs 1")
    assert (found.document["gpus"], found.document["training"]["micro_batch"]) == (8, 8)
    assert found.document["training"]["precision"] == "fp32"
    assert "recompute" not in found.document["training"]
    own = trainer(f"deepspeed {TRAINS}".replace("--deepspeed", "--deepspeed_config"), AUTO)
    assert own.document["gpus"] == 32
    assert any("auto" in sentence and "--set training.micro_batch" in sentence for sentence in own.assumed)
    assert any("the number is not stated" in sentence for sentence in own.assumed)
    named = trainer(f"deepspeed {TRAINS}", model=load_published_model("llama3-8b"))
    assert any("sequence-length changes it" in sentence for sentence in named.assumed)
    known = trainer(f"deepspeed {TRAINS}", model=load_published_model("qwen3-14b"))
    assert known.document["model"]["sequence_length"] == 8192  # of the 40,960 that it takes
    assert "sequences of 8192 tokens (--sequence-length changes it)" in known.assumed
    variables = "CUDA_VISIBLE_DEVICES=0,1 CUDA_LAUNCH_BLOCKING=1"
    seen = trainer(f"export {variables}\naccelerate launch {TRAINS} --per_device_train_batch_size 1")
    assert seen.document["gpus"] == 2
    assert "kernels are assumed to run with default settings; CUDA_LAUNCH_BLOCKING=1 is ignored" in seen.assumed


def test_values_of_the_user_go_before_those_of_the_script() -> None:
    given = {"--per_device_train_batch_size": "4", "LEN": "2048"}
    found = trainer(
        f"LEN=512\ndeepspeed --num_gpus 8 {TRAINS} --per_device_train_batch_size 2 --max_seq_length $LEN",
        model=load_published_model("llama3-8b"), given=given,
    )  # fmt: skip
    assert found.document["model"] == {"preset": "llama3-8b", "sequence_length": 2048}
    assert found.document["training"]["micro_batch"] == 4
    assert trainer(f"deepspeed {TRAINS} --bf16", gpus=16).document["gpus"] == 16


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("deepspeed train.py --deepspeed other.json", "starts DeepSpeed with other.json, which is neither next to it"),
        (
            "deepspeed train.py --deepspeed ds.json --from_pretrained google/flan-t5-xl",
            "flan-t5-xl: the model has an encoder",
        ),
        ("deepspeed train.py --deepspeed other.json --model_name_or_path m/llava-v1.6-mistral-7b", "takes images"),
        ("deepspeed train.py --deepspeed ds.json --model_name_or_path vision/own-7b", "only the model's name"),
        ("deepspeed train.py --deepspeed ds.json", "does not name the model; give it: --model"),
        (
            "deepspeed train.py --deepspeed ds.json --model_name_or_path own/7b",
            "only the model's name is given .*own/7b.*--model",
        ),
        (f"deepspeed {TRAINS} --use_lora True", "--use-lora True: training adapters"),
        (f"deepspeed {TRAINS} --finetuning_type lora", "--finetuning-type lora: training adapters"),
        (f"deepspeed {TRAINS} --stage dpo", "preference or reinforcement"),
        (f"deepspeed run_{TRAINS}".replace("train.py", "dpo.py"), "run_dpo.py trains on preferences or rewards"),
        (f"deepspeed {TRAINS} --sequence_parallel_size 4", "--sequence-parallel-size 4: sequence parallelism"),
        (
            f"swift sft {TRAINS.removeprefix('train.py')}",
            "ms-swift trains adapters .* unless --train-type full is given",
        ),
        (f"deepspeed {TRAINS} --tune_mm_vision False --tune_mm_mlp True", "--tune-mm-mlp True: images or sounds"),
        (f"deepspeed {TRAINS} --per_device_train_batch_size ${{1}}", "'\\$1' is not a whole number from 1 .--arg"),
        ("deepspeed pretrain_gpt.py --num-layers 2 --deepspeed_config ds.json", "use simcluster import megatron"),
        ("torchrun pretrain_gpt.py --num-layers 2 --micro-batch-size 1", "use simcluster import megatron"),
        ("python train.py --epochs 3", "starts no training with --deepspeed FILE"),
        ("deepspeed train.py --per_device_train_batch_size 2", "starts deepspeed train.py without DeepSpeed .*hugging"),
    ],
)
def test_what_a_script_says_too_little_of(command: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        trainer(command)


@pytest.mark.parametrize("off", ["--use_lora False", "--finetuning_type full", "--stage sft", "--sp_size 1"])
def test_what_is_switched_off_is_not_refused(off: str) -> None:
    assert not trainer(f"deepspeed {TRAINS} {off}").unknown


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"deepspeed {TRAINS}", "train.py starts DeepSpeed, .*; run simcluster import deepspeed run.sh"),
        ("torchrun train.py --model_name_or_path m --bf16", "options of Hugging Face's Trainer, .*import hugging-face"),
    ],
)
def test_import_megatron_says_what_a_script_of_the_trainer_is_for(command: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        scenario_from_arguments(f"#!/bin/bash\n{command}\n", cluster=CLUSTER, source="run.sh")


@pytest.mark.parametrize(
    ("launch", "gpus"),
    [
        ("--num_processes 8", 8),
        ("--num_processes=16 --num_machines=2 --machine_rank $RANK", 16),
        ("--multi_gpu --num_machines 3 --num_processes 8", 32),  # which goes into no equal parts: those of the cluster
    ],
)
def test_processes_that_accelerate_starts(launch: str, gpus: int) -> None:
    assert trainer(f"accelerate launch {launch} {TRAINS} --bf16").document["gpus"] == gpus


@pytest.mark.parametrize(
    ("command", "length", "recompute"),
    [
        (f"deepspeed --num_gpus 8 {TRAINS} --finetuning_type full", 2048, "full"),
        (f"deepspeed {TRAINS} --finetuning_type full --disable_gradient_checkpointing --cutoff_len 512", 512, None),
        (f"llamafactory-cli train {TRAINS.removeprefix('train.py')} --finetuning_type full", 2048, "full"),
        (f"swift sft {TRAINS.removeprefix('train.py')} --train_type full --max_length 1024", 1024, "full"),
        (f"swift sft {TRAINS.removeprefix('train.py')} --train_type full --gradient_checkpointing false", None, None),
        (f"deepspeed {TRAINS}", None, None),
    ],
)
def test_what_programs_do_by_themselves(command: str, length: int | None, recompute: str | None) -> None:
    found = trainer(command)
    assert found.document["model"].get("sequence_length") == length
    assert found.document["training"].get("recompute") == recompute
    assert any("sequence-length changes it" in sentence for sentence in found.assumed) is (length is None)
    assert any("recomputed in the backward pass" in sentence for sentence in found.assumed) is (recompute == "full")


def test_of_several_trainings_the_first_counts_and_that_is_told() -> None:
    several = f"deepspeed {TRAINS} --bf16\ndeepspeed {TRAINS} --fp16\n"
    assert "of 2 trainings that the script starts, only the first is imported" in trainer(several).assumed
    assert not any("trainings" in sentence for sentence in trainer(f"deepspeed {TRAINS}\n" * 2).assumed)


def test_the_gpus_that_a_batch_is_for() -> None:
    config = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}
    said: dict[str, Any] = {"cluster": CLUSTER, "model": {"preset": "llama3-8b"}, "available": 32}
    found = scenario_from_deepspeed(json.dumps(config), **said)
    assert found.document["gpus"] == 8
    assert any("8 GPUs, from a batch of 32" in sentence for sentence in found.assumed)
    del config["gradient_accumulation_steps"]
    assert scenario_from_deepspeed(json.dumps(config | {"train_batch_size": 256}), **said).document["gpus"] == 32


def test_the_command_reads_a_script_and_the_file_that_it_writes(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        'BATCH=${1:-"16"}\ncat <<EOT > ds.json\n'
        '{"train_batch_size": $BATCH, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}\nEOT\n'
        "deepspeed bench.py --deepspeed --deepspeed_config ds.json --max_length 2048\n"
    )
    written = tmp_path / "out.yaml"
    words = f"import deepspeed {script} --cluster dgx_h100 --model Qwen/Qwen3-0.6B --arg 1=32 -o {written}".split()
    assert main(words) == 0
    text = written.read_text()
    assert "gpus: 16" in text
    assert "sequence_length: 2048" in text


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("deepspeed", 8),
        ("/usr/bin/deepspeed --master_port 29500", 8),
        ("deepspeed --num_gpus 4", 4),
        ("deepspeed --num_nodes 2 --num_gpus 8", 16),
        ("deepspeed --num_nodes 2", 16),
        ("torchrun --nproc_per_node gpu", 8),
        ("torchrun --nnodes 2 --nproc_per_node 8", 16),
        ("deepspeed --include localhost:0,1", 2),
        ("accelerate launch --use_deepspeed", 8),
        ("accelerate launch --use_deepspeed --num_machines 2 --num_processes 16", 16),
    ],
)
def test_a_launcher_starts_as_many_gpus_in_every_importer(tmp_path: Path, launcher: str, gpus: int) -> None:
    sizes = (
        "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 "
        "--micro-batch-size 1 --vocab-size 5000 --bf16"
    )
    commands = {
        "megatron": f"{launcher} pretrain_gpt.py {sizes}",
        "deepspeed": f"{launcher} main.py --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 4 "
        "--max_seq_len 512 --zero_stage 3 --deepspeed",
        "torchtitan": f"{launcher} -m torchtitan.train --job.config_file=job.toml",
    }
    (tmp_path / "job.toml").write_text('[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 2048\n')
    for kind, command in commands.items():
        for name, text in (("run.sh", f"#!/bin/bash\n{command}\n"), ("one.sh", f"{command}\n")):
            script, out = tmp_path / name, tmp_path / "out.yaml"
            script.write_text(text)
            if kind == "torchtitan" and "deepspeed" in launcher:
                continue
            if kind != "deepspeed" and "accelerate" in launcher:
                continue
            assert main(["import", kind, str(script), "--cluster", "dgx_h100", "-o", str(out)]) == 0
            assert load(out).gpus == gpus, (kind, name)
