"""Settings of Megatron-Bridge recipes in Python, read as data: one function that makes a configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.reading import read_document
from simcluster.importers.beside import Beside, nothing_beside
from simcluster.importers.flat_settings import flattened
from simcluster.importers.model_classes import (
    defaults_of_class,
    fuses_positions,
    is_model,
    model_of_class,
    model_of_sizes,
    no_decoder,
    said_of_model,
)
from simcluster.importers.models_by_path import NamedModel, model_named, model_published
from simcluster.importers.pre_training import TRAINS_ADAPTERS
from simcluster.importers.python_arguments import NONE_GIVEN, ProgramArguments, telling
from simcluster.importers.python_config import PythonConfigs
from simcluster.importers.python_values import Built, Unread, plain_fields
from simcluster.importers.recipe_programs import not_beside, of_another_file, what_is_started
from simcluster.importers.written_containers import written_call

_PRETRAINS = re.compile(r"pretrain_(\w+_)?(config|recipe)$")
_ADAPTERS = re.compile(r"(^|_)(peft|q?lora|dora)_")
_LAYOUT = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_TABLES = read_document(Path(__file__).with_name("megatron_bridge.yaml")).data
_BASES: dict[str, Any] = _TABLES["bases"]
_IN_ALL_WRITTEN = frozenset(_TABLES["in_all_written"].split())
_IDLE_FIELDS, _IDLE_SECTIONS = _TABLES["no_effect"].split(), _TABLES["no_effect_sections"].split()
_NULL_VOCABULARY = 32_000  # DEFAULT_NULL_TOKENIZER_VOCAB_SIZE of recipes/utils/tokenizer_utils.py
_STARTS = ("pretrain", "megatron_pretrain", "finetune")
_OF_OVERRIDES = (
    "create_omegaconf_dict_config", "parse_hydra_overrides", "apply_overrides", "get_rank_safe",
)  # fmt: skip
"""Functions of Megatron-Bridge that a script calls with its command line, on which nothing is given."""
PACKED = "sequences are full and of one sample each, though its samples are packed to a sequence"
_OF_TOKENIZER = "the vocabulary of the model's own configuration, where Megatron-Bridge takes that of the tokenizer"
_LENGTHS = "the model's sequence length, though dataset.seq_length is {}, which Megatron-Bridge refuses"
AS_THEY_COME = "sequences are full, though samples of fine-tuning are as long as they come"
_OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")


@dataclass(frozen=True)
class ReadRecipe:
    """What a function says: its name, its model (none where its fields say it), its settings by dotted name, what is
    modelled otherwise, what it does that is not known here, and which arguments of its program nobody gives.
    """

    function: str
    model: NamedModel
    settings: dict[str, Any]
    assumed: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def settings_of_recipe(
    text: str, source: str, function: str, beside: Beside = nothing_beside, given: Mapping[str, str] = NONE_GIVEN
) -> ReadRecipe:
    """What the function of the file says that is read, where ``given`` are arguments of the program by name.

    Raises InputError where there are several recipes of pre-training and none is named, for one of fine-tuning that is
    not asked for by name, and for what makes no configuration.
    """
    started: list[Any] = []
    known: dict[str, Callable[..., Any]] = {
        "apply_flex_dispatcher_backend": _flexible, "get_mixed_precision_config": _precision,
        **dict.fromkeys(_STARTS, lambda config=None, *_, **__: started.append(config)),
        "process_config_with_overrides": lambda config=None, *_, **__: config,
        **dict.fromkeys(_OF_OVERRIDES, lambda *_, **__: Unread("what the command line says")),
    }  # fmt: skip
    arguments = ProgramArguments(given)
    configs = PythonConfigs(
        text, source, known=known, models=is_model, beside=beside, arguments=arguments, idle=_is_idle
    )
    function, found = what_is_started(configs, function, _PRETRAINS, started, _STARTS)
    arguments.require_used(source)
    if not isinstance(found, Built):
        raise InputError(f"{source}: {function} makes no configuration that can be read as data")
    if found.name != "ConfigContainer" and found.name not in _BASES:
        if _ADAPTERS.search(found.name) or found.fields.get("peft") is not None:
            why = f", as {found.name} says" if _ADAPTERS.search(found.name) else ""
            raise InputError(f"{source}: {function} {TRAINS_ADAPTERS}{why}")
        what = f"{source}: {function} takes its configuration from {found.name}"
        with telling(arguments.missing):
            raise of_another_file(what, found.name, configs.missing_module(found.name))
    if "model_config" in found.fields:  # of nemo.tron, from which Megatron-Bridge comes
        found.fields = {name.removesuffix("_config"): value for name, value in found.fields.items()}
    read = _recipe(found, function, source, configs, beside)
    return replace(read, undecided=tuple(dict.fromkeys(configs.undecided)), missing=tuple(arguments.missing))


def _is_idle(attribute: str) -> bool:
    """Whether an attribute of a configuration, as it is written, is one that changes no time."""
    _, *sections, field = attribute.split(".")
    return field in _IDLE_FIELDS or any(section in _IDLE_SECTIONS for section in sections)


def settings_of_written(text: str, source: str) -> ReadRecipe | None:
    """What a configuration says that Megatron-Bridge wrote with all its fields; None for any other text."""
    found = written_call(text, source)
    if found is None or found.name != "ConfigContainer":
        return None
    read = _recipe(found, "the file", source)
    copies = {f"optimizer.{name}": f"ddp.{name}" for name in _OVERLAPS}
    copies |= {f"optimizer.{name}": f"model.{name}" for name in ("bf16", "fp16")}
    muon = "muon" in str(read.settings.get("optimizer.optimizer"))

    def says(name: str, value: Any) -> bool:
        field = name.partition(".")[2]
        default = (field, value) == ("main_params_dtype", "fp32") or (field.startswith("muon_") and not muon)
        return not default and field not in _IN_ALL_WRITTEN and copies.get(name) not in read.settings

    return replace(read, settings={name: value for name, value in read.settings.items() if says(name, value)})


def _recipe(
    found: Built, function: str, source: str, configs: PythonConfigs | None = None, beside: Beside = nothing_beside
) -> ReadRecipe:
    """What a container says, made by the function; InputError for adapters and models that are not known."""
    if found.fields.get("peft") is not None or found.name.startswith("_peft"):
        raise InputError(f"{source}: {function} {TRAINS_ADAPTERS}")
    model = found.fields.get("model")
    if isinstance(model, Built) and any("freeze_vision" in name for name in model.fields):
        raise InputError(f"{source}: {function} trains a model that takes images, and decoders of text are modelled")
    known = _known_model(model, source, configs, beside)
    name = known.name
    settings: dict[str, Any] = {f"model.{field}": value for field, value in said_of_model(name).items()}
    if isinstance(model, Built) and not name:
        settings = {f"model.{field}": value for field, value in defaults_of_class(model.name).items()}
    if configs:  # what is written has all fields
        called = name or (model.name if isinstance(model, Built) else "")
        settings = {"model.apply_rope_fusion": fuses_positions(called), **settings}
    settings |= flattened(_BASES.get(found.name, {}), source)
    for section, value in found.fields.items():
        settings = {each: word for each, word in settings.items() if not _is_unset(each, section, value)}
        settings |= _section(section, value)
    of_tokenizer = _vocabulary(name, settings, found.fields.get("tokenizer"))
    if not of_tokenizer and _keeps_vocabulary(found, name, settings):
        settings["model.make_vocab_size_divisible_by"] = 1
    settings |= of_tokenizer
    samples = settings.pop("dataset.seq_length", None) if "model.seq_length" in settings else None
    differ = (_LENGTHS.format(samples),) if samples not in (None, settings.get("model.seq_length")) else ()
    if not name:
        require_sizes(model, settings, f"{source}: the model of {function}", configs)
    named = settings.get("tokenizer.use_tokenizer_vocab_size") is True and "model.vocab_size" not in settings
    own = (_OF_TOKENIZER,) if named and name else ()
    return ReadRecipe(function, known, _settled(settings), (*known.assumed, *own, *differ, *_packed(found)))


def _is_unset(name: str, section: str, value: Any) -> bool:
    """Whether a section says of a setting that a base or the model's class makes that it is None."""
    if value is None:
        return name == section or name.startswith(f"{section}.")
    field = name.removeprefix(f"{section}.")
    return isinstance(value, Built) and field != name and value.fields.get(field, name) is None


