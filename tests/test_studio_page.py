"""The studio in a browser, as a person goes through it; needs Chromium, and is skipped where there is none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import chromium
import pytest

pytestmark = chromium.NEEDED

READY = "window.studio && document.documentElement.dataset.quick === String(studio.asked)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studio")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """A studio over an empty folder."""
    with served("tiny_3d", folder) as found:
        yield found


@contextmanager
def served(scenario: str, folder: Path) -> Iterator[str]:
    """A studio on a scenario: its address."""
    command = [sys.executable, "-m", "simcluster", "studio", scenario, "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline())
            assert found
            yield found[0]
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()


def text_of(tab: chromium.Page, selector: str) -> str:
    return str(tab.run(f"document.querySelector({selector!r}).innerText"))


def move(tab: chromium.Page, key: str, value: str) -> None:
    """Move a control to a value by its text, and wait for the answer."""
    tab.run(f"""(() => {{
        const row = studio.panel.rows.get({key!r}), input = row.input;
        if (input.type === "range") input.value = row.values.findIndex((each) => String(each) === {value!r});
        else input.value = {value!r};
        input.dispatchEvent(new Event("input"));
        input.dispatchEvent(new Event("change"));
    }})()""")
    tab.wait(READY)


def press(tab: chromium.Page, selector: str) -> None:
    tab.run(f"document.querySelector({selector!r}).click()")
    tab.wait(READY)


def test_a_person_changes_pins_compares_undoes_and_saves(browser: chromium.Browser, address: str, folder: Path) -> None:
    tab = chromium.Page(browser)
    tab.size(1400, 900)
    tab.call("Page.navigate", url=address)
    tab.wait(READY)
    assert text_of(tab, "h1") == "tiny model, tp 2, pp 2, dp 2"
    before = text_of(tab, ".figure .value")
    move(tab, "pipeline.schedule", "gpipe")
    assert "pipeline.schedule=%22gpipe%22" in tab.run("location.hash")
    tab.run("history.back()")  # as Undo does
    tab.wait("!location.hash.includes('gpipe')")
    tab.wait(READY)
    assert text_of(tab, ".figure .value") == before
    move(tab, "pipeline.schedule", "gpipe")
    press(tab, "[data-act=undo]")
    assert text_of(tab, ".figure .value") == before
    press(tab, "[data-act=pin]")
    move(tab, "slow_gpu", "2")
    assert "slower than A" in text_of(tab, "[data-place=compared]")
    assert tab.run("studio.gantt.gantt.runs.length") == 2
    tab.run("studio.set('price', 2.5, true)")
    tab.wait(READY)
    assert "dollars at 2.5 per GPU-hour" in text_of(tab, "[data-place=dollars]")
    assert tab.run("document.querySelectorAll('.pending').length") == 0  # all that was to come is there

    move(tab, "parallel.tp", "8")  # 8 GPUs and two stages: the rule is told, and what goes
    assert "tp x pp x cp that divides 8" in text_of(tab, "[data-part=problem]")
    ways_out = text_of(tab, "[data-part=remedies]")
    press(tab, "[data-part=remedies] button:last-of-type")
    assert tab.run("document.querySelector('[data-part=problem]').hidden")
    press(tab, "[data-act=undo]")
    assert text_of(tab, "[data-part=remedies]") == ways_out
    press(tab, "[data-part=remedies] button")

    link = tab.run("location.href")
    shown, state = text_of(tab, ".figure .value"), tab.run("studio.snapshot()")
    tab.call("Page.navigate", url="about:blank")
    tab.call("Page.navigate", url=link)
    tab.wait(READY)
    assert [text_of(tab, ".figure .value"), tab.run("studio.snapshot()")] == [shown, state]  # A as well as B
    tab.run("studio.save(); document.querySelector('[data-part=file]').value = 'mine'")
    tab.run("document.querySelector('[data-part=saving]').requestSubmit()")
    tab.wait("document.documentElement.dataset.saved")
    tab.run("document.querySelector('[data-part=saving]').requestSubmit()")  # the name is taken now
    assert tab.wait("document.querySelector('[data-part=saved]').textContent.includes('choose another name')")
    assert tab.run("document.querySelector('[data-part=problem]').hidden")  # nothing is wrong with the state
    assert text_of(tab, ".figure .value") == shown
    tab.run("studio.open('mine.yaml')")
    tab.wait(READY)
    assert text_of(tab, ".figure .value") == shown
    assert tab.problems == []
    assert all(each.startswith((address, "about:", "data:")) for each in tab.requests)
    told = text_of(tab, "[data-place=told]")
    with served(str(folder / "mine.yaml"), folder) as again:  # the same state, in which nothing is changed
        tab.call("Page.navigate", url=again)
        tab.wait(READY)
        assert [text_of(tab, ".figure .value"), text_of(tab, "[data-place=told]")] == [shown, told]
        assert json.loads(tab.run("JSON.stringify(studio.live)")) == {"base": "mine.yaml", "settings": {}}
        assert text_of(tab, "[data-part=changes]") == ""

    named = "each.labels?.length || each.ariaLabel || each.textContent.trim()"
    every = "[...document.querySelectorAll('input, select, button')]"
    assert tab.run(f"{every}.filter((each) => !({named})).length") == 0
    tab.size(380, 800, dark=True)
    tab.frame()
    assert tab.run("document.documentElement.scrollWidth") <= 380


def test_two_windows_do_not_disturb_each_other(browser: chromium.Browser, address: str) -> None:
    """While one is dragged the other keeps its state, its address and its answers; both end as each would alone."""
    one, other = chromium.Page(browser), chromium.Page(browser)
    for tab in (one, other):
        tab.size(1400, 900)
        tab.call("Page.navigate", url=address)
    for tab in (one, other):
        tab.wait(READY)
    move(one, "pipeline.schedule", "gpipe")
    resting = [text_of(one, ".figure .value"), one.run("location.hash")]
    other.run("window.seen = []; new MutationObserver(() => seen.push(studio.shown)).observe("
              "document.querySelector('[data-place=figures]'), {childList: true})")  # fmt: skip
    other.run("for (const scale of [0.5, 0.4, 0.3, 0.2]) studio.set('cluster.scale.network', scale, scale === 0.2)")
    last = other.run("studio.asked")
    one.run("studio.set('cluster.scale.flops', 0.5, true)")
    for tab in (one, other):
        tab.wait(READY)
    seen = other.run("seen")
    assert seen == sorted(seen), seen
    assert seen[-1] == last == other.run("studio.asked")
    assert len(set(seen)) < 4  # stale ones are dropped
    assert "flops" not in other.run("location.hash")
    assert "network" not in one.run("location.hash")
    press(one, "[data-act=undo]")
    assert [text_of(one, ".figure .value"), one.run("location.hash")] == resting
    one.run(f"studio.go({other.run('JSON.stringify(studio.live)')}, null)")
    one.wait(READY)
    assert text_of(one, ".figure .value") == text_of(other, ".figure .value")
    assert [*one.problems, *other.problems] == []


def test_the_timeline_that_comes_first_is_that_with_all_details(browser: chromium.Browser, address: str) -> None:
    """Its columns come in runs of equal numbers, and those of the other in byte planes."""
    tab = chromium.Page(browser)
    tab.size(1400, 900)
    tab.call("Page.navigate", url=address)
    tab.wait(READY)
    tab.run("""window.seen = {};
        const draw = studio.timeline.bind(studio);
        const names = ["start", "length", "wait", "microbatch", "stage", "step", "group"];
        studio.timeline = async (ask, of) => {
            await draw(ask, of);
            const {timeline} = studio.gantt.gantt.runs[0], {columns} = of.data.runs[0].timeline;
            seen[of.part] = names.map((name) => [name, columns[name].length, [...timeline[name]]]);
        }; 0""")
    move(tab, "slow_gpu", "1.5")
    first, whole = ([*zip(*tab.run(f"seen.{part}"), strict=True)] for part in ("timeline", "detail"))
    assert set(first[1]) == {3, 5}  # some are in runs
    assert set(whole[1]) == {3}
    assert [first[0], first[2]] == [whole[0], whole[2]]
    assert len(first[2][0]) > 100


def test_it_is_read_and_moved_without_a_mouse(browser: chromium.Browser, address: str) -> None:
    """By Tab to a control, where the focus is seen, and by arrow keys to another value, which is said; texts are plain
    to read in light and dark."""
    tab = chromium.Page(browser)
    tab.size(1400, 900)
    tab.call("Page.navigate", url=address)
    tab.wait(READY)
    focused = "document.activeElement"
    for _ in range(40):
        tab.press("Tab", windowsVirtualKeyCode=9)
        assert tab.run(f"getComputedStyle({focused}).outlineStyle") != "none", tab.run(f"{focused}.outerHTML")
        if tab.run(f"{focused}.id") == "control-training.global_batch":
            break
    value = f"{focused}.getAttribute('aria-valuetext')"
    before = tab.run(value)
    tab.press("ArrowRight", windowsVirtualKeyCode=39)
    tab.wait("location.hash.includes('training.global_batch=16')")
    tab.wait(READY)
    assert [before, tab.run(value)] == ["8", "16"]
    said = "[...document.querySelectorAll('[aria-live=polite]')].map((each) => each.textContent).join()"
    assert f"step time {text_of(tab, '.figure .value')}" in tab.run(said)
    low_contrast = (Path(__file__).parent / "low_contrast.js").read_text(encoding="utf-8")
    hint = "document.getElementById('hint-training.recompute')?.textContent"
    assert re.fullmatch(r"step .*\swith\sfull", str(tab.wait(f"({hint} || '').includes('full') && {hint}")))
    tab.run("window.hinted = []; const unhint = studio.panel.unhint.bind(studio.panel); "
            f"studio.panel.unhint = () => {{ unhint(); hinted.push({hint}); }}; 0")  # fmt: skip
    move(tab, "training.recompute", "full")
    assert tab.run("hinted") == [""]  # of another state they are told no more
    for dark in (False, True):
        tab.size(1400, 900, dark=dark)
        tab.frame()
        assert tab.run(low_contrast) == []
    # On black it is found; both in one script, since a later answer of the server draws the figure anew in between.
    grey = "document.querySelector('.figure .value').style.color = '#444'"
    assert len(tab.run(f"{grey};\n{low_contrast}")) == 1
