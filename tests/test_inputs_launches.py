"""What a launch script says besides the options of its program: its configuration, its machines, what it asks for."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.importers.import_result import ImportResult
from simcluster.importers.megatron import scenario_from_arguments

SIZES = (
    "pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 --seq-length 512 "
    "--max-position-embeddings 512 --global-batch-size 64"
)
TRAINS = f"{SIZES} --micro-batch-size 2 --vocab-size 1000"


def imported(text: str, files: Mapping[str, str] | None = None, **given: str) -> ImportResult:
    return scenario_from_arguments(
        f"#!/bin/bash\n{text}\n", cluster={"topology": "dgx_h100", "nodes": 4}, source="run.sh", given=given,
        read_file=(files or {}).get, gpus_per_node=8, available=32,
    )  # fmt: skip


def told(found: ImportResult, words: str) -> bool:
    return any(words in sentence for sentence in found.assumed)


def test_launcher_options_behind_a_program_say_how_many_gpus_there_are() -> None:
    found = imported(f"python tools/{TRAINS} --nproc_per_node 4 --nnodes 2 --node_rank 0 --master_addr localhost")
    assert found.document["gpus"] == 8
    assert not found.unknown


RUN = f"torchrun --nproc_per_node 8 {TRAINS}"


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (f"torchrun --nproc_per_node 2 --nnodes 2 {TRAINS}", "the script starts 2 processes on each of 2 nodes", True),
        (f"torchrun --nproc_per_node 16 --nnodes 1 {TRAINS}", "the script starts 16 processes on one node", True),
        (f"torchrun --nproc_per_node 8 --nnodes 2 {TRAINS}", "the script starts", False),
        (f"torchrun --nproc_per_node 4 --nnodes 1 {TRAINS}", "the script starts", False),
        (f". $SETTINGS\nsource venv/bin/activate\n{RUN}", "settings of $SETTINGS are unknown", True),
        (f". $SETTINGS\nsource venv/bin/activate\n{RUN}", "activate", False),
        (f"{RUN} --tokenizer-type NullTokenizer", "NullTokenizer adds an end-of-document token", True),
        (f"{RUN} --num-experts 8", "each token goes to 2 of the experts", True),
        (f"{RUN} --num-experts 8 --moe-router-topk 2", "each token goes to", False),
        (
            f"{RUN} --kd --num-layers-teacher 4",
            "--kd: the teacher's forward pass of distillation is not simulated",
            True,
        ),
        (
            f"export TORCH_DISTRIBUTED_DEBUG=DETAIL\nenv NCCL_BLOCKING_WAIT=1 {RUN}",
            "NCCL_BLOCKING_WAIT=1, TORCH_DISTRIBUTED_DEBUG=DETAIL",
            True,
        ),
        (f"export TORCH_DISTRIBUTED_DEBUG=INFO NCCL_BLOCKING_WAIT=0\n{RUN}", "NCCL", False),
    ],
)
def test_what_is_assumed_is_told(text: str, words: str, said: bool) -> None:
    found = imported(text)
    assert told(found, words) is said
    assert not found.unknown


DEEPSPEED = f"deepspeed --num_nodes 1 {TRAINS} --fp16 --deepspeed --deepspeed_config ds.json"


def with_configuration(**more: Any) -> ImportResult:
    return imported(DEEPSPEED, {"ds.json": json.dumps({"zero_optimization": {"stage": 1}, **more})})


def test_a_curriculum_in_the_configuration_is_told_where_it_is_on() -> None:
    on, off = ({"enabled": enabled, "min_difficulty": 72} for enabled in (True, False))
    assert told(with_configuration(curriculum_learning=on), "curriculum_learning: sequences have full length")
    assert not told(with_configuration(curriculum_learning=off), "curriculum_learning")
    drops = {"enabled": True, "data_routing": {"enabled": True, "random_ltd": {"enabled": True}}}
    assert told(with_configuration(data_efficiency=drops), "random_ltd: every layer processes all tokens")


def test_numbers_that_script_and_configuration_give_otherwise_are_told() -> None:
    config = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 32, "zero_optimization": {"stage": 1}}
    text = f"{DEEPSPEED} --zero-stage 3".replace("--global-batch-size 64", "--global-batch-size 1024")
    found = imported(text, {"ds.json": json.dumps(config)})
    document = found.document
    assert (document["training"]["global_batch"], document["parallel"]["zero"]) == (1024, 1)
    for words in (
        "--global-batch-size 1024 of the script is used instead of train_batch_size 64 of ds.json",
        "zero_optimization.stage 1 of ds.json is used instead of --zero-stage 3 of the script",
    ):
        assert told(found, words)
    same = imported(f"{DEEPSPEED} --zero-stage 1", {"ds.json": json.dumps({"zero_optimization": {"stage": 1}})})
    assert not told(same, "is used instead of")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("CUDA_LAUNCH_BLOCKING=1", "assumed to run with default settings; CUDA_LAUNCH_BLOCKING=1 is ignored"),
        ("NVTE_FWD_LAYERNORM_SM_MARGIN=16", "NVTE_FWD_LAYERNORM_SM_MARGIN=16 is ignored"),
        ("NCCL_P2P_NET_CHUNKSIZE=2097152", "the cluster's defaults; NCCL_P2P_NET_CHUNKSIZE=2097152 is ignored"),
        ("USE_MNNVL=1", "NVLink domains are those of the cluster; USE_MNNVL=1 is ignored"),
    ],
)
def test_the_environment_s_settings_are_told_where_they_are_not_the_usual_ones(setting: str, words: str) -> None:
    assert told(imported(f"export {setting}\ntorchrun --nproc_per_node 8 {TRAINS}"), words)
    name = setting.partition("=")[0]
    unset = imported(f"torchrun --nproc_per_node 8 {TRAINS}").assumed
    assert not any(name in sentence for sentence in unset)
    usual = imported(f"export {name}={1 - int(setting[-1]) if setting.endswith('=1') else ''}\ntorchrun {TRAINS}")
    assert not told(usual, name)
    in_yaml = f"ENV_VARS:\n  {setting.replace('=', ': ')}\nMODEL_ARGS:\n  --num-layers: 2\n  --hidden-size: 512\n"
    more = "  --num-attention-heads: 8\n  --seq-length: 512\n  --micro-batch-size: 1\n  --global-batch-size: 32\n"
    text = f"{in_yaml}{more}  --vocab-size: 1000\n  --bf16: true\n"
    assert told(scenario_from_arguments(text, cluster={}, source="a.yaml", available=8), words)


def test_both_kernels_of_attention_switched_off_leave_the_one_in_steps() -> None:
    off = "export NVTE_FLASH_ATTN=0 NVTE_FUSED_ATTN={}\ntorchrun --nproc_per_node 8 {} --bf16 {}"
    for fused, more, attention in ((0, "", "unfused"), (1, "", "fused"), (0, "--attention-backend fused", "fused")):
        found = imported(off.format(fused, TRAINS, more))
        assert found.document["training"]["attention"] == attention


def test_settings_of_the_configuration_are_listed_or_refused_as_in_the_file_alone() -> None:
    found = with_configuration(zero_optimization={"stage": 3, "sub_group_size": 1e9, "stage3_param_persitence": 1})
    assert found.unknown == ("zero_optimization.stage3_param_persitence of ds.json",)
    assert told(found, "zero_optimization.sub_group_size")
    with pytest.raises(InputError, match="sparse attention is not modelled"):
        with_configuration(sparse_attention={"mode": "fixed"})
    assert told(imported(DEEPSPEED, {"ds.json": "{"}), "the DeepSpeed configuration ds.json is not read")


def test_a_value_that_rests_on_the_machine_says_what_gives_it() -> None:
    text = (
        "count=$(($(all_hosts nvidia-smi | wc -l)-2))\nranks=$(( ${count} / 1 ))\nmicro=$(( 64 / ${ranks} ))\n"
        f"torchrun --nproc_per_node 8 {SIZES} --vocab-size 1000 --micro-batch-size ${{micro}}"
    )
    with pytest.raises(InputError, match=r"--micro-batch-size: line 2 uses the output of all_hosts, .* --arg NAME="):
        imported(text)
    assert imported(text, count="8").document["training"]["micro_batch"] == 8


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("mpiexec -n 24 --ppn 12 python", 24),
        ("mpirun -np 16 --map-by ppr:8:node python", 16),
        ("mpirun -N 4 -np 8 python", 8),
        ("srun -N 2 --ntasks-per-node=8 python", 16),
    ],
)
def test_launchers_say_how_many_processes_they_start(launcher: str, gpus: int) -> None:
    assert imported(f"{launcher} {TRAINS.replace('batch-size 64', 'batch-size 96')}").document["gpus"] == gpus


def test_a_script_of_calls_alone_is_one() -> None:
    text = "sh run/train.sh 32 mp\nsh run/train.sh 16 mp\n"
    with pytest.raises(InputError, match=r"it reads run/train\.sh"):
        scenario_from_arguments(text, cluster={"topology": "dgx_h100"}, source="run.sh")


def test_what_data_are_called_makes_no_encoder() -> None:
    data = "--data-path data/my-t5_text_sentence"
    assert imported(f"torchrun --nproc_per_node 8 {TRAINS} {data}").document["model"]["layers"] == 2
    with pytest.raises(InputError, match="belongs to a model with an encoder"):
        imported(f"torchrun --nproc_per_node 8 own/{TRAINS.replace('_gpt', '')} {data}")


def test_experts_under_another_name_are_not_lost() -> None:
    text = f"torchrun --nproc_per_node 8 {TRAINS} --moe-router-topk 2"
    with pytest.raises(
        InputError, match=r"--num-local-experts: is not a Megatron-LM option, so the number.*--arg=--num-experts="
    ):
        imported(f"{text} --num-local-experts 8")
    assert imported(f"{text} --num-local-experts 8", **{"--num-experts": "8"}).document["model"]["moe"]["experts"] == 8
    routed = imported(f"{text} --num-routed-experts 8 --num-shared-experts 2 --moe-ffn-hidden-size 256")
    assert routed.document["model"]["moe"]["shared_ffn_hidden_size"] == 512
    mixture = "--num-layers 4 --num-experts 8 --moe-ffn-hidden-size 256"
    dense = imported(f"{text} {mixture} --moe-first-k-dense-replace 1")
    assert (dense.document["model"]["moe"]["first_dense_layers"], dense.unknown) == (1, ())
    assert "moe" not in imported(f"torchrun --nproc_per_node 8 {TRAINS} --num-local-experts 8").document["model"]


def test_deepspeed_s_experts_beside_tensor_parallelism_are_refused_by_name() -> None:
    text = f"deepspeed {TRAINS} --num-experts 8 --topk 1 --deepspeed --tensor-model-parallel-size 2"
    refused = "--tensor-model-parallel-size: DeepSpeed sends the tokens of 2 tp ranks once"
    with pytest.raises(InputError, match=refused):
        imported(text.replace("--num-experts", "--num-routed-experts"))
    with pytest.raises(InputError, match=refused.replace("tensor-", "")):
        imported(text.replace("tensor-model", "model"))
    with pytest.raises(InputError, match="--topk: 'x' is not a whole number"):
        imported(text.replace("--topk 1", "--topk x"))
    assert imported(f"{text} --sequence-parallel").document["parallel"]["etp"] == 1
    assert "etp" not in imported(f"{text} --sequence-parallel --enable-expert-tensor-parallelism").document["parallel"]


@pytest.mark.parametrize(
    ("starts", "tp"),
    [
        ("env TP=2 bash train.sh", 2),
        ("docker run --rm -e TP=2 -e PROGRAM=own.py image:1 bash train.sh", 2),
        ("singularity exec --env=TP=2 image.sif sh train.sh", 2),
        ("sbatch --export=ALL,TP=2,NAME=a.sh train.sh", 2),
        ("qsub -v NAME=a,TP=2 train.sh", 2),
        ("TP=4\njob submit -e TP= -- bash train.sh", 1),
        ("TP=4\njob submit -e TP=$TP -- bash train.sh", 4),
        ("job submit -e TP=$TP -- bash train.sh", 1),
        ("make TP=2 all\nbash train.sh", 1),
    ],
)
def test_variables_that_a_command_hands_to_the_script_it_starts(starts: str, tp: int) -> None:
    files = {"train.sh": f"torchrun --nproc_per_node 8 {TRAINS} --tensor-model-parallel-size ${{TP:-1}}\n"}
    found = imported(starts, files)
    assert (found.document["parallel"]["tp"], found.document["gpus"]) == (tp, 8)
    assert imported(starts, files, TP="8").document["parallel"]["tp"] == 8


@pytest.mark.parametrize("option", ["--spec own.layers spec", "--tp-2d", "--enable-hyper-connections"])
def test_what_is_refused_is_taken_out_without_another_file(option: str) -> None:
    text, name = f"torchrun --nproc_per_node 8 {TRAINS} {option}", option.partition(" ")[0]
    with pytest.raises(InputError, match=rf"remove it to import the rest \(--arg={name}=none does\)"):
        imported(text)
    found = imported(text, **{name: "none"})
    assert found.document == imported(text.removesuffix(option)).document
    assert name[2:] in found.no_effect


def test_files_of_the_environment_are_not_asked_for() -> None:
    with pytest.raises(InputError, match=r"it reads helpers\.sh, which"):
        imported("source /there/venv/bin/activate\nsource helpers.sh\nsource <(curl there)\nsetup\n")
