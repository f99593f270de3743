"""A scenario made from what another tool is started with: the document, and what became of every setting.

Imports errors only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS = ("true", "false", "null", "yes", "no", "on", "off")


@dataclass(frozen=True)
class Imported:
    """A scenario document and how it came about.

    ``assumed`` are sentences about what was not said, or is modelled otherwise; ``no_effect`` the settings that change
    nothing in the time of a step as it is simulated; ``mapped`` those that the document has; ``facts`` what else a
    reader of the document should know.
    """

    document: dict[str, Any]
    mapped: tuple[str, ...]
    no_effect: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()

    def text(self, origin: str) -> str:
        """A scenario file, with what was assumed as comments at its head."""
        lines = [f"# From {origin}.", *(f"# {fact}" for fact in self.facts)]
        lines += [*(f"# Assumed: {sentence}" for sentence in self.assumed)]
        if self.no_effect:
            lines.append("# No effect on the simulated time: " + ", ".join(self.no_effect))
        head = "\n".join(" ".join(line.split()) for line in lines)
        return f"{head}\n{to_yaml(self.document)}"


def to_yaml(document: Mapping[str, Any]) -> str:
    """Plain data as YAML: a mapping to a line, sections that hold only plain values in braces."""
    texts = {key: _value(value, top=True) for key, value in document.items()}
    return "".join(f"{key}:{text if text.startswith(chr(10)) else ' ' + text}\n" for key, text in texts.items())


def _value(value: Any, *, top: bool = False) -> str:
    if isinstance(value, Mapping):
        pairs = [f"{key}: {_value(item)}" for key, item in value.items()]
        if top and len(", ".join(pairs)) > 100:
            return "".join(f"\n  {pair}" for pair in pairs)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if top and any(isinstance(item, Mapping) for item in value):
            return "".join(f"\n  - {_value(item)}" for item in value)
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
