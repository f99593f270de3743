"""YAML parser that records every key's location, YAML writer, and plain explanations of parser errors.

The only module that knows a YAML library: it consumes the events of PyYAML's parser (libyaml where it is built). That
parser is of YAML 1.1; what a plain word means (``yes``, ``012``) is decided here by the rules of YAML 1.2.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import KeyPath, format_path, quote_value
from simcluster.documents.suggestions import missing_space_hint

MAX_DEPTH = 50
_LINE_ENDS = re.compile("[\x85\u2028\u2029\ufeff]")
"""Line ends of YAML 1.1 that YAML 1.2 does not have; and a byte order mark, which only one counts as a character."""
_TAG = "tag:yaml.org,2002:"
_TAGS = (
    ("null", re.compile(r"~|null|Null|NULL|")),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE")),
    ("int", re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|[0-9_]+|0x[0-9a-fA-F_]+)")),
    (
        "float",
        re.compile(
            r"[-+]?[0-9][0-9_]*(\.[0-9_]*([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)"
            r"|[-+]?\.[0-9_]+([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
    ),
)
"""Types of plain words in YAML 1.2 (``resolver`` of ruamel.yaml); other words are text."""
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_LINE, _DEEP_LINE = 100, 240  # characters of a mapping that stays on its key's line: of the document, and inside it
_WORDS = ("true", "false", "null", "yes", "no", "on", "off")


class KeyLocation(NamedTuple):
    """Location of a key: file, line and column as one text (``position``, "x.yaml:3:5"), and path in that file."""

    position: str
    path: KeyPath


def parse_yaml(text: str, source: str) -> tuple[Any, dict[KeyPath, KeyLocation]]:
    """Parse a YAML text; return the data, and a dict from key paths to locations (list items included).

    The data of a text of comments alone is None. Raises InputError with the location for text that is not YAML, is
    deeper than MAX_DEPTH, or has anchors, tags, or a repeated key.
    """
    from yaml import YAMLError  # imported here to keep `simcluster --help` fast

    if odd := _LINE_ENDS.search(text):
        place = f"{source}:{text.count(chr(10), 0, odd.start()) + 1}"
        raise InputError(
            f"{place}: holds the character U+{ord(odd[0]):04X}, which YAML 1.1 and 1.2 read differently; remove it"
        )
    try:
        reader = _YamlReader(text, source)
        return reader.read_data(), reader.marks
    except YAMLError as problem:
        raise _syntax_error(text, source, problem) from None


class _YamlReader:
    """Converter of YAML parser events to plain data; ``marks`` holds the location of every key."""

    def __init__(self, text: str, source: str) -> None:
        import yaml

        parser: Any = getattr(yaml, "CLoader", yaml.Loader)  # PyYAML is built without libyaml where there is no wheel
        self._next = parser(text).get_event
        self._events = yaml.events
        self._source = source
        self.marks: dict[KeyPath, KeyLocation] = {}

    def read_data(self) -> Any:
        self._next()  # the start of the stream
        if isinstance(self._next(), self._events.StreamEndEvent):
            return None
        data = self._read_event(self._next(), ())
        self._next()  # the end of the document
        if not isinstance(more := self._next(), self._events.StreamEndEvent):
            why = explain_yaml_error("expected a single document")
            raise InputError(f"{self._event_location(more)}: not valid YAML: {why}")
        return data

    def _event_location(self, event: Any) -> str:
        return f"{self._source}:{event.start_mark.line + 1}:{event.start_mark.column + 1}"

    def _read_event(self, event: Any, path: KeyPath) -> Any:
        place = self._event_location(event)
        if len(path) > MAX_DEPTH:
            raise InputError(
                f"{place}: nested more than {MAX_DEPTH} levels deep; scenario and topology files need few "
                "levels: write the content one level up"
            )
        if isinstance(event, self._events.AliasEvent):
            raise InputError(f"{place}: not valid YAML: {explain_yaml_error('undefined alias')}")
        if event.anchor:
            raise InputError(
                f"{place}: anchors and aliases (&{event.anchor[:40]}) are not supported; write the value out"
            )
        tag = None if event.tag == "!" else event.tag
        if isinstance(event, self._events.MappingStartEvent) and tag in (None, f"{_TAG}map"):
            return self._read_mapping(path)
        if isinstance(event, self._events.SequenceStartEvent) and tag in (None, f"{_TAG}seq"):
            items: list[Any] = []
            while not isinstance(item := self._next(), self._events.SequenceEndEvent):
                here = (*path, len(items))
                self.marks[here] = KeyLocation(self._event_location(item), here)
                items.append(self._read_event(item, here))
            return items
        if isinstance(event, self._events.ScalarEvent):
            if tag is None:
                plain = event.implicit[0] and next((name for name, word in _TAGS if word.fullmatch(event.value)), None)
                return _parse_scalar(plain or "str", event.value, place)
            return _parse_scalar(tag.removeprefix(_TAG), event.value, place)
        raise _unsupported_tag_error(str(tag), place)

    def _read_mapping(self, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        while not isinstance(event := self._next(), self._events.MappingEndEvent):
            place = self._event_location(event)
            if not isinstance(event, self._events.ScalarEvent) or (event.implicit[0] and event.value == "<<"):
                raise InputError(f"{place}: a key is a list, a mapping or '<<'; write a plain word")
            here = (*path, event.value)
            if event.value in result:
                raise InputError(
                    f"{place}: {format_path(here)}: this key is already at {self.marks[here].position}; a key "
                    "is allowed once: keep one of the two"
                )
            self.marks[here] = KeyLocation(place, here)
            result[event.value] = self._read_event(self._next(), here)
        return result


def _parse_scalar(tag: str, text: str, place: str) -> Any:
    plain = text.replace("_", "").lower()
    try:
        if tag == "int":
            return int(plain, 0 if plain.lstrip("+-")[:2] in ("0x", "0o", "0b") else 10)
        if tag == "float":
            return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:  # thousands of digits
        raise InputError(
            f"{place}: {quote_value(text)} is not a usable number; write it with fewer digits, as in 1e9"
        ) from None
    if tag in ("null", "bool", "str"):
        return {"null": None, "bool": plain == "true", "str": text}[tag]
    raise _unsupported_tag_error(str(tag), place)


def _unsupported_tag_error(tag: str, place: str) -> InputError:
    return InputError(f"{place}: YAML tags (!{tag[:60]}) are not supported; write the plain value")


def _syntax_error(text: str, source: str, problem: Any) -> InputError:
    mark = getattr(problem, "problem_mark", None) or getattr(problem, "context_mark", None)
    if mark:
        told = " ".join(part for part in (problem.problem, problem.context) if part)
        lines = text.splitlines()[: mark.line + 1]
        joined = next(filter(None, map(missing_space_hint, lines[-1:-3:-1])), "")  # YAML reports the next line
        line = lines[-1].strip() if mark.line < len(lines) else ""
        quoted = f"; the line is {quote_value(line)}" if line else ""
        why = f"a key and its value are not separated{joined}" if joined else explain_yaml_error(told)
        return InputError(f"{source}:{mark.line + 1}:{mark.column + 1}: not valid YAML: {why}{quoted}")
    if hasattr(problem, "character"):
        place = f"{source}:{text.count(chr(10), 0, problem.position) + 1}"
        code = problem.character if isinstance(problem.character, int) else ord(problem.character)
        return InputError(f"{place}: not valid YAML: {explain_yaml_error(str(problem))}; it is U+{code:04X}")
    return InputError(f"{source}: not valid YAML: {explain_yaml_error(str(problem))}")


def edit_yaml(text: str, change: Callable[[dict[str, Any]], None]) -> str:
    """Apply ``change`` to the mapping in a YAML text; return the text with comments, order and style preserved."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 120
    document = yaml.load(text)
    change(document)
    yaml.dump(document, written := StringIO())
    return written.getvalue()


