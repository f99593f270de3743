"""Models that recipes in Python name by a class or by their place on Hugging Face, and what is said of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcluster.documents.reading import read_document
from simcluster.importers.published_models import model_sizes, published_names

_TABLES = read_document(Path(__file__).with_suffix(".yaml")).data
_ONE_KERNEL = re.compile(r"llama(?!-?4)|nemotron|mixtral", re.IGNORECASE)
_CLASS = re.compile(r"(?:Model)?(?:Provider|Config)")
_SIZES = ("layers", "hidden_size", "heads")
_FINISHED = re.compile(r"-(base|hf|pt|instruct|v0\.[123]|0924|4k|2407)(?=-|$)")


def model_of_class(name: str) -> str:
    """The published model of a class, as of Llama32ModelProvider1B; empty where it is not known."""
    family, found, size = _parts(name)
    if not found:
        return ""
    if whole := _TABLES["models"].get(f"{family}{size}".replace("_", "")):
        return str(whole)
    size = _TABLES["sizes"].get(size, size)
    called = f"{_TABLES['families'].get(family, '')}-{size}"
    return called if called in published_names() else ""


def model_of_sizes(name: str, fields: Mapping[str, Any]) -> str:
    """The published model of a class that has no size, of the layers, width and heads that it is given; empty where
    there is none."""
    family = _TABLES["families"].get(_parts(name)[0], "")
    sizes = [fields.get(field) for field in ("num_layers", "hidden_size", "num_attention_heads")]
    if not family or None in sizes:
        return ""
    alike = (each for each in published_names() if each.startswith(f"{family}-"))
    return next((each for each in alike if [model_sizes(each)[key] for key in _SIZES] == sizes), "")


def is_model(name: str) -> bool:
    """Is it the class or function of a model of which anything is known?"""
    return bool(model_of_class(name) or defaults_of_class(name) or no_decoder(name))


def _parts(name: str) -> tuple[str, bool, str]:
    """In front of the word that says what a class is, whether there is one, and behind it; a size may stand first."""
    name = name.rpartition(".")[2]
    match = _CLASS.search(name)
    front, behind = (name[: match.start()], name[match.end() :]) if match else (name, "")
    return front.lower(), match is not None, behind.lower()


def model_called(name: str) -> str:
    """The published model by its name on Hugging Face; empty where it is not known."""
    plain = name.rsplit("/", 1)[-1].lower().replace("___", ".")  # as ModelScope writes a dot
    for before, now in _TABLES["renamed"].items():
        plain = plain.replace(before, now)
    plain = _FINISHED.sub("", plain)
    return plain if plain in published_names() else ""


def said_of_model(model: str) -> dict[str, Any]:
    """What the model's class says of its router and its attention's core, by Megatron-Core's names."""
    return dict(_TABLES["said"].get(model, {}))


def fuses_positions(name: str) -> bool:
    """Whether rotary positions are turned by one kernel where nothing else is said (``apply_rope_fusion``), of a model
    by its name or class: Megatron-Core's configuration has it off, and these have it on."""
    return _ONE_KERNEL.search(name) is not None


def defaults_of_class(name: str) -> dict[str, Any]:
    """What the class of a family says, as LlamaModelProvider, that has no size; empty where it is not known."""
    family, found, size = _parts(name)
    said = _TABLES["bases"].get(family, {}) if found and not size else {}
    below = _TABLES["bases"].get(said.get("base"), {})
    return {**below, **{field: value for field, value in said.items() if field != "base"}}


def no_decoder(name: str) -> str:
    """What stands against a model by its name or class; empty where nothing is known to."""
    return next((what for words, what in _TABLES["no_decoders"].items() if re.search(words, name, re.IGNORECASE)), "")
