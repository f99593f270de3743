"""Checks of a model's description: whole numbers, defaults that follow from other fields, and patterns of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, WithJsonSchema

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean

_LARGEST = 10**9  # far beyond any model; products of four such counts still fit a float


def check_count(value: object) -> int:
    """Check that a value from a file is a whole number from 1 to 10^9, and return the number."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
        shown = f"{value!r}"
        shown = shown if len(shown) <= 40 else shown[:37] + "..."
        raise InputError(f"{shown} is not a whole number from 1 to {_LARGEST}; write it plainly, as in 96")
    return value


Count = Annotated[int, BeforeValidator(check_count), WithJsonSchema({"type": "integer", "minimum": 1})]


def check_natural(value: object) -> int:
    """Check that a value from a file is a whole number from 0 to 10^9, and return the number."""
    return 0 if value == 0 and isinstance(value, int) and not isinstance(value, bool) else check_count(value)


Natural = Annotated[int, BeforeValidator(check_natural), WithJsonSchema({"type": "integer", "minimum": 0})]


def add_derived_fields(fields: object) -> object:
    """Add defaults that follow from other fields of a model's description, unless those fields are invalid."""
    if not isinstance(fields, Mapping):
        return fields
    fields = expand_pattern(fields)
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
        return check_count(value)
    except InputError:
        return None


# --- patterns of layers ---------------------------------------------------------------------------------------------


TYPE_FIELDS = (
    "mixer", "blocks", "heads", "kv_heads", "head_dim", "ffn_hidden_size", "position", "qk_norm", "attention_window",
    "attention_chunk", "attention_gate", "attention_sinks", "mla", "values_from_keys", "hash_routing",
)  # fmt: skip
"""Fields of ``model`` that a layer type may set."""

LETTERS: Mapping[str, tuple[str, ...]] = {"*": ("attention",), "-": ("mlp",), "E": ("mixture",), "M": ("mamba2",)}
"""Layer kinds of the letters of Megatron-LM's ``--hybrid-override-pattern``: each letter is a layer with one kind."""

_MAX_PATTERN_LAYERS = 100_000
_SEPARATORS = {"|": "divides pipeline stages in Megatron-LM; use pipeline.layers_per_stage",
               "/": "begins multi-token prediction, which may be written in layers alone"}  # fmt: skip


class FrozenMapping(dict[str, Any]):
    """A dict that is hashable and must not be changed."""

    def __hash__(self) -> int:  # type: ignore[override]
        """Return a hash of the items, which is the same in any order."""
        return hash(frozenset(self.items()))


def freeze(value: Any) -> Any:
    """Return a value with its mappings and lists made hashable."""
    if isinstance(value, Mapping):
        return FrozenMapping({key: freeze(each) for key, each in value.items()})
    return tuple(map(freeze, value)) if isinstance(value, list | tuple) else value


def split_pattern(value: object) -> object:
    """Return the letters of a pattern that is written as text; spaces are ignored."""
    if not isinstance(value, str):
        return value
    letters = tuple(value.replace(" ", ""))
    for letter in letters:
        if letter in _SEPARATORS:
            raise InputError(f"{letter!r} {_SEPARATORS[letter]}")
    return letters


