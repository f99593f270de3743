"""Which known words are the nearest to one that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: object, known: Iterable[str], cutoff: float, most: int = 1) -> list[str]:
    """The known words that are most like one, the nearest first, whatever letters are capitals; by difflib's ratio, and
    before that those that go on where it ends: fp8-mixed for fp8."""
    import difflib  # only for a mistake: --help waits for what is imported

    spelt: dict[str, str] = {}
    for each in known:
        spelt.setdefault(str(each).lower(), str(each))
    text = str(word).lower()
    longer = [each for each in spelt if len(text) > 1 and each.startswith((f"{text}-", f"{text}_"))]
    near = difflib.get_close_matches(text, spelt, n=most, cutoff=cutoff)
    return [spelt[each] for each in dict.fromkeys((*longer, *near))][:most]


def did_you_mean(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """'; did you mean 'pp'?' with the nearest known word, or nothing."""
    near = nearest(word, known, cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""
