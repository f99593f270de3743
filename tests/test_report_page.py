"""The report in a browser: it loads without a complaint, asks for nothing, and can be used by mouse and keyboard.

Needs Chromium (`apt-get install -y chromium`); skipped where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import chromium
import numpy as np
import pytest
from report_pages import large_entry, small_entry
from test_report import HOSTILE, HOSTILE_SHOWN

from simcluster.interactive.report import ReportEntry, report_page

pytestmark = chromium.NEEDED

GANTT = "simcluster.timeline.gantt"
CONTROLS = "simcluster.timeline.controls"


@pytest.fixture(scope="module")
def entry() -> ReportEntry:
    return small_entry()


@pytest.fixture(scope="module")
def file(entry: ReportEntry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "one.html"
    path.write_text(report_page([entry]))
    return path


@pytest.fixture
def tab(browser: chromium.Browser, file: Path) -> Iterator[chromium.Page]:
    """The page of the small run, fresh; whatever a test does with it, nothing may complain."""
    opened = chromium.Page(browser)
    opened.size(1240, 900)
    opened.open(file)
    yield opened
    opened.run("1")
    assert opened.problems == []
    assert opened.requests == [file.as_uri()]


def middle_of(tab: chromium.Page, expression: str) -> tuple[float, float]:
    """Where on the screen the span is that an expression gives as {run, lane, span}."""
    return tuple(
        tab.run(f"""(() => {{
        const gantt = {GANTT}, found = {expression};
        const timeline = gantt.runs[found.run].timeline;
        const row = gantt.rows.find((each) => each.lane === found.lane);
        gantt.canvas.scrollIntoView({{block: "center"}});
        const box = gantt.canvas.getBoundingClientRect();
        const seconds = timeline.seconds(timeline.start[found.span] + timeline.length[found.span] / 2);
        return [box.x + gantt.x(seconds), box.y + row.y - gantt.scroller.scrollTop + row.height / 2];
    }})()""")
    )


def test_every_span_reads_as_python_wrote_it(tab: chromium.Page, entry: ReportEntry) -> None:
    found = json.loads(
        tab.run(f"""JSON.stringify({GANTT}.runs[0].timeline.lanes.flatMap((lane) => {{
        const timeline = {GANTT}.runs[0].timeline, spans = [];
        for (let i = lane.first; i < lane.last; i++) spans.push([lane.rank, lane.stream, timeline.word("kind", i),
          timeline.word("name", i), timeline.microbatch[i],
          ...[timeline.start[i], timeline.end(i), timeline.wait[i]].map((ticks) => timeline.seconds(ticks))]);
        return spans;
    }}))""")
    )
    assert entry.result is not None
    frame = entry.result.timeline.sort_values(["rank", "start", "end", "stream", "kind", "name"])
    found.sort(key=lambda row: (row[0], round(row[5], 10), round(row[6], 10), row[1:4]))
    ordered = sorted(
        zip(*(frame[name] for name in ("rank", "stream", "kind", "name", "microbatch", "start", "end")),
            frame["start"] - frame["ready"], strict=True),
        key=lambda row: (row[0], round(row[5], 10), round(row[6], 10), row[1:4]),
    )  # fmt: skip
    assert [row[:5] for row in found] == [list(row[:5]) for row in ordered]
    one_tick = entry.result.step_time / 2**32
    times = np.array([row[5:] for row in found]) - np.array([row[5:] for row in ordered])
    assert np.abs(times).max() < 1.01 * one_tick


def test_the_pixels_are_as_dark_as_the_spans_are_long(browser: chromium.Browser, tmp_path: Path) -> None:
    """Spans far narrower than a pixel: the mean colour of a lane is that of its spans and of idle ground, by time."""
    large = large_entry(1, 40_000)
    path = tmp_path / "large.html"
    path.write_text(report_page([large]))
    tab = chromium.Page(browser)
    tab.size(1240, 900)
    tab.open(path)
    mean = json.loads(
        tab.run(f"""(() => {{
        const gantt = {GANTT}, row = gantt.rows.find((each) => each.lane.stream === "tp");
        gantt.colours = gantt.look.colours();
        const pixels = new Uint8ClampedArray(Math.round(gantt.plot) * 4);
        gantt.fill(row, pixels, new Float32Array(Math.round(gantt.plot) * 3), []);
        const mean = (values) => values.reduce((a, b) => a + b) / values.length;
        return JSON.stringify([0, 1, 2].map((c) => mean(pixels.filter((_, i) => i % 4 === c))));
    }})()""")
    )
    assert large.result is not None
    spans = large.result.spans
    on_tp = spans.stream == spans.word_code("tp")
    colours = tab.run(f"{GANTT}.colours.spans[0].rgb.map((colour) => [...colour.slice(0, 3)])")
    waiting = tab.run(f"[...{GANTT}.colours.waiting.slice(0, 3)]")
    what = tab.run(f"{GANTT}.runs[0].timeline.what.kind.map((code) => {GANTT}.runs[0].timeline.words[code])")
    colour_of = dict(zip(what, colours, strict=True))
    duration = float(spans.end.max())
    wanted = np.full(3, 255.0)
    words = np.array(spans.words)
    for kind in ("all_gather", "reduce_scatter"):
        own = on_tp & (words[spans.kind] == kind)
        seconds = float((spans.end - spans.start)[own].sum())
        wanted += seconds / duration * (np.array(colour_of[kind]) - 255)
    waited = float((spans.start - spans.ready)[on_tp].sum())
    wanted += waited / duration * (np.array(waiting) - 255)
    assert mean == pytest.approx(wanted.tolist(), abs=0.8)


def test_the_mouse_pans_zooms_and_shows_what_a_span_is(tab: chromium.Page) -> None:
    x, y = middle_of(tab, f"{CONTROLS}.firstInView()")
    tab.mouse("mouseMoved", x, y)
    text = tab.run('document.querySelector("#gantt [data-part=tip]").innerText')
    assert tab.run('!document.querySelector("#gantt [data-part=tip]").hidden')
    for part in ("forward embedding", "rank", "stage", "microbatch", "duration"):
        assert part in text
    whole = tab.run(f"{GANTT}.view")
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400, modifiers=2)
    tab.frame()
    zoomed = tab.run(f"{GANTT}.view")
    assert zoomed[1] - zoomed[0] == pytest.approx((whole[1] - whole[0]) / np.exp(1), rel=0.01)
    tab.mouse("mousePressed", x + 200, y, button="left", clickCount=1)
    tab.mouse("mouseMoved", x + 100, y, button="left")
    tab.mouse("mouseReleased", x + 100, y, button="left", clickCount=1)
    panned = tab.run(f"{GANTT}.view")
    assert panned[0] > zoomed[0]
    assert panned[1] - panned[0] == pytest.approx(zoomed[1] - zoomed[0])


def test_the_ruler_chooses_a_part_and_a_button_shows_all(tab: chromium.Page) -> None:
    middle_of(tab, f"{CONTROLS}.firstInView()")
    x, y = tab.run(
        f"(() => {{ const box = {GANTT}.canvas.getBoundingClientRect(); return [box.x + 300, box.y + 10]; }})()"
    )
    wanted = tab.run(f"[{GANTT}.time(300), {GANTT}.time(500)]")
    tab.mouse("mousePressed", x, y, button="left", clickCount=1)
    tab.mouse("mouseMoved", x + 200, y, button="left")
    tab.mouse("mouseReleased", x + 200, y, button="left", clickCount=1)
    assert tab.run(f"{GANTT}.view") == pytest.approx(wanted)
    assert tab.run('document.querySelector("#gantt [data-part=view]").textContent').count("s") >= 2
    tab.run('document.querySelector("#gantt [data-do=all]").click()')
    assert tab.run(f"{GANTT}.view[1] === {GANTT}.duration")


def test_the_keyboard_does_all_that_the_mouse_does(tab: chromium.Page) -> None:
    tab.run(f"{GANTT}.canvas.focus()")
    tab.press("+")
    tab.press("+")
    view = tab.run(f"{GANTT}.view")
    duration = tab.run(f"{GANTT}.duration")
    assert view[1] - view[0] == pytest.approx(duration / 4)
    tab.press("ArrowRight")
    assert tab.run(f"{GANTT}.view[0]") == pytest.approx(view[0] + 0.2 * duration / 4)
    tab.press("ArrowLeft")
    assert tab.run(f"{GANTT}.view[0]") == pytest.approx(view[0])
    tab.press("-")
    tab.press("0")
    assert tab.run(f"{GANTT}.view") == pytest.approx([0, duration])
    for _ in range(3):
        tab.press(".")
    said = tab.run('document.querySelector("#gantt [data-part=live]").textContent')
    assert "rank 0" in said
    assert "duration" in said
    assert not tab.run('document.querySelector("#gantt [data-part=tip]").hidden')
    tab.press("]")
    tab.press("Enter")
    assert tab.run(f"{GANTT}.view[1] - {GANTT}.view[0]") < duration / 2
    tab.press("Escape")
    assert tab.run(f"{GANTT}.selected === null")
    tab.press("/")
    assert tab.run('document.activeElement.dataset.part === "search"')


def test_everything_can_be_reached_by_tab_and_has_a_name(tab: chromium.Page) -> None:
    nameless = tab.run("""[...document.querySelectorAll("button, select, input, canvas[tabindex]")].filter((each) =>
        !each.closest("[hidden]") && !(each.ariaLabel || each.textContent.trim() || each.labels?.length))
        .map((each) => each.outerHTML)""")
    assert nameless == []
    assert tab.run('[...document.querySelectorAll("[tabindex]")].every((each) => each.tabIndex === 0)')


def test_a_search_finds_what_the_table_has(tab: chromium.Page, entry: ReportEntry) -> None:
    assert entry.result is not None
    frame = entry.result.timeline
    compute = frame[frame["stream"] == "compute"]
    for text, wanted in {
        "backward mlp": int((frame["kind"].str.contains("backward") & frame["name"].str.contains("mlp")).sum()),
        "rank:3 microbatch:1": int(((frame["rank"] == 3) & (frame["microbatch"] == 1)).sum()),
        "compute layer:2 stage:1": int(((compute["layer"] == 2) & (compute["stage"] == 1)).sum()),
        ">100us": int((frame["end"] - frame["start"] > 100e-6).sum()),
        "no such thing": 0,
    }.items():
        tab.run(f"{CONTROLS}.search({json.dumps(text)})")
        assert tab.run(f"{CONTROLS}.hits.length") == wanted, text
    assert "0 found" in tab.run('document.querySelector("#gantt [data-part=found]").textContent')
    tab.run('document.querySelector("#gantt [data-part=search]").focus()')
    for character in "optimizer":
        tab.press(character)
    tab.press("Enter")
    assert "optimizer" in tab.run('document.querySelector("#gantt [data-part=tip] strong").textContent')


def test_the_part_in_view_is_a_table_too(tab: chromium.Page, entry: ReportEntry) -> None:
    assert entry.result is not None
    tab.run(f'{GANTT}.show(0, {GANTT}.duration / 3); document.querySelector("#gantt details").open = true')
    rows = tab.wait('document.querySelectorAll("#gantt [data-part=table-body] tr").length')
    frame = entry.result.timeline
    shown = frame[(frame["rank"] == 0) & (frame["start"] <= entry.result.step_time / 3)]
    assert rows == len(shown)
    first = tab.run('[...document.querySelectorAll("#gantt [data-part=table-body] tr")][0].innerText').split("\t")
    assert first[:3] == ["embedding", "forward", "compute"]


def test_light_dark_and_print(tab: chromium.Page, tmp_path: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.run(ground)
    tab.run('document.querySelector("#theme").click()')
    assert tab.run(ground) != light
    tab.frame()
    pixel = f"""(() => {{
        const copy = new OffscreenCanvas(1, 1).getContext("2d");
        copy.drawImage({GANTT}.canvas, 2, {GANTT}.canvas.height - 2, 1, 1, 0, 0, 1, 1);
        return [...copy.getImageData(0, 0, 1, 1).data];
    }})()"""
    assert sum(tab.run(pixel)[:3]) < 200
    assert tab.pdf(tmp_path / "page.pdf").startswith(b"%PDF")
    assert tab.run("document.documentElement.dataset.printing === undefined")
    tab.frame()
    assert sum(tab.run(pixel)[:3]) < 200
    tab.size(1240, 900, dark=True)
    tab.run("delete document.documentElement.dataset.theme")
    assert tab.run(ground) != light


def test_nothing_is_wider_than_a_narrow_screen(tab: chromium.Page) -> None:
    tab.size(390, 800)
    tab.frame()
    assert tab.run("document.documentElement.scrollWidth") <= 390


def test_several_runs_share_the_axis_and_one_is_picked_below(
    browser: chromium.Browser, entry: ReportEntry, tmp_path: Path
) -> None:
    path = tmp_path / "several.html"
    path.write_text(report_page([entry, replace(entry, name=HOSTILE)], title=HOSTILE))
    tab = chromium.Page(browser)
    tab.size(1240, 900)
    tab.open(path)
    assert tab.run(f"{GANTT}.runs.length") == 2
    assert tab.run(f"{GANTT}.rows.filter((row) => row.head).length") == 2
    assert tab.run("typeof hacked") == "undefined"
    assert tab.run('document.querySelector("h1").textContent') == HOSTILE_SHOWN
    assert tab.run('[...document.querySelectorAll("[data-run]")].filter((each) => each.offsetParent).length') == 5
    pick = "document.querySelector('#pick')"
    tab.run(f"(() => {{ {pick}.value = '1'; {pick}.dispatchEvent(new Event('change')); }})()")
    assert tab.run('document.querySelector("#memory-1 canvas").width') > 300
    every = "document.querySelector('#gantt [data-part=rows]')"
    stages = tab.run(f"{GANTT}.height")
    tab.run(f"(() => {{ {every}.value = 'all'; {every}.dispatchEvent(new Event('change')); }})()")
    assert tab.run(f"{GANTT}.height") > stages
    assert tab.problems == []


def test_memory_is_on_the_same_axis_and_says_what_it_is(tab: chromium.Page, entry: ReportEntry) -> None:
    assert entry.result is not None
    chart = "simcluster.charts.find((chart) => chart.curves)"
    for place, curve in enumerate(entry.memory):
        most = tab.run(f"{chart}.curves[{place}].most")
        result = entry.result
        held = result.facts.footprints[curve.peak.stage].with_pool_bytes(result.memory_peak_of(curve.rank).pools)
        assert most == pytest.approx(held.total, rel=1e-6)
    tab.run(f"{GANTT}.show(0, {GANTT}.duration / 2)")
    assert tab.run(f"{chart}.view") == pytest.approx(tab.run(f"{GANTT}.view"))
    assert "Most on rank" in tab.run('document.querySelector("#memory-0 [data-part=readout]").textContent')


@pytest.mark.benchmark
@pytest.mark.parametrize(("ranks", "spans", "limit"), [(64, 5000, 1.0), (8, 37_500, 2.0)])
def test_a_large_page_is_ready_soon(
    ranks: int, spans: int, limit: float, browser: chromium.Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``python -m pytest -m benchmark -s tests/test_report_page.py``: from opening the file to the drawn timeline."""
    path = tmp_path / "large.html"
    path.write_text(report_page([large_entry(ranks, spans)]))
    tab = chromium.Page(browser)
    tab.size(1240, 900)
    ready = []
    for _ in range(7):
        tab.open(path)
        ready.append(float(tab.run("document.documentElement.dataset.ready")) / 1e3)
    drawn = tab.run(f"[...Array(9)].map(() => {{ {GANTT}.draw(); return {GANTT}.drawn; }})")
    with capsys.disabled():
        print(f"\n{ranks} ranks x {spans:,} spans, {path.stat().st_size / 1e6:.1f} MB: ready in {min(ready):.2f} s "  # noqa: T201
              f"(of {', '.join(f'{each:.2f}' for each in ready)}); redrawn in {min(drawn):.0f} ms")  # fmt: skip
    assert min(ready) < limit
