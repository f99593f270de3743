"""Error messages for invalid documents, made from pydantic's errors: key, value, rule and fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean as did_you_mean
from simcluster.base.texts import find_similar_words, short_repr
from simcluster.documents.field_annotations import models_in_annotation
from simcluster.documents.suggestions import expand_number_range, missing_space_hint, unquote_number

KeyPath = tuple[str | int, ...]
KeyProblem = tuple[KeyPath, str]
APPEND = "+"
"""Suffix of an override's path whose value is added to the existing list."""
Made = TypeVar("Made", bound=BaseModel)


class RuleError(InputError):
    """InputError for violations of rules that link several values of a document; reports a key path for each."""

    def __init__(self, complaints: Iterable[KeyProblem]) -> None:
        self.complaints = tuple(complaints)
        super().__init__("\n".join(f"{format_path(path)}: {what}" if path else what for path, what in self.complaints))


def format_path(path: KeyPath) -> str:
    """Return a key path as overrides write it, such as "faults.0.factor"."""
    return ".".join(str(part) for part in path)


def join_or(words: Iterable[object]) -> str:
    """Join words with commas and "or" for a sentence: "a, b or c"."""
    texts = [str(word) for word in words]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}" if texts else "none"


def quote_value(value: object) -> str:
    """Format a value for an error message: shortened, and with booleans and null as YAML writes them."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, Mapping | list | tuple):
        size = f"{len(value)} {'key' if isinstance(value, Mapping) else 'item'}{'s' * (len(value) != 1)}"
        return f"a {'mapping' if isinstance(value, Mapping) else 'list'} of {size}"
    try:
        return short_repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a huge number"


def format_value_inline(value: object) -> str:
    """Format a value as one line of YAML: "true", "[tp, cp]"."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def type_name(value: object) -> str:
    """Return the name of a value's Python type; "None" for None."""
    return "None" if value is None else type(value).__name__


def reject_argument(value: object, caller: str, expected: str) -> NoReturn:
    """Raise InputError for a wrong argument, such as "stragglers takes a result, got int: 3"."""
    plain = isinstance(value, str | int | float | list | tuple | Mapping)
    told = f"{type_name(value)}: {quote_value(value)}" if plain else getattr(value, "__name__", type_name(value))
    raise InputError(f"{caller} takes {expected}, got {told}; pass one of those")


def list_validation_problems(error: ValidationError, target: Any, data: Any) -> list[KeyProblem]:
    """Convert pydantic's error about ``data`` to (key path, message) pairs; ``target`` is the model or annotation."""
    found: list[KeyProblem] = []
    problems = [(problem, pydantic_error_path(problem["loc"], data)) for problem in error.errors(include_url=False)]
    for problem, path in problems:
        if _repeats_deeper_problem(problem, path, [other for _, other in problems]):
            continue
        loc, kind, context = problem["loc"], problem["type"], problem.get("ctx", {})
        if isinstance(context.get("error"), RuleError):
            found.extend(((*path, *inner), what) for inner, what in context["error"].complaints)
        elif isinstance(context.get("error"), Exception):
            found.append((path, str(context["error"])))
        elif kind == "extra_forbidden":
            found.append((path, _describe_unknown_key(path, _field_names_at_location(target, loc[:-1]), target)))
        elif kind == "missing":
            if any(_is_misspelling_of(other, path, loc[-1]) for other in problems):
                continue
            found.append(((*path, loc[-1]), f"is required and missing; {_suggest_missing_key(target, loc)}"))
        else:
            example = ""
            if kind in (*_NO_MODEL, *_NO_LIST) and (like := _mapping_example(target, loc)):
                must = f"a list, as in [{like}]" if kind in _NO_LIST else f"a mapping, as in {like}"
                given = problem["input"]
                joined = missing_space_hint(given) if isinstance(given, str) and kind not in _NO_LIST else ""
                found.append((path, f"must be {must}, got {quote_value(given)}{joined}"))
                continue
            if kind == "union_tag_not_found":
                example = _list_kind_names(target, loc, context["discriminator"].strip("'"))
            if kind == "union_tag_invalid":  # report the key that selects the model
                example, path = _kind_example(target, loc, context), (*path, context["discriminator"].strip("'"))
            found.append((path, _describe_problem(kind, problem["msg"], problem["input"], context) + example))
    merged: dict[KeyPath, list[str]] = {}  # each member of a union reports an error for the same key
    for path, what in found:
        merged.setdefault(path, []).append(what)
    return [(path, "; or ".join(dict.fromkeys(whats))) for path, whats in merged.items()]


