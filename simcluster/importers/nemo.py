"""A scenario from a configuration of NeMo: NeMo 1's sections in YAML, NeMo 2's attributes by dotted name, a recipe.

Keys go on by Megatron-Bridge's names, from ``nemo.yaml`` beside this file; references such as ``${.hidden_size}`` are
looked up, and nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed, shown
from simcluster.documents.reading import parse_document, read_document
from simcluster.importers.beside import Beside, nothing_beside
from simcluster.importers.bridge_recipes import ReadRecipe
from simcluster.importers.flat_settings import flattened
from simcluster.importers.imported import Imported
from simcluster.importers.megatron_bridge import BridgeFields
from simcluster.importers.megatron_models import Words
from simcluster.importers.nemo_recipes import settings_of_nemo_recipe, settings_of_written_recipe
from simcluster.importers.processes import filled_otherwise
from simcluster.importers.python_recipes import NONE_GIVEN
from simcluster.importers.python_values import Unread
from simcluster.importers.training_logs import yaml_printed

_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_NO_EFFECT, _SECTIONS = frozenset(_TABLES["no_effect"].split()), _TABLES["no_effect_sections"].split()
_REFERENCE = re.compile(r"\$\{(?:oc\.\w+:)?(\.*)([\w.]+)\}")
_PRODUCT = re.compile(r"\$\{multiply:\s*(\d+)\s*,\s*(\d+)\s*\}")
_OF_RECOMPUTE = tuple(f"model.recompute_{what}" for what in ("granularity", "method", "num_layers", "modules"))
_OF_THE_STEP = {"trainer.precision": "mixed_precision", "optimizer.name": "ddp.use_distributed_optimizer"}
_OF_APEX = "distributed_fused_adam"
_LAYERS_IN_BF16 = ("first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
_OF_PLUGIN = ("fp8", "fp8_recipe", "fp8_param_gather", "fp8_params", *_LAYERS_IN_BF16)
_BY_NAME = (
    *(f"trainer.plugins.{name}" for name in _OF_PLUGIN),
    "trainer.num_nodes", "trainer.devices", "trainer.precision", "model.activation", "model.normalization",
    "optimizer.name", "model.fp8", "model.fp8_hybrid", "model.tokenizer.library", "model.tokenizer.type",
    "model.wrap_with_zero", "model.kd_teacher_restore_from_path",
    "model.kv_channels", "model.ddp_bucket_size", "model.activations_checkpoint_num_layers", "model.fsdp",
)  # fmt: skip


def scenario_from_nemo(
    text: str,
    *,
    cluster: Mapping[str, Any],
    gpus: int | None = None,
    available: int | None = None,
    function: str = "",
    beside: Beside = nothing_beside,
    given: Mapping[str, str] = NONE_GIVEN,
    gpus_per_node: int | None = None,
    source: str = "<NeMo>",
) -> Imported:
    """Return the scenario of a configuration, or of a recipe in Python, on a cluster (as ``cluster`` stands in a
    scenario).

    ``function`` is the recipe's name, ``beside`` the text of a file that it imports from, and ``given`` are arguments
    of a program by name.  ``gpus`` left out is trainer.num_nodes x trainer.devices, and ``gpus_per_node`` are those of
    a machine of the cluster.  Raises InputError with all that is not modelled or missing.
    """
    if source.endswith(".py") or function:
        recipe: ReadRecipe | None = settings_of_nemo_recipe(text, source, function, given)
    else:
        recipe = settings_of_written_recipe(text, source)
    plain = recipe.settings if recipe else _resolved(flattened(_sections(yaml_printed(text), source), source))
    fields = BridgeFields(source, recipe or ReadRecipe())
    became: dict[str, str] = {}
    settings = fields.problems.of(_settings, plain, source, fields.no_effect, became) or {}
    if recipe is None:
        settings = {"model.add_bias_linear": True, **settings}
    fields.add(settings)
    fields.options |= _tokenizer(plain, fields.options) | _plugin_of_fp8(plain)
    fields.options |= {"kd": ()} if "model.kd_teacher_restore_from_path" in plain else {}
    if str(plain.get("model.fp8", plain.get("model.fp8_hybrid", False))).lower() in ("true", "hybrid"):
        fields.options["fp8-format"] = ("hybrid",)
    formats = _formats(plain, fields.options, alone=recipe is None)
    launched, machines = _machines(plain, None if gpus else gpus_per_node)
    assumed = (*(recipe.assumed if recipe else ()), *formats, *machines)
    read = [name for name, field in became.items() if field not in settings]  # by its name, above
    found = fields.scenario(cluster, gpus, launched, available, assumed, read)
    return found.accounted(plain, {name: fields.became.get(field) or field for name, field in became.items()})


def _formats(plain: Mapping[str, Any], options: Words, *, alone: bool) -> tuple[str, ...]:
    """Return what is assumed of number formats; a configuration ``alone`` (no recipe) without one is in bf16."""
    assumed: tuple[str, ...] = ()
    if alone and any(name.startswith("model.config.") for name in plain) and not options.keys() & {"bf16", "fp16"}:
        options["bf16"] = ()
        assumed = ("bf16, as in NeMo 2's recipes, and a plain GPT where the model's class would say otherwise",)
    if "model.optim.name" in plain and not _in_halves(plain) and options.keys() & {"bf16", "fp16"}:
        assumed += ("weights kept in 16 bits, though without megatron_amp_O2 NeMo keeps them in 32 and casts them",)
    return assumed


def _machines(plain: Mapping[str, Any], gpus_per_node: int | None) -> tuple[int | None, tuple[str, ...]]:
    """Return how many GPUs the trainer takes, None where it does not say it, and what is assumed of them and of
    machines."""
    kind = plain.get("trainer.accelerator")
    other = kind not in (None, "gpu", "cuda", "auto")
    said = (f"the GPUs of the cluster, though trainer.accelerator is {str(kind)[:20]}",) if other else ()
    nodes, devices = plain.get("trainer.num_nodes", 1), plain.get("trainer.devices")
    if not (isinstance(nodes, int) and isinstance(devices, int)):
        return None, said
    filled = filled_otherwise(devices, nodes, gpus_per_node)
    return nodes * devices, (*said, *([filled] if filled else []))


def _sections(text: str, source: str) -> Any:
    """Return what the file says, without what is around it."""
    data = parse_document(text, source=source).data
    data = data.get("training", data) if isinstance(data.get("training"), Mapping) else data
    if isinstance(data.get("train_settings"), Mapping):
        raise InputError(
            f"{source}: train_settings are what NeMo's search for configurations starts from (of a model its "
            "model_size alone), and no training; give the configuration that it writes, with model.num_layers"
        )
    return data["MODEL_ARGS"] if isinstance(data.get("MODEL_ARGS"), Mapping) else data


def _plugin_of_fp8(plain: Mapping[str, Any]) -> Words:
    """Return what a recipe's plugin of the precision says of 8 bits."""
    if not plain.get("trainer.plugins.fp8"):
        return {}
    kind = plain.get("trainer.plugins.fp8_recipe", "delayed")
    gathered = plain.get("trainer.plugins.fp8_param_gather", plain.get("trainer.plugins.fp8_params"))
    words: Words = {"fp8-format": ("hybrid",), "fp8-recipe": (str(kind),)}
    words |= {name.replace("_", "-"): () for name in _LAYERS_IN_BF16 if plain.get(f"trainer.plugins.{name}")}
    return words | ({"fp8-param-gather": ()} if gathered is True else {})


