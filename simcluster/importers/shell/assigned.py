"""Assignments of a shell script: of texts, of arrays by place or key, and those of export, local and their like."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simcluster.importers.shell.arithmetic import whole_number
from simcluster.importers.shell.state import PAIR, State, Value
from simcluster.importers.shell.syntax import kind_of, text_of
from simcluster.importers.shell.words import array_of, text_at

if TYPE_CHECKING:
    from tree_sitter import Node

_KEY = re.compile(r"\[([^]]+)\]=(.*)", re.DOTALL)
_OWN = frozenset(["local", "declare", "typeset"])


def assignment(node: Node, state: State) -> None:
    """``NAME=VALUE``, ``NAME+=VALUE`` or ``NAME[PLACE]=VALUE``."""
    target = node.children[0]
    name, _, subscript = text_of(target).partition("[")
    value_node = node.child_by_field_name("value")
    if name in state.fixed:
        return
    if state.get(name) is None and value_node is not None and _adds_to(name, text_of(value_node)):
        state.put(name, "")
    value: Value = ""
    if value_node is not None:
        value = array_of(value_node, state) if kind_of(value_node) == "array" else text_at(value_node, state)
    old = state.get(name)
    if subscript and isinstance(value, str):
        _put_at(name, subscript.removesuffix("]"), value, state)
        return
    if isinstance(value, list) and value and all(map(_KEY.fullmatch, value)):
        for each in filter(None, map(_KEY.fullmatch, value)):
            _put_at(name, each[1], each[2], state)
        return
    if any(kind_of(child) == "+=" for child in node.children) and old is not None:
        if isinstance(old, list) or isinstance(value, list):
            value = [*(old if isinstance(old, list) else [old]), *(value if isinstance(value, list) else [value])]
        else:
            value = old + value
    state.put(name, value)


def _put_at(name: str, subscript: str, value: str, state: State) -> None:
    """One element, in an array by its place, and by a key otherwise."""
    key = state.key(subscript)
    old = state.get(name)
    place = whole_number(key, state) if isinstance(old, list) else None
    if isinstance(old, list) and place is not None and 0 <= place <= len(old):
        state.put(name, [*old[:place], value, *old[place + 1 :]])
    else:
        state.put(f"{name}[{key}]", value)


def _adds_to(name: str, text: str) -> bool:
    """Whether a value has more than the variable that it is assigned to, as ``OPTIONS="$OPTIONS --more"``."""
    found = re.search(rf"\$(?:{re.escape(name)}(?!\w)|\{{{re.escape(name)}\}})", text)
    return found is not None and text.strip('"') != found[0]


def declared(node: Node, state: State) -> None:
    """``export NAME=VALUE`` and ``export "$NAME=$VALUE"``; what is ``local`` ends with the function."""
    own = text_of(node.children[0]) in _OWN
    for child in node.named_children:
        kind = kind_of(child)
        if kind == "variable_assignment":
            if own:
                state.hide(text_of(child.children[0]).partition("[")[0])
            assignment(child, state)
        elif kind == "variable_name" and own:
            state.hide(text_of(child))
        elif kind in ("concatenation", "string") and (found := PAIR.fullmatch(text_at(child, state))):
            if own:
                state.hide(found[1])
            if found[1] not in state.fixed:
                state.put(found[1], found[2])
