"""The command that starts a training with DeepSpeed: its options, those of a file, and what accelerate says.

LLaMA-Factory's command takes a YAML file in the place of options, programs of TRL behind ``--config``.  Names and
defaults of accelerate are those of its commands/launch.py and of DeepSpeedPlugin in its utils/dataclasses.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.reading import parse_document, read_document
from simcluster.importers.arguments import BY_CONFIG, Arguments, from_words
from simcluster.importers.flat_settings import option_words
from simcluster.importers.imported import Settings
from simcluster.importers.shell.state import State
from simcluster.importers.shell.syntax import is_script

TABLES = read_document(Path(__file__).with_name("trainer_scripts.yaml")).data
"""What becomes of every option."""
_CONFIGS, _MICROS = (TABLES[name].split() for name in ("configurations", "micro_batches"))
_FILE = re.compile(r"^(model_name_or_path|per_device_train_batch_size):[ \t]", re.MULTILINE)
_YAML = re.compile(r"(?:--config=)?([^=\s]+\.ya?ml)")
_SETTING = re.compile(r"(\w+)=(.*)", re.DOTALL)
_ACCELERATE = re.compile(r"^['\"]?(compute_environment|distributed_type)['\"]?:", re.MULTILINE)
_READ = ("deepspeed_config_file", "zero_stage", "gradient_accumulation_steps")
_DEVICES = ("offload_optimizer_device", "offload_param_device")
_NOT_OF_A_STEP, _IDLE = (frozenset(TABLES[f"accelerate_{name}"].split()) for name in ("no_effect", "idle"))
_COUNTS = {"num_machines": "nnodes", "num_processes": "nproc-per-node"}


@dataclass(frozen=True)
class TrainerCommand:
    """A command: its options, the file that says how DeepSpeed trains (empty where accelerate's options do), and the
    words around it."""

    arguments: Arguments
    config: str
    around: Sequence[str] = ()


def is_trainer_file(text: str) -> bool:
    """Return whether the text is a YAML file of options of a program of Hugging Face's Trainer."""
    return _FILE.search(text) is not None and not is_script(text)


def training_of_file(text: str, source: str) -> TrainerCommand:
    """Return the training of a YAML of options alone; InputError where it names no configuration of DeepSpeed."""
    arguments = Arguments(_options_of(text, source))
    if not (config := arguments.said(*_CONFIGS)):
        raise InputError(
            f"{source}: says nothing of DeepSpeed (deepspeed: FILE); import the script that starts it, with the "
            "configuration of accelerate beside it, or write the scenario with simcluster import hugging-face"
        )
    return TrainerCommand(arguments, config)


def first_training(state: State) -> TrainerCommand:
    """Return the first command of a script that names a configuration of DeepSpeed; InputError where none does."""
    found: list[TrainerCommand] = []
    without = missing = ""
    for words, around in state.commands:
        arguments, absent = _arguments(words, state)
        if any(key.endswith("num-layers") for key in arguments.options):  # of Megatron-DeepSpeed
            continue
        config = arguments.said(*_CONFIGS)
        by_accelerate = is_of_accelerate(words) and not {"config-file", "use-deepspeed"}.isdisjoint(arguments.launched)
        if config or by_accelerate:
            name = (
                config or arguments.launched.get("deepspeed-config-file") or arguments.launched.get("config-file", "")
            )
            found.append(TrainerCommand(arguments, name, around))
        elif "deepspeed" in arguments.options and arguments.said("zero-stage").isdecimal():
            found.append(TrainerCommand(arguments, "", around))
        elif absent:
            missing = missing or absent
        elif not arguments.options.keys().isdisjoint(_MICROS):
            without = without or " ".join(arguments.launcher[-2:])[-60:]
    if not found:
        raise InputError(f"{state.source}: {_nothing(without, missing)}")
    if len({str(each.arguments.options) for each in found}) > 1:
        state.assumed[f"the first of {len(found)} trainings that the script starts"] = None
    return found[0]


def _nothing(without: str, missing: str) -> str:
    """Why no command of a script trains with DeepSpeed, and what would help."""
    if missing:
        return f"goes on in {missing}, which is neither beside it nor in a folder around it; put it there"
    if without:
        return f"starts {without} without DeepSpeed (with no --deepspeed FILE): {BY_CONFIG}"
    return (
        "starts nothing with --deepspeed FILE or --deepspeed_config FILE that is not Megatron-DeepSpeed (of which use "
        "simcluster import megatron); give the script that does, or the configuration itself"
    )


def _arguments(words: Sequence[str], state: State) -> tuple[Arguments, str]:
    """Return the options of a command, with those of a file that it names, and such a file that is not there."""
    arguments = from_words(words, repeated=True)
    before = ["", *words[:-1]]
    place = next((place for place, word in enumerate(words) if _names_options(word, before[place])), None)
    if place is None:
        return arguments, ""
    match = _YAML.fullmatch(words[place])
    name = match[1] if match else ""
    behind = words[place + 1 :]
    if before[place] != "--config" and "=" not in words[place]:  # the file stands in the place of options
        settings = {found[1].replace("_", "-"): (found[2],) for word in behind if (found := _SETTING.fullmatch(word))}
        own = from_words([word for word in behind if not _SETTING.fullmatch(word)], repeated=True).options
        arguments = replace(from_words([*words[:place], "--"], repeated=True), options={**own, **settings})
        arguments = replace(arguments, launcher=tuple(words[:place]))
    text = state.text_named(name)
    if text is None:
        return arguments, name
    own = {key: value for key, value in arguments.options.items() if key not in ("config", "")}
    return replace(arguments, options={**_options_of(text, name), **own}), ""


def _names_options(word: str, before: str) -> bool:
    """Return whether a word is a file of options: behind LLaMA-Factory's ``train``, a program or its ``--config``."""
    stands = before in ("train", "--config") or before.endswith(".py") or word.startswith("--config=")
    return stands and _YAML.fullmatch(word) is not None


def _options_of(text: str, source: str) -> dict[str, tuple[str, ...]]:
    """Return the fields of a YAML as options; null is not given, and false is said."""
    data = parse_document(text, source=source).data
    return {str(name).replace("_", "-"): _words(value) for name, value in data.items() if value is not None}


def _words(value: Any) -> tuple[str, ...]:
    """As of other files of options, but that an empty text is a word: what has none is a switch here."""
    return ("",) if isinstance(value, str) and not value.strip() else option_words(value)


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
    """Return whether a command starts its program by accelerate."""
    return any(word.rsplit("/", 1)[-1] in ("accelerate", "accelerate.commands.launch") for word in words)


def is_accelerate_file(text: str) -> bool:
    return _ACCELERATE.search(text) is not None


def accelerated(text: str, options: Mapping[str, str], source: str, *, steps_said: bool = False) -> Accelerated:
    """Return what the file says, and the launcher's options go before; InputError where it is not DeepSpeed that
    trains.

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
    over = [f"deepspeed_config.{name}" for name in said if name not in (*_READ, *_DEVICES, *_NOT_OF_A_STEP)]
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
