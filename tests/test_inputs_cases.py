"""Launch scripts and configurations that were once imported wrongly, through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simcluster.cli import main
from simcluster.scenario.job_conversion import plan_footprints
from simcluster.scenario.scenario import Scenario, load

TITAN = """
[model]
name = "llama3"
flavor = "405B"
[training]
local_batch_size = 32
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
pipeline_parallel_degree = 8
pipeline_parallel_schedule = "1F1B"
pipeline_parallel_microbatch_size = 4
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""
TITAN_SCRIPT = """
GPU_TYPE=${GPU_TYPE:?set GPU_TYPE}
GPU_TYPE=${GPU_TYPE,,}
if [[ $GPU_TYPE == "h100" ]]; then
    PP=${PP:-8}
else
    PP=${PP:-1}
fi
torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file=job.toml --parallelism.pipeline_parallel_degree=$PP
"""


class Importer:
    """The command ``simcluster import`` on files in a folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def run(self, kind: str, name: str, *more: str) -> tuple[int, dict[str, Any], str]:
        """Return the exit status, the lists of ``--json`` and what stands on stderr."""
        status = main(["import", kind, str(self.folder / name), "--cluster", "dgx_h100", "--json", "-", *more])
        said = self._capsys.readouterr()
        return status, json.loads(said.out) if said.out.startswith("{") else {}, said.err

    def scenario(self, kind: str, name: str, *more: str) -> Scenario:
        """Return the scenario; the import has to succeed."""
        out = self.folder / "out.yaml"
        status, _, err = self.run(kind, name, "-o", str(out), *more)
        assert status == 0, err
        return load(out)


@pytest.fixture
def importer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Importer:
    return Importer(tmp_path, capsys)


def test_torchtitan_reduces_under_a_pipeline_in_the_last_microbatch(importer: Importer) -> None:
    """82.5 GiB were measured with 1F1B on 512 H100 (torchtitan, issue 773); 45 GB without the unsharded gradients."""
    importer.write({"job.toml": TITAN, "plain.toml": TITAN.replace("pipeline_parallel_degree = 8", "")})
    found = importer.scenario("torchtitan", "job.toml", "--gpus", "512")
    assert not found.fsdp.sync_every_microbatch
    most = max(each.total for each in plan_footprints(found))
    every = max(each.total for each in plan_footprints(found.with_({"fsdp.sync_every_microbatch": True})))
    assert most - every > 20e9
    assert importer.scenario("torchtitan", "plain.toml", "--gpus", "512").fsdp.sync_every_microbatch


def test_variables_of_a_torchtitan_script(importer: Importer) -> None:
    importer.write({"run.sh": TITAN_SCRIPT, "job.toml": TITAN.replace("pipeline_parallel_degree = 8", "")})
    status, _, err = importer.run("torchtitan", "run.sh", "--gpus", "512")
    assert status == 2
    assert "requires GPU_TYPE, which is not set" in err
    assert "--arg GPU_TYPE=..." in err
    assert importer.scenario("torchtitan", "run.sh", "--gpus", "512", "--arg", "GPU_TYPE=h100").parallel.pp == 8
    assert importer.scenario("torchtitan", "run.sh", "--gpus", "512", "--arg", "GPU_TYPE=b200").parallel.pp == 1
    importer.write({"run.sh": TITAN_SCRIPT.replace("$PP", "$STAGES")})
    status, _, err = importer.run("torchtitan", "run.sh", "--arg", "GPU_TYPE=h100")
    assert status == 2
    assert "--parallelism.pipeline_parallel_degree: $STAGES is filled in by a shell" in err
    importer.write({"run.sh": TITAN_SCRIPT.replace(":?set GPU_TYPE", "")})
    _, found, _ = importer.run("torchtitan", "run.sh", "--gpus", "512")
    assert any("sets no value: GPU_TYPE (--arg NAME=VALUE sets one)" in sentence for sentence in found["assumed"])


@pytest.mark.parametrize("required", ["TP=${TP:?}", ': "${TP:?set TP}"', "TP=${1:?usage: run.sh TP}"])
def test_a_variable_that_a_script_requires_is_asked_for(importer: Importer, required: str) -> None:
    options = (
        "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 "
        "--micro-batch-size 1 --vocab-size 5000 --bf16 --tensor-model-parallel-size $SIZE"
    )
    test = f"{required}\nif [ $TP -gt 1 ]; then SIZE=2; else SIZE=1; fi\n"
    importer.write({"run.sh": f"#!/bin/bash\n{test}torchrun --nproc_per_node 8 pretrain_gpt.py {options}\n"})
    status, _, err = importer.run("megatron", "run.sh")
    name = "1" if "{1" in required else "TP"
    assert status == 2
    assert f"--arg {name}=..." in err
    assert importer.scenario("megatron", "run.sh", "--arg", f"{name}=4").parallel.tp == 2
    assert importer.scenario("megatron", "run.sh", "--arg", f"{name}=1").parallel.tp == 1


CYCLE = """
from nemo import lightning as nl
from nemo.collections import llm

