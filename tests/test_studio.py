"""The studio: states and links, values of controls, who is answered, and that no message ends it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import re
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect
from websockets.typing import Origin

from simcluster.base.errors import InputError
from simcluster.base.gc_pause import pause_gc
from simcluster.base.units import format_seconds
from simcluster.cli import outputs
from simcluster.documents.builtin_documents import builtin_names, builtin_path
from simcluster.documents.yaml_documents import parse_document
from simcluster.interactive.controls.offered_values import describe_controls
from simcluster.interactive.controls.settings import all_controls
from simcluster.interactive.page import hints
from simcluster.interactive.page.hints import hint_parts
from simcluster.interactive.page.page_parts import (
    PARTS,
    QUICK_PARTS,
    SLOW_PARTS,
    PageQuery,
    compute_page_part,
    scenario_text,
)
from simcluster.interactive.page.result_cache import ResultCache
from simcluster.interactive.page.server import make_application
from simcluster.interactive.page.studio_state import (
    StudioFolder,
    StudioState,
    load_state_scenario,
    parse_link,
    parse_state,
)
from simcluster.interactive.page.worker_pool import PagePart, SimulationStopped, StudioPool, WindowSession
from simcluster.interactive.report import make_entry
from simcluster.interactive.report.html import typeset_numbers
from simcluster.results.rank_time import BREAKDOWN
from simcluster.scenario.effort_estimate import estimate_simulation_seconds
from simcluster.scenario.scenario import load_text
from simcluster.show.yaml_text import yaml_text
from simcluster.step.simulate import simulate

PORT = 8123
HOST = f"127.0.0.1:{PORT}"
HERE = Path()
BASE = "tiny_3d"


def values_of(base: str) -> dict[str, list[Any]]:
    """What the page offers for every control."""
    scenario = load_state_scenario(StudioState(base), StudioFolder(HERE))
    found = {each["key"]: each["values"] for each in describe_controls(scenario, scenario)}
    for key in found:
        control = all_controls()[key]
        if control.place:
            found[key] = [(0, float(number)) for number in found[key]]
        elif control.is_fault:
            found[key] = [float(number) for number in found[key]]
    return {**found, "price": [2.5]}


@cache  # when a test asks: every worker collects this file, and one of them runs its tests
def offered() -> dict[str, list[Any]]:
    """What the page offers for every control that there is: those of weeks, and those of experts."""
    return {**values_of("week_64xa100"), **values_of("mixtral_8x7b_128xh100")}


def states() -> st.SearchStrategy[StudioState]:
    chosen = st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in offered().items()})
    made = chosen.map(lambda found: tuple((key, found[key]) for key in all_controls() if key in found))
    return st.builds(StudioState, st.sampled_from([*builtin_names("scenarios"), "my run (2).yaml"]), made)


# --- states -----------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(state=st.deferred(states))
def test_a_state_is_a_link_and_a_message_and_back(state: StudioState) -> None:
    assert parse_link(state.to_link()) == state
    assert parse_link("#" + state.to_link()) == state
    assert parse_state(json.loads(json.dumps(state.to_json()))) == state


def test_a_state_is_a_scenario_file_of_its_own(tmp_path: Path) -> None:
    """Saved and opened again it is the same scenario, without a setting; its text is the base's, comments and all."""
    state = StudioState(BASE, (("parallel.tp", 4), ("training.recompute", "full"), ("slow_gpu", (1, 1.5))))
    text = scenario_text(state, tmp_path)
    (tmp_path / "saved.yaml").write_text(text)
    scenario, saved = load_state_scenario(state, StudioFolder(tmp_path)), load_text(text)
    assert saved.document() == {**scenario.document(), "name": scenario.title}
    base = builtin_path("scenarios", BASE).read_text().splitlines()
    assert text.startswith(base[0])
    assert len(text.splitlines()) < len(base) + 6
    assert (
        load_state_scenario(StudioState("saved.yaml"), StudioFolder(tmp_path)).document() == load_text(text).document()
    )


