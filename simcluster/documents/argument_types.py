"""Type checks of public functions' arguments, with an error message that names the first wrong argument.

Arguments are compared with the annotations before a call, as far as these name plain types, containers of them and
imported classes of this package. If a call fails, they are compared with whole annotations, whose other names are
imported for that: a wrong argument may be the cause.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from simcluster.base.errors import InputError, convert_file_errors
from simcluster.documents.diagnostics import did_you_mean, join_or, quote_value, type_name

P = ParamSpec("P")
T = TypeVar("T")

_MAX_ITEMS = 1000
"""Longest sequence whose items are checked one by one."""
_PACKAGE = __package__.partition(".")[0]
_PROCESS_ARGUMENTS = ("executor", "workers")
"""Names of the argument for the number of processes, in various functions."""
_PLAIN: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "2"),
    float: ("a number", "0.5"),
    str: ("a text", "'...'"),
    bool: ("True or False", "True"),
    Path: ("a path", "'...'"),
}
"""A name and an example of each plain type."""
_LISTS = (Sequence, list, Iterable)


def check_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function to raise InputError for unknown, missing and mistyped arguments."""
    name = function.__name__.lstrip("_")

    @wraps(function)
    def check_and_call(*args: P.args, **kwargs: P.kwargs) -> T:
        signature, hints = _argument_types(function)
        names = _positional_names(signature)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if wrong := _argument_name_error(signature, args, kwargs) or _first_type_error(hints, given):
            raise InputError(f"{name}: {wrong}")
        plain: Any = [_to_python_value(hints.get(key, ()), each) for key, each in zip(names, args, strict=False)]
        rest: Any = args[len(plain) :]
        named: Any = {key: _to_python_value(hints.get(key, ()), value) for key, value in kwargs.items()}
        try:
            with convert_file_errors():
                return function(*plain, *rest, **named)
        except (AttributeError, TypeError, KeyError, IndexError, ValueError) as problem:
            if isinstance(problem, InputError) or not (wrong := find_argument_error(function, given)):
                raise
            raise InputError(f"{name}: {wrong}") from problem

    return check_and_call


def check_constructor_arguments(cls: type[T]) -> type[T]:
    """Decorate a class to raise InputError for unknown or missing constructor arguments; types are not checked."""
    own, name = cls.__init__, cls.__name__

    @wraps(own)
    def check_and_construct(self: T, *args: Any, **kwargs: Any) -> None:
        if wrong := _argument_name_error(inspect.signature(own), (self, *args), kwargs):
            raise InputError(f"{name}: {wrong}")
        own(self, *args, **kwargs)

    setattr(cls, "__init__", check_and_construct)  # noqa: B010 - a type checker accepts no assignment to the method
    return cls


def find_argument_error(function: Callable[..., object], arguments: Mapping[str, object]) -> str:
    """Return an error text for the first argument that does not match its annotated type; "" if all match."""
    return _first_type_error(_argument_types(function, whole=True)[1], arguments, whole=True)


# --- names ------------------------------------------------------------------------------------------------------------


def _positional_names(signature: inspect.Signature) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, one in signature.parameters.items() if one.kind in kinds]


