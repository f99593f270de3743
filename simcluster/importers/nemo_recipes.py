"""Settings of NeMo 2 recipes, read from Python source (which is not run) or a file that NeMo-Run wrote.

``run.Config(X, a=1)`` and ``run.Partial(f, a=1)`` are read as X(a=1). Names are NVIDIA/NeMo's of 2.0 to 2.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.yaml_documents import read_document
from simcluster.importers import bridge_recipes, named_models
from simcluster.importers.bridge_recipes import RecipeSettings
from simcluster.importers.megatron_options import VOCABULARIES
from simcluster.importers.pre_training_checks import ADAPTER_REASON
from simcluster.importers.python_recipes import NO_ARGUMENTS, RecipeFile
from simcluster.importers.python_values import RecordedCall, UnreadExpression, parse_target_config, to_plain_fields

CONFIG_ADVICE = (
    "run it once and give the NAME_config.yaml that NeMo-Run writes for it (in configs/ of the experiment's folder)"
)
"""Advice for a recipe whose values are computed."""
_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_PRETRAINING_NAME = re.compile(r"(^|_)(pretrain|recipe)(_\w*)?$")
_PARTS = ("trainer", "model", "data", "optim")
_START_FUNCTIONS = _TABLES["starts"].split()
_CONFIG_FUNCTIONS = ("run.Config", "run.Partial", "Config", "Partial", "fdl.Config", "fdl.Partial")
_ALL_WEIGHTS_ADVICE = "peft_scheme none trains all weights"
_CONFIGURED_MARK = "run"  # marks a configuration that is read completely


def read_nemo_recipe_function(
    text: str, source: str, function: str, given: Mapping[str, str] = NO_ARGUMENTS
) -> RecipeSettings:  # fmt: skip
    """Return the settings that a NeMo 2 recipe function returns, by dotted attribute name.

    ``given`` are arguments of the function by name. Raises InputError if there are several recipes of pre-training and
    none is named, for adapters other than LoRA, and for a function that makes no readable recipe.
    """
    started: list[Any] = []
    known = dict.fromkeys(_CONFIG_FUNCTIONS, _record_config_call)
    known |= {name: lambda made=made, **_: _record_fields_as_call(made) for name, made in _TABLES["functions"].items()}
    known |= dict.fromkeys(("fdl.build", "fiddle.build"), lambda made=None, *_, **__: made)
    known |= dict.fromkeys(_START_FUNCTIONS, lambda *args, **named: started.append(_record_start_call(*args, **named)))
    file = RecipeFile(text, source, external=known)
    function, found = file.find_recipe(function, given, _PRETRAINING_NAME, _START_FUNCTIONS, started)
    what = f"{source}: recipe {function}"
    if not isinstance(found, RecordedCall):
        raise InputError(f"{what} returns no recipe that can be read as data; {CONFIG_ADVICE}")
    if found.called_on != _CONFIGURED_MARK:  # one of NeMo's built-in recipes
        scheme, adapts = found.fields.get("peft_scheme", "lora"), found.name.endswith(".finetune_recipe")
        trains_all = isinstance(scheme, UnreadExpression) or str(scheme).lower() == "none"
        if adapts and not trains_all and not named_models.explain_not_decoder(file.qualified_name(found.name)):
            why = f"the default of NeMo's {found.name}"
            raise InputError(f"{what} {ADAPTER_REASON} ({_ALL_WEIGHTS_ADVICE}), {why}")
        raise bridge_recipes.other_file_error(f"{source}: the recipe of {function}", found.name, file, CONFIG_ADVICE)
    return replace(_build_recipe(found, function, source, file), undecided=tuple(file.undecided))


def read_written_nemo_recipe(text: str, source: str) -> RecipeSettings | None:
    """Return the settings of a recipe file that NeMo-Run wrote; None if the text is not such a file."""
    found = parse_target_config(text, source)
    if found is None or "trainer" not in found.fields:
        return None
    return _build_recipe(found, "the file", source)


def _build_recipe(recipe: RecordedCall, function: str, source: str, file: RecipeFile | None = None) -> RecipeSettings:
    for part in _PARTS if file else ():
        made: Any = recipe.fields.get(part)
        other = isinstance(made, RecordedCall) and made.called_on is None and made.name.rpartition(".")[2][:1].islower()
        if file and other and file.qualified_name(made.name) != made.name:
            raise bridge_recipes.other_file_error(f"{source}: the {part} of {function}", made.name, file, CONFIG_ADVICE)
    empty = RecordedCall("none")
    trainer, model, data = (
        made if isinstance(made := recipe.fields.get(part), RecordedCall) else empty
        for part in ("trainer", "model", "data")
    )
    plugin = trainer.fields.get("plugins")
    if isinstance(plugin, list):
        plugin = next((each for each in plugin if isinstance(each, RecordedCall)), None)
    if isinstance(plugin, RecordedCall):  # the first, which sets the precision
        trainer.fields["plugins"] = plugin
        plugin.fields.setdefault("grad_reduce_in_fp32", True)
    recipe.fields["optim"] = recipe.fields.get("optim") or model.fields.get("optim")
    for made in (model, recipe.fields["optim"]):
        if isinstance(made, RecordedCall) and made.args:
            made.fields.setdefault("config", made.args[0])
    kind = data.name.rpartition(".")[2]
    data.fields = {**_TABLES["data"].get(kind, {}), **data.fields}
    sizes = model.fields.get("config")
    called = sizes.name if isinstance(sizes, RecordedCall) else ""
    name = named_models.find_model_by_class(called)
    against = named_models.explain_not_decoder(file.qualified_name(model.name) if file else model.name)
    if against and not (name and model.name.endswith("MambaModel")):  # hybrids of known sizes
        raise InputError(f"{source}: the model of {function} ({model.name}) cannot be imported: it {against}")
    own = {f"model.config.{field}": value for field, value in named_models.model_class_settings(name, called).items()}
    settings = own | _recipe_settings(recipe, trainer)
    settings |= _tokenizer_settings(data, model)
    assumed = _vocabulary_assumptions(name, settings)
    if data.fields.get("packed_sequence_specs") not in (None, False):
        assumed.append(bridge_recipes.PACKED_ASSUMPTION)
    elif kind in _TABLES["fine_tuning"].split():
        assumed.append("sequences are full, although fine-tuning samples vary in length")
    if not name:
        plain = {key.replace(".config.", "."): value for key, value in settings.items()}
        bridge_recipes.require_known_decoder(sizes, plain, f"{source}: the model of {function}", file, CONFIG_ADVICE)
    adapters = bridge_recipes.read_adapters(recipe.fields.get("peft"), f"{source}: {function}")
    return RecipeSettings(named_models.load_published_model(name), settings, tuple(assumed), trainable=adapters)


def _recipe_settings(recipe: RecordedCall, trainer: RecordedCall) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for part in _PARTS:
        settings |= _flatten_recipe_object(part, recipe.fields.get(part))
    settings.pop("trainer.callbacks", None)
    settings = {name: value for name, value in settings.items() if not name.startswith("optim.lr_scheduler")}
    if settings.get("trainer.strategy.ddp") == "megatron":  # Megatron-Core's default
        del settings["trainer.strategy.ddp"]
    calls, by_callbacks = trainer.fields.get("callbacks"), dict[str, Any]()
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, RecordedCall) and (made := _TABLES["callbacks"].get(call.name)):
            said = {**made["makes"], **call.fields}
            by_callbacks |= to_plain_fields({f"{made['to']}{name}": value for name, value in said.items()})
    for key, value in (settings | by_callbacks).items():
        if key in _TABLES["renamed"] or key not in settings:
            settings.pop(key, None)
            settings[_TABLES["renamed"].get(key, key)] = value
    return settings


def _flatten_recipe_object(name: str, value: Any, parents: tuple[RecordedCall, ...] = ()) -> dict[str, Any]:
    """Return a recipe object's settings by dotted name; ``parents`` holds the recipe objects that enclose it."""
    if not isinstance(value, RecordedCall) or any(value is each for each in parents):
        return {}
    found = to_plain_fields({f"{name}.{field}": item for field, item in value.fields.items()})
    for field, item in value.fields.items():
        found |= _flatten_recipe_object(f"{name}.{field}", item, (*parents, value))
    return found


