"""Reader of launch scripts, which follows assignments and records the commands that the script starts.

Read are assignments, arrays, defaults, whole numbers, tests on known words, functions, loops over known words,
here-documents and scripts that the script starts. Files are assumed to exist, and variables that the script never sets
to be empty. What commands print is unknown: ``bash -x`` prints the command that a script starts.
"""

from __future__ import annotations

import fnmatch
import re

from simcluster.base.errors import InputError
from simcluster.documents.diagnostics import join_or
from simcluster.importers.import_result import find_step_keyword
from simcluster.importers.process_counts import list_slurm_requests, variables_set_by_slurm
from simcluster.importers.shell import word_expansion
from simcluster.importers.shell.program_starts import read_here_document, record_started_command
from simcluster.importers.shell.script_state import ScriptState, ShellValue, shell_value_to_text
from simcluster.importers.shell.shell_parser import ASSIGNMENT, ShellStatement, parse_shell_script, split_shell_array
from simcluster.importers.shell.word_expansion import evaluate_arithmetic, expand_word_to_text, expand_words

_MAX_ROUNDS, _MAX_CALLS, _MAX_DEPTH = 200, 20, 8
_DECLARATIONS = frozenset(["export", "local", "declare", "typeset", "readonly"])
_ENVIRONMENT_FILE = re.compile(r"activate|conda|rc$|profile|/etc/|modules?\b|setvars|set_env|\.env$", re.IGNORECASE)
"""Files that set up the environment and not the training."""
_SET_NAME = re.compile(r"--[A-Za-z][\w-]*|\b[A-Za-z_]\w*(?=\+?=)")
"""Options and variables set by a part of a script."""
_SIZE_OPTION = re.compile(r"--.*(layers|hidden|heads|vocab|experts)", re.IGNORECASE)
_TESTS_INPUT = re.compile(r"-z\b|\$\{?#|\$[@*\d]|=\s*(\"\"|'')")
_NUMBER = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:(\+\+|--)|([-+*/%]?)=(?!=)(.*))\s*", re.DOTALL)
_PAIR = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def read_script(text: str, state: ScriptState) -> ScriptState:
    """Read a launch script, record its variables and started commands in ``state``, and return ``state``."""
    asked = [word for line in list_slurm_requests(text) for word in line.split()]
    state.variables = {**variables_set_by_slurm(asked), **state.variables}
    state.enclosing_words += asked
    _read_statement(parse_shell_script(text, state.source), state)
    return state


def read_nested_script(text: str, state: ScriptState) -> None:
    """Read a script that another script starts."""
    if state.depth >= _MAX_DEPTH:
        raise InputError(f"{state.source}: scripts start scripts more than {_MAX_DEPTH} levels deep; give the command")
    state.depth, stopped = state.depth + 1, state.stop_reason
    read_script(text, state)
    state.depth, state.stop_reason, state.pending_jump = state.depth - 1, stopped, ""


def _read_statement(statement: ShellStatement, state: ScriptState) -> bool | None:
    """Read a shell statement; return whether the statement succeeds, or None if that is unknown."""
    state.count_step()
    if state.stop_reason or state.pending_jump:
        return True
    parts, words = statement.parts, statement.words
    match statement.kind:
        case "list" | "{" | "(":
            return ([_read_statement(part, state) for part in parts] or [True])[-1]
        case "pipeline":
            return (
                read_here_document(parts, state, read_nested_script)
                or [_read_statement(part, state) for part in parts][-1]
            )
        case "not":
            found = _read_statement(parts[0], state)
            return None if found is None else not found
        case "&&" | "||":
            return _read_and_or_list(statement, state)
        case "[[":
            return word_expansion.evaluate_test(words, state, double=True)
        case "arithmetic":
            number = _read_arithmetic(words[0], state)
            return None if number is None else number != 0
        case "if":
            return _read_if_statement(statement, state)
        case "case":
            _read_case_statement(statement, state)
        case "for" | "while" | "until":
            _read_loop(statement, state)
        case "function":
            state.functions[words[0]] = parts[0]
        case _:
            return read_here_document([statement], state, read_nested_script) or _read_command(statement, state)
    return True