def _argument_name_error(signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    known = {each: one for each, one in signature.parameters.items() if each != "self" and one.kind != one.VAR_KEYWORD}
    takes = f"it takes {', '.join(known)}"
    for key in kwargs:
        if key not in known and len(known) == len(signature.parameters.keys() - {"self"}):
            players = [each for each in _PROCESS_ARGUMENTS if each in known and key in _PROCESS_ARGUMENTS]
            meant = f"; did you mean {players[0]!r}?" if players else did_you_mean(key, known, 0.65)
            return f"there is no argument {key!r}{meant}; {takes}"
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
        optional = (inspect.Parameter.VAR_POSITIONAL,)
        needed = [each for each, one in known.items() if one.default is one.empty and one.kind not in optional]
        lacks = next((each for each in needed if each not in given), "")
        return f"{lacks} is required and missing; write {lacks}=...; {takes}" if lacks else ""
    except TypeError as problem:
        named = [each for each in known if each not in _positional_names(signature)]
        by_name = f"; pass {', '.join(named)} by name: write {named[0]}=..." if named and len(args) > 1 else ""
        return f"{problem}; {takes}{by_name}"


# --- annotations ------------------------------------------------------------------------------------------------------


class _AnnotationNames(dict[str, Any]):
    """Names that a module's annotations may refer to; a missing name evaluates to ``Any``."""

    def __missing__(self, name: str) -> Any:
        return vars(builtins).get(name, Any)


@cache
def _annotation_names(module: str, whole: bool) -> _AnnotationNames:
    """Return the names for a module's annotations; with ``whole``, also unions and imports for type checking.

    A function whose argument is of a named union (a scenario, changes) has its own message for it.
    """
    known = vars(sys.modules[module])
    names = _AnnotationNames({key: each for key, each in known.items() if whole or get_origin(each) in (None, Literal)})
    try:
        body = ast.parse(inspect.getsource(sys.modules[module])).body if whole else []
    except (OSError, TypeError):
        return names
    for node in body:
        for each in ast.walk(node) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" else ():
            if isinstance(each, ast.ImportFrom) and each.module:
                found = import_module(each.module)
                names |= {name.asname or name.name: getattr(found, name.name, Any) for name in each.names}
            elif isinstance(each, ast.Import):
                names |= {name.asname: import_module(name.name) for name in each.names if name.asname}
    return names


@cache
def _argument_types(
    function: Callable[..., object], *, whole: bool = False
) -> tuple[inspect.Signature, dict[str, list[Any]]]:
    signature, names = inspect.signature(function), _annotation_names(inspect.unwrap(function).__module__, whole)
    return signature, {
        name: _member_types(_evaluate_annotation(one.annotation, names))
        for name, one in signature.parameters.items()
        if name not in ("self", "cls") and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    }


def _evaluate_annotation(annotation: object, names: _AnnotationNames) -> object:
    try:
        return eval(annotation, {}, names) if isinstance(annotation, str) else annotation
    except (NameError, TypeError, AttributeError, SyntaxError):
        return Any


def _member_types(hint: object) -> list[Any]:
    if get_origin(hint) in (Union, UnionType):
        return [member for each in get_args(hint) for member in _member_types(each)]
    return _member_types(get_args(hint)[0]) if get_origin(hint) is Annotated else [type(None) if hint is None else hint]


def _is_protocol(hint: object) -> bool:
    return bool(getattr(hint, "_is_protocol", False))


def _is_package_class(hint: object) -> bool:
    return isinstance(hint, type) and hint.__module__.startswith(f"{_PACKAGE}.")


def _item_types(hint: object) -> list[Any]:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in _LISTS and len(parts) == 1:
        return _member_types(parts[0])
    return _member_types(parts[1]) if origin is Mapping else []


# --- values -----------------------------------------------------------------------------------------------------------


def _is_iterable(value: object) -> bool:
    several = hasattr(value, "__iter__") and hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping)
    return several and getattr(value, "ndim", 1) > 0 and not hasattr(value, "columns")


def _may_match_type(value: Any, hint: Any, whole: bool) -> bool:
    """Return whether a value may have the annotated type; True for types that cannot be checked."""
    kind = get_origin(hint) or hint
    if kind is Literal:  # the function itself checks which words are allowed
        return isinstance(value, tuple({type(each) for each in get_args(hint)}))
    if kind in _LISTS:
        return _is_iterable(value) and (kind is Iterable or hasattr(value, "__getitem__"))
    if kind in (int, float):
        if isinstance(value, Integral):
            return not isinstance(value, bool) and abs(int(value)) <= sys.float_info.max
        return kind is float and isinstance(value, Real)
    if kind is Any or not isinstance(kind, type) or isinstance(kind, TypeVar) or (not whole and _is_protocol(kind)):
        return True
    if _is_protocol(kind):
        return not isinstance(value, type) and all(hasattr(value, name) for name in _protocol_members(kind))
    known = whole or kind in (str, bool, type(None), Path, Mapping) or _is_package_class(kind)
    return isinstance(value, kind) or not known


def _protocol_members(protocol: type) -> set[str]:
    own = [one for one in protocol.__mro__ if vars(one).get("_is_protocol") and one.__module__ != "typing"]
    names = {name for one in own for name in (*vars(one), *vars(one).get("__annotations__", ()))}
    return {name for name in names if not name.startswith("_") or name == "__call__"}


def _to_python_value(hints: Iterable[Any], value: Any) -> Any:
    """Convert numpy scalars to Python numbers, and arrays or Series to lists where the annotation has a list."""
    if isinstance(value, Real) and hasattr(value, "item"):
        return value.item()
    if type(value) in (list, tuple) and len(value) <= _MAX_ITEMS and any(hasattr(each, "item") for each in value):
        return type(value)(_to_python_value((), each) for each in value)
    is_array = hasattr(value, "tolist") and any((get_origin(each) or each) in _LISTS for each in hints)
    return value.tolist() if is_array and _is_iterable(value) else value


def _first_type_error(hints: Mapping[str, list[Any]], arguments: Mapping[str, object], *, whole: bool = False) -> str:
    found = (_type_error(hints[key], value, key, whole) for key, value in arguments.items() if key in hints)
    return next(filter(None, found), "")


