"""What every ``model_type`` of transformers means: ``hf_families.yaml`` beside this file, and here what is no table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from simcluster.base.errors import InputError
from simcluster.documents.reading import read_document
from simcluster.importers.hf_config import (
    Config,
    behind_dense,
    ernie,
    glm4,
    gpt_oss,
    latent,
    llama4,
    minimax,
    mixtral,
    predicted,
    qwen_moe,
    unweighted_norms,
)

Fields = dict[str, Any]
"""Fields of ``Model``; None for what the config leaves out."""


@dataclass(frozen=True, slots=True)
class Family:
    """What one ``model_type`` means, in the words of ``hf_families.yaml``.

    ``further`` change the fields, in turn, by what else the config says; ``assumed`` says what is left out.
    """

    keys: Mapping[str, str]
    implied: Mapping[str, Any]
    fallback: Mapping[str, int]
    four_times: bool
    bias: tuple[str, bool, str | bool] | None
    window: Mapping[str, Any] | None
    refused: Mapping[str, tuple[bool, str]]
    further: tuple[Callable[[Config, Fields], None], ...]
    assumed: Callable[[Config], tuple[str, ...]] | None


def _llama(config: Config, fields: Fields) -> None:
    attention, mlp = config.switch("attention_bias", False), config.switch("mlp_bias", False)
    if mlp and not attention:
        raise InputError(
            "mlp_bias is true and attention_bias false: biases of the MLP alone are not modelled; set both to one value"
        )
    fields["bias"] = True if mlp else "attention" if attention else False


def _qwen_window(config: Config, fields: Fields) -> None:
    """Set the window of the layers from max_window_layers on; only all or none of them is modelled."""
    window, layers, sequence = config.size("sliding_window"), fields["layers"], fields["sequence_length"]
    if not config.switch("use_sliding_window", False) or not window or not sequence or window >= sequence:
        return
    first = config.natural("max_window_layers", 28)
    if 0 < first < (layers or 0):
        raise InputError(
            f"sliding_window {window} is shorter than the sequence of {sequence} in the layers from {first} on, and a "
            f"window in some layers that follow each other is not modelled; give a sequence_length of at most {window}"
        )
    if first == 0:
        fields["attention_window"] = window


def add_window(
    config: Config, fields: Fields, size: int | None = None, every: int | None = None, keys: str = ""
) -> None:
    """Set ``attention_window`` and ``full_attention_every``, where it is shorter than the sequence; ``size`` and
    ``every`` are what transformers assumes, ``keys`` where a config writes the latter."""
    if every is not None:
        every = period_of(config.layer_types(fields["layers"]), config.size(keys) or every)
    window = config.size("sliding_window") or size
    if window is None or (fields["sequence_length"] is not None and window >= fields["sequence_length"]):
        return
    fields["attention_window"] = window
    if every is not None:
        fields["full_attention_every"] = every


def period_of(types: list[str] | None, default: int) -> int | None:
    """Every which layer attends to all (None: none does); InputError where they do not repeat like that."""
    if types is None:
        return default
    full = [number for number, kind in enumerate(types, 1) if kind == "full_attention"]
    every = full[0] if full else None
    if full != (list(range(every, len(types) + 1, every)) if every else []):
        raise InputError("layer_types: full_attention in every n-th layer is modelled, and these come otherwise")
    return every


def _gpt2(config: Config, fields: Fields) -> None:
    fields["position_rows"] = config.size("n_positions n_ctx")


def _gpt_neox(config: Config, fields: Fields) -> None:
    fields["parallel_residual"] = config.switch("use_parallel_residual", True) or None


def _opt(config: Config, fields: Fields) -> None:
    projection, hidden = config.size("word_embed_proj_dim"), fields["hidden_size"]
    if projection is not None and projection != hidden:
        raise InputError(
            f"word_embed_proj_dim {projection} differs from hidden_size {hidden}, which is not modelled; "
            "use a model whose embeddings are as wide as its layers"
        )
    positions = config.size("max_position_embeddings")
    fields["position_rows"] = None if positions is None else positions + 2  # OPTLearnedPositionalEmbedding.offset


def _falcon(config: Config, fields: Fields) -> None:
    new = config.switch("new_decoder_architecture", False)
    if new:
        norms = config.natural("num_ln_in_parallel_attn", 2) or 2
        fields["kv_heads"] = config.size("num_kv_heads") or fields["heads"]
    else:
        norms = 1 if config.switch("parallel_attn", True) else 2
        fields["kv_heads"] = 1 if config.switch("multi_query", True) else fields["heads"]
    if norms not in (1, 2):
        raise InputError(f"num_ln_in_parallel_attn {norms} is not modelled; 1 or 2 is")
    if norms == 1:
        fields["layer_norms"] = 1
    fields["parallel_residual"] = new or config.switch("parallel_attn", True) or None
    fields["position"] = "none" if config.switch("alibi", False) else "rope"


def _mpt(config: Config, fields: Fields) -> None:
    """Set the width of the MLP, and one key and value for all heads where the kind of attention says so."""
    fields["ffn_hidden_size"] = (config.size("expansion_ratio") or 4) * int(fields["hidden_size"])
    if config.value("attn_type") == "multiquery_attention":
        fields["kv_heads"] = 1


def _fla(config: Config, fields: Fields) -> None:
    """Width, window and norms of flash-linear-attention's transformer: of its GatedMLP, in steps of 256."""
    ratio = config.size("hidden_ratio") or 4
    fields["ffn_hidden_size"] = fields["ffn_hidden_size"] or 256 * -(-int(fields["hidden_size"] * ratio * 2 / 3) // 256)
    fields["qk_norm"] = "head" if config.switch("qk_norm", False) else None
    if window := config.size("window_size"):
        add_window(config, fields, window)


_FURTHER = {
    made.__name__.removeprefix("_"): made
    for made in (
        _llama, _qwen_window, _gpt2, _gpt_neox, _opt, _falcon, _mpt, _fla, mixtral, qwen_moe, latent, glm4,
        behind_dense, ernie, minimax, llama4, gpt_oss,
    )
}  # fmt: skip
_ASSUMED = {made.__name__: made for made in (predicted, unweighted_norms)}
_INHERITED = ("keys", "implied", "fallback", "refused")
_ALONE: dict[str, Any] = {"four_times": False, "bias": None, "window": None, "further": {}, "assumed": ""}


def _families() -> dict[str, Family]:
    """Return the entries of ``hf_families.yaml``, each with what its base has."""
    found: dict[str, dict[str, Any]] = {}
    for kind, entry in read_document(Path(__file__).with_suffix(".yaml")).data.items():
        base = found.get(entry.get("base"), {})
        found[kind] = {name: {**base.get(name, {}), **entry.get(name, {})} for name in _INHERITED}
        found[kind] |= {name: entry.get(name, value) for name, value in _ALONE.items()}
    for entry in found.values():
        entry["further"] = tuple(partial(_FURTHER[name], **given) for name, given in entry["further"].items())
        entry["assumed"] = _ASSUMED.get(entry["assumed"])
    return {kind: Family(**entry) for kind, entry in found.items() if not kind.startswith("_")}


FAMILIES = _families()
