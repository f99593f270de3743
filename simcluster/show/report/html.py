"""HTML from pieces in ``assets/`` and from Python: everything that is text is escaped, once, here.

A ``Markup`` is finished HTML; any other text is data, whatever it contains.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from simcluster.base.printable import printable


class Markup(str):
    """HTML that is not escaped again."""

    __slots__ = ()


Content = str | Iterable[str]


def asset(name: str) -> str:
    """A file of the page's own."""
    return (files("simcluster.show.report") / "assets" / name).read_text(encoding="utf-8")


def filled(name: str, /, **values: Content) -> Markup:
    """The HTML of an asset, its lines one after the other without their indents, with values for its $names."""
    text = "".join(line.strip() for line in asset(name).splitlines())
    return Markup(printable(Template(text).substitute({key: joined(value) for key, value in values.items()})))


def element(tag: str, *content: Content, **attributes: str | float | None) -> Markup:
    """<tag attributes>content</tag>; texts are escaped.  ``class_`` is class, ``data_x`` data-x; None is left out."""
    return Markup(f"<{tag}{_attributes(attributes)}>{joined(*content)}</{tag}>")


def void(tag: str, **attributes: str | float | None) -> Markup:
    """An element of HTML that has no content: <tag attributes>.  None of a drawing is: what follows would lie in it."""
    return Markup(f"<{tag}{_attributes(attributes)}>")


def joined(*content: Content) -> Markup:
    """Pieces one after the other, escaped where they are text."""
    parts = []
    for piece in content:
        if isinstance(piece, Markup):
            parts.append(str(piece))
        elif isinstance(piece, str):
            parts.append(escape(piece))
        else:
            parts.append(joined(*piece))
    return Markup("".join(parts))


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, class_: str = "", left: int = 1
) -> Markup:
    """A table with a caption for screen readers; the first ``left`` columns are text, the others numbers."""
    head = [element("th", name, scope="col", class_=None if at < left else "number") for at, name in enumerate(header)]
    body = []
    for row in rows:
        cells = [
            element("th" if not at else "td", cell, scope="row" if not at else None,
                    class_=None if at < left else "number")
            for at, cell in enumerate(row)
        ]  # fmt: skip
        body.append(element("tr", cells))
    return element(
        "div",
        element("table", element("caption", caption), element("thead", element("tr", head)), element("tbody", body)),
        class_=f"scroll-x {class_}".strip(),
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def json_block(name: str, value: object) -> Markup:
    """Data for the page's script.  Neither ``</script>`` nor ``<!--`` in a text can end it: no < is left."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{escape(name)}">{text}</script>')


def _attributes(attributes: Mapping[str, str | float | None]) -> str:
    found = []
    for name, value in attributes.items():
        if value is not None:
            text = value if isinstance(value, str) else f"{value:.6g}"
            found.append(f' {name.rstrip("_").replace("_", "-")}="{escape(text)}"')
    return "".join(found)