def test_replicas_and_gpus_follow_the_split_and_the_machines() -> None:
    folder = StudioFolder(HERE)
    assert load_state_scenario(StudioState("gpt3_175b_64xa100", (("parallel.tp", 4),)), folder).dp == 2
    assert load_state_scenario(StudioState("gpt3_175b_64xa100", (("cluster.nodes", 16),)), folder).gpus == 128
    # layers that were counted out for 16 stages are dealt anew for 8
    assert load_state_scenario(StudioState("llama3_405b_16384xh100", (("parallel.pp", 8),)), folder).parallel.pp == 8


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"parallel.tp": "8; import os"}, "whole number"),
        ({"parallel.tp": True}, "whole number"),
        ({"parallel.tp": 10**30}, "from 1 to 1,024"),
        ({"cluster.topology": "/etc/passwd"}, "not a control"),
        ({"model.preset": "../x.json"}, "not a control"),
        ({"pipeline.schedule": "evil.py:make"}, "gpipe"),
        ({"cluster.device": "/etc/passwd"}, "a100-80gb"),
        ({"slow_gpu": [0, float("nan")]}, "from 1 to 100"),
        ({"slow_gpu": {"rank": 1}}, r"\[rank, number\]"),
        ({"jitter": [0, 0.1]}, "number from 0"),
        ({"price": 0}, "number from"),
        ({"cluster.scale.network": float("inf")}, "from 0.01"),
        (["parallel.tp"], "mapping"),
    ],
)
def test_only_controls_can_be_set_and_only_to_what_they_take(wanted: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        parse_state({"base": BASE, "settings": wanted})


def test_every_value_that_is_offered_is_legal_or_refused_with_one_that_is() -> None:
    folder, refused = StudioFolder(HERE), 0
    for key, values in values_of(BASE).items():
        for value in values:
            state = StudioState(BASE, ((key, value),))
            try:
                load_state_scenario(state, folder)
            except InputError as problem:
                told = str(problem)
            else:
                continue
            refused += 1
            found = compute_page_part(PageQuery(state, None, HERE, key), "answer")
            assert found["problem"] == told.splitlines()
            assert found["remedies"], (key, value)
            for remedy in found["remedies"]:
                load_state_scenario(parse_state({"base": BASE, "settings": remedy["settings"]}), folder)
    assert refused > 10  # and the rules were met


def test_ways_out_are_of_what_the_rule_names_where_nobody_knows_what_was_changed() -> None:
    """As of a link, or a state that was come back to: not of the price, which was set last."""
    state = StudioState(BASE, (("parallel.tp", 8), ("slow_gpu", (0, 2.0)), ("price", 2.5)))
    known, unknown = (
        compute_page_part(PageQuery(state, None, HERE, key), "figures")["remedies"] for key in ("parallel.tp", "")
    )
    assert unknown == known
    assert {tuple(each["settings"]) for each in unknown} >= {
        ("slow_gpu", "price"),
        ("parallel.tp", "slow_gpu", "price"),
    }


# --- files ------------------------------------------------------------------------------------------------------------


def test_only_files_of_the_folder_are_read_or_written(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside.yaml"
    (inside / "below").mkdir(parents=True)
    outside.write_text("name: secret\n")
    (inside / "link.yaml").symlink_to(outside)
    (inside / "below" / "deep.yaml").write_text("name: deep\n")
    (inside / "mine.yaml").write_text("name: mine\n")
    folder = StudioFolder(inside)
    assert folder.scenario_names() == ["mine.yaml"]
    for name in ("../outside.yaml", str(outside), "link.yaml", "below/deep.yaml", "..", "mine.yaml/", "tiny_3d\0"):
        with pytest.raises(InputError):
            folder.scenario_path(name)
    for name in ("../new.yaml", "/tmp/new.yaml", "below/new", "link", "mine", ".hidden", "", "a\nb", "x" * 300):
        with pytest.raises(InputError):
            folder.path_to_write(name)
    assert folder.path_to_write("new one") == inside / "new one.yaml"


def test_python_of_a_file_is_not_run(tmp_path: Path) -> None:
    text = scenario_text(StudioState(BASE), tmp_path)
    document = parse_document(text).data
    text = yaml_text({**document, "pipeline": {"schedule": "own.py:make"}})
    (tmp_path / "own.py").write_text("raise SystemExit('ran')\n")
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError, match="does not run"):
        load_state_scenario(StudioState("mine.yaml"), StudioFolder(tmp_path))
    assert (
        load_state_scenario(
            StudioState("mine.yaml", (("pipeline.schedule", "gpipe"),)), StudioFolder(tmp_path)
        ).parallel.pp
        == 2
    )


# --- answers ----------------------------------------------------------------------------------------------------------


def test_every_part_is_answered_of_one_and_of_two() -> None:
    """In JSON that every browser reads, and the same in every process."""
    one, other = StudioState(BASE), StudioState(BASE, (("slow_gpu", (1, 1.5)),))
    for asked in (PageQuery(one, None, HERE), PageQuery(other, one, HERE, "slow_gpu")):
        found = {part: compute_page_part(asked, part) for part in PARTS}
        for part, each in found.items():
            assert each["part"] == part
            assert each["sections"] or part == "hints"
            assert PagePart.from_content(each).has_content
        assert len(found["timeline"]["data"]["runs"]) == 1 + (asked.pinned is not None)
    sections = found["answer"]["sections"]
    assert found["figures"]["sections"]["figures"].count("to come") == 3  # by "answer", which takes longer
    assert "to come" not in sections["figures"]
    assert {each["key"] for each in found["hints"]["hints"]} <= set(all_controls())
    assert (*QUICK_PARTS, *SLOW_PARTS) == tuple(PARTS)
    assert "B is" in sections["compared"]
    assert "slower than A" in sections["compared"]
    assert "B against A" in sections["differences"]
    assert any(f"k-{part}" in sections["where"] for part in BREAKDOWN)


def test_dollars_of_the_control_are_those_of_the_run_of_weeks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simcluster.interactive.page.page_parts._RUNS", 2)
    priced = PageQuery(StudioState("week_64xa100", (("price", 2.5),)), None, HERE)
    assert "at $2.50 per GPU-hour" in compute_page_part(priced, "run")["sections"]["run"]
    unpriced = compute_page_part(PageQuery(StudioState("week_64xa100", ()), None, HERE), "run")["sections"]["run"]
    assert "set the control “dollars per GPU-hour”" in unpriced


def test_a_hint_that_arrays_cannot_play_is_not_played_one_by_one(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that differ whose sends slow computation down: counted in arrays, which refuse."""
    scenario = tiny(
        parallel={"pp": 2, "dp": 16}, gpus=32, cluster={"topology": "dgx_h100", "nodes": 4},
        training={"global_batch": 32}, overlap={"interference": {"kind": "factor", "compute": 0.2}},
    )  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml_text(scenario.document()))
    jittery = scenario.with_({"faults": [{"kind": "jitter", "factor": {"kind": "normal", "sigma": 0.01}}]})
    told = {}
    for many in (2.0, 0.5):
        monkeypatch.setattr(hints, "_MOST_SECONDS", many * estimate_simulation_seconds(jittery))
        told[many] = compute_page_part(PageQuery(StudioState("mine.yaml"), None, tmp_path), "hint jitter 1")["hints"]
    assert [each["of"] for each in told[2.0]] == ["step"]
    assert told[0.5] == [{"key": "jitter", "of": "", "words": f"with 0.01 {hints._TOO_LONG}"}]


def test_what_another_value_would_give_is_what_it_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every control that is there, or why not; no step that takes long is played for it."""
    base = simulate(BASE)
    asked = PageQuery(StudioState(BASE), None, HERE)
    found = [each for part in hint_parts() for each in compute_page_part(asked, part)["hints"]]
    others = [
        ("parallel.zero", "parallel.zero=3", "with 3"), ("parallel.tp", "parallel.tp=4", "with 4"),
        ("overlap.tensor", "overlap.tensor=false", "if off"),
        ("pipeline.schedule", "pipeline.schedule=zb-h1", "with zb-h1"),
        ("cluster.device", "cluster.device=b200", "with b200"),
        ("slow_gpu", "faults+={kind: slow_gpu, rank: 0, slowdown: 1.05}", "with × 1.05"),
        ("slow_link", "faults+={kind: slow_link, nic_of: 0, speed: 0.91}", "with 0.91"),
    ]  # fmt: skip
    for key, change, where in others:
        other = simulate(load_state_scenario(StudioState(BASE), StudioFolder(HERE)).with_(["parallel.dp=null", change]))
        words = f"{typeset_numbers(f'{other.step_time / base.step_time - 1:+.1%}')} {where}"
        assert {"key": key, "of": "step", "words": words} in found
    batches = [each for each in found if each["key"] == "training.global_batch"]
    assert [(each["of"], each["words"][0]) for each in batches] == [
        ("tokens/s per GPU", "−"),
        ("tokens/s per GPU", "+"),
    ]
    machines = [(each["of"], each["words"]) for each in found if each["key"] == "cluster.nodes"]
    assert [of for of, _ in machines] == ["tokens/s per GPU"] * 2
    assert [words.split(" with ")[1] for _, words in machines] == ["2", "8"]
    assert not [each for each in found if each["key"] in ("parallel.ep", "parallel.cp") and "with 1" in each["words"]]
    found += compute_page_part(asked, "hints")["hints"]
    there = {each["key"] for each in compute_page_part(asked, "figures")["controls"]}
    assert {each["key"] for each in found} >= there
    assert {each["key"]: each["words"] for each in found}["price"] == "changes dollars, not the step"
    assert {each["key"]: each["words"] for each in found}["parallel.dp"] == "no other valid value"
    monkeypatch.setattr(hints, "_MOST_SECONDS", 0.0)
    told = [each["words"] for part in hint_parts() for each in compute_page_part(asked, part)["hints"]]
    assert {words.partition(":")[0] for words in told} == {"no hint"}


def test_of_a_fault_that_is_there_the_next_ones_are_told() -> None:
    asked = PageQuery(StudioState(BASE, (("slow_gpu", (1, 1.3)),)), None, HERE)
    found = [
        each["words"] for number in (0, 1) for each in compute_page_part(asked, f"hint slow_gpu {number}")["hints"]
    ]
    assert [words[0] + words.partition("with ")[2] for words in found] == ["−× 1.2", "+× 1.5"]


def test_what_is_advised_is_a_change_of_controls() -> None:
    """In the words of the page, none of a command line; what is tried gives what it says."""
    asked = PageQuery(StudioState(BASE, (("training.recompute", "selective"),)), None, HERE)
    found = compute_page_part(asked, "advice")
    told = found["sections"]["advice"]
    assert "--" not in told
    idea = found["ideas"][0]
    assert f"with {idea['words']} it takes" in told
    assert idea["settings"]["training.recompute"] == "selective"
    tried = compute_page_part(
        replace(asked, current=parse_state({"base": BASE, "settings": idea["settings"]})), "figures"
    )
    assert f"it takes {format_seconds(tried['step'])} " in told


def test_dollars_are_shown_once_a_price_is_given() -> None:
    told = [
        compute_page_part(PageQuery(StudioState(BASE, price), None, HERE), "figures")["sections"]["dollars"]
        for price in ((), (("price", 2.5),))
    ]
    dollars = 2.5 * 8 * simulate(BASE).step_time / 3600
    assert told[0] == ""
    assert f"{dollars:,.2g} dollars at 2.5 per GPU-hour" in told[1]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"cluster.scale.network": 0.5}, True),
        ({"cluster.scale.latency": 3}, True),
        ({"cluster.scale.nvlink": 0.5}, True),
        ({"faults+": {"kind": "slow_gpu", "rank": 3, "slowdown": 1.5}}, True),
        ({"training.recompute": "full"}, False),
        ({"cluster.scale.flops": 2}, False),
        ({"checkpoint": {"after": 1, "to": "100 GB/s"}, "steps": 3}, False),
    ],
)
def test_programs_are_kept_where_a_change_leaves_them(change: dict[str, Any], kept: bool) -> None:
    """And what is played with them is the same to the bit."""
    plays, base = ResultCache(), load_state_scenario(StudioState(BASE), StudioFolder(HERE))
    before, changed = plays.plan(base), base.with_(change)
    assert (plays.plan(changed).programs is before.programs) == kept
    assert (plays.plan(changed) is before) == ("faults+" in change)
    own, fresh = plays.result(changed), simulate(changed)
    assert own.step_time == fresh.step_time
    assert own.timeline.equals(fresh.timeline)


