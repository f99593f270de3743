"""Settings of NeMo 2's recipes: of a function or script in Python, read as data, or of what NeMo-Run wrote.

``run.Config(X, a=1)`` and ``run.Partial(f, a=1)`` are what X(a=1) would make.  Names are NVIDIA/NeMo's of 2.0 to 2.5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.reading import read_document
from simcluster.importers.bridge_recipes import AS_THEY_COME, PACKED, ReadRecipe, of_another_file, require_sizes
from simcluster.importers.named_models import (
    defaults_of_class,
    fuses_positions,
    model_of_class,
    model_published,
    no_decoder,
    said_of_model,
)
from simcluster.importers.option_values import VOCABULARIES
from simcluster.importers.pre_training import TRAINS_ADAPTERS
from simcluster.importers.python_recipes import NONE_GIVEN, RecipeFile
from simcluster.importers.python_values import Built, Unread, given_values, plain_fields, written_call

RESOLVED = (
    "run it once and give the NAME_config.yaml that NeMo-Run writes for it (in configs/ of the experiment's folder)"
)
"""Advice for a recipe that computes its values."""
_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_PRETRAINS = re.compile(r"(^|_)(pretrain|recipe)(_\w*)?$")
_PARTS = ("trainer", "model", "data", "optim")
_PARTS_GIVEN = ("model", "data", "trainer")
_STARTS = _TABLES["starts"].split()
_CONFIGURES = ("run.Config", "run.Partial", "Config", "Partial", "fdl.Config", "fdl.Partial")
_ALL = "a peft scheme of none trains all"
_READ = "run"  # what a configuration is a method of that is read whole


def settings_of_nemo_recipe(
    text: str, source: str, function: str, given: Mapping[str, str] = NONE_GIVEN
) -> ReadRecipe:  # fmt: skip
    """Return what the function of the file says, by the attributes of NeMo's trainer, model, data and optimizer.

    ``given`` are arguments of the function by name.  Raises InputError where there are several recipes of pre-training
    and none is named, for adapters, and for what makes no recipe that is read.
    """
    started: list[Any] = []
    known = dict.fromkeys(_CONFIGURES, _configured) | {name: _made(name) for name in _TABLES["functions"]}
    known |= dict.fromkeys(_STARTS, lambda *args, **named: started.append(_started(*args, **named)))
    known |= dict.fromkeys(_TABLES["builds"].split(), lambda made=None, *_, **__: made)
    fit = {"fit": lambda trainer, *args, **named: started.append(_fitted(trainer, *args, **named))}
    file = RecipeFile(text, source, known=known, methods=fit)
    function = function or file.chosen(_PRETRAINS, _STARTS)
    found = file.read(function, given_values(given))
    found = found if isinstance(found, Built) or not started else started[0]
    if not isinstance(found, Built):
        raise InputError(f"{source}: {function} makes no recipe that can be read as data; {RESOLVED}")
    if found.of != _READ:
        raise _other(found, f"{source}: {function}", file)
    read = _recipe(found, function, source, file)
    return replace(read, undecided=tuple(file.undecided))


def settings_of_written_recipe(text: str, source: str) -> ReadRecipe | None:
    """Return what a recipe says that NeMo-Run wrote; None for any other text."""
    found = written_call(text, source)
    return _recipe(found, "the file", source) if found and "trainer" in found.fields else None


def _other(found: Built, what: str, file: RecipeFile) -> InputError:
    """Return what to say of a recipe of NeMo's, which another file has."""
    scheme, adapts = found.fields.get("peft_scheme", "lora"), found.name.endswith("finetune_recipe")
    trains_all = isinstance(scheme, Unread) or str(scheme).lower() == "none"
    if adapts and not trains_all and not no_decoder(file.place_of(found.name)):
        why = f"as NeMo's {found.name} does where peft_scheme says nothing else"
        return InputError(f"{what} {TRAINS_ADAPTERS} ({_ALL}), {why}")
    return of_another_file(f"{what} takes its recipe", found.name, file, RESOLVED)


