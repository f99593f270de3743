"""Whether a launch is the pre-training of a decoder, which is what a scenario describes."""

from __future__ import annotations

import re

from simcluster.base.errors import InputError
from simcluster.importers.arguments import BY_CONFIG, Arguments
from simcluster.importers.option_values import MAPPED, NO_EFFECT, NOT_MODELLED, REFUSED, RENAMED

TRAINS_ADAPTERS = "trains adapters beside weights that stand still, which are not modelled"
_PROGRAMS = {
    r"inference|generat|server|text_generation|eval|prompt": "runs a model that is trained: no step of pre-training",
    r"train_rl|grpo|\brl_": "is reinforcement learning, whose step is more than one of pre-training",
    r"(^|[_-])(dpo|ppo|kto|orpo|rloo)[_.-]|reward_model|train_reward": (
        "trains by preferences or rewards, whose step is more than one of pre-training"
    ),
    r"preprocess|convert|export|quantize|ptq|merge": "prepares files: it trains nothing",
    r"pretrain_(bert|t5|ict|vision|vlm|retro|multimodal|mimo)|train_multimodal": (
        "trains a model that is not a decoder of text, which alone is modelled"
    ),
    r"pretrain_(mamba|hybrid)": "trains a model with layers that are not all attention and MLP: not modelled",
}
_OPTIONS = {
    "has layers that are not all attention and MLP, which alone are modelled": (
        "hybrid-layer-", "hybrid-override-", "hybrid-attention-", "hybrid-mlp-", "mamba-", "is-hybrid-model"
    ),
    "has layers of linear attention, which are not modelled": ("linear-attention-freq",),
    "is of a model with an encoder, and decoders alone are modelled": (
        "decoder-seq-length", "decoder-num-layers", "bert-", "retro-"
    ),
    "is of a model of images, and decoders of text alone are modelled": (
        "img-h", "img-w", "patch-dim", "vision-", "language-model-type", "num-image-tokens"
    ),
    "is reinforcement learning, whose step is more than one of pre-training": (
        "perform-rl-step", "grpo-", "langrl-", "rl-", "rollout-", "num-rollout", "advantage-estimator", "eps-clip",
        "kl-loss-", "use-kl-loss",
    ),
    TRAINS_ADAPTERS: ("lora-", "qlora", "qlora-"),
    "runs a model that is trained: no step of pre-training": (
        "num-tokens-to-generate", "incoming-requests-per-", "max-tokens-to-oom", "prompt-file",
        "prompts", "top-p", "top-k",
    ),
}  # fmt: skip

_OWN = frozenset(["pretrain_gpt.py", "pretrain_gpt_core.py", "pretrain_hybrid.py", "pretrain_mamba.py"])
"""Megatron-LM's programs that train decoders of text."""
_UNREAD = ("decoder-seq-length", "img-h", "img-w", "patch-dim")
"""What ``pretrain_gpt.py`` takes, as every program of Megatron-LM does, and does not read."""
_OF_ANY = {
    "vocab-size", "seq-length", "batch-size", "bf16", "fp16", "lr", "min-lr", "weight-decay", "adam-beta1",
    "adam-beta2", "clip-grad", "optimizer", "seed", "save", "load", "data-path", "dataset", "num-workers", "profile",
    "rank", "local-rank", "world-size", "dist-url", "deepspeed", "log-interval", "save-interval", "eval-interval",
    "wandb-project", "wandb-entity",
}  # fmt: skip
"""Options of Megatron-LM that programs of all kinds have, too."""
_OF_MEGATRON = (MAPPED.keys() | NO_EFFECT | NOT_MODELLED.keys() | REFUSED.keys() | RENAMED.keys()) - _OF_ANY
_OFF = ("0", "0.0", "false", "none")
_OF_ENCODERS = re.compile(r"(^|[/_-])(bert|t5)([/_-]|wordpiece)", re.IGNORECASE)


def program_of(arguments: Arguments) -> str:
    """The file of the program that a launch starts; empty for options alone."""
    return next((word for word in arguments.launcher[::-1] if word.endswith(".py")), "").rsplit("/", 1)[-1]


def assumed_of_program(arguments: Arguments) -> tuple[str, ...]:
    """What to say of a program that may set more than its options do."""
    name = program_of(arguments)
    if not name or name in _OWN:
        return ()
    return (f"what {name} itself sets is not read: its options are taken as pretrain_gpt.py takes them",)


def require_options_of_megatron(arguments: Arguments, source: str) -> None:
    """InputError, in one sentence, for a program that is not Megatron-LM's and has no option that only those have."""
    name, options = program_of(arguments), arguments.options
    files = any(" ".join(words).endswith((".yaml", ".yml")) for words in options.values())
    if not name or name in _OWN or arguments.problems or files or options.keys() & _OF_MEGATRON:
        return
    given = ", ".join(f"--{option}" for option in options)[:200]
    raise InputError(
        f"{source}: {name} is no Megatron program: none of its options is one that only those have ({given}); "
        f"{BY_CONFIG}"
    )


def require_pre_training(arguments: Arguments, source: str, *, layers: bool = False) -> None:
    """InputError, in one sentence, for a launch that is something else; ``layers``: whatever the program, they are of
    attention and MLP."""
    name = program = program_of(arguments)
    for pattern, what in _PROGRAMS.items():
        if re.search(pattern, name) and not (layers and "hybrid" in pattern):
            raise InputError(f"{source}: {name} {what}")
    if any(option.startswith(("trainer.", "model.config.")) for option in arguments.options):
        raise InputError(f"{source}: its options are NeMo's, not Megatron-LM's; write simcluster import nemo")
    decodes = program == "pretrain_gpt.py"  # whatever its data are called
    for name in ("tokenizer-type", "vocab-file", *(() if decodes else ("data-path",))):
        words = " ".join(arguments.options.get(name, ()))
        if _OF_ENCODERS.search(words):
            raise InputError(
                f"{source}: --{name} {words[:60]} is of a model with an encoder, and decoders are modelled"
            )
    mode = arguments.options.get("mode")
    if mode:
        kinds = {"rl": "reinforcement learning", "inference": "inference"}
        raise InputError(
            f"{source}: MODE {mode[0][:20]} is {kinds.get(mode[0], 'no pre-training')}, not pre-training; "
            "give the script of a pre-training"
        )
    trains = any(option in arguments.options for option in ("train-iters", "train-samples", "train-tokens"))
    unread = _UNREAD if program == "pretrain_gpt.py" else ()
    on = [option for option, words in arguments.options.items() if " ".join(words).lower() not in _OFF]
    given = [option for option in on if option not in unread]
    for what, names in _OPTIONS.items():
        found = next((option for option in given if any(_is_of(option, name) for name in names)), None)
        if found and not (trains and what.startswith("runs")):
            raise InputError(f"{source}: --{found} {what}")


def _is_of(option: str, name: str) -> bool:
    """Whether it is that option, or one of those that begin so where the name ends in a dash."""
    return option == name or (name.endswith("-") and option.startswith(name))