def to_yaml(document: Mapping[str, Any]) -> str:
    """Return a mapping as YAML text; short nested mappings and lists stay on the line of their key."""
    return "".join(f"{_format_pair(key, value, 0)}\n" for key, value in document.items())


def _format_pair(key: str, value: Any, depth: int | None = None) -> str:
    text, name = _format_value(value, depth), key if key[:1].isalnum() else json.dumps(key)
    return f"{name}:{text if text.startswith(chr(10)) else ' ' + text}"


def _format_value(value: Any, depth: int | None = None) -> str:
    """Return a value's text; at a ``depth`` long mappings and lists take several lines, deeper ones if very long."""
    if isinstance(value, Mapping):
        inline = ", ".join(_format_pair(key, item) for key, item in value.items())
        if depth is not None and len(inline) > (_DEEP_LINE if depth else _LINE):
            start = "\n" + "  " * (depth + 1)
            return "".join(start + _format_pair(key, item, depth + 1) for key, item in value.items())
        return "{" + inline + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        inline = ", ".join(_format_value(item) for item in value)
        if any(isinstance(item, Mapping) for item in value) and (depth == 0 or (depth and len(inline) > _DEEP_LINE)):
            return "".join("\n" + "  " * (depth + 1) + f"- {_format_value(item)}" for item in value)
        return f"[{inline}]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def _explain_error(reader: str, message: str) -> str:
    known = tomllib.loads(Path(__file__).with_name("parser_errors.toml").read_text(encoding="utf-8"))[reader]
    return str(next((meaning for part, meaning in known.items() if part in message), known["otherwise"]))


explain_yaml_error = partial(_explain_error, "yaml")
explain_json_error = partial(_explain_error, "json")
explain_toml_error = partial(_explain_error, "toml")
explain_xml_error = partial(_explain_error, "xml")
"""Explanations of parsers' error messages (PyYAML, Python's JSON and TOML, expat) in plain words, with what to write
instead."""
