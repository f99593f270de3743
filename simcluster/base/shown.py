"""Display of result objects: one line at a prompt, text in print, HTML in a notebook cell.

The displays are in packages above those that hold the numbers, so an object finds its display by the name of its class;
the tables are in ``base.satellites.DISPLAY_TABLES``, whose modules are imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from simcluster.base.satellites import DISPLAY_TABLES, DisplayForm, load_object
from simcluster.base.texts import escape_controls

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


class Displayable:
    """Base class of result objects with a one-line ``repr``, a text for ``print``, and a notebook display.

    A subclass has its own line in ``show/lines.py`` where its plain fields do not suffice.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("__repr__",):  # a dataclass writes one with every field, which may be millions of characters
            if name not in vars(cls):
                setattr(cls, name, getattr(Displayable, name))

    def __repr__(self) -> str:
        return one_line_text(self)

    def __str__(self) -> str:
        told = find_display(self, "texts")
        return repr(self) if told is None else escape_controls(str(told))

    def _repr_html_(self) -> str:
        return str(find_display(self, "pages"))

    def summary(self) -> str:
        """Return the text that ``print`` shows, the same as the corresponding command prints."""
        return str(self)


def one_line_text(it: object) -> str:
    """Return an object as one line: by the display table of its class, otherwise its plain fields."""
    told = find_display(it, "lines")
    return clip_line(escape_controls(_fields_text(it) if told is None else str(told)), _LONGEST)


def find_display(it: object, kind: DisplayForm, **options: Any) -> Any:
    """Return the display of an object in one form; None if no display table has its class."""
    for name in (*(each.__name__ for each in type(it).__mro__), ""):
        for place in DISPLAY_TABLES[kind]:
            known: Mapping[str, Callable[..., Any]] = load_object(place)
            if name in known:
                return known[name](it, **options)
    return None


def clip_line(text: str, longest: int) -> str:
    """Collapse a text to one line of at most ``longest`` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else f"{flat[: longest - 3]}..."


def _fields_text(it: object) -> str:
    named = ((name, getattr(it, name)) for name in getattr(type(it), "__dataclass_fields__", ()))
    told = (
        f"{name}={_number_text(value)}" if isinstance(value, bool | int | float | str) else name
        for name, value in named
    )
    return f"{type(it).__name__}({', '.join(told)})"


def _number_text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
