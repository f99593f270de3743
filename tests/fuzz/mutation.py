"""Changes of files, drawn by dice: of bytes, of lines, of trees as YAML and JSON have them, of tables' cells."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

Tree = Any
"""What YAML or JSON holds: mappings, lists, texts, numbers, true, false, null."""

_HUGE = "9" * 5000
_QUANTITY = re.compile(r"([\d.]+)( ?[A-Za-z/% ]+)")
_GENTLE = 0.2
"""The part of all changes that leave a value what it is: without them hardly an input of many keys is played."""

TEXTS = (
    "",
    " ",
    "~",
    "-",
    "auto",
    "none",
    "yes",
    "0x10",
    "1e999",
    "nan",
    "-inf",
    "1_000",
    "\u0663",
    "\u00b2",
    "1e-400",
    "5 GB",
    "0 GB/s",
    "-3 ms",
    "1e400 GB/s",
    "1e308 s",
    "12 parsecs",
    "50%",
    "1000000%",
    "-1%",
    "../../etc/passwd",
    "/dev/zero",
    "/dev/null",
    ".",
    "~root",
    "a\x1b[31mb",
    "a\x07",
    "\u202eabc",
    "\ud7ff\ufffe",
    "a\nb",
    "a\tb",
    "\u2028",
    "x" * 3000,
    _HUGE,
    "{",
    "[1, 2",
    "!!python/object:os.system x",
    "evil.py:f",
    "file.csv",
    "$(touch EXECUTED)",
    "`touch EXECUTED`",
    "%s%n",
    "{0.__class__}",
    "__class__",
    "a.b.c",
    "0,1-3,7",
    "5-1",
    "0-99999999999",
    "9**9**9**9",
    "ceil(1, 2)",
    "1//0",
    "ring",
    "h100",
    "tiny_dp",
    "interleaved:0",
    "1:2:3",
    "2024-13-45",
    "NaN s",
    "\x00",
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    5,
    7,
    63,
    128,
    10**4,
    10**6,
    10**9,
    2**31,
    2**53 + 1,
    2**62,
    2**63,
    2**64,
    10**30,
    10**400,
    0.0,
    -0.0,
    0.5,
    1e-9,
    1e-300,
    5e-324,
    1e15,
    1e308,
    -1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
)
OTHERS: tuple[Tree, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"a": {"b": {}}},
    [[[[1]]]],
    [1, "a", None],
)
TOKENS = (
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\n",
    b"\r",
    b"\t",
    b":",
    b"- ",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b'"',
    b"'",
    b"#",
    b"&a ",
    b"*a",
    b"!!",
    b"%",
    b"<",
    b"</",
    b"&amp;",
    b"]]>",
    b"=",
    b"--",
    b"\\",
    b"\x1b[2J",
    b"\xe2\x80\xae",
    b"9" * 400,
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"$(",
    b"`",
    b"${",
    b"||",
    b";",
    b"\n\n---\n",
)


def value(dice: Random) -> Tree:
    """A value that somebody might not have thought of."""
    return deepcopy(dice.choice(dice.choice((TEXTS, NUMBERS, OTHERS))))


def near(dice: Random, old: Tree) -> Tree:
    """A value near an old one: its neighbour, its negative, with another unit, of another type, or a word changed."""
    if isinstance(old, bool):
        return dice.choice((not old, int(old), str(old).lower(), None))
    if isinstance(old, int | float):
        changes: tuple[Callable[[Any], Any], ...] = (
            lambda x: x + 1,
            lambda x: -x,
            lambda x: x * 2,
            lambda x: x * 1000,
            lambda x: x / 3 if abs(x) < 1e300 or isinstance(x, float) else x // 3,  # what no float holds
            lambda x: x // 2,
            str,
            lambda x: [x],
        )
        return dice.choice(changes)(old)
    if isinstance(old, str):
        cut = dice.randrange(len(old) + 1)
        return dice.choice(
            (
                old[:cut],
                old[:cut] + dice.choice(TEXTS) + old[cut:],
                old.upper(),
                old + old,
                old + " ms",
                [old],
                old[::-1],
            )
        )
    return value(dice)


def places(tree: Tree) -> list[tuple[Any, Any]]:
    """Every place of a tree, as what holds it and its key or index there."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in pairs:
            found.append((node, key))
            waiting.append(child)
    return found


def gentle(dice: Random, whole: Tree) -> Tree:
    """A copy of a tree with one or two of its values larger or smaller, of the same type and unit."""
    changed = json.loads(json.dumps(whole))
    leaves = [(inside, key) for inside, key in places(changed) if not isinstance(inside[key], dict | list)]
    for inside, key in dice.sample(leaves, min(len(leaves), dice.choice((1, 1, 2)))):
        inside[key] = larger_or_smaller(dice, inside[key])
    return changed


