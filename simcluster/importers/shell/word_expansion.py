"""Expansion of shell words and evaluation of shell tests, as far as the values of variables are known.

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

from simcluster.importers.shell.script_state import ScriptState, ShellValue, is_unset_shell_value, shell_value_to_text
from simcluster.importers.shell.shell_parser import find_expansion_end

_PARAMETER = re.compile(
    r"(\w+|[@*#?$-])(?:\[((?:\$\{[^}]*\}|\$\(\([^)]*\)\)|[^]])*)\])?(?:(:?[-=?+]|,,|\^\^)(.*))?", re.DOTALL
)
_UNQUOTED_SPECIAL, _QUOTED_SPECIAL = re.compile(r"[\\'\"$`]"), re.compile(r"[\\$`]")
_COUNTS_GPUS = re.compile(r"device_count|(^|[|;&])\s*(nvidia|rocm)-smi|/dev/nvidia")
_UNREAD_PLACEHOLDER = re.compile(r"\$\([^\s()]*\.\.\.:\d+\)")
_IDENTIFIER = re.compile(r"(?<![\w$])(?<!\$\()[A-Za-z_]\w*")
_MAX_NUMBER, _MAX_CHARACTERS, _MAX_COMPARED = 10**18, 400, 1_000
_NUMBER_TESTS = {name: getattr(operator, name[1:]) for name in ("-eq", "-ne", "-gt", "-ge", "-lt", "-le")}
_TEST_OPERATORS = frozenset(["=", "==", "!=", "<", ">", "=~", *_NUMBER_TESTS])
_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: lambda left, right: abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1),
    ast.Mod: lambda left, right: abs(left) % abs(right) * (1 if left >= 0 else -1),
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def expand_words(raw: str, state: ScriptState) -> list[str]:
    """Expand a shell word into a list of words: no words for an empty variable, several for an array."""
    parts: list[str | None] = []
    for content, kind in _split_and_expand_word(raw, state):
        if isinstance(content, list):  # elements of "${A[@]}"
            parts += [part for element in content for part in (None, element)][1:]
        elif kind == "expansion":
            parts += [None if part.isspace() else part for part in re.split(r"(\s+)", content) if part]
        else:
            parts.append(content)
    groups = groupby(parts, key=lambda part: part is not None)
    return ["".join(part for part in group if part is not None) for is_word, group in groups if is_word]


def expand_word_to_text(raw: str, state: ScriptState) -> str:
    """Expand a shell word to a single text, as bash does in an assignment or a comparison."""
    return "".join(shell_value_to_text(content) for content, _ in _split_and_expand_word(raw, state))


def expand_pattern(raw: str, state: ScriptState) -> str:
    """Expand a shell word to a glob pattern, in which quoted characters are literal."""
    parts = ((shell_value_to_text(content), kind) for content, kind in _split_and_expand_word(raw, state))
    return "".join(re.sub(r"([*?[])", r"[\1]", text) if kind == "quoted" else text for text, kind in parts)


def expand_here_document(text: str, state: ScriptState) -> str:
    """Expand the shell variables in a here-document's body."""
    parts = _split_and_expand_word(text, state, quoted=True, escapes="\\$`")
    return "".join(shell_value_to_text(content) for content, _ in parts)


def _split_and_expand_word(
    raw: str, state: ScriptState, *, quoted: bool = False, escapes: str = '\\$`"'
) -> Iterator[tuple[str | list[str], str]]:
    """Yield the expanded parts of a shell word, each with its type ("plain", "quoted" or "expansion")."""
    place, kind = 0, "quoted" if quoted else "plain"
    while special := (_QUOTED_SPECIAL if quoted else _UNQUOTED_SPECIAL).search(raw, place):
        if special.start() > place:
            yield raw[place : special.start()], kind
        char, place = special[0], find_expansion_end(raw, special.start())
        piece = raw[special.start() : place]
        if char == "\\":
            kept = quoted and piece[1:] not in (*escapes, "\n")
            yield piece if kept else piece[1:].replace("\n", ""), "quoted"
        elif char == "'":
            yield piece[1:].removesuffix("'"), "quoted"
        elif char == '"':
            yield from list(_split_and_expand_word(piece[1:].removesuffix('"'), state, quoted=True)) or [("", "quoted")]
        elif len(piece) == 1:
            yield piece, kind
        else:
            content = _expand_reference(piece, state)
            if isinstance(content, list) and (not quoted or re.match(r"\$(?:\*|\{\w*\[?\*)", piece)):
                content = " ".join(content)
            yield content, "quoted" if quoted else "expansion"
    if place < len(raw):
        yield raw[place:], kind


