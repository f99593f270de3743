"""Catalogue of built-in models, from ``models.yaml``."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.catalogue import load_presets
from simcluster.documents.diagnostics import did_you_mean


def model_document(name: str) -> dict[str, Any]:
    """Return a copy of a model preset's fields for ``Model``, with its ``name``.

    Raises InputError for a name that is not in the catalogue.
    """
    known = load_presets("models.yaml")
    if not isinstance(name, str) or name not in known:
        near = find_model_preset(str(name))
        hint = f"; did you mean {near!r}?" if near else did_you_mean(str(name).lower(), known)
        raise InputError(
            f"there is no model preset {name!r}{hint}; known: {', '.join(known)}; or name the path of a config.json"
        )
    return {"name": name, **deepcopy(known[name])}


def find_model_preset(name: str) -> str:
    """Return the built-in model that matches a public name, as on Hugging Face; "" if there is none.

    The generation must agree: Llama 3.1 matches Llama 3, whose shapes it has, but Llama 2 does not.

    >>> preset_near("meta-llama/Meta-Llama-3-8B-Instruct"), preset_near("mistralai/Mixtral-8x7B-v0.1")
    ('llama3-8b', 'mixtral-8x7b')
    >>> preset_near("Qwen/Qwen3-30B-A3B"), preset_near("my-org/my-model")
    ('qwen3-30b-a3b', '')
    """
    own = _normalize_name(name.rstrip("/").rpartition("/")[2])
    by_name = {_normalize_name(each): each for each in load_presets("models.yaml")}
    return by_name.get(own, "")


def _normalize_name(name: str) -> str:
    """Return a model name's letters and digits, without maker, minor version and tuning suffixes.

    >>> _plain("Llama-3.1-70B-Instruct"), _plain("Llama-2-7b-hf")
    ('llama370b', 'llama27b')
    """
    text = re.sub(r"(?<=\d)\.\d+(?=-)", "", name.lower())
    text = re.sub(r"^meta-|-(hf|base|instruct|chat|it|v[\d.]+)(?=-|$)" if "deepseek" not in text
                  else r"-(base|chat)(?=-|$)", "", text)  # fmt: skip
    return re.sub(r"[^a-z0-9]", "", text)
