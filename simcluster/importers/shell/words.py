"""Words of a launch script with its variables expanded, as far as they are known."""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Iterator
from itertools import groupby

from simcluster.importers.shell.state import UNKNOWN, State, Value, is_unset, joined
from simcluster.importers.shell.syntax import piece_end

_ANSI = {"n": "\n", "t": "\t"}
_MOST, _LONGEST = 1_000, 2_000
_PARAMETER = re.compile(
    r"([#!]?)(\w+|[@*#?$-])(?:\[((?:\$\{[^}]*\}|\$\(\([^)]*\)\)|[^]])*)\])?(:?[-=?+]|##?|%%?|//?|:|\^\^?|,,?)?",
    re.DOTALL,
)
_OUTSIDE, _IN_QUOTES = re.compile(r"[\\'\"$`]"), re.compile(r"[\\$`]")
_SLASH = re.compile(r"(?<!\\)/")
_COUNTS_GPUS = re.compile(r"device_count|(^|[|;&])\s*(nvidia|rocm)-smi|/dev/nvidia")
_COUNTS_LIST = re.compile(r"\$\{?(\w+_VISIBLE_DEVICES)\b[^|]*\|.*(\bNF\b|\bwc\b)", re.DOTALL)
_DOCUMENT = re.compile(r"cat\s+<<-?\s*(['\"\\]?)(\w+)['\"]?\n(.*?)\t*\2", re.DOTALL)
_PRINTED = re.compile(r"\$\([\w.-]*\.\.\.:\d+\)")
"""Placeholder of a command's output: the command and its line."""
_IDENTIFIER = re.compile(r"(?<![\w$])(?<!\$\()[A-Za-z_]\w*")
_LARGEST, _MOST_CHARACTERS = 10**18, 400
_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda left, right: abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1),
    ast.Mod: lambda left, right: abs(left) % abs(right) * (1 if left >= 0 else -1),
    ast.Pow: lambda left, right: left**right if 0 <= right <= 60 and abs(left) <= 1024 else _LARGEST + 1,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def words_of(raw: str, state: State) -> list[str]:
    """Return the words that a shell makes of one: none of an empty variable, several of an array."""
    parts: list[str | None] = []
    for content, kind in _pieces(raw, state):
        if isinstance(content, list):  # elements of "${A[@]}"
            parts += [part for element in content for part in (None, element)][1:]
        elif kind == "expansion":
            parts += [None if part.isspace() else part for part in re.split(r"(\s+)", content) if part]
        else:
            parts.append(content)
    groups = groupby(parts, key=lambda part: part is not None)
    return ["".join(part for part in group if part is not None) for is_word, group in groups if is_word]


def text_of(raw: str, state: State) -> str:
    """Return a word as one text, as it is assigned or compared."""
    return "".join(joined(content) for content, _ in _pieces(raw, state))


def pattern_of(raw: str, state: State) -> str:
    """Return a word as a pattern, in which what is quoted is plain."""
    parts = ((joined(content), kind) for content, kind in _pieces(raw, state))
    return "".join(re.sub(r"([*?[])", r"[\1]", text) if kind == "quoted" else text for text, kind in parts)


def _pieces(
    raw: str, state: State, *, quoted: bool = False, escapes: str = '\\$`"'
) -> Iterator[tuple[str | list[str], str]]:
    """Yield the parts of a word, each ``plain``, ``quoted`` or an ``expansion``, which a shell splits at spaces."""
    place, kind = 0, "quoted" if quoted else "plain"
    while place < len(raw):
        special = (_IN_QUOTES if quoted else _OUTSIDE).search(raw, place)
        if special is None or special.start() > place:
            yield raw[place : special.start() if special else len(raw)], kind
        if special is None:
            return
        place, char = special.start(), special[0]
        end = piece_end(raw, place, quoted=quoted)
        piece, place = raw[place:end], end
        if char == "\\":
            kept = quoted and piece[1:] not in (*escapes, "\n")
            yield piece if kept else piece[1:].replace("\n", ""), "quoted"
        elif char == "'":
            yield piece[1:].removesuffix("'"), "quoted"
        elif char == '"':
            yield from list(_pieces(piece[1:].removesuffix('"'), state, quoted=True)) or [("", "quoted")]
        elif piece.startswith("$'"):
            yield re.sub(r"\\(.)", lambda found: _ANSI.get(found[1], found[1]), piece[2:].removesuffix("'")), "quoted"
        elif len(piece) == 1:
            yield piece, kind
        else:
            content = expanded(piece, state)
            if isinstance(content, list) and (not quoted or re.match(r"\$(?:\*|\{\w*\[?\*)", piece)):
                content = " ".join(content)
            yield content, "quoted" if quoted else "expansion"


