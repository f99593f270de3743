"""Settings of NeMo 2 recipes in Python (``nemo.collections.llm.recipes`` and those made of them), read as data.

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
from simcluster.importers.beside import Beside, nothing_beside
from simcluster.importers.bridge_recipes import (
    AS_THEY_COME,
    PACKED,
    ReadRecipe,
    require_sizes,
)
from simcluster.importers.model_classes import (
    defaults_of_class,
    fuses_positions,
    is_model,
    model_of_class,
    no_decoder,
    said_of_model,
)
from simcluster.importers.models_by_path import model_published
from simcluster.importers.option_values import VOCABULARIES
from simcluster.importers.pre_training import TRAINS_ADAPTERS
from simcluster.importers.python_arguments import NONE_GIVEN, ProgramArguments
from simcluster.importers.python_config import PythonConfigs
from simcluster.importers.python_values import Built, Unread, plain_fields
from simcluster.importers.recipe_programs import of_another_file, what_is_started
from simcluster.importers.written_containers import written_call

_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_PRETRAINS = re.compile(r"(^|_)(pretrain|recipe)(_\w*)?$")
_PARTS = ("trainer", "model", "data", "optim")
_PARTS_GIVEN = ("model", "data", "trainer")
_CONFIGURES = ("run.Config", "run.Partial", "Config", "Partial", "fdl.Config", "fdl.Partial")
_OF_NEMO = "nemo/collections/llm/"
_ALL = "a peft scheme of none trains all"
_READ = "run"  # what a configuration is a method of that is read whole


def settings_of_nemo_recipe(
    text: str, source: str, function: str, beside: Beside = nothing_beside, given: Mapping[str, str] = NONE_GIVEN
) -> ReadRecipe:
    """What the function of the file says that is read, by the attributes of NeMo's trainer, model, data and optimizer,
    where ``given`` are arguments of the program by name.

    Raises InputError where there are several recipes of pre-training and none is named, for adapters, and for what
    makes no recipe.
    """
    started: list[Any] = []
    known = dict.fromkeys(_CONFIGURES, _configured) | {name: _made(name) for name in _TABLES["functions"]}
    known |= {
        name: lambda *args, **named: started.append(_started(*args, **named)) for name in _TABLES["starts"].split()
    }
    arguments = ProgramArguments(given)
    known |= dict.fromkeys(_TABLES["builds"].split(), lambda made=None, *_, **__: _build(made, started))
    configs = PythonConfigs(
        text, source, known=known, models=is_model, beside=lambda path: _beside(beside, path), arguments=arguments,
        methods={"fit": lambda trainer, *args, **named: started.append(_fitted(trainer, *args, **named))},
    )  # fmt: skip
    function, found = what_is_started(configs, function, _PRETRAINS, started, _TABLES["starts"].split())
    arguments.require_used(source)
    if isinstance(found, Built) and found.of != _READ:
        raise _of_another_file(found, f"{source}: {function}", configs)
    if not isinstance(found, Built):
        raise InputError(f"{source}: {function} makes no recipe that can be read as data")
    read = _recipe(found, function, source, configs)
    return replace(read, undecided=tuple(dict.fromkeys(configs.undecided)), missing=tuple(arguments.missing))


def settings_of_written_recipe(text: str, source: str) -> ReadRecipe | None:
    """Return what a recipe says that NeMo-Run wrote; None for any other text."""
    found = written_call(text, source)
    return (
        _recipe(found, "the file", source, PythonConfigs("", source)) if found and "trainer" in found.fields else None
    )


def _of_another_file(found: Built, what: str, configs: PythonConfigs) -> InputError:
    """What to say of a recipe of NeMo's that is not beside the file."""
    module = configs.missing_module(found.name)
    if re.fullmatch(r"nemo\.collections\.llm\.\w+", module):  # which hands on its recipes
        module = module.replace(".llm.", ".llm.recipes.")
    scheme = found.fields.get("peft_scheme", "lora")
    named = no_decoder(f"{module}.{found.name}")
    if (
        not named
        and found.name.endswith("finetune_recipe")
        and str(scheme).lower() != "none"
        and not isinstance(scheme, Unread)
    ):
        return InputError(
            f"{what} {TRAINS_ADAPTERS} ({_ALL}), as NeMo's {found.name} does where peft_scheme says nothing else"
        )
    return of_another_file(f"{what} takes its recipe from {found.name}", found.name, module)


