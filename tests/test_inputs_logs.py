"""Logs of trainings become scenarios: the configuration that a framework prints, and the time of a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.importers.megatron import scenario_from_arguments
from simcluster.importers.training_logs import measure_step_time
from simcluster.scenario.scenario import Scenario, load

# As Megatron-LM's _print_args prints them in 2025, without those of learning rates, logging and files.
USUAL = """
align_grad_reduce=True apply_rope_fusion=True async_tensor_model_parallel_allreduce=True
attention_backend=AttnBackend.auto
attention_dropout=0.1 barrier_with_L1_time=True bert_binary_head=True bf16=True bias_swiglu_fusion=True
accumulate_allreduce_grads_in_fp32=True add_bias_linear=True context_parallel_size=1 cp_comm_type=['p2p']
cuda_graph_scope=full data_parallel_sharding_strategy=no_shard decoder_seq_length=None encoder_num_layers=8
encoder_pipeline_model_parallel_size=0 encoder_seq_length=512 exp_avg_dtype=torch.float32 expert_model_parallel_size=1
expert_tensor_parallel_size=1 ffn_hidden_size=2048 fp16=False fp8=None fp8_recipe=delayed fp8_wgrad=True
global_batch_size=64 gradient_accumulation_fusion=True group_query_attention=False hidden_dropout=0.1 hidden_size=512
hybrid_attention_ratio=0.0 hybrid_override_pattern=None img_h=224 kv_channels=64 kv_lora_rank=32 mamba_state_dim=128
masked_softmax_fusion=True max_position_embeddings=512 max_tokens_to_oom=12000 micro_batch_size=1 moe_layer_freq=1
moe_router_topk=2 moe_token_dispatcher_type=allgather multi_latent_attention=False normalization=LayerNorm
num_attention_heads=8 num_distributed_optimizer_instances=1 num_experts=None num_layers=8
num_layers_per_virtual_pipeline_stage=None num_query_groups=1 optimizer=adam optimizer_offload_fraction=1.0
overlap_grad_reduce=False overlap_p2p_comm=False patch_dim=16 perform_initialization=True pin_cpu_grads=True
pipeline_model_parallel_size=1 position_embedding_type=learned_absolute q_lora_rank=None qk_head_dim=128
recompute_granularity=None retro_encoder_layers=2 retro_verify_neighbor_count=True
scatter_gather_tensors_in_pipeline=True
seq_length=512 sequence_parallel=False spec=None swiglu=False tensor_model_parallel_size=1 tp_comm_bulk_dgrad=True
tokenizer_type=GPT2BPETokenizer transformer_impl=transformer_engine transformer_pipeline_model_parallel_size=1
untie_embeddings_and_output_weights=False use_distributed_optimizer=False virtual_pipeline_model_parallel_size=None
vision_backbone_type=vit vocab_size=None wandb_project= world_size=8 yaml_cfg=None
"""
SIZES = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 "
    "--micro-batch-size 1 --global-batch-size 64 --tokenizer-type GPT2BPETokenizer --bf16 --kv-channels 64 "
    "--make-vocab-size-divisible-by 128 --context-parallel-size 1 --accumulate-allreduce-grads-in-fp32 "
)
ITERATIONS = "".join(
    f" [2025-04-13 23:41:00] iteration {10 * n:8}/    1000 | consumed samples: {640 * n:12} | elapsed time per "
    f"iteration (ms): {200 + n:.1f} | learning rate: 1.0E-04 | global batch size:    64 | lm loss: 1.0E+00 |\n"
    for n in range(1, 12)
)


def arguments(**fields: object) -> str:
    """Return a log of Megatron-LM with these fields in place of the usual ones."""
    pairs = dict(pair.partition("=")[::2] for pair in USUAL.split())
    rows = {**pairs, "make_vocab_size_divisible_by": 128, **fields}
    lines = "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in sorted(rows.items()))
    head, end = f"{'-' * 24} arguments {'-' * 24}\n", f"{'-' * 20} end of arguments {'-' * 21}\n"
    padded = " > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)\n"
    return f"using world size: 8\n{head}{lines}{end}{padded}{ITERATIONS}"


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, ""),
        (
            {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2, "overlap_p2p_comm": True},
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
        ),
        (
            {
                "tensor_model_parallel_size": 2,
                "sequence_parallel": True,
                "async_tensor_model_parallel_allreduce": False,
            },
            "--tensor-model-parallel-size 2 --sequence-parallel",
        ),
        (
            {"num_experts": 8, "moe_router_topk": 2, "expert_model_parallel_size": 4, "moe_grouped_gemm": True},
            "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 4 --moe-grouped-gemm "
            "--moe-token-dispatcher-type allgather --expert-tensor-parallel-size 1",
        ),
        (
            {"add_bias_linear": False, "group_query_attention": True, "num_query_groups": 2, "attention_dropout": 0.0},
            "--disable-bias-linear --group-query-attention --num-query-groups 2 --attention-dropout 0.0",
        ),
        (
            {"recompute_granularity": "selective", "recompute_modules": "['core_attn', 'mlp']", "fp8": "hybrid"},
            "--recompute-granularity selective --recompute-modules core_attn mlp --fp8-format hybrid "
            "--fp8-recipe delayed",
        ),
        ({"gradient_accumulation_fusion": False}, "--no-gradient-accumulation-fusion"),
    ],
)
def test_arguments_of_megatron_in_a_log_are_those_of_its_options(fields: dict[str, object], options: str) -> None:
    cluster = {"topology": "dgx_h100", "nodes": 1}
    printed = scenario_from_arguments(arguments(**fields), cluster=cluster, gpus_per_node=8)
    given = scenario_from_arguments(f"{SIZES} --ffn-hidden-size 2048 {options}", cluster=cluster, gpus=8)
    assert printed.document == given.document
    assert printed.unknown == ()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"spec": "['megatron.core.models.mamba', 'mamba_stack_spec']"}, "--spec: custom layer specs"),
        ({"hybrid_override_pattern": "M|M*"}, r"--hybrid-override-pattern: .*only layers M"),
        ({"own_parallel_trick": True}, "--own-parallel-trick"),
        ({"num_layers": "eight"}, "--num-layers: 'eight' is not a whole number"),
    ],
)
def test_what_is_not_modelled_of_printed_arguments_is_refused(fields: dict[str, object], words: str) -> None:
    def read() -> None:
        found = scenario_from_arguments(arguments(**fields), cluster={"topology": "dgx_h100"}, source="train.log")
        found.refuse_unknown("train.log", strict=False, by_option=True)

    with pytest.raises(InputError, match=words):
        read()


TITAN = {
    "job": {"config_file": "x.toml", "dump_folder": "./outputs", "print_args": True},
    "model": {"name": "llama3", "flavor": "8B", "converters": [], "print_after_conversion": False},
    "training": {"local_batch_size": 2, "global_batch_size": -1, "seq_len": 4096, "seed": None, "max_norm": 1.0,
                 "mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32", "enable_cpu_offload": False},
    "parallelism": {"tensor_parallel_degree": 2, "data_parallel_shard_degree": -1, "pipeline_parallel_degree": 1,
                    "pipeline_parallel_layers_per_stage": None, "pipeline_parallel_split_points": []},
    "activation_checkpoint": {"mode": "selective", "selective_ac_option": "op"},
    "compile": {"enable": True, "components": ["model", "loss"]},
    "own": {"new_parallel_trick": False, "new_size": 0},
}  # fmt: skip
BRIDGE = """
INFO:megatron.bridge: ------- Task Config -------
_target_: megatron.bridge.training.config.ConfigContainer
ddp:
  _target_: megatron.bridge.training.config.DistributedDataParallelConfig
  use_distributed_optimizer: true
