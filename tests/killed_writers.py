"""Every kind of output, killed and on a full disk: afterwards the file is the old one or the new one, whole.

    python tests/killed_writers.py [KILLS] [LIMITS] [SEED] [OUTPUT ...]

For each of OUTPUTS (or of those named) a command is begun KILLS times (100) over an old file and killed outright
(SIGKILL) at a drawn moment, half of them while it writes; then the command runs once more, and nothing is left of the
others.  LIMITS times (20) it finds no more room than a drawn part of what it writes: as a limit on the size of files,
and, where this may mount one, as a file system that is full.  Then it is one message with status 2, and the old file.
``test_written.py`` draws a few of both.
"""

# ruff: noqa: T201

from __future__ import annotations

import contextlib
import importlib
import io
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from simcluster.base import atomic_files
from simcluster.cli import main

SMALL = "model.layers=4 parallel.pp=2 parallel.dp=4 pipeline.schedule=1f1b pipeline.chunks=1 overlap.tensor=false"
"""What makes the steps of the shipped week play in a hundredth of the time: its log is what is written."""
OLD = b"what was here before\n" * 50
OUTPUTS: dict[str, list[str]] = {
    "result.json": ["run", "tiny_3d", "--json"],
    "spans.csv": ["run", "tiny_3d", "--timeline"],
    "spans.parquet": ["run", "tiny_3d", "--timeline"],
    "memory.csv": ["run", "tiny_3d", "--memory"],
    "step.png": ["run", "tiny_3d", "--gantt"],
    "trace.json.gz": ["run", "tiny_3d", "--trace"],
    "page.html": ["report", "tiny_3d", "-o"],
    "rows.csv": ["sweep", "tiny_3d", "--vary", "training.global_batch=8,16", "--executor", "1", "-o"],
    "log.parquet": ["train", "week_64xa100", *SMALL.split(), "--played", "2", "--log"],
    "order.csv": ["schedule", "1f1b", "--stages", "16", "--microbatches", "64", "--table", "--csv"],
    "fabric.svg": ["topology", "dgx_h100", "--plot"],
    "new.yaml": ["plan", "tiny_3d", "--gpus", "8", "--executor", "1", "--write"],
    "first.yaml": ["new", "--model", "llama2-7b", "--cluster", "dgx_h100", "--gpus", "16", "--no-schema", "-o"],
}
"""By the file's name the command that writes it; the path comes last."""


def command(output: Path) -> list[str]:
    """The command that writes this file."""
    return [*OUTPUTS[output.name], str(output), "--quiet"]


def others(output: Path) -> list[str]:
    """What lies beside an output, without the rows of a sweep, which are there to be."""
    return sorted(each.name for each in output.parent.iterdir() if each != output and ".rows" not in each.name)