def _recipe(found: Built, function: str, source: str, configs: PythonConfigs) -> ReadRecipe:
    """What a recipe says, made by the function; InputError for adapters and models that are not known."""
    if found.fields.get("peft") is not None:
        how = "--arg peft_scheme=none trains all" if configs.takes(function, "peft_scheme") else _ALL
        raise InputError(f"{source}: {function} {TRAINS_ADAPTERS} ({how})")
    for part in _PARTS:
        made = found.fields.get(part)
        module = configs.module_of(made.name) if isinstance(made, Built) and made.of is None else ""
        if module and isinstance(made, Built) and made.name.rpartition(".")[2][:1].islower():  # of what it makes
            raise of_another_file(f"{source}: {function} takes its {part} from {made.name}", made.name, module)
    trainer, model, data = (found.fields.get(name) for name in ("trainer", "model", "data"))
    _plugin(trainer)
    if isinstance(model, Built) and model.args:
        model.fields.setdefault("config", model.args[0])
    sizes = model.fields.get("config") if isinstance(model, Built) else None
    if isinstance(model, Built) and found.fields.get("optim") is None:
        found.fields["optim"] = model.fields.get("optim")
    optimizer = found.fields.get("optim")
    if isinstance(optimizer, Built) and optimizer.args:
        optimizer.fields.setdefault("config", optimizer.args[0])
    if isinstance(data, Built):
        data.fields = {**_TABLES["data"].get(data.name.rpartition(".")[2], {}), **data.fields}
    settings = _settings(found, trainer)
    name = model_of_class(sizes.name) if isinstance(sizes, Built) else ""
    own = said_of_model(name) if name else defaults_of_class(sizes.name) if isinstance(sizes, Built) else {}
    fused = fuses_positions(name or (sizes.name if isinstance(sizes, Built) else ""))
    own = {"apply_rope_fusion": fused, **own}
    settings = {f"model.config.{field}": value for field, value in own.items()} | settings
    what = f"{source}: the model of {function}"
    if isinstance(model, Built) and (against := no_decoder(f"{configs.module_of(model.name)}.{model.name}")):
        raise InputError(f"{what} ({model.name}) {against}")
    settings |= _tokenizer(data, model)
    vocabulary = _vocabulary(name, settings)
    if not name:
        require_sizes(sizes, {key.replace(".config.", "."): value for key, value in settings.items()}, what, configs)
    return ReadRecipe(function, model_published(name), settings, (*vocabulary, *_packed(found)))


def _vocabulary(name: str, settings: dict[str, Any]) -> tuple[str, ...]:
    """What is assumed of the vocabulary of a model that is known; one that its class or the recipe says is not padded:
    ``GPTConfig.configure_model`` pads that of the tokenizer alone."""
    if "model.config.vocab_size" in settings or name.startswith(tuple(_TABLES["own_vocabulary"].split())):
        settings["model.config.make_vocab_size_divisible_by"] = 1
        return ()
    whose = "that of the data's tokenizer"
    if settings.get("model.tokenizer.library") == "megatron":
        size = VOCABULARIES["GPT2BPETokenizer"]
        whose += f", which is GPT-2's of {size} tokens where none is given (--set model.vocab_size={size})"
    return (f"the vocabulary of {name}, where NeMo takes {whose}",) if name else ()


def _tokenizer(data: Any, model: Any) -> dict[str, Any]:
    """The tokenizer by its name on Hugging Face, where the model or the data is given one; that of GPT-2 where data
    that have it by default are given none."""
    given = [part.fields.get("tokenizer") for part in (model, data) if isinstance(part, Built)]
    if any(isinstance(made, Built) and "SentencePiece" in made.name for made in given):
        return {"model.tokenizer.library": "sentencepiece"}
    for made in given:
        words = (*made.args, *made.fields.values()) if isinstance(made, Built) else (made,)
        if name := next((each for each in words if isinstance(each, str) and "/" in each), ""):
            return {"model.tokenizer.library": "huggingface", "model.tokenizer.type": name}
    kind = data.name.rpartition(".")[2] if isinstance(data, Built) else ""
    if kind in _TABLES["gpt2_tokenizer"].split() and data.fields.get("tokenizer") is None:
        return {"model.tokenizer.library": "megatron"}
    return {}


def _settings(found: Built, trainer: Any) -> dict[str, Any]:
    """What the parts say, by dotted name."""
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


def _beside(beside: Beside, path: str) -> str | None:
    """The text of a file; of ``llm.NAME`` that of the recipe which NeMo hands on by that name."""
    text = beside(path)
    if text is None and path.startswith(_OF_NEMO):
        text = beside(f"{_OF_NEMO}recipes/{path.removeprefix(_OF_NEMO)}")
    return text


