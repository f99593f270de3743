"""Models that other tools call by name: by a class, by their place on Hugging Face, or by that of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import presets
from simcluster.documents.reading import read_document
from simcluster.importers.hugging_face import (
    USUAL_LENGTH,
    assumptions_of_config,
    keys_of_config,
    model_at_usual_length,
    parse_config,
)
from simcluster.importers.imported import Beside

_TABLES = read_document(Path(__file__).with_name("model_classes.yaml")).data
_ONE_KERNEL = re.compile(r"llama(?!-?4)|nemotron|mixtral", re.IGNORECASE)
_CLASS = re.compile(r"(?:Model)?(?:Provider|Config)")
_TELLING_SIZES = ("layers", "hidden_size", "heads")
_FINISHED = re.compile(r"-(base|hf|pt|instruct|v0\.[123]|0924|4k|2407)(?=-|$)")


@cache
def _sizes() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, entry in read_document(Path(__file__).with_name("published_models.yaml")).data.items():
        found[name] = {**found.get(entry.get("base", ""), {}), **{key: entry[key] for key in entry if key != "base"}}
    return {name: {"name": name, **fields} for name, fields in found.items() if not name.startswith("_")}


def published_names() -> tuple[str, ...]:
    """Return all names, the catalogue's first."""
    return (*presets("models.yaml"), *_sizes())


def published_model(name: str) -> dict[str, Any]:
    """Return the model section of a scenario: the preset's name, or all fields; KeyError for one that is not known."""
    return {"preset": name} if name in presets("models.yaml") else deepcopy(_sizes()[name])


def model_sizes(name: str) -> dict[str, Any]:
    """Return all fields of a model by its name."""
    section = published_model(name)
    return presets("models.yaml")[name] if "preset" in section else section


def model_of_class(name: str) -> str:
    """Return the published model of a class, as of Llama32ModelProvider1B; empty where it is not known."""
    family, found, size = _parts(name)
    if not found:
        return ""
    if whole := _TABLES["models"].get(f"{family}{size}".replace("_", "")):
        return str(whole)
    size = _TABLES["sizes"].get(size, size)
    called = f"{_TABLES['families'].get(family, '')}-{size}"
    return called if called in published_names() else ""


def model_of_sizes(name: str, fields: Mapping[str, Any]) -> str:
    """Return the published model of a class that has no size, of the layers, width and heads that it is given; empty
    where there is none."""
    family = _TABLES["families"].get(_parts(name)[0], "")
    sizes = [fields.get(field) for field in ("num_layers", "hidden_size", "num_attention_heads")]
    if not family or None in sizes:
        return ""
    alike = (each for each in published_names() if each.startswith(f"{family}-"))
    return next((each for each in alike if [model_sizes(each)[key] for key in _TELLING_SIZES] == sizes), "")


def _parts(name: str) -> tuple[str, bool, str]:
    """In front of the word that says what a class is, whether there is one, and behind it; a size may stand first."""
    name = name.rpartition(".")[2]
    match = _CLASS.search(name)
    front, behind = (name[: match.start()], name[match.end() :]) if match else (name, "")
    return front.lower(), match is not None, behind.lower()


def model_called(name: str) -> str:
    """Return the published model by its name on Hugging Face; empty where it is not known."""
    plain = name.rsplit("/", 1)[-1].lower().replace("___", ".")  # as ModelScope writes a dot
    for before, now in _TABLES["renamed"].items():
        plain = plain.replace(before, now)
    plain = _FINISHED.sub("", plain)
    return plain if plain in published_names() else ""


def said_of_model(model: str) -> dict[str, Any]:
    """Return what the model's class says of its router and its attention's core, by Megatron-Core's names."""
    return dict(_TABLES["said"].get(model, {}))


def fields_of_class(model: str, kind: str) -> dict[str, Any]:
    """Return the fields of Megatron-Core that a class says beside sizes: of a published model, or of its family.

    Rotary positions are turned by one kernel (``apply_rope_fusion``) in some classes, and not in Megatron-Core's own.
    """
    fused = _ONE_KERNEL.search(model or kind) is not None
    return {"apply_rope_fusion": fused, **(said_of_model(model) or defaults_of_class(kind))}


def defaults_of_class(name: str) -> dict[str, Any]:
    """Return what the class of a family says, as LlamaModelProvider, that has no size; empty where it is not known."""
    family, found, size = _parts(name)
    said = _TABLES["bases"].get(family, {}) if found and not size else {}
    below = _TABLES["bases"].get(said.get("base"), {})
    return {**below, **{field: value for field, value in said.items() if field != "base"}}


def no_decoder(name: str) -> str:
    """Return what stands against a model by its name or class; empty where nothing is known to."""
    return next((what for words, what in _TABLES["no_decoders"].items() if re.search(words, name, re.IGNORECASE)), "")


@dataclass(frozen=True)
class NamedModel:
    """A model by its name: its section of a scenario, what is assumed of it, and keys of its config that are not known.

    ``name`` is empty for one that has none, and whose fields have to say it.  ``length`` is what is assumed of the
    length of sequences where nothing states it.
    """

    name: str = ""
    section: Mapping[str, Any] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    length: str = ""


def model_published(name: str) -> NamedModel:
    """Return a model that is known here by its name, with sequences of ``USUAL_LENGTH`` at most; none for no name."""
    if not name:
        return NamedModel()
    section, length = published_model(name), min(model_sizes(name)["sequence_length"], USUAL_LENGTH)
    section |= {} if "preset" in section else {"sequence_length": length}
    return NamedModel(name, section, length=f"sequences of {length} tokens")


def model_named(name: str, source: str, beside: Beside) -> NamedModel:
    """Return the model by its name on Hugging Face, none where none is named.

    InputError for one that is not known here, where no config.json says its sizes: in a folder of that name beside the
    file, or in the file's own.
    """
    if not name or (found := model_called(name)):
        return model_published(found if name else "")
    what = f"{source}: the model {name[:60]!r} of the recipe"
    if against := no_decoder(name.rstrip("/").rpartition("/")[2]):
        raise InputError(f"{what} {against}")
    if (text := beside(f"{name}/config.json")) is None:
        raise InputError(
            f"{what} is not known here: only its name is said, not its sizes; put its config.json beside the file, or "
            f"in a folder {name[:60]} there (one that is known is named as on Hugging Face: Qwen/Qwen3-8B)"
        )
    config = parse_config(text, f"{name[:60]}/config.json")
    try:
        section, length = model_at_usual_length(config)
        unknown = keys_of_config(config, sequence_length=section["sequence_length"])[2]
        assumed = assumptions_of_config(config)
    except InputError as problem:
        raise InputError(f"{what} is that of the config.json beside it: {problem}") from None
    said = f"the model {name[:60]} is that of the config.json beside the file"
    return NamedModel(name, section, (said, *assumed), tuple(f"{key} of config.json" for key in unknown), length)
