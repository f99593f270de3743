"""Readers of torchtitan settings from a Python registry of job configs or from a shell script.

Names of a registry (``config_registry.py``) are those of pytorch/torchtitan's models/*/config_registry.py and
config/configs.py (2026), whose newest functions take ``seq_len``, have the model in ``model`` and transforms around the
whole. A script names or writes a job config, followed by overrides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import join_or
from simcluster.importers.flat_settings import environment_assumptions, flatten_settings, parse_toml_or_json
from simcluster.importers.import_result import FileReader
from simcluster.importers.launch_arguments import explain_unexpanded_value
from simcluster.importers.process_counts import count_processes_with_note
from simcluster.importers.python_recipes import RecipeFile
from simcluster.importers.python_values import RecordedCall, UnreadExpression
from simcluster.importers.shell.script_reader import read_script
from simcluster.importers.shell.script_state import ScriptState, shell_value_to_text
from simcluster.importers.torchtitan_settings import is_mapped_setting

_MODES = {"FullAC": "full", "SelectiveAC": "selective", "NoAC": "none"}
_TRAINERS = ("Trainer.Config", "FaultTolerantTrainer.Config", "GraphTrainer.Config")
_CONVERTER_NAME = re.compile(r"Converter(\.Config)?$")
_CALL_FIELDS = ("converters", "flavor", "seq_len", "max_context_length", "enable_sp")
_FLOAT8_FIELDS = {"enable_fsdp_float8_all_gather": bool, "emulate": bool, "recipe_name": str, "filter_fqns": list}
_CONFIG_ADVICE = "run it once with debug.print_config, and give its log (or config.json, with debug.save_config_file)"
_CONFIG_OPTION = re.compile(r"--job\.config[_-]file")
_OVERRIDE = re.compile(r"--([a-z][a-z0-9_-]*(?:\.[a-z0-9_-]+)+)(?:=(.*))?", re.DOTALL)
_JOB_SECTION = re.compile(r"^\[(model|training)\]", re.MULTILINE)
_CONFIG_VARIABLE = "CONFIG_FILE"
"""Variable of run_train.sh, which a script may start, with the path of the job config."""


def read_registry_function(
    text: str, source: str, function: str, models: tuple[str, ...], sequence_length: int | None = None
) -> dict[str, Any]:  # fmt: skip
    """Return the settings that a function of a torchtitan config registry (in Python) returns.

    ``models`` are the names of known models, ``sequence_length`` the argument of a function that takes ``seq_len``.
    Raises InputError if there are several and none is named, and for a function that makes no readable trainer
    configuration.
    """
    known: dict[str, Any] = {"model_registry": _record_model_registry, "apply_transforms": _apply_transforms}
    file = RecipeFile(text, source, external=known)
    made = [name for name in file.functions if not name.startswith("_") and not name.endswith("debugmodel")]
    if not function and len(made) != 1:
        raise InputError(
            f"{source}: has several configurations; name one after a colon, as in {source}:{[*made, 'NAME'][0]}"
            + (f" (it has {join_or(made[:40])})" if made else "")
        )
    function = function or made[0]
    found = file.read_function(function, {"seq_len": sequence_length} if sequence_length else {})
    name = found.name if isinstance(found, RecordedCall) else ""
    if name == "Controller.Config":
        raise InputError(f"{source}: {function} configures reinforcement learning; only pre-training is modelled")
    if name not in _TRAINERS and name.endswith("Trainer.Config"):
        raise InputError(f"{source}: {function} uses {name.partition('.')[0]}, which does not train a text decoder")
    if name not in _TRAINERS:
        raise InputError(f"{source}: {function} returns no Trainer.Config that can be read as data: {_CONFIG_ADVICE}")
    settings: dict[str, Any] = {}
    for section, value in found.fields.items():
        if section in ("model_spec", "model") and isinstance(value, RecordedCall):
            family = _model_family(file.qualified_name(value.name), source, function, models)
            settings |= _model_spec_settings(value, family)
        else:
            settings |= _section_settings(section, value)
    if "model" in found.fields and isinstance(found.fields.get("compile"), RecordedCall):
        settings.setdefault("compile.enable", True)  # newest form: what is given is on
    length = settings.get("training.max_context_length")
    if isinstance(length, str) and ("max_context_length" in length or "SEQ_LEN" in length):
        raise InputError(
            f"{source}: {function} leaves the sequence length to the model: set it, as in --sequence-length 4096"
        )
    return settings | {f"effect of {function} {place}": True for place in file.undecided}


def _record_model_registry(*args: Any, **named: Any) -> RecordedCall:
    length = named.get("seq_len")
    return RecordedCall(
        "model_registry", args, named | ({"max_context_length": length} if isinstance(length, int) else {})
    )


def _apply_transforms(base: Any = None, transforms: Any = None, *_: Any, **__: Any) -> Any:
    if not isinstance(base, RecordedCall) or not isinstance(transforms, list):
        return UnreadExpression("apply_transforms(...)")
    converters = [each for each in transforms if isinstance(each, RecordedCall) and _CONVERTER_NAME.search(each.name)]
    others = [each for each in transforms if each not in converters]
    others = [each.name if isinstance(each, RecordedCall) else str(each) for each in others]
    fields = {"model_converters": RecordedCall("", (), {"converters": converters})} if converters else {}
    return RecordedCall(base.name, base.args, base.fields | fields | ({"transforms": others} if others else {}))


def _model_family(imported_as: str, source: str, function: str, models: tuple[str, ...]) -> str:
    """Return the model family, found by the function's import, the file's folder or the function's name."""
    if imported := re.search(r"\bmodels\.(\w+)\.\w+$", imported_as):
        return imported[1]
    folder = re.search(r"(models/)?\b(\w+)/[^/]*$", source)
    beginning = [model for model in models if function.startswith(f"{model}_")]
    return folder[2] if folder and (folder[1] or folder[2] in models) else max(beginning, key=len, default=function)


