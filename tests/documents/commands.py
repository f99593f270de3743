"""Command lines as README writes them, run in this process: what they print, and what they draw.

Each command runs once a process, in an empty folder that sees the clone's ``scenarios``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from documents.shown import Shown, shown_by, write_shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).parents[2]
FOLDERS = ("scenarios", "topologies", "examples")  # of the clone, as a command started there sees them


@dataclass(frozen=True)
class Ran:
    """What a command did: its output, and what each picture that it drew shows, by file name."""

    status: int
    out: str
    errors: str
    shown: dict[str, Shown]


@cache
def ran(command: str) -> Ran:
    """The command run, with pictures looked at and not painted: that is most of their time."""
    with tempfile.TemporaryDirectory() as folder:
        return run_in(Path(folder), command, paint=False)


def printed(command: str) -> str:
    """What a command prints.  AssertionError if it fails."""
    done = ran(command)
    assert done.status == 0, f"{command}: {done.errors}"
    return done.out


@cache
def numbers(command: str) -> dict[str, Any]:
    """A command's JSON."""
    found: dict[str, Any] = json.loads(printed(f"{command} --json -"))
    return found


def run_in(folder: Path, command: str, *, paint: bool) -> Ran:
    """Run a command in a folder; where it paints, a PNG says itself what it shows."""
    from simcluster.cli import main

    program, *arguments = shlex.split(command, comments=True)
    assert program == "simcluster", command
    for name in FOLDERS:
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    out, errors = io.StringIO(), io.StringIO()
    with (
        inside(folder),
        drawn(paint=paint) as shown,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        status = main(arguments)
    return Ran(status, out.getvalue(), errors.getvalue(), {path.name: found for path, found in shown.items()})


@contextlib.contextmanager
def drawn(*, paint: bool) -> Iterator[dict[Path, Shown]]:
    """What each figure that is saved meanwhile shows, by its path; ``paint``: it is saved, too, with what it shows."""
    from simcluster.show import figure_files

    found: dict[Path, Shown] = {}
    save = figure_files.save_figure

    def save_figure(figure: Figure, path: str | Path, **options: Any) -> None:
        found[Path(path)] = shown = shown_by(figure)
        if paint:
            save(figure, path, **options)
            if Path(path).suffix == ".png":
                write_shown(Path(path), shown)

    with mock.patch.object(figure_files, "save_figure", save_figure):
        yield found


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, on a terminal that is none, as wide as any."""
    before = Path.cwd()
    plain = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS", "LINES")}
    os.chdir(folder)
    try:
        with mock.patch.dict(os.environ, plain, clear=True):
            yield
    finally:
        os.chdir(before)
