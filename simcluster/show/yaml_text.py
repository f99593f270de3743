"""YAML text of scenario documents, readable for people and accepted by `simcluster run`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from simcluster.base.display import clip_line

_WIDE = 100
_LONGEST = 80  # characters of a setting's value
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_UNPRINTABLE = re.compile("[\x7f-\x84\x86-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_NOT_TEXT = re.compile(r"(?i)(true|false|null|nan|inf|y|n|yes|no|on|off)")


def yaml_text(document: Mapping[str, Any]) -> str:
    """Return a document as YAML: nested values on separate lines, short values on one line, ambiguous texts quoted."""
    return "\n".join(_block_lines(document, "")) + "\n"


def _block_lines(value: Mapping[str, Any], indent: str) -> list[str]:
    found = []
    for key, item in value.items():
        name = f"{indent}{_scalar_text(str(key))}:"
        flat = f"{name} {flow_text(item)}"
        if len(flat) <= _WIDE or not isinstance(item, Mapping | list) or not item:
            found.append(flat)
        elif isinstance(item, Mapping):
            found += [name, *_block_lines(item, indent + "  ")]
        else:
            found += [name, *(f"{indent}  - {flow_text(each)}" for each in item)]
    return found


def flow_text(value: Any) -> str:
    """Return a value as YAML on one line: {kind: slow_gpu, rank: 3}."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar_text(str(key))}: {flow_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow_text(item) for item in value) + "]"
    return _scalar_text(value)


def setting_text(value: Any) -> str:
    """Return the value of a scenario key as YAML on one line; "not set" for None."""
    return "not set" if value is None or value == [] else clip_line(flow_text(value), _LONGEST)


def _scalar_text(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not _NOT_TEXT.fullmatch(value):
        return value
    text = json.dumps(value, ensure_ascii=False)  # JSON's scalars are YAML's, but for these characters
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