def _model_spec_settings(value: RecordedCall, family: str) -> dict[str, Any]:
    flavor = value.args[0] if value.args else value.fields.get("flavor", "")
    found = {"model.name": family, "model.flavor": flavor if isinstance(flavor, str) else ""}
    rest = {f"model.{key}": _to_plain_value(item) for key, item in value.fields.items() if key not in _CALL_FIELDS}
    return found | _converter_settings(value.fields.get("converters")) | rest


def _section_settings(name: str, value: Any) -> dict[str, Any]:
    fields = value.fields if isinstance(value, RecordedCall) else {}
    match name:
        case "model_converters" if fields:
            return _converter_settings(fields.get("converters"))
        case "optimizer" | "optim":
            return _optimizer_settings(value)
        case "transforms":
            return {f"transforms.{each}": True for each in value}
        case "activation_checkpoint":  # by its class or by job config words, of which only op remains
            kind = value.name.partition(".")[0] if isinstance(value, RecordedCall) else "NoAC"
            mode = {"mode": _MODES.get(kind, kind)} if kind != "ActivationCheckpointConfig" else {}
            fields = {"selective_ac_option": "op", **(mode or fields)}
        case _ if not isinstance(value, RecordedCall):
            return {name: _to_plain_value(value)}
    return {f"{name}.{key}": _to_plain_value(item) for key, item in fields.items() if item is not None}


def _converter_settings(given: Any) -> dict[str, Any]:
    if not isinstance(given, list):
        return {}
    found: dict[str, Any] = {"model.converters": [_to_plain_value(each).partition(".")[0] for each in given]}
    for each in given:
        if isinstance(each, RecordedCall) and each.name.startswith("Float8Linear"):
            said = {name: each.fields.get(name) for name in _FLOAT8_FIELDS}
            found |= {f"float8.{key}": value for key, value in said.items() if isinstance(value, _FLOAT8_FIELDS[key])}
    return found


