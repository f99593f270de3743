"""A model from the ``config.json`` that Hugging Face transformers publishes beside the weights.

Each supported ``model_type`` says under which keys its sizes are, and what its family never writes down (whether the
MLP is gated, which norm, how positions enter).  Anything else is refused rather than guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simcluster.errors import InputError

_MAX_BYTES = 1_000_000  # the largest published config.json files are tens of kilobytes
_MIXTURES = ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size")


@dataclass(frozen=True, slots=True)
class _Family:
    """Under which keys one ``model_type`` keeps the fields of ``Model`` (the first present), and what it implies."""

    keys: Mapping[str, tuple[str, ...]]
    implied: Mapping[str, Any]
    tied: bool  # what transformers assumes where tie_word_embeddings is not written
    four_times: bool = False  # a missing MLP width means 4 x hidden_size
    biases: Mapping[str, bool] = field(default_factory=dict)  # switches of biases and their defaults


_COMMON = {
    "layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "heads": ("num_attention_heads",),
    "ffn_hidden_size": ("intermediate_size",),
    "vocab_size": ("vocab_size",),
    "sequence_length": ("max_position_embeddings",),
}
_LLAMA_KEYS = {**_COMMON, "kv_heads": ("num_key_value_heads",), "head_dim": ("head_dim",)}
_LLAMA_IMPLIED = {"gated_mlp": True, "norm": "rmsnorm", "position": "rope", "bias": False}
_GPT_IMPLIED = {"gated_mlp": False, "norm": "layernorm", "position": "learned", "bias": True}
_LLAMA = _Family(_LLAMA_KEYS, _LLAMA_IMPLIED, tied=False, biases={"attention_bias": False, "mlp_bias": False})
_MISTRAL = _Family(_LLAMA_KEYS, _LLAMA_IMPLIED, tied=False)

_FAMILIES: dict[str, _Family] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _MISTRAL,
    "qwen3": _MISTRAL,
    "gpt2": _Family(
        {
            "layers": ("n_layer",),
            "hidden_size": ("n_embd",),
            "heads": ("n_head",),
            "ffn_hidden_size": ("n_inner",),
            "vocab_size": ("vocab_size",),
            "sequence_length": ("n_positions", "n_ctx"),
        },
        _GPT_IMPLIED,
        tied=True,
        four_times=True,
    ),
    "gpt_neox": _Family(_COMMON, {**_GPT_IMPLIED, "position": "rope"}, tied=False, biases={"attention_bias": True}),
    "opt": _Family({**_COMMON, "ffn_hidden_size": ("ffn_dim",)}, _GPT_IMPLIED, tied=True, biases={"enable_bias": True}),
    "bloom": _Family(
        {
            "layers": ("n_layer", "num_hidden_layers"),
            "hidden_size": ("hidden_size", "n_embed"),
            "heads": ("n_head", "num_attention_heads"),
            "vocab_size": ("vocab_size",),
            "sequence_length": ("seq_length",),
        },
        {**_GPT_IMPLIED, "position": "none"},  # ALiBi
        tied=True,
        four_times=True,
    ),
}


def model_from_config(config: Mapping[str, Any], *, sequence_length: int | None = None) -> dict[str, Any]:
    """The fields of ``Model`` that a parsed ``config.json`` describes.

    A config does not say how long training sequences are.  Without ``sequence_length`` the longest that the model takes
    is used (``max_position_embeddings`` and its like), which for models of long context is far more than most of their
    training: give it where it matters.

    Left out, as too small to matter: Qwen2's biases, the norms of Q and K in Qwen3, BLOOM's norm of the embedding.
    GPT-NeoX's parallel residual is taken as two blocks one after the other: the same arithmetic.

    Raises InputError for an unknown ``model_type``, for a missing or impossible field, and for what is not modelled:
    mixture-of-experts, sliding windows shorter than the sequence, embeddings of another width than the layers.
    """
    kind = config.get("model_type")
    family = _FAMILIES.get(kind) if isinstance(kind, str) else None
    if any(isinstance(config.get(key), int) and config[key] > 1 for key in _MIXTURES):
        raise InputError(f"model_type {kind!r} is a mixture-of-experts, which is not modelled yet; use a dense model")
    if family is None:
        stated = "has no model_type" if kind is None else f"has model_type {str(kind)[:40]!r}, which is not supported"
        raise InputError(
            f"the config {stated}; supported are {', '.join(_FAMILIES)}: for another model write its fields "
            "(layers, hidden_size, heads, ...) in the scenario"
        )
    document = {name: _size(config, name, keys) for name, keys in family.keys.items()}
    if sequence_length is not None:
        document["sequence_length"] = sequence_length
    _refuse_unmodelled(config, document, str(kind))
    defaulted = ("kv_heads", "head_dim", "ffn_hidden_size") if family.four_times else ("kv_heads", "head_dim")
    missing = [name for name, value in document.items() if value is None and name not in defaulted]
    if missing:
        named = ", ".join(f"{' or '.join(family.keys[name])} ({name})" for name in missing)
        raise InputError(f"the config of model_type {kind!r} lacks {named}; add what is missing to it")
    implied = {**family.implied, "tied_embeddings": _switch(config, "tie_word_embeddings", family.tied)}
    if family.biases:
        implied["bias"] = all(_switch(config, key, default) for key, default in family.biases.items())
    return {name: value for name, value in document.items() if value is not None} | implied


def read_config(path: str | Path) -> dict[str, Any]:
    """The JSON object in a ``config.json``; InputError for a file that is too large, not JSON, or says a key twice."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as problem:  # ValueError: a NUL character in the path
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        raise InputError(f"{str(path)!r} cannot be read: {reason}; give the path of a config.json") from None
    if len(raw) > _MAX_BYTES:
        raise InputError(f"{path}: is larger than {_MAX_BYTES:,} bytes, which no config.json is")
    try:
        config = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from None
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{path}: is not JSON ({problem}); a config.json of transformers is expected") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: holds no JSON object; a config.json of transformers is expected")
    return config


