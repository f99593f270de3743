"""Programs in Python that start a training with arguments of their own: NeMo's and Megatron-Bridge's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.cli import main
from simcluster.importers.imported import Imported
from simcluster.importers.megatron_bridge import scenario_from_bridge
from simcluster.importers.nemo import scenario_from_nemo

CLUSTER = {"topology": "dgx_h100", "nodes": 1}
BENCHMARK = """
import argparse, os
import nemo.collections.llm as llm
import nemo.lightning as nl

MODELS = {"small": (llm.Qwen3Config1P7B, llm.Qwen3Model, 28), "large": (llm.Llama31Config8B, llm.LlamaModel, 32)}
PP = 8

def uneven(layers, pp):
    if layers % pp == 0:
        return {}
    middle = -(-layers // pp)
    first = (layers - (pp - 2) * middle) // 2
    return {"num_layers_in_first_pipeline_stage": first, "num_layers_in_last_pipeline_stage": first}

def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("-b", "--batch", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, default=2)
    return parser.parse_args()

def main():
    args = parse_args()
    config_class, model_class, layers = MODELS[os.path.basename(args.model)]
    split = uneven(layers, PP)
    config = config_class(seq_length=2048, fp16=True, recompute_granularity="full", recompute_method="uniform",
                          recompute_num_layers=1, **{name: value for name, value in split.items() if value})
    data = llm.MockDataModule(seq_length=2048, global_batch_size=args.batch, micro_batch_size=args.micro_batch)
    trainer = nl.Trainer(
        devices=PP, num_nodes=1, strategy=nl.MegatronStrategy(pipeline_model_parallel_size=PP),
        plugins=nl.MegatronMixedPrecision(precision="fp16-mixed"),
    )
    START

if __name__ == "__main__":
    main()
"""
BY_PRETRAIN = "llm.pretrain(model=model_class(config=config), data=data, trainer=trainer)"


def nemo(text: str, **given: str) -> Imported:
    return scenario_from_nemo(text, cluster=CLUSTER, given=given, source="r.py")


def test_a_program_is_read_with_what_its_command_line_gives() -> None:
    found = nemo(BENCHMARK.replace("START", BY_PRETRAIN), model="/models/small", batch="32").document
    assert (found["model"]["name"], found["training"]["global_batch"]) == ("qwen3-1.7b", 32)
    assert found["pipeline"]["layers_per_stage"] == [2, 4, 4, 4, 4, 4, 4, 2]
    assert (found["training"]["precision"], found["training"]["recompute"]) == ("fp16-mixed", "full")
    assert found["training"]["micro_batch"] == 2


def test_a_trainer_that_fits_a_model() -> None:
    text = BENCHMARK.replace("START", "trainer.fit(model_class(config, optim=None), data)")
    found = nemo(text, model="large", batch="16").document
    assert (found["model"]["preset"], found["parallel"]["pp"]) == ("llama3-8b", 8)
    assert "layers_per_stage" not in found["pipeline"]


def test_arguments_that_a_program_needs_are_asked_for() -> None:
    words = r"\(config_class\) is not known here.*is given no model or batch \(--arg model=\.\.\. gives one\)"
    with pytest.raises(InputError, match=words):
        nemo(BENCHMARK.replace("START", BY_PRETRAIN))
    with pytest.raises(InputError, match=r"r\.py: takes no argument 'batches'"):
        nemo(BENCHMARK.replace("START", BY_PRETRAIN), model="small", batch="32", batches="1")
    with pytest.raises(InputError, match="--arg 'many': the program takes int there"):
        nemo(BENCHMARK.replace("START", BY_PRETRAIN), model="small", batch="many")


def test_arguments_are_given_by_name_on_our_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.py"
    file.write_text(BENCHMARK.replace("START", BY_PRETRAIN))
    told = ["--arg", "model=small", "--arg", "batch=32", "--arg", "micro-batch=4"]
    assert main(["import", "nemo", str(file), "--cluster", "dgx_h100", *told]) == 0
    assert "micro_batch: 4" in capsys.readouterr().out
    plain = tmp_path / "llama.yaml"
    plain.write_text("model: {num_layers: 2}\n")
    assert main(["import", "nemo", str(plain), "--cluster", "dgx_h100", *told]) == 2
    assert "--arg means nothing for nemo" in capsys.readouterr().err


SMALL = """
import os
from nemo.collections import llm
from nemo import lightning as nl

data = DATA
config = llm.GPTConfig(num_layers=6, hidden_size=384, num_attention_heads=6, seq_length=2048)
if __name__ == "__main__":
    nodes = int(os.environ["NODES"])
    trainer = nl.Trainer(
        devices=8, num_nodes=nodes, strategy=nl.MegatronStrategy(tensor_model_parallel_size=4),
        plugins=nl.MegatronMixedPrecision(precision="bf16-mixed"),
    )
    llm.train(model=llm.GPTModel(config, tokenizer=data.tokenizer), data=data, trainer=trainer)
"""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("llm.MockDataModule()", (8, 4, 50257)),  # as NeMo's data have it, and GPT-2's tokenizer
        ("llm.PreTrainingDataModule(paths=[], micro_batch_size=1, global_batch_size=64)", (64, 1, 50257)),
        (
            "llm.FineTuningDataModule(dataset_root='x', global_batch_size=64, "
            "tokenizer=AutoTokenizer('Qwen/Qwen3-8B'))",
            (64, 4, 151936),
        ),
        ("llm.MockDataModule(global_batch_size=64, tokenizer=SentencePieceTokenizer(path='x'))", (64, 4, 32000)),
    ],
)
def test_what_data_say_of_which_nothing_is_given(data: str, expected: tuple[int, ...]) -> None:
    found = nemo(SMALL.replace("DATA", data), NODES="1").document
    training = found["training"]
    assert (training["global_batch"], training["micro_batch"], found["model"]["vocab_size"]) == expected
    assert found["gpus"] == 8


def test_variables_of_the_environment_are_asked_for() -> None:
    found = nemo(SMALL.replace("DATA", "llm.MockDataModule(global_batch_size=64)"))
    assert "the program is given no NODES (--arg NODES=... gives one)" in found.assumed


def test_a_variable_that_a_program_gives_a_default_is_not_asked_for() -> None:
    text = SMALL.replace("DATA", "llm.MockDataModule(global_batch_size=64)")
    text = text.replace("data = ", 'os.environ.setdefault("NODES", "2")\ndata = ')
    assert nemo(text).document["gpus"] == 16
    assert nemo(text, NODES="1").document["gpus"] == 8


RECIPES = """
from nemo.collections import llm
from nemo.collections.llm.recipes.NAME import finetune_recipe as base
from nemo.collections.vlm.clip.model import CLIPConfigB32, CLIPModel
from tests.small import config

def trains():
    RECIPE
    RECIPE_SET
    return recipe
"""


@pytest.mark.parametrize(
    ("name", "recipe", "words"),
    [
        ("llama3_8b", "recipe = llm.llama3_8b.finetune_recipe(num_nodes=1)", "trains adapters .* where peft_scheme"),
        ("llama3_8b", "recipe = base(peft_scheme='none')", r"put nemo/collections/llm/recipes/llama3_8b\.py or "),
        ("nemotronh_8b", "recipe = base(peft_scheme='none')", "has layers of Mamba-2"),
        ("llama3_8b", "recipe = llm.mamba2_130m.finetune_recipe(num_nodes=1)", "has layers of Mamba-2"),
        (
            "llama3_8b", "recipe = run.Partial(x, model=run.Config(llm.LlamaModel, config(1)))",
            r"comes from config of tests\.small, which is not beside it",
        ),
        ("llama3_8b", "recipe = run.Partial(x, model=vlm.LlavaModel(vlm.LlavaConfig()))", "takes images or sound"),
        ("llama3_8b", "recipe = run.Partial(x, model=CLIPModel(CLIPConfigB32()))", "takes images or sound"),
    ],
)  # fmt: skip
def test_recipes_of_another_file(name: str, recipe: str, words: str) -> None:
    text = RECIPES.replace("NAME", name).replace("RECIPE_SET", "recipe.trainer.devices = 4").replace("RECIPE", recipe)
    with pytest.raises(InputError, match=words):
        scenario_from_nemo(text, cluster=CLUSTER, source="r.py", function="trains")


PARTS = """
from nemo.collections.llm.recipes.trainer.default import default_trainer
from own.parts import own_trainer

def parts(nodes=2):
    return run.Partial(
        pretrain, model=run.Config(LlamaModel, config=run.Config(Llama3Config8B)), trainer=TRAINER,
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=64, micro_batch_size=1),
    )
