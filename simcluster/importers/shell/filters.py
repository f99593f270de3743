"""Commands that print a text, or another one for the text that they are given: echo, grep, sed, tr and their like."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_CLASSES = {
    "[:digit:]": "0-9", "[:space:]": r"\s", "[:blank:]": r" \t", "[:alpha:]": "a-zA-Z", "[:alnum:]": "a-zA-Z0-9",
    "[:upper:]": "A-Z", "[:lower:]": "a-z",
}  # fmt: skip
_QUANTIFIED = re.compile(r"(?<!\\)[*+{?]")
_MOST_CHARACTERS, _LONGEST_LINE, _LONGEST_PATTERN = 20_000, 2_000, 200
_MOST_NUMBERS = 1_000
_SUBSTITUTION = re.compile(r"s([/|#,:@!])((?:\\.|(?!\1).)*)\1((?:\\.|(?!\1).)*)\1(g?)")
_RANGES = r"(?:\d{1,4}(?:-\d{0,4})?|-\d{1,4})(?:,(?:\d{1,4}(?:-\d{0,4})?|-\d{1,4}))*"
_CUT = re.compile(
    rf"(?:-d ?(?P<before>.) )?-f ?(?P<fields>{_RANGES})(?: -d ?(?P<behind>.))?|-c ?(?P<characters>{_RANGES})"
)
_FORMAT = re.compile(r"%[sd]")
_PRINTS = re.compile(r"\{\s*print\s+\$?(\d+|NF)\s*;?\s*\}")


def said(words: Sequence[str]) -> str | None:
    """What ``echo`` or ``printf`` prints; None of a format that is not read."""
    if words[0] == "echo":
        rest = list(words[1:])
        flags = ""
        while rest and re.fullmatch(r"-[neE]+", rest[0]):
            flags += rest.pop(0)
        text = " ".join(rest)
        text = text.replace("\\n", "\n").replace("\\t", "\t") if "e" in flags else text
        return text + ("" if "n" in flags else "\n")
    form, values = (words[1], list(words[2:])) if len(words) > 1 else ("", [])
    form = form.replace("\\n", "\n").replace("\\t", "\t")
    places = len(_FORMAT.findall(form))
    if form.count("%") != places:
        return None
    texts: list[str] = []
    while not texts or (values and places):
        texts.append(_FORMAT.sub(lambda _: values.pop(0) if values else "", form))
    return "".join(texts)


def told(words: Sequence[str]) -> str | None:
    """What ``seq``, ``basename`` and ``dirname`` print; None of another command, and of what is not known."""
    name, rest = words[0], list(words[1:])
    if name in ("basename", "dirname") and rest and not any(re.search(r"[$`]", word) for word in rest):
        folder, _, last = rest[0].rstrip("/").rpartition("/")
        if name == "dirname":
            return f"{folder or ('/' if rest[0].startswith('/') else '.')}\n"
        return f"{last.removesuffix(rest[1]) if len(rest) > 1 and last != rest[1] else last}\n"
    separator = "\n"
    if name == "seq" and rest[:1] and (found := re.fullmatch(r"-s(.*)", rest[0])):
        separator = found[1] or (rest.pop(1) if len(rest) > 1 else "\n")
        del rest[0]
    if name != "seq" or not 1 <= len(rest) <= 3 or not all(re.fullmatch(r"-?\d{1,6}", word) for word in rest):
        return None
    begin, step, end = {1: (1, 1, 0), 2: (0, 1, 1), 3: (0, 1, 2)}[len(rest)]
    numbers = [int(word) for word in rest]
    first = 1 if len(rest) == 1 else numbers[begin]
    by = numbers[step] if len(rest) == 3 else 1
    if not by or abs(numbers[end] - first) // abs(by) > _MOST_NUMBERS:
        return None
    return separator.join(map(str, range(first, numbers[end] + (1 if by > 0 else -1), by))) + "\n"


def filtered(words: Sequence[str], text: str) -> str | None:
    """What a command prints that is given the text; None of one that is not read, or that reads a file."""
    reader = _FILTERS.get(words[0]) if words and len(text) <= _MOST_CHARACTERS else None
    return reader(list(words[1:]), text) if reader else None


def matched(words: Sequence[str], text: str) -> bool | None:
    """Whether ``grep`` finds what it looks for in the text; None where that is not known."""
    found = _grepped(list(words[1:]), text)
    return None if found is None else bool(found[0])


def _grepped(words: list[str], text: str) -> tuple[list[str], str] | None:
    """The lines or parts that grep finds, and its flags."""
    flags, patterns = "", []
    while words and words[0].startswith("-") and len(words[0]) > 1:
        word = words.pop(0)
        if word == "--":
            break
        if word == "-e" and words:
            patterns.append(words.pop(0))
        elif re.fullmatch(r"-[qocEPFviwx]+", word):
            flags += word[1:]
        else:
            return None
    patterns = patterns or words[:1]
    if len(patterns) != 1 or len(words) > 1:
        return None
    form = "F" if "F" in flags else "E" if "E" in flags or "P" in flags else ""
    pattern = _pattern(patterns[0], form, text)
    if pattern is None:
        return None
    before, kept, behind = pattern.partition(r"\K")
    pattern = f"(?:{before})(?P<kept>{behind})" if kept else f"(?P<kept>{pattern})"
    pattern = rf"\b{pattern}\b" if "w" in flags else rf"^{pattern}$" if "x" in flags else pattern
    try:
        looks = re.compile(pattern, re.IGNORECASE if "i" in flags else 0)
    except re.error:
        return None
    lines = text.splitlines()
    if "o" in flags:
        return [found["kept"] for line in lines for found in looks.finditer(line)], flags
    return [line for line in lines if (looks.search(line) is None) == ("v" in flags)], flags


def _pattern(pattern: str, form: str, text: str) -> str | None:
    """A pattern as Python writes it: ``F`` is plain text, ``E`` has operators without a backslash.  None of one that
    could take very long."""
    if form == "F":
        return re.escape(pattern)
    for name, characters in _CLASSES.items():
        pattern = pattern.replace(name, characters)
    if not form:
        pattern = re.sub(r"\\?[+?|(){}]", lambda found: found[0][1:] or f"\\{found[0]}", pattern)
    if (
        len(pattern) > _LONGEST_PATTERN
        or re.search(r"(?<!\\)\)[*+{]", pattern)
        or len(_QUANTIFIED.findall(pattern)) > 3
    ):
        return None
    return pattern if max(map(len, text.splitlines()), default=0) <= _LONGEST_LINE or "*" not in pattern else None


def _grep(words: list[str], text: str) -> str | None:
    found = _grepped(words, text)
    if found is None:
        return None
    lines, flags = found
    return "" if "q" in flags else f"{len(lines)}\n" if "c" in flags else "".join(f"{line}\n" for line in lines)


def _sed(words: list[str], text: str) -> str | None:
    form = "E" if {"-E", "-r"} & {*words} else ""
    scripts = ";".join(word for word in words if word not in ("-e", "-E", "-r"))
    place = 0
    while place < len(scripts):
        change = _SUBSTITUTION.match(scripts, place)
        if change is None:
            return None
        pattern = _pattern(change[2], form, text)
        new = re.sub(r"\\([^\d])", r"\1", change[3].replace("&", r"\0"))
        try:
            text = re.sub(pattern or "", re.sub(r"\\(\d)", r"\\g<\1>", new), text, count=0 if change[4] else 1)
        except (re.error, IndexError):
            return None
        if pattern is None:
            return None
        place = change.end() + len(re.match(r"[;\s]*", scripts[change.end() :])[0])  # type: ignore[index]
    return text if scripts else None


def _characters(word: str) -> str:
    """The characters of a set of ``tr``."""
    word = word.replace("\\n", "\n").replace("\\t", "\t").replace("[:upper:]", "A-Z").replace("[:lower:]", "a-z")
    word = word.replace("[:space:]", " \t\n").replace("[:digit:]", "0-9")
    return re.sub(
        r"(\w)-(\w)", lambda found: "".join(map(chr, range(ord(found[1]), min(ord(found[2]), 0x7F) + 1))), word
    )


def _tr(words: list[str], text: str) -> str | None:
    if words[:1] == ["-d"] and len(words) == 2:
        return text.translate(dict.fromkeys(map(ord, _characters(words[1]))))
    if words[:1] in (["-cd"], ["-dc"]) and len(words) == 2:
        return "".join(each for each in text if each in _characters(words[1]))
    if words[:1] == ["-s"] and len(words) == 2:
        return re.sub(f"([{re.escape(_characters(words[1]))}])\\1+", r"\1", text)
    if len(words) != 2 or words[0].startswith("-"):
        return None
    old, new = map(_characters, words)
    return text.translate({ord(one): new[min(place, len(new) - 1)] for place, one in enumerate(old)}) if new else None


def _cut(words: list[str], text: str) -> str | None:
    """Columns (``-d, -f1,3-``) or characters (``-c1-3``) of each line."""
    found = _CUT.fullmatch(" ".join(words))
    if found is None:
        return None
    separator = found["before"] or found["behind"] or "\t"
    ranges = [part.partition("-") for part in (found["fields"] or found["characters"]).split(",")]
    lines = []
    for line in text.splitlines():
        parts = list(line) if found["characters"] else line.split(separator)
        bounds = [(int(begin or 1), int((end or len(parts)) if dash else begin)) for begin, dash, end in ranges]
        chosen = [part for place, part in enumerate(parts, 1) if any(low <= place <= high for low, high in bounds)]
        lines.append("".join(chosen) if found["characters"] else separator.join(parts if len(parts) == 1 else chosen))
    return "".join(f"{line}\n" for line in lines)


def _some(words: list[str], text: str, *, last: bool) -> str | None:
    found = re.fullmatch(r"(?:-n ?|-)(\d{1,4})", " ".join(words)) if words else None
    if words and not found:
        return None
    count = int(found[1]) if found else 10
    lines = text.splitlines(keepends=True)
    return "".join(lines[max(0, len(lines) - count) :] if last else lines[:count])


def _wc(words: list[str], text: str) -> str | None:
    counts = {"-l": text.count("\n"), "-w": len(text.split()), "-c": len(text.encode()), "-m": len(text)}
    return f"{counts[words[0]]}\n" if len(words) == 1 and words[0] in counts else None


def _awk(words: list[str], text: str) -> str | None:
    separator = None
    if words and words[0].startswith("-F"):
        separator = words.pop(0)[2:] or (words.pop(0) if words else None)
    found = _PRINTS.fullmatch(words[0].strip()) if len(words) == 1 else None
    if found is None or (separator is not None and len(separator) != 1):
        return None
    rows = [(line, line.split(separator)) for line in text.splitlines()]
    if found[1] == "NF":
        return "".join(f"{len(row)}\n" for _, row in rows) if "$" not in words[0] else None
    column = int(found[1])
    return "".join(f"{line if not column else ''.join(row[column - 1 : column])}\n" for line, row in rows)


_FILTERS: dict[str, Callable[[list[str], str], str | None]] = {
    "grep": _grep,
    "egrep": lambda words, text: _grep(["-E", *words], text),
    "sed": _sed,
    "tr": _tr,
    "cut": _cut,
    "head": lambda words, text: _some(words, text, last=False),
    "tail": lambda words, text: _some(words, text, last=True),
    "wc": _wc,
    "awk": _awk,
    "cat": lambda words, text: text if words in ([], ["-"]) else None,
    "tee": lambda words, text: text,
    "xargs": lambda words, text: None if words not in ([], ["echo"]) else " ".join(text.split()) + "\n",
}
