"""What the commands share: tables for people, JSON for programs, files that can be written.  Imports errors only."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simcluster.errors import InputError


def add_override_arguments(parser: argparse.ArgumentParser) -> None:
    """--set a.b=c, repeatable; the other two spellings reach the command in ``args.overrides``."""
    parser.add_argument(
        "--set",
        dest="set",
        action="append",
        default=[],
        metavar="A.B=C",
        help="change the scenario; also written --a.b c or a.b=c",
    )


def overrides_of(args: argparse.Namespace) -> list[tuple[str, Any]]:
    """Every override on the command line as (path, value): --set first, then the shorter spellings."""
    from simcluster.overrides import parse_override  # heavy: reads YAML

    return [parse_override(text) for text in (*args.set, *args.overrides)]


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned with two spaces between them: the first to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [cell.ljust(width) if not column else cell.rjust(width)
                 for column, (cell, width) in enumerate(zip(row, widths, strict=True))]  # fmt: skip
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def output_path(name: str) -> Path:
    """A path that a result can be written to; InputError before the work is done, not after it."""
    path = Path(name)
    if not path.parent.is_dir():
        raise InputError(f"cannot write {name}: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise InputError(f"cannot write {name}: it is a folder; name a file in it")
    return path


def write_json(name: str, value: object) -> None:
    """JSON to a file, or to stdout for "-"; keys in the order given, numbers in full, no NaN."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    if name == "-":
        sys.stdout.write(text)
    else:
        write_text(output_path(name), text)


def write_text(path: Path, text: str) -> None:
    """A text file; InputError if the system refuses."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror}") from None
