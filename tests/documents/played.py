"""Pages whose commands are played in order in one folder: under a block of commands stands what its last one prints.

A block of ``text`` behind one of ``bash`` is that output; a line ``...`` in it stands for lines that are left out.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

from documents.commands import ROOT, inside, run_in

PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in ("tutorial", "cookbook"))
LEFT_OUT = "...\n"
_BLOCK = re.compile(r"```bash\n(?P<commands>.*?)```\n(?:\n```text\n(?P<shown>.*?)```\n)?", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Commands, and the output that stands below them (None where none does), with its place in the page."""

    commands: tuple[str, ...]
    shown: str | None
    span: tuple[int, int]

    @property
    def study(self) -> str | None:
        """The script that it runs."""
        words = self.commands[-1].split()
        return Path(words[1]).stem if words[0] == "python" else None

    @property
    def wanted(self) -> bool:
        """Is something shown of it, or a file written that a later one may read?"""
        return self.shown is not None or any(".yaml" in each.split()[-1] for each in self.commands)


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    found = []
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        lines = match["commands"].replace("\\\n", " ").splitlines()
        commands = tuple(line for line in lines if line and not line.startswith("#"))
        found.append(Block(commands, match["shown"], match.span("shown")))
    return found


@cache
def printed(page: Path, *, studies: bool = True, every: bool = False) -> dict[int, str]:
    """Return what each block's last command prints, by the block's number, of scripts and unwanted ones if asked."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, block in enumerate(blocks_of(page)):
            if every or (block.wanted and (studies or block.study is None)):
                for command in block.commands:
                    found[number] = _run(Path(folder), command)
    return found


def _run(folder: Path, command: str) -> str:
    command, _, file = command.partition(" > ")
    if command.startswith("python "):
        return study(command.split()[1])
    done = run_in(folder, command, paint=False)
    assert done.status == 0, f"{command}: {done.errors}"
    if file:
        (folder / file).write_text(done.out, encoding="utf-8")
    return done.out


def run_here(command: str) -> str:
    """What a command prints in an empty folder that sees the clone's."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), command)


@cache
def study(path: str) -> str:
    """What a script of ``scenarios`` prints."""
    out = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        inside(Path(folder)),
        mock.patch.object(sys, "argv", [path]),
        contextlib.redirect_stdout(out),
    ):
        runpy.run_path(str(ROOT / path), run_name="__main__")
    return out.getvalue()


def is_shown(block: Block, now: str) -> bool:
    """Does the page show what is printed, but for lines left out?"""
    assert block.shown is not None
    head, cut, tail = block.shown.partition(LEFT_OUT)
    now = _plain(now)
    return now == head if not cut else now.startswith(head) and now.endswith(tail) and bool(head)


def stale(page: Path) -> list[str]:
    """The commands below which something else stands than they print."""
    blocks, now = blocks_of(page), printed(page)
    return [
        f"{block.commands[-1]}: prints something else"
        for number, block in enumerate(blocks)
        if block.shown is not None and not is_shown(block, now[number])
    ]


def renewed(page: Path) -> str:
    """The page with what is printed now; as many lines are shown before and behind those left out as before."""
    whole, now = page.read_text(encoding="utf-8"), printed(page)
    for number, block in reversed(list(enumerate(blocks_of(page)))):
        if block.shown is not None:
            begin, end = block.span
            whole = whole[:begin] + _cut(_plain(now[number]), block.shown) + whole[end:]
    return whole


def _plain(text: str) -> str:
    """Without the spaces that a table has at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def _cut(now: str, shown: str) -> str:
    head, cut, tail = shown.partition(LEFT_OUT)
    if not cut:
        return now
    lines, behind = now.splitlines(keepends=True), tail.count("\n")
    return "".join([*lines[: head.count("\n")], LEFT_OUT, *(lines[-behind:] if behind else [])])


def all_commands() -> Iterator[tuple[Path, str]]:
    """Every command of the pages with its page."""
    for page in PAGES:
        for block in blocks_of(page):
            yield from ((page, shlex.join(shlex.split(command))) for command in block.commands)
