"""Lists of a number for each layer, written as Python would: ``[0]*3+[1]*58``.  Read, never run; and what they say of
layers with experts.

Megatron-LM evaluates them (arguments.py, ``moe_freq_type``); here only brackets, +, * and numbers have a meaning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from simcluster.base.errors import InputError

MOST_LAYERS = 100_000
"""Beyond it no list of layers is made."""
_TOKEN = re.compile(r"\s*(?:(\d+)|([][()+*,]))")
_MOST_CHARACTERS = 10_000
_MOST_DEPTH = 20

Value = int | list[int]


def parse_layer_list(text: str) -> Value:
    """The number, or the list of numbers, that the text stands for.

    Raises InputError for anything else, and for a list of more than MOST_LAYERS numbers before it is made.
    """
    if len(text) > _MOST_CHARACTERS:
        raise InputError(f"is longer than {_MOST_CHARACTERS:,} characters")
    reader = _Reader(text)
    value = reader.value(0)
    if reader.token:
        raise reader.error()
    return value


class _Reader:
    """One text, a token at a time."""

    def __init__(self, text: str) -> None:
        self._text, self._place, self.token = text.rstrip(), 0, ""
        self._next()

    def error(self, what: str = "") -> InputError:
        if not what:
            what = f"does not go on with {self.token!r}" if self.token else "ends too early"
        return InputError(f"{self._text[:60]!r} is no list of layers ({what}); write one as in ([0]*3+[1]*58)")

    def _next(self) -> None:
        if self._place == len(self._text):
            self.token = ""
            return
        match = _TOKEN.match(self._text, self._place)
        if match is None:
            raise self.error(f"{self._text[self._place :].strip()[:1]!r} has no meaning in it")
        self.token, self._place = match[1] or match[2], match.end()

    def _take(self, expected: str) -> None:
        if self.token != expected:
            raise self.error()
        self._next()

    def value(self, depth: int, operators: str = "+*") -> Value:
        """Factors joined by operators, of which the first binds least."""
        if not operators:
            return self._factor(depth)
        value = self.value(depth, operators[1:])
        while self.token == operators[0]:
            self._next()
            value = self._joined(operators[0], value, self.value(depth, operators[1:]))
        return value

    def _factor(self, depth: int) -> Value:
        if depth > _MOST_DEPTH:
            raise self.error(f"nested more than {_MOST_DEPTH} deep")
        if self.token == "(":
            self._next()
            inner = self.value(depth + 1)
            self._take(")")
            return inner
        if self.token == "[":
            self._next()
            items: list[int] = []
            while self.token != "]":
                items.append(self._number(self.value(depth + 1)))
                if self.token != "]":
                    self._take(",")
            self._next()
            return items
        if not self.token.isdecimal():
            raise self.error()
        if len(self.token) > 9:
            raise self.error("a number of more than 9 digits")
        number = int(self.token)
        self._next()
        return number

    def _number(self, value: Value) -> int:
        if isinstance(value, list):
            raise self.error("a list in a list")
        return value

    def _joined(self, operator: str, left: Value, right: Value) -> Value:
        if operator == "+" and isinstance(left, list) and isinstance(right, list):
            self._sized(len(left) + len(right))
            return left + right
        if operator == "*" and isinstance(left, list) and isinstance(right, int):
            left, right = right, left
        if operator == "*" and isinstance(left, int) and isinstance(right, list):
            self._sized(len(right) * left)
            return right * left
        one, other = self._number(left), self._number(right)
        if operator == "*" and one * other > 10**9:
            raise self.error("a number of more than 9 digits")
        return one + other if operator == "+" else one * other

    def _sized(self, layers: int) -> None:
        if layers > MOST_LAYERS:
            raise self.error(f"more than {MOST_LAYERS:,} layers")


def places(has_experts: Sequence[bool]) -> dict[str, int] | None:
    """Which layers have experts, in their order, as ``first_dense_layers``, ``every`` and ``offset`` of ``Moe``.

    Defaults are left out; None where experts are in no layer, or not in every n-th behind the first dense ones.
    """
    found = [number for number, here in enumerate(has_experts) if here]
    if not found:
        return None
    every = found[1] - found[0] if len(found) > 1 else len(has_experts)
    if found != list(range(found[0], len(has_experts), every)):
        return None
    first = found[0] if found[0] >= every else 0
    fields = {"first_dense_layers": first, "every": every, "offset": (found[0] + 1) % every}
    return {name: value for name, value in fields.items() if value != (name == "every")}