"""


def test_parts_that_functions_of_other_files_make() -> None:
    made = (
        "default_trainer(tensor_parallelism=4, pipeline_parallelism=2, pipeline_parallelism_type=None, "
        "virtual_pipeline_parallelism=4, context_parallelism=1, sequence_parallelism=True, num_nodes=nodes)"
    )
    text = PARTS.replace("TRAINER", made)
    found = scenario_from_nemo(text, cluster=CLUSTER, source="r.py", function="parts").document
    assert found["parallel"] == {"tp": 4, "pp": 2, "cp": 1, "sequence_parallel": True, "zero": 0}
    assert (found["pipeline"]["chunks"], found["gpus"]) == (4, 16)
    with pytest.raises(InputError, match=r"takes its trainer from own_trainer of own\.parts, which is not beside it"):
        scenario_from_nemo(PARTS.replace("TRAINER", "own_trainer(4)"), cluster=CLUSTER, source="r.py", function="parts")


BRIDGE = """
from megatron.bridge.training.pretrain import pretrain

def built(*, tp=1, pp=1):
    return ConfigContainer(
        model=Llama3ModelProvider8B(seq_length=256, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp),
        train=TrainingConfig(global_batch_size=8, micro_batch_size=1), mixed_precision="bf16_mixed",
    )

