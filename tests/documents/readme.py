"""README and the pages of ``docs`` as one text: their commands, and sentences with figures."""

from __future__ import annotations

import re
import shlex

from documents.commands import ROOT
from documents.played import PAGES

README = ROOT / "README.md"
HOWTO = ROOT / "docs" / "howto.md"
DOCUMENTS = (README, *sorted(path for path in (ROOT / "docs").glob("*.md") if path.stem.islower()))
"""Without MODELLING.md and the like, whose formulas and keys other tests hold."""
_PAGE = "\f"  # begins a document in the text of all
_NUMBER = r"([-+−]?\d[\d.,]*\d|[-+−]?\d)"


def text() -> str:
    """All of them, README first."""
    return "".join(f"{_PAGE}{path.read_text(encoding='utf-8')}" for path in DOCUMENTS)


def commands() -> list[str]:
    """Return every ``simcluster ...`` line of blocks and of the tables of howto.md, but not of pages that are run."""
    alone = [path.read_text(encoding="utf-8") for path in DOCUMENTS if path not in PAGES]
    blocks = re.findall(r"```bash\n(.*?)```", _PAGE.join(alone), re.DOTALL)
    joined = "\n".join(blocks).replace("\\\n", " ").splitlines()
    lines = [part.strip() for line in joined for part in line.split(" && ")]
    lines += re.findall(r"^\|[^|]*\| `([^`|]*)` \|", HOWTO.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.join(shlex.split(line, comments=True)) for line in lines if line.startswith("simcluster ")]


def in_tables() -> list[str]:
    """Every ``simcluster ...`` in a cell of README's tables and of examples', but those with which another begins."""
    cells = [path.read_text(encoding="utf-8") for path in (README, ROOT / "examples" / "README.md")]
    found = re.findall(r"\| `(simcluster [^`|]*)`", "\n".join(cells))
    known, asked = commands(), [shlex.join(shlex.split(each)) for each in found]
    return [each for each in asked if not any(other.startswith(each) for other in known)]


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
    for path, part in zip(DOCUMENTS, whole.split(_PAGE)[1:], strict=True):
        path.write_text(part, encoding="utf-8")