def model_from_config_file(path: str | Path, *, sequence_length: int | None = None) -> dict[str, Any]:
    """``model_from_config`` of a file; errors name the file, and the model is called after its folder."""
    path = Path(path)
    config = read_config(path)
    try:
        document = model_from_config(config, sequence_length=sequence_length)
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from None
    return {"name": path.stem if path.stem != "config" else path.absolute().parent.name, **document}


def _size(config: Mapping[str, Any], name: str, keys: tuple[str, ...]) -> int | None:
    """The first of ``keys`` that is there and not null; None if none is."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{key} {str(value)[:40]!r} is not a positive whole number; it is the model's {name}")
        return value
    return None


def _switch(config: Mapping[str, Any], key: str, default: bool) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{key} {str(value)[:40]!r} is neither true nor false")
    return value


def _refuse_unmodelled(config: Mapping[str, Any], document: Mapping[str, int | None], kind: str) -> None:
    window = config.get("sliding_window")
    sequence = document.get("sequence_length")
    windowed = kind == "mistral" or (kind in ("qwen2", "qwen3") and config.get("use_sliding_window") is True)
    if windowed and isinstance(window, int) and sequence is not None and window < sequence:
        raise InputError(
            f"sliding_window {window} is shorter than the sequence of {sequence}, and attention in a window is not "
            f"modelled; give a sequence_length of at most {window}"
        )
    projection, hidden = config.get("word_embed_proj_dim"), document.get("hidden_size")
    if kind == "opt" and projection is not None and projection != hidden:
        raise InputError(
            f"word_embed_proj_dim {projection} differs from hidden_size {hidden}, which is not modelled; "
            "use a model whose embeddings are as wide as its layers"
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise InputError(f"the key {key[:40]!r} appears twice; keep one")
        result[key] = value
    return result


def _refuse_constant(text: str) -> Any:
    raise InputError(f"{text} is not a JSON number; write a finite one")
