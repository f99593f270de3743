"""Settings of a torchtitan job from a registry of configurations in Python (``config_registry.py``), read as data.

Names are those of pytorch/torchtitan's models/*/config_registry.py and config/configs.py (2026).
"""

from __future__ import annotations

import re
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed
from simcluster.importers.beside import Beside, nothing_beside
from simcluster.importers.python_config import PythonConfigs
from simcluster.importers.python_values import Built, Unread

_SECTIONS = ("training", "parallelism", "compile")
_CHECKPOINTING = {"FullAC": "full", "SelectiveAC": "selective", "NoAC": "none"}
_TRAINER = re.compile(r"(\w*Trainer)\.Config$")
_FILE = "config_registry.py"


def settings_of_registry(
    text: str, source: str, function: str, models: tuple[str, ...], beside: Beside = nothing_beside
) -> dict[str, Any]:
    """Dotted settings, as of a job config in TOML, of one function of the file; the only one where none is named.

    ``models`` are the names of models that are known, ``beside`` the text of another registry that this one takes
    configurations of.  Raises InputError where there are several and none is named, and
    for a function that makes no configuration of a trainer.
    """
    registries: Beside = lambda path: beside(path) if path.endswith(_FILE) else None  # noqa: E731
    configs = PythonConfigs(text, source, known={"to_graph_trainer_config": _of_graphs}, beside=registries)
    made = [name for name in configs.functions if not name.startswith("_") and not name.endswith("debugmodel")]
    if not function and len(made) != 1:
        raise InputError(
            f"{source}: has several configurations; name one behind a colon, as in {source}:{[*made, 'NAME'][0]}"
            + (f" (it has {listed(made[:40])})" if made else "")
        )
    function = function or made[0]
    found = configs.read(function)
    if isinstance(found, Built) and found.name == "Controller.Config":
        raise InputError(f"{source}: {function} is reinforcement learning, whose step is more than one of pre-training")
    if not isinstance(found, Built) or not _TRAINER.search(found.name):
        raise InputError(f"{source}: {function} makes no Trainer.Config that can be read as data")
    if found.name not in ("Trainer.Config", "FaultTolerantTrainer.Config", "GraphTrainer.Config"):
        raise InputError(f"{source}: {function} is of {found.name.partition('.')[0]}, which trains no decoder of text")
    settings: dict[str, Any] = {}
    for name, value in found.fields.items():
        settings |= _section(name, value, _model_of(source, function, models))
    return settings


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
    if name == "model_spec" and isinstance(value, Built):
        flavor = value.args[0] if value.args else ""
        found: dict[str, Any] = {"model.name": model, "model.flavor": flavor if isinstance(flavor, str) else ""}
        converters = value.fields.get("converters")
        if isinstance(converters, list):
            names = [each.name.partition(".")[0] if isinstance(each, Built) else str(each) for each in converters]
            found["model.converters"] = names
        rest = {key: item for key, item in value.fields.items() if key != "converters"}
        return found | {f"model.{key}": _plain(item) for key, item in rest.items()}
    if name == "activation_checkpoint":
        kind = value.name.partition(".")[0] if isinstance(value, Built) else "NoAC"
        mode = _CHECKPOINTING.get(kind, kind)
        return {"activation_checkpoint.mode": mode, "activation_checkpoint.selective_ac_option": "op"}
    if name == "optimizer":
        kind = value.name if isinstance(value, Built) else "AdamW"
        return {"optimizer.name": "AdamW" if "adamw" in kind.lower() else kind}
    if name in _SECTIONS and isinstance(value, Built):
        return {f"{name}.{key}": _plain(item) for key, item in value.fields.items() if item is not None}
    return {name if not isinstance(value, Built) else f"{name}.config": _plain(value)}


def _plain(value: Any) -> Any:
    return value.text if isinstance(value, Unread) else value.name if isinstance(value, Built) else value
