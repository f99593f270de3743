"""What Python shows of an object: a line at a prompt, its text where it is printed, a picture in a notebook's cell.

What is shown is made from numbers by packages above those that have the numbers, so an object asks for it by the name
of its class; ``base.satellites.SHOWN_BY`` has the tables, whose modules are imported when first asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from simcluster.base.satellites import SHOWN_BY, Look, load
from simcluster.base.texts import printable

_LONGEST = 190  # characters of a line


class Picture(Protocol):
    """A picture that can be written to a file: a matplotlib Figure, by the one method that everybody needs."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write it to a file, whose ending says how."""


class CellPage(Protocol):
    """A page in a notebook's cell, which is complete in itself."""

    def save(self, path: Any) -> None:
        """Write it to a file."""

    def _repr_html_(self) -> str: ...


class Shown:
    """An object that says what it is in a line, what it holds in a text, and shows it in a notebook.

    A class that derives from it has a line of its own in ``show/lines.py``, where its plain fields do not say
    enough.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("__repr__",):  # a dataclass writes one with every field, which may be millions of characters
            if name not in vars(cls):
                setattr(cls, name, getattr(Shown, name))

    def __repr__(self) -> str:
        return line_of(self)

    def __str__(self) -> str:
        told = look(self, "texts")
        return repr(self) if told is None else printable(str(told))

    def _repr_html_(self) -> str:
        return str(look(self, "pages"))

    def summary(self) -> str:
        """What ``print`` shows: the text of the command that asks for it."""
        return str(self)


def line_of(it: object) -> str:
    """An object in a line: by what is known of its class, else its plain fields."""
    told = look(it, "lines")
    return clipped(printable(_fields_of(it) if told is None else str(told)), _LONGEST)


def look(it: object, kind: Look, **options: Any) -> Any:
    """Return what is shown of an object; None if no table of ``SHOWN_BY`` has its class."""
    for name in (*(each.__name__ for each in type(it).__mro__), ""):
        for place in SHOWN_BY[kind]:
            known: Mapping[str, Callable[..., Any]] = load(place)
            if name in known:
                return known[name](it, **options)
    return None


def clipped(text: str, longest: int) -> str:
    """A text of at most so many characters on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else f"{flat[: longest - 3]}..."


def _fields_of(it: object) -> str:
    """Return the class with its fields: numbers and words with their values, others by name."""
    named = ((name, getattr(it, name)) for name in getattr(type(it), "__dataclass_fields__", ()))
    told = (
        f"{name}={_number(value)}" if isinstance(value, bool | int | float | str) else name for name, value in named
    )
    return f"{type(it).__name__}({', '.join(told)})"


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
