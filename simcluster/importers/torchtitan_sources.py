"""Settings of a torchtitan job from a Python registry of configurations or from a shell script.

Names of a registry (``config_registry.py``) are those of pytorch/torchtitan's models/*/config_registry.py and
config/configs.py (2026), whose newest functions take ``seq_len``, have the model in ``model`` and transforms around the
whole. A script names or writes a job config, followed by overrides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed
from simcluster.importers.arguments import for_a_shell
from simcluster.importers.flat_settings import assumed_of_environment, flattened, parse_toml_or_json
from simcluster.importers.imported import Beside
from simcluster.importers.processes import started_by
from simcluster.importers.python_recipes import RecipeFile
from simcluster.importers.python_values import Built, Unread
from simcluster.importers.shell.script import read_script
from simcluster.importers.shell.state import State, joined
from simcluster.importers.torchtitan_settings import is_mapped

_MODES = {"FullAC": "full", "SelectiveAC": "selective", "NoAC": "none"}
_TRAINERS = ("Trainer.Config", "FaultTolerantTrainer.Config", "GraphTrainer.Config")
_CONVERTS = re.compile(r"Converter(\.Config)?$")
_OF_THE_CALL = ("converters", "flavor", "seq_len", "max_context_length", "enable_sp")
_OF_FLOAT8 = {"enable_fsdp_float8_all_gather": bool, "emulate": bool, "recipe_name": str, "filter_fqns": list}
_RESOLVED = "run it once with debug.print_config, and give its log (or config.json, with debug.save_config_file)"
_NAMED = re.compile(r"--job\.config[_-]file")
_OVERRIDE = re.compile(r"--([a-z][a-z0-9_-]*(?:\.[a-z0-9_-]+)+)(?:=(.*))?", re.DOTALL)
_OF_A_JOB = re.compile(r"^\[(model|training)\]", re.MULTILINE)
_VARIABLE = "CONFIG_FILE"
"""Variable of run_train.sh, which a script may start, with the path of the job config."""


def settings_of_registry(
    text: str, source: str, function: str, models: tuple[str, ...], sequence_length: int | None = None
) -> dict[str, Any]:  # fmt: skip
    """Return the dotted settings made by one function of a registry file, by default its only one.

    ``models`` are the names of known models, ``sequence_length`` the argument of a function that takes ``seq_len``.
    Raises InputError if there are several and none is named, and for a function that makes no readable trainer
    configuration.
    """
    known: dict[str, Callable[..., Any]] = {"model_registry": _registered, "apply_transforms": _transformed}
    file = RecipeFile(text, source, known=known)
    made = [name for name in file.functions if not name.startswith("_") and not name.endswith("debugmodel")]
    if not function and len(made) != 1:
        raise InputError(
            f"{source}: has several configurations; name one after a colon, as in {source}:{[*made, 'NAME'][0]}"
            + (f" (it has {listed(made[:40])})" if made else "")
        )
    function = function or made[0]
    found = file.read(function, {"seq_len": sequence_length} if sequence_length else {})
    name = found.name if isinstance(found, Built) else ""
    if name == "Controller.Config":
        raise InputError(f"{source}: {function} is reinforcement learning, whose step is not only pre-training")
    if name not in _TRAINERS and name.endswith("Trainer.Config"):
        raise InputError(f"{source}: {function} uses {name.partition('.')[0]}, which does not train a text decoder")
    if name not in _TRAINERS:
        raise InputError(f"{source}: {function} makes no Trainer.Config that can be read as data: {_RESOLVED}")
    settings: dict[str, Any] = {}
    for section, value in found.fields.items():
        if section in ("model_spec", "model") and isinstance(value, Built):
            settings |= _model(value, _family(file.place_of(value.name), source, function, models))
        else:
            settings |= _section(section, value)
    if "model" in found.fields and isinstance(found.fields.get("compile"), Built):
        settings.setdefault("compile.enable", True)  # newest form: what is given is on
    length = settings.get("training.max_context_length")
    if isinstance(length, str) and ("max_context_length" in length or "SEQ_LEN" in length):
        raise InputError(
            f"{source}: {function} leaves the sequence length to the model: set it, as in --sequence-length 4096"
        )
    return settings | {f"effect of {function} {place}": True for place in file.undecided}


def _registered(*args: Any, **named: Any) -> Built:
    length = named.get("seq_len")
    return Built("model_registry", args, named | ({"max_context_length": length} if isinstance(length, int) else {}))


def _transformed(base: Any = None, transforms: Any = None, *_: Any, **__: Any) -> Any:
    if not isinstance(base, Built) or not isinstance(transforms, list):
        return Unread("apply_transforms(...)")
    converters = [each for each in transforms if isinstance(each, Built) and _CONVERTS.search(each.name)]
    others = [each.name if isinstance(each, Built) else str(each) for each in transforms if each not in converters]
    fields = {"model_converters": Built("", (), {"converters": converters})} if converters else {}
    return Built(base.name, base.args, base.fields | fields | ({"transforms": others} if others else {}))


def _family(place: str, source: str, function: str, models: tuple[str, ...]) -> str:
    """Return the model family from its import, the file's folder or the start of the function's name."""
    if imported := re.search(r"\bmodels\.(\w+)\.\w+$", place):
        return imported[1]
    folder = re.search(r"(models/)?\b(\w+)/[^/]*$", source)
    beginning = [model for model in models if function.startswith(f"{model}_")]
    return folder[2] if folder and (folder[1] or folder[2] in models) else max(beginning, key=len, default=function)


def _model(value: Built, family: str) -> dict[str, Any]:
    flavor = value.args[0] if value.args else value.fields.get("flavor", "")
    found = {"model.name": family, "model.flavor": flavor if isinstance(flavor, str) else ""}
    rest = {f"model.{key}": _plain(item) for key, item in value.fields.items() if key not in _OF_THE_CALL}
    return found | _converters(value.fields.get("converters")) | rest


def _section(name: str, value: Any) -> dict[str, Any]:
    fields = value.fields if isinstance(value, Built) else {}
    match name:
        case "model_converters" if fields:
            return _converters(fields.get("converters"))
        case "optimizer" | "optim":
            return _optimizer(value)
        case "transforms":
            return {f"transforms.{each}": True for each in value}
        case "activation_checkpoint":  # by its class or by job config words, of which only op remains
            kind = value.name.partition(".")[0] if isinstance(value, Built) else "NoAC"
            mode = {"mode": _MODES.get(kind, kind)} if kind != "ActivationCheckpointConfig" else {}
            fields = {"selective_ac_option": "op", **(mode or fields)}
        case _ if not isinstance(value, Built):
            return {name: _plain(value)}
    return {f"{name}.{key}": _plain(item) for key, item in fields.items() if item is not None}


def _converters(given: Any) -> dict[str, Any]:
    if not isinstance(given, list):
        return {}
    found: dict[str, Any] = {"model.converters": [_plain(each).partition(".")[0] for each in given]}
    for each in given:
        if isinstance(each, Built) and each.name.startswith("Float8Linear"):
            said = {name: each.fields.get(name) for name, kind in _OF_FLOAT8.items()}
            found |= {f"float8.{name}": value for name, value in said.items() if isinstance(value, _OF_FLOAT8[name])}
    return found


def _optimizer(value: Any) -> dict[str, Any]:
    """Return the optimizer's kind and settings, from the call's name or a container's fields."""
    if not isinstance(value, Built):
        return {"optimizer.name": "AdamW"}
    if isinstance(inner := value.fields.get("optimizer"), Built):  # Optim, with learning rate schedules
        return _optimizer(inner)
    each = value.fields.get("optimizers")
    if isinstance(each, list) and each and isinstance(each[0], Built):
        kinds = {one.name.partition(".")[0] for one in each if isinstance(one, Built)}
        fields = {key: item for key, item in each[0].fields.items() if key not in ("pattern", "lr")}
    elif "Optimizers" in value.name:
        groups, named = value.fields.get("param_groups") or [], value.fields.get("name")
        usual = named if isinstance(named, str) else "AdamW"
        made = [one for one in groups if isinstance(one, Built)] if isinstance(groups, list) else []
        kinds = {str(_plain(one.fields.get("optimizer_name", usual))) for one in made} or {usual}
        early = {"early_step_in_backward": True} if "InBackward" in value.name else {}
        read = ("name", "param_groups") if isinstance(groups, list) else ("name",)
        fields = {key: item for key, item in value.fields.items() if key not in read} | early
    else:
        kinds, fields = (
            {next((name for name in ("AdamW", "Muon") if name.lower() in value.name.lower()), value.name)},
            {},
        )
    # Muon is for matrices only, with AdamW for the rest
    name = "Muon" if kinds == {"AdamW", "Muon"} else " and ".join(sorted(kinds))
    return {"optimizer.name": name, **{f"optimizer.{key}": _plain(item) for key, item in fields.items()}}


