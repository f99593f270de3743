"""Lookup of published models by framework class, Hugging Face name or catalogue name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import load_presets
from simcluster.documents.yaml_documents import read_document
from simcluster.importers.hugging_face import (
    USUAL_LENGTH,
    assumptions_of_config,
    classify_config_keys,
    model_at_default_length,
    parse_config_json,
)
from simcluster.importers.import_result import FileReader

_TABLES = read_document(Path(__file__).with_name("model_classes.yaml")).data
_FUSED_ROPE_MODELS = re.compile(r"llama(?!-?4)|nemotron|mixtral", re.IGNORECASE)
_CLASS = re.compile(r"(?:Model)?(?:Provider|Config)")
_IDENTIFYING_SIZES = ("layers", "hidden_size", "heads")
_NAME_SUFFIX = re.compile(r"-(base|hf|pt|instruct|v0\.[123]|0924|4k|2407)(?=-|$)")


@cache
def _load_published_sizes() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, entry in read_document(Path(__file__).with_name("published_models.yaml")).data.items():
        found[name] = {**found.get(entry.get("base", ""), {}), **{key: entry[key] for key in entry if key != "base"}}
    return {name: {"name": name, **fields} for name, fields in found.items() if not name.startswith("_")}


def published_model_names() -> tuple[str, ...]:
    """Return the names of all known published models, those in the catalogue first."""
    return (*load_presets("models.yaml"), *_load_published_sizes())


def published_model_section(name: str) -> dict[str, Any]:
    """Return the ``model`` section of a scenario for a published model, given its name."""
    return {"preset": name} if name in load_presets("models.yaml") else deepcopy(_load_published_sizes()[name])


def published_model_fields(name: str) -> dict[str, Any]:
    """Return all fields of a published model, given its name."""
    section = published_model_section(name)
    return load_presets("models.yaml")[name] if "preset" in section else section


def find_model_by_class(name: str) -> str:
    """Return the published model of a framework class such as Llama32ModelProvider1B; "" if none is known."""
    family, found, size = _split_class_name(name)
    if not found:
        return ""
    if whole := _TABLES["models"].get(f"{family}{size}".replace("_", "")):
        return str(whole)
    size = _TABLES["sizes"].get(size, size)
    called = f"{_TABLES['families'].get(family, '')}-{size}"
    return called if called in published_model_names() else ""


def find_model_by_sizes(name: str, fields: Mapping[str, Any]) -> str:
    """Return the published model of a class's family that has the sizes in ``fields``; "" if none does."""
    family = _TABLES["families"].get(_split_class_name(name)[0], "")
    sizes = [fields.get(field) for field in ("num_layers", "hidden_size", "num_attention_heads")]
    if not family or None in sizes:
        return ""
    alike = (each for each in published_model_names() if each.startswith(f"{family}-"))
    return next((own for own in alike if [published_model_fields(own)[key] for key in _IDENTIFYING_SIZES] == sizes), "")


def _split_class_name(name: str) -> tuple[str, bool, str]:
    """Split a class name at "Provider" or "Config" into family and size; also return whether it has that word."""
    name = name.rpartition(".")[2]
    match = _CLASS.search(name)
    front, behind = (name[: match.start()], name[match.end() :]) if match else (name, "")
    return front.lower(), match is not None, behind.lower()


def find_published_model_name(name: str) -> str:
    """Return the name of the published model that a Hugging Face name refers to; "" if there is none."""
    plain = name.rsplit("/", 1)[-1].lower().replace("___", ".")  # ModelScope's spelling of a dot
    for before, now in _TABLES["renamed"].items():
        plain = plain.replace(before, now)
    plain = _NAME_SUFFIX.sub("", plain)
    return plain if plain in published_model_names() else ""


def published_router_settings(model: str) -> dict[str, Any]:
    """Return a published model's router and attention settings, under the names that Megatron-Core uses."""
    return dict(_TABLES["said"].get(model, {}))


def model_class_settings(model: str, kind: str) -> dict[str, Any]:
    """Return a published model's Megatron-Core settings, other than sizes, as its framework class sets them.

    Rotary positions are applied by one kernel (``apply_rope_fusion``) in some classes, and not in Megatron-Core's.
    """
    fused = _FUSED_ROPE_MODELS.search(model or kind) is not None
    return {"apply_rope_fusion": fused, **(published_router_settings(model) or model_family_settings(kind))}


def model_family_settings(name: str) -> dict[str, Any]:
    """Return the defaults of a framework class for a whole model family, such as LlamaModelProvider."""
    family, found, size = _split_class_name(name)
    said = _TABLES["bases"].get(family, {}) if found and not size else {}
    below = _TABLES["bases"].get(said.get("base"), {})
    return {**below, **{field: value for field, value in said.items() if field != "base"}}


def explain_not_decoder(name: str) -> str:
    """Return the reason why a model name or class is not a plain decoder; "" if it may be one."""
    return next((what for words, what in _TABLES["no_decoders"].items() if re.search(words, name, re.IGNORECASE)), "")


@dataclass(frozen=True)
class NamedModel:
    """A model that the imported file names: its name, scenario section, assumptions and unknown config keys.

    ``name`` is empty if there is none, and the fields must be given. ``length`` states the sequence length that is
    assumed unless one is given.
    """

    name: str = ""
    section: Mapping[str, Any] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    length: str = ""


def load_published_model(name: str) -> NamedModel:
    """Return a published model; its sequences have at most ``USUAL_LENGTH`` tokens."""
    if not name:
        return NamedModel()
    section, length = published_model_section(name), min(published_model_fields(name)["sequence_length"], USUAL_LENGTH)
    section |= {} if "preset" in section else {"sequence_length": length}
    return NamedModel(name, section, length=f"sequences of {length} tokens")


def find_named_model(name: str, source: str, read_file: FileReader) -> NamedModel:
    """Return the model with a Hugging Face name, from the catalogue or a config.json near the imported file.

    Raises InputError for an unknown model without a config.json, either in a folder of that name next to the file or in
    the file's folder.
    """
    if not name or (found := find_published_model_name(name)):
        return load_published_model(found if name else "")
    what = f"{source}: the model {name[:60]!r}"
    if against := explain_not_decoder(name.rstrip("/").rpartition("/")[2]):
        raise InputError(f"{what} cannot be imported: it {against}")
    if (text := read_file(f"{name}/config.json")) is None:
        raise InputError(
            f"{what} is not known, and its sizes are not given; put its config.json next to the file, or "
            f"in a folder {name[:60]} there (known models have Hugging Face names, as Qwen/Qwen3-8B)"
        )
    config = parse_config_json(text, f"{name[:60]}/config.json")
    try:
        section, length = model_at_default_length(config)
        unknown = classify_config_keys(config, sequence_length=section["sequence_length"])[2]
        assumed = assumptions_of_config(config)
    except InputError as problem:
        raise InputError(f"{what} is read from the config.json next to it: {problem}") from None
    said = f"the model {name[:60]} is read from the config.json next to the file"
    return NamedModel(name, section, (said, *assumed), tuple(f"{key} of config.json" for key in unknown), length)
