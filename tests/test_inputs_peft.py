"""Imports of PEFT's ``adapter_config.json`` with ``simcluster import hugging-face``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from simcluster.cli import main
from simcluster.model.layers import parameters
from simcluster.planning.owned_parameters import parameters_of_layers
from simcluster.planning.rank_grid import ParallelPlan
from simcluster.scenario.scenario import Scenario, load

LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1536,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 8, "n_embd": 512, "n_head": 8, "n_positions": 1024, "vocab_size": 50257}
MIXTURE = LLAMA | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
MLPS = ["gate_proj", "up_proj", "down_proj"]
WRITTEN: dict[str, Any] = {
    "alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None, "auto_mapping": None,
    "base_model_name_or_path": "meta-llama/Llama-3.1-8B", "bias": "none", "corda_config": None,
    "ensure_weight_tying": False, "eva_config": None, "exclude_modules": None, "fan_in_fan_out": False,
    "inference_mode": True, "init_lora_weights": True, "layer_replication": None, "layers_pattern": None,
    "layers_to_transform": None, "loftq_config": {}, "lora_alpha": 32, "lora_bias": False, "lora_dropout": 0.0,
    "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None, "peft_type": "LORA",
    "peft_version": "0.18.0", "qalora_group_size": 16, "r": 16, "rank_pattern": {}, "revision": None,
    "target_modules": ["o_proj", "v_proj", "k_proj", "q_proj"], "target_parameters": None, "task_type": "CAUSAL_LM",
    "trainable_token_indices": None, "use_dora": False, "use_qalora": False, "use_rslora": False,
}  # fmt: skip
"""All keys that PEFT 0.18 writes."""
NF4 = {"load_in_4bit": True, "quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4"}


def write(folder: Path, config: Mapping[str, Any] | None, **changed: Any) -> None:
    (folder / "adapter_config.json").write_text(json.dumps(WRITTEN | changed))
    if config:
        (folder / "config.json").write_text(json.dumps(config))


def imported(folder: Path, name: str = "adapter_config.json") -> Scenario:
    command = ["import", "hugging-face", str(folder / name), "--cluster", "dgx_h100", "--gpus", "8", "--strict"]
    assert main([*command, "-o", str(folder / "job.yaml")]) == 0
    return load(folder / "job.yaml")


@pytest.mark.parametrize(
    ("config", "changed", "expected"),
    [
        (LLAMA, {}, {"modules": ("query", "key", "value", "projection")}),
        (LLAMA, {"target_modules": ["self_attn.q_proj", "mlp.up_proj"]}, {"modules": ("query", "up")}),
        (LLAMA, {"target_modules": ["q_proj"], "r": 4, "lora_dropout": 0.1},
         {"modules": ("query",), "rank": 4, "dropout": True}),
        (LLAMA, {"target_modules": "all-linear"},
         {"modules": ("query", "key", "value", "projection", "gate", "up", "mlp_down")}),
        (LLAMA | {"quantization_config": NF4}, {"target_modules": ["q_proj"]},
         {"modules": ("query",), "base_weights": "nf4"}),
        (LLAMA | {"quantization_config": NF4 | {"bnb_4bit_use_double_quant": True}}, {"target_modules": ["q_proj"]},
         {"modules": ("query",), "base_weights": "nf4-double"}),
        (LLAMA | {"model_type": "phi3"}, {"target_modules": "all-linear"},
         {"modules": ("qkv", "projection", "mlp_up", "mlp_down")}),
        (GPT2, {"target_modules": ["c_attn"]}, {"modules": ("qkv",)}),
        (GPT2, {"target_modules": ["c_attn", "c_proj"]}, {"modules": ("qkv", "projection", "mlp_down")}),
        (GPT2, {"target_modules": ["attn.c_proj"]}, {"modules": ("projection",)}),
        (MIXTURE, {"target_modules": ["q_proj", "v_proj"]}, {"modules": ("query", "value")}),
    ],
)  # fmt: skip
def test_an_adapter_config_becomes_trainable(
    config: dict[str, Any], changed: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, config, **changed)
    found = imported(tmp_path)
    assert found.training.trainable is not None
    assert found.training.trainable.model_dump(exclude_unset=True) == {"rank": 16, **expected}
    assert imported(tmp_path, "config.json").training.trainable is None


def test_the_parameters_are_those_that_peft_trains(tmp_path: Path) -> None:
    """r (in + out) of each matmul, by hand: q and o are 512 x 512, k and v 512 x 128, the MLP's 512 x 1536."""
    write(tmp_path, LLAMA, target_modules="all-linear")
    model = imported(tmp_path).model
    trained = parameters_of_layers(model, ParallelPlan(), [*range(8)]).total
    assert trained == 8 * 16 * (2 * (512 + 512) + 2 * (512 + 128) + 3 * (512 + 1536))
    assert parameters(model).total > 10 * trained


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "unsloth/Meta-Llama-3.1-8B", "/models/Llama-3.1-8B"])
def test_the_base_model_may_be_a_published_one(name: str, tmp_path: Path) -> None:
    write(tmp_path, None, base_model_name_or_path=name)
    found = imported(tmp_path)
    assert (found.model.name, found.model.layers) == ("llama3-8b", 32)
    assert found.parallel.zero == 1  # of all weights, ZeRO 1 would not fit


