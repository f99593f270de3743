"""Which option a mistake is in, where what is said of it names none."""

from __future__ import annotations

import re
from argparse import Action, Namespace
from collections.abc import Iterable

_QUOTED = re.compile(r"'([^'\n]+)'")
_UNKNOWN_KEY = re.compile(r"(?:^|: )(\w+): unknown key '\1'(?:$|; known)")
"""At the top of a document, and nothing like it there or elsewhere."""
_PARTS = re.compile(r"[,:=+\s]+")


def with_its_option(text: str, args: Namespace, actions: Iterable[Action]) -> str:
    """The same with the one option before it whose value, or a part of it, is what is quoted first: "--window: '3' is
    not a quantity; ...".

    Left as it is: what names an option, or says where else (a file, a key).
    """
    if key := _UNKNOWN_KEY.search(text):
        return text + _as_option(key[1], actions)
    quoted = _QUOTED.search(text)
    if quoted is None or "--" in text or ":" in text[: quoted.start()] or "\n" in text:
        return text
    found = [action for action in dict.fromkeys(actions) if action.option_strings and quoted[1] in _words(args, action)]
    if len(found) != 1:
        return text
    option, before = max(found[0].option_strings, key=len), text[: quoted.start()].strip()
    plain = option.lstrip("-").replace("-", " ")
    return f"{option} {text[quoted.start() :]}" if before == plain else f"{option}: {text}"


def _as_option(key: str, actions: Iterable[Action]) -> str:
    """ "; it is an option, --sample N" for a key of a document that the command has as an option, or nothing."""
    option = f"--{key.replace('_', '-')}"
    named = [action for action in actions if option in action.option_strings]
    return f"; the command has an option of that name: leave the key out, and give {option}" if named else ""


def _words(args: Namespace, action: Action) -> set[str]:
    """What was written as an option's value: each, and its parts."""
    value = getattr(args, action.dest, None)
    texts = [
        str(each) for each in (value if isinstance(value, list) else [value]) if each not in (None, action.default)
    ]
    return {part for text in texts for part in (text, text.partition("=")[0], *_PARTS.split(text))}