def _has_vocabulary(model: str, settings: Mapping[str, Any]) -> bool:
    """Whether a model says its vocabulary, and does not wait for that of the tokenizer, as GPT-3's classes do."""
    return "model.vocab_size" in settings or bool(model and not model.startswith("gpt3"))


def _keeps_vocabulary(found: Built, model: str, settings: Mapping[str, Any]) -> bool:
    """Whether the vocabulary is the model's own, which is not padded, and not the tokenizer's, which is
    (``_validate_and_set_vocab_size`` of Megatron-Bridge's training/setup.py, whatever should_pad_vocab says before).

    Of pre-training on a base that is not read nothing is said: which of both it takes changed with its version.
    """
    if found.name != "ConfigContainer" and "sft" not in found.name:
        return False
    return _has_vocabulary(model, settings) and settings.get("tokenizer.use_tokenizer_vocab_size") is not True


def _vocabulary(model: str, settings: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """That of a tokenizer which is none, for models that have none of their own or take the tokenizer's at any rate."""
    if settings.get("tokenizer.tokenizer_type") != "NullTokenizer":
        return {}
    if _has_vocabulary(model, settings) and settings.get("tokenizer.use_tokenizer_vocab_size") is not True:
        return {}
    size = settings.get("tokenizer.vocab_size")
    said = tokenizer.fields.get("vocab_size") if isinstance(tokenizer, Built) else None
    if model and isinstance(said, Unread) and said.text.endswith(".vocab_size"):
        return {}  # the model's, as Hugging Face has it
    return {"model.vocab_size": size if isinstance(size, int) else _NULL_VOCABULARY}


def require_sizes(model: Any, settings: Mapping[str, Any], what: str, configs: PythonConfigs | None = None) -> None:
    """InputError for a model that is no decoder, or whose sizes are not said; ``what`` names it, and ``configs`` is the
    file that makes it."""
    kind = model.name if isinstance(model, Built) else str(getattr(model, "text", "none"))
    module = configs.module_of(kind) if configs else ""
    if against := no_decoder(f"{module}.{kind}"):
        raise InputError(f"{what} ({kind[:80]}) {against}")
    against = ""
    if "model.num_layers" not in settings:
        against = "is not known here, and the recipe does not say its sizes (num_layers and others)"
        against += f"; it is {not_beside(module)}" if module and configs and not configs.is_beside(kind) else ""
    elif isinstance(model, Built) and not defaults_of_class(model.name):
        against = "is of a class that is not known here, nor what that says of norms, activation and attention"
    if against and module and kind.rpartition(".")[2][:1].islower():
        raise of_another_file(f"{what} comes from {kind[:80]}", kind, module)
    if against and (other := no_decoder(what.rpartition(" ")[2])):
        raise InputError(f"{what} {other}")
    if against and configs and configs.asked:
        asked = configs.asked[0]
        against += (
            f"; its argument {asked} is given by whoever calls it: name a function that does, or --arg {asked}=..."
        )
    if against:
        with telling(configs.arguments.missing if configs else ()):
            raise InputError(f"{what} ({kind[:80]}) {against}")


def _settled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are left where several sections say one: a recipe's mixed precision has the last word on those
    of the model, the optimizer and DDP (its setup writes over them), as have overlaps of their own section, and a
    distributed optimizer is on where the optimizer or DDP has it."""
    found = dict(settings)
    if "mixed_precision.bf16" in found:  # a configuration written out, in place of a name
        found["mixed_precision"] = None
    for name in ("model.bf16", "model.fp16", "optimizer.bf16", "optimizer.fp16"):
        if found.get("mixed_precision") or "mixed_precision.bf16" in found:
            found.pop(name, None)
    if found.get("mixed_precision") or any(name.startswith("mixed_precision.") for name in found):
        found.pop("ddp.grad_reduce_in_fp32", None)
    else:
        found.setdefault("ddp.grad_reduce_in_fp32", False)  # as DDP's configuration has it
    if "mixed_precision.fp8" not in found:
        found.pop("mixed_precision.fp8_recipe", None)
    if found.pop("optimizer.overlap_param_gather", None) is True:
        found["ddp.overlap_param_gather"] = True
    if found.pop("optimizer.use_distributed_optimizer", None) is True:
        found["ddp.use_distributed_optimizer"] = True
    overlaps = any(name.startswith("comm_overlap.") for name in found)
    if overlaps:  # CommOverlapConfig turns on what a recipe does not turn off in it, those of DDP where that shards
        said = {f"ddp.{name}": found.pop(f"comm_overlap.{name}", True) for name in _OVERLAPS}
        found |= said if found.get("ddp.use_distributed_optimizer") is True else {}
        found["model.overlap_p2p_comm"] = found.pop("comm_overlap.overlap_p2p_comm", True)
    found.setdefault("model.overlap_p2p_comm", False)
    return found


def _packed(found: Built) -> tuple[str, ...]:
    """That samples share a sequence, where they do."""
    data = found.fields.get("dataset")
    fields = data.fields if isinstance(data, Built) else {}
    named = [name for name, value in fields.items() if "pack" in name and value not in (None, False)]
    if not named and found.name != "_sft_common":
        return ()
    return (PACKED,)


def _flexible(model: Any = None, backend: Any = None, *_: Any, **__: Any) -> None:
    """What ``apply_flex_dispatcher_backend`` sets, on GPUs that have the backend."""
    if isinstance(model, Built) and backend in ("deepep", "hybridep"):
        model.fields |= {
            "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": backend,
            "moe_shared_expert_overlap": False,
        }  # fmt: skip


def _precision(named: Any = None, *_: Any, **__: Any) -> Any:
    """What ``get_mixed_precision_config`` makes of a name."""
    return Built(named) if isinstance(named, str) else named


def _known_model(model: Any, source: str, configs: PythonConfigs | None, beside: Beside) -> NamedModel:
    """The model that a class or a place on Hugging Face names; none where neither does."""
    while isinstance(model, Built):
        if known := model_of_class(model.name):
            return model_published(known)
        given = (*model.args, model.fields.get("path"))
        name = next((each for each in given if isinstance(each, str)), "")
        if model.name.endswith("from_hf_pretrained") or "/" in name:
            unread = next((each.text for each in given if isinstance(each, Unread)), model.name)
            with telling(configs.arguments.missing if configs and not name else ()):
                return model_named(name or unread, source, beside)
        alike = "" if defaults_of_class(model.name) else model_of_sizes(model.name, model.fields)
        if alike:
            return model_published(alike)
        if model.of is None:
            break
        model = model.of
    return NamedModel()


def _section(section: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Built):
        fields = {f"{section}.{name}": item for name, item in value.fields.items()}
        if section == "mixed_precision" and not value.name.endswith("Config"):
            fields["mixed_precision"] = next((each for each in value.args if isinstance(each, str)), value.name)
        if section == "comm_overlap":
            fields.setdefault("comm_overlap.tp_comm_overlap", False)
    elif section == "optimizer" and isinstance(value, Unread):
        fields = {}  # by a function of another file, as its name says below
    else:
        fields = {section: value}
    if section == "optimizer" and "muon" in _made_by(value):  # else Adam
        fields.setdefault("optimizer.optimizer", "dist_muon" if "dist" in _made_by(value) else "muon")
    if section == "optimizer" and "distributed_fused_adam" in _made_by(value):
        fields.setdefault("optimizer.use_distributed_optimizer", True)
    layout = fields.get("model.pipeline_model_parallel_layout")
    if isinstance(layout, Unread | Built):
        fields["model.pipeline_model_parallel_layout, which the file makes in a way that is not read"] = True
        del fields["model.pipeline_model_parallel_layout"]
    elif isinstance(layout, list):
        rows = [row if isinstance(row, list) else [row] for row in layout]
        letters = ["".join(_LAYOUT.get(str(each), "?") for each in row) for row in rows]
        fields["model.pipeline_model_parallel_layout"] = "|".join(letters)
    objects = {name: Unread(f"{item.name}(...)") for name, item in fields.items() if isinstance(item, Built)}
    return objects | plain_fields(fields)


def _made_by(value: Any) -> str:
    """The call that makes a section, as it is written as far as it is not read."""
    if isinstance(value, Built):
        return " ".join((value.name, *(each.text for each in value.args if isinstance(each, Unread))))
    return value.text if isinstance(value, Unread) else ""
