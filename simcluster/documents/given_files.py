"""Hints about wrong input files: what a file is by its content or ending, and why one is missing."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from simcluster.base.errors import InputError
from simcluster.base.texts import nearest_words

_BY_BYTES = (
    (b"PAR1", "a Parquet file", "a trace in it is for simcluster replay"),
    (b"SQLite format 3\0", "an SQLite database", "an nsys export is for simcluster replay or diff"),
    (b"\x1f\x8b", "a gzip file", "run gunzip on it first"),
    (b"PK\x03\x04", "a ZIP archive, such as a spreadsheet", "export its contents as text"),
    (b"\x89PNG", "a picture", "name the file that it was made from"),
    (b"%PDF", "a PDF", "name the file that it was made from"),
    (b"\xff\xfe", "text in UTF-16", "save it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "save it as UTF-8"),
)
"""First bytes of a file, what it then is, and what would work."""

_BY_ENDING = {
    ".csv": "name a table in a study (table: FILE.csv), or pass it to the command that reads it, as in simcluster "
    "failures LOG.csv or train --replay LOG.csv",
    ".py": "Python runs as python FILE.py; a schedule in it is named as FILE.py:FUNCTION",
    ".sh": "a launch script is for simcluster import megatron",
    ".log": "name a log by an option, as in simcluster collective --measured LOG or import --log LOG",
    ".txt": "write the keys of a scenario, or make one with simcluster new",
    ".yaml": "a scenario is for simcluster run, stragglers or report",
    ".yml": "a scenario is for simcluster run, stragglers or report",
    ".json": "a result is for simcluster diff, report or compare; a profile ends in .json or .json.gz",
}


_BY_KEYS = (
    (("scenario", "vary"), "a study", "sweep"),
    (("scenario", "table", "measured"), "a study of measured runs", "validate"),
    (("scenario", "table"), "a study", "sweep"),
    (("jobs",), "a file of jobs", "share"),
    (("fits",), "a file of fits", "fit --file"),
    (("kind", "device"), "a topology", "topology, or new --cluster"),
    (("base", "memory"), "a device", "run SCENARIO --cluster.device"),
    (("peak", "memory"), "a device", "run SCENARIO --cluster.device"),
    (("kernels",), "a table of kernels", "diff SCENARIO TRACE --kernels"),
)
"""Keys of a YAML file, what it then is, and the command that reads it."""


def describe_other_document(keys: Collection[str]) -> str:
    """Describe a YAML document that is not a scenario, with the command that reads it; "" if unknown."""
    for needed, what, command in _BY_KEYS:
        if all(key in keys for key in needed):
            return f"{what}, but a scenario is needed; use it with simcluster {command}"
    return ""


def identify_file(raw: bytes) -> tuple[str, str]:
    """Return what kind of file begins with these bytes, and what to do with it."""
    found = next((each[1:] for each in _BY_BYTES if raw.startswith(each[0])), None)
    return found or ("a binary file", "name another, or save this one as UTF-8")


def usage_hint(path: str | Path) -> str:
    """Return the end of a message that says which command reads files with this ending; "" if unknown."""
    use = _BY_ENDING.get(Path(path).suffix.lower())
    return f"; {use}" if use else ""


def missing_file_hint(path: Path, ending: str = ".yaml") -> str:
    """Return the end of a message that helps to find a missing file.

    Names a path that a shell would have expanded, a similar name, files with the ending in its folder, or the folder.
    """
    text, home = str(path), os.path.expanduser(path)  # noqa: PTH111  # Path's own fails for no such user
    if text.startswith("~") and home != text:
        return f"; ~ is the home folder only in a shell, outside quotes: write {home}"
    if "$" in text:
        full = os.path.expandvars(text)
        rest = f"write {full}" if full != text else "it has no value here: write the full path"
        return f"; variables are replaced only by a shell: {rest}"
    if "\\" in text and os.sep == "/":
        return "; folders are separated by / on this system: write the path with /, as in jobs/a.yaml"
    if not path.parent.is_dir():
        return f" (the folder {path.parent} does not exist either); name an existing file"
    near = nearest_words(path.name, sorted(entry.name for entry in path.parent.iterdir()), cutoff=0.5, most=3)
    return f"; near it: {', '.join(near)}" if near else list_files(path.parent, ending) or _searched_hint(path)


def unreadable_error(path: Path, problem: OSError | ValueError) -> InputError:
    """Return the InputError for a file that the operating system refuses to open."""
    reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
    return InputError(f"{str(path)!r}: cannot be read: {reason}")


def _searched_hint(path: Path) -> str:
    return f"; name an existing file: it was searched in {path.parent.resolve()}"


def list_files(folder: Path, ending: str = ".yaml") -> str:
    """Return the end of a message that lists a folder's first files with the ending; "" if there are none."""
    names = sorted(entry.name for entry in folder.glob(f"*{ending}"))[:8]
    kind = "YAML" if ending == ".yaml" else ending
    return f"; {kind} files there: {', '.join(names)}" if names else ""


MAX_BYTES = 16_000_000
"""Largest file: a dump of a 72-GPU NVLink domain is below 100 kB, the ibnetdiscover listing of 10,000 ports about 2
MB."""


def read_bytes(path: str | Path) -> bytes:
    """Return a file's bytes; raise InputError if it is unreadable, empty, or above ``MAX_BYTES``."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file{missing_file_hint(path, path.suffix or '.yaml')}") from None
    except (OSError, ValueError) as problem:  # ValueError: a NUL character in the path
        raise unreadable_error(path, problem) from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"{path}: is larger than {MAX_BYTES:,} bytes, the most for such files; name a smaller one")
    if not raw.strip():
        raise InputError(f"{path}: the file is empty; write it, or name another")
    return raw


def decode_utf8(raw: bytes, source: str) -> str:
    """Decode a file's bytes as UTF-8; raise InputError with the line of the first invalid byte."""
    if b"\0" in raw:
        what, works = identify_file(raw)
        raise InputError(f"{source}: is {what}; text is expected: {works}")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = raw[: problem.start].count(b"\n") + 1
        raise InputError(
            f"{source}:{line}: byte {problem.start} of the file is not UTF-8; save it as UTF-8 text"
        ) from None
