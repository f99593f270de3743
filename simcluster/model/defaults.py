"""Checks of whole numbers in a model's description, and defaults that follow from other fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from simcluster.base.errors import InputError

_LARGEST = 10**9  # far beyond any model; products of four such counts still fit a float


def _check_count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
        shown = f"{value!r}"
        shown = shown if len(shown) <= 40 else shown[:37] + "..."
        raise InputError(f"{shown} is not a whole number from 1 to {_LARGEST}; write it plainly, as in 96")
    return value


Count = Annotated[int, BeforeValidator(_check_count), WithJsonSchema({"type": "integer", "minimum": 1})]


def validate_natural(value: object) -> int:
    """Check that a value from a file is a whole number of at least 0, and return the number."""
    return 0 if value == 0 and isinstance(value, int) and not isinstance(value, bool) else _check_count(value)


def add_derived_fields(fields: object) -> object:
    """Add defaults that follow from other fields of a model's description, unless those fields are invalid."""
    if not isinstance(fields, Mapping):
        return fields
    gated = fields.get("gated_mlp") is True
    moe = fields.get("moe")
    width = _count_or_none(moe.get("expert_ffn_hidden_size")) if isinstance(moe, Mapping) else None
    if gated and "ffn_hidden_size" not in fields and not width:
        raise InputError(
            "ffn_hidden_size is missing; a gated MLP has no default width; set it "
            "(Llama 3 8B: 14336 at hidden_size 4096)"
        )
    derived: dict[str, object] = {
        "norm": "rmsnorm" if gated else "layernorm",
        "position": "rope" if gated else "learned",
        "bias": not gated,
        "tied_embeddings": not gated,
    }
    hidden, heads = _count_or_none(fields.get("hidden_size")), _count_or_none(fields.get("heads"))
    if hidden:
        derived["ffn_hidden_size"] = width if gated and width else 4 * hidden
    if heads:
        derived["kv_heads"] = heads
    mla = fields.get("mla")
    if isinstance(mla, Mapping):
        derived["head_dim"] = sum(_count_or_none(mla.get(f"qk_{part}_head_dim")) or 0 for part in ("nope", "rope")) or 1
    elif hidden and heads:
        if "head_dim" not in fields and hidden % heads:
            below, above = hidden - hidden % heads, hidden - hidden % heads + heads
            fitting = f"{below} or {above}" if below else f"{above}"
            raise InputError(
                f"hidden_size {hidden} is not a multiple of heads {heads}; use {fitting}, or give head_dim"
            )
        derived["head_dim"] = hidden // heads
    return {**derived, **fields}


def _count_or_none(value: object) -> int | None:
    try:
        return _check_count(value)
    except InputError:
        return None


def join_numbers(numbers: Iterable[int]) -> str:
    """Return the numbers as comma-separated text."""
    return ", ".join(str(number) for number in numbers)
