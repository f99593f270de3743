"""Commands of Megatron-Bridge's performance launcher (scripts/performance/run_script.py and setup_experiment.py).

It picks a recipe and the base configuration of a workload by the names of a model, a GPU and a number format; options
and overrides (``model.x=...``) change that.  ``bridge_launcher.yaml`` has its options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed, shown
from simcluster.documents.reading import read_document
from simcluster.importers.beside import Beside
from simcluster.importers.environment_settings import assumed_of_environment
from simcluster.importers.model_classes import no_decoder
from simcluster.importers.pre_training import TRAINS_ADAPTERS
from simcluster.importers.python_config import PythonConfigs
from simcluster.importers.python_values import Built, Unread
from simcluster.importers.shell.script import read_script
from simcluster.importers.shell.state import UNKNOWN, State

_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_SHORT: dict[str, str] = _TABLES["short"]
_FIELDS: dict[str, str] = _TABLES["fields"]
_SELECTS, _NO_EFFECT, _FLAGS = (frozenset(_TABLES[name].split()) for name in ("selects", "no_effect", "flags"))
_PROGRAM = re.compile(r"(^|/)(run_script|setup_experiment)\.py$")
_STARTS = re.compile(r"\b(run_script|setup_experiment)\.py\b")
_OVERRIDE = re.compile(r"[+~]*[A-Za-z_]\w*(\.\w+)+=")
_FOLDER = "scripts/performance/configs"
_ENVIRONMENT = ("custom_env_vars", "ce", "E")
_ALWAYS = {
    "ddp.use_distributed_optimizer": True, "ddp.overlap_grad_reduce": True, "ddp.overlap_param_gather": True,
    "ddp.grad_reduce_in_fp32": False,
    "model.make_vocab_size_divisible_by": 1,  # the model's own vocabulary is not padded
}  # fmt: skip
_SAID = (
    "what the launcher's recipe sets beside its workload is taken as in most of them: a distributed optimizer, "
    "gradients reduced in the format of computation beside the backward pass, parameters gathered beside the forward "
    "pass, exchanges of tp overlapped"
)


@dataclass(frozen=True)
class LaunchedRecipe:
    """The recipe that is launched, on how many GPUs, and its settings by dotted name."""

    recipe: str
    gpus: int | None
    settings: dict[str, Any]
    assumed: tuple[str, ...]
    no_effect: tuple[str, ...]
    unknown: tuple[str, ...]


def launched_recipe(text: str, source: str, beside: Beside, given: Mapping[str, str]) -> LaunchedRecipe | None:
    """What a script or a command launches; None for one that does not start the launcher.

    ``given`` are values of the script's variables, and ``beside`` the text of a file that lies with it.  InputError
    for adapters, and where neither the options nor the workload's base configuration say how the model is split.
    """
    if not _STARTS.search(text):
        return None
    state = read_script(text, State(source, given, beside))
    words = next((found for each, _ in state.commands if (found := _behind_program(each))), [])
    if not words:
        return None
    options, overrides, unknown = _read(words)
    for name, value in {**options, **overrides}.items():
        if UNKNOWN.search(value) and name in {*_SELECTS, *_FIELDS, *_FIELDS.values()}:
            asked = re.findall(r"\w+", value)[:1] or ["NAME"]
            raise InputError(f"{source}: {name} is {value[:60]}, which nobody gives; give it with --arg {asked[0]}=...")
    recipe = _recipe(options, source)
    if against := no_decoder(recipe):
        raise InputError(f"{source}: the model of the recipe {recipe[:60]} {against}")
    workload, said = _workload(options, recipe, source, beside)
    wanted = _wanted(options, overrides, recipe)
    if wanted and not workload:
        names = " or ".join(_constants(options, recipe)[:2])
        raise InputError(
            f"{source}: does not say {listed(wanted)}, which the launcher takes from {names}, and that is not beside "
            f"it; put {_files(options, recipe)[0]} there or in a folder around it, or add them to the command"
        )
    settings, gpus = _settings(workload, options, recipe)
    if (wide := overrides.get("mixed_precision.grad_reduce_in_fp32")) is not None:
        settings["ddp.grad_reduce_in_fp32"] = wide
    idle = tuple(name for name in options if name in _NO_EFFECT)
    own = re.findall(r"(\w+)=([^,\s]*)", " ".join(options.get(name, "") for name in _ENVIRONMENT))
    assumed = (said, _SAID, *state.assumed, *assumed_of_environment({**state.variables, **dict(own)}))
    return LaunchedRecipe(recipe, gpus, {**settings, **overrides}, assumed, idle, tuple(unknown))


def _behind_program(words: list[str]) -> list[str]:
    place = next((place for place, word in enumerate(words) if _PROGRAM.search(word)), None)
    return [] if place is None else words[place + 1 :]


def _read(words: list[str]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Options by their long names, overrides by dotted name, and what is not known."""
    options: dict[str, str] = {}
    overrides: dict[str, str] = {}
    unknown: list[str] = []
    name = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.lstrip("-").partition("=")
            name = _SHORT.get(name, name).replace("-", "_")
            name = _SHORT.get(name, name)
            options[name] = value
            name = "" if equals or name in _FLAGS else name
        elif name:
            options[name], name = word, ""
        elif _OVERRIDE.match(word):
            field, _, value = word.lstrip("+~").partition("=")
            overrides[field] = value
    known = {*_SELECTS, *_FIELDS, *_NO_EFFECT, *_FLAGS}
    unknown += [f"--{name}" for name in options if name not in known]
    return options, overrides, unknown


