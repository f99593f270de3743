"""Catalogue of built-in models (``models.yaml``), and lookup of a model by its Hugging Face name."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import load_presets
from simcluster.documents.diagnostics import did_you_mean


def load_model_entry(name: str) -> dict[str, Any]:
    """Return a copy of a built-in model's catalogue entry: the fields of ``Model``, including ``name``.

    Raises InputError for a name that is not in the catalogue.
    """
    known = load_presets("models.yaml")
    if not isinstance(name, str) or name not in known:
        near = find_model_preset(str(name))
        hint = f"; did you mean {near!r}?" if near else did_you_mean(str(name).lower(), known)
        names = "one of simcluster list models, or the path of a config.json"
        raise InputError(f"there is no model preset {name!r}{hint}; use {names}")
    return {"name": name, **deepcopy(known[name])}


def find_model_preset(name: str) -> str:
    """Return the built-in model's name for a Hugging Face model name; "" if the model is not built in.

    The generation must agree: Llama 3.1 matches Llama 3, whose shapes it has, but Llama 2 does not.

    >>> find_model_preset("meta-llama/Meta-Llama-3-8B-Instruct"), find_model_preset("mistralai/Mixtral-8x7B-v0.1")
    ('llama3-8b', 'mixtral-8x7b')
    >>> find_model_preset("Qwen/Qwen3-30B-A3B"), find_model_preset("my-org/my-model")
    ('qwen3-30b-a3b', '')
    """
    own = _normalize_model_name(name.rstrip("/").rpartition("/")[2])
    by_name = {_normalize_model_name(each): each for each in load_presets("models.yaml")}
    return by_name.get(own, "")


def _normalize_model_name(name: str) -> str:
    """Reduce a model name to its letters and digits, without maker, minor version and tuning suffix.

    >>> _normalize_model_name("Llama-3.1-70B-Instruct"), _normalize_model_name("Llama-2-7b-hf")
    ('llama370b', 'llama27b')
    """
    text = re.sub(r"(?<=\d)\.\d+(?=-)", "", name.lower())
    text = re.sub(r"^meta-|-(hf|base|instruct|chat|it|v[\d.]+)(?=-|$)" if "deepseek" not in text
                  else r"-(base|chat)(?=-|$)", "", text)  # fmt: skip
    return re.sub(r"[^a-z0-9]", "", text)