def starts_two():
    sizes = {"tensor_model_parallel_size": None, "sequence_parallel": True}
    config = built(tp=2, pp=2)
    for name, value in sizes.items():
        if value is not None:
            setattr(config.model, name, value)
    try:
        pretrain(config, forward_step)
    except Exception as problem:
        print(problem)
"""


def test_a_function_that_starts_a_training() -> None:
    found: dict[str, Any] = scenario_from_bridge(
        BRIDGE, cluster=CLUSTER, source="r.py", function="starts_two", gpus=4
    ).document
    assert (found["parallel"]["tp"], found["parallel"]["pp"]) == (2, 2)
    assert found["parallel"]["sequence_parallel"] is True
    assert found["training"]["memory_recipe"] == "mixed-18"
    assert scenario_from_bridge(BRIDGE, cluster=CLUSTER, source="r.py", gpus=4).document == found  # the one that does
    two = f"{BRIDGE}\ndef starts_one():\n    pretrain(built(), forward_step)\n"
    with pytest.raises(InputError, match=r"has several .* \(it has starts_two or starts_one\)"):
        scenario_from_bridge(two, cluster=CLUSTER, source="r.py", gpus=4)


def test_a_method_that_starts_a_training() -> None:
    methods = BRIDGE.replace("\ndef starts_two():", "\nclass TestRun:\n    def test_run(self, folder):").replace(
        "*,", "self,"
    )
    text = methods.replace("built(tp=2", "self.built(tp=2").replace("\ndef built(", "\nclass Made:\n    def built(")
    text = "\n".join(f"    {line}" if line.startswith("    ") else line for line in text.splitlines())
    text = text.replace("        def ", "    def ").replace(', mixed_precision="bf16_mixed"', "")
    found = scenario_from_bridge(text, cluster=CLUSTER, source="r.py", gpus=4).document
    assert (found["parallel"]["tp"], found["parallel"]["pp"]) == (2, 2)
    assert found["training"]["memory_recipe"] == "mixed-16"  # as DDP has it, where no precision is named
    named = scenario_from_bridge(text, cluster=CLUSTER, source="r.py", gpus=4, function="test_run").document
    assert named == found


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("experimental_attention_variant='own'", "attention of another kind"),
        ("enable_hyper_connections=True", "several streams of residuals"),
    ],
)
def test_latent_attention_by_its_class_and_what_is_not_modelled_of_it(fields: str, words: str) -> None:
    sizes = "num_layers=4, hidden_size=512, num_attention_heads=8, vocab_size=5000, normalization='RMSNorm', "
    model = f"MLAModelProvider({sizes}add_bias_linear=False, gated_linear_unit=True, seq_length=256"
    text = re.sub(r"Llama3ModelProvider8B\(.*\)", f"{model})", BRIDGE)
    found = scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="built", gpus=4).document["model"]
    assert found["mla"]["kv_lora_rank"] == 512
    text = re.sub(r"Llama3ModelProvider8B\(.*\)", f"{model}, {fields})", BRIDGE)
    with pytest.raises(InputError, match=words):
        scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="built", gpus=4)


def test_what_is_handed_on_unread_is_told() -> None:
    text = BRIDGE.replace("built(tp=2, pp=2)", "built(**asked())")
    found = scenario_from_bridge(text, cluster=CLUSTER, source="r.py", function="starts_two", gpus=4)
    assert found.unknown == ("what the recipe does with **asked()",)


TRON = """
from nemo.tron.api import megatron_pretrain