def test_programs_of_an_automatic_cut_are_kept_where_the_times_cut_alike() -> None:
    """A fault leaves the plan, faster links the programs; where they cut otherwise there are others."""
    cut = {"pipeline.layers_per_stage": "auto", "model.layers": 5}
    plays, base = ResultCache(), load_state_scenario(StudioState(BASE), StudioFolder(HERE)).with_(cut)
    before = plays.plan(base)
    slow = base.with_({"faults+": {"kind": "slow_gpu", "rank": 3, "slowdown": 1.5}})
    assert plays.plan(slow) is before
    for scale, alike in ((0.5, True), (2.0, False)):
        changed = base.with_({"cluster.scale.nvlink": scale})
        planned = plays.plan(changed)
        assert [planned.job.slices == before.job.slices, planned.programs is before.programs] == [alike, alike]
        assert plays.result(changed).timeline.equals(simulate(changed).timeline)


def test_a_result_is_let_go_of_without_the_garbage_collector() -> None:
    """Which hardly ever comes in a process that plays: a result in a cycle would stay, with all that it is of."""
    result = simulate(BASE)
    entry = make_entry(result)
    assert result.account
    assert entry.rows
    seen = weakref.ref(result)
    with pause_gc():
        del result, entry
        assert seen() is None


# --- the server -------------------------------------------------------------------------------------------------------


