"""Settings of Megatron-Bridge recipes, read from Python source (which is not run) or ``run_config.yaml``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.yaml_documents import read_document
from simcluster.importers import named_models
from simcluster.importers.flat_settings import flatten_settings
from simcluster.importers.import_result import FileReader, read_no_file
from simcluster.importers.layer_lists import MAX_LAYERS
from simcluster.importers.pre_training_checks import ADAPTER_REASON
from simcluster.importers.python_recipes import NO_ARGUMENTS, RecipeFile
from simcluster.importers.python_values import RecordedCall, UnreadExpression, parse_target_config, to_plain_fields

CONFIG_ADVICE = (
    "run it once and give the run_config.yaml that Megatron-Bridge writes next to its checkpoints, or a log with its "
    "configuration"
)
"""Advice for a recipe whose values are computed."""
PACKED_ASSUMPTION = "sequences are full with one sample each, although the recipe packs several samples into a sequence"
_PRETRAINING_NAME = re.compile(r"pretrain_(\w+_)?(config|recipe)$")
_ADAPTED = {"linear_qkv": "qkv", "linear_proj": "projection", "linear_fc1": "mlp_up", "linear_fc2": "mlp_down"}
_ADAPTER_RANK = 32  # and all modules above: defaults of LoRA in peft/lora.py, and in NeMo 2's
_GPU_COUNT = re.compile(r"_(\d{1,6})gpus?_")  # kimi_k2_pretrain_512gpu_h100_bf16_config
_LAYOUT = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_UNREAD_LAYOUT = "model.pipeline_model_parallel_layout, which the file computes by code that is not evaluated"
_TABLES = read_document(Path(__file__).with_name("megatron_bridge.yaml")).data
_BASES: dict[str, Any] = _TABLES["bases"]
_ALWAYS_WRITTEN, _IDLE_FIELDS, _IDLE_SECTIONS = (
    frozenset(_TABLES[name].split()) for name in ("in_all_written", "no_effect", "no_effect_sections")
)
_NULL_VOCABULARY = 32_000  # DEFAULT_NULL_TOKENIZER_VOCAB_SIZE of recipes/utils/tokenizer_utils.py
_START_FUNCTIONS = ("pretrain", "megatron_pretrain", "finetune")
_OVERRIDE_FUNCTIONS = ("create_omegaconf_dict_config", "parse_hydra_overrides", "apply_overrides", "get_rank_safe")
"""Megatron-Bridge functions for command-line overrides, which a script calls and which change nothing here."""
_TOKENIZER_ASSUMPTION = (
    "the vocabulary is that of the model's configuration, although Megatron-Bridge takes the tokenizer's"
)
_FORMATS = ("model.bf16", "model.fp16", "optimizer.bf16", "optimizer.fp16")
_OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")


@dataclass(frozen=True)
class RecipeSettings:
    """A Megatron-Bridge or NeMo recipe as read: its model, its settings by dotted name, and assumptions.

    ``model`` is empty if the settings give its sizes. ``undecided`` are parts of the recipe whose effect is unknown,
    ``gpus`` is the number of GPUs in its name, ``trainable`` its adapters as a scenario's training.trainable.
    """

    model: named_models.NamedModel = field(default_factory=named_models.NamedModel)
    settings: Mapping[str, Any] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    gpus: int | None = None
    trainable: Mapping[str, Any] = field(default_factory=dict)


def read_adapters(peft: Any, label: str) -> dict[str, Any]:
    """Return a recipe's LoRA adapters as a scenario's training.trainable; empty if it trains all weights.

    Alpha, initial values and the place of dropout have no effect. Raises InputError for other adapters.
    """
    if isinstance(peft, RecordedCall) and peft.name.endswith("default_peft_config") and peft.args:
        peft = RecordedCall(str(peft.args[0]), (), peft.fields)
    if peft is None or str(getattr(peft, "name", peft)).lower() == "none":
        return {}
    lora = RecordedCall(peft) if isinstance(peft, str) else peft
    if not isinstance(lora, RecordedCall) or lora.name.rpartition(".")[2].lower() != "lora" or lora.args:
        raise InputError(f"{label} {ADAPTER_REASON}")
    words, rank = lora.fields.get("target_modules") or [*_ADAPTED], lora.fields.get("dim", _ADAPTER_RANK)
    if not isinstance(words, list) or not isinstance(rank, int) or any(each not in _ADAPTED for each in words):
        what = f"has adapters of rank {rank} on {words}; known modules: {', '.join(_ADAPTED)}"
        raise InputError(f"{label} {what}; import it without, and set training.trainable")
    found: dict[str, Any] = {"rank": rank, "modules": [_ADAPTED[each] for each in words]}
    found |= {"dropout": True} if lora.fields.get("dropout") else {}
    return found | ({"exchange": "all_to_all"} if lora.fields.get("a2a_experimental") is True else {})


def read_bridge_recipe(
    text: str, source: str, function: str, read_file: FileReader = read_no_file, args: Mapping[str, str] = NO_ARGUMENTS
) -> RecipeSettings:
    """Return the settings that a Megatron-Bridge recipe function returns, read from its Python source.

    Raises InputError if there are several recipes of pre-training and none is named, for fine-tuning that is not named
    explicitly, and for a function that makes no readable configuration.
    """
    started: list[Any] = []
    known: dict[str, Callable[..., Any]] = {
        "apply_flex_dispatcher_backend": _set_flex_dispatcher,
        "get_mixed_precision_config": lambda named=None, *_, **__: (
            RecordedCall(named) if isinstance(named, str) else named
        ),
        "process_config_with_overrides": lambda config=None, *_, **__: config,
        **dict.fromkeys(_OVERRIDE_FUNCTIONS, lambda *_, **__: None),
        **dict.fromkeys(_START_FUNCTIONS, lambda config=None, *_, **__: started.append(config)),
    }
    file = RecipeFile(text, source, external=known, no_effect=_attribute_has_no_effect)
    function, found = file.find_recipe(function, args, _PRETRAINING_NAME, _START_FUNCTIONS, started)
    if not isinstance(found, RecordedCall):
        raise InputError(f"{source}: {function} returns no configuration that can be read as data; {CONFIG_ADVICE}")
    if "model_config" in found.fields:  # nemo.tron, the predecessor of Megatron-Bridge
        found.fields = {name.removesuffix("_config"): value for name, value in found.fields.items()}
    if found.name != "ConfigContainer" and found.name not in _BASES:
        raise other_file_error(f"{source}: the configuration of {function}", found.name, file, CONFIG_ADVICE)
    gpus = _GPU_COUNT.search(function)
    read = _build_bridge_recipe(found, function, source, file, read_file)
    return replace(read, undecided=tuple(file.undecided), gpus=int(gpus[1]) if gpus else None)


def other_file_error(part: str, callee: str, file: RecipeFile, remedy: str) -> InputError:
    """Return the InputError for a recipe that gets its model or another part from a file that is not read."""
    if against := named_models.explain_not_decoder(file.qualified_name(callee)):
        return InputError(f"{part} comes from {callee}, whose model cannot be imported: it {against}")
    return InputError(f"{part} comes from {file.qualified_name(callee)[:80]}, which is in another file: {remedy}")


def _attribute_has_no_effect(attribute: str) -> bool:
    """Return whether the simulated step time ignores a configuration attribute, given by its dotted name."""
    _, *sections, field = attribute.split(".")
    return field in _IDLE_FIELDS or not _IDLE_SECTIONS.isdisjoint(sections)


def read_bridge_config(text: str, source: str) -> RecipeSettings | None:
    """Return the settings in a configuration file that Megatron-Bridge wrote; None if the text is not such a file."""
    found = parse_target_config(text, source)
    if found is None or found.name != "ConfigContainer":
        return None
    read = _build_bridge_recipe(found, "the file", source)
    copies = {f"optimizer.{name}": f"ddp.{name}" for name in _OVERLAPS}
    copies |= {f"optimizer.{name}": f"model.{name}" for name in ("bf16", "fp16")}
    muon = "muon" in str(read.settings.get("optimizer.optimizer"))

    def is_relevant(name: str, value: Any) -> bool:
        field = name.partition(".")[2]
        default = (field, value) == ("main_params_dtype", "fp32") or (field.startswith("muon_") and not muon)
        return not default and field not in _ALWAYS_WRITTEN and copies.get(name) not in read.settings

    return replace(read, settings={name: value for name, value in read.settings.items() if is_relevant(name, value)})


def _build_bridge_recipe(
    recipe: RecordedCall, function: str, source: str, file: RecipeFile | None = None,
    read_file: FileReader = read_no_file,
) -> RecipeSettings:  # fmt: skip
    model, data, peft = recipe.fields.get("model"), recipe.fields.get("dataset"), recipe.fields.pop("peft", None)
    if recipe.name == "_peft_common":
        peft = RecordedCall("LoRA", (), peft.fields if isinstance(peft, RecordedCall) else {}) if peft is None else peft
    if isinstance(model, RecordedCall) and any("freeze_vision" in name for name in model.fields):
        raise InputError(f"{source}: {function} trains a model that takes images; only text decoders are modelled")
    known = _find_recipe_model(model, source, read_file)
    name, kind = known.name, model.name if isinstance(model, RecordedCall) else ""
    settings = {f"model.{field}": value for field, value in named_models.model_class_settings(name, kind).items()}
    if not file:  # a written configuration has all fields
        del settings["model.apply_rope_fusion"]
    settings |= flatten_settings(_BASES.get(recipe.name, {}), source)
    for section, value in recipe.fields.items():
        if value is None:
            settings = {each: word for each, word in settings.items() if each.partition(".")[0] != section}
        settings |= _recipe_section_settings(section, value)
    settings = {each: word for each, word in settings.items() if word is not None}
    if pattern := settings.get("model.hybrid_layer_pattern"):  # newer versions take the number of layers from it
        settings.setdefault("model.num_layers", len(str(pattern).partition("/")[0]))
    settings |= _vocabulary_settings(recipe, name, settings)
    assumed = list(known.assumed)
    if not name:
        require_known_decoder(model, settings, f"{source}: the model of {function}", file, CONFIG_ADVICE)
    elif settings.get("tokenizer.use_tokenizer_vocab_size") is True and "model.vocab_size" not in settings:
        assumed.append(_TOKENIZER_ASSUMPTION)
    length = settings.get("model.seq_length")
    samples = settings.pop("dataset.seq_length", None) if length is not None else None
    if samples not in (None, length):
        refused = f"dataset.seq_length is {samples} (Megatron-Bridge refuses unequal lengths)"
        assumed.append(f"sequences have the model's length, although {refused}")
    fields = data.fields.items() if isinstance(data, RecordedCall) else ()
    packs = any("pack" in key and on not in (None, False) for key, on in fields)
    if packs or recipe.name in ("_sft_common", "_peft_common"):
        assumed.append(PACKED_ASSUMPTION)
    adapters = read_adapters(peft, f"{source}: {function}")
    return RecipeSettings(known, _resolve_conflicting_settings(settings), tuple(assumed), trainable=adapters)


def _vocabulary_settings(recipe: RecordedCall, model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return vocabulary size settings for recipes with a null tokenizer or with an unpadded vocabulary.

    ``_validate_and_set_vocab_size`` of Megatron-Bridge's training/setup.py pads the tokenizer's vocabulary only,
    whatever should_pad_vocab was. Nothing is set for pre-training on a base that is not read: which vocabulary it takes
    changed between versions. GPT-3's classes wait for the tokenizer.
    """
    own = "model.vocab_size" in settings or bool(model and not model.startswith("gpt3"))
    own = own and settings.get("tokenizer.use_tokenizer_vocab_size") is not True
    tokenizer = recipe.fields.get("tokenizer")
    said = tokenizer.fields.get("vocab_size") if isinstance(tokenizer, RecordedCall) else None
    of_model = (
        model and isinstance(said, UnreadExpression) and said.text.endswith(".vocab_size")
    )  # the Hugging Face model's
    if not own and not of_model and settings.get("tokenizer.tokenizer_type") == "NullTokenizer":
        size = settings.get("tokenizer.vocab_size")
        return {"model.vocab_size": size if isinstance(size, int) else _NULL_VOCABULARY}
    keeps = own and (recipe.name == "ConfigContainer" or "sft" in recipe.name)
    return {"model.make_vocab_size_divisible_by": 1} if keeps else {}


