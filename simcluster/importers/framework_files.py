"""Reader of YAML files of the launchers FlagScale (BAAI) and Primus (AMD) as Megatron-LM options.

FlagScale writes options with underscores in sections ``system``, ``model`` and ``data``; an experiment names such a
file in its ``defaults``. Primus writes fields of Megatron-LM's arguments, or of torchtitan's job config, as
``overrides`` of a model and a module, which are files of its repository that extend others. Forks take such fields on
their own, in a file that ``--config`` names.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.yaml_documents import parse_document
from simcluster.importers import flat_settings
from simcluster.importers.flat_settings import environment_assumptions, flatten_settings, yaml_value_to_words
from simcluster.importers.import_result import FileReader
from simcluster.importers.launch_arguments import LaunchArguments
from simcluster.importers.megatron_options import INVERTED, MAPPED

_FLAGSCALE = re.compile(r"^system:[ \t]*(#.*)?\n(.*\n)*model:[ \t]*(#.*)?$", re.MULTILINE)
_EXPERIMENT = re.compile(r"^defaults:[ \t]*\n([ \t]*-.*\n)*[ \t]*-[ \t]*train:", re.MULTILINE)
_PRIMUS = re.compile(r"^modules:[ \t]*\n([ \t]*#.*\n|[ \t]*\n)*[ \t]+(pre|post)_trainer:", re.MULTILINE)
_FIELD = re.compile(r"^([ \t]*[\w-]+):[ \t]+[^\s#]")
_DEFAULT = re.compile(r"\$\{\w+:([^{}]*)\}")
_CONFIGS = "primus/configs/"
_MOST_FILES = 20
FIELD_OPTIONS = {"fp8": "fp8-format", "fp4": "fp4-format", "add_position_embedding": ""}
_TRANSLATED_FIELDS = ("use_turbo_deepep", "use_sink_attention", "sink_")  # translated to Megatron-LM options below
_PATCH_FIELDS = {
    "patch_zero_bubble": ("enable_zero_bubble", "zero_bubble_", "enable_1f1b_v", "enable_zb_", "num_seq_splits"),
    "patch_primus_pipeline": ("pp_algorithm",),
}
"""Primus switches, and prefixes of the fields that only have an effect if the switch is true."""
_V_SCHEDULE = {"enable_zero_bubble": True, "zero_bubble_v_schedule": True}
_ALGORITHMS: dict[str, dict[str, Any]] = {
    "1f1b": {}, "1f1b-interleaved": {}, "zero-bubble": {"enable_zbh1_pipeline": True},
    "zbv-formatted": {**_V_SCHEDULE, "zero_bubble_v_schedule_mem_setup": "zero"},
    "v-half": {**_V_SCHEDULE, "zero_bubble_v_schedule_mem_setup": "half"},
    "v-min": {**_V_SCHEDULE, "zero_bubble_v_schedule_mem_setup": "min"},
}  # fmt: skip
"""Schedules of ``pp_algorithm`` as options of the zero-bubble fork."""
_BARE_FIELDS = re.compile(r"^num_layers:[ \t]+\d", re.MULTILINE), re.compile(r"^hidden_size:[ \t]+\d", re.MULTILINE)


def is_flagscale_or_primus_file(text: str) -> bool:
    """Return whether a text is YAML for FlagScale or Primus, or YAML that consists of Megatron-LM fields alone."""
    alone = all(pattern.search(text) for pattern in _BARE_FIELDS)
    return alone or any(pattern.search(text) for pattern in (_FLAGSCALE, _EXPERIMENT, _PRIMUS))


def read_flagscale_or_primus_file(text: str, source: str, read_file: FileReader) -> LaunchArguments:
    """Return the Megatron-LM options set by a FlagScale or Primus file and by the files that it includes."""
    data = _parse_yaml_fields(text, source)
    if isinstance(data.get("modules"), Mapping):
        return _build_primus_arguments(_primus_trainer_module(data), source, read_file)
    if "num_layers" in data:
        found = {name.rpartition(".")[2]: value for name, value in flatten_settings(data, source).items()}
        return _fields_to_arguments(found, data)
    launched: dict[str, str] = {}
    assumed: tuple[str, ...] = ()
    if "defaults" in data:  # an experiment with runner and environment
        names = [each["train"] for each in data["defaults"] if isinstance(each, Mapping) and "train" in each]
        path = f"train/{names[0]}.yaml"
        experiment = data["experiment"] if isinstance(data.get("experiment"), Mapping) else {}
        variables = experiment["envs"] if isinstance(experiment.get("envs"), Mapping) else {}
        assumed, plain = environment_assumptions(variables), flatten_settings(experiment, "experiment")
        each, seen = plain.get("runner.nproc_per_node"), variables.get("CUDA_VISIBLE_DEVICES")
        each = len(str(seen).split(",")) if each is None and seen is not None else each
        nodes = str(plain.get("runner.nnodes", 1))
        launched = {"nnodes": nodes, "nproc-per-node": str(each)} if each else {}
        data = _parse_yaml_fields(_read_required_file(read_file, path, source), path)
    plain = flatten_settings({key: value or {} for key, value in data.items()}, source)
    off = tuple(_field_to_option_name(name) for name, value in plain.items() if value is None or value is False)
    fields = ((_field_to_option_name(name), value) for name, value in plain.items())
    options = {name: yaml_value_to_words(value) for name, value in fields if name not in off}
    return LaunchArguments(options, launched=launched, assumed=assumed, disabled_settings=off)


def read_fields_as_options(text: str, source: str) -> dict[str, tuple[str, ...]]:
    """Return all fields of a YAML file as Megatron-LM options, whatever section a field is in."""
    plain = flatten_settings(_parse_yaml_fields(text, source), source)
    return fields_to_options({name.rpartition(".")[2]: value for name, value in plain.items()})


def _parse_yaml_fields(text: str, source: str) -> dict[str, Any]:
    """Parse a YAML document; if several fields have the same name, the last one counts."""
    return parse_document(flat_settings.drop_repeated_options(text, _FIELD)[0], source=source).data


def is_primus_file(text: str) -> bool:
    """Return whether a text is a Primus YAML file with a pre-training or fine-tuning module."""
    return _PRIMUS.search(text) is not None


def read_primus_titan_settings(
    text: str, source: str, read_file: FileReader, is_known: Callable[[str], bool]
) -> dict[str, Any]:  # fmt: skip
    """Return the non-null torchtitan settings, by dotted name, of a Primus file and of the files that it extends.

    Of Primus' built-in defaults only settings that are ``is_known`` count. Raises InputError for a file of another
    framework, and for a missing file.
    """
    module = _primus_trainer_module(_parse_yaml_fields(text, source))
    usual, *others = _read_primus_layers(module, "torchtitan", source, read_file)
    settings = {name: value for name, value in flatten_settings(usual, source).items() if is_known(name)}
    for part in others:
        settings |= flatten_settings(part, source)
    return {name: _substitute_variable_default(value) for name, value in settings.items() if value is not None}


def _primus_trainer_module(data: Mapping[str, Any]) -> Any:
    """Return a Primus file's pre-training module; if the file has none, its fine-tuning module."""
    return data["modules"].get("pre_trainer") or data["modules"].get("post_trainer")


