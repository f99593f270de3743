"""Expansion of words and evaluation of tests of a launch script, as far as values are known.

Read are ``$NAME``, arrays, defaults (``${X:-4}``, ``${X:+...}``), ``${X,,}`` and whole numbers. Any other expansion and
command output stay unknown: ``$(what...:line)``.
"""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Iterator
from itertools import groupby

from simcluster.importers.shell.state import State, Value, is_unset, joined
from simcluster.importers.shell.syntax import piece_end

_PARAMETER = re.compile(
    r"(\w+|[@*#?$-])(?:\[((?:\$\{[^}]*\}|\$\(\([^)]*\)\)|[^]])*)\])?(?:(:?[-=?+]|,,|\^\^)(.*))?", re.DOTALL
)
_OUTSIDE, _IN_QUOTES = re.compile(r"[\\'\"$`]"), re.compile(r"[\\$`]")
_COUNTS_GPUS = re.compile(r"device_count|(^|[|;&])\s*(nvidia|rocm)-smi|/dev/nvidia")
_NOT_READ = re.compile(r"\$\([^\s()]*\.\.\.:\d+\)")
_IDENTIFIER = re.compile(r"(?<![\w$])(?<!\$\()[A-Za-z_]\w*")
_LARGEST, _MOST_CHARACTERS, _LONGEST = 10**18, 400, 1_000
_NUMBERS = {name: getattr(operator, name[1:]) for name in ("-eq", "-ne", "-gt", "-ge", "-lt", "-le")}
_SIGNS = frozenset(["=", "==", "!=", "<", ">", "=~", *_NUMBERS])
_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda left, right: abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1),
    ast.Mod: lambda left, right: abs(left) % abs(right) * (1 if left >= 0 else -1),
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def words_of(raw: str, state: State) -> list[str]:
    """Expand a word as a shell does: to no words for an empty variable, several for an array."""
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
    """Expand a word to one text, as in an assignment or a comparison."""
    return "".join(joined(content) for content, _ in _pieces(raw, state))


def pattern_of(raw: str, state: State) -> str:
    """Expand a word to a glob pattern in which quoted characters are literal."""
    parts = ((joined(content), kind) for content, kind in _pieces(raw, state))
    return "".join(re.sub(r"([*?[])", r"[\1]", text) if kind == "quoted" else text for text, kind in parts)


def document_text(text: str, state: State) -> str:
    """Return the body of a here-document with its variables expanded."""
    return "".join(joined(content) for content, _ in _pieces(text, state, quoted=True, escapes="\\$`"))


def _pieces(
    raw: str, state: State, *, quoted: bool = False, escapes: str = '\\$`"'
) -> Iterator[tuple[str | list[str], str]]:
    """Yield the parts of a word, each ``plain``, ``quoted`` or an ``expansion``, which a shell splits at spaces."""
    place, kind = 0, "quoted" if quoted else "plain"
    while special := (_IN_QUOTES if quoted else _OUTSIDE).search(raw, place):
        if special.start() > place:
            yield raw[place : special.start()], kind
        char, place = special[0], piece_end(raw, special.start())
        piece = raw[special.start() : place]
        if char == "\\":
            kept = quoted and piece[1:] not in (*escapes, "\n")
            yield piece if kept else piece[1:].replace("\n", ""), "quoted"
        elif char == "'":
            yield piece[1:].removesuffix("'"), "quoted"
        elif char == '"':
            yield from list(_pieces(piece[1:].removesuffix('"'), state, quoted=True)) or [("", "quoted")]
        elif len(piece) == 1:
            yield piece, kind
        else:
            content = _expanded(piece, state)
            if isinstance(content, list) and (not quoted or re.match(r"\$(?:\*|\{\w*\[?\*)", piece)):
                content = " ".join(content)
            yield content, "quoted" if quoted else "expansion"
    if place < len(raw):
        yield raw[place:], kind


def _expanded(piece: str, state: State) -> Value:
    """Return the value of an expansion, a list for an array; unknown values contain no spaces."""
    state.spend()
    if piece.startswith("$(("):
        plain = _with_numbers(piece[3:].removesuffix("))"), state)
        unknown, number = _NOT_READ.search(plain), worked_out(plain)
        return str(number) if number is not None else unknown[0] if unknown else "".join(piece.split())
    if piece.startswith(("$(", "`")):
        return _output(piece[2:].removesuffix(")") if piece[0] == "$" else piece.strip("`"), state)
    inner = piece[2:].removesuffix("}") if piece.startswith("${") else piece[1:]
    match = _PARAMETER.fullmatch(inner)
    if not match:
        return state.not_read(f"${{{inner}}}")
    name, subscript, sign, rest = match.groups()
    if name in ("#", "?", "$", "-"):
        return {"#": str(len(state.positional)), "?": "0"}.get(name, f"${name}")
    value = list(state.positional) if name in "@*" else state.get(name)
    if name in "@*" or subscript in ("@", "*"):
        value = [value] if isinstance(value, str) else value or []
    elif subscript is not None:
        value = _element(name, value, subscript, state)
    elif isinstance(value, list):
        value = value[0] if value else ""
    return _or_default(name, value, sign, rest, state) if sign else f"${name}" if value is None else value


def _element(name: str, value: Value | None, subscript: str, state: State) -> Value | None:
    own, number = state.get(f"{name}[{text_of(subscript, state)}]"), whole_number(subscript, state)
    if own is not None or not isinstance(value, list):
        return value if own is None else own
    if number is None:
        return state.not_read(f"{name}[{subscript}]")
    return value[number] if -len(value) <= number < len(value) else ""