class Connector:
    def __init__(self, trainer):
        self.trainer = trainer

def main():
    model = llm.LlamaModel(llm.Llama31Config8B())
    strategy = nl.MegatronStrategy(tensor_model_parallel_size=2, sequence_parallel=True)
    trainer = nl.Trainer(devices=8, num_nodes=1, strategy=strategy)
    CYCLE
    data = llm.MockDataModule(seq_length=8192, global_batch_size=128, micro_batch_size=1)
    llm.pretrain(model=model, data=data, trainer=trainer)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    "cycle",
    [
        "trainer.helper = Connector(trainer=trainer)",
        "trainer.callbacks = [Connector(trainer=trainer)]",
        "model.owner = trainer; trainer.model = model",
        "strategy.strategy = strategy; model.me = model; model.me.me.me = model",
        "trainer.copy = copy.deepcopy(trainer); trainer.copy.origin = trainer",
    ],
)
def test_objects_that_hold_each_other_are_read(importer: Importer, cycle: str) -> None:
    importer.write({"train.py": CYCLE.replace("CYCLE", cycle)})
    found = importer.scenario("nemo", "train.py")
    assert (found.parallel.tp, found.gpus, found.training.global_batch) == (2, 8, 128)


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("nemo", "train.py", CYCLE.replace("CYCLE", "x = " + "-" * 2000 + "1")),
        ("nemo", "train.py", "def recipe():\n    return recipe()\nrecipe()\n"),
        ("megatron-bridge", "r.py", "def a_pretrain_config():\n  return b()\ndef b():\n  return a_pretrain_config()\n"),
        ("nemo", "train.py", "class A(B): pass\nclass B(A): pass\n" + CYCLE.replace("llm.LlamaModel(", "A(")),
        ("torchtitan", "job.toml", "a = " + "[" * 5000 + "]" * 5000),
        ("nemo", "job.yaml", "trainer: " + "[" * 5000 + "]" * 5000),
        ("deepspeed", "ds.json", '{"a":' * 5000 + "1" + "}" * 5000),
        ("hugging-face", "config.json", '{"a":' * 5000 + "1" + "}" * 5000),
    ],
)  # fmt: skip
def test_what_refers_to_itself_is_one_message(importer: Importer, kind: str, name: str, text: str) -> None:
    importer.write({name: text})
    model = ("--model", "llama3-8b") if kind == "deepspeed" else ()
    status, _, err = importer.run(kind, name, *model)
    assert status in (0, 2)
    assert "Traceback" not in err
    assert status == 0 or err.count("simcluster: error:") == 1


SWIFT = """NPROC_PER_NODE=8 \\
megatron sft --model Qwen/Qwen3-30B-A3B --tensor_model_parallel_size 2 --expert_model_parallel_size 8 \\
    --max_length 8192 --sequence_parallel true --packing true --recompute_granularity full --recompute_method uniform
"""


