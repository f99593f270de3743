"""The studio in a notebook: what is set changes what is shown, and what cannot be is said; without a browser."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path

import chromium
import pytest
from conftest import tiny_scenario

import simcluster
from simcluster.base.errors import InputError
from simcluster.base.units import format_seconds
from simcluster.interactive.controls.settings import all_controls
from simcluster.interactive.notebook.widget import NotebookStudio
from simcluster.scenario.scenario import Scenario


@cache
def scenario() -> Scenario:
    return tiny_scenario(
        name="tiny",  # type: ignore[arg-type]
        cluster={"topology": "flat", "gpus": 4},
        parallel={"pp": 2, "dp": 2},
        training={"global_batch": 8},
    )


@pytest.fixture(scope="module")
def studio() -> NotebookStudio:
    return NotebookStudio(scenario())


def test_what_is_shown_is_the_step_of_the_settings(studio: NotebookStudio) -> None:
    before, after = (
        studio.make_content({}),
        studio.make_content({"training.recompute": "full"}, changed="training.recompute"),
    )
    for found, settings in ((before, {}), (after, {"training.recompute": "full"})):
        assert format_seconds(simcluster.simulate(scenario().with_(settings)).step_time) in found.html
        assert not found.problem
    assert "than the scenario as given" in after.html
    assert "recomputing activations" in after.html
    assert "than the scenario as given" not in before.html


def test_replicas_follow_and_of_every_control_some_values_go(studio: NotebookStudio) -> None:
    assert studio.scenario({"parallel.pp": 1}).dp == 4
    legal = 0
    for control in studio.controls({}):
        assert control["value"] in control["values"] or control["kind"] in ("fault", "price")
        for value in control["values"]:
            setting = [1, value] if control.get("place") else value
            with suppress(InputError):
                assert studio.scenario({control["key"]: setting}).gpus == 4
                legal += 1
    assert legal >= len(studio.controls({}))


def test_the_controls_are_those_of_the_page(studio: NotebookStudio) -> None:
    """All of them, but for those that need what this scenario has not."""
    there = {key for key, each in all_controls().items() if not each.needs}
    assert {each["key"] for each in studio.controls({})} == there - {
        "cluster.nodes"
    }  # GPUs side by side are no machines
    assert {each["group"] for each in studio.controls({})} >= {"Layout", "Faults", "Dollars"}


def test_a_slow_gpu_is_a_fault_and_no_slower_is_none(studio: NotebookStudio) -> None:
    assert studio.scenario({"slow_gpu": [3, 1.5]}).faults[-1].slowdown_factor() == 1.5
    assert studio.scenario({"slow_gpu": [3, 1.0]}).faults == scenario().faults
    slow = studio.result({"slow_gpu": [3, 1.5]}).step_time
    assert slow > studio.result({}).step_time
    assert (
        "no rank 9" in studio.make_content({"slow_gpu": [9, 2.0]}).problem
        or "rank" in studio.make_content({"slow_gpu": [9, 2.0]}).problem
    )


def test_what_cannot_be_is_said_with_the_rule_and_the_nearest_that_can(studio: NotebookStudio) -> None:
    found = studio.make_content({"training.micro_batch": 3}, changed="training.micro_batch")
    assert "not a multiple of dp 2 x micro_batch 3" in found.problem
    assert not found.html
    assert found.remedies[0]["settings"] == {"training.micro_batch": 4}
    for each in found.remedies:
        studio.scenario(each["settings"])
    alone = studio.make_content({"parallel.dp": 4}, changed="parallel.dp")
    assert alone.remedies[0] == {"words": "dp 2", "settings": {"parallel.dp": 2}}
    for hostile in ({"name": "x"}, {"slow_gpu": "all"}, {"parallel.tp": [[]]}, {"training.recompute": {"a": 1}}):
        assert studio.make_content(hostile, changed=next(iter(hostile))).problem
        assert studio.controls(hostile)


def test_a_timeline_to_zoom_into_stands_in_a_frame_of_its_own(studio: NotebookStudio) -> None:
    assert "<iframe" not in studio.make_content({}).html
    assert studio.make_content({}, zoom=True).html.count("<iframe") == 1


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "simcluster.interactive.notebook.widget", raising=False)
    with pytest.raises(InputError, match=re.escape("pip install 'simcluster[notebooks]'")):
        simcluster.studio(scenario())


def test_the_widget_answers_a_change_of_its_traits() -> None:
    pytest.importorskip("anywidget", reason="pip install 'simcluster[notebooks]'")
    widget = simcluster.studio(scenario())
    before, answered = widget.html, widget.answered
    widget.settings = {"training.micro_batch": 2}
    assert widget.answered == answered + 1
    assert widget.html != before
    assert format_seconds(widget.result.step_time) in widget.html
    assert widget.scenario.training.micro_batch == 2
    widget.settings = {"training.micro_batch": 3}
    assert "not a multiple" in widget.message
    assert widget.nearest == widget.remedies[0]["settings"] == {"training.micro_batch": 4}
    assert "not a multiple" in repr(widget)
    widget.settings = {}
    assert (widget.html, widget.message, widget.nearest) == (before, "", None)


# --- its script, with a kernel that has its answers ready -------------------------------------------------------------

_MODEL = """
const answers = $answers;
const state = {settings: {}, zoom: false, answered: 1};
const heard = {};
window.asked = [];
window.answer = () => {
  Object.assign(state, answers[JSON.stringify(state.settings)], {answered: state.answered + 1});
  heard["change:answered"]();
};
Object.assign(state, answers["{}"]);
const model = {
  get: (name) => state[name], set: (name, value) => { state[name] = value; },
  save_changes: () => { asked.push(JSON.stringify(state.settings)); setTimeout(() => window.held || answer(), 0); },
  on: (name, call) => { heard[name] = call; }, off: () => {},
};
(exported.default || exported).render({model, el: document.querySelector("#cell")});
document.documentElement.dataset.complete = "1";
"""


def cell_page(studio: NotebookStudio, asked: list[dict[str, object]]) -> str:
    """A page with the widget alone, whose kernel knows the answers to some settings."""
    answers = {}
    for settings in asked:
        found = studio.make_content(settings, changed=next(reversed(settings), ""))
        shown = {"html": found.html, "message": found.problem, "remedies": list(found.remedies)}
        answers[json.dumps(settings, separators=(",", ":"))] = {**shown, "controls": studio.controls(settings)}
    folder = files("simcluster.interactive.notebook") / "assets"
    script = (folder / "studio.js").read_text().replace("export default {render}", "const exported = {render}")
    known = json.dumps(answers).replace("</", "<\\/")
    return (
        f"<!doctype html><meta charset=utf-8><style>{(folder / 'studio.css').read_text()}</style>"
        f"<div id=cell></div><script>{script}{_MODEL.replace('$answers', known)}</script>"
    )


@pytest.fixture(scope="module")
def tab(
    browser: chromium.Browser, studio: NotebookStudio, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[chromium.Page]:
    path: Path = tmp_path_factory.mktemp("widget") / "cell.html"
    asked = [{}, {"training.recompute": "full"}, {"training.recompute": "full", "parallel.dp": 4},
             {"parallel.dp": 2, "training.recompute": "full"}, {"training.recompute": "selective"}]  # fmt: skip
    path.write_text(cell_page(studio, asked))
    found = chromium.Page(browser)
    found.size(900, 800)
    found.open(path)
    yield found
    assert found.problems == []


def change(tab: chromium.Page, key: str, place: int) -> None:
    control = f"document.querySelector('[name=\"{key}\"]')"
    tab.run(f"(() => {{ const it = {control}; it.value = '{place}'; it.dispatchEvent(new Event('input')); }})()")


@chromium.in_a_browser
def test_the_script_shows_what_comes_back_and_asks_for_the_last_change_alone(
    tab: chromium.Page, studio: NotebookStudio
) -> None:
    words = list(next(each for each in studio.controls({}) if each["key"] == "training.recompute")["values"])
    page = "document.querySelector('#cell').textContent"
    change(tab, "training.recompute", words.index("full"))
    tab.wait(f"{page}.includes('recomputing activations')")
    change(tab, "parallel.dp", 2)
    tab.wait("!document.querySelector('.message').hidden")
    assert "they must be equal" in tab.run("document.querySelector('.message').textContent")
    tab.run("document.querySelector('.message button').click()")
    tab.wait("document.querySelector('.message').hidden")
    assert tab.run("asked.at(-1)") == '{"parallel.dp":2,"training.recompute":"full"}'
    tab.run("[...document.querySelectorAll('button')].find((each) => each.textContent === 'Reset').click()")
    tab.wait(f"!{page}.includes('recomputing activations')")
    before = tab.run("asked.length")
    tab.run("window.held = true")
    for word in ("full", "none", "selective"):  # faster than a kernel answers
        change(tab, "training.recompute", words.index(word))
    tab.run("window.held = false; answer()")
    tab.wait(f"asked.length === {before + 2}")
    assert tab.run("asked.at(-1)") == '{"training.recompute":"selective"}'
    unnamed = "[...document.querySelectorAll('input, select')].filter((each) => !each.labels.length && !each.ariaLabel)"
    assert tab.run(f"{unnamed}.length") == 0
