"""README as text: its commands, the output that it shows, and its sentences with figures."""

from __future__ import annotations

import re
import shlex
from functools import cache

from documents.commands import ROOT, printed

README = ROOT / "README.md"
_NUMBER = r"([-+−]?\d[\d.,]*\d|[-+−]?\d)"


def text() -> str:
    return README.read_text(encoding="utf-8")


def commands() -> list[str]:
    """Every ``simcluster ...`` line of README's blocks of commands, without its comment."""
    blocks = re.findall(r"```bash\n(.*?)```", text(), re.DOTALL)
    lines = [part.strip() for block in blocks for line in block.splitlines() for part in line.split(" && ")]
    return [shlex.join(shlex.split(line, comments=True)) for line in lines if line.startswith("simcluster ")]


# --- the output -------------------------------------------------------------------------------------------------------

_OUTPUT = re.compile(r"The first prints this[^\n]*:\n\n```\n(.*?)```\n", re.DOTALL)


def output_span(whole: str) -> tuple[int, int]:
    """Where README shows the first command's output."""
    found = _OUTPUT.search(whole)
    assert found is not None
    return found.span(1)


def output_shown() -> str:
    begin, end = output_span(text())
    return text()[begin:end]


@cache
def output_now() -> str:
    """What the first command prints."""
    return printed(commands()[0]).rstrip("\n") + "\n"


def with_output(whole: str) -> str:
    """README with the output of now."""
    begin, end = output_span(whole)
    return whole[:begin] + output_now() + whole[end:]


# --- sentences --------------------------------------------------------------------------------------------------------


def figures_in(sentence: str, whole: str) -> re.Match[str]:
    """Where a sentence stands; ``{}`` is a figure, and lines may break anywhere.  AssertionError if not just once."""
    words = [re.escape(word).replace(r"\{\}", _NUMBER) for word in sentence.split()]
    found = list(re.finditer(r"\s+".join(words), whole))
    assert len(found) == 1, f"README has {len(found)} times: {sentence}"
    return found[0]


def with_figures(sentence: str, figures: tuple[str, ...], whole: str) -> str:
    """README with other figures in a sentence."""
    match = figures_in(sentence, whole)
    assert len(match.groups()) == len(figures), sentence
    for group in reversed(range(len(figures))):
        begin, end = match.span(group + 1)
        whole = whole[:begin] + figures[group] + whole[end:]
    return whole


def write(whole: str) -> None:
    README.write_text(whole, encoding="utf-8")
