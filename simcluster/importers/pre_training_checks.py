"""Checks that a launch pre-trains a decoder, the only training that scenarios describe."""

from __future__ import annotations

import re

from simcluster.base.errors import InputError
from simcluster.importers.launch_arguments import CONFIG_JSON_ADVICE, LaunchArguments
from simcluster.importers.megatron_options import (
    COMMON_OPTIONS,
    MAPPED,
    NO_EFFECT,
    NOT_MODELLED,
    OTHER_LAUNCH_OPTIONS,
    OTHER_PROGRAMS,
    REFUSED,
    RENAMED,
)

ADAPTER_REASON = "trains adapters with frozen weights, which is not imported (training.trainable models LoRA)"
_MEGATRON_PROGRAMS = frozenset(["pretrain_gpt.py", "pretrain_gpt_core.py", "pretrain_hybrid.py", "pretrain_mamba.py"])
"""Megatron-LM programs that train text decoders."""
_IGNORED_OPTIONS = ("decoder-seq-length", "img-h", "img-w", "patch-dim")
"""Options that ``pretrain_gpt.py`` accepts, as every Megatron-LM program does, but ignores."""
_MEGATRON_OPTIONS = (MAPPED.keys() | NO_EFFECT | NOT_MODELLED.keys() | REFUSED.keys() | RENAMED.keys()) - COMMON_OPTIONS
_OFF_WORDS = ("0", "0.0", "false", "none")
_ENCODER_NAME = re.compile(r"(^|[/_-])(bert|t5)([/_-]|wordpiece)", re.IGNORECASE)


def launched_program_name(arguments: LaunchArguments) -> str:
    """Return the file name of the Python program that a launch starts; "" if it starts none."""
    return next((word for word in arguments.launcher[::-1] if word.endswith(".py")), "").rsplit("/", 1)[-1]


def unread_program_assumption(arguments: LaunchArguments) -> tuple[str, ...]:
    """Return the assumption made for a program other than Megatron-LM's: values set in its code are not read."""
    name = launched_program_name(arguments)
    if not name or name in _MEGATRON_PROGRAMS:
        return ()
    return (f"values set inside {name} are not read: its options are interpreted as pretrain_gpt.py's",)


def check_megatron_options(arguments: LaunchArguments, source: str) -> None:
    """Raise InputError if Megatron-LM has neither the program nor any of its options."""
    name, options = launched_program_name(arguments), arguments.options
    files = any(" ".join(words).endswith((".yaml", ".yml")) for words in options.values())
    if not name or name in _MEGATRON_PROGRAMS or arguments.problems or files or options.keys() & _MEGATRON_OPTIONS:
        return
    given = ", ".join(f"--{option}" for option in options)[:200]
    raise InputError(
        f"{source}: {name} is not a Megatron program: none of its options is specific to Megatron-LM ({given}); "
        f"{CONFIG_JSON_ADVICE}"
    )


def check_pre_training(arguments: LaunchArguments, source: str, *, layers: bool = False) -> None:
    """Raise InputError for a launch that does anything other than pre-train a decoder."""
    name = program = launched_program_name(arguments)
    for pattern, what in OTHER_PROGRAMS.items():
        if re.search(pattern, name) and not (layers and "hybrid" in pattern):
            raise InputError(f"{source}: the program {name} {what}")
    if any(option.startswith(("trainer.", "model.config.")) for option in arguments.options):
        raise InputError(f"{source}: its options are NeMo's, not Megatron-LM's; use simcluster import nemo")
    decodes = program == "pretrain_gpt.py"  # whatever the name of its data
    for name in ("tokenizer-type", "vocab-file", *(() if decodes else ("data-path",))):
        words = " ".join(arguments.options.get(name, ()))
        if _ENCODER_NAME.search(words):
            raise InputError(
                f"{source}: --{name} {words[:60]} belongs to a model with an encoder; only decoders are modelled"
            )
    mode = arguments.options.get("mode")
    if mode:
        kinds = {"rl": "reinforcement learning", "inference": "inference"}
        raise InputError(
            f"{source}: MODE {mode[0][:20]} is {kinds.get(mode[0], 'something else')}, not pre-training; "
            "give the script of a pre-training"
        )
    trains = any(option in arguments.options for option in ("train-iters", "train-samples", "train-tokens"))
    unread = _IGNORED_OPTIONS if program == "pretrain_gpt.py" else ()
    on = [option for option, words in arguments.options.items() if " ".join(words).lower() not in _OFF_WORDS]
    given = [option for option in on if option not in unread]
    for what, names in OTHER_LAUNCH_OPTIONS.items():
        found = next((option for option in given if any(_option_matches_name(option, name) for name in names)), None)
        known = (trains and what.startswith("runs")) or (layers and "other than attention and MLP" in what)
        if found and not known:
            raise InputError(f"{source}: the option --{found} {what}")


def _option_matches_name(option: str, name: str) -> bool:
    return option == name or (name.endswith("-") and option.startswith(name))
