"""Which argument a function has failed on: one that is not of the type it says, whichever type that is.

``argument_types`` looks before a function runs, at types that are quick to tell.  This looks once it has failed, and so
may take its time: names that are imported for reading only are imported here.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from simcluster.documents.diagnostics import listed, shown, type_name

_NUMBERS = {int: Integral, float: Real}
_SELVES = ("self", "cls")


def misfit(function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]) -> str | None:
    """The first argument that is of another type than its annotation says, and what would be one; None if all fit."""
    function = inspect.unwrap(function)
    scope = _names_in(function.__module__)
    signature = inspect.signature(function)
    for name, value in signature.bind_partial(*args, **kwargs).arguments.items():
        one = signature.parameters[name]
        if name in _SELVES or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        meant = _members(_evaluated(one.annotation, scope))
        if any(_fits(value, each) for each in meant):
            continue
        kinds = list(dict.fromkeys(_called(each) for each in meant if each is not type(None)))
        wide = sorted(filter(_is_protocol, meant), key=lambda each: -len(_asked_of(each)))  # what asks for most first
        works = next((f"; give what {each} returns" for each in map(maker, (*wide, *meant)) if each), "")
        return f"{name} must be {listed(kinds)}, got {type_name(value)}: {shown(value)}{works}"
    return None


def _names_in(module: str) -> dict[str, Any]:
    """What a module's annotations may name: what it has, and what it imports for reading only."""
    scope = dict(vars(sys.modules[module]))
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return scope
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for each in ast.walk(node):
                if isinstance(each, ast.ImportFrom) and each.module:
                    scope |= {name.asname or name.name: _imported(each.module, name.name) for name in each.names}
                elif isinstance(each, ast.Import):
                    scope |= {name.asname: import_module(name.name) for name in each.names if name.asname}
    return scope


def _imported(module: str, name: str) -> object:
    return getattr(import_module(module), name, Any)


def _evaluated(annotation: object, scope: dict[str, Any]) -> object:
    """What an annotation of ours means; anything, where that cannot be told."""
    try:
        return eval(annotation, scope) if isinstance(annotation, str) else annotation
    except (NameError, TypeError, AttributeError, SyntaxError):
        return Any


def _members(hint: object) -> list[Any]:
    """The types of a union, and the one of any other annotation."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return [member for each in get_args(hint) for member in _members(each)]
    return _members(get_args(hint)[0]) if origin is Annotated else [type(None) if hint is None else hint]


def _is_protocol(hint: object) -> bool:
    return bool(getattr(hint, "_is_protocol", False))


def _fits(value: object, hint: Any) -> bool:
    """Return whether the value could be one of these; True where that is unknown."""
    hint = get_origin(hint) or hint
    if hint in (Any, Literal, inspect.Parameter.empty) or not isinstance(hint, type) or isinstance(hint, TypeVar):
        return True
    if _is_protocol(hint):
        return not isinstance(value, type) and all(hasattr(value, name) for name in _asked_of(hint))
    return isinstance(value, _NUMBERS.get(hint, hint)) and not (hint in _NUMBERS and isinstance(value, bool))


def _asked_of(protocol: type) -> set[str]:
    """The names that whatever a protocol describes must have."""
    own = [one for one in protocol.__mro__ if vars(one).get("_is_protocol") and one.__module__ != "typing"]
    names = {name for one in own for name in (*vars(one), *vars(one).get("__annotations__", ()))}
    return {name for name in names if not name.startswith("_") or name == "__call__"}


def _called(hint: Any) -> str:
    """A type in words: a protocol in those of its docstring, which says what it is."""
    if _is_protocol(hint):
        said = (hint.__doc__ or hint.__name__).strip().partition("\n")[0].partition(";")[0].rstrip(".")
        return f"{said[:1].lower()}{said[1:]}"
    words = {str: "a text", int: "a whole number", float: "a number", bool: "True or False", dict: "a dict"}
    name = getattr(get_origin(hint) or hint, "__name__", str(hint))
    return str(words.get(hint, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"))


def maker(kind: Any) -> str:
    """The function of the package that returns a thing of this kind; "" where there is none."""
    ours = sys.modules[__package__.partition(".")[0]]
    for name in getattr(ours, "__all__", ()):
        function = inspect.unwrap(getattr(ours, name))
        if inspect.isfunction(function):
            scope = _names_in(function.__module__)
            given = _members(_evaluated(inspect.signature(function).return_annotation, scope))
            items = [item for each in given for item in get_args(each)]
            if any(isinstance(each, type) and _gives(each, kind) for each in (*given, *items)):
                return f"{ours.__name__}.{name}(...)"
    return ""


def _gives(given: type, hint: Any) -> bool:
    if _is_protocol(hint):
        fields = {name for one in given.__mro__ for name in vars(one).get("__annotations__", ())}
        return _asked_of(hint) <= {*dir(given), *fields}
    return isinstance(hint, type) and hint.__module__.startswith(__package__.partition(".")[0]) and given is hint