@pytest.mark.parametrize(
    ("config", "changed", "message"),
    [
        (LLAMA, {"peft_type": "IA3"}, "peft_type: 'IA3' is not modelled, only LORA"),
        (LLAMA, {"use_dora": True}, "use_dora: adapters of magnitude and direction (DoRA) are not modelled"),
        (LLAMA, {"bias": "lora_only"}, "bias: trains biases"),
        (LLAMA, {"modules_to_save": ["lm_head"]}, "modules_to_save: trains weights of the base model"),
        (LLAMA, {"rank_pattern": {"q_proj": 4}}, "rank_pattern: adapters of other ranks"),
        (LLAMA, {"exclude_modules": ["q_proj"]}, "exclude_modules: leaves out modules by name"),
        (LLAMA, {"task_type": "SEQ_CLS"}, "task_type: trains the head of another task"),
        (LLAMA, {"r": 0}, "training.trainable.rank: 0 is not a whole number from 1"),
        (LLAMA, {"target_modules": ["q_proj", "lm_head"]}, "adapters of lm_head are not modelled in llama"),
        (LLAMA, {"target_modules": ["model.layers.3.self_attn.q_proj"]}, "not modelled in llama; write some of q_proj"),
        (LLAMA, {"target_modules": ".*q_proj"}, "target_modules: is a regular expression; write all-linear"),
        (LLAMA, {"target_modules": None}, "target_modules: lists no modules"),
        (LLAMA, {"layers_to_transform": [2, 4]}, "layers_to_transform: adapters in some layers alone"),
        (LLAMA | {"model_type": "exaone4"}, {}, "target_modules: the modules of model exaone4 are not known"),
        (MIXTURE, {"target_modules": ["q_proj", *MLPS]}, "adapters of this kind of layer are not modelled: mixture"),
        (MIXTURE, {"target_modules": "all-linear"}, "adapters of this kind of layer are not modelled: mixture"),
        (None, {"base_model_name_or_path": "deepseek-ai/DeepSeek-V3"}, "not modelled: latent attention"),
        (None, {"base_model_name_or_path": "own/model"}, "the base model 'own/model' is not known; put"),
        (None, {"base_model_name_or_path": None}, "base_model_name_or_path is empty; put"),
        (LLAMA, {"batch_of_my_own": 3}, "unknown settings that may change the step: batch_of_my_own"),
    ],
)
def test_what_is_not_modelled_is_rejected_by_name(
    config: dict[str, Any] | None, changed: dict[str, Any], message: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write(tmp_path, config, **changed)
    assert main(["import", "hugging-face", str(tmp_path / "adapter_config.json"), "--cluster", "dgx_h100"]) == 2
    assert message in capsys.readouterr().err


def test_every_key_is_listed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, None, own_key=3)
    command = ["import", "hugging-face", str(tmp_path / "adapter_config.json"), "--cluster", "dgx_h100", "--json", "-"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(found["mapped"] + found["no_effect"] + found["unknown"]) == sorted([*WRITTEN, "own_key"])
    assert found["unknown"] == ["own_key"]


def test_adapters_need_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, LLAMA)
    assert main(["import", "hugging-face", str(tmp_path / "adapter_config.json")]) == 2
    assert "adapters are part of a scenario; add --cluster" in capsys.readouterr().err
    assert main(["import", "nemo", str(tmp_path / "adapter_config.json"), "--cluster", "dgx_h100"]) == 2
    assert "this is the adapter_config.json of PEFT: run simcluster import hugging-face" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["nemo", "megatron"])
def test_the_environment_of_mlperf_is_rejected_by_name(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config_DGXH100.sh").write_text("#!/bin/bash\nexport MINIBS=4\nexport TP=4\nexport DGXNNODES=1\n")
    assert main(["import", kind, str(tmp_path / "config_DGXH100.sh"), "--cluster", "dgx_h100"]) == 2
    assert "a file of MLPerf (config_*.sh, values of the environment), which cannot be" in capsys.readouterr().err