def _recipe(options: Mapping[str, str], source: str) -> str:
    """The recipe by its name, of older releases by family and size."""
    name = options.get("model_recipe_name", "").lower()
    if not name and options.get("model_size"):
        name = f"{options.get('model_family_name', '')}_{options['model_size']}".lower()
    if not name:
        raise InputError(
            f"{source}: names no recipe; the launcher takes one as -mr llama3_8b (before: -m llama3 -s 8b)"
        )
    if options.get("task", "pretrain") == "lora":
        raise InputError(f"{source}: task lora {TRAINS_ADAPTERS} (sft trains all)")
    dtype = _number_format(options)
    if dtype not in _TABLES["precisions"]:
        raise InputError(f"{source}: compute_dtype {shown(dtype)} is not known; known: {listed(_TABLES['precisions'])}")
    return re.sub(r"_(pretrain|finetune|sft)?_?config$", "", name)


def _number_format(options: Mapping[str, str]) -> str:
    """As newer releases call it: fp8 with a recipe of its own is fp8_cs and others."""
    dtype = options.get("compute_dtype", "bf16").lower()
    return f"fp8_{options.get('fp8_recipe', 'ds').lower()}" if dtype == "fp8" else dtype


def _constants(options: Mapping[str, str], recipe: str) -> list[str]:
    """Names of the base configuration, the one that is looked for first in front."""
    gpu, dtype, task = options.get("gpu", "GPU"), _number_format(options), options.get("task", "pretrain")
    variants = dict.fromkeys([options.get("config_variant", "v2"), "v1"])
    names = [f"{recipe}_{task}_config_{gpu}_{dtype}_{variant}" for variant in variants]
    before = f"{recipe}_{gpu}_{dtype}" if task == "pretrain" else f"{recipe}_{gpu}_{task}_{dtype}"
    names = [*names, f"{before}_base_config"]
    return [name.upper() for name in (names[::-1] if "model_size" in options else names)]


def _files(options: Mapping[str, str], recipe: str) -> list[str]:
    family, _, _ = recipe.partition("_")
    folder = options.get("model_family_name", family).lower()
    names = [f"{family}_workload_base_configs.py", f"{folder}_workload_base_configs.py", "workload_base_configs.py"]
    names = names if "model_size" not in options else names[::-1]
    return [f"{_FOLDER}/{folder}/{name}" for name in names]