model:
  _target_: megatron.bridge.models.llama.llama_provider.Llama3ModelProvider8B
  seq_length: 4096
  tensor_model_parallel_size: 2
train:
  _target_: megatron.bridge.training.config.TrainingConfig
  global_batch_size: 64
  micro_batch_size: 1
INFO:megatron.bridge: -------------
Step Time : 9.9s GPU utilization: 400.1MODEL_TFLOP/s/GPU
Step Time : 2.5s GPU utilization: 400.1MODEL_TFLOP/s/GPU
"""
NEMO = """
[NeMo W 2024-01-01 10:00:00 nemo_logging:349] /opt/x.py:1: UserWarning: y

[NeMo I 2024-01-01 10:00:00 megatron_gpt_pretraining:32]

    ************** Experiment configuration ***********
[NeMo I 2024-01-01 10:00:00 megatron_gpt_pretraining:33]
    name: megatron_gpt
    trainer:
      devices: 8
      num_nodes: 1
      precision: bf16
    model:
      micro_batch_size: 1
      global_batch_size: 64
      tensor_model_parallel_size: 2
      encoder_seq_length: 4096
      num_layers: 4
      hidden_size: 512
      num_attention_heads: 8
      ffn_hidden_size: ${multiply:4, ${.hidden_size}}
    exp_manager:
      name: x

