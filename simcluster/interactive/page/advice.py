"""What a report advises, with the page's controls in the place of a command line's options, and as changes to try.

Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from simcluster.base.errors import InputError
from simcluster.interactive.controls.nearest import LegalChange
from simcluster.interactive.controls.settings import Settings, Value, checked, in_order, in_words
from simcluster.show.report.html import Markup

_KEY, _VALUE = r"[a-z_]+(?:\.[a-z_]+)+", r"[\w-]+(?:\.\d+)?"
_ONE = rf"--(?:set {_KEY}={_VALUE}|{_KEY} {_VALUE})"
_OPTIONS = re.compile(rf"{_ONE}(?: {_ONE})*")
_PAIR = re.compile(rf"--(?:set )?({_KEY})[= ]({_VALUE})")


def in_controls(told: Markup, settings: Settings) -> tuple[Markup, list[LegalChange]]:
    """The text with options named as their controls are, and the settings that each run of options makes of these;
    options without a control stay as they are."""
    ideas: list[LegalChange] = []

    def named(found: re.Match[str]) -> str:
        try:
            change = [(key, checked(key, _value(text))) for key, text in _PAIR.findall(found[0])]
        except InputError:
            return found[0]
        words = ", ".join(in_words(change))
        ideas.append(LegalChange(words, _with(settings, dict(change))))
        return words

    text = Markup(_OPTIONS.sub(named, told))
    return text, list({each.settings: each for each in ideas}.values())


def _with(settings: Settings, change: Mapping[str, Value]) -> Settings:
    """Settings with a change; replicas follow the split by themselves."""
    whole = {**dict(settings), **change}
    if change.keys() & {"parallel.tp", "parallel.pp", "parallel.cp"}:
        whole.pop("parallel.dp", None)
    return in_order(whole)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
