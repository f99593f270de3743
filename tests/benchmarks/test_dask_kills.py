"""Weeks on a Dask cluster whose scheduler, workers or network are killed at random: the same bytes, or one message.

python -m pytest -m benchmark -s tests/benchmarks/test_dask_kills.py
"""

# ruff: noqa: T201

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

pytestmark = pytest.mark.benchmark

TIMES = 10
COMMAND = ("train", "week_64xa100", "--played", "40000", "-q")
BESIDE = Path(__file__).parent / "forwarder.py"
HERE = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
"""Workers have the simulator that the command has."""


def started(*argv: str) -> subprocess.Popen[bytes]:
    """A program in a group of its own, which says nothing."""
    quiet = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, *argv], stdout=quiet, stderr=quiet, start_new_session=True, env=HERE)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def until(happens: object) -> None:
    """Waits at most 30 s for a call to say yes."""
    assert callable(happens)
    begun = time.monotonic()
    while not happens():
        assert time.monotonic() - begun < 30.0
        time.sleep(0.05)


@contextlib.contextmanager
def cluster() -> Iterator[tuple[str, dict[str, list[subprocess.Popen[bytes]]]]]:
    """A scheduler, two workers and a forwarder before the scheduler; the address to ask, and the processes by what they
    are."""
    behind, port = free_port(), free_port()
    scheduler = started("-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", str(behind), "--no-dashboard")
    until(lambda: listens(behind))
    worker = ("-m", "dask", "worker", f"tcp://127.0.0.1:{behind}", "--nthreads", "1", "--no-dashboard", "--no-nanny")
    workers = [started(*worker), started(*worker)]
    network = started(str(BESIDE), str(port), str(behind))
    until(lambda: listens(port))
    parts = {"scheduler": [scheduler], "workers": workers, "network": [network]}
    try:
        until(lambda: workers_of(behind) == 2)
        yield f"dask://127.0.0.1:{port}", parts
    finally:
        for each in (scheduler, *workers, network):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()


def workers_of(port: int) -> int:
    """How many the scheduler there has, asked in a process of its own: Dask's threads stay."""
    code = f"from distributed import Client; print(len(Client('tcp://127.0.0.1:{port}').scheduler_info()['workers']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=HERE, check=False)
    return int(done.stdout or 0)


def told(folder: Path, *more: str) -> tuple[subprocess.Popen[str], Path]:
    """The command begun, and the file that it writes."""
    out = folder / "out.json"
    out.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "simcluster", *COMMAND, "--json", str(out), *more]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=HERE), out


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, float]:
    """What it says without a cluster, and about how long it takes there."""
    begun = time.monotonic()
    process, out = told(tmp_path_factory.mktemp("alone"))
    process.communicate()
    return out.read_bytes(), time.monotonic() - begun


@pytest.mark.parametrize("number", range(TIMES))
@pytest.mark.parametrize("what", ["scheduler", "workers", "network"])
def test_whatever_is_killed(what: str, number: int, alone: tuple[bytes, float], tmp_path: Path) -> None:
    dice = Random(f"{what} {number}")
    with cluster() as (address, parts):
        process, out = told(tmp_path, "--executor", address, "--store", "kept.rows")
        time.sleep(dice.uniform(0.3, 1.2) * alone[1])
        early = process.poll() is None
        signals = signal.SIGKILL if what != "network" or number % 2 else signal.SIGSTOP  # cut, or silent
        for each in parts[what]:
            os.killpg(each.pid, signals)
        begun = time.monotonic()
        _, said = process.communicate(timeout=120)
        took = time.monotonic() - begun
    there = len(list(tmp_path.glob("kept.rows")))
    print(
        f"\n{what} {number}: {'while it ran' if early else 'after it'}, status {process.returncode} {took:.1f} s later"
    )
    if process.returncode:
        assert process.returncode == 2
        assert said.count("simcluster: error: ") == 1
        assert "Traceback" not in said
        assert ("run the same command again" in said) or ("no Dask scheduler answers there" in said), said
        assert not out.exists()
        assert there == ("no Dask scheduler" not in said)
        process, out = told(tmp_path, "--store", "kept.rows")
        process.communicate()
    assert out.read_bytes() == alone[0]