def _configured(made: Any = None, *args: Any, **named: Any) -> Any:
    """What ``run.Config`` and ``run.Partial`` make."""
    name = made.text if isinstance(made, Unread) else made.name if isinstance(made, Built) else str(made)
    return Built(name.rpartition(".")[2], args, named, _READ)


def _build(made: Any, started: list[Any]) -> Any:
    """What a configuration makes, which goes to ``started`` where it is one of a whole training."""
    if isinstance(made, Built) and ("trainer" in made.fields or made.name.endswith("_recipe")):
        started.append(made)
    return made


def _started(recipe: Any = None, *args: Any, **named: Any) -> Any:
    """What is started: a recipe, or a model with data and a trainer, in this order."""
    if isinstance(recipe, Built):
        alone = not args and recipe.name.endswith("_recipe")
        if alone or recipe.of == _READ or recipe.fields.keys() & {"trainer", "model"}:
            return recipe
    given = dict(zip(_PARTS_GIVEN, (each for each in (recipe, *args) if each is not None), strict=False)) | named
    return Built("pretrain", (), given, _READ)


def _fitted(trainer: Built, model: Any = None, data: Any = None, **named: Any) -> Any:
    """What a trainer's ``fit`` trains."""
    data = named.get("datamodule", named.get("train_dataloaders", data))
    return Built("pretrain", (), {"model": model, "data": data, "trainer": trainer}, _READ)


def _made(name: str) -> Any:
    """A function of NeMo's that recipes call, by what ``nemo_recipes.yaml`` says that it makes."""

    def made(*args: Any, **named: Any) -> Built:
        entry = _TABLES["functions"][name]
        given = dict(zip(entry.get("arguments", "").split(), args, strict=False)) | named
        return _built(entry["makes"], given)

    return made


def _built(entry: Mapping[str, Any], given: Mapping[str, Any]) -> Built:
    """Nested fields; ``$NAME`` is an argument, and what is not given is left out."""
    fields: dict[str, Any] = {}
    for name, value in entry.items():
        if isinstance(value, Mapping):
            fields[name] = _built(value, given)
        elif isinstance(value, list):
            fields[name] = list(value)
        elif isinstance(value, str) and value.startswith("$"):
            argument, _, default = value[1:].partition("|")
            if argument in given or default:
                fields[name] = given.get(argument, int(default or 0))
        else:
            fields[name] = value
    return Built(str(fields.pop("_class", "made")), (), fields, _READ)


def _flat(name: str, value: Any, around: tuple[Built, ...] = ()) -> dict[str, Any]:
    """Return the settings of a part by dotted name, without those of an object that holds it (is ``around`` it)."""
    if not isinstance(value, Built) or any(value is each for each in around):
        return {}
    found = plain_fields({f"{name}.{field}": item for field, item in value.fields.items()})
    for field, item in value.fields.items():
        found |= _flat(f"{name}.{field}", item, (*around, value))
    return found


def _packed(found: Built) -> tuple[str, ...]:
    """What is taken of the length of samples, where they are packed to sequences or come as they are."""
    data = found.fields.get("data")
    if not isinstance(data, Built):
        return ()
    if data.fields.get("packed_sequence_specs") not in (None, False):
        return (PACKED,)
    return (AS_THEY_COME,) if data.name.rpartition(".")[2] in _TABLES["fine_tuning"].split() else ()


def _callbacks(trainer: Any) -> dict[str, Any]:
    """What callbacks of the trainer set: overlaps, and how many tokens an expert takes."""
    calls = trainer.fields.get("callbacks") if isinstance(trainer, Built) else None
    settings: dict[str, Any] = {}
    for call in calls if isinstance(calls, list) else []:
        made = _TABLES["callbacks"].get(call.name) if isinstance(call, Built) else None
        if made is not None and isinstance(call, Built):
            said = {**made["makes"], **call.fields}
            settings |= plain_fields({f"{made['to']}{name}": value for name, value in said.items()})
    return settings


def _plugin(trainer: Any) -> None:
    """The first plugin, which is the one of the precision, in place of a list; what it does not say of gradients is
    that they are reduced in 32 bits."""
    plugins = trainer.fields.get("plugins") if isinstance(trainer, Built) else None
    plugin = next((each for each in plugins if isinstance(each, Built)), None) if isinstance(plugins, list) else plugins
    if isinstance(trainer, Built) and isinstance(plugin, Built):
        trainer.fields["plugins"] = plugin
        plugin.fields.setdefault("grad_reduce_in_fp32", True)