def document_text(text: str, state: State) -> str:
    """Return the body of a here-document with its variables expanded."""
    return "".join(joined(content) for content, _ in _pieces(text, state, quoted=True, escapes="\\$`"))


def expanded(piece: str, state: State) -> str | list[str]:
    """Return the value of an expansion, a list of an array; what is not known stays as written, without spaces."""
    state.spend()
    if piece.startswith(("$((", "$[")):
        inner = piece[3:].removesuffix("))") if piece[1] == "(" else piece[2:].removesuffix("]")
        plain = _with_numbers(inner, state)
        printed, number = _PRINTED.search(plain), worked_out(plain)
        return str(number) if number is not None else printed[0] if printed else f"$(({''.join(inner.split())}))"
    if piece.startswith(("$(", "`")):
        return _output(piece[2:].removesuffix(")") if piece[0] == "$" else piece.strip("`"), state)
    return _parameter(piece[2:].removesuffix("}") if piece.startswith("${") else piece[1:], state)


def whole_number(text: str, state: State) -> int | None:
    """Return the value of an arithmetic expression; None where a part of it is not known."""
    return worked_out(_with_numbers(text, state))


def _with_numbers(text: str, state: State) -> str:
    """Return an arithmetic expression with its variables replaced, by names alone, too."""
    plain = re.sub(r"\$\[(.*)\]", r"(\1)", text_of(text, state) if len(text) < _MOST else "$")

    def number(found: re.Match[str]) -> str:
        value = joined(state.get(found[0]) or "").strip()
        known = re.fullmatch(r"-?\d{1,18}", value) or _PRINTED.fullmatch(value)
        return f"({value})" if known else f" {found[0]} "

    return _IDENTIFIER.sub(number, plain)


def _parameter(inner: str, state: State) -> str | list[str]:
    """Return the value of ``${...}``."""
    match = _PARAMETER.match(inner)
    if not match:
        return "${" + "".join(inner.split()) + "}"
    before, name, subscript, sign = match.groups()
    rest = inner[match.end() :]
    if name in "#?" or (name in "$-" and not before):
        return {"#": str(len(state.positional)), "?": "0"}.get(name, f"${name}")
    value: Value | None = list(state.positional) if name in "@*" else state.get(name)
    if name in "@*" or subscript in ("@", "*"):
        return _elements(value, before, sign or "", rest, state, arguments=name in "@*")
    if subscript is not None:
        value = _element(value, text_of(subscript, state), state)
    elif isinstance(value, list):
        value = value[0] if value else ""
    text = None if value is None else joined(value)
    if before == "#":
        return f"${{#{name}}}" if text is None else str(len(text))
    if before == "!":
        other = state.get(text) if text is not None else None
        return f"${name}" if other is None else joined(other)
    return _operated(sign, text, rest, name, state) if sign else f"${name}" if text is None else text


def _elements(
    value: Value | None, before: str, sign: str, rest: str, state: State, *, arguments: bool
) -> str | list[str]:
    """Return the elements of an array, their keys or places, or their number."""
    found = [] if value is None else [value] if isinstance(value, str) else list(value)
    if before == "!":
        return found if isinstance(value, dict) else [str(place) for place in range(len(found))]
    if before == "#":
        return str(len(found))
    found = list(value.values()) if isinstance(value, dict) else found
    if sign == ":":
        return _part(["$0", *found] if arguments else found, rest, state) or []
    if sign[-1:] in ("-", "+"):
        return text_of(rest, state) if bool(found) == (sign[-1] == "+") else found
    return found


def _part(value: str | list[str], rest: str, state: State) -> str | list[str] | None:
    """Return ``${NAME:BEGIN:LENGTH}``; None where the numbers are not known."""
    begin, colon, length = rest.partition(":")
    first, count = whole_number(begin, state), whole_number(length, state) if colon else None
    return None if first is None or (colon and count is None) else value[first:][:count]


def _element(value: Value | None, key: str, state: State) -> str | None:
    if isinstance(value, dict):
        return value.get(key)
    number = whole_number(key, state)
    elements = value if isinstance(value, list) else [] if value is None else [value]
    return elements[number] if number is not None and -len(elements) <= number < len(elements) else ""


