"""A shell script read from its top to its end: what it assigns, and which commands it comes to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from simcluster.importers.shell.arithmetic import assign, whole_number
from simcluster.importers.shell.assigned import assignment, declared
from simcluster.importers.shell.batch import batch_lines, batch_variables
from simcluster.importers.shell.conditions import MOST_CALLS
from simcluster.importers.shell.filters import said, told
from simcluster.importers.shell.flow import run_all, run_case, run_counted, run_for, run_if, run_list, run_while
from simcluster.importers.shell.printed import passed_on, printed
from simcluster.importers.shell.started import read_command, read_text
from simcluster.importers.shell.state import State, joined
from simcluster.importers.shell.syntax import kind_of, text_of, tree_of
from simcluster.importers.shell.words import argv_of, expanded, given_text, heredoc_text, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

_OF_THE_ENVIRONMENT = re.compile(r"activate|conda|rc$|profile|/etc/|modules?\b|setvars|set_env|\.env$", re.IGNORECASE)
"""Files that set up the programs, and nothing of a training."""
_SILENT = frozenset(["true", ":", "mkdir", "unset", "test", "set"])


def read_script(text: str, state: State) -> State:
    """Reads the whole script into the state, which is returned; InputError for what cannot be read at all."""
    asked = [word for line in batch_lines(text) for word in line.split()]
    for name, value in batch_variables(asked).items():
        state.variables.setdefault(name, value)
    state.around += asked
    state.run = run
    run(tree_of(text, state.source), state)
    return state


def run(node: Node, state: State) -> None:
    """Reads one statement."""
    state.spend()
    if state.stopped or state.leaving:
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
        run_all(node.named_children, state)


def _unset(node: Node, state: State) -> None:
    for child in node.named_children:
        state.variables.pop(text_of(child), None)


def _function(node: Node, state: State) -> None:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is not None and body is not None:
        state.functions[text_of(name)] = body


def _pipeline(node: Node, state: State) -> None:
    parts = [child for child in node.named_children if kind_of(child) != "comment"]
    first, last = parts[0], parts[-1]
    ends = words_of(last.named_children[0], state) if last.named_children else []
    if state.prints is not None:
        known = all(kind_of(part) == "command" for part in parts[1:])
        text = printed([first], state) if known else None
        state.say(passed_on([argv_of(part, state) for part in parts[1:]], text, state))
    elif len(parts) > 1 and ends[:1] and ends[0] in ("bash", "sh", "sbatch") and kind_of(first) == "command":
        read_text(" ".join(_argv(first, state)[1:]), state, read_script)
    else:
        run_all(parts, state)


def _redirected(node: Node, state: State) -> None:
    """A command with a here-document, or one that writes a file that is read again below."""
    body = node.child_by_field_name("body") or node.named_children[0]
    goes, text, adds = "", None, False
    for part in _redirects(node):
        kind = kind_of(part)
        if kind == "heredoc_redirect":
            start = next((child for child in part.children if kind_of(child) == "heredoc_start"), None)
            lines = next((child for child in part.children if kind_of(child) == "heredoc_body"), None)
            plain = start is not None and text_of(start)[:1] in "'\"\\"
            text = heredoc_text(lines, state, plain=plain) if lines is not None else ""
        elif kind == "file_redirect" and any(text_of(child) in (">", ">>", "&>", ">&") for child in part.children):
            if text_of(part.children[0]) == "2":
                continue
            goes = goes or " ".join(words_of(part.named_children[-1], state))
            adds = any(text_of(child) == ">>" for child in part.children)
    words = _argv(body, state) if kind_of(body) == "command" else []
    if words[:1] and words[0] in _READERS and (given := given_text(node, state)) is not None:
        _READERS[words[0]](words[1:], given, state)
        return
    if text is None and goes and text_of(body).startswith("sed "):
        edits = body.named_children if kind_of(body) == "pipeline" else [body]
        text = _edited([argv_of(part, state) for part in edits], state)
        if text is not None:
            state.files[goes] = text
            return
    if text is None and words[:1] in (["echo"], ["printf"]):
        text = said(words)
    if text is not None and words[:1] == ["tee"]:
        goes = goes or words[-1]
    if text is not None and goes and words[:1] in (["cat"], ["tee"], ["echo"], ["printf"]):
        state.files[goes] = (state.files.get(goes, "") if adds else "") + text
    elif goes and state.prints is not None:
        state.say("" if printed([body], state) is not None else None)
    elif text is not None and state.prints is not None:
        state.say(passed_on([words], text, state))
    elif text is not None and any(word in ("bash", "sh", "sbatch", "/bin/bash") for word in words):
        state.around += words
        read_text(text, state, read_script)
    elif text is not None and re.search(r"\|\s*(sudo )?(bash|sh|sbatch)\b", text_of(node).partition("\n")[0]):
        read_text(text, state, read_script)
    else:
        run(body, state)


def _edited(commands: list[list[str]], state: State) -> str | None:
    """What ``sed s/WORD/TEXT/ FILE | sed s/WORD/TEXT/ | ...`` prints; None without the file."""
    *edits, name = commands[0]
    text = state.text_named(name, wanted=False) if len(edits) > 1 else None
    return passed_on([edits, *commands[1:]], text, state)


def _redirects(node: Node) -> list[Node]:
    found = [child for child in node.named_children if kind_of(child).endswith("_redirect")]
    return [*found, *(inner for child in found for inner in child.named_children if kind_of(inner) == "file_redirect")]


def _argv(node: Node, state: State) -> list[str]:
    found: list[str] = []
    for child in node.named_children:
        if kind_of(child) == "variable_assignment":
            assignment(child, state)
        elif not kind_of(child).endswith("_redirect"):
            found += words_of(child, state)
    return found


def _command(node: Node, state: State) -> None:
    words = _argv(node, state)
    if not words:
        return
    name, rest = words[0], words[1:]
    if name in state.functions and state.depth < MOST_CALLS:
        _call(state.functions[name], rest, state)
    elif (name == "return" and state.depth) or (name in ("break", "continue") and state.loops):
        state.leaving = name
        state.returned = rest[0] if name == "return" and rest else None
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
        around = not rest or _OF_THE_ENVIRONMENT.search(rest[0]) is not None
        text = state.text_named(rest[0], wanted=not around) if rest else None
        if text is not None:
            read_text(text, state, read_script)
        elif not around:
            file = rest[0].rpartition("/")[2][:60]
            state.assumed[f"what {file} sets is not known: it is not there"] = None
    elif name.startswith("-") and state.commands:
        _goes_on(words, state, node.start_point[0] + 1)
    elif name in ("echo", "printf"):
        state.say(said(words))
    elif name in _READERS and (given := given_text(node, state)) is not None:
        _READERS[name](rest, given, state)
    elif state.prints is not None:
        state.say(_result(words, given_text(node, state), state))
    else:
        read_command(words, state, read_script)


def _call(body: Node, words: list[str], state: State) -> None:
    """Reads a function with its arguments."""
    kept, state.positional, state.depth = state.positional, words, state.depth + 1
    state.calls += 1
    state.returned = None
    state.hidden.append({})
    run(body, state)
    state.show(state.hidden.pop())
    state.calls -= 1
    state.positional, state.depth = kept, state.depth - 1
    state.leaving = ""


def _subshell(node: Node, state: State) -> None:
    """Statements in brackets, which change no variable of those around them."""
    kept, stopped = dict(state.variables), state.stopped
    run_all(node.named_children, state)
    state.variables |= kept
    state.stopped = stopped


def _read(words: list[str], given: str, state: State) -> None:
    """``read A B <<< WORDS``, and ``read -a ARRAY``, apart at what IFS says."""
    separators = state.variables.pop("IFS", "")
    names = [word for word in words if not word.startswith("-")]
    text = given.partition("\n")[0]
    parts = re.split(f"[{re.escape(joined(separators))}]", text) if separators else text.split()
    if any(re.fullmatch(r"-\w*a", word) for word in words):
        state.put(names[0] if names else "REPLY", parts)
        return
    for place, name in enumerate(names or ["REPLY"]):
        last = place >= len(names) - 1
        state.put(name, " ".join(parts[place:]) if last else "".join(parts[place : place + 1]))


def _read_lines(words: list[str], given: str, state: State) -> None:
    """``mapfile -t ARRAY <<< LINES``."""
    state.put(words[-1] if words and not words[-1].startswith("-") else "MAPFILE", given.splitlines())


_READERS = {"read": _read, "mapfile": _read_lines, "readarray": _read_lines}


def _result(words: list[str], given: str | None, state: State) -> str | None:
    """What a command prints that is neither echo nor a function of the script; None where that is not known."""
    name, rest = words[0], words[1:]
    if name in _SILENT:
        return ""
    if name == "expr":
        number = whole_number(" ".join(rest), state)
        return None if number is None else f"{number}\n"
    if name == "cat" and len(rest) == 1:
        return state.files.get(rest[0])
    own = told(words)
    return passed_on([words], given, state) if own is None else own


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
    "variable_assignment": assignment,
    "declaration_command": declared,
    "subshell": _subshell,
    "unset_command": _unset,
    "if_statement": run_if,
    "case_statement": run_case,
    "while_statement": run_while,
    "for_statement": run_for,
    "c_style_for_statement": run_counted,
    "function_definition": _function,
    "list": run_list,
    "pipeline": _pipeline,
    "redirected_statement": _redirected,
    **dict.fromkeys(("simple_expansion", "expansion"), _expansions),
}
