"""Conversion of published models to Megatron-LM options, for commands that name a model instead of its sizes.

Megatron-SWIFT (``megatron sft`` and ``megatron pt`` of ms-swift) names its model; its defaults are those of
MegatronArguments (swift/megatron/argument/megatron_args.py), in ``megatron_options.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue.models import load_model_entry
from simcluster.documents.yaml_documents import read_document
from simcluster.importers.import_result import FileReader
from simcluster.importers.launch_arguments import LaunchArguments
from simcluster.importers.megatron_options import SWIFT_DEFAULTS
from simcluster.importers.named_models import NamedModel, find_named_model, find_published_model_name
from simcluster.importers.pre_training_checks import ADAPTER_REASON
from simcluster.model.transformer import Model

OptionWords = dict[str, tuple[str, ...]]
"""Options by Megatron-LM's names, each with its value words."""
_TABLES = read_document(Path(__file__).with_name("megatron_bridge.yaml")).data
_FIELDS: dict[str, dict[str, str]] = _TABLES["fields"]
_SIZES = {f"model.{field}": size for field, size in _TABLES["sizes"].items()}
_MIXTURE_FIELDS = tuple(f"model.{field}" for field in _TABLES["of_mixtures"].split())
_SIZE_OPTIONS = ("num-layers", "encoder-num-layers", "use-checkpoint-args", "config-file", "yaml-cfg")
_MODEL_OPTIONS = (
    "model", "model-id-or-path", "hf-model-path", "hf-model-id", "hf-path", "model-path", "load", "tokenizer-model",
)  # fmt: skip
"""Options that may name a model; the first given one with a known model counts."""
_TUNER_OPTIONS = ("train-type", "tuner-type")
_SWIFT_NAME = "Megatron-SWIFT (ms-swift)"


def swift_subcommand(launcher: Sequence[str]) -> str:
    """Return the Megatron-SWIFT subcommand, such as ``sft``, that a launch runs; "" for any other program."""
    words = [word.rsplit("/", 1)[-1] for word in launcher]
    return words[words.index("megatron") + 1] if "megatron" in words[:-1] else ""


def add_named_model(
    arguments: LaunchArguments, source: str, read_file: FileReader
) -> tuple[LaunchArguments, NamedModel]:
    """Add the sizes of the model that a command names, if the command states none; also return that model.

    Raises InputError for a Megatron-SWIFT command that does not train all weights, or whose model is unknown.
    """
    options, swift = arguments.options, swift_subcommand(arguments.launcher)
    if any(name in options for name in _SIZE_OPTIONS) and not swift:
        return arguments, NamedModel()
    named = [(name, " ".join(options[name]).removesuffix("-mcore")) for name in _MODEL_OPTIONS if options.get(name)]
    known = next((each for each in named if find_published_model_name(each[1])), None)
    if not swift and known is None:
        return arguments, NamedModel()
    if swift:
        _require_full_training(arguments, swift, source)
    name, path = known or next(iter(named), ("", ""))
    if not path:
        raise InputError(f"{source}: is a {_SWIFT_NAME} command without a model; add --arg=--model=Qwen/Qwen3-8B")
    model = find_named_model(path, source, read_file)
    if not model.name:
        return arguments, NamedModel()
    own = {key: words for key, words in options.items() if key not in (*_TUNER_OPTIONS, "max-length", name)}
    length = options.get("max-length") or options.get("seq-length")
    if swift and length:
        own["seq-length"] = length
    found = model_to_options(model.section)
    if swift:
        found |= SWIFT_DEFAULTS | ({"expert-tensor-parallel-size": ("1",)} if "num-experts" in found else {})
    found |= own
    if not length:
        del found["seq-length"]
    by = f"{_SWIFT_NAME}, whose model is" if swift else "the model is"
    assumed = (*arguments.assumed, f"{by} {path} (--{name})", *model.assumed)
    return replace(arguments, options=found, assumed=assumed, unknown=(*arguments.unknown, *model.unknown)), model


