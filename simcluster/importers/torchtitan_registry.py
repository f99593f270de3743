"""Settings of a torchtitan job from a registry of configurations in Python (``config_registry.py``), read as data.

Names are those of pytorch/torchtitan's models/*/config_registry.py and config/configs.py (2026), whose newest functions
take ``seq_len``, have the model in ``model`` and transforms around the whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed
from simcluster.importers.beside import Beside, nothing_beside
from simcluster.importers.python_config import PythonConfigs
from simcluster.importers.python_values import Built, Unread

_SPECS = ("model_spec", "model")
_SECTIONS = ("training", "parallelism", "compile")
_CHECKPOINTING = {"FullAC": "full", "SelectiveAC": "selective", "NoAC": "none"}
_TRAINER = re.compile(r"(\w*Trainer)\.Config$")
_FILE = "config_registry.py"
_CONVERTS = re.compile(r"Converter(\.Config)?$")
_OF_THE_CALL = ("converters", "flavor", "seq_len", "max_context_length", "enable_sp")
_OF_FLOAT8 = {"enable_fsdp_float8_all_gather": bool, "emulate": bool, "recipe_name": str, "filter_fqns": list}


def settings_of_registry(
    text: str,
    source: str,
    function: str,
    models: tuple[str, ...],
    beside: Beside = nothing_beside,
    sequence_length: int | None = None,
) -> dict[str, Any]:
    """Dotted settings, as of a job config in TOML, of one function of the file; the only one where none is named.

    ``models`` are the names of models that are known, ``beside`` the text of another registry that this one takes
    configurations of, ``sequence_length`` what a function that takes ``seq_len`` is called with.  Raises InputError
    where there are several and none is named, and for a function that makes no configuration of a trainer.
    """
    registries: Beside = lambda path: beside(path) if path.endswith(_FILE) else None  # noqa: E731
    known: dict[str, Callable[..., Any]] = {
        "to_graph_trainer_config": _of_graphs, "model_registry": _registered, "apply_transforms": _transformed
    }  # fmt: skip
    configs = PythonConfigs(text, source, known=known, beside=registries)
    made = [name for name in configs.functions if not name.startswith("_") and not name.endswith("debugmodel")]
    if not function and len(made) != 1:
        raise InputError(
            f"{source}: has several configurations; name one behind a colon, as in {source}:{[*made, 'NAME'][0]}"
            + (f" (it has {listed(made[:40])})" if made else "")
        )
    function = function or made[0]
    found = configs.read(function, **({"seq_len": sequence_length} if sequence_length else {}))
    if isinstance(found, Built) and found.name == "Controller.Config":
        raise InputError(f"{source}: {function} is reinforcement learning, whose step is more than one of pre-training")
    if not isinstance(found, Built) or not _TRAINER.search(found.name):
        raise InputError(f"{source}: {function} makes no Trainer.Config that can be read as data")
    if found.name not in ("Trainer.Config", "FaultTolerantTrainer.Config", "GraphTrainer.Config"):
        raise InputError(f"{source}: {function} is of {found.name.partition('.')[0]}, which trains no decoder of text")
    settings: dict[str, Any] = {}
    if "model" in found.fields and isinstance(compiled := found.fields.get("compile"), Built):
        compiled.fields.setdefault("enable", True)  # of the newest, where what is given is on
    for name, value in found.fields.items():
        of = configs.module_of(value.name) if name in _SPECS and isinstance(value, Built) else ""
        imported = re.search(r"\bmodels\.(\w+)$", of)
        settings |= _section(name, value, imported[1] if imported else _model_of(source, function, models))
    _require_length(settings, source, function)
    return settings | {f"what {function} does {place}": True for place in configs.undecided}


def _require_length(settings: Mapping[str, Any], source: str, function: str) -> None:
    """InputError where the length of a sequence is that of the model, which the file does not say."""
    length = settings.get("training.max_context_length")
    if isinstance(length, str) and ("max_context_length" in length or "SEQ_LEN" in length):
        raise InputError(
            f"{source}: {function} leaves the length of a sequence to the model: give it, as in --sequence-length 4096"
        )


def _registered(*args: Any, **named: Any) -> Built:
    """A model with as many tokens as it is called with, where that is a number."""
    length = named.get("seq_len")
    return Built("model_registry", args, named | ({"max_context_length": length} if isinstance(length, int) else {}))


def _transformed(base: Any = None, transforms: Any = None, *_: Any, **__: Any) -> Any:
    """A configuration with what transforms it: converters, and others by name."""
    if not isinstance(base, Built) or not isinstance(transforms, list):
        return Unread("apply_transforms(...)")
    converters = [each for each in transforms if isinstance(each, Built) and _CONVERTS.search(each.name)]
    others = [each.name if isinstance(each, Built) else str(each) for each in transforms if each not in converters]
    fields = {"model_converters": Built("", (), {"converters": converters})} if converters else {}
    return Built(base.name, base.args, base.fields | fields | ({"transforms": others} if others else {}))


def _of_graphs(base: Any = None, *_: Any, **__: Any) -> Any:
    """What ``to_graph_trainer_config`` of torchtitan's graph_trainer makes of a configuration: one that compiles by a
    section of its own and checkpoints by operators where the other checkpoints."""
    if not isinstance(base, Built):
        return Unread("to_graph_trainer_config(...)")
    fields = {name: value for name, value in base.fields.items() if name != "compile"}
    if fields.get("activation_checkpoint") is not None:
        fields["activation_checkpoint"] = Built("SelectiveAC.Config")
    return Built("GraphTrainer.Config", (), fields)


def _model_of(source: str, function: str, models: tuple[str, ...]) -> str:
    """By the folder that the file lies in, or else by the beginning of the function's name."""
    folder = re.search(r"(models/)?\b(\w+)/[^/]*$", source)
    beginning = [model for model in models if function.startswith(f"{model}_")]
    return folder[2] if folder and (folder[1] or folder[2] in models) else max(beginning, key=len, default=function)