def _optimizer_settings(value: Any) -> dict[str, Any]:
    if not isinstance(value, RecordedCall):
        return {"optimizer.name": "AdamW"}
    if isinstance(inner := value.fields.get("optimizer"), RecordedCall):  # Optim, with learning rate schedules
        return _optimizer_settings(inner)
    each = value.fields.get("optimizers")
    if isinstance(each, list) and each and isinstance(each[0], RecordedCall):
        kinds = {one.name.partition(".")[0] for one in each if isinstance(one, RecordedCall)}
        fields = {key: item for key, item in each[0].fields.items() if key not in ("pattern", "lr")}
    elif "Optimizers" in value.name:
        groups, named = value.fields.get("param_groups") or [], value.fields.get("name")
        usual = named if isinstance(named, str) else "AdamW"
        made = [one for one in groups if isinstance(one, RecordedCall)] if isinstance(groups, list) else []
        kinds = {str(_to_plain_value(one.fields.get("optimizer_name", usual))) for one in made} or {usual}
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
    return {"optimizer.name": name, **{f"optimizer.{key}": _to_plain_value(item) for key, item in fields.items()}}


def _to_plain_value(value: Any) -> Any:
    return (
        value.text if isinstance(value, UnreadExpression) else value.name if isinstance(value, RecordedCall) else value
    )


@dataclass(frozen=True)
class LaunchedTorchtitanJob:
    """Settings, GPU count and assumptions of a torchtitan job that a launch script starts."""

    settings: dict[str, Any]
    gpus: int | None
    assumed: tuple[str, ...]


def read_job_script(
    text: str, source: str, read_file: FileReader, given: Mapping[str, str], node_gpus: int | None
) -> LaunchedTorchtitanJob:  # fmt: skip
    """Return the torchtitan job that a shell script starts; raise InputError if it starts none.

    ``given`` are values of its variables, and ``node_gpus`` the GPUs of a node as the script counts them.
    """
    state = read_script(text, ScriptState(source, dict(given), read_file, node_gpus))
    unset = state.unset_variable_assumption()
    commands = (each for each in state.commands if any(map(_CONFIG_OPTION.match, each[0])))
    words, around = next(commands, ([], state.enclosing_words))
    place = next((place for place, word in enumerate(words) if _CONFIG_OPTION.match(word)), len(words))
    named = "".join(words[place : place + 1]).partition("=")[2] or "".join(words[place + 1 : place + 2])
    named = named or shell_value_to_text(state.variable_value(_CONFIG_VARIABLE) or "")
    config = state.find_file_text(named) if named else None
    config = config or next((file for file in state.files.values() if _JOB_SECTION.search(file)), None)
    if config is None and named:
        raise InputError(f"{source}: starts torchtitan with {named}, which is not next to it; put it there")
    if config is None:
        why = "; ".join((state.stop_reason and f" ({state.stop_reason})", *unset))
        raise InputError(
            f"{source}: is a script that writes no job config{why}; give the TOML that it starts torchtitan with"
        )
    settings = flatten_settings(parse_toml_or_json(config, named or source), source)
    launched, started = count_processes_with_note(words, around, node_gpus)
    nodes, each = launched.get("nnodes", "1"), launched.get("nproc-per-node")
    assumed = (*state.assumed, *unset, *started, *environment_assumptions(state.variables))
    return LaunchedTorchtitanJob(
        settings | _command_line_settings(words, settings, source), int(nodes) * int(each) if each else None, assumed
    )


def _command_line_settings(words: Sequence[str], settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the settings overridden on torchtitan's command line, with values of the job config's types.

    Raises InputError for a mapped setting whose value only a shell knows.
    """
    found: dict[str, Any] = {}
    for word, after in zip(words, [*words, ""][1:], strict=False):
        match = _OVERRIDE.fullmatch(word)
        if match and not _CONFIG_OPTION.match(word):
            value = match[2] if match[2] is not None else after if after and not after.startswith("--") else "true"
            name = match[1].replace("-", "_")
            if is_mapped_setting(name) and (shell := explain_unexpanded_value(value)):
                raise InputError(f"{source}: --{name}: {shell}")
            found[name] = _parse_override_value(value, settings.get(name))
    return found


def _parse_override_value(text: str, default: Any) -> Any:
    if isinstance(default, list):
        return [part for part in text.split(",") if part]
    if isinstance(default, str) or not re.fullmatch(r"(?i)true|false|-?\d{1,15}", text):
        return text
    return text.lower() == "true" if text.isalpha() else int(text)
