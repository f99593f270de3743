"""Reader of commands that start DeepSpeed training, with their option files and accelerate's configuration.

LLaMA-Factory's command takes a YAML file instead of options, programs of TRL after ``--config``. Names and defaults of
accelerate are those of its commands/launch.py and of DeepSpeedPlugin in its utils/dataclasses.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.yaml_documents import parse_document, read_document
from simcluster.importers.flat_settings import yaml_value_to_words
from simcluster.importers.import_result import TrackedSettings
from simcluster.importers.launch_arguments import CONFIG_JSON_ADVICE, LaunchArguments, parse_command_words
from simcluster.importers.shell.script_state import ScriptState
from simcluster.importers.shell.shell_parser import is_shell_script

TABLES = read_document(Path(__file__).with_name("trainer_scripts.yaml")).data
"""Classification of every option."""
CONFIG_OPTIONS = TABLES["configurations"].split()
"""Options that name a DeepSpeed configuration."""
_MICRO_BATCH_OPTIONS = TABLES["micro_batches"].split()
_OPTION_FILE = re.compile(r"^(model_name_or_path|per_device_train_batch_size):[ \t]", re.MULTILINE)
_YAML = re.compile(r"(?:--config=)?([^=\s]+\.ya?ml)")
_SETTING = re.compile(r"(\w+)=(.*)", re.DOTALL)
_ACCELERATE = re.compile(r"^['\"]?(compute_environment|distributed_type)['\"]?:", re.MULTILINE)
_READ_FIELDS = ("deepspeed_config_file", "zero_stage", "gradient_accumulation_steps")
_DEVICES = ("offload_optimizer_device", "offload_param_device")
_NO_EFFECT, _IDLE_FIELDS = (frozenset(TABLES[f"accelerate_{name}"].split()) for name in ("no_effect", "idle"))


@dataclass(frozen=True)
class TrainerCommand:
    """A command that starts DeepSpeed training, and the name of its DeepSpeed configuration file."""

    arguments: LaunchArguments
    config: str
    enclosing_words: Sequence[str] = ()


def is_trainer_option_file(text: str) -> bool:
    """Return whether a text is a YAML file of options for Hugging Face's Trainer."""
    return _OPTION_FILE.search(text) is not None and not is_shell_script(text)


def read_trainer_option_file(text: str, source: str) -> TrainerCommand:
    """Convert a YAML file of Hugging Face Trainer options to the command line that is equivalent to the file."""
    arguments = LaunchArguments(_parse_trainer_options(text, source))
    if not (config := arguments.option_text(*CONFIG_OPTIONS)):
        raise InputError(
            f"{source}: does not use DeepSpeed (deepspeed: FILE); import the script that starts it, with the "
            "accelerate configuration next to it, or create the scenario with simcluster import hugging-face"
        )
    return TrainerCommand(arguments, config)


def find_deepspeed_command(state: ScriptState) -> TrainerCommand:
    """Return the first command of a script that uses DeepSpeed; raise InputError if there is none."""
    found: list[TrainerCommand] = []
    nothing = (
        "starts no training with --deepspeed FILE or --deepspeed_config FILE (for Megatron-DeepSpeed use simcluster "
        "import megatron); give the script that does, or the DeepSpeed configuration"
    )
    without = missing = ""
    for words, around in state.commands:
        arguments, absent = _parse_trainer_command(words, state)
        options, launched = arguments.options, arguments.launched
        if any(key.endswith("num-layers") for key in options):  # Megatron-DeepSpeed
            continue
        by_accelerate = any(word.rsplit("/", 1)[-1] in ("accelerate", "accelerate.commands.launch") for word in words)
        by_accelerate = by_accelerate and not {"config-file", "use-deepspeed"}.isdisjoint(launched)
        by_program = "deepspeed" in options and arguments.option_text("zero-stage").isdecimal()
        name = arguments.option_text(*CONFIG_OPTIONS)
        if by_accelerate and not name:
            name = launched.get("deepspeed-config-file") or launched.get("config-file", "")
        if name or by_accelerate or by_program:
            found.append(TrainerCommand(arguments, name, around))
        elif absent:
            missing = missing or f"reads {absent}, which is neither next to it nor under a parent folder; put it there"
        elif not options.keys().isdisjoint(_MICRO_BATCH_OPTIONS):
            program = " ".join(arguments.launcher[-2:])[-60:]
            without = without or f"starts {program} without DeepSpeed (with no --deepspeed FILE): {CONFIG_JSON_ADVICE}"
    if not found:
        raise InputError(f"{state.source}: the script {missing or without or nothing}")
    if len({str(each.arguments.options) for each in found}) > 1:
        state.assumed[f"of {len(found)} trainings that the script starts, only the first is imported"] = None
    return found[0]


