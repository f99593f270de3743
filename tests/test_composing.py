"""YAML by PyYAML's parser, in C and in Python: the data that ruamel.yaml reads, and refusals with place and remedy."""

from __future__ import annotations

import random
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from simcluster.base.errors import InputError
from simcluster.documents.yaml_documents import parse_document
from simcluster.documents.yaml_syntax import KeyLocation, parse_yaml

ROOT = Path(__file__).parent.parent
FOLDERS = ("scenarios", "topologies", "tests/bad", "simcluster")
TEXTS = {
    str(path): path.read_bytes().decode("utf-8", "replace")
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.yaml"))
    if 0 < path.stat().st_size < 8_000 and path.name != "binary.yaml"
}
BITS = [
    "\t", " ", "\n", ":", "-", "{", "}", "[", "]", ",", "#", "'", '"', "&a", "*a", "!x ", "!!int ", "|", "> ", "%",
    "\\", "---\n", "...\n", "é", "@", "yes", "012", "0o17", "1_000", "<<: ", "~", "- - ", "a: |\n  b\n", "\x07",
]  # fmt: skip


@pytest.fixture(params=["libyaml", "python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The parser that is used; PyYAML may be built without libyaml."""
    if request.param == "python":
        monkeypatch.delattr(yaml, "CLoader", raising=False)
    return str(request.param)


def _ours(text: str) -> Any:
    try:
        return repr(parse_yaml(text, "x")[0])
    except InputError:
        return "refused"


@cache
def _theirs(text: str) -> Any:
    try:
        return repr(YAML(typ="safe", pure=True).load(text))
    except (YAMLError, ValueError, RecursionError):
        return "refused"


def test_documents_are_those_of_yaml_1_2(parser: str) -> None:
    """Whole ones (by libyaml), and pieces with damage: what both read is equal, and few are read by only one."""
    assert len(TEXTS) > 80
    texts = sorted(TEXTS.values())
    draw, one = random.Random(7), 0
    for number in range(len(texts) if parser == "python" else 0, len(texts) + 150):
        text = texts[number % len(texts)]
        if number >= len(texts):
            lines = draw.choice(texts).splitlines(keepends=True)
            begin = draw.randrange(len(lines))
            text = "".join(lines[begin : begin + 12])
            for _ in range(draw.randrange(3)):
                place = draw.randrange(len(text) + 1)
                text = text[:place] + draw.choice(BITS) + text[place:]
        if text == TEXTS[str(ROOT / "tests/bad/alias_bomb.yaml")]:
            continue  # 4 GB as others read it
        ours, theirs = _ours(text), _theirs(text)
        one += (ours == "refused") != (theirs == "refused")
        assert ours == theirs or "refused" in (ours, theirs), text
    assert one < 15


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1, 2\nb: 3\n", "x:2:2: not valid YAML: a list in brackets is not closed here; write [1, 2]"),
        ("a: 1\n\tb: 2\n", "x:2:1: not valid YAML: a tab "),
        ("a: *b\n", "x:1:4: not valid YAML: anchors and aliases (*name) are not supported"),
        ("a: 1\n---\nb: 2\n", "x:2:1: not valid YAML: another document begins here; a file holds one"),
        ("a: \x07\n", "x:1: not valid YAML: a control character is in the text"),
        ("a: 1\nb: \u2028\n", "x:2: holds the character U+2028, which YAML 1.1 and 1.2 read differently; remove"),
        ("a: " + "[" * 60 + "]" * 60, "x:1:54: nested more than 50 levels deep"),
        ("- " * 60 + "1", "x:1:103: nested more than 50 levels deep"),
        ("a: !x 1", "x:1:4: YAML tags (!!x) are not supported; write the plain value"),
        ("a: !x [1]", "x:1:4: YAML tags (!!x) are not supported; write the plain value"),
        ("a: {b: 1, b: 2}", "x:1:11: a.b: this key is already at x:1:5; a key is allowed once: keep one of the two"),
        ("[a]: 1", "x:1:1: a key is a list, a mapping or '<<'; write a plain word"),
        ("<<: {a: 1}", "x:1:1: a key is a list, a mapping or '<<'"),
        ("a: " + "9" * 5000, "x:1:4: '9999"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_text_that_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_yaml(text, "x")
    assert str(refused.value).startswith(said)


def test_every_key_and_item_has_its_place() -> None:
    data, marks = parse_yaml("a:\n  - b: 2020-01-01\n    c: !!int '7'\n", "x")
    assert data == {"a": [{"b": "2020-01-01", "c": 7}]}
    assert marks == {path: KeyLocation(place, path) for path, place in {
        ("a",): "x:1:1", ("a", 0): "x:2:5", ("a", 0, "b"): "x:2:5", ("a", 0, "c"): "x:3:5",
    }.items()}  # fmt: skip
    assert parse_yaml("# nothing\n", "x") == (None, {})


def test_a_long_text_takes_seconds(parser: str) -> None:
    """A tenth of the largest file."""
    text = "".join(f"key_{number}: {{kind: slow_gpu, ranks: [{number}]}}\n" for number in range(2500))
    began = time.process_time()
    found = parse_document(text, source="x")
    assert parser == "python" or time.process_time() - began < 2.0
    assert found.data["key_9"] == {"kind": "slow_gpu", "ranks": [9]}
    assert found.location_of(("key_9", "ranks", 0)).position == "x:10:33"
