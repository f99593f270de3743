"""Display of result objects: a line at the Python prompt, a text in ``print``, HTML in a notebook cell.

The displays are in packages above those that hold the numbers, so an object finds its display by the name of its class;
the tables are in ``base.satellites.DISPLAY_TABLES``, whose modules are imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from simcluster.base.satellites import DISPLAY_TABLES, DisplayForm, load_object
from simcluster.base.texts import escape_controls

_LONGEST = 190  # characters of a line


class SavableFigure(Protocol):
    """A figure that can be saved to a file, such as a matplotlib Figure."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure to a file; the file's ending sets the format."""


class NotebookPage(Protocol):
    """A self-contained HTML page in a notebook cell."""

    def save(self, path: Any) -> None:
        """Write the page to a file."""

    def _repr_html_(self) -> str: ...


class Displayable:
    """Base class of result objects with a one-line ``repr``, a text for ``print``, and a notebook display.

    A subclass has its own line in ``show/repr_lines.py`` where its plain fields do not suffice.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in vars(cls):  # a dataclass writes one with every field, which may be millions of characters
            cls.__repr__ = Displayable.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return one_line_text(self)

    def __str__(self) -> str:
        told = render_object(self, "texts")
        return repr(self) if told is None else escape_controls(str(told))

    def _repr_html_(self) -> str:
        return str(render_object(self, "pages"))

    def summary(self) -> str:
        """Return the text that ``print`` shows, which is also the output of the object's command."""
        return str(self)


def one_line_text(value: object) -> str:
    """Describe an object in one line, by the display function of its class, or by its fields."""
    told = render_object(value, "lines")
    return clip_line(escape_controls(_plain_fields_text(value) if told is None else str(told)), _LONGEST)


def render_object(value: object, form: DisplayForm, **options: Any) -> Any:
    """Return an object rendered as ``form`` (text, HTML, ...); None if its class has no display function."""
    for name in (*(each.__name__ for each in type(value).__mro__), ""):
        for place in DISPLAY_TABLES[form]:
            known: Mapping[str, Callable[..., Any]] = load_object(place)
            if name in known:
                return known[name](value, **options)
    return None


def clip_line(text: str, longest: int) -> str:
    """Collapse a text to one line of at most ``longest`` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else f"{flat[: longest - 3]}..."


def _plain_fields_text(it: object) -> str:
    named = ((name, getattr(it, name)) for name in getattr(type(it), "__dataclass_fields__", ()))
    told = (f"{name}={_format_value(value)}" if isinstance(value, int | float | str) else name for name, value in named)
    return f"{type(it).__name__}({', '.join(told)})"


def _format_value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