def larger_or_smaller(dice: Random, old: Tree) -> Tree:
    """A value of the same type and unit."""
    quantity = _QUANTITY.fullmatch(old) if isinstance(old, str) else None
    if quantity:
        return f"{float(quantity[1]) * dice.choice((0, 1e-6, 0.1, 0.9, 2, 1000, 1e9)):g}{quantity[2]}"
    if isinstance(old, bool) or not isinstance(old, int | float):
        return not old if isinstance(old, bool) else old
    return (
        dice.choice((0, 1, 2, 3, 7, 8, old + 1, old * 2, old * 100))
        if isinstance(old, int)
        else old * dice.choice((0, 0.01, 0.9, 2, 100))
    )


def tree(dice: Random, whole: Tree, times: int | None = None) -> Tree:
    """A copy of a tree with one to four changes: values, keys, what is missing, twice, nested, or from elsewhere."""
    if dice.random() < _GENTLE:
        return gentle(dice, whole)
    changed = json.loads(json.dumps(whole))
    for _ in range(times or dice.choice((1, 1, 1, 2, 4))):
        there = places(changed)
        if not there:
            return value(dice)
        node, key = dice.choice(there)
        way = dice.randrange(10)
        if way < 3:
            node[key] = value(dice)
        elif way < 6:
            node[key] = near(dice, node[key])
        elif way == 6:
            del node[key]
        elif way == 7:
            other, where = dice.choice(there)
            node[key] = json.loads(json.dumps(other[where])) if where_is(other, where) else None
        elif isinstance(node, dict):
            name = dice.choice(
                (str(key)[:-1], str(key).upper(), f"{key}{dice.choice(TEXTS)}", str(dice.choice(there)[1]))
            )
            node[name] = node.pop(key) if way == 8 else value(dice)
        else:
            node.extend(deepcopy(node[:1000] * dice.choice((1, 1, 3))))
    return changed


def where_is(node: Any, key: Any) -> bool:
    """Is the place still there?"""
    return key in node if isinstance(node, dict) else key < len(node)


def raw(dice: Random, content: bytes) -> bytes:
    """Bytes flipped, cut out, put in, doubled, or the end left off: one to six times."""
    if dice.random() < _GENTLE:
        return digit(dice, content)
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 3, 6))):
        at = dice.randrange(len(changed) + 1)
        until = min(len(changed), at + dice.choice((1, 1, 2, 8, 64, 500)))
        way = dice.randrange(6)
        if way == 0 and at < len(changed):
            changed[at] ^= 1 << dice.randrange(8)
        elif way == 1:
            del changed[at:until]
        elif way == 2:
            changed[at:at] = dice.choice(TOKENS)
        elif way == 3:
            changed[at:at] = changed[at:until] * dice.choice((1, 2, 20))
        elif way == 4:
            changed[at:until] = dice.choice(TOKENS)
        elif dice.random() < 0.3:
            del changed[at:]
    return bytes(changed)


def digit(dice: Random, content: bytes) -> bytes:
    """One digit for another, among the first."""
    changed = bytearray(content)
    digits = [at for at, each in enumerate(content[:20_000]) if 48 <= each <= 57]
    if digits:
        changed[dice.choice(digits)] = dice.randrange(48, 58)
    return bytes(changed)


def lines(dice: Random, text: str, separator: str = ",") -> bytes:
    """Lines dropped, doubled, exchanged, and cells or words of them changed."""
    rows = text.splitlines()
    if dice.random() < _GENTLE:
        return digit(dice, text.encode())
    for _ in range(dice.choice((1, 1, 2, 4))):
        if not rows:
            break
        at = dice.randrange(len(rows)) if dice.random() < 0.8 else 0
        way = dice.randrange(8)
        if way == 0:
            del rows[at]
        elif way == 1:
            rows.insert(at, rows[dice.randrange(len(rows))])
        elif way == 2:
            other = dice.randrange(len(rows))
            rows[at], rows[other] = rows[other], rows[at]
        else:
            cells = rows[at].split(separator)
            cell = dice.randrange(len(cells))
            cells[cell] = str(value(dice)) if way < 5 else str(near(dice, cells[cell]))
            rows[at] = separator.join(cells[:cell] if way == 7 else cells)
    ending = dice.choice(("\n", "\n", "\n", "\r\n"))
    return (ending.join(rows) + ending).encode("utf-8", "surrogatepass")
