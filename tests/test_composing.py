"""Long texts of YAML are read by libyaml: the same documents, at the same places, in a fraction of the time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simcluster.base.errors import InputError
from simcluster.documents import composing, reading

cyaml = pytest.importorskip("yaml.cyaml", reason="needs PyYAML with libyaml")

ROOT = Path(__file__).parent.parent
TEXTS = {
    path.name: path.read_bytes().decode("utf-8", "replace")
    for folder in ("scenarios", "topologies", "tests/bad")
    for path in sorted((ROOT / folder).glob("*.yaml"))
    if 0 < path.stat().st_size < 20_000 and path.name != "binary.yaml"
}
BITS = [
    "\t", " ", "\n", ":", "-", "{", "}", "[", "]", ",", "#", "'", '"', "&a", "*a", "!x ", "!!int ", "|", "> ", "%",
    "\\", "---\n", "...\n", "é", "@", "yes", "012", "0o17", "1_000", "<<: ", "~", "- - ", "a: |\n  b\n", "\x07",
]  # fmt: skip


def by_libyaml(text: str, source: str) -> Any:
    return composing.by_libyaml(cyaml.CParser, text, source)


def _told(compose: Callable[[str, str], Any], text: str) -> Any:
    """The data of a document with the place of each key; or that it is refused."""
    marks: dict[reading.KeyPath, reading.Mark] = {}
    try:
        return repr(reading._build(compose(text, "x"), "x", (), marks)), marks
    except InputError:
        return "refused"


def test_what_ships_and_what_is_bad_is_the_same() -> None:
    ours = {str(path): path.read_text(encoding="utf-8") for path in sorted((ROOT / "simcluster").rglob("*.yaml"))}
    assert len(TEXTS) > 80
    assert len(ours) > 20
    for name, text in (TEXTS | ours).items():
        assert _told(composing.in_python, text) == _told(by_libyaml, text), name


def test_what_both_read_is_the_same() -> None:
    """Documents that were damaged: where both make something of one it is the same, and few are read by only one."""
    draw, one = random.Random(7), 0
    texts = sorted(TEXTS.values())
    for _ in range(150):
        lines = draw.choice(texts).splitlines(keepends=True)
        begin = draw.randrange(len(lines))
        text = "".join(lines[begin : begin + 12])
        for _ in range(draw.randrange(3)):
            place = draw.randrange(len(text) + 1)
            text = text[:place] + draw.choice(BITS) + text[place:]
        found = [_told(compose, text) for compose in (composing.in_python, by_libyaml)]
        if "refused" in found:
            one += found.count("refused") == 1
        else:
            assert found[0] == found[1], text
    assert one < 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1, 2\nb: 3\n", "x:2:2: not valid YAML: a list in brackets is not finished here; write [1, 2]"),
        ("a: 1\n\tb: 2\n", "x:2:1: not valid YAML: a tab indents this line; indent with spaces, never tabs"),
        ("a: *b\n", "x:1:4: not valid YAML: anchors and aliases (*name) are not supported"),
        ("a: 1\n---\nb: 2\n", "x:2:1: not valid YAML: another document begins here; a file holds one"),
        ("a: \x07\n", "x:1: not valid YAML: a control character is in the text"),
        ("a: 1\nb: \u2028\n", "x:2: holds the character U+2028, which YAML 1.1 and 1.2 read differently; take"),
        ("a: " + "[" * 60 + "]" * 60, "x:1:54: nested more than 50 levels deep"),
        ("- " * 60 + "1", "x:1:103: nested more than 50 levels deep"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_text_that_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        by_libyaml(text, "x")
    assert str(refused.value).startswith(said)


def test_a_long_text_takes_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the largest file; ruamel.yaml is not asked."""
    text = "".join(f"key_{number}: {{kind: slow_gpu, ranks: [{number}]}}\n" for number in range(2500))
    assert len(text) > composing.LONG
    monkeypatch.setattr(composing, "in_python", lambda *_: pytest.fail("the slow way"))
    began = time.process_time()
    found = reading.parse_document(text, source="x")
    assert time.process_time() - began < 2.0
    assert found.data["key_9"] == {"kind": "slow_gpu", "ranks": [9]}
    assert found.mark(("key_9", "ranks", 0)).place == "x:10:33"
    assert _told(by_libyaml, "# nothing\n") == ("None", {})
