"""The part of the page about one's own trace: what an engineer would say of it, and the tables of the command."""

from __future__ import annotations

from simcluster.interop.own_trace.difference import TraceDifference
from simcluster.interop.own_trace.text import tables
from simcluster.show.report.html import Markup, element, joined, table


def own_trace(found: TraceDifference) -> Markup:
    """Sentences first, the largest on top; then the tables of the command."""
    said = element("ul", [element("li", sentence) for sentence in found.sentences()])
    shown = [
        joined(element("h3", each.title[:1].upper() + each.title[1:]),
               table(each.header, each.rows, caption=each.title, class_="large"))
        for each in tables(found)
    ]  # fmt: skip
    notes = [element("p", f"Note: {note}", class_="quiet") for note in found.notes]
    return joined(said, shown, notes)