def _operated(sign: str, value: str | None, rest: str, name: str, state: State) -> str:
    """Return a variable with a default, without a part, or in other letters."""
    colon = len(sign) > 1 and sign[0] == ":"
    unset = is_unset(value) if colon else value is None or (is_unset(value) and value != "")
    if sign[-1] in "-=":
        default = text_of(rest, state)
        if unset and sign[-1] == "=":
            state.put(name, default)
        return default if unset else value or ""
    if sign[-1] == "+":
        return "" if unset else text_of(rest, state)
    if sign[-1] == "?" and unset:
        state.required[name] = None
    if value is None:
        return f"${name}"
    if sign[0] in "#%":
        return _cut(value, pattern_of(rest, state), sign)
    if sign == ":":
        part = _part(value, rest, state)
        return part if isinstance(part, str) else f"${name}"
    if sign[0] == "/":
        old, new = [*(text_of(part.replace("\\/", "/"), state) for part in _SLASH.split(rest, maxsplit=1)), ""][:2]
        if not old or len(value) > _LONGEST or old.count("*") > 1:
            return value
        like = fnmatch.translate(old)[: -len(r"\Z")]
        return re.sub(like, lambda _: new, value, count=0 if sign == "//" else 1)
    if is_unset(value):
        return value  # a name that nothing sets stays as written
    return value.upper() if sign == "^^" else value.lower() if sign == ",," else value


def _cut(value: str, pattern: str, sign: str) -> str:
    """Return a value without the shortest or longest part at an end that matches the pattern."""
    lengths = range(min(len(value), _LONGEST) + 1)
    for length in lengths if len(sign) == 1 else reversed(lengths):
        part = value[:length] if sign[0] == "#" else value[len(value) - length :]
        if fnmatch.fnmatchcase(part, pattern):
            return value[length:] if sign[0] == "#" else value[: len(value) - length]
    return value


def _output(inner: str, state: State) -> str:
    """Return what a command prints where that is a sum, a document or a number of GPUs; a word that names it else."""
    words = inner.split()
    if words == ["pwd"] or _PRINTED.fullmatch(f"$({inner})"):
        return "$PWD" if words == ["pwd"] else f"$({inner})"
    if document := _DOCUMENT.fullmatch(inner.strip()):
        return (document[3] if document[1] else document_text(document[3], state)).rstrip("\n")
    number = whole_number(inner.strip()[4:], state) if words[:1] == ["expr"] else None
    if number is not None:
        return str(number)
    listed = _COUNTS_LIST.search(inner)
    visible = state.get(listed[1]) if listed else None
    if isinstance(visible, str) and not UNKNOWN.search(visible):
        return str(len([each for each in visible.split(",") if each.strip()]))
    if (_COUNTS_GPUS.search(inner) or listed) and state.gpus_per_node:
        said = "those of the cluster, or of --gpus where these are fewer"
        state.assumed[f"{state.gpus_per_node} GPUs in a machine where the script counts them: {said}"] = None
        return str(state.gpus_per_node)
    name = re.search(r"[\w.-]*$", words[0]) if words else None
    return f"$({name[0] if name else ''}...:{state.line})"


# --- whole numbers, worked out without a shell ------------------------------------------------------------------------


def worked_out(text: str) -> int | None:
    """Return the value of an expression of whole numbers; None for anything else."""
    condition, question, rest = text.partition("?")
    if question:
        chosen = worked_out(condition)
        return None if chosen is None else worked_out(rest.partition(":")[0 if chosen else 2])
    python = re.sub(r"\b0+(?=\d)", "", text.replace("&&", " and ").replace("||", " or "))
    try:
        tree = (
            ast.parse(re.sub(r"!(?!=)", " not ", python).strip(), mode="eval")
            if len(text) <= _MOST_CHARACTERS
            else None
        )
        return _value(tree.body) if tree else None
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, KeyError):
        return None


def _value(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int(result)):
            pass
        case ast.BinOp(left=left, op=sign, right=right) | ast.Compare(left=left, ops=[sign], comparators=[right]):
            result = _OPERATORS[type(sign)](_value(left), _value(right))
        case ast.UnaryOp(op=sign, operand=operand):
            inner = _value(operand)
            result = -inner if isinstance(sign, ast.USub) else int(not inner) if isinstance(sign, ast.Not) else inner
        case ast.BoolOp(op=sign, values=values):
            numbers = [_value(value) for value in values]
            result = all(numbers) if isinstance(sign, ast.And) else any(numbers)
        case _:
            raise ValueError
    if abs(result) > _LARGEST:
        raise ValueError
    return int(result)