if __name__ == "__main__":
    model = llm.Llama32Config1B(num_layers=4, seq_length=1024, bf16=True)
    cfg = ConfigContainer(
        model_config=model, train_config=TrainingConfig(global_batch_size=64, micro_batch_size=1),
        optimizer_config=OptimizerConfig(bf16=True, use_distributed_optimizer=True),
        ddp_config=DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=True),
        dataset_config=GPTDatasetConfig(sequence_length=model.seq_length), rng_config=RNGConfig(seed=1),
    )
    megatron_pretrain(cfg, forward_step)
"""


def test_sections_of_a_container_by_the_names_of_nemo_tron() -> None:
    found = scenario_from_bridge(TRON, cluster=CLUSTER, source="r.py", gpus=8)
    assert (found.document["model"]["layers"], found.document["model"]["sequence_length"]) == (4, 1024)
    assert (found.document["parallel"]["zero"], found.document["overlap"]["grad_reduce"]) == (1, True)
    assert found.document["training"]["memory_recipe"] == "mixed-18"
    assert not found.unknown


def test_the_file_that_is_asked_for_is_the_last_of_those_that_hand_a_recipe_on() -> None:
    text = "from a.recipes import small_config\ndef own_pretrain_config():\n    return small_config()\n"
    files = {"a/recipes.py": "from a.h100.small import own_config as small_config\n"}

    def words() -> str:
        with pytest.raises(InputError) as caught:
            scenario_from_bridge(text, cluster=CLUSTER, source="r.py", gpus=8, beside=files.get)
        return str(caught.value)

    assert "small_config of a.h100.small, which is not beside it; put a/h100/small.py or" in words()
    files["a/h100/small.py"] = "from a.base import base\ndef own_config():\n    return base(1)\n"
    assert "takes its configuration from base of a.base, which is not beside it; put a/base.py or" in words()
    files["a/base.py"] = "from a.recipes import base\n"
    files["a/recipes.py"] += "from a.base import base\n"
    assert "which is not beside it" in words()  # files that hand it on in a circle


def test_what_a_program_does_that_starts_nothing_is_not_told_of_its_recipe() -> None:
    main = """
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", required=True)
    args = parser.parse_args()
    if args.way == "long":
        recipe.trainer.devices = 4
    run.cli.main(own_pretrain_config)
"""
    text = BRIDGE.replace("def built(*, tp=1, pp=1)", "def own_pretrain_config(tp=1, pp=1)").partition(
        "def starts_two"
    )[0]
    found = scenario_from_bridge(text + main, cluster=CLUSTER, source="r.py", gpus=4)
    assert not found.unknown
    assert not any("is given no way" in each for each in found.assumed)


BY_NAME = """
import argparse
import megatron.bridge.recipes as recipes
from megatron.bridge.training.finetune import finetune
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

