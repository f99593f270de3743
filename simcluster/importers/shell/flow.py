"""Statements of a shell script that decide what is read: branches, loops, and lists with && and ||."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simcluster.documents.diagnostics import listed
from simcluster.importers.imported import deciding_word
from simcluster.importers.shell.arithmetic import assign, counting, whole_number
from simcluster.importers.shell.conditions import asks, ends, holds
from simcluster.importers.shell.patterns import matches
from simcluster.importers.shell.state import State
from simcluster.importers.shell.syntax import kind_of, text_of
from simcluster.importers.shell.words import text_at, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_ROUNDS = 200
_SET = re.compile(r"--[A-Za-z][\w-]*|\b[A-Za-z_]\w*(?=\+?=)")
"""Options and variables that a branch of a script sets."""


def run_all(nodes: list[Node], state: State) -> None:
    """Reads statements one after the other."""
    for node in nodes:
        state.run(node, state)


def _last_round(body: Node, state: State) -> bool:
    """Reads the body of a loop once; whether it leaves the loop, where ``continue`` ends the round alone."""
    state.loops += 1
    state.run(body, state)
    state.loops -= 1
    last = state.leaving in ("break", "return")
    if state.leaving != "return":
        state.leaving = ""
    return last


def _branches(node: Node) -> list[tuple[list[Node], list[Node]]]:
    """Conditions and body of each branch of an if; no condition for the last, else."""
    found: list[tuple[list[Node], list[Node]]] = []
    conditions: list[Node] = []
    body: list[Node] = []
    inside = False
    for child in node.children:
        kind = kind_of(child)
        if kind in ("elif_clause", "else_clause"):
            found += [(conditions, body)] if inside else []
            inside = False
            found += _branches(child) if kind == "elif_clause" else [([], list(child.named_children))]
        elif kind == "then":
            inside = True
        elif child.is_named and kind != "comment":  # which stands between branches, too
            (body if inside else conditions).append(child)
    return [*found, (conditions, body)] if inside else found


def _is_check(conditions: list[Node], body: list[Node], state: State, leaned: int) -> bool:
    """Whether a condition that is met and ends the script is one that whoever starts it sees to: it rests on something
    assumed since ``leaned``, or is about what the script asks for.  Functions are given what they ask for."""
    if state.leaned > leaned:
        return ends(body, state)
    returns = not state.calls and state.prints is None
    return any(map(asks, conditions)) and ends(body, state, returns=returns)


def run_if(node: Node, state: State) -> None:
    for conditions, body in _branches(node):
        leaned = state.leaned
        met: bool | None = True
        for condition in conditions:
            met = holds(condition, state)
        if met and _is_check(conditions, body, state, leaned):
            state.assumed[f"the check in line {node.start_point[0] + 1} of the script is passed"] = None
            continue
        if met:
            run_all(body, state)
            return
        if met is None:
            state.say(None)
            words = " ".join(" ".join(text_of(part) for part in conditions).split())[:60]
            place = f"{words} in line {node.start_point[0] + 1}"
            if changed := [name for name in _SET.findall(" ".join(map(text_of, body))) if deciding_word(name)]:
                state.unknown[f"what the script does where {place} is met (it sets {listed(changed[:4])})"] = None
            else:
                state.assumed[f"the test {place} is taken as not met"] = None


def run_case(node: Node, state: State) -> None:
    value = node.child_by_field_name("value")
    text = state.taken_as_unset(text_at(value, state)) if value is not None else None
    if text is None:
        state.say(None)
    for item in node.named_children:
        if kind_of(item) != "case_item" or text is None:
            continue
        patterns: list[list[Node]] = [[]]
        body: list[Node] = []
        inside = False
        for child in item.children:
            inside = inside or kind_of(child) == ")"
            if child.is_named:
                (body if inside else patterns[-1]).append(child)
            elif not inside and kind_of(child) == "|":
                patterns.append([])
        if any(matches(text, pattern, state) for pattern in patterns):
            if text or not ends(body, state):
                run_all(body, state)
            return


def run_while(node: Node, state: State) -> None:
    condition = node.child_by_field_name("condition")
    body = node.child_by_field_name("body")
    negated = text_of(node).startswith("until")
    for _ in range(_MOST_ROUNDS):
        if condition is None or body is None or state.stopped or holds(condition, state) is not (not negated):
            return
        if _last_round(body, state) or text_of(condition).strip() in ("true", ":", "[ 1 ]", "((1))"):
            return  # it starts again what has ended


def run_for(node: Node, state: State) -> None:
    body = node.child_by_field_name("body")
    name = node.child_by_field_name("variable")
    values = [word for child in node.named_children if child not in (body, name) for word in words_of(child, state)]
    if not any(kind_of(child) == "in" for child in node.children):
        values = list(state.positional)
    if body is None or name is None:
        return
    if text_of(name) in state.fixed:
        values = values[:1]
    for value in values[:_MOST_ROUNDS]:
        if text_of(name) not in state.fixed:
            state.put(text_of(name), value)
        if _last_round(body, state):
            return


def run_counted(node: Node, state: State) -> None:
    """``for ((i = 0; i < 8; i++))``: its body once where its numbers are not known."""
    begin, condition, step = counting(text_of(node))
    assign(begin, state)
    for number in range(_MOST_ROUNDS):
        more = whole_number(condition, state)
        if (body := node.child_by_field_name("body")) is None or more == 0 or (more is None and number):
            return
        if _last_round(body, state):
            return
        assign(step, state)


def run_list(node: Node, state: State) -> None:
    parts = [child for child in node.named_children if kind_of(child) != "comment"]
    if len(parts) != 2:
        run_all(parts, state)
        return
    wanted = any(text_of(child) == "&&" for child in node.children)
    leaned = state.leaned
    met = holds(parts[0], state)
    if met is wanted and not _is_check(parts[:1], parts[1:], state, leaned):
        state.run(parts[1], state)