def require_known_decoder(
    model: Any, settings: Mapping[str, Any], label: str, file: RecipeFile | None, remedy: str
) -> None:
    """Raise InputError if a recipe's model is not a decoder or has unknown sizes; ``label`` names the model."""
    kind = model.name if isinstance(model, RecordedCall) else str(getattr(model, "text", "none"))
    patterned = any(settings.get(f"model.hybrid_{name}_pattern") for name in ("override", "layer"))
    against = "" if patterned else named_models.explain_not_decoder(file.qualified_name(kind) if file else kind)
    unknown = ""
    if "model.num_layers" not in settings:
        unknown = "is unknown, and the recipe does not give its sizes (num_layers and others)"
    elif isinstance(model, RecordedCall) and not named_models.model_family_settings(model.name):
        unknown = "has an unknown class, so its norms, activation and attention are unknown"
    if not against and unknown and (other := named_models.explain_not_decoder(label.rpartition(" ")[2])):
        raise InputError(f"{label} cannot be imported: it {other}")
    if against or unknown:
        raise InputError(f"{label} ({kind[:80]}) cannot be imported: it {against or f'{unknown}; {remedy}'}")


def _resolve_conflicting_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve settings that several sections of a recipe set to different values; return one value for each.

    A recipe's mixed precision overrides the number formats of the model, the optimizer and DDP (its setup writes over
    them), as overlaps do from a section for them; a distributed optimizer is on if the optimizer or DDP turns it on.
    """
    found = dict(settings)
    if "mixed_precision.bf16" in found:  # a full configuration instead of a name
        found["mixed_precision"] = None
    sections = {name.partition(".")[0] for name in found if "." in name}
    if found.get("mixed_precision") or "mixed_precision.bf16" in found:
        found = {name: value for name, value in found.items() if name not in _FORMATS}
    if found.get("mixed_precision") or "mixed_precision" in sections:
        found.pop("ddp.grad_reduce_in_fp32", None)
    else:
        found.setdefault("ddp.grad_reduce_in_fp32", False)  # DDP's default
    if "mixed_precision.fp8" not in found:
        found.pop("mixed_precision.fp8_recipe", None)
    for name in ("overlap_param_gather", "use_distributed_optimizer"):
        if found.pop(f"optimizer.{name}", None) is True:
            found[f"ddp.{name}"] = True
    if "comm_overlap" in sections:  # CommOverlapConfig turns on all that is not off; DDP's if it shards
        said = {f"ddp.{name}": found.pop(f"comm_overlap.{name}", True) for name in _OVERLAPS}
        found |= said if found.get("ddp.use_distributed_optimizer") is True else {}
        found["model.overlap_p2p_comm"] = found.pop("comm_overlap.overlap_p2p_comm", True)
    found.setdefault("model.overlap_p2p_comm", False)
    return found


def _set_flex_dispatcher(model: Any = None, backend: Any = None, *_: Any, **__: Any) -> None:
    if isinstance(model, RecordedCall) and backend in ("deepep", "hybridep"):
        flex = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": backend}
        model.fields |= {**flex, "moe_shared_expert_overlap": False}


def _find_recipe_model(model: Any, source: str, read_file: FileReader) -> named_models.NamedModel:
    while isinstance(model, RecordedCall):
        if known := named_models.find_model_by_class(model.name):
            return named_models.load_published_model(known)
        given = (*model.args, model.fields.get("path"))
        name = next((each for each in given if isinstance(each, str)), "")
        if model.name.endswith("from_hf_pretrained") or "/" in name:
            unread = next((each.text for each in given if isinstance(each, UnreadExpression)), model.name)
            return named_models.find_named_model(name or unread, source, read_file)
        family = named_models.model_family_settings(model.name)
        published = "" if family else named_models.find_model_by_sizes(model.name, model.fields)
        if published or model.called_on is None:
            return named_models.load_published_model(published)
        model = model.called_on
    return named_models.NamedModel()


def _recipe_section_settings(section: str, value: Any) -> dict[str, Any]:
    """Return a recipe section's settings by dotted name; a value of None means that the section unsets the setting."""
    fields = {section: value}
    made_by = value.text if isinstance(value, UnreadExpression) else ""  # unread parts of the call that makes it
    if isinstance(value, RecordedCall):
        made_by = " ".join((value.name, *(each.text for each in value.args if isinstance(each, UnreadExpression))))
        fields = {f"{section}.{name}": item for name, item in value.fields.items()}
        if section == "mixed_precision" and not value.name.endswith("Config"):
            fields["mixed_precision"] = next((each for each in value.args if isinstance(each, str)), value.name)
        if section == "comm_overlap":
            fields.setdefault("comm_overlap.tp_comm_overlap", False)
    if section == "optimizer":
        fields = {} if isinstance(value, UnreadExpression) else fields
        if "muon" in made_by:  # else Adam
            fields.setdefault("optimizer.optimizer", "dist_muon" if "dist" in made_by else "muon")
        if "distributed_fused_adam" in made_by:
            fields.setdefault("optimizer.use_distributed_optimizer", True)
    layout = fields.get("model.pipeline_model_parallel_layout")
    if isinstance(layout, list):
        rows = [row if isinstance(row, list) else [row] for row in layout]
        if sum(map(len, rows)) > MAX_LAYERS:
            layout = UnreadExpression("longer than any model")
        else:
            letters = ["".join(_LAYOUT.get(str(each), "?") for each in row) for row in rows]
            fields["model.pipeline_model_parallel_layout"] = "|".join(letters)
    if isinstance(layout, UnreadExpression | RecordedCall):
        del fields["model.pipeline_model_parallel_layout"]
        fields[_UNREAD_LAYOUT] = True
    objects = {
        name: UnreadExpression(f"{item.name}(...)") for name, item in fields.items() if isinstance(item, RecordedCall)
    }
    return {name: None for name, item in fields.items() if item is None} | objects | to_plain_fields(fields)