class Told:
    """A window that keeps what it is asked, and plays nothing."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def open_window(self) -> Told:
        return self

    def start_first_worker(self) -> None: ...

    def set_request(self, *request: Any) -> None:
        self.asked.append(request)

    async def cancel_request(self) -> None: ...

    async def close(self) -> None: ...

    async def call_once(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    async def iterate_messages(self) -> Any:
        await asyncio.Event().wait()
        yield ""


def visited(path: str, headers: dict[str, str], folder: Path = HERE) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of a GET, or (0, {}, "") of what is never answered."""
    sent: list[Any] = []
    way, _, query = path.partition("?")

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "path": way, "raw_path": way.encode(), "root_path": "",
        "query_string": query.encode(), "scheme": "http", "server": ("127.0.0.1", PORT), "client": ("127.0.0.1", 1),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
    }  # fmt: skip
    app = make_application(folder, None, PORT, Told())  # type: ignore[arg-type]
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(each.get("body", b"") for each in sent[1:]).decode()


def connected(messages: list[Any], headers: dict[str, str], folder: Path = HERE) -> tuple[list[Any], Told]:
    """What a WebSocket is sent in answer to some messages, one after the other, and what was asked of the window."""
    told, sent = Told(), list[Any]()
    left = iter([{"type": "websocket.connect"}, *messages, {"type": "websocket.disconnect", "code": 1000}])

    async def receive() -> Any:
        return next(left)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "websocket", "path": "/live", "raw_path": b"/live", "root_path": "", "query_string": b"",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        "scheme": "ws", "subprotocols": [], "server": ("127.0.0.1", PORT), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    asyncio.run(make_application(folder, None, PORT, told)(scope, receive, send))  # type: ignore[arg-type]
    return sent, told