def _resolved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return references written out, as far as they are to keys of the file."""
    found = dict(settings)
    for _ in range(4):
        for name, value in list(found.items()):
            if isinstance(value, str) and "${" in value:
                found[name] = _written(name, value, found)
    return found


def _written(name: str, text: str, settings: Mapping[str, Any]) -> Any:
    parents = name.split(".")

    def referred(match: re.Match[str]) -> str:
        path = [*parents[: len(parents) - len(match[1])], match[2]] if match[1] else [match[2]]
        key = ".".join(path).removeprefix("training.")
        value = settings.get(key)
        return match[0] if value is None or isinstance(value, list) else str(value)

    text = _REFERENCE.sub(referred, text)
    text = _PRODUCT.sub(lambda match: str(int(match[1][:12]) * int(match[2][:12])), text)
    return int(text) if text.isdecimal() and len(text) < 16 else text


def _settings(
    plain: Mapping[str, Any], source: str, no_effect: list[str], became: dict[str, str]
) -> dict[str, Any]:  # fmt: skip
    """Return the settings by Megatron-Bridge's names, which ``became`` takes; InputError for unknown words."""
    found: dict[str, Any] = {}
    for name, value in plain.items():
        key = next((now + name[len(old) :] for old, now in _TABLES["prefixes"].items() if name.startswith(old)), name)
        key = _TABLES["renamed"].get(key, key)
        section, _, field = key.partition(".")
        before = len(found)
        if isinstance(value, Unread):
            if section in _SECTIONS and name not in _OF_THE_STEP:
                no_effect.append(name)
            else:
                found[_OF_THE_STEP.get(name, key)] = value
        elif key == "model.kv_channels" and value is not None:
            found[key] = value
        elif name == "trainer.precision":
            found["mixed_precision"] = _word(_TABLES["precision"], value, name, source)
        elif key == "model.activation":
            found["model.gated_linear_unit"] = str(value) in _TABLES["gated"].split()
        elif key == "model.normalization":
            words = {word.lower(): word for word in _TABLES["normalization"].values()}
            found[key] = _word({**words, **_TABLES["normalization"]}, str(value).lower(), name, source)
        elif key == "model.position_embedding_type" and value is not None:
            found[key] = str(value).lower()  # ALiBi
        elif key == "optimizer.name":
            sharded = str(value) in _TABLES["sharded_optimizers"].split() or plain.get("model.wrap_with_zero") is True
            found["ddp.use_distributed_optimizer"] = sharded
        elif key == "optimizer.bucket_cap_mb" and plain.get(f"{name.rpartition('.')[0]}.name") == _OF_APEX:
            continue  # below, by the width of gradients
        elif key == "model.fsdp":
            found |= _shards(plain, source) if value is True else {}
        elif key == "optimizer.grad_sync_dtype":
            found["ddp.grad_reduce_in_fp32"] = str(value) in ("fp32", "32")
        elif key == "model.recompute_num_layers" and value == 0:
            continue
        elif section in ("model", "train", "ddp", "comm_overlap") and field not in _NO_EFFECT and "." not in field:
            if name not in _BY_NAME or not field.startswith("fp8"):
                found[key] = value
        elif section in _SECTIONS or field in _NO_EFFECT or section == "model":
            if name not in _BY_NAME:
                no_effect.append(name)
        else:
            found[key] = value
        if name not in no_effect:
            became[name] = next(iter([*found][before:]), key)
    _changed_by_nemo_1(plain, found)
    if plain.get("optimizer.name", plain.get("model.optim.name")) == _OF_APEX:
        found.setdefault("ddp.overlap_grad_reduce", True)  # Apex's overlap_grad_sync
        found["ddp.bucket_size"] = _bucket(plain, found, source)
    found.setdefault("model.overlap_p2p_comm", False)  # as of NeMo's own configuration, and Megatron-Core's
    if plain.get("model.transformer_engine") is False and not plain.get("model.mcore_gpt"):  # off where not said
        found.setdefault("model.apply_rope_fusion", False)
        found["model.transformer_impl"] = "local"  # with Megatron-Core its layers were Transformer Engine's at any rate
    return _overruled(found, no_effect)