def _expand_reference(piece: str, state: ScriptState) -> ShellValue:
    """Return the value of a shell expansion such as ``${NAME}``; a list of texts for an array."""
    state.count_step()
    if piece.startswith("$(("):
        plain = _substitute_variables(piece[3:].removesuffix("))"), state)
        unknown, number = _UNREAD_PLACEHOLDER.search(plain), evaluate_integer_expression(plain)
        return str(number) if number is not None else unknown[0] if unknown else "".join(piece.split())
    if piece.startswith(("$(", "`")):
        return _evaluate_command_output(piece[2:].removesuffix(")") if piece[0] == "$" else piece.strip("`"), state)
    inner = piece[2:].removesuffix("}") if piece.startswith("${") else piece[1:]
    match = _PARAMETER.fullmatch(inner)
    if not match:
        return state.make_placeholder(f"${{{inner}}}")
    name, subscript, sign, rest = match.groups()
    if name in ("#", "?", "$", "-"):
        return {"#": str(len(state.positional_arguments)), "?": "0"}.get(name, f"${name}")
    value = list(state.positional_arguments) if name in "@*" else state.variable_value(name)
    if name in "@*" or subscript in ("@", "*"):
        value = [value] if isinstance(value, str) else value or []
    elif subscript is not None:
        value = _expand_array_element(name, value, subscript, state)
    elif isinstance(value, list):
        value = value[0] if value else ""
    return _apply_expansion_operator(name, value, sign, rest, state) if sign else f"${name}" if value is None else value


def _expand_array_element(name: str, value: ShellValue | None, subscript: str, state: ScriptState) -> ShellValue | None:
    own = state.variable_value(f"{name}[{expand_word_to_text(subscript, state)}]")
    number = evaluate_arithmetic(subscript, state)
    if own is not None or not isinstance(value, list):
        return value if own is None else own
    if number is None:
        return state.make_placeholder(f"{name}[{subscript}]")
    return value[number] if -len(value) <= number < len(value) else ""


def _apply_expansion_operator(name: str, value: ShellValue | None, op: str, arg: str, state: ScriptState) -> ShellValue:
    """Apply an expansion operator (``:-``, ``:=``, ``:+``, ``:?``, ``,,`` or ``^^``) to a variable's value."""
    unset = is_unset_shell_value(value) and (op[0] == ":" or isinstance(value, list) or value != "")
    if op[-1] == "+":
        return "" if unset else expand_word_to_text(arg, state)
    if op[-1] == "?":
        state.required_variables |= {name: None} if unset else {}
        return f"${name}" if value is None else value
    if op in (",,", "^^"):
        text = shell_value_to_text(value or f"${name}")
        return text if unset else text.upper() if op == "^^" else text.lower()
    if not unset:
        return value or ""
    default = expand_word_to_text(arg, state)
    if op[-1] == "=":
        state.assign_variable(name, default)
    return default


def _evaluate_command_output(inner: str, state: ScriptState) -> str:
    """Return a command's output if it is a sum, the current folder or a GPU count; otherwise a placeholder."""
    words = inner.split()
    number = evaluate_arithmetic(inner.strip()[4:], state) if words[:1] == ["expr"] else None
    if words == ["pwd"] or number is not None:
        return "$PWD" if number is None else str(number)
    if _UNREAD_PLACEHOLDER.fullmatch(f"$({inner})"):
        return f"$({inner})"
    if _COUNTS_GPUS.search(inner) and state.gpus_per_node:
        said = "the cluster's, or --gpus if fewer"
        state.assumed[f"{state.gpus_per_node} GPUs per node where the script counts them: {said}"] = None
        return str(state.gpus_per_node)
    name = re.search(r"[\w.-]*$", words[0]) if words else None
    return state.make_placeholder(name[0] if name else "")


# --- tests ------------------------------------------------------------------------------------------------------------