def _or_default(name: str, value: Value | None, sign: str, rest: str, state: State) -> Value:
    """Return a variable's value, or its substitute under ``:-``, ``:=``, ``:+``, ``:?``, ``,,`` or ``^^``."""
    unset = is_unset(value) if sign[0] == ":" or isinstance(value, list) else value != "" and is_unset(value)
    if sign[-1] == "+":
        return "" if unset else text_of(rest, state)
    if sign[-1] == "?":
        state.required |= {name: None} if unset else {}
        return f"${name}" if value is None else value
    if sign in (",,", "^^"):
        text = joined(value or f"${name}")
        return text if unset else text.upper() if sign == "^^" else text.lower()
    if not unset:
        return value or ""
    default = text_of(rest, state)
    if sign[-1] == "=":
        state.put(name, default)
    return default


def _output(inner: str, state: State) -> str:
    """Return a command's output if it is a sum, the folder or a GPU count; else a placeholder."""
    words = inner.split()
    number = whole_number(inner.strip()[4:], state) if words[:1] == ["expr"] else None
    if words == ["pwd"] or number is not None:
        return "$PWD" if number is None else str(number)
    if _NOT_READ.fullmatch(f"$({inner})"):
        return f"$({inner})"
    if _COUNTS_GPUS.search(inner) and state.gpus_per_node:
        said = "the cluster's, or --gpus if fewer"
        state.assumed[f"{state.gpus_per_node} GPUs per node where the script counts them: {said}"] = None
        return str(state.gpus_per_node)
    name = re.search(r"[\w.-]*$", words[0]) if words else None
    return state.not_read(name[0] if name else "")


# --- tests ------------------------------------------------------------------------------------------------------------


def is_met(words: list[str], state: State, *, double: bool) -> bool | None:
    """Return whether a test holds; None if unknown. ``double``: it is between double brackets."""
    for signs, decides in ((("||", "-o"), True), (("&&", "-a"), False)):
        if place := next((place for place, word in enumerate(words) if word in signs and place), 0):
            left = is_met(words[:place], state, double=double)
            right = decides if left is decides else is_met(words[place + 1 :], state, double=double)
            return right if left is not None or right is decides else None
    if words[:1] == ["!"]:
        found = is_met(words[1:], state, double=double)
        return None if found is None else not found
    if {"(", "\\(", "=~"} & set(words):
        return None
    if len(words) > 1 and re.fullmatch("-[a-zA-Z]", words[0]) and words[1] not in _SIGNS:
        sign, operand = words[0], " ".join(each for word in words[1:] for each in words_of(word, state))
        if sign not in ("-n", "-z"):
            state.leaned += 1
            return bool(operand)
        text = state.taken_as_unset(operand)
        return (text is None or bool(text)) == (sign == "-n")  # command output is assumed to be non-empty
    plain = (
        words if len(words) > 2 and words[1] in _SIGNS else [each for word in words for each in words_of(word, state)]
    )
    if len(plain) > 2 and plain[1] in _SIGNS:
        return _compared(plain[0], plain[1], plain[2], state, double=double)
    text = state.taken_as_unset(" ".join(plain))
    return None if text is None else bool(text.strip())


def _compared(left: str, sign: str, right: str, state: State, *, double: bool) -> bool | None:
    equal = sign in ("=", "==", "!=")
    one = state.taken_as_unset(text_of(left, state))
    other = state.taken_as_unset(pattern_of(right, state) if double and equal else text_of(right, state))
    if one is None or other is None or not (equal or sign in _NUMBERS):
        return None
    if equal:
        same = fnmatch.fnmatchcase(one[:_LONGEST], other[:_LONGEST]) if double else one == other
        return same == (sign != "!=")
    # a shell complains about a non-number, and takes the test as false
    numbers = [int(text) for text in (one, other) if re.fullmatch(r"\s*-?\d{1,18}\s*", text)]
    return len(numbers) == 2 and bool(_NUMBERS[sign](*numbers))


# --- whole numbers, evaluated without a shell -------------------------------------------------------------------------


def whole_number(text: str, state: State) -> int | None:
    """Return the value of an arithmetic expression; None if a part of it is unknown."""
    return worked_out(_with_numbers(text, state))


def _with_numbers(text: str, state: State) -> str:
    """Return an arithmetic expression with its variables, also bare names, replaced by values."""

    def number(found: re.Match[str]) -> str:
        value = joined(state.get(found[0]) or "").strip()
        known = re.fullmatch(r"-?\d{1,18}", value) or _NOT_READ.fullmatch(value)
        return f"({value})" if known else f" {found[0]} "

    return _IDENTIFIER.sub(number, text_of(text[:1000], state))


def worked_out(text: str) -> int | None:
    """Evaluate an expression of whole numbers; None for anything else."""
    condition, question, rest = text.partition("?")
    if question:
        chosen = worked_out(condition)
        return None if chosen is None else worked_out(rest.partition(":")[0 if chosen else 2])
    try:
        return _value(ast.parse(re.sub(r"\b0+(?=\d)", "", text[:_MOST_CHARACTERS]).strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, KeyError):
        return None


def _value(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int(result)):
            pass
        case ast.BinOp(left=left, op=sign, right=right) | ast.Compare(left=left, ops=[sign], comparators=[right]):
            result = _OPERATORS[type(sign)](_value(left), _value(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_value(operand)
        case _:
            raise ValueError
    if abs(result) > _LARGEST:
        raise ValueError
    return int(result)