def _overruled(found: Mapping[str, Any], no_effect: list[str]) -> dict[str, Any]:
    """Return the settings without those that others overrule: formats by a plugin, recompute without a granularity."""
    formats = ("model.bf16", "model.fp16") if found.get("mixed_precision") else ()
    idle = () if found.get("model.recompute_granularity") else _OF_RECOMPUTE
    no_effect += [name for name in idle if found.get(name) is not None]
    return {name: value for name, value in found.items() if name not in (*formats, *idle)}


def _bucket(plain: Mapping[str, Any], found: Mapping[str, Any], source: str) -> int:
    """Return the gradients in a bucket of Apex's DistributedFusedAdam; bucket_cap_mb are megabytes, 100 by default."""
    name = "model.optim.bucket_cap_mb"
    size = plain.get(name, plain.get("optimizer.bucket_cap_mb", 100))
    if not isinstance(size, int | float) or not 0 < size < 1e6:
        raise InputError(f"{source}: {name}: {shown(size)} is no size in megabytes; give one, as in 100")
    halves = found.get("ddp.grad_reduce_in_fp32", found.get("mixed_precision") != "fp16_mixed") is False
    return int(size * 2**20) // (2 if halves else 4)


def _changed_by_nemo_1(plain: Mapping[str, Any], found: dict[str, Any]) -> None:
    """Set what NeMo 1 does of itself: without stages a plain optimizer reduces gradients while the backward goes on,
    which does not go with a fused accumulation (``megatron_base_model.py`` of 1.23, ``configure_optimizers`` and
    ``_validate_and_override_config``)."""
    name = plain.get("model.optim.name")
    if name is None:
        return
    sharded = str(name) in _TABLES["sharded_optimizers"].split() or plain.get("model.fsdp") is True
    alone = plain.get("model.pipeline_model_parallel_size") in (None, 1)
    tensor = plain.get("model.tensor_model_parallel_size") or 1
    sequence = plain.get("model.sequence_parallel") is True and tensor != 1
    asked = found.pop("model.async_grad_allreduce", True) is not False
    devices = plain.get("trainer.devices"), plain.get("trainer.num_nodes", 1)
    replicated = not all(isinstance(each, int) for each in devices) or devices[0] * devices[1] != tensor
    if plain.get("model.fsdp") is True or not _in_halves(plain) or (alone and replicated and not sharded):
        found["model.gradient_accumulation_fusion"] = False
    if _in_halves(plain) and alone and not sharded and not sequence and asked:
        found["ddp.overlap_grad_reduce"] = True


