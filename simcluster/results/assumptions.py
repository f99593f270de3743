"""Assumptions of answers, in words: merged over runs, and as lines of a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def merge_assumptions(named: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return the assumptions of several runs: those of all as they are, others after the names of their runs."""
    whose: dict[str, list[str]] = {}
    for name, assumed in named.items():
        for words in assumed:
            whose.setdefault(words, []).append(name)
    return tuple(
        words if len(names) == len(named) else f"{', '.join(names)}: {words}" for words, names in whose.items()
    )


def assumed_lines(assumed: Iterable[str]) -> list[str]:
    """Return a line for each, as every text prints them."""
    return [f"assumed: {words}" for words in assumed]