# --- conditions -------------------------------------------------------------------------------------------------------


def _read_and_or_list(statement: ShellStatement, state: ScriptState) -> bool | None:
    """Read two statements joined by ``&&`` or ``||``; return whether the list succeeds, or None if unknown."""
    (left, right), wanted, leaned = statement.parts, statement.kind == "&&", state.assumption_count
    found = _read_statement(left, state)
    if found is (not wanted) or (found is wanted and _is_exit_guard(left, right, state, leaned)):
        return found
    if found is None and right.kind not in ("[[", "not") and right.words[:1] not in (["["], ["test"]):
        _record_skipped_statements(_statement_text(left), [right], state, statement.line)
        return None
    other = _read_statement(right, state)
    return other if found is wanted or other is not wanted else None


def _is_exit_guard(condition: ShellStatement, body: ShellStatement, state: ScriptState, old_count: int) -> bool:
    """Return whether an ``if`` only guards an exit, with a condition on an assumption or on user input."""
    if state.assumption_count > old_count:
        return _ends_script(body, state)
    return _TESTS_INPUT.search(_statement_text(condition)) is not None and _ends_script(
        body, state, returns=not state.shadowed_variables
    )


def _ends_script(statement: ShellStatement, state: ScriptState, *, returns: bool = True, depth: int = 0) -> bool:
    """Return whether a statement ends the script or, if ``returns``, the current shell function."""
    if statement.kind in ("list", "{"):
        return any(_ends_script(part, state, returns=returns, depth=depth) for part in statement.parts)
    word = statement.words[0] if statement.kind == "command" and statement.words else ""
    if (body := state.functions.get(word)) is not None and depth < _MAX_CALLS:
        return _ends_script(body, state, returns=returns, depth=depth + 1)
    return word == "exit" or (returns and word == "return")


def _statement_text(statement: ShellStatement) -> str:
    return statement.text or " ".join((*statement.words, *map(_statement_text, statement.parts)))


def _record_skipped_statements(test: str, bodies: list[ShellStatement], state: ScriptState, line: int) -> None:
    """Record statements that are skipped because it is unknown whether bash would run them.

    Numbers that they set become unknown, as do variables that hold sizes of the model.
    """
    names = _SET_NAME.findall(" ".join(map(_statement_text, bodies)))
    place = f"{' '.join(test.split())[:60]} in line {line}"
    if changed := [name for name in names if find_step_keyword(name)]:
        sets = f"it sets {join_or(changed[:4])}; give the command that bash -x prints"
        state.unknown[f"the script's branch for {place} ({sets})"] = None
    else:
        state.assumed[f"the test {place} is assumed to be false"] = None
    sizes, state.line = any(map(_SIZE_OPTION.match, names)), line
    for name in names:
        if (old := state.variable_value(name)) is not None and (sizes or shell_value_to_text(old).strip().isdecimal()):
            state.assign_variable(name, state.make_placeholder(test))


def _read_if_statement(statement: ShellStatement, state: ScriptState) -> bool | None:
    undecided: list[tuple[ShellStatement, ShellStatement]] = []
    found: bool | None = True
    for condition, body in zip(statement.parts[::2], statement.parts[1::2], strict=False):
        leaned = state.assumption_count
        met = _read_statement(condition, state)
        if met and _is_exit_guard(condition, body, state, leaned):
            state.assumed[f"the check in line {statement.line} of the script is assumed to pass"] = None
        elif met:
            found = _read_statement(body, state)
            break
        elif met is None:
            undecided.append((condition, body))
    else:
        found = _read_statement(statement.parts[-1], state) if len(statement.parts) % 2 else True
    for condition, body in undecided:
        _record_skipped_statements(_statement_text(condition), [body], state, statement.line)
    return found


