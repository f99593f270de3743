"""Checks that a launch is the pre-training of a decoder, which is what a scenario describes."""

from __future__ import annotations

import re

from simcluster.base.errors import InputError
from simcluster.importers.arguments import BY_CONFIG, Arguments
from simcluster.importers.option_values import (
    MAPPED,
    NO_EFFECT,
    NOT_MODELLED,
    OF_ANY_PROGRAM,
    OTHER_LAUNCHES,
    PROGRAMS,
    REFUSED,
    RENAMED,
)

TRAINS_ADAPTERS = "trains adapters with frozen weights, which is not modelled"
_OWN = frozenset(["pretrain_gpt.py", "pretrain_gpt_core.py", "pretrain_hybrid.py", "pretrain_mamba.py"])
"""Megatron-LM programs that train text decoders."""
_UNREAD = ("decoder-seq-length", "img-h", "img-w", "patch-dim")
"""Options that ``pretrain_gpt.py`` accepts, as every Megatron-LM program does, but ignores."""
_OF_MEGATRON = (MAPPED.keys() | NO_EFFECT | NOT_MODELLED.keys() | REFUSED.keys() | RENAMED.keys()) - OF_ANY_PROGRAM
_OFF = ("0", "0.0", "false", "none")
_OF_ENCODERS = re.compile(r"(^|[/_-])(bert|t5)([/_-]|wordpiece)", re.IGNORECASE)


def program_of(arguments: Arguments) -> str:
    """Return the file name of the program that a launch starts; empty for options alone."""
    return next((word for word in arguments.launcher[::-1] if word.endswith(".py")), "").rsplit("/", 1)[-1]


def assumed_of_program(arguments: Arguments) -> tuple[str, ...]:
    """Return the assumption about a program that may set more than its options do."""
    name = program_of(arguments)
    if not name or name in _OWN:
        return ()
    return (f"values set inside {name} are not read: its options are interpreted as pretrain_gpt.py's",)


def require_options_of_megatron(arguments: Arguments, source: str) -> None:
    """Raise InputError if a program is not Megatron-LM's and no option is specific to Megatron-LM."""
    name, options = program_of(arguments), arguments.options
    files = any(" ".join(words).endswith((".yaml", ".yml")) for words in options.values())
    if not name or name in _OWN or arguments.problems or files or options.keys() & _OF_MEGATRON:
        return
    given = ", ".join(f"--{option}" for option in options)[:200]
    raise InputError(
        f"{source}: {name} is not a Megatron program: none of its options is specific to Megatron-LM ({given}); "
        f"{BY_CONFIG}"
    )


def require_pre_training(arguments: Arguments, source: str, *, layers: bool = False) -> None:
    """Raise InputError for a launch that is not pre-training; ``layers``: all are attention and MLP."""
    name = program = program_of(arguments)
    for pattern, what in PROGRAMS.items():
        if re.search(pattern, name) and not (layers and "hybrid" in pattern):
            raise InputError(f"{source}: {name} {what}")
    if any(option.startswith(("trainer.", "model.config.")) for option in arguments.options):
        raise InputError(f"{source}: its options are NeMo's, not Megatron-LM's; use simcluster import nemo")
    decodes = program == "pretrain_gpt.py"  # whatever the name of its data
    for name in ("tokenizer-type", "vocab-file", *(() if decodes else ("data-path",))):
        words = " ".join(arguments.options.get(name, ()))
        if _OF_ENCODERS.search(words):
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
    unread = _UNREAD if program == "pretrain_gpt.py" else ()
    on = [option for option, words in arguments.options.items() if " ".join(words).lower() not in _OFF]
    given = [option for option in on if option not in unread]
    for what, names in OTHER_LAUNCHES.items():
        found = next((option for option in given if any(_is_of(option, name) for name in names)), None)
        if found and not (trains and what.startswith("runs")):
            raise InputError(f"{source}: --{found} {what}")


def _is_of(option: str, name: str) -> bool:
    return option == name or (name.endswith("-") and option.startswith(name))
