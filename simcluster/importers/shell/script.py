"""A shell script read from its top to its end: what it assigns, and which commands it comes to."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

from simcluster.importers.shell.arithmetic import assign, counting, whole_number
from simcluster.importers.shell.batch import batch_lines, batch_variables
from simcluster.importers.shell.conditions import MOST_CALLS, asks, ends, holds
from simcluster.importers.shell.edited import edited_text
from simcluster.importers.shell.started import read_command, read_text
from simcluster.importers.shell.state import State, Value, joined
from simcluster.importers.shell.syntax import kind_of, text_of, tree_of
from simcluster.importers.shell.words import array_of, expanded, heredoc_text, text_at, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_ROUNDS = 200
_OF_THE_ENVIRONMENT = re.compile(r"activate|conda|rc$|profile|/etc/|modules?\b|setvars|set_env|\.env$", re.IGNORECASE)
"""Files that set up the programs, and nothing of a training."""


def read_script(text: str, state: State) -> State:
    """Reads the whole script into the state, which is returned; InputError for what cannot be read at all."""
    asked = [word for line in batch_lines(text) for word in line.split()]
    for name, value in batch_variables(asked).items():
        state.variables.setdefault(name, value)
    state.around += asked
    run(tree_of(text, state.source), state)
    return state


def run(node: Node, state: State) -> None:
    """Reads one statement."""
    state.spend()
    if state.stopped:
        return
    kind = kind_of(node)
    reader = _STATEMENTS.get(kind)
    if reader:
        reader(node, state)
    elif kind in ("command", "test_command"):
        _command(node, state)
    elif kind == "compound_statement" and text_of(node).startswith("(("):
        assign(text_of(node)[2:-2], state)
    elif kind != "comment" and node.named_children:
        _all(node.named_children, state)


def _all(nodes: list[Node], state: State) -> None:
    for node in nodes:
        run(node, state)


def _assignment(node: Node, state: State) -> None:
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
    if any(kind_of(child) == "+=" for child in node.children) and old is not None:
        if isinstance(old, list) or isinstance(value, list):
            value = [*(old if isinstance(old, list) else [old]), *(value if isinstance(value, list) else [value])]
        else:
            value = old + value
    if subscript and isinstance(old, list) and isinstance(value, str):
        value = [*old, value]
    state.put(name, value)


def _adds_to(name: str, text: str) -> bool:
    """Whether a value has more than the variable that it is assigned to, as ``OPTIONS="$OPTIONS --more"``."""
    found = re.search(rf"\$(?:{re.escape(name)}(?!\w)|\{{{re.escape(name)}\}})", text)
    return found is not None and text.strip('"') != found[0]


def _unset(node: Node, state: State) -> None:
    for child in node.named_children:
        state.variables.pop(text_of(child), None)


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


def _if(node: Node, state: State) -> None:
    for conditions, body in _branches(node):
        leaned = state.leaned
        met: bool | None = True
        for condition in conditions:
            met = holds(condition, state, run)
        asked = state.leaned > leaned or any(map(asks, conditions))
        if met and asked and ends(body, state):
            state.assumed[f"the check in line {node.start_point[0] + 1} of the script is passed"] = None
            continue
        if met:
            _all(body, state)
            return
        if met is None:
            words = " ".join(" ".join(text_of(part) for part in conditions).split())[:60]
            state.assumed[f"the test {words} in line {node.start_point[0] + 1} is taken as not met"] = None


def _case(node: Node, state: State) -> None:
    value = node.child_by_field_name("value")
    text = state.taken_as_unset(text_at(value, state)) if value is not None else None
    for item in node.named_children:
        if kind_of(item) != "case_item" or text is None:
            continue
        parts: list[Node] = []
        body: list[Node] = []
        inside = False
        for child in item.children:
            inside = inside or kind_of(child) == ")"
            if child.is_named:
                (body if inside else parts).append(child)
        if any(fnmatch.fnmatchcase(text, text_at(part, state)) for part in parts):
            if text or not ends(body, state):
                _all(body, state)
            return


def _while(node: Node, state: State) -> None:
    condition = node.child_by_field_name("condition")
    body = node.child_by_field_name("body")
    negated = text_of(node).startswith("until")
    for _ in range(_MOST_ROUNDS):
        if condition is None or body is None or state.stopped or holds(condition, state, run) is not (not negated):
            return
        run(body, state)
        if text_of(condition).strip() in ("true", ":", "[ 1 ]", "((1))"):
            return  # it starts again what has ended


def _for(node: Node, state: State) -> None:
    body = node.child_by_field_name("body")
    name = node.child_by_field_name("variable")
    values = [word for child in node.named_children if child not in (body, name) for word in words_of(child, state)]
    if body is None or name is None:
        return
    if text_of(name) in state.fixed:
        values = values[:1]
    for value in values[:_MOST_ROUNDS]:
        if text_of(name) not in state.fixed:
            state.put(text_of(name), value)
        run(body, state)


def _counted(node: Node, state: State) -> None:
    """``for ((i = 0; i < 8; i++))``: its body once where its numbers are not known."""
    begin, condition, step = counting(text_of(node))
    assign(begin, state)
    for number in range(_MOST_ROUNDS):
        more = whole_number(condition, state)
        if (body := node.child_by_field_name("body")) is None or more == 0 or (more is None and number):
            return
        run(body, state)
        assign(step, state)


def _function(node: Node, state: State) -> None:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        state.functions[text_of(name)] = body


def _list(node: Node, state: State) -> None:
    parts = [child for child in node.named_children if kind_of(child) != "comment"]
    if len(parts) != 2:
        _all(parts, state)
        return
    wanted = any(text_of(child) == "&&" for child in node.children)
    leaned = state.leaned
    met = holds(parts[0], state, run)
    asked = state.leaned > leaned or asks(parts[0])
    if met is wanted and not (asked and ends([parts[1]], state)):
        run(parts[1], state)


def _pipeline(node: Node, state: State) -> None:
    parts = [child for child in node.named_children if kind_of(child) != "comment"]
    first, last = parts[0], parts[-1]
    ends = words_of(last.named_children[0], state) if last.named_children else []
    if len(parts) > 1 and ends[:1] and ends[0] in ("bash", "sh", "sbatch") and kind_of(first) == "command":
        read_text(" ".join(_argv(first, state)[1:]), state, read_script)
        return
    _all(parts, state)


def _redirected(node: Node, state: State) -> None:
    """A command with a here-document, or one that writes a file that is read again below."""
    body = node.child_by_field_name("body") or node.named_children[0]
    goes, text = "", None
    for part in _redirects(node):
        kind = kind_of(part)
        if kind == "heredoc_redirect":
            start = next((child for child in part.children if kind_of(child) == "heredoc_start"), None)
            lines = next((child for child in part.children if kind_of(child) == "heredoc_body"), None)
            plain = start is not None and text_of(start)[:1] in "'\"\\"
            text = heredoc_text(lines, state, plain=plain) if lines is not None else ""
        elif kind == "file_redirect" and any(text_of(child) in (">", ">>", "&>") for child in part.children):
            goes = goes or " ".join(words_of(part.named_children[-1], state))
    words = _argv(body, state) if kind_of(body) == "command" else []
    if text is None and goes and text_of(body).startswith("sed "):
        edits = body.named_children if kind_of(body) == "pipeline" else [body]
        text = edited_text([_argv(part, state) for part in edits], state)
        if text is not None:
            state.files[goes] = text
            return
    if text is None and words[:1] in (["echo"], ["printf"]):
        text = " ".join(words[1:]) + "\n"
    if text is not None and words[:1] == ["tee"]:
        goes = goes or words[-1]
    if text is not None and goes and words[:1] in (["cat"], ["tee"], ["echo"], ["printf"]):
        state.files[goes] = text
    elif text is not None and any(word in ("bash", "sh", "sbatch", "/bin/bash") for word in words):
        state.around += words
        read_text(text, state, read_script)
    elif text is not None and re.search(r"\|\s*(sudo )?(bash|sh|sbatch)\b", text_of(node).partition("\n")[0]):
        read_text(text, state, read_script)
    else:
        run(body, state)


def _redirects(node: Node) -> list[Node]:
    found = [child for child in node.named_children if kind_of(child).endswith("_redirect")]
    return [*found, *(inner for child in found for inner in child.named_children if kind_of(inner) == "file_redirect")]


def _argv(node: Node, state: State) -> list[str]:
    found: list[str] = []
    for child in node.named_children:
        if kind_of(child) == "variable_assignment":
            _assignment(child, state)
        elif not kind_of(child).endswith("_redirect"):
            found += words_of(child, state)
    return found


def _command(node: Node, state: State) -> None:
    words = _argv(node, state)
    if not words:
        return
    name, rest = words[0], words[1:]
    if name in state.functions and state.depth < MOST_CALLS:
        kept, state.positional, state.depth = state.positional, rest, state.depth + 1
        run(state.functions[name], state)
        state.positional, state.depth = kept, state.depth - 1
    elif name == "exit":
        state.stopped = f"line {node.start_point[0] + 1} of the script ends it"
    elif name == "shift":
        state.positional = state.positional[int(rest[0]) if rest and rest[0].isdecimal() else 1 :]
    elif name == "set" and "--" in rest:
        state.positional = rest[rest.index("--") + 1 :]
    elif name == "let":
        for word in rest:
            assign(word, state)
    elif name == "eval":
        read_text(" ".join(rest), state, read_script)
    elif name in ("source", "."):
        text = state.text_named(rest[0]) if rest else None
        if text is not None:
            read_text(text, state, read_script)
        elif rest and not _OF_THE_ENVIRONMENT.search(rest[0]):
            file = rest[0].rpartition("/")[2][:60]
            state.assumed[f"what {file} sets is not known: it is not there"] = None
    elif name.startswith("-") and state.commands:
        _goes_on(words, state, node.start_point[0] + 1)
    elif name not in ("echo", "printf"):
        read_command(words, state, read_script)


def _goes_on(words: list[str], state: State, line: int) -> None:
    """A line that begins with an option: bash has ended the command above it, and who wrote it has not meant that."""
    before, around = state.commands[-1]
    kept = [word for word in (*before, *words) if not word or word.strip()]  # a blank behind a backslash is a word
    state.commands[-1] = (kept, around)
    said = (
        f"line {line} goes on with the command above it, which bash ends before (no backslash stands at its very end)"
    )
    state.assumed[said] = None


def _expansions(node: Node, state: State) -> None:
    """A statement that is one expansion, as a command kept in a variable."""
    read_text(joined(expanded(node, state)), state, read_script)


_STATEMENTS = {
    "variable_assignment": _assignment,
    "unset_command": _unset,
    "if_statement": _if,
    "case_statement": _case,
    "while_statement": _while,
    "for_statement": _for,
    "c_style_for_statement": _counted,
    "function_definition": _function,
    "list": _list,
    "pipeline": _pipeline,
    "redirected_statement": _redirected,
    **dict.fromkeys(("simple_expansion", "expansion"), _expansions),
}
