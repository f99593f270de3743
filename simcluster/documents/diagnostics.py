"""Error messages about wrong documents: the key, the value, the rule, and a fix, made from pydantic's errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from simcluster.base.errors import InputError
from simcluster.base.texts import did_you_mean as did_you_mean
from simcluster.base.texts import nearest_words
from simcluster.documents.kinds import models_in
from simcluster.documents.suggestions import colon_hint, expand_range, find_number

KeyPath = tuple[str | int, ...]
Complaint = tuple[KeyPath, str]
Made = TypeVar("Made", bound=BaseModel)


class RuleError(InputError):
    """InputError for violated rules between values of a document, each with the key that it is about."""

    def __init__(self, complaints: Iterable[Complaint]) -> None:
        self.complaints = tuple(complaints)
        super().__init__("\n".join(f"{format_path(path)}: {what}" if path else what for path, what in self.complaints))


def format_path(path: KeyPath) -> str:
    """Return a key path as overrides write it, such as "faults.0.factor"."""
    return ".".join(str(part) for part in path)


def listed(words: Iterable[object]) -> str:
    """Join words for a sentence: "a, b or c"."""
    texts = [str(word) for word in words]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}" if texts else "none"


def shown(value: object) -> str:
    """Return a value as messages quote it: shortened, with booleans and null as in YAML."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, Mapping | list | tuple):
        size = f"{len(value)} {'key' if isinstance(value, Mapping) else 'item'}{'s' * (len(value) != 1)}"
        return f"a {'mapping' if isinstance(value, Mapping) else 'list'} of {size}"
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."


def format_as_flow(value: Any) -> str:
    """Return a value as one line of text; a list as in YAML, "[tp, cp]"."""
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def type_name(value: object) -> str:
    """Return the name of a value's Python type; "None" for None."""
    return "None" if value is None else type(value).__name__


def reject_argument(given: object, caller: str, takes: str) -> NoReturn:
    """Raise InputError for a wrong argument, as in "stragglers takes a result, got int: 3"."""
    plain = isinstance(given, str | int | float | list | tuple | Mapping)
    told = f"{type_name(given)}: {shown(given)}" if plain else getattr(given, "__name__", type_name(given))
    raise InputError(f"{caller} takes {takes}, got {told}; pass one of those")


def list_complaints(error: ValidationError, target: Any, data: Any) -> list[Complaint]:
    """Convert a pydantic error about ``data`` to (key path, message) pairs; ``target`` is the model or annotation."""
    found: list[Complaint] = []
    problems = [(problem, path_in_document(problem["loc"], data)) for problem in error.errors(include_url=False)]
    for problem, path in problems:
        if _repeats_deeper_problem(problem, path, [other for _, other in problems]):
            continue
        loc, kind, context = problem["loc"], problem["type"], problem.get("ctx", {})
        if isinstance(context.get("error"), RuleError):
            found.extend(((*path, *inner), what) for inner, what in context["error"].complaints)
        elif isinstance(context.get("error"), Exception):
            found.append((path, str(context["error"])))
        elif kind == "extra_forbidden":
            found.append((path, _describe_unknown_key(path, _field_names_at(target, loc[:-1]), target)))
        elif kind == "missing":
            if any(_is_misspelling_of(other, path, loc[-1]) for other in problems):
                continue
            found.append(((*path, loc[-1]), f"is required and missing; {_suggest_key(target, loc)}"))
        else:
            example = ""
            if kind in (*_NO_MODEL, *_NO_LIST) and (like := _mapping_example(target, loc)):
                must = f"a list, as in [{like}]" if kind in _NO_LIST else f"a mapping, as in {like}"
                given = problem["input"]
                joined = colon_hint(given) if isinstance(given, str) and kind not in _NO_LIST else ""
                found.append((path, f"must be {must}, got {shown(given)}{joined}"))
                continue
            if kind == "union_tag_not_found":
                example = _list_kinds(target, loc, context["discriminator"].strip("'"))
            if kind == "union_tag_invalid":  # the key that says which kind it is
                example, path = _kind_example(target, loc, context), (*path, context["discriminator"].strip("'"))
            found.append((path, _describe_problem(kind, problem["msg"], problem["input"], context) + example))
    merged: dict[KeyPath, list[str]] = {}  # the members of a plain union complain one by one about the same key
    for path, what in found:
        merged.setdefault(path, []).append(what)
    return [(path, "; or ".join(dict.fromkeys(whats))) for path, whats in merged.items()]