def _read_case_statement(statement: ShellStatement, state: ScriptState) -> None:
    text = state.remove_unset_variables(expand_word_to_text(statement.words[0], state))
    if text is None:
        _record_skipped_statements(f"case {statement.words[0]}", statement.parts, state, statement.line)
        return
    for body in statement.parts:
        known = [state.remove_unset_variables(word_expansion.expand_pattern(word, state)) for word in body.words]
        if any(fnmatch.fnmatchcase(text, pattern) for pattern in known if pattern is not None):
            if text or not _ends_script(body, state):
                _read_statement(body, state)
            return


def _read_loop(statement: ShellStatement, state: ScriptState) -> None:
    """Read a shell loop: ``for NAME in WORDS``, ``for ((BEGIN; TEST; STEP))``, ``while`` or ``until``."""
    name, *words = statement.words or [""]
    body, over_words = statement.parts[-1], name.isidentifier()
    values = [word for raw in words[1:] for word in expand_words(raw, state)]
    values = values if words else list(state.positional_arguments)
    begin, test, step = [*name.split(";"), "", ""][:3] if statement.kind == "for" else ("", statement.parts[0].text, "")
    _read_arithmetic("" if over_words else begin, state)
    for number in range(_MAX_ROUNDS):
        if over_words:
            met: bool | None = number < len(values) and not (number and name in state.user_values)
        elif statement.kind == "for":
            met = None if (counted := evaluate_arithmetic(test, state)) is None else counted != 0
        else:
            met = _read_statement(statement.parts[0], state)
        if met is None:
            _record_skipped_statements(test, [body], state, statement.line)
        if state.stop_reason or met is not (statement.kind != "until"):
            return
        if over_words:
            state.assign_variable(name, values[number])
        _read_statement(body, state)
        last = state.pending_jump in ("break", "return")
        state.pending_jump = state.pending_jump if state.pending_jump == "return" else ""
        if last or (not over_words and test in ("true", ":", "[ 1 ]", "1")):  # a restart loop
            return
        _read_arithmetic(step, state)


# --- assignments ------------------------------------------------------------------------------------------------------


def _read_assignment(raw: str, match: re.Match[str], state: ScriptState) -> None:
    """Read a shell assignment (``=`` or ``+=``) to a variable, an array or an array element."""
    name, key, adds = match.groups()
    text, old = raw[match.end() :], state.variable_value(name)
    found = re.search(rf"\$(?:{name}(?!\w)|\{{{name}\}})", text) if old is None else None
    if found and text.strip('"') != found[0]:  # OPTIONS="$OPTIONS --more"
        state.assign_variable(name, "")
        old = state.variable_value(name)
    raw_words = split_shell_array(text[1:].removesuffix(")")) if text.startswith("(") else []
    keyed = [pair for word in raw_words if (pair := re.fullmatch(r"\[([^]]+)\]=(.*)", word, re.DOTALL))]
    value: ShellValue
    if key is not None or keyed:  # such an array is only known by its keys
        for each, element in [(key, text)] if key else [(pair[1], pair[2]) for pair in keyed]:
            state.assign_variable(f"{name}[{expand_word_to_text(each, state)}]", expand_word_to_text(element, state))
        value, adds = state.make_placeholder(name), ""
    elif text.startswith("("):
        value = [each for word in raw_words for each in expand_words(word, state)]
    else:
        value = expand_word_to_text(text, state)
    if adds and old is not None:
        both = [each if isinstance(each, list) else [each] for each in (old, value)]
        value = old + value if isinstance(old, str) and isinstance(value, str) else [*both[0], *both[1]]
    state.assign_variable(name, value)


def _read_arithmetic(text: str, state: ScriptState) -> int | None:
    """Evaluate ``((...))`` or ``let`` with its assignments; return the value, or None if unknown."""
    found = _NUMBER.fullmatch(text)
    if not found:
        return evaluate_arithmetic(text, state)
    name, step, sign, right = found.groups()
    value = evaluate_arithmetic(f"{name} {step[0]} 1" if step else f"{name} {sign} ({right})" if sign else right, state)
    state.assign_variable(name, str(value) if value is not None else state.make_placeholder(text))
    return value


