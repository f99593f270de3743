"""A report's timeline in a browser: which rows it has, what is drawn over them, links to views, fingers and keys.

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
from conftest import tiny_scenario
from report_pages import small_entry

from simcluster.interactive.report import ReportEntry, make_entry, report_page
from simcluster.step.simulate import simulate

pytestmark = chromium.NEEDED

GANTT = "simcluster.timeline.gantt"
CONTROLS = "simcluster.timeline.controls"
TIMELINE = f"{GANTT}.runs[0].timeline"


@pytest.fixture(scope="module")
def entry() -> ReportEntry:
    return small_entry()


@pytest.fixture(scope="module")
def folder(entry: ReportEntry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of one run, one of two, and one of eight ranks that are drawn from the two that were played."""
    found = tmp_path_factory.mktemp("pages")
    folded = simulate(
        tiny_scenario(
            cluster={"topology": "flat", "gpus": 8}, parallel={"tp": 2, "pp": 2, "dp": 2}, training={"global_batch": 8}
        )
    )
    (found / "one.html").write_text(report_page([entry]))
    (found / "two.html").write_text(report_page([entry, replace(entry, name="again")]))
    (found / "eight.html").write_text(report_page([make_entry(folded, ranks=range(8))]))
    return found


@pytest.fixture(scope="module")
def tab(browser: chromium.Browser) -> Iterator[chromium.Page]:
    found = chromium.Page(browser)
    found.size(1240, 900)
    yield found
    assert found.problems == []


def control(name: str) -> str:
    return f'document.querySelector("#gantt [data-part={name}]")'


def choose(tab: chromium.Page, name: str, value: str) -> None:
    tab.run(f"(() => {{ {control(name)}.value = '{value}'; {control(name)}.dispatchEvent(new Event('change')); }})()")


def test_a_link_opens_the_view_that_it_is_of(tab: chromium.Page, folder: Path) -> None:
    tab.open(folder / "one.html")
    tab.run(f"{GANTT}.show({GANTT}.duration * 0.3, {GANTT}.duration * 0.301)")
    choose(tab, "ranks", "0, 2-3")
    tab.run(f"{control('sends')}.click(); {control('path')}.click()")
    tab.run(f"{control('search')}.value = 'mlp backward'; {CONTROLS}.search('mlp backward')")
    view = tab.run(f"{GANTT}.view")
    text = tab.run(f"{CONTROLS}.write(), location.hash")
    parts = dict(part.split("=") for part in text.lstrip("#").split("&"))
    assert parts["ranks"] == "0,2-3"
    assert set(parts["show"].split(",")) == {"path", "sends"}
    assert parts["find"] == "mlp%20backward"
    tab.run(f"{GANTT}.show(0, {GANTT}.duration); {CONTROLS}.write()")
    tab.call("Page.navigate", url="about:blank")
    tab.call("Page.navigate", url=(folder / "one.html").as_uri() + text)
    tab.wait("document.documentElement?.dataset.complete")
    assert tab.run(f"{GANTT}.view") == pytest.approx(view, abs=2e-3 * (view[1] - view[0]))
    assert tab.run(f"[...new Set({GANTT}.rows.filter((row) => row.lane).map((row) => row.lane.rank))]") == [0, 2, 3]
    assert tab.run(f"{GANTT}.shows.path && {GANTT}.shows.sends && {CONTROLS}.hits.length > 0")
    assert tab.run("document.querySelector('#timeline').getBoundingClientRect().top") < 700
    tab.run('location.hash = "#answer"')
    assert tab.run(f"{GANTT}.view") == pytest.approx(view, abs=2e-3 * (view[1] - view[0]))


def test_a_view_says_where_it_begins_and_how_long_it_is(tab: chromium.Page, folder: Path) -> None:
    tab.open(folder / "one.html")
    duration = tab.run(f"{GANTT}.duration")
    tab.run(f"{GANTT}.show({duration} / 3, {duration} / 3 + 2e-6)")
    said = tab.run(f"{control('view')}.textContent")
    begin, _, length = said.partition(" + ")
    assert length == "2 µs"
    number, unit = begin.split()
    assert float(number) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit] == pytest.approx(duration / 3, abs=2e-8)


def test_keys_need_no_focus_but_leave_text_alone(tab: chromium.Page, folder: Path) -> None:
    tab.open(folder / "one.html")
    tab.run("document.querySelector('#timeline').scrollIntoView()")
    duration = tab.run(f"{GANTT}.duration")
    tab.press("w")
    view = tab.run(f"{GANTT}.view")
    assert view[1] - view[0] == pytest.approx(duration / 1.5)
    tab.press("d")
    assert tab.run(f"{GANTT}.view[0]") == pytest.approx(view[0] + 0.2 * (view[1] - view[0]))
    tab.press("a")
    tab.press("s")
    assert tab.run(f"{GANTT}.view") == pytest.approx([0, duration])
    tab.run(f"{control('search')}.focus()")
    tab.press("w")
    assert tab.run(f"{control('search')}.value") == "w"
    assert tab.run(f"{GANTT}.view") == pytest.approx([0, duration])