[NeMo I 2024-01-01 10:00:01 exp_manager:394] Experiments will be logged at /x
Epoch 0: :  1%| | 1/100 [00:30<49:30, reduced_train_loss=11.0, global_step=0.000, train_step_timing in s=30.0]
Epoch 0: :  2%| | 2/100 [00:33<29:30, reduced_train_loss=11.0, global_step=1.000, train_step_timing in s=2.50]
"""
NEMO_2 = """
_partial_: true
_target_: nemo.collections.llm.api.pretrain
data:
  _target_: nemo.collections.llm.gpt.data.mock.MockDataModule
  global_batch_size: 64
  micro_batch_size: 1
  paths: &id001
  - a
  seq_length: 4096
model:
  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel
  config:
    _target_: nemo.collections.llm.gpt.model.llama.Llama3Config8B
optim:
  _target_: nemo.lightning.pytorch.optim.megatron.MegatronOptimizerModule
  config:
    _target_: megatron.core.optimizer.optimizer_config.OptimizerConfig
    bf16: true
    use_distributed_optimizer: true
trainer:
  _target_: nemo.lightning.pytorch.trainer.Trainer
  devices: 8
  num_nodes: 1
  plugins:
    _target_: nemo.lightning.pytorch.plugins.mixed_precision.MegatronMixedPrecision
    precision: bf16-mixed
  strategy:
    _target_: nemo.lightning.pytorch.strategies.megatron_strategy.MegatronStrategy
    pipeline_dtype:
      _call_: false
      _target_: torch.bfloat16
    tensor_model_parallel_size: 2
"""
DEEPSPEED = """
[INFO|configuration_utils.py:839] 2024-02-01 10:00:00,000 >> Model config LlamaConfig {
  "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
  "intermediate_size": 1536, "vocab_size": 5000, "max_position_embeddings": 4096
}
TrainingArguments(
_n_gpu=1,
gradient_checkpointing=True,
)
[2024-02-01 10:00:01,000] [INFO] [config.py:999:print] DeepSpeedEngine configuration:
[2024-02-01 10:00:01,000] [INFO] [config.py:1003:print]   train_batch_size ............. 64
[2024-02-01 10:00:01,000] [INFO] [config.py:1003:print]   train_micro_batch_size_per_gpu  4
[2024-02-01 10:00:01,000] [INFO] [config.py:1003:print]   world_size ................... 8
[2024-02-01 10:00:01,000] [INFO] [config.py:989:print_user_config]   json = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 2,
    "zero_optimization": {
        "stage": 2
    },
    "bf16": {
        "enabled": true
    }
}
***** Running training *****
  1%|          | 1/100 [00:09<15:00,  9.00s/it]
  2%|          | 2/100 [00:11<04:05,  2.50s/it]
