"""The page that moves: variants that were played beforehand, their numbers, what they share, and their controls."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import pytest
from conftest import tiny_scenario

import simcluster
from simcluster.base.units import format_seconds
from simcluster.interactive.variants.controls_page import (
    VariantGrid,
    VariedKey,
    combination_names,
    page_with_controls,
    value_label,
)
from simcluster.interactive.variants.report_variants import simulate_variants
from simcluster.scenario.scenario import BaseScenario
from simcluster.step.simulate import simulate

VARY = {"pipeline.schedule": ["gpipe", "1f1b"], "training.micro_batch": [1, 2, 3]}
BASE = tiny_scenario(
    name="tiny",  # type: ignore[arg-type]
    cluster={"topology": "flat", "gpus": 4},
    parallel={"pp": 2, "dp": 2},
    training={"global_batch": 8},
    pipeline={"schedule": "1f1b"},
)


@pytest.fixture(scope="module")
def varied() -> VariantGrid:
    return simulate_variants(BaseScenario.from_scenario(BASE), VARY, processes=1)


@pytest.fixture(scope="module")
def page(varied: VariantGrid) -> str:
    return page_with_controls(varied)


def read(page: str) -> tuple[dict[str, Any], list[bytes]]:
    """What the script reads: the states, and the pieces that they are made of."""
    block = re.search(r'<script type="application/json" id="states">(.*?)</script>', page, re.DOTALL)
    columns = re.search(r'<script type="text/plain" id="columns">(.*?)</script>', page, re.DOTALL)
    assert block
    assert columns
    states, content, pieces = json.loads(block[1]), zlib.decompress(base64.b64decode(columns[1])), []
    for size in states["pieces"]:
        pieces.append(content[:size])
        content = content[size:]
    assert not content
    return states, pieces


def test_every_state_has_the_numbers_of_its_own_simulation(varied: VariantGrid, page: str) -> None:
    states, pieces = read(page)
    assert [state["name"] for state in states["states"]] == varied.names
    for at in (0, 4):
        schedule, micro_batch = ("gpipe", "1f1b")[at // 3], at % 3 + 1
        result = simulate(BASE.with_({"pipeline.schedule": schedule, "training.micro_batch": micro_batch}))
        state = states["states"][at]
        assert state["name"] == f"schedule {schedule}, micro_batch {micro_batch}"
        assert format_seconds(result.step_time) in pieces[state["texts"]["answer"]].decode()
        assert state["step"] == format_seconds(result.step_time)
        assert json.loads(pieces[state["data"]])["runs"][0]["timeline"]["count"] == len(result.spans)
        assert varied.simulated_variants[at].entry.account == result.account


def test_what_cannot_be_is_named_with_its_reason_and_the_base_is_the_scenario_as_it_stands(
    varied: VariantGrid, page: str
) -> None:
    states, _ = read(page)
    refused = [at for at, state in enumerate(states["states"]) if "refused" in state]
    assert refused == [2, 5]
    assert all("not a multiple of dp 2 x micro_batch 3" in states["states"][at]["refused"] for at in refused)
    assert varied.names[states["base"]] == "schedule 1f1b, micro_batch 1"
    assert "2 are invalid." in page
    assert page.count("not a multiple of dp 2 x micro_batch 3 = 6; use") == 1 + 2  # below the table, and for the script


def test_parts_that_are_equal_are_kept_once(page: str) -> None:
    states, pieces = read(page)
    played = [state for state in states["states"] if "texts" in state]
    assert len(set(pieces)) == len(pieces)
    named = [
        number
        for state in played
        for number in (*state["texts"].values(), *state["against"].values(), state["data"], *state["columns"])
    ]
    assert len(named) > 1.2 * len(set(named))
    assert set(named) == set(range(len(pieces)))


def test_the_page_is_the_same_whoever_plays_it_and_from_python(page: str, tmp_path: Path) -> None:
    assert page_with_controls(simulate_variants(BaseScenario.from_scenario(BASE), VARY, processes=2)) == page
    found = simcluster.report(BASE, vary=VARY, processes=1, to=tmp_path / "moves.html")
    assert found.read_text() == page
    with pytest.raises(simcluster.InputError, match="vary needs exactly one scenario, got 2"):
        simcluster.report(BASE, BASE, vary=VARY, to=tmp_path / "two.html")


def test_keys_have_short_names_and_numbers_in_order_slide() -> None:
    assert combination_names([("a.b", ["1", "2"]), ("c.d", ["x"])]) == ["b 1", "b 2"]
    assert combination_names([("a.b", ["1", "2"]), ("c.b", ["2", "3"])])[1] == "a.b 1, c.b 3"
    assert combination_names([("a.b", ["1"])]) == ["b 1"]
    assert VariedKey("a", (1, 2, 4)).is_slider
    assert not any(
        VariedKey("a", values).is_slider for values in [(1, 2), (1, 4, 2), (True, False, 1), ("x", "y", "z")]
    )
    assert VariedKey("a", ("x" * 99, "x" * 98)).labels[0] != VariedKey("a", ("x" * 99, "x" * 98)).labels[1]
    values = (True, None, [], ["tp", "cp"], [{"kind": "slow_gpu", "rank": 3}])
    assert [value_label(value) for value in values] == [
        "true",
        "not set",
        "none",
        "[tp, cp]",
        "[{kind: slow_gpu, rank: 3}]",
    ]


def test_a_hostile_value_is_text() -> None:
    evil = '</script><script>alert(1)</script>"&='
    varied = simulate_variants(BaseScenario.from_scenario(BASE), {"name": ["mild", evil]}, processes=1)
    page = page_with_controls(varied)
    assert "<script>alert" not in page
    assert varied.url_fragment(1) == "name=%3C%2Fscript%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E%22%26%3D"


# --- in a browser -----------------------------------------------------------------------------------------------------

DURATION = "simcluster.timeline.gantt.runs.at(-1).timeline.duration"
NOW = "document.querySelector('#now').textContent"


@pytest.fixture(scope="module")
def tab(browser: chromium.Browser, page: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    path = tmp_path_factory.mktemp("moving") / "moves.html"
    path.write_text(page)
    found = chromium.Page(browser)
    found.size(1240, 900)
    found.open(path)
    yield found
    assert found.problems == []
    assert found.requests == [path.as_uri()]


def choose(tab: chromium.Page, key: int, place: int) -> None:
    """As a person does: the button's click, the slider's move."""
    control = f"document.querySelectorAll('[data-key=\"{key}\"] input')"
    tab.run(
        f"(() => {{ const all = {control}; if (all.length > 1) all[{place}].click(); else "
        f"{{ all[0].value = {place}; all[0].dispatchEvent(new Event('input', {{bubbles: true}})); }} }})()"
    )
    tab.frame()


@chromium.in_a_browser
def test_controls_switch_the_whole_page_and_the_address_says_which(tab: chromium.Page, varied: VariantGrid) -> None:
    for at in (0, 4, 1):
        choose(tab, 0, at // 3)
        choose(tab, 1, at % 3)
        tab.wait(f"simcluster.moving.at === {at}")
        account = varied.simulated_variants[at].entry.account
        assert tab.run(DURATION) == pytest.approx(account.step_time, rel=1e-6)
        assert format_seconds(account.step_time) in tab.run(NOW)
        sections = "[...document.querySelectorAll('[data-state]')].map((part) => part.textContent).join()"
        assert format_seconds(account.step_time) in tab.run(sections)
        assert varied.url_fragment(at) in tab.run("location.hash")
        assert tab.run("document.querySelectorAll('.variants [aria-current]').length") == 1
    before = tab.run("history.length")
    tab.run("history.back()")
    tab.wait("simcluster.moving.at !== 1")  # the state before, which writes none of its own
    tab.run("history.forward()")
    tab.wait("simcluster.moving.at === 1")
    assert tab.run("history.length") == before


@chromium.in_a_browser
def test_a_variant_that_cannot_be_offers_the_nearest_that_can(tab: chromium.Page) -> None:
    choose(tab, 0, 1)
    choose(tab, 1, 2)
    said = tab.run("document.querySelector('#refused').textContent")
    assert "not a multiple of dp 2 x micro_batch 3" in said
    tab.run("document.querySelector('#refused button').click()")
    assert tab.run(NOW).startswith("schedule 1f1b, micro_batch 2: ")
    assert tab.run("document.querySelector('#refused').hidden")


@chromium.in_a_browser
def test_a_link_opens_its_state_and_a_view_stays_from_state_to_state(tab: chromium.Page, varied: VariantGrid) -> None:
    tab.run(f"location.hash = '#{varied.url_fragment(0)}&rows=stage&beside=1'")
    tab.wait("simcluster.moving.at === 0")
    assert tab.run("simcluster.timeline.gantt.runs.length") == 2
    assert tab.run("simcluster.timeline.gantt.runs[0].name") == varied.names[varied.base]
    tab.run("simcluster.timeline.gantt.show(0.001, 0.002)")
    view = tab.run("simcluster.timeline.gantt.view")
    choose(tab, 1, 1)
    tab.wait("simcluster.moving.at === 1")
    assert tab.run("simcluster.timeline.gantt.view") == pytest.approx(view, rel=1e-3)


@chromium.in_a_browser
def test_any_variant_can_be_pinned_and_the_others_are_told_against_it(tab: chromium.Page, varied: VariantGrid) -> None:
    one, other = varied.simulated_variants[0].entry.account, varied.simulated_variants[4].entry.account
    tab.run(f"location.hash = '#{varied.url_fragment(0)}'")
    tab.wait("simcluster.moving.at === 0")
    tab.run("document.querySelector('#pin').click()")
    choose(tab, 0, 1)
    choose(tab, 1, 1)
    tab.wait("simcluster.moving.at === 4")
    change = (
        f"{'+' if other.step_time > one.step_time else '−'}{abs(100 * (other.step_time / one.step_time - 1)):.1f} %"
    )
    assert f"({change} against A)" in tab.run(NOW)
    assert f"{varied.names[4]} against {varied.names[0]}" in tab.run(
        "document.querySelector('#differences').textContent"
    )
    assert tab.run("document.querySelector('.variants tbody tr').cells[3].textContent") == "A"
    assert tab.run("location.hash").endswith("&against=0")
    tab.run("simcluster.moving.pin(2)")  # cannot be
    assert tab.run("simcluster.moving.pinned") == 0
    tab.run(f"location.hash = '#{varied.url_fragment(4)}'")
    tab.wait(f"simcluster.moving.pinned === {varied.base}")


@chromium.in_a_browser
def test_the_keyboard_and_a_reader_find_every_control(tab: chromium.Page) -> None:
    unnamed = "[...document.querySelectorAll('#controls input')].filter((each) => !each.labels.length).length"
    assert tab.run(unnamed) == 0
    choose(tab, 1, 0)
    tab.run("document.querySelector('[data-key=\"1\"] input').focus()")
    tab.press("ArrowRight")
    tab.wait("simcluster.moving.digits(simcluster.moving.at)[1] === 1")
    assert tab.run("document.activeElement.getAttribute('aria-valuetext')") == "2"