def validate_data(model: type[Made], data: Mapping[str, Any], before: str, after: str = "") -> Made:
    """Validate ``data`` as a model; raise InputError with the first wrong key, after the text ``before``."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as problem:
        path, wrong = list_complaints(problem, model, data)[0]
        raise InputError(f"{before}{format_path(path)}: {wrong}{after}") from None


def _is_misspelling_of(other: tuple[Any, KeyPath], path: KeyPath, key: object) -> bool:
    """Return whether another error is about an unknown key that is probably a misspelling of ``key``."""
    problem, beside = other
    return (
        problem["type"] == "extra_forbidden"
        and beside[:-1] == path
        and bool(nearest_words(beside[-1], [str(key)], 0.65))
    )


def _repeats_deeper_problem(problem: Mapping[str, Any], path: KeyPath, others: Iterable[KeyPath]) -> bool:
    """Return whether a pydantic error only repeats another one deeper in the document.

    pydantic does not count wrong items, so that a list has too few; and the members of a union that accept no such
    value complain in addition to the one that has looked into it.
    """
    kind, value = problem["type"], problem["input"]
    if kind == "too_short" and isinstance(value, Sized):
        return len(value) >= int(problem["ctx"]["min_length"])
    deeper = isinstance(value, Mapping | list | tuple) and kind.endswith("_type")
    return deeper and any(len(other) > len(path) and other[: len(path)] == path for other in others)


def path_in_document(loc: tuple[str | int, ...], data: Any) -> KeyPath:
    """Return the key path in the document for a pydantic error location, without union tags and validators.

    A tag may also be the name of a key (kind: sites has a key sites): then the longer path counts.
    """
    for place, part in enumerate(loc):
        in_list = isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
        if in_list or (isinstance(data, Mapping) and part in data):
            as_key = (part, *path_in_document(loc[place + 1 :], data[part]))
            is_tag = isinstance(data, Mapping) and part in (data.get("kind"), data.get("format"))
            as_tag = path_in_document(loc[place + 1 :], data) if is_tag else ()
            return as_tag if len(as_tag) >= len(as_key) else as_key
    return ()


def _kind_example(target: Any, loc: tuple[str | int, ...], context: Mapping[str, Any]) -> str:
    tags = [tag.strip("'") for tag in context["expected_tags"].split(", ")]
    for near in nearest_words(context["tag"], tags, 0.5):
        for model in _models_at(target, loc):
            if _has_tag(model, near) and hasattr(model, "EXAMPLE"):
                written = ", ".join(f"{key}: {_format_flow(value)}" for key, value in model.EXAMPLE.items())
                return f"; {near} is written as {{{written}}}"
    return ""


def _list_kinds(target: Any, loc: tuple[str | int, ...], name: str) -> str:
    words = [word for model in _models_at(target, loc) for word in get_args(model.model_fields[name].annotation)]
    return f"; the {name}s are {', '.join(words)}" if words else ""


def _format_flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_format_flow(each)}" for key, each in value.items()) + "}"
    return str(value)


def _describe_unknown_key(path: KeyPath, known: list[str], target: Any) -> str:
    key = path[-1]
    if str(key) in known:  # of another member of a union
        return f"{key!r} is incompatible with the other keys here; remove it, or the keys of the other kind"
    if joined := colon_hint(str(key)):
        return f"unknown key {key!r}{joined}"
    near = did_you_mean(key, known, cutoff=0.8)
    told = getattr(target, "elsewhere", None)
    sections = tuple(f"; it belongs to {word}," for word in known if str(key).startswith((f"{word}_", f"{word}.")))
    other = told(str(key)) if told and (not near or sections) else ""
    if f"as {path[0]}.{key}" in other:  # where it is
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
        return f"needs a {name}, as in {{{name}: {like}}}, got {shown(value)}"
    if kind == "literal_error":
        words = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        return f"must be {listed(words)}, got {shown(value)}{did_you_mean(value, words)}"
    if kind in (*_NO_MODEL, "dict_type"):
        return f"must be a mapping of keys to values, as in {{KEY: VALUE}}, got {shown(value)}"
    if kind in _NO_LIST:
        numbers = "1,2" if isinstance(value, int | float) else expand_range(value, 20) if isinstance(value, str) else ""
        like = numbers.replace(",", ", ") or "A, B"
        return f"must be a list, as in [{like}], got {shown(value)}"
    if kind in ("too_long", "too_short") and isinstance(value, Sized):
        many, least = len(value), kind == "too_short"
        of = context["min_length" if least else "max_length"]
        rule = f"at {'least' if least else 'most'} {of} item{'s' * (of != 1)}"
        return f"must have {rule}, got {shown(value)}; {'add' if least else 'remove'} {abs(many - of)}"
    rule = message.partition(", ")[0]  # what comes behind are pydantic's words of its own
    what = rule.replace("Input should be", "must be").replace("a valid ", "a ").replace("a integer", "an integer")
    what = what.replace("a boolean", "true or false").replace("a string", "a text")
    return f"{what}, got {shown(value)}{_suggest_value(kind, context, value)}"


def _suggest_value(kind: str, context: Mapping[str, Any], value: object) -> str:
    if kind.startswith(("int", "float")) and isinstance(value, str):
        if meant := find_number(value, kind):
            return f"; write {meant}"
        if meant := expand_range(value):
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
    keys = _required_keys(_models_at(target, loc)) or _field_names_at(target, loc)
    return f"{{{keys[0]}: ...}}" if keys else ""


def _suggest_key(target: Any, loc: tuple[str | int, ...]) -> str:
    fields = [
        model.model_fields[str(loc[-1])] for model in _models_at(target, loc[:-1]) if str(loc[-1]) in model.model_fields
    ]
    if not fields:
        return "write it"
    inner = _required_keys(models_in(fields[0].annotation, fields[0].metadata))
    told = (getattr(each, "json_schema", {}) or {} for each in fields[0].metadata)
    if units := next((each["examples"] for each in told if "examples" in each), None):
        return f"write {loc[-1]}: {units[0]}"
    words = {"int": "8", "float": "1.5", "str": "NAME", "bool": "true"}
    value = f"{{{inner[0]}: ...}}" if inner else words.get(getattr(fields[0].annotation, "__name__", ""), "...")
    if get_origin(fields[0].annotation) in (tuple, list):
        value = f"[{value}]"
    return f"write {loc[-1]}: {value}"


# --- the model that a location is about, to list the keys that it knows ---------------------------------------------


def _field_names_at(target: Any, loc: tuple[str | int, ...]) -> list[str]:
    return list(dict.fromkeys(name for model in _models_at(target, loc) for name in model.model_fields))


def _models_at(target: Any, loc: tuple[str | int, ...]) -> list[type[BaseModel]]:
    candidates = models_in(target)
    for part in loc:
        fields = [model.model_fields[str(part)] for model in candidates if str(part) in model.model_fields]
        tagged = [model for model in candidates if _has_tag(model, part)]
        if fields:
            candidates = [model for field in fields for model in models_in(field.annotation, field.metadata)]
        elif tagged:
            candidates = tagged
    return candidates


def _has_tag(model: type[BaseModel], tag: object) -> bool:
    return any(
        get_origin(field.annotation) is Literal and tag in get_args(field.annotation)
        for field in model.model_fields.values()
    )
