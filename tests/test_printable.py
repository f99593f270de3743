"""What is printed: control characters of names come as escapes, wherever a name is from."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from simcluster import cli
from simcluster.base.texts import escape_controls, escape_table_cell
from simcluster.cli.terminal import EscapingStream, mark_style_code
from simcluster.show.figure_files import save_figure
from simcluster.show.output_blocks import table_lines

EVIL = "\x1b[31m\x07\u202e\x9b2J\x7f\r\u2066"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
TINY = {
    "cluster": {"topology": "flat", "gpus": 2},
    "model": {"layers": 2, "hidden_size": 256, "heads": 4, "vocab_size": 512, "sequence_length": 128},
    "training": {"global_batch": 2, "micro_batch": 1},
}
TOPOLOGY = {"name": f"t{EVIL}", "device": "h100-sxm"}
FIELDS: dict[str, list[str]] = {  # where a text of somebody else stands, and the command that reads it
    "name": ["run", "{scenario}"],
    "name explained": ["run", "{scenario}", "--explain"],
    "name compared": ["compare", "{scenario}", "{scenario}", "training.global_batch=4"],
    "name checked": ["check", "{scenario}"],
    "name in JSON": ["run", "{scenario}", "--json", "-"],
    "name in memory": ["memory", "{scenario}"],
    "override": ["run", "{scenario}", f"na{EVIL}me=x"],
    "override's value": ["run", "{scenario}", f"pipeline.schedule={EVIL}"],
    "model": ["run", "{scenario}", f"model={EVIL}"],
    "topology": ["run", "{scenario}", f"cluster.topology={EVIL}"],
    "device": ["run", "{scenario}", f"cluster.device={EVIL}"],
    "fault": ["run", "{scenario}", f"faults=[{{kind: x{EVIL}}}]"],
    "cause": ["run", "{scenario}", f"faults=[{{kind: host_stall, cause: x{EVIL}, seconds: 1 ms}}]"],
    "cable": ["run", "{scenario}", f"faults=[{{kind: slow_link, between: [x{EVIL}, switch], factor: 0.5}}]"],
    "scenario's file": ["run", f"missing{EVIL}"],
    "output": ["run", "{scenario}", "--timeline", f"missing{EVIL}/t.csv"],
    "window": ["run", "{scenario}", "--window", EVIL],
    "command": [f"run{EVIL}"],
    "option": ["run", "{scenario}", f"--opt{EVIL}"],
    "topology's file": ["topology", "{topology}"],
    "key": ["run", "{keyed}"],
    "broken YAML": ["run", "{broken}"],
    "log": ["collective", "--measured", "{log}", "--platform", "dgx-h100"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp(f"names{unicodedata.lookup('RIGHT-TO-LEFT OVERRIDE')}")
    texts = {
        "scenario": json.dumps({"name": f"tiny{EVIL}", **TINY}),
        "keyed": json.dumps({"name": "tiny", **TINY, f"x{EVIL}": 1}),
        "broken": f"name: [{EVIL}",
        "topology": json.dumps(TOPOLOGY),
        "log": f"# nThread 1{EVIL}\n{EVIL} 1 2 3\n",
    }
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8", newline="")
    return {name: str(folder / f"{name}.yaml") for name in texts}


@pytest.mark.parametrize("field", FIELDS)
def test_no_control_character_of_a_name_reaches_the_terminal(
    field: str, files: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    command = [word.format(**files) if "{" in word and "kind" not in word else word for word in FIELDS[field]]
    status = cli.main(command)
    out, err = capfd.readouterr()
    assert status in (0, 2)
    assert not RAW.search(out + err)
    assert "\\u" in out + err, "it is told, as an escape"
    if "--json" in command:
        assert json.loads(out)["scenario"]["name"] == f"tiny{EVIL}"


def test_columns_stand_under_each_other_whatever_names_hold() -> None:
    lines = table_lines(["name", "n"], [["a\x1b\nb", "1"], ["plain", "22"]])
    assert lines == ["name             n", "a\\u001b\\u000ab   1", "plain           22"]
    assert (escape_controls("a\tb\nc"), escape_table_cell("a\tb")) == ("a\tb\nc", "a\\u0009b")


@pytest.mark.parametrize("command", ["run", "run --explain", "check", "memory", "compare", "stragglers", "diff"])
def test_a_name_of_two_lines_stands_in_one(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(json.dumps({"name": "one\n\ttwo", **TINY}))
    name, *options = command.split()
    assert cli.main([name, str(path), *(["tiny_dp"] if name == "diff" else []), *options]) == 0
    out = capsys.readouterr().out
    assert "one\\u000a\\u0009two" in out
    assert not [line for line in out.splitlines() if line.lstrip().startswith("two")]


def test_escapes_are_those_of_json() -> None:
    text = "".join(map(chr, [*range(0x0B, 0x20), *range(0x7F, 0xA0), 0x202E, 0x2028, 0xFEFF, 0xE0001]))
    assert json.loads(f'"{escape_controls(text)}"') == text
    assert escape_controls("Überlänge 模型 → ×") == "Überlänge 模型 → ×"


def test_own_codes_pass_and_nobody_elses() -> None:
    stream = EscapingStream(shown := io.StringIO())
    print(mark_style_code("1") + "bold" + mark_style_code("0"), "\x1b[1mnot", file=stream)
    assert shown.getvalue() == "\x1b[1mbold\x1b[0m \\u001b[1mnot\n"
    assert cli.main(["run", "missing"]) == 2
    assert not isinstance(sys.stdout, EscapingStream)


def test_pictures_hold_what_xml_allows(tmp_path: Path) -> None:
    figure = Figure()
    figure.suptitle(f"title{EVIL}")
    save_figure(figure, tmp_path / "a.svg")
    ET.parse(tmp_path / "a.svg")
