"""Every setting of a file is read or reported, whatever the importer: mapped, without effect, assumed or unknown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from simcluster.cli import main
from simcluster.importers import deepspeed, megatron_bridge, nemo, torchtitan_settings, trainer_commands
from simcluster.importers.megatron_options import MAPPED, NO_EFFECT, NOT_MODELLED

Settings = dict[str, Any]
OWN = ("own_trick", "my_setting", "level_of_noise")
SIZES: Settings = {
    "num_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 512, "max_position_embeddings": 512,
    "micro_batch_size": 1, "global_batch_size": 64, "vocab_size": 5000, "bf16": True,
}  # fmt: skip
TRAINS: Settings = {
    "model_name_or_path": "Qwen/Qwen3-0.6B", "per_device_train_batch_size": 4, "max_seq_length": 512,
    "model_max_length": 256,
}  # fmt: skip
ZERO: Settings = {"train_batch_size": 64, "bf16.enabled": True, "zero_optimization.stage": 2}
AUTO = ZERO | {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}


def without(pattern: str, names: Any) -> list[str]:
    """Return the names that a pattern is not found in, in order."""
    return sorted(name for name in names if not re.search(pattern, name))


FLAGS = without(
    "zero-bubble|zbh1|dualpipe|fsdp|legacy|deepspeed|offload|deepep|latent|delay-wgrad|swap",
    [name for name, form in MAPPED.items() if form == "flag"],
)
MEGATRON = (
    FLAGS,
    without("^mode$|^img-|patch-dim|model-type|template|^stage$", NO_EFFECT),
    without("decoder-seq|checkpoint-args|rl-step|rampup", NOT_MODELLED),
)
OF_MODEL = [f"model.{name}" for name in megatron_bridge._TABLES["no_effect"].split()]
OF_NEMO = without(
    "fsdp|precision|target|kd_|wrap|amp_O2|^model.transformer_engine|mcore_gpt",
    [f"model.{name}" for name in nemo._TABLES["no_effect"].split()],
)
OF_TITAN = without(
    r"^[^.]*$|primus|float8|module_fqns|fsdp_dis|warmup_pct|enable_sel|per_op|early_stop|fp8|disable_loss",
    torchtitan_settings.TABLES["no_effect"].split(),
)
OF_TRAINER = without("lora", trainer_commands.TABLES["no_effect"].split())


def sectioned(settings: Settings) -> Settings:
    """Return nested sections of settings with dots in their names."""
    found: Settings = {}
    for name, value in settings.items():
        *path, last = name.split(".")
        inner = found
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return found


def options(settings: Settings) -> str:
    words = (f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}" for name, value in settings.items())
    return " ".join(words)


def yaml(settings: Settings, margin: str = "") -> str:
    lines: list[str] = []
    for name, value in settings.items():
        key = name.replace("-", "_")
        nested = isinstance(value, dict)
        lines.append(
            f"{margin}{key}:\n{yaml(value, margin + '  ')}" if nested else f"{margin}{key}: {json.dumps(value)}\n"
        )
    return "".join(lines)


def toml(settings: Settings) -> str:
    sections = sectioned(settings).items()
    return "".join(
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(fields[key])}\n" for key in fields) for name, fields in sections
    )


def primus(settings: Settings) -> dict[str, str]:
    module = {"framework": "megatron", "config": "c.yaml", "model": "m.yaml", "overrides": settings}
    return {
        "p.yaml": yaml({"modules": {"pre_trainer": module}}),
        "primus/configs/modules/megatron/c.yaml": "patch_zero_bubble: false\nown_default: 3\n",
        "primus/configs/models/megatron/m.yaml": "swiglu: false\n",
    }


@dataclass(frozen=True)
class Kind:
    """An importer and a form of its files: how one is written, its first file, and what is drawn for it."""

    command: str
    files: Callable[[Settings], Mapping[str, str]]
    drawn: tuple[list[str], ...]
    base: Settings
    section: str = ""


PROGRAM = "torchrun --nproc_per_node 8 pretrain_gpt.py"
SWIFT = "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-0.6B --max_length 512"
KINDS = {
    "command": Kind("megatron", lambda s: {"run.sh": f"{PROGRAM} {options(s)}\n"}, MEGATRON, SIZES),
    "script": Kind(
        "megatron", lambda s: {"run.sh": f"#!/bin/bash\nARGS='{options(s)}'\n{PROGRAM} $ARGS\n"}, MEGATRON, SIZES
    ),
    "options in YAML": Kind(
        "megatron",
        lambda s: {"o.yaml": "MODEL_ARGS:\n" + yaml(s, "  --").replace("_", "-").replace("MODEL-ARGS", "MODEL_ARGS")},
        MEGATRON,
        SIZES,
    ),
    "fields": Kind("megatron", lambda s: {"f.yaml": yaml(s)}, MEGATRON, SIZES),
    "FlagScale": Kind("megatron", lambda s: {"f.yaml": yaml({"system": {"seed": 2}, "model": s})}, MEGATRON, SIZES),
    "Primus": Kind("megatron", primus, MEGATRON, SIZES),
    "ms-swift": Kind("megatron", lambda s: {"s.sh": f"{SWIFT} {options(s)}\n"}, MEGATRON[1:], {}),
    "overrides": Kind(
        "megatron-bridge",
        lambda s: {"b.txt": "".join(f"{name}={value}\n" for name, value in s.items())},
        (OF_MODEL,),
        {f"{'train' if 'batch' in name else 'model'}.{name}": SIZES[name] for name in SIZES if name != "bf16"},
        "model.",
    ),
    "Bridge's YAML": Kind(
        "megatron-bridge",
        lambda s: {"b.yaml": yaml(sectioned(s))},
        (OF_MODEL,),
        {f"{'train' if 'batch' in name else 'model'}.{name}": SIZES[name] for name in SIZES if name != "bf16"},
        "model.",
    ),
    "NeMo": Kind(
        "nemo",
        lambda s: {"n.yaml": yaml(sectioned(s))},
        (OF_NEMO,),
        {f"model.{name}": SIZES[name] for name in SIZES if name != "bf16"}
        | {"trainer.devices": 8, "trainer.precision": "bf16", "model.fp8": False, "model.recompute_method": "uniform"},
        "model.",
    ),
    "torchtitan": Kind(
        "torchtitan",
        lambda s: {"t.toml": toml(s)},
        (OF_TITAN,),
        {
            "model.name": "llama3",
            "model.flavor": "8B",
            "training.seq_len": 2048,
            "parallelism.tensor_parallel_degree": 2,
            "parallelism.pipeline_parallel_schedule": "GPipe",
        },
        "own.",
    ),
    "DeepSpeed": Kind(
        "deepspeed",
        lambda s: {"ds.json": json.dumps(sectioned(s))},
        (deepspeed._TABLES["no_effect"].split(),),
        ZERO | {"zero_optimization.reduce_bucket_size": 10_000},
    ),
    "Trainer": Kind(
        "deepspeed",
        lambda s: {
            "r.sh": f"deepspeed --num_gpus 8 train.py --deepspeed ds.json {options(s)}\n",
            "ds.json": json.dumps(sectioned(AUTO)),
        },
        (OF_TRAINER,),
        TRAINS,
    ),
    "LLaMA-Factory": Kind(
        "deepspeed",
        lambda s: {
            "lf.yaml": yaml({**s, "deepspeed": "ds.json", "finetuning_type": "full"}),
            "ds.json": json.dumps(sectioned(AUTO)),
        },
        (OF_TRAINER,),
        TRAINS,
    ),
    "accelerate": Kind(
        "deepspeed",
        lambda s: {
            "a.sh": f"accelerate launch --config_file a.yaml train.py {options(TRAINS)}\n",
            "a.yaml": yaml(s) + "deepspeed_config:\n  zero_stage: 2\n",
        },
        (["machine_rank", "debug", "same_network", "rdzv_backend"],),
        {"distributed_type": "DEEPSPEED", "num_processes": 8, "mixed_precision": "bf16"},
    ),
}


def plain(text: str) -> str:
    """Return a name without dashes at its front, and with underscores."""
    return text.lstrip("-").replace("-", "_")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_read_and_what_is_reported_is_the_file(
    name: str, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, random = KINDS[name], Random(f"{name} {seed}")
    settings: Settings = {}
    for number, names in enumerate(kind.drawn):
        flags = len(kind.drawn) == 3 and number == 0
        settings |= dict.fromkeys(random.sample(names, min(len(names), 4)), True if flags else 1)
    own = [kind.section + each for each in random.sample(OWN, 2)]
    settings = {**settings, **dict.fromkeys(own, 3), **kind.base}
    files = kind.files(settings)
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    more = ("--model", "llama3-8b", "--sequence-length", "512") if kind.command == "deepspeed" else ()
    words = ["import", kind.command, str(tmp_path / next(iter(files))), "--cluster", "dgx_h100", "--gpus", "8"]
    status = main([*words, "--json", "-", *more])
    said = capsys.readouterr()
    assert status == 0, said.err
    lists = json.loads(said.out)
    listed = [plain(each) for each in (*lists["mapped"], *lists["no_effect"])]
    sentences = " ".join(map(plain, [*lists["assumed"], *lists["unknown"]]))
    written = [plain(each) for each in settings]
    assert [each for each in written if each not in listed and not re.search(rf"\b{each}\b", sentences)] == []
    assert [each for each in own if not any(plain(each) in plain(found) for found in lists["unknown"])] == []
    assert len(listed) == len(set(listed))
    if len(files) == 1 and name not in ("FlagScale", "ms-swift"):
        assert set(listed) <= set(written)