def _workload(
    options: Mapping[str, str], recipe: str, source: str, beside: Beside
) -> tuple[dict[str, Any], str]:  # fmt: skip
    """The fields of the workload's base configuration, by option, and what is taken; nothing where it is not there."""
    for path in _files(options, recipe):
        text = beside(path)
        constants = PythonConfigs(text, path).constants if text else {}
        for name in _constants(options, recipe):
            found = constants.get(name)
            if isinstance(found, Built):
                ones = ("tensor", "pipeline", "context", "expert")
                fields = {f"{each}{'' if each == 'context' else '_model'}_parallel_size": 1 for each in ones}
                fields |= {"global_batch_size": 1, "micro_batch_size": 1}
                fields |= {_SHORT.get(key, key): value for key, value in found.fields.items() if value is not None}
                unread = [key for key, value in fields.items() if isinstance(value, Unread | Built)]
                if unread:
                    raise InputError(f"{source}: {listed(unread)} of {name} in {path} cannot be read as data")
                return fields, f"what the command does not say is that of {name}"
    what = "what the workload's base configuration says of recomputation, FSDP, offload and exchanges of experts"
    return {}, f"{what} is not known: it is not beside the file"


def _wanted(options: Mapping[str, str], overrides: Mapping[str, str], recipe: str) -> list[str]:
    """Options that have to be said where no base configuration says them."""
    names = ["tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"]
    names += ["global_batch_size", "micro_batch_size"]
    names += [] if recipe.startswith(_TABLES["dense"]) else ["expert_model_parallel_size"]
    deep = options.get(names[1], overrides.get(_FIELDS[names[1]], "1"))
    names += ["virtual_pipeline_model_parallel_size"] if deep != "1" else []
    return [f"--{name}" for name in names if name not in options and _FIELDS[name] not in overrides]


def _settings(
    workload: Mapping[str, Any], options: Mapping[str, str], recipe: str
) -> tuple[dict[str, Any], int | None]:  # fmt: skip
    """Settings by dotted name, and the number of GPUs."""
    said = {name: value for name, value in options.items() if value != "-1"}
    both: dict[str, Any] = {**workload, **said}
    gpus = int(both["num_gpus"]) if str(both.get("num_gpus", "")).isdecimal() else None
    base = workload.get("num_gpus")
    if base and gpus and "global_batch_size" not in options:  # set_post_overrides scales the batch with the GPUs
        both["global_batch_size"] = int(workload["global_batch_size"] / int(base) * gpus)
    sequence = next(length for front, length in _TABLES["sequences"].items() if recipe.startswith(front))
    found: dict[str, Any] = {"model.seq_length": sequence, **_ALWAYS}
    found["mixed_precision"] = _TABLES["precisions"][_number_format(options)]
    found["mixed_precision.first_last_layers_bf16"] = False
    wide = str(both.get("tensor_model_parallel_size", 1)) != "1"
    found |= {"model.sequence_parallel": wide, "comm_overlap.tp_comm_overlap": wide}
    found["comm_overlap.tp_comm_overlap"] = wide and found["mixed_precision"] != "bf16_with_nvfp4_mixed"
    found["optimizer.use_precision_aware_optimizer"] = found["mixed_precision"] == "bf16_mixed"
    found |= {_FIELDS[name]: value for name, value in both.items() if name in _FIELDS and value != ""}
    return found | _patched(both), gpus


def _patched(both: Mapping[str, Any]) -> dict[str, Any]:
    """What several options set, as utils/overrides.py does."""
    found: dict[str, Any] = {}
    on = {name: str(both.get(name, "")).lower() in ("true", "1", "t", "yes", "y") for name in _SELECTS}
    if on["use_megatron_fsdp"]:
        found |= {"ddp.use_megatron_fsdp": True, "ddp.data_parallel_sharding_strategy": "optim_grads_params"}
        found["optimizer.use_precision_aware_optimizer"] = False
        found |= {"ddp.nccl_ub": True} if on["nccl_ub"] else {}
    if on["moe_a2a_overlap"]:
        found |= {"comm_overlap.overlap_moe_expert_parallel_comm": True, "comm_overlap.delay_wgrad_compute": True}
    if both.get("recompute_num_layers"):
        found |= {"model.recompute_granularity": "full", "model.recompute_method": "block"}
    if both.get("recompute_modules"):
        found["model.recompute_granularity"] = "selective"
    if both.get("cpu_offloading_num_layers"):
        found["model.cpu_offloading"] = True
    if str(both.get("moe_flex_dispatcher_backend", "None")) not in ("None", ""):
        found["model.moe_token_dispatcher_type"] = "flex"
    return found
