"""The report as a file: what is in it, that hostile names stay text, saved results, and bad input."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from conftest import tiny_scenario
from hypothesis import given
from hypothesis import strategies as st
from report_pages import many_spans, other_entry, small_entry
from test_gantt import _MISSING_CONE, lab

from simcluster.base.errors import InputError
from simcluster.base.texts import escape_line_breaks
from simcluster.cli import main
from simcluster.interactive.report import ReportEntry, colours, details, make_entry, report_page
from simcluster.interactive.report.colours import ideal_schedule_spans
from simcluster.interactive.report.html import element, json_block, typeset_numbers
from simcluster.interactive.report.packing import BinaryColumns, choose_shown_ranks, pack_timeline
from simcluster.scenario.prediction_intervals import similar_studies
from simcluster.scenario.scenario import load_text
from simcluster.show import palette
from simcluster.show.table_cells import format_signed_seconds
from simcluster.show.yaml_text import yaml_text
from simcluster.step.simulate import simulate
from simcluster.studies.variations import differences

HOSTILE = "</script><script>hacked = 1</script><img src=x onerror='hacked = 1'> <!-- \" & \u2028"
HOSTILE_SHOWN = HOSTILE.replace("\u2028", r"\u2028")


class Reader(HTMLParser):
    """Text, tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open[-1] if self._open else "", []).append(data)

    def of(self, tag: str) -> list[str]:
        return self.texts.get(tag, [])

    def words(self) -> str:
        return " ".join(" ".join(parts) for tag, parts in self.texts.items() if tag not in ("script", "style"))


@pytest.fixture(scope="module")
def entry() -> ReportEntry:
    return small_entry()


@pytest.fixture(scope="module")
def other() -> ReportEntry:
    return other_entry()


