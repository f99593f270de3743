"""A case played in a process of its own: limits, what it writes where, what it runs, and the verdict.

The process is a copy of one that has everything imported, so that a case costs what it does itself.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from fuzz.calls import CALLS
from fuzz.case import BEGUN, Case, Outcome

SECONDS = 10
"""Of the processor, that a case may take."""
MEGABYTES = 2000
"""Of memory, that it may hold."""
ASLEEP = 120
"""Seconds by the clock that it may wait, for nothing that takes a processor, until it hangs."""
STATUSES = (0, 2, 130)
HANGS = 124
"""Status of a case that was stopped since it waited for nothing; as timeout(1) has it."""

_RUNS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn", "socket.connect")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_HEX = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")


def play(kind: str, number: int, case: Case) -> Outcome:
    """The case in a folder of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="fuzz") as name:
        folder, logs = Path(name, "given"), Path(name, "logs")
        folder.mkdir()
        logs.mkdir()
        for file, content in case.files.items():
            folder.joinpath(file).parent.mkdir(parents=True, exist_ok=True)
            folder.joinpath(file).write_bytes(content)
        logs.joinpath("in").write_bytes(case.stdin)
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _child(case, folder, logs)
        status, used = _wait(child)
        told = {
            each: logs.joinpath(each).read_text(errors="replace") if logs.joinpath(each).exists() else ""
            for each in ("out", "err", "audit")
        }
        executed = sorted(each.name for each in folder.rglob("EXECUTED*"))
        shutil.rmtree(folder, ignore_errors=True)
    seconds, megabytes = used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3
    wrong = f"ran {executed}" if executed else _wrong(case, status, seconds, megabytes, told)
    return Outcome(kind, number, status, round(seconds, 2), round(megabytes), wrong, told["err"][-2000:])


def _wait(child: int) -> tuple[int, Any]:
    """Its status (128 and the signal, of one that was killed) and what it used."""
    asleep, before = 0.0, time.monotonic()
    while True:
        found, status, used = os.wait4(child, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return (code if code >= 0 else 128 - code), used
        if asleep > ASLEEP:
            os.kill(child, signal.SIGKILL)
            _, _, used = os.wait4(child, 0)
            return HANGS, used
        time.sleep(0.003 if asleep < 1.0 else 0.05)
        now = time.monotonic()
        asleep += 0.0 if _runs_now(child) else now - before
        before = now


def _runs_now(child: int) -> bool:
    """Does it want the processor?  A machine that others fill makes nothing hang."""
    try:
        return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False


def _child(case: Case, folder: Path, logs: Path) -> None:
    """What the copy does; it never returns."""
    status = 1
    try:
        _stand_in(folder, logs)
        if case.call:
            status = CALLS[case.call](case)
        else:
            from simcluster import cli
            from simcluster.base.progress import set_estimate_limit

            with set_estimate_limit(BEGUN):
                status = cli.main(case.argv)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def _stand_in(folder: Path, logs: Path) -> None:
    """The folder, standard streams, limits and the audit of a case."""
    os.chdir(folder)
    for number, (name, flags) in enumerate(
        (("in", os.O_RDONLY), ("out", os.O_WRONLY | os.O_CREAT), ("err", os.O_WRONLY | os.O_CREAT))
    ):
        os.dup2(os.open(logs / name, flags), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="strict", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.update(COLUMNS="80", NO_COLOR="1", HOME=str(folder))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS + 1, SECONDS + 1))
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    most = pages * resource.getpagesize() + MEGABYTES * 10**6
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**9, 10**9))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.dont_write_bytecode = True
    audit = os.open(logs / "audit", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def heard(event: str, given: tuple[Any, ...]) -> None:
        if event in _RUNS or (event == "open" and _outside(given, folder)):
            os.write(audit, f"{event} {given!r}"[:300].encode(errors="replace") + b"\n")

    sys.addaudithook(heard)


def _outside(given: tuple[Any, ...], folder: Path) -> bool:
    """Is a file opened to be written that is not in the folder?"""
    name, mode, flags = given
    writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (mode is None and flags & _WRITES)
    if not writes or isinstance(name, int):
        return False
    path = os.path.realpath(os.fsdecode(name))
    return not path.startswith((os.path.realpath(folder), "/dev/null", "/dev/shm", "/proc/self"))


def _wrong(case: Case, status: int, seconds: float, megabytes: float, told: dict[str, str]) -> str:
    """What a case did that none may do; nothing of one that is as it should be."""
    if "Traceback" in told["err"] or "Traceback" in told["out"]:
        return f"traceback: {_where(told['err'])}"
    if status == HANGS:
        return f"hangs: waits for more than {ASLEEP} s"
    if seconds > SECONDS:
        return f"takes more than {SECONDS} s of processor"
    if megabytes > MEGABYTES:
        return f"takes more than {MEGABYTES} MB"
    if status not in STATUSES:
        return f"status {status}"
    if told["audit"]:
        return f"does {told['audit'].splitlines()[0]}"
    if status == 2 and told["err"].count("simcluster: error:") != 1 and not case.call:
        return "status 2 without one message"
    if any(
        (ord(each) < 32 and each not in "\n\t") or 0x7F <= ord(each) < 0xA0 or each in "\u202e\u2028"
        for each in told["err"] + told["out"]
    ):
        return "prints control characters"
    if status == 0 and case.argv[-2:] == ["--json", "-"]:
        try:
            json.loads(told["out"], parse_constant=lambda word: (_ for _ in ()).throw(ValueError(f"{word} in it")))
        except ValueError as problem:
            return f"JSON that is none: {problem}"
    return ""


def _where(errors: str) -> str:
    """The last line of ours in a traceback, and what was raised, by which equal failures are known."""
    ours = [
        line.strip()
        for line in errors.splitlines()
        if line.lstrip().startswith("File") and "simcluster/" in line and "fuzz" not in line
    ]
    raised = [
        line
        for line in errors.splitlines()
        if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Warning|Interrupt|Exit)\b", line)
    ]
    place = re.sub(r'.*simcluster/([\w/]+\.py)", line (\d+), in (\S+)', r"\1:\2 \3", ours[-1]) if ours else "?"
    return f"{place}: {_HEX.sub('N', raised[-1])[:160] if raised else '?'}"
