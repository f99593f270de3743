"""Recipes and registries in Python that say one thing in several sections, or through functions of other files."""

from __future__ import annotations

from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.importers.imported import Imported
from simcluster.importers.megatron_bridge import scenario_from_bridge
from simcluster.importers.python_config import PythonConfigs
from simcluster.importers.torchtitan import scenario_from_torchtitan

CLUSTER = {"topology": "dgx_h100", "nodes": 1}
RECIPE = """
def small_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.2-1B").to_megatron_provider()
    cfg.optimizer = OptimizerConfig(bf16=True, fp16=False, use_distributed_optimizer=SHARDED)
    cfg.mixed_precision = PRECISION
    cfg.ddp.grad_reduce_in_fp32 = False
    cfg.ddp.use_distributed_optimizer = False
    cfg.peft = ADAPTERS
    return cfg
"""


def recipe(precision: str, *, sharded: bool = True, adapters: str = "None") -> Imported:
    text = f"PRECISION = {precision}\nSHARDED = {sharded}\nADAPTERS = {adapters}\n{RECIPE}"
    return scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="small_config", gpus=8)


@pytest.mark.parametrize(
    ("precision", "training"),
    [
        ("'bf16_mixed'", ("bf16-mixed", "mixed-18")),  # its gradients are reduced in 32 bits, whatever DDP says
        ("'fp16_mixed'", ("fp16-mixed", "mixed-16")),
        ("MixedPrecisionConfig(bf16=True, grad_reduce_in_fp32=False)", ("bf16-mixed", "mixed-16")),
    ],
)
def test_mixed_precision_has_the_last_word_in_a_recipe(precision: str, training: tuple[Any, ...]) -> None:
    found = recipe(precision).document["training"]
    assert (found["precision"], found["memory_recipe"]) == training


def test_a_distributed_optimizer_is_on_where_the_optimizer_or_ddp_has_it() -> None:
    zero = [recipe("'bf16_mixed'", sharded=sharded).document["parallel"]["zero"] for sharded in (True, False)]
    assert zero == [1, 0]


def test_a_recipe_that_trains_adapters_is_refused() -> None:
    with pytest.raises(InputError, match="small_config trains adapters beside weights that stand still"):
        recipe("'bf16_mixed'", adapters="default_peft_config('lora')")


def test_the_router_of_a_provider() -> None:
    text = "def own_config():\n    cfg = _pretrain_common()\n    cfg.model = OlMoEModelProvider()\n    return cfg\n"
    found = scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="own_config", gpus=8).document
    assert (found["model"]["name"], found["model"]["moe"]["aux_loss"]) == ("olmoe-7b", True)
    assert found["software"]["experts"]["router_dtype"] == "fp32"


# --- torchtitan -------------------------------------------------------------------------------------------------------

BASE = """
def llama3_8b():
    return Trainer.Config(
        model_spec=model_registry("8B"),
        training=TrainingConfig(local_batch_size=1, seq_len=8192),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=True, components=["loss"]),
    )
"""
GRAPHS = """
from torchtitan.models.llama3.config_registry import llama3_8b


def graph_llama3_8b():
    config = to_graph_trainer_config(llama3_8b(), model_registry)
    config.compile = GraphTrainerCompileConfig(enable=True)
    return config


def graph_llama3_8b_long():
    config = graph_llama3_8b()
    config.training = replace(config.training, seq_len=32768)
    config.model_spec = model_registry("8B", converters=[MXFP8LinearConverter.Config()])
    return config


def learns_by_rewards():
    return Controller.Config(trainer=PolicyTrainer.Config())
"""


def graphs(function: str) -> Imported:
    files = {"torchtitan/models/llama3/config_registry.py": BASE}
    return scenario_from_torchtitan(
        GRAPHS, cluster=CLUSTER, gpus=8, function=function, beside=files.get, source="graphs/llama3/config_registry.py"
    )


def test_a_registry_takes_configurations_of_another() -> None:
    found, long = (graphs(name).document for name in ("graph_llama3_8b", "graph_llama3_8b_long"))
    assert found["model"] == {"preset": "llama3-8b", "sequence_length": 8192}
    assert (found["training"]["recompute"], found["software"]) == ("operators", "torch-compile")
    assert (long["model"]["sequence_length"], long["training"]["global_batch"]) == (32768, 8)
    assert (found["training"]["precision"], long["training"]["precision"]) == ("bf16-mixed", "mxfp8-mixed")


def test_a_registry_of_reinforcement_learning_is_refused() -> None:
    with pytest.raises(InputError, match="learns_by_rewards is reinforcement learning"):
        graphs("learns_by_rewards")


def test_files_that_take_a_name_of_each_other_come_to_an_end() -> None:
    texts = {f"{name}.py": f"from {other} import x\n" for name, other in (("a", "b"), ("b", "a"))}
    assert PythonConfigs(f"{texts['a.py']}def f():\n    return g(x)\n", "f.py", beside=texts.get).read("f").name == "g"


JOB = """
[model]
name = "%s"
flavor = "8B"
converters = "%s"
[training]
batch_size = 1
seq_len = 8192
"""


@pytest.mark.parametrize(("converters", "precision"), [("", "bf16-mixed"), ("float8", "fp8-mixed")])
def test_a_list_of_converters_as_one_text(converters: str, precision: str) -> None:
    found = scenario_from_torchtitan(JOB % ("llama3", converters), cluster=CLUSTER, gpus=8)
    assert found.document["training"]["precision"] == precision


def test_models_with_linear_attention_are_refused_though_a_file_beside_says_sizes() -> None:
    sizes = "qwen35_configs = {'8B': Qwen35Model.Config(dim=1024, n_layers=24, n_heads=16, hidden_dim=4096)}"
    with pytest.raises(InputError, match="qwen3_5 has layers of linear attention"):
        scenario_from_torchtitan(JOB % ("qwen3_5", ""), cluster=CLUSTER, gpus=8, beside={"__init__.py": sizes}.get)