"""


def titan(prefix: str = "") -> str:
    """Return a log of torchtitan, each line with the prefix of a rank."""
    lines = f"[titan] 2025-01-01 10:00:00,000 - root - INFO - Running with args: {json.dumps(TITAN, indent=2)}\n"
    for step, tps in ((1, 900), (10, 13_107), (20, 13_107)):
        lines += (
            f"[titan] 2025 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: 12.2  \x1b[34mtps: {tps:,}  \x1b[0m\n"
        )
    return "".join(f"{prefix}{line}\n" for line in lines.splitlines())


@pytest.mark.parametrize(
    ("kind", "name", "text", "step"),
    [
        ("megatron", "train.log", arguments(tensor_model_parallel_size=2), 0.2065),
        ("torchtitan", "train.log", titan(), 2 * 4 * 4096 / 13_107 / 8),
        ("torchtitan", "train.log", titan("[rank0]:"), 2 * 4 * 4096 / 13_107 / 8),
        ("torchtitan", "config.json", json.dumps(TITAN), None),
        ("megatron-bridge", "train.log", BRIDGE, 2.5),
        ("nemo", "train.log", NEMO, 2.5),
        ("nemo", "own_config.yaml", NEMO_2, None),
        ("deepspeed", "train.log", DEEPSPEED, 2.5),
    ],
)
def test_a_log_is_a_scenario_with_its_measured_step(
    kind: str, name: str, text: str, step: float | None, tmp_path: Path
) -> None:
    out = tmp_path / "out.yaml"
    (tmp_path / name).write_text(text)
    more = () if kind in ("nemo", "deepspeed") else ("--gpus", "8")
    assert main(["import", kind, str(tmp_path / name), "--cluster", "dgx_h100", "-o", str(out), *more]) == 0
    found: Scenario = load(out)
    assert found.gpus == 8
    assert found.training.global_batch == (8 if kind == "torchtitan" else 64)
    assert found.parallel.tp == (1 if kind == "deepspeed" else 2)
    measured: Any = found.measured
    assert measured is None if step is None else measured.step_time == pytest.approx(step, rel=1e-5)


def test_a_log_of_deepspeed_says_its_model_and_that_it_recomputes(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(DEEPSPEED)
    out = tmp_path / "out.yaml"
    command = ["import", "deepspeed", str(tmp_path / "train.log"), "--cluster", "dgx_h100", "-o", str(out)]
    assert main(command) == 0
    found = load(out)
    assert (found.model.layers, found.model.sequence_length, found.parallel.zero) == (6, 4096, 2)
    assert (found.training.micro_batch, found.training.recompute) == (4, "full")


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("torchtitan", titan()[:400], "the configuration after 'Running with args:' is cut off"),
        ("deepspeed", "TrainingArguments(\n)\n***** Running training *****\n", "is the log of a training without Deep"),
        ("nemo", arguments(), "this is the log of a training with Megatron-LM: run simcluster import megatron"),
    ],
)
def test_a_log_that_cannot_be_read_is_one_message(
    kind: str, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").write_text(text)
    assert main(["import", kind, str(tmp_path / "train.log"), "--cluster", "dgx_h100", "--gpus", "8"]) == 2
    assert words in capsys.readouterr().err


DOCUMENT: dict[str, Any] = {
    "gpus": 8, "training": {"global_batch": 64}, "model": {"preset": "llama3-8b", "sequence_length": 4096}
}  # fmt: skip


def iterations(*milliseconds: float, batch: int = 64) -> str:
    return "".join(
        f" iteration {10 * n:8}/ 1000 | consumed samples: {n} | elapsed time per iteration (ms): {each} | "
        f"global batch size: {batch:5} | lm loss: 2.0E+00 |\n"
        for n, each in enumerate(milliseconds, 1)
    )


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (iterations(9000, 8000, *[1500.0] * 30, 1600, 1400), 1.5),
        ("".join(f"steps: {n} loss: 1.0 iter time (s): 2.000 samples/sec: 32.0\n" for n in range(5)), 2.0),
        (
            "".join(
                f"[timer.py:260:stop] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=1.0, "
                "CurrSamplesPerSec=32.0, MemAllocated=1GB\n"
                for n in range(5)
            ),
            2.0,
        ),
        (
            "Training epoch 0, iteration 0/9 | lr: 1e-06 | global_batch_size: 64 | global_step: 0 | "
            "train_step_timing in s: 2.0\n",
            2.0,
        ),
        ("{'train_runtime': 100.0, 'train_samples_per_second': 32.0, 'train_steps_per_second': 0.5}", 2.0),
        (" 50%|##   | 50/100 [01:40<01:40,  2.00it/s]", 0.5),
        ("step: 10  loss: 2.0  memory: 1GiB(1%)  tps: 16,384  tflops: 1.0  mfu: 1%", 2.0),
    ],
)
def test_the_step_is_the_median_without_the_first_iterations(text: str, step: float) -> None:
    measured, words = measure_step_time(text, "train.log", DOCUMENT)
    assert float(measured["step_time"].split()[0]) == pytest.approx(step)
    assert words.startswith("measured")


def test_iterations_of_another_batch_do_not_count() -> None:
    ramped = iterations(*[500.0] * 5, batch=16) + iterations(*[1500.0] * 5)
    assert "5 with another batch excluded" in measure_step_time(ramped, "train.log", DOCUMENT)[1]
    for text, words in (
        ("nothing", "has no line with a step time"),
        (iterations(5.0, batch=8), "has a global batch of 8, but the scenario has 64"),
        (iterations(0.0), "take 0 ms"),
    ):
        with pytest.raises(InputError, match=words):
            measure_step_time(text, "train.log", DOCUMENT)
