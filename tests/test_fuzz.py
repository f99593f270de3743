"""A few inputs of the fuzzer (``python tests/fuzz``: thousands), and that what no input may do is seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from fuzz import playing
from fuzz.__main__ import jobs, known, table
from fuzz.case import Case, Outcome
from fuzz.kinds import KINDS

DRAWN = (
    "overrides",
    "topology",
    "jobs",
    "schedule as CSV",
    "nccl-tests log",
    "saved result",
    "studio",
    "notebook text",
)
"""Kinds whose inputs need no library that takes long to import."""

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.mark.parametrize("kind", DRAWN)
def test_an_input_of_the_fuzzer_is_answered_or_refused(kind: str) -> None:
    found = playing.play(kind, 0, KINDS[kind](Random(f"suite {kind}")))
    assert found.wrong == "", found.told


def test_the_same_seed_draws_the_same_inputs() -> None:
    drawn = [[KINDS[kind](Random(f"7 {kind} {number}")) for number in range(8)] for kind in DRAWN for _ in range(2)]
    assert drawn[::2] == drawn[1::2]
    assert len({repr(case) for cases in drawn for case in cases}) > 50


def _raises(case: Case) -> int:
    raise KeyError("x")


def _writes_outside(case: Case) -> int:
    Path("../elsewhere").write_text("x")
    return 0


def _runs(case: Case) -> int:
    return subprocess.run([sys.executable, "--version"], check=False).returncode


def _leaves_a_trace(case: Case) -> int:
    Path("EXECUTED").touch()
    return 0


def _takes_memory(case: Case) -> int:
    return len(bytearray(3_000_000_000)) * 0


def _escapes(case: Case) -> int:
    os.write(2, b"\x1b[31m")
    return 2


BAD: dict[str, tuple[Callable[[Case], int], str]] = {
    "raises": (_raises, "traceback: .*KeyError: 'x'"),
    "writes outside": (_writes_outside, "does open"),
    "runs": (_runs, "does subprocess.Popen"),
    "executed": (_leaves_a_trace, r"ran \['EXECUTED'\]"),
    "memory": (_takes_memory, "traceback: .*MemoryError"),
    "status": (lambda case: 3, "status 3"),
    "escapes": (_escapes, "prints control characters"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_input_may_do_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    doing, told = BAD[name]
    monkeypatch.setitem(playing.CALLS, name, doing)
    found = playing.play("kind", 0, Case([], call=name))
    assert re.search(told, found.wrong), found.told


def test_a_run_goes_on_where_it_was_and_prints_what_failed(tmp_path: Path) -> None:
    assert [job[1:] for job in jobs(3, 5, ["study", "jobs"])] == [("study", 0), ("jobs", 0), ("study", 1)]
    path = tmp_path / "seed5.jsonl"
    cut = '{"kind": "study", "num'
    done = (
        '{"kind": "study", "number": 0, "status": 1, "seconds": 0.1, "megabytes": 200, "wrong": "status 1", "told": ""}'
    )
    path.write_text(f"{done}\n{cut}")
    found = known(path)
    assert found == [Outcome("study", 0, 1, 0.1, 200, "status 1", "")]
    assert "python tests/fuzz --seed 5 --again 'study:0'" in table(found, 5)