def _require_full_training(arguments: LaunchArguments, swift: str, source: str) -> None:
    if swift not in ("sft", "pt"):
        raise InputError(f"{source}: megatron {swift} of {_SWIFT_NAME} cannot be imported; only pt and sft can")
    if (tuner := arguments.option_text(*_TUNER_OPTIONS).lower()) not in ("", "full"):
        raise InputError(f"{source}: {_SWIFT_NAME} with tuner type {tuner[:20]} {ADAPTER_REASON}")


def adapt_published_model(
    published: Mapping[str, Any], stated: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Apply the sequence length, expert and size changes that a command makes to a published model."""
    fields = ("sequence_length", "mtp_layers", *(_SIZES[key] for key in settings.keys() & _SIZES))
    own = {key: stated[key] for key in dict.fromkeys(fields) if key in stated}
    mixture = load_model_entry(published["preset"]).get("moe") if "preset" in published else published.get("moe")
    if any(key in settings for key in _MIXTURE_FIELDS) and "moe" in stated:
        own["moe"] = stated["moe"]
    elif mixture and stated.get("moe", {}).get("aux_loss"):
        own["moe"] = {**mixture, "aux_loss": True}
    return {**published, **own}


def model_to_options(section: Mapping[str, Any]) -> OptionWords:
    """Convert a published model, or the fields of a scenario's model section, to Megatron-LM options."""
    model = Model(**(load_model_entry(section["preset"]) if "preset" in section else section))
    options = _section_to_options(model, _FIELDS["model"])
    flags = ["swiglu"] * model.gated_mlp + ["untie-embeddings-and-output-weights"] * (not model.tied_embeddings)
    flags += ["bf16"] + ["add-qkv-bias"] * (model.bias in ("qkv", "attention"))
    flags += ["disable-bias-linear"] * (model.bias is not True) + ["qk-layernorm"] * bool(model.qk_norm or model.mla)
    if model.mla:
        options |= _section_to_options(model.mla, _FIELDS["mla"])
        flags.append("multi-latent-attention")
    else:
        options |= _section_to_options(model, {"num-query-groups": "kv_heads"})
        flags.append("group-query-attention")
        if model.head_dim * model.heads != model.hidden_size:
            options["kv-channels"] = (str(model.head_dim),)
    if model.moe:
        options |= _section_to_options(model.moe, _FIELDS["moe"])
        flags += ["moe-grouped-gemm", "moe-permute-fusion"]  # Megatron-Bridge's recipes turn both on
        flags += ["moe-shared-expert-gate"] * model.moe.shared_gate
        flags += ["moe-router-enable-expert-bias"] * (model.moe.router_bias and not model.bias)
        dense = model.moe.first_dense_layers
        if dense:
            options["moe-layer-freq"] = (f"[0]*{dense}+[1]*{model.layers - dense}",)
        options["moe-token-dispatcher-type"] = ("alltoall",)
    if model.pattern and not model.layer_types:
        options["hybrid-override-pattern"] = ("".join(model.pattern),)
    for kind, sizes in (model.layer_kinds or {}).items():
        options |= {name: (str(sizes[field]),) for name, field in _FIELDS.get(kind, {}).items() if field in sizes}
    if "gated_delta_net" in (model.layer_kinds or {}):
        linear = [int("gated_delta_net" in model.layer_kind_names(layer)) for layer in range(model.layers)]
        options |= {"experimental-attention-variant": ("gated_delta_net",), "linear-attention-freq": (f"{linear}",)}
    flags += ["attention-output-gate"] * bool(model.attention_gate)
    if model.attention_window:
        options["window-size"] = (f"{model.attention_window - 1},0",)
        options["window-attn-skip-freq"] = (str(model.full_attention_every),)
    if model.attention_sinks:
        options["softmax-type"] = ("learnable",)
    if model.clamped_activation:
        options["activation-func-clamp-value"] = ("7.0",)
    norm = "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"
    position = {"rope": "rope", "none": "none", "learned": "learned_absolute"}[model.position]
    words = {"normalization": norm, "position-embedding-type": position, "hidden-dropout": "0"}
    options |= {name: (word,) for name, word in {**words, "attention-dropout": "0"}.items()}
    return options | dict.fromkeys(flags, ())


def _section_to_options(section: object, fields: dict[str, str]) -> OptionWords:
    found = {option: getattr(section, field) for option, field in fields.items()}
    return {option: (str(value),) for option, value in found.items() if value}
