"""Settings of Megatron-Bridge (and NeMo 2) recipes in Python, read as data: one function that makes a configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import listed
from simcluster.importers.beside import Beside, nothing_beside
from simcluster.importers.published_models import published_names
from simcluster.importers.python_config import PythonConfigs
from simcluster.importers.python_values import Built, Unread

_PRETRAINS = re.compile(r"pretrain_(\w+_)?(config|recipe)$")
_FINISHED = re.compile(r"-(base|hf|instruct|v0\.1|0924)(?=-|$)")
_RENAMED = (
    ("meta-", ""), ("llama-3.1-", "llama3-"), ("llama-3.2-", "llama3-"), ("llama-3-", "llama3-"),
    ("llama-2-", "llama2-"), ("qwen2.5-", "qwen2-"), ("moonlight-16b-a3b", "moonlight-16b"),
    ("olmoe-1b-7b", "olmoe-7b"),
)  # fmt: skip
_PROVIDERS = {
    "GPTProvider175B": "gpt3-175b", "KimiK2Provider": "kimi-k2", "MoonlightModelProvider16B": "moonlight-16b",
    "OlMoEModelProvider": "olmoe-7b",
}  # fmt: skip
_ROUTERS = {
    "KimiK2Provider": {"moe_router_dtype": "fp32", "moe_aux_loss_coeff": 1e-3},
    "OlMoEModelProvider": {"moe_router_dtype": "fp32", "moe_aux_loss_coeff": 1e-2},
}
"""What classes of models say of their routers (models/kimi/kimi_provider.py, models/olmoe/olmoe_provider.py); a recipe
has the last word."""
_LAYOUT = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def settings_of_recipe(
    text: str, source: str, function: str, beside: Beside = nothing_beside
) -> tuple[str, str, dict[str, Any]]:
    """The function of the file that is read, the name of its model (empty where its fields say it), and its settings by
    dotted name.

    Raises InputError where there are several recipes of pre-training and none is named, for one of fine-tuning that is
    not asked for by name, and for what makes no configuration.
    """
    configs = PythonConfigs(text, source, known={"apply_flex_dispatcher_backend": _flexible}, beside=beside)
    made = [name for name in configs.functions if _PRETRAINS.search(name) and not name.startswith("_")]
    if not function and len(made) != 1:
        raise InputError(
            f"{source}: has {'several recipes' if made else 'no recipe of pre-training'}; name one behind a colon, as "
            f"in {source}:{made[0] if made else 'NAME'}" + (f" (it has {listed(made)})" if made else "")
        )
    found = configs.read(function or made[0])
    if not isinstance(found, Built) or not found.fields:
        raise InputError(f"{source}: {function or made[0]} makes no configuration that can be read as data")
    if found.fields.get("peft") is not None:
        raise InputError(
            f"{source}: {function or made[0]} trains adapters beside weights that stand still, which are not modelled"
        )
    model = found.fields.get("model")
    router = _ROUTERS.get(model.name, {}) if isinstance(model, Built) else {}
    settings: dict[str, Any] = {f"model.{field}": value for field, value in router.items()}
    for section, value in found.fields.items():
        settings |= _section(section, value)
    name = _model_name(found.fields.get("model"), source)
    if not name and "model.num_layers" not in settings:
        kind = getattr(found.fields.get("model"), "name", "none")
        raise InputError(f"{source}: the model of {function or made[0]} ({kind}) is not known here, or not all decoder")
    return function or made[0], name, _settled(settings)


def _settled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are left where several sections say one: a recipe's mixed precision has the last word on those
    of the model, the optimizer and DDP (its setup writes over them), and a distributed optimizer is on where the
    optimizer or DDP has it."""
    found = dict(settings)
    if "mixed_precision.bf16" in found:  # a configuration written out, in place of a name
        found["mixed_precision"] = None
    written = "mixed_precision.grad_reduce_in_fp32" in found
    for name in ("model.bf16", "model.fp16", "optimizer.bf16", "optimizer.fp16"):
        if found.get("mixed_precision") or "mixed_precision.bf16" in found:
            found.pop(name, None)
    if written or found.get("mixed_precision"):
        found.pop("ddp.grad_reduce_in_fp32", None)
    if found.pop("optimizer.use_distributed_optimizer", None) is True:
        found["ddp.use_distributed_optimizer"] = True
    return found


def _flexible(model: Any = None, backend: Any = None, *_: Any, **__: Any) -> None:
    """What ``apply_flex_dispatcher_backend`` sets, on GPUs that have the backend."""
    if isinstance(model, Built) and backend in ("deepep", "hybridep"):
        model.fields |= {
            "moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": backend,
            "moe_shared_expert_overlap": False,
        }  # fmt: skip


def model_called(name: str) -> str:
    """The published model by its name on Hugging Face; empty where it is not known."""
    plain = name.rsplit("/", 1)[-1].lower()
    for before, now in _RENAMED:
        plain = plain.replace(before, now)
    plain = _FINISHED.sub("", plain)
    return plain if plain in published_names() else ""


def _model_name(model: Any, source: str) -> str:
    while isinstance(model, Built):
        if model.name in _PROVIDERS:
            return _PROVIDERS[model.name]
        name = next((each for each in model.args if isinstance(each, str)), "")
        if model.name.endswith("from_hf_pretrained") or "/" in name:
            found = model_called(name)
            if not found:
                raise InputError(f"{source}: the model {name[:60] or model.name!r} of the recipe is not known here")
            return found
        if model.of is None:
            return ""
        model = model.of
    return ""


def _section(section: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Built):
        fields = {f"{section}.{name}": item for name, item in value.fields.items()}
        if section == "mixed_precision" and not value.name.endswith("Config"):
            fields["mixed_precision"] = next((each for each in value.args if isinstance(each, str)), value.name)
    elif section == "optimizer" and isinstance(value, Unread):
        fields = {}  # by a function of another file, as its name says below
    else:
        fields = {section: value}
    if section == "optimizer" and "muon" in _made_by(value):  # else Adam
        fields.setdefault("optimizer.optimizer", "dist_muon" if "dist" in _made_by(value) else "muon")
    layout = fields.get("model.pipeline_model_parallel_layout")
    if isinstance(layout, Unread | Built):
        fields["model.pipeline_model_parallel_layout, which the file makes in a way that is not read"] = True
        del fields["model.pipeline_model_parallel_layout"]
    elif isinstance(layout, list):
        rows = [row if isinstance(row, list) else [row] for row in layout]
        letters = ["".join(_LAYOUT.get(str(each), "?") for each in row) for row in rows]
        fields["model.pipeline_model_parallel_layout"] = "|".join(letters)
    plain = {name: item.text if isinstance(item, Unread) else item for name, item in fields.items() if item is not None}
    wanted = "vocab_size", "seq_length"
    return {
        name: item for name, item in plain.items()
        if not isinstance(item, Built) and not (name.endswith(wanted) and isinstance(fields[name], Unread))
    }  # fmt: skip


def _made_by(value: Any) -> str:
    """The call that makes a section, as it is written as far as it is not read."""
    if isinstance(value, Built):
        return " ".join((value.name, *(each.text for each in value.args if isinstance(each, Unread))))
    return value.text if isinstance(value, Unread) else ""
