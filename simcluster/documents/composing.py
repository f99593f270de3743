"""YAML texts as trees of nodes that know where they are written: by ruamel.yaml; long ones, and ours, by libyaml.

The only module that knows a YAML library.  ruamel.yaml (YAML 1.2, in Python) takes 6 to 40 s for a text of 1 MB;
libyaml's parser (in C, as PyYAML has it) 1 to 2 s.  That reads YAML 1.1, but what a plain word means (``yes``, ``012``)
is left to ruamel.yaml's rules.  What it says of a text that is not valid is in its own words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from io import StringIO
from typing import TYPE_CHECKING, Any

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import shown
from simcluster.documents.parser_words import of_yaml
from simcluster.documents.suggestions import with_a_colon

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

MAX_DEPTH = 50
LONG = 100_000
"""Characters from which on libyaml is asked, where it is there: what people write by hand is shorter."""
_LINE_ENDS = re.compile("[\x85\u2028\u2029\ufeff]")
"""What YAML 1.1 takes for the end of a line and 1.2 does not; and a mark of byte order, which only one counts."""


def compose(text: str, source: str, *, ships: bool = False) -> Node | None:
    """The tree of the only document in a text, None where it holds only comments.

    What ``ships`` with the package goes by libyaml too (tested to say the same), in a seventh of the time: every
    process reads some of it.

    InputError, with its place, for what is no YAML, or deeper than MAX_DEPTH.
    """
    if ships or len(text) > LONG:
        try:
            from yaml.cyaml import CParser
        except ImportError:  # PyYAML is built without it where there is no wheel
            pass
        else:
            return by_libyaml(CParser, text, source)
    return in_python(text, source)


def too_deep(place: str) -> InputError:
    """What is said of a node below too many others."""
    return InputError(
        f"{place}: nested more than {MAX_DEPTH} levels deep; scenario and topology files are shallow: "
        "write what is inside one level up"
    )


def place_of(source: str, mark: Any) -> str:
    """Where a mark of either library is."""
    return f"{source}:{mark.line + 1}:{mark.column + 1}"


def _not_valid(text: str, source: str, problem: Any) -> InputError:
    """What either library says, and where, in words of ours."""
    mark = getattr(problem, "problem_mark", None) or getattr(problem, "context_mark", None)
    if mark:
        told = " ".join(part for part in (problem.problem, problem.context) if part)
        lines = text.splitlines()[: mark.line + 1]
        joined = next(filter(None, map(with_a_colon, lines[-1:-3:-1])), "")  # what was meant for a key ends in the next
        line = lines[-1].strip() if mark.line < len(lines) else ""
        quoted = f"; the line is {shown(line)}" if line else ""
        why = f"a key and its value are not told apart{joined}" if joined else of_yaml(told)
        return InputError(f"{place_of(source, mark)}: not valid YAML: {why}{quoted}")
    if hasattr(problem, "character"):
        place = f"{source}:{text.count(chr(10), 0, problem.position) + 1}"
        code = problem.character if isinstance(problem.character, int) else ord(problem.character)
        return InputError(f"{place}: not valid YAML: {of_yaml(str(problem))}; it is U+{code:04X}")
    return InputError(f"{source}: not valid YAML: {of_yaml(str(problem))}")


@lru_cache(maxsize=4)
def in_python(text: str, source: str) -> Node | None:
    """Return the tree parsed by ruamel.yaml, cached: a command and its processes read a scenario several times."""
    from ruamel.yaml import YAML  # here, so that `simcluster --help` does not pay for it
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.scanner import Scanner

    class Shallow(Scanner):
        """Stops at a bracket that is too deep: reading on, the time grows with the square of those that are open."""

        def fetch_flow_collection_start(self, *token: Any, **opened: Any) -> None:
            if len(self.flow_context) > MAX_DEPTH:
                raise too_deep(place_of(source, self.reader.get_mark()))
            super().fetch_flow_collection_start(*token, **opened)

    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner = Shallow
    try:
        node: Node | None = yaml.compose(text)
    except YAMLError as problem:
        raise _not_valid(text, source, problem) from None
    except RecursionError:
        raise too_deep(source) from None
    return node


def by_libyaml(parser: Any, text: str, source: str) -> Node | None:
    """The tree by PyYAML's parser in C: its events, as nodes of ruamel.yaml."""
    from yaml import YAMLError

    if odd := _LINE_ENDS.search(text):
        place = f"{source}:{text.count(chr(10), 0, odd.start()) + 1}"
        raise InputError(
            f"{place}: holds the character U+{ord(odd[0]):04X}, which YAML 1.1 and 1.2 read differently; take it out, "
            f"or write a text of at most {LONG:,} characters"
        )
    try:
        return _Composing(parser(text), source).document()
    except YAMLError as problem:
        raise _not_valid(text, source, problem) from None


class _Composing:
    def __init__(self, parser: Any, source: str) -> None:
        from ruamel.yaml import nodes
        from ruamel.yaml.resolver import VersionedResolver
        from yaml import events

        self._next, self._source, self._nodes, self._events = parser.get_event, source, nodes, events
        self._resolve = VersionedResolver().resolve
        self._anchors: dict[str, Node] = {}

    def document(self) -> Node | None:
        self._next()  # the begin of the stream
        if isinstance(self._next(), self._events.StreamEndEvent):
            return None
        node = self._node(self._next(), 0)
        self._next()  # the end of the document
        more = self._next()
        if not isinstance(more, self._events.StreamEndEvent):
            said = of_yaml("expected a single document")
            raise InputError(f"{place_of(self._source, more.start_mark)}: not valid YAML: {said}")
        return node

    def _node(self, event: Any, depth: int) -> Node:
        kind, events, nodes = type(event), self._events, self._nodes
        if depth > MAX_DEPTH:
            raise too_deep(place_of(self._source, event.start_mark))
        if kind is events.AliasEvent:
            return self._aliased(event)
        if kind is events.ScalarEvent:
            made, value = nodes.ScalarNode, event.value
        elif kind is events.SequenceStartEvent:
            made, value = nodes.SequenceNode, []
        else:
            made, value = nodes.MappingNode, []
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._resolve(made, value, event.implicit)
        node: Node = made(tag, value, event.start_mark, anchor=event.anchor)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        if made is nodes.SequenceNode:
            while type(item := self._next()) is not events.SequenceEndEvent:
                value.append(self._node(item, depth + 1))
        elif made is nodes.MappingNode:
            while type(key := self._next()) is not events.MappingEndEvent:
                value.append((self._node(key, depth + 1), self._node(self._next(), depth + 1)))
        return node

    def _aliased(self, event: Any) -> Node:
        """The node itself, of which ``reading`` says that it has an anchor."""
        if event.anchor not in self._anchors:
            place = place_of(self._source, event.start_mark)
            raise InputError(f"{place}: not valid YAML: {of_yaml('undefined alias')}")
        return self._anchors[event.anchor]


def edited(text: str, change: Callable[[dict[str, Any]], None]) -> str:
    """Return a YAML text after a change to its mapping; comments, order and style of the rest stay."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes, yaml.width = True, 120
    document = yaml.load(text)
    change(document)
    yaml.dump(document, written := StringIO())
    return written.getvalue()
