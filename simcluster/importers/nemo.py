"""Import of NeMo as a scenario: a YAML configuration (NeMo 1), attribute settings or a recipe (NeMo 2).

``nemo.yaml`` in this folder translates keys to Megatron-Bridge's names; references such as ``${.hidden_size}`` are
looked up, and nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import join_or, quote_value
from simcluster.documents.yaml_documents import parse_document, read_document
from simcluster.importers.bridge_recipes import RecipeSettings
from simcluster.importers.flat_settings import flatten_settings
from simcluster.importers.import_result import FileReader, ImportResult, read_no_file
from simcluster.importers.megatron_bridge import BridgeTranslator
from simcluster.importers.megatron_named_models import OptionWords
from simcluster.importers.nemo_recipes import read_nemo_recipe_function, read_written_nemo_recipe
from simcluster.importers.process_counts import partial_node_assumption
from simcluster.importers.python_recipes import NO_ARGUMENTS
from simcluster.importers.python_values import UnreadExpression
from simcluster.importers.training_logs import extract_printed_yaml

_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_NO_EFFECT, _SECTIONS, _SHARDED, _READ_BY_NAME = (
    frozenset(_TABLES[name].split()) for name in ("no_effect", "no_effect_sections", "sharded_optimizers", "by_name")
)
_REFERENCE = re.compile(r"\$\{(?:oc\.\w+:)?(\.*)([\w.]+)\}")
_PRODUCT = re.compile(r"\$\{multiply:\s*(\d+)\s*,\s*(\d+)\s*\}")
_RECOMPUTE_FIELDS = tuple(f"model.recompute_{what}" for what in ("granularity", "method", "num_layers", "modules"))
_STEP_SETTINGS = {"trainer.precision": "mixed_precision", "optimizer.name": "ddp.use_distributed_optimizer"}


def scenario_from_nemo(
    text: str, *, cluster: Mapping[str, Any], gpus: int | None = None, available: int | None = None, function: str = "",
    read_file: FileReader = read_no_file, given: Mapping[str, str] = NO_ARGUMENTS, gpus_per_node: int | None = None,
    source: str = "<NeMo>",
) -> ImportResult:  # fmt: skip
    """Return the scenario for a NeMo configuration or Python recipe on a cluster.

    ``function`` is the recipe's name, and ``given`` are its arguments by name. ``gpus`` defaults to trainer.num_nodes x
    trainer.devices, and ``gpus_per_node`` are those of a node of the cluster. Raises InputError listing all that is not
    modelled or missing.
    """
    if source.endswith(".py") or function:
        recipe: RecipeSettings | None = read_nemo_recipe_function(text, source, function, given)
    else:
        recipe = read_written_nemo_recipe(text, source)
    plain = (
        recipe.settings
        if recipe
        else _resolve_references(flatten_settings(_parse_nemo_sections(extract_printed_yaml(text), source), source))
    )
    fields = BridgeTranslator(source, recipe or RecipeSettings())
    became: dict[str, str] = {}
    settings = fields.problems.attempt(_translate_settings, plain, source, fields.no_effect, became) or {}
    fields.translate(settings if recipe else {"model.add_bias_linear": True, **settings})
    fields.options |= _tokenizer_size_options(plain, fields.options)
    fields.options |= {"kd": ()} if "model.kd_teacher_restore_from_path" in plain else {}
    assumed = [*(recipe.assumed if recipe else ())]
    attributes = any(name.startswith("model.config.") for name in plain)
    if attributes and not recipe and not fields.options.keys() & {"bf16", "fp16"}:
        fields.options["bf16"] = ()
        assumed.append("bf16 and a plain GPT, as in NeMo 2's recipes; the model's class may change this")
    halves = fields.options.keys() & {"bf16", "fp16"}
    if "model.optim.name" in plain and plain.get("model.megatron_amp_O2") is not True and halves:
        what = "weights are kept in 16 bits, although without megatron_amp_O2 NeMo keeps them in 32 and casts them"
        assumed.append(what)
    if "distributed_fused_adam" in (plain.get("optimizer.name"), plain.get("model.optim.name")):
        assumed.append("gradient buckets have Megatron-LM's size, although Apex uses another (bucket_cap_mb)")
    launched, machines = _count_trainer_gpus(plain, None if gpus else gpus_per_node)
    read = [name for name, field in became.items() if field not in settings]  # read by name in _settings
    found = fields.build_scenario(cluster, gpus, launched, available, (*assumed, *machines), read)
    names = {name: fields.option_by_field.get(field) or field for name, field in became.items()}
    return found.classify_all_settings(plain, names)


def _count_trainer_gpus(settings: Mapping[str, Any], gpus_per_node: int | None) -> tuple[int | None, list[str]]:
    """Return the GPU count in NeMo's trainer settings (None if unknown), and assumptions about the nodes."""
    kind = settings.get("trainer.accelerator")
    other = kind not in (None, "gpu", "cuda", "auto")
    said = [f"the GPUs of the cluster are used, although trainer.accelerator is {str(kind)[:20]}"] if other else []
    nodes, devices = settings.get("trainer.num_nodes", 1), settings.get("trainer.devices")
    if not (isinstance(nodes, int) and isinstance(devices, int)):
        return None, said
    filled = partial_node_assumption(devices, nodes, gpus_per_node)
    return nodes * devices, [*said, *([filled] if filled else [])]


