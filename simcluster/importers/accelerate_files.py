"""What accelerate, Hugging Face's launcher, says of DeepSpeed: in its configuration (YAML) and on its command line.

Names and defaults are those of accelerate's commands/launch.py and of DeepSpeedPlugin in its utils/dataclasses.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.reading import parse_document, read_document
from simcluster.importers.arguments import BY_CONFIG
from simcluster.importers.imported import Settings

_FILE = re.compile(r"^['\"]?(compute_environment|distributed_type)['\"]?:", re.MULTILINE)
_READ = ("deepspeed_config_file", "zero_stage", "gradient_accumulation_steps")
_DEVICES = ("offload_optimizer_device", "offload_param_device")
_TABLES = read_document(Path(__file__).with_name("trainer_scripts.yaml")).data
_NO_EFFECT, _IDLE = (frozenset(_TABLES[f"accelerate_{name}"].split()) for name in ("no_effect", "idle"))
_COUNTS = {"num_machines": "nnodes", "num_processes": "nproc-per-node"}


@dataclass(frozen=True)
class Accelerated:
    """A configuration of DeepSpeed as JSON, or the file that has it; processes, and the format of mixed precision."""

    config: str
    named: str
    launched: Mapping[str, str]
    precision: str
    assumed: tuple[str, ...]
    no_effect: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    mapped: tuple[str, ...] = ()


def is_of_accelerate(words: Sequence[str]) -> bool:
    """Whether a command starts its program by accelerate."""
    return any(word.rsplit("/", 1)[-1] in ("accelerate", "accelerate.commands.launch") for word in words)


def is_accelerate_file(text: str) -> bool:
    return _FILE.search(text) is not None


def accelerated(text: str, options: Mapping[str, str], source: str, *, steps_said: bool = False) -> Accelerated:
    """What the file says, and the launcher's options go before; InputError where it is not DeepSpeed that trains.

    ``steps_said``: the program says itself how many micro batches it accumulates, which is to be the same.
    """
    data = Settings(parse_document(text, source=source).data if text else {"distributed_type": "DEEPSPEED"})
    kind = str(data.get("distributed_type", "none"))
    if kind != "DEEPSPEED" and "use-deepspeed" not in options:
        raise InputError(f"{source}: distributed_type {kind[:20]} is not DEEPSPEED: {BY_CONFIG}")
    given = {name.replace("-", "_"): value for name, value in options.items()}
    said: dict[str, Any] = data.get("deepspeed_config") or {}
    own: dict[str, Any] = {**said, **{name: given[name] for name in (*_READ, *_DEVICES) if name in given}}
    stage, steps = _whole(own.get("zero_stage", 2)), _whole(own.get("gradient_accumulation_steps", 1))
    zero: dict[str, Any] = {"stage": stage}
    for name in _DEVICES:
        device = str(own.get(name, "none")).lower()
        if device != "none":
            zero[name.removesuffix("_device")] = {"device": device}
    config = {
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto" if steps_said else steps, "zero_optimization": zero,
        "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
    }  # fmt: skip
    counts = {key: _whole(given.get(name, data.get(name))) for name, key in _COUNTS.items()}
    nodes, total = counts["nnodes"] or 1, counts["nproc-per-node"]
    whole = isinstance(nodes, int) and isinstance(total, int) and total % nodes == 0
    precision = str(given.get("mixed_precision", data.get("mixed_precision", "no")))
    over = [f"deepspeed_config.{name}" for name in said if name not in (*_READ, *_DEVICES, *_NO_EFFECT)]
    assumed = (f"accelerate has no field {', '.join(over)[:300]}, and passes over what is there",) if over else ()
    rest = set(data.unread)
    on = {name for name in rest if name not in _IDLE and data[name] not in (None, False, "", "no", "NO", {})}
    return Accelerated(
        json.dumps(config), str(own.get("deepspeed_config_file") or ""),
        {"nnodes": str(nodes), "nproc-per-node": str(total // nodes)} if whole else {},
        precision if precision in ("bf16", "fp16") else "", assumed,
        no_effect=tuple(sorted(rest - on)), unknown=tuple(sorted(on)), mapped=data.read,
    )  # fmt: skip


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value