def validate_mapping(model: type[Made], data: Mapping[str, Any], prefix: str, suffix: str = "") -> Made:
    """Validate ``data`` as a pydantic model; error messages begin with ``prefix`` and end with ``suffix``."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as problem:
        path, wrong = list_validation_problems(problem, model, data)[0]
        raise InputError(f"{prefix}{format_path(path)}: {wrong}{suffix}") from None


def _is_misspelling_of(other: tuple[Any, KeyPath], path: KeyPath, key: object) -> bool:
    """Return whether ``other``, another pydantic error, reports an unknown key that resembles ``key``."""
    problem, beside = other
    return (
        problem["type"] == "extra_forbidden"
        and beside[:-1] == path
        and bool(find_similar_words(beside[-1], [str(key)], 0.65))
    )


def _repeats_deeper_problem(problem: Mapping[str, Any], path: KeyPath, others: Iterable[KeyPath]) -> bool:
    """Return whether a pydantic error only repeats an error about a key nested deeper.

    pydantic does not count wrong items, so that a list has too few; and the members of a union that accept no such
    value complain in addition to the one that has looked into it.
    """
    kind, value = problem["type"], problem["input"]
    if kind == "too_short" and isinstance(value, Sized):
        return len(value) >= int(problem["ctx"]["min_length"])
    deeper = isinstance(value, Mapping | list | tuple) and kind.endswith("_type")
    return deeper and any(len(other) > len(path) and other[: len(path)] == path for other in others)


def pydantic_error_path(loc: tuple[str | int, ...], data: Any) -> KeyPath:
    """Convert a pydantic error's location to a key path in the document, without pydantic's union member names.

    A tag may also be the name of a key (kind: sites has a key sites): then the longer path counts.
    """
    for place, part in enumerate(loc):
        in_list = isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
        if in_list or (isinstance(data, Mapping) and part in data):
            as_key = (part, *pydantic_error_path(loc[place + 1 :], data[part]))
            is_tag = isinstance(data, Mapping) and part in (data.get("kind"), data.get("format"))
            as_tag = pydantic_error_path(loc[place + 1 :], data) if is_tag else ()
            return as_tag if len(as_tag) >= len(as_key) else as_key
    return ()


def _kind_example(target: Any, loc: tuple[str | int, ...], context: Mapping[str, Any]) -> str:
    tags = [tag.strip("'") for tag in context["expected_tags"].split(", ")]
    for near in find_similar_words(context["tag"], tags, 0.5):
        for model in _models_at_location(target, loc):
            if _accepts_tag(model, near) and hasattr(model, "EXAMPLE"):
                written = ", ".join(f"{key}: {_format_nested_mapping(value)}" for key, value in model.EXAMPLE.items())
                return f"; {near} is written as {{{written}}}"
    return ""


def _list_kind_names(target: Any, loc: tuple[str | int, ...], name: str) -> str:
    words = [word for each in _models_at_location(target, loc) for word in get_args(each.model_fields[name].annotation)]
    return f"; the {name}s are {', '.join(words)}" if words else ""


def _format_nested_mapping(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_format_nested_mapping(each)}" for key, each in value.items()) + "}"
    return str(value)


def _describe_unknown_key(path: KeyPath, known: list[str], target: Any) -> str:
    key = path[-1]
    if str(key) in known:  # a key of another union member
        return f"{key!r} is incompatible with the other keys here; remove it, or remove the keys that exclude it"
    if joined := missing_space_hint(str(key)):
        return f"unknown key {key!r}{joined}"
    near = did_you_mean(key, known, cutoff=0.8)
    told = getattr(target, "elsewhere", None)
    sections = tuple(f"; it belongs to {word}," for word in known if str(key).startswith((f"{word}_", f"{word}.")))
    other = told(str(key)) if told and (not near or sections) else ""
    if f"as {path[0]}.{key}" in other:  # the key is already there
        other = ""
    if sections and other.startswith(sections):  # parallel_tp
        near = ""
    keys = f"; known keys: {', '.join(known)}" if known else ""
    return f"unknown key {key!r}{near or other or did_you_mean(key, known, cutoff=0.65)}{keys}"


def _describe_problem(kind: str, message: str, value: Any, context: Mapping[str, Any]) -> str:
    if kind == "union_tag_invalid":
        expected = [tag.strip("'") for tag in context["expected_tags"].split(", ")]
        name, tag = context["discriminator"].strip("'"), context["tag"]
        return f"unknown {name} {tag!r}{did_you_mean(tag, expected)}; known: {', '.join(expected)}"
    if kind == "union_tag_not_found":
        name = context["discriminator"].strip("'")
        like = "..."
        if isinstance(value, Mapping) and len(value) == 1 and isinstance(next(iter(value.values())), Mapping):
            like = f"{next(iter(value))}, ..."  # - slow_gpu: {rank: 3}
        return f"needs a {name}, as in {{{name}: {like}}}, got {quote_value(value)}"
    if kind == "literal_error":
        words = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        return f"must be {join_or(words)}, got {quote_value(value)}{did_you_mean(value, words)}"
    if kind in (*_NO_MODEL, "dict_type"):
        return f"must be a mapping of keys to values, as in {{KEY: VALUE}}, got {quote_value(value)}"
    if kind in _NO_LIST:
        numbers = expand_number_range(value, 20) if isinstance(value, str) else "1,2" * isinstance(value, int | float)
        return f"must be a list, as in [{numbers.replace(',', ', ') or 'A, B'}], got {quote_value(value)}"
    if kind in ("too_long", "too_short") and isinstance(value, Sized):
        many, least = len(value), kind == "too_short"
        of = context["min_length" if least else "max_length"]
        rule = f"at {'least' if least else 'most'} {of} item{'s' * (of != 1)}"
        return f"must have {rule}, got {quote_value(value)}; {'add' if least else 'remove'} {abs(many - of)}"
    rule = message.partition(", ")[0]  # the rest is pydantic's wording
    what = rule.replace("Input should be", "must be").replace("a valid ", "a ").replace("a integer", "an integer")
    what = what.replace("a boolean", "true or false").replace("a string", "a text")
    return f"{what}, got {quote_value(value)}{_suggest_fix(kind, context, value)}"


def _suggest_fix(kind: str, context: Mapping[str, Any], value: object) -> str:
    if kind.startswith(("int", "float")) and isinstance(value, str):
        if meant := unquote_number(value, kind):
            return f"; write {meant}"
        if meant := expand_number_range(value):
            return f"; write one number, or a list where several are allowed: {meant}"
    limits = {"greater_than_equal": ("ge", "or more"), "less_than_equal": ("le", "or less")}
    if kind in limits:
        key, words = limits[kind]
        return f"; write {context[key]} {words}"
    if kind == "greater_than":
        return f"; write more than {context['gt']}"
    if kind == "less_than":
        return f"; write less than {context['lt']}"
    known = {"int": "a whole number, as in 8", "float": "a number, as in 1.5", "bool": "true or false, without quotes",
             "string": "a text, in quotes where it could be a number", "finite": "a finite number"}  # fmt: skip
    return next((f"; write {words}" for name, words in known.items() if kind.startswith(name)), "")


_NO_MODEL, _NO_LIST = ("model_type", "model_attributes_type"), ("list_type", "tuple_type")


def _required_keys(models: Iterable[type[BaseModel]]) -> list[str]:
    return list(
        dict.fromkeys(name for model in models for name, field in model.model_fields.items() if field.is_required())
    )


def _mapping_example(target: Any, loc: tuple[str | int, ...]) -> str:
    keys = _required_keys(_models_at_location(target, loc)) or _field_names_at_location(target, loc)
    return f"{{{keys[0]}: ...}}" if keys else ""


def _suggest_missing_key(target: Any, loc: tuple[str | int, ...]) -> str:
    name, models = str(loc[-1]), _models_at_location(target, loc[:-1])
    fields = [model.model_fields[name] for model in models if name in model.model_fields]
    if not fields:
        return "write it"
    inner = _required_keys(models_in_annotation(fields[0].annotation, fields[0].metadata))
    told = (getattr(each, "json_schema", {}) or {} for each in fields[0].metadata)
    if units := next((each["examples"] for each in told if "examples" in each), None):
        return f"write {loc[-1]}: {units[0]}"
    words = {"int": "8", "float": "1.5", "str": "NAME", "bool": "true"}
    value = f"{{{inner[0]}: ...}}" if inner else words.get(getattr(fields[0].annotation, "__name__", ""), "...")
    if get_origin(fields[0].annotation) in (tuple, list):
        value = f"[{value}]"
    return f"write {loc[-1]}: {value}"


# --- the model that a location is about, to list the keys that it knows ---------------------------------------------


def _field_names_at_location(target: Any, loc: tuple[str | int, ...]) -> list[str]:
    return list(dict.fromkeys(name for model in _models_at_location(target, loc) for name in model.model_fields))


def _models_at_location(target: Any, loc: tuple[str | int, ...]) -> list[type[BaseModel]]:
    candidates = models_in_annotation(target)
    for part in loc:
        fields = [model.model_fields[str(part)] for model in candidates if str(part) in model.model_fields]
        tagged = [model for model in candidates if _accepts_tag(model, part)]
        if fields:
            candidates = [model for field in fields for model in models_in_annotation(field.annotation, field.metadata)]
        elif tagged:
            candidates = tagged
    return candidates


def _accepts_tag(model: type[BaseModel], tag: object) -> bool:
    return any(
        get_origin(field.annotation) is Literal and tag in get_args(field.annotation)
        for field in model.model_fields.values()
    )
