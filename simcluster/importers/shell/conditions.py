"""Tests of a shell script and ``getopts``, decided as far as they can be without running anything.

Files are taken to be there and commands to succeed; what the script never sets is taken as empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from simcluster.importers.shell.arithmetic import assign
from simcluster.importers.shell.filters import matched
from simcluster.importers.shell.patterns import matches
from simcluster.importers.shell.printed import passed_on, printed
from simcluster.importers.shell.state import State, joined
from simcluster.importers.shell.syntax import kind_of, text_of, tree_of
from simcluster.importers.shell.words import argv_of, given_text, text_at, words_of

if TYPE_CHECKING:
    from tree_sitter import Node


def next_option(words: list[str], state: State) -> bool:
    """Reads the next option into the variable that is named, and its value into OPTARG; whether there is one."""
    if len(words) < 2:
        return False
    letters, name, *given = words
    arguments = given or state.positional
    place = int(joined(state.variables.get("OPTIND") or "1"))
    inside = int(joined(state.variables.get("OPTIND[]") or "1"))
    word = arguments[place - 1] if place <= len(arguments) else ""
    if not word.startswith("-") or word in ("-", "--"):
        state.put(name, "?")
        return False
    letter, rest = word[inside], word[inside + 1 :]
    takes = f"{letter}:" in letters
    value = (rest or (arguments[place] if place < len(arguments) else "")) if takes else ""
    place += 1 if (takes and rest) or (not takes and not rest) else 2 if takes else 0
    state.put("OPTIND", str(place))
    state.put("OPTIND[]", str(inside + 1) if rest and not takes else "1")
    state.put("OPTARG", value)
    state.put(name, letter if letter in letters and letter != ":" else "?")
    return True


_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda one, other: one == other,
    "-ne": lambda one, other: one != other,
    "-gt": lambda one, other: one > other,
    "-ge": lambda one, other: one >= other,
    "-lt": lambda one, other: one < other,
    "-le": lambda one, other: one <= other,
}
_JOINED = re.compile(r"\s(-[ao])\s")
_Part = str | list["Node"]
"""A sign, or the nodes of an operand."""
_TESTS = frozenset(["test_command", "list", "negated_command", "pipeline"])
_TESTING = re.compile(r"(?:test|true|false|e?grep)\b(?![/.=])")
MOST_CALLS = 20
"""How deep functions call each other, as far as they are read."""
_ASKS = re.compile(r"-z\b|\$\{?#|\$[@*\d]|=\s*(\"\"|'')")
_SEARCHES = (["grep"], ["egrep"])
_OF_FILES = frozenset(["-e", "-f", "-d", "-s", "-r", "-w", "-x", "-L", "-h"])


def holds(node: Node, state: State) -> bool | None:
    """Whether a condition is met; None where that cannot be told.  Commands in it are read."""
    kind = kind_of(node)
    inner = [child for child in node.named_children if kind_of(child) != "comment"]
    if kind == "test_command" or (kind == "compound_statement" and text_of(node).startswith("((")):
        if text_of(node).startswith("(("):
            number = assign(text_of(node)[2:-2], state)
            return None if number is None else number != 0
        parts = _JOINED.split(text_of(node)[1:-1]) if text_of(node).startswith("[ ") else []
        if len(parts) > 1:  # -a and -o, which the grammar does not bind as a shell does
            return _joined_tests(parts, state)
        return _test(inner[0], state) if inner else False
    if kind == "negated_command":
        found = holds(inner[0], state) if inner else None
        return None if found is None else not found
    if kind == "list" and len(inner) == 2:
        return _both(inner, "&&" if any(text_of(child) == "&&" for child in node.children) else "||", state)
    if kind in ("subshell", "compound_statement", "redirected_statement") and inner:
        return holds(inner[0], state)
    return _piped(inner, state) if kind == "pipeline" else _command(node, state)


def _joined_tests(parts: list[str], state: State) -> bool | None:
    """Tests and the signs between them, of which -a binds more."""
    found: list[list[bool | None]] = [[]]
    for part in parts:
        if part == "-o":
            found.append([])
        elif part != "-a":
            found[-1].append(holds(tree_of(f"[ {part} ]", state.source).named_children[0], state))
    each = [False if False in tests else None if None in tests else True for tests in found]
    return True if True in each else None if None in each else False


def _piped(parts: list[Node], state: State) -> bool | None:
    """Whether ``... | grep -q WORD`` finds it; of other last commands that they succeed."""
    first, *rest = parts
    negated = kind_of(first) == "negated_command"
    first = first.named_children[0] if negated else first
    if kind_of(rest[-1]) != "command" or argv_of(rest[-1], state)[:1] not in _SEARCHES:
        return _command(rest[-1], state) is not negated
    *between, last = [argv_of(part, state) for part in rest]
    found = _found(last, passed_on(between, printed([first], state), state), state)
    return None if found is None else found is not negated


def _found(words: list[str], text: str | None, state: State) -> bool | None:
    """Whether ``grep`` finds what it looks for in the text that it is given."""
    state.leaned += text is None
    known = None if text is None else state.taken_as_unset(text)
    return None if known is None else matched(words, known)


def _command(node: Node, state: State) -> bool | None:
    words = argv_of(node, state)
    if words[:1] == ["test"]:
        return _words(words[1:], state)
    if words[:1] in (["true"], [":"]):
        return True
    if words[:1] == ["false"] or (words and words[0].startswith("[") and words[0] != "["):
        return False  # no such command: a space is missing behind the bracket
    if words[:1] in _SEARCHES and (text := given_text(node, state)) is not None:
        return _found(words, text, state)
    if words[:1] == ["getopts"]:
        return next_option(words[1:], state)
    state.run(node, state)
    return _of_function(words, state) if words and words[0] in state.functions else _taken(state)


def _taken(state: State) -> bool:
    """That a command succeeds, which is not known."""
    state.leaned += 1
    return True


def _of_function(words: list[str], state: State) -> bool | None:
    """What a function that has been read returns, or what the test comes to that it ends with."""
    if state.returned is not None:
        known = state.taken_as_unset(state.returned)
        return None if known is None else known.strip() in ("", "0")
    statements = [child for child in state.functions[words[0]].named_children if kind_of(child) != "comment"]
    last = statements[-1] if statements and state.depth < MOST_CALLS else None
    if last is None or not (kind_of(last) in _TESTS or _TESTING.match(text_of(last))):
        return _taken(state)
    kept, state.positional, state.depth = state.positional, words[1:], state.depth + 1
    found = holds(last, state)
    state.positional, state.depth = kept, state.depth - 1
    return found


def _both(parts: list[Node], sign: str, state: State) -> bool | None:
    first = holds(parts[0], state)
    if first is (sign == "||"):
        return first
    second = holds(parts[1], state)
    if first is None:
        return second if second is (sign == "||") else None
    return second


def _test(node: Node, state: State) -> bool | None:
    """What stands between the brackets, bound as a shell binds it: the grammar binds ``=`` less than ``&&``."""
    return _any(_flat(node), state)


def _flat(node: Node) -> list[_Part]:
    """Operands and signs in a row, but for what stands in brackets of its own; a pattern may be several nodes."""
    operands = [child for child in node.named_children if kind_of(child) != "test_operator"]
    if kind_of(node) == "binary_expression" and len(operands) >= 2:
        left, right, *more = operands
        middle = text_of(node)[left.end_byte - node.start_byte : right.start_byte - node.start_byte]
        sign = (middle.split() or [""])[0] if middle.isascii() else ""
        behind: list[_Part] = [[right, *more]] if more else _flat(right)
        return [*_flat(left), {"-a": "&&", "-o": "||"}.get(sign, sign), *behind]
    if kind_of(node) == "unary_expression" and text_of(node.children[0]) == "!":
        return ["!", *_flat(operands[-1])]
    return [[node]]


def _split(parts: Sequence[_Part], sign: str) -> Iterator[list[_Part]]:
    begin = 0
    for place in [place for place, part in enumerate(parts) if part == sign] + [len(parts)]:
        yield list(parts[begin:place])
        begin = place + 1


def _any(parts: list[_Part], state: State) -> bool | None:
    found: bool | None = False
    for either in _split(parts, "||"):
        each: bool | None = True
        for part in _split(either, "&&"):
            one = _one(part, state)
            each = one if one is False or each is True else each
            if each is False:
                break
        found = each if each is True or found is False else found
        if found is True:
            break
    return found


def _one(parts: list[_Part], state: State) -> bool | None:
    """One comparison, or one word."""
    if parts[:1] == ["!"]:
        found = _one(parts[1:], state)
        return None if found is None else not found
    if len(parts) == 3:
        left, sign, right = parts
        if isinstance(left, str) or isinstance(right, str) or not isinstance(sign, str):
            return None
        text = "".join(text_at(node, state) for node in left)
        if sign not in ("=", "==", "!="):
            return _binary(text, sign, "".join(text_at(node, state) for node in right), state)
        known = state.taken_as_unset(text)
        like = None if known is None else matches(known, right, state)
        return None if like is None else like == (sign != "!=")
    if len(parts) != 1 or isinstance(parts[0], str):
        return None
    node = parts[0][0]
    if kind_of(node) == "parenthesized_expression":
        return _test(node.named_children[0], state)
    if kind_of(node) == "unary_expression":
        return _unary(text_of(node.children[0]), " ".join(words_of(node.named_children[-1], state)), state)
    return _words(text_at(node, state).split(), state)


def _words(words: list[str], state: State) -> bool | None:
    """A test given as words, as of ``test``."""
    if words[:1] == ["!"]:
        found = _words(words[1:], state)
        return None if found is None else not found
    if len(words) == 3:
        return _binary(words[0], words[1], words[2], state)
    if words and (words[0] in _OF_FILES or words[0] in ("-z", "-n")):
        return _unary(words[0], " ".join(words[1:]), state)
    text = state.taken_as_unset(" ".join(words))
    return None if text is None else bool(text.strip())


def _unary(sign: str, operand: str, state: State) -> bool | None:
    if sign in _OF_FILES:
        state.leaned += 1
        return bool(operand)
    if sign == "-v":
        return state.get(operand) is not None
    text = state.taken_as_unset(operand)
    if text is None:
        return sign == "-n"  # a command's output is taken to be there
    return bool(text) == (sign == "-n")


def _binary(left: str, sign: str, right: str, state: State) -> bool | None:
    one, other = state.taken_as_unset(left), state.taken_as_unset(right)
    if one is None or other is None:
        return None
    if sign in _NUMBERS:
        whole = re.compile(r"\s*-?\d{1,18}\s*")
        if not whole.fullmatch(one) or not whole.fullmatch(other):
            return False  # a shell complains, and goes on with what follows else
        return _NUMBERS[sign](int(one), int(other))
    if sign in ("=", "==", "!="):
        return (one == other) == (sign != "!=")
    if sign in ("<", ">"):
        return one < other if sign == "<" else one > other
    if sign == "=~" and len(other) < 100 and not re.search(r"[*+{].*[*+{]", other):
        try:
            like = re.search(other, one[:1000])
        except re.error:
            return None
        if like:
            state.put("BASH_REMATCH", [like[0], *(part or "" for part in like.groups())])
        return like is not None
    return None


def asks(test: Node) -> bool:
    """Whether a test is about something that the script asks for: its arguments, or a variable that may be empty."""
    return _ASKS.search(text_of(test)) is not None


def ends(body: list[Node], state: State, *, returns: bool = True) -> bool:
    """Whether statements end the script, be it in brackets or in a function that they call; ``returns``: or what they
    stand in."""
    for node in body:
        word = re.match(r"[\w.-]*", text_of(node))
        inner = state.functions.get(word[0]) if word and state.depth < MOST_CALLS else None
        if kind_of(node) == "compound_statement" or inner is not None:
            state.depth += 1
            found = ends((inner or node).named_children, state, returns=returns)
            state.depth -= 1
            if found:
                return True
        elif word and word[0] in (("exit", "return") if returns else ("exit",)):
            return True
    return False