def _type_error(hints: list[Any], value: Any, place: str, whole: bool) -> str:
    """Return an error text if a value has none of the types; ``place`` names it, as in ``vary['parallel.tp']``."""
    mine = [each for each in hints if _may_match_type(value, each, whole)]
    if not mine:
        words = join_or(dict.fromkeys(_describe_type(each) for each in hints if each is not type(None)))
        advice = _suggest_argument(hints, value, place)
        return f"{place} must be {words}, got {type_name(value)}: {quote_value(value)}; {advice}"
    items = _item_types(mine[0])
    if not items or len(value) > _MAX_ITEMS:
        return ""
    places: Any = value.items() if isinstance(value, Mapping) else enumerate(value)
    return next(filter(None, (_type_error(items, each, f"{place}[{key!r}]", whole) for key, each in places)), "")


def _describe_type(hint: Any) -> str:
    """Return a type's description in messages; for a protocol, the first line of its docstring."""
    kind = get_origin(hint) or hint
    if _is_protocol(kind):
        said = (kind.__doc__ or kind.__name__).strip().partition("\n")[0].partition(";")[0].rstrip(".")
        return f"{said[:1].lower()}{said[1:]}"
    words: dict[Any, str] = {**dict.fromkeys(_LISTS, "a list"), **dict.fromkeys((Mapping, dict), "a dict")}
    name = getattr(kind, "__name__", str(kind))
    return (
        words.get(kind)
        or _PLAIN.get(str if kind is Literal else kind, (f"{'an' if name[0] in 'AEIOU' else 'a'} {name}", ""))[0]
    )


def _example_value(hint: Any) -> str:
    kind, items = get_origin(hint) or hint, _item_types(hint)
    inner = _example_value(items[0]) if items else "..."
    if kind is Literal:
        return repr(get_args(hint)[0])
    if kind in (Mapping, dict):
        return f"{{'...': {inner}}}"
    return f"[{inner}]" if kind in _LISTS else _PLAIN.get(kind, ("", f"{getattr(kind, '__name__', kind)}(...)"))[1]


def _suggest_argument(hints: list[Any], value: object, place: str) -> str:
    """Suggest a replacement for a wrong argument: a value of an accepted type, or a function to call."""
    wide = sorted(filter(_is_protocol, hints), key=lambda each: -len(_protocol_members(each)))  # largest protocol first
    kinds = [*wide, *(each for hint in hints for each in (hint, *_item_types(hint)))]
    if made := next(filter(None, map(find_public_factory, kinds)), ""):
        return f"pass what {made} returns"
    taken = [each for each in hints if each is not type(None)]
    like = next((_example_value(each) for each in taken if each is not str), _example_value(taken[0]))
    lists = [each for each in taken if (get_origin(each) or each) in _LISTS]
    parts = value.replace(",", " ").split() if isinstance(value, str) else []
    if (
        parts
        and int not in taken
        and any(int in _item_types(each) for each in lists)
        and all(map(str.isdecimal, parts))
    ):
        like = f"[{', '.join(parts)}]"
    elif isinstance(value, str) and {int, float} & {*taken}:
        number = value.strip()
        like = number if number.removeprefix("-").replace(".", "", 1).isdecimal() else like
    elif meant := next((each for each in lists if _is_list_item(value, each)), None):
        texts = [each.strip() for each in value.split(",")] if isinstance(value, str) else [value]
        inner = ", ".join(str(each) if str(each).isdecimal() and len(texts) > 1 else repr(each) for each in texts)
        like = f"[{inner}]" if len(inner) < 58 else _example_value(meant)
        if place in ("gpus", "ranks") and isinstance(value, int) and value > 1:
            like = f"range({value}) for the first {value}"
    return f"write {place}{' = ' if '[' in place else '='}{like}"


def _is_list_item(value: object, list_type: object) -> bool:
    items = _item_types(list_type)
    fits = any(_may_match_type(value, each, False) for each in items) if items else not isinstance(value, Mapping)
    return fits and not _is_iterable(value)


@cache
def find_public_factory(cls: Any) -> str:
    """Return, as text, a call of a public simcluster function that makes objects of this type; "" if none does."""
    ours = sys.modules[_PACKAGE]
    for name in getattr(ours, "__all__", ()) if _is_package_class(cls) else ():
        function = inspect.unwrap(getattr(ours, name))
        if inspect.isfunction(function):
            names = _annotation_names(function.__module__, True)
            given = _member_types(_evaluate_annotation(inspect.signature(function).return_annotation, names))
            parts = [each for hint in given for each in (hint, *get_args(hint)) if isinstance(each, type)]
            if any(_satisfies_type(each, cls) for each in parts):
                return f"{ours.__name__}.{name}(...)"
    return ""


def _satisfies_type(candidate: type, expected: type) -> bool:
    if _is_protocol(expected):
        fields = {name for one in candidate.__mro__ for name in vars(one).get("__annotations__", ())}
        return _protocol_members(expected) <= {*dir(candidate), *fields}
    return candidate is expected
