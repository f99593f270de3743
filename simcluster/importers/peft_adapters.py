"""Import of the ``adapter_config.json`` that PEFT writes next to LoRA adapters, as ``training.trainable``.

``peft_adapters.yaml`` has its keys, and the names that transformers gives the matmuls of a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import join_or
from simcluster.documents.yaml_documents import Document, read_document, validate_document
from simcluster.importers.hugging_face import UNQUANTIZED, import_model_config, parse_config_json
from simcluster.importers.import_result import FileReader, ImportResult, SettingClassifier
from simcluster.importers.named_models import find_published_model_name, load_published_model, published_model_fields
from simcluster.model.layers import layer_kinds
from simcluster.model.trainable import LoraModule
from simcluster.model.transformer import Model

_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_REFUSED = {key: why for why, keys in _TABLES["refused"].items() for key in keys.split()}
_MAPPED = ("peft_type", "base_model_name_or_path", "r", "target_modules", "lora_dropout")
_NO_EFFECT = frozenset(_TABLES["no_effect"].split())
_OF_BLOCK = re.compile(r"^(self_attn|self_attention|attention|attn|mlp)\.(?!c_proj$)")


def import_adapters(adapter: Mapping[str, Any], source: str, length: int | None, read_file: FileReader) -> ImportResult:
    """Return the base model of adapters, by its config.json near the file or its name, and training.trainable."""
    base = str(adapter.get("base_model_name_or_path") or "")
    if (text := read_file(f"{base}/config.json" if base else "config.json")) is not None:
        config = parse_config_json(text, "config.json")
        found = import_model_config(config, f"the config.json near {source}", length)
        return _add_adapters(found, adapter, found.document["model"], config, source)
    if not (name := find_published_model_name(base)):
        what = f"the base model {base[:60]!r} is not known" if base else "base_model_name_or_path is empty"
        raise InputError(f"{source}: {what}; put the base model's config.json next to the file")
    known, own = load_published_model(name), {"sequence_length": length} if length else {}
    told_length = () if own else (f"{known.length} (--sequence-length changes it)",)
    found = ImportResult({"model": {**known.section, **own}}, (), assumed=told_length)
    return _add_adapters(found, adapter, published_model_fields(name), {"model_type": name}, source)


def _add_adapters(
    found: ImportResult, adapter: Mapping[str, Any], fields: Mapping[str, Any], config: Mapping[str, Any], source: str
) -> ImportResult:
    """Add LoRA adapters to an imported model with these ``fields``; ``config`` gives its family and number format."""
    keys, usual = SettingClassifier(source), _TABLES["usual"]
    if str(adapter.get("peft_type")).upper() != "LORA":
        what = f"{str(adapter.get('peft_type'))[:30]!r} is not modelled, only LORA"
        keys.problems.record(keys.error("peft_type", f"{what}; import the config.json alone"))
    for key in (key for key in adapter if key not in _MAPPED):
        on = adapter[key] not in (usual.get(key), None, False, {}, [], "")
        idle = key in _NO_EFFECT or adapter[key] in (None, False)
        keys.classify(key, refused=_REFUSED.get(key, ""), on=on, idle=idle, known=(*_MAPPED, *_NO_EFFECT, *_REFUSED))
    model = validate_document(Model, Document(dict(fields), source, Path()))
    trainable = {
        "rank": adapter.get("r", 8),  # PEFT's default
        "modules": keys.problems.attempt(_read_modules, adapter, model, str(config["model_type"]), keys),
        "dropout": True if adapter.get("lora_dropout") else None,
        "base_weights": _read_base_weights(config.get("quantization_config")),
    }
    keys.problems.raise_all()
    assumed = (each for each in found.assumed if not (trainable["base_weights"] and each.startswith(UNQUANTIZED)))
    given = {key: each for key, each in trainable.items() if each is not None}
    return replace(
        found, document={**found.document, "training": {"trainable": given}}, assumed=tuple(assumed),
        mapped=(*found.mapped, *(key for key in adapter if key in _MAPPED)),
        no_effect=(*found.no_effect, *keys.no_effect), unknown=(*found.unknown, *keys.unknown),
    )  # fmt: skip


def _read_modules(adapter: Mapping[str, Any], model: Model, kind: str, keys: SettingClassifier) -> list[str]:
    """Return the matmuls that PEFT's target_modules name, in the order of ``LoraModule``."""
    rows = (row for pattern, row in _TABLES["families"].items() if re.search(rf"\b(?:{pattern})", kind, re.IGNORECASE))
    if not (names := next(rows, None)):
        what = f"the modules of model {kind[:40]} are not known, only of {join_or(list(_TABLES['families']))}"
        raise keys.error("target_modules", f"{what}; import the config.json alone, and set training.trainable")
    given = adapter.get("target_modules")
    own = list(names) if given == "all-linear" else given
    if not isinstance(own, list) or not own:
        what = "is a regular expression" if isinstance(given, str) else "lists no modules"
        raise keys.error("target_modules", f"{what}; write all-linear, or some of {', '.join(names)}")
    plain = {_OF_BLOCK.sub("", str(each)) for each in own}
    if absent := sorted(plain - names.keys()):
        what = f"adapters of {join_or([each[:40] for each in absent])} are not modelled in {kind[:40]}"
        raise keys.error("target_modules", f"{what}; write some of {', '.join(names)}")
    found = {word for each in plain for word in names[each].split()}
    kinds = {each.name for layer, _ in model.count_layer_types().values() for each in layer_kinds(model, layer)}
    fine = {"attention", "mlp"} | ({"mixture"} if found.isdisjoint(("gate", "up", "mlp_up", "mlp_down")) else set())
    if other := sorted(kinds - fine) or (["latent attention"] if model.mla else []):
        what = f"adapters of this kind of layer are not modelled: {join_or(other)}"
        raise keys.error("target_modules", f"{what}; list modules of attention alone, or set training.trainable")
    if not model.gated_mlp:
        found = {"mlp_up" if each == "up" else each for each in found if each != "gate" or given != "all-linear"}
    return [each for each in get_args(LoraModule) if each in found]


def _read_base_weights(says: Any) -> str | None:
    """Return the number format of frozen weights that bitsandbytes quantizes to 4 bits (QLoRA)."""
    if not isinstance(says, Mapping) or not says.get("load_in_4bit") or says.get("bnb_4bit_quant_type") != "nf4":
        return None
    return "nf4-double" if says.get("bnb_4bit_use_double_quant") else "nf4"