def _vocabulary_assumptions(name: str, settings: dict[str, Any]) -> list[str]:
    """Return assumptions about a published model's vocabulary size; switch off padding where NeMo does not pad.

    ``GPTConfig.configure_model`` pads the tokenizer's vocabulary only.
    """
    if "model.config.vocab_size" in settings or name.startswith(tuple(_TABLES["own_vocabulary"].split())):
        settings["model.config.make_vocab_size_divisible_by"] = 1
        return []
    whose = "that of the data's tokenizer"
    if settings.get("model.tokenizer.library") == "megatron":
        size = VOCABULARIES["GPT2BPETokenizer"]
        whose += f", by default GPT-2's of {size} tokens (--set model.vocab_size={size})"
    return [f"the vocabulary of {name}, although NeMo takes {whose}"] if name else []


def _tokenizer_settings(data: RecordedCall, model: RecordedCall) -> dict[str, Any]:
    """Return settings that name the recipe's tokenizer (as on Hugging Face); by default that of GPT-2."""
    given = [part.fields.get("tokenizer") for part in (model, data)]
    made = [each for each in given if isinstance(each, RecordedCall)]
    if any("SentencePiece" in each.name for each in made):
        return {"model.tokenizer.library": "sentencepiece"}
    words = [*(word for each in made for word in (*each.args, *each.fields.values())), *given]
    if name := next((word for word in words if isinstance(word, str) and "/" in word), ""):
        return {"model.tokenizer.library": "huggingface", "model.tokenizer.type": name}
    usual = data.name.rpartition(".")[2] in _TABLES["gpt2_tokenizer"].split()
    return {"model.tokenizer.library": "megatron"} if usual and data.fields.get("tokenizer") is None else {}


def _record_config_call(made: Any = None, *args: Any, **named: Any) -> RecordedCall:
    name = made.name if isinstance(made, RecordedCall) else str(getattr(made, "text", made))
    return RecordedCall(name.rpartition(".")[2], args, named, _CONFIGURED_MARK)


def _record_start_call(recipe: Any = None, *args: Any, **named: Any) -> Any:
    if isinstance(recipe, RecordedCall):
        alone = not args and recipe.name.endswith("_recipe")
        if alone or recipe.called_on == _CONFIGURED_MARK or recipe.fields.keys() & {"trainer", "model"}:
            return recipe
    given = (each for each in (recipe, *args) if each is not None)
    fields = dict(zip(("model", "data", "trainer"), given, strict=False)) | named
    return RecordedCall("pretrain", (), fields, _CONFIGURED_MARK)


def _record_fields_as_call(fields: Mapping[str, Any]) -> RecordedCall:
    made = {name: _record_fields_as_call(each) if isinstance(each, Mapping) else each for name, each in fields.items()}
    return RecordedCall("made", (), made, _CONFIGURED_MARK)