# torch.distributed.run --nproc-per-node=4 run.py
MODES = {"pretrain": pretrain, "finetune": finetune}


def mode_of(name):
    pre, fine = "pretrain" in name.lower(), "finetune" in name.lower()
    if pre ^ fine:
        return "pretrain" if pre else "finetune"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", required=True)
    args, overrides = parser.parse_known_args()
    builder = getattr(recipes, args.recipe)
    config = process_config_with_overrides(builder(), cli_overrides=overrides)
    train = MODES[mode_of(args.recipe)]
    train(config=config)


if __name__ == "__main__":
    main()
"""


def test_a_program_that_takes_its_recipe_by_name() -> None:
    recipe = (
        "def small_pretrain_config():\n    cfg = _pretrain_common()\n    cfg.model = Llama32ModelProvider1B()\n"
        "    cfg.ft = FaultToleranceConfig(enable_ft_package=True)\n    return cfg\n"
    )
    files = {"megatron/bridge/recipes/__init__.py": recipe}
    found = scenario_from_bridge(
        BY_NAME, cluster=CLUSTER, source="r.py", beside=files.get, given={"recipe": "small_pretrain_config"}
    )
    assert found.document["model"]["layers"] == 16
    assert found.document["gpus"] == 4
    assert not found.unknown


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, r"starts what is said to it; the program is given no recipe \(--arg recipe=\.\.\. gives one\)"),
        (
            {"recipe": "a_pretrain_config"},
            r"recipes\.a_pretrain_config of megatron\.bridge\.recipes, which is not beside",
        ),
    ],
)
def test_a_program_whose_recipe_by_name_is_not_there(given: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        scenario_from_bridge(BY_NAME, cluster=CLUSTER, source="r.py", given=given)


def test_a_recipe_that_a_dictionary_holds_with_its_arguments() -> None:
    text = """
from functools import partial
from nemo.collections import llm

def main():
    made: dict = {"8b": {"pretrain": partial(llm.llama3_8b.pretrain_recipe, num_nodes=1)}}
    run.run(made["8b"]["pretrain"](name="x"))

if __name__ == "__main__":
    main()
"""
    with pytest.raises(InputError, match=r"put nemo/collections/llm/recipes/llama3_8b\.py"):
        nemo(text)


def test_of_files_that_import_each_other_only_what_a_recipe_takes_is_read() -> None:
    chain = "from p import m{0}\nWIDE = 4 + m{0}.WIDE\nTP = 2\n"
    files = {f"p/m{number}.py": chain.format(number + 1) for number in range(400)}
    files["p/own.py"] = 'TABLE = {"pp": 1}\nTABLE["pp"] = 2\nFIRST, PP = 1, TABLE["pp"]\nX = X2\nX2 = X\n'
    text = """
from p.m3 import WIDE, TP
from p.own import PP, X
cfg = ConfigContainer(model=Llama32ModelProvider1B())
cfg.train.global_batch_size = 64
def own_pretrain_config():
    cfg.model.tensor_model_parallel_size = TP
    cfg.model.pipeline_model_parallel_size = PP
    cfg.train.micro_batch_size = 1
    cfg.logger.wide = [WIDE, X]
    return cfg
"""
    found = scenario_from_bridge(text, cluster=CLUSTER, source="r.py", gpus=8, beside=files.get)
    assert (found.document["parallel"]["tp"], found.document["parallel"]["pp"]) == (2, 2)
    assert found.document["training"]["global_batch"] == 64  # of what the top of the file says


CONDITIONS = """
from a.layouts import set_layout
try:
    from a.backends import apply_flex_dispatcher_backend
except ImportError:
    apply_flex_dispatcher_backend = None

def first(config, names):
    for name in names:
        if name == "none":
            continue
        if hasattr(config, name):
            return name
        break
    return "nothing"

