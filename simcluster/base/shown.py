"""Display of objects: one line at a prompt, text where printed, a figure in a notebook cell.

Displays are made by packages above those that hold the numbers, so an object asks for its display by the name of its
class; the tables are in ``base.satellites.SHOWN_BY``, whose modules are imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from simcluster.base.satellites import SHOWN_BY, Look, load
from simcluster.base.texts import printable

_LONGEST = 190  # characters of a line


class Picture(Protocol):
    """A figure that can be saved to a file, such as a matplotlib Figure."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure to a file; the file's ending sets the format."""


class CellPage(Protocol):
    """A self-contained HTML page in a notebook cell."""

    def save(self, path: Any) -> None:
        """Write the page to a file."""

    def _repr_html_(self) -> str: ...


class Shown:
    """Base class of objects with a one-line ``repr``, a text for ``print``, and a notebook display.

    A subclass has its own line in ``show/lines.py`` where its plain fields do not suffice.
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
        """Return the text that ``print`` shows, which is the text of the corresponding command."""
        return str(self)


def line_of(it: object) -> str:
    """Return an object on one line: by the table of its class, otherwise by its plain fields."""
    told = look(it, "lines")
    return clipped(printable(_fields_of(it) if told is None else str(told)), _LONGEST)


def look(it: object, kind: Look, **options: Any) -> Any:
    """Return the display of an object; None if no table of ``SHOWN_BY`` has its class."""
    for name in (*(each.__name__ for each in type(it).__mro__), ""):
        for place in SHOWN_BY[kind]:
            known: Mapping[str, Callable[..., Any]] = load(place)
            if name in known:
                return known[name](it, **options)
    return None


def clipped(text: str, longest: int) -> str:
    """Return a text on one line of at most ``longest`` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else f"{flat[: longest - 3]}..."


def _fields_of(it: object) -> str:
    """Return the class name with its fields: numbers and texts with values, others by name."""
    named = ((name, getattr(it, name)) for name in getattr(type(it), "__dataclass_fields__", ()))
    told = (
        f"{name}={_number(value)}" if isinstance(value, bool | int | float | str) else name for name, value in named
    )
    return f"{type(it).__name__}({', '.join(told)})"


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
