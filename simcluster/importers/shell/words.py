"""Words of a shell script with their variables filled in, as far as they are known."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from simcluster.importers.shell.arithmetic import whole_number
from simcluster.importers.shell.parameters import operated
from simcluster.importers.shell.printed import printed
from simcluster.importers.shell.state import UNKNOWN, State, joined
from simcluster.importers.shell.syntax import EXPANSIONS, kind_of, text_of

if TYPE_CHECKING:
    from tree_sitter import Node

_QUOTED = re.compile(r"\\(\n|[\\$`\"])")
_PLAIN = re.compile(r"\\(\n|.)", re.DOTALL)
_LEAD = re.compile(r"(?:\s|\\\n)*")
_COUNTS_GPUS = re.compile(r"device_count|nvidia-smi|rocm-smi|/dev/nvidia")
_COUNTS_LIST = re.compile(r"\$\{?(\w+_VISIBLE_DEVICES)\b[^|]*\|.*(\bNF\b|\bwc\b)")
_BRACES = re.compile(r"(?<!\$)\{(?:([^{}\s]*,[^{}\s]*)|(-?\d{1,6})\.\.(-?\d{1,6}))\}")
_MOST = 1_000
_QUOTES = frozenset(["string", "raw_string"])
_ANSI = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_ARITHMETIC = re.compile(r"\$\(\((.*)\)\)", re.DOTALL)


def words_of(node: Node, state: State) -> list[str]:
    """The words that a shell would make of one: none of an empty variable, several of an array."""
    whole = node.named_children[0] if kind_of(node) == "string" and len(node.named_children) == 1 else None
    if whole is not None and text_of(node)[1:-1] == bare(whole)[1]:
        many = _elements(whole, state)
        if many is not None:
            return many
    found: list[str] = []
    current: str | None = None
    for text, splits in _pieces(node, state):
        if not splits:
            current = (current or "") + text
            continue
        parts = re.split(r"(\s+)", text)
        for part in parts:
            if part and not part.isspace():
                current = (current or "") + part
            elif part and current is not None:
                found.append(current)
                current = None
    found = found if current is None else [*found, current]
    kinds = {kind_of(child) for child in node.children}
    if "{" in text_of(node) and kind_of(node) in ("concatenation", "brace_expression") and not kinds & _QUOTES:
        return [each for word in found for each in _braced(word)]
    return found


def _braced(word: str) -> list[str]:
    """The words that ``a{b,c}`` and ``{1..3}`` stand for."""
    found = _BRACES.search(word)
    if not found:
        return [word]
    begin, end = int(found[2] or 0), int(found[3] or 0)
    numbers = range(begin, end + 1) if begin <= end else range(begin, end - 1, -1)
    width = len(found[2] or "") if (found[2] or "").startswith("0") else 0
    middles = found[1].split(",") if found[1] is not None else [f"{number:0{width}d}" for number in numbers[:_MOST]]
    return [
        found.string[: found.start()] + middle + rest for middle in middles for rest in _braced(word[found.end() :])
    ]


def text_at(node: Node, state: State) -> str:
    """One text of it, as in an assignment or between quotes."""
    return "".join(text for text, _ in _pieces(node, state))


def array_of(node: Node, state: State) -> list[str]:
    """The elements between the brackets of an array."""
    return [word for child in node.named_children if kind_of(child) != "comment" for word in words_of(child, state)]


def _pieces(node: Node, state: State) -> Iterator[tuple[str, bool]]:
    """Texts in a row, each with whether a shell would split it at its spaces."""
    kind = kind_of(node)
    if kind == "string":
        yield filled(node, state, _QUOTED, (1, 1)), False
    elif kind == "raw_string":
        yield text_of(node)[1:-1], False
    elif kind == "ansi_c_string":
        yield re.sub(r"\\(.)", lambda found: _ANSI.get(found[1], found[0]), text_of(node)[2:-1]), False
    elif kind in EXPANSIONS:
        yield expanded(node, state), True
    elif kind in ("concatenation", "command_name") and node.children:
        place = node.start_byte
        for child in node.children:
            yield _PLAIN.sub(_without_newline, _between(node, place, child.start_byte)), False
            yield from _pieces(child, state)
            place = child.end_byte
    else:
        yield filled(node, state, _PLAIN), False


def filled(node: Node, state: State, escapes: re.Pattern[str], around: tuple[int, int] = (0, 0)) -> str:
    """The text of a node with the expansions in it filled in; ``around`` are characters left out at its ends."""
    place, end = node.start_byte + around[0], node.end_byte - around[1]
    texts: list[str] = []
    for child in node.children:
        if kind_of(child) in EXPANSIONS:
            begin = child.start_byte + len(bare(child)[0].encode())
            texts += [escapes.sub(_without_newline, _between(node, place, begin)), expanded(child, state)]
            place = child.end_byte
    return "".join([*texts, escapes.sub(_without_newline, _between(node, place, end))])


def bare(node: Node) -> tuple[str, str]:
    """The spaces and joined lines that the grammar counts to an expansion between quotes, and the expansion."""
    text = text_of(node)
    lead = _LEAD.match(text)
    length = lead.end() if lead else 0
    return text[:length], text[length:]


def heredoc_text(node: Node, state: State, *, plain: bool) -> str:
    """The body of a here-document; ``plain``: its word was quoted, and nothing in it is filled in."""
    return text_of(node) if plain else filled(node, state, re.compile(r"\\(\n|[\\$`])"))


def _without_newline(found: re.Match[str]) -> str:
    return found[1] if found[1] != "\n" else ""


def _between(node: Node, begin: int, end: int) -> str:
    raw = (node.text or b"")[max(0, begin - node.start_byte) : max(0, end - node.start_byte)]
    return raw.decode(errors="replace")


def expanded(node: Node, state: State) -> str:
    """The value of an expansion; what is not known stays as it is written, without its spaces."""
    state.spend()
    kind = kind_of(node)
    if kind == "arithmetic_expansion":
        inner = filled(node, state, _QUOTED).strip()
        inner = inner.removeprefix("$((").removesuffix("))").removeprefix("$[").removesuffix("]")
        number = whole_number(inner, state)
        return str(number) if number is not None else "$((" + re.sub(r"\s+", "", inner) + "))"
    if kind == "command_substitution":
        sum_of = _ARITHMETIC.fullmatch(bare(node)[1])  # the grammar takes one inside ${...} for a command in brackets
        number = whole_number(sum_of[1], state) if sum_of else None
        return _output(node, state) if number is None else str(number)
    elements = _elements(node, state)
    if elements is not None:
        return " ".join(elements)
    if kind == "simple_expansion":
        return _variable(bare(node)[1][1:], state)
    return _parameter(node, state)


def _variable(name: str, state: State) -> str:
    if name == "#":
        return str(len(state.positional))
    if name == "?":
        return "0"
    value = state.get(name)
    return f"${name}" if value is None else joined(value[:1]) if isinstance(value, list) else value


def _elements(node: Node, state: State) -> list[str] | None:
    """All elements of an array, where the expansion stands for them."""
    found = _ALL.fullmatch(bare(node)[1])
    if not found:
        return None
    begin = whole_number(found[5], state) if found[5] else 0
    length = whole_number(found[6], state) if found[6] else None
    if begin is None or (found[6] and length is None):
        return []
    if not found[4]:
        rest = state.positional[begin if begin < 0 else max(0, begin - 1) :]
        return rest if length is None else rest[:length]
    if keyed := state.keyed(found[4]):
        return list(keyed) if found[3] else list(keyed.values())
    value = state.get(found[4])
    if value is None:
        return []
    elements = ([value] if isinstance(value, str) else list(value))[begin:]
    elements = elements if length is None else elements[:length]
    return [str(place) for place in range(len(elements))] if found[3] else elements


_ALL = re.compile(
    r"\$(?:([@*])|\{(?:([@*])|(!?)(\w+)\[[@*]\])(?::\s*([$\w{}-]+)(?::\s*([$\w{}-]+))?)?\})"
)  # fmt: skip
"""All elements, or those from a place on and so many of them."""
_PARAMETER = re.compile(
    r"\$\{([#!]?)(\w+|[@*#?])(\[[^]]*\])?(:?[-=?+]|##?|%%?|//?|:(?=\s*[\w$(-])|\^\^?|,,?)?", re.DOTALL
)


def _parameter(node: Node, state: State) -> str:
    """``${...}`` with an operator."""
    lead, text = bare(node)
    match = _PARAMETER.match(text)
    if not match:
        return re.sub(r"\s+", "", text)
    before, name, subscript, sign = match.groups()
    value = state.get(name)
    index = state.key((subscript or "")[1:-1])
    if subscript and (keyed := state.keyed(name)):
        value = list(keyed.values()) if index in ("@", "*") else keyed.get(index)
    elif subscript and isinstance(value, list) and index not in ("@", "*"):
        number = whole_number(index, state)
        value = value[number] if number is not None and -len(value) <= number < len(value) else ""
    if before == "#":
        return str(len(value)) if value is not None else f"${{#{name}}}"
    if before == "!":
        inner = state.get(joined(value)) if value is not None else None
        return joined(inner) if inner is not None else f"${name}"
    rest = _rest(node, state, len(lead) + match.end())
    if sign is None:
        return _variable(name, state) if value is None or isinstance(value, list) else value
    return operated(sign, value, rest, name, state)


def _rest(node: Node, state: State, offset: int) -> str:
    """What stands behind the operator, filled in."""
    begin = node.start_byte + len(text_of(node)[:offset].encode())
    texts: list[str] = []
    place = begin
    for child in node.named_children:
        if child.start_byte >= begin:
            texts += [_between(node, place, child.start_byte), text_at(child, state)]
            place = child.end_byte
    return "".join([*texts, _between(node, place, node.end_byte - 1)])


def argv_of(node: Node, state: State) -> list[str]:
    """The words of a command, without what is redirected and what is assigned for it alone."""
    parts = [child for child in node.named_children if not kind_of(child).endswith(("_redirect", "_assignment"))]
    return [word for child in parts for word in words_of(child, state)]


def given_text(node: Node, state: State) -> str | None:
    """What a command is given as ``<<< WORD`` or ``< <(COMMAND)``; None where it is not, or that is not known."""
    for child in node.named_children:
        if kind_of(child) == "herestring_redirect":
            return text_at(child.named_children[-1], state) + "\n"
        inner = child.named_children[-1] if kind_of(child) == "file_redirect" and child.named_children else None
        if inner is not None and kind_of(inner) == "process_substitution" and text_of(child).startswith("<"):
            return printed(inner.named_children, state)
    return None


def _output(node: Node, state: State) -> str:
    """What a command would print, where that is known or can be taken."""
    text = printed(node.named_children, state)
    if text is not None:
        return text.rstrip("\n")
    inner = bare(node)[1].removeprefix("$(").removesuffix(")").strip("`").strip()
    listed = _COUNTS_LIST.search(inner)
    visible = state.get(listed[1]) if listed else None
    if isinstance(visible, str) and not UNKNOWN.search(visible):
        return str(len([each for each in visible.split(",") if each.strip()]))
    if (_COUNTS_GPUS.search(inner) or listed) and state.gpus_per_node:
        said = "those of the cluster, or of --gpus where these are fewer"
        state.assumed[f"{state.gpus_per_node} GPUs in a machine where the script counts them: {said}"] = None
        return str(state.gpus_per_node)
    if inner == "pwd":
        return "$PWD"
    first = re.match(r"[\w/-]*", inner)
    return f"$({first[0] if first else ''}...)"