def _parse_nemo_sections(text: str, source: str) -> Any:
    data = parse_document(text, source=source).data
    data = data.get("training", data) if isinstance(data.get("training"), Mapping) else data
    if isinstance(data.get("train_settings"), Mapping):
        raise InputError(
            f"{source}: train_settings are the input of NeMo's configuration search, not a training; give the "
            "configuration that the search writes, with model.num_layers"
        )
    return data["MODEL_ARGS"] if isinstance(data.get("MODEL_ARGS"), Mapping) else data


def _resolve_references(settings: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(settings)

    def resolve_reference(parents: list[str], match: re.Match[str]) -> str:
        path = [*parents[: len(parents) - len(match[1])], match[2]] if match[1] else [match[2]]
        value = found.get(".".join(path).removeprefix("training."))
        return match[0] if value is None or isinstance(value, list) else str(value)

    for _ in range(4):
        for name, value in list(found.items()):
            if isinstance(value, str) and "${" in value:
                text = _REFERENCE.sub(partial(resolve_reference, name.split(".")), value)
                text = _PRODUCT.sub(lambda match: str(int(match[1][:12]) * int(match[2][:12])), text)
                found[name] = int(text) if text.isdecimal() and len(text) < 16 else text
    return found


def _translate_settings(
    settings: Mapping[str, Any], source: str, no_effect: list[str], became: dict[str, str]
) -> dict[str, Any]:  # fmt: skip
    """Translate NeMo's settings to Megatron-Bridge's; record the new name of each setting in ``became``."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key = next((now + name[len(old) :] for old, now in _TABLES["prefixes"].items() if name.startswith(old)), name)
        key = _TABLES["renamed"].get(key, key)
        section, _, field = key.partition(".")
        made = _translate_value(name, key, value, settings, source)
        if made is None:
            idle = section in _SECTIONS or field in _NO_EFFECT or (section == "model" and "." in field)
            made = {} if idle else {key: value}
            no_effect += [name] if idle and name not in _READ_BY_NAME else []
        elif isinstance(value, UnreadExpression) and not made:
            no_effect.append(name)
        found |= made
        if name not in no_effect and not (key == "model.recompute_num_layers" and value == 0):
            became[name] = next(iter(made), key)
    fsdp, halves = settings.get("model.fsdp") is True, settings.get("model.megatron_amp_O2") is True
    if fsdp:  # PyTorch FSDP overlaps gathers and reductions
        found |= dict.fromkeys(_TABLES["of_fsdp"].split(), True)
    if "model.optim.name" in settings:  # NeMo 1's configure_optimizers and _validate_and_override_config
        sharded = fsdp or found["ddp.use_distributed_optimizer"]
        alone = not sharded and settings.get("model.pipeline_model_parallel_size") in (None, 1)
        if alone and halves and settings.get("model.sequence_parallel") is not True:
            found["ddp.overlap_grad_reduce"] = True
        if fsdp or alone or not halves:
            found["model.gradient_accumulation_fusion"] = False
    found.setdefault("model.overlap_p2p_comm", False)  # default of NeMo and Megatron-Core
    if settings.get("model.transformer_engine") is False and not settings.get("model.mcore_gpt"):  # default: off
        found.setdefault("model.apply_rope_fusion", False)
        found["model.transformer_impl"] = "local"  # Megatron-Core always uses Transformer Engine
    # a plugin overrides other formats; without a granularity nothing is recomputed
    formats = ("model.bf16", "model.fp16") if found.get("mixed_precision") else ()
    idle = () if found.get("model.recompute_granularity") else _RECOMPUTE_FIELDS
    no_effect += [name for name in idle if found.get(name) is not None]
    return {name: value for name, value in found.items() if name not in (*formats, *idle)}


def _translate_value(
    name: str, key: str, value: Any, settings: Mapping[str, Any], source: str
) -> dict[str, Any] | None:  # fmt: skip
    """Translate a value that Megatron-Bridge writes differently to settings; None if the value stays as it is."""
    if isinstance(value, UnreadExpression):
        idle = key.partition(".")[0] in _SECTIONS and name not in _STEP_SETTINGS
        return {} if idle else {_STEP_SETTINGS.get(name, key): value}
    word = str(value)
    match key:
        case "model.kv_channels" | "model.position_embedding_type" if value is not None:
            return {key: value if key == "model.kv_channels" else word.lower()}  # ALiBi
        case "trainer.precision":
            return {"mixed_precision": _translate_value_word("precision", word, name, source)}
        case "model.fp8" | "model.fp8_hybrid" if key == "model.fp8" or "model.fp8" not in settings:
            return {"model.fp8": "hybrid"} if word.lower() in ("true", "hybrid") else {}
        case "model.activation":
            return {"model.gated_linear_unit": word in _TABLES["gated"].split()}
        case "model.normalization":
            return {key: _translate_value_word("normalization", word.lower(), name, source)}
        case "optimizer.name":
            sharded = word in _SHARDED or settings.get("model.wrap_with_zero") is True
            apex = word == "distributed_fused_adam" and f"{name.rpartition('.')[0]}.overlap_grad_sync" not in settings
            return {"ddp.use_distributed_optimizer": sharded} | ({"ddp.overlap_grad_reduce": True} if apex else {})
        case "model.fsdp":
            return {}
        case "model.fsdp_sharding_strategy" if settings.get("model.fsdp") is True:
            return {"ddp.data_parallel_sharding_strategy": _translate_value_word("sharding", word, name, source)}
        case "optimizer.grad_sync_dtype" | "model.fsdp_grad_reduce_dtype" if "fsdp" not in key or settings.get(
            "model.fsdp"
        ):
            return {"ddp.grad_reduce_in_fp32": word in ("fp32", "32")}
        case "model.recompute_num_layers" if value == 0:
            return {}
    return None


def _translate_value_word(table: str, word: str, name: str, source: str) -> str:
    known: dict[str, str] = _TABLES[table]
    if word not in known:
        raise InputError(f"{source}: {name}: {quote_value(word)} is unknown; known: {join_or(list(known))}")
    return known[word]


def _tokenizer_size_options(plain: Mapping[str, Any], options: Mapping[str, Any]) -> OptionWords:
    if "vocab-size" in options:
        return {}
    kind = str(plain.get("model.tokenizer.type") or "")
    named = {"megatron": kind or "GPT2BPETokenizer", "sentencepiece": "SentencePieceTokenizer"}
    library = named.get(str(plain.get("model.tokenizer.library")))
    if library is None:
        return {"tokenizer-type": ("HuggingFaceTokenizer",), "tokenizer-model": (kind or "not named",)}
    return {"tokenizer-type": (library,)}