def test_ms_swift_names_its_model(importer: Importer) -> None:
    importer.write({"swift.sh": SWIFT})
    found = importer.scenario("megatron", "swift.sh")
    assert (found.model.name, found.model.sequence_length, found.gpus) == ("qwen3-30b-a3b", 8192, 8)
    assert (found.parallel.tp, found.parallel.ep, found.parallel.etp, found.parallel.zero) == (2, 8, 1, 1)
    assert (found.training.micro_batch, found.training.global_batch, found.training.dropout) == (1, 16, False)
    _, lists, _ = importer.run("megatron", "swift.sh")
    assert any("Megatron-SWIFT (ms-swift), whose model is Qwen/Qwen3-30B-A3B" in each for each in lists["assumed"])
    assert not lists["unknown"]
    mcore = SWIFT.replace("--model Qwen/Qwen3-30B-A3B", "--load Qwen3-30B-A3B-Base-mcore")
    importer.write({"swift.sh": mcore})
    assert importer.scenario("megatron", "swift.sh").model == found.model


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("--packing", "--train_type lora --packing", "tuner type lora trains adapters"),
        ("megatron sft", "megatron rlhf", "megatron rlhf of Megatron-SWIFT (ms-swift) cannot be imported"),
        ("--model Qwen/Qwen3-30B-A3B", "--model my/Own-7B", "put its config.json next to the file"),
        ("--model Qwen/Qwen3-30B-A3B", "", "is a Megatron-SWIFT (ms-swift) command without a model"),
    ],
)
def test_what_ms_swift_does_otherwise_is_refused(importer: Importer, old: str, new: str, words: str) -> None:
    importer.write({"swift.sh": SWIFT.replace(old, new)})
    status, _, err = importer.run("megatron", "swift.sh")
    assert status == 2
    assert words in err


def test_a_model_by_name_in_place_of_its_sizes(importer: Importer) -> None:
    batch = "--micro-batch-size 1 --global-batch-size 64 --seq-length 4096"
    importer.write({"run.sh": f"torchrun --nproc_per_node 8 pretrain_gpt.py --hf-model-path Qwen/Qwen3-8B {batch}\n"})
    found = importer.scenario("megatron", "run.sh")
    assert (found.model.name, found.model.sequence_length, found.training.global_batch) == ("qwen3-8b", 4096, 64)


SIZES = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 5000 --bf16"
)
RECIPE = """
from megatron.bridge.training.config import ConfigContainer, OptimizerConfig, TrainingConfig
from megatron.bridge.models import Llama3ModelProvider8B
from own.helpers import OWN

def own_pretrain_config(tp: int = 2):
    model = Llama3ModelProvider8B(tensor_model_parallel_size=tp, seq_length=8192)
    train = TrainingConfig(global_batch_size=64, micro_batch_size=1)
    cfg = ConfigContainer(model=model, train=train, optimizer=OptimizerConfig(use_distributed_optimizer=True))
    SETS
    return cfg
"""


@pytest.mark.parametrize(
    ("sets", "where", "expected"),
    [
        ("cfg.model.sequence_parallel = tp > 1", "parallel.sequence_parallel", True),
        ("cfg.model.sequence_parallel = tp >= 4", "parallel.sequence_parallel", False),
        ("cfg.model.context_parallel_size = {1: 4, 2: 2}[tp]", "parallel.cp", 2),
        ("cfg.model.context_parallel_size = (1, 4)[-1]", "parallel.cp", 4),
        ("cfg.model.context_parallel_size = 8 // tp", "parallel.cp", 4),
        ("cfg.train.global_batch_size = 64 if tp == 1 else 4 * 32", "training.global_batch", 128),
        ("cfg.model.recompute_granularity = 'full' if not tp in (1, None) else None", "training.recompute", "full"),
    ],
)
def test_expressions_of_a_recipe_are_worked_out(importer: Importer, sets: str, where: str, expected: object) -> None:
    importer.write({"r.py": RECIPE.replace("SETS", sets)})
    document: Any = importer.scenario("megatron-bridge", "r.py").model_dump()
    section, field = where.split(".")
    assert document[section][field] == expected