def text(message: Any) -> dict[str, Any]:
    return {"type": "websocket.receive", "text": message if isinstance(message, str) else json.dumps(message)}


OWN = {"Host": HOST, "Origin": f"http://{HOST}"}
FOREIGN = [
    {"Host": "evil.example"},
    {"Host": f"evil.example:{PORT}"},
    {"Host": "127.0.0.1"},
    {"Host": "127.0.0.1:1"},
    {},
    {"Host": HOST, "Origin": "http://evil.example"},
    {"Host": HOST, "Origin": "null"},
    {"Host": HOST, "Origin": f"https://{HOST}"},
    {"Host": HOST, "Sec-Fetch-Site": "cross-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_requests_from_elsewhere_are_refused(headers: dict[str, str]) -> None:
    assert visited("/", headers)[0] == 403
    assert connected([], headers)[0] == [{"type": "websocket.close", "code": 1008}]


def test_a_websocket_says_where_it_is_from() -> None:
    assert connected([], {"Host": HOST})[0] == [{"type": "websocket.close", "code": 1008}]
    assert connected([], OWN)[0][0]["type"] == "websocket.accept"


def test_the_page_runs_its_own_script_alone_and_asks_nobody_else() -> None:
    status, headers, page = visited("/", {"Host": HOST})
    assert status == 200
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "https:" not in policy
    assert "$" not in page.partition("<script>")[0].partition("</style>")[2]
    assert BASE in page


def test_files_and_reports_of_a_state() -> None:
    own = {"Host": HOST}
    link = StudioState(BASE, (("training.recompute", "full"),)).to_link().replace("&", "%26").replace("=", "%3D")
    status, _, written = visited(f"/scenario?state={link}", own)
    assert status == 200
    assert load_text(written).training.recompute == "full"
    for path in ("/scenario", "/scenario?state=scenario%3D../x.yaml", "/report?state=scenario%3Dnone_such"):
        status, _, told = visited(path, own)
        assert status == 400
        assert "Traceback" not in told
    assert visited("/../../etc/passwd", own)[0] == 404


def test_a_thousand_malformed_messages_leave_it_running(tmp_path: Path) -> None:
    """Each is answered in words, nothing is written, and the next good one is asked."""
    draw = random.Random(1)
    pieces: list[Any] = [
        None, 0, -1, 1.5, 10**400, True, "", "x" * 5000, "\ud800", "../../x", [], {}, [[[]]], {"base": BASE},
        {"base": "../x.yaml"}, {"base": BASE, "settings": {"parallel.tp": []}}, {"base": BASE, "more": 1}, float("nan"),
    ]  # fmt: skip
    broken = ["", "{", "[" * 3000, "nul", '{"ask":1', "\x00", '{"ask":1e999}', '{"ask":"1"}', "[]", '"text"']
    messages: list[Any] = []
    while len(messages) < 1000:
        whole = {key: draw.choice(pieces) for key in ("ask", "live", "pinned", "changed") if draw.random() < 0.8}
        whole["ask"] = draw.choice([1, whole.get("ask")])
        if draw.random() < 0.2:
            whole["save"] = draw.choice(["../x", "/x.yaml", "", 3, None, [], "a/b"])
        valid = whole.get("live") == {"base": BASE} and "save" not in whole
        if not (valid and whole.get("pinned") in (None, {"base": BASE})):
            messages.append(text(draw.choice(broken) if draw.random() < 0.3 else whole))
    messages += [{"type": "websocket.receive", "bytes": b"\xff\xfe"}, text({"ask": 7, "live": {"base": BASE}})]
    sent, told = connected(messages, OWN, tmp_path)
    answers = [json.loads(each["text"])["of"] for each in sent[1:] if each["type"] == "websocket.send"]
    assert len(answers) == 1001
    assert all(each["problem"] and "Traceback" not in str(each) for each in answers)
    assert [request[0] for request in told.asked] == [7]
    assert list(tmp_path.iterdir()) == []


def test_text_that_is_no_utf_8_is_refused_and_no_trace_is_printed(tmp_path: Path) -> None:
    """To a real server, of which a second window is answered as before."""
    command = [sys.executable, "-m", "simcluster", "studio", BASE, "--folder", str(tmp_path), "-q"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            told = re.search(r"http://127\.0\.0\.1:\d+", server.stdout.readline())
            assert told is not None
            live, own = f"ws{told[0].removeprefix('http')}/live", Origin(told[0])
            with connect(live, origin=own) as wire:
                wire.protocol.send_text(b"\xff\xfe")
                wire.socket.sendall(b"".join(wire.protocol.data_to_send()))
                with pytest.raises(ConnectionClosedError) as refused:
                    wire.recv(30)
            with connect(live, origin=own) as wire:
                wire.send("[]")
                assert "must be JSON" in str(wire.recv(30))
        finally:
            server.terminate()
            timer = threading.Timer(30, server.kill)
            timer.start()
            printed = server.communicate()[1]
            timer.cancel()
        assert printed == ""
    assert refused.value.rcvd is not None
    assert refused.value.rcvd.code == 1007


def test_save_as_writes_a_new_file_and_no_other(tmp_path: Path) -> None:
    save = {"ask": 1, "save": "mine", "live": {"base": BASE, "settings": {"parallel.tp": 4}}}
    sent, _ = connected([text(save), text({**save, "ask": 2})], OWN, tmp_path)
    first, second = (json.loads(each["text"])["of"] for each in sent[1:])
    assert first == {"saved": "mine.yaml", "files": ["mine.yaml"]}
    assert "already exists" in second["problem"][0]
    assert load_state_scenario(StudioState("mine.yaml"), StudioFolder(tmp_path)).parallel.tp == 4


def test_what_is_missing_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "is_installed", lambda module: False)
    told = "^the studio needs Starlette, uvicorn and websockets; pip install 'simcluster\\[studio\\]', or write a page"
    with pytest.raises(InputError, match=told):
        outputs.require_libraries(argparse.Namespace(command="studio"))


# --- who plays --------------------------------------------------------------------------------------------------------


class Slowly:
    """A worker that answers after a moment, and counts; 0.01 s stand for a step."""

    def __init__(self) -> None:
        self.windows, self.calls, self.stops = 0, list[tuple[StudioState, str]](), 0

    async def call(self, function: Any, asked: PageQuery, part: str) -> dict[str, Any]:
        self.calls.append((asked.current, part))
        await asyncio.sleep(0.01)
        return {"part": part, "sections": {}}

    async def stop(self, task: asyncio.Task[Any]) -> None:
        self.stops += 1
        task.cancel()


def test_the_newest_request_wins_and_what_is_known_is_not_played_again() -> None:
    async def path() -> tuple[list[dict[str, Any]], Slowly]:
        pool, worker = StudioPool(1), Slowly()
        viewer = WindowSession(pool, worker, worker)  # type: ignore[arg-type]
        asked = [PageQuery(StudioState(BASE, (("parallel.tp", number),)), None, HERE) for number in (1, 2, 4)]
        said, answers = list[dict[str, Any]](), viewer.iterate_messages()
        for number in (0, 1, 2, 0):
            viewer.set_request(len(said) + number, asked[number], 0)
            if number != 1:  # the second is overtaken at once
                async for message in answers:
                    said.append(json.loads(message))
                    if (number == 0 and len(said) == 1) or "done" in said[-1]["of"]:
                        break
        await answers.aclose()  # type: ignore[attr-defined]
        await viewer.cancel_request()
        return said, worker

    said, worker = asyncio.run(path())
    played = [state.settings[0][1] for state, part in worker.calls if part == QUICK_PARTS[0]]
    assert played == [1, 4]
    parts = [each["of"].get("part") for each in said if each["ask"] == said[-2]["ask"]]
    assert said[0]["of"]["part"] == QUICK_PARTS[0]
    assert [*PARTS, *hint_parts()] == [part for part in parts if part]


class Killed(Slowly):
    """A worker whose process ends in the middle of a call, as at Ctrl-C."""

    async def call(self, function: Any, asked: PageQuery, part: str) -> dict[str, Any]:
        await super().call(function, asked, part)
        raise SimulationStopped


def test_a_call_that_ends_after_its_window_is_no_error() -> None:
    """At Ctrl-C the window closes first, and then the process that still simulates: asyncio has nothing to print."""

    async def path() -> list[dict[str, Any]]:
        printed = list[dict[str, Any]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
        worker = Killed()
        gc.freeze()  # or the collector goes through what all tests before this one hold: seconds
        viewer = WindowSession(StudioPool(1), worker, worker)  # type: ignore[arg-type]
        viewer.set_request(0, PageQuery(StudioState(BASE), None, HERE), 0)
        parts = asyncio.create_task(viewer._send_quick_parts())
        while not worker.calls and not parts.done():
            await asyncio.sleep(0)
        assert worker.calls
        parts.cancel()
        await asyncio.sleep(0.05)
        gc.collect()
        gc.unfreeze()
        return printed

    assert asyncio.run(path()) == []


def test_a_drag_shows_states_on_its_way_and_drops_stale_ones() -> None:
    """Of ten that come faster than they are played some are shown, by their figures alone; the last one in whole."""

    async def path() -> tuple[list[dict[str, Any]], Slowly]:
        worker = Slowly()
        viewer = WindowSession(StudioPool(1), worker, worker)  # type: ignore[arg-type]
        said, answers = list[dict[str, Any]](), viewer.iterate_messages()

        async def drag() -> None:
            for number in range(10):
                state = StudioState(BASE, (("cluster.scale.network", 0.5 + number / 10),))
                viewer.set_request(number, PageQuery(state, None, HERE), 0)
                await asyncio.sleep(0.015)

        moving = asyncio.create_task(drag())
        async for message in answers:
            said.append(json.loads(message))
            if "done" in said[-1]["of"]:
                break
        await moving
        await answers.aclose()  # type: ignore[attr-defined]
        return said, worker

    said, worker = asyncio.run(path())
    shown = [each["ask"] for each in said if each["of"].get("part") == QUICK_PARTS[0]]
    assert shown == sorted(shown)
    assert shown[-1] == 9
    assert len(shown) > 1
    whole = [each["of"].get("part") for each in said if each["ask"] == 9]
    assert [part for part in whole if part] == [*PARTS, *hint_parts()]
    assert len(worker.calls) - len(hint_parts()) < 10 * len(PARTS) / 2
