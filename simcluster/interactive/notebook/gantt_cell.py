"""Zoomable timeline in a notebook cell: the timeline of the HTML report, in an iframe.

Frames are independent, so a notebook can have any number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from simcluster.base.atomic_files import write_text_atomic
from simcluster.base.units import format_seconds
from simcluster.documents.argument_types import check_arguments
from simcluster.interactive.report.colours import index_paints, list_page_paints
from simcluster.interactive.report.details import small_print
from simcluster.interactive.report.entry import check_ranks, spans_of_ranks
from simcluster.interactive.report.html import Markup, element, fill_asset, json_block, read_asset
from simcluster.interactive.report.packing import BinaryColumns, choose_shown_ranks, pack_timeline
from simcluster.interactive.report.page import SCRIPTS, content_policy, style_sheet, timeline_frame, wrap_in_function
from simcluster.results.result import Result
from simcluster.results.simulated_run import Run
from simcluster.results.timeline import Spans

_MOST_BYTES = 1_800_000  # of a page: notebooks of more are slow to open and to send
_MOST_SPANS = 300_000
_CONTROLS, _LANE, _RANK, _HIGHEST = 190, 10, 27, 640  # pixels
_CELL_STYLE = """
body.cell { margin: 0; padding: 4px 8px; max-width: none; overflow: hidden; }
.cell .title { align-items: center; margin: 0 0 4px; }
.cell h3 { margin: 0; }
.cell .scroller { max-height: 400px; }
"""


@dataclass(frozen=True, repr=False)
class GanttCell:
    """An HTML page with one timeline, which a notebook displays in a cell.

    ``omission_note`` describes the ranks that it omits, "" if none.
    """

    name: str
    page: str
    height: int
    omission_note: str = ""

    def __repr__(self) -> str:
        more = f"; {self.omission_note}" if self.omission_note else ""
        return f"GanttCell({self.name}: {len(self.page) / 1e6:.2f} MB, shown in a notebook; save(path) writes it{more})"

    def _repr_html_(self) -> str:
        page = self.page.replace("&", "&amp;").replace("'", "&#39;")
        return (
            f'<iframe srcdoc=\'{page}\' title="{escape(self.name)}" loading="lazy" '
            f'style="width:100%;height:{self.height}px;border:0"></iframe>'
        )

    def save(self, path: str | Path) -> None:
        """Write the page to a file; raise InputError if the file cannot be written."""
        write_text_atomic(path, self.page)


@check_arguments
def gantt_html(run: Run, *, ranks: Sequence[int] | None = None) -> GanttCell:
    """Return an HTML page with a zoomable, searchable timeline of some ranks (default: all simulated ranks).

    A page above 1.8 MB is cut to fewer, evenly spaced ranks, and says so. InputError for ranks that the job does not
    have.
    """
    if ranks is None:
        spans, weights = run.spans, dict(run.weights)
    else:
        check_ranks(run, ranks)
        spans, weights = spans_of_ranks(run, sorted(set(ranks))), dict.fromkeys(ranks, 1)
    most = _MOST_SPANS
    while True:
        shown, left_out = choose_shown_ranks(spans, most)
        found = _make_page(run, shown, weights, left_out)
        if len(found.page) <= _MOST_BYTES or len(np.unique(shown.rank)) == 1:
            return found
        most = min(len(shown), most) // 2


def _make_page(run: Run, spans: Spans, weights: dict[int, int], left_out: list[int]) -> GanttCell:
    name = run.scenario.title if isinstance(run, Result) else "a simulated program"
    heading = f"{name}: {format_seconds(run.step_time)} per step"
    lacks = f"{len(left_out):,} more ranks are omitted to save space; choose ranks with ranks=[...]" if left_out else ""
    blob, paints = BinaryColumns(), dict[tuple[str, str, int], int]()
    timeline = index_paints(pack_timeline(spans, blob, weights=weights), paints)
    shown = {"name": name, "steps": run.steps, "timeline": timeline, "grid": None, "memory": [], "capacity": 0.0,
             "links": None}  # fmt: skip
    data = {"runs": [shown], "paints": list_page_paints(paints)}
    script = wrap_in_function("\n".join(read_asset(name) for name in ("cell_theme.js", *SCRIPTS)))
    styles = f"{style_sheet()}\n{_CELL_STYLE}"
    frame = [
        element("noscript", small_print("The timeline needs JavaScript; result.gantt() draws it without JavaScript.")),
        element("div", timeline_frame(), id="gantt", class_="gantt"),
    ]
    page = "<!doctype html>\n" + fill_asset(
        "gantt_cell.html",
        policy=content_policy(script, styles),
        heading=heading, style=Markup(styles), gantt=[*frame, *([small_print(f"{lacks}.")] if lacks else [])],
        data=json_block("data", data), columns=Markup(blob.compressed_text()), script=Markup(script),
    )  # fmt: skip
    lanes = len(timeline["lanes"])
    height = _CONTROLS + _LANE * lanes + _RANK * len(np.unique(spans.rank))
    return GanttCell(heading, page, min(height, _HIGHEST), lacks)
