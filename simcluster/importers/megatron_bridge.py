"""A scenario from Megatron-Bridge's names: overrides (``model.num_layers=32``), a YAML of them, a recipe.

A recipe's name gives the model alone; how it is split and its batch have to be said, since recipes change.  Fields are
those of ConfigContainer (NVIDIA-NeMo/Megatron-Bridge), from knowledge of it; what Megatron-LM calls otherwise is below.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import did_you_mean
from simcluster.documents.reading import parse_document
from simcluster.importers.flat_settings import flattened
from simcluster.importers.imported import Imported, Problems, guess
from simcluster.importers.megatron import scenario_from_options
from simcluster.importers.megatron_options import MAPPED, NO_EFFECT, NOT_MODELLED, REFUSED, REFUSED_PREFIXES
from simcluster.importers.megatron_recipes import known_recipe, recipe_options

_SECTIONS = ("model", "train", "optimizer", "ddp", "comm_overlap", "dataset", "tokenizer", "mixed_precision")
_NO_EFFECT_SECTIONS = (
    "scheduler",
    "logger",
    "checkpoint",
    "profiling",
    "rng",
    "dist",
    "rerun_state_machine",
    "straggler",
    "nvrx_straggler",
    "inprocess_restart",
    "tensor_inspect",
)
_RENAMED = {
    "gated_linear_unit": "swiglu",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "sequence_length": "seq-length",
    "num_moe_experts": "num-experts",
    "fp8": "fp8-format",
    "bucket_size": "ddp-bucket-size",
    "grad_reduce_in_fp32": "accumulate-allreduce-grads-in-fp32",
    "fp8_param": "fp8-param-gather",
    "overlap_p2p_comm": "overlap-p2p-communication",
    "apply_rope_fusion": "apply-rope-fusion",
    "bias_activation_fusion": "bias-swiglu-fusion",
}
_INVERTED = {
    "add_bias_linear": "disable-bias-linear",
    "share_embeddings_and_output_weights": "untie-embeddings-and-output-weights",
    "gradient_accumulation_fusion": "no-gradient-accumulation-fusion",
    "masked_softmax_fusion": "no-masked-softmax-fusion",
    "bias_dropout_fusion": "no-bias-dropout-fusion",
    "persist_layer_norm": "no-persist-layer-norm",
}
_NO_EFFECT_FIELDS = (
    *("activation_func", "layernorm_epsilon", "rotary_base", "rotary_percent", "rope_scaling", "rope_scaling_factor"),
    *(
        "init_method_std",
        "should_pad_vocab",
        "params_dtype",
        "pipeline_dtype",
        "autocast_dtype",
        "average_in_collective",
    ),
    *("check_for_nan_in_grad", "train_iters", "eval_iters", "eval_interval", "manual_gc", "manual_gc_interval"),
    *("parallel_output", "use_cpu_initialization", "deallocate_pipeline_outputs", "perform_initialization"),
)
_MAX_CHARACTERS = 100_000
_PRECISIONS = ("bf16_mixed", "fp16_mixed")


def scenario_from_bridge(
    text: str, *, cluster: Mapping[str, Any], gpus: int | None = None, source: str = "<overrides>"
) -> Imported:
    """The scenario of Megatron-Bridge's overrides or YAML, with or without a recipe's name.

    Raises InputError with the names of all fields that are not modelled or have no value that can be.  A field that is
    not known is in ``unknown``.
    """
    recipe, settings = _settings(text, source)
    options: dict[str, tuple[str, ...]] = {}
    no_effect: list[str] = []
    unknown: list[str] = []
    names: dict[str, str] = {}
    problems = Problems(source)
    if recipe:
        options |= recipe_options(recipe)
    for name, value in settings.items():
        translated = problems.of(_translated, name, value, source, no_effect, unknown)
        for option, words in (translated or {}).items():
            if option in names and option != "seq-length" and options[option] != words:
                problems.add(InputError(f"{name} says otherwise than {names[option]}; keep one"))
            options[option], names[option] = words, name
    if "num-query-groups" in options:
        options["group-query-attention"] = ()
    found = scenario_from_options(options, cluster=cluster, gpus=gpus, source=source, problems=problems.found)
    model: tuple[str, ...] = (
        (f"{recipe}: the model of it; parallelism and batch are what is written here",) if recipe else ()
    )
    if recipe.startswith("deepseek_v3"):
        model += (f"{recipe}: without its layer of multi-token prediction",)
    return Imported(
        found.document, tuple(settings), (*no_effect, *found.no_effect), (*model, *found.assumed),
        unknown=(*unknown, *found.unknown),
    )  # fmt: skip


def _settings(text: str, source: str) -> tuple[str, dict[str, Any]]:
    """The recipe, if one is named, and the overrides by dotted name."""
    if len(text) > _MAX_CHARACTERS:
        raise InputError(f"{source}: has more than {_MAX_CHARACTERS:,} characters, which no overrides have")
    if re.search(r"^\s*\w+:(\s|$)", text, re.MULTILINE):
        data = parse_document(text, source=source).data
        recipe = data.pop("recipe", "")
        return known_recipe(recipe, source) if recipe else "", flattened(data, source)
    try:
        words = shlex.split(re.sub(r"\\[ \t]*\r?\n", " ", text), comments=True)
    except ValueError as problem:
        raise InputError(f"{source}: is not a list of overrides: {problem}") from None
    programs = [place for place, word in enumerate(words) if word.endswith(".py")]
    recipe, found = "", dict[str, Any]()
    for word in words[programs[0] + 1 :] if programs else words:
        name, equals, value = word.partition("=")
        if name == "--recipe" or (not equals and not recipe and not name.startswith("-")):
            recipe = known_recipe(value, source) if equals else known_recipe(name, source) if name[:1] != "-" else ""
            continue
        if not equals:
            raise InputError(f"{source}: {word[:60]!r} is no override; write it as model.tensor_model_parallel_size=8")
        name = name.lstrip("+-~")
        if name in found:
            raise InputError(f"{source}: {name[:60]} is given twice; keep one")
        found[name] = value
    return recipe, found


def _translated(
    name: str, value: Any, source: str, no_effect: list[str], unknown: list[str]
) -> dict[str, tuple[str, ...]]:  # fmt: skip
    """One field as Megatron-LM's options; what has no effect or is not known goes on its list."""
    section, _, field = name.partition(".")
    text = str(value) if not isinstance(value, list) else " ".join(map(str, value))
    word = text.strip("[]'\" ").replace(",", " ")
    if field in _OF_LAYERS and section == "model" and word.lower() not in ("none", "null", ""):
        return {field.replace("_", "-"): (str(value).strip("'\" "),)}
    if section in _NO_EFFECT_SECTIONS or (section in ("dataset", "tokenizer") and field not in _MODEL_OF_DATA):
        no_effect.append(name)
        return {}
    if section == "mixed_precision" and not field:
        return _precision(word, source)
    if section not in _SECTIONS or not field or "." in field:
        unknown.append(name + guess(section, [*_SECTIONS, *_NO_EFFECT_SECTIONS]))
        return {}
    if field in _NO_EFFECT_FIELDS:
        no_effect.append(name)
        return {}
    if word.lower() in ("none", "null", ""):
        return {}
    if field in _INVERTED:
        inverse = {"true": "false", "false": "true"}.get(word.lower())
        if inverse is None:
            raise InputError(f"{source}: {name}: {word[:40]!r} is neither true nor false")
        return {_INVERTED[field]: (inverse,)} if _INVERTED[field] in MAPPED or inverse == "true" else {}
    option = _RENAMED.get(field, field.replace("_", "-"))
    known = option in {*MAPPED, *NO_EFFECT, *NOT_MODELLED, *REFUSED} or option.startswith(tuple(REFUSED_PREFIXES))
    if not known:
        unknown.append(name + guess(field, [*(each.replace("-", "_") for each in MAPPED), *_RENAMED, *_INVERTED]))
        return {}
    if option not in MAPPED and word.lower() == "false":
        no_effect.append(name)  # something not modelled is switched off
        return {}
    return {option: tuple(word.split())}


_OF_LAYERS = ("moe_layer_freq", "window_attn_skip_freq")
_MODEL_OF_DATA = ("sequence_length", "seq_length", "vocab_size")


def _precision(word: str, source: str) -> dict[str, tuple[str, ...]]:
    if word.startswith("bf16_with_fp8"):
        return {"bf16": (), "fp8-format": ("hybrid",)}
    if word not in _PRECISIONS:
        raise InputError(
            f"{source}: mixed_precision {word[:40]!r} is not modelled{did_you_mean(word, _PRECISIONS)}; known: "
            f"{', '.join(_PRECISIONS)}, bf16_with_fp8_..."
        )
    return {"bf16": ("true" if word == "bf16_mixed" else "false",), "fp16": ("true" if word[0] == "f" else "false",)}