NEMO = CYCLE.replace("CYCLE", "SETS")
KINDS = {
    "megatron": ("run.sh", f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} SETTING\n", "--{}"),
    "megatron-bridge": ("r.py", RECIPE.replace("SETS", "SETTING"), "cfg.model.{} = 3"),
    "nemo": ("train.py", NEMO.replace("SETS", "SETTING"), "strategy.{} = 3"),
    "torchtitan": ("job.toml", TITAN + "[own]\nSETTING\n", "{} = 3"),
    "deepspeed": ("ds.json", '{"train_batch_size": 64, SETTING}', '"{}": 3'),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("own_batch_schedule", "batch"),
        ("new_pipeline_trick", "pipeline"),
        ("recompute_own_layers", "recompute"),
        ("own_parallel_mode", "parallel"),
        ("own_fp8_mode", "fp8"),
        ("own_seq_split", "seq"),
        ("own_quantizer", "quant"),
        ("enable_1f1b_v", "1f1b"),
        ("own_tp_group", "tp"),
        ("own_trick", ""),
    ],
)
def test_an_unknown_setting_that_decides_the_step_is_asked_about(
    importer: Importer, kind: str, name: str, word: str
) -> None:
    file, text, form = KINDS[kind]
    importer.write({file: text.replace("SETTING", form.format(name))})
    more = ("--gpus", "512") if kind == "torchtitan" else ()
    more = ("--model", "llama3-8b", "--sequence-length", "4096", "--gpus", "8") if kind == "deepspeed" else more
    status, found, err = importer.run(kind, file, *more)
    if word:
        assert status == 2, found
        assert word in err
        assert name in err.replace("-", "_")
    else:
        assert status == 0, err
        assert any(name in each.replace("-", "_") for each in found["unknown"])


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ("cfg.model.context_parallel_size = OWN.cp(tp)", "model.context_parallel_size: OWN.cp(...) is computed"),
        ("cfg.model.sequence_parallel = OWN(tp)", "model.sequence_parallel: OWN(...) is computed"),
        ("cfg.model.sequence_parallel = {k: k for k in OWN}", "is computed when the program runs"),
        ("if OWN.big():\n        cfg.model.context_parallel_size = 2", "OWN.big() (it changes context_parallel_size)"),
        ("for n in OWN.all():\n        cfg.train.global_batch_size = n", "(it changes global_batch_size)"),
    ],
)  # fmt: skip
def test_what_of_a_recipe_is_not_worked_out_is_asked_about(importer: Importer, sets: str, words: str) -> None:
    importer.write({"r.py": RECIPE.replace("SETS", sets)})
    status, _, err = importer.run("megatron-bridge", "r.py")
    assert status == 2
    assert words in err


@pytest.mark.parametrize(
    ("sets", "status"), [("TP_SIZE=4", 2), ('MORE="--recompute-activations"', 2), ("NAME=large", 0)]
)
def test_a_test_of_a_script_that_is_not_decided(importer: Importer, sets: str, status: int) -> None:
    asks = f"TP_SIZE=2\nif [ $(own_tool --count) -gt 4 ]; then\n    {sets}\nfi\n"
    command = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} --tensor-model-parallel-size $TP_SIZE $MORE\n"
    importer.write({"run.sh": f"#!/bin/bash\n{asks}{command}"})
    found, lists, err = importer.run("megatron", "run.sh")
    assert found == status
    said = "uses the value of [$own_tool--count-gt4]" if "TP" in sets else "$(own_tool --count) -gt 4 ] in line 3"
    assert said in err or status == 0
    assert status == 2 or any("is assumed to be false" in sentence for sentence in lists["assumed"])


@pytest.mark.parametrize("option", ["--own-parallel-size 1", "--own-pipeline-trick false", "--own-fp8-mode none"])
def test_an_unknown_option_that_is_off_changes_nothing(importer: Importer, option: str) -> None:
    importer.write({"run.sh": f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {option}\n"})
    status, lists, err = importer.run("megatron", "run.sh")
    assert status == 0, err
    assert option.split()[0][2:] in lists["no_effect"]