def _in_halves(plain: Mapping[str, Any]) -> bool:
    return plain.get("model.megatron_amp_O2") is True


def _shards(plain: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return what PyTorch's FSDP does, which overlaps its gathers and reductions."""
    name = "model.fsdp_sharding_strategy"
    narrow = str(plain.get("model.fsdp_grad_reduce_dtype", "32")) in ("bf16", "16")
    return {
        "ddp.data_parallel_sharding_strategy": _word(_TABLES["sharding"], plain.get(name) or "full", name, source),
        "ddp.use_megatron_fsdp": True, "ddp.overlap_grad_reduce": True, "ddp.overlap_param_gather": True,
        **({"ddp.grad_reduce_in_fp32": False} if narrow else {}),
    }  # fmt: skip


def _word(table: Mapping[str, str], value: Any, name: str, source: str) -> str:
    if str(value) not in table:
        raise InputError(f"{source}: {name}: {shown(value)} is not known; known: {listed(list(table))}")
    return table[str(value)]


def _tokenizer(plain: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the tokenizer's kind and name, by Megatron-LM's options; where nothing is said of it, one that is not
    read."""
    if "vocab-size" in options:
        return {}
    library, kind = str(plain.get("model.tokenizer.library", "")), str(plain.get("model.tokenizer.type") or "")
    if library == "megatron":
        return {"tokenizer-type": (kind or "GPT2BPETokenizer",)}
    if library == "sentencepiece":
        return {"tokenizer-type": ("SentencePieceTokenizer",)}
    return {"tokenizer-type": ("HuggingFaceTokenizer",), "tokenizer-model": (kind or "not named",)}
