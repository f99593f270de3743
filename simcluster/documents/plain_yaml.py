"""Plain data as YAML that people read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS = ("true", "false", "null", "yes", "no", "on", "off")


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
