"""A state of a moving page: everything that the page shows of one variant, made where the variant was played.

It is texts and bytes, so that it travels between processes and equal parts of states can be kept once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from simcluster.show.report.blob import Blob
from simcluster.show.report.entry import Entry
from simcluster.show.report.html import joined
from simcluster.show.report.page import data_of, parts_of, told_of

ABOUT_TWO = ("differences", "trace")
"""Sections that are about more than one run."""


@dataclass(frozen=True)
class PageState:
    """One variant on the page.

    ``entry`` is its numbers (the document among them) and account, without result and timeline; ``texts`` the HTML of
    each section by its place, and of "told", which stands under the heading; ``data`` the JSON that the script reads
    and ``columns`` its numbers.
    """

    entry: Entry
    texts: Mapping[str, str]
    data: str
    columns: tuple[bytes, ...]


def state_of(entry: Entry, most_spans: int) -> PageState:
    """The state of a run, its timeline of at most so many spans; nothing is played for it but what its faults cost."""
    shown, blob = replace(entry, replays=False), Blob()
    data, notes = data_of([shown], blob, most_spans=most_spans)
    texts = {place: str(part) for place, part in parts_of([shown], notes).items() if place not in ABOUT_TWO}
    texts["told"] = str(joined(told_of([shown])))
    light = replace(shown, result=None, spans=None, scenario=None)  # which hold what cannot be sent
    return PageState(light, texts, json.dumps(data, allow_nan=False, separators=(",", ":")), blob.parts)