def expand_pattern(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a model's fields with ``layers`` as a number if it was written as a pattern."""
    fields = _split_prediction(fields)
    layers = fields.get("layers")
    if not isinstance(layers, str | list | tuple) or (isinstance(layers, str) and layers.isdigit()):
        return fields
    if fields.get("pattern") is not None:
        raise InputError("layers is a pattern, and pattern is set, too; remove one of them")
    pattern = split_pattern(layers)
    assert isinstance(pattern, Sequence)
    return {**fields, "layers": len(pattern) or layers, "pattern": pattern}


def _split_prediction(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a model's fields with what follows ``/`` in ``layers`` as ``mtp_layers`` and ``mtp_pattern``."""
    layers = fields.get("layers")
    if not isinstance(layers, str) or "/" not in layers:
        return fields
    main, first, *others = layers.replace(" ", "").split("/")
    if other := next((each for each in others if each != first), None):
        what = f"layers of multi-token prediction must be equal, but after / layers has {first} and {other}"
        raise InputError(f"{what}; repeat {first}")
    if given := [name for name in ("mtp_layers", "mtp_pattern") if fields.get(name) is not None]:
        raise InputError(f"layers has multi-token prediction after /, and {given[0]} is set, too; remove one of them")
    return {**fields, "layers": main, "mtp_layers": 1 + len(others), "mtp_pattern": first}


def check_mtp_pattern(pattern: str, layer_types: Mapping[str, Any]) -> None:
    """Raise InputError unless a pattern of multi-token prediction has one or two different letters."""
    if not 1 <= len(pattern) <= 2 or len({*pattern}) < len(pattern) or {*pattern} - LETTERS.keys():
        what = f"a layer of multi-token prediction has one or two different letters of {', '.join(LETTERS)}"
        raise InputError(f"{what}; got {pattern[:40]!r} (mtp_pattern): write *E, for example")
    if changed := [letter for letter in pattern if letter in layer_types]:
        what = f"layers of multi-token prediction do not have the fields of layer_types.{changed[0]}"
        raise InputError(f"mtp_pattern: {what}; use another word for that type")


Pattern = Annotated[
    tuple[str, ...] | None,
    BeforeValidator(split_pattern),
    PlainSerializer(lambda words: "".join(words) if words and max(map(len, words)) == 1 else words),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}),
]
_TYPE_SCHEMA = {"type": "object", "propertyNames": {"enum": list(TYPE_FIELDS)}}
LayerTypes = Annotated[
    Mapping[str, Mapping[str, Any]] | None,
    AfterValidator(freeze),
    WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": _TYPE_SCHEMA}, {"type": "null"}]}),
]


def type_fields(word: str, layer_types: Mapping[str, Mapping[str, Any]] | None) -> Mapping[str, Any]:
    """Return the fields of ``model`` that a word of the pattern sets."""
    if layer_types is not None and word in layer_types:
        return layer_types[word]
    return {"blocks": LETTERS[word]} if word else {}


def check_pattern(
    pattern: Sequence[str] | None, layer_types: Mapping[str, Mapping[str, Any]] | None, layers: int,
    predicted: str | None = None, mtp_layers: int | None = None,
) -> None:  # fmt: skip
    """Raise InputError for a pattern with unknown words, types that it does not use, or an invalid mtp_pattern."""
    types = layer_types or {}
    if predicted is not None:
        check_mtp_pattern(predicted, types)
        if mtp_layers is None:
            raise InputError("mtp_pattern needs layers of multi-token prediction; also set mtp_layers")
    if pattern is None:
        if types:
            raise InputError("layer_types needs a pattern that says which layer has which type; set pattern")
        return
    if not pattern:
        raise InputError("pattern is empty; write a letter for each layer, as in M-M*-")
    known = {**types, **LETTERS}
    for word in pattern:
        if word not in known:
            raise InputError(f"pattern: {word!r} is not in layer_types; add it, or use one of {', '.join(known)}")
    if layers > _MAX_PATTERN_LAYERS:
        raise InputError(f"a pattern is supported for at most {_MAX_PATTERN_LAYERS:,} layers, not {layers:,}")
    unused = [word for word in types if word not in pattern]
    if unused:
        raise InputError(f"layer_types: no layer of the pattern is {unused[0]!r}; remove it")
    for word, fields in types.items():
        other = [name for name in fields if name not in TYPE_FIELDS]
        if other:
            raise InputError(
                f"layer_types.{word}: {other[0]} is not a field of a type{did_you_mean(other[0], TYPE_FIELDS)}; "
                f"a type may set {', '.join(TYPE_FIELDS)}"
            )
        if not isinstance(fields.get("blocks", ()), tuple | None) or not isinstance(
            fields.get("mixer", ""), str | None
        ):
            what = "blocks must be a list of layer kinds, as in [attention, mlp], and mixer the name of one"
            raise InputError(f"layer_types.{word}: {what}; change them")
        if fields.get("mla") is not None:
            raise InputError(f"layer_types.{word}.mla may only be null, for attention without latent vectors")