def _parse_trainer_command(words: Sequence[str], state: ScriptState) -> tuple[LaunchArguments, str]:
    """Return the options of a command and of the YAML file that it names; also the file's name if missing.

    The file is after LLaMA-Factory's ``train``, a program, or its ``--config``; in the first two cases NAME=VALUE words
    after it are options.
    """
    arguments = parse_command_words(words, repeated=True)
    for place, (before, word) in enumerate(zip(["", *words], words, strict=False)):
        dashed = before == "--config" or word.startswith("--config=")
        match = _YAML.fullmatch(word) if dashed or before == "train" or before.endswith(".py") else None
        if not match:
            continue
        own = arguments.options
        if not dashed:
            behind = words[place + 1 :]
            pairs = filter(None, map(_SETTING.fullmatch, behind))
            settings = {pair[1].replace("_", "-"): (pair[2],) for pair in pairs}
            others = [each for each in behind if not _SETTING.fullmatch(each)]
            own = parse_command_words(others, repeated=True).options | settings
            started = parse_command_words([*words[:place], "--"], repeated=True)
            arguments = replace(started, options=own, launcher=tuple(words[:place]))
        if (text := state.find_file_text(match[1])) is None:
            return arguments, match[1]
        own = {key: value for key, value in own.items() if key not in ("config", "")}
        return replace(arguments, options={**_parse_trainer_options(text, match[1]), **own}), ""
    return arguments, ""


def _parse_trainer_options(text: str, source: str) -> dict[str, tuple[str, ...]]:
    """Return a YAML file's fields as options; null fields are omitted, but false and empty texts are kept."""
    data = parse_document(text, source=source).data
    empty = {name for name, value in data.items() if isinstance(value, str) and not value.strip()}
    return {
        str(name).replace("_", "-"): ("",) if name in empty else yaml_value_to_words(value)
        for name, value in data.items()
        if value is not None
    }


@dataclass(frozen=True)
class AccelerateSettings:
    """Settings that accelerate makes: DeepSpeed configuration, process counts and mixed-precision format."""

    config: str
    config_file: str = ""
    process_counts: Mapping[str, str] = field(default_factory=dict)
    precision: str = ""
    assumed: tuple[str, ...] = ()
    no_effect: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    mapped: tuple[str, ...] = ()


def is_accelerate_file(text: str) -> bool:
    """Return whether the text is a configuration file of Hugging Face accelerate."""
    return _ACCELERATE.search(text) is not None


def read_accelerate_settings(
    text: str, options: Mapping[str, str], source: str, *, steps_set: bool = False
) -> AccelerateSettings:
    """Read an accelerate configuration file; options of the launcher override the file's settings.

    ``steps_set``: the program sets gradient accumulation itself, to the same number. Raises InputError for a backend
    other than DeepSpeed.
    """
    data = TrackedSettings(parse_document(text, source=source).data if text else {"distributed_type": "DEEPSPEED"})
    kind = str(data.get("distributed_type", "none"))
    if kind != "DEEPSPEED" and "use-deepspeed" not in options:
        raise InputError(f"{source}: distributed_type {kind[:20]} is not DEEPSPEED: {CONFIG_JSON_ADVICE}")
    given = {name.replace("-", "_"): value for name, value in options.items()}
    said: dict[str, Any] = data.get("deepspeed_config") or {}
    own: dict[str, Any] = {**said, **{name: given[name] for name in (*_READ_FIELDS, *_DEVICES) if name in given}}
    zero: dict[str, Any] = {"stage": _to_int_if_decimal(own.get("zero_stage", 2))}
    devices = {name.removesuffix("_device"): str(own.get(name, "none")).lower() for name in _DEVICES}
    zero |= {name: {"device": device} for name, device in devices.items() if device != "none"}
    auto = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    steps = "auto" if steps_set else _to_int_if_decimal(own.get("gradient_accumulation_steps", 1))
    formats = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    config = {**auto, "gradient_accumulation_steps": steps, "zero_optimization": zero, **formats}
    nodes, total = (_to_int_if_decimal(given.get(name, data.get(name))) for name in ("num_machines", "num_processes"))
    nodes = nodes or 1
    whole = isinstance(nodes, int) and isinstance(total, int) and total % nodes == 0
    precision = str(given.get("mixed_precision", data.get("mixed_precision", "no")))
    over = [f"deepspeed_config.{name}" for name in said if name not in (*_READ_FIELDS, *_DEVICES, *_NO_EFFECT)]
    assumed = (f"accelerate has no field {', '.join(over)[:300]}, and ignores it",) if over else ()
    rest = set(data.unread_names)
    on = {name for name in rest if name not in _IDLE_FIELDS and data[name] not in (None, False, "", "no", "NO", {})}
    return AccelerateSettings(
        json.dumps(config), str(own.get("deepspeed_config_file") or ""),
        {"nnodes": str(nodes), "nproc-per-node": str(total // nodes)} if whole else {},
        precision if precision in ("bf16", "fp16") else "", assumed,
        no_effect=tuple(sorted(rest - on)), unknown=tuple(sorted(on)), mapped=data.read_names,
    )  # fmt: skip


def _to_int_if_decimal(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value