def _recipe(found: Built, function: str, source: str, file: RecipeFile | None = None) -> ReadRecipe:
    """Return what a recipe says; InputError for adapters and models that are not known."""
    if found.fields.get("peft") is not None:
        raise InputError(f"{source}: {function} {TRAINS_ADAPTERS} ({_ALL}: --arg peft_scheme=none, where it has that)")
    for part in _PARTS if file else ():
        made: Any = found.fields.get(part)
        other = isinstance(made, Built) and made.of is None and made.name.rpartition(".")[2][:1].islower()
        if file and other and file.place_of(made.name) != made.name:
            raise of_another_file(f"{source}: {function} takes its {part}", made.name, file, RESOLVED)
    trainer, model, data = (found.fields.get(name) for name in ("trainer", "model", "data"))
    _plugin(trainer)
    if isinstance(model, Built):
        found.fields["optim"] = found.fields.get("optim") or model.fields.get("optim")
    for made in (model, found.fields.get("optim")):
        if isinstance(made, Built) and made.args:
            made.fields.setdefault("config", made.args[0])
    sizes = model.fields.get("config") if isinstance(model, Built) else None
    if isinstance(data, Built):
        data.fields = {**_TABLES["data"].get(data.name.rpartition(".")[2], {}), **data.fields}
    settings = _settings(found, trainer)
    kind = sizes.name if isinstance(sizes, Built) else ""
    name = model_of_class(kind)
    own = {"apply_rope_fusion": fuses_positions(name or kind), **(said_of_model(name) or defaults_of_class(kind))}
    settings = {f"model.config.{field}": value for field, value in own.items()} | settings
    what = f"{source}: the model of {function}"
    if isinstance(model, Built) and (against := no_decoder(file.place_of(model.name) if file else model.name)):
        raise InputError(f"{what} ({model.name}) {against}")
    settings |= _tokenizer(data, model)
    vocabulary = _vocabulary(name, settings)
    if not name:
        plain = {key.replace(".config.", "."): value for key, value in settings.items()}
        require_sizes(sizes, plain, what, file, RESOLVED)
    return ReadRecipe(model_published(name), settings, (*vocabulary, *_packed(data)))


def _vocabulary(name: str, settings: dict[str, Any]) -> tuple[str, ...]:
    """Return what is assumed of the vocabulary of a known model; one that its class or the recipe says is not padded.

    ``GPTConfig.configure_model`` pads that of the tokenizer alone.
    """
    if "model.config.vocab_size" in settings or name.startswith(tuple(_TABLES["own_vocabulary"].split())):
        settings["model.config.make_vocab_size_divisible_by"] = 1
        return ()
    whose = "that of the data's tokenizer"
    if settings.get("model.tokenizer.library") == "megatron":
        size = VOCABULARIES["GPT2BPETokenizer"]
        whose += f", which is GPT-2's of {size} tokens where none is given (--set model.vocab_size={size})"
    return (f"the vocabulary of {name}, where NeMo takes {whose}",) if name else ()


def _tokenizer(data: Any, model: Any) -> dict[str, Any]:
    """Return the tokenizer by its name on Hugging Face, where the model or the data is given one.

    It is that of GPT-2 where data that have it by default are given none.
    """
    given = [part.fields.get("tokenizer") for part in (model, data) if isinstance(part, Built)]
    if any(isinstance(made, Built) and "SentencePiece" in made.name for made in given):
        return {"model.tokenizer.library": "sentencepiece"}
    words = [word for made in given if isinstance(made, Built) for word in (*made.args, *made.fields.values())]
    if name := next((word for word in (*words, *given) if isinstance(word, str) and "/" in word), ""):
        return {"model.tokenizer.library": "huggingface", "model.tokenizer.type": name}
    usual = isinstance(data, Built) and data.name.rpartition(".")[2] in _TABLES["gpt2_tokenizer"].split()
    return {"model.tokenizer.library": "megatron"} if usual and data.fields.get("tokenizer") is None else {}


def _settings(found: Built, trainer: Any) -> dict[str, Any]:
    """Return what the parts say, by dotted name."""
    settings: dict[str, Any] = {}
    for part in _PARTS:
        settings |= _flat(part, found.fields.get(part))
    settings.pop("trainer.callbacks", None)
    settings = {name: value for name, value in settings.items() if not name.startswith("optim.lr_scheduler")}
    if settings.get("trainer.strategy.ddp") == "megatron":  # as Megatron-Core has it
        del settings["trainer.strategy.ddp"]
    for key, value in (settings | _callbacks(trainer)).items():
        if key in _TABLES["renamed"] or key not in settings:
            settings.pop(key, None)
            settings[_TABLES["renamed"].get(key, key)] = value
    return settings


