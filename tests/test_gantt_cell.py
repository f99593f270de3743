"""A timeline to zoom into in a notebook: complete in itself, as many as one likes, small enough to be kept.

What the Gantt itself does is tested with the report, whose own it is (test_report_page).
"""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import chromium
import numpy as np
import pytest
from report_pages import many_spans, small_entry

from simcluster import plots
from simcluster.base.errors import InputError
from simcluster.interactive.notebook import gantt_cell
from simcluster.interactive.notebook.gantt_cell import GanttCell, gantt_html
from simcluster.results.result import Result

NOTEBOOK = """<!doctype html><meta charset="utf-8"><title>a notebook</title>
<body><div style="background: #fff">{0}</div><div style="background: #111">{1}</div></body>"""
READY = """[...document.querySelectorAll("iframe")].length === 2 && [...document.querySelectorAll("iframe")]
.every((each) => each.contentDocument?.documentElement?.dataset.complete)"""


@pytest.fixture(scope="module")
def result() -> Result:
    found = small_entry().result
    assert found is not None
    return found


@pytest.fixture(scope="module")
def tab(result: Result, browser: chromium.Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    """A notebook with two cells, on light and on dark ground; the second has one rank."""
    file = tmp_path_factory.mktemp("notebook") / "cells.html"
    cells = (gantt_html(result), gantt_html(result, ranks=[3]))
    file.write_text(NOTEBOOK.format(*(cell._repr_html_() for cell in cells)))
    opened = chromium.Page(browser)
    opened.size(1000, 1400)
    opened.open(file, READY)
    yield opened
    opened.run("1")
    assert opened.problems == []
    assert {url for url in opened.requests if not url.startswith("about:srcdoc")} == {file.as_uri()}


def gantt(number: int) -> str:
    return f"window.frames[{number}].simcluster.timeline.gantt"


def views(tab: chromium.Page) -> list[list[float]]:
    return [tab.run(f"{gantt(number)}.view") for number in (0, 1)]


@chromium.in_a_browser
def test_each_cell_has_its_own_timeline(tab: chromium.Page, result: Result) -> None:
    counts = [tab.run(f"{gantt(number)}.runs[0].timeline.count") for number in (0, 1)]
    assert counts == [len(result.spans), len(result.timeline_of(3))]
    assert tab.run(f"{gantt(1)}.runs[0].timeline.ranks") == [3]
    assert [tab.run(f'window.frames[{n}].document.querySelector("#trouble").hidden') for n in (0, 1)] == [True, True]


@chromium.in_a_browser
def test_a_cell_is_zoomed_alone_and_says_what_is_under_the_mouse(tab: chromium.Page, result: Result) -> None:
    before = views(tab)
    x, y = tab.run(f"""(() => {{
        const gantt = {gantt(0)}, frame = document.querySelector("iframe").getBoundingClientRect();
        const row = gantt.rows.find((each) => each.lane), timeline = gantt.runs[0].timeline, span = row.lane.first;
        const box = gantt.canvas.getBoundingClientRect();
        const middle = timeline.seconds(timeline.start[span] + timeline.length[span] / 2);
        return [frame.x + box.x + gantt.x(middle), frame.y + box.y + row.y + row.height / 2];
    }})()""")
    tab.mouse("mouseMoved", x, y)
    tab.frame()
    tip = tab.run('window.frames[0].document.querySelector("[data-part=tip]").textContent')
    first = result.timeline[result.timeline["rank"] == 0].sort_values("start").iloc[0]
    assert tip.startswith(f"{first['kind']} {first['name']}".replace("_", " "))
    assert "microbatch0" in tip
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400, modifiers=2)
    tab.frame()
    after = views(tab)
    assert after[0][1] - after[0][0] < 0.5 * (before[0][1] - before[0][0])
    assert after[1] == before[1]


@chromium.in_a_browser
def test_a_cell_has_the_notebook_s_ground(tab: chromium.Page, tmp_path: Path) -> None:
    themes = [tab.run(f"window.frames[{n}].document.documentElement.dataset.theme") for n in (0, 1)]
    assert themes == ["light", "dark"]
    widths = tab.run("""[0, 1].map((n) => window.frames[n].document.documentElement)
        .map((each) => [each.scrollWidth, each.clientWidth])""")
    assert all(wide <= room for wide, room in widths)
    heights = tab.run(
        """[0, 1].map((n) => [window.frames[n].document.body.scrollHeight, window.frames[n].innerHeight])"""
    )
    assert all(room - 2 <= high <= room + 2 for high, room in heights), "each is as high as what it shows"
    tab.picture(tmp_path / "cells.png")


# --- without a browser ------------------------------------------------------------------------------------------------


class Frames(HTMLParser):
    """The attributes of every element."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_cell_is_a_frame_with_the_whole_page_in_it(result: Result, tmp_path: Path) -> None:
    cell = plots.gantt_html(result)
    frames = Frames()
    frames.feed(cell._repr_html_())
    ((tag, attributes),) = frames.found
    assert tag == "iframe"
    assert attributes["srcdoc"] == cell.page
    assert "http://" not in cell.page.replace("http://www.w3.org", "")
    assert "src=" not in cell.page
    cell.save(tmp_path / "gantt.html")
    assert (tmp_path / "gantt.html").read_text() == cell.page
    with pytest.raises(InputError, match="cannot write"):
        cell.save(tmp_path / "missing" / "gantt.html")
    assert len(repr(cell)) < 200


def test_names_cannot_end_the_frame(result: Result) -> None:
    hostile = "a ' quote \" and </script><b> & more"
    cell = GanttCell(hostile, f"<!doctype html><p title='{hostile}'>", 100)
    frames = Frames()
    frames.feed(cell._repr_html_())
    ((_, attributes),) = frames.found
    assert attributes["srcdoc"] == cell.page
    assert attributes["title"] == hostile


def test_what_is_too_much_is_left_out_and_said(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the ranks, and half again, until the page is small enough; the spans that are left are whole."""
    whole = gantt_html(result)
    assert whole.omission_note == ""
    many = many_spans(32, 400)
    monkeypatch.setitem(result.__dict__, "spans", many)
    monkeypatch.setitem(result.__dict__, "weights", dict.fromkeys(range(32), 1))
    full = gantt_html(result)
    assert full.omission_note == ""
    bare = len(whole.page)
    monkeypatch.setattr(gantt_cell, "_MOST_BYTES", bare + (len(full.page) - bare) // 3)
    small = gantt_html(result)
    assert len(small.page) <= bare + (len(full.page) - bare) // 3
    assert "more ranks are omitted to save space; choose ranks with ranks=[...]" in small.omission_note
    left_out = int(small.omission_note.split()[0])
    assert 16 <= left_out < 32
    assert small.omission_note in small.page
    assert len(np.unique(many.rank)) == 32


def test_what_is_no_rank_is_refused(result: Result) -> None:
    for ranks in ([], [4], [-1]):
        with pytest.raises(InputError, match="this job has ranks 0 to 3"):
            plots.gantt_html(result, ranks=ranks)
