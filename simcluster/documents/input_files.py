"""Readers of input files as bytes and UTF-8 text, with hints for missing, unreadable and unsuitable files."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.base.texts import find_similar_words

_BY_BYTES = (
    (b"PAR1", "a Parquet file", "replay a trace in it with simcluster replay"),
    (b"SQLite format 3\0", "an SQLite database", "read an nsys export with simcluster replay or diff"),
    (b"\x1f\x8b", "a gzip file", "run gunzip on it first"),
    (b"PK\x03\x04", "a ZIP archive, such as a spreadsheet", "export its contents as text"),
    (b"\x89PNG", "a picture", "name the file that it was made from"),
    (b"%PDF", "a PDF", "name the file that it was made from"),
    (b"\xff\xfe", "text in UTF-16", "save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "save it as UTF-8"),
)
"""First bytes of a file, the resulting type, and what the user can do."""

_BY_ENDING = {
    ".csv": "name a table in a study (table: FILE.csv), or pass it to the command that reads it, as in simcluster "
    "failures LOG.csv or train --replay LOG.csv",
    ".py": "run Python code as python FILE.py; name a schedule in it as FILE.py:FUNCTION",
    ".sh": "import a launch script with simcluster import megatron",
    ".log": "pass a log by an option, as in simcluster collective --measured LOG or import --log LOG",
    ".txt": "write the keys of a scenario, or make one with simcluster new",
    ".yaml": "read a scenario with simcluster run, stragglers or report",
    ".yml": "read a scenario with simcluster run, stragglers or report",
    ".json": "read a result with simcluster diff, report or compare; a profile ends in .json or .json.gz",
}


_BY_KEYS = (
    (("scenario", "vary"), "a study", "sweep"),
    (("scenario", "table", "measured"), "a study of measured runs", "validate"),
    (("scenario", "table"), "a study", "sweep"),
    (("jobs",), "a file of jobs", "share"),
    (("step_time_s", "breakdown_s"), "a result", "report, diff or compare"),
    (("fits",), "a file of fits", "fit --file"),
    (("kind", "device"), "a topology", "topology, or new --cluster"),
    (("base", "memory"), "a device", "run SCENARIO --cluster.device"),
    (("peak", "memory"), "a device", "run SCENARIO --cluster.device"),
    (("kernels",), "a table of kernels", "diff SCENARIO TRACE --kernels"),
)
"""Keys of a YAML file, the resulting type, and the command that reads it."""


def describe_other_document(keys: Collection[str]) -> str:
    """Describe a YAML document that is not a scenario, and name a command that reads such files; "" if unknown."""
    for needed, what, command in _BY_KEYS:
        if all(key in keys for key in needed):
            return f"{what}, but a scenario is needed; use it with simcluster {command}"
    return ""


def identify_file_type(raw: bytes) -> tuple[str, str]:
    """Identify a file's type from its first bytes; return the type, and what the user can do with such a file."""
    found = next((each[1:] for each in _BY_BYTES if raw.startswith(each[0])), None)
    return found or ("a binary file", "name another file, or save this file as UTF-8 text")


def command_hint(path: str | Path) -> str:
    """Return a message suffix that names the command for a file's extension; "" for other extensions."""
    use = _BY_ENDING.get(Path(path).suffix.lower())
    return f"; {use}" if use else ""


def missing_file_hint(path: Path, ending: str = ".yaml") -> str:
    """Return a message suffix that helps the user find a file that does not exist.

    Names a path that a shell would have expanded, a similar name, files with the ending in its folder, or the folder.
    """
    text, home = str(path), os.path.expanduser(path)  # noqa: PTH111  # Path's own fails for no such user
    if text.startswith("~") and home != text:
        return f"; only a shell expands ~, and not in quotes: write {home}"
    if "$" in text:
        full = os.path.expandvars(text)
        rest = f"write {full}" if full != text else "the variable is not set here: write the full path"
        return f"; only a shell expands variables: {rest}"
    if "\\" in text and os.sep == "/":
        return "; folders are separated by / on this system: write the path with /, as in jobs/a.yaml"
    if not path.parent.is_dir():
        return f" (the folder {path.parent} does not exist either); name an existing file"
    near = ", ".join(find_similar_words(path.name, sorted(each.name for each in path.parent.iterdir()), 0.5, most=3))
    if near:
        return f"; near it: {near}"
    searched = f"; it was searched in {path.parent.resolve()}: name an existing file"
    return folder_files_hint(path.parent, ending) or searched


def unreadable_file_error(path: Path, problem: OSError | ValueError) -> InputError:
    """Return the InputError for a file that the operating system cannot open."""
    reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
    return InputError(f"{str(path)!r}: cannot be read: {reason}")


def folder_files_hint(folder: Path, ending: str = ".yaml") -> str:
    """Return a message suffix that lists the first files in a folder with this extension; "" without any."""
    names = sorted(entry.name for entry in folder.glob(f"*{ending}"))[:8]
    kind = "YAML" if ending == ".yaml" else ending
    return f"; {kind} files there: {', '.join(names)}" if names else ""


MAX_BYTES = 16_000_000
"""Largest file: a dump of a 72-GPU NVLink domain is below 100 kB, the ibnetdiscover listing of 10,000 ports about 2
MB."""


def read_input_bytes(path: str | Path) -> bytes:
    """Return a file's bytes; raise InputError for a file that is unreadable, empty, or above ``MAX_BYTES``."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file{missing_file_hint(path, path.suffix or '.yaml')}") from None
    except (OSError, ValueError) as problem:  # ValueError: a NUL character in the path
        raise unreadable_file_error(path, problem) from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: is larger than {MAX_BYTES:,} bytes, the limit for such files; name a smaller file")
    if not raw.strip():
        raise InputError(f"{path}: the file is empty; fill it, or name another file")
    return raw


def decode_utf8(raw: bytes, source: str) -> str:
    """Decode a file's bytes as UTF-8; raise InputError with the line of the first invalid byte."""
    if b"\0" in raw:
        what, works = identify_file_type(raw)
        raise InputError(f"{source}: is {what}; text is expected: {works}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = raw[: problem.start].count(b"\n") + 1
        raise InputError(
            f"{source}:{line}: byte {problem.start} of the file is not UTF-8; save it as UTF-8 text"
        ) from None
