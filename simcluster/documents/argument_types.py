"""Arguments of the wrong type, said as other mistakes are: for the functions that Python users call.

What a function takes is read from its annotations as they are written: the types of the table below, and classes of
this package that its module has imported; any other part of one is not looked at before the function has failed
(``misfits``).  A library that checks types resolves them all, and ours name types that are imported for reading only.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, ParamSpec, TypeGuard, TypeVar, get_args, get_origin

from simcluster.base.errors import InputError, system_refusals
from simcluster.documents.diagnostics import did_you_mean, listed, shown, type_name
from simcluster.documents.misfits import maker, misfit

P = ParamSpec("P")
T = TypeVar("T")

_LARGEST = sys.float_info.max
_MANY = 1000
"""Items of a sequence beyond which they are not looked at one by one."""


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which refuses an argument that it does not have or that is of another type than it says
    (InputError)."""
    name = function.__name__.lstrip("_")

    @wraps(function)
    def asked(*args: P.args, **kwargs: P.kwargs) -> T:
        signature, kinds = _taken(function)
        wrong = _misfit(signature, args, kwargs)
        for key, value in (*zip(_by_place(signature), args, strict=False), *kwargs.items()):
            wrong = wrong or (_wrong(kinds[key], value, key) if key in kinds else None)
        if wrong:
            raise InputError(f"{name}: {wrong}")
        places = _by_place(signature)
        plain: Any = [_plain(kinds.get(key, ()), value) for key, value in zip(places, args, strict=False)]
        rest: Any = args[len(plain) :]
        named: Any = {key: _plain(kinds.get(key, ()), value) for key, value in kwargs.items()}
        try:
            with system_refusals():
                return function(*plain, *rest, **named)
        except (AttributeError, TypeError, KeyError, IndexError, ValueError) as problem:
            if isinstance(problem, InputError) or not (wrong := misfit(function, args, kwargs)):
                raise
            raise InputError(f"{name}: {wrong}") from problem

    return asked


def checked_call(made: type[T]) -> type[T]:
    """The class, which refuses to be made of arguments that it does not have; of which type they are it says itself."""
    own, name = made.__init__, made.__name__

    @wraps(own)
    def asked(self: T, *args: Any, **kwargs: Any) -> None:
        if wrong := _misfit(_taken(own)[0], (self, *args), kwargs):
            raise InputError(f"{name}: {wrong}")
        own(self, *args, **kwargs)

    setattr(made, "__init__", asked)  # noqa: B010 - a checker of types takes no other method in its place
    return made


class _Type(NamedTuple):
    """A type of the table: how it is called, who is one, what is written as an example, of what its items are, and
    which class of ours it is."""

    called: str
    holds: Callable[[object], bool]
    like: str
    items: tuple[_Type, ...] = ()
    ours: type | None = None


def _is_iterable(value: object) -> bool:
    """Neither a text, a dict, a table, nor one number that an array holds."""
    several = hasattr(value, "__iter__") and hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping)
    return several and getattr(value, "ndim", 1) > 0 and not hasattr(value, "columns")


def _is_sequence(value: object) -> bool:
    return _is_iterable(value) and hasattr(value, "__getitem__")


def _is_whole(value: object) -> bool:
    """One that a float holds, too."""
    return isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) <= _LARGEST


def _is_number(value: object) -> bool:
    """Of whole ones, too, those that a float holds."""
    return _is_whole(value) if isinstance(value, Integral) else isinstance(value, Real)


_PLAIN = {
    "int": _Type("a whole number", _is_whole, "2"),
    "float": _Type("a number", _is_number, "0.5"),
    "str": _Type("a text", lambda value: isinstance(value, str), "'...'"),
    "bool": _Type("True or False", lambda value: isinstance(value, bool), "True"),
    "None": _Type("None", lambda value: value is None, "None"),
    "Path": _Type("a path", lambda value: isinstance(value, Path), "'...'"),
}
_SEQUENCES = {"Sequence": _is_sequence, "Iterable": _is_iterable, "list": _is_sequence, "tuple": _is_sequence}


_PLAYERS = ("executor", "workers")
"""What says how many processes play, in one function or another."""


@cache
def _taken(function: Callable[..., object]) -> tuple[inspect.Signature, dict[str, tuple[_Type, ...]]]:
    """Its arguments, and of which types those are that are in the table."""
    signature, scope = inspect.signature(function), inspect.unwrap(function).__globals__
    kinds = {
        name: _types(ast.parse(one.annotation, mode="eval").body, scope)
        for name, one in signature.parameters.items()
        if isinstance(one.annotation, str) and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    }
    return signature, {name: found for name, found in kinds.items() if found}


def _by_place(signature: inspect.Signature) -> list[str]:
    """Arguments that need no name, up to where any number of them is taken."""
    of = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, one in signature.parameters.items() if one.kind in of]


