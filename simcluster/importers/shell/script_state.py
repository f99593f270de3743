"""State of a launch script while it is read: variables, files that it writes and commands that it starts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from simcluster.base.errors import InputError
from simcluster.importers.import_result import FileReader, read_no_file
from simcluster.importers.shell.shell_parser import ShellStatement

ShellValue = str | list[str]
"""Value of a variable: a text or array elements; unknown parts are ``$NAME``."""
_REFERENCE = re.compile(r"\$\{?(\w+)\}?")
_MAX_STEPS, _MAX_LENGTH = 20_000, 200_000
_SYSTEM_VARIABLES = frozenset(
    ("PWD", "OLDPWD", "HOME", "USER", "HOSTNAME", "RANDOM", "PATH", "PYTHONPATH", "0", "PIPESTATUS", "BASH_VERSION")
)  # fmt: skip


@dataclass
class ScriptState:
    """State of one launch script while it is read: variables, files and started commands.

    ``user_values`` are set by the user: assignments to those names are ignored. ``read_file`` returns another file's
    text by its name, or None. ``assumption_count`` counts decisions that depend on an assumption. An array element that
    is assigned by its key is a variable ``NAME[KEY]``.
    """

    source: str
    user_values: Mapping[str, str] = field(default_factory=dict)
    read_file: FileReader = read_no_file
    gpus_per_node: int | None = None
    variables: dict[str, ShellValue] = field(default_factory=dict)
    positional_arguments: list[str] = field(default_factory=list)
    functions: dict[str, ShellStatement] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    commands: list[tuple[list[str], list[str]]] = field(default_factory=list)
    """Words of each command that starts a program, and the words of enclosing commands such as srun."""
    enclosing_words: list[str] = field(default_factory=list)
    missing_files: dict[str, None] = field(default_factory=dict)
    """Files that the script reads and that are missing."""
    unset_variables: dict[str, None] = field(default_factory=dict)
    """Unset variables that a test depends on."""
    required_variables: dict[str, None] = field(default_factory=dict)
    """Unset variables that the script requires (``${NAME:?}``)."""
    assumed: dict[str, None] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)
    stop_reason: str = ""
    pending_jump: str = ""
    """``return``, ``break`` or ``continue`` while it takes effect."""
    return_succeeds: bool = True
    assumption_count: int = 0
    depth: int = 0
    shadowed_variables: list[dict[str, ShellValue | None]] = field(default_factory=list)
    """Values shadowed by local variables, for each function being read."""
    line: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        numbers = sorted(int(name) for name in self.user_values if name.isdecimal() and len(name) < 4)
        self.positional_arguments = [
            self.user_values.get(str(number), f"${number}") for number in range(1, (numbers or [0])[-1] + 1)
        ]

    def count_step(self) -> None:
        """Count one step of reading; raise InputError after too many steps, since the script may loop forever."""
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise InputError(f"{self.source}: takes more than {_MAX_STEPS:,} steps to read; give the launch command")

    def variable_value(self, name: str) -> ShellValue | None:
        """Return the value of a shell variable, or None if the script never sets it."""
        if name.isdecimal():
            number = int(name[-6:])
            return self.positional_arguments[number - 1] if 0 < number <= len(self.positional_arguments) else None
        return self.user_values[name] if name in self.user_values else self.variables.get(name)

    def assign_variable(self, name: str, value: ShellValue) -> None:
        """Assign a value to a shell variable, unless the user has set that variable."""
        if sum(map(len, value)) > _MAX_LENGTH:
            what = f"shell variable {name} expands to more than {_MAX_LENGTH:,} characters"
            raise InputError(f"{self.source}: {what}; give only the launch command")
        if name not in self.user_values:
            self.variables[name] = value

    def make_placeholder(self, what: str) -> str:
        """Return a placeholder for a value unknown without a shell; its text names the value's origin and line."""
        return f"$({re.sub(r'[^!-~]|[()]', '', what)[:30]}...:{self.line})"

    def remove_unset_variables(self, text: str) -> str | None:
        """Remove references to unset variables from a text; return None if the text contains a command's output."""
        names = _REFERENCE.findall(text)
        self.assumption_count += bool(names or "$(" in text)
        if "$(" in text:
            return None
        self.unset_variables |= dict.fromkeys(name for name in names if name not in _SYSTEM_VARIABLES)
        return _REFERENCE.sub("", text)

    def unset_variable_assumption(self) -> tuple[str, ...]:
        """Return a sentence that names the shell variables assumed to be unset; empty if there are none.

        Raises InputError if the script requires one of them and a test depends on it.
        """
        called = {
            name: f"argument {name}" if name.isdecimal() else name
            for name in (*self.unset_variables, *self.required_variables)
        }
        if needed := [name for name in self.required_variables if name in self.unset_variables]:
            names, given = ", ".join(called[name] for name in needed), " ".join(f"--arg {name}=..." for name in needed)
            raise InputError(
                f"{self.source}: requires {names}, which is not set and on which a test depends; set "
                f"{'it' if len(needed) == 1 else 'them'} with {given}"
            )
        names = ", ".join(called.values())
        return (f"assumed unset, since the script sets no value: {names} (--arg NAME=VALUE sets one)",) if names else ()

    def find_file_text(self, name: str, *, wanted: bool = True) -> str | None:
        """Return the text of a file that the script wrote, or of one in the script's folder or a parent folder.

        None if neither exists. Only the path after the last part that only a shell knows is used. A ``wanted`` file is
        noted as missing.
        """
        if name in self.files or name.startswith("<("):
            return self.files.get(name)
        known = re.sub(r".*\$[^/]*", "", name)
        path = "/".join(part for part in known.split("/") if part not in ("", ".", ".."))
        text = self.read_file(path) if path else None
        if text is None and path and wanted:
            self.missing_files[path] = None
        return text


def is_unset_shell_value(value: ShellValue | None) -> bool:
    """Return whether a shell value is empty or only a reference to an unset variable."""
    return not value or (isinstance(value, str) and _REFERENCE.fullmatch(value) is not None)


def shell_value_to_text(value: ShellValue) -> str:
    """Return a shell value as one string, with array elements joined by spaces."""
    return value if isinstance(value, str) else " ".join(value)