def _plain(value: Any) -> Any:
    return value.text if isinstance(value, Unread) else value.name if isinstance(value, Built) else value


@dataclass(frozen=True)
class StartedJob:
    """Torchtitan job of a script: settings by dotted name, launched GPUs (None: not stated), assumptions."""

    settings: dict[str, Any]
    gpus: int | None
    assumed: tuple[str, ...]


def job_of_script(
    text: str, source: str, beside: Beside, given: Mapping[str, str], machine: int | None
) -> StartedJob:  # fmt: skip
    """Return the job that a script starts; raise InputError if it starts none or its job config is missing.

    ``given`` are values of its variables, and ``machine`` the GPUs of a node as the script counts them.
    """
    state = read_script(text, State(source, dict(given), beside, machine))
    unset = state.assumed_unset()
    commands = (each for each in state.commands if any(map(_NAMED.match, each[0])))
    words, around = next(commands, ([], state.around))
    place = next((place for place, word in enumerate(words) if _NAMED.match(word)), len(words))
    named = "".join(words[place : place + 1]).partition("=")[2] or "".join(words[place + 1 : place + 2])
    named = named or joined(state.get(_VARIABLE) or "")
    config = state.text_named(named) if named else None
    config = config or next((file for file in state.files.values() if _OF_A_JOB.search(file)), None)
    if config is None and named:
        raise InputError(
            f"{source}: starts torchtitan with {named}, which is not next to it; put it there, or import it"
        )
    if config is None:
        why = "; ".join((state.stopped and f" ({state.stopped})", *unset))
        raise InputError(
            f"{source}: is a script that writes no job config{why}; give the TOML that it starts torchtitan with"
        )
    settings = flattened(parse_toml_or_json(config, named or source), source)
    launched, started = started_by(words, around, machine)
    nodes, each = launched.get("nnodes", "1"), launched.get("nproc-per-node")
    assumed = (*state.assumed, *unset, *started, *assumed_of_environment(state.variables))
    return StartedJob(settings | _overrides(words, settings, source), int(nodes) * int(each) if each else None, assumed)


def _overrides(words: Sequence[str], settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the command-line settings, each of the type that it has in the job config or looks like.

    Raises InputError for a mapped setting whose value only a shell knows.
    """
    found: dict[str, Any] = {}
    for word, after in zip(words, [*words, ""][1:], strict=False):
        match = _OVERRIDE.fullmatch(word)
        if match and not _NAMED.match(word):
            value = match[2] if match[2] is not None else after if after and not after.startswith("--") else "true"
            name = match[1].replace("-", "_")
            if is_mapped(name) and (shell := for_a_shell(value)):
                raise InputError(f"{source}: --{name}: {shell}")
            found[name] = _typed(value, settings.get(name))
    return found


def _typed(text: str, before: Any) -> Any:
    if isinstance(before, list):
        return [part for part in text.split(",") if part]
    if isinstance(before, str) or not re.fullmatch(r"(?i)true|false|-?\d{1,15}", text):
        return text
    return text.lower() == "true" if text.isalpha() else int(text)