@contextlib.contextmanager
def no_larger_than(limit: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes: writing fails in the middle, as on a full disk.

    Python keeps no byte code meanwhile: until 3.12 it leaves such files cut, without a word.
    """
    before, kept = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = kept


def _begin(output: Path, room: int | None = None) -> tuple[int, int]:
    """A process that writes the output, and where it says that it begins to write, and what it has to complain."""
    told, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        return child, told
    opened = atomic_files._write_and_replace

    def opening(target: Path, found: os.stat_result | None, new: bool) -> AbstractContextManager[IO[bytes]]:
        os.write(tell, b"!")
        return opened(target, found, new)

    atomic_files._write_and_replace = opening
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno() if room is None else tell, 2)
        with contextlib.nullcontext() if room is None else no_larger_than(room):
            os._exit(main(command(output)))


def _killed(output: Path, new: bytes, draw: random.Random, takes: tuple[float, float]) -> str:
    """Kill a command at a moment; what was found: the old file or the new one, and what it had begun."""
    before_s, writing_s = takes
    output.write_bytes(OLD)
    child, told = _begin(output)
    if draw.random() < 0.5:
        time.sleep(draw.uniform(0, 1.1 * (before_s + writing_s)))
    else:
        os.read(told, 1)
        time.sleep(draw.uniform(0, 1.5 * writing_s))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(told)
    found, beside = output.read_bytes(), others(output)
    assert found in (OLD, new), (output.name, len(found), len(new))
    assert len(beside) <= 1, beside
    assert all(each.startswith(f".{output.name}.") and each.endswith(atomic_files.PARTIAL) for each in beside), beside
    return "half written" if beside else "old" if found == OLD else "new"


def _again(output: Path, new: bytes) -> None:
    child, told = _begin(output)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(told)
    assert output.read_bytes() == new
    assert others(output) == []


def _takes(output: Path) -> tuple[float, float]:
    """Seconds before a command begins to write, and behind that."""
    began = time.monotonic()
    child, told = _begin(output)
    os.read(told, 1)
    writes = time.monotonic()
    os.waitpid(child, 0)
    os.close(told)
    return writes - began, time.monotonic() - writes


def _without_room(output: Path, room: int) -> None:
    """There is not enough room: one message, status 2, and the old file."""
    output.write_bytes(OLD)
    child, told = _begin(output, room)
    said = b""
    while select.select([told], [], [], 60)[0] and (more := os.read(told, 1 << 16)):
        said += more
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(told)
    lines = said.decode().lstrip("!").splitlines()
    assert (status, len(lines)) == (2, 1), (status, lines)
    assert "cannot " in lines[0], lines
    assert output.read_bytes() == OLD
    assert others(output) == []


def _filled(folder: Path, output: Path, room: int) -> None:
    """The same on a file system that has no more than so many bytes left."""
    with (folder / "filling").open("wb", buffering=0) as filling, contextlib.suppress(OSError):
        while True:
            filling.write(bytes(4096))
    os.truncate(folder / "filling", max(0, (folder / "filling").stat().st_size - room))
    output.write_bytes(OLD)  # in a page that it has already
    _without_room(output, 1 << 40)


def main_loop(kills: int, limits: int, seed: int, names: Sequence[str]) -> None:
    """Kill and starve these outputs; says a line of each.  Whoever ends it leaves nothing behind: no file system."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        for name in names:  # what commands import is there then; Parquet's writer has threads, which no fork keeps
            as_text = name.replace(".parquet", ".csv")
            assert main([*OUTPUTS[name], str(Path(folder) / as_text), "--quiet"]) == 0, name
            if as_text != name:
                importlib.import_module("pyarrow.parquet")
    for name in names:
        draw = random.Random(f"{seed} {name}")
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / name
            takes = _takes(output)
            takes = _takes(output)  # what it imports is there now
            new = output.read_bytes()
            found = Counter(_killed(output, new, draw, takes) for _ in range(kills))
            _again(output, new)
            for _ in range(limits):
                _without_room(output, draw.randrange(len(new)))
        mounted = _on_a_full_disk(name, new, limits, draw)
        whole = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
        print(
            f"{name:14} {len(new):9,} B  killed: {whole}; without room: {limits} and {mounted} times the old one",
            flush=True,
        )


def _on_a_full_disk(name: str, new: bytes, limits: int, draw: random.Random) -> int:
    with tempfile.TemporaryDirectory() as folder:
        size = 4096 * (64 + len(new) // 4096)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            return 0
        try:
            output = Path(folder) / "outputs" / name
            output.parent.mkdir()
            for _ in range(limits):
                output.write_bytes(OLD)
                _filled(Path(folder), output, 4096 * draw.randrange(max(1, len(new) // 4096)))
                (Path(folder) / "filling").unlink()
                for each in output.parent.iterdir():
                    each.unlink()
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)  # a command may still be writing there
    return limits


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:4]]
    main_loop(*given, *(100, 20, 0)[len(given) :], sys.argv[4:] or tuple(OUTPUTS))