def _misfit(signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    """What does not fit the arguments that there are: one more, one that has no such name, one that lacks."""
    takes = [each for each, one in signature.parameters.items() if each != "self" and one.kind != one.VAR_KEYWORD]
    any_name = any(one.kind == one.VAR_KEYWORD for one in signature.parameters.values())
    for key in kwargs:
        if key not in takes and not any_name:
            players = [each for each in _PLAYERS if each in takes and key in _PLAYERS]
            meant = f"; did you mean {players[0]!r}?" if players else did_you_mean(key, takes, 0.65)
            return f"there is no argument {key!r}{meant}; it takes {', '.join(takes)}"
    try:
        signature.bind(*args, **kwargs)
    except TypeError as problem:
        lacks = _lacking(signature, args, kwargs)
        if lacks:
            return f"{lacks} is required and missing; write {lacks}=...; it takes {', '.join(takes)}"
        named = [each for each in takes if each not in _by_place(signature)]
        by_name = f", of which {', '.join(named)} by name: write {named[0]}=..." if named and len(args) > 1 else ""
        return f"{problem}; it takes {', '.join(takes)}{by_name}"
    return None


def _lacking(signature: inspect.Signature, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    """The first argument that has no default and no value; None where all have one, or there are too many."""
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return None
    needed = (
        name
        for name, one in signature.parameters.items()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    )
    return next((name for name in needed if name not in given), None)


def _types(written: ast.expr, scope: Mapping[str, object]) -> tuple[_Type, ...]:
    """The types of an annotation, its names those of a module; none where one of them is not known."""
    if isinstance(written, ast.BinOp):
        left, right = _types(written.left, scope), _types(written.right, scope)
        return (*left, *right) if left and right else ()
    name = "None" if isinstance(written, ast.Constant) else getattr(written, "id", "")
    if name in _PLAIN:
        return (_PLAIN[name],)
    if _is_ours(found := scope.get(name)):
        return (_of_class(found),)
    if get_origin(found) is Literal:  # which words there are the function says itself
        return (_PLAIN["str"]._replace(like=repr(get_args(found)[0])),)
    if not isinstance(written, ast.Subscript):
        return ()
    name, inner = getattr(written.value, "id", ""), written.slice
    if name in _SEQUENCES and not isinstance(inner, ast.Tuple):
        items = _types(inner, scope)
        return (_Type("a list", _SEQUENCES[name], f"[{items[0].like if items else '...'}]", items),)
    if name == "Mapping" and isinstance(inner, ast.Tuple):
        items = _types(inner.elts[1], scope)
        like = f"{{'...': {items[0].like if items else '...'}}}"
        return (_Type("a dict", lambda value: isinstance(value, Mapping), like, items),)
    return ()


def _is_ours(named: object) -> TypeGuard[type]:
    """A class of this package, which is not one that only says what methods it takes."""
    ours = isinstance(named, type) and named.__module__.startswith(f"{__package__.partition('.')[0]}.")
    return ours and not getattr(named, "_is_protocol", False)


def _of_class(one: type) -> _Type:
    article = "an" if one.__name__[0] in "AEIOU" else "a"
    return _Type(f"{article} {one.__name__}", lambda value: isinstance(value, one), f"{one.__name__}(...)", ours=one)


def _plain(types: Sequence[_Type], value: Any) -> Any:
    """An array or a Series as the list that it stands for: its truth is not that of a list; a number of numpy, alone or
    in a list, as Python's."""
    if isinstance(value, Real) and hasattr(value, "item"):
        return value.item()
    if type(value) in (list, tuple) and len(value) <= _MANY and any(hasattr(each, "item") for each in value):
        return type(value)(_plain((), each) for each in value)
    is_array = hasattr(value, "tolist") and any(each.called == "a list" for each in types)
    return value.tolist() if is_array and _is_sequence(value) else value


def _wrong(types: tuple[_Type, ...], value: Any, place: str) -> str | None:
    """What is wrong with a value at a place (``vary['parallel.tp']``); None where nothing is."""
    mine = [each for each in types if each.holds(value)]
    if not mine:
        words = [each.called for each in types if each.called != "None"]
        return (
            f"{place} must be {listed(words)}, got {type_name(value)}: {shown(value)}; {_remedy(types, value, place)}"
        )
    items = mine[0].items
    if not items or len(value) > _MANY:
        return None
    places: Any = value.items() if isinstance(value, Mapping) else enumerate(value)
    found = (_wrong(items, each, f"{place}[{key!r}]") for key, each in places)
    return next((each for each in found if each), None)


def _is_item(value: object, whole: _Type) -> bool:
    """One that could stand alone in a list of such: any, where a list does not say of what."""
    fits = any(item.holds(value) for item in whole.items) if whole.items else not isinstance(value, Mapping)
    return whole.called == "a list" and fits and not _is_sequence(value)


def _remedy(types: tuple[_Type, ...], value: object, place: str) -> str:
    """The same value in a type that is taken, or how one is written; of a class of ours, which function gives one."""
    classes = [each.ours for one in types for each in (one, *one.items) if each.ours]
    if made := next(filter(None, map(maker, classes)), ""):
        return f"give what {made} returns"
    meant = next((each for each in types if _is_item(value, each)), None)
    like = next((each.like for each in types if each.called not in ("a text", "None")), types[0].like)
    words = value.replace(",", " ").split() if isinstance(value, str) else []
    of_wholes = _PLAIN["int"] not in types and any(_PLAIN["int"] in each.items for each in types)
    if words and of_wholes and all(map(str.isdecimal, words)):
        like = f"[{', '.join(words)}]"
    elif isinstance(value, str) and any(each in types for each in (_PLAIN["int"], _PLAIN["float"])):
        number = value.strip()
        like = number if number.removeprefix("-").replace(".", "", 1).isdecimal() else like
    elif meant is not None:
        parts = [each.strip() for each in value.split(",")] if isinstance(value, str) else [value]
        whole = ", ".join(str(each) if str(each).isdecimal() and len(parts) > 1 else repr(each) for each in parts)
        like = f"[{whole}]" if len(whole) < 60 else meant.like
        if place in ("gpus", "ranks") and isinstance(value, int) and value > 1:
            like = f"range({value}) for the first {value}"
    return f"write {place}{' = ' if '[' in place else '='}{like}"
