"""Plain technical English: house words and names that only their author understands may get fewer, never more.

``python tests/test_language.py`` prints where each one is.  CONTRIBUTING.md has the rules.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "simcluster"

WORDS = {  # a house word, and what the field says: the most that are left in docstrings, messages and help
    r"(?<!re)\bplay(?:s|ed|ing)?\b": ("simulate", 31),
    r"\bbesides?\b": ("overlapped with, next to", 12),
    r"\bbehind\b": ("after", 1),
    r"\bleft out\b": ("default, omitted", 0),
    r"\bships?\b|\bshipped\b": ("built-in", 1),
    r"(?<!inner )(?<!outer )\bproducts?\b(?! of)": ("matmul", 2),
    r"\bso (?:many|often|long)\b": ("N, the name of the count", 0),
    r"\btold\b|\btells\b|\b(?:is|are) said\b": ("reports, states", 0),
    r"\bgo(?:es)? on\b": ("continues, resumes", 0),
    r"\bgoes with\b|\bdo(?:es)? not go\b": ("is compatible with", 0),
    r"\bin the place of\b": ("instead of", 0),
    r"\b(?:by itself|by themselves|of its own|of their own)\b": ("alone, separate", 0),
    r"\balike\b|\bof one kind\b": ("equal, identical", 2),
    r"\b(?:whoever|somebody|nobody|anybody)\b": ("the actor", 0),
    r"\bone's own\b": ("your", 0),
    r"\b(?:short|quick) ways?\b": ("fast path", 0),
    r"\bstands? for\b": ("represents", 0),
    r"\bfelt\b|\bhand(?:s|ed)? (?:over|on)\b": ("slowed down by; passes, delegates", 0),
    r"(?<!there )\b(?:is|are) no (?!longer|such)": ("is not a", 0),
    r"\bstrikes?\b|\blemons?\b": ("failure, defective GPU", 3),
}

VAGUE = re.compile(
    "told|kept|given|late|alike|own|beside|behind|asked|felt|said|made|left|taken|found|held|played|"
    "joined|packed|written|shown|named|drawn|turned|cut|split|where|why|which|what|of|together|alone|"
    "away|else|more|less|most|least|so|many|whole|part|way|ways|doors|trip|taste|again|ahead|apart|aside|"
    "around|once|ever|read|sent|gone|come|comes|goes|put|set_|laid"
)
NAMES = 105  # functions and classes with such a name


@cache
def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def texts() -> Iterator[tuple[str, int, str]]:
    """Docstrings, messages and all other texts with a space; f-strings in parts; help of commands."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield path, node.lineno, node.value
    for number, line in enumerate((PACKAGE / "cli" / "commands.toml").read_text().splitlines(), 1):
        yield "cli/commands.toml", number, line


def names() -> Iterator[tuple[str, int, str]]:
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and VAGUE.fullmatch(node.name.strip("_").lower()):
                yield path, node.lineno, node.name


@pytest.mark.parametrize(("pattern", "most"), [(word, most) for word, (_, most) in WORDS.items()], ids=[*WORDS])
def test_house_words_only_get_fewer(pattern: str, most: int) -> None:
    found = [place for *place, text in texts() for _ in re.finditer(pattern, text, re.IGNORECASE)]
    assert len(found) == most, f"{WORDS[pattern][0]} instead; {len(found)} places, the last: {found[-3:]}"


def test_names_that_say_nothing_only_get_fewer() -> None:
    assert len(list(names())) == NAMES, "lower NAMES if there are fewer; a function is a verb, or the noun it returns"


if __name__ == "__main__":
    for word, (instead, _) in WORDS.items():
        places = Counter(path for path, _, text in texts() for _ in re.finditer(word, text, re.IGNORECASE))
        sys.stdout.write(f"{sum(places.values()):5}  {word}  ({instead}): {dict(places.most_common(4))}" + "\n")
    sys.stdout.write(f"{len(list(names())):5}  names: {Counter(name for *_, name in names()).most_common(12)}" + "\n")