def evaluate_test(words: list[str], state: ScriptState, *, double: bool) -> bool | None:
    """Evaluate a shell test: ``[[ ... ]]`` if ``double``, else ``[ ... ]``; return None if the result is unknown."""
    for signs, decides in ((("||", "-o"), True), (("&&", "-a"), False)):
        if place := next((place for place, word in enumerate(words) if word in signs and place), 0):
            left = evaluate_test(words[:place], state, double=double)
            right = decides if left is decides else evaluate_test(words[place + 1 :], state, double=double)
            return right if left is not None or right is decides else None
    if words[:1] == ["!"]:
        found = evaluate_test(words[1:], state, double=double)
        return None if found is None else not found
    if {"(", "\\(", "=~"} & set(words):
        return None
    if len(words) > 1 and re.fullmatch("-[a-zA-Z]", words[0]) and words[1] not in _TEST_OPERATORS:
        sign, operand = words[0], " ".join(each for word in words[1:] for each in expand_words(word, state))
        if sign not in ("-n", "-z"):
            state.assumption_count += 1
            return bool(operand)
        text = state.remove_unset_variables(operand)
        return (text is None or bool(text)) == (sign == "-n")  # command output is assumed to be non-empty
    plain = (
        words
        if len(words) > 2 and words[1] in _TEST_OPERATORS
        else [each for word in words for each in expand_words(word, state)]
    )
    if len(plain) > 2 and plain[1] in _TEST_OPERATORS:
        return _compare_texts(plain[0], plain[1], plain[2], state, double=double)
    text = state.remove_unset_variables(" ".join(plain))
    return None if text is None else bool(text.strip())


def _compare_texts(left: str, op: str, right: str, state: ScriptState, *, double: bool) -> bool | None:
    equal = op in ("=", "==", "!=")
    one = state.remove_unset_variables(expand_word_to_text(left, state))
    expand = expand_pattern if double and equal else expand_word_to_text
    other = state.remove_unset_variables(expand(right, state))
    if one is None or other is None or not (equal or op in _NUMBER_TESTS):
        return None
    if equal:
        same = fnmatch.fnmatchcase(one[:_MAX_COMPARED], other[:_MAX_COMPARED]) if double else one == other
        return same == (op != "!=")
    # a shell complains about a non-number, and takes the test as false
    numbers = [int(text) for text in (one, other) if re.fullmatch(r"\s*-?\d{1,18}\s*", text)]
    return len(numbers) == 2 and bool(_NUMBER_TESTS[op](*numbers))


# --- whole numbers, evaluated without a shell -------------------------------------------------------------------------


def evaluate_arithmetic(text: str, state: ScriptState) -> int | None:
    """Return the value of a shell arithmetic expression, or None if part of the expression is unknown."""
    return evaluate_integer_expression(_substitute_variables(text, state))


def _substitute_variables(text: str, state: ScriptState) -> str:
    """Replace the variables in a shell arithmetic expression by their values."""

    def variable_number(found: re.Match[str]) -> str:
        value = shell_value_to_text(state.variable_value(found[0]) or "").strip()
        known = re.fullmatch(r"-?\d{1,18}", value) or _UNREAD_PLACEHOLDER.fullmatch(value)
        return f"({value})" if known else f" {found[0]} "

    return _IDENTIFIER.sub(variable_number, expand_word_to_text(text[:1000], state))


def evaluate_integer_expression(text: str) -> int | None:
    """Return the value of an expression of whole numbers; None for any other text."""
    condition, question, rest = text.partition("?")
    if question:
        chosen = evaluate_integer_expression(condition)
        return None if chosen is None else evaluate_integer_expression(rest.partition(":")[0 if chosen else 2])
    try:
        return _evaluate_node(ast.parse(re.sub(r"\b0+(?=\d)", "", text[:_MAX_CHARACTERS]).strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, KeyError):
        return None


def _evaluate_node(node: ast.AST) -> int:
    match node:
        case ast.Constant(value=int(result)):
            pass
        case ast.BinOp(left=left, op=sign, right=right) | ast.Compare(left=left, ops=[sign], comparators=[right]):
            result = _OPERATORS[type(sign)](_evaluate_node(left), _evaluate_node(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_evaluate_node(operand)
        case _:
            raise ValueError
    if abs(result) > _MAX_NUMBER:
        raise ValueError
    return int(result)