def _substitute_variable_default(value: Any) -> Any:
    text = _DEFAULT.sub(r"\1", value) if isinstance(value, str) else value
    if text == value:
        return value
    return int(text) if text.isdecimal() else {"true": True, "false": False}.get(text.lower(), text)


def _read_primus_layers(module: Any, framework: str, source: str, read_file: FileReader) -> list[dict[str, Any]]:
    if not isinstance(module, Mapping) or not isinstance(module.get("model"), str):
        raise InputError(f"{source}: the trainer module names no model; name one, as in model: llama3_8B.yaml")
    if (said := module.get("framework", framework)) != framework:
        other = f"run simcluster import {said}" if said in ("megatron", "torchtitan") else "it cannot be imported"
        raise InputError(f"{source}: the trainer module is for framework {str(said)[:40]}: {other}")
    named = (f"modules/{framework}/{module.get('config', 'pre_trainer.yaml')}", f"models/{framework}/{module['model']}")
    found = [_read_with_includes(_CONFIGS + _DEFAULT.sub(r"\1", path), source, read_file, []) for path in named]
    own = module.get("overrides")
    own = dict(own) if isinstance(own, Mapping) else {}
    adapters = own.pop("lora", None)
    if isinstance(adapters, Mapping) and adapters.get("enabled") is True:
        raise InputError(f"{source}: lora.enabled: adapters with frozen weights are not imported; set it to false")
    return [*found, own]


