"""Plain technical English: no house words, and no names that only their author understands.

``python tests/test_language.py`` prints where each one is.  CONTRIBUTING.md has the rules.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest
from package_trees import PACKAGE, syntax_tree

WORDS = {  # a house word: what the field says
    r"(?<!re)\bplay(?:s|ed|ing)?\b": "simulate",
    r"\bbesides?\b": "overlapped with, next to",
    r"\bbehind\b": "after",
    r"\bleft out\b": "default, omitted",
    r"\bships?\b|\bshipped\b": "built-in",
    r"(?<!inner )(?<!outer )\bproducts?\b(?! of)": "matmul",
    r"\bso (?:many|often|long)\b": "N, the name of the count",
    r"\btold\b|\btells\b|\b(?:is|are) said\b": "reports, states",
    r"\bgo(?:es)? on\b": "continues, resumes",
    r"\bgoes with\b|\bdo(?:es)? not go\b": "is compatible with",
    r"\bin the place of\b": "instead of",
    r"\b(?:by itself|by themselves|of its own|of their own)\b": "alone, separate",
    r"\balike\b|\bof one kind\b": "equal, identical",
    r"\b(?:whoever|somebody|nobody|anybody)\b": "the actor",
    r"\bone's own\b": "your",
    r"\b(?:short|quick) ways?\b": "fast path",
    r"\bstands? for\b": "represents",
    r"\bfelt\b|\bhand(?:s|ed)? (?:over|on)\b": "slowed down by; passes, delegates",
    r"(?<!there )\b(?:is|are) no (?!longer|such)": "is not a",
    r"\bstrikes?\b|\blemons?\b": "failure, defective GPU",
}
DATA = re.compile(  # not prose: lists of keys, code, keys and options with names of old, words of files
    r"^[\s\w.]+: [\s\w.:]+$|``[^`]+``|--\w+|\w+\.\w+|\w+ = \S+|(?:matmul|add) beside |^ beside copy "
    r"|\(product\), or|strikes \(failures\)|^played: $"
)

VAGUE = re.compile(
    "told|kept|given|late|alike|own|beside|behind|asked|felt|said|made|left|taken|found|held|played|"
    "joined|packed|written|shown|named|drawn|turned|cut|split|where|why|which|what|of|together|alone|"
    "away|else|more|less|most|least|so|many|whole|part|way|ways|doors|trip|taste|again|ahead|apart|aside|"
    "around|once|ever|read|sent|gone|come|comes|goes|put|set_|laid"
)


@cache
def nodes() -> tuple[tuple[str, ast.Constant | ast.FunctionDef | ast.ClassDef], ...]:
    """Return the texts with a space, functions and classes of all modules, by one walk."""
    return tuple(
        (str(path.relative_to(PACKAGE)), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value)
    )


@cache
def texts() -> tuple[tuple[str, int, str], ...]:
    """Return docstrings, messages and all other texts with a space (f-strings in parts), and help of commands."""
    return (*_texts(),)


def _texts() -> Iterator[tuple[str, int, str]]:
    for path, node in nodes():
        if isinstance(node, ast.Constant):
            yield path, node.lineno, str(node.value)
    for number, line in enumerate((PACKAGE / "cli" / "commands.toml").read_text().splitlines(), 1):
        yield "cli/commands.toml", number, line


def names() -> Iterator[tuple[str, int, str]]:
    for path, node in nodes():
        if not isinstance(node, ast.Constant) and VAGUE.fullmatch(node.name.strip("_").lower()):
            yield path, node.lineno, node.name


@cache
def prose() -> dict[str, list[tuple[str, int, str]]]:
    """Return the places of each text, by the text without data: once for all words."""
    found: dict[str, list[tuple[str, int, str]]] = {}
    for each in texts():
        found.setdefault(DATA.sub("", each[2]), []).append(each)
    return found


def places(pattern: str) -> list[tuple[str, int, str]]:
    """Return where a house word is, without data."""
    word = re.compile(pattern, re.IGNORECASE)
    return [each for text, those in prose().items() if word.search(text) for each in those]


@pytest.mark.parametrize("pattern", WORDS)
def test_no_house_words(pattern: str) -> None:
    assert places(pattern) == [], f"{WORDS[pattern]} instead"


def test_no_names_that_say_nothing() -> None:
    assert list(names()) == [], "a function is a verb, or the noun it returns"


if __name__ == "__main__":
    for word, instead in WORDS.items():
        found = [each[:2] for each in places(word)]
        sys.stdout.write(f"{len(found):5}  {word}  ({instead}): {found[:4]}" + "\n")
    sys.stdout.write(f"{len(list(names())):5}  names: {Counter(name for *_, name in names()).most_common(12)}" + "\n")