def _section(name: str, value: Any, model: str) -> dict[str, Any]:
    if name in _SPECS and isinstance(value, Built):
        flavor = value.args[0] if value.args else value.fields.get("flavor", "")
        found: dict[str, Any] = {"model.name": model, "model.flavor": flavor if isinstance(flavor, str) else ""}
        found |= _converters(value.fields.get("converters"))
        rest = {key: item for key, item in value.fields.items() if key not in _OF_THE_CALL}
        return found | {f"model.{key}": _plain(item) for key, item in rest.items()}
    if name == "model_converters" and isinstance(value, Built):
        return _converters(value.fields.get("converters"))
    if name == "activation_checkpoint":
        return _checkpointing(value)
    if name in ("optimizer", "optim"):
        return _optimizer(value)
    if name == "transforms":
        return {f"transforms.{each}": True for each in value}
    if name in _SECTIONS and isinstance(value, Built):
        return {f"{name}.{key}": _plain(item) for key, item in value.fields.items() if item is not None}
    return {name if not isinstance(value, Built) else f"{name}.config": _plain(value)}


def _converters(listed_ones: Any) -> dict[str, Any]:
    """What takes the place of layers: the names, and what changes products in 8 bits and what FSDP gathers."""
    if not isinstance(listed_ones, list):
        return {}
    found: dict[str, Any] = {
        "model.converters": [
            each.name.partition(".")[0] if isinstance(each, Built) else str(each) for each in listed_ones
        ]
    }
    for each in listed_ones:
        fields = each.fields if isinstance(each, Built) and each.name.startswith("Float8Linear") else {}
        values = ((name, fields.get(name), kind) for name, kind in _OF_FLOAT8.items())
        found |= {f"float8.{name}": value for name, value, kind in values if isinstance(value, kind)}
    return found


def _checkpointing(value: Any) -> dict[str, Any]:
    """By a class for each mode, or by the words of a job config; None is none."""
    kind = value.name.partition(".")[0] if isinstance(value, Built) else "NoAC"
    if kind == "ActivationCheckpointConfig" and isinstance(value, Built):
        said = {"selective_ac_option": "op"} | value.fields  # which is no field any more since op alone is left
        return {f"activation_checkpoint.{key}": _plain(item) for key, item in said.items() if item is not None}
    mode = _CHECKPOINTING.get(kind, kind)
    return {"activation_checkpoint.mode": mode, "activation_checkpoint.selective_ac_option": "op"}


def _optimizer(value: Any) -> dict[str, Any]:
    """The kind of optimizer: in the name of the call, or in a field of a container's configuration."""
    if not isinstance(value, Built):
        return {"optimizer.name": "AdamW"}
    if isinstance(inner := value.fields.get("optimizer"), Built):  # Optim, with schedules of learning rates
        return _optimizer(inner)
    each = value.fields.get("optimizers")
    if isinstance(each, list) and each and isinstance(each[0], Built):
        more = {
            f"optimizer.{key}": _plain(item) for key, item in each[0].fields.items() if key not in ("pattern", "lr")
        }
        kinds = {one.name.partition(".")[0] for one in each if isinstance(one, Built)}
        return {"optimizer.name": _together(kinds), **more}
    if "Optimizers" in value.name:
        groups = value.fields.get("param_groups") or []
        found = {f"optimizer.{key}": _plain(item) for key, item in value.fields.items()}
        if isinstance(groups, list):
            found = {key: item for key, item in found.items() if not key.endswith("groups")}
            found["optimizer.name"] = _of_groups(value)
        return found | ({"optimizer.early_step_in_backward": True} if "InBackward" in value.name else {})
    known = next((name for name in ("AdamW", "Muon") if name.lower() in value.name.lower()), value.name)
    return {"optimizer.name": known}


def _of_groups(container: Built) -> str:
    """The optimizer that a container names, or those of its groups of parameters (``param_groups``, 2026)."""
    named = container.fields.get("name")
    usual = named if isinstance(named, str) else "AdamW"
    groups = container.fields.get("param_groups") or []
    kinds = {str(_plain(one.fields.get("optimizer_name", usual))) for one in groups if isinstance(one, Built)}
    return _together(kinds) or usual


def _together(kinds: set[str]) -> str:
    """Several optimizers as one: Muon is for matrices alone, with AdamW for the rest."""
    return "Muon" if kinds == {"AdamW", "Muon"} else " and ".join(sorted(kinds))


def _plain(value: Any) -> Any:
    return value.text if isinstance(value, Unread) else value.name if isinstance(value, Built) else value