def data_of(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def columns_of(text: str) -> bytes:
    found = re.search(r'<script type="text/plain" id="columns">(.*?)</script>', text, re.DOTALL)
    assert found
    return zlib.decompress(base64.b64decode(found[1]))


def column(raw: bytes, place: list) -> np.ndarray:
    """A column as data.js reads it."""
    offset, count, kind = place
    width = np.dtype(kind).itemsize
    planes = np.frombuffer(raw, np.uint8, count * width, offset).reshape(width, count)
    return np.ascontiguousarray(planes.T).view(f"<{kind}").ravel()


# --- what is on the page ----------------------------------------------------------------------------------------------


def test_a_page_has_all_its_parts_and_the_same_numbers_as_the_result(entry: ReportEntry) -> None:
    text = report_page([entry])
    read = Reader(text)
    assert read.of("h2") == [
        "Answer", "Where the time went", "Timeline", "Memory", "Links", "Stragglers", "Schedule", "Accuracy",
        "Scenario",
    ]  # fmt: skip
    words = read.words()
    for shown in (f"{100 * entry.numbers['mfu']:.1f} %", "slow gpu, rank 3, slowdown 1.5", "tiny.yaml"):
        assert shown in words
    for name, seconds in entry.account.breakdown.items():
        assert (f'class="k-{name}"' in text) == (seconds > 0), name


def test_the_same_runs_give_the_same_page(entry: ReportEntry) -> None:
    assert report_page([entry]) == report_page([small_entry()])


def test_a_page_asks_for_nothing_and_lets_only_its_own_script_run(entry: ReportEntry) -> None:
    text = report_page([entry])
    read = Reader(text)
    for tag, attributes in read.tags:
        assert tag not in ("link", "iframe", "img", "object", "base", "form"), tag
        assert "src" not in attributes
        assert not [name for name in attributes if name.startswith("on") or name == "style"], attributes
        assert attributes.get("href", "#").startswith("#")
    policy = next(str(a["content"]) for _, a in read.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_every_table_has_a_caption_and_headings_and_every_drawing_a_name(
    entry: ReportEntry, other: ReportEntry
) -> None:
    text = report_page([entry, other])
    for table in re.findall(r"<table>.*?</table>", text, re.DOTALL):
        assert re.match(r"<table><caption>[^<]+</caption><thead>", table), table[:200]
        assert 'scope="col"' in table
    for tag, attributes in Reader(text).tags:
        if tag in ("canvas", "svg"):
            assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true", attributes
        if tag == "canvas" and attributes.get("role") == "application":
            assert attributes["tabindex"] == "0"
    assert text.count("<h1") == 1
    assert '<html lang="en">' in text


def test_a_part_of_a_drawing_lies_in_no_other() -> None:
    """What stands behind a hatched bar of waiting is seen: a browser puts what follows an open element inside it."""
    slow = [{"kind": "slow_gpu", "rank": 0, "factor": 2.0}]
    layout = {"gpus": 2, "cluster": {"topology": "flat", "gpus": 2}, "parallel": {"dp": 2}}
    runs = [simulate(tiny_scenario(**layout, training={"global_batch": 2}, faults=faults)) for faults in ([], slow)]
    text = report_page([make_entry(run) for run in runs])
    hatched = re.findall(r"<rect[^>]*url\(#hatch\)[^>]*>(</rect>)?", text)
    assert hatched
    assert all(hatched)
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        assert drawing.count("<rect") == drawing.count("</rect>")


def test_runs_side_by_side_are_attributed_as_compare_does(entry: ReportEntry, other: ReportEntry) -> None:
    text = report_page([entry, other])
    words = Reader(text).words()
    assert entry.result is not None
    assert other.result is not None
    causes = differences([entry.result, other.result]).iloc[1]
    largest = causes.abs().max()
    told = [seconds for seconds in causes if abs(seconds) > 0.01 * largest]
    assert len(told) > 2
    for seconds in told:
        assert typeset_numbers(format_signed_seconds(seconds)) in words
    assert causes.sum() == pytest.approx(other.account.step_time - entry.account.step_time, abs=1e-12)


def test_the_nearest_validated_studies_are_a_table_for_scenarios_and_saved_results(
    entry: ReportEntry, other: ReportEntry
) -> None:
    assert entry.scenario is not None
    assert entry.result is not None
    found = similar_studies(entry.scenario, entry.result.facts.model_flops)
    text = details.accuracy_section([entry])
    saved = details.accuracy_section([replace(entry, result=None)])
    assert text == saved
    rows = [row for row in re.findall("<tr>.*?</tr>", text) if 'scope="row"' in row]
    assert len(rows) == 6
    for row, study in zip(rows, found, strict=False):
        for shown in (study.study, study.like, f"{study.rows:,}", f"{100 * study.mean:.1f} %"):
            assert shown in row
    both = details.accuracy_section([entry, other])
    assert both.count("<table") == len({similar_studies(each.scenario, each.result.facts.model_flops)
                                        for each in (entry, other) if each.scenario and each.result})  # fmt: skip


def test_the_heading_is_the_scenario_that_all_vary_or_their_names(entry: ReportEntry, other: ReportEntry) -> None:
    assert "<h1>tiny</h1>" in report_page([entry])
    assert "<h1>tiny</h1>" in report_page([replace(entry, name="a"), replace(other, name="b")])
    assert "<h1>mine</h1>" in report_page([entry], title="mine")


# --- names are text ---------------------------------------------------------------------------------------------------


def test_a_hostile_name_is_text_wherever_it_comes(entry: ReportEntry, other: ReportEntry) -> None:
    plain, hostile = (
        report_page([entry, other]),
        report_page([replace(entry, name=HOSTILE, origin=HOSTILE), other], title=HOSTILE),
    )
    tags = [[tag for tag, _ in Reader(text).tags] for text in (plain, hostile)]
    assert tags[0] == tags[1]
    assert HOSTILE_SHOWN in Reader(hostile).of("h1")[0]
    assert data_of(hostile)["runs"][0]["name"] == HOSTILE


@given(st.text())
def test_any_text_comes_out_of_html_and_json_as_it_went_in(text: str) -> None:
    read = Reader(element("p", text, title=text))
    assert [tag for tag, _ in read.tags] == ["p"]
    assert "".join(read.of("p")) == text.replace("\r\n", "\n").replace("\r", "\r")
    block = json_block("x", text)
    assert "</" not in block[:-9]
    assert "<!--" not in block
    assert json.loads(re.sub(r"^<script[^>]*>|</script>$", "", block)) == text


# --- columns of numbers -----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**31), 2**32 - 1).filter(lambda n: n >= 0), max_size=40), st.integers(0, 3))
def test_columns_come_back(numbers: list[int], before: int) -> None:
    blob = BinaryColumns()
    blob.add_integers(np.arange(before))
    place = blob.add_integers(np.array(numbers, dtype=np.int64))
    small = blob.add_integers(np.array([-1, 5]))
    raw = zlib.decompress(base64.b64decode(blob.compressed_text()))
    assert column(raw, list(place)).tolist() == numbers
    assert column(raw, list(small)).tolist() == [-1, 5]


def test_the_timeline_on_the_page_is_the_timeline(entry: ReportEntry) -> None:
    """Every span with its words, to a part in 2^32 of the run."""
    text = report_page([entry])
    raw, packing = columns_of(text), data_of(text)["runs"][0]["timeline"]
    place = {name: column(raw, value) for name, value in packing["columns"].items()}
    kinds = {name: column(raw, value) for name, value in packing["what"].items()}
    start = np.cumsum(place["start"].astype(np.uint64)) % 2**32
    tick = packing["duration"] / (2**32 - 1)
    edges = [lane[2] for lane in packing["lanes"]] + [packing["count"]]
    found = set()
    for (rank, stream, first), last in zip(packing["lanes"], edges[1:], strict=True):
        assert (np.diff(start[first:last].astype(np.int64)) >= 0).all()
        for i in range(first, last):
            what = place["what"][i]
            texts = (packing["words"][kinds[name][what]] for name in ("stream", "kind", "name"))
            found.add((rank, *texts, int(kinds["layer"][what]), int(place["microbatch"][i]), int(start[i]),
                       int(start[i]) + int(place["length"][i])))  # fmt: skip
            assert packing["words"][stream] == packing["words"][kinds["stream"][what]]
    assert entry.result is not None
    rows = entry.result.timeline.itertuples()
    wanted = {
        (
            row.rank,
            row.stream,
            row.kind,
            row.name,
            row.layer,
            row.microbatch,
            round(row.start / tick),
            round(row.end / tick),
        )
        for row in rows
    }
    assert len(found) > 50
    assert found == wanted


def test_too_many_spans_lose_whole_ranks_evenly() -> None:
    spans, left_out = choose_shown_ranks(many_spans(16, 50), 430)
    assert len(np.unique(spans.rank)) == 8
    assert {0, 15} <= set(np.unique(spans.rank).tolist())
    assert len(spans) + 50 * len(left_out) == 16 * 50
    assert choose_shown_ranks(many_spans(3, 50), 150)[1] == []


def test_ranks_that_were_not_simulated_are_shown_under_their_own_groups(entry: ReportEntry) -> None:
    assert entry.result is not None
    folded = simulate(tiny_scenario(cluster={"topology": "flat", "gpus": 4}, parallel={"tp": 2, "dp": 2}))
    assert len(folded.weights) == 1
    asked = make_entry(folded, ranks=[3, 1])
    timeline = data_of(report_page([asked]))["runs"][0]["timeline"]
    assert [(row["rank"], row["source"]) for row in timeline["rows"]] == [(1, 0), (3, 0)]
    assert timeline["count"] == len(folded.spans), "no byte for a rank that is drawn from another"
    assert "ranks are left out" not in report_page([asked])
    words = timeline["words"]
    own = [{words[int(code)]: words[name] for code, name in row["groups"].items()} for row in timeline["rows"]]
    for row, groups in zip((1, 3), own, strict=True):
        source = set(folded.timeline_of(0)["group"])
        assert {groups.get(name, name) for name in source} == set(folded.timeline_of(row)["group"])
    with pytest.raises(InputError, match="no rank 4; this job has ranks 0 to 3"):
        make_entry(folded, ranks=[4])


def test_the_schedule_is_drawn_in_units_of_a_forward(entry: ReportEntry) -> None:
    assert entry.schedule is not None
    spans = ideal_schedule_spans(entry.schedule)
    assert float(spans.end.max()) == (4 + 1) * 3  # 1F1B of 2 stages and 4 microbatches: (m + p - 1)(F + B)
    assert pack_timeline(spans, BinaryColumns(), weights={})["count"] == 2 * 2 * 4


# --- the scenario -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["plain", "yes", "1e3", "a: b # c", "tab\t\x7f\u2028end", "emoji \U0001f600", "\ufeff"]
)
def test_the_scenario_on_the_page_is_the_scenario(name: str, entry: ReportEntry) -> None:
    assert entry.scenario is not None
    scenario = entry.scenario.model_copy(update={"name": escape_line_breaks(name)})  # as it is when it has been read
    assert load_text(yaml_text(scenario.document())) == scenario


# --- colours ----------------------------------------------------------------------------------------------------------


def test_colours_on_dark_ground_stand_out_and_stay_apart_for_every_reader() -> None:
    ground = palette.parse_rgb(colours.DARK_GROUND)
    families = [
        {kind: colours.lighten_for_dark(palette.op_colour("compute", kind), kind) for kind in palette.COMPUTE_KINDS},
        {stream: colours.lighten_for_dark(palette.op_colour(stream, "send"), stream) for stream in palette.STREAMS},
    ]
    for family in families:
        for colour in family.values():
            assert colours.contrast_ratio(colour, ground) >= 3.0
        for one, another in combinations(family, 2):
            for vision, cone in _MISSING_CONE.items():
                distance = np.linalg.norm(lab(family[one], cone) - lab(family[another], cone))
                assert distance > 15, (one, another, vision, distance)


def test_text_on_the_page_is_readable_in_both_themes() -> None:
    style = report_page([small_entry()])
    for theme in re.findall(r"--ground: (#\w+); --text: (#\w+); --quiet: (#\w+);.*?--accent: (#\w+);", style):
        ground, *texts = (palette.parse_rgb(code) for code in theme)
        for text in texts:
            assert colours.contrast_ratio(ground, text) >= 4.5
    levels = re.findall(r"--h-(\d+):(#\w+);--t-\1:(#\w+);", style)
    assert len(levels) == 3 * colours.HEAT_LEVELS
    for _, fill, text in levels:
        assert colours.contrast_ratio(palette.parse_rgb(fill), palette.parse_rgb(text)) >= 3.0


# --- saved results and the command ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result saved by the command."""
    folder = tmp_path_factory.mktemp("saved")
    assert main(["run", "tiny_3d", "--json", str(folder / "run.json")]) == 0
    return folder


def test_a_saved_result_says_what_it_lacks(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = files / "page.html"
    assert main(["report", str(files / "run.json"), "-o", str(out)]) == 0
    words = Reader(out.read_text()).words()
    assert "lacks the timeline" in words
    assert data_of(out.read_text())["runs"][0]["timeline"] is None
    printed = capsys.readouterr().out
    assert f"{out}: 0.1 MB, 1 run" in printed


def test_a_result_saved_before_padding_was_known_has_real_tokens_only(files: Path) -> None:
    saved = json.loads((files / "run.json").read_text())
    old = files / "old.json"
    later = ("real_", "mfu_without_padding")
    old.write_text(json.dumps({name: value for name, value in saved.items() if not name.startswith(later)}))
    out = files / "page.html"
    assert main(["report", str(old), str(files / "run.json"), "-o", str(out)]) == 0
    words = Reader(out.read_text()).words()
    assert words.count(f"{saved['tokens_per_s_per_gpu']:,.1f}") >= 2
    assert "padding" not in words


def test_scenarios_and_results_on_one_page_and_the_numbers_as_json(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = files / "page.html"
    command = ["report", str(files / "run.json"), "tiny_3d", "--json", "-", "-o", str(out)]
    assert main(command) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in numbers] == ["tiny model, tp 2, pp 2, dp 2", "tiny model, tp 2, pp 2, dp 2 (2)"]
    assert numbers[0]["step_time_s"] == numbers[1]["step_time_s"]
    assert "exactly as long as" in Reader(out.read_text()).words()


def test_variants_are_named_by_what_varies(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    command = ["report", "tiny_3d", "--vary", "pipeline.schedule=gpipe,1f1b", "steps=1", "--side-by-side"]
    assert main([*command, "-o", str(out)]) == 0
    assert [run["name"] for run in data_of(out.read_text())["runs"]] == ["schedule gpipe", "schedule 1f1b"]
    assert "<h1>tiny model, tp 2, pp 2, dp 2</h1>" in out.read_text()


BAD = {
    "no page": (["tiny_3d", "-o", "page.pdf"], "a page ends in .html"),
    "no folder": (["tiny_3d", "-o", "nowhere/page.html"], "the folder nowhere does not exist"),
    "no output": (["tiny_3d"], "-o/--output is required"),
    "no scenario": (["nothing", "-o", "x.html"], "no such file"),
    "overrides of a result": (["run.json", "--set", "steps=2", "-o", "x.html"], "--set and --vary cannot change"),
    "ranks of a result": (["run.json", "--ranks", "0", "-o", "x.html"], "--ranks cannot change run.json"),
    "varied twice": (["tiny_3d", "--vary", "steps=1", "--vary", "steps=2", "-o", "x.html"], "steps is given twice"),
    "nothing varies": (["tiny_3d", "--side-by-side", "-o", "x.html"], "applies to variants of --vary"),
    "too many variants": (["tiny_3d", "--vary", "steps=1" + ",2" * 200, "-o", "x.html"], "at most 200"),
    "none can be": (["tiny_3d", "--vary", "parallel.pp=77,78", "-o", "x.html"], "all 2 variants are invalid"),
    "no such rank": (["tiny_3d", "--ranks", "0,8", "-o", "x.html"], "there is no rank 8"),
    "timeline of a result": (["run.json", "--timeline", "run.csv", "-o", "x.html"], "name the scenario instead"),
    "half a result": (["half.json", "-o", "x.html"], "not JSON"),
    "no result": (["none.json", "-o", "x.html"], "has no step_time_s"),
    "not a number": (["nan.json", "-o", "x.html"], "nan.json: NaN is not a valid number"),
    "too many": (["tiny_dp"] * 13 + ["-o", "x.html"], "13 runs are too many"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_message(
    case: str, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files)
    result = Path("run.json").read_bytes()
    Path("half.json").write_bytes(result[: len(result) // 2])
    Path("none.json").write_text("{}")
    Path("nan.json").write_text(json.dumps(json.loads(result) | {"mfu": float("nan")}))
    arguments, message = BAD[case]
    assert main(["report", *arguments]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("simcluster: error:") == 1
    assert "Traceback" not in said.err
    assert not Path("x.html").exists()