def own_pretrain_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("Qwen/Qwen3-30B-A3B").to_megatron_provider()
    cfg.model.moe_shared_expert_overlap = True
    cfg.model.expert_model_parallel_size = 8
    if apply_flex_dispatcher_backend is not None:
        apply_flex_dispatcher_backend(cfg.model, "deepep")
    for part in (getattr(cfg, "comm_overlap", None), cfg.model):
        if part is None:
            continue
        if hasattr(part, "overlap_moe_expert_parallel_comm"):
            part.overlap_moe_expert_parallel_comm = True
    if hasattr(cfg.model, "own_fuser") and cfg.model.own_fuser:
        cfg.model.own_fuser = False
    if hasattr(cfg.model, "own_other") and cfg.model.own_other:
        cfg.model.own_other = 3
    if is_large(cfg.model):
        make_small(cfg.model)
    set_layout(cfg.model)
    cfg.train.global_batch_size = 64 if first(cfg.model, ["none", "moe_shared_expert_overlap"]) != "nothing" else 8
    return cfg
"""


def test_conditions_of_what_is_there() -> None:
    found = scenario_from_bridge(CONDITIONS, cluster=CLUSTER, source="r.py", gpus=8)
    assert found.document["parallel"]["expert_dispatch"] == {"kind": "deepep"}
    assert found.document["training"]["global_batch"] == 64
    assert "model.overlap_moe_expert_parallel_comm" in found.mapped
    assert found.unknown == (
        "what the recipe does where hasattr(cfg.model, 'own_other') and cfg.model.own_other (it changes own_other)",
        "what the recipe does where is_large(cfg.model) (it changes make_small())",
        "what the recipe does in set_layout(cfg.model) of a.layouts, which is not beside it",
        "model.own_fuser",
    )


BUILDS = """
import fiddle as fdl
from nemo.collections import llm
from nemo import lightning as nl

model = llm.LlamaModel(config=llm.Llama31Config8B())
FORMAT = "tensorwise"

if __name__ == "__main__":
    data = llm.SquadDataModule(seq_length=4096, micro_batch_size=2, global_batch_size=64, PACKED)
    if FORMAT == "tensorwise":
        plugins = nl.MegatronMixedPrecision(
            precision="bf16-mixed", fp8="hybrid", fp8_recipe=FORMAT, first_last_layers_bf16=True
        )
    optim = fdl.build(distributed_fused_adam_with_cosine_annealing(max_lr=1e-6))
    trainer = nl.Trainer(devices=8, num_nodes=1, plugins=plugins, strategy=nl.MegatronStrategy())
    llm.finetune(model=model, data=data, trainer=trainer, optim=optim)
"""


@pytest.mark.parametrize(
    ("packed", "told"),
    [
        ("packed_sequence_specs=None", "sequences are full, though samples of fine-tuning are as long as they come"),
        ("packed_sequence_specs=PackedSequenceSpecs(4096)", "its samples are packed to a sequence"),
    ],
)
def test_a_part_that_is_built_and_samples_of_fine_tuning(packed: str, told: str) -> None:
    found = nemo(BUILDS.replace("PACKED", packed))
    assert found.document["model"] == {"preset": "llama3-8b", "sequence_length": 4096}
    assert (found.document["parallel"]["zero"], found.document["training"]["precision"]) == (1, "fp8-mixed")
    said = " ".join(found.assumed)
    assert told in said
    assert "first-last-layers-bf16: all layers are alike, in fp8 or fp4" in said
    assert not any("fp8" in each or "bf16" in each for each in found.no_effect)


def test_samples_of_the_usual_recipe_of_fine_tuning() -> None:
    text = "def own_recipe():\n    return default_finetune_recipe(run.Config(llm.LlamaModel, "
    text += "config=run.Config(llm.Llama3Config8B)), 'x', packed_sequence=PACKED)\n"
    found = [" ".join(nemo(f"PACKED = {packed}\n{text}").assumed) for packed in (False, True)]
    assert ["as long as they come" in each for each in found] == [True, False]


def test_a_recipe_by_name_of_packages_that_hand_on_all_that_others_have() -> None:
    text = """
import argparse
import megatron.bridge.recipes as recipes
from megatron.bridge.training.pretrain import pretrain

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", required=True)
    args = parser.parse_args()
    builder = getattr(recipes, args.recipe)
    pretrain(config=builder(), forward_step_func=forward_step)