def _read_declaration(name: str, words: list[str], state: ScriptState) -> None:
    for each in words:
        if state.shadowed_variables and name not in ("export", "readonly"):
            own = re.split(r"\W", each)[0]
            state.shadowed_variables[-1].setdefault(own, state.variables.get(own))
        if match := ASSIGNMENT.match(each):
            _read_assignment(each, match, state)
        elif pair := _PAIR.fullmatch(expand_word_to_text(each, state)):  # export "$NAME=$VALUE"
            state.assign_variable(pair[1], pair[2])


# --- commands ---------------------------------------------------------------------------------------------------------


def _read_command(statement: ShellStatement, state: ScriptState) -> bool | None:
    state.line = statement.line
    raw = list(statement.words)
    while raw and (match := ASSIGNMENT.match(raw[0])):
        _read_assignment(raw.pop(0), match, state)
    if raw and raw[0] in ("[", "test"):
        return word_expansion.evaluate_test([word for word in raw[1:] if word != "]"], state, double=False)
    if raw and raw[0] in _DECLARATIONS:
        _read_declaration(raw[0], raw[1:], state)
        return True
    words = [word for each in raw for word in expand_words(each, state)]
    if not words or words[0] in ("true", "false", ":", "echo", "printf"):
        return words[:1] != ["false"]
    name, rest = words[0], words[1:]
    if name in ("grep", "egrep", "getopts"):
        return False if name == "getopts" and not state.positional_arguments else None
    if name in state.functions and state.depth < _MAX_CALLS:
        return _read_function_call(state.functions[name], rest, state)
    if name.startswith("-") and state.commands:  # the command above lacks a backslash by mistake
        before, around = state.commands[-1]
        kept = [word for word in (*before, *words) if not word or word.strip()]  # a blank after a backslash is a word
        state.commands[-1] = (kept, around)
        ends = "bash would end there (its last character is not a backslash)"
        state.assumed[f"line {state.line} continues the command above it, which {ends}"] = None
    elif not _read_builtin(name, rest, state):
        record_started_command(words, state, read_nested_script)
    state.assumption_count += 1
    return None if name == "read" else True


def _read_builtin(name: str, words: list[str], state: ScriptState) -> bool:
    """Apply a shell builtin command to the state; return False for any other command."""
    match name:
        case "exit":
            state.stop_reason = f"line {state.line} of the script ends it"
        case "break" | "continue":
            state.pending_jump = name
        case "return" if state.shadowed_variables:
            state.pending_jump, state.return_succeeds = name, words[:1] in ([], ["0"])
        case "shift":
            count = int(words[0]) if words and words[0].isdecimal() else 1
            state.positional_arguments = state.positional_arguments[count:]
        case "set":
            state.positional_arguments = words[words.index("--") + 1 :] if "--" in words else state.positional_arguments
        case "unset":
            state.variables = {each: value for each, value in state.variables.items() if each not in words}
        case "let":
            for word in words:
                _read_arithmetic(word, state)
        case "read" | "mapfile" | "readarray":
            for each in filter(str.isidentifier, words):
                state.assign_variable(each, state.make_placeholder(name))
        case "eval":
            read_nested_script(" ".join(words), state)
        case "source" | "." if words:
            around = _ENVIRONMENT_FILE.search(words[0]) is not None
            text = state.find_file_text(words[0], wanted=not around)
            if text is not None:
                read_nested_script(text, state)
            elif not around:
                state.assumed[f"settings of {words[0].rpartition('/')[2][:60]} are unknown: the file is missing"] = None
        case _:
            return False
    return True


def _read_function_call(body: ShellStatement, words: list[str], state: ScriptState) -> bool | None:
    kept, state.positional_arguments = state.positional_arguments, words
    state.depth += 1
    state.shadowed_variables.append({})
    found = _read_statement(body, state)
    hidden = state.shadowed_variables.pop()
    own = {name: value for name, value in state.variables.items() if name not in hidden}
    state.variables = own | {name: value for name, value in hidden.items() if value is not None}
    found = state.return_succeeds if state.pending_jump == "return" else found
    state.depth, state.positional_arguments, state.pending_jump = state.depth - 1, kept, ""
    return found