def test_two_fingers_zoom_to_what_is_between_them(tab: chromium.Page, folder: Path) -> None:
    tab.open(folder / "one.html")
    tab.run("document.querySelector('#timeline').scrollIntoView()")
    tab.frame()
    box = tab.run(f"(() => {{ const {{x, y}} = {GANTT}.canvas.getBoundingClientRect(); return [x, y]; }})()")
    held = tab.run(f"[{GANTT}.time(500), {GANTT}.time(600)]")

    def touch(kind: str, *at: float) -> None:
        points = [{"x": box[0] + x, "y": box[1] + 60, "id": finger} for finger, x in enumerate(at)]
        tab.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    touch("touchStart", 500)
    touch("touchStart", 500, 600)
    touch("touchMove", 450, 700)
    touch("touchMove", 400, 800)
    touch("touchEnd")
    assert tab.run(f"[{GANTT}.time(400), {GANTT}.time(800)]") == pytest.approx(held, rel=0.02)


def test_ranks_that_were_not_played_have_rows_and_names_of_their_own(tab: chromium.Page, folder: Path) -> None:
    tab.open(folder / "eight.html")
    assert tab.run(f"[...new Set({GANTT}.rows.map((row) => row.lane.rank))]") == list(range(8))
    assert len(tab.run(f"[...new Set({TIMELINE}.played.map((lane) => lane.rank))]")) == 2
    told = json.loads(
        tab.run(f"""JSON.stringify({TIMELINE}.lanes.map((lane) => [lane.rank, lane.stream, [...new Set(
        [...Array(lane.last - lane.first).keys()].map((i) => {TIMELINE}.groupOf(lane, lane.first + i)))]]))""")
    )
    groups = {rank: found for rank, stream, found in told if stream == "tp"}
    assert len({name for names in groups.values() for name in names}) == 4  # tp 2: every pair has its own
    tab.run(f"{CONTROLS}.search('rank:5 all_reduce')")
    assert tab.run(f"{CONTROLS}.hits.every(([, lane]) => lane.rank === 5) && {CONTROLS}.hits.length > 0")
    name = groups[5][0]
    tab.run(f"{CONTROLS}.search('{name} tp')")
    assert set(tab.run(f"{CONTROLS}.hits.map(([, lane]) => lane.rank)")) == {4, 5}
    choose(tab, "ranks", "5")
    assert tab.run(f"[...new Set({GANTT}.rows.map((row) => row.lane.rank))]") == [5]
    choose(tab, "ranks", "99")
    assert tab.run(f"{control('ranks')}.validity.customError")
    assert tab.run(f"[...new Set({GANTT}.rows.map((row) => row.lane.rank))]") == [5]


def test_a_call_says_how_with_whom_and_for_whom(tab: chromium.Page, folder: Path) -> None:
    tab.open(folder / "one.html")
    facts = json.loads(
        tab.run(f"""JSON.stringify({TIMELINE}.lanes.flatMap((lane) => [...Array(lane.last - lane.first).keys()]
        .map((i) => ({{rank: lane.rank, ...Object.fromEntries({CONTROLS}.facts({{run: 0, lane, span: lane.first + i,
        others: 0}}))}}))))""")
    )
    sends = [fact for fact in facts if fact[""].startswith("send")]
    receives = [fact for fact in facts if fact[""].startswith("recv")]
    assert {fact["to"] for fact in sends if fact["rank"] == "0"} == {"rank 2"}
    assert {fact["from"] for fact in receives if fact["rank"] == "0"} == {"rank 2"}
    assert all(" among 2" in fact["algorithm"] for fact in facts if fact.get("group", "").startswith("dp"))
    assert any(fact.get("waited before", "").endswith("for rank 3") for fact in facts if fact["rank"] == "2")


def test_two_runs_are_rank_beside_rank_or_one_below_the_other(tab: chromium.Page, folder: Path) -> None:
    tab.open(folder / "two.html")
    order = f"{GANTT}.rows.filter((row) => row.first).map((row) => `${{row.run}} ${{row.lane.rank}}`)"
    ranks = tab.run(f"{TIMELINE}.ranks.filter((rank) => {order}.includes(`0 ${{rank}}`))")
    assert tab.run(order) == [f"{run} {rank}" for rank in ranks for run in (0, 1)]
    assert 3 in ranks, "one rank per stage, and the slow one"
    choose(tab, "order", "below")
    assert tab.run(order) == [f"{run} {rank}" for run in (0, 1) for rank in ranks]
    choose(tab, "order", "1")
    assert tab.run(order) == [f"1 {rank}" for rank in ranks]


def test_the_critical_path_is_drawn_and_has_no_gap(tab: chromium.Page, folder: Path, entry: ReportEntry) -> None:
    tab.open(folder / "one.html")
    path = json.loads(
        tab.run(f"""JSON.stringify({{span: [...{TIMELINE}.path.span], start: [...{TIMELINE}.path.start],
        length: [...{TIMELINE}.path.length], seconds: {TIMELINE}.seconds(1)}})""")
    )
    start, length = np.array(path["start"]), np.array(path["length"])
    assert start[0] == 0
    assert (start[1:] == start[:-1] + length[:-1]).all()
    assert entry.result is not None
    assert length.sum() * path["seconds"] == pytest.approx(entry.result.step_time)
    ink = f"""(() => {{ {GANTT}.draw(); const {{width, height}} = {GANTT}.canvas;
        const copy = new OffscreenCanvas(width, height).getContext("2d", {{willReadFrequently: true}});
        copy.drawImage({GANTT}.canvas, 0, 0);
        const data = copy.getImageData(0, 0, width, height).data;
        return data.reduce((sum, value, at) => sum + (at % 4 < 3 && value < 40 ? 1 : 0), 0); }})()"""
    bare = tab.run(ink)
    tab.run(f"{GANTT}.shows.path = true")
    with_path = tab.run(ink)
    tab.run(f"{GANTT}.shows.path = false; {GANTT}.shows.sends = true")
    assert with_path > bare + 1000
    assert tab.run(ink) > bare