if __name__ == "__main__":
    main()
"""
    files = {
        "megatron/bridge/recipes/__init__.py": "from megatron.bridge.recipes.a import *\nfrom .b import *\n",
        "megatron/bridge/recipes/a/__init__.py": "from megatron.bridge.recipes import *\nfrom .small import other\n",
        "megatron/bridge/recipes/b/__init__.py": "from .small import made_8gpu_h100_config as made_config\n",
        "megatron/bridge/recipes/b/small.py": "def made_8gpu_h100_config():\n    cfg = _pretrain_common()\n"
        "    cfg.model = Llama3ModelProvider8B()\n    cfg.model.context_parallel_size = 2\n    return cfg\n",
    }

    def started(**given: str) -> Imported:
        return scenario_from_bridge(text, cluster=CLUSTER, source="r.py", gpus=8, beside=files.get, given=given)

    assert started(recipe="made_config").document["parallel"]["cp"] == 2
    with pytest.raises(InputError, match=r"from other_config of megatron\.bridge\.recipes|recipes\.other_config of"):
        started(recipe="other_config")
    with pytest.raises(InputError, match=r"the program is given no recipe \(--arg recipe=\.\.\. gives one\)"):
        started()


def test_a_class_of_a_file_that_is_not_there() -> None:
    text = """
from own.models.basic import OwnModule, OwnConfig
if __name__ == "__main__":
    llm.train(model=OwnModule(config=OwnConfig()), data=None, trainer=nl.Trainer(devices=1, num_nodes=1))
"""
    with pytest.raises(
        InputError, match=r"\(OwnConfig\) is not known .* of own\.models\.basic, .* put own/models/basic\.py"
    ):
        nemo(text)
    beside = {"own/models/basic.py": "class OwnConfig:\n    width: int = 4\n"}.get
    with pytest.raises(InputError, match=r"does not say its sizes \(num_layers and others\)$"):
        scenario_from_nemo(text, cluster=CLUSTER, beside=beside, source="r.py")


def test_a_function_that_takes_its_model() -> None:
    text = "def own_recipe(model, folder, *, gpus=8):\n    return run.Partial(llm.finetune, model=model)\n"
    with pytest.raises(InputError, match=r"its argument model is given by whoever calls it.*or --arg model=\.\.\."):
        nemo(text)


@pytest.mark.parametrize(
    ("word", "tp", "gpus"), [("none", 4, "2"), ("None", 4, "2"), ("'none'", 4, "2"), ("whole", 1, "4")]
)
def test_arguments_of_the_function_that_is_named(word: str, tp: int, gpus: str) -> None:
    text = """
def finetune_recipe(num_nodes: int = 1, scheme: str | None = "lora"):
    tp = 4 if scheme is None or scheme.strip("'") == "none" else 1
    strategy = run.Config(nl.MegatronStrategy, tensor_model_parallel_size=tp)
    return run.Partial(
        llm.finetune, model=run.Config(llm.LlamaModel, config=run.Config(llm.Llama3Config8B)),
        trainer=run.Config(nl.Trainer, devices=2, num_nodes=num_nodes * 2, strategy=strategy, plugins=bf16_mixed()),
        data=run.Config(MockDataModule, seq_length=8192, global_batch_size=64, micro_batch_size=1),
        optim=distributed_fused_adam_with_cosine_annealing(max_lr=3e-4), peft=LoRA() if scheme == "lora" else None,
    )
"""
    given: dict[str, Any] = {"cluster": CLUSTER, "function": "finetune_recipe", "source": "r.py"}
    found = scenario_from_nemo(text, given={"scheme": word, "num-nodes": gpus}, **given).document
    assert (found["parallel"]["tp"], found["gpus"]) == (tp, 4 * int(gpus))
    with pytest.raises(InputError, match=r"not modelled \(a peft scheme of none trains all\)"):
        scenario_from_nemo(text, **given)
    with pytest.raises(InputError, match=r"'schema'; did you mean 'scheme'.*it takes num_nodes or scheme"):
        scenario_from_nemo(text, given={"schema": word}, **given)