def _build_primus_arguments(module: Any, source: str, read_file: FileReader) -> LaunchArguments:
    usual, model, own = _read_primus_layers(module, "megatron", source, read_file)
    layers = {**usual, **model, **own}
    fields = {  # most of the module's fields are Megatron-LM defaults
        name: value for name, value in {**usual, **model}.items()
        if _field_to_option_name(name) in MAPPED or name in INVERTED or name in FIELD_OPTIONS
    }  # fmt: skip
    fields |= {name: value for name, value in model.items() if value != usual.get(name)} | own
    assumed: list[str] = []
    for switch, prefixes in _PATCH_FIELDS.items():
        if layers.get(switch) is not True:  # its fields have no effect
            gated = [name for name in fields if name.startswith(prefixes) and (switch in layers or "pp_" in name)]
            idle = [name for name in gated if own.get(name)]
            assumed += [f"{', '.join(idle)} has no effect: {switch} is not true"] if idle else []
            fields = {name: value for name, value in fields.items() if name not in gated}
    algorithm = str(layers.get("pp_algorithm"))
    if layers.get("patch_primus_pipeline") is True and algorithm in _ALGORITHMS:
        fields = {name: value for name, value in fields.items() if name != "pp_algorithm"} | _ALGORITHMS[algorithm]
    more: dict[str, tuple[str, ...]] = {}
    if fields.get("use_sink_attention") is True:  # GPT-OSS in Primus-Turbo: a window in every second layer
        more["softmax-type"] = ("learnable",)
        if window := fields.get("sink_sliding_window"):
            more["window-size"] = (f"{window},0",)
            more |= {"window-attn-skip-freq": ("2",)} if fields.get("sink_window_even_layers_only", True) else {}
    if fields.get("enable_primus_turbo") is True and fields.get("use_turbo_deepep") is True:
        more |= {"moe-token-dispatcher-type": ("flex",), "moe-flex-dispatcher-backend": ("deepep",)}
    fields = {name: value for name, value in fields.items() if name not in _PATCH_FIELDS}
    return _fields_to_arguments(fields, own, more, tuple(assumed))


def _fields_to_arguments(
    fields: Mapping[str, Any], own: Mapping[str, Any], extra: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    assumed: tuple[str, ...] = (),
) -> LaunchArguments:  # fmt: skip
    """Convert Megatron-LM fields to options; also list the fields in ``own`` that are switched off."""
    options = {**fields_to_options(fields), **extra}
    off = tuple(name for name in map(_field_to_option_name, own) if name not in options)
    return LaunchArguments(options, assumed=assumed, disabled_settings=off)


def fields_to_options(fields: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Convert fields of Megatron-LM's arguments (``num_layers: 32``) to command-line options."""
    found: dict[str, tuple[str, ...]] = {}
    for name, value in fields.items():
        option = INVERTED.get(name) or FIELD_OPTIONS.get(name, _field_to_option_name(name))
        value = _DEFAULT.sub(r"\1", value) if isinstance(value, str) else value
        given = value is False if name in INVERTED else value is not None and value is not False
        if given and option and not name.startswith(_TRANSLATED_FIELDS):
            found[option] = () if name in INVERTED else yaml_value_to_words(value)
    return found


def _read_with_includes(path: str, source: str, read_file: FileReader, seen: list[str]) -> dict[str, Any]:
    if path in seen or len(seen) >= _MOST_FILES:
        return {}
    seen.append(path)
    data = _parse_yaml_fields(_read_required_file(read_file, path, source), path)
    found: dict[str, Any] = {}
    for key in ("extends", "includes", "bases"):
        for name in data.pop(key, None) or []:
            below = posixpath.normpath(f"{posixpath.dirname(path)}/{name}")
            found |= _read_with_includes(below, source, read_file, seen)
    return found | data


def _read_required_file(read_file: FileReader, path: str, source: str) -> str:
    text = read_file(path)
    if text is None:
        raise InputError(f"{source}: needs {path}, which is neither next to it nor under a parent folder; put it there")
    return text


def _field_to_option_name(name: str) -> str:
    return name.rpartition(".")[2].replace("_", "-")
