"""The command that starts a training with DeepSpeed, and its options, which may stand in a YAML file that it names.

LLaMA-Factory's command takes such a file in the place of options, programs of TRL behind ``--config``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.reading import parse_document, read_document
from simcluster.importers.accelerate_files import is_of_accelerate
from simcluster.importers.arguments import BY_CONFIG, Arguments, from_words
from simcluster.importers.option_files import option_words
from simcluster.importers.shell.state import State
from simcluster.importers.shell.syntax import is_script

TABLES = read_document(Path(__file__).with_name("trainer_scripts.yaml")).data
"""What becomes of every option."""
_CONFIGS, _MICROS = (TABLES[name].split() for name in ("configurations", "micro_batches"))
_FILE = re.compile(r"^(model_name_or_path|per_device_train_batch_size):[ \t]", re.MULTILINE)
_YAML = re.compile(r"(?:--config=)?([^=\s]+\.ya?ml)")
_SETTING = re.compile(r"(\w+)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class TrainerCommand:
    """A command: its options, the file that says how DeepSpeed trains (empty where accelerate's options do), and the
    words around it."""

    arguments: Arguments
    config: str
    around: Sequence[str] = ()


def is_trainer_file(text: str) -> bool:
    """Whether the text is a YAML file of options of a program of Hugging Face's Trainer."""
    return _FILE.search(text) is not None and not is_script(text)


def training_of_file(text: str, source: str) -> TrainerCommand:
    """The training that a YAML of options alone is for; InputError where it names no configuration of DeepSpeed."""
    arguments = Arguments(_options_of(text, source))
    if not (config := arguments.said(*_CONFIGS)):
        raise InputError(
            f"{source}: says nothing of DeepSpeed (deepspeed: FILE); import the script that starts it, with the "
            "configuration of accelerate beside it, or write the scenario with simcluster import hugging-face"
        )
    return TrainerCommand(arguments, config)


def first_training(state: State) -> TrainerCommand:
    """The first command of a script that names a configuration of DeepSpeed; InputError where none does."""
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
    """The options of a command, those of a file that it names below its own, and such a file that is not there."""
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
    """Whether a word is a file of options: behind LLaMA-Factory's ``train``, a program or its ``--config``."""
    stands = before in ("train", "--config") or before.endswith(".py") or word.startswith("--config=")
    return stands and _YAML.fullmatch(word) is not None


def _options_of(text: str, source: str) -> dict[str, tuple[str, ...]]:
    """The fields of a YAML as options; null is not given, and false is said."""
    data = parse_document(text, source=source).data
    return {str(name).replace("_", "-"): _words(value) for name, value in data.items() if value is not None}


def _words(value: Any) -> tuple[str, ...]:
    """As of other files of options, but that an empty text is a word: what has none is a switch here."""
    return ("",) if isinstance(value, str) and not value.strip() else option_words(value)