def _configured(made: Any = None, *args: Any, **named: Any) -> Built:
    """Return what ``run.Config`` and ``run.Partial`` make."""
    name = made.name if isinstance(made, Built) else str(getattr(made, "text", made))
    return Built(name.rpartition(".")[2], args, named, _READ)


def _started(recipe: Any = None, *args: Any, **named: Any) -> Any:
    """Return what is started: a recipe, or a model with data and a trainer, in this order."""
    if isinstance(recipe, Built):
        alone = not args and recipe.name.endswith("_recipe")
        if alone or recipe.of == _READ or recipe.fields.keys() & {"trainer", "model"}:
            return recipe
    given = dict(zip(_PARTS_GIVEN, (each for each in (recipe, *args) if each is not None), strict=False)) | named
    return Built("pretrain", (), given, _READ)


def _fitted(trainer: Built, model: Any = None, data: Any = None, **named: Any) -> Built:
    """Return what a trainer's ``fit`` trains."""
    data = named.get("datamodule", named.get("train_dataloaders", data))
    return Built("pretrain", (), {"model": model, "data": data, "trainer": trainer}, _READ)


def _made(name: str) -> Any:
    """Return a function of NeMo's that recipes call, by what ``nemo_recipes.yaml`` says that it makes."""

    def made(*args: Any, **named: Any) -> Built:
        entry = _TABLES["functions"][name]
        return _built(entry["makes"], dict(zip(entry.get("arguments", "").split(), args, strict=False)) | named)

    return made


def _built(entry: Mapping[str, Any], given: Mapping[str, Any]) -> Built:
    """Return nested fields; ``$NAME`` is an argument, and what is not given is left out."""
    fields: dict[str, Any] = {}
    for name, value in entry.items():
        if isinstance(value, Mapping):
            fields[name] = _built(value, given)
        elif isinstance(value, str) and value.startswith("$"):
            argument, _, default = value[1:].partition("|")
            if argument in given or default:
                fields[name] = given.get(argument, int(default or 0))
        else:
            fields[name] = list(value) if isinstance(value, list) else value
    return Built(str(fields.pop("_class", "made")), (), fields, _READ)


def _flat(name: str, value: Any, around: tuple[Built, ...] = ()) -> dict[str, Any]:
    """Return the settings of a part by dotted name, without those of an object that holds it (is ``around`` it)."""
    if not isinstance(value, Built) or any(value is each for each in around):
        return {}
    found = plain_fields({f"{name}.{field}": item for field, item in value.fields.items()})
    for field, item in value.fields.items():
        found |= _flat(f"{name}.{field}", item, (*around, value))
    return found


def _packed(data: Any) -> tuple[str, ...]:
    """Return what is taken of the length of samples, where they are packed to sequences or come as they are."""
    if not isinstance(data, Built):
        return ()
    if data.fields.get("packed_sequence_specs") not in (None, False):
        return (PACKED,)
    return (AS_THEY_COME,) if data.name.rpartition(".")[2] in _TABLES["fine_tuning"].split() else ()


def _callbacks(trainer: Any) -> dict[str, Any]:
    """Return what callbacks of the trainer set: overlaps, and how many tokens an expert takes."""
    calls = trainer.fields.get("callbacks") if isinstance(trainer, Built) else None
    settings: dict[str, Any] = {}
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, Built) and (made := _TABLES["callbacks"].get(call.name)):
            said = {**made["makes"], **call.fields}
            settings |= plain_fields({f"{made['to']}{name}": value for name, value in said.items()})
    return settings


def _plugin(trainer: Any) -> None:
    """Put the first plugin, which is the one of the precision, in place of a list; it reduces gradients in 32 bits
    where it does not say otherwise."""
    plugins = trainer.fields.get("plugins") if isinstance(trainer, Built) else None
    plugin = next((each for each in plugins if isinstance(each, Built)), None) if isinstance(plugins, list) else plugins
    if isinstance(trainer, Built) and isinstance(plugin, Built):
        trainer.fields["plugins"] = plugin
        plugin.fields.setdefault("grad_reduce_in_fp32", True)
